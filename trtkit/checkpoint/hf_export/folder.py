"""What an exported folder holds beside its weights: the publisher's files, with a new ``config.json``."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.staging import contents
from trtkit.errors import InputError

_DTYPE_KEYS = ("torch_dtype", "dtype")
_QUANTIZATION_KEYS = ("quantization_config", "compression_config", "quantization")
_KEPT = (
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.tiktoken",
    "chat_template*",
    "LICENSE*",
    "NOTICE*",
    "USE_POLICY*",
)
_TEMPLATES = "additional_chat_templates"


def check_free(out: Path) -> None:
    """Refuse to replace anything: a publisher's folder has the same file names as an exported one.

    Raises:
        InputError: Something is there.
    """
    if out.exists() and not out.is_dir():
        raise InputError("is a file", path=out, hint="choose another folder")
    if contents(out):
        raise InputError(
            "holds files, which would be lost", path=out, hint="choose another folder, or empty it"
        )


def copy_files(source: Path, out: Path) -> None:
    """Copy tokenizer, chat templates, defaults of generation and license as they are."""
    for path in sorted(source.iterdir()):
        if path.is_file() and any(fnmatchcase(path.name, pattern) for pattern in _KEPT):
            shutil.copyfile(path, out / path.name)
    if (source / _TEMPLATES).is_dir():
        shutil.copytree(source / _TEMPLATES, out / _TEMPLATES)


def hf_config(source: Path, *, dtype: str, quantization: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the publisher's ``config.json`` with the data type and the quantization of what is written."""
    raw = read_json(source / "config.json")
    content = {key: value for key, value in raw.items() if key not in _QUANTIZATION_KEYS}
    spelled = [key for key in _DTYPE_KEYS if key in raw] or [_DTYPE_KEYS[0]]
    content |= dict.fromkeys(spelled, dtype)
    return content if quantization is None else {**content, "quantization_config": quantization}
