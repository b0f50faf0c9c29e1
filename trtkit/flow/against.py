"""Whether a folder is for the machine that it is to run on: what it was built for, what the target has."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtkit.catalog.formats import WEIGHTS
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.support import FIRST_SM, LAST_SM, Support
from trtkit.catalog.trtllm import NEWEST, PROFILES
from trtkit.checkpoint.forms.baked import BakedLayout
from trtkit.conventions import CHECKPOINT_CONFIG, MANIFEST
from trtkit.engine.manifest import read_manifest
from trtkit.engine.origin import build_command
from trtkit.errors import InputError, Problem, Severity
from trtkit.flow.inspect import Kind, kind_of
from trtkit.flow.inspect.description import read_description
from trtkit.flow.inspect.engine import engine_version
from trtkit.flow.inspect.repository import engine_folders
from trtkit.plan.support import weights_verdict

CPU = "cpu"
ON_CPUS = (CPU, "onnx")
"""Back ends whose engines run on this kind of machine."""
_LINE = re.compile(r"(?:trtllm-?)?(\d+\.\d+)(?:\.\w+)*")
_SM = re.compile(r"(?:sm_?)?(\d{1,2})\.?(\d)")
_IMAGE = re.compile(r"(?:.*:)?(\d{2}\.\d{2})(?:-\S+)?")


@dataclass(frozen=True)
class Target:
    """A machine, as far as it is known; None for what is not."""

    backend: str | None = None
    gpu: str | None = None
    sm: int | None = None
    line: str | None = None
    """Release line of TensorRT-LLM."""
    sms: tuple[int, ...] = ()
    """All that an engine has code for, where that is more than one."""

    def __str__(self) -> str:
        words = [
            "the CPU" if self.backend in ON_CPUS else "",
            GPUS[self.gpu].title if self.gpu in GPUS else self.gpu or "",
            f"SM {' and '.join(map(str, self.sms or (self.sm,)))}" if self.sm else "",
            f"TensorRT-LLM {self.line}" if self.line else "",
        ]
        return ", ".join(filter(None, words)) or "nothing that it names"


@dataclass(frozen=True)
class Built:
    """What a folder was made for, and by which build."""

    target: Target
    origin: Mapping[str, Any]


def parse_target(names: Sequence[str]) -> Target:
    """Return the machine that several names describe together.

    Raises:
        InputError: One of them is no GPU, compute capability, release line or image that is known, or two disagree.
    """
    found: dict[str, Any] = {}
    for name in names:
        for key, value in _facts(name).items():
            if found.setdefault(key, value) != value:
                raise InputError(f"--against {' '.join(names)}: {found[key]} and {value} cannot both be")
    return Target(**found)


def _facts(name: str) -> dict[str, Any]:
    text = name.strip().lower()
    if text == CPU:
        return {"backend": CPU}
    if text in GPUS:
        return {"gpu": text, "sm": GPUS[text].sm}
    if (match := _LINE.fullmatch(text)) and match[1] in PROFILES:
        return {"line": match[1]}
    if match := _IMAGE.fullmatch(text):
        lines = [line for line, profile in PROFILES.items() if match[1] in profile.images]
        if lines:
            return {"line": lines[0]}
    if (match := _SM.fullmatch(text)) and FIRST_SM <= (sm := int(match[1] + match[2])) <= LAST_SM:
        return {"sm": sm}
    hint = f"name a GPU ({', '.join(GPUS)}), an SM (89), a release line ({', '.join(PROFILES)}), an image tag, or cpu"
    raise InputError(f"--against {name}: not known", hint=hint)


def target_problems(folder: Path, target: Target) -> list[Problem]:
    """Return why a folder cannot run on a target, each with the command that makes it fit."""
    if kind_of(folder) is Kind.HUGGING_FACE or kind_of(folder) is Kind.CHECKPOINT:
        return _checkpoint_problems(folder, target)
    found = built_for(folder)
    if found is None:
        return [Problem("nothing in it says what it was built for", file=str(folder), hint="build it again")]
    return _engine_problems(folder, found, target)


def built_for(folder: Path) -> Built | None:
    """Return what an engine, repository or product was built for: its manifest says so, or its engine's own file."""
    manifest = read_manifest(folder) if (folder / MANIFEST).is_file() else None
    if manifest is not None and manifest.origin.get("target"):
        said = manifest.origin["target"]
        sms = tuple(said.get("sms", ()))
        return Built(Target(said["backend"], said["gpu"], said["sm"], said["trtllm"], sms), manifest.origin)
    engines = engine_folders(folder)
    if engines:
        return built_for(engines[0])
    config, _ = read_description(folder / CHECKPOINT_CONFIG)
    if config.get("backend"):
        return Built(Target(str(config["backend"])), {})
    version = engine_version(config)
    match = _LINE.fullmatch(version or "")
    return Built(Target("tensorrt", line=match[1] if match else version), {}) if version else None


