"""The engine over slots as its callers meet it, and beside OpenVINO's with the same weights."""

import json
import shutil

import numpy as np
import pytest

from tests.engine.slots.conftest import SLOTS, write_engine
from tests.engine_cpu.conftest import tiny_config, tiny_tensors, write_checkpoint
from tests.engine_cpu.formats import quantized
from tests.engine_cpu.test_runtime import wait_until
from trtkit.engine.inflight.request import FinishReason
from trtkit.engine.serving import open_engine
from trtkit.engine.slots.executor import Batch
from trtkit.engine.slots.folder import SlotFolder
from trtkit.engine.slots.ort import OrtExecutor
from trtkit.errors import InputError, StageError

pytest.importorskip("onnxruntime")

RNG = np.random.default_rng(3)
PROMPTS = [RNG.integers(0, 400, size).tolist() for size in (5, 31, 47, 48, 49, 96, 150, 190) * 2]
PLAIN = {"none": None, "int8-wo": "W8A16"}
SAMPLED = {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "seed": 11}


def test_greedy_tokens_are_those_of_the_cpu_back_end(client, openvino):
    for prompt in PROMPTS[:8]:
        assert client.ask(prompt).tokens == openvino.ask(prompt).tokens


@pytest.mark.parametrize(
    "fields",
    [
        {"frequency_penalty": 1.5},
        {"presence_penalty": 1.0, "repetition_penalty": 1.3},
        {"min_tokens": 5, "end_id": 7},
    ],
)
def test_fields_mean_what_they_mean_on_the_cpu_back_end(client, openvino, fields):
    for prompt in PROMPTS[:4]:
        assert client.ask(prompt, **fields).tokens == openvino.ask(prompt, **fields).tokens


def test_log_probs_are_those_of_the_cpu_back_end(client, openvino):
    ours, theirs = (each.ask(PROMPTS[2], return_log_probs=True) for each in (client, openvino))
    ours, theirs = ([value for chunk in each.chunks for value in chunk.log_probs] for each in (ours, theirs))
    assert ours == pytest.approx(theirs, abs=0.03)  # OpenVINO's cache is float16


@pytest.mark.parametrize("fields", [{}, SAMPLED])
def test_tokens_do_not_depend_on_company(client, fields):
    alone = [client.ask(prompt, 30 + i, **fields).tokens for i, prompt in enumerate(PROMPTS)]
    # Three times as many requests as slots, of different lengths: they join and leave all the time.
    together = [client.start(prompt, 30 + i, **fields) for i, prompt in enumerate(PROMPTS)]
    assert [reply.wait().tokens for reply in together] == alone
    assert len({tuple(tokens) for tokens in alone}) > 8


@pytest.mark.parametrize(
    "name", ["none", "int8-wo", "sq-per-channel-per-token", "sq-qdq", "fp8", "fp8-rowwise", "awq"]
)
def test_logits_do_not_depend_on_company(slots_plan, tmp_path, name):
    """Bit for bit: what differs in the last one may be rounded to another INT8 number in the next layer."""
    if name in PLAIN:
        config = tiny_config(quantization={"quant_algo": PLAIN[name], "kv_cache_quant_algo": None})
        tensors = tiny_tensors(config)
    else:
        config, tensors = quantized(name)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", config, tensors)
    executor = OrtExecutor(SlotFolder.open(write_engine(checkpoint, tmp_path / "onnx", slots_plan)))
    prompts = [prompt[: 20 + 7 * slot] for slot, prompt in enumerate(PROMPTS[3:8])]
    for slot, prompt in enumerate(prompts):
        executor.run(Batch("prefill", slot, [prompt], [0]))

    def logits(first, end):
        lengths = [len(prompt) for prompt in prompts[first:end]]
        return executor.run(Batch("decode", first, [[9]] * len(lengths), lengths))

    alone = [logits(slot, slot + 1)[0] for slot in range(5)]
    for first, end in ((0, 2), (1, 4), (0, 5)):
        assert np.array_equal(logits(first, end), alone[first:end])


def test_a_bad_word_is_stepped_around(client):
    free = client.ask(PROMPTS[1], 16).tokens
    reply = client.ask(PROMPTS[1], 16, bad_words=(tuple(free[4:6]),))
    assert reply.tokens[:5] == free[:5]
    assert free[5] != reply.tokens[5]
    everything = tuple((token,) for token in range(400))
    said = client.ask(PROMPTS[1], 4, bad_words=everything).chunks[0].message
    assert said == "the bad words leave no token to go on with"


