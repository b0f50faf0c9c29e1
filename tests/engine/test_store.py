import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from filelock import FileLock

from trtkit.canonical import canonical_json, content_key
from trtkit.conventions import MANIFEST
from trtkit.engine.contents import State, list_entries
from trtkit.engine.manifest import read_manifest
from trtkit.engine.store import CachePolicy, Stage, Store
from trtkit.errors import EnvironmentLacks, InputError


def stage(inputs, run=None, name="convert"):
    def write(out):
        (out / "weights").write_bytes(b"abc")
        return {"tensors": 1}

    return Stage(name, inputs, run or write)


def test_a_second_run_is_a_hit(tmp_path):
    store = Store(tmp_path)
    first, second = store.produce(stage({"a": 1})), store.produce(stage({"a": 1}))
    assert (first.hit, second.hit, first.path) == (False, True, second.path)
    assert second.facts == {"tensors": 1}


def test_the_manifest_lists_digest_and_size_of_every_file(tmp_path):
    product = Store(tmp_path).produce(stage({"a": 1}))
    manifest = read_manifest(product.path)
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert manifest.files == {"weights": {"sha256": digest, "size_bytes": 3}}
    assert manifest.inputs == {"a": 1}


def test_the_key_depends_on_content_and_not_on_order():
    assert content_key({"a": 1, "b": {"c": 2, "d": 3}}) == content_key({"b": {"d": 3, "c": 2}, "a": 1})
    assert content_key({"a": 1}) != content_key({"a": 2})


def test_a_failed_stage_leaves_nothing(tmp_path):
    def fail(out):
        (out / "half").write_bytes(b"x")
        raise RuntimeError("no")

    store = Store(tmp_path)
    with pytest.raises(RuntimeError):
        store.produce(stage({"a": 1}, fail))
    assert [path.name for path in (tmp_path / "convert").iterdir() if path.is_dir()] == []


def test_a_product_without_manifest_is_made_again(tmp_path):
    store = Store(tmp_path)
    product = store.produce(stage({"a": 1}))
    (product.path / MANIFEST).unlink()
    assert not store.produce(stage({"a": 1})).hit


def test_a_product_with_a_broken_manifest_is_made_again(tmp_path):
    store = Store(tmp_path)
    product = store.produce(stage({"a": 1}))
    (product.path / MANIFEST).write_text("{")
    assert not store.produce(stage({"a": 1})).hit


KILLED = """
import os, signal, sys
from pathlib import Path
from trtkit.engine.store import CachePolicy, Stage, Store
from trtkit.errors import EnvironmentLacks, InputError
def run(out):
    (out / "half").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
Store(Path(sys.argv[1])).produce(Stage("convert", {"a": 1}, run))
"""


def test_a_killed_build_leaves_no_product_and_does_not_block_the_next(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    store = Store(tmp_path)
    assert store.find("convert", content_key({"a": 1})) is None
    product = store.produce(stage({"a": 1}))
    assert sorted(path.name for path in product.path.iterdir()) == [MANIFEST, "weights"]


def shortened(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [shortened, os.remove])
def test_a_product_that_lost_a_part_is_made_again(tmp_path, damage):
    store = Store(tmp_path)
    product = store.produce(stage({"a": 1}))
    damage(product.path / "weights")
    assert not store.produce(stage({"a": 1})).hit
    assert (product.path / "weights").read_bytes() == b"abc"
    assert store.produce(stage({"a": 1})).hit


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"files": []}, "files is []"),
        ({"files": {"weights": {}}}, "files.weights is {}"),
        ({"files": {"weights": 3}}, "files.weights is 3"),
        ({"files": {"../weights": {"sha256": "", "size_bytes": 3}}}, "not inside of the folder"),
        ({"files": {"weights": {"sha256": "0" * 64, "size_bytes": True}}}, '"size_bytes": true'),
        ({"files": {"weights": {"sha256": "0" * 64, "size_bytes": float("inf")}}}, "Infinity"),
        ({"files": {"weights": {"sha256": 1, "size_bytes": 3}}}, "files.weights is"),
        ({"origin": []}, "origin is []"),
        ({"origin": {"target": 3}}, "origin.target is 3"),
        ({"origin": {"target": {"sm": "90"}}}, 'origin.target.sm is "90"'),
        ({"origin": {"target": {"sms": ["90"]}}}, "origin.target.sms is"),
        ({"origin": {"contract": {"set": [1]}}}, "origin.contract.set is [1]"),
        ({"stage": "../../x"}, 'stage is "../../x"'),
        ({"gate": []}, "gate is []"),
        ({"schema": 3.0}, "schema is 3.0"),
        ({"inputs": None}, "inputs is null"),
        ({"foo": 1}, "the key foo is unknown"),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path, change, said):
    product = Store(tmp_path).produce(stage({"a": 1}))
    manifest = json.loads((product.path / MANIFEST).read_text())
    (product.path / MANIFEST).write_text(json.dumps(manifest | change))
    with pytest.raises(InputError, match="not a trtkit manifest: .*" + re.escape(said)):
        read_manifest(product.path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("null", "it is null"),
        ("[" * 200_000, "nested too deeply"),
        ('{"schema": 3, "facts": ' + '{"a": ' * 900 + "1" + "}" * 901, ""),
        (None, "trtkit-manifest.json was changed"),
    ],
)
def test_no_manifest_keeps_others_from_being_listed(tmp_path, text, said):
    product = Store(tmp_path).produce(stage({"a": 1}))
    path = product.path / MANIFEST
    if text is None:
        text = json.dumps(
            json.loads(path.read_text()) | {"facts": json.loads('{"a": ' * 300 + "1" + "}" * 300)}
        )
    path.write_text(text)
    assert [entry.state for entry in list_entries(tmp_path)] == [State.DAMAGED]
    assert said in Store(tmp_path).damage("convert", product.key)
    assert not Store(tmp_path).produce(stage({"a": 1})).hit


