"""Tables for readers, made from what the plan goes by: ``python -m trtkit.plan.docs FOLDER`` writes them anew."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trtkit.catalog.gpus import GPUS
from trtkit.catalog.support import KV_SUPPORT, READ_ON, WEIGHT_SUPPORT, Row, Support
from trtkit.catalog.trtllm import NEWEST, NUMPY, PROFILES, PYTHONS, Profile
from trtkit.catalog.trtllm import READ_ON as LINES_READ_ON
from trtkit.plan.check import Check
from trtkit.plan.checks import CHECKS
from trtkit.plan.preflight import GPU_CHECKS
from trtkit.plan.support import table

_SMS = (80, 86, 89, 90, 100, 103, 120)
_WORD = {Support.WORKS: "yes", Support.UNCERTAIN: "?", Support.REFUSED: "no"}


def checks_page() -> str:
    """Return ``checks.md``."""
    return "\n".join(
        [
            "# What `trtkit plan` checks",
            "",
            "Written by `python -m trtkit.plan.docs docs`. Every problem names its key, its numbers and a fix, and",
            "all come at once. Errors stop the plan; warnings are shown with it.",
            "",
            "## Every back end",
            "",
            *_checks(CHECKS),
            "",
            "## Back ends with a GPU",
            "",
            *_checks(GPU_CHECKS),
            "",
        ]
    )


def support_page() -> str:
    """Return ``support.md``."""
    sms = " | ".join(f"SM {sm}" for sm in _SMS)
    head = [f"| back end | format | {sms} |", "|---|---|" + "---|" * len(_SMS)]
    return "\n".join(
        [
            "# GPUs, formats and release lines",
            "",
            "Written by `python -m trtkit.plan.docs docs`. `?` is let through with a warning: nobody is known to have",
            f"compared its answers. For TensorRT-LLM {NEWEST}, as read on {READ_ON}; `trtkit plan` gives the reason of",
            "each refusal.",
            "",
            "## Weights",
            "",
            *head,
            *_support(WEIGHT_SUPPORT),
            "",
            "## KV cache",
            "",
            *head,
            *_support(KV_SUPPORT),
            "",
            "## GPUs",
            "",
            "| name | product | SM | MiB | GB/s | FP16 TFLOPS | INT8 TOPS | FP8 TFLOPS | source | read on |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *_gpus(),
            "",
            "## Release lines of TensorRT-LLM with the engine flow",
            "",
            f"All want numpy {NUMPY} and Python {' or '.join(PYTHONS)}. `?`: no file of the release says so.",
            f"As read on {LINES_READ_ON}.",
            "",
            "| line | TensorRT | CUDA | torch | ModelOpt | transformers | NGC images |",
            "|---|---|---|---|---|---|---|",
            *(_profile(row) for row in PROFILES.values()),
            "",
        ]
    )


def _profile(row: Profile) -> str:
    words = [
        f"{getattr(row, name) or ''}{' ?' if name in row.uncertain else ''}"
        for name in ("tensorrt", "cuda", "torch", "modelopt", "transformers")
    ]
    return f"| {row.line} | {' | '.join(words)} | {', '.join(row.images)} |"


PAGES = {"checks.md": checks_page, "support.md": support_page}


def _checks(checks: Sequence[Check]) -> list[str]:
    rows = [f"| `{each.name}` | {each.severity.value} | {each.about.replace('``', '`')} |" for each in checks]
    return ["| check | severity | why |", "|---|---|---|", *rows]


def _support(rows: Mapping[str, tuple[Row, ...]]) -> Iterable[str]:
    for backend, name, *words in table(rows, _SMS, NEWEST):
        cells = " | ".join(_WORD[Support(word)] for word in words)
        yield f"| {backend} | `{name}` | {cells} |"


def _gpus() -> Iterable[str]:
    for gpu in GPUS.values():
        rates = " | ".join(
            "" if rate is None else f"{rate:g}" for rate in (gpu.fp16_tflops, gpu.int8_tops, gpu.fp8_tflops)
        )
        yield (
            f"| `{gpu.name}` | {gpu.title} | {gpu.sm} | {gpu.memory_mib:,} | {gpu.bandwidth_gb_per_s:g} | {rates} "
            f"| {gpu.source} | {gpu.read_on} |"
        )


if __name__ == "__main__":
    for page, write in PAGES.items():
        (Path(sys.argv[1]) / page).write_text(write(), encoding="utf-8")
