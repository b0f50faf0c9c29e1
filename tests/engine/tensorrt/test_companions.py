"""What an engine comes with: heads, a draft model; checked before the build and found in it afterwards."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tests.checkpoint.conftest import save
from tests.engine.tensorrt.conftest import stage
from tests.flow.conftest import save_tokenizer
from trtkit.checkpoint.safetensors import read_header
from trtkit.engine.manifest import read_manifest

SPECULATION = {"mode": "medusa", "checkpoint": "heads", "max_draft_tokens": 63}


HEAD = "medusa_heads.1.lm_head.weight"
BIAS = "medusa_heads.1.medusa_layers.0.linear.bias"


def ones(*shape):
    return np.ones(shape, ml_dtypes.bfloat16)


@pytest.fixture
def heads(planned, checkpoint, tmp_path):
    """Write the tiny model's checkpoint with Medusa heads."""

    def write(leave_out="", instead=None, **changes) -> Path:
        plan = planned()
        folder = checkpoint(plan).rename(tmp_path / "heads")
        config = json.loads((folder / "config.json").read_text())
        config |= {
            "architecture": "MedusaForCausalLM",
            "num_medusa_heads": 2,
            "max_draft_len": 63,
            "model_type": "llama",
        }
        (folder / "config.json").write_text(json.dumps(config | changes))
        tensors = {
            name: np.array(info.read()) for name, info in read_header(folder / "rank0.safetensors").items()
        }
        for head in range(2):
            linear = f"medusa_heads.{head}.medusa_layers.0.linear."
            shapes = {
                linear + "weight": (64, 64),
                linear + "bias": (64,),
                f"medusa_heads.{head}.lm_head.weight": (260, 64),
            }
            tensors |= {name: np.ones(shape, ml_dtypes.bfloat16) for name, shape in shapes.items()}
        tensors |= instead or {}
        tensors.pop(leave_out, None)
        (folder / "rank0.safetensors").unlink()
        save(folder / "rank0.safetensors", tensors)
        return folder

    return write


def test_a_checkpoint_with_heads_takes_the_place_of_the_source(tools, contract, build, heads):
    tools()
    heads()
    code, document, err = build(contract(speculation=SPECULATION))
    assert code == 0, err
    folder = Path(stage(document, "compile")["path"])
    built = json.loads((folder / "config.json").read_text())
    assert built["pretrained_config"]["architecture"] == "MedusaForCausalLM"
    assert built["build_config"]["max_seq_len"] == 64 + 63
    assert built["build_config"]["max_num_tokens"] == 4 * 64
    engine = Path(document["repository"]) / "tensorrt_llm" / "config.pbtxt"
    assert parameter(engine, "decoding_mode") == "medusa"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "LlamaForCausalLM"}, "is a LlamaForCausalLM, not a MedusaForCausalLM"),
        ({"architecture": None}, "is no TensorRT-LLM checkpoint"),
        ({"vocab_size": 512}, "vocab_size is 512, the model has 260"),
        ({"model_type": "qwen2"}, "makes the builder take a Qwen"),
        ({"max_draft_len": 31}, "is for 31 draft tokens, the contract says 63"),
        ({"dtype": "float16"}, "dtype is float16"),
        ({"quantization": {"quant_algo": "FP8"}}, "quantization.quant_algo is FP8"),
        ({"num_medusa_heads": 3}, "rank 0 has no medusa_heads.2.lm_head.weight"),
        ({"leave_out": BIAS}, f"has no {BIAS}"),
        ({"leave_out": "lm_head.weight"}, "rank0.safetensors lm_head.weight: the tensor is missing"),
        ({"leave_out": "transformer.layers.1.mlp.proj.weight"}, "transformer.layers.1.mlp.proj.weight"),
        ({"instead": {"transformer.ln_f.weight": ones(32)}}, "shape is [32], config.json asks for [64]"),
        ({"instead": {BIAS: ones(32)}}, f"{BIAS} of rank 0 has shape [32], not [64]"),
        ({"instead": {BIAS: np.ones(64, np.float16)}}, f"{BIAS} of rank 0 is float16, dtype is bfloat16"),
        ({"instead": {HEAD: np.ones((260, 64), np.int8)}}, f"{HEAD} of rank 0 is int8, dtype is bfloat16"),
        ({"instead": {"medusa_heads.7.lm_head.weight": ones(260, 64)}}, "holds medusa_heads.7"),
        ({"rotary_base": 500000.0}, "rotary_base is 500000.0, the model has 10000.0"),
        ({"norm_epsilon": None}, "norm_epsilon is None, the model has"),
        ({"head_size": 32}, "head_size is 32, the model has 16"),
        ({"attn_bias": True}, "attn_bias is True, the model has False"),
        ({"rotary_scaling": {"type": "linear", "factor": 2.0}}, "rotary_scaling is {'type': 'linear'"),
        ({"position_embedding_type": "alibi"}, "position_embedding_type is 'alibi'"),
        (
            {"max_position_embeddings": 32},
            "max_position_embeddings is 32, and the contract's sequences have 64",
        ),
        ({"logits_dtype": "int8"}, "logits_dtype is 'int8'"),
        ({"mapping": {"layers": 2}}, "mapping.layers is no key that a loader takes"),
        ({"quantization": [8]}, "quantization is [8], and has to be an object"),
        ({"num_medusa_heads": None}, "num_medusa_heads is None, and has to be a positive"),
        ({"num_medusa_heads": 0}, "num_medusa_heads is 0"),
        ({"num_medusa_layers": True}, "num_medusa_layers is True"),
        ({"max_draft_len": "63"}, "max_draft_len is '63'"),
        ({"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}}, "is for tensor 2 x pipeline 1"),
    ],
)
def test_a_checkpoint_with_other_heads_is_refused(tools, contract, build, heads, changes, message):
    tools()
    heads(**changes)
    code, document, _ = build(contract(speculation=SPECULATION))
    assert code == 2
    assert message in document["error"]["message"]


