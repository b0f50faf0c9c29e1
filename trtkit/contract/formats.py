"""The words that a contract has for formats and back ends; apart from its models, which take long to import."""

from __future__ import annotations

import enum


class WeightFormat(str, enum.Enum):
    """How the linear layers are quantized. The names are trtkit's; the plan maps them to ``quant_algo``."""

    NONE = "none"
    INT8_WO = "int8-wo"
    INT8_SQ = "int8-sq"
    FP8 = "fp8"
    FP8_ROWWISE = "fp8-rowwise"
    INT4_AWQ = "int4-awq"
    INT4_GPTQ = "int4-gptq"
    W4A8_AWQ = "w4a8-awq"

    @property
    def is_smoothed(self) -> bool:
        """Whether difficulty moves from activations into weights first."""
        return self is WeightFormat.INT8_SQ

    @property
    def takes_ranges(self) -> bool:
        """Whether something is made of the ranges of activations."""
        return self in {WeightFormat.INT8_SQ, WeightFormat.FP8} or self.has_groups

    @property
    def has_groups(self) -> bool:
        """Whether input channels share scales in groups."""
        return self in {WeightFormat.INT4_AWQ, WeightFormat.INT4_GPTQ, WeightFormat.W4A8_AWQ}


class KvCacheFormat(str, enum.Enum):
    """How the KV cache is stored; ``auto`` follows the back end."""

    AUTO = "auto"
    INT8 = "int8"
    FP8 = "fp8"


class BackendName(str, enum.Enum):
    """Who compiles and runs the model."""

    CPU = "cpu"
    ONNX = "onnx"
    TENSORRT = "tensorrt"
    RTX = "rtx"
    LLMAPI = "llmapi"
    EDGELLM = "edgellm"
    VLLM = "vllm"

    @property
    def shows_logits(self) -> bool:
        """Whether what its engine computes can be had on this machine, for all tokens of a text."""
        return self in {BackendName.CPU, BackendName.ONNX, BackendName.RTX}


class DType(str, enum.Enum):
    """Data type of everything that is not quantized."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"
