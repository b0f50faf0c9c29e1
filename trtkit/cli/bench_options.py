"""Options of ``trtkit bench``, and which of them make no sense together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtkit.bench.schedule import Shape
from trtkit.errors import InputError

_WHO, _WHEN, _HOW_MUCH, _FILES = "Who asks for what", "When", "How much", "Files"

TargetArgument = Annotated[
    str, typer.Argument(metavar="TARGET", help="HOST:PORT of the gRPC of a proxy or a Triton.")
]
ContractOption = Annotated[Path, typer.Option(metavar="FILE", help="The contract that is served there.")]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A tokenizer.json.", show_default="of the contract's model"),
]
TrafficOption = Annotated[
    list[str],
    typer.Option(
        metavar="CLASS=TABLE[:SHARE]",
        help="Lengths of a class's requests and its share; left out, chat lengths, equal shares.",
        rich_help_panel=_WHO,
    ),
]
ScaleOption = Annotated[
    float, typer.Option(min=0.001, max=10, help="Factor on all lengths.", rich_help_panel=_WHO)
]
TenantsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="Tenants of each class (Zipf).", rich_help_panel=_WHO)
]
CancelOption = Annotated[
    float, typer.Option(min=0, max=1, help="Share of clients that leave in mid-answer.", rich_help_panel=_WHO)
]
SlowOption = Annotated[
    float, typer.Option(min=0, max=1, help="Share of clients that read slowly.", rich_help_panel=_WHO)
]
DeadlinesOption = Annotated[
    bool,
    typer.Option("--deadlines", help="Send each class's deadline as the call's own.", rich_help_panel=_WHO),
]
ArrivalsOption = Annotated[Shape, typer.Option(help="How arrivals are spread.", rich_help_panel=_WHEN)]
CvOption = Annotated[
    float | None,
    typer.Option(
        min=0.1, max=10, help="Burstiness of gamma arrivals.", show_default="2.5", rich_help_panel=_WHEN
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        help="Replay its times and lengths (Azure CSV or Mooncake JSON lines).", rich_help_panel=_WHEN
    ),
]
KeepStampsOption = Annotated[
    bool,
    typer.Option(
        "--keep-stamps",
        help="Send the requests of a trace's coarse stamp in one moment, as recorded.",
        rich_help_panel=_WHEN,
    ),
]
RateOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Requests per second, e.g. 2,4,8.", rich_help_panel=_HOW_MUCH),
]
RhoOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="The same as multiples of the capacity.", rich_help_panel=_HOW_MUCH),
]
CapacityOption = Annotated[
    float | None,
    typer.Option(min=0.001, max=1e6, metavar="RATE", show_default="measured", rich_help_panel=_HOW_MUCH),
]
CapacityTargetOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Measure the capacity at the Triton behind the proxy.",
        show_default="TARGET",
        rich_help_panel=_HOW_MUCH,
    ),
]
LevelOption = Annotated[
    float | None,
    typer.Option(
        min=1, max=3600, help="Seconds of each step of that.", show_default="15", rich_help_panel=_HOW_MUCH
    ),
]
DurationOption = Annotated[
    float, typer.Option(min=1, max=1e6, help="Seconds of arrivals per run.", rich_help_panel=_HOW_MUCH)
]
SeedsOption = Annotated[
    int, typer.Option(min=1, max=100, help="Runs at each rate.", rich_help_panel=_HOW_MUCH)
]
RefineOption = Annotated[
    int,
    typer.Option(min=0, max=10, help="Rates between, to find goodput capacity.", rich_help_panel=_HOW_MUCH),
]
BucketsOption = Annotated[
    str | None,
    typer.Option(metavar="LIST", help="Prompt lengths to tell apart.", show_default="the contract's"),
]
SloCheckOption = Annotated[
    bool, typer.Option("--slo-check", help="Exit 6 when an objective of the contract was missed.")
]
HtmlOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a report with plots.", rich_help_panel=_FILES)
]
RequestsOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write every request (JSON lines).", rich_help_panel=_FILES),
]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="First measure lone prompts, and write the engine's speed for `trtkit plan` and `simulate`.",
        rich_help_panel=_FILES,
    ),
]


def check_load(arrivals: Shape, trace: Path | None, rate: str | None, rho: str | None) -> None:
    """Refuse arrivals without their trace, and a load of no size or of two."""
    if (arrivals is Shape.REPLAY) != (trace is not None):
        raise InputError("--arrivals replay and --trace FILE need each other", hint="give both, or neither")
    if (rate is None) == (rho is None):
        raise InputError("how much is to be sent?", hint="give either --rate LIST or --rho LIST")


def check_use(
    arrivals: Shape,
    rho: str | None,
    calibration: Path | None,
    *,
    keep_stamps: bool,
    cv: float | None,
    capacity: float | None,
    behind: str | None,
    level: float | None,
) -> None:
    """Refuse what would be ignored: nobody should take a default for what was asked."""
    measures = rho is not None and capacity is None
    unused = {
        "--keep-stamps": None if arrivals is Shape.REPLAY else keep_stamps or None,
        "--cv": None if arrivals is Shape.GAMMA else cv,
        "--capacity": None if rho is not None else capacity,
        "--level": None if measures else level,
        "--capacity-target": None if measures or calibration is not None else behind,
    }
    if names := [name for name, value in unused.items() if value is not None]:
        hint = "--cv is of gamma arrivals, --keep-stamps of a replay; "
        hint += "--level and --capacity-target are of a --rho whose capacity is measured"
        raise InputError(f"{', '.join(names)}: nothing would come of it here", hint=hint)


def check_addresses(*addresses: str | None) -> None:
    """Refuse what is no address of a port."""
    for address in addresses:
        host, _, port = (address or "h:1").rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InputError(f"{address!r} is no HOST:PORT", hint="name the gRPC port of a proxy or a Triton")


def parse_numbers(option: str, text: str | None) -> list[float]:
    """Read a list of different numbers above 0; empty where the option was left out."""
    try:
        numbers = [float(each) for each in text.split(",")] if text is not None else []
    except ValueError:
        numbers = [0.0]
    if not all(0 < each < 1e6 for each in numbers) or len(set(numbers)) < len(numbers):
        hint = f"for instance {option} 0.7,1,1.5"
        raise InputError(f"{option} {text!r} is no list of different numbers above 0", hint=hint)
    return numbers


def parse_buckets(text: str | None) -> list[int]:
    """Read ``--buckets``: growing numbers of tokens."""
    numbers = parse_numbers("--buckets", text)
    if numbers != sorted(numbers) or not all(each.is_integer() for each in numbers):
        hint = "for instance --buckets 128,512,2048"
        raise InputError(f"--buckets {text!r} are no growing numbers of tokens", hint=hint)
    return [int(each) for each in numbers]
