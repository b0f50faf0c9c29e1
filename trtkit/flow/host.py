"""Whether this machine, and the contract's GPUs, have the memory that calibrating and converting take."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from trtkit.catalog.formats import BACKENDS
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.kernels import WORTH_COMPILING_BYTES
from trtkit.contract.formats import WeightFormat
from trtkit.errors import ContractError, Problem
from trtkit.flow.machine import host_place
from trtkit.flow.plan import Question
from trtkit.plan.host import Need, Part, conversion_need, layerwise_need, linear_bytes, whole_need
from trtkit.plan.preflight.target import target_problems
from trtkit.plan.quantization import by_layer_problems, kept_problems, quant_plan_of
from trtkit.plan.step import Place, Way, refusal
from trtkit.plan.types import QuantPlan
from trtkit.quantize.recipes import takes_ranges

_INTERPRETER_BYTES = 62_000_000
_NUMBA_BYTES = 95_000_000
"""What `trtkit convert` takes before it reads weights, and numba with its kernels on top of that."""
_CALIBRATION = "quantization.calibration.max_length"


def plan_step(question: Question, *, calibrates: bool, layer_wise: bool) -> list[Way]:
    """Return the ways in which the contract is converted, and calibrated before that; all of them fit.

    A calibration of a GPU back end is taken to hold the model whole, on the contract's GPUs; with ``layer_wise``, and
    on a CPU, it is what ``trtkit calibrate`` does.

    Raises:
        ContractError: One does not fit; what takes how much is told, and what would hold it.
    """
    asked = question.contract.quantization
    chain = [asked.only(weights) for weights in asked.chain]
    plans = [quant_plan_of(each) for each in chain]
    problems = target_problems(question.contract, question.model)
    problems += by_layer_problems(question.contract, question.model)
    problems += kept_problems(question.contract, question.model)
    if problems:
        raise ContractError([question.located(each) for each in problems])
    formats = {name for each in chain for name in each.formats}
    ways = [_conversion(question, formats)]
    problems = [] if ways[0].fits else [refusal(ways[0], key="model.source")]
    calibrates = calibrates and question.model.kept is None  # what is quantized is taken over as it is
    if calibrates and (calibrated := [each for each in plans if takes_ranges(each)]):
        problems += _length_problems(question)
        light = _layerwise(question, formats)
        heavy = None if layer_wise else _whole(question, calibrated)
        ways.insert(0, heavy or light)
        if not ways[0].fits:
            problems.append(refusal(ways[0], key=_CALIBRATION, instead=light if heavy else None))
    if problems:
        raise ContractError([question.located(each) for each in problems])
    return ways


def _length_problems(question: Question) -> Iterator[Problem]:
    length, most = (
        question.contract.quantization.calibration.max_length,
        question.model.max_position_embeddings,
    )
    if length > most:
        message = f"samples of {length:,} tokens cannot be read: the model takes {most:,}"
        yield Problem(
            message, _CALIBRATION, f"use {min(512, most)}: longer texts are cut into samples of that"
        )


def _whole(question: Question, calibrated: list[QuantPlan]) -> Way | None:
    """Return the calibration on the contract's GPUs; None where its back end has none."""
    engine, dtype = question.contract.engine, question.contract.model.dtype.value
    if not BACKENDS[engine.backend.value].needs_gpu or engine.gpu is None:
        return None
    length = question.contract.quantization.calibration.max_length
    needs = [whole_need(question.model, each, dtype, length, batch=1) for each in calibrated]
    count = engine.tensor_parallel * engine.pipeline_parallel
    largest: Need = max(needs, key=lambda need: need.total_bytes)
    return Way("calibrating the model whole", largest, Place.of_gpus(GPUS[engine.gpu], count))


def _layerwise(question: Question, formats: set[WeightFormat]) -> Way:
    length = question.contract.quantization.calibration.max_length
    need = layerwise_need(question.model, length, searches_int4=any(each.has_groups for each in formats))
    return Way("calibrating layer by layer", need, host_place())


def _conversion(question: Question, formats: set[WeightFormat]) -> Way:
    engine, names = question.contract.engine, {each.value for each in formats}
    gpus = BACKENDS[engine.backend.value].needs_gpu
    ranks = Parallelism(tp=engine.tensor_parallel, pp=engine.pipeline_parallel) if gpus else ONE_RANK
    program = [Part("interpreter and libraries", _INTERPRETER_BYTES)]
    if names - {"none", "int8-wo"} and linear_bytes(question.model) >= WORTH_COMPILING_BYTES:
        program += [Part("compiled kernels", _NUMBA_BYTES)] if find_spec("numba") else []
    need = conversion_need(question.model, names, ranks, program)
    return Way("converting block by block", need, host_place(), calibrates=False)