def test_a_name_that_no_file_can_have_is_a_missing_file(tmp_path):
    product = Store(tmp_path).produce(stage({"a": 1}))
    manifest = read_manifest(product.path)
    replace(manifest, files={"w" * 300: manifest.files["weights"]}).write(product.path)
    assert [entry.state for entry in list_entries(tmp_path)] == [State.DAMAGED]
    assert "is missing" in Store(tmp_path).damage("convert", product.key)


def test_a_product_that_is_there_needs_no_writing(tmp_path):
    product = Store(tmp_path).produce(stage({"a": 1}))
    lock = product.path.with_suffix(".lock")
    lock.unlink(missing_ok=True)
    lock.mkdir()
    assert Store(tmp_path).produce(stage({"a": 1})).hit


def test_a_store_that_cannot_be_written_to_is_named_with_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentLacks, match=r"cannot be written to.*\n.*TRTKIT_HOME"):
        Store(tmp_path / "file").produce(stage({"a": 1}))


def overwritten(path):
    path.write_bytes(b"X" + path.read_bytes()[1:])


@pytest.mark.parametrize("size", [3, 3 << 20])
def test_what_was_written_over_in_its_size_is_made_again(tmp_path, size):
    big = stage({"a": 1}, lambda out: (out / "weights").write_bytes(bytes(size)) and {})
    product = Store(tmp_path).produce(big)
    assert Store(tmp_path).produce(big).hit
    overwritten(product.path / "weights")
    store = Store(tmp_path)
    assert not store.produce(big).hit
    assert "weights has other content" in store.set_aside[0].message


def test_a_large_file_that_keeps_its_time_is_read_when_asked(tmp_path):
    big = stage({"a": 1}, lambda out: (out / "weights").write_bytes(bytes(3 << 20)) and {})
    weights = Store(tmp_path).produce(big).path / "weights"
    before = weights.stat()
    overwritten(weights)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns - 10**9))
    assert Store(tmp_path).produce(big).hit
    assert not Store(tmp_path, CachePolicy.VERIFY).produce(big).hit


def test_a_copied_store_is_read_once_and_hit(tmp_path, monkeypatch):
    big = stage({"a": 1}, lambda out: (out / "weights").write_bytes(bytes(3 << 20)) and {})
    weights = Store(tmp_path).produce(big).path / "weights"
    os.utime(weights)
    assert Store(tmp_path).produce(big).hit
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns - 10**7))
    monkeypatch.setattr("trtkit.engine.manifest.digest_of", lambda path: pytest.fail(f"{path} is read"))
    assert Store(tmp_path).find("convert", big.key)


def test_added_files_are_damage_where_every_byte_is_read(tmp_path):
    product = Store(tmp_path).produce(stage({"a": 1}))
    (product.path / "evil.so").write_bytes(b"")
    assert Store(tmp_path).produce(stage({"a": 1})).hit
    assert not Store(tmp_path, CachePolicy.VERIFY).produce(stage({"a": 1})).hit


