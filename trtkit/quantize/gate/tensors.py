"""A checkpoint under the names of its source: what the engine computes with, as Hugging Face's classes hold it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trtkit.catalog.architectures.architecture import Arrange, When
from trtkit.catalog.model import ModelConfig
from trtkit.catalog.schemes import KV_CACHE_SCALE
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.hf_export.tensors import source_order
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.mapping import MappedTensor, map_tensors, tied_copies
from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.checkpoint.trtllm_config import read_config
from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.errors import ContractError, InputError
from trtkit.plan.layers import HEAD
from trtkit.quantize.gate.assembly import read_whole
from trtkit.quantize.gate.forms import activation_of, weight_of
from trtkit.quantize.gate.linear import Activation, Floats, Grid, Written

_NOT_IN_CHECKPOINT = {
    "tie_word_embeddings", "dtype", "bos_token_id", "eos_token_ids", "pad_token_id", "sliding_window_pattern",
    "kept",
}  # fmt: skip
"""Fields that a TensorRT-LLM ``config.json`` does not tell, or that conversion chooses."""
_SOURCE = "give the Hugging Face folder that the checkpoint was converted from"


class HfTensor(NamedTuple):
    """One tensor of the Hugging Face model."""

    name: str
    values: Floats


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that was checked, beside the folder that it was made from."""

    checkpoint: TrtllmCheckpoint
    source: HfCheckpoint
    mapped: tuple[MappedTensor, ...]
    layout: Layout

    @classmethod
    def open(cls, checkpoint: TrtllmCheckpoint, source: HfCheckpoint) -> Candidate:
        """Check the checkpoint, and that it is of the source's model.

        Raises:
            InputError: A tensor is missing or has another shape, or both are of different models.
        """
        if problems := verify(checkpoint.folder):
            raise ContractError(problems)
        check_same_model(checkpoint.config, source, path=checkpoint.folder / CHECKPOINT_CONFIG)
        mapped = map_tensors(source.config, source.tensors, file=str(source.folder), storage=source.storage)
        layout = Layout(source.config, str(checkpoint.config["dtype"]), checkpoint.parallelism)
        return cls(checkpoint, source, tuple(_with_head(mapped, checkpoint)), layout)

    @property
    def algorithm(self) -> str | None:
        """What the linear layers are quantized by."""
        algorithm: str | None = (self.checkpoint.config.get("quantization") or {}).get("quant_algo")
        return algorithm

    @property
    def kv_grid(self) -> Grid | None:
        """What the KV cache is rounded to."""
        algorithm = (self.checkpoint.config.get("quantization") or {}).get("kv_cache_quant_algo")
        if algorithm is None:
            return None
        if algorithm not in Grid.__members__:
            message = f"the gate does not know what a KV cache of {algorithm} holds"
            raise InputError(
                message, path=self.checkpoint.folder, hint=f"it knows {', '.join(Grid.__members__)}"
            )
        return Grid[algorithm]

    def kv_steps(self) -> list[float]:
        """Return the size of a step of the cache, layer by layer."""
        layers = range(self.source.config.num_layers)
        targets = [self.layout.layer_part(layer, KV_CACHE_SCALE) for layer in layers]
        return [float(read_whole(self.checkpoint, target)[0]) for target in targets]

    def linears(self) -> list[tuple[MappedTensor, Written]]:
        """Return the layers that quantization is for."""
        return [
            (tensor, Written(self.checkpoint, self.layout, tensor.target))
            for tensor in self.mapped
            if tensor.target.rule.is_linear
        ]

    def activations(self) -> Iterator[tuple[MappedTensor, Activation]]:
        """Yield the layers that treat their input, and how."""
        for tensor, linear in self.linears():
            activation = activation_of(linear)
            if activation is not None:
                yield tensor, activation

    def tensors(self, mapped: MappedTensor) -> list[HfTensor]:
        """Return what the source's tensors are in the checkpoint, in float32.

        A head that was tied is there by its own name: what is served is the checkpoint's copy.
        """
        rule = mapped.target.rule
        if rule.is_linear:
            whole = weight_of(Written(self.checkpoint, self.layout, mapped.target))
        else:
            whole = read_whole(self.checkpoint, self.layout.whole(mapped.target)).astype(np.float32)
            whole -= np.float32(rule.plus)
        if rule.when is When.TIED:
            return [HfTensor(self.head_name, whole)]
        return split(whole, mapped, self.source.config)

    @property
    def head_name(self) -> str:
        """What the head is called when it is not the embedding."""
        (name,) = tied_copies(self.source.config, self.source.tensors)
        return name


