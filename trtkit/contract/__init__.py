"""The contract: one file that says what is served, how it is quantized, and what was promised."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtkit.contract.load import ContractFile, load_contract
    from trtkit.contract.models import Contract
    from trtkit.contract.service import ServiceClass

__all__ = ["Contract", "ContractFile", "ServiceClass", "load_contract"]


def __getattr__(name: str) -> Any:
    """Import the models when the first of them is asked for: a command line's help needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = {"Contract": "models", "ServiceClass": "service"}.get(name, "load")
    return getattr(import_module(f"{__name__}.{home}"), name)
