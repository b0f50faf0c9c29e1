import pytest

from trtkit.contract import Contract
from trtkit.plan import Machine, ModelConfig


@pytest.fixture
def smollm2() -> ModelConfig:
    """SmolLM2-135M, as its config.json has it."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        hidden_size=576,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_size=64,
        intermediate_size=1536,
        vocab_size=49152,
        hidden_act="silu",
        norm_epsilon=1e-5,
        max_position_embeddings=8192,
        rotary_base=100000.0,
        rotary_scaling=None,
        attn_bias=False,
        mlp_bias=False,
        tie_word_embeddings=True,
        dtype="bfloat16",
        bos_token_id=1,
        eos_token_ids=(2,),
        pad_token_id=2,
    )


@pytest.fixture
def machine() -> Machine:
    return Machine(cores=2, memory_bytes=16 * 10**9)


@pytest.fixture
def contract_with():
    """Build a contract from overrides of single sections."""

    def build(**sections) -> Contract:
        raw = {"name": "t", "model": {"source": "x"}, "classes": {"only": {"priority": 1, "ttft_ms": 500}}}
        return Contract.model_validate(raw | sections)

    return build
