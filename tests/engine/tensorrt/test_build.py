"""The whole build from the command line, with the double in the place of TensorRT-LLM's programs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.tensorrt.conftest import LIMITS, stage
from trtkit.engine.manifest import read_manifest


@pytest.mark.parametrize(
    "engine",
    [{}, {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"tensor_parallel": 2, "pipeline_parallel": 2}],
)
def test_a_contract_becomes_an_engine_and_its_repository(tools, contract, build, engine):
    tools()
    code, document, err = build(contract(**engine))
    assert code == 0, err
    compiled = stage(document, "compile")
    ranks = engine.get("tensor_parallel", 1) * engine.get("pipeline_parallel", 1)
    manifest = read_manifest(Path(compiled["path"]))
    assert {f"rank{rank}.engine" for rank in range(ranks)} < set(manifest.files)
    assert manifest.facts["trtllm"] == "1.2.1"
    assert manifest.origin["target"]["sm"] == 90
    repository = Path(document["repository"])
    assert (repository / "tensorrt_llm" / "1" / "engine" / f"rank{ranks - 1}.engine").is_file()
    assert 'backend: "tensorrtllm"' in (repository / "tensorrt_llm" / "config.pbtxt").read_text()
    assert "log in " in err


def test_a_second_build_needs_no_builder(tools, contract, build):
    tools()
    path = contract()
    build(path)
    tools("nvidia-smi")
    code, document, _ = build(path)
    assert code == 0
    assert all(each["hit"] for each in document["stages"])


def test_without_a_builder_the_checkpoint_is_made_and_the_way_on_is_told(tools, contract, build):
    tools("nvidia-smi")
    path = contract()
    code, document, _ = build(path)
    assert code == 4
    assert "docker run" in document["error"]["hint"]
    assert [each["state"] for each in build(path, "--dry-run")[1]["stages"]] == ["hit", "build", "build"]


def test_a_build_that_fails_leaves_no_product_and_its_log(tools, contract, build, tmp_path):
    tools(fail="half-rank")
    code, document, _ = build(contract())
    build(contract(limits=LIMITS | {"max_batch_size": 2}))
    assert code == 5
    assert "cut off" in document["error"]["message"]
    assert not list((tmp_path / "home" / "compile").glob("[!.]*/*"))
    # Each contract of a name has its own.
    assert len(list((tmp_path / "home" / "log").glob("tiny.*.compile.log"))) == 2


def test_a_dry_run_shows_the_builder_s_arguments(tools, contract, trtkit):
    tools("nvidia-smi")
    code, out, _ = trtkit("build", contract(tensor_parallel=2), "--dry-run")
    assert code == 0
    assert "trtllm-build --checkpoint_dir " in out
    assert "--workers 2" in out


def test_a_dry_run_shows_the_container(tools, contract, trtkit):
    tools("nvidia-smi")
    code, out, _ = trtkit("build", contract(), "--dry-run", "--in-container")
    assert code == 0
    assert "docker run --rm --init --name trtkit-" in out
    assert "--gpus all" in out


def test_a_container_s_engine_is_the_same_product(tools, contract, build):
    tools()
    path = contract()
    assert build(path, "--in-container")[0] == 0
    assert stage(build(path)[1], "compile")["hit"]


def test_a_quantized_contract_passes_its_gate_before_it_is_compiled(tools, contract, build):
    tools()
    gate = {"samples": 2, "sample_tokens": 32, "max_kl": 10, "min_top1": 0.01}
    code, document, err = build(
        contract(quantization={"weights": "fp8-rowwise", "gate": gate}, tensor_parallel=2)
    )
    assert code == 0, err
    assert [each["stage"] for each in document["stages"]] == ["convert", "gate", "compile", "repo"]


def test_a_dry_run_says_that_the_builder_is_missing(tools, contract, trtkit):
    tools("nvidia-smi")
    assert "no trtllm-build on PATH, which compile needs" in trtkit("build", contract(), "--dry-run")[2]
    tools()
    assert "on PATH" not in trtkit("build", contract(), "--dry-run")[2]


def test_manifests_say_what_was_planned_and_what_built(tools, contract, build, trtkit):
    tools()
    _, document, _ = build(contract(), "--in-container")
    for name in ("compile", "repo"):
        path = Path(stage(document, name)["path"])
        manifest = read_manifest(path)
        target = manifest.origin["target"]
        assert (target["trtllm"], target["release"], target["tensorrt"]) == ("1.2", "1.2.1", "10.14.1")
        assert manifest.facts["image_digest"] == f"sha256:{'a' * 64}"
        release = manifest.facts["trtllm"]
        assert trtkit("verify", path, "--against", release)[0] == 0
        assert trtkit("verify", path, "--against", f"{release}9")[0] == 6
        code, _, err = trtkit("verify", path, "--against", f"26.07@sha256:{'b' * 64}")
        assert (code, "built in another image of 1.2.1" in err) == (0, True)


def test_products_and_repositories_verify(tools, contract, build, trtkit):
    tools()
    _, document, _ = build(contract(tensor_parallel=2))
    for each in document["stages"]:
        assert trtkit("verify", each["path"])[0] == 0, each["stage"]
    engine = Path(stage(document, "compile")["path"])
    assert trtkit("verify", engine, "--against", "h100-sxm", "--against", "1.2")[0] == 0
    assert trtkit("verify", engine, "--against", "l40s")[0] == 6
    (engine / "rank1.engine").write_bytes((engine / "rank0.engine").read_bytes())
    code, _, err = trtkit("verify", engine)
    assert code == 6
    assert "rank1.engine: holds what belongs into rank0.engine" in err


def test_a_timing_cache_is_written_where_the_contract_says(tools, contract, build, tmp_path):
    tools()
    cache = tmp_path / "caches: a, b" / "model.cache"
    path = contract(build_flags={"input_timing_cache": str(cache), "output_timing_cache": str(cache)})
    for make in (lambda: None, lambda: cache.mkdir(parents=True)):  # no folder, then one in the file's place
        make()
        code, document, _ = build(path)
        assert code == 4
        assert "the timing cache cannot be read here" in document["error"]["message"]
    cache.rmdir()
    assert build(path, "--in-container")[0] == 0
    assert cache.read_bytes() == b"timing"


def test_a_relative_timing_cache_is_refused(tools, contract, build):
    tools()
    code, document, _ = build(contract(build_flags={"output_timing_cache": "model.cache"}))
    assert code == 2
    assert "is relative" in document["error"]["message"]


def test_only_this_back_end_has_a_container(tools, contract, build):
    tools()
    path = contract()
    code, document, _ = build(
        path, "--in-container", "--set", "engine.backend=cpu", "--set", "engine.gpu=null"
    )
    assert code == 2
    assert "leave out --in-container" in document["error"]["hint"]


def test_a_whole_road_on_this_machine_ends_before_it_begins(tools, contract, trtkit, tmp_path):
    tools()
    code, _, err = trtkit("up", contract())
    assert code == 4
    assert "/model_repo" in err
    assert not (tmp_path / "home" / "convert").exists()


def test_the_repository_alone_is_what_the_build_makes(tools, contract, build, trtkit, tmp_path):
    tools()
    path = contract()
    _, document, _ = build(path)
    assert trtkit("repo", path, "-o", document["repository"], "--check")[0] == 0


def test_what_verify_tells_to_run_in_another_release_builds_for_it(tools, contract, build, trtkit):
    """A release of the same line has the same key, and loads no engine but its own."""
    tools(version="1.2.0")
    path = contract()
    # What this process built it would hold.
    subprocess.run([sys.executable, "-m", "trtkit", "build", path], check=True, capture_output=True)
    tools(version="1.2.1")
    assert [each["state"] for each in build(path, "--dry-run")[1]["stages"]] == ["hit", "build", "build"]
    assert "1.2.0 built it -> 1.2.1" in trtkit("build", path, "--explain")[1]
    code, document, err = build(path, "--cache", "readonly")
    assert (code, "does not fit" in err or "does not fit" in str(document)) == (4, True)
    engine = build(path)[1]["stages"][1]["path"]
    assert trtkit("verify", engine, "--against", "1.2.1")[0] == 0
    assert trtkit("verify", build(path)[1]["repository"], "--against", "1.2.1")[0] == 0
    assert all(each["hit"] for each in build(path)[1]["stages"])


def test_an_image_of_another_release_takes_no_engine_of_the_builder_here(tools, contract, build):
    tools(version="1.2.0")
    path = contract()
    build(path)
    document = build(path, "--in-container", "--dry-run")[1]
    assert [each["state"] for each in document["stages"]] == ["hit", "build", "build"]
