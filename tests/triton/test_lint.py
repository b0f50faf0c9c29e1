import json

import pytest

from trtkit.errors import Severity
from trtkit.triton.folder import write
from trtkit.triton.lint import lint
from trtkit.triton.parts import install
from trtkit.triton.repository import render


@pytest.fixture(params=["cpu", "tensorrt"])
def any_repo(request, tmp_path, plan, tokenizer_dir):
    return place(tmp_path, render(plan, dialect=request.param), tokenizer_dir)


@pytest.fixture
def repo(tmp_path, plan, tokenizer_dir):
    return place(tmp_path, render(plan), tokenizer_dir)


def place(tmp_path, files, tokenizer_dir):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine/config.json").write_text("{}")
    write(files, tmp_path / "repo")
    install(tmp_path / "repo", tmp_path / "engine", tokenizer_dir)
    return tmp_path / "repo"


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_what_trtkit_renders_has_no_problem(any_repo):
    assert lint(any_repo) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("tensorrt_llm", 'name: "tensorrt_llm"', 'name: "other"', "the folder is 'tensorrt_llm'"),
        ("tensorrt_llm", "max_batch_size: 8", "max_batch_size: ${triton_max_batch_size}", "integer"),
        ("tensorrt_llm", 'string_value: "engine"', 'string_value: "${engine_dir}"', "unfilled placeholder"),
        ("tensorrt_llm", "max_batch_size", "max_bach_size", "max_bach_size"),
        ("tensorrt_llm", "decoupled: true", "decoupled: false", "disagree"),
        (
            "preprocessing",
            'string_value: "tokenizer"',
            'string_value: "elsewhere"',
            "elsewhere does not exist",
        ),
        ("preprocessing", "count: 2", "count: 1", "one instance"),
        ("preprocessing", 'string_value: "0"', 'string_value: "1_0"', "pad_id is '1_0'"),
        ("tensorrt_llm_bls", 'string_value: "64"', 'string_value: "64 "', "max_threads is '64 '"),
        ("postprocessing", 'string_value: "true"', 'string_value: "on"', "skip_special_tokens is 'on'"),
        ("ensemble", 'model_name: "preprocessing"', 'model_name: "pre"', "no model 'pre'"),
        ("ensemble", 'key: "QUERY"', 'key: "QUESTION"', "no input 'QUESTION'"),
        ("postprocessing", "data_type: TYPE_INT32", "data_type: TYPE_INT64", "differ in data type"),
    ],
)
def test_each_mistake_is_named_with_its_file(repo, file, old, new, message):
    edit(repo / file / "config.pbtxt", old, new)
    assert any(message in problem.message and str(repo) in problem.file for problem in lint(repo)), lint(repo)


def limit(value):
    """Give a parameter another value."""
    key = 'key: "cancellation_check_period_ms"\n  value {\n    string_value: '
    return f'{key}"100"', f'{key}"{value}"'


def added(name, value):
    """Add a parameter."""
    first = 'backend: "tensorrtllm"\n'
    return first, f'{first}parameters: {{ key: "{name}", value: {{ string_value: "{value}" }} }}\n'


BUILT = {
    "version": "1.2.0",
    "pretrained_config": {"logits_dtype": "float32", "mapping": {"world_size": 1, "tp_size": 1}},
    "build_config": {
        "max_batch_size": 8,
        "max_beam_width": 1,
        "max_seq_len": 512,
        "plugin_config": {"use_paged_context_fmha": True},
    },
}


@pytest.fixture
def served(tmp_path, plan, tokenizer_dir):
    """A repository for the C++ back end, with an engine that says what it is."""
    repo = place(tmp_path, render(plan, dialect="tensorrt"), tokenizer_dir)
    (repo / "tensorrt_llm/1/engine/config.json").unlink()
    (repo / "tensorrt_llm/1/engine/config.json").write_text(json.dumps(BUILT))
    (repo / "tensorrt_llm/1/engine/rank0.engine").write_text("e")
    return repo


def test_an_engine_that_agrees_is_no_problem(served):
    assert lint(served) == lint(served, "1.2") == []


