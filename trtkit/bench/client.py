"""The load's client: an unmodified ``tritonclient.grpc.aio``, one stream per request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import grpc.aio
import numpy as np
import tritonclient.grpc.aio as triton

from trtkit.bench.account import Sample
from trtkit.bench.schedule import Shot
from trtkit.conventions import BLS_MODEL, CLASS_HEADER

OnText = Callable[[str], None]


async def fire(
    url: str, shots: Sequence[Shot], *, on_done: Callable[[Sample], None] | None = None
) -> list[Sample]:
    """Send every shot at its time, whatever became of the earlier ones (open loop), and await them all."""
    async with triton.InferenceServerClient(url) as client:
        start_s = time.monotonic()

        async def one(shot: Shot) -> Sample:
            await asyncio.sleep(max(0.0, start_s + shot.at_s - time.monotonic()))
            sample = await ask(client, shot)
            if on_done is not None:
                on_done(sample)
            return sample

        return await asyncio.gather(*(one(shot) for shot in shots))


async def ask(client: triton.InferenceServerClient, shot: Shot, on_text: OnText | None = None) -> Sample:
    """Stream one request and return what was measured."""
    sent_s, ttft_s, last_s, tokens, pieces, outcome = time.monotonic(), None, None, 0, [], "ok"
    try:
        async for result, error in client.stream_infer(_once(shot), headers={CLASS_HEADER: shot.class_name}):
            if error is not None:
                raise error
            text = result.as_numpy("text_output")
            if text is None or text.size == 0:
                continue
            last_s = time.monotonic() - sent_s
            ttft_s = last_s if ttft_s is None else ttft_s
            tokens += 1
            pieces.append(text.reshape(-1)[0].decode())
            if on_text is not None:
                on_text(pieces[-1])
    except triton.InferenceServerException as error:  # in-band
        outcome = error.message()
    except grpc.aio.AioRpcError as error:  # the stream's status, which tritonclient passes on as it is
        outcome = f"{error.code().name}: {error.details()}"
    return Sample(shot.class_name, outcome, ttft_s, last_s, tokens, "".join(pieces))


async def _once(shot: Shot) -> AsyncIterator[dict[str, Any]]:
    yield {
        "model_name": BLS_MODEL,
        "inputs": [
            _tensor("text_input", "BYTES", np.array([[shot.prompt.encode()]], dtype=np.object_)),
            _tensor("max_tokens", "INT32", np.array([[shot.max_tokens]], dtype=np.int32)),
            _tensor("stream", "BOOL", np.array([[True]])),
        ],
        "outputs": [triton.InferRequestedOutput("text_output")],
    }


def _tensor(name: str, datatype: str, value: np.ndarray[Any, Any]) -> triton.InferInput:
    tensor = triton.InferInput(name, list(value.shape), datatype)
    tensor.set_data_from_numpy(value)
    return tensor
