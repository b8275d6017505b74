"""The schedules of Eigen's float32 products: blocks of K by cache sizes, and other lanes for the last rows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Literal, NamedTuple

from fpsim.errors import require_integer, require_word
from fpsim.formats.named import FP32
from fpsim.schedules.arguments import call_text, positive
from fpsim.schedules.plan import Span
from fpsim.schedules.regions import Lane, Regions, ResultRegion, SegmentLanes
from fpsim.schedules.shaped import ChosenSchedule, ProductShape, ShapedSchedule, cut, declined

SOURCE = (
    "Eigen/src/Core/products: GeneralBlockPanelKernel.h, GeneralMatrixMatrix.h, Parallelizer.h; compared with Eigen "
    "3.4.1 and 5.0.1 compiled by GCC 12 on Intel Emerald Rapids, 2026-11-27 (docs/cpu.md)"
)
L1, L2, L3 = 48 << 10, 2 << 20, 260 << 20  # bytes of the caches of the measured processor
FEW = 20  # M + N + K below which Eigen adds element by element
PEEL = 8  # terms of an unrolled loop, of which blocks of K are multiples
QUAD = 4  # columns that a kernel processes at once
NEVER_BLOCKED = 48  # largest size below which nothing is cut
BLOCK_CACHE = 3 << 19  # bytes of L2 that Eigen assumes for blocks (1.5 MB)
L1_PROBLEM, L2_PROBLEM, L2_ROWS = 1024, 32768, 576  # bytes of B up to which blocks of rows fit L1 or L2; their rows
THREAD_K, THREAD_WORK = 320, 50_000  # largest block of K with threads; multiply-adds for each thread


class Machine(NamedTuple):
    """Settings of a build of Eigen.

    width: floats in a register. panel: columns of b that a kernel multiplies at once. threads: number of threads. l1,
    l2, l3: bytes of the caches.
    """

    width: int
    panel: int
    threads: int
    l1: int
    l2: int
    l3: int

    @property
    def tall(self) -> int:
        """Rows of the result that the largest kernel computes at once: as many as three registers hold."""
        return 3 * self.width


class CacheBlocks(NamedTuple):
    """Sizes of the blocks that Eigen keeps in the cache together: terms of K, rows, and columns of the result."""

    k: int
    rows: int
    columns: int


def eigen(
    isa: Literal["avx512", "avx2"] = "avx512", threads: int = 1, *, version: Literal["3.4", "5.0"] = "3.4",
    major: Literal["column", "row"] = "column", l1: int = L1, l2: int = L2, l3: int = L3,
) -> ShapedSchedule:  # fmt: skip
    """Return the schedules of Eigen's products of float32 matrices, by shape and by region of the result.

    Args:
      isa: the instructions that Eigen was compiled for: "avx512", or "avx2" with FMA.
      threads: number of OpenMP threads, as Eigen::nbThreads() returns it.
      version: "3.4" or "5.0" of Eigen, which have other kernels for AVX-512.
      major: the storage order of the result, Eigen's ColMajor or RowMajor. The operands' makes no difference.
      l1, l2, l3: bytes of the caches as Eigen detects them (Eigen::l1CacheSize() etc.); l3 = 0 for none.

    Raises:
      ValueError: an unknown isa, version or storage order, or a size that is not a positive integer.

    Source: docs/cpu.md.

    Example:
      >>> import fpsim as fp
      >>> library = fp.schedules.eigen("avx2", l1=32 << 10)
      >>> library.at(96, 50, 700, "fp32").schedule.order_at(0, 0)
      SegmentLanes((240, 240, 220), 'chain')
    """
    require_word("isa", isa, ("avx512", "avx2"))
    require_word("version", version, ("3.4", "5.0"))
    require_word("major", major, ("column", "row"))
    require_integer("l3", l3, 0)
    threads, l1, l2 = positive(threads, "threads"), positive(l1, "l1"), positive(l2, "l2")
    name = call_text(
        "eigen", isa, threads=(threads, 1), version=(version, "3.4"), major=(major, "column"), l1=(l1, L1), l2=(l2, L2),
        l3=(int(l3), L3),
    )  # fmt: skip
    wide = isa == "avx512"
    machine = Machine(16 if wide else 8, 8 if wide and version == "5.0" else QUAD, threads, l1 << 2 * wide, l2, int(l3))
    library = "Eigen 3.4.1" if version == "3.4" else "Eigen 5.0.1"
    return ShapedSchedule(name, library, partial(_chosen, name, machine, major), source=SOURCE)


def _chosen(name: str, machine: Machine, major: str, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of Eigen's float32 product for a shape, or raise a DeclinedShape.

    name: name of the ShapedSchedule, for errors. machine: settings of the build. major: storage order of the result,
    "column" or "row".
    """
    if shape.fmt != FP32:
        raise declined(name, shape, "products of float32 are known")
    if shape.is_vector:
        raise declined(name, shape, "how gemv adds one row or one column is not known")
    if shape.m + shape.n + shape.k < FEW:
        raise declined(name, shape, f"how Eigen adds products of M + N + K < {FEW} is not known")
    rows, columns = (shape.m, shape.n) if major == "column" else (shape.n, shape.m)
    if machine.threads > 1 and machine.l2 - machine.l1 < 4 * machine.panel**2 * THREAD_K:
        factor = " 4 times" * (machine.width > 8)
        raise declined(name, shape, f"blocks for several threads need an L2 larger than{factor} L1")
    lengths, row_spans, column_spans = _spans(machine, rows, columns, shape.k)
    places = [
        (of_rows, of_columns, SegmentLanes(lengths, lanes, machine.width // 4 if lanes == "vectors" else 1))
        for of_rows, of_columns, lanes in _lanes(machine, row_spans, column_spans)
    ]
    regions = [ResultRegion(*(x[:2] if major == "column" else x[1::-1]), x[2]) for x in places]
    rule = "chains of multiply-adds over blocks of K, in lanes for rows beyond two registers; +0 plus block after block"
    return ChosenSchedule("gebp", Regions(shape.m, shape.n, shape.k, tuple(regions)), None, FP32, rule)


def _spans(machine: Machine, rows: int, columns: int, k: int) -> tuple[tuple[int, ...], list[Span], list[Span]]:
    """Return (lengths of blocks of K, spans of rows, spans of columns) for which Eigen's kernels are called.

    machine: settings of the build. rows, columns: sizes of the result in column-major order. k: number of terms.
    """
    threads = max(min(machine.threads, columns // machine.panel, rows * columns * k // THREAD_WORK), 1)
    if threads == 1:
        blocks = _blocks(machine, rows, columns, k)
        return cut(k, blocks.k), _cut(0, rows, blocks.rows), _cut(0, columns, blocks.columns)
    blocks = _shared_blocks(machine, columns, k, threads)
    share = columns // threads // QUAD * QUAD
    tall = rows // threads // machine.tall * machine.tall
    row_spans = [Span(i * tall, rows if i + 1 == threads else (i + 1) * tall) for i in range(threads)]
    parts = [Span(i * share, columns if i + 1 == threads else (i + 1) * share) for i in range(threads)]
    column_spans = [span for part in parts for span in _cut(*part, blocks.columns)]
    return cut(k, blocks.k), [span for span in row_spans if span.terms], column_spans


def _cut(start: int, stop: int, length: int) -> list[Span]:
    """Return consecutive spans of `length` elements that cover start to stop - 1; the last may be shorter."""
    return [Span(i, min(i + length, stop)) for i in range(start, stop, length)]


def _lanes(
    machine: Machine, row_spans: list[Span], column_spans: list[Span]
) -> Iterator[tuple[tuple[Span, ...], tuple[Span, ...], Lane]]:  # fmt: skip
    """Yield (rows, columns, lane order): the parts of the result that Eigen's kernels add in the same order.

    lane order: a name as in `SegmentLanes`. If machine.panel is more than 4, it is "chain" for the whole result.
    Otherwise the last (columns mod 4) columns of each span are "chain". In the other columns, the first rows of a span
    are "chain": whole groups of as many rows as three registers hold, then one group of two registers if enough rows
    are left. Whole groups of four of the remaining rows are "even_odd", and the last one to three rows "vectors".
    machine: settings of the build. row_spans, column_spans: the spans for which the kernels are called.
    """
    every_row = (Span(row_spans[0].start, row_spans[-1].stop),)
    every_column = (Span(column_spans[0].start, column_spans[-1].stop),)
    if machine.panel > QUAD:  # the kernels of Eigen 5 for AVX-512
        yield every_row, every_column, "chain"
        return
    whole = [Span(span.start, span.stop - span.terms % QUAD) for span in column_spans]
    rest = tuple(Span(span.stop - span.terms % QUAD, span.stop) for span in column_spans if span.terms % QUAD)
    quads = tuple(span for span in whole if span.terms)
    rows: dict[Lane, list[Span]] = {"chain": [], "even_odd": [], "vectors": []}
    for span in row_spans:
        at = span.start
        twos = span.terms % machine.tall // (2 * machine.width) * 2 * machine.width
        chained = span.terms // machine.tall * machine.tall + twos
        halved = (span.terms - chained) // QUAD * QUAD  # by one register, half of one and a quarter
        for lanes, count in (("chain", chained), ("even_odd", halved), ("vectors", span.terms - chained - halved)):
            if count:
                rows[lanes].append(Span(at, at + count))  # type: ignore[index]
            at += count
    for lanes, of_rows in rows.items():
        if of_rows and quads:
            yield tuple(of_rows), quads, lanes
    if rest:
        yield every_row, rest, "chain"


def _blocks(machine: Machine, rows: int, columns: int, k: int) -> CacheBlocks:
    """Return the sizes of the blocks into which one thread cuts a product of rows x k by k x columns.

    machine: settings of the build. Products with all sizes below NEVER_BLOCKED are one block.
    The longest block of K has the largest multiple of 8 terms for which a kernel's rows of a, columns of b and result
    fit L1. All blocks are made shorter as far as their number stays the same (see `_evened`). Columns are divided if a
    block of K in all columns of b does not fit the cache. Rows can be divided only if neither K nor columns are.
    """
    if max(rows, columns, k) < NEVER_BLOCKED:
        return CacheBlocks(k, rows, columns)
    most = max(_fitting(machine) // PEEL * PEEL, 1)
    terms = _evened(k, most, PEEL) if k > most else k
    left = machine.l1 - 4 * (machine.tall * machine.panel + rows * terms)  # bytes of L1 beside a result and all rows
    in_l1 = left >= 4 * machine.panel * terms
    most_columns = left // (4 * terms) if in_l1 else 3 * BLOCK_CACHE // (16 * most)
    width = min(BLOCK_CACHE // (8 * terms), most_columns) // machine.panel * machine.panel
    if columns > width:
        return CacheBlocks(terms, rows, _evened(columns, width, machine.panel, spare=0))
    if terms < k:
        return CacheBlocks(terms, rows, columns)
    problem, cache, most_rows = 4 * k * columns, BLOCK_CACHE, rows
    if problem <= L1_PROBLEM:
        cache = machine.l1
    elif machine.l3 and problem <= L2_PROBLEM:
        cache, most_rows = machine.l2, min(rows, L2_ROWS)
    height = min(cache // (12 * k), most_rows)
    if height == 0:
        return CacheBlocks(k, rows, columns)
    if height > machine.tall:
        height -= height % machine.tall
    return CacheBlocks(k, _evened(rows, height, machine.tall, spare=0), columns)


def _evened(size: int, most: int, grain: int, spare: int = 1) -> int:
    """Return the length of the blocks into which Eigen cuts `size` elements, so that the last is not much shorter.

    The number of blocks is ceil(size / most), where `most` is the longest length allowed. `most` is then reduced by a
    multiple of `grain` as far as that number allows: 1000 elements with most = 400 and grain = 8 are three blocks, of
    336, 336 and 328. spare: 1 for blocks of K, whose last block Eigen counts as one element longer than it is; 0 for
    blocks of rows or columns.
    """
    whole, rest = divmod(size, most)
    return most if rest == 0 else most - grain * ((most - spare - rest) // (grain * (whole + 1)))


def _shared_blocks(machine: Machine, columns: int, k: int, threads: int) -> CacheBlocks:
    """Return the sizes of the blocks into which K and a thread's columns are cut if several threads share a product.

    L1 alone decides the blocks of K. `rows` of the CacheBlocks is 0, as rows are not cut into blocks. machine: settings
    of the build. columns, k: sizes of the product. threads: 2 or more, each with a share of the columns.
    """
    most = max(PEEL, min(_fitting(machine), THREAD_K))
    terms = most // PEEL * PEEL if most < k else k
    in_l2 = (machine.l2 - machine.l1) // (4 * machine.panel * terms)
    share = -(-columns // threads)
    width = -(-share // machine.panel) * machine.panel
    return CacheBlocks(terms, 0, in_l2 // machine.panel * machine.panel if in_l2 <= share else min(columns, width))


def _fitting(machine: Machine) -> int:
    """Return the largest number of terms of K for which the L1 cache of `machine` holds all data of a kernel.

    These are its result, its rows of a and its columns of b.
    """
    return (machine.l1 - 4 * machine.tall * machine.panel) // (4 * (machine.tall + machine.panel))
