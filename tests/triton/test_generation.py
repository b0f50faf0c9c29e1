"""Repositories for engines of TensorRT-LLM, line by line, against what is known of the templates."""

from dataclasses import replace

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from tests.plan.published import published
from trtkit.catalog.trtllm import LINES
from trtkit.contract import Contract
from trtkit.errors import InputError
from trtkit.plan import Machine, make_plan
from trtkit.triton.generation import ENGINE_PARAMETERS, generation_of
from trtkit.triton.launch import SCRIPT
from trtkit.triton.repository import render
from trtkit.triton.runtime import nodes_of

OLD, NEW = ("0.17", "0.18"), LINES[2:]


def planned(line="1.2", **engine):
    contract = Contract.model_validate(
        {
            "name": "t",
            "model": {"source": "x"},
            "engine": {"backend": "tensorrt", "gpu": "h200", "trtllm": line, **engine},
            "classes": {"only": {"priority": 1}},
        }
    )
    return make_plan(contract, published("llama-3.1-8b"), Machine(cores=2, memory_bytes=None))


def configs(plan, **options):
    files = render(plan, **options)
    names = [path.split("/")[0] for path in files if path.endswith("config.pbtxt")]
    return {name: text_format.Parse(files[f"{name}/config.pbtxt"].decode(), ModelConfig()) for name in names}


def names(tensors):
    return {tensor.name for tensor in tensors}


@pytest.mark.parametrize("line", LINES)
def test_a_line_gets_only_parameters_that_it_knows_and_all_that_it_needs(line):
    found = set(configs(planned(line))["tensorrt_llm"].parameters)
    assert all(ENGINE_PARAMETERS[name].in_line(line) for name in found)
    assert {name for name, row in ENGINE_PARAMETERS.items() if row.needed_by(line)} <= found
    assert ("guided_decoding_backend" in found) == (line in NEW)


@pytest.mark.parametrize("line", LINES)
def test_steps_and_ends_of_the_ensemble_are_tensors_of_the_line(line):
    found = configs(planned(line))
    engine, ensemble = found["tensorrt_llm"], found["ensemble"]
    step = next(step for step in ensemble.ensemble_scheduling.step if step.model_name == "tensorrt_llm")
    assert set(step.input_map) <= names(engine.input)
    assert set(step.output_map) <= names(engine.output)
    produced = {end for each in ensemble.ensemble_scheduling.step for end in each.output_map.values()}
    assert names(ensemble.output) <= produced
    asked = {end for each in ensemble.ensemble_scheduling.step for end in each.input_map.values()}
    assert names(ensemble.input) <= asked


@pytest.mark.parametrize("line", LINES)
def test_clients_say_the_same_to_every_line_and_engines_hear_their_own_names(line):
    found = configs(planned(line))
    assert {"seed", "min_tokens"} <= names(found["ensemble"].input) & names(found["tensorrt_llm_bls"].input)
    old = {"random_seed", "min_length", "return_kv_cache_reuse_stats"} & names(found["tensorrt_llm"].input)
    assert len(old) == (3 if line in OLD else 0)
    assert ("engine_tensor_names" in found["tensorrt_llm_bls"].parameters) == (line in OLD)


def test_lines_before_0_19_have_no_guided_decoding_and_no_times():
    engine = configs(planned("0.18"))["tensorrt_llm"]
    lacks = {"guided_decoding_guide", "lookahead_window_size", "mrope_position_deltas", "acceptance_rate"}
    assert not lacks & (names(engine.input) | names(engine.output))
    assert {"kv_cache_reused_blocks", "retention_decode_priority"} <= names(engine.input) | names(
        engine.output
    )


@pytest.mark.parametrize(("asked", "dtype"), [(None, "TYPE_FP32"), ("float16", "TYPE_FP16")])
def test_logits_are_declared_as_the_builder_was_told(asked, dtype):
    flags = {"logits_dtype": asked} if asked else {}
    found = configs(planned(build_flags=flags))
    for model in ("tensorrt_llm", "ensemble", "tensorrt_llm_bls"):
        (logits,) = [tensor for tensor in found[model].output if tensor.name == "context_logits"]
        assert DataType.Name(logits.data_type) == dtype


def test_an_unknown_line_is_refused_by_name():
    with pytest.raises(InputError, match=r"no templates are known of TensorRT-LLM 1\.4"):
        generation_of("1.4")


