"""Models on a Hugging Face hub, fetched only when they are asked for by ``hf:``.

They are kept in the hub's own cache, ``HF_HUB_CACHE``: what other programs fetched is used, and what is fetched here is
there for others. Only configuration, tokenizer and safetensors come down: no pickles, no code.
"""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from trtkit.checkpoint.hf import read_json
from trtkit.checkpoint.progress import Progress
from trtkit.errors import EnvironmentLacks, InputError, TrtkitError

PREFIX = "hf:"
_MODEL = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>\w[\w./-]*))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CONFIG = "config.json"
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TOKENIZER = "tokenizer.json"
_BESIDE = ("*.json", "*.jinja", "*.tiktoken", "tokenizer.model", "merges.txt", "vocab.txt")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


@dataclass(frozen=True)
class HubModel:
    """A model by name; ``revision`` is a branch, a tag or a commit, None the default branch."""

    name: str
    revision: str | None

    @classmethod
    def parse(cls, source: str) -> HubModel:
        """Read ``hf:ORG/NAME`` or ``hf:ORG/NAME@REVISION``.

        Raises:
            InputError: It is something else.
        """
        match = _MODEL.fullmatch(source.removeprefix(PREFIX))
        if match is None:
            hint = "write hf:ORG/NAME@REVISION; without @REVISION the default branch is taken"
            raise InputError(f"{source!r} names no model on a hub", hint=hint)
        return cls(match["name"], match["revision"])

    @property
    def commit(self) -> str | None:
        """Return the revision where it cannot change its meaning."""
        return self.revision if self.revision and _COMMIT.fullmatch(self.revision) else None


def find_model(model: HubModel) -> Path | None:
    """Return the folder of a commit that is in the cache with weights and tokenizer, without asking the hub."""
    folder = _cached(model.name, model.commit) if model.commit else None
    return folder if folder is not None and (folder / _TOKENIZER).is_file() else None


def fetch_model(model: HubModel, progress: Progress) -> Path:
    """Return the folder of a model, fetching what is not in the cache.

    ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HUB_CACHE`` and ``HF_HUB_OFFLINE`` mean what they mean to huggingface_hub.

    Raises:
        InputError: There is no such model or revision, or it has no safetensors.
        EnvironmentLacks: The hub cannot be reached or wants a token, the disk is full, or huggingface_hub is missing.
    """
    _need_library()
    kept = find_model(model)
    if kept is None and _is_offline():
        kept = _offline(model)
    if kept is not None:
        progress(f"find {PREFIX}{model.name}@{kept.name}", 1, 1)
        return kept
    try:
        return _fetch(model, progress)
    except EnvironmentLacks:
        # Whole but for the tokenizer, and that a conversion can do without.
        if model.commit and (folder := _cached(model.name, model.commit)):
            return folder
        raise


def _need_library() -> None:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as error:
        message = "fetching models from a hub needs the huggingface_hub library"
        raise EnvironmentLacks(message, hint="pip install 'trtkit[hub]'") from error


