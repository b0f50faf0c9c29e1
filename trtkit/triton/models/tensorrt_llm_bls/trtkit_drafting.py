"""One request with two engines: their calls, and their answers as if there were one."""

import numpy as np
import triton_python_backend_utils as pb_utils
from trtkit_io import SPELL_CODE, Refusal, array, child_error, response, result, tensor
from trtkit_rounds import rounds, stop_sequences
from trtkit_wiring import TO_ENGINE

_ROUND = ("input_ids", "input_lengths", "request_output_len", "streaming", "draft_input_ids")
"""Inputs that every round has of its own."""
_ONCE = ("return_log_probs", "return_context_logits", "return_generation_logits", "return_perf_metrics")
"""Inputs about whole answers, which rounds are not."""


class Drafting:
    """A request's rounds between a draft model and its target."""

    def __init__(self, relay, responses, inputs, *, target, draft, guesses):
        self._relay = relay
        self._responses = responses
        self._inputs = {each.name(): each for each in inputs}
        self._target = target
        self._draft = draft
        self._guesses = guesses
        if len(self._of("input_ids")) > 1:
            raise Refusal("input 'num_draft_tokens' goes with one prompt, not with a batch")
        for name in _ONCE:
            if name in self._inputs and self._of(name).any():
                raise Refusal(f"input '{name}' does not go with 'num_draft_tokens'")

    def answers(self, *, streaming):
        """Yield responses with new tokens: of each round, or one of all."""
        prompt = self._of("input_ids")[0, : int(self._of("input_lengths").item())].tolist()
        limit = int(self._of("request_output_len").item())
        found = rounds(prompt, limit, self._guesses, guess=self._guess, check=self._check, ends=self._ends)
        for tokens in found if streaming else [[token for new in found for token in new]]:
            yield response(
                [
                    tensor("output_ids", [[tokens]], np.int32),
                    tensor("sequence_length", [[len(tokens)]], np.int32),
                    tensor("batch_index", [[0]], np.int32),
                ]
            )

    def _guess(self, tokens, count):
        return self._ask(self._draft, tokens, count, [])

    def _check(self, tokens, guessed):
        return self._ask(self._target, tokens, len(guessed) + 1, guessed)

    def _ends(self, written):
        end_id = self._inputs.get("end_id")
        if end_id is not None and int(end_id.as_numpy().item()) in written:
            return True
        words = self._inputs.get("stop_words_list")
        stops = stop_sequences(words.as_numpy()[0].tolist()) if words is not None else []
        return any(written[-len(stop) :] == stop for stop in stops)

    def _ask(self, model, tokens, count, guessed):
        if self._relay.is_gone:
            raise Refusal("request cancelled by client", "CANCELLED")
        own = [
            tensor("input_ids", [tokens], np.int32),
            tensor("input_lengths", [[len(tokens)]], np.int32),
            tensor("request_output_len", [[count]], np.int32),
            *([tensor("draft_input_ids", [guessed], np.int32)] if guessed else []),
        ]
        child = pb_utils.InferenceRequest(
            model_name=model,
            request_id=self._relay.request_id,
            requested_output_names=["output_ids", "sequence_length"],
            inputs=[*own, *(each for name, each in self._inputs.items() if name not in _ROUND)],
            parameters={SPELL_CODE: True},
        )
        found = []
        for answer in self._responses(child):
            if answer.has_error():
                raise child_error(answer, TO_ENGINE)
            ids = result(answer, "output_ids")
            if ids is not None:
                found += ids.reshape(-1)[: int(result(answer, "sequence_length").item())].tolist()
        return found

    def _of(self, name):
        return self._inputs[name].as_numpy()


def guesses_of(request):
    """Return how many tokens a request wants to be guessed in each round; 0 for none."""
    values = array(request, "num_draft_tokens")
    if values is not None and values.min() < 0:
        raise Refusal(f"input 'num_draft_tokens' must be 0 or above, got {values.min()}")
    return 0 if values is None else int(values.max())
