"""Folders that hold something else than the one model that they seem to."""

from __future__ import annotations

from pathlib import Path

from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.safetensors import read_header
from trtkit.errors import InputError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
_MERGE = (
    "merge it first: AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(OUT)"
)


def check_folder(folder: Path) -> None:
    """Refuse an adapter in the place of a model, and weights that are there twice and differ.

    Raises:
        InputError: The folder is one of these.
    """
    _check_adapter(folder)
    single, index = folder / _SINGLE, folder / _INDEX
    if not (single.is_file() and index.is_file()):
        return
    weight_map = read_json(index).get("weight_map")
    named = set(weight_map) if isinstance(weight_map, dict) else set()
    if differing := sorted(named ^ read_header(single).keys()):
        message = f"{_SINGLE} and {_INDEX} are from different models: only one has {', '.join(differing[:5])}"
        raise InputError(message, path=folder, hint="remove the one that does not belong to config.json")


def _check_adapter(folder: Path) -> None:
    """Refuse what transformers would apply to a model, and a conversion would not."""
    weights = [name for name in _ADAPTER_WEIGHTS if (folder / name).is_file()]
    has_model = any((folder / name).is_file() for name in (_SINGLE, _INDEX))
    if (folder / _ADAPTER).is_file() and (weights or not has_model):
        what = " and ".join([_ADAPTER, *weights])
        beside = "beside the model, " if has_model else ""
        raise InputError(f"{beside}holds an adapter, not a whole model ({what})", path=folder, hint=_MERGE)
