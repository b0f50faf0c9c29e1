"""Weight files of bounded size, with the index that transformers writes beside several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtkit.checkpoint.hf_export.tensors import HfTensor
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.safetensors import SafetensorsWriter
from trtkit.checkpoint.staging import write_json

MAX_SHARD_BYTES = 5_000_000_000
"""What the hub's tools split at."""


def write_shards(folder: Path, tensors: Sequence[HfTensor], progress: Progress, max_shard_bytes: int) -> int:
    """Write ``model.safetensors``, or several files and their index; return the number of files."""
    shards = _fill(tensors, max_shard_bytes)
    names = [_name(number, len(shards)) for number in range(1, len(shards) + 1)]
    total, done = sum(tensor.spec.nbytes for tensor in tensors), 0
    for name, shard in zip(names, shards, strict=True):
        by_name = {tensor.spec.name: tensor for tensor in shard}
        with SafetensorsWriter(folder / name, [tensor.spec for tensor in shard]) as writer:
            for spec in writer.order:
                writer.write(spec, by_name[spec.name].read())
                done += spec.nbytes
                progress("export", done, total)
    if len(shards) > 1:
        weight_map = {t.spec.name: name for name, shard in zip(names, shards, strict=True) for t in shard}
        content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        write_json(folder / "model.safetensors.index.json", content)
    return len(shards)


def _name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05}-of-{count:05}.safetensors"


def _fill(tensors: Sequence[HfTensor], max_shard_bytes: int) -> list[list[HfTensor]]:
    """Return the tensors in order, in groups that are no larger than allowed unless one tensor alone is."""
    shards: list[list[HfTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.spec.nbytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.spec.nbytes
    return shards
