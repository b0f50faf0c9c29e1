"""Whatever weights hold: no scale is zero, NaN or infinite, zeros stay zeros, and what cannot be is named."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.conftest import CONFIG, save, tiny_tensors
from tests.quantize import dequantize
from tests.quantize.conftest import record
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.errors import InputError
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.recipes import SMOOTHQUANT, recipe_for

SIZES = {"num_hidden_layers": 1, "vocab_size": 8}
LAYER = "transformer.layers.0."
NAMES = {
    "model.layers.0.self_attn.k_proj.weight": "attention.qkv",
    "model.layers.0.self_attn.o_proj.weight": "attention.dense",
    "model.layers.0.mlp.gate_proj.weight": "mlp.fc",
    "model.layers.0.mlp.down_proj.weight": "mlp.proj",
}
ALL, ROW, COLUMN, ONE = (slice(None),), (slice(3, 5),), (slice(None), 7), (2, 9)
INJURIES = {
    "zero tensor": (ALL, 0),
    "zero rows": (ROW, 0),
    "dead column": (COLUMN, 0),
    "outlier": (ONE, 1e6),
    "tiny rows": (ROW, 1e-6),
    "lost rows": (ROW, 1e-38),
    "vast": (ONE, 1e29),
}
FORMATS = [
    ("fp8-rowwise", {}),
    ("fp8", {}),
    ("int8-wo", {"target_sm": 80}),
    *(("int8-sq", {"smoothquant": mode}) for mode in SMOOTHQUANT),
]
FORMULAS = {"fp8-rowwise": dequantize.fp8, "fp8": dequantize.fp8, "int8-wo": dequantize.baked}


def quantized(folder: Path, edits, dtype, form, *, plain=True) -> TrtllmCheckpoint:
    config = CONFIG | SIZES
    tensors = tiny_tensors(config)
    for name, (where, value) in edits:
        tensors[name][where] = value
    source = folder / "hf"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    save(source / "model.safetensors", {name: value.astype(dtype) for name, value in tensors.items()})
    weights, arguments = form
    if weights in ("fp8", "int8-sq"):
        arguments = arguments | {
            "ranges": record(
                source, folder / "r.safetensors", lambda r: [r.pop(n) for n in list(r) if n.endswith("|w")]
            )
        }
    plan = quant_plan(weights)
    model = HfCheckpoint.open(source)
    if plain:
        convert(model, folder / "plain", dtype=np.dtype(dtype).name, recipe=Plain(quant_plan("none")))
    convert(model, folder / "out", dtype=np.dtype(dtype).name, recipe=recipe_for(plan, **arguments))
    assert verify(folder / "out") == []
    return TrtllmCheckpoint.open(folder / "out")


def read(folder: Path) -> dict[str, np.ndarray]:
    checkpoint = TrtllmCheckpoint.open(folder)
    return {name: np.array(checkpoint.tensor(name)) for name in checkpoint.names}


@given(
    injuries=st.lists(
        st.tuples(st.sampled_from(sorted(NAMES)), st.sampled_from(sorted(INJURIES))), max_size=4
    ),
    dtype=st.sampled_from([np.float32, ml_dtypes.bfloat16, np.float16]),
    form=st.sampled_from(FORMATS),
)
@settings(deadline=None, max_examples=40)
def test_scales_are_sound_and_weights_come_back(injuries, dtype, form):
    limit = float(ml_dtypes.finfo(dtype).max)
    edits = [(name, (INJURIES[kind][0], min(INJURIES[kind][1], limit / 2))) for name, kind in injuries]
    with tempfile.TemporaryDirectory() as folder:
        quantized(Path(folder), edits, dtype, form)
        plain, tensors = read(Path(folder, "plain")), read(Path(folder, "out"))
    scales = {
        name: value.astype(np.float64)
        for name, value in tensors.items()
        if "scal" in name or "smoother" in name
    }
    assert scales
    for name, value in scales.items():
        assert np.isfinite(value).all(), name
        assert (value > 0).all(), name
    for name in NAMES.values():
        weight = plain[f"{LAYER}{name}.weight"].astype(np.float64)
        stored = tensors[f"{LAYER}{name}.weight"].astype(np.float32)
        assert np.isfinite(stored).all()
        if form[0] != "int8-wo":
            assert (stored[weight == 0] == 0).all(), name
        if form[0] in FORMULAS:
            meant, error = FORMULAS[form[0]](tensors, LAYER, name)
            assert (meant[weight == 0] == 0).all(), name
            slack = 2.0**-8 * np.abs(meant) if form[0] == "int8-wo" and dtype is not np.float32 else 0
            assert (np.abs(meant - weight) <= error + slack + 1e-5 * 1.1).all(), name


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_what_is_not_finite_is_refused_naming_the_layer(tmp_path, name, bad, form):
    with pytest.raises(InputError, match=name.replace(".", r"\.") + " holds NaN or infinity"):
        quantized(tmp_path, [(name, (ONE, bad))], np.float32, form)


def test_smoothing_that_makes_weights_infinite_is_refused(tmp_path):
    name = "model.layers.0.mlp.down_proj.weight"
    for mode in ("per-channel-per-token", "per-token", "qdq"):
        folder = tmp_path / mode
        folder.mkdir()
        with pytest.raises(InputError, match=r"down_proj\.weight infinite"):
            quantized(
                folder, [(name, (ONE, 3e38))], np.float32, ("int8-sq", {"smoothquant": mode, "alpha": 1.0})
            )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_norms_that_are_not_finite_are_refused_by_name(tmp_path, bad, dtype):
    name = "model.layers.0.post_attention_layernorm.weight"
    with pytest.raises(InputError, match=name.replace(".", r"\.") + " holds NaN or infinity"):
        quantized(tmp_path, [(name, ((3,), bad))], dtype, ("int8-sq", {}), plain=False)
