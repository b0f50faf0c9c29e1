"""A transformers model without weights, whose decoder layers are filled and run one at a time.

transformers itself makes what each layer is given (masks, rotary tables, ALiBi): its forward is run with layers that
only stand there, up to the one in turn, which gets the hidden states that the layer before it left.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trtkit.catalog.architectures import Architecture
from trtkit.checkpoint.expected import architecture_of
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.errors import InputError
from trtkit.quantize.calibrate.experts import separate_experts
from trtkit.quantize.calibrate.weights import compute_dtype, find, load_into, load_rows
from trtkit.quantize.hf_class import hf_class, refusals

if TYPE_CHECKING:
    import torch
    from torch import nn

    from trtkit.quantize.calibrate.samples import Ids

_EXPERTS = {"MixtralForCausalLM": ("w1", "w3", "w2")}
_RENAMED = {"MixtralForCausalLM": (".mlp.", ".block_sparse_moe.")}
"""Part of a parameter's name in transformers, and in checkpoints."""


class _ReachedError(Exception):
    """Ends a forward pass behind the layer in turn."""


class _Standing(tuple[Any, ...]):
    """What layers return that only stand there: itself, whatever part of it is asked for."""

    __slots__ = ()

    def __getitem__(self, _: Any) -> _Standing:
        return self


class Skeleton:
    """The model; ``device`` and ``dtype`` are those of its computation."""

    def __init__(self, source: HfCheckpoint, device: torch.device) -> None:
        self.device = device
        self.dtype = compute_dtype(source.config.dtype)
        self._source = source
        self._architecture = architecture_of(source.config)
        self._model = _build(source, self.dtype)
        for module in self._model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(device))
        self._layers, self._norm = _parts(self._model, self._architecture)
        self._spare: dict[torch.Size, list[torch.Tensor]] = {}
        self._fill_outside()
        self._turn: tuple[int, torch.Tensor | None] = (0, None)
        self._result: Any = None
        self._ids: Ids | None = None
        names = _EXPERTS.get(self._architecture.name, ("gate_proj", "up_proj", "down_proj"))
        for index, layer in enumerate(self._layers.values()):
            separate_experts(layer, names)
            layer.forward = self._standing(index, layer.forward)
        self._embedding = self._model.get_input_embeddings()
        self._embedding.padding_idx = None
        self._embedding.forward = self._embed(self._embedding.forward)

    def source_name(self, name: str) -> str:
        """Return what checkpoints call a parameter or module."""
        return name.replace(*_RENAMED.get(self._architecture.name, ("", "")))

    @contextmanager
    def filled(self, index: int) -> Iterator[tuple[str, nn.Module]]:
        """Load the weights of a layer, yield its name and module, and drop them again.

        Raises:
            InputError: A weight is missing, of another shape, NaN or infinite.
        """
        prefix, layer = list(self._layers.items())[index]
        for name, parameter in list(layer.named_parameters()):
            _put(layer, name, self._load(f"{prefix}.{name}", tuple(parameter.shape)))
        try:
            yield prefix, layer
        finally:
            for name, parameter in list(layer.named_parameters()):
                # The next layer takes the memory over: freed and allocated again it would fall into pieces.
                self._spare.setdefault(parameter.shape, []).append(parameter.data)
                _put(layer, name, parameter.to("meta"))

    def run(self, index: int, ids: Ids, hidden: torch.Tensor | None, cache: Any) -> torch.Tensor:
        """Return what the filled layer makes of ``hidden``, ``(1, tokens, hidden)``; of the embedding for layer 0."""
        import torch

        self._turn, self._ids = (index, hidden), ids
        tokens = torch.from_numpy(ids)[None].to(self.device)
        base = self._model.get_submodule(self._model.base_model_prefix)
        try:
            with torch.inference_mode():
                base(input_ids=tokens, past_key_values=cache, use_cache=True)
        except _ReachedError:
            pass
        result = self._result
        self._result = None
        return result if isinstance(result, torch.Tensor) else result[0]

    def normalize(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what goes into the head."""
        import torch

        with torch.inference_mode():
            found: torch.Tensor = self._norm(hidden)
        return found

    def _standing(self, index: int, forward: Callable[..., Any]) -> Callable[..., Any]:
        def stand(hidden: Any, *args: Any, **kwargs: Any) -> Any:
            turn, given = self._turn
            if index != turn:
                return _Standing()
            self._result = forward(hidden if given is None else given, *args, **kwargs)
            raise _ReachedError

        return stand

    def _embed(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Look up the rows of one sample only; where they are not needed, nothing."""
        import torch

        def embed(ids: torch.Tensor) -> Any:
            if self._turn[1] is not None:
                return torch.zeros_like(self._turn[1])
            assert self._ids is not None  # noqa: S101 - run() has set them
            rows, places = torch.unique(ids, return_inverse=True)
            info = find(self._source.tensors, f"{self._embedding_name}.weight", self._prefix)
            _put(self._embedding, "weight", load_rows(info, rows.tolist(), self.dtype, self.device))
            return forward(places)

        return embed

    @property
    def _prefix(self) -> str:
        return self._architecture.optional_prefix

    @property
    def _embedding_name(self) -> str:
        return next(str(name) for name, module in self._model.named_modules() if module is self._embedding)

    def _fill_outside(self) -> None:
        """Load what is in no layer, but for embedding and head."""
        inside = tuple(f"{name}." for name in self._layers)
        tables = {id(self._model.get_input_embeddings()), id(self._model.get_output_embeddings())}
        for path, module in self._model.named_modules():
            if id(module) in tables or path.startswith(inside):
                continue
            for name, parameter in list(module.named_parameters(recurse=False)):
                _put(module, name, self._load(f"{path}.{name}", tuple(parameter.shape)))

    def _load(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        import torch

        info = find(self._source.tensors, self.source_name(name), self._prefix)
        if info.shape != shape:
            message = f"{info.name} is {list(info.shape)}, transformers' model has {list(shape)}"
            raise InputError(message, path=info.path)
        spare = self._spare.get(torch.Size(shape))
        memory = spare.pop() if spare else torch.empty(shape, dtype=self.dtype, device=self.device)
        return load_into(memory, info)


def _build(source: HfCheckpoint, dtype: torch.dtype) -> Any:
    """Make the model; parameters take no memory, buffers are there."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    kind, config, attention = hf_class(source)
    with _parameters_on_meta(), refusals(source):
        # The public door needs a model_type that it knows.
        model = kind._from_config(config, dtype=dtype, attn_implementation=attention)  # noqa: SLF001
    return model.eval()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move each parameter to the meta device as soon as a module gets it; buffers are computed."""
    from torch import nn

    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None:
            _put(module, name, parameter.to("meta"))

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _parts(model: Any, architecture: Architecture) -> tuple[dict[str, nn.Module], nn.Module]:
    """Return the decoder layers by name, and the norm behind them."""
    sources = {rule.target: rule.sources[0].name for rule in architecture.tensors}
    path = sources["transformer.layers.{layer}.attention.qkv.weight"].partition(".{layer}.")[0]
    layers = {f"{path}.{index}": layer for index, layer in enumerate(model.get_submodule(path))}
    return layers, model.get_submodule(sources["transformer.ln_f.weight"].removesuffix(".weight"))


def _put(module: nn.Module, name: str, values: torch.Tensor) -> None:
    from torch import nn

    path, _, last = name.rpartition(".")
    module.get_submodule(path)._parameters[last] = nn.Parameter(values, requires_grad=False)  # noqa: SLF001
