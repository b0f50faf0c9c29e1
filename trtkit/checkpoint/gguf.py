"""GGUF files of the Llama family → Hugging Face folder in bfloat16, without torch and without a network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.cast import cast
from trtkit.checkpoint.gguf_tokenizer import tokenizer_files
from trtkit.checkpoint.inventory import record_files
from trtkit.checkpoint.mapping import map_tensors
from trtkit.checkpoint.progress import Progress, silent
from trtkit.checkpoint.safetensors import CHUNK_BYTES, Array, SafetensorsWriter, TensorInfo, TensorSpec
from trtkit.checkpoint.staging import staged_folder, write_json
from trtkit.checkpoint.stand_ins import check_file
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.plan.hf_config import parse_hf_config

if TYPE_CHECKING:
    from gguf import ReaderTensor

REVISION = 1
"""Part of the name of what is kept: raised when the same file is converted differently."""

_GLOBAL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
_BLOCK = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_KEYS = frozenset({
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
    "attention.value_length", "block_count", "context_length", "embedding_length", "feed_forward_length",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.factor", "rope.scaling.original_context_length",
    "rope.scaling.type", "vocab_size",
})  # fmt: skip
"""Metadata under ``llama.`` that is carried over; any other key may change the result."""


_TYPES = frozenset({
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
})  # fmt: skip


def convert_gguf(path: Path, out: Path, *, progress: Progress = silent) -> None:
    """Write ``out``: config, generation config, ``model.safetensors`` in bfloat16, tokenizer with chat template.

    Raises:
        InputError: The file is damaged, or holds something that would change the result if it were left out.
        EnvironmentLacks: The ``gguf`` library is not installed.
    """
    fields, stored = _open(path)
    _check_metadata(fields, path)
    tensors = _named(stored, path)
    config = _config(fields, tensors)
    model, _ = parse_hf_config(config, file=str(path))
    _check_rotation(fields, model, path)
    # GGUF counts dimensions from the innermost one.
    infos = {
        name: TensorInfo(name, "bfloat16", tuple(int(size) for size in reversed(tensor.shape)), path, 0)
        for name, tensor in tensors.items()
    }
    map_tensors(model, infos, file=str(path))
    special = {key: config[key] for key in _SPECIAL_TOKENS if config[key] is not None}
    files = {
        "config.json": config,
        "generation_config.json": special,
        **tokenizer_files(fields, path, max_length=model.max_position_embeddings),
    }
    with staged_folder(out) as staging:
        _write_tensors(staging / "model.safetensors", tensors, infos, model, progress)
        for name, content in files.items():
            write_json(staging / name, content)
        record_files(staging)


def _open(path: Path) -> tuple[dict[str, Any], Sequence[ReaderTensor]]:
    """Return metadata and tensors."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        hint = "pip install 'trtkit[gguf]'"
        raise EnvironmentLacks("reading GGUF files needs the gguf library", hint=hint) from error
    check_file(path, kind="GGUF")
    try:
        reader = GGUFReader(path)
        return {name: field.contents() for name, field in reader.fields.items()}, reader.tensors
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except Exception as error:  # the library checks little: damage shows as whatever it happens to break
        hint = "download the file again"
        raise InputError(f"not a whole GGUF file ({error})", path=path, hint=hint) from error


def _check_metadata(fields: Mapping[str, Any], path: Path) -> None:
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise InputError(
            f"the architecture {architecture!r} is not supported", path=path, hint="supported: llama"
        )
    names = (name.removeprefix("llama.") for name in fields if name.startswith("llama."))
    unknown = sorted(name for name in names if name not in _KEYS)
    if unknown:
        message = (
            f"holds settings that cannot be carried over: {', '.join(f'llama.{name}' for name in unknown)}"
        )
        raise InputError(message, path=path, hint="use the model's Hugging Face folder instead")


