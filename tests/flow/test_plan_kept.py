"""A plan of a source that is quantized already counts what its checkpoint will hold."""

from __future__ import annotations

import json
import math

import pytest

from tests.checkpoint import quantized_model as model
from tests.checkpoint.test_storage_plain_layers import DOWN, write
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.safetensors import read_header
from trtkit.errors import ContractError
from trtkit.flow.convert import ConvertOptions, choose_recipe
from trtkit.flow.plan import Question, ask, bare_contract

GPU = ("engine.backend=tensorrt", "engine.gpu=h200", "model.dtype=float16")
BAKED = "ct-int4-asym"
WHOLE = {"ct-int8", "ct-fp8-dynamic", "ct-fp8-one-scale", "modelopt-fp8-rows", "fbgemm", BAKED}
"""What engines quantize every layer of, or none."""
CASES = [(form, ()) for form in model.FORMATS] + [
    (form, (DOWN,)) for form in model.FORMATS if form not in WHOLE
]


def about(folder, *options: str) -> Question:
    config = folder / "config.json"
    return ask(bare_contract(config, options), config, bare=True)


def weigh(folder, *options: str) -> int:
    return about(folder, *GPU, *options).answer().memory.weights_bytes


def written(folder, ranks: Parallelism, target_sm: int | None) -> int:
    """Return the bytes of the largest rank, with scales of groups as engines have them."""
    source, out = HfCheckpoint.open(folder), folder.with_name("out")
    recipe = choose_recipe(source, ConvertOptions(target_sm=target_sm))
    convert(source, out, dtype="float16", recipe=recipe, parallelism=ranks)
    sizes = []
    for rank in range(ranks.world):
        tensors = read_header(out / f"rank{rank}.safetensors")
        grouped = [
            info for name, info in tensors.items() if "weights_scaling_factor" in name and info.shape[1:]
        ]
        wide = sum(2 * math.prod(info.shape) for info in grouped if info.dtype == "float32")
        sizes.append(sum(info.nbytes for info in tensors.values()) - wide)
    return max(sizes)


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(("form", "modules"), CASES)
def test_the_plan_counts_what_the_conversion_writes(tmp_path, form, modules, tp):
    folder = write(tmp_path / "hf", form, *modules).folder
    target_sm = 80 if form == BAKED else None
    found = written(folder, Parallelism(tp=tp), target_sm)
    # What is left are single scales, and smoothers: less than a layer more or less would be.
    assert weigh(folder, f"engine.tensor_parallel={tp}") == pytest.approx(found, rel=0.01)


def test_formats_that_are_not_the_sources_are_refused(tmp_path):
    folder = write(tmp_path / "hf", "modelopt-fp8-kv").folder
    with pytest.raises(ContractError) as caught:
        weigh(folder, "quantization.weights=int4-awq", "quantization.kv_cache=int8")
    said = str(caught.value)
    assert "int4-awq is asked for, and the source has fp8 (ModelOpt)" in said
    assert "int8 is asked for, and of scales for the KV cache the source has those of fp8" in said
    with pytest.raises(ContractError, match="is quantized already"):
        weigh(folder, 'quantization.exclude=["lm_head"]')


@pytest.mark.parametrize(
    ("form", "module", "options", "said"),
    [
        ("modelopt-fp8", DOWN, ["engine.backend=onnx"], "onnx engines have one format for all layers"),
        ("ct-fp8-dynamic", DOWN, GPU, "fp8-rowwise engines quantize every layer or none"),
        ("ct-int4", "model.layers.1.mlp.up_proj", GPU, "which engines join"),
        ("ct-int4", DOWN, [*GPU, "engine.pipeline_parallel=2"], "layers of a pipeline cannot differ"),
    ],
)
def test_plain_layers_that_engines_cannot_have_are_refused(tmp_path, form, module, options, said):
    folder = write(tmp_path / "hf", form, module).folder
    with pytest.raises(ContractError, match=said):
        about(folder, *options).answer()


def test_a_source_that_cannot_be_taken_over_is_counted_as_asked(tmp_path):
    folder = write(tmp_path / "hf", "modelopt-fp8").folder
    path = folder / "hf_quant_config.json"
    path.write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    question = about(folder, *GPU, "quantization.weights=fp8")
    assert "cannot be taken over" in str(question.warnings[-1])
    assert question.answer().memory.weights_bytes > 0
