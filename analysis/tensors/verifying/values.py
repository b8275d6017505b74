"""Checks of stored numbers: scales and codes that no program writing their layout would store."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fpsim.analysis.tensors.layouts.float_blocks import scale_values
from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.layouts.unpacking import values_of
from fpsim.analysis.tensors.tensor import Tensor, dtype_of
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.arrays import FORMAT_OF, Array
from fpsim.display.wording import are

SCALES = ("scale", "tensor_scale", "tensor_divisor", "nested_scale")
FLOATS = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
LARGEST = 1000.0  # a magnitude that no model's weights have, but weights with inverted scales
# Largest magnitude of the codes of a layout's weights, by the beginning of the weight's dtype in tables.
TOP = {"E4M3": 448.0, "E5M2": 57344.0, "E4M3FNUZ": 240.0, "E5M2FNUZ": 57344.0, "INT8": 127.0, "NVFP4": 6.0,
       "MXFP8": 448.0, "MXFP4": 6.0}  # fmt: skip


def value_findings(one: Recognised) -> Iterator[Finding]:
    """Yield findings on scales and codes of a weight that no writer of its layout would store.

    These are NaN, infinite and negative scales, NaN codes, scales that look inverted, and products of codes and scales
    that overflow.
    """
    parts = one.parts
    for key in SCALES:
        if key in parts.beside:
            yield from _scales(parts.name, parts.beside[key], key not in ("tensor_scale", "tensor_divisor"))
    if parts.codes.dtype in FLOATS:
        yield from _nan_codes(one)
    if one.weight is not None:
        yield from _inverted_scales(one)
        yield from _infinite_products(one)


def top_of(one: Recognised) -> float | None:
    """Return the largest magnitude that codes of a weight's format can have before scaling; None if it is unknown."""
    return 1.0 if one.decoded.layout == "bitsandbytes:int8" else TOP.get(one.decoded.dtype.partition(" ")[0])


def floats(one: Tensor) -> Array:
    """Return the elements of a tensor of scales as flat float32; bytes are decoded as E8M0 codes, powers of two."""
    return scale_values(one).reshape(-1)


def _scales(name: str, one: Tensor, of_blocks: bool) -> Iterator[Finding]:
    """Yield a finding for each fault of `one`, a tensor of scales: NaN, infinite or negative scales, and -0.

    name: name of the weight, for the findings. of_blocks: True for scales of blocks, which may be 0; False for a scale
    of the whole tensor, which may not.
    """
    label = one.name.rpartition(".")[2]
    if _are_codes(one):
        return
    values = floats(one)
    wrong = {
        "NaN": np.isnan(values), "infinite": np.isinf(values), "negative": (values < 0),
        "-0": (values == 0) & np.signbit(values),
    }  # fmt: skip
    for word, mask in wrong.items():
        if mask.any():
            count, first = int(mask.sum()), int(np.argmax(mask))
            yield Finding.about(name, f"{label} {word}", f"{count} of its {values.size} scales in {label} "
                                f"{are(count)} {word}, the first at index {first}; scales must be "
                                "positive.")  # fmt: skip
    if not of_blocks and (values == 0).any():
        yield Finding.about(name, f"{label} zero", f"its {label} is 0, so the whole weight is 0 or NaN.")


def _are_codes(one: Tensor) -> bool:
    """Return whether a tensor of scales holds codes of bitsandbytes' 8-bit table, and not powers of two."""
    return one.name.endswith(".absmax") and one.dtype == "uint8"


