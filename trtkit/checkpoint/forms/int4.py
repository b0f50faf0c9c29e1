"""INT4 weights with scales per group, in the form that fits every GPU: ``W4A16_AWQ``.

Two output rows to a byte, the even one in the low half. Loaders bring that into the layout of the GPU they find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from trtkit.checkpoint.cast import cast
from trtkit.checkpoint.forms.rows import Rows, layer_array, layer_rows, whole
from trtkit.checkpoint.forms.scales import Floats, checked, read_scale
from trtkit.checkpoint.jobs import Layout
from trtkit.checkpoint.mapping import MappedTensor
from trtkit.checkpoint.safetensors import Array
from trtkit.checkpoint.storage.packing import Codes, Packing
from trtkit.checkpoint.storage.storage import Stored
from trtkit.errors import InputError

PRE_QUANT = "pre_quant_scale"


def portable_int4(tensor: MappedTensor, layout: Layout, packing: Packing) -> Mapping[str, Callable[[], Rows]]:
    """Return how each part of the layer is made."""
    return {
        "weight": lambda: _pairs(tensor, layout, packing),
        "weights_scaling_factor": lambda: whole(group_scales(tensor, layout, packing)),
        "prequant_scaling_factor": lambda: whole(_prequant(tensor, layout)),
        "zero": lambda: whole(group_zeros(tensor, layout, packing)),
    }


def group_scales(tensor: MappedTensor, layout: Layout, packing: Packing) -> Floats:
    """Return the scales, ``(out, groups)``, as the source has them; the engine rounds them to its data type.

    Raises:
        InputError: One of them is zero, infinite or NaN, or is when it is rounded.
    """

    def read(source: Stored) -> Array:
        info = source.parts["scales" if "scales" in source.parts else "weight_scale"]
        return checked(packing.scales(source.parts), info, positive=False)

    scales = layer_array(tensor, layout.config, read)
    rounded(scales, layout, tensor.sources[0])
    return scales


def group_zeros(tensor: MappedTensor, layout: Layout, packing: Packing) -> Array:
    """Return what is added to the scaled codes, ``(groups, out)``: minus the code of 0 times the scale.

    Raises:
        InputError: The values are too large for the checkpoint's data type.
    """
    scales = group_scales(tensor, layout, packing)
    zeros = -layer_array(tensor, layout.config, lambda source: _zeros(source, packing))
    # By the scale as the engine has it: then the code of 0 is 0 again, whatever the scale lost.
    info = tensor.sources[0]
    values = np.ascontiguousarray((zeros * rounded(scales, layout, info).astype(np.float32)).T)
    return rounded(values, layout, info)


def rounded(values: Array, layout: Layout, source: Stored) -> Array:
    """Return values in the checkpoint's data type.

    Raises:
        InputError: One of them is too large for it, or so small that it would become 0.
    """
    name, path = f"a scale of {source.name}", next(iter(source.parts.values())).path
    result = cast(values, layout.dtype, name=name, path=path)
    if (lost := (result == 0) & (values != 0)).any():
        message = f"{name} holds {values[lost].flat[0]:g}, which is 0 as {layout.dtype}"
        raise InputError(message, path=path, hint="convert to bfloat16, which has float32's range")
    return result


def check_symmetric(tensor: MappedTensor, packing: Packing) -> None:
    """Make sure that 0 is code 0.

    Raises:
        InputError: It is not.
    """
    for source in tensor.sources:
        zeros = packing.zeros(source.parts)
        if zeros is not None and zeros.any():
            info = source.parts["qzeros"]
            message = (
                f"config.json says that the weights are symmetric, and {info.name} has other zero points"
            )
            raise InputError(message, path=info.path, hint="set sym to false in config.json")


def _zeros(source: Stored, packing: Packing) -> Codes:
    zeros = packing.zeros(source.parts)
    return np.zeros(packing.scales(source.parts).shape, np.int8) if zeros is None else zeros


def _pairs(tensor: MappedTensor, layout: Layout, packing: Packing) -> Rows:
    for row, codes in layer_rows(tensor, layout.config, lambda source: packing.codes(source.parts)):
        yield row // 2, (codes[0::2] & np.int8(0xF)) | (codes[1::2] << 4)


def _prequant(tensor: MappedTensor, layout: Layout) -> Array:
    """Return what the input is multiplied with: by 1 where that is in the layer before already.

    Raises:
        InputError: Q, K and V, which are one layer in the engine, want different ones.
    """
    found = [source for source in tensor.sources if PRE_QUANT in source.parts]
    if not found:
        return np.ones(tensor.target.shape[-1], layout.dtype)
    first = read_scale(found[0], PRE_QUANT)
    for source in tensor.sources:
        if source not in found or not np.array_equal(read_scale(source, PRE_QUANT), first):
            info = found[0].parts[PRE_QUANT]
            message = f"{source.name} does not have {info.name}, and they are one layer in the engine"
            raise InputError(message, path=info.path, hint="quantize again with one scale for Q, K and V")
    return rounded(first.reshape(-1), layout, found[0])
