"""What a plan has to know of a source that is quantized already."""

from __future__ import annotations

from collections.abc import Iterator

from trtkit.catalog.model import Kept, ModelConfig
from trtkit.checkpoint.expected import ExpectedTensor, expected_tensors
from trtkit.checkpoint.storage.quantized import Quantized
from trtkit.checkpoint.storage.storage import Storage


def kept_by(config: ModelConfig, storage: Storage) -> Kept | None:
    """Return what the configuration alone says of the linear layers; None for a source that is not quantized."""
    if not isinstance(storage, Quantized):
        return None
    linear = [each for each in expected_tensors(config) if each.rule.is_linear]
    plain = [each for each in linear if all(map(storage.skips, _sources(config, each)))]
    return Kept(
        storage.method,
        storage.weights,
        storage.kv_cache,
        storage.group_size,
        storage.has_zero_point,
        frozenset(each.name.removesuffix(".weight") for each in plain),
    )


def _sources(config: ModelConfig, target: ExpectedTensor) -> Iterator[str]:
    """Yield the names of the source's modules that a layer consists of."""
    experts = range(config.moe.num_experts) if config.moe and target.rule.per_expert else (None,)
    for expert in experts:
        for source in target.rule.sources:
            yield source.name.format(layer=target.layer, expert=expert).removesuffix(".weight")