@pytest.mark.parametrize(
    ("part", "key", "value", "message"),
    [
        ("build_config", "max_batch_size", 4, "8 requests, the engine takes 4"),
        ("build_config", "max_seq_len", 10**6, "less than one request may take"),
        ("build_config", "plugin_config", {"use_paged_context_fmha": False}, "needs an engine with paged"),
        (
            "build_config",
            "plugin_config",
            {"manage_weights": True},
            "rank0_managed_weights.safetensors missing",
        ),
        ("pretrained_config", "logits_dtype", "float16", "is TYPE_FP32, the engine's logits are float16"),
        ("pretrained_config", "mapping", {"tp_size": 2}, "rank1.engine missing"),
    ],
)
def test_an_engine_that_contradicts_is_named(served, part, key, value, message):
    config = BUILT | {part: BUILT[part] | {key: value}}
    (served / "tensorrt_llm/1/engine/config.json").write_text(json.dumps(config))
    assert any(message in problem.message for problem in lint(served)), lint(served)


def test_a_parameter_whose_value_comes_first_counts_too(served):
    first = 'backend: "tensorrtllm"\n'
    edit(
        served / "tensorrt_llm/config.pbtxt",
        first,
        f'{first}parameters {{ value {{ string_value: "1" }} key: "max_beam_width" }}\n',
    )
    assert any("max_beam_width is written 2 times" in problem.message for problem in lint(served))


def test_ranks_of_another_build_are_named(served):
    (served / "tensorrt_llm/1/engine/rank1.engine").write_text("e")
    assert any("rank1.engine in" in problem.message for problem in lint(served)), lint(served)


def test_the_newest_version_is_the_one_that_is_judged(served):
    (served / "tensorrt_llm/1").rename(served / "tensorrt_llm/9")
    (served / "tensorrt_llm/10/engine").mkdir(parents=True)
    (served / "tensorrt_llm/10/engine/config.json").write_text(json.dumps(BUILT | {"version": "0.18.0"}))
    edit(served / "tensorrt_llm/config.pbtxt", "tensorrt_llm/1/engine", "tensorrt_llm/10/engine")
    messages = [problem.message for problem in lint(served, "1.2")]
    assert "the engine is of TensorRT-LLM 0.18.0, not 1.2" in messages


def test_what_lies_here_by_the_container_s_path_is_not_taken_for_the_repository_s_own(served, tmp_path):
    elsewhere = tmp_path / "tensorrt_llm/1/tensorrt_llm/1/engine"
    elsewhere.mkdir(parents=True)
    (elsewhere / "config.json").write_text(json.dumps(BUILT | {"version": "0.18.0"}))
    edit(served / "tensorrt_llm/config.pbtxt", "/model_repo/tensorrt_llm/1/engine", str(elsewhere))
    assert lint(served, "1.2") == []


