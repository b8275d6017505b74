"""The schedules of MKL's float32 products: chains of multiply-adds over segments of K."""

from __future__ import annotations

from functools import partial
from typing import Literal

from fpsim.errors import require_word
from fpsim.formats.named import FP32
from fpsim.lazy import deferred
from fpsim.schedules.arguments import positive
from fpsim.schedules.libraries.segments import segments
from fpsim.schedules.plan import Span
from fpsim.schedules.shaped import CHAIN, ChosenSchedule, Layout, ProductShape, ShapedSchedule, declined, layout_of

LIBRARY = "MKL 2024.2"
SOURCE = "torch 2.13.0 with MKL 2024.2 on Intel Emerald Rapids, 2026-11-26 and 27 (docs/cpu.md)"
SEGMENT = 384
SMALL = 128  # rows or columns up to which the rule was compared for every K
GROUP, LANES = 4, 16  # results of a vector that sgemv computes at once, and lanes of each
FEW_ROWS = 16  # rows up to which another kernel is used for a transposed b
SHARED = 194_519  # M * N * K from which two threads were seen to halve a K of 768 and more,
WHOLE = 187_320  # M * N * K up to which one thread was seen to add all of K

regions = deferred("fpsim.schedules.regions")


def mkl(threads: int = 1, *, isa: Literal["avx512", "avx2"] = "avx512", layout: Layout = "nn") -> ShapedSchedule:
    """Return the schedules of MKL's sgemm and sgemv, by shape, as torch.mm calls them with float32 operands.

    While 768 terms or more are left, a segment has 384; more than 384 that are left then are halved, the larger half
    first. Two threads add half of K each from K = 768 on, unless the product is small. Where no rule is known, `at`
    raises a `DeclinedShape` that says which rule is missing. For a result of one row or column, one is known if its
    length is a multiple of four and the K terms of the other operand are contiguous.

    Args:
      threads: number of threads; rules are known for one, and for two with more than one row and column.
      isa: the instructions that MKL uses, "avx512" or "avx2"; rules are known for "avx512" only.
      layout: see `ShapedSchedule`.

    Raises:
      ValueError: an unknown isa or layout, or threads that are not a positive integer.

    Source: docs/cpu.md.

    Example:
      >>> import fpsim as fp
      >>> [fp.schedules.mkl().at(40, 50, k, "fp32").schedule for k in (300, 601, 1000)]
      [segments(300), segments(301, 300), segments(384, 308, 308)]
    """
    threads, layout = positive(threads, "threads"), layout_of(layout)
    require_word("isa", isa, ("avx512", "avx2"))
    words = [f"threads={threads}"] * (threads > 1) + [f"isa={isa!r}"] * (isa != "avx512")
    words += [f"layout={layout!r}"] * (layout != "nn")
    name = f"mkl({', '.join(words)})"
    return ShapedSchedule(name, LIBRARY, partial(_chosen, name, threads, isa), layout, SOURCE)


def _chosen(name: str, threads: int, isa: str, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule for a shape, or raise a DeclinedShape; name: of the ShapedSchedule."""
    m, n, k = shape.m, shape.n, shape.k
    if shape.fmt != FP32:
        raise declined(name, shape, "sgemm multiplies float32")
    if isa != "avx512":
        raise declined(name, shape, "the kernels of MKL without AVX-512 are not known")
    if threads > 2 or (threads > 1 and shape.is_vector):
        raise declined(name, shape, f"how {threads} threads share a product is not known")
    if shape.is_vector:
        return _vector(name, shape)
    if shape.layout == "nt" and m <= FEW_ROWS:
        raise declined(name, shape, f"the kernel for up to {FEW_ROWS} rows with a transposed b is not known")
    if k > SEGMENT and (n if shape.layout == "nt" else min(m, n)) > SMALL:
        raise declined(name, shape, f"how K > {SEGMENT} is cut beyond {SMALL} rows and columns is not known")
    if threads == 2 and k >= 2 * SEGMENT and m * n * k > WHOLE:
        return _shared(name, shape)
    rule = "chains of multiply-adds over segments, added left to right"
    schedule = segments(*lengths(k), library=LIBRARY, source=SOURCE, evidence="hardware")
    return ChosenSchedule("sgemm", schedule, CHAIN, FP32, rule)


def _shared(name: str, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of two threads that add half of K each, or raise a DeclinedShape."""
    m, n, k = shape.m, shape.n, shape.k
    if m * n * k < SHARED or max(m, n) > SMALL:
        raise declined(name, shape, "whether 2 threads share K or the result is not known for this size")
    halves = [half_lengths(part) for part in (-(-k // 2), k // 2)]
    order = regions().SegmentLanes((*halves[0], *halves[1]), parts=(len(halves[0]), len(halves[1])))
    whole = regions().ResultRegion((Span(0, m),), (Span(0, n),), order)
    rule = "a half of K for each thread, chains of multiply-adds over its segments, added left to right; then both sums"
    return ChosenSchedule("sgemm", regions().Regions(m, n, k, (whole,)), None, FP32, rule)


def _vector(name: str, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of a result of one row or column, or raise a DeclinedShape.

    The K terms of the other operand must be contiguous, and the number of results a multiple of four: each result
    then has 16 lanes, and the kernel for the last results of other numbers is not known.
    """
    m, n, k = shape.m, shape.n, shape.k
    along_k = shape.layout != "tn" if n == 1 else shape.layout == "nt"
    if not along_k:
        raise declined(name, shape, "how sgemv adds rows of b to a row, or columns of a to a column, is not known")
    if m * n % GROUP:
        raise declined(name, shape, f"how sgemv adds the last results beyond a multiple of {GROUP} is not known")
    order = regions().SegmentLanes((k,), "first_apart", LANES)
    whole = regions().ResultRegion((Span(0, m),), (Span(0, n),), order)
    rule = "the first product, rounded, and 16 lanes of multiply-adds over whole turns, then over the rest"
    return ChosenSchedule("sgemv", regions().Regions(m, n, k, (whole,)), None, FP32, rule)


def lengths(k: int) -> tuple[int, ...]:
    """Return the number of terms of each segment into which MKL divides K = k.

    Example:
      >>> from fpsim.schedules.libraries.mkl import lengths
      >>> lengths(385), lengths(768), lengths(1200)
      ((193, 192), (384, 384), (384, 384, 216, 216))
    """
    whole = []
    while k >= 2 * SEGMENT:
        whole.append(SEGMENT)
        k -= SEGMENT
    return (*whole, -(-k // 2), k // 2) if k > SEGMENT else (*whole, k)


def half_lengths(k: int) -> tuple[int, ...]:
    """Return the number of terms of each segment of the k terms that one of two threads adds, if they share K.

    Example:
      >>> from fpsim.schedules.libraries.mkl import half_lengths
      >>> half_lengths(384), half_lengths(629), half_lengths(940)
      ((384,), (315, 314), (384, 384, 172))
    """
    if SEGMENT < k <= 2 * SEGMENT:
        return -(-k // 2), k // 2
    rest = k % SEGMENT
    return (SEGMENT,) * (k // SEGMENT) + ((rest,) if rest else ())
