"""transformers as executor: the source as it is, and a checkpoint as the engine would compute it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trtkit.catalog.architectures import ARCHITECTURES
from trtkit.catalog.architectures.architecture import When
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.storage.storage import PLAIN
from trtkit.errors import InputError
from trtkit.quantize.gate.activation import rounded, treat
from trtkit.quantize.gate.executor import Floats, Tokens
from trtkit.quantize.gate.experts import treat_experts
from trtkit.quantize.gate.linear import Activation, Grid
from trtkit.quantize.gate.tensors import Candidate, weight_errors
from trtkit.quantize.hf_class import hf_class, refusals

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class TorchExecutor:
    """A model of transformers."""

    model: Any
    kv_grid: Grid | None = None
    kv_steps: tuple[float, ...] = ()

    def logits(self, tokens: Tokens) -> Floats:
        """Return the logits ``(length, vocab)``."""
        return _floats(self._run(tokens).logits[0])

    def hidden(self, tokens: Tokens) -> list[Floats]:
        """Return what each layer hands on, ``(length, hidden)``."""
        states = self._run(tokens, output_hidden_states=True).hidden_states
        return [_floats(state[0]) for state in states[1:]]

    def round_weights(self, dtype: str) -> None:
        """Round all weights, in place: there is never a second copy of the model."""
        import torch

        for parameter in self.model.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype))

    def _run(self, tokens: Tokens, **options: Any) -> Any:
        import torch

        cache = _rounding_cache(self.model.config, self.kv_grid, self.kv_steps) if self.kv_grid else None
        with torch.inference_mode():
            output = self.model(
                torch.from_numpy(tokens)[None], past_key_values=cache, use_cache=cache is not None, **options
            )
        if cache is not None and cache.rounded != set(range(len(self.kv_steps))):
            message = f"{type(self.model).__name__} does not show its KV cache, which is quantized here"
            raise InputError(message, hint="judge a checkpoint with kv_cache auto")
        return output


def load_source(source: HfCheckpoint, *, dtype: str) -> TorchExecutor:
    """Load the model that the checkpoint was made from.

    Raises:
        InputError: transformers cannot load it, or would make up weights that it does not find.
    """
    if source.storage is not PLAIN:
        message = "the baseline is quantized itself, and cannot tell what quantizing costs"
        raise InputError(message, path=source.folder, hint="give the model that it was made from")
    return TorchExecutor(_load(source, source.folder, dtype=dtype))


def load_candidate(
    candidate: Candidate, *, dtype: str, progress: Progress
) -> tuple[TorchExecutor, Mapping[str, float]]:
    """Load a checkpoint as the engine would compute it; return the errors of its weights too.

    One tensor at a time is in float32, the model in ``dtype``.

    Raises:
        InputError: There is something in the checkpoint that would have no effect here.
    """
    import torch

    sizes = [4 * math.prod(mapped.target.shape) for mapped in candidate.mapped]
    weights: dict[str, Tensor] = {}
    errors: dict[str, float] = {}
    for number, mapped in enumerate(candidate.mapped, 1):
        found = candidate.tensors(mapped)
        errors.update(weight_errors(candidate, mapped, found))
        for tensor in found:
            weights[tensor.name] = torch.from_numpy(tensor.values).to(getattr(torch, dtype))
        progress("dequantize", sum(sizes[:number]), sum(sizes))
    untied = {"tie_word_embeddings": False}
    model = _load(candidate.source, None, dtype=dtype, state_dict=weights, config_changes=untied)
    _treat_inputs(model, candidate)
    grid = candidate.kv_grid
    return TorchExecutor(model, grid, tuple(candidate.kv_steps()) if grid else ()), errors


def _load(
    source: HfCheckpoint,
    place: Any,
    *,
    dtype: str,
    config_changes: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    import torch

    with _quiet(), refusals(source):
        kind, config, attention = hf_class(source)
        for key, value in (config_changes or {}).items():
            setattr(config, key, value)
        model, info = kind.from_pretrained(
            place, config=config, dtype=getattr(torch, dtype), output_loading_info=True, local_files_only=True,
            attn_implementation=attention, **options,
        )  # fmt: skip
    lost = [
        f"{kind.replace('_', ' ')} {', '.join(map(str, sorted(info[kind])[:3]))}"
        for kind in info
        if info[kind]
    ]
    if lost:
        raise InputError(f"transformers does not load all of it: {'; '.join(lost)}", path=source.folder)
    model.eval()
    loaded: nn.Module = model
    return loaded


@contextmanager
def _quiet() -> Iterator[None]:
    import transformers

    logging: Any = transformers.utils.logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _treat_inputs(model: nn.Module, candidate: Candidate) -> None:
    """Make every layer treat its input as the checkpoint says."""
    modules = dict(model.named_modules())
    experts: dict[int, dict[str, Activation]] = {}
    for mapped, activation in candidate.activations():
        if mapped.target.rule.per_expert:
            local = mapped.target.name.split(".")[-2]
            experts.setdefault(mapped.target.layer or 0, {})[local] = activation
            continue
        for module in _modules_of(mapped, modules, candidate):
            _treat_input(module, activation)
    for layer, parts in experts.items():
        treat_experts(model, layer, parts)


def _treat_input(module: nn.Module, activation: Activation) -> None:
    module.register_forward_pre_hook(lambda _, inputs: (treat(inputs[0], activation), *inputs[1:]))


def _modules_of(
    mapped: MappedTensor, modules: Mapping[str, nn.Module], candidate: Candidate
) -> list[nn.Module]:
    source, is_tied = candidate.source, mapped.target.rule.when is When.TIED
    prefix = ARCHITECTURES[source.config.architecture].optional_prefix
    weights = [candidate.head_name] if is_tied else [each.name for each in mapped.sources]
    names = [each.removesuffix(".weight") for each in weights]
    found = [modules.get(name, modules.get(prefix + name)) for name in names]
    if lost := [name for name, module in zip(names, found, strict=True) if module is None]:
        message = f"transformers has no modules {', '.join(lost)}, whose inputs are quantized"
        raise InputError(message, path=source.folder)
    return [module for module in found if module is not None]


def _rounding_cache(config: Any, grid: Grid | None, steps: tuple[float, ...]) -> Any:
    """Return a cache that hands out what a quantized one would: K as it is rotated, and V.

    The engine's prefill computes with what is not rounded yet; every later token sees this.
    """
    from transformers import DynamicCache

    class RoundingCache(DynamicCache):
        rounded: set[int]

        def update(
            self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
        ) -> Any:
            self.rounded.add(layer_idx)
            step = steps[layer_idx]
            key, value = (
                rounded(side.float(), grid or Grid.INT8, step).to(side.dtype)
                for side in (key_states, value_states)
            )
            return super().update(key, value, layer_idx, *args, **kwargs)

    cache = RoundingCache(config=config)
    cache.rounded = set()
    return cache


def _floats(values: Tensor) -> Floats:
    result: Floats = values.float().numpy()
    return result
