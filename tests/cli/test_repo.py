"""``trtkit repo`` and ``trtkit serve --dry-run``."""

import json
import re
from dataclasses import replace

import pytest
import yaml

from tests.checkpoint.conftest import tiny_llama  # noqa: F401
from tests.cli.test_jobs import LIMITS, ReadyServer, save_tokenizer, write_contract
from tests.triton.test_generation import planned
from tests.triton.test_lint import BUILT
from trtkit.engine.holds import is_free
from trtkit.engine.uses import read_uses
from trtkit.triton.folder import write
from trtkit.triton.repository import render


@pytest.fixture
def contract(tmp_path, tiny_llama):  # noqa: F811 - the fixture
    tiny_llama(name="model")
    return write_contract(tmp_path)


def test_drift_is_shown_as_a_diff_and_edits_are_kept(trtkit, contract, tmp_path):
    out = tmp_path / "repo"
    assert trtkit("repo", contract, "-o", out)[0] == 0
    assert trtkit("repo", contract, "-o", out, "--check")[0] == 0
    file = out / "preprocessing/config.pbtxt"
    file.write_text(file.read_text().replace("count: 2", "count: 7"))
    code, _, err = trtkit("repo", contract, "-o", out, "--check")
    assert code == 7
    assert "edited" in err
    assert {"-  count: 7", "+  count: 2"} <= {line.strip() for line in err.splitlines()}
    code, _, err = trtkit("repo", contract, "-o", out)
    assert code == 2
    assert "--overwrite" in err
    assert "count: 7" in file.read_text()
    assert trtkit("repo", contract, "-o", out, "--overwrite")[0] == 0
    assert trtkit("repo", contract, "-o", out, "--check")[0] == 0


def test_each_pool_has_a_repository_for_its_own_limits(trtkit, contract, tmp_path):
    pools = ["pools.standard={}", "pools.long={min_prompt_tokens: 8, limits: {max_batch_size: 2}}"]
    given = [word for each in pools for word in ("--set", each)]
    assert trtkit("repo", contract, "-o", tmp_path / "all", *given)[0] == 0
    assert trtkit("repo", contract, "-o", tmp_path / "one", "--pool", "long", *given)[0] == 0
    sizes = [
        (tmp_path / place / "tensorrt_llm/config.pbtxt").read_text().count(f"max_batch_size: {size}")
        for place, size in (("all/standard", LIMITS["max_batch_size"]), ("all/long", 2), ("one", 2))
    ]
    assert sizes == [1, 1, 1]
    code, _, err = trtkit("repo", contract, "-o", tmp_path / "all", "--check")
    assert code == 7  # the contract itself has no pools
    code, _, err = trtkit("repo", contract, "-o", tmp_path / "x", "--pool", "huge", *given)
    assert code == 2
    assert "its pools are standard, long" in err


def test_each_pool_is_built_for_itself_and_none_makes_the_other_useless(trtkit, contract, tmp_path):
    save_tokenizer(tmp_path / "model", tokens=260)
    pools = ["pools.standard={}", "pools.long={min_prompt_tokens: 8, limits: {max_batch_size: 2}}"]
    given = [word for each in pools for word in ("--set", each)]
    code, out, err = trtkit("build", contract, *given, "--output", "json")
    assert code == 0, err
    built = json.loads(out)["pools"]
    sizes = {name: each["plan"]["limits"]["max_batch_size"] for name, each in built.items()}
    assert sizes == {"standard": LIMITS["max_batch_size"], "long": 2}
    uses = read_uses(tmp_path / "home")
    assert len({use.overrides for use in uses}) == len(uses) == 2


def test_pools_are_built_into_the_folders_that_the_compose_file_mounts(trtkit, contract, tmp_path):
    save_tokenizer(tmp_path / "model", tokens=260)
    pools = ["pools.standard={}", "pools.long={min_prompt_tokens: 8, limits: {max_batch_size: 2}}"]
    given = [word for each in pools for word in ("--set", each)]
    code, out, err = trtkit("build", contract, "-o", tmp_path / "repos", *given, "--output", "json")
    assert code == 0, err
    built = {name: each["repository"] for name, each in json.loads(out)["pools"].items()}
    # What NVIDIA's image serves is built by other programs; the folders are the same.
    gpu = ["--set", "engine={backend: tensorrt, gpu: h100-sxm}"]
    assert trtkit("export", "compose", contract, "-o", tmp_path / "dk", *given, *gpu)[0] == 0
    services = yaml.safe_load((tmp_path / "dk/compose.yaml").read_text())["services"]
    mounted = {
        name.removeprefix("triton-"): re.sub(
            r"\$\{.*?\}", str(tmp_path / "repos"), service["volumes"][0]["source"]
        )
        for name, service in services.items()
        if name.startswith("triton-")
    }
    assert mounted == built
    for folder in built.values():
        assert trtkit("verify", folder)[0] == trtkit("repo", folder, "--check")[0] == 0
    assert trtkit("repo", contract, "-o", tmp_path / "repos", "--check", *given)[0] == 0


