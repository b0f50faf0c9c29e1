"""Format x back end x release line x compute capability, with the reason for each refusal. Data only.

Rows were read from TensorRT-LLM's builder (what it raises goes before what the documentation lists), its support matrix
and precision tables, the quantization page of its PyTorch back end, and from what the compilers of TensorRT for RTX
1.7.1 and Edge-LLM 0.11.0 took. The first row that applies counts; what no row names is refused.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

READ_ON = "2026-11-30"
FIRST_SM, LAST_SM = 75, 121


class Support(str, enum.Enum):
    """What is known of one combination."""

    WORKS = "works"
    UNCERTAIN = "uncertain"
    REFUSED = "refused"


@dataclass(frozen=True)
class Row:
    """One statement."""

    formats: tuple[str, ...]
    sm: tuple[int, int]
    """First and last compute capability that it is about."""
    support: Support
    reason: str = ""
    lines: tuple[str, str] | None = None
    """First and last release line of TensorRT-LLM; None for all."""
    sms: frozenset[int] | None = None
    """Only these of the range; None for all."""


_WORKS, _MAYBE, _NO = Support.WORKS, Support.UNCERTAIN, Support.REFUSED
_ALL, _FROM_ADA, _TO_HOPPER, _BEFORE_FP8 = (80, LAST_SM), (89, LAST_SM), (80, 99), (FIRST_SM, 88)
_DATACENTRE_BLACKWELL, _BLACKWELL, _SMALL_BLACKWELL = (100, 119), (100, LAST_SM), (120, LAST_SM)

_INT8 = ("int8-wo", "int8-sq")
_INT4 = ("int4-awq", "int4-gptq")
_NO_FP8 = "the tensor cores have no FP8 before SM 89"
_RAISES = "the builder raises for {what} on SM 100 to 119"
_UNPROVEN = "the builder lets it through on SM 120, and whether the kernels are right is not known"
_LAYOUT = (
    "no release of the engine flow is known to have the fix for the INT4 layout on SM 120: text is garbage"
)


def _raises(what: str, *formats: str) -> Row:
    return Row(formats, _DATACENTRE_BLACKWELL, _NO, _RAISES.format(what=what))


_NO_FP4 = Row(("nvfp4",), (FIRST_SM, 99), _NO, "the tensor cores have no FP4 before SM 100")
_EARLY = ("0.17", "0.19")
_WHICH_FIRST = "which release first runs on SM 120 is not known"
_TENSORRT = (
    _NO_FP4,
    Row(("nvfp4",), _BLACKWELL, _WORKS),
    Row(("none", "fp8"), _SMALL_BLACKWELL, _MAYBE, _WHICH_FIRST, _EARLY),
    Row(("none",), _ALL, _WORKS),
    Row(("fp8", "fp8-rowwise", "w4a8-awq"), _BEFORE_FP8, _NO, _NO_FP8),
    Row(("fp8",), _FROM_ADA, _WORKS),
    _raises("INT8 and INT4 weight-only layers", "int8-wo", "int4-wo", "int4-awq", "int4-gptq", "w4a8-awq"),
    _raises("SmoothQuant", "int8-sq"),
    _raises("scales per channel or per token", "fp8-rowwise"),
    Row(_INT4, _SMALL_BLACKWELL, _NO, _LAYOUT),
    Row((*_INT8, "int4-wo", "fp8-rowwise", "w4a8-awq"), _SMALL_BLACKWELL, _MAYBE, _UNPROVEN),
    Row((*_INT8, *_INT4, "int4-wo", "fp8-rowwise", "w4a8-awq"), _TO_HOPPER, _WORKS),
)
_TENSORRT_KV = (
    Row(("auto",), _ALL, _WORKS),
    Row(("fp8",), _BEFORE_FP8, _NO, _NO_FP8),
    Row(("fp8",), _FROM_ADA, _WORKS),
    _raises("an INT8 KV cache", "int8"),
    Row(("int8",), _SMALL_BLACKWELL, _MAYBE, _UNPROVEN),
    Row(("int8",), _TO_HOPPER, _WORKS),
)

_PYTORCH_INT8 = "the PyTorch back end of TensorRT-LLM has no INT8 (FP8, NVFP4 and INT4 AWQ or GPTQ only)"
_NOT_LISTED = "the documentation lists the format and not this GPU"
_LLMAPI = (
    _NO_FP4,
    Row(("nvfp4",), _BLACKWELL, _MAYBE, "listed for Blackwell, and not for which of its GPUs"),
    Row(("int4-wo",), _ALL, _NO, "the PyTorch back end of TensorRT-LLM has INT4 as AWQ and GPTQ only"),
    Row(("none",), _ALL, _WORKS),
    Row(_INT8, _ALL, _NO, _PYTORCH_INT8),
    Row(("fp8", "fp8-rowwise", "w4a8-awq"), _BEFORE_FP8, _NO, _NO_FP8),
    Row(("fp8",), _FROM_ADA, _WORKS),
    Row(("fp8-rowwise", "w4a8-awq"), (89, 99), _WORKS),
    Row(_INT4, _TO_HOPPER, _WORKS),
    Row((*_INT4, "fp8-rowwise", "w4a8-awq"), _BLACKWELL, _MAYBE, _NOT_LISTED),
)
_LLMAPI_KV = (
    Row(("auto",), _ALL, _WORKS),
    Row(("int8",), _ALL, _NO, _PYTORCH_INT8),
    Row(("fp8",), _BEFORE_FP8, _NO, _NO_FP8),
    Row(("fp8",), _FROM_ADA, _WORKS),
)

RTX_SMS = frozenset({75, 80, 86, 89, 120, 121})
"""What TensorRT for RTX compiles for."""
RTX_ELSEWHERE = (
    "TensorRT for RTX has no such target: the build gives graph, profiles and a script for TensorRT 11 on that GPU, "
    "and no engine"
)
_RTX_INT4 = "the compiler has no INT4 before SM 80"
_RTX_WIDENS = (
    "the compiler widens INT8 weights that meet 16-bit activations, "
    "so that the engine is as large as that of none"
)
_NO_W4A8 = "no operator of a standard graph multiplies INT4 with FP8"
_NO_GPTQ_GRAPH = (
    "the checkpoint's weights lie as one family of GPUs wants them, which a standard graph does not"
)
_EVERY = ("none", *_INT8, *_INT4, "fp8", "fp8-rowwise", "w4a8-awq", "nvfp4", "int4-wo")
_ANY_SM = (FIRST_SM, LAST_SM)
_RTX = (
    _NO_FP4,
    Row(("nvfp4", "int4-wo"), _ANY_SM, _NO, "no graph is written in the format"),
    Row(("fp8", "fp8-rowwise", "w4a8-awq"), _BEFORE_FP8, _NO, _NO_FP8),
    Row(("w4a8-awq",), _ANY_SM, _NO, _NO_W4A8),
    Row(("int4-gptq",), _ANY_SM, _NO, _NO_GPTQ_GRAPH),
    Row(("int4-awq",), (FIRST_SM, 79), _NO, _RTX_INT4),
    Row(("int8-wo",), _ANY_SM, _MAYBE, _RTX_WIDENS, sms=RTX_SMS),
    Row(("none", "int8-sq", "int4-awq"), _ANY_SM, _WORKS, sms=RTX_SMS),
    Row(("fp8", "fp8-rowwise"), _FROM_ADA, _WORKS, sms=RTX_SMS),
    Row(("none", *_INT8, "int4-awq", "fp8", "fp8-rowwise"), _ANY_SM, _MAYBE, RTX_ELSEWHERE),
)
_LINEAR_KV = "the graph keeps its cache in the model's own type"
_RTX_KV = (
    Row(("auto",), _ANY_SM, _WORKS, sms=RTX_SMS),
    Row(("auto",), _ANY_SM, _MAYBE, RTX_ELSEWHERE),
    Row(("int8", "fp8"), _ANY_SM, _NO, _LINEAR_KV),
)

_EDGE_SMS = frozenset({80, 86, 100, 120})
_EDGE_TARGETS = "Edge-LLM's wheel carries kernels for SM 80, 86, 100 and 120 only (beside Jetson and DRIVE)"
_EDGE_EXPORT = "Edge-LLM's exporter was not tried with the format"
_EDGELLM = (
    _NO_FP4,
    Row(("fp8", "fp8-rowwise", "w4a8-awq"), _BEFORE_FP8, _NO, _NO_FP8),
    Row(("none", "fp8", *_INT4), _ANY_SM, _WORKS, sms=_EDGE_SMS),
    Row(_EVERY, _ANY_SM, _MAYBE, _EDGE_EXPORT, sms=_EDGE_SMS),
    Row(_EVERY, _ANY_SM, _NO, _EDGE_TARGETS),
)
_EDGELLM_KV = (
    Row(("fp8",), _BEFORE_FP8, _NO, _NO_FP8),
    Row(("auto", "fp8"), _ANY_SM, _WORKS, sms=_EDGE_SMS),
    Row(("int8",), _ANY_SM, _NO, "Edge-LLM has no INT8 KV cache"),
    Row(("auto", "fp8"), _ANY_SM, _NO, _EDGE_TARGETS),
)

_VLLM_OWN = "vLLM's own tables decide, and were not compared"
_VLLM = (
    _NO_FP4,
    Row(("none",), _ANY_SM, _WORKS),
    Row(
        ("int8-wo", "int4-wo", "w4a8-awq"), _ANY_SM, _NO, "no checkpoint of the format is one that vLLM reads"
    ),
    Row(_EVERY, _ANY_SM, _MAYBE, _VLLM_OWN),
)
_VLLM_KV = (
    Row(("auto",), _ANY_SM, _WORKS),
    Row(("fp8",), _ANY_SM, _MAYBE, _VLLM_OWN),
    Row(("int8",), _ANY_SM, _NO, "vLLM has no INT8 KV cache"),
)

WEIGHT_SUPPORT: Mapping[str, tuple[Row, ...]] = {
    "tensorrt": _TENSORRT,
    "llmapi": _LLMAPI,
    "rtx": _RTX,
    "edgellm": _EDGELLM,
    "vllm": _VLLM,
}
"""Formats of weights, by back end."""
KV_SUPPORT: Mapping[str, tuple[Row, ...]] = {
    "tensorrt": _TENSORRT_KV,
    "llmapi": _LLMAPI_KV,
    "rtx": _RTX_KV,
    "edgellm": _EDGELLM_KV,
    "vllm": _VLLM_KV,
}
"""Formats of the KV cache, by back end."""

NEAREST: Mapping[str, tuple[str, ...]] = {
    "int8-sq": ("fp8", "int8-wo", "int4-awq", "none"),
    "int8-wo": ("int4-awq", "int8-sq", "fp8", "none"),
    "fp8": ("int8-sq", "int8-wo", "int4-awq", "none"),
    "fp8-rowwise": ("fp8", "int8-sq", "int8-wo", "none"),
    "int4-awq": ("int4-gptq", "fp8", "int8-sq", "int8-wo", "none"),
    "int4-gptq": ("int4-awq", "fp8", "int8-sq", "int8-wo", "none"),
    "w4a8-awq": ("int4-awq", "fp8", "int8-sq", "none"),
    "none": ("none",),
    "nvfp4": ("fp8", "int4-awq", "w4a8-awq", "int8-sq", "none"),
    "int4-wo": ("int4-awq", "int4-gptq", "int8-wo", "fp8", "none"),
}
"""What to look at instead of a format of weights, nearest first."""
NEAREST_KV: Mapping[str, tuple[str, ...]] = {
    "int8": ("fp8", "auto"),
    "fp8": ("int8", "auto"),
    "auto": ("auto",),
}
"""The same for the KV cache."""

QK_NORMS = ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "Gemma3ForCausalLM")
"""Families whose queries and keys have norms, which the attention of SmoothQuant's plugins has not."""

