"""Verification: everything that TensorRT-LLM's loader trips over, from headers alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, loader_warnings, verify, verify_any
from trtkit.errors import InputError, Severity

KEYS = [
    *(
        "architecture",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_size",
    ),
    *(
        "intermediate_size",
        "vocab_size",
        "hidden_act",
        "norm_epsilon",
        "max_position_embeddings",
        "rotary_base",
    ),
    *("rotary_scaling", "attn_bias", "mlp_bias", "dtype", "mapping", "quantization"),
    *("position_embedding_type", "logits_dtype", "tie_word_embeddings", "embedding_sharding_dim"),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
JSON = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=5), SCALARS, max_size=2)
NESTED = JSON | st.fixed_dictionaries({"world_size": JSON, "quant_algo": JSON})
FC = "transformer.layers.1.mlp.fc.weight"


@pytest.fixture
def checkpoint(tiny_llama, plain, tmp_path) -> Path:
    out = tmp_path / "out"
    convert(HfCheckpoint.open(tiny_llama()), out, dtype="bfloat16", recipe=Plain(plain))
    return out


@pytest.fixture
def edit_tensors(checkpoint, save_tensors):
    def edit(change) -> None:
        opened = TrtllmCheckpoint.open(checkpoint)
        tensors = {name: np.array(opened.tensor(name)) for name in opened.names}
        change(tensors)
        save_tensors(checkpoint / "rank0.safetensors", tensors)

    return edit


@pytest.fixture
def gemma2_checkpoint(tiny_llama, plain, tmp_path) -> Path:
    def edit(tensors):
        norm = tensors["model.norm.weight"]
        names = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
        tensors |= {f"model.layers.{layer}.{name}.weight": norm for layer in range(2) for name in names}

    changes = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "query_pre_attn_scalar": 16}
    folder = tiny_llama(
        edit=edit, head_dim=16, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True, **changes
    )
    convert(HfCheckpoint.open(folder), tmp_path / "out", dtype="bfloat16", recipe=Plain(plain))
    return tmp_path / "out"


def edit_config(checkpoint: Path, **changes) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(FC), "the tensor is missing"),
        (
            lambda tensors: tensors.update({FC: tensors[FC].T}),
            r"shape is [64, 128], config.json asks for [128, 64]",
        ),
        (lambda tensors: tensors.update({FC: tensors[FC].astype(np.float16)}), "data type is float16"),
        (lambda tensors: tensors.update({FC: tensors[FC].astype(np.int8)}), "layout of one GPU family"),
    ],
    ids=["missing", "shape", "type", "baked"],
)
def test_the_one_tensor_that_is_wrong_is_named(checkpoint, edit_tensors, change, message):
    edit_tensors(change)
    (problem,) = verify(checkpoint)
    assert problem.key == FC
    assert message in problem.message
    assert problem.file.endswith("rank0.safetensors")


def test_foreign_tensors_are_problems_but_known_tables_are_not(checkpoint, edit_tensors):
    edit_tensors(
        lambda tensors: tensors.update(extra=np.ones(1, np.float32), rotary_inv_freq=np.ones(8, np.float32))
    )
    assert [problem.key for problem in verify(checkpoint)] == ["extra"]


@pytest.mark.parametrize(
    ("algorithm", "lost"), [("W4A16", "mlp.fc.weight"), ("NVFP4", "post_layernorm.weight")]
)
def test_formats_that_are_not_written_are_verified_as_far_as_they_are_known(
    checkpoint, edit_tensors, algorithm, lost
):
    edit_config(checkpoint, quantization={"quant_algo": algorithm})
    warned = [] if algorithm == "W4A16" else ["nothing is known of the tensors of NVFP4 layers"]
    assert [problem.message.partition(":")[0] for problem in verify_any(checkpoint)] == warned
    assert [f"neither writes nor reads {algorithm}" in str(each) for each in verify(checkpoint)] == [True]
    edit_tensors(lambda tensors: tensors.pop(f"transformer.layers.1.{lost}"))
    errors = [each.key for each in verify_any(checkpoint) if each.severity is Severity.ERROR]
    assert errors == [f"transformer.layers.1.{lost}"]


def test_an_algorithm_that_no_engine_has_is_no_foreign_one(checkpoint):
    edit_config(checkpoint, quantization={"quant_algo": "W8A8_SQ_NONSENSE"})
    assert "cannot be 'W8A8_SQ_NONSENSE', which no engine has" in str(verify_any(checkpoint)[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mapping": {"world_size": 2}}, "which do not fit"),
        ({"architecture": "GPTForCausalLM"}, "'GPTForCausalLM' is not supported"),
        ({"mapping": []}, "mapping: is [], and has to be an object"),
        ({"mapping": {"foo": 1}}, "mapping.foo: TensorRT-LLM has no such key"),
        ({"mapping": {"cp_size": 2}}, "mapping.cp_size: cannot be 2"),
        ({"mapping": {"moe_tp_size": 2}}, "which do not fit"),
        ({"quantization": "x"}, "quantization: is 'x', and has to be an object"),
        ({"quantization": {"quant_algo": "FP9"}}, "quantization.quant_algo: cannot be 'FP9'"),
        ({"quantization": {"foo": None}}, "quantization.foo: TensorRT-LLM has no such key"),
        ({"quantization": {"kv_cache_quant_algo": 1}}, "quantization.kv_cache_quant_algo: cannot be 1"),
        ({"quantization": {"kv_cache_quant_algo": "INT9"}}, "cannot be 'INT9'"),
        ({"quantization": {"clamp_val": []}}, "quantization.clamp_val: cannot be []"),
        ({"quantization": {"clamp_val": [1, -1]}}, "quantization.clamp_val: cannot be [1, -1]"),
        ({"quantization": {"has_zero_point": "bogus"}}, "quantization.has_zero_point: cannot be 'bogus'"),
        ({"quantization": {"use_meta_recipe": True}}, "quantization.use_meta_recipe: cannot be True"),
        ({"architecture": ["LlamaForCausalLM"]}, "['LlamaForCausalLM'] is not supported"),
        ({"head_size": "16"}, "head_size is missing or malformed"),
        ({"dtype": "int8"}, "dtype is missing or malformed"),
        ({"norm_epsilon": -1}, "norm_epsilon is missing or malformed"),
        ({"num_hidden_layers": 3_000_000}, "3,000,000 layers"),
        ({"hidden_act": "nonsense"}, "hidden_act: is 'nonsense', and LlamaForCausalLM engines take silu"),
        ({"position_embedding_type": None}, "position_embedding_type: is None"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type: is 'alibi'"),
        ({"rotary_scaling": {"type": "zzz"}}, "rotary_scaling: has the type 'zzz'"),
        ({"rotary_scaling": {"factor": 2.0}}, "rotary_scaling: has the type None"),
        ({"rotary_scaling": {"type": "linear"}}, "rotary_scaling.factor: is missing"),
        ({"logits_dtype": "float8"}, "logits_dtype: is 'float8'"),
        ({"tie_word_embeddings": 5}, "tie_word_embeddings: is 5"),
        ({"embedding_sharding_dim": 1}, "embedding_sharding_dim: is 1"),
    ],
)
def test_a_config_that_cannot_be_gone_by_is_the_problem(checkpoint, changes, message):
    edit_config(checkpoint, **changes)
    assert [message in str(problem) for problem in verify(checkpoint)] == [True]


def test_keys_of_newer_loaders_are_a_warning(checkpoint):
    edit_config(checkpoint, quantization={"mamba_ssm_cache_dtype": "auto"}, mapping={"cp_config": {}})
    assert verify(checkpoint) == []
    keys = [warning.key for warning in loader_warnings(checkpoint)]
    assert keys == ["quantization.mamba_ssm_cache_dtype", "mapping.cp_config"]


def test_what_only_a_family_has_is_checked_by_its_kind(gemma2_checkpoint):
    edit_config(gemma2_checkpoint, query_pre_attn_scalar="x", attn_logit_softcapping=None)
    assert [problem.key for problem in verify(gemma2_checkpoint)] == ["query_pre_attn_scalar"]


def test_files_of_ranks_in_each_others_place_are_found(tiny_llama, plain, tmp_path):
    out = tmp_path / "out"
    ranks = Parallelism(tp=2)
    source = HfCheckpoint.open(tiny_llama())
    convert(source, out, dtype="bfloat16", recipe=Plain(plain), parallelism=ranks)
    assert verify(out) == []
    one, other = (out / f"rank{rank}.safetensors" for rank in range(2))
    one.rename(out / "x")
    other.rename(one)
    (out / "x").rename(other)
    assert [problem.message for problem in verify(out)] == [
        "says that it is rank 1 of 2, not 0 of 2",
        "says that it is rank 0 of 2, not 1 of 2",
    ]


@given(key=st.sampled_from(KEYS), value=NESTED)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_a_config_says_verification_answers(checkpoint, key, value):
    before = (checkpoint / "config.json").read_text()
    try:
        edit_config(checkpoint, **{key: value})
        assert all(problem.file for problem in verify(checkpoint))
    finally:
        (checkpoint / "config.json").write_text(before)


@pytest.mark.parametrize("name", ["config.json", "rank0.safetensors"])
def test_a_missing_file_is_named(checkpoint, name):
    (checkpoint / name).unlink()
    (problem,) = verify(checkpoint)
    assert problem.file == str(checkpoint / name)


def test_a_cut_file_is_found_without_reading_it(checkpoint):
    path = checkpoint / "rank0.safetensors"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    assert "cut off" in str(verify(checkpoint)[0])


def test_asking_for_an_absent_tensor_names_it(checkpoint):
    opened = TrtllmCheckpoint.open(checkpoint)
    assert FC in opened
    assert "nonsense" not in opened
    with pytest.raises(InputError, match="no tensor nonsense"):
        opened.tensor("nonsense")
