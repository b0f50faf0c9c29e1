"""The double itself: its loader wants what the reference converter wrote, its parsers take what the catalog has."""

import json
import sys
from pathlib import Path

import pytest

from trtkit.catalog.trtllm import FLAGS, LINES

HERE = Path(__file__).parent
GOLDEN = HERE.parents[1] / "golden" / "cases"
CASES = sorted(
    each
    for each in GOLDEN.iterdir()
    if "sm80" not in each.name and "hidden_size" in (each / "config.json").read_text()
)
"""Those with a whole config.json, in the form that is for every GPU."""
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "int8": "I8", "float8_e4m3fn": "F8_E4M3"}


@pytest.fixture
def double(monkeypatch):
    """Import modules of the double, which stand alone."""
    monkeypatch.syspath_prepend(str(HERE / "double"))
    yield __import__
    for name in ("flags", "loader", "rewrite"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_loader_wants_what_the_reference_wrote(double, case):
    loader = double("loader")
    config = json.loads((case / "config.json").read_text())
    written = json.loads((case / "expected.json").read_text())["tensors"]
    for file, tensors in written.items():
        wanted = loader.expected(config, int(file.removeprefix("rank").removesuffix(".safetensors")))
        assert set(wanted) == set(tensors)
        for name, found in tensors.items():
            shape, dtypes = wanted[name]
            assert (list(shape), DTYPES[found["dtype"]] in dtypes) == (found["shape"], True), name


@pytest.mark.parametrize("line", LINES)
def test_the_catalog_has_the_flags_of_each_line(double, line):
    """Two readings of the same sources agree: which options there are, what they are by default, what they take."""
    parser = double("flags").parser_of(line)
    known = {action.dest: action for action in parser._actions if action.dest != "help"}
    for name, flag in FLAGS.items():
        assert (name in known) == flag.in_line(line) or name in {"use_fused_mlp", "visualize_network"}, name
        if name not in known or not flag.in_line(line):
            continue
        default = known[name].default
        assert default == flag.default or (default, flag.default) in {(None, "disable"), (None, "paged")}, (
            name
        )
        if known[name].choices and flag.choices:
            assert set(known[name].choices) == set(flag.choices), name
