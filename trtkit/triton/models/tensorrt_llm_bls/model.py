"""tensorrt_llm_bls: the text API. One thread per request relays preprocessing and engine to the client."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils
from trtkit_drafting import Drafting, guesses_of
from trtkit_io import (
    SPELL_CODE,
    Refusal,
    Reply,
    Resting,
    Settings,
    array,
    child_error,
    parameters,
    refuse_above,
    refuse_inputs,
    required,
    tensor,
)
from trtkit_relay import Relay
from trtkit_text import TextTokenizer
from trtkit_wiring import FROM_PREPROCESSING, TO_ENGINE, TO_PREPROCESSING

UNSUPPORTED = [
    "decoder_text_input",
    "image_input",
    "image_bytes_input",
    "image_url_input",
    "video_bytes_input",
    "use_draft_logits",
    "embedding_bias_words",
    "embedding_bias_weights",
    "prompt_table_extra_id",
]


class TritonPythonModel:
    """Concurrency is threads in one process; cancellation is one thread that waits for nobody."""

    def initialize(self, args):
        """Load the tokenizer and start the threads."""
        settings = Settings(args)
        self._engine = settings.text("tensorrt_llm_model_name", "tensorrt_llm")
        self._draft = settings.text("tensorrt_llm_draft_model_name")
        self._max_draft = settings.number("max_draft_tokens", 0)
        self._names = dict(
            pair.split("=") for pair in settings.text("engine_tensor_names").split(",") if pair
        )
        self._accumulate = settings.flag("accumulate_tokens", default=False)
        self._tokenizer = TextTokenizer(
            settings.path("tokenizer_dir"),
            skip_special_tokens=settings.flag("skip_special_tokens", default=True),
        )
        self._pool = ThreadPoolExecutor(settings.number("max_threads", 64), "relay")
        self._stops = ThreadPoolExecutor(4, "stop")
        self._resting = Resting()
        self._relays = set()
        self._closing = threading.Event()
        self._watcher = threading.Thread(
            target=self._watch, args=(settings.seconds("cancellation_check_period_ms", 50),), name="watcher"
        )
        self._watcher.start()

    def execute(self, requests):
        """Take the requests and return at once; responses follow."""
        for request in requests:
            request_id = request.request_id() or uuid.uuid4().hex
            relay = Relay(request_id, Reply(request), self._tokenizer.decode, self._accumulate)
            self._relays.add(relay)
            self._pool.submit(self._serve, request, relay)

    def _serve(self, request, relay):
        try:
            self._check(request)
            prepared = self._preprocess(request, relay)
            streaming = _flag(request, "stream")
            relay.run(self._answers(request, relay, prepared, streaming), streaming=streaming)
        except Exception as error:
            relay.reply.fail(error)
        finally:
            self._relays.discard(relay)
            self._resting.keep(relay)

    def _check(self, request):
        refuse_inputs(request, UNSUPPORTED)
        drafts = {"num_draft_tokens": self._max_draft} if self._draft else {"num_draft_tokens": 0}
        refuse_above(request, {**drafts, "beam_width": 1, "num_return_sequences": 1})
        required(request, "text_input")
        max_tokens = int(required(request, "max_tokens").min())
        if max_tokens < 1:
            raise Refusal(f"max_tokens must be above 0, got {max_tokens}")

    def _preprocess(self, request, relay):
        given = {name: array(request, source) for name, source in TO_PREPROCESSING.items()}
        answer = pb_utils.InferenceRequest(
            model_name="preprocessing",
            request_id=relay.request_id,
            requested_output_names=list(FROM_PREPROCESSING.values()),
            inputs=[pb_utils.Tensor(name, values) for name, values in given.items() if values is not None],
            parameters={SPELL_CODE: True},
        ).exec()
        if answer.has_error():
            raise child_error(answer, TO_PREPROCESSING)
        return answer

    def _answers(self, request, relay, prepared, streaming):
        inputs = self._inputs(request, prepared)
        if guesses := guesses_of(request):
            drafting = Drafting(
                relay,
                self._resting.responses,
                inputs,
                target=self._engine,
                draft=self._draft,
                guesses=guesses,
            )
            return drafting.answers(streaming=streaming)
        child = pb_utils.InferenceRequest(
            model_name=self._engine,
            request_id=relay.request_id,
            requested_output_names=relay.wanted_outputs(request),
            inputs=inputs,
            parameters=parameters(request) | {SPELL_CODE: True},
        )
        return self._resting.responses(child)

    def _inputs(self, request, prepared):
        batch = len(array(request, "text_input"))
        inputs = [
            pb_utils.Tensor(name, values.as_numpy())
            for name, source in FROM_PREPROCESSING.items()
            if (values := pb_utils.get_output_tensor_by_name(prepared, source)) is not None
        ]
        for name, source in TO_ENGINE.items():
            if (values := array(request, source)) is not None:
                # Scalars arrive without their last dimension, which the engine model wants from its clients.
                shaped = values.reshape(batch, 1) if values.ndim == 1 else values
                inputs.append(pb_utils.Tensor(self._names.get(name, name), shaped))
        return inputs

    def _watch(self, period_s):
        while not self._closing.wait(period_s):
            self._resting.let_go()
            for relay in list(self._relays):
                # Again and again while it lives: the first stop may overtake the request that it should stop.
                if relay.notice_client_gone():
                    self._stops.submit(self._stop, relay.request_id)

    def _stop(self, request_id):
        one = np.ones((1, 1), np.int32)
        stop = pb_utils.InferenceRequest(
            model_name=self._engine,
            request_id=request_id,
            requested_output_names=["output_ids"],
            inputs=[
                tensor("input_ids", one, np.int32),
                tensor("input_lengths", one, np.int32),
                tensor("request_output_len", one, np.int32),
                tensor("stop", one, np.bool_),
            ],
        )
        for _ in self._resting.responses(stop):
            pass

    def finalize(self):
        """Stop the threads."""
        self._closing.set()
        self._watcher.join()
        self._stops.shutdown(cancel_futures=True)
        self._pool.shutdown(cancel_futures=True)
        self._resting.let_go(rest_s=0)


def _flag(request, name):
    values = array(request, name)
    return values is not None and bool(values.reshape(-1)[0])
