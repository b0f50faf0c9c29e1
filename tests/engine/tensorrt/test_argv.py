"""Arguments of the builder, line by line as they are kept."""

import os
import shlex
from pathlib import Path

import pytest

from trtkit.catalog.trtllm import LINES
from trtkit.engine.tensorrt.argv import build_argv, refit_argv
from trtkit.errors import StageError

GOLDEN = Path(__file__).with_name("argv")
CASES = {
    "plain": {},
    "adapters": {"lora": {"modules": ["attn_v", "mlp_gate"], "max_rank": 16}},
    "draft-target": {"speculation": {"mode": "draft-target", "draft": "small.yaml", "max_draft_tokens": 5}},
    "eagle": {"speculation": {"mode": "eagle", "checkpoint": "heads", "max_draft_tokens": 63}},
    "two-ranks": {"tensor_parallel": 2},
    "long-flags": {
        "limits": {"max_batch_size": 2048, "max_seq_len": 128, "max_num_tokens": 8192, "max_beam_width": 2},
        "kv_cache": {"tokens_per_block": 64},
        "build_flags": {
            "gemm_plugin": "auto",
            "multiple_profiles": "enable",
            "output_timing_cache": "/cache/model.cache",
            "use_paged_context_fmha": "disable",
            "weight_streaming": True,
            "workers": 1,
        },
    },
}


SOME_LINES = [
    ("gpus_per_node", 0, LINES.index("0.20"), 4),
    ("fuse_fp4_quant", LINES.index("0.18"), len(LINES), "enable"),
    ("use_fused_mlp", LINES.index("0.18"), len(LINES), "disable"),
    ("norm_quant_fusion", LINES.index("0.19"), len(LINES), "enable"),
]


@pytest.mark.parametrize("line", LINES)
def test_plans_give_the_arguments_that_are_kept_for_their_line(planned, line):
    own = {name: value for name, first, last, value in SOME_LINES if first <= LINES.index(line) <= last}
    found = []
    for name, engine in {**CASES, "own-flags": {"build_flags": own}}.items():
        plan = planned(trtllm=line, **engine)
        workers = plan.target.ranks.world if plan.target.ranks.world > 1 else None
        argv = build_argv(plan, Path("/checkpoint"), Path("/engine"), workers=workers)
        found.append(f"{name}: {shlex.join(argv)}\n")
    kept = GOLDEN / f"{line}.txt"
    if "TRTKIT_WRITE_GOLDEN" in os.environ:
        kept.write_text("".join(found))
    assert "".join(found) == kept.read_text(), (
        "if this is meant: TRTKIT_WRITE_GOLDEN=1 pytest tests/engine/tensorrt"
    )


def test_what_is_the_default_is_left_to_it(planned):
    flags = {
        "context_fmha": "enable",
        "moe_plugin": "auto",
        "gemm_plugin": "disable",
        "kv_cache_type": "paged",
    }
    assert build_argv(planned(build_flags=flags), Path("a"), Path("b")) == build_argv(
        planned(), Path("a"), Path("b")
    )


def test_a_flag_of_another_line_is_refused_by_name(planned):
    plan = planned(trtllm="0.20", build_flags={"gpus_per_node": 4})
    object.__setattr__(plan.target, "trtllm", "1.0")
    with pytest.raises(StageError, match=r"1\.0 has no --gpus_per_node"):
        build_argv(plan, Path("a"), Path("b"))


def test_the_contract_s_workers_go_before_the_ranks(planned):
    argv = build_argv(planned(tensor_parallel=2, build_flags={"workers": 3}), Path("a"), Path("b"), workers=2)
    assert argv[argv.index("--workers") + 1] == "3"


def test_refitting_names_all_three_folders():
    argv = refit_argv(Path("/checkpoint"), Path("/engine/stripped"), Path("/engine"))
    assert shlex.join(argv) == (
        "trtllm-refit --checkpoint_dir /checkpoint --engine_dir /engine/stripped --output_dir /engine"
    )
