"""An executor without a model: what it says next follows from every token that a slot's cache holds."""

import numpy as np

from trtkit.engine.graph.spec import Phase

VOCAB = 50


def next_token(tokens):
    """Any change, gap or swap in ``tokens`` gives another answer, nearly always."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % 1_000_003
    return value % VOCAB


def continuation(prompt, count):
    """What a request says when nobody disturbs it."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]


class RecorderExecutor:
    """Caches of token numbers, and a record of all calls; capacities are checked."""

    def __init__(self, slots, capacity_tokens):
        self.caches = np.full((slots, capacity_tokens), -1)
        self.calls = []

    def run(self, batch):
        rows, new = np.shape(batch.tokens)
        assert len(batch.lengths) == rows
        assert (rows if batch.phase is Phase.PREFILL else new) == 1
        self.calls.append(batch)
        return np.stack(
            [self._write(batch.first + i, list(batch.tokens[i]), batch.lengths[i]) for i in range(rows)]
        )

    def clear(self, slot):
        self.caches[slot] = -1

    def close(self):
        pass

    def _write(self, slot, tokens, start):
        end = start + len(tokens)
        assert 0 <= slot < len(self.caches)
        assert 0 <= start < end <= self.caches.shape[1]
        self.caches[slot, start:end] = tokens
        logits = np.zeros(VOCAB, np.float32)
        logits[next_token(self.caches[slot, :end].tolist())] = 1
        return logits
