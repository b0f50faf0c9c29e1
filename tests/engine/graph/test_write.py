"""The files: what they hold, what writing them takes, and what is refused before anything is written."""

from __future__ import annotations

import sys
import tracemalloc
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import to_array

from tests.engine.graph.conftest import FORMS, small_spec
from tests.engine_cpu.conftest import tiny_config, tiny_tensors, write_checkpoint
from trtkit.catalog.schemes import DEFAULT_EXCLUDED
from trtkit.engine.graph.spec import CacheSize, GraphSpec, Phase
from trtkit.engine.graph.write import write_graph
from trtkit.errors import ContractError, EnvironmentLacks, InputError


def test_weights_are_the_checkpoints_bytes(write: Any) -> None:
    written = write("sq-qdq", spec={"dtype": "bfloat16"})
    model = onnx.load(written.facts.model)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    names = [name for name in written.checkpoint.names if name.endswith(".weight")]
    assert len(names) == 17
    for name in names:
        assert stored[name].raw_data == written.checkpoint.tensor(name).tobytes()


def test_int4_values_are_those_of_the_checkpoint(write: Any) -> None:
    written = write("awq")
    name = "transformer.layers.1.mlp.proj.weight"
    tensors = onnx.load(written.facts.model).graph.initializer
    (found,) = [to_array(tensor) for tensor in tensors if tensor.name == name]
    packed = written.checkpoint.tensor(name)
    expected = np.empty((2 * len(packed), packed.shape[1]), np.int8)
    expected[0::2], expected[1::2] = packed << 4 >> 4, packed >> 4
    np.testing.assert_array_equal(found.astype(np.int8), expected)


@pytest.mark.parametrize("form", FORMS)
def test_profiles_are_of_the_models_inputs(write: Any, form: dict[str, Any]) -> None:
    written = write(spec={"tokens_per_block": 8, **form})
    graph = onnx.load(written.facts.model, load_external_data=False).graph
    inputs = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in graph.input
    }
    sizes = {
        Phase.PREFILL: {"batch": (1, 1), "seq": (1, 32), "blocks": (1, 6)},
        Phase.DECODE: {"batch": (1, 4), "seq": (1, 1), "blocks": (1, 6)},
    }
    profiles = written.spec.profiles(written.facts.cache)
    assert list(profiles) == [Phase.PREFILL, Phase.DECODE]
    for phase, profile in profiles.items():
        for end, found in ((0, "min"), (1, "max")):
            asked = {
                name: tuple(sizes[phase].get(size, (size,) * 2)[end] for size in dims)
                for name, dims in inputs.items()
            }
            assert {name: getattr(shapes, found) for name, shapes in profile.items()} == asked
    assert {value.name for value in graph.output} == {
        "logits",
        *(present for _, present in written.spec.cache_names(2)),
    }


def test_the_same_checkpoint_gives_the_same_bytes(write: Any, tmp_path: Any) -> None:
    written = write("awq-zero")
    (tmp_path / "again").mkdir()
    again = write_graph(written.checkpoint.folder, tmp_path / "again", written.spec)
    assert again.model.read_bytes() == written.facts.model.read_bytes()
    assert again.data.read_bytes() == written.facts.data.read_bytes()


def test_progress_ends_where_the_data_does(write: Any, tmp_path: Any) -> None:
    written, seen = write(), []
    (tmp_path / "again").mkdir()
    write_graph(
        written.checkpoint.folder, tmp_path / "again", written.spec, lambda *each: seen.append(each[1:])
    )
    done, totals = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {written.facts.data_bytes}
    assert done[-1] == written.facts.data_bytes == written.facts.data.stat().st_size