def split(whole: Array, mapped: MappedTensor, config: ModelConfig) -> list[HfTensor]:
    """Return the sources that a joined tensor is made of, the way they are arranged there."""
    rule, found = mapped.target.rule, []
    joined, start = len(rule.sources), 0
    for index, source in enumerate(mapped.sources):
        expert, member = divmod(index, joined)
        matrix = whole[expert] if rule.per_expert else whole
        if rule.arrange is Arrange.TRANSPOSED:
            found.append(HfTensor(source.name, np.ascontiguousarray(matrix.T)))
            continue
        start = start if member else 0
        rows = source_order(range(start, start + source.shape[0]), rule.arrange, config)
        start += source.shape[0]
        values = np.concatenate([matrix[row.start : row.stop] for row in rows])
        found.append(HfTensor(source.name, values.reshape(source.shape)))
    return found


def weight_errors(
    candidate: Candidate, mapped: MappedTensor, found: Sequence[HfTensor]
) -> Mapping[str, float]:
    """Return how far weights are from the source's, each relative to its size: ``|W' - W| / |W|``.

    What smoothing moves into the weights and takes from what comes before is taken back out first.
    """
    if not mapped.target.rule.is_linear or any(not source.is_plain for source in mapped.sources):
        return {}
    scale = _moved_into(candidate, mapped)
    errors = {}
    for tensor, source in zip(found, mapped.plain, strict=True):
        original = source.read().astype(np.float32)
        # A scale belongs to an input, which is a row where the source keeps matrices transposed.
        moved = (
            scale[:, None]
            if scale is not None and mapped.target.rule.arrange is Arrange.TRANSPOSED
            else scale
        )
        values = tensor.values if moved is None else tensor.values * moved
        size = float(np.linalg.norm(original))
        errors[tensor.name.removesuffix(".weight")] = (
            float(np.linalg.norm(values - original)) / size if size else 0.0
        )
    return errors


def _moved_into(candidate: Candidate, mapped: MappedTensor) -> Floats | None:
    """Return what the layer's input was multiplied with, by itself and by the norm before it."""
    linear = Written(candidate.checkpoint, candidate.layout, mapped.target)
    activation = activation_of(linear)
    factor = None if activation is None else activation.factor
    norm = _norm_before(candidate, linear)
    if norm is None:
        return factor
    stored = read_whole(candidate.checkpoint, candidate.layout.whole(norm.target)).astype(np.float32)
    original = norm.plain[0].read().astype(np.float32) + np.float32(norm.target.rule.plus)
    ratio: Floats = np.where(original == 0, np.float32(1), stored / np.where(original == 0, 1, original))
    return ratio if factor is None else ratio * factor


def _norm_before(candidate: Candidate, linear: Written) -> MappedTensor | None:
    """Return the norm that took a smoother: the plugins' form of SmoothQuant has two of them."""
    norms = {"attention.qkv": "input_layernorm", "mlp.fc": "post_layernorm", "mlp.gate": "post_layernorm"}
    if linear.name not in norms or not (linear.algorithm or "").endswith("_PLUGIN"):
        return None
    wanted = linear.tensor.name.replace(f"{linear.name}.weight", f"{norms[linear.name]}.weight")
    return next((tensor for tensor in candidate.mapped if tensor.target.name == wanted), None)


def check_same_model(content: Mapping[str, Any], source: HfCheckpoint, *, path: Path) -> None:
    """Make sure that a TensorRT-LLM ``config.json``, the one at ``path``, describes the source's model.

    Raises:
        InputError: It describes another one.
    """
    built = read_config(content, path=path)
    names = [field.name for field in fields(ModelConfig) if field.name not in _NOT_IN_CHECKPOINT]
    differing = [name for name in names if getattr(built, name) != getattr(source.config, name)]
    if differing:
        message = f"was not made from {source.folder}: {', '.join(differing)} differ"
        raise InputError(message, path=path, hint=_SOURCE)


def _with_head(mapped: Sequence[MappedTensor], checkpoint: TrtllmCheckpoint) -> Iterator[MappedTensor]:
    """Yield the tensors, the head as a linear layer where it is quantized like them."""
    for tensor in mapped:
        if tensor.target.name == f"{HEAD}.weight" and checkpoint.block_of(HEAD).get("quant_algo"):
            rule = replace(tensor.target.rule, quantizable=True)
            yield replace(tensor, target=replace(tensor.target, rule=rule))
        else:
            yield tensor
