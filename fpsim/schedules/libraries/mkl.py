"""The schedules of MKL's float32 products: chains of multiply-adds over segments of K."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

from fpsim.errors import require_word
from fpsim.formats.named import FP32
from fpsim.lazy import deferred
from fpsim.schedules.arguments import call_text, positive
from fpsim.schedules.libraries.segments import segments
from fpsim.schedules.shaped import CHAIN, LAYOUTS, ChosenSchedule, Layout, ProductShape, ShapedSchedule, cut, declined

if TYPE_CHECKING:
    from fpsim.schedules.regions import SegmentLanes

LIBRARY = "MKL 2024.2"
SOURCE = "torch 2.13.0 with MKL 2024.2 on Intel Emerald Rapids, 2026-11-26 and 27 (docs/cpu.md)"
SEGMENT = 384
LANES = 16  # of dot products
FEW_ROWS = 15  # up to which a transposed b may be multiplied by dot products
PACKED = 192  # rows and columns from which one thread packs operands
ALONE = 192_000  # M * N * K up to which one of two threads multiplies
THIN, WIDE = 56, 379  # rows or columns of a product that one thread or both take whole: up to one, from the other on
ALIGNED = 256  # elements: rows in memory of a multiple of it are treated apart
LARGEST = 1 << 17  # rows or columns up to which shapes were compared
Cuts = Literal["balanced", "greedy", "halves"]

regions = deferred("fpsim.schedules.regions")
vectors = deferred("fpsim.schedules.libraries.mkl_vectors")


def mkl(threads: int = 1, *, isa: Literal["avx512", "avx2"] = "avx512", layout: Layout = "nn") -> ShapedSchedule:
    """Return the schedules of MKL's sgemm and sgemv, by shape, as torch.mm calls them with float32 operands.

    As long as 768 terms of K or more are left, the next segment has 384 terms. A rest of more than 384 terms is halved,
    the larger half first. In products with at least 192 rows and 192 columns, a K above 768 is cut into segments of 384
    terms and one with the remaining terms. From K = 768 on, two threads add half of K each, unless the product is small
    or has many rows and columns.
    Other kernels compute vectors, and up to 15 rows with a transposed b. Where no rule is known, `at` raises a
    `DeclinedShape` that says which rule is missing.

    The rules hold on Intel's processors. On AMD's, MKL takes other kernels, whose order is not known.

    Sums of segments start at +0. With K = 1 the result of sgemm is the product itself, so -1 * 0 is -0. The operands
    must be contiguous in memory or transposed views of contiguous matrices.

    Args:
      threads: number of threads; rules are known for one and for two.
      isa: the instructions that MKL uses, "avx512" or "avx2"; rules are known for AVX-512.
      layout: "nn": both operands in C order, "nt": b transposed, "tn": a transposed (see `ShapedSchedule`).

    Raises:
      ValueError: an unknown isa or layout, or threads that are not a positive integer.

    Source: docs/cpu.md.

    Example:
      >>> import fpsim as fp
      >>> [fp.schedules.mkl().at(40, 50, k, "fp32").schedule for k in (300, 601, 1000)]
      [segments(300), segments(301, 300), segments(384, 308, 308)]
    """
    threads = positive(threads, "threads")
    require_word("layout", layout, LAYOUTS)
    require_word("isa", isa, ("avx512", "avx2"))
    name = call_text("mkl", threads=(threads, 1), isa=(isa, "avx512"), layout=(layout, "nn"))
    return ShapedSchedule(name, LIBRARY, partial(_chosen, name, threads, isa), layout, SOURCE)


def _chosen(name: str, threads: int, isa: str, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of MKL's sgemm or sgemv for a shape, or raise a DeclinedShape.

    name: name of the ShapedSchedule, for errors. threads: number of threads. isa: "avx512" or "avx2".
    """
    if shape.fmt != FP32:
        raise declined(name, shape, "sgemm multiplies float32")
    if isa != "avx512":
        raise declined(name, shape, "the kernels of MKL without AVX-512 are not known")
    if threads > 2:
        raise declined(name, shape, f"how {threads} threads share a product is not known")
    if max(shape.m, shape.n) > LARGEST:
        raise declined(name, shape, f"how more than {LARGEST} rows or columns are added is not known")
    if shape.is_vector:
        chosen: ChosenSchedule = vectors().vector_schedule(name, threads, shape)
        return chosen
    if shape.k == 1:
        schedule = segments(1, library=LIBRARY, source=SOURCE, evidence="hardware")
        return ChosenSchedule("sgemm", schedule, CHAIN, FP32, "the rounded product", bias="start", starts_at=-0.0)
    if shape.layout == "nt" and shape.m <= FEW_ROWS:
        few = _few_rows(name, threads, shape)
        if few is not None:
            return few
    cuts: Cuts
    if threads == 2:
        cuts = _cuts_of_two(shape)
    else:  # products that MKL packs are divided otherwise
        packs = shape.n >= PACKED and (shape.m >= PACKED or shape.layout == "nt")
        cuts = "greedy" if packs else "balanced"
    if cuts == "halves":
        return _shared(shape)
    parts = lengths(shape.k) if cuts == "balanced" else greedy_lengths(shape.k)
    schedule = segments(*parts, library=LIBRARY, source=SOURCE, evidence="hardware")
    rule = "chains of multiply-adds over segments, added left to right"
    return ChosenSchedule("sgemm", schedule, CHAIN, FP32, rule, bias="first")