def test_streamed_weights_and_trees_of_drafts_reach_the_runtime():
    flags = {"weight_streaming": True}
    streamed = configs(planned(build_flags=flags, gpu_weights_fraction=0.25))["tensorrt_llm"].parameters
    assert streamed["gpu_weights_percent"].string_value == "0.25"
    plan = planned()
    target = replace(
        plan.target, build_flags={"speculative_decoding_mode": "medusa"}, choices=((0,), (0, 0), (1,))
    )
    drafted = configs(replace(plan, target=target))["tensorrt_llm"].parameters
    assert drafted["medusa_choices"].string_value == "{0},{0,0},{1}"
    assert drafted["decoding_mode"].string_value == "medusa"


@pytest.mark.parametrize(("rank", "told"), [(64, None), (128, "128")])
def test_the_cache_of_adapters_takes_the_ranks_that_the_engine_does(rank, told):
    plan = planned("1.2", lora={"modules": ["attn_q"], "max_rank": rank})
    found = configs(plan)["tensorrt_llm"].parameters["lora_cache_max_adapter_size"].string_value or None
    assert found == told


def test_more_ranks_than_a_machine_has_gpus_are_spread_over_several():
    plan = planned()
    many = replace(plan, target=replace(plan.target, ranks=replace(plan.target.ranks, tp=8, pp=2)))
    assert nodes_of(many) == 2
    assert configs(many)["tensorrt_llm"].parameters["num_nodes"].string_value == "2"
    assert b"TRTKIT_HOSTFILE" in render(many)[SCRIPT]
    with pytest.raises(InputError, match="on one machine"):
        render(many, draft=plan)


@pytest.mark.parametrize("line", ["0.20", "1.2"])
def test_machines_of_other_sizes_are_told_to_launcher_and_runtime(line):
    plan = planned(line, tensor_parallel=8, gpus_per_node=4)
    assert nodes_of(plan) == 2
    assert configs(plan)["tensorrt_llm"].parameters["num_nodes"].string_value == "2"
    assert b"TRTKIT_HOSTFILE" in render(plan)[SCRIPT]
    if line == "1.2":
        files = render(plan, dialect="llmapi")
        assert b"trtllm-llmapi-launch" in files[SCRIPT]
        assert b"gpus_per_node: 4" in files["tensorrt_llm/1/model.yaml"]
    with pytest.raises(InputError, match="8 are on 2"):
        render(plan, dialect="vllm")
    with pytest.raises(InputError, match="one machine, 8 ranks are on 2"):
        planned(None, backend="vllm", tensor_parallel=8, gpus_per_node=4)


def test_gpus_that_are_usually_few_to_a_machine_are_asked_about():
    def told(**engine):
        warnings = planned(gpu="gb200", tensor_parallel=8, **engine).warnings
        return [each.message for each in warnings if "usually" in each.message]

    assert told()
    assert not told(gpus_per_node=8)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"backend": "cpu", "gpu": None}, "back end cpu has one rank"),
        ({"trtllm": "0.20", "build_flags": {"gpus_per_node": 8}}, "differ: keep the first"),
    ],
)
def test_machines_are_said_once_and_where_there_are_ranks(engine, message):
    with pytest.raises(ValueError, match=message):
        planned(gpus_per_node=4, **engine)


def test_the_gpus_of_a_draft_are_counted_with_those_of_its_target():
    plan = planned()
    wide = replace(plan, target=replace(plan.target, ranks=replace(plan.target.ranks, tp=2)))
    for target, draft, gpus in ((plan, wide, ("0", "0,1")), (wide, plan, ("0,1", "0"))):
        found = configs(target, draft=draft)
        given = [
            found[name].parameters["gpu_device_ids"].string_value
            for name in ("tensorrt_llm", "tensorrt_llm_draft")
        ]
        assert tuple(given) == gpus
        script = render(target, draft=draft)[SCRIPT].decode()
        assert "--cuda-memory-pool-byte-size=1:0" in script
        assert "workers of 2 engine(s), on 2 GPU(s)" in script


def test_a_script_says_how_many_ranks_vllm_has():
    plan = planned()
    wide = replace(plan, target=replace(plan.target, ranks=replace(plan.target.ranks, tp=4)))
    assert "its back end has 4 rank(s)" in render(wide, dialect="vllm")[SCRIPT].decode()


def test_instances_grow_with_the_requests_in_flight():
    counts = [
        configs(planned(limits={"max_batch_size": batch}))["preprocessing"].instance_group[0].count
        for batch in (1, 64, 256)
    ]
    assert counts == [2, 2, 4]
