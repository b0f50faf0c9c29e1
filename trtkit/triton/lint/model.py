"""One model of a repository, as the checks see it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtkit.conventions import DRAFT_MODEL, ENGINE_MODEL
from trtkit.errors import Problem, Severity
from trtkit.triton.built import Built, read_built

TENSORRT = "tensorrtllm"


@dataclass(frozen=True)
class Model:
    """A folder with a configuration that could be read."""

    folder: Path
    config: Any

    @property
    def name(self) -> str:
        """Name of the folder, which is what Triton loads."""
        return self.folder.name

    @property
    def file(self) -> str:
        """Path of the configuration."""
        return str(self.folder / "config.pbtxt")

    @property
    def has_engine(self) -> bool:
        """Whether the model is one with TensorRT-LLM's parameters, run by whom it may."""
        named = self.name in {ENGINE_MODEL, DRAFT_MODEL} and "gpt_model_type" in self.config.parameters
        return self.config.backend == TENSORRT or named

    @property
    def is_llmapi(self) -> bool:
        """Whether TensorRT-LLM's Python API runs it."""
        return any((version / "model.yaml").is_file() for version in self.versions)

    @cached_property
    def versions(self) -> tuple[Path, ...]:
        """Version directories, the newest first, which is the one that Triton serves where nothing else is said."""
        found = (path for path in self.folder.iterdir() if path.is_dir() and path.name.isdecimal())
        return tuple(sorted(found, key=lambda path: int(path.name), reverse=True))

    def text(self, key: str) -> str:
        """Return a parameter, empty when there is none."""
        return str(self.config.parameters[key].string_value) if key in self.config.parameters else ""

    def place(self, key: str) -> Path | None:
        """Return where a path parameter leads on this machine.

        A path of a container that ends inside of this model is looked for here; None for nothing, or for one that only
        the container has.
        """
        value = self.text(key)
        if not value or "${" in value:
            return None
        if not value.startswith("/"):
            return self.versions[0] / value if self.versions else None
        return self.seen(value)

    def seen(self, value: str) -> Path | None:
        """Return where a path from the root leads on this machine; None for one that only the server has."""
        _, below = self.split(value)
        inside = self.folder / below if below else None
        # Another repository may lie here where the server's container has this one.
        if (inside is None or not inside.exists()) and Path(value).exists():
            return Path(value)
        return inside

    def split(self, value: str) -> tuple[str, str]:
        """Return where the server sees the repository, and what is below this model; twice nothing for another path."""
        name = re.escape(self.name)
        found = re.fullmatch(rf"(.*)/{name}/(\d+(?:/.*)?)", value) or re.fullmatch(
            rf"(.*)/{name}/(.+)", value
        )
        return (found[1], found[2]) if found else ("", "")

    @cached_property
    def built(self) -> Built | None:
        """What the engine in it says of itself."""
        place = self.place("gpt_model_path")
        return read_built(place) if place else None

    def problem(
        self, message: str, key: str = "", hint: str = "", *, severity: Severity = Severity.ERROR
    ) -> Problem:
        """Return a problem of the configuration."""
        return Problem(message, key=key, hint=hint, file=self.file, severity=severity)

    def warning(self, message: str, key: str = "", hint: str = "") -> Problem:
        """Return a warning about the configuration."""
        return self.problem(message, key, hint, severity=Severity.WARNING)


Models = Mapping[str, Model]
