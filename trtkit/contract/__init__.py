"""The contract: one file that says what is served, how it is quantized, and what was promised."""

from trtkit.contract.load import ContractFile, load_contract
from trtkit.contract.models import Contract, ServiceClass

__all__ = ["Contract", "ContractFile", "ServiceClass", "load_contract"]