def test_a_cancelled_slot_is_free_at_the_next_step(client):
    replies = [client.start(PROMPTS[7], 100, request_id=f"c{i}") for i in range(SLOTS)]
    wait_until(lambda: all(reply.chunks for reply in replies))
    waiting = client.start(PROMPTS[0], 5)
    wait_until(lambda: client.engine.stats().waiting == 1)
    stats = client.engine.stats()
    # 190 tokens and a few more in each slot of 300, which is 10 blocks.
    assert SLOTS * 6 <= stats.kv_blocks_used < stats.kv_blocks_max == SLOTS * 10
    client.engine.cancel("c2")
    assert waiting.wait().reason is FinishReason.LENGTH
    assert not replies[3].done.is_set()
    for i in range(SLOTS):
        client.engine.cancel(f"c{i}")
    assert {reply.wait().reason for reply in replies} == {FinishReason.CANCELLED}
    wait_until(lambda: client.engine.stats().kv_blocks_used == client.engine.stats().active == 0)


def test_what_overflowed_in_a_slot_is_gone_before_the_next_request(client):
    expected = client.ask(PROMPTS[2], 12).tokens
    reply = client.start(PROMPTS[2], 100)
    wait_until(lambda: reply.chunks)
    for cache in client.engine._executor._caches.values():
        cache[:] = np.nan  # every slot, whichever it is in
    assert reply.wait().chunks[-1].message == "the model's logits are not finite"
    for cache in client.engine._executor._caches.values():
        cache[1:] = 0
    assert client.ask(PROMPTS[2], 12).tokens == expected


def test_limits_themselves_are_allowed(client):
    assert len(client.ask([1] * 200, max_tokens=100).tokens) == 100
    said = client.ask([1] * 200, max_tokens=101).chunks[0].message
    assert "is 301, max_seq_len is 300" in said


def test_a_step_writes_into_the_caches_and_copies_none(client):
    executor = client.engine._executor
    executor.run(Batch("prefill", 2, [[1, 2, 3]], [0]))
    for cache in executor._caches.values():
        cache[2] = 5.0
        cache[3] = 6.0
    executor.run(Batch("prefill", 2, [[4]], [1]))
    for cache in executor._caches.values():
        assert (cache[2, :, 0] == 5).all()
        assert (cache[2, :, 2:] == 5).all()
        assert (cache[2, :, 1] != 5).any()
        assert (cache[3] == 6).all()


@pytest.mark.parametrize(
    ("section", "changes", "said"),
    [
        ("graph", {"paged": True, "tokens_per_block": 30}, "paged form"),
        ("graph", {"all_logits": True}, "all positions"),
        ("graph", {"slots": 5}, "max_batch_size is 6, the graph has 5 slots"),
        ("build_config", {"max_seq_len": 301}, "max_seq_len is 301, a slot has 300 tokens"),
        ("graph", {"colour": 1}, "not an engine folder"),
        ("graph", {"dtype": "float16"}, r"past_key_0 is \('tensor\(float\)'"),
        ("graph", {"dtype": "bfloat16"}, "computes in bfloat16, for which ONNX Runtime has no kernels"),
        ("graph", {"capacity_tokens": 512}, r"past_key_0 is .*\(2, 300, 16\)\), not .*\(2, 512, 16\)\)"),
        ("pretrained_config", {"num_hidden_layers": 3}, "past_key_2 is None"),
        ("pretrained_config", {"num_hidden_layers": 1}, "past_key_1 is unknown"),
        ("pretrained_config", {"vocab_size": 500}, r"logits is .*\(400,\)\), not .*\(500,\)\)"),
    ],
)
def test_a_folder_that_contradicts_its_graph_is_refused(slots_dir, tmp_path, section, changes, said):
    shutil.copytree(slots_dir, tmp_path / "engine")
    config = json.loads((slots_dir / "config.json").read_text())
    config[section] |= changes
    (tmp_path / "engine" / "config.json").write_text(json.dumps(config))
    with pytest.raises((InputError, StageError), match=said):
        open_engine(tmp_path / "engine")


@pytest.mark.parametrize("content", [None, "{", "[]", '{"backend": "onnx"}'])
def test_what_is_no_engine_folder_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError, match="not an engine folder"):
        open_engine(tmp_path)


def test_a_damaged_graph_is_a_stage_error(slots_dir, tmp_path):
    shutil.copytree(slots_dir, tmp_path / "engine")
    (tmp_path / "engine" / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(StageError, match="ONNX Runtime cannot load it"):
        open_engine(tmp_path / "engine")
