"""A proxy in front of a Triton, real or fake, driven by unmodified tritonclients."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
import urllib.request

import numpy as np
import pytest
import tritonclient.grpc as sync_triton
import tritonclient.grpc.aio as triton
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tritonclient.grpc import service_pb2

from tests.proxy.fake_triton import FakeTriton, final_chunk, text_chunk
from trtkit.contract.admission import Admission as AdmissionRules
from trtkit.contract.service import ServiceClass
from trtkit.plan.types import EngineLimits, Zones
from trtkit.proxy.config import Endpoint, PoolConfig, ProxyConfig
from trtkit.proxy.server import Proxy

BLS = "tensorrt_llm_bls"
CLASSES = {
    "interactive": ServiceClass(priority=1, ttft_ms=2000.0, tpot_ms=500.0, deadline_ms=20_000.0),
    "standard": ServiceClass(priority=2, max_output_tokens=64, default_output_tokens=16),
    "batch": ServiceClass(priority=3, sheddable=True, max_prompt_tokens=100),
}
LIMITS = EngineLimits(
    max_batch_size=4, max_input_len=200, max_seq_len=256, max_num_tokens=512, tokens_per_block=32
)


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory):
    """A tokenizer for which a byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: n for n, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
async def fake():
    async with FakeTriton() as server:
        yield server


@pytest.fixture
def until_stop(fake):
    """The engine yields one token and goes on until it is told to stop."""

    async def script(request, context):
        yield text_chunk(request)
        await fake.until_stopped(request)
        yield final_chunk(request)

    fake.script = script


class Front:
    """A running proxy and the things that tests ask it."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.address = f"127.0.0.1:{proxy.grpc_port}"

    async def scrape(self, path="/metrics") -> str:
        url = f"http://127.0.0.1:{self.proxy.metrics_port}{path}"
        return await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read().decode())

    async def metric(self, name, **labels) -> float:
        """Sum the samples of a metric that have these labels."""
        labels = {key.rstrip("_"): value for key, value in labels.items()}
        families = text_string_to_metric_families(await self.scrape())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == f"trtkit_proxy_{name}" and labels.items() <= sample.labels.items()
        )

    async def until(self, expected, name, within_s=20.0, **labels) -> None:
        fits = expected if callable(expected) else float(expected).__eq__
        end_s = time.monotonic() + within_s
        while fits(await self.metric(name, **labels)) is not True:
            assert time.monotonic() < end_s, f"{name} never became {expected}"
            await asyncio.sleep(0.01)


@pytest.fixture
async def serve(tokenizer_file):
    """Start proxies; whatever was started is stopped."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *upstreams, slots=4, max_queue=512, classes=CLASSES, prefill=10_000, engine_metrics=None, **config
        ) -> Front:
            endpoints = tuple(Endpoint(each, engine_metrics) for each in upstreams)
            settings = ProxyConfig(
                classes=classes,
                fallback_class="standard" if "standard" in classes else next(iter(classes)),
                rules=AdmissionRules(max_queue=max_queue),
                pools=(PoolConfig(LIMITS, Zones(prefill, 100_000, slots), endpoints),),
                tokenizer=tokenizer_file,
            )
            proxy = Proxy(dataclasses.replace(settings, **config))
            await proxy.start()
            stack.push_async_callback(proxy.drain, 0)
            return Front(proxy)

        yield start


@pytest.fixture
async def spawn(serve):
    """Start calls that are given up before the proxy they go to is stopped."""
    tasks = []

    def start(work):
        tasks.append(asyncio.create_task(work))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def front(fake, serve):
    return await serve(fake.address)


def text_inputs(text, max_tokens=16, *, stream=True):
    """Inputs of the text API, raw, as tritonclient writes them."""
    values = {"text_input": np.array([[text.encode()]], object)}
    if max_tokens is not None:
        values["max_tokens"] = np.array([[max_tokens]], np.int32)
    if stream is not None:
        values["stream"] = np.array([[stream]], bool)
    return to_inputs(values)


def token_inputs(tokens, max_tokens=16, *, stream=True):
    values = {
        "input_ids": np.array([tokens], np.int32),
        "input_lengths": np.array([[len(tokens)]], np.int32),
        "request_output_len": np.array([[max_tokens]], np.int32),
        "streaming": np.array([[stream]], bool),
    }
    return to_inputs(values)


def to_inputs(values):
    kinds = {np.dtype(object): "BYTES", np.dtype(np.int32): "INT32", np.dtype(bool): "BOOL"}
    inputs = []
    for name, value in values.items():
        tensor = sync_triton.InferInput(name, value.shape, kinds[value.dtype])
        tensor.set_data_from_numpy(value)
        inputs.append(tensor)
    return inputs


def infer_request(model, inputs) -> bytes:
    """Serialize a request as tritonclient does, for calls that need what tritonclient hides."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for tensor in inputs:
        request.inputs.append(tensor._get_tensor())
        request.raw_input_contents.append(tensor._get_content())
    return request.SerializeToString()


async def stream(address, *requests, headers=None, timeout_s=None):
    """Send requests on one stream of tritonclient.grpc.aio; yield (result, error) pairs."""

    async def send():
        for request in requests:
            yield {"model_name": BLS, **request}

    async with triton.InferenceServerClient(address) as client:
        replies = client.stream_infer(send(), headers=headers, stream_timeout=timeout_s)
        async for pair in replies:
            yield pair


async def ask(address, text="hello", headers=None, timeout_s=None, max_tokens=16, **request):
    """Send one text request; return its texts, or raise its error."""
    request = {"inputs": text_inputs(text, max_tokens), **request}
    texts = []
    async for result, error in stream(address, request, headers=headers, timeout_s=timeout_s):
        if error is not None:
            raise error
        if (output := result.as_numpy("text_output")) is not None:
            texts.append(output.reshape(-1)[0].decode())
    return texts


timed = functools.partial(asyncio.wait_for, timeout=10)
