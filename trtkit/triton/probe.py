"""Ask a running tritonserver whether it really serves, and its log why not."""

from __future__ import annotations

import json
import re
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from trtkit.conventions import BLS_MODEL
from trtkit.errors import StartError

_NOISE = re.compile(r"pinned|NVML|DCGM|cuda|gpu", re.IGNORECASE)
"""Error lines that tritonserver writes on every machine without a GPU."""
_DECISIVE = re.compile(
    r"^[EF]\d{4} |Failed to preinitialize|^terminate called|^  what\(\): |error while loading shared libraries"
)
"""Errors, and what a Python stub writes before it ends without one."""
_LOG_PREFIX = re.compile(r"^[IEF]\d{4} [\d:.]+ \d+ \S+\] +")
_MAX_LINES = 12


def is_ready(http_url: str, timeout_s: float = 1.0) -> bool:
    """Return whether every model is loaded."""
    try:
        with urlopen(f"{http_url}/v2/health/ready", timeout=timeout_s) as answer:  # noqa: S310 - built by us
            return bool(answer.status == 200)
    except OSError:
        return False


def probe_bls(http_url: str, timeout_s: float) -> None:
    """Generate one token through the text API. Raises StartError."""
    body = json.dumps({"text_input": "a", "max_tokens": 1, "stream": False}).encode()
    url = f"{http_url}/v2/models/{BLS_MODEL}/generate_stream"
    request = Request(url, body, {"Content-Type": "application/json"})  # noqa: S310 - built by us
    try:
        with urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            text = answer.read().decode(errors="replace")
    except HTTPError as error:
        raise StartError(f"a test request was refused: {error.read().decode(errors='replace')}") from error
    except (URLError, OSError) as error:
        raise StartError(f"a test request got no answer: {error}") from error
    if '"text_output"' not in text:
        raise StartError(f"a test request failed: {text.strip() or 'empty answer'}")


def decisive_lines(log: str) -> list[str]:
    """Return the error lines of a tritonserver log, without what is harmless on a machine without GPU."""
    errors = [_LOG_PREFIX.sub("", line) for line in log.splitlines() if _DECISIVE.search(line)]
    return list(dict.fromkeys(line for line in errors if not _NOISE.search(line)))[:_MAX_LINES]