def test_keys_that_classes_have_defaults_for_may_be_left_out(tools, contract, build, heads):
    tools()
    folder = heads()
    config = json.loads((folder / "config.json").read_text())
    left_out = {"head_size", "rotary_base", "rotary_scaling", "attn_bias", "mlp_bias", "logits_dtype"}
    kept = {key: value for key, value in config.items() if key not in left_out}
    (folder / "config.json").write_text(json.dumps(kept))
    code, _, err = build(contract(speculation=SPECULATION))
    assert code == 0, err


def test_heads_of_fp8_bring_their_scales(tools, contract, build, heads):
    tools()
    head = {HEAD: np.ones((260, 64), ml_dtypes.float8_e4m3fn)}
    heads(instead=head, quantization={"quant_algo": "FP8", "kv_cache_quant_algo": None})
    _, document, _ = build(contract(quantization={"weights": "fp8"}, speculation=SPECULATION))
    lost = "is float8_e4m3fn, and there is no medusa_heads.1.lm_head.weights_scaling_factor"
    assert lost in document["error"]["message"]


def test_a_tree_that_is_deeper_than_the_heads_are_many_is_refused(tools, contract, build, heads):
    tools()
    heads(max_draft_len=3)
    given = SPECULATION | {"max_draft_tokens": 3, "choices": [[0], [0, 0], [0, 0, 0]]}
    code, document, _ = build(contract(speculation=given))
    assert code == 2
    assert "has 2 heads, and engine.speculation.choices has a path of 3" in document["error"]["message"]


def test_eagle_counts_its_layers_and_wants_its_net(tools, contract, build, heads):
    tools()
    folder = heads(architecture="EagleForCausalLM", num_eagle_layers=4)
    path = contract(speculation=SPECULATION | {"mode": "eagle"})
    code, document, _ = build(path)
    assert code == 2
    assert "eagle_net_config" in document["error"]["message"]
    config = json.loads((folder / "config.json").read_text())
    net = {"hidden_size": 64, "vocab_size": 260, "num_hidden_layers": 1, "num_attention_heads": 4}
    net |= {"intermediate_size": 96}
    for change, message in (
        ({"hidden_size": 128}, "eagle_net_config.hidden_size is 128, the model has 64"),
        ({"vocab_size": None}, "eagle_net_config.vocab_size is None, the model has 260"),
        ({"num_hidden_layers": 0}, "eagle_net_config.num_hidden_layers is 0"),
        ({"dtype": "float16"}, "eagle_net_config.dtype is 'float16'"),
    ):
        (folder / "config.json").write_text(json.dumps(config | {"eagle_net_config": net | change}))
        assert message in build(path)[1]["error"]["message"]
    (folder / "config.json").write_text(json.dumps(config | {"eagle_net_config": net}))
    assert "there is no tensor of eagle_nets.3" in build(path)[1]["error"]["message"]
    one = {key: value for key, value in config.items() if key != "num_eagle_layers"}  # which is 1 by default
    (folder / "config.json").write_text(json.dumps(one | {"eagle_net_config": net}))
    tensors = {
        name: np.array(info.read()) for name, info in read_header(folder / "rank0.safetensors").items()
    }
    (folder / "rank0.safetensors").unlink()
    save(
        folder / "rank0.safetensors",
        tensors | {"eagle_nets.0.fc.weight": np.ones((64, 128), ml_dtypes.bfloat16)},
    )
    code, document, err = build(path)
    assert code == 0, err
    built = json.loads((Path(stage(document, "compile")["path"]) / "config.json").read_text())
    assert built["build_config"]["max_seq_len"] == 64 + 63 + 1


