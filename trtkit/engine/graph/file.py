"""ONNX files: the model with its nodes, and beside it the weights, written as they are made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

import trtkit
from trtkit.checkpoint.progress import Progress
from trtkit.checkpoint.safetensors import Array
from trtkit.engine.graph.nodes import Graph, Job, Node, Tensor
from trtkit.engine.graph.spec import DATA_FILE, MODEL_FILE
from trtkit.errors import EnvironmentLacks

OPSET = 24
"""The first one with ``TensorScatter``."""
_IR_VERSION = 12
"""What ONNX's table of versions has beside it."""
_PAGE_BYTES = 4096
"""Where tensors begin, so that readers can map them."""
_STAGE = "graph"
_TYPES = {
    "bool": "BOOL",
    "int64": "INT64",
    "int8": "INT8",
    "int4": "INT4",
    "float8_e4m3fn": "FLOAT8E4M3FN",
    "bfloat16": "BFLOAT16",
    "float16": "FLOAT16",
    "float32": "FLOAT",
}


def write_files(graph: Graph, out: Path, progress: Progress) -> int:
    """Write the model and its data into the folder ``out``; return the bytes of the data.

    Memory: a few chunks of a weight.

    Raises:
        EnvironmentLacks: The package ``onnx`` is not installed.
    """
    places = dict(_places(graph.jobs))
    size_bytes = max((offset + tensor.nbytes for tensor, offset in places.items()), default=0)
    model = _model(graph, places)
    try:
        _write_data(graph.jobs, places, out / DATA_FILE, size_bytes, progress)
        (out / MODEL_FILE).write_bytes(model)
    except BaseException:
        for name in (MODEL_FILE, DATA_FILE):
            (out / name).unlink(missing_ok=True)
        raise
    return size_bytes


def _places(jobs: list[Job]) -> Iterator[tuple[Tensor, int]]:
    position = 0
    for job in jobs:
        for tensor in job.tensors:
            yield tensor, position
            position += -(-tensor.nbytes // _PAGE_BYTES) * _PAGE_BYTES


def _write_data(
    jobs: list[Job], places: dict[Tensor, int], path: Path, size_bytes: int, progress: Progress
) -> None:
    done = 0
    progress(_STAGE, done, size_bytes)
    with FileIO(path, "wb") as file:
        if size_bytes:
            os.posix_fallocate(file.fileno(), 0, size_bytes)
        for job in jobs:
            for written in _write(file, job, places):
                done += written
                progress(_STAGE, done, size_bytes)
        os.fsync(file.fileno())
    progress(_STAGE, size_bytes, size_bytes)  # tensors begin at pages, so that less was written


def _write(file: FileIO, job: Job, places: dict[Tensor, int]) -> Iterator[int]:
    """Write a job's pieces one after another; yield their bytes."""
    ends = [places[tensor] + tensor.nbytes for tensor in job.tensors]
    positions = [places[tensor] for tensor in job.tensors]
    for number, values in job.run():
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        if positions[number] + len(data) > ends[number]:
            raise ValueError(f"{job.tensors[number].name} got more than {job.tensors[number].nbytes} bytes")
        yield len(data)
        while data:
            count = os.pwrite(file.fileno(), data, positions[number])
            data, positions[number] = data[count:], positions[number] + count
    if lacking := [job.tensors[i].name for i, end in enumerate(ends) if positions[i] != end]:
        raise ValueError(f"not wholly written: {', '.join(lacking)}")


def _model(graph: Graph, places: dict[Tensor, int]) -> bytes:
    """Return the serialized model."""
    try:
        from onnx import TensorProto, helper
    except ImportError as error:
        message = "the package onnx is not installed"
        raise EnvironmentLacks(message, hint="pip install 'trtkit[onnx]'") from error

    def number(dtype: str) -> int:
        return int(getattr(TensorProto, _TYPES[dtype]))

    def info(tensor: Tensor) -> Any:
        return helper.make_tensor_value_info(tensor.name, number(tensor.dtype), tensor.shape)

    def small(tensor: Tensor, values: Array) -> Any:
        raw = np.ascontiguousarray(values).tobytes()
        return TensorProto(name=tensor.name, data_type=number(tensor.dtype), dims=tensor.shape, raw_data=raw)

    def large(tensor: Tensor, offset: int) -> Any:
        proto = TensorProto(name=tensor.name, data_type=number(tensor.dtype), dims=tensor.shape)
        proto.data_location = TensorProto.EXTERNAL
        entries = {"location": DATA_FILE, "offset": offset, "length": tensor.nbytes}
        for key, value in entries.items():
            proto.external_data.add(key=key, value=str(value))
        return proto

    def node(each: Node) -> Any:
        # Cast says its type by a number.
        to = {"to": number(str(each.attributes["to"]))} if each.op == "Cast" else {}
        return helper.make_node(each.op, each.inputs, each.outputs, each.name, **{**each.attributes, **to})

    proto = helper.make_graph(
        [node(each) for each in graph.nodes],
        "trtkit_decoder",
        [info(tensor) for tensor in graph.inputs],
        [info(tensor) for tensor in graph.outputs],
        [small(*each) for each in graph.constants.values()] + [large(*each) for each in places.items()],
    )
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(proto, opset_imports=opsets, ir_version=_IR_VERSION)
    model.producer_name, model.producer_version = "trtkit", trtkit.__version__
    return bytes(model.SerializeToString())
