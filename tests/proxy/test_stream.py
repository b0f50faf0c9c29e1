"""ModelStreamInfer through the proxy, with a Triton that does what the test says."""

from __future__ import annotations

import asyncio
import queue

import grpc
import pytest
import tritonclient.grpc as sync_triton

from tests.proxy.conftest import BLS, ask, infer_request, stream, text_inputs, timed, token_inputs
from tests.proxy.fake_triton import final_chunk, read_int32, text_chunk


async def test_a_request_streams_and_keeps_its_own_id(front, fake):
    ids = []
    request = {"inputs": text_inputs("hi"), "request_id": "mine"}
    async for result, error in stream(front.address, request):
        assert error is None
        ids.append(result.get_response().id)
    assert ids == ["mine"] * 3
    assert fake.requests[0].id != "mine"


async def test_the_empty_final_response_reaches_only_who_asked_for_it(front):
    def use_sync_client():
        replies = queue.Queue()
        with sync_triton.InferenceServerClient(front.address) as client:
            client.start_stream(lambda result, error: replies.put(result.get_response()))
            client.async_stream_infer(BLS, text_inputs("hi"), enable_empty_final_response=True)
            return [is_final(replies.get(timeout=5)) for _ in range(4)]

    assert await asyncio.to_thread(use_sync_client) == [False] * 3 + [True]
    assert len(await ask(front.address)) == 3


def is_final(reply):
    return reply.parameters["triton_final_response"].bool_param


async def test_requests_of_one_stream_are_independent(front, fake):
    async def by_prompt(request, context):
        if b"slow" in request.raw_input_contents[0]:
            await asyncio.sleep(0.2)
        yield text_chunk(request)
        yield final_chunk(request)

    fake.script = by_prompt
    requests = [{"inputs": text_inputs(text), "request_id": text} for text in ("slow", "fast")]
    order = [result.get_response().id async for result, _ in stream(front.address, *requests)]
    assert order == ["fast", "slow"]


async def test_own_headers_and_parameters_stay_at_the_proxy_and_foreign_ones_pass(front, fake):
    headers = {"x-trtkit-class": "interactive", "x-team": "search"}
    await ask(front.address, headers=headers, priority=3, timeout=5_000_000, parameters={"mine": "kept"})
    added = {"triton_enable_empty_final_response", "trtkit_spell_error_code"}
    assert set(fake.requests[0].parameters) == {"mine", *added}
    assert fake.metadata[0]["x-team"] == "search"
    assert not any(key.startswith(("x-trtkit", "triton_grpc_error")) for key in fake.metadata[0])


async def test_max_tokens_left_out_is_the_default_of_the_class(front, fake):
    await ask(front.address, inputs=text_inputs("hi", None))
    assert read_int32(fake.requests[0], "max_tokens") == 16


@pytest.mark.parametrize(("text", "asked", "granted"), [("hi", 5000, 64), ("p" * 196, 64, 60)])
async def test_max_tokens_is_clipped_to_class_and_engine_and_the_client_is_told(
    front, fake, text, asked, granted
):
    replies = []
    async for result, _ in stream(front.address, {"inputs": text_inputs(text, asked)}):
        replies.append(result.get_response())
    assert read_int32(fake.requests[0], "max_tokens") == granted
    assert replies[0].parameters["trtkit_max_tokens_clipped"].int64_param == granted


@pytest.mark.parametrize("length", [201, 2000])
async def test_a_prompt_too_long_for_the_engine_never_reaches_it(front, fake, length):
    with pytest.raises(grpc.aio.AioRpcError, match=r"(?s)too_long.*200") as caught:
        await ask(front.address, "x" * length)
    assert caught.value.code().name == "INVALID_ARGUMENT"
    with pytest.raises(grpc.aio.AioRpcError, match="too_long"):
        await ask(front.address, inputs=token_inputs(list(range(length))), model_name="tensorrt_llm")
    assert fake.requests == []
    assert await front.metric("requests_total", reason="too_long") == 2


async def test_a_prompt_of_the_full_length_is_served(front):
    assert len(await ask(front.address, "x" * 200)) == 3


async def test_a_class_has_its_own_limit(front):
    with pytest.raises(grpc.aio.AioRpcError, match=r"over_class_limit: the prompt has .*101 tokens.* 100"):
        await ask(front.address, "x" * 101, headers={"x-trtkit-class": "batch"})


async def test_an_unknown_class_or_priority_is_refused_with_the_valid_ones(front):
    with pytest.raises(grpc.aio.AioRpcError, match="interactive, standard, batch"):
        await ask(front.address, headers={"x-trtkit-class": "gold"})
    with pytest.raises(grpc.aio.AioRpcError, match=r"bad_priority: .*1 \(interactive\)"):
        await ask(front.address, priority=9)
    assert await front.metric("requests_total", class_="unknown", outcome="invalid") == 2


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        (text_inputs("a") + token_inputs([1])[:1], "unexpected input 'input_ids'"),
        (text_inputs("a")[1:], "input 'text_input' is missing"),
        (token_inputs([1])[1:], "unexpected input 'input_lengths'"),
    ],
)
async def test_a_request_that_does_not_fit_the_model_is_refused_by_tensor_name(front, fake, inputs, problem):
    with pytest.raises(grpc.aio.AioRpcError, match=problem) as caught:
        await ask(front.address, inputs=inputs)
    assert caught.value.code().name == "INVALID_ARGUMENT"
    assert fake.requests == []


