import fcntl
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.errors import InputError
from trtkit.triton.folder import RECORD, State, check, drifts, write
from trtkit.triton.parts import install

FILES = {"a/config.pbtxt": b"one", "a/1/model.py": b"two"}


def tree(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_written_folder_has_no_drift(tmp_path):
    assert write(FILES, tmp_path) == sorted(FILES)
    assert check(FILES, tmp_path) == []
    assert write(FILES, tmp_path) == []


def test_drift_names_what_changed_vanished_or_is_left_over(tmp_path):
    write(FILES | {"b/config.pbtxt": b"three"}, tmp_path)
    (tmp_path / "a/config.pbtxt").write_bytes(b"edited")
    (tmp_path / "a/1/model.py").unlink()
    assert check(FILES, tmp_path) == ["a/1/model.py", "a/config.pbtxt", "b/config.pbtxt"]


def test_files_of_an_earlier_run_go_and_files_of_others_stay(tmp_path):
    write(FILES | {"old/1/model.py": b"three"}, tmp_path)
    (tmp_path / "a/notes.txt").write_text("mine")
    write(FILES, tmp_path)
    assert not (tmp_path / "old").exists()
    assert (tmp_path / "a/notes.txt").read_text() == "mine"


@pytest.mark.parametrize("line", ["../victim.txt", "a/../../victim.txt", "{victim}", "link/victim.txt", ".."])
def test_a_record_that_points_outside_is_refused(tmp_path, line):
    victim, out = tmp_path / "victim.txt", tmp_path / "repo"
    victim.write_text("mine")
    write(FILES, out)
    (out / "link").symlink_to(tmp_path)
    with (out / RECORD).open("a") as record:
        record.write(line.format(victim=victim) + "\n")
    for act in (check, write):
        with pytest.raises(InputError, match="not inside this folder"):
            act(FILES, out)
    assert victim.exists()


def test_an_edit_is_noticed_shown_and_kept(tmp_path):
    write(FILES, tmp_path)
    (tmp_path / "a/config.pbtxt").write_bytes(b"edited")
    (drift,) = drifts(FILES, tmp_path)
    assert drift.state is State.EDITED
    assert {"-edited", "+one"} <= set(drift.diff.splitlines())
    for files in (FILES, {"a/1/model.py": b"two"}):  # changed, and no longer written
        with pytest.raises(InputError, match=r"edited since trtkit wrote it: a/config\.pbtxt"):
            write(files, tmp_path)
    assert (tmp_path / "a/config.pbtxt").read_bytes() == b"edited"
    write(FILES, tmp_path, overwrite=True)
    assert check(FILES, tmp_path) == []


def test_a_full_disk_changes_nothing(tmp_path):
    write(FILES, tmp_path)
    before, limits = tree(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match="large"):
            write({"a/config.pbtxt": b"new", "b/1/model.py": b"x" * 10_000}, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert tree(tmp_path) == before


def test_a_run_that_was_killed_among_its_renames_is_completed_by_the_next(tmp_path, monkeypatch):
    write(FILES, tmp_path)
    replace, calls = Path.replace, []

    def killed(self, target):
        calls.append(target)
        if len(calls) == 3:  # the record, one file
            raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write(dict.fromkeys(FILES, b"new"), tmp_path)
    monkeypatch.undo()
    newest = dict.fromkeys(FILES, b"newest")
    write(newest, tmp_path)
    assert {path: content for path, content in tree(tmp_path).items() if path != RECORD} == newest


def test_one_process_writes_at_a_time(tmp_path):
    (tmp_path / ".trtkit-staged").mkdir()
    other = os.open(tmp_path / ".trtkit-staged", os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    with pytest.raises(InputError, match="in use"):
        write(FILES, tmp_path)
    os.close(other)
    write(FILES, tmp_path)
    assert tree(tmp_path).keys() == {*FILES, RECORD}


def test_records_of_earlier_versions_are_read(tmp_path):
    write(FILES, tmp_path)
    (tmp_path / RECORD).write_text("# by an earlier version\n" + "".join(f"{path}\n" for path in FILES))
    write({"a/config.pbtxt": b"new"}, tmp_path)
    assert not (tmp_path / "a/1").exists()


def test_a_file_in_the_place_of_a_folder_is_somebody_else_s(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(InputError, match="did not write"):
        write(FILES, tmp_path)
    assert tree(tmp_path) == {"a": b"mine"}


def test_a_file_of_somebody_else_is_never_overwritten(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.pbtxt").write_text("by hand")
    with pytest.raises(InputError, match=r"a/config\.pbtxt"):
        write(FILES, tmp_path)
    assert tree(tmp_path) == {"a/config.pbtxt": b"by hand"}


paths = st.sampled_from(["m/config.pbtxt", "m/1/model.py", "n/config.pbtxt", "n/1/.gitkeep"])
renders = st.dictionaries(paths, st.binary(max_size=3), max_size=4)


@given(history=st.lists(renders, min_size=1, max_size=4))
def test_the_last_write_decides_whatever_came_before(tmp_path_factory, history):
    root = tmp_path_factory.mktemp("repo")
    for files in history:
        write(files, root)
    assert {path: content for path, content in tree(root).items() if path != RECORD} == history[-1]


@pytest.fixture
def parts(tmp_path):
    for name in ("engine/rank0.engine", "tokenizer/tokenizer.json", "tokenizer/model.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_weights_of_a_graph_have_one_name_each_so_that_onnx_reads_them(parts):
    (parts / "engine/model.onnx.data").write_bytes(b"weights")
    install(parts / "repo", parts / "engine", parts / "tokenizer")
    placed = parts / "repo/tensorrt_llm/1/engine/model.onnx.data"
    assert (placed.read_bytes(), placed.stat().st_nlink) == (b"weights", 1)


def test_engine_and_tokenizer_are_linked_under_the_version_directories(parts):
    install(parts / "repo", parts / "engine", parts / "tokenizer")
    placed = parts / "repo/tensorrt_llm/1/engine/rank0.engine"
    assert os.path.samefile(placed, parts / "engine/rank0.engine")
    for model in ("tensorrt_llm", "preprocessing", "postprocessing", "tensorrt_llm_bls"):
        assert os.listdir(parts / f"repo/{model}/1/tokenizer") == ["tokenizer.json"]


def test_a_new_engine_replaces_the_old_one_whole(parts):
    install(parts / "repo", parts / "engine", parts / "tokenizer")
    (parts / "engine/rank0.engine").rename(parts / "engine/rank1.engine")
    install(parts / "repo", parts / "engine", parts / "tokenizer")
    assert os.listdir(parts / "repo/tensorrt_llm/1") == ["engine", "tokenizer"]
    assert os.listdir(parts / "repo/tensorrt_llm/1/engine") == ["rank1.engine"]


def test_what_is_missing_is_named_before_anything_is_placed(parts):
    (parts / "tokenizer/tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        install(parts / "repo", parts / "engine", parts / "tokenizer")
    with pytest.raises(InputError, match="no tokenizer"):
        install(parts / "repo", parts / "engine", parts / "org/name")
    assert not (parts / "repo").exists()
