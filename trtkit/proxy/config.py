"""Everything that a proxy needs to know, taken from the contract and its plan."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.models import Contract
from trtkit.contract.pools import DEFAULT_POOL, is_address, named_twice
from trtkit.contract.service import ServiceClass
from trtkit.errors import InputError
from trtkit.plan.types import EngineLimits, Plan, Zones
from trtkit.proxy.admission import PoolSpec, Terms, terms_of


@dataclass(frozen=True)
class Endpoint:
    """Where one Triton is."""

    grpc: str
    """``host:port`` of its gRPC endpoint, or ``unix:/path:port`` (the port is part of Triton's socket name)."""
    metrics: str | None = None
    """``host:port`` of its metrics; without it the KV zone goes by the proxy's own account."""

    def __post_init__(self) -> None:
        """Refuse what cannot be an address."""
        if not is_address(self.grpc):
            hint = (
                "give Triton's gRPC address as HOST:PORT, for instance 127.0.0.1:8001, or as unix:/PATH:PORT"
            )
            raise InputError(f"the upstream {self.grpc!r} is no address", hint=hint)
        if self.metrics is not None and not is_address(self.metrics, sockets=False):
            hint = "give Triton's metrics address as HOST:PORT, for instance 127.0.0.1:8002"
            raise InputError(f"the metrics address {self.metrics!r} is none", hint=hint)


@dataclass(frozen=True)
class PoolConfig:
    """Servers whose engines are alike, and the prompts that they take."""

    limits: EngineLimits
    zones: Zones
    endpoints: tuple[Endpoint, ...]
    name: str = DEFAULT_POOL
    min_prompt_tokens: int = 0

    @property
    def spec(self) -> PoolSpec:
        """What admission needs of it."""
        return PoolSpec(self.zones, self.limits.tokens_per_block, len(self.endpoints), self.min_prompt_tokens)


@dataclass(frozen=True)
class ProxyConfig:
    """Settings of one proxy; a port of 0 takes a free one."""

    classes: Mapping[str, ServiceClass]
    fallback_class: str
    rules: AdmissionRules
    pools: tuple[PoolConfig, ...]
    """At least one, by the length of their prompts; all servers of all of them have the same models."""
    tokenizer: Path | None = None
    """A ``tokenizer.json``; without one, text prompts are estimated at four bytes per token."""
    host: str = "127.0.0.1"
    grpc_port: int = 0
    metrics_port: int = 0
    drain_grace_s: float = 30.0
    """How long requests may go on after the first signal to stop."""
    stop_patience_s: float = 5.0
    """How long an engine may take to let go of a request that it was told to stop, before its call is cancelled."""
    linger_s: float = 10.0
    """How long a cancelled request whose engine tells nothing may hold its slot."""
    probe_period_s: float = 1.0
    """How often each server is asked whether it is ready."""
    probe_timeout_s: float = 2.0
    """How long one may be silent, to that question too, before it is taken for stuck."""

    @cached_property
    def terms(self) -> Mapping[str, Terms]:
        """What each class was promised, as admission needs it."""
        return terms_of(self.classes, self.rules.holdback)

    def __post_init__(self) -> None:
        """Refuse pools that leave a gap, or cannot take over from those of shorter prompts."""
        if twice := named_twice(endpoint.grpc for endpoint in self.endpoints):
            raise InputError(f"the upstream {twice} is named twice", hint="name each server once")
        if twice := named_twice(endpoint.metrics for endpoint in self.endpoints):
            raise InputError(
                f"the metrics {twice} are named twice",
                hint="name those that each server has of its own engine",
            )
        for shorter, longer in itertools.pairwise(self.pools):
            self._check_neighbours(shorter, longer)

    def _check_neighbours(self, shorter: PoolConfig, longer: PoolConfig) -> None:
        key, start = f"pools.{longer.name}", longer.min_prompt_tokens
        longest = shorter.limits.max_input_len
        if start > longest + 1:
            raise InputError(
                f"no pool takes prompts of {longest + 1} to {start - 1} tokens: {shorter.name} ends at {longest}",
                hint=f"lower {key}.min_prompt_tokens to {longest + 1}, or raise max_input_len of {shorter.name}",
            )
        for limit in ("max_input_len", "max_seq_len"):
            have, need = getattr(longer.limits, limit), getattr(shorter.limits, limit)
            if have < need:
                raise InputError(
                    f"{limit} is {have} in pool {longer.name} and {need} in {shorter.name}, whose prompts are shorter",
                    hint=f"raise {key}.limits.{limit}: a pool of longer prompts takes shorter ones while it idles",
                )

    @property
    def endpoints(self) -> list[Endpoint]:
        """All servers, in the order of admission's engines."""
        return [endpoint for pool in self.pools for endpoint in pool.endpoints]

    def limits_of(self, prompt_tokens: int) -> EngineLimits:
        """Return the limits of the engines that take a prompt."""
        takes = [pool.limits for pool in self.pools if pool.min_prompt_tokens <= prompt_tokens]
        return takes[-1]

    @classmethod
    def from_plan(
        cls,
        contract: Contract,
        plan: Plan,
        *,
        upstream: str,
        engine_metrics: str | None = None,
        **settings: Any,
    ) -> ProxyConfig:
        """Take one server for all prompts."""
        pool = PoolConfig(plan.limits, plan.zones, (Endpoint(upstream, engine_metrics),))
        return cls.from_pools(contract, (pool,), **settings)

    @classmethod
    def from_pools(cls, contract: Contract, pools: tuple[PoolConfig, ...], **settings: Any) -> ProxyConfig:
        """Take promises from the contract."""
        return cls(
            classes=contract.classes,
            fallback_class=contract.fallback_class,
            rules=contract.admission,
            pools=pools,
            **settings,
        )


def endpoints_of(
    contract: Contract, upstreams: Sequence[str], metrics: Sequence[str] = ()
) -> dict[str, tuple[Endpoint, ...]]:
    """Return each pool's servers: those that are given as ``[POOL=]HOST:PORT``, or the contract's where none is.

    ``metrics`` are the metrics of the servers given, in their order; without a pool's name, a server is of the first.

    Raises:
        InputError: A pool has no server, or there is no such pool or address.
    """
    pools = contract.pools_by_length
    if metrics and len(metrics) != len(upstreams):
        hint = (
            "give --engine-metrics once for each --upstream, in the same order; or name both in the contract"
        )
        raise InputError(f"{len(metrics)} metrics addresses for {len(upstreams)} upstreams", hint=hint)
    found = {
        name: [] if upstreams else [Endpoint(each.grpc, each.metrics) for each in pool.upstreams]
        for name, pool in pools.items()
    }
    for text, page in itertools.zip_longest(upstreams, metrics):
        name, address = _split_upstream(text, next(iter(pools)))
        if name not in pools:
            hint = f"the contract's pools are {', '.join(pools)}"
            raise InputError(f"--upstream {text}: there is no pool {name!r}", hint=hint)
        found[name].append(Endpoint(address, page))
    for name, endpoints in found.items():
        if not endpoints:
            way = f"--upstream {name}=HOST:PORT" if len(pools) > 1 else "--upstream HOST:PORT"
            hint = f"give {way}, or name it in pools.{name}.upstreams"
            raise InputError(f"pool {name} has no server", hint=hint)
    return {name: tuple(endpoints) for name, endpoints in found.items()}


def _split_upstream(text: str, first: str) -> tuple[str, str]:
    name, sign, address = text.partition("=")
    return (name, address) if sign and not text.startswith("unix:") else (first, text)


def pools_of(
    contract: Contract, plans: Mapping[str, Plan], endpoints: Mapping[str, tuple[Endpoint, ...]]
) -> tuple[PoolConfig, ...]:
    """Put together what the contract, the plan of its engines and the command line say of each pool."""
    return tuple(
        PoolConfig(plans[name].limits, plans[name].zones, endpoints[name], name, pool.min_prompt_tokens)
        for name, pool in contract.pools_by_length.items()
    )
