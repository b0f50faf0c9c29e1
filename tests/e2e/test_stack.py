"""The real model behind Triton and the proxy, as an unmodified tritonclient sees it."""

import asyncio

import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTIONS = [
    "What is the capital of France?",
    "Write one line about the sea.",
    "Name three colours.",
    "What does a librarian do?",
    "Say hello in Japanese: こんにちは",
    "Repeat: 👩‍🚀 café naïve",
    "Why is the sky blue?",
    "List two animals.",
]


def tensor(name, value, datatype):
    tensor = triton.InferInput(name, list(value.shape), datatype)
    tensor.set_data_from_numpy(value)
    return tensor


async def ask(
    address, question, *, model="tensorrt_llm_bls", max_tokens=24, stream=True, priority=0, **words
):
    inputs = [
        tensor("text_input", np.array([[CHAT.format(question).encode()]], object), "BYTES"),
        tensor("stream", np.array([[stream]]), "BOOL"),
    ]
    if max_tokens is not None:
        inputs.append(tensor("max_tokens", np.array([[max_tokens]], np.int32), "INT32"))
    for name, listed in words.items():
        inputs.append(
            tensor(
                name, np.array([[word.encode(errors="surrogateescape") for word in listed]], object), "BYTES"
            )
        )

    async def once():
        yield {"model_name": model, "inputs": inputs, "priority": priority}

    pieces = []
    async with triton.InferenceServerClient(address) as client:
        async for result, error in client.stream_infer(once()):
            if error is not None:
                raise error
            pieces.append(result.as_numpy("text_output").reshape(-1)[0].decode())
    return pieces


async def text(*arguments, **options):
    return "".join(await ask(*arguments, **options))


async def test_greedy_text_is_the_same_at_1_8_and_32_concurrent_requests(stack):
    alone = [await text(stack, question) for question in QUESTIONS]
    for times in (1, 4):
        together = await asyncio.gather(*(text(stack, question) for question in QUESTIONS * times))
        assert together == alone * times
    assert "Paris" in alone[0]


@pytest.mark.parametrize("model", ["tensorrt_llm_bls", "ensemble"])
async def test_streamed_text_is_the_batch_text(stack, model):
    for question in QUESTIONS[4:6]:
        pieces = await ask(stack, question, model=model, max_tokens=40)
        whole = await ask(stack, question, model=model, max_tokens=40, stream=False)
        assert "".join(pieces) == "".join(whole)
        assert len(pieces) > len(whole) == 1
        assert any("\ufffd" in piece for piece in pieces) == ("\ufffd" in whole[0])


async def test_a_stop_word_ends_the_text_and_does_not_leak(stack):
    full = await text(stack, QUESTIONS[0])
    assert await text(stack, QUESTIONS[0], stop_words=["Paris"]) == full.split("Paris")[0]


async def test_a_bad_word_is_not_said(stack):
    said = await text(stack, QUESTIONS[0], bad_words=["Paris"])
    assert said
    assert "Paris" not in said


async def test_without_max_tokens_the_class_has_a_default(stack):
    pieces = await ask(stack, "Count from one to a thousand.", max_tokens=None)
    assert 1 < len(pieces) <= 129  # default_output_tokens of class standard, and the tail of the text


@pytest.mark.parametrize("model", ["tensorrt_llm_bls", "ensemble"])
async def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(stack, model):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await ask(stack, "sea " * 2000, model=model)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "1536" in caught.value.details()
    assert dict(caught.value.trailing_metadata())["trtkit-reason"] == "too_long"
    assert "Paris" in await text(stack, QUESTIONS[0], model=model)


async def test_a_priority_that_no_class_has_is_refused(stack):
    with pytest.raises(grpc.aio.AioRpcError, match="bad_priority"):
        await ask(stack, QUESTIONS[0], priority=9)


@pytest.mark.parametrize("model", ["tensorrt_llm_bls", "ensemble"])
async def test_a_mistake_of_the_client_is_called_one_and_harms_nobody(stack, model):
    for _ in range(10):
        with pytest.raises(grpc.aio.AioRpcError, match="invalid_input") as caught:
            await ask(stack, QUESTIONS[0], model=model, stop_words=["\udc80"])
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Paris" in await text(stack, QUESTIONS[0], model=model)
