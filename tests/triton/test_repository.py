from dataclasses import replace

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tests.plan.published import published
from trtkit.contract import Contract
from trtkit.plan import Machine, make_plan
from trtkit.triton.config import BANNER
from trtkit.triton.repository import render
from trtkit.triton.tensors import ENGINE_INPUTS, ENGINE_OUTPUTS


def parse(files, model):
    return text_format.Parse(files[f"{model}/config.pbtxt"].decode(), ModelConfig())


@pytest.fixture
def files(plan):
    return render(plan)


def test_every_config_parses_and_nothing_is_unfilled(files):
    configs = [path for path in files if path.endswith("config.pbtxt")]
    assert len(configs) == 5
    for path in configs:
        assert parse(files, path.split("/")[0]).name == path.split("/")[0]
        assert b"${" not in files[path]


def test_every_text_file_says_that_it_is_generated(files):
    assert all(
        content.startswith(BANNER.encode()) for path, content in files.items() if ".gitkeep" not in path
    )


def test_rendering_is_deterministic(plan, files):
    assert render(plan) == files


def test_no_machine_path_is_rendered(files):
    configs = [content for path, content in files.items() if path.endswith(".pbtxt")]
    assert not any(b'"/' in content for content in configs)


def test_tensorrt_dialect_names_the_container_s_paths_and_needs_no_context(plan):
    files = render(plan, dialect="tensorrt", mount="/models")
    engine = parse(files, "tensorrt_llm")
    assert engine.backend == "tensorrtllm"
    assert engine.parameters["gpt_model_path"].string_value == "/models/tensorrt_llm/1/engine"
    assert [path for path in files if path.startswith("tensorrt_llm/1/")] == ["tensorrt_llm/1/.gitkeep"]
    assert b"CONTEXT_IDS" not in files["ensemble/config.pbtxt"]


def test_the_runtime_is_told_how_prompts_are_read_and_how_far_layers_look_back():
    contract = Contract.model_validate({
        "name": "t",
        "model": {"source": "x"},
        "engine": {"backend": "tensorrt", "gpu": "h200", "limits": {"max_seq_len": 8192}},
        "classes": {"only": {"priority": 1}},
    })  # fmt: skip
    machine = Machine(cores=2, memory_bytes=None)
    windows = {}
    for name in ("gemma-2-9b", "llama-3.1-8b"):
        plan = make_plan(contract, published(name), machine)
        parameters = parse(render(plan, dialect="tensorrt", mount="/models"), "tensorrt_llm").parameters
        assert parameters["enable_chunked_context"].string_value == "true"
        windows[name] = parameters["max_attention_window_size"].string_value
    assert windows == {"gemma-2-9b": ",".join(["4096", "8192"] * 21), "llama-3.1-8b": ""}


def test_batch_and_kv_budget_follow_the_plan(plan):
    files = render(replace(plan, limits=replace(plan.limits, max_batch_size=3)))
    assert {parse(files, path.split("/")[0]).max_batch_size for path in files if path.endswith("pbtxt")} == {
        3
    }
    engine = parse(files, "tensorrt_llm")
    assert engine.parameters["max_tokens_in_paged_kv_cache"].string_value == str(plan.memory.kv_tokens)


def test_streaming_models_agree_and_do_not_wait(files):
    engine, bls = parse(files, "tensorrt_llm"), parse(files, "tensorrt_llm_bls")
    assert engine.model_transaction_policy.decoupled
    assert bls.model_transaction_policy.decoupled
    assert engine.dynamic_batching.max_queue_delay_microseconds == 0


def test_keys_that_later_releases_insist_on_are_there(files):
    parameters = parse(files, "tensorrt_llm").parameters
    assert {
        "gpt_model_type",
        "tokenizer_dir",
        "xgrammar_tokenizer_info_path",
        "guided_decoding_backend",
    } <= set(parameters)
    assert "lora_prefetch_dir" not in parameters
    assert "multimodal_model_path" in parse(files, "preprocessing").parameters


def test_only_the_first_end_id_is_the_end_id(plan):
    several = replace(plan, model=replace(plan.model, eos_token_ids=(7, 9)))
    assert parse(render(several), "preprocessing").parameters["end_ids"].string_value == "7,9"


# Names, types and shapes as release 25.05 has them; a change here breaks existing clients.
SAMPLES = {
    "input_ids": ("TYPE_INT32", [-1], True, False, True),
    "request_output_len": ("TYPE_INT32", [1], False, True, False),
    "stop_words_list": ("TYPE_INT32", [2, -1], True, False, True),
    "seed": ("TYPE_UINT64", [1], True, True, False),
    "min_tokens": ("TYPE_INT32", [1], True, True, False),
    "lora_config": ("TYPE_INT32", [-1, 3], True, False, True),
    "retention_decode_priority": ("TYPE_INT32", [1], True, False, True),
    "mrope_position_deltas": ("TYPE_INT64", [1], True, False, False),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_engine_inputs_are_those_of_release_25_05(files, name):
    (tensor,) = [tensor for tensor in parse(files, "tensorrt_llm").input if tensor.name == name]
    shape = (tensor.HasField("reshape"), tensor.allow_ragged_batch)
    dtype = ModelConfig.DESCRIPTOR.fields_by_name["input"].message_type.fields_by_name["data_type"].enum_type
    assert (
        dtype.values_by_number[tensor.data_type].name,
        list(tensor.dims),
        tensor.optional,
        *shape,
    ) == SAMPLES[name]


def test_engine_contract_is_complete():
    assert (len(ENGINE_INPUTS), len(ENGINE_OUTPUTS)) == (60, 19)
    assert [tensor.name for tensor in ENGINE_INPUTS if not tensor.optional] == [
        "input_lengths",
        "request_output_len",
    ]