def test_the_repository_of_a_pool_that_is_no_more_is_told_of_and_stays(trtkit, contract, tmp_path):
    save_tokenizer(tmp_path / "model", tokens=260)
    short, long = ["--set", "pools.standard={}"], ["--set", "pools.long={min_prompt_tokens: 8}"]
    command = ("repo", contract, "-o", tmp_path / "repos")
    assert trtkit(*command, *short, *long)[0] == 0
    assert trtkit("repo", contract, "-o", tmp_path / "repos" / "another")[0] == 0
    (tmp_path / "repos/standard/ensemble/config.pbtxt").write_text("# edited\n")
    code, _, err = trtkit(*command, *short, "--check")
    assert code == 7
    assert "1 file not as it would be written; long: the contract has no such pool" in err
    for _ in range(2):
        code, _, err = trtkit(*command, *short, "--overwrite")
        assert (code, "repos/long" in err, "another" in err) == (0, True, False)
    assert (tmp_path / "repos/long/.trtkit-files").is_file()


def test_a_repository_of_the_build_is_renewed_and_nothing_of_the_last_one_stays(trtkit, contract, tmp_path):
    save_tokenizer(tmp_path / "model", tokens=260)
    repo = tmp_path / "repo"
    assert trtkit("build", contract, "-o", repo)[0] == 0
    manifest = json.loads((repo / "trtkit-manifest.json").read_text())
    (repo / "draft/1/engine").mkdir(parents=True)
    (repo / "draft/1/engine/rank0.engine").write_bytes(b"old")
    manifest["files"]["draft/1/engine/rank0.engine"] = {"sha256": "0" * 64, "size_bytes": 3}
    (repo / "trtkit-manifest.json").write_text(json.dumps(manifest))
    (repo / "mine").write_text("")
    assert trtkit("build", contract, "-o", repo, "--set", "engine.limits.max_batch_size=2")[0] == 0
    assert not (repo / "draft").exists()
    assert (repo / "mine").exists()
    assert "max_batch_size: 2" in (repo / "tensorrt_llm/config.pbtxt").read_text()
    (repo / "tensorrt_llm/config.pbtxt").write_text("")
    code, _, err = trtkit("build", contract, "-o", repo)
    assert code == 2
    assert "edited since" in err


def test_files_of_an_engine_that_changed_places_are_noticed(trtkit, contract, tmp_path):
    save_tokenizer(tmp_path / "model", tokens=260)
    repo = tmp_path / "repo"
    assert trtkit("build", contract, "-o", repo)[0] == 0
    engine = repo / "tensorrt_llm/1/engine"
    one, other, *_ = sorted(path for path in engine.iterdir() if path.suffix in {".bin", ".xml"})
    for source, target in ((one, engine / "x"), (other, one), (engine / "x", other)):
        source.rename(target)
    checks = (("repo", repo, "--check"), ("repo", contract, "-o", repo, "--check"), ("verify", repo))
    for manifest in ("of the build", "of its engine"):
        for command in checks:
            code, _, err = trtkit(*command)
            assert code == 6, (manifest, command, err)
            assert "holds what belongs into" in err
        (repo / "trtkit-manifest.json").unlink(missing_ok=True)


def test_what_is_gone_of_a_repository_is_an_error_and_what_was_edited_a_warning(trtkit, for_gpus):
    (for_gpus / "tensorrt_llm_bls/config.pbtxt").open("a").write("# mine\n")
    (for_gpus / "launch.sh").unlink()
    _, out, err = trtkit("repo", for_gpus, "--check", "--output", "json")
    found = {each["file"].removeprefix(f"{for_gpus}/"): each for each in json.loads(out)["problems"]}
    assert found["launch.sh"]["message"] == "is missing"
    assert "edited since" in err
    (for_gpus / "tensorrt_llm/1/engine/trtkit-manifest.json").write_text('{"schema": 1}')
    assert "warning: " in (told := trtkit("repo", for_gpus, "--check")[2])
    assert "written by another version" in told.partition("error:")[0]
    code, _, err = trtkit("repo", for_gpus / "nosuch", "--check")
    assert (code, "no such contract or folder" in err) == (2, True)


