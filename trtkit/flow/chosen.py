"""The format that a build came to, for verbs that need its plan and build nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.contract import ContractFile
from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.engine.keys import REPO
from trtkit.engine.manifest import read_manifest
from trtkit.engine.store import Store
from trtkit.engine.uses import read_uses
from trtkit.errors import InputError, Problem, Severity
from trtkit.flow.build import Report, resolve
from trtkit.flow.chain import attempts
from trtkit.plan import Plan

Pair = tuple[WeightFormat, KvCacheFormat]
"""Formats of weights and KV cache."""


def resolve_chosen(file: ContractFile, store: Store, report: Report) -> tuple[HfCheckpoint, Plan]:
    """Find the contract's source, and plan for the format that its last build in the store came to.

    Without such a build, of a contract with more than one format, the first one is planned for, and a warning says so.

    Raises:
        InputError: The source or the contract is wrong.
    """
    chain = {_pair(each.file): each.file for each in attempts(file)}
    if len(chain) == 1:
        return resolve(file, store, report)
    built = _last_built(file, store)
    source, plan = resolve(chain.get(built, file) if built else file, store, report)
    if built not in chain:
        message = f"the gate decides between {', '.join(map(_said, chain))}, and no build of this"
        message += f" contract is in the store: planned for {_said(_pair(file))}"
        hint = (
            "build it here with the same --set, or name the format: --set quantization.weights=FORMAT --set "
        )
        hint += "quantization.fallback=[] --set quantization.kv_fallback=[]"
        unknown = file.locate(Problem(message, "quantization.fallback", hint, severity=Severity.WARNING))
        plan = replace(plan, warnings=(*plan.warnings, unknown))
    return source, plan


def _pair(file: ContractFile) -> Pair:
    return file.contract.quantization.weights, file.contract.quantization.kv_cache


def _said(pair: Pair) -> str:
    weights, cache = pair
    return weights.value + ("" if cache is KvCacheFormat.AUTO else f" with {cache.value} KV cache")


def _last_built(file: ContractFile, store: Store) -> Pair | None:
    """Return the formats of the repository that the contract's last build ended with."""
    place = str(file.path.resolve())
    uses = [
        each for each in read_uses(store.root) if (each.contract, each.overrides) == (place, file.changes)
    ]
    paths = [store.root / product for use in uses for product in use.products]
    found = [_formats_of(path) for path in paths if path.parent.name == REPO]
    return found[0] if found else None


def _formats_of(repository: Path) -> Pair | None:
    try:
        manifest = read_manifest(repository)
        built = manifest.origin["plan"]["quantization"] if manifest else None
        return (WeightFormat(built["weights"]), KvCacheFormat(built["kv_cache"])) if built else None
    except (InputError, LookupError, TypeError, ValueError):
        return None
