"""A measurement of one engine, from a file that says which engine that was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from trtkit.errors import InputError
from trtkit.plan.silicon import Fit, Three, shape_of
from trtkit.plan.types import Basis, Plan

_KEYS = {"engine", "prefill_ms", "source", "step_ms"}
_REMARKS = {"conditions", "residuals", "rows"}
"""What a bench adds for readers: nothing is computed from it."""
_LEAST_MS = 1e-3
"""A step that takes less than a microsecond was not measured."""


@dataclass(frozen=True)
class EngineId:
    """What a measurement holds for."""

    model: str
    """Sizes, as :func:`~trtkit.plan.silicon.shape_of` has them."""
    backend: str
    gpu: str | None
    weights: str
    kv_cache: str
    tensor_parallel: int
    pipeline_parallel: int
    settings: Mapping[str, Any]
    """The plan's fields of :data:`SETTINGS`, by dotted path."""


SETTINGS = (
    "threads", "dtype", "quantization.quant_algo", "quantization.smoothquant", "quantization.group_size",
    "quantization.exclude", "quantization.overrides", "limits.max_num_tokens", "limits.tokens_per_block",
    "target.ranks.moe_ep", "target.ranks.gpus_per_node", "target.trtllm", "target.max_beam_width",
    "target.build_flags", "target.chunked_context", "target.max_attention_window", "target.lookahead",
    "target.choices", "target.gpu_weights_fraction",
)  # fmt: skip
"""What else of a plan changes how long a step takes."""
FREE = (
    "name", "backend", "gpu", "tensor_parallel", "pipeline_parallel", "model", "quantization.weights",
    "quantization.kv_cache", "quantization.kv_cache_quant_algo", "quantization.alpha", "quantization.kv_scale",
    "limits.max_batch_size", "limits.max_input_len", "limits.max_seq_len", "memory", "zones", "enable_block_reuse",
    "target.gpu", "target.ranks.tp", "target.ranks.pp", "target.ranks.parallel_embedding", "target.image",
    "target.settings", "target.sms", "target.memory_fraction", "pace", "origins", "warnings",
)  # fmt: skip
"""What a measurement names by itself, or what changes no step: names, numbers in a tensor, how many may come."""


@dataclass(frozen=True)
class Measured:
    """The speed of an engine, and which engine it is of."""

    engine: EngineId
    fit: Fit

    def of(self, plan: Plan, *, file: str = "") -> Fit:
        """Return the speed, if the plan is for that engine.

        Raises:
            InputError: It was measured on another one.
        """
        theirs = asdict(engine_id(plan))
        mine, other = (_flat(each) for each in (asdict(self.engine), theirs))
        differing = [
            f"{key} {mine.get(key)!r}, the plan has {other.get(key)!r}"
            for key in {**other, **mine}
            if mine.get(key) != other.get(key)
        ]
        if differing:
            hint = f'measure this engine; its file has "engine": {json.dumps(theirs)}'
            raise InputError(f"measured on another engine: {'; '.join(differing)}", path=file, hint=hint)
        return self.fit


def engine_id(plan: Plan) -> EngineId:
    """Return what a measurement of a plan's engine has to name."""
    formats = plan.quantization
    return EngineId(
        shape_of(plan.model),
        plan.backend,
        plan.gpu,
        formats.weights,
        formats.kv_cache,
        plan.tensor_parallel,
        plan.pipeline_parallel,
        # As a file has them: lists for tuples.
        json.loads(json.dumps({path: _at(plan, path) for path in SETTINGS})),
    )


def _at(value: Any, path: str) -> Any:
    """Return what is at a dotted path; None below what is None."""
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _flat(engine: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in engine.items() if key != "settings"} | dict(engine["settings"])


def parse_measured(raw: Any, *, file: str = "") -> Measured:
    """Return a measurement: ``{"source": ..., "engine": {...}, "prefill_ms": [a, b, c], "step_ms": [a, b, c]}``.

    A prompt of n tokens takes a + b n + c n^2, a step of a batch with k tokens behind each a + b batch + c batch k.

    Raises:
        InputError: It is not of that form.
    """
    if not isinstance(raw, Mapping) or raw.keys() - _REMARKS != _KEYS:
        message = f"a calibration has exactly the keys {', '.join(sorted(_KEYS))}, beside {', '.join(sorted(_REMARKS))}"
        raise InputError(message, path=file, hint="trtkit bench --calibration FILE measures and writes one")
    source = raw["source"]
    if not isinstance(source, str) or not source.strip():
        raise InputError("source must say where the numbers come from", path=file)
    engine = _engine(raw["engine"], file)
    prefill, step = (_three(raw[key], key, file) for key in ("prefill_ms", "step_ms"))
    fit = Fit(f"measured on this engine: {source}", prefill, step, engine.pipeline_parallel, Basis.MEASURED)
    return Measured(engine, fit)


def _engine(raw: Any, file: str) -> EngineId:
    kinds: dict[str, tuple[type, ...]] = {
        "model": (str,), "backend": (str,), "gpu": (str, type(None)), "weights": (str,), "kv_cache": (str,),
        "tensor_parallel": (int,), "pipeline_parallel": (int,),
        "settings": (dict,),
    }  # fmt: skip
    fine = isinstance(raw, Mapping) and raw.keys() == kinds.keys()
    if not fine or not all(type(raw[key]) in kind for key, kind in kinds.items()):
        hint = "measure again: trtkit bench --calibration FILE; `trtkit plan --output json` prints it as `engine`"
        raise InputError(f"engine must have exactly the keys {', '.join(kinds)}", path=file, hint=hint)
    return EngineId(**raw)


def _three(value: Any, key: str, file: str) -> Three:
    fine = isinstance(value, list) and len(value) == 3 and all(type(each) in (int, float) for each in value)
    if not fine or not all(0 <= each < 1e9 for each in value) or sum(value) < _LEAST_MS:
        message = (
            f"{key} must be three numbers of milliseconds, none negative and together at least {_LEAST_MS:g}"
        )
        raise InputError(message, path=file)
    return (float(value[0]), float(value[1]), float(value[2]))
