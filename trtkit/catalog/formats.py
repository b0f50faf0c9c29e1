"""Weight and KV-cache formats, and which back end takes which. Data only; the plan decides with it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class WeightFacts:
    """One weight format in TensorRT-LLM's terms (``quantization.quant_algo`` of a checkpoint)."""

    quant_algo: str | None
    weight_bits: int
    scale_per_row: bool = False
    """One scale per output channel beside the weights, in the model's data type or in float32."""
    float32_scales: bool = False
    group_values: int = 0
    """Numbers per output channel and group of input channels (a scale, a zero point), in the model's data type."""
    scale_per_column: bool = False
    """One number per input channel, in the model's data type: what activations are multiplied by."""
    compute: str = "fp16"
    """Rate of the tensor cores that its products run at: ``fp16``, ``int8`` or ``fp8``."""


WEIGHTS: dict[str, WeightFacts] = {
    "none": WeightFacts(None, 16),
    "int8-wo": WeightFacts("W8A16", 8, scale_per_row=True),
    "int8-sq": WeightFacts(
        "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", 8, scale_per_row=True, float32_scales=True, compute="int8"
    ),
    "fp8": WeightFacts("FP8", 8, compute="fp8"),
    "fp8-rowwise": WeightFacts(
        "FP8_PER_CHANNEL_PER_TOKEN", 8, scale_per_row=True, float32_scales=True, compute="fp8"
    ),
    "int4-awq": WeightFacts("W4A16_AWQ", 4, group_values=1, scale_per_column=True),
    "int4-gptq": WeightFacts("W4A16_GPTQ", 4, group_values=2),
    "w4a8-awq": WeightFacts("W4A8_AWQ", 4, group_values=1, scale_per_column=True, compute="fp8"),
}

SMOOTHQUANT: dict[str, str] = {
    "per-channel-per-token": "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN",
    "per-channel": "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN",
    "per-token": "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN",
    "per-tensor": "W8A8_SQ_PER_TENSOR_PLUGIN",
    "qdq": "W8A8_SQ_PER_CHANNEL",
}
"""Forms of ``int8-sq`` to ``quant_algo``; the first one is the most accurate."""

KV_CACHE: dict[str, str | None] = {"auto": None, "int8": "INT8", "fp8": "FP8"}
"""Contract name to ``quantization.kv_cache_quant_algo``."""


DEFAULT_GROUP = 128
"""Input channels that share a scale in INT4 formats."""


@dataclass(frozen=True)
class BackendFacts:
    """What one back end of this release takes."""

    weights: tuple[str, ...]
    kv_cache: tuple[str, ...]
    tokens_per_block: tuple[int, ...]
    max_ranks: int
    needs_gpu: bool
    rope_types: tuple[str, ...]
    """Scalings of rotary embeddings; every back end runs those without."""
    architectures: tuple[str, ...]
    """Model families; empty for all that trtkit converts."""
    all_attention: bool
    """Whether it runs caps on scores, ALiBi, and LongRoPE beyond the original length."""
    sliding_window: bool
    """Whether attention can be kept from reaching all the way back."""
    cache_per_slot: bool = False
    """Whether each request that runs has a cache of full length of its own, instead of blocks of a pool."""


_TRTLLM = BackendFacts(
    weights=tuple(WEIGHTS),
    kv_cache=tuple(KV_CACHE),
    tokens_per_block=(8, 16, 32, 64, 128),
    max_ranks=1024,
    needs_gpu=True,
    rope_types=("linear", "llama3", "longrope", "yarn"),
    architectures=(),
    all_attention=True,
    sliding_window=True,
)
"""TensorRT-LLM and what takes the same models; which formats depends on the GPU: ``support.py`` has them."""

_DENSE = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "GraniteForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
    "GPT2LMHeadModel",
    "GPTNeoXForCausalLM",
    "FalconForCausalLM",
)
"""Decoders that trtkit writes graphs of by itself."""

_GRAPH = replace(
    _TRTLLM,
    weights=("none", "int8-wo", "int8-sq", "fp8", "fp8-rowwise", "int4-awq"),
    kv_cache=("auto",),
    max_ranks=1,
    architectures=(*_DENSE, "MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"),
    all_attention=False,
    cache_per_slot=True,
)
"""One ONNX graph with a cache for each slot, in the graph's own type."""

BACKENDS: dict[str, BackendFacts] = {
    # OpenVINO's CPU plugin has one block size, and its products are int8 where the format's are, else float32.
    "cpu": BackendFacts(
        tuple(WEIGHTS),
        ("auto", "int8", "fp8"),
        (32,),
        max_ranks=1,
        needs_gpu=False,
        rope_types=("linear", "llama3", "longrope"),
        architectures=_DENSE,
        all_attention=False,
        sliding_window=False,
    ),
    "tensorrt": _TRTLLM,
    "llmapi": _TRTLLM,
    "vllm": _TRTLLM,
    # Its exporter was tried with one rank.
    "edgellm": replace(_TRTLLM, max_ranks=1),
    "rtx": _GRAPH,
    # The same graph on ONNX Runtime.
    "onnx": replace(_GRAPH, needs_gpu=False),
}
"""Back ends that plans are made for."""

BUILT = ("cpu", "onnx", "rtx", "tensorrt", "llmapi", "vllm", "edgellm")
"""Those of them that this release builds for."""
