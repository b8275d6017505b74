"""Schedules of oneDNN's matrix products on x86, as torch calls it: chains of instructions over segments of K."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fpsim.errors import require_word
from fpsim.formats.integer_format import INT8
from fpsim.formats.named import BF16, FP16
from fpsim.lazy import deferred
from fpsim.schedules.arguments import call_text, positive
from fpsim.schedules.libraries.amx.problem import shares
from fpsim.schedules.libraries.onednn_integers import gemm_lengths, integers
from fpsim.schedules.libraries.segments import segments
from fpsim.schedules.plan import Span
from fpsim.schedules.shaped import (
    CHAIN,
    ISAS,
    LAYOUTS,
    ChosenSchedule,
    Isa,
    Layout,
    ProductShape,
    ShapedSchedule,
    cut,
    declined,
)

if TYPE_CHECKING:
    from fpsim.schedules.regions import SegmentLanes

LIBRARY = "oneDNN 3.12"
SOURCE = "torch 2.13.0 with oneDNN 3.12 on Intel Xeons with and without AMX, 2026-11-26 and 27 (docs/cpu.md)"
L1, L2 = 48 << 10, 2 << 20  # bytes of a core's caches, of the measured processor
LONG, SEGMENT, LONG_SEGMENT = 1024, 512, 1024  # brg_matmul without AMX
BLOCK = 32  # terms of TDPBF16PS and TDPFP16PS
HALVES = ("amx_fp16", "amx", "avx512_fp16")  # instructions with which oneDNN multiplies FP16
VECTOR_SEGMENT = 8  # gemm:jit:bf16, of a row or column whose results are contiguous in the matrix
amx = deferred("fpsim.schedules.libraries.amx.blocks")
regions = deferred("fpsim.schedules.regions")
sharing = deferred("fpsim.schedules.libraries.onednn_threads")


def onednn(
    isa: Isa = "avx512_bf16", threads: int = 1, *, l1: int = L1, l2: int = L2, layout: Layout = "nn"
) -> ShapedSchedule:
    """Return the schedules of oneDNN's products of BF16, FP16 and INT8 operands, by shape.

    Args:
      isa: the largest set of instructions that oneDNN uses, as ONEDNN_MAX_CPU_ISA limits it: "amx_fp16" (AMX for FP16
        too), "amx", "avx512_fp16", "avx512_bf16", "avx512_vnni", "avx512", "avx2_vnni" or "avx2".
      threads: number of threads.
      l1, l2: bytes of a core's caches, on which blocks of K depend with AMX.
      layout: "nn": both operands in C order, "nt": b transposed, "tn": a transposed (see `ShapedSchedule`).

    Raises:
      ValueError: an unknown isa or layout, or a size that is not a positive integer.

    Source: docs/cpu.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.onednn("amx").at(33, 20, 66).schedule
      segments(66, step=22)
      >>> fp.schedules.onednn("avx512_fp16").at(1, 64, 2000, "fp16").schedule
      segments(512, 512, 512, 464)
      >>> chosen = fp.schedules.onednn("avx2").at(40, 50, 301, "int8")
      >>> chosen.accumulate, chosen.schedule, chosen.shifted
      ('x86_avx2_u8xs8_s32', segments(151, 150), 'a')
    """
    require_word("isa", isa, ISAS)
    require_word("layout", layout, LAYOUTS)
    threads, l1, l2 = positive(threads, "threads"), positive(l1, "l1"), positive(l2, "l2")
    name = call_text("onednn", isa, threads=(threads, 1), l1=(l1, L1), l2=(l2, L2), layout=(layout, "nn"))
    return ShapedSchedule(name, LIBRARY, partial(_chosen, name, isa, threads, (l1, l2)), layout, SOURCE)


def _chosen(name: str, isa: Isa, threads: int, caches: tuple[int, int], shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of oneDNN's product for a shape, or raise a DeclinedShape.

    name: name of the ShapedSchedule, for errors. isa, threads: as in `onednn`. caches: bytes of L1 and L2.
    """
    if shape.fmt == INT8:
        return integers(name, isa, threads, shape)
    takes = (shape.fmt == BF16 and not isa.startswith("avx2")) or (shape.fmt == FP16 and isa in HALVES)
    if not takes:
        raise declined(name, shape, f"torch gives oneDNN no {shape.fmt} with these instructions; take torch_mm()")
    if isa == "amx_fp16" or (isa == "amx" and shape.fmt == BF16):
        return _amx(name, threads, caches, shape)
    if isa in ("avx512", "avx512_vnni"):
        return _gemm(name, threads, shape)
    if shape.fmt == FP16 and shape.layout == "nt" and shape.m == 1:
        raise declined(name, shape, "the kernel of one row with a transposed b is not known")
    return _brgemm(threads, shape)