@pytest.mark.parametrize(("algo", "limit_bytes"), [(None, 6_000_000), ("W8A16", 20_000_000)])
def test_memory_does_not_grow_with_the_model(tmp_path: Any, algo: str | None, limit_bytes: int) -> None:
    """A vocabulary of 16 MB, twice, and layers of 3 MB are written with a few chunks of 2 MiB."""
    block = {"quant_algo": algo, "kv_cache_quant_algo": None}
    config = tiny_config(vocab_size=16_000, hidden_size=512, intermediate_size=3000, quantization=block)
    folder = write_checkpoint(tmp_path / "checkpoint", config, tiny_tensors(config))
    write_graph(folder, tmp_path, small_spec())  # what is imported on the way is no matter of size
    tracemalloc.start()
    facts = write_graph(folder, tmp_path, small_spec(dtype="bfloat16"))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert facts.data_bytes > 40_000_000
    assert peak_bytes < limit_bytes


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}, ["kv_cache"]),
        ({"quantization": {"quant_algo": None, "exclude_modules": ["*mlp*"]}}, ["exclude_modules"]),
        ({"hidden_act": "relu"}, ["hidden_act"]),
        ({"rotary_scaling": {"type": "dynamic", "factor": 2.0}}, ["rotary_scaling"]),
        ({"rotary_pct": None}, ["rotary_pct"]),
        ({"rotary_pct": float("nan")}, ["rotary_pct"]),
        ({"mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1}}, ["rank1"]),
    ],
)
def test_what_no_graph_expresses_is_refused_by_name(
    write: Any, changes: dict[str, Any], keys: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        write(**changes)
    assert all(key in str(caught.value) for key in keys)


def test_everything_that_is_wrong_is_said_at_once(write: Any, tmp_path: Any) -> None:
    patterns = [*DEFAULT_EXCLUDED, "transformer.layers.0.mlp*"]
    block = {"quant_algo": "W8A16", "kv_cache_quant_algo": None, "exclude_modules": patterns}
    with pytest.raises(ContractError) as caught:
        write(quantization=block, attn_logit_softcapping=50.0, rotary_embedding_dim=8)
    keys = [problem.key for problem in caught.value.problems]
    assert keys == ["rotary_embedding_dim", "attn_logit_softcapping", "quantization.exclude_modules"]
    assert all(problem.hint for problem in caught.value.problems)
    assert not list((tmp_path / "graph").iterdir())


@pytest.mark.parametrize("name", ["transformer.ln_f.weight", "transformer.layers.1.mlp.gate.weight"])
def test_a_damaged_checkpoint_is_refused(write: Any, name: str) -> None:
    with pytest.raises(ContractError, match=name):
        write(edit=lambda tensors: tensors.pop(name))


def test_a_weight_that_float16_cannot_hold_leaves_no_files(write: Any, tmp_path: Any) -> None:
    def enlarge(tensors: dict[str, Any]) -> None:
        tensors["lm_head.weight"][3, 5] = 1e5

    with pytest.raises(InputError, match=r"lm_head\.weight holds"):
        write(edit=enlarge, spec={"dtype": "float16"})
    assert not list((tmp_path / "graph").iterdir())


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_weight_to_quantize_that_is_not_finite_is_refused(write: Any, tmp_path: Any, value: float) -> None:
    block = {"quant_algo": "W8A16", "kv_cache_quant_algo": None}
    with pytest.raises(InputError, match=r"attention\.dense\.weight holds NaN or infinity"):
        write(edit=damage("transformer.layers.1.attention.dense.weight", value), quantization=block)
    assert not list((tmp_path / "graph").iterdir())


@pytest.mark.parametrize("name", ["fp8", "fp8-rowwise"])
def test_a_stored_weight_that_is_no_number_is_refused(write: Any, tmp_path: Any, name: str) -> None:
    with pytest.raises(InputError, match=r"mlp\.proj\.weight holds NaN"):
        write(name, edit=damage("transformer.layers.1.mlp.proj.weight", np.nan))
    assert not list((tmp_path / "graph").iterdir())


def damage(name: str, value: float) -> Any:
    def edit(tensors: dict[str, Any]) -> None:
        tensors[name][3, 5] = value

    return edit


def test_a_smoother_whose_inverse_float16_cannot_hold_is_refused(write: Any) -> None:
    def shrink(tensors: dict[str, Any]) -> None:
        tensors["transformer.layers.0.mlp.proj.smoother"][0, 3] = 1e-5

    with pytest.raises(InputError, match="proj/smoothed_factor holds 100000"):
        write("sq-per-channel", edit=shrink, spec={"dtype": "float16"})


def test_without_onnx_the_error_says_what_to_install(write: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(EnvironmentLacks, match="onnx") as caught:
        write()
    assert "trtkit[onnx]" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slots": 0}, "slots is 0"),
        ({"chunk_tokens": 49}, "more than the 48"),
        ({"capacity_tokens": 10**9}, "capacity_tokens is 1000000000"),
        ({"paged": True, "tokens_per_block": 32}, "no multiple of 32"),
    ],
)
def test_sizes_that_cannot_be_built_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        small_spec(**changes)


def test_a_pool_holds_all_slots_and_the_block_that_is_nobodys() -> None:
    spec = GraphSpec(8, 128, 64, "float16", paged=True)
    assert (spec.blocks_per_slot, spec.blocks) == (4, 33)
    assert spec.cache_shape(CacheSize(2, 3, 64), 5) == (33, 32, 3, 64)
    assert GraphSpec(8, 128, 64, "float16", paged=True, pool_blocks=20).blocks == 20
