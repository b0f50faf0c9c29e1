"""A Triton request in flight: its rows, the responses they become, and its one final flag."""

import threading

import numpy as np
from trtkit_io import Refusal, tensor

CONTEXT_TOKENS = 16
"""Enough tokens before a chunk for any tokenizer to decode the chunk as in the whole text."""


class Row:
    """One sequence of a request: what it has generated so far."""

    def __init__(self, request):
        self.request = request
        self.finished = False
        self._tokens = []
        self._log_probs = []
        self._chunks = []

    def take(self, chunk):
        """Add a chunk; return (tokens, context, log_probs) to send now, or None."""
        self.finished = chunk.finish_reason is not None
        tokens, log_probs = list(chunk.tokens), list(chunk.log_probs or ())
        if self.request.streaming:
            context = [token for before in self._chunks for token in before]
            self._remember(tokens)
            return (tokens, context, log_probs) if tokens or self.finished else None
        self._tokens += tokens
        self._log_probs += log_probs
        return (self._tokens, [], self._log_probs) if self.finished else None

    def _remember(self, tokens):
        """Keep the last chunks whole: a chunk starts at a whole character, a token need not."""
        self._chunks.append(tokens)
        while sum(map(len, self._chunks[1:])) >= CONTEXT_TOKENS:
            del self._chunks[0]


class Job:
    """The rows of one Triton request and the reply that they share."""

    def __init__(self, request_id, reply, requests, *, exclude_input):
        self.request_id = request_id
        self.rows = requests
        self.reply = reply
        self._rows = [Row(request) for request in requests]
        self._exclude_input = exclude_input
        self._client_gone = False

    @property
    def unfinished_rows(self):
        """What the engine still works on."""
        return [row.request for row in self._rows if not row.finished]

    def notice_client_gone(self):
        """Return True the first time that the client is found to have cancelled."""
        if self._client_gone:
            return False
        self._client_gone = self.reply.is_cancelled()
        return self._client_gone

    def deliver(self, index, chunk):
        """Send what a chunk of one row makes ready, with the final flag when it is the last."""
        if chunk.finish_reason == "error":
            raise Refusal(chunk.message)
        if chunk.finish_reason == "cancelled" and self._client_gone:
            raise Refusal("request cancelled by client", "CANCELLED")
        ready = self._rows[index].take(chunk)
        if ready is None or (self._client_gone and not self._rows[index].finished):
            return
        outputs = self._outputs(index, chunk, *ready)
        if all(row.finished for row in self._rows):
            self.reply.finish(outputs)
        else:
            self.reply.send(outputs)

    def _outputs(self, index, chunk, tokens, context, log_probs):
        request = self.rows[index]
        echo = [] if request.streaming or self._exclude_input else list(request.input_ids)
        outputs = [
            tensor("output_ids", np.reshape([*echo, *tokens], (1, 1, -1)), np.int32),
            tensor("sequence_length", [[len(echo) + len(tokens)]], np.int32),
            tensor("context_ids", np.reshape(context, (1, 1, -1)), np.int32),
        ]
        if request.return_log_probs:
            outputs.append(tensor("cum_log_probs", [[chunk.cum_log_prob or 0.0]], np.float32))
            outputs.append(tensor("output_log_probs", np.reshape(log_probs, (1, 1, -1)), np.float32))
        if len(self.rows) > 1:
            outputs.append(tensor("batch_index", [[index]], np.int32))
        return outputs


class Jobs:
    """The requests in flight, by the id that their client gave them."""

    def __init__(self):
        self._lock = threading.Lock()
        self._jobs = []

    def add(self, job):
        """Take a job in."""
        with self._lock:
            self._jobs.append(job)

    def remove(self, job):
        """Let a job go; one that is gone is fine."""
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)

    def with_id(self, request_id):
        """Return the jobs that their client gave this id."""
        return [job for job in self.snapshot() if job.request_id == request_id]

    def snapshot(self):
        """Return the jobs of this moment."""
        with self._lock:
            return list(self._jobs)
