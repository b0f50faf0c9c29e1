"""What a build records, why it builds, and what is left of it in the store."""

import json
from pathlib import Path

import pytest

from tests.checkpoint.conftest import tiny_llama  # noqa: F401 - a fixture
from tests.cli.test_jobs import contract  # noqa: F401 - a fixture
from trtkit.canonical import canonical_json
from trtkit.conventions import MANIFEST
from trtkit.engine.manifest import read_manifest
from trtkit.engine.store import Stage, Store


@pytest.fixture
def built(trtkit, contract):  # noqa: F811 - the fixture
    """Build the tiny contract; return its path and the document that says where everything is."""
    path = contract()
    code, out, err = trtkit("build", path, "--output", "json")
    assert code == 0, err
    return path, json.loads(out)


def explained(trtkit, path, *arguments):
    code, out, _ = trtkit("build", path, "--explain", "--output", "json", *arguments)
    assert code == 0
    return {step["stage"]: step["why"] for step in json.loads(out)["stages"]}


def test_the_manifest_says_what_a_repository_was_made_of_and_for(built):
    path, document = built
    for product in document["stages"]:
        text = (Path(product["path"]) / MANIFEST).read_text()
        assert text == canonical_json(json.loads(text))
        manifest = json.loads(text)
        origin = manifest["origin"]
        assert origin["contract"] == {"path": str(path), "name": "tiny", "set": []}
        assert origin["source"]["name"] == "model"
        assert len(origin["source"]["files"]["model.safetensors"]) == 64
        assert origin["target"]["backend"] == "cpu"
        assert origin["target"]["sm"] is None
        assert {"trtkit", "python", "numpy", "ml_dtypes", "openvino"} <= origin["tools"].keys()
        assert origin["plan"]["limits"]["max_batch_size"] == 4
        assert origin["plan"]["memory"]["kv_bytes_per_token"] > 0
        assert manifest["files"]


def test_comments_and_order_change_no_key(trtkit, built):
    path, _ = built
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("# a comment\n" + "".join(lines))
    config = path.parent / "model" / "config.json"
    config.write_text(json.dumps(dict(reversed(json.loads(config.read_text()).items())), indent=7))
    assert explained(trtkit, path) == {"convert": [], "compile": [], "repo": []}


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ("classes.only.ttft_ms=50", {"convert": 0, "compile": 0, "repo": 0}),
        ("engine.limits.max_num_tokens=32", {"convert": 0, "compile": 1, "repo": 1}),
        ("model.dtype=float16", {"convert": 1, "compile": 1, "repo": 1}),
    ],
)
def test_a_change_reaches_the_stages_that_it_has_to(trtkit, built, change, reasons):
    path, _ = built
    assert {stage: len(why) for stage, why in explained(trtkit, path, "--set", change).items()} == reasons


def test_reasons_have_the_contract_s_words_and_both_values(trtkit, built):
    path, _ = built
    why = explained(trtkit, path, "--set", "model.dtype=float16")
    assert why["convert"] == ["model.dtype: bfloat16 -> float16"]
    assert why["compile"][0].startswith("the product of convert: ")
    _, out, _ = trtkit("build", path, "--explain", "--set", "engine.limits.max_num_tokens=32")
    assert "engine.limits.max_num_tokens: 64 -> 32" in out


def test_a_readonly_build_hits_or_names_the_stage(trtkit, built):
    path, _ = built
    assert trtkit("build", path, "--cache", "readonly")[0] == 0
    code, _, err = trtkit("build", path, "--cache", "readonly", "--set", "model.dtype=float16")
    assert code == 4
    assert "convert is not in the store" in err


def test_a_damaged_product_is_made_again_and_told(trtkit, built):
    path, document = built
    (engine,) = [each["path"] for each in document["stages"] if each["stage"] == "compile"]
    (Path(engine) / "config.json").write_text("{}")
    assert "damaged" in explained(trtkit, path)["compile"][0]
    code, _, err = trtkit("build", path)
    assert code == 0
    assert "set aside" in err
    assert read_manifest(Path(engine)) is not None