def test_what_python_compiles_of_a_product_s_files_is_no_addition(tmp_path):
    def write(out):
        (out / "model.py").write_text("")
        return {}

    product = Store(tmp_path).produce(stage({"a": 1}, write))
    (product.path / "__pycache__").mkdir()
    (product.path / "__pycache__" / "model.cpython-312.pyc").write_bytes(b"")
    assert read_manifest(product.path).added(product.path) == []
    (product.path / "__pycache__" / "other.cpython-312.pyc").write_bytes(b"")
    (product.path / "link").symlink_to("/")
    assert read_manifest(product.path).added(product.path) == ["__pycache__/other.cpython-312.pyc", "link"]


def never(out):
    pytest.fail("nothing has to be made")


def test_readonly_uses_what_is_there_and_refuses_to_make_anything(tmp_path):
    Store(tmp_path).produce(stage({"a": 1}))
    store = Store(tmp_path, CachePolicy.READONLY)
    assert store.produce(stage({"a": 1}, never)).hit
    with pytest.raises(EnvironmentLacks, match=r"convert is not in the store.*readonly"):
        store.produce(stage({"a": 2}, never))


def test_redo_replaces_what_is_there(tmp_path):
    store = Store(tmp_path)
    store.produce(stage({"a": 1}))
    store.release()
    product = Store(tmp_path, CachePolicy.REDO).produce(stage({"a": 1}))
    assert not product.hit
    assert Store(tmp_path).produce(stage({"a": 1}, never)).hit


def test_redo_leaves_what_another_process_uses(tmp_path):
    user = Store(tmp_path)
    user.produce(stage({"a": 1}))
    with pytest.raises(EnvironmentLacks, match="is in use"):
        Store(tmp_path, CachePolicy.REDO).produce(stage({"a": 1}))


def test_off_neither_uses_the_store_nor_adds_to_it(tmp_path):
    store = Store(tmp_path)
    store.produce(stage({"a": 1}))
    aside = Store(tmp_path, CachePolicy.OFF)
    first, second = aside.produce(stage({"a": 1})), aside.produce(stage({"a": 2}))
    assert (first.hit, second.hit) == (False, False)
    assert first.path == aside.path("convert", first.key)
    assert store.find("convert", second.key) is None


def test_the_policy_comes_from_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TRTKIT_CACHE_POLICY", "readonly")
    assert Store(tmp_path).policy is CachePolicy.READONLY
    monkeypatch.setenv("TRTKIT_CACHE_POLICY", "sometimes")
    with pytest.raises(InputError, match="on, off, redo, readonly, verify"):
        Store(tmp_path)


def test_a_damaged_product_is_kept_aside_and_told(tmp_path):
    product = Store(tmp_path).produce(stage({"a": 1}))
    shortened(product.path / "weights")
    store = Store(tmp_path)
    assert not store.produce(stage({"a": 1})).hit
    (told,) = store.set_aside
    assert "weights has 2 bytes of 3" in told.message
    assert sorted(os.listdir(told.file)) == [MANIFEST, "weights"]


def test_a_manifest_that_was_changed_is_damage(tmp_path):
    product = Store(tmp_path).produce(stage({"a": 1}))
    manifest = json.loads((product.path / MANIFEST).read_text())
    (product.path / MANIFEST).write_text(canonical_json(manifest | {"facts": {"tensors": 2}}))
    assert "was changed" in Store(tmp_path).damage("convert", product.key)


def test_the_manifest_is_canonical_json(tmp_path):
    product = Store(tmp_path).produce(
        stage({"b": {"d": 1.5, "c": None}}), origin={"plan": {"z": float("inf"), "a": "é"}}
    )
    text = (product.path / MANIFEST).read_text()
    assert text == canonical_json(json.loads(text))
    assert json.loads(text)["origin"]["plan"] == {"z": "Infinity", "a": "é"}
    assert read_manifest(product.path).is_as_written


def test_who_waits_for_another_build_is_told(tmp_path):
    heard, store = [], Store(tmp_path)
    key = stage({"a": 1}).key
    with FileLock(store.path("convert", key).with_suffix(".lock"), thread_local=False) as lock:

        def tell(text):
            heard.append(text)
            lock.release()

        assert not Store(tmp_path, tell=tell).produce(stage({"a": 1})).hit
    assert "waiting for another process that makes" in heard[0]
