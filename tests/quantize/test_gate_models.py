"""The gate runs every family: what a checkpoint holds, and nothing else, decides what it computes."""

# ruff: noqa: E402 - what follows needs both libraries
from __future__ import annotations

import json
import shutil
from functools import cache

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.architectures import tiny
from tests.architectures.variants import VARIANTS
from tests.checkpoint.conftest import save
from tests.quantize.calibrated import build, prepared
from trtkit.catalog.parallel import ONE_RANK, Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.safetensors import read_header
from trtkit.checkpoint.trtllm import TrtllmCheckpoint
from trtkit.errors import InputError
from trtkit.plan.resolve import quant_plan
from trtkit.quantize.gate.experts import treat_experts
from trtkit.quantize.gate.linear import Activation, Grid
from trtkit.quantize.gate.model import TorchExecutor, load_candidate, load_source
from trtkit.quantize.gate.tensors import Candidate

NAMES = ("llama-tied", "llama-biases", "llama-odd-vocab", "llama-head-size", "mistral", "mixtral", "qwen2", "qwen2-moe",
         "qwen3", "qwen3-moe", "gemma", "gemma2", "gemma3", "phi3", "gpt2", "gpt-neox", "falcon-40b", "falcon-7b",
         "falcon-rw", "granite")  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 260, 24)


def silent(*_):
    """Tell nothing."""


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory):
    """Return a function that makes the folder of a variant, once."""
    torch.set_num_threads(1)
    base = tmp_path_factory.mktemp("gate")

    @cache
    def make(name):
        tiny.build(VARIANTS[name], base / name)
        return HfCheckpoint.open(base / name)

    return make


def written(source, out, ranks=ONE_RANK):
    convert(source, out, dtype="float32", recipe=Plain(quant_plan("none")), parallelism=ranks)
    return Candidate.open(TrtllmCheckpoint.open(out), source)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_only_converted_computes_what_its_source_does(name, tiny_model, tmp_path):
    source, variant = tiny_model(name), VARIANTS[name]
    ranks = Parallelism(tp=min(2, variant.max_tp), pp=max(variant.pipelines))
    executor, errors = load_candidate(
        written(source, tmp_path / "out", ranks), dtype="float32", progress=silent
    )
    baseline = load_source(source, dtype="float32")
    assert np.abs(executor.logits(TOKENS) - baseline.logits(TOKENS)).max() < 1e-5
    assert len(executor.hidden(TOKENS)) == source.config.num_layers
    assert set(errors.values()) == {0.0}


@pytest.mark.parametrize(
    "tensor",
    ["transformer.vocab_embedding.weight", "lm_head.weight", "transformer.ln_f.weight",
     "transformer.layers.1.input_layernorm.weight", "transformer.layers.0.attention.qkv.weight",
     "transformer.layers.1.mlp.gate.weight"],
)  # fmt: skip
def test_no_tensor_of_the_checkpoint_is_left_out(tensor, tiny_model, tmp_path):
    source = tiny_model("llama-tied")
    written(source, tmp_path / "out")
    file = tmp_path / "out" / "rank0.safetensors"
    tensors = {name: np.array(info.read()) for name, info in read_header(file).items()}
    tensors[tensor] *= 1.01
    save(file, tensors)
    candidate = Candidate.open(TrtllmCheckpoint.open(tmp_path / "out"), source)
    changed, _ = load_candidate(candidate, dtype="float32", progress=silent)
    assert np.abs(changed.logits(TOKENS) - load_source(source, dtype="float32").logits(TOKENS)).max() > 1e-4


@pytest.mark.parametrize("mode", ["per-channel-per-token", "per-tensor", "qdq"])
def test_smoothing_is_no_error_of_matrices_that_are_kept_transposed(mode, tmp_path, write):
    folder = build(tmp_path / "hf", VARIANTS["gpt2"])
    prepared(folder).run(tmp_path / "ranges.safetensors")
    checkpoint = write(folder, "int8-sq", smoothquant=mode, ranges=tmp_path / "ranges.safetensors")
    candidate = Candidate.open(checkpoint, HfCheckpoint.open(folder))
    _, errors = load_candidate(candidate, dtype="float32", progress=silent)
    assert errors
    assert all(0 < error < 0.06 for error in errors.values()), errors


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "qwen3-moe"])
def test_experts_that_treat_their_inputs_are_the_same_otherwise(name, tiny_model):
    source = tiny_model(name)
    plain, treated, rough = (load_source(source, dtype="float32") for _ in range(3))
    for layer in range(source.config.num_layers):
        treat_experts(treated.model, layer, {"fc": Activation(), "proj": Activation()})
        treat_experts(rough.model, layer, {"proj": Activation(Grid.FP8, 0.1)})
    expected = plain.logits(TOKENS)
    assert np.abs(treated.logits(TOKENS) - expected).max() < 1e-5
    assert np.abs(rough.logits(TOKENS) - expected).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("grid", Grid)
def test_the_kv_cache_of_every_family_can_be_rounded(name, grid, tiny_model):
    source = tiny_model(name)
    model, layers = load_source(source, dtype="float32").model, source.config.num_layers
    plain, fine, rough = (
        TorchExecutor(model, *each).logits(TOKENS)
        for each in ((), (grid, (0.01,) * layers), (grid, (5000.0,) * layers))
    )
    small, large = (np.abs(each - plain).max() for each in (fine, rough))
    assert 0 < small < large


def test_weights_that_transformers_would_make_up_are_refused(tiny_model, tmp_path):
    source = tiny_model("llama-tied")
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text((source.folder / "config.json").read_text())
    tensors = {name: np.array(info.read()) for name, info in source.tensors.items()}
    save(folder / "model.safetensors", tensors)
    opened = HfCheckpoint.open(folder)
    del tensors["model.norm.weight"]
    save(folder / "model.safetensors", tensors)
    with pytest.raises(InputError, match=r"missing keys model\.norm\.weight"):
        load_source(opened, dtype="float32")


def test_how_a_config_says_to_load_it_is_no_concern_of_the_gate(tiny_model, tmp_path):
    source = tiny_model("llama-tied")
    folder = tmp_path / "hf"
    shutil.copytree(source.folder, folder)
    (folder / "evil.py").write_text("raise SystemExit('code of the folder was run')")
    said = {"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config"}, "dtype": "torch.float32"}
    said |= {"attn_implementation": "flash_attention_2"}
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | said))
    same = load_source(HfCheckpoint.open(folder), dtype="float32").logits(TOKENS)
    np.testing.assert_array_equal(same, load_source(source, dtype="float32").logits(TOKENS))
