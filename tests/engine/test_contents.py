import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trtkit.conventions import MANIFEST
from trtkit.engine.contents import (
    Limits,
    State,
    bytes_on_disk,
    choose,
    list_entries,
    list_foreign,
    remove,
)
from trtkit.engine.store import CORRUPT, MARKER, STAGES, UNCACHED, CachePolicy, Stage, Store
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
    assert entry.used_s > NOW_S
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


@pytest.mark.parametrize(
    "argument",
    [
        "--model-repository={store}/{product}",
        "--model-repository={product}",
        "--model-repository={links}/live",
        "--mount=type=bind,source={links}/store/{product}/weights,target=/models",
        "tritonserver '--model-repository={store}/{product}'; true",
    ],
    ids=["absolute", "relative", "link", "through another path", "shell"],
)
def test_what_a_running_server_names_is_in_use(tmp_path, product, tmp_path_factory, argument):
    path, links = product(1), tmp_path_factory.mktemp("links")
    (links / "live").symlink_to(path)
    (links / "store").symlink_to(tmp_path)
    named = argument.format(store=tmp_path, product=path.relative_to(tmp_path), links=links)
    script = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, named]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path) as server:
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


NAMES = st.sampled_from(
    [
        *(*STAGES, CORRUPT, UNCACHED, "log", "contracts", "Documents", ".git", "convert-backup-2024"),
        *("0" * 32, "a" * 31, "build-1", "x-0123456789abcdef"),
    ]
)
TREES = st.lists(
    st.tuples(NAMES, NAMES, st.sampled_from(["file", "config.json", "README"]), st.booleans()), max_size=8
)
LIMITS = st.builds(
    Limits, max_age_s=st.sampled_from([None, 0]), max_bytes=st.sampled_from([None, 0]), unused=st.booleans()
)


def plant(root, elsewhere, tree):
    """Put files of somebody else into a folder, some behind links; return all of them."""
    for top, below, name, is_link in tree:
        place = root / top
        if is_link and not place.exists():
            (elsewhere / top).mkdir(parents=True, exist_ok=True)
            place.symlink_to(elsewhere / top)
        if is_link and not (place / below).is_symlink() and not (place / below).exists():
            (elsewhere / "deep" / below).mkdir(parents=True, exist_ok=True)
            (place / below).symlink_to(elsewhere / "deep" / below)
        (place / below).mkdir(parents=True, exist_ok=True)
        (place / below / name).write_text("mine")
    return {path for folder in (root, elsewhere) for path in folder.rglob("*")}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tree=TREES, limits=LIMITS, is_store=st.booleans())
def test_what_no_build_made_survives_every_option(tmp_path_factory, tree, limits, is_store):
    root, elsewhere = tmp_path_factory.mktemp("root"), tmp_path_factory.mktemp("elsewhere")
    theirs = plant(root, elsewhere, tree)
    if is_store:
        store = Store(root)
        made = store.produce(Stage("convert", {"a": 1}, lambda out: {})).path
        store.release()
    for entry in choose(list_entries(root), limits, now_s=NOW_S * 10_000):
        assert remove(entry)
    assert {path for path in theirs if not path.exists()} == set()
    # What lies behind a link stays as well.
    if is_store and limits != Limits() and not made.parent.is_symlink():
        assert not made.exists()


def test_foreign_folders_are_named(tmp_path, product):
    made = product(1)
    (tmp_path / "photos").mkdir()
    (made.parent / "backup").mkdir()
    (tmp_path / "compile").symlink_to(made.parent)
    assert list_foreign(tmp_path) == [tmp_path / "compile", made.parent / "backup", tmp_path / "photos"]
    (tmp_path / MARKER).unlink()
    assert list_entries(tmp_path) == []
    assert made.parent in list_foreign(tmp_path)


def test_a_removal_that_was_killed_leaves_what_the_next_one_takes(tmp_path, product, monkeypatch):
    product(1)
    (entry,) = list_entries(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            remove(entry)
    (left,) = list_entries(tmp_path)
    assert left.state is State.UNFINISHED
    assert remove(left)
    assert list_entries(tmp_path) == []


def test_every_kind_of_entry_is_known_by_its_name(tmp_path):
    keys = {
        "calibrate": f".{'a' * 32}",
        UNCACHED: f"build-{'b' * 16}",
        CORRUPT: f"convert-{'c' * 12}-abcd_123",
    }
    keys["repo"] = f".{'d' * 32}.trtkit-staging-x1y2z3_4"
    keys["source"] = ".model-0123456789abcdef.trtkit-staging-x1y2z3_4"
    for stage, key in keys.items():
        (tmp_path / stage / key).mkdir(parents=True)
    (tmp_path / MARKER).write_text("")
    assert {each.stage: each.key for each in list_entries(tmp_path)} == keys
    assert list_foreign(tmp_path) == []
