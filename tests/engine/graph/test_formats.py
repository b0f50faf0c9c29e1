"""The graph of every format against a forward pass written from the checkpoint format alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("onnxruntime")

from tests.engine.graph.conftest import FORMS
from tests.engine_cpu.formats import QUANTIZERS
from tests.engine_cpu.reference import TOKENS, Reference
from trtkit.engine.graph.linear import FORMS as ALGORITHMS
from trtkit.engine.graph.spec import LinearForm
from trtkit.errors import StageError, TrtkitError

NAMES = [name for name in QUANTIZERS if QUANTIZERS[name][0]["quant_algo"] in ALGORITHMS]
EVERYWHERE = {"all_logits": True}
FORM = {
    "sq": (LinearForm.INT8, "INT8"),
    "fp8": (LinearForm.FP8, "FLOAT8E4M3FN"),
    "awq": (LinearForm.INT4_WEIGHTS, "INT4"),
}
INT8_WEIGHTS = {"quant_algo": "W8A16", "kv_cache_quant_algo": None}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="gqa"),
        pytest.param({"num_key_value_heads": 4}, id="mha"),
        pytest.param({"attn_bias": True, "mlp_bias": True}, id="bias"),
        pytest.param({"head_size": 32}, id="wide-heads"),
        pytest.param({"dtype": "float16"}, id="float16-checkpoint"),
        pytest.param({"quantization": INT8_WEIGHTS}, id="int8-weights"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_logits_agree_with_the_reference(write: Any, form: dict[str, Any], changes: dict[str, Any]) -> None:
    written = write(spec=EVERYWHERE | form, **changes)
    expected = Reference(written.checkpoint).logits(TOKENS[0])
    assert np.abs(written.session().step([0], TOKENS)[0] - expected).max() < 1e-3
    assert expected.std() > 1  # the bar means something


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_logits_agree_with_the_format(write: Any, name: str, form: dict[str, Any]) -> None:
    """The dequantized weights and rounded activations of the format, in float64."""
    written = write(name, spec=EVERYWHERE | form)
    expected = Reference(written.checkpoint).logits(TOKENS[0])
    assert np.abs(written.session().step([0], TOKENS)[0] - expected).max() < 2e-2 * expected.std()


@pytest.mark.parametrize("name", [None, *NAMES])
def test_float16_is_as_close_as_its_rounding_lets_it(write: Any, name: str | None) -> None:
    """A value between two steps may be rounded to the other one, of FP8 one that is 6 % to 12 % away."""
    written = write(name, spec=EVERYWHERE | {"dtype": "float16"})
    expected = Reference(written.checkpoint).logits(TOKENS[0])
    error = np.abs(written.session().step([0], TOKENS)[0] - expected) / expected.std()
    assert np.median(error) < (0.06 if name and name.startswith("fp8") else 0.03)


@pytest.mark.parametrize("name", NAMES)
def test_products_are_between_values_of_the_format(write: Any, name: str) -> None:
    facts = write(name).facts
    form, dtype = FORM[name.split("-", maxsplit=1)[0]]
    linears = [linear for linear in facts.linears if linear != "lm_head"]
    assert {facts.linears[linear] for linear in linears} == {form}
    assert (len(linears), facts.linears["lm_head"]) == (10, LinearForm.FLOAT)
    graph = onnx.load(facts.model, load_external_data=False).graph
    made_by = {output: node for node in graph.node for output in node.output}
    types = {tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in graph.initializer}
    for linear in linears:
        product = made_by[linear]
        turned = made_by[product.input[1]]
        weight = made_by[turned.input[0]]
        operations = [node.op_type for node in (product, turned, weight)]
        assert operations == ["MatMul", "Transpose", "DequantizeLinear"]
        assert types[weight.input[0]] == dtype
        if form is not LinearForm.INT4_WEIGHTS:
            restored = made_by[product.input[0]]
            rounded = made_by[restored.input[0]]
            assert (restored.op_type, rounded.op_type) == ("DequantizeLinear", "QuantizeLinear")
            assert types[rounded.input[2]] == dtype


def test_only_standard_operators_are_used_and_the_model_is_valid(write: Any) -> None:
    facts = write("awq-zero", spec={"paged": True}).facts
    onnx.checker.check_model(str(facts.model), full_check=True)
    model = onnx.load(facts.model, load_external_data=False)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 24)]
    counts = Counter(node.op_type for node in model.graph.node)
    assert (counts["Attention"], counts["RotaryEmbedding"], counts["ScatterND"]) == (2, 4, 4)


@pytest.mark.parametrize("same", [True, False])
def test_a_head_that_is_the_embedding_is_stored_once(write: Any, same: bool) -> None:
    """The bytes decide: a checkpoint that says so and has another head keeps it."""

    def tie(tensors: dict[str, np.ndarray]) -> None:
        tensors["lm_head.weight"] = tensors["transformer.vocab_embedding.weight"].copy()
        tensors["lm_head.weight"][-1, -1] += not same

    written = write(edit=tie, spec=EVERYWHERE, tie_word_embeddings=True)
    stored = {
        tensor.name for tensor in onnx.load(written.facts.model, load_external_data=False).graph.initializer
    }
    assert ("lm_head.weight" in stored) is not same
    expected = Reference(written.checkpoint).logits(TOKENS[0])
    assert np.abs(written.session().step([0], TOKENS)[0] - expected).max() < 1e-3


@pytest.mark.parametrize("name", ["sq-per-channel-per-token", "sq-qdq", "fp8-rowwise", "awq-zero"])
def test_a_token_of_zeros_stays_zeros(write: Any, name: str) -> None:
    def silence(tensors: dict[str, np.ndarray]) -> None:
        tensors["transformer.layers.0.input_layernorm.weight"] *= 0
        tensors["transformer.layers.0.post_layernorm.weight"] *= 0

    assert np.isfinite(write(name, silence).session().step([0], TOKENS)).all()


def drop(name: str) -> Any:
    return lambda tensors: tensors.pop(name)


def fill(name: str, value: float) -> Any:
    return lambda tensors: tensors[name].fill(value)


QKV = "transformer.layers.0.attention.qkv."


@pytest.mark.parametrize(
    ("name", "edit", "said"),
    [
        ("sq-qdq", fill(QKV + "prequant_scaling_factor", 0), "prequant_scaling_factor: holds"),
        ("sq-qdq", fill(QKV + "weights_scaling_factor", np.nan), "weights_scaling_factor: holds"),
        ("fp8", fill(QKV + "activation_scaling_factor", np.inf), "activation_scaling_factor: holds"),
        ("fp8-rowwise", drop("transformer.layers.0.attention.clamp_val"), "clamp_val"),
        ("awq-zero", drop(QKV + "zero"), "qkv.zero"),
        ("awq", fill(QKV + "weights_scaling_factor", -1), "weights_scaling_factor: holds"),
    ],
)  # fmt: skip
def test_what_a_format_cannot_mean_is_refused_by_name(write: Any, name: str, edit: Any, said: str) -> None:
    with pytest.raises(TrtkitError, match=said):
        write(name, edit)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_steps_that_float16_cannot_hold_are_refused(write: Any, dtype: str) -> None:
    tiny = fill(QKV + "weights_scaling_factor", 1e-6)
    if dtype == "bfloat16":
        assert write("fp8", tiny, spec={"dtype": dtype}).facts.data_bytes
        return
    with pytest.raises(StageError, match=r"attention\.qkv has steps of 1e-06") as caught:
        write("fp8", tiny, spec={"dtype": dtype})
    assert "bfloat16" in caught.value.hint
