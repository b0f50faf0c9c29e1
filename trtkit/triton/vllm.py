"""The repository of Triton's vLLM back end: one model, whose engine's arguments are in ``model.json``."""

from __future__ import annotations

import json
from typing import Any

from trtkit.conventions import ENGINE_MODEL
from trtkit.engine.exported import MODEL
from trtkit.engine.vllm.settings import vllm_settings
from trtkit.plan.types import Plan
from trtkit.triton.config import new_config, set_parameters, to_text
from trtkit.triton.launch import SCRIPT, Launch, Mode, script
from trtkit.triton.runtime import nodes_of
from trtkit.triton.tensors import BOOL, FP32, STRING, Tensor

SETTINGS = "model.json"
_RETURNS = "finish_reason cumulative_logprob logprobs num_input_tokens num_output_tokens"
INPUTS = (
    Tensor("text_input", STRING),
    Tensor("image", STRING, (-1,), optional=True),
    Tensor("stream", BOOL, optional=True),
    Tensor("sampling_parameters", STRING, optional=True),
    Tensor("exclude_input_in_output", BOOL, optional=True),
    *(Tensor(f"return_{name}", BOOL, optional=True) for name in _RETURNS.split()),
)
OUTPUTS = (
    Tensor("text_output", STRING, (-1,)),
    Tensor("finish_reason", STRING, (-1,)),
    Tensor("cumulative_logprob", FP32, (-1,)),
    Tensor("logprobs", STRING, (-1,)),
    Tensor("num_input_tokens", "UINT32"),
    Tensor("num_output_tokens", "UINT32", (-1,)),
)
"""What the back end completes a configuration with; written out, they hold without that too."""


def vllm_files(plan: Plan, *, mount: str) -> dict[str, bytes]:
    """Return the repository's files by path; ``mount`` is where the server sees it."""
    version = f"{ENGINE_MODEL}/1"
    settings = vllm_settings(plan, model=f"{mount}/{version}/engine/{MODEL}")
    return {
        f"{ENGINE_MODEL}/config.pbtxt": to_text(_config()),
        f"{version}/{SETTINGS}": (json.dumps(settings, indent=2) + "\n").encode(),
        SCRIPT: script(vllm_launch(plan, mount=mount)),
    }


def vllm_launch(plan: Plan, *, mount: str) -> Launch:
    """Return how it is started: the back end starts its ranks by itself.

    Raises:
        InputError: They are on several machines.
    """
    world = plan.target.ranks.world if plan.target else 1
    return Launch(mount, world, Mode.PLAIN, (ENGINE_MODEL,), nodes_of(plan))


def _config() -> Any:
    from tritonclient.grpc import model_config_pb2 as pb

    config = new_config(ENGINE_MODEL, INPUTS, OUTPUTS, batch=0)
    config.backend = "vllm"
    # The back end places its ranks itself, and refuses KIND_GPU where there are several.
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_MODEL)
    config.model_transaction_policy.decoupled = True
    set_parameters(config, {"REPORT_CUSTOM_METRICS": "true"})
    return config
