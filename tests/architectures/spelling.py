"""``config.json`` as transformers 4 wrote it, which is how nearly all published models are spelled."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def respell(folder: Path) -> Path:
    """Put a model of transformers 5 beside itself in the spelling of transformers 4; weights are linked."""
    target = folder.with_name(folder.name + "-4")
    target.mkdir()
    for path in folder.glob("*.safetensors"):
        os.link(path, target / path.name)
    write_tf4_config(folder, target)
    return target


def write_tf4_config(folder: Path, target: Path) -> None:
    """Rewrite a configuration: rotary settings, the type of weights, names that changed since."""
    config = json.loads((folder / "config.json").read_text())
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.3"
    config.pop("layer_types", None)
    if "_sliding_window_pattern" in config:
        config["sliding_window_pattern"] = config.pop("_sliding_window_pattern")
    if config["model_type"] == "qwen3_moe":
        config["num_experts"] = config.pop("num_local_experts")
    config |= rotary(config, config.pop("rope_parameters", None))
    (target / "config.json").write_text(json.dumps(config, indent=2))


def rotary(config: dict[str, Any], parameters: dict[str, Any] | None) -> dict[str, Any]:
    """Return the keys that transformers 5 gathers in ``rope_parameters``."""
    if parameters is None:
        return {}
    if "sliding_attention" in parameters:
        local, whole = parameters["sliding_attention"], parameters["full_attention"]
        return rotary(config, whole) | {"rope_local_base_freq": local["rope_theta"]}
    rest = dict(parameters)
    base, fraction = rest.pop("rope_theta"), rest.pop("partial_rotary_factor", None)
    if "original_max_position_embeddings" in config:
        rest.pop("original_max_position_embeddings", None)
    scaling = None if rest["rope_type"] == "default" else rest
    if config["model_type"] == "gpt_neox":
        return {"rotary_emb_base": base, "rotary_pct": fraction, "rope_scaling": scaling}
    partial = {} if fraction is None else {"partial_rotary_factor": fraction}
    return {"rope_theta": base, "rope_scaling": scaling} | partial
