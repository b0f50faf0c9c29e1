"""The graph's logits against a forward pass written from the checkpoint format alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest

from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.checkpoint.weight_only import dequantize_int8, quantize_int8
from trtkit.engine.cpu.graph import build_model
from trtkit.errors import StageError

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
TOKENS = np.array([[3, 250, 17, 9, 9, 301, 42, 5, 77, 120, 8, 399, 0, 63, 31]])


class Reference:
    """A decoder in float64, token by token, weights as stored."""

    def __init__(self, checkpoint: TrtllmCheckpoint) -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config

    def get(self, name: str) -> np.ndarray:
        return self.checkpoint.tensor(name).astype(np.float64)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        weight = self.get(name + ".weight")
        if self.config["quantization"]["quant_algo"] == "W8A16":
            weight = dequantize_int8(*quantize_int8(self.checkpoint.tensor(name + ".weight")))
        y = x @ weight.T
        return y + self.get(name + ".bias") if name + ".bias" in self.checkpoint else y

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        return (
            x
            / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["norm_epsilon"])
            * self.get(name + ".weight")
        )

    def angle(self, position: int) -> np.ndarray:
        size, scaling = self.config["head_size"], self.config["rotary_scaling"]
        angles = []
        for pair in range(size // 2):
            frequency = 1 / self.config["rotary_base"] ** (2 * pair / size)
            if scaling and scaling["rope_type"] == "linear":
                frequency /= scaling["factor"]
            elif scaling:
                original = scaling["original_max_position_embeddings"]
                wavelength = 2 * np.pi / frequency
                low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
                if wavelength > original / low:
                    frequency /= scaling["factor"]
                elif wavelength > original / high:
                    smooth = (original / wavelength - low) / (high - low)
                    frequency = (1 - smooth) * frequency / scaling["factor"] + smooth * frequency
            angles.append(position * frequency)
        return np.array(angles)

    def rotate(self, x: np.ndarray, position: int) -> np.ndarray:
        angle, half = self.angle(position), x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        return np.concatenate(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], axis=-1
        )

    def attend(self, q: np.ndarray, keys: list[np.ndarray], values: list[np.ndarray]) -> np.ndarray:
        group = len(q) // len(keys[0])
        out = []
        for head, query in enumerate(q):
            scores = np.array([query @ key[head // group] for key in keys]) / np.sqrt(len(query))
            weights = np.exp(scores - scores.max())
            out.append(
                sum(
                    w * value[head // group] for w, value in zip(weights / weights.sum(), values, strict=True)
                )
            )
        return np.concatenate(out)

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        c = self.config
        heads, kv_heads, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_size"]
        cache: list[tuple[list, list]] = [([], []) for _ in range(c["num_hidden_layers"])]
        embedding = self.get("transformer.vocab_embedding.weight")
        head = self.get("lm_head.weight") if "lm_head.weight" in self.checkpoint else embedding
        rows = []
        for position, token in enumerate(tokens):
            x = embedding[token]
            for index, (keys, values) in enumerate(cache):
                layer = f"transformer.layers.{index}."
                qkv = self.linear(self.norm(x, layer + "input_layernorm"), layer + "attention.qkv")
                q, k, v = np.split(qkv.reshape(-1, size), [heads, heads + kv_heads])
                if layer + "attention.q_layernorm.weight" in self.checkpoint:
                    q = self.norm(q, layer + "attention.q_layernorm")
                    k = self.norm(k, layer + "attention.k_layernorm")
                keys.append(self.rotate(k, position))
                values.append(v)
                attended = self.attend(self.rotate(q, position), keys, values)
                x = x + self.linear(attended, layer + "attention.dense")
                h = self.norm(x, layer + "post_layernorm")
                gated = self.linear(h, layer + "mlp.fc")
                gated = gated / (1 + np.exp(-gated)) * self.linear(h, layer + "mlp.gate")
                x = x + self.linear(gated, layer + "mlp.proj")
            rows.append(self.norm(x, "transformer.ln_f") @ head.T)
        return np.array(rows)


class Session:
    """The graph as OpenVINO's plain stateful model."""

    def __init__(self, checkpoint: TrtllmCheckpoint) -> None:
        exact = {
            "INFERENCE_PRECISION_HINT": "f32",
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
            "INFERENCE_NUM_THREADS": 1,
        }
        self.request = ov.Core().compile_model(build_model(checkpoint), "CPU", exact).create_infer_request()
        self.seen = 0

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        start, self.seen = self.seen, self.seen + tokens.shape[1]
        inputs = {
            "input_ids": tokens,
            "attention_mask": np.ones((1, self.seen), np.int64),
            "position_ids": np.arange(start, self.seen)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return self.request.infer(inputs)["logits"][0].copy()


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
        ({"quantization": {"quant_algo": "FP8"}}, "FP8"),
        ({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "INT8"}}, "INT8"),
        ({"quantization": {"quant_algo": "W8A16", "exclude_modules": ["*mlp*"]}}, "exclude_modules"),
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
