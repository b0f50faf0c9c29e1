"""Triton model repositories: their models, and the engine inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtkit.conventions import CHECKPOINT_CONFIG
from trtkit.flow.inspect.description import read_origin
from trtkit.flow.inspect.engine import inspect_engine
from trtkit.flow.inspect.finding import Finding, Kind


def inspect_repository(folder: Path) -> Finding:
    """Parse every ``config.pbtxt``; what would keep Triton from loading it is a problem."""
    from trtkit.triton.lint import lint

    origin, damage = read_origin(folder)
    models = {path.parent.name: _model(path) for path in sorted(folder.glob("*/config.pbtxt"))}
    return Finding(
        Kind.REPOSITORY,
        str(folder),
        details={"models": models, **origin},
        problems=(*damage, *lint(folder)),
        parts=tuple(inspect_engine(path) for path in engine_folders(folder)),
    )


def engine_folders(repository: Path) -> list[Path]:
    """Return the engines that lie inside of a repository."""
    found = (path.parent for path in repository.glob(f"*/*/*/{CHECKPOINT_CONFIG}"))
    return sorted(path for path in found if _is_engine(path))


def _is_engine(folder: Path) -> bool:
    return any(folder.glob("rank*.engine")) or b'"build_config"' in (folder / CHECKPOINT_CONFIG).read_bytes()


def _model(path: Path) -> dict[str, Any]:
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    try:
        config = text_format.Parse(path.read_text(encoding="utf-8"), pb.ModelConfig())
    except (text_format.ParseError, UnicodeDecodeError, OSError):
        return {}  # the lint names it
    return {
        "backend": config.backend or config.platform,
        "max_batch_size": config.max_batch_size,
        "decoupled": config.model_transaction_policy.decoupled,
        "inputs": [each.name for each in config.input],
        "outputs": [each.name for each in config.output],
    }
