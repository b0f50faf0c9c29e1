"""Measured silicon on request: aiconfigurator, out of process, in an environment of its own.

It needs numpy 2, which Triton's Python stub does not run with, and its distribution is about to be renamed: everything
that knows of it is here and in ``silicon_child.py``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trtkit.catalog.parallel import Parallelism
from trtkit.errors import EnvironmentLacks, InputError
from trtkit.plan.fit import WORST, fit_prefill, fit_step
from trtkit.plan.silicon import Fit
from trtkit.plan.types import QuantPlan

VERSION = "0.12.0"
PYTHON = "TRTKIT_AICONFIGURATOR"
"""Environment variable: the Python that has aiconfigurator."""
SYSTEMS = {
    "a100-80": "a100_sxm",
    "l40s": "l40s",
    "h100-sxm": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "b300": "b300_sxm",
    "gb200": "gb200",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""GPUs with operator timings of TensorRT-LLM, as aiconfigurator calls them."""
GEMMS = {
    "none": "bfloat16",
    "fp8": "fp8_static",
    "int8-sq": "sq",
    "int8-wo": "int8_wo",
    "int4-awq": "int4_wo",
    "int4-gptq": "int4_wo",
}
_KV = {"auto": "bfloat16", "fp8": "fp8", "int8": "int8"}
PROMPTS = (512, 2048, 8192)
BATCHES, CONTEXTS = (1, 16, 64, 256), (512, 4096)
_CHILD = Path(__file__).with_name("silicon_child.py")

Request = dict[str, Any]


def requests_for(
    model: str, gpu: str, tp: int, quantization: QuantPlan, *, has_experts: bool
) -> list[Request]:
    """Return the points that a fit needs: prompts alone, and steps of batches with contexts.

    Raises:
        InputError: There are no timings of that GPU or format.
    """
    if gpu not in SYSTEMS or quantization.weights not in GEMMS:
        hint = f"GPUs: {', '.join(SYSTEMS)}; formats: {', '.join(GEMMS)}"
        raise InputError(f"there are no timings of {quantization.weights} on {gpu}", hint=hint)
    gemm = GEMMS[quantization.weights]
    base: Request = {
        "model_path": model,
        "system_name": SYSTEMS[gpu],
        "tp_size": tp,
        "gemm_quant_mode": gemm,
        "kvcache_quant_mode": _KV[quantization.kv_cache],
    }
    if has_experts:
        base |= {"moe_tp_size": tp, "moe_ep_size": 1, "moe_quant_mode": {"fp8_static": "fp8"}.get(gemm, gemm)}
    prompts = [{"mode": "static_ctx", "isl": n, "osl": 2, "batch_size": 1} for n in PROMPTS]
    steps = [
        {"mode": "static_gen", "isl": context, "osl": 2, "batch_size": batch}
        for batch in BATCHES
        for context in CONTEXTS
    ]
    return [base | point for point in (*prompts, *steps)]


class Silicon:
    """aiconfigurator in a process of its own, started with the first question."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[str] | None = None

    def close(self) -> None:
        """End the process."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()

    def ask(self, request: Request) -> float:
        """Return the milliseconds of one request.

        Raises:
            EnvironmentLacks: aiconfigurator is not installed.
            InputError: It has no timings for the request.
        """
        self._child = self._child or _start()
        reader, writer = self._child.stdout, self._child.stdin
        if reader is None or writer is None:
            raise AssertionError("a child without pipes")
        try:
            writer.write(json.dumps(request) + "\n")
            writer.flush()
            answer = json.loads(reader.readline())
        except (OSError, ValueError) as error:
            hint = "run `make silicon-env` again"
            raise EnvironmentLacks("aiconfigurator ended without an answer", hint=hint) from error
        if "error" in answer:
            raise InputError(f"aiconfigurator has no timings for it: {answer['error']}")
        return float(answer["ms"])


def _start() -> subprocess.Popen[str]:
    python = os.environ.get(PYTHON)
    if python is None:
        hint = f"run `make silicon-env`, then set {PYTHON}=.venv-silicon/bin/python"
        raise EnvironmentLacks("aiconfigurator is not installed in an environment of its own", hint=hint)
    try:
        return subprocess.Popen(
            # Isolated, or the folder of the script would be searched first for every module.
            [python, "-I", str(_CHILD)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise EnvironmentLacks(f"{PYTHON}={python} cannot be started: {error.strerror}") from error


def silicon_fit(
    config: Path, gpu: str, ranks: Parallelism, quantization: QuantPlan, *, has_experts: bool
) -> Fit:
    """Return the speed of the model whose ``config.json`` this is; takes about half a minute.

    Raises:
        EnvironmentLacks: aiconfigurator is not installed.
        InputError: It has no timings for this model, GPU or format.
    """
    if ranks.pp > 1 or ranks.moe_ep > 1:
        raise InputError("only tensor parallelism is asked of aiconfigurator", hint="use the roofline")
    with TemporaryDirectory() as folder, closing(Silicon()) as silicon:
        # It takes a folder, and no other name of the file.
        shutil.copyfile(config, Path(folder) / "config.json")
        requests = requests_for(folder, gpu, ranks.tp, quantization, has_experts=has_experts)
        pairs = [(each, silicon.ask(each)) for each in requests]
    prefill = fit_prefill([(each["isl"], ms) for each, ms in pairs if each["mode"] == "static_ctx"])
    steps = [(each["batch_size"], each["isl"], ms) for each, ms in pairs if each["mode"] == "static_gen"]
    step = fit_step(steps)
    if max(prefill.worst, step.worst) > WORST:
        message = f"no curve goes through the timings: it is off by {max(prefill.worst, step.worst):.0%}"
        raise InputError(message, hint="leave --silicon out: the roofline knows experts")
    return Fit(f"silicon timings of aiconfigurator {VERSION}, asked now", prefill.terms, step.terms)
