"""Safetensors: what is written is read back, and what is damaged is recognized from its header."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtkit.checkpoint.safetensors import SafetensorsWriter, TensorSpec, read_header
from trtkit.checkpoint.stand_ins import lfs_size
from trtkit.errors import InputError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"
DTYPES = ["bfloat16", "float16", "float32", "float8_e4m3fn", "int8", "int64", "uint8", "bool"]


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: str = "U8", shape: list[int] | None = None) -> dict:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


@given(
    specs=st.dictionaries(
        st.text(min_size=1).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3)),
        max_size=5,
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_written_is_read_back(tmp_path_factory, specs, seed):
    path = tmp_path_factory.mktemp("round") / "x.safetensors"
    rng = np.random.default_rng(seed)
    values = {
        name: rng.integers(0, 2, shape).astype(getattr(ml_dtypes, dtype, dtype))
        for name, (dtype, shape) in specs.items()
    }
    planned = [TensorSpec(name, dtype, tuple(shape)) for name, (dtype, shape) in specs.items()]
    with SafetensorsWriter(path, planned) as writer:
        for spec in writer.order:
            writer.write(spec, [values[spec.name].reshape(-1)[:3], values[spec.name].reshape(-1)[3:]])
    header = read_header(path)
    assert header.keys() == values.keys()
    for name, info in header.items():
        np.testing.assert_array_equal(info.read(), values[name])
        assert b"".join(chunk.tobytes() for chunk in info.chunks(16)) == values[name].tobytes()
        assert info.offset % values[name].itemsize == 0


def test_the_bytes_do_not_depend_on_the_order_of_the_plan(tmp_path):
    specs = [
        TensorSpec("b", "float16", (2,)),
        TensorSpec("a", "float16", (2,)),
        TensorSpec("c", "float32", (1,)),
    ]
    for name, plan in (("1", specs), ("2", specs[::-1])):
        with SafetensorsWriter(tmp_path / name, plan) as writer:
            for spec in writer.order:
                writer.write(spec, [np.ones(spec.shape, spec.dtype)])
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert [info.name for info in sorted(read_header(tmp_path / "1").values(), key=lambda i: i.offset)] == [
        "c",
        "a",
        "b",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"empty \(0 bytes\)"),
        (POINTER, r"Git-LFS pointer.*4,976,698,672 bytes"),
        (POINTER.replace(b"\n", b"\r\n"), r"Git-LFS pointer.*4,976,698,672 bytes"),
        (b"\n<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
        (b"\x10", "cut off"),
        (
            (1 << 40).to_bytes(8, "little") + b"{}",
            r"header should take 1,099,511,627,776 bytes and the file has 10",
        ),
        (raw(b"not json"), "not JSON"),
        (raw([1]), "not a JSON object"),
        (raw({"a": entry(0, 8)}, b"1234"), "cut off: the header describes"),
        (raw({"a": entry(0, 4)}, b"123456"), "2 bytes follow the last tensor"),
        (raw({"a": entry(0, 4), "b": entry(2, 6)}, b"123456"), "b does not follow"),
        (raw({"a": entry(0, 2), "b": entry(4, 6)}, b"123456"), "b does not follow"),
        (raw({"a": entry(0, 4, "F32", [2])}, b"1234"), r"a takes 4 bytes where float32 \[2\] needs 8"),
        (raw({"a": entry(0, 4, "F4")}, b"1234"), "'F4', which is not known"),
        (raw({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}, b"1"), "entry of a is malformed"),
        (raw({"a": {"dtype": "U8"}}), "entry of a is malformed"),
        (raw(b'{"a":1,"a":2}'), "names twice: a"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, content, message):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        read_header(path)
    assert caught.value.path == str(path)


def test_a_pointer_is_known_by_its_first_line(tmp_path):
    (tmp_path / "p").write_bytes(POINTER)
    (tmp_path / "q").write_bytes(b"x" * 200)
    assert lfs_size(tmp_path / "p") == 4976698672
    assert lfs_size(tmp_path / "q") is None


@pytest.mark.parametrize(
    ("name", "chunk"),
    [("a", np.ones(1, np.float32)), ("a", np.ones(3, np.float32)), ("a", np.ones(2, np.float64))],
    ids=["less", "more", "type"],
)
def test_the_writer_takes_what_was_planned_and_nothing_else(tmp_path, name, chunk):
    specs = {name: TensorSpec(name, "float32", (2,)) for name in "ab"}

    def write():
        with SafetensorsWriter(tmp_path / "x", specs.values()) as writer:
            writer.write(specs[name], [chunk])

    with pytest.raises(ValueError, match=name):
        write()


def test_the_writer_misses_what_was_not_written(tmp_path):
    with pytest.raises(ValueError, match="not wholly written: a"):
        SafetensorsWriter(tmp_path / "x", [TensorSpec("a", "float32", (2,))]).__enter__().__exit__(
            None, None, None
        )


@given(
    header=st.binary(max_size=60) | st.just(b'{"a":{"dtype":["F16"],"shape":{},"data_offsets":"12"}}'),
    cut=st.integers(0, 70),
)
def test_no_bytes_are_taken_for_tensors_that_are_not_there(tmp_path_factory, header, cut):
    path = tmp_path_factory.mktemp("any") / "x.safetensors"
    path.write_bytes(raw(header)[:cut])
    try:
        tensors = read_header(path)
    except InputError:
        return
    assert all(info.offset + info.nbytes <= path.stat().st_size for info in tensors.values())
