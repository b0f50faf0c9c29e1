"""A Hugging Face folder: configuration, tensors from one or several safetensors files, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtkit.catalog.model import ModelConfig
from trtkit.checkpoint.json_object import NamedTwiceError, once
from trtkit.checkpoint.kept import kept_by
from trtkit.checkpoint.safetensors import TensorInfo, read_header
from trtkit.checkpoint.stand_ins import check_links, lfs_size
from trtkit.checkpoint.storage import find_storage
from trtkit.checkpoint.storage.storage import PLAIN, Storage
from trtkit.errors import InputError, Problem, Severity
from trtkit.plan.hf_config import DTYPE_KEYS, DTYPES, parse_hf_config

_CONFIG = "config.json"
_GENERATION = "generation_config.json"
_QUANT_CONFIG = "hf_quant_config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZER = "tokenizer.json"
_SUFFIXES = {".safetensors", ".json", ".bin", ".model"}
CONFIG_FILES = (_CONFIG, _GENERATION, _QUANT_CONFIG)
"""Files beside the weights that decide what they mean."""
_SAVE_AS_SAFETENSORS = (
    "load the model with transformers where you trust it and save it with "
    "`model.save_pretrained(FOLDER, safe_serialization=True)`"
)


@dataclass(frozen=True)
class HfCheckpoint:
    """An opened folder; tensors are described, not loaded."""

    folder: Path
    config: ModelConfig
    tensors: Mapping[str, TensorInfo]
    warnings: tuple[Problem, ...]
    storage: Storage = PLAIN
    """How linear layers are kept."""

    @classmethod
    def open(cls, folder: Path) -> HfCheckpoint:
        """Read configuration and headers; takes milliseconds, whatever the size of the model.

        Raises:
            InputError: Something is missing, damaged, or would change the model's results if it were ignored.
        """
        if not folder.is_dir():
            raise InputError("there is no such folder", path=folder)
        _check_files(folder)
        raw = _read_config(folder)
        generation = folder / _GENERATION
        config, warnings = parse_hf_config(
            raw,
            file=str(folder / _CONFIG),
            generation=read_json(generation) if generation.exists() else None,
        )
        storage = find_storage(raw, read_quant_config(folder), file=str(folder / _CONFIG))
        tensors = _tensors(folder)
        if all(raw.get(key) is None for key in DTYPE_KEYS) and (dtype := _common_dtype(tensors.values())):
            config = replace(config, dtype=dtype)
            warnings = [each for each in warnings if each.key not in DTYPE_KEYS]
        # More layers than tensors are no model: whoever maps them says so.
        if config.num_layers <= len(tensors):
            config = replace(config, kept=kept_by(config, storage))
        return cls(folder, config, tensors, (*warnings, *_unread(folder, tensors.values())), storage)

    @property
    def tokenizer_file(self) -> Path | None:
        """Return the tokenizer, or None when the folder has none."""
        path = self.folder / _TOKENIZER
        return path if path.is_file() else None


def _read_config(folder: Path) -> dict[str, Any]:
    """Return ``config.json``; refuse a folder of GGUF files, and the TensorRT-LLM checkpoint that a source becomes."""
    files = sorted(path.name for path in folder.glob("*.gguf"))
    if files and not (folder / _CONFIG).exists():
        message = f"holds GGUF files ({', '.join(files[:5])}) and no {_CONFIG}"
        hint = f"name the file, {folder / files[0]} for instance; any part of a split model stands for all"
        raise InputError(message, path=folder, hint=hint)
    raw = read_json(folder / _CONFIG)
    if "architecture" in raw and "architectures" not in raw:
        hint = "give the Hugging Face folder that it was made from; `trtkit verify` checks a checkpoint"
        raise InputError("is a TensorRT-LLM checkpoint, and no source of one", path=folder, hint=hint)
    return raw


def read_quant_config(folder: Path) -> dict[str, Any] | None:
    """Return ModelOpt's description of a folder; None without one."""
    path = folder / _QUANT_CONFIG
    return read_json(path) if path.exists() else None


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        InputError: There is no such file, or something else is in it.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise InputError("is no file", path=path)
    try:
        # With a byte order mark or without
        content = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=once)
    except FileNotFoundError as error:
        raise InputError("there is no such file", path=path) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error
    except NamedTwiceError as error:
        hint = "keep the one that the model was trained with"
        raise InputError(str(error), path=path, hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", path=path) from error
    if not isinstance(content, dict):
        raise InputError("not a JSON object", path=path)
    return content


def _check_files(folder: Path) -> None:
    """Refuse dead links and Git-LFS pointers, each kind all at once: one command fetches them all."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES)
        check_links(folder, files)
        _refuse_pipes(files)
        _refuse_pointers(folder, files)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=error.filename or folder) from error


def _refuse_pipes(files: Sequence[Path]) -> None:
    """Refuse what is neither a file nor a folder: reading it may wait without end."""
    for path in files:
        if not path.is_file() and not path.is_dir():
            raise InputError("is not a file", path=path)


def _refuse_pointers(folder: Path, files: Sequence[Path]) -> None:
    sizes = [(path.name, lfs_size(path)) for path in files if path.is_file()]
    pointers = [f"{name} ({size:,} bytes)" for name, size in sizes if size is not None]
    if pointers:
        message = f"Git-LFS pointers instead of the files themselves: {', '.join(pointers)}"
        raise InputError(message, path=folder, hint=f"run `git lfs pull` in {folder}")


def _tensors(folder: Path) -> dict[str, TensorInfo]:
    """Return the tensors of the folder; like transformers, a single file goes before an index."""
    if (folder / _SINGLE).exists():
        return read_header(folder / _SINGLE)
    if (folder / _INDEX).exists():
        return _sharded(folder)
    others = sorted(path.name for path in folder.glob("*.safetensors"))
    if others:
        hint = f"{_INDEX} says which file holds what: take it from the model's publisher"
        raise InputError(f"neither {_SINGLE} nor {_INDEX}, only {', '.join(others)}", path=folder, hint=hint)
    pickles = [path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in sorted(folder.glob(pattern))]
    if pickles:
        message = f"the weights are pickles ({', '.join(pickles)}), which run code when they are loaded"
        raise InputError(message, path=folder, hint=_SAVE_AS_SAFETENSORS)
    raise InputError(f"there are no weights: neither {_SINGLE} nor {_INDEX}", path=folder)


def _common_dtype(tensors: Iterable[TensorInfo]) -> str | None:
    """Return the data type of all tensors, as transformers does where no key says it; None when they differ."""
    found = {info.dtype for info in tensors}
    return found.pop() if len(found) == 1 and found <= DTYPES else None


def _unread(folder: Path, tensors: Iterable[TensorInfo]) -> Iterator[Problem]:
    """Warn of files with names of weights that hold none of the model's."""
    read = {info.path.name for info in tensors}
    if others := sorted({path.name for path in folder.glob("model*.safetensors")} - read):
        message = f"not read: {', '.join(others)}; the model is in {', '.join(sorted(read))}"
        hint = "remove what is not the model's: nothing says whether they hold the same"
        yield Problem(message, hint=hint, file=str(folder), severity=Severity.WARNING)


def _sharded(folder: Path) -> dict[str, TensorInfo]:
    index = folder / _INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise InputError("weight_map does not map tensors to files", path=index)
    shards = sorted(set(weight_map.values()))
    outside = [name for name in shards if Path(name).name != name]
    if outside:
        raise InputError(f"names files outside of its folder: {', '.join(outside)}", path=index)
    missing = [name for name in shards if not (folder / name).is_file()]
    if missing:
        message = f"{len(missing)} of {len(shards)} files are missing: {', '.join(missing)}"
        raise InputError(message, path=folder, hint="download the missing files")
    tensors = _merge([read_header(folder / name) for name in shards])
    lacking = [
        f"{name} ({file})"
        for name, file in weight_map.items()
        if name not in tensors or tensors[name].path.name != file
    ]
    if lacking:
        message = f"tensors are not in the file that the index names: {', '.join(lacking)}"
        raise InputError(
            message, path=index, hint="index and shards are from different downloads: fetch both again"
        )
    return tensors


def _merge(shards: Iterable[Mapping[str, TensorInfo]]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        for name, info in shard.items():
            if name in tensors:
                places = f"{tensors[name].path.name} and {info.path.name}"
                raise InputError(f"{name} is in two files: {places}", path=info.path.parent)
            tensors[name] = info
    return tensors
