"""The chain of formats that a contract may come to be built in, and which calibration each of them takes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from trtkit.contract import ContractFile
from trtkit.contract.formats import WeightFormat
from trtkit.plan.quantization import quant_plan_of
from trtkit.quantize.calibrate.data import Data
from trtkit.quantize.calibrate.purpose import Purpose, Unreached
from trtkit.quantize.calibrate.request import Request
from trtkit.quantize.int4_weights import PURPOSES
from trtkit.quantize.recipes import takes_ranges


@dataclass(frozen=True)
class Attempt:
    """One format of the chain."""

    file: ContractFile
    """The contract, as if it had no other one."""
    calibration: Request | None
    """None where nothing has to be known of activations."""


def attempts(file: ContractFile) -> list[Attempt]:
    """Return the contract once for each pair of formats, of weights and KV cache, that may come to be built.

    A format takes the calibration of one before it where that has what it needs, so that the model runs once for all.
    """
    quantization = file.contract.quantization
    found: list[Attempt] = []
    for cache, weights in itertools.product(quantization.caches, quantization.chain):
        only = quantization.only(weights, cache)
        contract = file.contract.model_copy(update={"quantization": only})
        earlier = [each.calibration.purpose for each in found if each.calibration]
        needs = takes_ranges(quant_plan_of(only))
        calibration = _request(file, _purpose(only.searched, earlier)) if needs else None
        found.append(Attempt(replace(file, contract=contract), calibration))
    return found


def _purpose(weights: WeightFormat, earlier: list[Purpose]) -> Purpose:
    if not weights.has_groups:
        return next(iter(earlier), Purpose.RANGES)
    fitting = [each for each in earlier if each.value in PURPOSES[weights.value]]
    return next(iter(fitting), Purpose(weights.value))


def _request(file: ContractFile, purpose: Purpose) -> Request:
    asked, base = file.contract.quantization.calibration, file.path.parent
    return Request(
        data=Data(base / asked.data if asked.data else None, asked.column),
        purpose=purpose,
        samples=asked.samples,
        max_tokens=asked.max_length,
        seed=asked.seed,
        group_size=file.contract.quantization.group_size if purpose.is_int4 else None,
        unreached=Unreached(asked.unreached),
    )
