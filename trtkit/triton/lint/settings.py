"""Settings that lie beside a model's code: ``model.yaml`` of the Python API, ``model.json`` of vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtkit.errors import Problem, Severity
from trtkit.triton.lint.model import Model

_DECOUPLED = "model_transaction_policy.decoupled"
_KV_FRACTION, _FRACTION = "free_gpu_memory_fraction", "gpu_memory_utilization"


def settings_problems(model: Model) -> Iterator[Problem]:
    """Check that the settings can be read, agree with the configuration, and name a model that is there."""
    for version in model.versions:
        for name, section in (("model.yaml", "triton_config"), ("model.json", "")):
            path = version / name
            if not path.is_file() or (name == "model.json" and model.config.backend != "vllm"):
                continue
            settings = read_settings(path)
            if settings is None:
                yield Problem("cannot be read", file=str(path), hint="run trtkit repo again")
                continue
            yield from _policy(model, settings.get(section), path) if section else ()
            yield from _weights(model, settings.get("model"), path)
            yield from _fractions(settings, path)


def read_settings(path: Path) -> Mapping[str, Any] | None:
    """Return what is in the file; None when that is no mapping."""
    import yaml

    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return content if isinstance(content, Mapping) else None


def _policy(model: Model, section: Any, path: Path) -> Iterator[Problem]:
    """Check what the code believes against what Triton believes: the launcher switches completion off."""
    believed = bool(section.get("decoupled")) if isinstance(section, Mapping) else False
    if believed != model.config.model_transaction_policy.decoupled:
        message = f"is {str(not believed).lower()}, and triton_config.decoupled in {path.name} {str(believed).lower()}"
        yield model.problem(message, _DECOUPLED, "write true in both: then it streams")


def _fractions(settings: Mapping[str, Any], path: Path) -> Iterator[Problem]:
    """Check the shares of a GPU's memory, by the names of the Python API and of vLLM."""
    cache = settings.get("kv_cache_config")
    fraction = cache.get(_KV_FRACTION) if isinstance(cache, Mapping) else None
    for key, value in ((f"kv_cache_config.{_KV_FRACTION}", fraction), (_FRACTION, settings.get(_FRACTION))):
        if value is not None and (isinstance(value, bool) or not _is_share(value)):
            hint = "write a number above 0, at most 1"
            yield Problem(f"is {value!r}, no share of a GPU's memory", key=key, file=str(path), hint=hint)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and 0 < value <= 1


def _weights(model: Model, name: Any, path: Path) -> Iterator[Problem]:
    if not isinstance(name, str) or not name:
        yield Problem(
            "names no model", key="model", file=str(path), hint="write the folder of the checkpoint"
        )
        return
    place = model.seen(name)
    if not name.startswith("/"):
        message = f"{name!r} is fetched from a hub when the server starts"
        hint = "give a local folder, as the server sees it"
        yield Problem(message, key="model", file=str(path), hint=hint, severity=Severity.WARNING)
    elif place is not None and not place.is_dir():
        from trtkit.triton.lint.files import LINKS

        yield Problem(f"{place} does not exist", key="model", file=str(path), hint=LINKS)
