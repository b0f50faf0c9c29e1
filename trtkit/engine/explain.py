"""Why a product has to be made: what differs from the nearest one that is there, in the contract's words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trtkit.canonical import canonical_json
from trtkit.conventions import MANIFEST
from trtkit.engine.keys import ROWS, contract_word, row_of
from trtkit.engine.manifest import Manifest, read_manifest
from trtkit.engine.store import CachePolicy, Stage, Store
from trtkit.errors import InputError

_SHA256 = re.compile(r"[0-9a-f]{64}")
_ABSENT = "absent"
_WORDS = {
    "code": "trtkit's own code",
    "source": "model.source: {}",
    "tokenizer": "model.source: {}",
    "backend": "version or setting of {}",
    "files": "repository file {}",
    "calibrate": "the product of calibrate",
    "alpha": "the product of alpha",
    "calibration": "quantization.calibration.{}",
    "for": "quantization.weights (what calibration looks for)",
    "group_size": "quantization.group_size",
    "texts": "quantization.calibration.data: {}",
    "versions": "version of {}",
    "options": "quantization.gate.{}",
    "weights": "quantization.weights",
    "tried": "what the gate said of the formats before",
    "checkpoint": "the product of convert",
    "engine": "the product of compile",
    "draft": "the draft's engine",
    "heads": "engine.speculation.checkpoint: {}",
    "adapters": "engine.lora.adapters",
}
"""What the first name of an input means; the names below it fill the braces."""


@dataclass(frozen=True)
class Change:
    """One input that is not what it was."""

    what: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.what}: {self.old} -> {self.new}"


def why_not_a_hit(store: Store, stage: Stage) -> tuple[str, ...]:
    """Return the reasons for which a stage has to run; empty when its product can be used."""
    if store.policy in {CachePolicy.OFF, CachePolicy.REDO}:
        return (f"--cache {store.policy.value} uses no product that is there",)
    if damage := store.damage(stage.name, stage.key):
        return (f"its product is damaged: {damage}",)
    if (found := store.find(stage.name, stage.key)) is not None:
        return tuple(filter(None, [stage.unfit(found.facts)]))
    nearest = find_nearest(store, stage)
    if nearest is None:
        return (f"nothing that {stage.name} makes is in the store",)
    return tuple(str(change) for change in changes(nearest.inputs, stage.inputs))


def find_nearest(store: Store, stage: Stage) -> Manifest | None:
    """Return the product of the same stage with the fewest other inputs, the latest of several."""
    paths = (store.root / stage.name).glob(f"[!.]*/{MANIFEST}")
    found = []
    for path in sorted(paths, key=lambda path: -path.stat().st_mtime):
        try:
            manifest = read_manifest(path.parent)
        except (InputError, OSError):
            continue
        if manifest is not None:
            found.append(manifest)
    return min(found, key=lambda each: len(changes(each.inputs, stage.inputs)), default=None)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Return what differs, each thing that has a name of its own in the contract once."""
    # As a manifest gives it back: lists for tuples, strings for enums.
    before, after = (dict(_flat(json.loads(canonical_json(each)))) for each in (old, new))
    found: dict[str, Change] = {}
    for path in sorted({**after, **before}, key=_rank):
        if before.get(path, _ABSENT) != after.get(path, _ABSENT):
            word = _word(path)
            found.setdefault(word, Change(word, before.get(path, _ABSENT), after.get(path, _ABSENT)))
    return list(found.values())


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, dict) and value:
        for name, below in value.items():
            yield from _flat(below, (*path, name))
    elif isinstance(value, str):
        yield path, value[:12] if _SHA256.fullmatch(value) else value
    else:
        yield path, json.dumps(value)


def _rank(path: tuple[str, ...]) -> int:
    """Return the place among the plan's fields: what is given goes before what follows from it under the same name."""
    row = row_of(".".join(path[1:])) if path[0] == "plan" else None
    return ROWS.index(row) if row else len(ROWS)


def _word(path: tuple[str, ...]) -> str:
    first, rest = path[0], ".".join(path[1:])
    if first == "plan":
        return contract_word(rest)
    return _WORDS[first].format(rest) if first in _WORDS else ".".join(path)
