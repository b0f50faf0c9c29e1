"""How a repository whose engine runs in NVIDIA's image is started: one process per rank, or one for all.

The arguments are those of ``launch_triton_server.py`` of TensorRT-LLM's Triton back end.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from trtkit.conventions import ENGINE_MODEL
from trtkit.errors import InputError

SCRIPT = "launch.sh"
"""Name of the script in a repository; Triton takes no file there for a model."""
SERVER = "/opt/tritonserver/bin/tritonserver"
_MPIRUN = ("mpirun", "--allow-run-as-root")
_SHM = "--backend-config=python,shm-region-prefix-name="


class Mode(str, enum.Enum):
    """Who starts the processes of an engine's ranks."""

    LEADER = "leader"
    """MPI starts one tritonserver per rank; those after the first load the engine only."""
    ORCHESTRATOR = "orchestrator"
    """One tritonserver starts workers of its own: several engines in one server, on one machine."""
    LLMAPI = "llmapi"
    """TensorRT-LLM's Python API starts them, or ``trtllm-llmapi-launch`` on several machines."""
    PLAIN = "plain"
    """The back end alone knows of ranks."""


@dataclass(frozen=True)
class Ports:
    """Where the first rank listens."""

    http: int = 8000
    grpc: int = 8001
    metrics: int = 8002


@dataclass(frozen=True)
class Launch:
    """One server, on one machine or several."""

    repository: str
    world: int
    mode: Mode
    models: tuple[str, ...] = (ENGINE_MODEL,)
    """Models that hold engines, of which the largest has ``world`` ranks."""
    nodes: int = 1
    hostfile: str = ""
    """MPI's list of machines, with a slot per GPU."""
    shm_prefix: str = ""
    """Several servers on one machine need different ones; left out, it has the port of gRPC."""
    ports: Ports = Ports()

    def __post_init__(self) -> None:
        """Refuse what no mode can start."""
        if self.mode is Mode.ORCHESTRATOR and self.nodes > 1:
            raise InputError(
                f"several engines in one server run on one machine, these ranks are on {self.nodes}",
                hint="fewer ranks, or no draft model",
            )
        if self.mode is Mode.PLAIN and self.nodes > 1:
            raise InputError(
                f"Triton's vLLM back end starts its ranks on one machine, {self.world} are on {self.nodes}",
                hint="fewer ranks, or engine.backend llmapi, which is started on several",
            )
        if self.mode is Mode.LEADER and len(self.models) > 1:
            raise InputError(
                f"one server with a process per rank has one engine, not {', '.join(self.models)}",
                hint="use orchestrator mode, or a server each",
            )

    @property
    def env(self) -> dict[str, str]:
        """Variables on top of the environment."""
        if self.mode is not Mode.ORCHESTRATOR:
            return {}
        return {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}

    @property
    def ranks(self) -> tuple[tuple[str, ...], ...]:
        """The command of each process that the launcher starts, first rank first."""
        processes = self.world if self.mode is Mode.LEADER else 1
        if self.mode is Mode.LLMAPI and self.nodes > 1:
            processes = self.world
        return tuple(self._server(rank) for rank in range(processes))

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command."""
        if self.mode in {Mode.PLAIN, Mode.LLMAPI} and len(self.ranks) == 1:
            return self.ranks[0]
        if self.mode is Mode.LLMAPI:
            nodes = ("-N", str(self.nodes), "-n", str(self.world))
            return ("srun", "--mpi=pmix", *nodes, "trtllm-llmapi-launch", *self.ranks[0])
        words: list[str] = [*_MPIRUN, *(["--hostfile", self.hostfile] if self.hostfile else [])]
        for rank, command in enumerate(self.ranks):
            words += [":"] if rank else []
            words += ["-n", "1", *command]
        return tuple(words)

    def line(self) -> str:
        """Return variables and command for a shell."""
        env = [f"{key}={value}" for key, value in self.env.items()]
        return shlex.join([*(["env", *env] if env else []), *self.argv])

    def _server(self, rank: int) -> tuple[str, ...]:
        return (
            SERVER,
            f"--model-repository={self.repository}",
            f"--http-port={self.ports.http}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-port={self.ports.metrics}",
            *(self._only_engine() if rank else ()),
            *(self._peers() if self.mode is Mode.ORCHESTRATOR else ()),
            # Triton's vLLM back end writes its own inputs and outputs; all other configurations are complete.
            *(() if self.mode is Mode.PLAIN else ("--disable-auto-complete-config",)),
            f"{self.shm_option}{rank}_",
        )

    @property
    def shm_option(self) -> str:
        """How Python models are told the prefix, but for the rank."""
        return f"{_SHM}{self.shm_prefix or f'trtkit-{self.ports.grpc}-'}"

    def _only_engine(self) -> tuple[str, ...]:
        return ("--model-control-mode=explicit", *(f"--load-model={name}" for name in self.models))

    def _peers(self) -> tuple[str, ...]:
        """Keep Triton's own pools off the GPUs that spawned workers use."""
        pools = (f"--cuda-memory-pool-byte-size={gpu}:0" for gpu in range(self.world))
        return ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false", *pools)


