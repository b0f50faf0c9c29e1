"""What a model declares, and whether a request fits it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

from trtkit.proxy.admission import Reason
from trtkit.proxy.ending import Refusal
from trtkit.proxy.wire.dialect import Dialect, dialect_of


@dataclass(frozen=True)
class Input:
    """One declared input; ``dims`` without the batch dimension, -1 where any size goes."""

    datatype: str
    dims: tuple[int, ...]
    optional: bool


@dataclass(frozen=True)
class ModelSchema:
    """The part of a model's configuration that requests are checked against."""

    name: str
    inputs: dict[str, Input]
    batched: bool
    decoupled: bool

    @cached_property
    def dialect(self) -> Dialect | None:
        """How the model takes requests; None for one that is no language model, or an unknown one."""
        return dialect_of(self.inputs)

    def need_dialect(self) -> Dialect:
        """Return the dialect.

        Raises:
            Refusal: The model has none, so that nothing is known of what its requests take.
        """
        return self.dialect or self._refuse(
            f"the inputs {', '.join(self.inputs)} are those of no model that the proxy can admit requests to"
        )

    def shape_of_one(self) -> tuple[int, ...]:
        """Return the shape of a one-element tensor: [1, 1] with a batch dimension, else [1]."""
        return (1, 1) if self.batched else (1,)

    def check(self, request: Any) -> None:
        """Refuse a request with unknown, missing or ill-shaped inputs, naming the first such tensor."""
        for tensor in request.inputs:
            self._check_input(tensor)
        given = {tensor.name for tensor in request.inputs}
        for name, declared in self.inputs.items():
            if not declared.optional and name not in given:
                self._refuse(f"input '{name}' is missing")

    def _check_input(self, tensor: Any) -> None:
        declared = self.inputs.get(tensor.name)
        if declared is None:
            self._refuse(f"unexpected input '{tensor.name}'; the inputs are {', '.join(self.inputs)}")
        if tensor.datatype != declared.datatype:
            self._refuse(f"input '{tensor.name}' is {tensor.datatype}, expected {declared.datatype}")
        shape, dims = list(tensor.shape), list(declared.dims)
        if self.batched:
            dims = [1, *dims]
            if len(shape) == len(dims) and shape[0] != 1:
                self._refuse(f"input '{tensor.name}' has batch size {shape[0]}; send one request per prompt")
        fits = len(shape) == len(dims) and all(
            dim in (-1, size) and size >= 0 for size, dim in zip(shape, dims, strict=True)
        )
        if not fits:
            self._refuse(f"input '{tensor.name}' has shape {shape}, expected {dims}")

    def _refuse(self, problem: str) -> NoReturn:
        raise Refusal(Reason.INVALID_INPUT, f"{problem} (model '{self.name}')")


def read_schema(config: Any, *, decoupled: bool) -> ModelSchema:
    """Read a ModelConfig protobuf."""
    return ModelSchema(
        name=config.name,
        inputs={
            each.name: Input(_datatype(each), tuple(each.dims), bool(each.optional)) for each in config.input
        },
        batched=config.max_batch_size > 0,
        decoupled=decoupled,
    )


def _datatype(tensor: Any) -> str:
    from tritonclient.grpc import model_config_pb2

    name: str = model_config_pb2.DataType.Name(tensor.data_type).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name