def _is_offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _cached(name: str, revision: str) -> Path | None:
    """Return the folder of a revision whose configuration and weights are in the cache."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    config = try_to_load_from_cache(name, _CONFIG, revision=revision)
    if not isinstance(config, str):
        return None
    folder = Path(config).parent
    try:
        files = [_SINGLE] if (folder / _SINGLE).exists() else _shards(folder / _INDEX)
    except InputError:
        return None
    return folder if all((folder / file).is_file() for file in files) else None


def _offline(model: HubModel) -> Path:
    folder = _cached(model.name, model.revision or "main")
    if folder is None:
        message = f"{_text(model)} is not in the cache, and HF_HUB_OFFLINE forbids to fetch it"
        raise EnvironmentLacks(message, hint=f"unset HF_HUB_OFFLINE, or run `{_command(model)}` elsewhere")
    return folder


def _fetch(model: HubModel, progress: Progress) -> Path:
    from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download

    with _explained(model):
        info = HfApi().model_info(model.name, revision=model.revision, files_metadata=True)
        commit, sizes = str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()}
        shards: Sequence[str] = (_SINGLE,)
        if _SINGLE not in sizes and _INDEX in sizes:
            shards = _shards(Path(hf_hub_download(model.name, _INDEX, revision=commit)))
        wanted = _wanted(model, sizes, shards)
        total_bytes = sum(sizes[name] for name in wanted)
        stage = f"fetch {PREFIX}{model.name}@{commit}"
        _check_space(model, commit, {name: sizes[name] for name in wanted}, Path(constants.HF_HUB_CACHE))
        progress(stage, 0, total_bytes)
        bars = _bars(stage, total_bytes, progress)
        folder = snapshot_download(
            model.name, revision=commit, allow_patterns=wanted, tqdm_class=bars, max_workers=4
        )
        progress(stage, total_bytes, total_bytes)
    return Path(folder)


def _shards(index: Path) -> list[str]:
    weight_map = read_json(index).get("weight_map")
    files = set(weight_map.values()) if isinstance(weight_map, Mapping) else set()
    if not files or not all(isinstance(file, str) and Path(file).name == file for file in files):
        raise InputError("weight_map does not map tensors to files beside it", path=index)
    return sorted(files)


def _wanted(model: HubModel, sizes: Mapping[str, int], shards: Sequence[str]) -> list[str]:
    """Return the files to fetch; those in folders are the model in other formats."""
    top = sorted(name for name in sizes if "/" not in name)
    missing = [name for name in (_CONFIG, *shards) if name not in sizes]
    if missing:
        found = [
            name for name in top if Path(name).suffix in {".bin", ".gguf", ".pt", ".pth", ".safetensors"}
        ]
        others = f"; it has {', '.join(found[:5])}" if found else ""
        hint = "name the repository of the model itself, in safetensors"
        if "adapter_config.json" in sizes:
            hint = "an adapter has to be merged into its model first: merge it, then name the merged folder"
        raise InputError(f"{_text(model)} lacks {', '.join(missing[:5])}{others}", hint=hint)
    return [*(name for name in top if any(fnmatchcase(name, pattern) for pattern in _BESIDE)), *shards]


def _check_space(model: HubModel, commit: str, sizes: Mapping[str, int], cache: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    there = {
        name for name in sizes if isinstance(try_to_load_from_cache(model.name, name, revision=commit), str)
    }
    needed_bytes = sum(size for name, size in sizes.items() if name not in there)
    existing = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    free_bytes = shutil.disk_usage(existing).free
    if needed_bytes > free_bytes:
        message = f"{_text(model)} takes {needed_bytes:,} bytes and {free_bytes:,} are free"
        raise EnvironmentLacks(message, path=cache, hint="free space, or set HF_HUB_CACHE to another disk")


def _bars(stage: str, total_bytes: int, progress: Progress) -> type[Any]:
    """Return a class of progress bars that show nothing themselves and tell how many bytes there are."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped, unused-ignore]

    class Bars(tqdm):  # type: ignore[misc, unused-ignore]
        monitor_interval = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def display(self, *_args: Any, **_kwargs: Any) -> None:
            pass

        def update(self, n: float | None = 1) -> bool | None:
            changed: bool | None = super().update(n)
            if self.unit == "B":  # others count files
                progress(stage, min(int(self.n), total_bytes), total_bytes)
            return changed

    return Bars


@contextmanager
def _explained(model: HubModel) -> Iterator[None]:
    """Turn whatever the hub's client raises into one clear error."""
    try:
        yield
    except TrtkitError:
        raise
    except Exception as error:
        raise _explain(error, model) from error


def _explain(error: Exception, model: HubModel) -> TrtkitError:
    from huggingface_hub import constants, errors

    text, hub = _text(model), constants.ENDPOINT
    if isinstance(error, errors.GatedRepoError):
        hint = f"accept its conditions at {hub}/{model.name}, then set HF_TOKEN to a token of that account"
        return EnvironmentLacks(f"{text} is gated, and this account may not fetch it", hint=hint)
    if isinstance(error, errors.RevisionNotFoundError):
        return InputError(f"{text}: there is no such revision", hint=f"see {hub}/{model.name}/commits")
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        hint = "check the name; a private model needs HF_TOKEN"
        return InputError(f"{text}: {hub} has no such model", hint=hint)
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(error.response, "status_code", "no status")
        hint = "set HF_TOKEN to a valid token" if status in (401, 403) else "try again later"
        return EnvironmentLacks(f"{text}: {hub} answered {status}", hint=hint)
    return _explain_machine(error, model, hub)


def _explain_machine(error: Exception, model: HubModel, hub: str) -> EnvironmentLacks:
    """Explain what is not the hub's answer: the cache, or whatever HTTP library the hub's client is built on."""
    text, number = _text(model), getattr(error, "errno", None)
    if number in _NO_SPACE:
        hint = "free space, or set HF_HUB_CACHE to another disk; what is there already is kept"
        return EnvironmentLacks(f"{text}: the disk is full", hint=hint)
    if number in _NOT_WRITABLE:
        message = f"the cache cannot be written: {os.strerror(number)}"
        path = getattr(error, "filename", None)
        return EnvironmentLacks(message, path=path, hint="set HF_HUB_CACHE to a folder that can be written")
    hint = f"check the network and HF_ENDPOINT; without a network, run `{_command(model)}` elsewhere"
    reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return EnvironmentLacks(f"{text} could not be fetched from {hub}: {reason}", hint=hint)


def _text(model: HubModel) -> str:
    return f"{PREFIX}{model.name}" + (f"@{model.revision}" if model.revision else "")


def _command(model: HubModel) -> str:
    revision = f" --revision {model.revision}" if model.revision else ""
    return f"hf download {model.name}{revision} --local-dir {model.name.split('/')[1]}"
