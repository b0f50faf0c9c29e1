"""From one back end to another: what stays of a contract, what changes, what is lost, and what comes closest."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trtkit.catalog.gpus import GPUS
from trtkit.catalog.trtllm import LINES
from trtkit.contract import Contract, ContractFile
from trtkit.contract.formats import BackendName
from trtkit.contract.load import override_value, parse_contract, plain_values
from trtkit.engine.exported import EXPORTED
from trtkit.errors import InputError
from trtkit.flow.changes import Change, Mover
from trtkit.plan.support import gpus_of

_ALIAS = re.compile(r"^[^#]*[:\[{,-]\s*\*\w", re.MULTILINE)
TARGETS = ("tensorrt", *EXPORTED)
"""Back ends that contracts are moved to."""


@dataclass(frozen=True)
class Migration:
    """What became of a contract."""

    backend: str
    kept: tuple[str, ...]
    changes: tuple[Change, ...]
    remarks: tuple[str, ...]
    """What is no key: for those who ask the server, and those who run it."""
    text: str
    """The new contract, with the old one's comments."""

    @property
    def lost(self) -> tuple[Change, ...]:
        """What is no more."""
        return tuple(each for each in self.changes if each.lost)

    def as_json(self) -> dict[str, Any]:
        """Return it for a program."""
        return asdict(self)


def migrate(file: ContractFile, backend: BackendName, *, gpu: str | None = None) -> Migration:
    """Rewrite a contract for another back end; ``gpu`` is for one that names none, or another than it should be.

    Raises:
        InputError: The back end is the contract's own, or needs a GPU that nobody has named.
        ContractError: What comes out is no contract.
    """
    contract, name = file.contract, backend.value
    if contract.engine.backend is backend:
        raise InputError(f"the contract is for {name} already", path=file.path, hint="name another back end")
    if name not in TARGETS:
        raise InputError(
            f"contracts are not moved to {name}", hint=f"move to {', '.join(TARGETS)}, or write one"
        )
    line, chosen = contract.engine.trtllm, gpu or contract.engine.gpu
    if line is not None and line not in LINES:
        message, hint = f"TensorRT-LLM {line} is not in the catalog", f"lines that are: {', '.join(LINES)}"
        raise InputError(message, path=file.path, hint=hint)
    if chosen is None or chosen not in GPUS:
        message = (
            f"{chosen!r} is no GPU of the catalog" if chosen else f"{name} needs a GPU, and there is none"
        )
        raise InputError(message, path=file.path, hint=f"give --gpu, one of {', '.join(GPUS)}")
    mover = Mover(contract, name, chosen)
    if chosen not in (known := gpus_of(name, mover.line)):
        message, hint = f"{name} has no kernels for {chosen}", f"give --gpu, one of {', '.join(known)}"
        raise InputError(message, path=file.path, hint=hint)
    changes = list(mover.changes())
    document, kept = _rewritten(file, changes)
    text = _dumped(document)
    moved = parse_contract(text, file.path)
    keys = tuple(key for key in kept if key.split(".")[0] not in {"apiVersion", "kind"})
    return Migration(name, keys, tuple(changes), tuple(_remarks(contract, moved.contract)), text)


def _remarks(before: Contract, after: Contract) -> Iterator[str]:
    """Yield what is in no key."""
    name = after.engine.backend.value
    if name == "llmapi":
        yield "clients send sampling_param_max_tokens and its like, of shape [1]: there is no batch dimension"
    if name == "vllm":
        yield "clients send sampling_parameters, one JSON text, of shape [1]: there is no batch dimension"
    if name in {"llmapi", "vllm"}:
        yield "one model is served, `tensorrt_llm`, and neither an ensemble nor BLS: name it in requests"
        yield "`trtkit proxy` keeps the promises for these tensors too; `trtkit up` and `trtkit bench` do not send them"
    if name == "edgellm":
        yield "there is no Triton model repository: Edge-LLM's own server serves what its builder makes"
        yield "the promises are planned with, and no proxy keeps them"
    if before.quantization.weights is not after.quantization.weights and after.quantization.gate:
        yield "the gate's limits were meant for another format: look at them, INT4 needs some of its own"
    if after.engine.speculation and after.engine.speculation.draft:
        yield f"the draft's contract has to move too: trtkit migrate {after.engine.speculation.draft} --to {name}"
    if before.engine.backend.value == "tensorrt" and name in EXPORTED:
        yield "the first start compiles and tunes kernels: allow for minutes before the server is ready"


