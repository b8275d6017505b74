"""Checks of scales against their codes: scales of 0 for codes other than 0, and scales far from all others."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from fpsim.analysis.tensors.layouts.bitsandbytes import scales_of_blocks
from fpsim.analysis.tensors.layouts.float_blocks import blocks_of, configured_block, spread
from fpsim.analysis.tensors.layouts.fp4_blocks import NVFP4
from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.layouts.unpacking import values_of
from fpsim.analysis.tensors.tensor import dtype_of
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.analysis.tensors.verifying.values import LARGEST, floats, top_of
from fpsim.arrays import FORMAT_OF, Array
from fpsim.display.wording import are

FAR = 1e4  # a scale is far from the others at this multiple of their median, if it makes weights above LARGEST
ONE_BYTE = ("E4M3", "E5M2", "E4M3FNUZ", "E5M2FNUZ", "INT8", "MXFP8")
# Scales near 0 may be negative by this share of nested_absmax, more than the error of bitsandbytes' 8-bit table.
ROUNDED = 0.01
UNDERFLOWS = "float16"  # the dtype in which writers' scales of tiny weights become 0


def level_findings(one: Recognised) -> Iterator[Finding]:
    """Yield a finding for scales of 0 whose codes are not all 0, for scales far from all others, and for decoded scales
    below 0.
    """
    parts = one.parts
    if "nested_scale" in parts.beside:
        yield from _nested(one)
        return
    scale = parts.beside["scale"]
    if "zero_point" in parts.beside or scale.size < 2:
        return
    values = floats(scale)
    if (values == 0).any() and scale.dtype != UNDERFLOWS:
        yield from _zero(one, values)
    yield from _far(one, values)


def _zero(one: Recognised, values: Array) -> Iterator[Finding]:
    """Yield a finding if scales of 0 belong to blocks whose codes are not all 0.

    values: the weight's scales, flat.
    """
    parts, scale, words = one.parts, one.parts.beside["scale"], one.decoded.dtype.partition(" ")[0]
    lost: set[int] = set()
    if words in ONE_BYTE and len(parts.codes.shape) == 2:
        lost = _lost_bytes(one, values)
    elif words == "NVFP4" and (*scale.shape[:-1], scale.shape[-1] * NVFP4 // 2) == parts.codes.shape:
        lost = _lost_pairs(one, values)
    if lost:
        label = scale.name.rpartition(".")[2]
        yield Finding.about(parts.name, f"{label} of 0", f"{len(lost)} of its {values.size} scales in {label} "
                            f"{are(len(lost))} 0, the first at index {min(lost)}, although codes of their "
                            "blocks are not 0: these blocks are read as 0.")  # fmt: skip


def _lost_bytes(one: Recognised, values: Array) -> set[int]:
    """Return the indices of scales of 0 whose blocks have one-byte codes that are neither 0 nor NaN.

    values: the weight's scales, flat.
    """
    codes, scale = one.parts.codes, one.parts.beside["scale"]
    dtype = dtype_of(codes.dtype)
    blocks = blocks_of(codes.shape, scale.shape, configured_block(one.parts.settings))
    is_used = np.abs(values_of(np.arange(256, dtype=np.uint8).view(dtype), FORMAT_OF.get(dtype))) > 0
    numbers, lost = np.arange(values.size), set[int]()
    width, first = codes.shape[1], 0
    for piece in codes.chunks(max((1 << 20) // max(width, 1), 1) * width):
        band = piece.reshape(-1, width).view(np.uint8)
        places = spread(numbers, blocks, codes.shape, first, len(band))
        lost |= set(np.unique(places[is_used[band] & (values[places] == 0)]).tolist())
        first += len(band)
    return lost


def _lost_pairs(one: Recognised, values: Array) -> set[int]:
    """Return the indices of scales of 0 whose 16 E2M1 codes, two in a byte, are not all 0.

    values: the weight's scales, flat.
    """
    lost, start = set[int](), 0
    for piece in one.parts.codes.chunks(1 << 20):
        used = np.any(piece.view(np.uint8).reshape(-1, NVFP4 // 2) & np.uint8(0x77), axis=1)
        lost |= set((np.flatnonzero(used & (values[start : start + len(used)] == 0)) + start).tolist())
        start += len(used)
    return lost


def _far(one: Recognised, values: Array) -> Iterator[Finding]:
    """Yield a finding if the largest scale is implausible compared with the median of a weight's scales.

    Two conditions must hold. The largest scale exceeds 10,000 times the median. And with the largest scale the largest
    possible weight exceeds 1000, but with the median scale it does not. The largest possible weight is the scale times
    the format's largest value, and times the tensor's scale if there is one. values: the weight's scales, flat.
    """
    top, beside = top_of(one), one.parts.beside
    used = values[np.isfinite(values) & (values > 0)]
    if top is None or not used.size:
        return
    middle, largest, level = float(np.median(used.astype(np.float64))), float(np.max(used)), 1.0
    for key, power in (("tensor_scale", 1), ("tensor_divisor", -1)):
        if key in beside and beside[key].size == 1 and float(floats(beside[key])[0]) > 0:
            level = float(floats(beside[key])[0]) ** power
    if largest > FAR * middle and top * largest * level > LARGEST >= top * middle * level:
        label = beside["scale"].name.rpartition(".")[2]
        place = int(np.argmax(np.where(np.isfinite(values), values, 0)))
        yield Finding.about(one.parts.name, "scale far from others", f"the scale at index {place} of {label} makes "
                            f"weights as large as {top * largest * level:.3g}; with the median of its {values.size} "
                            f"scales they are at most {top * middle * level:.3g}.")  # fmt: skip


def _nested(one: Recognised) -> Iterator[Finding]:
    """Yield findings on the quantised scales ("double quantisation") of a bitsandbytes weight.

    One finding is for scales that are decoded to negative numbers. Another is for the first scale of scales that is 0
    although the codes that it multiplies are not all equal.
    """
    parts = one.parts
    state = json.loads(parts.text("state"))
    values = scales_of_blocks(parts, state)
    codes, nested = parts.array("scale").reshape(-1), floats(parts.beside["nested_scale"])
    size = int(state["nested_blocksize"])
    below = values < -ROUNDED * nested[np.arange(codes.size) // size]
    if below.any():
        count = int(below.sum())
        yield Finding.about(parts.name, "absmax negative", f"{count} of its {values.size} scales {are(count)} negative "
                            "once nested_absmax and nested_offset are applied, the first at index "
                            f"{int(np.argmax(below))}; scales must be positive.")  # fmt: skip
    for index in np.flatnonzero(nested == 0):
        if np.unique(codes[index * size : (index + 1) * size]).size > 1:
            yield Finding.about(parts.name, "nested_absmax of 0", f"its nested_absmax at index {index} is 0, although "
                                "codes of its absmax differ: all scales there are read as nested_offset.")  # fmt: skip
            return