def _brgemm(threads: int, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of oneDNN's brg_matmul without AMX: chains over segments of K, added from left to right.

    A chain consists of VDPBF16PS instructions for BF16, of float32 multiply-adds for FP16. Segments have SEGMENT terms;
    for K above LONG they have LONG_SEGMENT, unless the result is a vector or a is transposed. The last may be shorter.
    If several threads share K, each adds some segments, and the threads' sums are added. threads: number of threads.
    shape: sizes, format and layout of the product.
    """
    a_turned = shape.is_vector or shape.layout == "tn"
    lengths = cut(shape.k, LONG_SEGMENT if shape.k > LONG and not a_turned else SEGMENT)
    of = "VDPBF16PS, the odd term first," if shape.fmt == BF16 else "float32 multiply-adds"
    accumulate = "x86_avx512_bf16_f32" if shape.fmt == BF16 else CHAIN
    fmt = BF16 if shape.fmt == BF16 else FP16
    over = f"chains of {of} over segments of {max(lengths)} terms, added left to right"
    sharers = 1
    if threads > 1 and a_turned and (shape.fmt == FP16 or not shape.k & (shape.k - 1)):
        m, n = (1, max(shape.m, shape.n)) if shape.is_vector else (shape.m, shape.n)
        copies_a = shape.fmt == FP16 or not shape.is_vector
        product = sharing().BrgemmProduct(m, n, shape.k, SEGMENT, copies_a, threads)
        sharers = min(sharing().threads_along_k(product), len(lengths))
    if sharers > 1:
        lanes = "dot_pairs" if shape.fmt == BF16 else "chain"
        order = regions().SegmentLanes(lengths, lanes, parts=shares(len(lengths), sharers))
        rule = f"{over} on each of {sharers} threads, whose sums are added, one cast at the end"
        every = regions().one_order(shape.m, shape.n, shape.k, order)
        return ChosenSchedule("brg_matmul", every, None, fmt, rule, "last", flushes=fmt == BF16)
    rule = f"{over}, one cast at the end"
    schedule = segments(*lengths, library=LIBRARY, source=SOURCE, evidence="hardware")
    return ChosenSchedule("brg_matmul", schedule, accumulate, fmt, rule, "last", flushes=fmt == BF16)


def _gemm(name: str, threads: int, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of oneDNN's gemm:jit:bf16, for AVX-512 without BF16 instructions, or raise a DeclinedShape.

    The kernel replaces VDPBF16PS by multiply-adds in the same order, but keeps subnormals. Two threads share the rows;
    a row that a thread computes alone is added in the order of `_gemm_row`. name: name of the ShapedSchedule, for
    errors. threads: number of threads. shape: sizes and layout of the product.
    """
    if threads > 2:
        raise declined(name, shape, f"how {threads} threads share a product in gemm:jit:bf16 is not known")
    m, n, k = shape.m, shape.n, shape.k
    if m == n == 1:
        raise declined(name, shape, "how gemm:jit:bf16 adds a single result is not known")
    pairs = shape.layout != "tn" if n == 1 else shape.layout == "nt"
    if shape.is_vector and pairs:
        return _gemm_regions(shape, [(Span(0, m), _gemm_row(k, pairs))])
    # halves up to K = 1536 (one segment up to 384), segments of 768 beyond
    lengths = cut(k, VECTOR_SEGMENT) if shape.is_vector else gemm_lengths(k, 384, 768)
    if threads == 2 and not shape.is_vector and (m % 2 or m == 2):  # rows that a thread has on its own are vectors
        alone = Span(0, m) if m <= 3 else Span(m // 2, m // 2 + 1)
        rest = regions().SegmentLanes(lengths, "odd_first")
        others = [(span, rest) for span in (Span(0, alone.start), Span(alone.stop, m)) if span.stop > span.start]
        return _gemm_regions(shape, [(alone, _gemm_row(k, pairs)), *others])
    rule = f"chains of multiply-adds, odd terms first, over segments of {max(lengths)} terms, added left to right"
    schedule = segments(*lengths, odd_first=True, library=LIBRARY, source=SOURCE, evidence="hardware")
    return ChosenSchedule("gemm:jit:bf16", schedule, CHAIN, BF16, rule, bias="last")


def _gemm_row(k: int, pairs: bool) -> SegmentLanes:
    """Return the order in which gemm:jit:bf16 adds the k terms of a vector, or of a row that a thread computes alone.

    pairs: True if the terms of both operands are contiguous in memory; pairs of terms are then dealt to 16 lanes.
    Otherwise each segment of VECTOR_SEGMENT terms is a chain, which adds the second term of each pair first.
    """
    if pairs:
        lanes: SegmentLanes = regions().SegmentLanes((k,), "pairs_dealt", 16)
        return lanes
    chains: SegmentLanes = regions().SegmentLanes(cut(k, VECTOR_SEGMENT), "odd_first")
    return chains


def _gemm_regions(shape: ProductShape, rows: list[tuple[Span, SegmentLanes]]) -> ChosenSchedule:
    """Return the schedule of gemm:jit:bf16 for a shape whose rows differ in the order of additions.

    rows: (span of rows, their order) pairs.
    """
    of = regions()
    columns = (Span(0, shape.n),)
    orders = dict.fromkeys(order for _, order in rows)
    parts = [(tuple(span for span, mine in rows if mine == order), order) for order in orders]
    every = of.Regions(
        shape.m, shape.n, shape.k, tuple(of.ResultRegion(spans, columns, order) for spans, order in parts)
    )
    rule = "chains of multiply-adds, odd terms first; rows that a thread computes alone have segments of 8 or 16 lanes"
    return ChosenSchedule("gemm:jit:bf16", every, None, BF16, rule, bias="last")


def _amx(name: str, threads: int, caches: tuple[int, int], shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of oneDNN's brg_matmul with AMX, chains over segments of K, or raise a DeclinedShape.

    name: name of the ShapedSchedule, for errors. threads: number of threads that may share the product. caches: (bytes
    of L1, bytes of L2), which decide the segments. shape: sizes, format and layout of the product.
    """
    m, n, k, of = shape.m, shape.n, shape.k, amx()
    layout = shape.layout if k > 1 else "nn"  # operands of one term have the same layout in memory either way
    a_turned, b_turned = layout == "tn", layout == "nt"
    if shape.is_vector:  # a column is computed as the row of the transposed product
        m, n, a_turned, b_turned = (1, n, False, b_turned) if m == 1 else (1, m, False, not a_turned)
    is_half, fmt = shape.fmt == FP16, FP16 if shape.fmt == FP16 else BF16
    blocks = of.amx_blocks(of.AmxProduct(m, n, k, a_turned, b_turned, threads, of.Caches(*caches), is_half))
    if blocks is None:
        raise declined(name, shape, "none of oneDNN's blocks fits caches of these sizes")
    if not blocks.takes_amx:
        return _brgemm(threads, shape)
    unit = "x86_amx_f16_f32" if is_half else "x86_amx_bf16_f32"
    lanes = ("equal_" if blocks.equal else "") + ("half_tiles" if is_half else "tiles")
    order = regions().SegmentLanes(blocks.lengths, lanes, parts=blocks.parts)
    steps = {order.instruction_terms(length) for length in blocks.lengths}
    terms = "as many equal terms as fit 32" if blocks.equal else f"{BLOCK} terms"
    over = f" over segments of {max(blocks.lengths)} terms, added left to right" if len(blocks.lengths) > 1 else ""
    shared = f" on each of {len(blocks.parts)} threads, whose sums are added" if blocks.parts else ""
    of_terms = f"{'TDPFP16PS' if is_half else 'TDPBF16PS'} of {terms} each"
    rule = f"{of_terms}, onto the running float32 sum{over}{shared}, one cast at the end"
    if blocks.parts or len(steps) > 1:
        every = regions().one_order(shape.m, shape.n, k, order)
        return ChosenSchedule("brg_matmul:amx", every, None, fmt, rule, "last", flushes=fmt == BF16)
    schedule = segments(
        *blocks.lengths, step=steps.pop(), library=LIBRARY, source=f"{SOURCE}; {of.SOURCE}", evidence="hardware"
    )
    return ChosenSchedule("brg_matmul:amx", schedule, unit, fmt, rule, "last", flushes=fmt == BF16)
