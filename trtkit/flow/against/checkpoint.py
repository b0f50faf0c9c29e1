"""Checkpoints and sources: whether engines of them can be built for a target, by the tables that plans go by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from trtkit.catalog.formats import BACKENDS, KV_CACHE, SMOOTHQUANT, WEIGHTS
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.support import UNWRITTEN, Support
from trtkit.catalog.trtllm import ARCHITECTURES_SINCE, HEAD_SIZES, LINES, NEWEST
from trtkit.checkpoint.forms.baked import BakedLayout
from trtkit.errors import Problem, Severity
from trtkit.flow.against.comparison import Comparison
from trtkit.flow.against.needs import Needs, needs_of_checkpoint, needs_of_source
from trtkit.flow.against.target import CPU, Target
from trtkit.flow.inspect import Kind, kind_of
from trtkit.plan.support import Verdict, kv_verdict, weights_verdict

_ENGINES = "tensorrt"
_WEIGHTS: dict[str | None, str] = {
    **{facts.quant_algo: name for name, facts in WEIGHTS.items()},
    **dict.fromkeys(SMOOTHQUANT.values(), "int8-sq"),
    **{algorithm: name for name, algorithm in UNWRITTEN.items()},
}
"""TensorRT-LLM's algorithms by the contract's names; SmoothQuant has one for each kind of scales."""
_KV = {algorithm: name for name, algorithm in KV_CACHE.items()}
_ALGORITHM, _KV_ALGORITHM = "quantization.quant_algo", "quantization.kv_cache_quant_algo"
_TAKE_ANOTHER = "convert to another format"


def compare_checkpoint(folder: Path, target: Target) -> Comparison:
    """Compare a checkpoint's, or a source's, layout, formats and model with what the target runs."""
    needs = needs_of_checkpoint(folder) if kind_of(folder) is Kind.CHECKPOINT else needs_of_source(folder)
    told = Comparison(needs.problems)
    if target.backend == CPU:
        return told + _on_cpu(folder, needs)
    layout = _layout(folder, needs, target)
    if layout.problems:
        return told + layout
    parts = (_weights(folder, needs, target), _kv_cache(folder, needs, target), _model(folder, needs, target))
    return sum(parts, told + layout)


def _on_cpu(folder: Path, needs: Needs) -> Comparison:
    facts = BACKENDS[CPU]
    kinds: dict[str, tuple[object, Sequence[object]]] = {
        "architecture": (needs.architecture, facts.architectures),
        "rotary scaling": (needs.rope, (None, *facts.rope_types)),
        "ranks": (needs.ranks, range(1, facts.max_ranks + 1)),
    }
    known = [name for each in needs.algorithms if (name := _WEIGHTS.get(each)) in WEIGHTS]
    kinds |= {f"weights ({name})": (name, facts.weights) for name in known}
    if needs.kv_cache in _KV:
        kinds["KV cache"] = (_KV[needs.kv_cache], facts.kv_cache)
    problems = [
        Problem(
            f"the {CPU} back end does not run {kind}: {value}",
            file=str(folder),
            hint=f"it runs {_list(taken)}",
        )
        for kind, (value, taken) in kinds.items()
        if value not in taken
    ]
    unknown = [each for each in needs.algorithms if _WEIGHTS.get(each) not in WEIGHTS]
    problems += [_unknown(folder, f"{each} weights", "the CPU", _ALGORITHM) for each in unknown]
    if needs.kv_cache not in _KV:
        problems.append(_unknown(folder, f"a {needs.kv_cache} KV cache", "the CPU", _KV_ALGORITHM))
    return Comparison(tuple(problems), tuple(kinds))


def _list(values: Iterable[object]) -> str:
    return ", ".join(str(each) for each in values if each is not None)


def _layout(folder: Path, needs: Needs, target: Target) -> Comparison:
    """Tell whether the target's kernels take the layout that the weights are in."""
    baked = needs.baked or {}
    if target.sm is None or not baked.get("layout"):
        return Comparison()
    layout = BakedLayout.of(target.sm, target.line or baked.get("trtllm_version"))
    if layout is not None and layout.value == baked["layout"]:
        return Comparison(compared=("layout",))
    message = f"built for the layout of SM {baked.get('target_sm')}, target has {target}"
    hint = f"trtkit convert SOURCE -o {folder} --target-sm {target.sm}"
    return Comparison((Problem(message, key="trtkit.target_sm", file=str(folder), hint=hint),), ("layout",))