def test_the_store_is_listed_with_the_contracts_that_use_it(trtkit, built):
    path, document = built
    entries = json.loads(trtkit("cache", "ls", "--output", "json")[1])["entries"]
    listed = {each["path"]: each["contracts"] for each in entries}
    assert listed == {each["path"]: [str(path)] for each in document["stages"]}
    assert str(path) in trtkit("cache", "ls")[1]


def test_a_product_is_found_by_the_beginning_of_its_key(trtkit, built, tmp_path):
    _, document = built
    product = document["stages"][0]
    assert trtkit("cache", "path", product["key"][:10])[1].strip() == product["path"]
    assert trtkit("cache", "path")[1].strip() == str(tmp_path / "home")
    assert trtkit("cache", "path", "no-such-key")[0] == 2


def test_gc_says_what_would_go_and_leaves_what_is_in_use(trtkit, built):
    path, _ = built
    path.unlink()
    # The builds above ran in this process, which holds what they made.
    assert "3 in use" in trtkit("cache", "gc", "--unused", "--dry-run")[1]
    assert trtkit("cache", "ls")[1].count("in use") == 3


def test_gc_removes_what_no_contract_uses(trtkit, tmp_path):
    store = Store(tmp_path / "home")
    product = store.produce(Stage("convert", {}, lambda out: (out / "w").write_bytes(b"x") and {}))
    store.release()
    assert json.loads(trtkit("cache", "gc", "--unused", "--dry-run", "--output", "json")[1])["bytes"] > 0
    assert product.path.exists()
    assert "1 folder removed" in trtkit("cache", "gc", "--unused")[1]
    assert not product.path.exists()


def test_what_is_not_trtkit_s_is_told_and_stays(trtkit, tmp_path):
    (tmp_path / "home" / "Documents" / "thesis").mkdir(parents=True)
    for verb in (("ls",), ("gc", "--unused")):
        _, out, err = trtkit("cache", *verb)
        assert "home: 0 folders" in out
        assert "never removed (there is no .trtkit-store, which the next build writes): Documents" in err
    assert json.loads(trtkit("cache", "ls", "--output", "json")[1])["foreign"] == [
        str(tmp_path / "home" / "Documents")
    ]
    assert (tmp_path / "home" / "Documents" / "thesis").is_dir()


def test_gc_goes_on_after_what_it_cannot_remove(trtkit, tmp_path, monkeypatch):
    store = Store(tmp_path / "home")
    paths = [store.produce(Stage("convert", {"a": each}, lambda out: {})).path for each in range(3)]
    store.release()
    rename = Path.rename

    def refuse(path, target):
        if path == paths[1]:
            raise PermissionError(13, "Permission denied", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    code, out, err = trtkit("cache", "gc", "--unused", "--output", "json")
    assert code == 4
    assert f"{paths[1]}: 1 folder cannot be removed: Permission denied" in err
    assert "fix: make the store writable" in err
    assert len(json.loads(out)["removed"]) == 2
    assert [path.exists() for path in paths] == [False, True, False]


def test_a_store_that_is_no_folder_is_told(trtkit, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRTKIT_HOME", str(tmp_path / "file"))
    for arguments in (("ls",), ("gc", "--dry-run"), ("path",)):
        code, _, err = trtkit("cache", *arguments)
        assert (code, "the store is no folder" in err) == (4, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--max-age", "soon"),
        ("--max-size", "10 parsecs"),
        ("--max-size", "\u0665GB"),
        ("--max-age", ""),
        ("--max-size", ""),
    ],
)
def test_ages_and_sizes_that_are_none_are_refused(trtkit, arguments):
    code, _, err = trtkit("cache", "gc", *arguments)
    assert code == 2
    assert arguments[1] in err


@pytest.mark.parametrize("words", [["cache", "path"], ["verify"], ["inspect"]], ids=" ".join)
def test_an_empty_name_is_no_name_for_all_that_there_is(trtkit, words):
    code, out, err = trtkit(*words, "")
    assert (code, out) == (2, "")
    assert "empty" in err
