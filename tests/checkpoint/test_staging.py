"""Folders appear whole or not at all."""

from __future__ import annotations

import errno
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest

from trtkit.checkpoint.staging import contents, staged_folder
from trtkit.errors import EnvironmentLacks, InputError


def fill(out, text: str, *names: str) -> None:
    with staged_folder(out) as staging:
        for name in names or ("file",):
            (staging / name).write_text(text)


def test_a_failure_leaves_what_was_there(tmp_path):
    out = tmp_path / "out"
    fill(out, "old")

    def fail():
        with staged_folder(out) as staging:
            (staging / "file").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (out / "file").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_the_target_of_a_link_is_replaced_not_the_link(tmp_path):
    fill(tmp_path / "disk" / "real", "old")
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "real")
    fill(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "real" / "file").read_text() == "new"


def test_two_at_once_do_not_clear_each_other_away(tmp_path):
    out = tmp_path / "out"
    with staged_folder(out) as first:
        (first / "file").write_text("first")
        fill(out, "second")
        assert (first / "file").read_text() == "first"
    assert (out / "file").read_text() == "first"


def test_what_a_killed_process_left_goes_whatever_it_was_making(tmp_path):
    abandoned = tmp_path / ".other.trtkit-staging-1234"
    abandoned.mkdir()
    (tmp_path / ".mine.staging-1").mkdir()
    with staged_folder(tmp_path / "another") as alive:
        fill(tmp_path / "out", "x")
        assert alive.exists()
    assert not abandoned.exists()
    assert (tmp_path / ".mine.staging-1").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        fill(tmp_path / "file" / "out", "x")


@pytest.mark.parametrize(
    ("number", "hint"), [(errno.ENOSPC, "free space"), (errno.EDQUOT, "quota"), (errno.EFBIG, "ulimit -f")]
)
def test_a_full_disk_is_not_a_bug_and_names_the_place(tmp_path, number, hint):
    def fail():
        with staged_folder(tmp_path / "out"):
            raise OSError(number, "no more")

    with pytest.raises(EnvironmentLacks, match="cannot be written: no more") as caught:
        fail()
    assert caught.value.path == str(tmp_path / "out")
    assert hint in caught.value.hint


def test_arrays_that_numpy_could_not_write_whole_name_the_place_and_what_is_free(tmp_path):
    def fail():
        with staged_folder(tmp_path / "out") as folder:
            np.save(folder / "array.npy", np.zeros(100_000))

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(
            EnvironmentLacks, match=r"cannot be written: .* written; [\d,]+ MB are free"
        ) as caught:
            fail()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.path == str(tmp_path / "out")
    assert "free space" in caught.value.hint


@pytest.fixture
def mounted(tmp_path):
    """Mount a folder on itself, within one file system, as a volume of a container may be."""
    place = tmp_path / "a volume"
    place.mkdir()
    if subprocess.run(["mount", "--bind", place, place], capture_output=True, check=False).returncode:
        pytest.skip("mounting takes privileges")
    yield place
    subprocess.run(["umount", place], check=True)


def test_a_mount_point_is_filled_not_renamed(mounted):
    (mounted / "lost+found").mkdir()
    (mounted / "old").mkdir()
    (mounted / ".x.trtkit-staging-1").mkdir()
    for text in ("one", "two"):
        fill(mounted, text)
        assert (mounted / "file").read_text() == text
    assert sorted(path.name for path in mounted.iterdir()) == ["file", "lost+found"]
    assert [path.name for path in mounted.parent.iterdir()] == [mounted.name]


def test_in_a_mount_point_what_describes_the_files_comes_last(mounted, monkeypatch):
    fill(mounted, "old", "config.json")
    monkeypatch.setattr(Path, "rename", lambda path, target: pytest.fail(path.name))
    with pytest.raises(pytest.fail.Exception, match=r"^file$"):
        fill(mounted, "new", "config.json", "file", "trtkit-manifest.json")
    assert contents(mounted) == []
