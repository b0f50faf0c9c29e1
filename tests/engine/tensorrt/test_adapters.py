"""LoRA adapters: checked before the build, and found in the engine afterwards."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.conftest import save
from tests.engine.tensorrt.conftest import stage
from trtkit.checkpoint.safetensors import read_header
from trtkit.engine.manifest import read_manifest

TARGETS = ["q_proj", "v_proj"]
MODULES = {"modules": ["attn_q", "attn_k", "attn_v"]}


@pytest.fixture
def adapter(tmp_path):
    """Write an adapter as peft saves it; its tensors are of ``rank``, whatever its configuration says.

    ``shapes`` are of tensors that are otherwise, or more; none for one that is left out.
    """

    def write(
        name="adapter", rank=8, modules=TARGETS, layer=0, shapes=None, dtype=np.float32, **config
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        given = {"peft_type": "LORA", "r": rank, "lora_alpha": 16, "bias": "none", "target_modules": modules}
        given |= {"layers_to_transform": [layer]}
        (folder / "adapter_config.json").write_text(json.dumps(given | config))
        sizes = {}
        for each in modules:
            sizes[f"self_attn.{each}.lora_A.weight"] = (rank, 64)
            sizes[f"self_attn.{each}.lora_B.weight"] = (32 if each in {"k_proj", "v_proj"} else 64, rank)
        sizes |= shapes or {}
        prefix = f"base_model.model.model.layers.{layer}."
        tensors = {prefix + each: np.ones(shape, dtype) for each, shape in sizes.items() if shape}
        save(folder / "adapter_model.safetensors", tensors)
        return folder

    return write


def test_adapters_come_with_the_engine(tools, contract, build, adapter):
    tools()
    adapter()
    code, document, err = build(contract(lora={"adapters": ["adapter"], "max_rank": 16} | MODULES))
    assert code == 0, err
    manifest = read_manifest(Path(stage(document, "compile")["path"]))
    assert {"lora/0/adapter_config.json", "lora/0/adapter_model.safetensors"} < set(manifest.files)
    words = manifest.facts["argv"][0]
    assert words[words.index("--lora_target_modules") :][1:4] == ["attn_q", "attn_k", "attn_v"]
    assert words[words.index("--max_lora_rank") + 1] == "16"


def test_adapters_go_with_a_stripped_engine_and_into_a_container(tools, contract, build, adapter):
    tools()
    adapter()
    path = contract(lora={"adapters": ["adapter"]} | MODULES, build_flags={"strip_plan": True})
    code, document, err = build(path, "--in-container")
    assert code == 0, err
    assert (Path(stage(document, "compile")["path"]) / "lora" / "0" / "adapter_config.json").is_file()


def test_another_adapter_is_another_engine(tools, contract, build, adapter):
    tools()
    folder = adapter()
    path = contract(lora={"adapters": ["adapter"]} | MODULES)
    build(path)
    weights = folder / "adapter_model.safetensors"
    save(weights, {name: np.zeros(info.shape, np.float32) for name, info in read_header(weights).items()})
    hits = {each["stage"]: each["hit"] for each in build(path)[1]["stages"]}
    assert hits == {"convert": True, "compile": False, "repo": False}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 32}, "has rank 32, engine.lora.max_rank is 16"),
        ({"r": 8, "rank_pattern": {"q_proj": 64}}, "has ranks of its own for some layers"),
        ({"r": 4}, "has matrices of rank 8, and r is 4"),
        ({"r": None}, "says no rank: r is None"),
        ({"layers_to_transform": None}, "has no attn_q of layer 1, and of others it has"),
        ({"layers_to_transform": "all"}, "layers_to_transform is 'all'"),
        ({"dtype": np.int8}, "is int8, and engines take float16"),
        ({"lora_alpha": float("nan")}, "lora_alpha is nan"),
        ({"lora_alpha": 10**400}, "says no scale"),
        ({"modules_to_save": True}, "brings whole layers (True)"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights: pissa_niter_4"),
        ({"use_rslora": "yes"}, "use_rslora is 'yes'"),
        ({"peft_type": "LOHA"}, "is of kind LOHA"),
        ({"use_dora": True}, "is a DoRA adapter"),
        ({"shapes": {"self_attn.q_proj.lora_magnitude_vector.weight": (64,)}}, "is a DoRA adapter"),
        ({"shapes": {"self_attn.q_proj.lora_magnitude_vector": (32,)}}, "is [32], the layer has 64 rows"),
        ({"modules": []}, "has no matrix of an adapter"),
        ({"modules_to_save": ["lm_head"]}, "brings whole layers (lm_head)"),
        ({"modules": ["q_proj", "o_proj"]}, "changes attn_dense, which the engine is not built for"),
        ({"modules": ["conv"]}, "changes conv, which engines have no adapters for"),
        ({"name": "elsewhere"}, "there is no such folder"),
        ({"shapes": {"self_attn.q_proj.lora_A.weight": (8, 32)}}, "the model's layer takes [8, 64]"),
        ({"shapes": {"self_attn.v_proj.lora_B.weight": (64, 8)}}, "the model's layer takes [32, 8]"),
        ({"shapes": {"self_attn.v_proj.lora_B.weight": (32, 4)}}, "the model's layer takes [32, 8]"),
        ({"shapes": {"self_attn.q_proj.lora_B.weight": None}}, "has no lora_B beside it"),
        ({"layer": 2}, "is of no layer that the model has: there are 2"),
        ({"shapes": {"self_attn.q_proj.bias": (64,)}}, "and nothing would read it"),
        (
            {"shapes": {"mlp.experts.0.up_proj.lora_A.weight": (8, 64)}},
            "changes mlp.experts.0.up_proj, which",
        ),
        ({"bias": "all"}, "brings biases"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
        ({"lora_alpha": None}, "says no scale"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_before_anything_is_built(
    tools,
    contract,
    build,
    adapter,
    tmp_path,
    changes,
    message,
):
    tools()
    adapter(**changes)
    code, document, _ = build(contract(lora={"adapters": ["adapter"], "max_rank": 16} | MODULES))
    assert code == 2
    assert message in document["error"]["message"]
    assert not (tmp_path / "home" / "convert").exists()


def test_a_second_adapter_changes_what_the_first_one_does(tools, contract, build, adapter):
    tools()
    adapter()
    adapter("second", modules=["o_proj"])
    code, document, _ = build(contract(lora={"adapters": ["adapter", "second"]}))
    assert code == 2
    assert "changes attn_dense" in document["error"]["message"]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ("all-linear", "target_modules is 'all-linear'"),
        (["q_proj"], "changes attn_v, which its target_modules do not name"),
        (["layers.0.self_attn.q_proj", "v_proj"], "changes attn_q, which its target_modules do not name"),
    ],
)
def test_layers_that_the_builder_cannot_take_from_an_adapter_are_asked_for(
    tools, contract, build, adapter, targets, message
):
    tools()
    adapter(target_modules=targets)
    code, document, _ = build(contract(lora={"adapters": ["adapter"]}))
    assert code == 2
    assert message in document["error"]["message"]
    assert "engine.lora.modules to [attn_q, attn_v]" in json.dumps(document["error"])
    assert build(contract(lora={"adapters": ["adapter"]} | MODULES))[0] == 0
