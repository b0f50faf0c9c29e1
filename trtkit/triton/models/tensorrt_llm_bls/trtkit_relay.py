"""One client's request on its way: the engine's tokens in, text out, exactly one final flag."""

from collections import defaultdict

import numpy as np
from trtkit_io import Refusal, array, child_error, result, tensor, text_tensor
from trtkit_text import IncrementalDetokenizer
from trtkit_wiring import RESULTS, TO_ENGINE


class Relay:
    """State of one request; rows of a batch are told apart by the engine's batch_index."""

    def __init__(self, request_id, reply, decode, accumulate):
        self.request_id = request_id
        self.reply = reply
        self._accumulate = accumulate
        self._detokenizers = defaultdict(lambda: IncrementalDetokenizer(decode))
        self._texts = defaultdict(str)
        self._client_gone = False

    @property
    def is_gone(self):
        """Whether the client was noticed to have cancelled."""
        return self._client_gone

    def notice_client_gone(self):
        """Return whether the client has cancelled."""
        self._client_gone = self._client_gone or self.reply.is_cancelled()
        return self._client_gone

    def wanted_outputs(self, request):
        """Return the engine outputs that are needed to answer this request."""
        wanted = request.requested_output_names()
        log_probs = array(request, "return_log_probs")
        optional = ["cum_log_probs", "output_log_probs"] if log_probs is not None and log_probs.any() else []
        return [
            "output_ids",
            "sequence_length",
            "batch_index",
            *(name for name in optional if name in wanted),
        ]

    def run(self, answers, *, streaming):
        """Relay every response of the engine, then end; nothing is asked before the first is taken."""
        self._raise_if_gone()
        for answer in answers:
            if answer.has_error():
                raise child_error(answer, TO_ENGINE)
            tokens = result(answer, "output_ids")
            if tokens is not None and not self._client_gone:
                self.reply.send(self._outputs(answer, tokens, streaming))
        self._raise_if_gone()
        for row, detokenizer in self._detokenizers.items():
            if tail := detokenizer.flush():
                self.reply.send(self._tail(row, tail))
        self.reply.finish()

    def _raise_if_gone(self):
        if self._client_gone:
            raise Refusal("request cancelled by client", "CANCELLED")

    def _outputs(self, answer, tokens, streaming):
        """One response per engine response, also when its text is still held back: clients time tokens by it."""
        batch_index = result(answer, "batch_index")
        row = int(batch_index.reshape(-1)[0]) if batch_index is not None else 0
        length = int(result(answer, "sequence_length").reshape(-1)[0])
        detokenizer = self._detokenizers[row]
        text = detokenizer.push(tokens.reshape(-1)[:length].tolist())
        if not streaming:
            text += detokenizer.flush()
        passed_on = [(name, result(answer, name)) for name in RESULTS]
        return [
            text_tensor("text_output", [[self._visible(row, text)]]),
            *(tensor(name, values, values.dtype) for name, values in passed_on if values is not None),
        ]

    def _tail(self, row, text):
        outputs = [text_tensor("text_output", [[self._visible(row, text)]])]
        if len(self._detokenizers) > 1:
            outputs.append(tensor("batch_index", [[row]], np.int32))
        return outputs

    def _visible(self, row, text):
        """Return the delta, or all text of the row so far when tokens accumulate."""
        if not self._accumulate:
            return text
        self._texts[row] += text
        return self._texts[row]