def _engine_problems(folder: Path, built: Built, target: Target) -> list[Problem]:
    have = built.target
    said = f"built for {have}, target has {target}"
    hint = build_command(built.origin, _changes(have, target))
    if (have.backend in ON_CPUS) != (target.backend == CPU):
        return [Problem(said, file=str(folder), hint=hint)]
    sm = target.sm if target.sm in have.sms else have.sm
    pairs = {"SM": (sm, target.sm), "release line": (have.line, target.line)}
    differing = {
        name: mine for name, (mine, theirs) in pairs.items() if theirs is not None and mine != theirs
    }
    wrong = [name for name, mine in differing.items() if mine is not None]
    unknown = [name for name, mine in differing.items() if mine is None]
    problems = [Problem(said, key=" and ".join(wrong), file=str(folder), hint=hint)] if wrong else []
    if unknown:
        message = f"does not say which {' and '.join(unknown)} it was built for; target has {target}"
        problems.append(Problem(message, file=str(folder), hint=hint))
    if not problems and target.gpu and have.gpu and target.gpu != have.gpu and not have.sms:
        message = f"{said}: it loads, with kernels that were chosen on another GPU"
        problems.append(Problem(message, file=str(folder), hint=hint, severity=Severity.WARNING))
    return problems


def _changes(have: Target, target: Target) -> dict[str, str]:
    """Return the contract's keys that have other values for the target."""
    if target.backend == CPU:
        only_rtx = {"engine.targets": "null"} if have.sms else {}
        return {"engine.backend": CPU, "engine.gpu": "null", **only_rtx}
    changes = {"engine.backend": "tensorrt"} if have.backend in ON_CPUS else {}
    if have.sms and target.sm:
        return {"engine.targets": str(sorted({*have.sms, target.sm}))}
    gpu = target.gpu or next((gpu.name for gpu in GPUS.values() if gpu.sm == target.sm), None)
    if gpu and (have.sm != target.sm or target.gpu):
        changes["engine.gpu"] = gpu
    if target.line:
        changes["engine.trtllm"] = target.line
    return changes


def _checkpoint_problems(folder: Path, target: Target) -> list[Problem]:
    """Compare a checkpoint's layout and formats; one in the portable form fits every GPU that has the format."""
    config, _ = read_description(folder / CHECKPOINT_CONFIG)
    if target.sm is None:
        return []
    baked = config.get("trtkit")
    if isinstance(baked, Mapping) and baked.get("layout") and not _has_layout(baked, target):
        message = f"built for the layout of SM {baked.get('target_sm')}, target has {target}"
        hint = f"trtkit convert SOURCE -o {folder} --target-sm {target.sm}"
        return [Problem(message, key="trtkit.target_sm", file=str(folder), hint=hint)]
    quantization = config.get("quantization")
    algorithm = quantization.get("quant_algo") if isinstance(quantization, Mapping) else None
    name = _format(algorithm)
    if name is None:
        message = f"nothing is known of {algorithm} weights on {target}"
        return [
            Problem(
                message, key="quantization.quant_algo", file=str(folder), hint="convert to another format"
            )
        ]
    verdict = weights_verdict("tensorrt", name, target.sm, target.line or NEWEST)
    if verdict.support is not Support.REFUSED:
        return []
    hint = f"trtkit convert SOURCE -o {folder} --weights {verdict.nearest}" if verdict.nearest else ""
    message = f"{algorithm or 'plain'} weights do not run there: {verdict.reason}; target has {target}"
    return [Problem(message, key="quantization.quant_algo", file=str(folder), hint=hint)]


def _format(algorithm: Any) -> str | None:
    """Return the contract's name of TensorRT-LLM's algorithm; SmoothQuant has one for each kind of scales."""
    if str(algorithm).startswith("W8A8_SQ"):
        return "int8-sq"
    return next((name for name, facts in WEIGHTS.items() if facts.quant_algo == algorithm), None)


def _has_layout(baked: Mapping[str, Any], target: Target) -> bool:
    """Tell whether the target's kernels take the layout that the weights are in."""
    layout = BakedLayout.of(target.sm or 0, target.line or baked.get("trtllm_version"))
    return layout is not None and layout.value == baked["layout"]
