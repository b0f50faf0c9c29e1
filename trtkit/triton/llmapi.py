"""The repository of TensorRT-LLM's Python API: one Python model, text in and text out, and the settings beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtkit.conventions import ENGINE_MODEL
from trtkit.engine.exported import MODEL
from trtkit.engine.llmapi.settings import llm_settings
from trtkit.plan.types import Plan
from trtkit.triton.config import BANNER, new_config, run_on_cpu, to_text
from trtkit.triton.launch import SCRIPT, Launch, Mode, script
from trtkit.triton.runtime import POLL_PERIOD_MS, nodes_of
from trtkit.triton.tensors import BOOL, FP32, INT32, STRING, UINT64, Tensor

SETTINGS = "model.yaml"
"""Everything in it but one section is an argument of ``LLM``."""
DRAFT_FOLDER = "draft"
_MODELS = Path(__file__).parent / "models"
_SOURCES = {"model.py": _MODELS / "llmapi" / "model.py", "trtkit_io.py": _MODELS / "stub_io.py"}
_PARAMETERS = {
    INT32: "max_tokens top_k",
    FP32: "temperature top_p frequency_penalty presence_penalty",
    UINT64: "seed",
    BOOL: "exclude_input_from_output",
}

INPUTS = (
    Tensor("text_input", STRING, (-1,)),
    Tensor("streaming", BOOL, optional=True),
    *(
        Tensor(f"sampling_param_{name}", dtype, optional=True)
        for dtype, names in _PARAMETERS.items()
        for name in names.split()
    ),
    Tensor("sampling_param_stop", STRING, (-1,), optional=True),
    Tensor("return_finish_reason", BOOL, optional=True),
)
"""Those of NVIDIA's own model that are honoured here, under its names; what is not declared Triton refuses."""
OUTPUTS = (Tensor("text_output", STRING, (-1,)), Tensor("finish_reason", STRING, (-1,)))


def llmapi_files(plan: Plan, *, mount: str, drafts: bool) -> dict[str, bytes]:
    """Return the repository's files by path; ``mount`` is where the server sees it, ``drafts`` for a draft model."""
    version = f"{ENGINE_MODEL}/1"
    return {
        f"{ENGINE_MODEL}/config.pbtxt": to_text(_config()),
        f"{version}/{SETTINGS}": _settings(plan, f"{mount}/{version}", drafts=drafts),
        **{f"{version}/{name}": BANNER.encode() + path.read_bytes() for name, path in _SOURCES.items()},
        SCRIPT: script(llmapi_launch(plan, mount=mount)),
    }


def llmapi_launch(plan: Plan, *, mount: str) -> Launch:
    """Return how it is started."""
    world = plan.target.ranks.world if plan.target else 1
    return Launch(mount, world, Mode.LLMAPI, (ENGINE_MODEL,), nodes_of(plan))


def _config() -> Any:
    """Return the configuration, complete: the launcher switches completion off, and then only this counts."""
    config = new_config(ENGINE_MODEL, INPUTS, OUTPUTS, batch=0)
    run_on_cpu(config, "python", instances=1)
    config.model_transaction_policy.decoupled = True
    return config


def _settings(plan: Plan, version: str, *, drafts: bool) -> bytes:
    import yaml

    draft = f"{version}/{DRAFT_FOLDER}/{MODEL}" if drafts else None
    settings = llm_settings(plan, model=f"{version}/engine/{MODEL}", draft=draft)
    # What NVIDIA's own model takes from here, where it is put in this one's place.
    settings["triton_config"] = {
        "max_batch_size": 0,
        "decoupled": True,
        "cancellation_check_period_ms": POLL_PERIOD_MS,
    }
    return BANNER.encode() + yaml.safe_dump(settings, sort_keys=False).encode()
