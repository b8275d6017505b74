"""The schedules of float32 products by the OpenBLAS in NumPy's wheels: chains over all of K or over segments of it."""

from __future__ import annotations

from functools import partial

from fpsim.formats.named import FP32
from fpsim.schedules.arguments import positive
from fpsim.schedules.libraries.segments import segments
from fpsim.schedules.shaped import CHAIN, ChosenSchedule, Layout, ProductShape, ShapedSchedule, declined, layout_of

LIBRARY = "OpenBLAS 0.3.31"
SOURCE = "NumPy 2.4.6 with OpenBLAS 0.3.31 (SkylakeX) on Intel Emerald Rapids, 2026-11-27 (docs/cpu.md)"
SEGMENT, MULTIPLE = 448, 16  # GEMM_Q and GEMM_UNROLL_M (OpenBLAS, driver/level3/level3.c), as measured
SMALL = 1_000_000  # multiply-adds up to which a kernel for small matrices takes all of K at once
TAIL, SHORT = (
    8,
    16,
)  # columns beyond a multiple of 16 that have another kernel, and K up to which that makes no difference


def openblas(threads: int = 1, *, layout: Layout = "nn") -> ShapedSchedule:
    """Return the schedules of OpenBLAS's sgemm, by shape, as NumPy's `a @ b` calls it with float32 on AVX-512.

    Products of up to a million multiply-adds are one chain. Otherwise, while 896 terms or more are left, a segment
    has 448; if more than 448 are left then, n terms, a segment has floor(n / 2) rounded up to a multiple of 16, and the
    last one the rest. No rule is known for a result of one row or column, for a transposed b, and, beyond K = 16, for 1
    to 8 columns more than a multiple of 16; `at` then raises a `DeclinedShape`.

    Args:
      threads: number of threads; rules are known for one.
      layout: "nn": both operands in C order, "nt": b transposed, "tn": a transposed (see `ShapedSchedule`).

    Raises:
      ValueError: an unknown layout, or threads that are not a positive integer.

    Source: docs/cpu.md.

    Example:
      >>> import fpsim as fp
      >>> [fp.schedules.openblas().at(96, 128, k, "fp32").schedule for k in (80, 500, 1000)]
      [segments(80), segments(256, 244), segments(448, 288, 264)]
    """
    threads, layout = positive(threads, "threads"), layout_of(layout)
    words = [f"threads={threads}"] * (threads > 1) + [f"layout={layout!r}"] * (layout != "nn")
    name = f"openblas({', '.join(words)})"
    return ShapedSchedule(name, LIBRARY, partial(_chosen, name, threads), layout, SOURCE)


def _chosen(name: str, threads: int, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule for a shape, or raise a DeclinedShape; name: of the ShapedSchedule."""
    m, n, k = shape.m, shape.n, shape.k
    if shape.fmt != FP32:
        raise declined(name, shape, "sgemm multiplies float32")
    if threads > 1:
        raise declined(name, shape, f"how {threads} threads share a product is not known")
    if shape.is_vector:
        raise declined(name, shape, "how sgemv adds one row or one column is not known")
    if shape.layout == "nt":
        raise declined(name, shape, "the kernels for a transposed b are not known")
    if k > SHORT and 1 <= n % 16 <= TAIL:
        raise declined(name, shape, f"the kernel of the last {n % 16} columns, beyond a multiple of 16, is not known")
    of = (k,) if m * n * k <= SMALL else lengths(k)
    schedule = segments(*of, library=LIBRARY, source=SOURCE, evidence="hardware")
    rule = "chains of multiply-adds over segments, added left to right"
    return ChosenSchedule("sgemm", schedule, CHAIN, FP32, rule)


def lengths(k: int) -> tuple[int, ...]:
    """Return the number of terms of each segment into which OpenBLAS divides K = k.

    Example:
      >>> from fpsim.schedules.libraries.openblas import lengths
      >>> lengths(448), lengths(449), lengths(1345)
      ((448,), (224, 225), (448, 448, 224, 225))
    """
    made = []
    while k > 0:
        length = k
        if k >= 2 * SEGMENT:
            length = SEGMENT
        elif k > SEGMENT:
            length = -(-(k // 2) // MULTIPLE) * MULTIPLE
        made.append(length)
        k -= length
    return tuple(made)