def _cuts_of_two(shape: ProductShape) -> Cuts:
    """Return how two threads of MKL share a product of the given shape: "halves", "greedy" or "balanced".

    "halves": each thread adds one half of K for all results. Otherwise every result is added by one thread over all of
    K, in segments of `greedy_lengths` ("greedy") or of `lengths` ("balanced", mostly where one thread works alone).
    """
    m, n, k = shape.m, shape.n, shape.k
    if k < 2 * SEGMENT or m * n * k <= ALONE:
        return "balanced"
    if min(m, n) * 8 > k and (max(m, n) >= WIDE or n + 3 * m + 241 >= k):
        return "greedy"
    b_is_aligned = n % ALIGNED == 0 and shape.layout != "nt"
    a_is_aligned = k % ALIGNED == 0 and shape.layout == "nn"
    if m <= THIN and WIDE <= n < 2 * WIDE - 2:
        fewest = 16 if k >= 6400 else 17
        return "halves" if (a_is_aligned or b_is_aligned) and m >= fewest else "balanced"
    if n <= THIN and m >= WIDE and shape.layout != "tn" and not (a_is_aligned and n >= 32):
        return "balanced"
    return "greedy" if m >= 4 * k else "halves"


def _shared(shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of sgemm on two threads that share K: one adds the first ceil(K / 2) terms, one the others.

    shape: the shape of the product.
    Each half of K is cut into segments. Up to 384 terms are one segment; up to 768 terms are two, the larger first;
    more terms are segments of 384 terms, of which the last may be shorter. The terms of a segment are added to +0 one
    after the other by fused multiply-adds. Each thread adds its segments to +0 from left to right; at the end the two
    threads' sums are added.
    """
    m, n, k = shape.m, shape.n, shape.k
    halves = [greedy_lengths(part) for part in (-(-k // 2), k // 2)]
    order = regions().SegmentLanes((*halves[0], *halves[1]), parts=(len(halves[0]), len(halves[1])))
    rule = "a half of K for each thread, chains of multiply-adds over its segments, added left to right; then both sums"
    return _everywhere(m, n, k, order, rule)


def _few_rows(name: str, threads: int, shape: ProductShape) -> ChosenSchedule | None:
    """Return the schedule of up to 15 rows of a times a transposed b if MKL computes dot products, else None.

    With K >= 24 M, MKL does so on one thread, in the lanes "quarters" of `SegmentLanes`. On two threads it does so only
    if M <= 3, if M * N * K <= ALONE, or if N or K is a multiple of ALIGNED. With K < 24 M, it does so in the lanes
    "dealt" if N = 2, if N = 3 and M <= 10, or if M < N <= 11 and K <= N. For a shape whose rule is not known the
    function raises a DeclinedShape with `name`, the name of the ShapedSchedule. threads: 1 or 2. shape: sizes of the
    product.
    """
    m, n, k = shape.m, shape.n, shape.k
    if k >= 24 * m:
        is_alone = threads == 1 or m <= 3 or m * n * k <= ALONE or 0 in (n % ALIGNED, k % ALIGNED)
        rule = f"{LANES} lanes of multiply-adds, every fourth of which are added from left to right, then in pairs"
        if is_alone:
            return _everywhere(m, n, k, regions().SegmentLanes((k,), "quarters", LANES), rule)
        if k < 2 * SEGMENT and 1 <= n - -(-n // 2 // LANES) * LANES <= 3:
            raise declined(
                name, shape, "how a thread adds the last 1 to 3 columns beyond a multiple of 16 is not known"
            )
        return None
    if not (n == 2 or (n == 3 and m <= 10) or (m < n <= 11 and k <= n)):
        return None
    if k >= 2 * LANES:
        raise declined(name, shape, f"the kernel of up to 3 columns with {2 * LANES} to 24 M terms is not known")
    rule = f"{LANES} lanes of multiply-adds, joined by halves"
    return _everywhere(m, n, k, regions().SegmentLanes((k,), "dealt", LANES), rule)


def _everywhere(m: int, n: int, k: int, order: SegmentLanes, rule: str) -> ChosenSchedule:
    """Return the schedule of sgemm that adds the k terms of every element of an m x n result in the same order.

    rule: text on that order.
    """
    bias: Literal["first", "last"] = "first" if order.lanes == "chain" else "last"
    return ChosenSchedule("sgemm", regions().one_order(m, n, k, order), None, FP32, rule, bias)


def lengths(k: int) -> tuple[int, ...]:
    """Return the number of terms of each segment into which MKL cuts K = k, if it does not pack the operands.

    To pack is to copy them in the order of the kernel; `greedy_lengths` then cuts K. One thread packs if the result has
    at least 192 columns, and at least 192 rows or a transposed b. For two threads see `_cuts_of_two`.

    As long as 768 terms or more are left, the next segment has 384 terms. A rest of more than 384 terms is two
    segments, its halves, the larger first; a smaller rest is one segment.

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


def greedy_lengths(k: int) -> tuple[int, ...]:
    """Return the number of terms of each segment into which MKL cuts k terms in products whose operands it packs.

    385 to 768 terms are halved, the larger half first; any other k is cut into segments of 384, the last of which may
    be shorter. k: all of K, or a thread's half of it.

    Example:
      >>> from fpsim.schedules.libraries.mkl import greedy_lengths
      >>> greedy_lengths(384), greedy_lengths(629), greedy_lengths(940)
      ((384,), (315, 314), (384, 384, 172))
    """
    if SEGMENT < k <= 2 * SEGMENT:
        return -(-k // 2), k // 2
    return cut(k, SEGMENT)
