"""What becomes of a contract's keys on another back end, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trtkit.catalog.gpus import GPUS
from trtkit.catalog.llmapi import ARGS, BLOCK_TOKENS
from trtkit.catalog.support import EXPORTED, NEAREST, NEAREST_KV, Support
from trtkit.catalog.trtllm import LINES, LLMAPI_SINCE, NEWEST
from trtkit.contract.engine import KvCache
from trtkit.contract.formats import KvCacheFormat, WeightFormat
from trtkit.contract.models import Contract
from trtkit.contract.quantization import Calibration, Quantization
from trtkit.contract.speculation import SpeculationMode
from trtkit.plan.support import Verdict, kv_verdict, weights_verdict

_OF_ENGINES = "it is an option of the program that compiles engines, and none is compiled"


WhyNot = Callable[..., str]
"""Why a format is not taken, empty if it is; with ``sure`` one that is not known to work is not taken either."""


@dataclass(frozen=True)
class Change:
    """One key of the contract that does not stay."""

    key: str
    before: Any
    after: Any
    """None for a key that goes away."""
    why: str
    lost: bool
    """Whether something that was asked for is no more; otherwise it is only said in another way."""


@dataclass(frozen=True)
class Mover:
    """One contract on its way."""

    contract: Contract
    backend: str
    gpu: str

    @property
    def line(self) -> str:
        """Release line whose tables count."""
        line = self.contract.engine.trtllm or NEWEST
        is_early = self.backend == "llmapi" and LINES.index(line) < LINES.index(LLMAPI_SINCE)
        return NEWEST if is_early else line

    def changes(self) -> Iterator[Change]:
        """Yield every key that does not stay, formats first."""
        formats = self.contract.quantization
        weights, cache = self._weights(formats.weights), self._cache(formats.kv_cache)
        yield from self._format("quantization.weights", formats.weights.value, weights)
        yield from self._format("quantization.kv_cache", formats.kv_cache.value, cache)
        yield from self._fallbacks(weights[0], cache[0])
        yield from self._settings(formats, weights[0], cache[0])
        yield Change(
            "engine.backend", self.contract.engine.backend.value, self.backend, "asked for", lost=False
        )
        if self.contract.engine.gpu != self.gpu:
            yield Change("engine.gpu", self.contract.engine.gpu, self.gpu, "asked for", lost=False)
        yield from self._dtype()
        yield from self._line()
        yield from self._engine()
        yield from self._pool()

    def _weights(self, asked: WeightFormat) -> tuple[str, str]:
        """Return the nearest format of weights, and why it is not what was asked for."""
        reason = self._why_not(asked.value)
        if not reason:
            return asked.value, ""
        return _nearest(NEAREST[asked.value], "none", self._why_not, reason)

    def _why_not(self, name: str, *, sure: bool = False) -> str:
        verdict = weights_verdict(self.backend, name, GPUS[self.gpu].sm, self.line)
        return _refusal(verdict, sure=sure)

    def _cache(self, asked: KvCacheFormat) -> tuple[str, str]:
        def why_not(name: str, *, sure: bool = False) -> str:
            return _refusal(kv_verdict(self.backend, name, GPUS[self.gpu].sm, self.line), sure=sure)

        found, reason = asked.value, why_not(asked.value)
        if reason:
            found, reason = _nearest(NEAREST_KV[asked.value], "auto", why_not, reason)
        weights = self._weights(self.contract.quantization.weights)[0]
        if found == "fp8" and weights == "none" and self.backend in EXPORTED:
            return (
                "auto",
                reason or "an FP8 KV cache beside plain weights has no form in a Hugging Face folder",
            )
        return found, reason

    def _format(self, key: str, before: str, after: tuple[str, str]) -> Iterator[Change]:
        if after[0] != before:
            yield Change(key, before, after[0], after[1], lost=True)

    def _fallbacks(self, weights: str, cache: str) -> Iterator[Change]:
        formats = self.contract.quantization
        for key, asked, first, way in (
            ("fallback", [each.value for each in formats.fallback], weights, self._weights_of),
            ("kv_fallback", [each.value for each in formats.kv_fallback], cache, self._cache_of),
        ):
            moved = [name for name in dict.fromkeys(map(way, asked)) if name != first]
            if moved != asked:
                why = "formats that the back end does not run give way to the nearest, each is tried once"
                yield Change(f"quantization.{key}", asked, moved or None, why, lost=False)

    def _weights_of(self, name: str) -> str:
        return self._weights(WeightFormat(name))[0]

    def _cache_of(self, name: str) -> str:
        return self._cache(KvCacheFormat(name))[0]

    def _settings(self, formats: Quantization, weights: str, cache: str) -> Iterator[Change]:
        """Settings of formats that are no more."""
        chain = {weights, *map(self._weights_of, (each.value for each in formats.fallback))}
        caches = {cache, *map(self._cache_of, (each.value for each in formats.kv_fallback))}
        left = Quantization(
            weights=WeightFormat(weights), kv_cache=KvCacheFormat(cache), calibration=formats.calibration
        )
        ranges = any(left.only(WeightFormat(w), KvCacheFormat(c)).takes_ranges for w in chain for c in caches)
        used = {
            "smoothquant": "int8-sq" in chain,
            "alpha": "int8-sq" in chain,
            "group_size": any(WeightFormat(name).has_groups for name in chain),
            "kv_scale": "int8" in caches,
            "calibration": ranges or formats.calibration == Calibration(),
        }
        for name, is_used in used.items():
            before = getattr(formats, name)
            if before is not None and not is_used:
                told = before.model_dump(exclude_unset=True) if name == "calibration" else before
                yield Change(
                    f"quantization.{name}", told, None, "no format that is left has a use for it", lost=False
                )
        if formats.gate and "engine" in (formats.gate.on or ()):
            why = "what is served does not run on the machine that builds; the checkpoint of the same numbers is judged"
            yield Change("quantization.gate.on", formats.gate.on, ["checkpoint"], why, lost=True)

    def _dtype(self) -> Iterator[Change]:
        """Where none is given the back end chooses, and another one chooses otherwise."""
        model, before = self.contract.model, self.contract.dtype
        if before is not model.dtype:
            why = f"what {self.contract.engine.backend.value} takes where none is given"
            yield Change("model.dtype", None, before.value, why, lost=False)

    def _line(self) -> Iterator[Change]:
        line = self.contract.engine.trtllm
        if line is None:
            return
        if self.backend not in {"tensorrt", "llmapi"}:
            yield Change(
                "engine.trtllm", line, None, f"{self.backend} is no part of TensorRT-LLM", lost=False
            )
        elif line != self.line:
            why = f"the PyTorch back end is the one of LLM() from {LLMAPI_SINCE} on"
            yield Change("engine.trtllm", line, self.line, why, lost=False)

    def _engine(self) -> Iterator[Change]:
        """Keys of the engine that the other back end has no use for."""
        engine, name = self.contract.engine, self.backend
        for key, why in {"targets": "rtx alone has several", "threads": "it runs on a GPU"}.items():
            if getattr(engine, key) is not None:
                yield Change(f"engine.{key}", getattr(engine, key), None, why, lost=False)
        if name == "tensorrt":
            return
        for flag, value in engine.build_flags.items():
            yield Change(f"engine.build_flags.{flag}", value, None, _OF_ENGINES, lost=True)
        gone: dict[str, tuple[Any, str]] = {
            "gpu_weights_fraction": (engine.gpu_weights_fraction, "weights are not streamed from the host"),
            "lora": (engine.lora, f"trtkit sets up no adapters for {name}"),
        }
        for key, (given, why) in gone.items():
            if given is not None:
                yield Change(f"engine.{key}", _plain(given), None, why, lost=True)
        if engine.limits.max_beam_width > 1:
            why = f"trtkit sets up no beams for {name}"
            yield Change("engine.limits.max_beam_width", engine.limits.max_beam_width, None, why, lost=True)
        if engine.moe_expert_parallel > 1 and name != "llmapi":
            why = f"{name} does not divide experts so"
            yield Change("engine.moe_expert_parallel", engine.moe_expert_parallel, None, why, lost=True)
        yield from self._speculation()
        for key in ("tensor_parallel", "pipeline_parallel") if name == "edgellm" else ():
            if getattr(engine, key) > 1:
                yield Change(
                    f"engine.{key}", getattr(engine, key), None, "the exporter is run for one GPU", lost=True
                )
        if name == "edgellm" and not engine.chunked_context:
            yield Change("engine.chunked_context", False, None, "its builder has no such setting", lost=True)

    def _speculation(self) -> Iterator[Change]:
        asked = self.contract.engine.speculation
        if asked is None or (self.backend == "llmapi" and asked.mode is SpeculationMode.DRAFT_TARGET):
            return
        why = f"{self.backend} drafts by other means than {asked.mode.value}"
        yield Change("engine.speculation", _plain(asked), None, why, lost=True)

    def _pool(self) -> Iterator[Change]:
        cache, default = self.contract.engine.kv_cache, KvCache()
        key = "engine.kv_cache."
        if self.backend == "edgellm":
            for name in KvCache.model_fields:
                if getattr(cache, name) != getattr(default, name):
                    why = "each request has a cache of its own, there is no pool"
                    yield Change(key + name, getattr(cache, name), None, why, lost=True)
        elif self.backend == "vllm":
            for name in ("max_tokens", "max_bytes"):
                if getattr(cache, name) is not None:
                    why = "vLLM takes a share of the GPU's memory (memory_fraction), and no size of a pool"
                    yield Change(key + name, getattr(cache, name), None, why, lost=True)
        elif self.backend == "llmapi" and cache.tokens_per_block != BLOCK_TOKENS:
            first = ARGS["kv_cache_config"]["tokens_per_block"]
            if LINES.index(self.line) < LINES.index(first):
                why = f"LLM() of {self.line} has blocks of {BLOCK_TOKENS} tokens"
                yield Change(f"{key}tokens_per_block", cache.tokens_per_block, BLOCK_TOKENS, why, lost=True)


def _nearest(names: Sequence[str], plain: str, why_not: WhyNot, reason: str) -> tuple[str, str]:
    """Return the nearest format that is known to run, else one that may, else plain numbers; and why it changes."""
    quantized = [name for name in names if name != plain]
    if near := next((name for name in quantized if not why_not(name, sure=True)), None):
        return near, reason
    if near := next((name for name in quantized if not why_not(name)), None):
        return near, f"{reason}; {near} comes nearest, and is not proven there"
    return plain, reason


def _refusal(verdict: Verdict, *, sure: bool) -> str:
    """Return why a format is not taken; with ``sure`` one that is not known to work is not taken either."""
    refused = verdict.support is Support.REFUSED or (sure and verdict.support is not Support.WORKS)
    return (verdict.reason or "it is not known to work") if refused else ""


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_unset=True) if hasattr(value, "model_dump") else value
