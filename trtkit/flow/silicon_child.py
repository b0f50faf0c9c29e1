"""Runs inside aiconfigurator's own environment, which has no trtkit: one JSON request a line in, one answer out."""

import json
import logging
import sys
import warnings
from typing import Any

LATENCY = {"static_ctx": "ttft", "static_gen": "tpot"}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the milliseconds of one prefill or of one decode step, or why there are none."""
    from aiconfigurator.cli.api import cli_estimate  # type: ignore[import-not-found]

    try:
        result = cli_estimate(backend_name="trtllm", **request)
    except (Exception, SystemExit) as error:  # the library raises what it likes
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
    return {"ms": getattr(result, LATENCY[request["mode"]])}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=out, flush=True)