def _named(tensors: Sequence[ReaderTensor], path: Path) -> dict[str, ReaderTensor]:
    """Return the tensors by their Hugging Face names."""
    named, unknown = {}, []
    for tensor in tensors:
        block = _BLOCK.fullmatch(tensor.name)
        if tensor.name in _GLOBAL:
            named[_GLOBAL[tensor.name]] = tensor
        elif block and block[2] in _LAYER:
            named[f"model.layers.{block[1]}.{_LAYER[block[2]]}.{block[3]}"] = tensor
        else:
            unknown.append(tensor.name)
    unknown += [
        f"{name} ({t.tensor_type.name})" for name, t in named.items() if t.tensor_type.name not in _TYPES
    ]
    if unknown:
        message = f"holds tensors that cannot be carried over: {', '.join(unknown)}"
        raise InputError(message, path=path, hint="use the model's Hugging Face folder instead")
    return named


def _config(fields: Mapping[str, Any], tensors: Mapping[str, ReaderTensor]) -> dict[str, Any]:
    """Return ``config.json``; what the file lacks is null."""

    def get(key: str) -> Any:
        return fields.get(f"llama.{key}")

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": get("attention.head_count"),
        "num_key_value_heads": get("attention.head_count_kv"),
        "head_dim": get("attention.key_length"),
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(get("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": get("context_length"),
        "rope_theta": _shortest(get("rope.freq_base")),
        "rope_scaling": _rope_scaling(get),
        "attention_bias": "model.layers.0.self_attn.q_proj.bias" in tensors,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in tensors,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "vocab_size": len(fields.get("tokenizer.ggml.tokens", ())),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "bfloat16",
    }


def _shortest(value: Any) -> Any:
    """Undo the way through float32: 9.999999747378752e-06 was 1e-05."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _rope_scaling(get: Callable[[str], Any]) -> dict[str, Any] | None:
    kind = get("rope.scaling.type")
    if kind in (None, "none"):
        return None
    names = {"factor": "factor", "original_max_position_embeddings": "original_context_length"}
    values = {name: get(f"rope.scaling.{key}") for name, key in names.items()}
    return {"rope_type": kind, **{name: value for name, value in values.items() if value is not None}}


def _check_rotation(fields: Mapping[str, Any], model: ModelConfig, path: Path) -> None:
    rotated = fields.get("llama.rope.dimension_count", model.head_size)
    if rotated != model.head_size:
        raise InputError(f"only {rotated} of {model.head_size} dimensions per head are rotated", path=path)


def _write_tensors(
    path: Path,
    tensors: Mapping[str, ReaderTensor],
    infos: Mapping[str, TensorInfo],
    model: ModelConfig,
    progress: Progress,
) -> None:
    done = 0
    with SafetensorsWriter(path, infos.values()) as writer:
        for spec in writer.order:
            rows = _dequantized(tensors[spec.name], _row_order(spec, model))
            writer.write(
                spec, (cast(part, spec.dtype, name=spec.name, path=infos[spec.name].path) for part in rows)
            )
            done += spec.nbytes
            progress("convert GGUF", done, writer.nbytes)


def _row_order(spec: TensorSpec, model: ModelConfig) -> npt.NDArray[np.intp] | None:
    """Return the order in which rows are to be taken, or None for as they are.

    llama.cpp interleaves the halves of every head of Q and K: row ``2 * i + half`` was ``half * head_size / 2 + i``.
    """
    heads = {"q_proj": model.num_heads, "k_proj": model.num_kv_heads}
    count = heads.get(spec.name.split(".")[-2])
    if count is None:
        return None
    rows = np.arange(spec.shape[0])
    return rows.reshape(count, -1, 2).swapaxes(1, 2).reshape(-1)


def _dequantized(tensor: ReaderTensor, order: npt.NDArray[np.intp] | None) -> Iterator[Array]:
    """Yield a tensor in float32, some rows at a time."""
    from gguf.quants import dequantize

    rows = tensor.data.reshape(1, -1) if tensor.data.ndim == 1 else tensor.data
    if order is not None:
        rows = tensor.data.reshape(len(order), -1)
    columns = int(tensor.n_elements) // len(rows)
    step = max(1, CHUNK_BYTES // (4 * columns))
    for start in range(0, len(rows), step):
        part = rows[start : start + step] if order is None else rows[order[start : start + step]]
        with np.errstate(all="ignore"):
            values = dequantize(part, tensor.tensor_type)
        yield values
