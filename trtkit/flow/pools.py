"""The plans of a contract's pools."""

from __future__ import annotations

from dataclasses import replace

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.contract import ContractFile
from trtkit.contract.pools import DEFAULT_POOL
from trtkit.engine.store import Store
from trtkit.errors import ContractError
from trtkit.flow.build import Report
from trtkit.flow.chosen import resolve_chosen
from trtkit.plan import Plan


def plan_pools(file: ContractFile, store: Store, report: Report) -> tuple[HfCheckpoint, dict[str, Plan]]:
    """Find the contract's source, and plan each of its pools.

    Raises:
        InputError: The source or the contract is wrong.
    """
    found = {name: _resolve(name, each, store, report) for name, each in file.of_pools().items()}
    source = next(iter(found.values()))[0]
    return source, {name or DEFAULT_POOL: plan for name, (_, plan) in found.items()}


def _resolve(pool: str, file: ContractFile, store: Store, report: Report) -> tuple[HfCheckpoint, Plan]:
    try:
        return resolve_chosen(file, store, report)
    except ContractError as error:
        if not pool:
            raise
        raise ContractError(
            [
                replace(each, message=f"with the limits of pool {pool}, {each.message}")
                for each in error.problems
            ]
        ) from None
