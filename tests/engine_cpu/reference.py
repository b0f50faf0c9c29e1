"""A decoder written from the checkpoint format alone, and the graph as a plain stateful model."""

from __future__ import annotations

import numpy as np
import openvino as ov

from tests.engine_cpu.formats import cached, linear
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.checkpoint.weight_only import dequantize_int8, quantize_int8
from trtkit.engine.cpu.graph import build_model

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": 1,
}
TOKENS = np.array([[3, 250, 17, 9, 9, 301, 42, 5, 77, 120, 8, 399, 0, 63, 31]])


class Reference:
    """A decoder in float64, token by token, weights as stored."""

    def __init__(self, checkpoint: TrtllmCheckpoint) -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config

    def get(self, name: str) -> np.ndarray:
        return self.checkpoint.tensor(name).astype(np.float64)

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        block = self.config["quantization"]
        if block["quant_algo"] in (None, "W8A16"):
            weight = self.get(name + ".weight")
            if block["quant_algo"] == "W8A16":
                weight = dequantize_int8(*quantize_int8(self.checkpoint.tensor(name + ".weight")))
            y = x @ weight.T
        else:
            y = linear(self.checkpoint.tensor, block, x, name)
        return y + self.get(name + ".bias") if name + ".bias" in self.checkpoint else y

    def cached(self, y: np.ndarray, layer: str) -> np.ndarray:
        kv_cache = self.config["quantization"].get("kv_cache_quant_algo")
        return cached(y, kv_cache, self.get(layer + "attention.kv_cache_scaling_factor")) if kv_cache else y

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
                keys.append(self.cached(self.rotate(k, position), layer))
                values.append(self.cached(v, layer))
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
        self.compiled = ov.Core().compile_model(build_model(checkpoint), "CPU", EXACT)
        self.request = self.compiled.create_infer_request()
        self.seen = 0

    def restarted(self) -> Session:
        self.request.reset_state()
        self.seen = 0
        return self

    def feed(self, tokens: np.ndarray) -> np.ndarray:
        start, self.seen = self.seen, self.seen + tokens.shape[1]
        inputs = {
            "input_ids": tokens,
            "attention_mask": np.ones((1, self.seen), np.int64),
            "position_ids": np.arange(start, self.seen)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        return self.request.infer(inputs)["logits"][0].copy()
