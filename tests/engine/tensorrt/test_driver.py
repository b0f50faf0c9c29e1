"""The driver against the double: real child processes, real files."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trtkit.catalog.trtllm import LINES, PROFILES
from trtkit.checkpoint.progress import silent
from trtkit.engine.tensorrt.backend import Builder, TensorrtBackend
from trtkit.engine.tensorrt.expected import differences, expected
from trtkit.errors import EnvironmentLacks, StageError


@pytest.fixture
def compiled(planned, checkpoint, tmp_path):
    """Compile a plan; return facts and folder."""

    def run(builder=None, *, plan=None, **engine):
        plan = plan or planned(**engine)
        out = tmp_path / "engine"
        out.mkdir()
        backend = TensorrtBackend(builder or Builder())
        return backend.compile(checkpoint(plan), out, plan, silent, tmp_path / "log" / "build.log"), out

    return run


@pytest.mark.parametrize("line", LINES)
def test_every_line_builds_what_was_planned(tools, compiled, line):
    tools(version=f"{line}.3")
    facts, out = compiled(trtllm=line)
    assert facts["trtllm"] == f"{line}.3"
    assert facts["ranks"] == 1
    assert facts["engine_bytes"] == (out / "rank0.engine").stat().st_size
    assert {path.name for path in out.iterdir()} == {"config.json", "rank0.engine"}


@pytest.mark.parametrize(
    ("quantization", "engine"),
    [
        ({"weights": "int8-wo"}, {}),
        ({"weights": "int8-wo", "kv_cache": "auto"}, {"gpu": "a100-80"}),
        ({"weights": "fp8-rowwise"}, {}),
        ({}, {"limits": {"max_batch_size": 1, "max_seq_len": 64, "max_num_tokens": 8192}}),
        (
            {},
            {"limits": {"max_batch_size": 4, "max_seq_len": 64, "max_num_tokens": 256, "max_beam_width": 4}},
        ),
        ({}, {"build_flags": {"multiple_profiles": "enable"}}),
        ({}, {"build_flags": {"context_fmha": "disable"}}),
        ({}, {"build_flags": {"gemm_plugin": "auto", "reduce_fusion": "enable"}, "tensor_parallel": 2}),
        ({}, {"build_flags": {"gemm_plugin": "bfloat16", "reduce_fusion": "enable"}}),
        ({}, {"build_flags": {"weight_streaming": True, "gather_all_token_logits": True}}),
        ({}, {"build_flags": {"logits_dtype": "float16", "opt_num_tokens": 16}}),
        ({}, {"tensor_parallel": 2, "pipeline_parallel": 2}),
    ],
)
def test_what_the_builder_rewrites_is_foreseen(tools, compiled, planned, quantization, engine):
    plan = planned(quantization=quantization, **engine)
    tools(sm=str(plan.target.gpu.sm), smi=str(plan.target.gpu.sm))
    facts, _ = compiled(plan=plan)
    assert facts["ranks"] == plan.target.ranks.world


@pytest.mark.parametrize("line", ["0.17", "1.2"])
def test_every_value_of_the_plan_is_compared(tools, compiled, planned, tmp_path, line):
    tools(version=f"{line}.0")
    plan = planned(trtllm=line, gpus_per_node=4, lora={"modules": ["attn_dense"], "max_rank": 8})
    _, out = compiled(plan=plan)
    source, built = (
        json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "checkpoint", out)
    )
    keys = expected(plan, source)
    assert len(keys) > 50
    for key in keys:
        wrong = json.loads(json.dumps(built))
        *parents, last = key.split(".")
        place = wrong
        for name in parents:
            place = place[name]
        place[last] = "another"
        assert [each.key for each in differences(plan, source, wrong)] == [key]
        del place[last]
        is_off = not keys[key]
        assert [each.key for each in differences(plan, source, wrong)] == ([] if is_off else [key])


def test_ranks_are_built_by_workers_or_by_mpirun(tools, compiled):
    tools(smi="90,90")
    facts, out = compiled(Builder(mpirun=True), tensor_parallel=2)
    assert facts["argv"][0][:4] == ["mpirun", "--allow-run-as-root", "-n", "2"]
    assert "--workers" not in facts["argv"][0]
    assert (out / "rank1.engine").is_file()


@pytest.mark.parametrize("mpirun", [False, True])
def test_one_gpu_builds_all_ranks_one_after_another(tools, compiled, mpirun):
    tools(gpus="1")
    facts, out = compiled(Builder(mpirun=mpirun), tensor_parallel=2, pipeline_parallel=2)
    assert "--workers" not in facts["argv"][0]
    assert ("-n 1 trtllm-build" in " ".join(facts["argv"][0])) == mpirun
    assert (out / "rank3.engine").is_file()


def test_a_stripped_engine_gets_its_weights_and_is_kept_beside(tools, compiled):
    tools()
    facts, out = compiled(build_flags={"strip_plan": True})
    assert [argv[0] for argv in facts["argv"]] == ["trtllm-build", "trtllm-refit"]
    assert (out / "rank0.engine").stat().st_size > 10 * (out / "stripped" / "rank0.engine").stat().st_size


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({}, ""),
        ({"fail": "no-managed"}, "No such file"),
        ({"fail": "half-rank"}, "rank0_managed_weights.safetensors: "),
    ],
)
def test_a_fast_build_has_its_weights_beside_the_engine(tools, compiled, planned, env, problem):
    tools(**env)
    flags = {"build_flags": {"fast_build": True}}
    if problem:
        with pytest.raises(StageError, match=problem):
            compiled(**flags)
        return
    _, out = compiled(**flags)
    assert {path.name for path in out.iterdir()} == set(TensorrtBackend().files(planned(**flags)))
    assert (out / "rank0_managed_weights.safetensors").is_file()


def test_the_log_is_kept_and_told_line_by_line(tools, compiled, tmp_path):
    tools()
    lines = []
    compiled(Builder(tell=lines.append))
    log = (tmp_path / "log" / "build.log").read_text()
    assert log.startswith("$ trtllm-build --checkpoint_dir ")
    assert any("Build TensorRT engine" in line for line in lines)
    assert set(lines[1:]) <= set(log.splitlines())


FAILURES = [
    ({"fail": "oom"}, "killed", "dmesg"),
    ({"fail": "worker-oom"}, "terminated abruptly", "dmesg"),
    ({"fail": "gpu-oom"}, "GPU memory", "max_num_tokens"),
    ({"fail": "no-kernel"}, "wrong GPU", "engine.gpu"),
    ({"fail": "crash"}, "SIGSEGV", "log"),
    ({"without": "max_num_tokens"}, "unrecognized arguments: --max_num_tokens 64", "engine.trtllm"),
    ({"fail": "half-rank"}, "rank0.engine: cut off", "disk or memory ran full"),
    ({"fail": "zero-rank"}, "rank0.engine: not written to its end", "log"),
    ({"fail": "empty-rank"}, "rank0.engine: empty", "log"),
    ({"writes": "build_config.max_num_tokens=32"}, "max_num_tokens: planned 64, built 32", "overrides"),
    ({"writes": 'pretrained_config.quantization.quant_algo="FP8"'}, "planned None, built 'FP8'", "overrides"),
    (
        {"writes": "build_config.plugin_config.use_paged_context_fmha=false"},
        "planned True, built False",
        "overrides",
    ),
    (
        {"writes": 'pretrained_config.rotary_scaling={"type":"linear","factor":2}'},
        "rotary_scaling: planned None",
        "overrides",
    ),
    ({"writes": "build_config.force_num_profiles=5"}, "planned None, built 5", "overrides"),
    ({"writes": "build_config.plugin_config.tokens_per_block=64"}, "planned 32, built 64", "overrides"),
    ({"writes": 'version="1.3.0"'}, "version: planned '1.2.x', built '1.3.0'", "overrides"),
]


@pytest.mark.parametrize(("env", "message", "hint"), FAILURES, ids=lambda each: str(each)[:40])
def test_failures_are_told_apart_each_with_its_fix(tools, compiled, env, message, hint):
    tools(**env)
    with pytest.raises(StageError) as caught:
        compiled()
    assert message in caught.value.message
    assert hint in caught.value.hint


LACKING = [
    ({"smi": "89"}, "SM 90), and this machine's GPUs are: NVIDIA GPU of SM 89", "engine.gpu"),
    ({"smi": ""}, "GPUs are: none", "engine.gpu"),
    ({"smi": "?"}, "(SM unknown)", "engine.gpu"),
    ({"gpus": "0"}, "no GPU", "CUDA_VISIBLE_DEVICES"),
    ({"fail": "disk"}, "disk full", "TRTKIT_HOME"),
    ({"version": "1.1.0"}, "this is TensorRT-LLM 1.1, the plan is for 1.2", "engine.trtllm"),
]


@pytest.mark.parametrize(("env", "message", "hint"), LACKING, ids=lambda each: str(each)[:40])
def test_what_the_machine_lacks_is_said(tools, compiled, env, message, hint):
    tools(**env)
    with pytest.raises(EnvironmentLacks) as caught:
        compiled()
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_rank_that_is_missing_is_named(tools, compiled):
    tools(fail="missing-rank")
    with pytest.raises(StageError, match=r"rank1\.engine: missing"):
        compiled(tensor_parallel=2)


def test_a_format_that_the_gpu_refuses_is_a_wrong_gpu(tools, compiled):
    tools(sm="100")
    with pytest.raises(StageError, match=r"wrong GPU: .*not supported on SM>=100"):
        compiled(quantization={"weights": "int8-wo"})


def test_of_mixed_gpus_only_those_of_the_plan_are_visible(tools, compiled):
    tools(smi="89,90,?,90,!")
    facts, _ = compiled()
    assert facts["gpus"] == ["NVIDIA GPU of SM 90 (SM 90)"] * 2


def test_a_gpu_that_was_hidden_is_not_taken(tools, compiled, monkeypatch):
    tools(smi="89,90")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(EnvironmentLacks, match="SM 89"):
        compiled()


def test_without_a_builder_the_docker_command_is_told(tools, compiled):
    tools("nvidia-smi", "docker")
    with pytest.raises(EnvironmentLacks, match="no trtllm-build on PATH") as caught:
        compiled()
    image = f"nvcr.io/nvidia/tritonserver:{PROFILES['1.2'].images[-1]}-trtllm-python-py3 trtllm-build"
    assert "--in-container" in caught.value.hint
    assert image in caught.value.hint


def test_without_docker_there_is_no_container(tools, compiled):
    tools("nvidia-smi", "trtllm-build")
    with pytest.raises(EnvironmentLacks, match="no docker on PATH"):
        compiled(Builder(in_container=True))


@pytest.mark.parametrize("engine", [{}, {"tensor_parallel": 2}, {"build_flags": {"strip_plan": True}}])
def test_a_container_builds_the_same(tools, compiled, tmp_path, engine):
    record = tmp_path / "docker.txt"
    tools(docker_record=str(record), smi="90,90,89")
    facts, out = compiled(Builder(in_container=True), **engine)
    assert (out / "rank0.engine").is_file()
    assert facts["argv"][0][:2] == ["docker", "run"]
    assert '"device=GPU-00000000-0000,GPU-00000001-0000"' in record.read_text()
    assert facts["image_digest"] == f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("env", "kind", "message"),
    [
        ({"fail": "oom"}, StageError, "killed"),
        ({"fail": "daemon"}, EnvironmentLacks, "not started: docker: Cannot connect"),
        ({"fail": "half-rank"}, StageError, "cut off"),
    ],
)
def test_failures_in_a_container_are_told_apart_too(tools, compiled, env, kind, message):
    tools(**env)
    with pytest.raises(kind, match=message):
        compiled(Builder(in_container=True))


def test_an_interrupt_ends_the_builder_and_its_workers(tools, compiled, tmp_path):
    tools(fail="hang")
    workers = []

    def interrupt(line):
        if " worker " in line:
            workers.append(int(line.rsplit(" ", 1)[1]))
            threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()

    with pytest.raises(KeyboardInterrupt):
        compiled(Builder(tell=interrupt))
    assert len(workers) == 1
    assert not is_running(workers[0])


def test_a_builder_does_not_outlive_a_build_that_is_killed(tmp_path):
    code = """if True:
        import os, sys
        from pathlib import Path
        from trtkit.engine.tensorrt.child import run
        here = Path(sys.argv[1])
        words = ("sh", "-c", "sleep 600 & echo $! > worker; wait")
        run(words, log_file=here / "log", cwd=here, env=os.environ, on_line=lambda _: "")
    """
    killed, told = subprocess.Popen([sys.executable, "-c", code, tmp_path]), tmp_path / "worker"
    while not (told.exists() and told.read_text().strip()):
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    assert not is_running(int(told.read_text()))


def test_an_interrupted_container_is_removed_by_its_name(tools, compiled, tmp_path):
    record = tmp_path / "docker.txt"
    tools(fail="hang", docker_record=str(record))

    def interrupt(line):
        if " worker " in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compiled(Builder(in_container=True, tell=interrupt))
    started, removed = record.read_text().splitlines()
    assert removed == f"rm --force {started.split()[1]}"


def is_running(pid: int) -> bool:
    """Tell whether a process still runs; who has ended and waits to be collected does not."""
    deadline_s = time.monotonic() + 2
    while time.monotonic() < deadline_s:
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        if not state.stdout.strip() or state.stdout.startswith("Z"):
            return False
        time.sleep(0.05)
    return True


def test_a_damaged_checkpoint_is_refused_by_the_double(tools, planned, checkpoint, tmp_path):
    """The double is no rubber stamp: what the loader would refuse, it refuses."""
    tools()
    plan = planned()
    folder = checkpoint(plan)
    config = json.loads((folder / "config.json").read_text())
    for changes, message in (
        ({"vocab_size": 300}, "shape mismatch"),
        ({"dtype": "float16"}, "dtype mismatch"),
        ({"attn_bias": True}, "equired but not provided"),
        ({"quantization": {"quant_algo": None, "newer": 1}}, "unexpected keyword argument 'newer'"),
        ({"mapping": {"world_size": 1, "rank": 0}}, "unexpected keyword argument 'rank'"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changes))
        out = tmp_path / message.replace(" ", "-")
        out.mkdir()
        with pytest.raises(StageError, match=message):
            TensorrtBackend().compile(folder, out, plan, silent, tmp_path / "log")
        assert not list(Path(out).glob("*.engine"))
