"""The flow of `trtkit up` after the build: serve, put the proxy in front, show that it works, stop."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trtkit.bench.account import ClassAccount, Sample, account
from trtkit.bench.schedule import Shot, poisson_mix
from trtkit.catalog.gpus import GPUS
from trtkit.catalog.support import RTX_SMS
from trtkit.catalog.trtllm import NEWEST, PROFILES
from trtkit.contract import Contract
from trtkit.contract.formats import BackendName
from trtkit.engine.exported import EXPORTED
from trtkit.engine.installed import check_installed
from trtkit.engine.slots.here import check_sms
from trtkit.errors import EnvironmentLacks, StageError
from trtkit.flow.build import BuildOutcome, Report
from trtkit.plan.gpu import sms_of

if TYPE_CHECKING:
    from trtkit.triton.server import TritonServer

HOST = "127.0.0.1"
QUESTION = "What is the capital of France?"
ANSWER_TOKENS = 48
SEED = 7
WATCH_PERIOD_S = 1.0
DRAIN_GRACE_S = 2.0
_READ_LOG = (
    "read the end of that log, or of dmesg where a process was killed for its memory; then start again"
)


@dataclass(frozen=True)
class Ports:
    """Where the proxy listens on 127.0.0.1; 0 picks a free port."""

    grpc: int = 0
    metrics: int = 0


@dataclass(frozen=True)
class Load:
    """The short mixed load: open-loop Poisson arrivals over all classes."""

    requests: int = 24
    rate_per_s: float = 2.0


class Viewer(Protocol):
    """Who is shown what happens, as it happens."""

    def ready(self, grpc_port: int, metrics_port: int, server: TritonServer) -> None:
        """The proxy listens on these ports, in front of this server."""

    def text(self, piece: str) -> None:
        """A piece of the streamed answer to :data:`QUESTION` arrived."""

    def answered(self, sample: Sample) -> None:
        """A request ended: first the one question, then each of the load."""

    def finished(self, rows: list[ClassAccount]) -> None:
        """The load ended; this is its account."""


def check_served_here(contract: Contract) -> None:
    """Make sure that this machine's tritonserver runs the contract's engine.

    Raises:
        EnvironmentLacks: It is an engine of TensorRT-LLM, whose back end comes in NVIDIA's image only, or of a server
            that the proxy does not know; or it runs on a GPU, and there is none that it is compiled for; or what runs
            it is not installed.
        InputError: It is compiled for no GPU at all.
    """
    check_installed([contract.engine.backend.value], text=True)
    if contract.engine.backend is BackendName.RTX and contract.engine.gpu in GPUS:
        check_sms(RTX_SMS.intersection(sms_of(contract)))
    if contract.engine.backend.value in EXPORTED:
        message = (
            f"{contract.engine.backend.value} has tensors of its own, which `trtkit up` does not ask for"
        )
        hint = (
            "run `trtkit build`, serve its product as docs/backends.md says, and put `trtkit proxy` in front"
        )
        raise EnvironmentLacks(message, hint=hint)
    if contract.engine.backend is BackendName.TENSORRT:
        tag = PROFILES[contract.engine.trtllm or NEWEST].images[-1]
        message = "the tritonserver of this machine has no back end for engines of TensorRT-LLM"
        hint = f"run `trtkit build`, serve its repository in nvcr.io/nvidia/tritonserver:{tag}-trtllm-python-py3 at "
        raise EnvironmentLacks(message, hint=hint + "/model_repo, and put `trtkit proxy` in front")


async def serve_and_show(
    contract: Contract,
    built: BuildOutcome,
    *,
    log_file: Path,
    ports: Ports,
    load: Load,
    viewer: Viewer,
    report: Report,
    keep: bool,
) -> None:
    """Serve what was built and send a load through the proxy; whatever was started is stopped on every way out.

    With ``keep`` everything stays up until the task is cancelled.

    Raises:
        InputError: The model's chat template cannot be rendered.
        StartError: Triton or the proxy could not start.
        StageError: The question or the whole load failed, or Triton died while it was kept up.
    """
    from trtkit.proxy.config import ProxyConfig
    from trtkit.proxy.server import Proxy
    from trtkit.triton.server import TritonServer

    question, shots = _prepare(contract, built.source, load)
    report("start tritonserver", 0, None)
    with TritonServer(built.repository, log_file=log_file) as server:
        await asyncio.to_thread(server.wait_ready)
        report("start tritonserver", 1, 1)
        proxy = Proxy(
            ProxyConfig.from_plan(
                contract,
                built.plan,
                upstream=server.grpc_address,
                engine_metrics=f"{HOST}:{server.metrics_port}",
                tokenizer=built.source / "tokenizer.json",
                host=HOST,
                grpc_port=ports.grpc,
                metrics_port=ports.metrics,
            )
        )
        await proxy.start()
        try:
            viewer.ready(proxy.grpc_port, proxy.metrics_port, server)
            await _show(f"{HOST}:{proxy.grpc_port}", contract, question, shots, viewer)
            if keep:
                await watch(server)
        finally:
            await proxy.drain(DRAIN_GRACE_S)


def _prepare(contract: Contract, tokenizer_folder: Path, load: Load) -> tuple[Shot, list[Shot]]:
    """Return the one question, for the first class, and the mixed load, as chats of this model."""
    from trtkit.bench.prompts import render_chat

    def chat(shot: Shot) -> Shot:
        return replace(shot, prompt=render_chat(tokenizer_folder, shot.prompt))

    classes = list(contract.classes)
    mix = poisson_mix(classes, requests=load.requests, rate_per_s=load.rate_per_s, seed=SEED)
    return chat(Shot(0.0, classes[0], QUESTION, ANSWER_TOKENS)), [chat(shot) for shot in mix]


async def _show(url: str, contract: Contract, question: Shot, shots: list[Shot], viewer: Viewer) -> None:
    """Stream one answer, then send the mixed load."""
    import tritonclient.grpc.aio as triton

    from trtkit.bench.client import ask, fire

    async with triton.InferenceServerClient(url) as client:
        sample = await ask(client, question, on_text=viewer.text)
    viewer.answered(sample)
    if sample.outcome != "ok":
        raise StageError(f"the question was not answered: {sample.outcome}")
    started_s = time.monotonic()
    samples = await fire(url, shots, on_done=viewer.answered)
    viewer.finished(account(samples, contract.classes, time.monotonic() - started_s))
    if all(sample.outcome != "ok" for sample in samples):
        raise StageError(f"no request of the load was answered; the last: {samples[-1].outcome}")


async def watch(server: TritonServer) -> None:
    """Stay until Triton dies. A dead model process leaves Triton's health at 200, so the server looks deeper."""
    while not (failure := server.failure()):  # noqa: ASYNC110 - nothing announces a dead process
        await asyncio.sleep(WATCH_PERIOD_S)
    raise StageError(failure, path=server.log_file, hint=_READ_LOG)
