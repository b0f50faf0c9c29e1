"""Folders appear whole or not at all."""

from __future__ import annotations

import errno

import pytest

from trtkit.checkpoint.staging import staged_folder
from trtkit.errors import EnvironmentLacks, InputError


def fill(out, text: str) -> None:
    with staged_folder(out) as staging:
        (staging / "file").write_text(text)


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


def test_a_full_disk_is_not_a_bug(tmp_path):
    def fail():
        with staged_folder(tmp_path / "out"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(EnvironmentLacks, match="No space left"):
        fail()
