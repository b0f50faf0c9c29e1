"""Checkpoints of the reference converter, byte for byte, through the same door as ``trtkit convert``.

The full set lies beside the repository on some machines; the part under ``tests/golden`` goes with it.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest

from trtkit.catalog.parallel import Parallelism
from trtkit.checkpoint.trtllm import TrtllmCheckpoint, verify
from trtkit.engine.store import Store
from trtkit.flow.convert import ConvertOptions, prepare_source

COMMITTED = Path(__file__).parent / "golden"
FULL = Path(__file__).parents[2] / "shared" / "golden"
BY_MODELOPT = "modelopt_"
"""Calibrated on rows that are not there: their numbers cannot be had again."""
SQ_MODES = {
    (True, True): "per-channel-per-token",
    (True, False): "per-channel",
    (False, True): "per-token",
    (False, False): "per-tensor",
}
NOT_TENSORS = {"producer", "trtkit", "rotary_scaling"}


def cases() -> list[Path]:
    found = [
        path for root in (COMMITTED, FULL) if root.exists() for path in sorted((root / "cases").iterdir())
    ]
    return [path for path in found if not path.name.startswith(BY_MODELOPT)]


def value_of(flags: list[str], name: str) -> str | None:
    return flags[flags.index(name) + 1] if name in flags else None


def options(case: Path, expected: dict, reference: dict) -> ConvertOptions:
    """Say in trtkit's words what the reference converter was told in its own."""
    flags, sm = expected["flags"], expected["env"].get("ORACLE_SM")
    weights, mode = None, None
    if "--smoothquant" in flags:
        weights, mode = "int8-sq", SQ_MODES["--per_channel" in flags, "--per_token" in flags]
    elif "--use_fp8_rowwise" in flags:
        weights = "fp8-rowwise"
    elif value_of(flags, "--weight_only_precision") == "int8":
        weights = "int8-wo"
    kv_cache = "int8" if "--int8_kv_cache" in flags else None
    ranges = case / "act_range.safetensors"
    if not ranges.exists():
        ranges = case.parents[1] / "sources" / expected["source"] / ranges.name
    return ConvertOptions(
        weights=weights,
        kv_cache=kv_cache,
        dtype=reference["dtype"],
        parallelism=Parallelism(
            int(value_of(flags, "--tp_size") or 1),
            int(value_of(flags, "--pp_size") or 1),
            parallel_embedding="--use_parallel_embedding" in flags,
        ),
        target_sm=None if sm is None else int(sm),
        act_range=ranges if mode or kv_cache else None,
        smoothquant=mode,
        alpha=float(value_of(flags, "--smoothquant")) if mode else None,
    )


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.parents[1].parent.name}-{case.name}")
def test_the_reference_converter_writes_the_same_bytes(case, tmp_path):
    expected, reference = (json.loads((case / name).read_text()) for name in ("expected.json", "config.json"))
    source = case.parents[1] / "sources" / expected["source"]
    asked = options(case, expected, reference)
    conversion = prepare_source(str(source), asked, Store(tmp_path / "home"), lambda *_: None)
    conversion.run(tmp_path / "out")
    written = TrtllmCheckpoint.open(tmp_path / "out")
    cut = set(expected.get("cut", ()))
    for rank, facts in enumerate(expected["tensors"].values()):
        found = {
            name: {
                "dtype": info.dtype,
                "shape": list(info.shape),
                "sha256": sha256(info.read().tobytes()).hexdigest(),
            }
            for name, info in written.ranks[rank].items()
            if name not in cut
        }
        assert found == facts
    assert verify(written.folder) == []
    for key in reference.keys() & written.config.keys() - NOT_TENSORS:
        if isinstance(reference[key], dict):
            # Whatever is written is what the reference says; what is left out is its loader's default.
            assert written.config[key].items() <= reference[key].items(), key
        elif key not in cut:
            assert written.config[key] == reference[key], key