def test_lookahead_has_the_draft_tokens_of_its_sizes(tools, contract, build):
    tools()
    sizes = {"window": 3, "ngram": 3, "verification": 3}
    code, document, err = build(contract(speculation={"mode": "lookahead", "lookahead": sizes}))
    assert code == 0, err
    built = json.loads((Path(stage(document, "compile")["path"]) / "config.json").read_text())
    assert built["build_config"]["max_draft_len"] == 11
    engine = Path(document["repository"]) / "tensorrt_llm" / "config.pbtxt"
    assert parameter(engine, "lookahead_window_size") == "3"


@pytest.fixture
def small(contract, tiny_llama):
    """Write the contract of a draft model with the same tokens."""

    def write(*, model=None, **engine) -> Path:
        folder = tiny_llama(name="small-model", num_hidden_layers=1, **(model or {}))
        save_tokenizer(folder)
        path = contract("small.yaml", **{"kv_cache": {"max_tokens": 4096}, **engine})
        path.write_text(
            path.read_text().replace("/source", "/small-model").replace("name: tiny", "name: small")
        )
        return path

    return write


DRAFTING = {
    "speculation": {"mode": "draft-target", "draft": "small.yaml", "max_draft_tokens": 4},
    "kv_cache": {"max_tokens": 4096},
}


def test_a_draft_model_is_built_beside_and_wired(tools, contract, build, small, trtkit):
    tools()
    small()
    path = contract(**DRAFTING)
    code, document, err = build(path)
    assert code == 0, err
    assert trtkit("repo", path, "-o", document["repository"], "--check")[0] == 0
    assert [each["stage"] for each in document["stages"]] == [
        "convert",
        "compile",
        "convert",
        "compile",
        "repo",
    ]
    repository = Path(document["repository"])
    for model in ("tensorrt_llm", "tensorrt_llm_draft"):
        assert (repository / model / "1" / "engine" / "rank0.engine").is_file()
        path = parameter(repository / model / "config.pbtxt", "gpt_model_path")
        assert path == f"/model_repo/{model}/1/engine"
    bls = repository / "tensorrt_llm_bls" / "config.pbtxt"
    assert parameter(bls, "tensorrt_llm_draft_model_name") == "tensorrt_llm_draft"
    assert read_manifest(Path(document["stages"][1]["path"])).origin["contract"]["name"] == "small"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "l4"}, "the draft is for l4, the target for h100-sxm"),
        ({"trtllm": "1.1"}, "the draft is for 1.1, the target for 1.2"),
        (
            {"limits": {"max_batch_size": 2, "max_seq_len": 64, "max_num_tokens": 64}},
            "the draft takes 2, the target 4",
        ),
        (
            {
                "chunked_context": False,
                "limits": {"max_batch_size": 4, "max_input_len": 32, "max_seq_len": 64, "max_num_tokens": 40},
            },
            "up to 63 tokens, and a step of the draft takes 40 without chunked context",
        ),
        ({"model": {"vocab_size": 300}}, "different vocabularies"),
        (
            {"speculation": {"mode": "lookahead", "lookahead": {"window": 2, "ngram": 2, "verification": 2}}},
            "of a draft",
        ),
    ],
)
def test_a_draft_model_that_does_not_fit_is_refused(tools, contract, build, small, changes, message):
    tools()
    small(**changes)
    code, document, _ = build(contract(**DRAFTING))
    assert code == 2
    assert message in document["error"]["message"]


def test_both_engines_have_to_fit_the_gpu(tools, contract, build, small):
    tools()
    small(kv_cache={})
    code, document, _ = build(contract(speculation=DRAFTING["speculation"]))
    assert code == 2
    assert "draft and target take" in document["error"]["message"]


def parameter(path: Path, name: str) -> str:
    return text_format.Parse(path.read_text(), ModelConfig()).parameters[name].string_value
