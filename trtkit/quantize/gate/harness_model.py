"""What lm-eval asks its questions: an executor of the gate. Imported only where lm-eval is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from lm_eval.api.model import TemplateLM

from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.progress import Progress
from trtkit.quantize.gate.executor import Executor, Floats
from trtkit.quantize.gate.metrics import log_softmax
from trtkit.quantize.gate.samples import start_tokens

_Pair = tuple[tuple[str, str], list[int], list[int]]


class HarnessModel(TemplateLM):  # type: ignore[misc,unused-ignore]
    """Gives log-likelihoods of continuations; text begins as the tokenizer begins one, as it does when served."""

    def __init__(
        self, executor: Executor, source: HfCheckpoint, tokenizer: Any, progress: Progress, step: str
    ) -> None:
        super().__init__()
        self._executor, self._config, self._tokenizer = executor, source.config, tokenizer
        self._progress, self._step = progress, step
        self._start: list[int] = start_tokens(tokenizer, source).tolist()
        self.is_finite = True
        """Whether all logits so far were numbers."""

    @property
    def eot_token_id(self) -> int:
        """What a text without a beginning begins with."""
        ends = self._config.eos_token_ids
        first = self._config.bos_token_id
        return self._start[0] if self._start else first if first is not None else ends[0] if ends else 0

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_options: Any) -> list[int]:
        """Return the tokens of a text."""
        ids = list(self._tokenizer.encode(string, add_special_tokens=False).ids)
        return ids if add_special_tokens is False else self._start + ids

    def encoded(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the tokens of both, as :meth:`loglikelihood` reads them."""
        if context:
            both: tuple[list[int], list[int]] = self._encode_pair(context, continuation)
            return both
        ending = self.tok_encode(continuation, add_special_tokens=False)
        start = self.prefix_token_id
        return ([start], ending) if ending[:1] != [start] else (ending[:1], ending[1:])

    def loglikelihood(self, requests: Sequence[Any], **_options: Any) -> list[tuple[float, bool]]:
        """Return log-likelihood and whether it is the greedy continuation, request by request."""
        return self._loglikelihood_tokens([(each.args, *self.encoded(*each.args)) for each in requests])

    def loglikelihood_rolling(self, requests: Sequence[Any], **_options: Any) -> list[float]:
        """Tasks that need it are refused when they are opened."""
        raise NotImplementedError

    def generate_until(self, requests: Sequence[Any], **_options: Any) -> list[str]:
        """Tasks that need it are refused when they are opened."""
        raise NotImplementedError

    def _loglikelihood_tokens(self, requests: Sequence[_Pair], **_options: Any) -> list[tuple[float, bool]]:
        sizes = np.cumsum([len(context) + len(ending) for _, context, ending in requests])
        sizes *= self._config.vocab_size * np.dtype(np.float16).itemsize
        found, read, rows = [], None, np.empty((0, 0), np.float32)
        for (_, context, ending), size in zip(requests, sizes, strict=True):
            # Answers of one token each (letters) share one run.
            if (tokens := context + ending[:-1]) != read:
                read, rows = tokens, self._executor.logits(np.array(tokens, np.int64))
            found.append(self._likelihood(rows[len(context) - 1 :], ending))
            self._progress(self._step, int(size), int(sizes[-1]))
        return found

    def _likelihood(self, logits: Floats, ending: list[int]) -> tuple[float, bool]:
        self.is_finite = self.is_finite and bool(np.isfinite(logits).all())
        with np.errstate(invalid="ignore", over="ignore"):
            rows = log_softmax(logits)
        likelihood = float(rows[np.arange(len(ending)), ending].sum(dtype=np.float64))
        return likelihood, bool((rows.argmax(axis=-1) == ending).all())