def _rewritten(file: ContractFile, changes: Sequence[Change]) -> tuple[Any, list[str]]:
    """Return the document with its comments and the changes, and the keys that stayed."""
    document = _loaded(file)
    for change in changes:
        *parents, leaf = change.key.split(".")
        path = [document]
        for part in parents:
            path.append(path[-1].setdefault(part, {}))
        if change.after is not None:
            path[-1][leaf] = change.after
            continue
        path[-1].pop(leaf, None)
        # Only what lost its last key here: an empty section may mean something, as `standard: {}` of a pool does.
        for section, part in zip(reversed(path[:-1]), reversed(parents), strict=True):
            if not section[part]:
                del section[part]
    touched = {change.key for change in changes}
    return document, [
        key for key in _leaves(document) if not any(f"{key}.".startswith(f"{each}.") for each in touched)
    ]


def _loaded(file: ContractFile) -> Any:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.preserve_quotes = True
    text = file.path.read_text(encoding="utf-8")
    # What aliases share cannot be changed in one place of the document: it is written out, without the comments.
    if _ALIAS.search(text):
        document: Any = plain_values(text)
    else:
        _bind_comments(document := yaml.load(text))
    for override in file.overrides:
        *parents, leaf = override.partition("=")[0].split(".")
        section = document
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = override_value(override)
    return document


def _bind_comments(section: Any) -> None:
    """Hang what stands above a key on that key: ruamel hangs it on the value before, which may go or get company."""
    from ruamel.yaml.error import CommentMark
    from ruamel.yaml.tokens import CommentToken

    for before, key in pairwise(list(section)):
        holder, last = section, before
        while hasattr(value := holder[last], "ca") and value and not value.fa.flow_style():
            holder, last = value, list(value)[-1] if isinstance(value, dict) else len(value) - 1
        place = 2 if isinstance(holder, dict) else 0
        comments = holder.ca.items.get(last)
        if comments is None or comments[place] is None:
            continue
        beside, _, above = comments[place].value.partition("\n")
        comments[place].value = f"{beside}\n"
        if not beside:
            comments[place] = None
        mark = CommentMark(section.lc.key(key)[1])
        entry = section.ca.items.setdefault(key, [None] * 4)
        entry[1] = [CommentToken(line.lstrip(" "), mark) for line in above.splitlines(True)] + (
            entry[1] or []
        )
    for value in section.values():
        if isinstance(value, dict):
            _bind_comments(value)


def _leaves(section: Any, prefix: str = "") -> Iterator[str]:
    for key, value in section.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _dumped(document: Any) -> str:
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 120
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def write_contract(file: ContractFile, migration: Migration, out: Path) -> None:
    """Write the new contract.

    Raises:
        InputError: Something is there already, or paths in it would lead elsewhere.
    """
    if out.exists():
        raise InputError("is there already", path=out, hint="name another file: no contract is replaced")
    moves = out.resolve().parent != file.path.resolve().parent
    if moves and (
        paths := [path for path in _paths(file.contract) if not Path(path).expanduser().is_absolute()]
    ):
        message = f"paths in a contract are relative to it: {', '.join(paths)} would lead elsewhere"
        raise InputError(message, path=out, hint=f"write it beside the old one, in {file.path.parent}")
    try:
        out.write_text(migration.text, encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be written: {error.strerror}", path=out, hint="name another file"
        ) from error


def _paths(contract: Contract) -> Iterator[str]:
    formats, engine = contract.quantization, contract.engine
    if not contract.model.source.startswith(("hf:", "pypi:")):
        yield contract.model.source
    asked = engine.speculation
    gate = (formats.gate.data, formats.gate.task_file) if formats.gate else ()
    tasks = formats.gate.lm_eval.folder if formats.gate and formats.gate.lm_eval else None
    drafts = (asked.draft, asked.checkpoint) if asked else ()
    named = (formats.calibration.data, *gate, tasks, *drafts, *(engine.lora.adapters if engine.lora else ()))
    yield from (path for path in named if path)
