import pytest

from trtkit.contract import Contract
from trtkit.plan import Machine


@pytest.fixture(scope="session")
def machine() -> Machine:
    return Machine(cores=2, memory_bytes=16 * 10**9)


@pytest.fixture(scope="session")
def contract_with():
    """Build a contract from overrides of single sections."""

    def build(**sections) -> Contract:
        raw = {"name": "t", "model": {"source": "x"}, "classes": {"only": {"priority": 1, "ttft_ms": 500}}}
        return Contract.model_validate(raw | sections)

    return build
