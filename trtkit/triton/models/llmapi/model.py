"""tensorrt_llm.LLM as a Triton model: text in, text out, a response per piece of text.

execute() only hands requests over. An event loop in a thread of its own runs one coroutine per request, which sends
what the engine says and ends the request when its client is gone.
"""

import asyncio
import contextlib
import threading
from pathlib import Path

import yaml
from trtkit_io import Refusal, Reply, array, tensor

SETTINGS, TRITON = "model.yaml", "triton_config"
PREFIX = "sampling_param_"
SAMPLING = ("max_tokens", "top_k", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed")


class TritonPythonModel:
    """One LLM, any number of requests in flight."""

    def initialize(self, args):
        """Start the engine."""
        folder = Path(args["model_repository"], args["model_version"])
        settings = yaml.safe_load((folder / SETTINGS).read_text(encoding="utf-8"))
        triton = settings.pop(TRITON, {})
        self._period_s = float(triton.get("cancellation_check_period_ms", 100)) / 1e3
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="llm")
        self._thread.start()
        try:
            self._run(self._open(settings)).result()
        except BaseException:
            self._end_loop()
            raise

    async def _open(self, settings):
        # It uses CUDA from its import on.
        import tensorrt_llm

        self._sampling = tensorrt_llm.SamplingParams
        # Constructing takes minutes; the loop has to turn meanwhile.
        self._llm = await asyncio.to_thread(tensorrt_llm.LLM, **settings)

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def execute(self, requests):
        """Take the requests and return at once; responses follow."""
        for request in requests:
            self._run(self._serve(request, Reply(request)))

    async def _serve(self, request, reply):
        try:
            prompt, parameters = text_of(request), self._sampling(**sampling_of(request))
            streaming = scalar(request, "streaming") or False
            running = self._llm.generate_async(prompt, parameters, streaming=streaming)
            watch = asyncio.ensure_future(self._watch(reply, running))
            try:
                await self._answer(request, reply, running, prompt)
            finally:
                watch.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await watch
        except Exception as error:
            reply.fail(self._refusal(error, reply))
        else:
            reply.finish()

    def _refusal(self, error, reply):
        """Return whose fault it is: a client that is gone, a request that makes no sense, or the engine."""
        if reply.is_cancelled():
            return Refusal("the client is gone", "CANCELLED")
        return Refusal(str(error)) if isinstance(error, ValueError) else error

    async def _answer(self, request, reply, running, prompt):
        """Send what is new of each piece: the engine gives all text so far every time."""
        sent, echo = 0, "" if scalar(request, PREFIX + "exclude_input_from_output") is not False else prompt
        reasons = scalar(request, "return_finish_reason") or False
        async for piece in running:
            if reply.is_cancelled():
                running.abort()  # seen here before the watch sees it, nobody else would
                raise Refusal("the client is gone", "CANCELLED")
            output = piece.outputs[0]
            outputs = [words("text_output", echo + output.text[sent:])]
            sent, echo = len(output.text), ""
            if reasons:
                outputs.append(words("finish_reason", output.finish_reason or ""))
            reply.send(outputs)

    async def _watch(self, reply, running):
        """End a request whose client is gone, also while it waits for its first token."""
        while not reply.is_cancelled():  # noqa: ASYNC110 - Triton tells nobody, it has to be asked
            await asyncio.sleep(self._period_s)
        running.abort()

    def finalize(self):
        """Stop the engine."""
        self._llm.shutdown()
        self._end_loop()

    def _end_loop(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def text_of(request):
    """Return the prompt."""
    texts = all_text(request, "text_input")
    if len(texts) != 1:
        raise Refusal(f"'text_input' has one prompt, got {len(texts)}")
    return texts[0]


def sampling_of(request):
    """Return what the request says of sampling; what it leaves out is for the engine to choose."""
    given = {name: scalar(request, PREFIX + name) for name in SAMPLING}
    given["stop"] = all_text(request, PREFIX + "stop") or None
    return {name: value for name, value in given.items() if value is not None}


def scalar(request, name):
    """Return the one value of an input, None when the request lacks it."""
    values = array(request, name)
    if values is None:
        return None
    if values.size != 1:
        raise Refusal(f"'{name}' has one value, got {values.size}")
    return values.item()


def all_text(request, name):
    """Return the strings of an input, none when the request lacks it."""
    values = array(request, name)
    try:
        return [] if values is None else [each.decode() for each in values.reshape(-1)]
    except UnicodeDecodeError as error:
        raise Refusal(f"'{name}' is not UTF-8: {error.reason} at byte {error.start}") from None


def words(name, text):
    """Return a string output."""
    return tensor(name, [text.encode()], object)