def script(launch: Launch, variables: Mapping[str, str] | None = None) -> bytes:
    """Return the launch as a script; it takes ports, prefix of shared memory and machines from its environment."""
    given = dict(variables or {})
    lines = [
        "#!/usr/bin/env bash",
        "# Generated by trtkit; do not edit: the next `trtkit repo` overwrites it.",
        f"# {_TITLES[launch.mode].format(world=launch.world, nodes=launch.nodes, engines=len(launch.models))}",
        "set -euo pipefail",
        *(f"export {key}={shlex.quote(value)}" for key, value in {**launch.env, **given}.items()),
        *_here(launch),
        *(_HOSTS if launch.nodes > 1 and launch.mode is Mode.LEADER else ()),
        *(f': "${{{name}:={value}}}"' for name, value in _defaults(launch).items()),
        f"exec {_wrapped(launch)}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _defaults(launch: Launch) -> dict[str, str]:
    """Return what tells servers on one machine apart: containers have names, and those that share one have ports."""
    return {
        "TRTKIT_HTTP_PORT": str(launch.ports.http),
        "TRTKIT_GRPC_PORT": str(launch.ports.grpc),
        "TRTKIT_METRICS_PORT": str(launch.ports.metrics),
        "TRTKIT_SHM_PREFIX": launch.shm_prefix or "trtkit-$HOSTNAME-$TRTKIT_GRPC_PORT-",
    }


_TITLES = {
    Mode.LEADER: "{world} rank(s), one tritonserver each, on {nodes} machine(s).",
    Mode.ORCHESTRATOR: "One tritonserver, which starts the workers of {engines} engine(s), on {world} GPU(s).",
    Mode.LLMAPI: "TensorRT-LLM's Python API with {world} rank(s) on {nodes} machine(s).",
    Mode.PLAIN: "One tritonserver; its back end has {world} rank(s).",
}
_HOSTS = (': "${TRTKIT_HOSTFILE:?a file for mpirun: one line per machine, HOST slots=GPUS}"',)


def _here(launch: Launch) -> tuple[str, ...]:
    """The engine's paths are absolute: somewhere else the repository would not load."""
    there = shlex.quote(launch.repository)
    return (f'[ -d {there} ] || {{ echo "mount this repository at {launch.repository}" >&2; exit 2; }}',)


def _wrapped(launch: Launch) -> str:
    """Return the command with a line for each option and each rank."""
    words = list(launch.argv)
    hosts = 0
    if launch.nodes > 1 and launch.mode is Mode.LEADER:
        hosts = len(_MPIRUN)
    text = ""
    for place, word in enumerate(words):
        if hosts and place == hosts:
            text += ' --hostfile "$TRTKIT_HOSTFILE"'
        if word == ":":
            text += " : \\\n "
        else:
            text += (" \\\n    " if word.startswith("--") else " ") + _spelled(launch, word)
    return text.lstrip()


def _spelled(launch: Launch, word: str) -> str:
    """Return one word for the shell, with the script's variables in it."""
    option, given, _ = word.partition("-port=")
    if given and option in {"--http", "--grpc", "--metrics"}:
        return f'"{option}-port=$TRTKIT_{option[2:].upper()}_PORT"'
    if word.startswith(launch.shm_option):
        return f'"{_SHM}${{TRTKIT_SHM_PREFIX}}{word.removeprefix(launch.shm_option)}"'
    return shlex.quote(word)
