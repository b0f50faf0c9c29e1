"""Options of ``trtkit simulate``, and which of them make no sense together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from trtkit.errors import InputError

MOST = 1024
"""The search ends here unless ``--most`` says more."""
_MANY = 100_000

TrafficOption = Annotated[
    list[str],
    typer.Option(
        metavar="CLASS=TABLE[:SHARE]",
        help="Lengths of a class's requests and its share of the traffic; left out, chat lengths, equal shares.",
    ),
]
ScaleOption = Annotated[float, typer.Option(min=0.001, max=10, help="Factor on all lengths.")]
TenantsOption = Annotated[int, typer.Option(min=1, max=1000, help="Tenants of each class (Zipf).")]
TraceOption = Annotated[
    Path | None,
    typer.Option(help="Replay this trace (Azure CSV or Mooncake JSON lines), dealt out by share."),
]
KeepStampsOption = Annotated[
    bool,
    typer.Option(
        "--keep-stamps", help="Let the requests of a trace's coarse stamp come in one moment, as recorded."
    ),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        max=1e6,
        help="Requests per second; a trace is stretched to it.",
        show_default="4, or the trace's",
    ),
]
CvOption = Annotated[
    float | None,
    typer.Option(min=0.1, max=10, help="Burstiness of arrivals; 1 is Poisson.", show_default="1"),
]
DurationOption = Annotated[
    float | None,
    typer.Option(
        min=1,
        max=1e7,
        metavar="SECONDS",
        help="How long requests arrive.",
        show_default="200, or the whole trace",
    ),
]
EnginesOption = Annotated[
    str | None,
    typer.Option(
        metavar="N|POOL=N,...",
        help="Try this number only, of each pool its own, instead of finding the fewest.",
        show_default=False,
    ),
]
MostOption = Annotated[
    int | None, typer.Option(min=1, max=100_000, help="Give up the search here.", show_default=str(MOST))
]
EngineOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|reference",
        help="The engine's constants (JSON), or the declared ones of an 8B model on one large GPU.",
        show_default="as the plan foresees its GPU",
    ),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The engine's speed as `trtkit bench --calibration` measured it.",
        show_default=False,
    ),
]
SeedsOption = Annotated[int, typer.Option(min=1, max=100, help="Independent draws of the traffic.")]


def parse_engines(text: str, pools: Sequence[str]) -> tuple[int, ...]:
    """Read ``--engines``: one number, or one for each pool by name."""
    given = dict(part.partition("=")[::2] for part in text.split(",")) if "=" in text else {pools[0]: text}
    named_twice = "=" in text and len(given) < len(text.split(","))
    if (
        named_twice
        or set(given) != set(pools)
        or not all(each.isascii() and each.isdecimal() and 0 < int(each) <= _MANY for each in given.values())
    ):
        forms = "2" if len(pools) == 1 else ",".join(f"{name}=2" for name in pools)
        raise InputError(f"--engines is {text!r}", hint=f"write numbers of 1 to {_MANY}: --engines {forms}")
    return tuple(int(given[name]) for name in pools)


def check_options(
    *,
    trace: Path | None,
    keep_stamps: bool,
    cv: float | None,
    engines: str | None,
    most: int | None,
    engine: Path | None,
    calibration: Path | None,
) -> None:
    """Refuse an option that would have no effect beside the others."""
    if trace is not None and cv is not None:
        raise InputError("--cv says nothing about --trace: its times are recorded", hint="give one of them")
    if trace is None and keep_stamps:
        raise InputError("--keep-stamps is about --trace: drawn times have no stamps", hint="give a trace")
    if engines is not None and most is not None:
        raise InputError("--most bounds a search, and --engines makes none", hint="give one of them")
    if engine is not None and calibration is not None:
        raise InputError("--engine and --calibration are two sources of one speed", hint="give one of them")
