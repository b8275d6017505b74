"""Weights of bitsandbytes: 4-bit indices into a table with a scale per block, and INT8 with a scale per row.

bitsandbytes 0.50.2 reads the same bits.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.parts import LONGEST, Decoder, LayoutError, WeightParts
from fpsim.analysis.tensors.tensor import Tensor, dtype_of
from fpsim.arrays import Array
from fpsim.formats.named import FP32

# Values of the codes 0 to 15, as bitsandbytes 0.50.2 stores them in `quant_map` (checked on its files).
NF4 = (
    -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
)  # fmt: skip
FP4 = (
    0.0, 0.0052083335, 0.6666667, 1.0, 0.33333334, 0.5, 0.16666667, 0.25,
    0.0, -0.0052083335, -0.6666667, -1.0, -0.33333334, -0.5, -0.16666667, -0.25,
)  # fmt: skip
BLOCK = 64  # values that share a scale
HIGHEST = np.float32(1) / np.float32(127)  # difference of adjacent INT8 values, relative to the row's amax


def dynamic_table() -> Array:
    """Return the 256 values of the 8-bit codes of scales: bitsandbytes' signed "dynamic" data type, in rising order.

    The values are 0, 1, and for each i from 0 to 6 the numbers m * 10^(i - 6) and -m * 10^(i - 6), for the midpoints m
    of 2^i equal parts of the interval from 0.1 to 1. The ends of the parts have the bits of torch.linspace.

    Source: nested_quant_map of files of bitsandbytes 0.50.2.

    Example:
      >>> table = dynamic_table()
      >>> [float(x) for x in table[[0, 127, 128, 255]]]
      [-0.992968738079071, 0.0, 5.500000384017767e-07, 1.0]
    """
    values: list[Array] = [np.array([0, 1], np.float32)]
    for i in range(7):
        ends = np.arange(2**i + 1, dtype=np.float64)
        step = np.float64((np.float32(1) - np.float32(0.1)) / np.float32(2**i))
        rising, falling = np.float32(0.1) + step * ends, 1 - step * ends[::-1]  # exact in float64
        parts = np.where(ends < len(ends) // 2, rising, falling).astype(np.float32)
        middles = (parts[1:] + parts[:-1]) / np.float32(2) * np.float32(10.0 ** (i - 6))
        values += [middles, -middles]
    return np.sort(np.concatenate(values))


def table_blocks(parts: WeightParts) -> Tensor:
    """Return a bitsandbytes weight in NF4 or FP4, whose 4-bit codes index a table of 16 values.

    A value is table[code] * scale of its block, in float32. The high nibble of a byte comes first. Blocks run over the
    flat matrix, so they cross rows. With scales of scales ("double quantisation") a scale is `nested table[code] *
    nested scale + offset`, each step rounded to float32.

    Raises:
      LayoutError: the tensors contradict each other, or the state is not JSON.

    Source: bitsandbytes 0.50.2, whose own reader returns the same bits.
    """
    state = _state(parts)
    shape, block = tuple(state["shape"]), int(state["blocksize"])
    size = math.prod(shape)
    codes, stored = parts.codes, parts.beside["scale"]
    stored_bytes = codes.size * dtype_of(codes.dtype).itemsize
    if stored_bytes != -(-size // 2):
        raise LayoutError(f"its {stored_bytes} bytes of codes do not fit the shape {shape}")
    count = -(-size // block)
    if stored.size != count or parts.beside["table"].size != 16:
        raise LayoutError(
            f"its scales of shape {stored.shape} and table of shape {parts.beside['table'].shape} do not fit {count} "
            f"blocks of {block}"
        )
    if stored.dtype == "uint8" and "nested_scale" not in parts.beside:
        raise LayoutError("its scales are codes, and their nested_absmax is missing")
    if "nested_scale" in parts.beside:
        nested = parts.beside["nested_scale"].size
        entries = parts.beside["nested_table"].size if "nested_table" in parts.beside else 0
        if entries != 256 or nested != -(-count // int(state["nested_blocksize"])) or stored.dtype != "uint8":
            raise LayoutError(
                f"its {nested} nested scales and table of {entries} do not fit {count} {stored.dtype} scales"
            )

    def load() -> Decoder:
        table = parts.floats("table").reshape(-1)
        scales = scales_of_blocks(parts, state)

        def decode(band: Array, first: int) -> Array:
            pairs = np.ascontiguousarray(band).view(np.uint8).reshape(-1)
            start = first * band.shape[-1] * band.itemsize * 2
            nibbles = np.stack([pairs >> np.uint8(4), pairs & np.uint8(15)], axis=-1).reshape(-1)[: size - start]
            with np.errstate(all="ignore"):  # scales may be anything
                return np.asarray(table[nibbles] * scales[np.arange(start, start + nibbles.size) // block])

        return decode

    kind = "NF4" if is_nf4(parts) else "FP4 (bitsandbytes)"
    return parts.weight(shape, f"{kind} in blocks of {block}", load)


def is_nf4(parts: WeightParts) -> bool:
    """Return whether a 4-bit bitsandbytes weight is NF4, and not FP4, by the name of its state tensor."""
    return parts.beside["state"].name.endswith("nf4")


def int8_rows(parts: WeightParts) -> Tensor:
    """Return a bitsandbytes INT8 weight: code * SCB / 127, where SCB is the largest magnitude of each row.

    Raises:
      LayoutError: the number of scales is not that of the rows, or the weight_format is not 0 (rows in their order).

    Source: bitsandbytes 0.50.2, whose own reader returns the same bits.
    """
    codes, stored = parts.codes, parts.beside["scale"]
    if len(codes.shape) != 2 or stored.size != codes.shape[0]:
        raise LayoutError(f"its SCB of shape {stored.shape} does not fit the rows of its shape {codes.shape}")
    if "format" in parts.beside and parts.number("format") != 0:
        raise LayoutError(f"its weight_format is {parts.number('format'):g}; wanted 0, rows in their order")

    def load() -> Decoder:
        largest = parts.floats("scale").reshape(-1, 1)

        def decode(band: Array, first: int) -> Array:
            with np.errstate(all="ignore"):
                return np.asarray(band.astype(np.float32) * largest[first : first + len(band)] * HIGHEST)

        return decode

    return parts.weight(codes.shape, "INT8 with row scales (bitsandbytes)", load)


def _state(parts: WeightParts) -> dict[str, Any]:
    """Return the quantisation state of a 4-bit bitsandbytes weight, such as {"shape": [64, 32], "blocksize": 64, ...}.

    Raises:
      LayoutError: the state is not JSON, or a key is missing.
    """
    try:
        state = json.loads(parts.text("state"))
        shape, block = state["shape"], state["blocksize"]
        plain = all(type(n) is int and 0 < n < LONGEST for n in [*shape, block])
        nested = [state["nested_blocksize"], state["nested_offset"]] if "nested_scale" in parts.beside else [1, 0.0]
        plain = plain and type(nested[0]) is int and 0 < nested[0] < LONGEST and abs(nested[1]) <= FP32.max
    except (ValueError, KeyError, TypeError, RecursionError):
        plain = False
    if not plain:
        raise LayoutError("its quant_state is not JSON with shape and blocksize")
    return dict(state)


def scales_of_blocks(parts: WeightParts, state: dict[str, Any]) -> Array:
    """Return the float32 scale of each block of a 4-bit bitsandbytes weight; quantised scales are decoded.

    state: its quantisation state, read from JSON.
    """
    if "nested_scale" not in parts.beside:
        return parts.floats("scale").reshape(-1)
    codes, block = parts.array("scale").reshape(-1), int(state["nested_blocksize"])
    table, nested = parts.floats("nested_table").reshape(-1), parts.floats("nested_scale").reshape(-1)
    with np.errstate(all="ignore"):
        scales = table[codes] * nested[np.arange(codes.size) // block]
        return np.asarray(scales + np.float32(state["nested_offset"]))
