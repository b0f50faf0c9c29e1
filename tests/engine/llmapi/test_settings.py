"""The arguments of LLM() for each release line, and those of vLLM's engine."""

from __future__ import annotations

import json

import pytest
import yaml
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from trtkit.catalog.trtllm import LINES, LLMAPI_SINCE
from trtkit.engine.llmapi.settings import check_settings, llm_settings
from trtkit.errors import ContractError, InputError
from trtkit.triton.repository import render

LOOKAHEAD = {"mode": "lookahead", "lookahead": {"window": 7, "ngram": 7, "verification": 7}}
DRAFT = {"mode": "draft-target", "draft": "draft.yaml", "max_draft_tokens": 5}


@pytest.mark.parametrize("line", LINES[LINES.index(LLMAPI_SINCE) :])
def test_each_line_has_every_argument(plan_of, line):
    plan = plan_of("llmapi", trtllm=line, tensor_parallel=2, speculation=DRAFT)
    settings = llm_settings(plan, model="/m", draft="/d")
    assert settings["tensor_parallel_size"] == 2
    assert settings["max_num_tokens"] == plan.limits.max_num_tokens
    share, tokens = 0.9, plan.memory.kv_tokens
    cache = {
        "max_tokens": tokens,
        "free_gpu_memory_fraction": share,
        "enable_block_reuse": True,
        "dtype": "fp8",
    }
    assert settings["kv_cache_config"] == cache
    draft = {"decoding_type": "Draft_Target", "max_draft_len": 5, "speculative_model_dir": "/d"}
    assert settings["speculative_config"] == draft


def test_an_argument_that_a_line_lacks_is_refused_by_name():
    with pytest.raises(InputError, match=r"1\.1 has no max_beam_wdth, kv_cache_config\.tokens_per_block"):
        check_settings({"max_beam_wdth": 1, "kv_cache_config": {"tokens_per_block": 64}}, "1.1")


def test_blocks_of_another_size_need_a_line_that_has_them(plan_of):
    blocks = {"tokens_per_block": 64}
    assert (
        llm_settings(plan_of("llmapi", kv_cache=blocks), model="/m")["kv_cache_config"]["tokens_per_block"]
        == 64
    )
    with pytest.raises(ContractError, match="has blocks of 32 tokens, not 64"):
        plan_of("llmapi", kv_cache=blocks, trtllm="1.0")


@pytest.mark.parametrize(
    ("backend", "engine", "said"),
    [
        ("llmapi", {"trtllm": "0.21"}, "has no LLM API back end"),
        ("llmapi", {"speculation": LOOKAHEAD}, "no lookahead"),
        ("llmapi", {"build_flags": {"gemm_plugin": "auto"}}, "no trtllm-build"),
        ("llmapi", {"limits": {"max_beam_width": 2}}, "not set up for beams"),
        ("vllm", {"kv_cache": {"max_tokens": 4096}}, "share of memory alone"),
        ("vllm", {"chunked_context": False, "limits": {"max_num_tokens": 4096}}, "refuses steps of 4096"),
        ("edgellm", {"kv_cache": {"enable_block_reuse": False}}, "no such setting"),
    ],
)  # fmt: skip
def test_what_would_have_no_effect_is_refused(plan_of, backend, engine, said):
    gpu = {"gpu": "rtx-5090"} if backend == "edgellm" else {}
    with pytest.raises(ContractError, match=said):
        plan_of(backend, **{**engine, **gpu})


def test_streaming_is_on_in_both_files_of_the_python_api(plan_of):
    files = render(plan_of("llmapi"), mount="/repo")
    config = text_format.Parse(files["tensorrt_llm/config.pbtxt"].decode(), pb.ModelConfig())
    settings = yaml.safe_load(files["tensorrt_llm/1/model.yaml"])
    assert (config.model_transaction_policy.decoupled, settings["triton_config"]["decoupled"]) == (True, True)
    assert config.max_batch_size == settings["triton_config"]["max_batch_size"] == 0
    assert settings["model"] == "/repo/tensorrt_llm/1/engine/model"


def test_vllm_gets_the_promised_shapes_and_its_share_of_memory(plan_of):
    plan = plan_of("vllm", kv_cache={"memory_fraction": 0.8}, tensor_parallel=2)
    files = render(plan, mount="/repo")
    settings = json.loads(files["tensorrt_llm/1/model.json"])
    config = text_format.Parse(files["tensorrt_llm/config.pbtxt"].decode(), pb.ModelConfig())
    assert settings["gpu_memory_utilization"] == 0.8
    assert settings["max_model_len"] == plan.limits.max_seq_len
    assert (settings["kv_cache_dtype"], settings["tensor_parallel_size"]) == ("fp8", 2)
    assert [group.kind for group in config.instance_group] == [pb.ModelInstanceGroup.KIND_MODEL]
    assert b"--disable-auto-complete-config" not in files["launch.sh"]
