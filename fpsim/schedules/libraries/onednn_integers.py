"""oneDNN's products of INT8, as torch._int_mm calls them: the pairs of terms that saturate without VNNI."""

from __future__ import annotations

from typing import Literal

from fpsim.schedules.libraries.segments import segments
from fpsim.schedules.schedule import FLAT
from fpsim.schedules.shaped import ChosenSchedule, Isa, ProductShape, cut, declined

LIBRARY = "oneDNN 3.12"
SOURCE = "torch 2.13.0 with oneDNN 3.12 on Intel Emerald Rapids, 2026-11-27 (docs/cpu.md)"
EXACT, PAIRS = "x86_amx_s8_s32", "x86_avx2_u8xs8_s32"  # units with VNNI or AMX, and without
# Instructions -> terms of K up to which K is one segment, and half of the terms from which all segments are this long.
SEGMENTS: dict[Isa, tuple[int, int]] = {"avx512": (384, 768), "avx2": (256, 384)}
SHARED_ROWS, SHARED_TERMS = 128, 3072  # rows up to which, and terms from which more than two threads may share K


def integers(name: str, isa: Isa, threads: int, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of oneDNN's INT8 products for a shape, or raise a DeclinedShape if it is not known.

    With VNNI or AMX sums are exact modulo 2^32. Without ("avx512", "avx2") 128 is added to one operand, and the sums of
    pairs of products saturate to 16 bits; the pairs depend on the segments of K.

    Args:
      name: name of the ShapedSchedule.
      isa, threads: as in `fpsim.schedules.onednn`.
      shape: the shape and layout of the product.

    Example:
      >>> from fpsim.schedules.libraries.onednn_integers import integers
      >>> integers("onednn('avx512')", "avx512", 1, ProductShape(40, 1, 600, fp.INT8, "nn")).shifted
      'b'
    """
    if isa not in SEGMENTS:
        return ChosenSchedule("_int_mm", FLAT, EXACT, None, "exact sums modulo 2^32, in any order")
    is_column = shape.n == 1 and (shape.layout != "tn" or shape.m == 1)  # a vector has one layout in memory
    is_row = shape.m == 1 and shape.layout == "nt" and shape.n > 1
    if isa == "avx512" and (is_column or is_row):  # the terms of a result are neighbours in memory
        return _pairs("gemv_s8s8s32", (shape.k,), "b" if is_column else "a")
    if threads > 2 and shape.m <= SHARED_ROWS and shape.k >= SHARED_TERMS:
        raise declined(name, shape, f"how {threads} threads share K is not known in this case")
    return _pairs("gemm_s8s8s32", gemm_lengths(shape.k, *SEGMENTS[isa]), "a")


def gemm_lengths(k: int, whole: int, length: int) -> tuple[int, ...]:
    """Return the number of terms of each segment into which oneDNN's "gemm" kernels cut k terms.

    whole: largest k that is not cut. length: terms of a segment; a k below twice that is cut into halves.
    """
    if k <= whole:
        return (k,)
    return cut(k, -(-k // 2) if k < 2 * length else length)


def _pairs(kernel: str, lengths: tuple[int, ...], shifted: Literal["a", "b"]) -> ChosenSchedule:
    """Return the schedule of INT8 kernels that add pairs of products with saturation to 16 bits.

    kernel: oneDNN's name of the kernel. lengths: terms of each segment of K; a pair never spans two segments. shifted:
    the operand to which 128 is added, so that it is unsigned.
    """
    rule = (
        f"128 is added to {shifted}, pairs of products saturate to 16 bits and are added modulo 2^32, and 128 times "
        "the other operand's sums are subtracted"
    )
    schedule = segments(*lengths, library=LIBRARY, source=SOURCE, evidence="hardware")
    return ChosenSchedule(kernel, schedule, PAIRS, None, rule, shifted=shifted)
