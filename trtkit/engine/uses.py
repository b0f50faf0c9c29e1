"""Which contracts use which products: one small file per contract and its changes, written at every build."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from trtkit.canonical import content_key

USES = "contracts"
"""Folder of the store for these files."""


@dataclass(frozen=True)
class Use:
    """What the last build of a contract went through."""

    contract: str
    """Absolute path."""
    overrides: tuple[str, ...]
    products: tuple[str, ...]
    """Paths inside the store: ``stage/key``."""
    built_s: float
    """When, since the epoch."""

    @property
    def is_current(self) -> bool:
        """Whether there still is such a contract."""
        return Path(self.contract).is_file()


def write_use(root: Path, contract: Path, overrides: Sequence[str], products: Iterable[Path]) -> None:
    """Record a build; a store that cannot be written to does without."""
    inside = sorted(path.relative_to(root).as_posix() for path in products if path.is_relative_to(root))
    use = Use(str(contract.resolve()), tuple(overrides), tuple(inside), time.time())
    name = content_key({"contract": use.contract, "overrides": use.overrides})[:32]
    staged = root / USES / f".{name}.{os.getpid()}"
    with contextlib.suppress(OSError):
        staged.parent.mkdir(parents=True, exist_ok=True)
        staged.write_text(json.dumps(asdict(use), sort_keys=True), encoding="utf-8")
        staged.replace(root / USES / f"{name}.json")


def read_uses(root: Path) -> list[Use]:
    """Return what is recorded; a record that cannot be read is none."""
    found = []
    for path in sorted((root / USES).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            raw = json.loads(path.read_text(encoding="utf-8"))
            use = Use(
                str(raw["contract"]), tuple(raw["overrides"]), tuple(raw["products"]), float(raw["built_s"])
            )
            if use.is_current:
                found.append(use)
    return found