async def test_streaming_from_a_model_that_is_not_decoupled_is_refused_clearly(front, fake):
    fake.configs[BLS].model_transaction_policy.decoupled = False
    with pytest.raises(grpc.aio.AioRpcError, match=f"model '{BLS}' is not decoupled"):
        await ask(front.address)


async def test_an_ensemble_is_decoupled_when_a_step_is(front):
    assert len(await ask(front.address, model_name="ensemble")) == 3


# Ends


async def no_final(request, context):
    yield text_chunk(request)


async def zero_tokens(request, context):
    yield final_chunk(request)


async def chunk_after_final(request, context):
    yield text_chunk(request, "only")
    yield final_chunk(request)
    yield text_chunk(request, "late")


async def error_in_band(request, context):
    message = final_chunk(request)
    message.error_message = "engine said no"
    yield message


async def error_as_status(request, context):
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "bad word list")
    yield


async def test_an_end_without_final_marker_is_data_loss(front, fake):
    fake.script = no_final
    with pytest.raises(grpc.aio.AioRpcError, match="truncated_stream") as caught:
        await ask(front.address)
    assert caught.value.code() is grpc.StatusCode.DATA_LOSS


async def test_zero_tokens_are_a_clean_end(front, fake):
    fake.script = zero_tokens
    assert await ask(front.address) == []
    assert await front.metric("requests_total", reason="ok") == 1


async def test_what_comes_after_the_final_response_is_dropped(front, fake):
    fake.script = chunk_after_final
    assert await ask(front.address) == ["only"]


@pytest.mark.parametrize(
    ("script", "status", "text", "reason"),
    [
        (error_in_band, "INTERNAL", "engine said no", "upstream_error"),
        (error_as_status, "INVALID_ARGUMENT", "bad word list", "invalid_input"),
    ],
)
async def test_both_error_channels_of_the_server_become_a_status(front, fake, script, status, text, reason):
    fake.script = script
    with pytest.raises(grpc.aio.AioRpcError, match=text) as caught:
        await ask(front.address)
    assert caught.value.code().name == status
    assert await front.metric("requests_total", reason=reason) == 1


async def test_a_stream_that_goes_on_gets_its_error_in_band(front, fake):
    fake.script = error_in_band
    requests = [{"inputs": text_inputs("a"), "request_id": name} for name in ("x", "y")]
    errors = [error.message() async for _, error in stream(front.address, *requests)]
    assert errors == ["[INTERNAL] upstream_error: engine said no"] * 2


async def test_triton_grpc_error_asks_for_a_status_even_mid_stream(front, fake):
    fake.script = no_final
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(front.address, headers={"triton_grpc_error": "true"})
    assert caught.value.code().name == "DATA_LOSS"


async def test_a_burst_beyond_the_queue_is_refused_with_reason_and_pushback(fake, serve, until_stop, spawn):
    front = await serve(fake.address, slots=1, max_queue=2)
    calls = [spawn(ask(front.address)) for _ in range(20)]
    done, pending = await asyncio.wait(calls, timeout=1.0)
    assert len(pending) == 3
    for call in done:
        assert call.exception().code().name == "RESOURCE_EXHAUSTED"
    assert await front.metric("requests_total", reason="queue_full") == 17


async def test_trailers_of_a_refusal_carry_the_facts(fake, serve, until_stop, spawn):
    front = await serve(fake.address, slots=1, max_queue=1)
    for _ in range(2):
        spawn(ask(front.address))
    await front.until(1, "queue_depth")
    call, trailers = await raw_call(front, text_inputs("a"))
    assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailers["trtkit-reason"] == "queue_full"
    assert trailers["trtkit-class"] == "standard"
    assert 50 <= int(trailers["grpc-retry-pushback-ms"]) <= 30_000


async def test_trailers_of_an_answer_carry_queue_time_deadline_and_clipping(front):
    call, trailers = await raw_call(front, text_inputs("a", 5000), (("x-trtkit-class", "interactive"),))
    assert await call.code() is grpc.StatusCode.OK
    assert trailers["trtkit-reason"] == "ok"
    assert trailers["trtkit-deadline-ms"] == "20000"
    assert int(trailers["trtkit-queue-ms"]) < 1000
    assert trailers["trtkit-max-tokens-clipped"] == "255"


async def raw_call(front, inputs, metadata=()):
    """Make the call without tritonclient, which hides trailers."""
    request = infer_request(BLS, inputs)
    async with grpc.aio.insecure_channel(front.address) as channel:
        method = channel.unary_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        call = method(request, metadata=metadata)
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError:
            pass
        return call, dict(await call.trailing_metadata())


async def test_a_refusal_is_trailers_only_so_that_grpc_itself_retries_it(fake, serve, until_stop, spawn):
    """A client with a retry policy waits the pushback and tries again: gRFC A6, done by grpc's core."""
    front = await serve(fake.address, slots=1, max_queue=1)
    busy = [spawn(ask(front.address)) for _ in range(2)]
    await front.until(1, "queue_depth")
    policy = """{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 5, "initialBackoff": "60s",
        "maxBackoff": "60s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}"""
    options = [("grpc.service_config", policy)]
    request = infer_request(BLS, text_inputs("a"))
    async with grpc.aio.insecure_channel(front.address, options=options) as channel:
        method = channel.unary_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        call = method(request)
        reading = spawn(call.read())
        await front.until(lambda refused: refused >= 1, "requests_total", reason="queue_full")
        for each in busy:
            each.cancel()
        assert await timed(reading) is not grpc.aio.EOF
        call.cancel()
