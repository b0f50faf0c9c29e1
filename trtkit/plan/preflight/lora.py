"""LoRA adapters: which layers and formats take them."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.model import ModelConfig
from trtkit.contract.lora import LoraModule
from trtkit.contract.models import Contract
from trtkit.errors import Problem
from trtkit.plan.check import refuses
from trtkit.plan.types import Plan

_KEY = "engine.lora"


@refuses
def lora_has_its_backend(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """Only engines of TensorRT-LLM are built for adapters here; elsewhere the key would have no effect."""
    backend = contract.engine.backend.value
    if contract.engine.lora is not None and backend != "tensorrt":
        yield Problem(f"no adapters are built for back end {backend}", _KEY, "leave the key out")


@refuses
def lora_has_modules(contract: Contract, _: ModelConfig, __: Plan) -> Iterator[Problem]:
    """The builder has to be told the layers, by name or by an adapter."""
    lora = contract.engine.lora
    if lora is not None and not lora.adapters and not lora.modules:
        hint = "give engine.lora.modules, or an adapter in engine.lora.adapters"
        yield Problem("nothing says which layers adapters may change", _KEY, hint)


@refuses
def lora_suits_format(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """Layers of SmoothQuant's plugins and of row-wise FP8 take no adapters."""
    if contract.engine.lora is None:
        return
    formats = plan.quantization
    by_plugin = (formats.quant_algo or "").endswith("_PLUGIN")
    if by_plugin or formats.weights == "fp8-rowwise":
        hint = "set quantization.smoothquant to qdq" if by_plugin else "use fp8"
        yield Problem(f"{formats.weights} layers ({formats.quant_algo}) take no adapters", _KEY, hint)


@refuses
def lora_suits_flags(contract: Contract, _: ModelConfig, plan: Plan) -> Iterator[Problem]:
    """What the builder rejects beside adapters."""
    lora, flags = contract.engine.lora, contract.engine.build_flags
    if lora is None or plan.target is None:
        return
    if flags.get("gemm_allreduce_plugin", "disable") != "disable":
        message = "gemm_allreduce_plugin does not go with adapters"
        yield Problem(message, "engine.build_flags.gemm_allreduce_plugin", "leave it out")
    fused = {each.name: each.effective for each in plan.target.settings}.get("use_fused_mlp")
    if LoraModule.MLP_GATE_UP in lora.modules and fused != "enable":
        message = "mlp_gate_up is a layer of fused MLPs, and this engine has none"
        yield Problem(message, f"{_KEY}.modules", "use mlp_h_to_4h and mlp_gate")


LORA_CHECKS = (lora_has_its_backend, lora_has_modules, lora_suits_format, lora_suits_flags)
