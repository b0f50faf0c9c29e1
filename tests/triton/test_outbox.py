import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trtkit.triton
from trtkit.engine.inflight.request import FinishReason, TokenChunk


@pytest.fixture(scope="module")
def outbox_module():
    path = Path(trtkit.triton.__file__).parent / "models/tensorrt_llm/trtkit_outbox.py"
    spec = importlib.util.spec_from_file_location("trtkit_outbox", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_sender_that_keeps_up_sees_every_chunk(outbox_module):
    outbox = outbox_module.Outbox()
    for token in range(3):
        outbox.put("job", 0, TokenChunk((token,)))
        assert outbox.get() == ("job", 0, TokenChunk((token,)))
    outbox.close()
    assert outbox.get() is None


@given(rows=st.lists(st.integers(0, 3), max_size=30))
def test_a_sender_that_lags_gets_each_row_once_with_all_its_tokens(outbox_module, rows):
    outbox = outbox_module.Outbox()
    for token, row in enumerate(rows):
        outbox.put("job", row, TokenChunk((token,), log_probs=(-float(token),), cum_log_prob=-float(token)))
    for row in set(rows):
        outbox.put("job", row, TokenChunk(finish_reason=FinishReason.LENGTH))
    outbox.close()
    received = {row: chunk for _, row, chunk in iter(outbox.get, None)}
    for row in set(rows):
        tokens = tuple(token for token, at in enumerate(rows) if at == row)
        expected = TokenChunk(
            tokens,
            FinishReason.LENGTH,
            log_probs=tuple(-float(token) for token in tokens),
            cum_log_prob=-float(tokens[-1]),
        )
        assert received[row] == expected
