"""What all rooms' tests share."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from trtkit.plan import ModelConfig

# How long an example takes says something about the machine's neighbours, not about the code.
settings.register_profile("trtkit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples at every run, so that a red CI means a change.
settings.register_profile("ci", settings.get_profile("trtkit"), derandomize=True)
settings.load_profile("ci" if "CI" in os.environ else "trtkit")

# Started in the background, or by nohup, tests would hand ignored signals on to the processes that they interrupt.
for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)


@pytest.fixture(scope="session")
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
