"""The plans of a contract's pools."""

from __future__ import annotations

from dataclasses import replace

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.contract import ContractFile
from trtkit.engine.store import Store
from trtkit.errors import ContractError
from trtkit.flow.build import Report
from trtkit.flow.chosen import resolve_chosen
from trtkit.plan import Plan


def plan_pools(file: ContractFile, store: Store, report: Report) -> tuple[HfCheckpoint, dict[str, Plan]]:
    """Find the contract's source, and plan each of its pools; those with the limits of ``engine`` share its plan.

    Raises:
        InputError: The source or the contract is wrong.
    """
    contract = file.contract
    source, plan = resolve_chosen(file, store, report)
    plans = {}
    for name in contract.pools_by_length:
        own = contract.for_pool(name)
        same = own.engine.limits == contract.engine.limits
        plans[name] = plan if same else _plan_of(name, replace(file, contract=own), store, report)
    return source, plans


def _plan_of(pool: str, file: ContractFile, store: Store, report: Report) -> Plan:
    try:
        return resolve_chosen(file, store, report)[1]
    except ContractError as error:
        raise ContractError(
            [
                replace(each, message=f"with the limits of pool {pool}, {each.message}")
                for each in error.problems
            ]
        ) from None
