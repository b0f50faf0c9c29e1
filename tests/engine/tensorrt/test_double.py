"""The double itself: its loader wants what the reference converter wrote, its parsers take what the catalog has."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.engine.tensorrt.conftest import contract_of
from tests.plan.published import published
from trtkit.catalog.trtllm import FLAGS, LINES
from trtkit.checkpoint.trtllm_config import write_config
from trtkit.engine.tensorrt.argv import build_argv
from trtkit.engine.tensorrt.expected import differences
from trtkit.errors import ContractError
from trtkit.plan import Machine, make_plan

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


HEADS = {"medusa": "MedusaForCausalLM", "eagle": "EagleForCausalLM"}
MODES = {
    "draft-target": {"draft": "small.yaml", "max_draft_tokens": 5},
    "medusa": {"checkpoint": "heads", "max_draft_tokens": 63},
    "eagle": {"checkpoint": "heads", "max_draft_tokens": 63},
    "lookahead": {"lookahead": {"window": 3, "ngram": 3, "verification": 3}},
}
SWITCHES = {name: flag.choices for name, flag in FLAGS.items() if flag.choices == ("enable", "disable")}
ENGINES = st.fixed_dictionaries(
    {
        "trtllm": st.sampled_from(LINES),
        "gpu": st.sampled_from(["h100-sxm", "a100-80", "b200"]),
        "tensor_parallel": st.sampled_from([1, 2]),
        "build_flags": st.dictionaries(
            st.sampled_from(list(SWITCHES)), st.sampled_from(["enable", "disable"])
        ),
        "limits": st.fixed_dictionaries(
            {
                "max_batch_size": st.sampled_from([1, 3, 512]),
                "max_seq_len": st.sampled_from([33, 4096]),
                "max_num_tokens": st.sampled_from([16, 64, 8192]),
            }
        ),
        "kv_cache": st.fixed_dictionaries({"tokens_per_block": st.sampled_from([32, 128])}),
    },
    optional={"speculation": st.sampled_from([{"mode": mode, **rest} for mode, rest in MODES.items()])},
)
FORMATS = st.tuples(st.sampled_from(["none", "int8-wo", "fp8"]), st.sampled_from(["auto", "int8", "fp8"]))


@given(engine=ENGINES, formats=FORMATS, name=st.sampled_from(["llama-3.1-8b", "mistral-7b-v0.3"]))
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
def test_whatever_a_plan_lets_through_is_built_as_planned(double, engine, formats, name):
    model, line = published(name), engine["trtllm"]
    flags = {key: each for key, each in engine["build_flags"].items() if FLAGS[key].in_line(line)}
    quantization = {"weights": formats[0], "kv_cache": formats[1]}
    try:
        contract = contract_of(quantization=quantization, **engine | {"build_flags": flags})
        plan = make_plan(contract, model, Machine(2, 10**12))
    except ContractError:
        assume(False)
    algos = {key: getattr(plan.quantization, key) for key in ("quant_algo", "kv_cache_quant_algo")}
    config = write_config(model, dtype=plan.dtype, quantization=algos, parallelism=plan.target.ranks)
    if (mode := engine.get("speculation", {}).get("mode")) in HEADS:
        config |= {"architecture": HEADS[mode], "max_draft_len": 63, "num_eagle_layers": 2}
    args = double("flags").parser_of(line).parse_args(build_argv(plan, Path("in"), Path("out"))[1:])
    rewrite, sm = double("rewrite"), plan.target.gpu.sm
    rewrite.reject(args, sm, line)
    assert differences(plan, config, rewrite.engine_config(args, config, sm, line, f"{line}.0")) == []
