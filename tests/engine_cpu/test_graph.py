"""The graph's logits against a forward pass written from the checkpoint format alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engine_cpu.reference import TOKENS, Reference, Session
from trtkit.engine.cpu.graph import build_model
from trtkit.errors import StageError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="gqa"),
        pytest.param({"tied": True}, id="tied"),
        pytest.param({"num_key_value_heads": 4}, id="mha"),
        pytest.param({"rotary_scaling": LLAMA3}, id="llama3-rope"),
        pytest.param({"rotary_scaling": {"rope_type": "linear", "factor": 4.0}}, id="linear-rope"),
        pytest.param({"attn_bias": True, "mlp_bias": True}, id="bias"),
        pytest.param({"qk_norm": True, "architecture": "Qwen3ForCausalLM"}, id="qk-norm"),
        pytest.param({"head_size": 32}, id="wide-heads"),
        pytest.param({"dtype": "float16"}, id="float16"),
        pytest.param({"quantization": {"quant_algo": "W8A16"}}, id="int8"),
        pytest.param(
            {"quantization": {"quant_algo": "W8A16"}, "tied": True, "attn_bias": True}, id="int8-tied-bias"
        ),
    ],
)
def test_logits_agree_with_the_reference(checkpoint: Any, changes: dict[str, Any]) -> None:
    opened = checkpoint(**changes)
    expected = Reference(opened).logits(TOKENS[0])
    assert np.abs(Session(opened).feed(TOKENS) - expected).max() < 1e-3
    assert expected.std() > 1  # the bar means something


def test_state_carries_the_past(checkpoint: Any) -> None:
    opened = checkpoint()
    whole, pieces = Session(opened).feed(TOKENS), Session(opened)
    parts = [pieces.feed(TOKENS[:, :4]), pieces.feed(TOKENS[:, 4:5]), pieces.feed(TOKENS[:, 5:])]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-4)


def test_weights_keep_their_stored_type(checkpoint: Any) -> None:
    def constant_bytes(model: Any, element_type: str) -> int:
        constants = (op for op in model.get_ops() if op.get_type_name() == "Constant")
        return sum(
            op.get_byte_size() for op in constants if op.get_element_type().get_type_name() == element_type
        )

    opened = checkpoint(quantization={"quant_algo": "W8A16"})
    linear = sum(opened.tensor(n).size for n in opened.names if ".layers." in n and "layernorm" not in n)
    tables = sum(opened.tensor(n).nbytes for n in ("transformer.vocab_embedding.weight", "lm_head.weight"))
    model = build_model(opened)
    assert (constant_bytes(model, "i8"), constant_bytes(model, "bf16")) == (linear, tables)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"quantization": {"quant_algo": "W4A16_GPTQ"}}, "W4A16_GPTQ"),
        ({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "NVFP4"}}, "NVFP4"),
        ({"architecture": "MixtralForCausalLM"}, "MixtralForCausalLM"),
        ({"rotary_scaling": {"type": "yarn", "factor": 2.0}}, "yarn"),
        ({"hidden_act": "relu"}, "relu"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"position_embedding_type": "alibi_with_scale"}, "ALiBi"),
        ({"moe": {"num_experts": 8, "top_k": 2}}, "mixture"),
        ({"rotary_embedding_dim": 8}, "rotary_embedding_dim"),
    ],
)
def test_what_the_graph_cannot_express_is_refused_by_name(checkpoint: Any, changes: dict, named: str) -> None:
    with pytest.raises(StageError, match=named) as caught:
        build_model(checkpoint(**changes))
    assert caught.value.hint


def test_missing_tensor_is_named(checkpoint: Any) -> None:
    opened = checkpoint(num_hidden_layers=2)
    opened.config["num_hidden_layers"] = 3
    with pytest.raises(StageError, match=r"transformer\.layers\.2"):
        build_model(opened)
