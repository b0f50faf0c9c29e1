"""The network is looked at before it is compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trtkit.engine.graph.spec import CacheSize, GraphFacts, LinearForm
from trtkit.engine.rtx.walk import Layer, Tensor, walk
from trtkit.errors import StageError

QKV = "transformer.layers.0.attention.qkv"
FACTS = GraphFacts(
    model=Path("model.onnx"),
    data=Path("model.onnx.data"),
    cache=CacheSize(1, 1, 8),
    vocab_size=8,
    linears={QKV: LinearForm.INT8, "lm_head": LinearForm.FLOAT},
    attentions=("attention",),
    rotaries=("rotary",),
    cache_updates=("present_key_0",),
    data_bytes=0,
)


def layer(kind: str, out: str, *inputs: tuple[str, str]) -> Layer:
    return Layer(f"{out}_layer", kind, tuple(Tensor(*each) for each in inputs), (Tensor(out, "HALF"),))


def network(*, activations: str = "INT8", weights: str = "INT8", attention: str = "ATTENTION_OUTPUT"):
    return [
        layer("DEQUANTIZE", "x", ("x_q", activations), ("x_s", "HALF")),
        layer("DEQUANTIZE", "w", ("w_q", weights), ("w_s", "HALF")),
        layer("SHUFFLE", "w_t", ("w", "HALF")),
        layer("MATRIX_MULTIPLY", QKV, ("x", "HALF"), ("w_t", "HALF")),
        layer("MATRIX_MULTIPLY", "lm_head", ("h", "HALF"), ("e", "HALF")),
        layer(attention, "attention", ("a", "HALF")),
        layer("ROTARY_EMBEDDING", "rotary", ("q", "HALF")),
        layer("KV_CACHE_UPDATE", "present_key_0", ("past_key_0", "HALF")),
    ]


def test_a_network_that_is_as_the_contract_says_is_counted():
    assert walk(network(), FACTS) == {
        "float products": 1,
        "int8 products": 1,
        "attention_output": 1,
        "rotary_embedding": 1,
        "kv_cache_update": 1,
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"activations": "HALF"}, f"{QKV}: its input come as HALF, not as INT8"),
        ({"weights": "HALF"}, f"{QKV}: its weights come as HALF, not as INT8"),
        ({"attention": "SOFTMAX"}, "attention: became SOFTMAX, not ATTENTION_OUTPUT"),
    ],
)
def test_what_fell_back_is_named(changes, said):
    with pytest.raises(StageError) as caught:
        walk(network(**changes), FACTS)
    assert said in caught.value.message
    assert caught.value.message.count("\n") == 1


def test_a_product_that_is_not_quantized_at_all_is_named():
    bare = [each for each in network() if each.kind != "DEQUANTIZE"]
    with pytest.raises(StageError, match="its input come as HALF"):
        walk(bare, FACTS)


def test_weights_alone_may_meet_activations_that_are_not_quantized():
    only_weights = replace(FACTS, linears={QKV: LinearForm.INT8_WEIGHTS})
    assert walk(network(activations="HALF"), only_weights)["int8-weights products"] == 1


def test_blocks_of_a_pool_are_written_by_a_scatter():
    paged = [replace(each, kind="SCATTER") if each.kind == "KV_CACHE_UPDATE" else each for each in network()]
    assert walk(paged, replace(FACTS, paged=True))["scatter"] == 1
    with pytest.raises(StageError, match="became SCATTER, not KV_CACHE_UPDATE"):
        walk(paged, FACTS)


@pytest.mark.parametrize("lost", [QKV, "rotary", "present_key_0"])
def test_a_node_that_became_nothing_is_named(lost):
    left = [each for each in network() if each.outputs[0].name != lost]
    with pytest.raises(StageError, match="became nothing of that name"):
        walk(left, FACTS)


def test_a_compiler_that_shows_no_layer_is_not_taken_for_one_that_lost_each():
    with pytest.raises(StageError, match="shows no layer") as caught:
        walk([], FACTS)
    assert "format" not in caught.value.hint


def test_many_problems_are_told_in_part():
    many = replace(FACTS, linears={f"layer.{number}": LinearForm.INT8 for number in range(50)})
    with pytest.raises(StageError, match="and 30 more"):
        walk(network(), many)
