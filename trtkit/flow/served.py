"""What is known of a contract's engine before it is asked: its plan, and how fast its steps are foreseen to be."""

from __future__ import annotations

from pathlib import Path

from trtkit.checkpoint.source import find as find_source
from trtkit.contract import ContractFile
from trtkit.engine.store import Store
from trtkit.errors import EnvironmentLacks
from trtkit.flow.plan import ask
from trtkit.plan import Plan
from trtkit.plan.pace import Speed
from trtkit.plan.speed import speed_of

_CONFIG = "config.json"


def known_plan(file: ContractFile, config: Path | None = None) -> Plan | None:
    """Return the plan, where the model's configuration is given or on this machine; nothing is fetched.

    Raises:
        ContractError: The contract asks for something that cannot be.
    """
    if config is None:
        try:
            folder = find_source(file.contract.model.source, file.path.parent, Store().root / "source")
        except EnvironmentLacks:
            folder = None
        if folder is None or not (folder / _CONFIG).is_file():
            return None
        config = folder / _CONFIG
    return ask(file, config).answer()


def foreseen_speed(plan: Plan) -> Speed | None:
    """Return how fast the plan's GPU is: measured silicon or a roofline; None where there is no GPU to know of."""
    if plan.target is None:
        return None
    target = plan.target
    return speed_of(plan.model, target.gpu, target.ranks, plan.quantization, plan.dtype, backend=plan.backend)