def _nan_codes(one: Recognised) -> Iterator[Finding]:
    """Yield a finding if FP8 codes are NaN.

    The finding names a known fault of torchao, which writes codes of NaN and a scale of 0 for a row of zeros, if a
    scale is 0 and the number of NaNs is that of whole rows.
    """
    name, codes = one.parts.name, one.parts.codes
    fmt = FORMAT_OF[dtype_of(codes.dtype)]
    table = np.isnan(values_of(np.arange(256, dtype=np.uint8), fmt))
    width = codes.shape[-1] if codes.shape else 1
    count, rows, start = 0, set[int](), 0
    for piece in codes.chunks():
        mask = table[piece.view(np.uint8)]
        if mask.any():
            count += int(mask.sum())
            rows |= set(((np.flatnonzero(mask) + start) // width)[:1000].tolist())
        start += piece.size
    if not count:
        return
    zero_rows = one.weight is not None and one.decoded.layout == "torchao:fp8" and count % width == 0
    fault = (
        " torchao's Float8WeightOnlyConfig writes a scale of 0 and codes 0xFF for a row of zeros, which is its fault."
        if zero_rows and (floats(one.parts.beside["scale"]) == 0).any()
        else ""
    )
    yield Finding.about(name, "NaN codes", f"{count} of its codes {are(count)} NaN, the first in row {min(rows)}; "
                        f"writers do not produce them from finite weights.{fault}")  # fmt: skip


def _inverted_scales(one: Recognised) -> Iterator[Finding]:
    """Yield a finding if a weight's scales look inverted, that is, stored as divisors instead of factors.

    They look so if the median scale times the format's largest value is above 1000, but 1 / the median scale times this
    value is not. A weight with a scale of the whole tensor is checked by `_tensor_scale` instead.
    """
    parts, name = one.parts, one.parts.name
    top = top_of(one)
    if "tensor_divisor" in parts.beside or "tensor_scale" in parts.beside:
        yield from _tensor_scale(one)
        return
    if top is None:
        return
    values = floats(parts.beside["scale"])
    used = values[np.isfinite(values) & (values > 1e-6)]  # blocks of zeros have smaller ones
    if not used.size:
        return
    middle = float(np.median(used.astype(np.float64)))  # the mean of two float32 may overflow
    if top * middle > LARGEST and top / middle < LARGEST:
        label = parts.beside["scale"].name.rpartition(".")[2]
        yield Finding.about(name, "scale inverted", f"with its {label}, weights are as large as {top * middle:.3g}, "
                            f"with 1 / {label} as large as {top / middle:.3g}: the scales look inverted. Scales "
                            "multiply the codes.")  # fmt: skip


def _tensor_scale(one: Recognised) -> Iterator[Finding]:
    """Yield a finding if the scale of the whole tensor looks like the inverse of what the layout stores.

    Some libraries store a scale of the whole tensor by which readers multiply the scales of blocks, others one by which
    they divide. The scale looks inverted if the largest possible weight, 6 * (largest scale of a block) multiplied or
    divided by the tensor's scale, exceeds 1000 with the operation of this layout, but not with the other one.
    """
    parts, name = one.parts, one.parts.name
    divides = "tensor_divisor" in parts.beside
    stored = parts.beside["tensor_divisor" if divides else "tensor_scale"]
    [level] = floats(stored).tolist() if stored.size == 1 else [np.nan]
    blocks = floats(parts.beside["scale"])
    usable = blocks[np.isfinite(blocks)]
    if not usable.size or not np.isfinite(level) or level <= 0:
        return
    largest = 6 * float(np.max(usable))
    read, other = (largest / level, largest * level) if divides else (largest * level, largest / level)
    if read > LARGEST and other < read and other < LARGEST:
        label = stored.name.rpartition(".")[2]
        verb, opposite = ("divides", "multiplier, as ModelOpt's") if divides else ("multiplies", "divisor, as "
                                                                                  "compressed-tensors'")  # fmt: skip
        yield Finding.about(name, "tensor scale inverted", f"with its {label}, weights are as large as {read:.3g}, "
                            f"with its inverse as large as {other:.3g}: in this layout it {verb} the blocks' scales, "
                            f"and the stored value looks like a {opposite}.")  # fmt: skip


def _infinite_products(one: Recognised) -> Iterator[Finding]:
    """Yield a finding if codes and scales of a weight are finite, but the product of a code and its scale is not."""
    parts = one.parts
    scales = [parts.beside[key] for key in SCALES if key in parts.beside]
    stored = [floats(scale) for scale in scales if not _are_codes(scale)]
    if any(not np.isfinite(values).all() for values in stored) or parts.codes.dtype in FLOATS:
        return
    for piece in one.decoded.chunks():
        if not np.isfinite(piece).all():
            yield Finding.about(parts.name, "values not finite", "products of its codes and scales are not finite.")
            return
