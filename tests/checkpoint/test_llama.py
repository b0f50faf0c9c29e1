"""What is published under the class names of Llama and Mistral, read to the last weight."""

from __future__ import annotations

import pytest

from tests.checkpoint.family import COMMON, TINY, keys_of_errors, parameters
from trtkit.plan.hf_config import parse_hf_config

LLAMA2_7B = COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
LLAMA3_ROPE = {
    "factor": 8.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA31_8B = LLAMA2_7B | {
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_key_value_heads": 8,
    "rope_scaling": LLAMA3_ROPE,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
LLAMA32_1B = LLAMA31_8B | {
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "rope_scaling": LLAMA3_ROPE | {"factor": 32.0},
    "tie_word_embeddings": True,
}
SMOLLM2_135M = LLAMA2_7B | {
    "attention_bias": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "is_llama_config": True,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rope_interleaved": False,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
    "vocab_size": 49152,
}
MISTRAL_7B = COMMON | {
    "architectures": ["MistralForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mistral",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
MISTRAL_NEMO = MISTRAL_7B | {
    "head_dim": 128,
    "hidden_size": 5120,
    "max_position_embeddings": 1024000,
    "num_hidden_layers": 40,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "vocab_size": 131072,
}
PUBLISHED = [
    (LLAMA2_7B, 6_738_415_616, []),
    (LLAMA31_8B, 8_030_261_248, []),
    (LLAMA32_1B, 1_235_814_400, []),
    (SMOLLM2_135M, 134_515_008, []),
    (MISTRAL_7B, 7_241_732_096, ["sliding_window"]),
    (MISTRAL_NEMO, 12_247_782_400, []),
]
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA = TINY | {"architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(("config", "count", "warned"), PUBLISHED)
def test_published_models_are_read_to_the_last_weight(config, count, warned):
    assert [problem.key for problem in parse_hf_config(config)[1]] == warned
    assert parameters(config) == count


def test_heads_of_a_size_of_their_own_are_taken_as_they_are():
    assert parse_hf_config(MISTRAL_NEMO)[0].head_size == 128


def test_scaled_rotation_keeps_its_parameters_under_both_names_of_its_type():
    assert parse_hf_config(LLAMA31_8B)[0].rotary_scaling == LLAMA3_ROPE | {"type": "llama3"}


@pytest.mark.parametrize(("given", "missing"), [("mscale", "mscale_all_dim"), ("mscale_all_dim", "mscale")])
def test_one_half_of_yarns_attenuation_is_refused(given, missing):
    """transformers ignores a half, TensorRT-LLM does not."""
    assert keys_of_errors(LLAMA | {"rope_scaling": YARN | {given: 0.7}}) == [f"rope_scaling.{missing}"]
    assert keys_of_errors(LLAMA | {"rope_scaling": YARN | {given: 0.7, missing: 0.7}}) == []
