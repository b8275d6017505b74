"""The schedules of float32 products by the OpenBLAS in NumPy's wheels: chains, segments of K, and lanes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fpsim.errors import require_word
from fpsim.formats.named import FP32
from fpsim.lazy import deferred
from fpsim.schedules.arguments import call_text, positive
from fpsim.schedules.libraries.segments import segments
from fpsim.schedules.plan import Span
from fpsim.schedules.shaped import CHAIN, LAYOUTS, ChosenSchedule, Layout, ProductShape, ShapedSchedule, declined

if TYPE_CHECKING:
    from fpsim.schedules.regions import Regions

LIBRARY = "OpenBLAS 0.3.31"
SOURCE = (
    "NumPy 2.4.6 with OpenBLAS 0.3.31 (SkylakeX) on Intel Xeons, 2026-11-27 (docs/cpu.md); OpenBLAS, kernel/x86_64: "
    "sgemm_small_kernel_*_skylakex.c; driver/level3: level3.c, level3_thread.c"
)
SEGMENT, MULTIPLE = 448, 16  # GEMM_Q and GEMM_UNROLL_M (OpenBLAS, driver/level3/level3.c), as measured
SMALL = 1_000_000  # multiply-adds up to which kernels for small matrices take all of K at once
SMALL_RESULT = 1200  # elements of the result up to which such a kernel takes a transposed b
DOTS = 32  # terms from which such kernels add in lanes
TAIL, BLOCK, FOUR = 8, 16, 4  # most columns beyond a multiple of 16 that lanes add; 16; columns and rows of a group
ALONE, FEW = 524_287, 16  # multiply-adds up to which, and rows up to which with < 2 FEW columns, one thread computes
regions = deferred("fpsim.schedules.regions")


def openblas(threads: int = 1, *, layout: Layout = "nn") -> ShapedSchedule:
    """Return the schedules of OpenBLAS's sgemm, by shape, as NumPy's `a @ b` calls it with float32 on AVX-512.

    Results of products of up to a million multiply-adds are one chain over K each, or 16 lanes in some columns. Larger
    products cut K into segments. docs/cpu.md has the rules. No rule is known for a result of one row or column, for
    which `at` raises a `DeclinedShape`.

    NumPy multiplies a matrix by its own transpose (`x @ x.T`) by another routine, ssyrk. `fp.matmul` therefore declines
    two operands of which one is the transposed view of the other; a copy of one gives the prediction of sgemm.

    Args:
      threads: number of threads; rules are known for one and two.
      layout: "nn": both operands in C order, "nt": b transposed, "tn": a transposed (see `ShapedSchedule`).

    Raises:
      ValueError: an unknown layout, or threads that are not a positive integer.

    Source: docs/cpu.md.

    Example:
      >>> import fpsim as fp
      >>> [fp.schedules.openblas().at(96, 128, k, "fp32").schedule for k in (80, 500, 1000)]
      [segments(80), segments(256, 244), segments(448, 288, 264)]
      >>> how = fp.schedules.openblas().at(96, 17, 80, "fp32").schedule  # a column beyond a multiple of 16
      >>> how.order_at(0, 0), how.order_at(0, 16)
      (SegmentLanes((80,), 'chain'), SegmentLanes((80,), 'neighbours', width=16))
    """
    threads = positive(threads, "threads")
    require_word("layout", layout, LAYOUTS)
    name = call_text("openblas", threads=(threads, 1), layout=(layout, "nn"))
    reason = "NumPy multiplies a matrix by its own transpose with ssyrk, whose order is not known; pass a copy of one"
    return ShapedSchedule(name, LIBRARY, partial(_chosen, name, threads), layout, SOURCE, reason)


def _chosen(name: str, threads: int, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of OpenBLAS's sgemm for a shape, or raise a DeclinedShape.

    name: name of the ShapedSchedule, for errors. threads: number of threads.
    """
    m, n, k = shape.m, shape.n, shape.k
    if shape.fmt != FP32:
        raise declined(name, shape, "sgemm multiplies float32")
    if threads > 2:
        raise declined(name, shape, f"how {threads} threads share a product is not known")
    if shape.is_vector:
        raise declined(name, shape, "how sgemv adds one row or one column is not known")
    size = m * n * k
    is_small = size <= SMALL and (shape.layout != "nt" or (m * n <= SMALL_RESULT and k >= DOTS))
    if is_small and k >= DOTS:
        first = {"nn": n // BLOCK * BLOCK if 1 <= n % BLOCK <= TAIL else n, "tn": n, "nt": 0}[shape.layout]
        if first < n:
            rule = f"16 lanes of multiply-adds from column {first} on, joined by neighbours or by halves; else chains"
            return ChosenSchedule("sgemm_small_kernel", _lanes(shape, first), None, FP32, rule)
    is_shared = threads > 1 and size > ALONE and (n >= 2 * FEW or m > FEW)
    of = (k,) if is_small else lengths(k, 2 if is_shared else 1)
    schedule = segments(*of, library=LIBRARY, source=SOURCE, evidence="hardware")
    rule = "chains of multiply-adds over segments, added left to right"
    return ChosenSchedule("sgemm", schedule, CHAIN, FP32, rule)


def _lanes(shape: ProductShape, first: int) -> Regions:
    """Return the Regions of a small product: chains in the columns before `first`, 16 lanes in the others.

    In whole groups of four columns, or of four rows, neighbouring lanes are added, level by level; elsewhere lane i + 8
    is added to lane i, then lane i + 4, and so on. shape: the shape of the product.
    """
    of, m, n, k = regions(), shape.m, shape.n, shape.k
    whole, rows = n // FOUR * FOUR, m // FOUR * FOUR
    neighbours, halves = (of.SegmentLanes((k,), lanes, BLOCK) for lanes in ("neighbours", "dealt"))
    every, left = Span(0, m), Span(rows, m)
    spans = [
        ((every,), (Span(0, first),), of.SegmentLanes((k,))),
        ((every,), (Span(first, whole),), neighbours),
        ((Span(0, rows),), (Span(whole, n),), neighbours),
        ((left,), (Span(whole, n),), halves),
    ]
    kept = [part for part in spans if part[0][0].terms > 0 and part[1][0].terms > 0]
    made: Regions = of.Regions(m, n, k, tuple(of.ResultRegion(*part) for part in kept))
    return made


def lengths(k: int, threads: int = 1) -> tuple[int, ...]:
    """Return the number of terms of each segment into which OpenBLAS divides K = k.

    As long as 896 terms or more are left, the next segment has 448 terms. If the rest r has more than 448 terms, it is
    two segments. The first has floor(r / 2) terms, rounded up to a multiple of 16, on one thread, and ceil(r / 2) terms
    on two threads. So 449 terms are 224 + 225 on one thread (224 is a multiple of 16), and 225 + 224 on two.

    threads: 1 or 2.

    Example:
      >>> from fpsim.schedules.libraries.openblas import lengths
      >>> lengths(448), lengths(449), lengths(1345), lengths(1349, 2)
      ((448,), (224, 225), (448, 448, 224, 225), (448, 448, 227, 226))
    """
    made = []
    while k > 0:
        length = k
        if k >= 2 * SEGMENT:
            length = SEGMENT
        elif k > SEGMENT:
            length = -(-(k // 2) // MULTIPLE) * MULTIPLE if threads == 1 else -(-k // 2)
        made.append(length)
        k -= length
    return tuple(made)
