"""Say what a path is, from headers and descriptions alone: whatever its size, whoever made it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from trtkit.conventions import CHECKPOINT_CONFIG, MANIFEST, rank_file
from trtkit.errors import InputError
from trtkit.flow.inspect.description import read_description, read_origin
from trtkit.flow.inspect.engine import inspect_engine, rank_engine
from trtkit.flow.inspect.finding import Finding, Kind
from trtkit.flow.inspect.gguf import inspect_gguf
from trtkit.flow.inspect.hf import inspect_hf
from trtkit.flow.inspect.repository import inspect_repository
from trtkit.flow.inspect.trtllm import inspect_checkpoint

__all__ = ["Finding", "Kind", "inspect", "kind_of"]

_READERS = {
    Kind.CHECKPOINT: inspect_checkpoint,
    Kind.HUGGING_FACE: inspect_hf,
    Kind.ENGINE: inspect_engine,
    Kind.REPOSITORY: inspect_repository,
    Kind.GGUF: inspect_gguf,
}


def inspect(path: Path) -> Finding:
    """Return what is found; damage is a part of it.

    Raises:
        InputError: There is no such path, or it is nothing of what trtkit knows.
    """
    kind = kind_of(path)
    if kind is Kind.PRODUCT:
        return _product(path)
    if kind is Kind.GGUF and path.is_dir():
        return inspect_gguf(min(path.glob("*.gguf")))
    return _READERS[kind](path)


def kind_of(path: Path) -> Kind:
    """Return what a path is, by the names of its files.

    Raises:
        InputError: There is no such path, or it is none of these.
    """
    if not path.exists():
        raise InputError("there is no such folder or file", path=path)
    if path.is_file():
        if path.suffix != ".gguf":
            hint = f"name the folder that it is in: {path.resolve().parent}"
            raise InputError("neither a folder nor a .gguf file", path=path, hint=hint)
        return Kind.GGUF
    kind = _of_folder(path)
    if kind is None:
        hint = f"expected {CHECKPOINT_CONFIG} with weights, model folders with config.pbtxt, or {MANIFEST}"
        message = "neither a checkpoint nor an engine nor a model repository nor a build product"
        raise InputError(message, path=path, hint=hint)
    return kind


def _of_folder(folder: Path) -> Kind | None:
    def has(pattern: str) -> bool:
        return any(folder.glob(pattern))

    if has("*/config.pbtxt"):
        return Kind.REPOSITORY
    config = read_description(folder / CHECKPOINT_CONFIG)[0]
    if "build_config" in config or has(rank_engine("*")) or has("openvino_model.xml"):
        return Kind.ENGINE
    if has(rank_file("*")) or ("architecture" in config and "quantization" in config):
        return Kind.CHECKPOINT
    # Ranges of a calibration are safetensors too.
    is_product = (folder / MANIFEST).exists()
    if "architectures" in config or (
        not is_product and (has("*.safetensors") or has("*.safetensors.index.json"))
    ):
        return Kind.HUGGING_FACE
    if is_product:
        return Kind.PRODUCT
    return Kind.GGUF if has("*.gguf") else None


def _product(folder: Path) -> Finding:
    """Return a product that is not itself one of the others: what lies in its folders is."""
    origin, problems = read_origin(folder)
    found = Finding(Kind.PRODUCT, str(folder), details=origin, problems=tuple(problems))
    inside = [path for path in sorted(folder.iterdir()) if path.is_dir() and _of_folder(path) is not None]
    return replace(found, parts=tuple(inspect(path) for path in inside))