EXPORTED = ("llmapi", "vllm", "edgellm")
"""Back ends that read a Hugging Face folder. They divide the model among GPUs themselves."""
EXPORTED_WEIGHTS = ("none", "fp8", "fp8-rowwise", "int4-awq", "int4-gptq")
"""Formats that trtkit writes such folders in; GPTQ's weights go as AWQ's with factors of 1."""

UNWRITTEN: Mapping[str, str] = {"nvfp4": "NVFP4", "int4-wo": "W4A16"}
"""Formats of weights that the tables judge though trtkit writes none, by their ``quant_algo``."""

MODEL_REFUSALS: Mapping[str, tuple[str, ...]] = {
    "MixtralForCausalLM": ("int8-sq", "int4-gptq", "fp8-rowwise"),
    "Qwen2MoeForCausalLM": ("int8-sq", "int4-gptq", "fp8-rowwise"),
    "Qwen3MoeForCausalLM": ("int8-sq", "int4-gptq", "fp8-rowwise"),
    "Qwen3ForCausalLM": ("fp8-rowwise",),
    "Gemma3ForCausalLM": ("fp8-rowwise", "int4-gptq"),
    "GemmaForCausalLM": ("int4-gptq",),
    "Gemma2ForCausalLM": ("int4-gptq",),
    "FalconForCausalLM": ("int8-sq",),
    "GPTNeoXForCausalLM": ("int8-wo", "int8-sq", "int4-awq", "w4a8-awq", "fp8", "fp8-rowwise"),
}
"""Formats that TensorRT-LLM's engine classes do not have (table of its precision page; layers without q/k norms)."""
