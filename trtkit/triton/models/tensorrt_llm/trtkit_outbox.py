"""From the engine's thread to the sender's thread."""

import queue
import threading
from dataclasses import replace
from itertools import chain


class Outbox:
    """Chunks on their way out, in order per row.

    One chunk is one response as long as the sender keeps up. When it lags, the chunks of a row travel together:
    the backlog is bounded by the rows in flight, and nobody waits behind thousands of tokens of others.
    """

    def __init__(self):
        self._lock = threading.Lock()
        self._all_sent = threading.Condition(self._lock)
        self._unsent = 0
        self._chunks = {}
        self._rows = queue.SimpleQueue()

    def put(self, job, index, chunk):
        """Hand over a chunk of one row of a job."""
        row = (job, index)
        with self._lock:
            waiting = self._chunks.setdefault(row, [])
            waiting.append(chunk)
            if len(waiting) > 1:
                return
            self._unsent += 1
        self._rows.put(row)

    def get(self):
        """Wait for a row; return (job, index, chunk), or None once closed."""
        row = self._rows.get()
        if row is None:
            return None
        with self._lock:
            chunks = self._chunks.pop(row)
        return (*row, _merge(chunks))

    def sent(self):
        """Note that what :meth:`get` returned last is on its way."""
        with self._lock:
            self._unsent -= 1
            self._all_sent.notify_all()

    def settle(self, limit_s):
        """Wait until everything is on its way, at most ``limit_s``."""
        with self._all_sent:
            self._all_sent.wait_for(lambda: self._unsent == 0, limit_s)

    def close(self):
        """End the sender's thread after what was put before."""
        self._rows.put(None)


def _merge(chunks):
    last = chunks[-1]
    if len(chunks) == 1:
        return last
    log_probs = None
    if any(chunk.log_probs is not None for chunk in chunks):
        log_probs = tuple(chain.from_iterable(chunk.log_probs or () for chunk in chunks))
    cum_log_prob = next((c.cum_log_prob for c in reversed(chunks) if c.cum_log_prob is not None), None)
    tokens = tuple(chain.from_iterable(chunk.tokens for chunk in chunks))
    return replace(last, tokens=tokens, log_probs=log_probs, cum_log_prob=cum_log_prob)
