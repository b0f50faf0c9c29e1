"""Everything that a proxy needs to know, taken from the contract and its plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from trtkit.contract.models import Admission as AdmissionRules
from trtkit.contract.models import Contract, ServiceClass
from trtkit.errors import InputError
from trtkit.plan.types import EngineLimits, Plan, Zones
from trtkit.proxy.admission import Terms, terms_of

_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]|unix:/.+):\d{1,5}")
_PORTS = range(1, 65536)


@dataclass(frozen=True)
class ProxyConfig:
    """Settings of one proxy; a port of 0 takes a free one."""

    classes: Mapping[str, ServiceClass]
    fallback_class: str
    rules: AdmissionRules
    limits: EngineLimits
    zones: Zones
    upstream: str
    """``host:port`` of Triton's gRPC endpoint, or ``unix:/path:port`` (the port is part of Triton's socket name)."""
    tokenizer: Path | None = None
    """A ``tokenizer.json``; without one, text prompts are estimated at four bytes per token."""
    engine_metrics: str | None = None
    """``host:port`` of Triton's metrics; without it the KV zone goes by the proxy's own account."""
    host: str = "127.0.0.1"
    grpc_port: int = 0
    metrics_port: int = 0
    drain_grace_s: float = 30.0
    """How long requests may go on after the first signal to stop."""
    stop_patience_s: float = 5.0
    """How long an engine may take to let go of a request that it was told to stop, before its call is cancelled."""
    linger_s: float = 10.0
    """How long a cancelled request whose engine tells nothing may hold its slot."""

    @cached_property
    def terms(self) -> Mapping[str, Terms]:
        """What each class was promised, as admission needs it."""
        return terms_of(self.classes, self.rules.holdback)

    def __post_init__(self) -> None:
        """Refuse an upstream that cannot be an address."""
        if not _ADDRESS.fullmatch(self.upstream) or int(self.upstream.rpartition(":")[2]) not in _PORTS:
            hint = (
                "give Triton's gRPC address as HOST:PORT, for instance 127.0.0.1:8001, or as unix:/PATH:PORT"
            )
            raise InputError(f"the upstream {self.upstream!r} is no address", hint=hint)
        metrics = self.engine_metrics
        if metrics is not None and (not _ADDRESS.fullmatch(metrics) or metrics.startswith("unix:")):
            hint = "give Triton's metrics address as HOST:PORT, for instance 127.0.0.1:8002"
            raise InputError(f"the metrics address {metrics!r} is none", hint=hint)

    @classmethod
    def from_plan(
        cls,
        contract: Contract,
        plan: Plan,
        *,
        upstream: str,
        tokenizer: Path | None = None,
        engine_metrics: str | None = None,
        host: str = "127.0.0.1",
        grpc_port: int = 0,
        metrics_port: int = 0,
    ) -> ProxyConfig:
        """Take promises from the contract, limits and zones from its plan."""
        return cls(
            classes=contract.classes,
            fallback_class=contract.fallback_class,
            rules=contract.admission,
            limits=plan.limits,
            zones=plan.zones,
            upstream=upstream,
            tokenizer=tokenizer,
            engine_metrics=engine_metrics,
            host=host,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
        )