def test_another_release_line_is_named(served):
    messages = "\n".join(map(str, lint(served, "0.18")))
    assert "the engine is of TensorRT-LLM 1.2.0, not 0.18" in messages
    assert "the back end of TensorRT-LLM 0.18 has no guided_decoding_backend" in messages


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        (
            "tensorrt_llm",
            'key: "enable_kv_cache_reuse"',
            'key: "enable_kv_cache_resue"',
            "enable_kv_cache_resue",
        ),
        ("tensorrt_llm", 'key: "executor_worker_path"', 'key: "worker_path"', "gone since 0.10"),
        (
            "tensorrt_llm",
            'key: "guided_decoding_backend"',
            'key: "recv_poll_period_ms"',
            "does not load without",
        ),
        ("tensorrt_llm", '"inflight_fused_batching"', '"inflight"', "gpt_model_type is 'inflight'"),
        ("tensorrt_llm", '"guaranteed_no_evict"', '"guaranteed_completion"', "batch_scheduler_policy"),
        ("tensorrt_llm", 'backend: "tensorrtllm"', 'backend: "tensorrt"', "does not run engines"),
        ("tensorrt_llm", "/model_repo/tensorrt_llm/1/engine", "engine", "is relative"),
        ("preprocessing", 'backend: "python"', 'backend: "onnxruntime"', "runs in back end python"),
        ("preprocessing", 'string_value: "tokenizer"', 'string_value: "org/name"', "name on a hub"),
        ("preprocessing", 'string_value: "tokenizer"', 'string_value: "../../tok"', "takes it for a model"),
        ("ensemble", 'platform: "ensemble"', 'platform: "ensemble"\nmodel_transaction_policy {}', "disagree"),
        ("ensemble", "max_batch_size: 8", "max_batch_size: 9", "the ensemble 9"),
        ("tensorrt_llm_bls", 'string_value: "tensorrt_llm"', 'string_value: "llm"', "no model 'llm'"),
        ("tensorrt_llm", "count: 1", "count: 2", "share the same GPUs"),
        ("tensorrt_llm", *limit("1_0"), "cancellation_check_period_ms is '1_0'"),
        ("tensorrt_llm", *limit("+1"), "cancellation_check_period_ms is '+1'"),
        ("tensorrt_llm", *added("gpu_device_ids", "0,one"), "gpu_device_ids is '0,one'"),
        ("tensorrt_llm", *added("max_attention_window_size", "4096;"), "max_attention_window_size is"),
        ("tensorrt_llm", *added("eagle_choices", "{0},{0"), "eagle_choices is"),
        (
            "tensorrt_llm",
            *added("kv_cache_free_gpu_mem_fraction", "9e-1_0"),
            "kv_cache_free_gpu_mem_fraction",
        ),
        ("tensorrt_llm", *added("max_beam_width", "1"), "max_beam_width is written 2 times"),
    ],
)
def test_each_mistake_of_a_served_repository_is_named(served, tokenizer_dir, file, old, new, message):
    (served / "tok").symlink_to(tokenizer_dir)
    edit(served / file / "config.pbtxt", old, new)
    assert any(message in problem.message for problem in lint(served)), lint(served)


def test_models_that_trtkit_did_not_write_are_checked_by_their_own_rules(served, tokenizer_dir):
    for path in served.glob("*/1/trtkit_*"):
        path.unlink()
    edit(served / "tensorrt_llm_bls/config.pbtxt", 'key: "max_threads"', 'key: "accumulate_token"')
    messages = [problem.message for problem in lint(served)]
    assert "'tokenizer' is relative to wherever the server is started" in messages
    assert "no parameter of the model is called 'accumulate_token'" in messages
    assert "one instance serves one request at a time" in messages


def test_missing_files_are_named(repo):
    (repo / "tensorrt_llm_bls/1/model.py").unlink()
    (repo / "preprocessing/1/tokenizer/tokenizer.json").unlink()
    (repo / "ensemble/1/.gitkeep").unlink()
    (repo / "ensemble/1").rmdir()
    messages = "\n".join(str(problem) for problem in lint(repo))
    assert "model.py is missing" in messages
    assert "no tokenizer.json" in messages
    assert "no version directory" in messages


def test_parse_errors_carry_the_line(repo):
    edit(repo / "ensemble/config.pbtxt", 'platform: "ensemble"', "platform: ensemble")
    (problem,) = [problem for problem in lint(repo) if problem.line]
    lines = (repo / "ensemble/config.pbtxt").read_text().splitlines()
    assert "platform" in lines[problem.line - 1]


def test_an_empty_folder_is_no_repository(tmp_path):
    assert [problem.severity for problem in lint(tmp_path)] == [Severity.ERROR]


@pytest.mark.parametrize("share", ["0", "1.5", "true", "'0.9'"])
def test_no_share_of_a_gpu_s_memory_in_model_yaml_is_named(served, share):
    (served / "tensorrt_llm/1/model.yaml").write_text(
        f"model: /m\ntriton_config: {{decoupled: true}}\nkv_cache_config: {{free_gpu_memory_fraction: {share}}}\n"
    )
    assert any("no share of a GPU's memory" in problem.message for problem in lint(served)), lint(served)
