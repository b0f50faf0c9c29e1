"""Feed-forward layers as TensorRT-LLM computes them: ``fc`` is the branch with the activation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.architectures.weights import Config, Weights


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


# All spellings of GELU are the approximation by tanh.
ACTIVATIONS = {"silu": F.silu, "swiglu": F.silu, "relu": F.relu, "gelu": gelu, "gelu_new": gelu,
               "gelu_fast": gelu, "gelu_pytorch_tanh": gelu}  # fmt: skip


def gated_mlp(config: Config, mlp: Weights, x: Tensor, *, bias: bool) -> Tensor:
    """Activate ``fc`` and multiply with ``gate``."""
    width, activate = config["intermediate_size"], ACTIVATIONS[config["hidden_act"]]
    inner = activate(mlp.under("fc").linear(x, width, bias=bias))
    inner = inner * mlp.under("gate").linear(x, width, bias=bias)
    return mlp.under("proj").linear(inner, config["hidden_size"], bias=bias)


def plain_mlp(config: Config, mlp: Weights, x: Tensor, width: int, *, bias: bool) -> Tensor:
    inner = ACTIVATIONS[config["hidden_act"]](mlp.under("fc").linear(x, width, bias=bias))
    return mlp.under("proj").linear(inner, config["hidden_size"], bias=bias)


def swiglu(x: Tensor) -> Tensor:
    """Multiply the first half of the columns with the activated second half."""
    up, gate = x.chunk(2, dim=-1)
    return up * F.silu(gate)


def fused_mlp(mlp: Weights, x: Tensor, width: int) -> Tensor:
    inner = swiglu(mlp.under("fc").linear(x, 2 * width, bias=False))
    return mlp.under("proj").linear(inner, x.shape[-1], bias=False)


def experts(config: Config, mlp: Weights, x: Tensor, width: int) -> Tensor:
    """Add up the experts that the router chooses, weighted by its softmax over all of them."""
    assert config["hidden_act"] == "swiglu"
    moe, hidden = config["moe"], config["hidden_size"]
    count = moe["num_experts"]
    shares = mlp.under("router").linear(x, count, bias=False).softmax(dim=-1)
    best, chosen = shares.topk(moe["top_k"], dim=-1)
    kept = torch.zeros_like(shares).scatter(-1, chosen, best)
    if moe["normalization_mode"] == 1:
        kept = kept / best.sum(dim=-1, keepdim=True)
    else:
        assert moe["normalization_mode"] == 0
    fc, proj = mlp.take("fc.weight", count, 2 * width, hidden), mlp.take("proj.weight", count, hidden, width)
    outputs = torch.stack([swiglu(x @ up.T) @ down.T for up, down in zip(fc, proj, strict=True)], dim=-2)
    return (kept[..., None] * outputs).sum(dim=-2)