def _weights(folder: Path, needs: Needs, target: Target) -> Comparison:
    found = Comparison()
    for algorithm in needs.algorithms:
        name = _WEIGHTS.get(algorithm)
        what = f"{algorithm or 'plain'} weights"
        if name is None:
            found += Comparison((_unknown(folder, what, target, _ALGORITHM),))
            continue
        verdicts = [
            weights_verdict(_ENGINES, name, sm, _line(target), needs.architecture, algorithm=algorithm)
            for sm in _sms(target)
        ]
        found += _judged(folder, what, target, _ALGORITHM, verdicts)
    return found


def _kv_cache(folder: Path, needs: Needs, target: Target) -> Comparison:
    what = f"a KV cache in {needs.kv_cache or 'the type of the model'}"
    name = _KV.get(needs.kv_cache)
    if name is None:
        return Comparison((_unknown(folder, what, target, _KV_ALGORITHM),))
    verdicts = [kv_verdict(_ENGINES, name, sm, _line(target)) for sm in _sms(target)]
    return _judged(folder, what, target, _KV_ALGORITHM, verdicts)


def _judged(folder: Path, what: str, target: Target, key: str, verdicts: list[Verdict]) -> Comparison:
    """Return what the verdicts on all SMs of a target say; of a target without one, what holds for every SM."""
    kind = "weights" if key == _ALGORITHM else "KV cache"
    refused = [each for each in verdicts if each.support is Support.REFUSED]
    if refused and len(refused) == len(verdicts):
        nearest = next((each.nearest for each in refused if each.nearest), None)
        option = "--weights" if key == _ALGORITHM else "--kv-cache"
        hint = f"trtkit convert SOURCE -o {folder} {option} {nearest}" if nearest else _TAKE_ANOTHER
        message = f"no engine runs {what} there: {refused[0].reason}; target has {target}"
        return Comparison((Problem(message, key=key, file=str(folder), hint=hint),), (kind,))
    if target.sm is None:
        return Comparison()
    doubts = [each for each in verdicts if each.support is Support.UNCERTAIN]
    problems = [
        Problem(
            f"not proven: {what} on {target}: {each.reason}",
            key=key,
            file=str(folder),
            hint="compare its answers with those of unquantized weights first",
            severity=Severity.WARNING,
        )
        for each in doubts
    ]
    return Comparison(tuple(problems), (kind,))


def _model(folder: Path, needs: Needs, target: Target) -> Comparison:
    problems = (*_family(folder, needs, target), *_heads(folder, needs), *_dtype(folder, needs))
    compared = [
        *(["architecture"] if needs.architecture and target.line else []),
        *(["head size"] if needs.head_size else []),
        *(["data type"] if needs.dtype else []),
    ]
    return Comparison(problems, tuple(compared))


def _family(folder: Path, needs: Needs, target: Target) -> Iterator[Problem]:
    first = ARCHITECTURES_SINCE.get(needs.architecture or "", LINES[0])
    if target.line and LINES.index(target.line) < LINES.index(first):
        message = f"TensorRT-LLM {target.line} has no {needs.architecture}; target has {target}"
        yield Problem(message, key="architecture", file=str(folder), hint=f"at least {first}")


def _heads(folder: Path, needs: Needs) -> Iterator[Problem]:
    size = needs.head_size
    sizes = f"sizes with kernels: {_list(HEAD_SIZES)}"
    if size and size % 8:
        message = f"heads of {size} dimensions are no multiple of 8, which TensorRT-LLM's attention takes"
        yield Problem(message, key="head_size", file=str(folder), hint=f"{sizes}; the cpu back end takes any")
    elif size and size not in HEAD_SIZES:
        message = f"no attention kernel is known for heads of {size} dimensions"
        yield Problem(message, key="head_size", file=str(folder), hint=sizes, severity=Severity.WARNING)


def _dtype(folder: Path, needs: Needs) -> Iterator[Problem]:
    if needs.dtype == "float32":
        hint = f"trtkit convert SOURCE -o {folder} --dtype bfloat16"
        yield Problem("engines for GPUs compute in 16 bits", key="dtype", file=str(folder), hint=hint)


def _unknown(folder: Path, what: str, target: Target | str, key: str) -> Problem:
    message = f"nothing is known of {what} on {target}: not compared"
    return Problem(message, key=key, file=str(folder), hint="try it there", severity=Severity.WARNING)


def _sms(target: Target) -> tuple[int, ...]:
    return (target.sm,) if target.sm else tuple(sorted({gpu.sm for gpu in GPUS.values()}))


def _line(target: Target) -> str:
    return target.line or NEWEST
