"""Engine folders with an ONNX graph: those of the back ends ``onnx`` and ``rtx``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtkit.engine.graph.spec import DATA_FILE, MODEL_FILE
from trtkit.engine.rtx.elsewhere import PROFILES_FILE, SCRIPT_FILE
from trtkit.errors import Problem
from trtkit.flow.inspect.finding import Amount, Finding

GRAPH_BACKENDS = ("onnx", "rtx")
_BUILD_AGAIN = "build the engine again"


def inspect_graph(folder: Path, found: Finding, config: Mapping[str, Any]) -> Finding:
    """Compare the files with what ``config.json`` and the graph name; weights are not read."""
    runtime = config.get("runtime")
    runtime = runtime if isinstance(runtime, Mapping) else {}
    names = [MODEL_FILE, DATA_FILE, *([str(runtime["engine"])] if runtime.get("engine") else [])]
    names += [PROFILES_FILE, SCRIPT_FILE] if runtime.get("other_sms") else []
    sizes = {name: (folder / name).stat().st_size for name in names if (folder / name).is_file()}
    problems = [
        Problem("the file is missing", file=str(folder / name), hint=_BUILD_AGAIN)
        for name in names
        if name not in sizes
    ]
    problems += [
        Problem("the file is empty", file=str(folder / name), hint=_BUILD_AGAIN)
        for name, size in sizes.items()
        if not size
    ]
    need, have = runtime.get("engine_bytes"), sizes.get(str(runtime.get("engine")))
    if type(need) is int and have and have != need:
        message = f"is {have:,} bytes long, config.json says {need:,}"
        problems.append(Problem(message, file=str(folder / str(runtime["engine"])), hint=_BUILD_AGAIN))
    found = replace(found, files=sizes, details={**found.details, **_details(runtime)})
    if sizes.get(MODEL_FILE) and find_spec("onnx"):
        dtypes, damage = _weights(folder, sizes.get(DATA_FILE))
        found, problems = replace(found, dtypes=dtypes), [*problems, *damage]
    return replace(found, problems=(*found.problems, *problems))


def _details(runtime: Mapping[str, Any]) -> dict[str, Any]:
    words = {"engine_sms": "compiled for", "other_sms": "to be compiled on"}
    return {
        word: ", ".join(f"SM {sm}" for sm in runtime[key])
        for key, word in words.items()
        if isinstance(runtime.get(key), list) and runtime[key]
    }


def _weights(folder: Path, have: int | None) -> tuple[dict[str, Amount], list[Problem]]:
    """Return the weights by type, and whether the file beside the graph is long enough for them."""
    import onnx
    from google.protobuf.message import DecodeError

    path = folder / MODEL_FILE
    try:
        model = onnx.load(str(path), load_external_data=False)
    except DecodeError:
        return {}, [Problem("not an ONNX model", file=str(path), hint=_BUILD_AGAIN)]
    dtypes: dict[str, Amount] = {}
    need = 0
    try:
        for dtype, elements, start, size in _external(model.graph.initializer):
            dtypes[dtype] = dtypes.get(dtype, Amount()) + Amount(1, elements, size)
            need = max(need, start + size)
    except ValueError as error:
        return {}, [Problem(f"a weight's place is no place: {error}", file=str(path), hint=_BUILD_AGAIN)]
    if have is None or have >= need:
        return dtypes, []
    message = f"cut off: the graph needs {need:,} bytes, the file has {have:,}"
    return dtypes, [Problem(message, file=str(folder / DATA_FILE), hint=_BUILD_AGAIN)]


def _external(tensors: Any) -> Iterator[tuple[str, int, int, int]]:
    """Yield type, elements, offset and bytes of each tensor that lies in the other file; equal places count once."""
    from onnx import TensorProto

    seen = set()
    for each in tensors:
        place = {entry.key: entry.value for entry in each.external_data}
        start, size = int(place.get("offset", 0)), int(place.get("length", 0))
        if place and start not in seen:
            seen.add(start)
            yield TensorProto.DataType.Name(each.data_type).lower(), math.prod(each.dims), start, size
