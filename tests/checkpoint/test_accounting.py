"""Two-way accounting: what is missing, left over or of another shape is told once, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from trtkit.checkpoint.convert import convert
from trtkit.checkpoint.hf import HfCheckpoint
from trtkit.checkpoint.recipe import Plain
from trtkit.errors import ContractError, Problem
from trtkit.plan.types import QuantPlan

PLAIN = QuantPlan("none", "auto", None, None)


def problems_of(folder: Path) -> tuple[Problem, ...]:
    with pytest.raises(ContractError) as caught:
        convert(HfCheckpoint.open(folder), folder.with_name("out"), dtype="bfloat16", recipe=Plain(PLAIN))
    assert not folder.with_name("out").exists()
    return caught.value.problems


def text_of(folder: Path) -> str:
    return "\n".join(map(str, problems_of(folder)))


def change_config(folder: Path, **changes) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def drop(*names):
    return lambda tensors: [tensors.pop(name) for name in names]


def test_an_untied_model_without_a_head_is_never_tied_silently(tiny_llama):
    text = text_of(tiny_llama(edit=drop("lm_head.weight")))
    assert "lm_head.weight: the tensor is missing" in text
    assert "tie_word_embeddings" in text


def test_missing_and_left_over_tensors_are_all_listed(tiny_llama):
    def edit(tensors):
        del tensors["model.layers.1.mlp.up_proj.weight"], tensors["model.norm.weight"]
        tensors["model.layers.0.extra.weight"] = np.zeros(1, ml_dtypes.bfloat16)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(8, np.float32)

    folder = tiny_llama(edit=edit)
    problems = problems_of(folder)
    assert {problem.key: problem.message for problem in problems} == {
        "model.layers.1.mlp.up_proj.weight": "the tensor is missing",
        "model.norm.weight": "the tensor is missing",
        "model.layers.0.extra.weight": "nothing in the architecture uses this tensor",
    }


def test_a_bias_flag_without_biases_is_refused(tiny_llama):
    names = [f"model.layers.{layer}.self_attn.{name}_proj.bias" for layer in (0, 1) for name in "qkvo"]
    text = text_of(tiny_llama(attention_bias=True, edit=drop(*names)))
    assert "model.layers.0.self_attn.o_proj.bias: the tensor is missing (and in layer 1)" in text
    assert "attention_bias is true, by config.json or by its class" in text


def test_biases_without_their_flag_name_it(tiny_llama):
    def edit(tensors):
        for name, size in (("gate", 128), ("up", 128), ("down", 64)):
            tensors[f"model.layers.0.mlp.{name}_proj.bias"] = np.zeros(size, ml_dtypes.bfloat16)

    text = text_of(tiny_llama(edit=edit))
    assert "up_proj.bias: nothing in the architecture uses this tensor\n    fix: set mlp_bias to true" in text


@pytest.mark.parametrize("flag", [True, False])
def test_biases_of_another_architecture_are_one_problem_whatever_the_flag_says(tiny_llama, flag):
    names = [f"model.layers.{layer}.self_attn.o_proj.bias" for layer in (0, 1)]
    folder = tiny_llama(attention_bias=True, edit=drop(*names))
    change_config(folder, attention_bias=flag)
    (problem,) = problems_of(folder)
    assert "self_attn.v_proj.bias but not self_attn.o_proj.bias" in problem.message
    assert "set attention_bias" not in str(problem)


def test_one_mistake_is_told_once_for_all_layers(tiny_llama):
    folder = tiny_llama(num_hidden_layers=6, edit=drop("model.layers.3.mlp.up_proj.weight"))
    change_config(folder, intermediate_size=192)
    problems = problems_of(folder)
    assert len(problems) == 4
    assert "is 128 x 64 (and in layers 1-2, 4-5)" in str(problems)


def test_experts_are_not_taken_for_layers(tiny_llama):
    def edit(tensors):
        names = [f"model.layers.{layer}.experts.{expert}.w" for layer in (0, 1) for expert in (0, 1)]
        tensors.update({name: np.zeros(1, np.float32) for name in names})

    problems = problems_of(tiny_llama(edit=edit))
    assert [problem.key for problem in problems] == [
        f"model.layers.0.experts.{expert}.w" for expert in (0, 1)
    ]
    assert all(problem.message.endswith("(and in layer 1)") for problem in problems)


def test_problems_without_end_are_cut(tiny_llama):
    def edit(tensors):
        tensors.update({f"extra{i}": np.zeros(1, np.float32) for i in range(1000)})

    problems = problems_of(tiny_llama(edit=edit))
    assert len(problems) == 21
    assert "and 980 more" in str(problems)


def test_absurdly_many_layers_are_refused_at_once(tiny_llama):
    folder = tiny_llama()
    change_config(folder, num_hidden_layers=10**9)
    assert "num_hidden_layers: must be a positive whole number, at most 10000" in text_of(folder)


def test_more_layers_than_tensors_are_refused_before_they_are_listed(tiny_llama):
    folder = tiny_llama()
    change_config(folder, num_hidden_layers=9999)
    assert "num_hidden_layers: 9,999 layers cannot be made of 21 tensors" in text_of(folder)


def test_a_config_that_disagrees_with_a_shape_shows_both(tiny_llama):
    folder = tiny_llama()
    change_config(folder, head_dim=32)
    text = text_of(folder)
    assert "q_proj.weight: config.json asks for 128 x 64, the tensor is 64 x 64" in text
    assert "4 query heads and 2 KV heads of 32" in text


def test_quantized_sources_are_refused(tiny_llama):
    def edit(tensors):
        name = "model.layers.0.mlp.up_proj.weight"
        tensors[name] = tensors[name].astype(np.int8)

    assert "up_proj.weight: is int8" in text_of(tiny_llama(edit=edit))


def test_a_wider_source_is_not_called_quantized(tiny_llama):
    text = text_of(tiny_llama(dtype=np.float64))
    assert "is float64" in text
    assert "save it as float32" in text
    assert "quantized" not in text
