"""Engines of one contract for prompts of different lengths, and where they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from trtkit.contract.section import Section

if TYPE_CHECKING:
    from trtkit.contract.engine import Limits

DEFAULT_POOL = "standard"
"""The pool of a contract that names none."""
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "[::1]", "[::]"})  # noqa: S104 - nothing listens there
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]|unix:/.+):(\d{1,5})")


def is_address(text: str, *, sockets: bool = True) -> bool:
    """Tell whether this is ``HOST:PORT``, or where sockets are taken ``unix:/PATH:PORT``."""
    found = _ADDRESS.fullmatch(text)
    return found is not None and 0 < int(found[1]) < 65536 and (sockets or not text.startswith("unix:"))


def named_twice(addresses: Iterable[str | None]) -> str:
    """Return the first address that leads to the place of an earlier one, or nothing; this machine has many names."""
    seen = set()
    for address in addresses:
        if address is None:
            continue
        host, _, port = address.rpartition(":")
        host = host if host.startswith("unix:") else host.lower()
        place = ("localhost" if host in _THIS_MACHINE else host, int(port))
        if place in seen:
            return address
        seen.add(place)
    return ""


def _grpc_address(text: str) -> str:
    if is_address(text):
        return text
    raise ValueError(f"{text!r} is no address: write HOST:PORT of Triton's gRPC, for instance 127.0.0.1:8001")


def _metrics_address(text: str) -> str:
    if is_address(text, sockets=False):
        return text
    raise ValueError(f"{text!r} is none: write HOST:PORT of Triton's metrics, for instance 127.0.0.1:8002")


class Upstream(Section):
    """One Triton server."""

    grpc: Annotated[str, AfterValidator(_grpc_address), Field(examples=["10.0.0.1:8001"])]
    """``HOST:PORT`` of its gRPC endpoint."""
    metrics: Annotated[str, AfterValidator(_metrics_address), Field(examples=["10.0.0.1:8002"])] | None = None
    """``HOST:PORT`` of its metrics; left out, the KV zone goes by the proxy's own account."""


class PoolLimits(Section):
    """Shapes that the pool's engines are built for; what is left out is as in ``engine.limits``."""

    max_batch_size: Annotated[int, Field(ge=1)] | None = None
    """Requests in one in-flight batch."""
    max_input_len: Annotated[int, Field(ge=1)] | None = None
    """Longest prompt in tokens."""
    max_seq_len: Annotated[int, Field(ge=1)] | None = None
    """Prompt plus output in tokens."""
    max_num_tokens: Annotated[int, Field(ge=1)] | None = None
    """Packed tokens per engine step."""

    def over(self, limits: Limits) -> Limits:
        """Return an engine's limits with these in their places."""
        return limits.model_copy(update=self.model_dump(exclude_none=True))


class EnginePool(Section):
    """Engines that are alike and share a queue."""

    min_prompt_tokens: Annotated[int, Field(ge=0, examples=[8192])] = 0
    """Takes prompts of so many tokens and more, up to where the next pool begins; one pool begins at 0."""
    limits: PoolLimits = PoolLimits()
    """What its engines are built for, where that is not ``engine.limits``."""
    upstreams: Annotated[list[Upstream], Field(max_length=1024, examples=[[{"grpc": "10.0.0.1:8001"}]])] = []  # noqa: RUF012 - pydantic copies it
    """Its servers, for the proxy; left out, they are named by ``trtkit proxy --upstream``."""
