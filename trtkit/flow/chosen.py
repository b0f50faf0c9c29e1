"""The format that a build came to, for verbs that need its plan and build nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.contract import ContractFile
from trtkit.contract.formats import WeightFormat
from trtkit.engine.keys import REPO
from trtkit.engine.manifest import read_manifest
from trtkit.engine.store import Store
from trtkit.engine.uses import read_uses
from trtkit.errors import InputError, Problem, Severity
from trtkit.flow.build import Report, resolve
from trtkit.flow.chain import attempts
from trtkit.plan import Plan


def resolve_chosen(file: ContractFile, store: Store, report: Report) -> tuple[HfCheckpoint, Plan]:
    """Find the contract's source, and plan for the format that its last build in the store came to.

    Without such a build, of a contract with more than one format, the first one is planned for, and a warning says so.

    Raises:
        InputError: The source or the contract is wrong.
    """
    chain = {each.file.contract.quantization.weights: each.file for each in attempts(file)}
    if len(chain) == 1:
        return resolve(file, store, report)
    built = _last_built(file, store)
    source, plan = resolve(chain.get(built, file) if built else file, store, report)
    if built not in chain:
        message = f"the gate decides between {', '.join(each.value for each in chain)}, and no build of this"
        message += f" contract is in the store: planned for {plan.quantization.weights}"
        hint = (
            "build it here with the same --set, or name the format: --set quantization.weights=FORMAT --set "
        )
        hint += "quantization.fallback=[]"
        unknown = file.locate(Problem(message, "quantization.fallback", hint, severity=Severity.WARNING))
        plan = replace(plan, warnings=(*plan.warnings, unknown))
    return source, plan


def _last_built(file: ContractFile, store: Store) -> WeightFormat | None:
    """Return the format of the repository that the contract's last build ended with."""
    place = str(file.path.resolve())
    uses = [
        each for each in read_uses(store.root) if (each.contract, each.overrides) == (place, file.overrides)
    ]
    paths = [store.root / product for use in uses for product in use.products]
    found = [_format_of(path) for path in paths if path.parent.name == REPO]
    return found[0] if found else None


def _format_of(repository: Path) -> WeightFormat | None:
    try:
        manifest = read_manifest(repository)
        return WeightFormat(manifest.origin["plan"]["quantization"]["weights"]) if manifest else None
    except (InputError, LookupError, TypeError, ValueError):
        return None
