import os
import subprocess
import sys

import pytest

from trtkit.conventions import MANIFEST
from trtkit.engine.contents import Limits, State, bytes_on_disk, choose, list_entries, remove
from trtkit.engine.store import CachePolicy, Stage, Store
from trtkit.engine.uses import write_use

NOW_S = 1_000_000.0


@pytest.fixture
def product(tmp_path):
    """Make a product that was used some time ago and that nobody holds."""

    def make(key, *, unused_s=0.0, size=1000, stage="convert"):
        def write(out):
            (out / "weights").write_bytes(bytes(size))
            return {}

        store = Store(tmp_path)
        made = store.produce(Stage(stage, {"a": key}, write))
        store.release()
        os.utime(made.path / MANIFEST, (NOW_S - unused_s,) * 2)
        return made.path

    return make


def chosen(root, **limits):
    return {each.path for each in choose(list_entries(root), Limits(**limits), now_s=NOW_S)}


def test_nothing_that_is_whole_goes_unasked(tmp_path, product):
    product(1)
    assert chosen(tmp_path) == set()


def test_age_counts_from_the_last_use(tmp_path, product):
    old, _ = product(1, unused_s=100), product(2, unused_s=10)
    assert chosen(tmp_path, max_age_s=50) == {old}


def test_the_least_lately_used_go_until_the_rest_fits(tmp_path, product):
    paths = [product(key, unused_s=key, size=100_000) for key in (1, 2, 3)]
    assert chosen(tmp_path, max_bytes=210_000) == {paths[2]}
    assert chosen(tmp_path, max_bytes=0) == set(paths)


def test_a_file_that_two_products_share_is_on_disk_once(tmp_path, product):
    first, second = product(1), product(2, stage="repo")
    before = bytes_on_disk(list_entries(tmp_path))
    (second / "weights").unlink()
    (second / "weights").hardlink_to(first / "weights")
    assert bytes_on_disk(list_entries(tmp_path)) == before - 1000


def test_unused_is_what_no_contract_s_last_build_went_through(tmp_path, product):
    contract = tmp_path / "contract.yaml"
    contract.write_text("")
    kept, left = product(1), product(2)
    write_use(tmp_path, contract, ("a=1",), [kept])
    assert chosen(tmp_path, unused=True) == {left}
    (entry,) = [each for each in list_entries(tmp_path) if each.path == kept]
    assert entry.contracts == (f"{contract} a=1",)
    contract.unlink()
    assert chosen(tmp_path, unused=True) == {kept, left}


def test_what_is_in_use_never_goes(tmp_path, product):
    path = product(1, unused_s=100)
    store = Store(tmp_path)
    store.hold(path / "weights")
    (entry,) = list_entries(tmp_path)
    assert entry.in_use
    assert chosen(tmp_path, max_age_s=0, max_bytes=0, unused=True) == set()
    store.release()
    assert chosen(tmp_path, max_age_s=1) == {path}


USER = """
import sys
from pathlib import Path
from trtkit.engine.store import Store
store = Store(Path(sys.argv[1]))
store.hold(Path(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


def test_use_by_another_process_ends_with_it(tmp_path, product):
    path = product(1)
    (entry,) = list_entries(tmp_path)
    command = [sys.executable, "-c", USER, str(tmp_path), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as user:
        assert user.stdout.readline() == b"held\n"
        assert not remove(entry)
        user.kill()
        user.wait()
    assert remove(entry)
    assert list_entries(tmp_path) == []


def test_what_a_running_server_names_is_in_use(tmp_path, product):
    path = product(1)
    script = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, f"--model-repository={path}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        server.stdout.readline()
        (entry,) = list_entries(tmp_path)
        assert entry.in_use
        server.stdin.close()
    (entry,) = list_entries(tmp_path)
    assert not entry.in_use


def test_damaged_set_aside_and_bypassing_products_go_unasked(tmp_path, product):
    damaged, replaced = product(1), product(2)
    (replaced / "weights").unlink()
    product(2)
    (damaged / "weights").unlink()
    store = Store(tmp_path, CachePolicy.OFF)
    store.produce(Stage("convert", {"a": 3}, lambda out: {}))
    states = {each.state for each in list_entries(tmp_path)}
    assert states == {State.WHOLE, State.DAMAGED, State.SET_ASIDE, State.UNCACHED}
    assert len(chosen(tmp_path)) == 2
    store.release()
    assert len(chosen(tmp_path)) == 3


def test_what_is_being_made_is_in_use(tmp_path):
    def look(out):
        (entry,) = list_entries(tmp_path)
        assert (entry.state, entry.in_use) == (State.UNFINISHED, True)
        return {}

    Store(tmp_path).produce(Stage("convert", {"a": 1}, look))