def test_a_repository_of_anybody_is_judged_without_its_contract(trtkit, tmp_path):
    model = tmp_path / "repo/preprocessing"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(
        'name: "preprocessing"\nbackend: "python"\nmax_batch_size: ${triton_max_batch_size}\n'
    )
    code, out, _ = trtkit("repo", tmp_path / "repo", "--check", "--output", "json")
    assert code == 6
    problems = json.loads(out)["problems"]
    assert any("unfilled placeholder" in each["message"] and each["line"] == 3 for each in problems)
    assert trtkit("repo", tmp_path / "repo")[0] == 2
    assert trtkit("repo", tmp_path / "repo", "--check", "--line", "9.9")[0] == 2


@pytest.fixture
def for_gpus(tmp_path):
    """A repository of two ranks with its engine, as far as anybody looks at it."""
    plan = planned()
    plan = replace(plan, target=replace(plan.target, ranks=replace(plan.target.ranks, tp=2)))
    write(render(plan, mount="/srv/models"), tmp_path / "repo")
    engine = tmp_path / "repo/tensorrt_llm/1/engine"
    engine.mkdir()
    built = BUILT | {"pretrained_config": {"mapping": {"tp_size": 2}}}
    (engine / "config.json").write_text(json.dumps(built))
    return tmp_path / "repo"


def test_the_command_of_each_rank_is_shown_where_no_server_is(trtkit, for_gpus):
    code, out, _ = trtkit("serve", for_gpus, "--dry-run", "--output", "json", "--grpc-port", 9001)
    assert code == 0
    argv = json.loads(out)["argv"]
    assert argv.count("--model-repository=/srv/models") == 2
    assert argv.count("--grpc-port=9001") == 2
    assert argv.count("--load-model=tensorrt_llm") == 1
    code, _, err = trtkit("serve", for_gpus)
    assert code == 4
    assert "bash /srv/models/launch.sh" in err


def test_the_python_api_and_vllm_are_started_as_their_settings_say(trtkit, tmp_path):
    model = tmp_path / "repo/tensorrt_llm"
    (model / "1").mkdir(parents=True)
    (model / "1/model.py").write_text("")
    config = 'name: "tensorrt_llm"\nbackend: "{}"\nmodel_transaction_policy {{ decoupled: true }}\n'
    for backend, file, text, first in (
        ("python", "model.yaml", "{model: /r/tensorrt_llm/1/m, tensor_parallel_size: 16}", "srun"),
        (
            "python",
            "model.yaml",
            "{model: /r/tensorrt_llm/1/m, tensor_parallel_size: 8, gpus_per_node: 4}",
            "srun",
        ),
        ("vllm", "model.json", '{"model": "/r/tensorrt_llm/1/m"}', "/opt/tritonserver/bin/tritonserver"),
    ):
        (model / "config.pbtxt").write_text(config.format(backend))
        (model / "1" / file).write_text(text)
        argv = json.loads(trtkit("serve", tmp_path / "repo", "--dry-run", "--output", "json")[1])["argv"]
        assert argv[0] == first
        assert "--model-repository=/r" in argv
        code, _, err = trtkit("repo", tmp_path / "repo", "--check")
        assert code == 6
        assert "tensorrt_llm/1/m does not exist" in err
        assert ("triton_config.decoupled in model.yaml false" in err) == (backend == "python")
        (model / "1" / file).unlink()


def test_without_an_engine_nobody_guesses_how_many_ranks_there_are(trtkit, for_gpus):
    (for_gpus / "tensorrt_llm/1/engine/config.json").unlink()
    code, _, err = trtkit("serve", for_gpus, "--dry-run")
    assert code == 2
    assert "how many ranks" in err


def test_what_is_served_from_the_store_cannot_be_removed(trtkit, tmp_path, monkeypatch):
    product = tmp_path / "home/repo/0123"
    product.mkdir(parents=True)
    free = []

    async def look(_):
        free.append(is_free(product))

    monkeypatch.setattr("trtkit.triton.server.TritonServer", ReadyServer)
    monkeypatch.setattr("trtkit.flow.up.watch", look)
    trtkit("serve", product)
    assert free == [False]
