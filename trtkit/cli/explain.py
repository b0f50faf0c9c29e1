"""``trtkit explain``: why a request waited or was refused."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from trtkit.cli.console import Output, show, show_json
from trtkit.cli.options import OutputOption
from trtkit.errors import InputError, StartError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("explain")(explain)


def explain(
    request_id: Annotated[
        str,
        typer.Argument(metavar="REQUEST_ID", help="The client's own id, or trtkit-request-id of the answer."),
    ],
    proxy: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Metrics address of the proxy.")
    ] = "127.0.0.1:9002",
    output: OutputOption = Output.TEXT,
) -> None:
    """Ask a running proxy what it decided about a recent request, and what bound it."""
    record = _fetch(proxy, request_id)
    if output is Output.JSON:
        show_json({"schema": 1, "decision": record})
    else:
        show(_render(record))


def _fetch(proxy: str, request_id: str) -> dict[str, Any]:
    import http.client
    from urllib.parse import quote

    try:
        connection = http.client.HTTPConnection(proxy, timeout=5)
        connection.request("GET", f"/decisions/{quote(request_id, safe='')}")
        answer = connection.getresponse()
        body = answer.read()
        record = json.loads(body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        hint = "give the address of its /metrics with --proxy HOST:PORT"
        raise StartError(f"no proxy of trtkit answers at {proxy}: {error}", hint=hint) from error
    if answer.status != http.HTTPStatus.OK:
        hint = "a proxy remembers its last ten thousand requests"
        raise InputError(f"the proxy at {proxy} knows no request {request_id!r}", hint=hint)
    return dict(record)


def _render(record: dict[str, Any]) -> str:
    predicted, size = record["predicted_ttft_s"], record["prompt_tokens"]
    tokens = "prompt not counted" if size is None else f"{size} prompt tokens"
    lines = [
        ("request", f"{record['id']} (class {record['class_name']}, {tokens})"),
        ("outcome", _fate(record) + (", relegated behind all classes" if record["relegated"] else "")),
        ("waited", "-" if record["queue_s"] is None else f"{1000 * record['queue_s']:.0f} ms"),
        ("ahead", f"{record['ahead']} requests of its band and above"),
        (
            "predicted",
            "no rate measured yet" if predicted is None else f"first token after {1000 * predicted:.0f} ms",
        ),
        ("bound by", _bound(record)),
    ]
    return "\n".join(f"{name:10}{text}" for name, text in lines)


_STATES = {"waiting": "waits", "running": "runs"}


def _fate(record: dict[str, Any]) -> str:
    """Tell what became of a request: whether it was sent, and how it ended."""
    end = f"{record['outcome']} ({record['reason']})" if record["reason"] else _STATES[record["outcome"]]
    if record["total_s"] is not None:
        end += f" after {1000 * record['total_s']:.0f} ms, {record['tokens']} tokens"
    return end if record["backend"] is None else f"sent to engine {record['backend']}; {end}"


def _bound(record: dict[str, Any]) -> str:
    from trtkit.proxy.admission import Bound, Constraint

    return Bound(Constraint(record["constraint"]), record["measured"], record["threshold"]).sentence
