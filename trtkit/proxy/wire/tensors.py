"""The input tensors of one request, whether their contents are raw or typed."""

from __future__ import annotations

import struct
from typing import Any, NoReturn

from trtkit.proxy.admission import Reason
from trtkit.proxy.ending import Refusal

# Data type -> struct format of one little-endian element, field of InferTensorContents.
_NUMBERS = {
    "BOOL": ("<?", "bool_contents"),
    "INT32": ("<i", "int_contents"),
    "INT64": ("<q", "int64_contents"),
    "UINT32": ("<I", "uint_contents"),
    "UINT64": ("<Q", "uint64_contents"),
}


class Tensors:
    """Reads and rewrites the inputs of a ModelInferRequest in place."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._inputs = {tensor.name: tensor for tensor in request.inputs}
        # Tensors in shared memory have no entry in raw_input_contents.
        in_message = [each.name for each in request.inputs if "shared_memory_region" not in each.parameters]
        raw = request.raw_input_contents
        if len(self._inputs) != len(request.inputs) or (raw and len(raw) != len(in_message)):
            raise Refusal(
                Reason.INVALID_INPUT, "inputs are repeated, or their number differs from the raw contents"
            )
        self._raw = {name: n for n, name in enumerate(in_message)} if raw else {}

    def __contains__(self, name: str) -> bool:
        return name in self._inputs

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape that the client declared."""
        return tuple(self._inputs[name].shape)

    def number(self, name: str) -> int:
        """Return the first element of an integer or boolean tensor."""
        tensor = self._inputs[name]
        fmt, contents = self._number_format(tensor)
        if name in self._raw:
            return int(struct.unpack_from(fmt, self._raw_bytes(name, struct.calcsize(fmt)))[0])
        values = getattr(tensor.contents, contents)
        return int(values[0]) if values else self._unreadable(name)

    def text(self, name: str) -> bytes:
        """Return the first element of a BYTES tensor."""
        if name not in self._raw:
            values = self._inputs[name].contents.bytes_contents
            return bytes(values[0]) if values else self._unreadable(name)
        raw = self._raw_bytes(name, 4)
        (length,) = struct.unpack_from("<I", raw)
        return raw[4 : 4 + length] if len(raw) >= 4 + length else self._unreadable(name)

    def start(self, name: str, size: int) -> bytes:
        """Return how the contents of a tensor begin, in so many bytes at most, or what stands for them."""
        if name not in self._inputs:
            return b""
        if self._inputs[name].datatype == "BYTES":
            return self.text(name)[:size]
        if name in self._raw:
            return self._raw_bytes(name, 0)[:size]
        _, contents = self._number_format(self._inputs[name])
        return b" ".join(b"%d" % each for each in getattr(self._inputs[name].contents, contents)[:size])

    def set_number(self, name: str, value: int) -> None:
        """Replace the contents of a one-element tensor."""
        tensor = self._inputs[name]
        fmt, contents = self._number_format(tensor)
        if name in self._raw:
            self._request.raw_input_contents[self._raw[name]] = struct.pack(fmt, value)
        else:
            getattr(tensor.contents, contents)[:] = [value]

    def set_text(self, name: str, text: bytes) -> None:
        """Replace the contents of a one-element BYTES tensor."""
        if name in self._raw:
            self._request.raw_input_contents[self._raw[name]] = _raw_text(text)
        else:
            self._inputs[name].contents.bytes_contents[:] = [text]

    def add_number(self, name: str, datatype: str, shape: tuple[int, ...], value: int) -> None:
        """Add a one-element tensor, raw or typed like the others."""
        tensor = self._request.inputs.add(name=name, datatype=datatype, shape=shape)
        fmt, contents = self._number_format(tensor)
        self._fill(tensor, struct.pack(fmt, value), contents, value)

    def add_text(self, name: str, shape: tuple[int, ...], text: bytes) -> None:
        """Add a one-element BYTES tensor, raw or typed like the others."""
        tensor = self._request.inputs.add(name=name, datatype="BYTES", shape=shape)
        self._fill(tensor, _raw_text(text), "bytes_contents", text)

    def _fill(self, tensor: Any, raw: bytes, contents: str, value: int | bytes) -> None:
        self._inputs[tensor.name] = tensor
        if self._raw:
            self._raw[tensor.name] = len(self._request.raw_input_contents)
            self._request.raw_input_contents.append(raw)
        else:
            getattr(tensor.contents, contents).append(value)

    def _number_format(self, tensor: Any) -> tuple[str, str]:
        return _NUMBERS.get(tensor.datatype) or self._unreadable(tensor.name)

    def _raw_bytes(self, name: str, at_least: int) -> bytes:
        raw: bytes = self._request.raw_input_contents[self._raw[name]]
        return raw if len(raw) >= at_least else self._unreadable(name)

    def _unreadable(self, name: str) -> NoReturn:
        raise Refusal(
            Reason.INVALID_INPUT, f"input '{name}' has no readable contents; the proxy has to see its value"
        )


def _raw_text(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text
