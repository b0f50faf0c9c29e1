"""Every architecture, converted by trtkit, computes what transformers computes from the source."""

# ruff: noqa: E402 - what follows the two checks needs both libraries
from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.architectures.forward import forward
from tests.architectures.reassemble import load
from tests.architectures.tiny import prompts
from tests.architectures.variants import REFUSED, VARIANTS, Variant
from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.errors import TrtkitError
from trtkit.plan.resolve import quant_plan

ONE = Parallelism()
LAYOUTS = [ONE, Parallelism(tp=2), Parallelism(pp=2), Parallelism(tp=2, pp=2)]
EXPERT_LAYOUTS = [Parallelism(tp=2, moe_ep=2)]
# With four ranks, two hold the same KV head, or halves of the same experts.
WIDE = {
    "llama": [Parallelism(tp=4)],
    "llama-odd-vocab": [Parallelism(tp=2, parallel_embedding=True), Parallelism(tp=4)],
    "qwen2": [Parallelism(tp=4)],
    "mixtral": [Parallelism(tp=4, moe_ep=2)],
}


def layouts(name: str, variant: Variant) -> list[Parallelism]:
    general = [*LAYOUTS, *(EXPERT_LAYOUTS if variant.has_experts else []), *WIDE.get(name, [])]
    return [one for one in general if one.pp in variant.pipelines and one.tp <= variant.max_tp]


def label(layout: Parallelism) -> str:
    return f"tp{layout.tp}pp{layout.pp}ep{layout.moe_ep}" + "-shared-embedding" * layout.parallel_embedding


CASES = [
    pytest.param(name, layout, id=f"{name}-{label(layout)}")
    for name, variant in VARIANTS.items()
    for layout in layouts(name, variant)
]


def convert_to(folder: Path, out: Path, layout: Parallelism = ONE) -> Path:
    source = HfCheckpoint.open(folder)
    convert(source, out, dtype="float32", recipe=Plain(quant_plan("none")), parallelism=layout)
    return out


@pytest.mark.parametrize(("name", "layout"), CASES)
def test_a_converted_model_computes_what_its_source_does(name, layout, build, tmp_path):
    model = build(name)
    config, tensors = load(convert_to(model.folder_of_4, tmp_path / "out", layout))
    logits = forward(config, tensors, prompts(), VARIANTS[name].windows)
    assert (logits - model.logits).abs().max() < 1e-4


@pytest.mark.parametrize("name", VARIANTS)
def test_both_generations_of_config_json_convert_to_the_same_bytes(name, build, tmp_path):
    model = build(name)
    new, old = (convert_to(folder, tmp_path / folder.name) for folder in (model.folder, model.folder_of_4))
    for file in ("config.json", "rank0.safetensors"):
        assert (new / file).read_bytes() == (old / file).read_bytes()


@pytest.mark.parametrize("spelling", [4, 5])
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_engine_cannot_compute_is_refused_by_name(name, spelling, build, tmp_path):
    model, key = build(name), REFUSED[name][1]
    with pytest.raises(TrtkitError, match=key):
        convert_to(model.folder if spelling == 5 else model.folder_of_4, tmp_path / "out")
    assert not list(tmp_path.iterdir())
