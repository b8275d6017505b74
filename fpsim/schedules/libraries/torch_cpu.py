"""torch.mm on x86: the schedule of torch's own loop, and which products are computed by it, oneDNN or MKL."""

from __future__ import annotations

from functools import partial
from typing import Literal

from fpsim.errors import require_word
from fpsim.formats.integer_format import INT8
from fpsim.formats.named import BF16, FP16, FP32
from fpsim.lazy import deferred
from fpsim.schedules.arguments import call_text, positive
from fpsim.schedules.libraries.mkl import mkl
from fpsim.schedules.libraries.onednn import HALVES, L1, L2, onednn
from fpsim.schedules.libraries.segments import rounds, segments
from fpsim.schedules.shaped import CHAIN, LAYOUTS, ChosenSchedule, Isa, Layout, ProductShape, ShapedSchedule, declined

LIBRARY = "torch 2.13.0"
SOURCE = "torch 2.13.0 on Intel Emerald Rapids, 2026-11-26 and 27 (docs/cpu.md)"
LANES = 4
DOT_LANES = 64  # of dot products over a transposed b
SMALL = 4096  # multiply-adds up to which torch runs its own loop

regions = deferred("fpsim.schedules.regions")


def torch_native(*, layout: Layout = "nn") -> ShapedSchedule:
    """Return the schedule of torch's own loop for BF16 and FP16 products that are small, or that oneDNN cannot compute.

    Term k belongs to lane k mod 4, terms after the last whole round to lane 0; the sum ((L0 + L1) + L2) + L3 is cast.
    With a transposed a, all terms are one chain; with a transposed b, dot products have 64 lanes, and 8 lanes for the
    remainder, on processors with AVX2 (not with ATEN_CPU_CAPABILITY=default).

    Every term is predicted as a fused multiply-add. torch multiplies the last terms first and then adds the product
    (K mod 4 terms in layout "nn", K mod 16 in "nt"). In BF16 the result differs if this product overflows or underflows
    float32.

    Args:
      layout: how the operands lie in memory, see `ShapedSchedule`.

    Raises:
      ValueError: an unknown layout.

    Source: docs/cpu.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.torch_native().at(5, 6, 70, "fp16").schedule
      rounds(4)
    """
    require_word("layout", layout, LAYOUTS)
    name = call_text("torch_native", layout=(layout, "nn"))
    return ShapedSchedule(name, LIBRARY, partial(_native, name), layout, SOURCE)


def _native(name: str, shape: ProductShape) -> ChosenSchedule:
    """Return the schedule of torch's own loop for a shape, or raise a DeclinedShape.

    If b is transposed, terms are added in 64 lanes, and the remaining ones in 8 ("narrowing" of `SegmentLanes`). If a
    is transposed, all terms are one chain. Otherwise terms are added in four lanes. A b with one column, or an a with
    one row, counts as not transposed. name: name of the ShapedSchedule, for errors. shape: sizes, format and layout of
    the product.
    """
    fmt = next((fmt for fmt in (BF16, FP16) if fmt == shape.fmt), None)
    if fmt is None:
        raise declined(name, shape, "torch's own loop takes BF16 and FP16")
    turned = {"nn": 1, "tn": shape.m, "nt": shape.n}[shape.layout]
    straight = turned == 1 or (shape.layout == "tn" and shape.k == 1)  # vectors have one layout in memory
    if shape.layout == "nt" and not straight:
        order = regions().SegmentLanes((shape.k,), "narrowing", DOT_LANES)
        rule = (
            "64 lanes of float32 multiply-adds, then 8, each joined by halves, the rest one by one, one cast at the end"
        )
        every = regions().one_order(shape.m, shape.n, shape.k, order)
        return ChosenSchedule("torch's own loop", every, None, fmt, rule, bias="last")
    if not straight:
        schedule = segments(shape.k, library=LIBRARY, source=SOURCE, evidence="hardware")
        rule = "one chain of float32 multiply-adds, then a cast"
        return ChosenSchedule("torch's own loop", schedule, CHAIN, fmt, rule, bias="start")
    rule = "four lanes of float32 multiply-adds, joined from the first to the last, one cast at the end"
    schedule = rounds(LANES, library=LIBRARY, source=SOURCE, evidence="hardware")
    return ChosenSchedule("torch's own loop", schedule, CHAIN, fmt, rule, bias="last")


def torch_mm(
    isa: Isa = "avx512_bf16", threads: int = 1, *, mkl_isa: Literal["avx512", "avx2"] | None = None, l1: int = L1,
    l2: int = L2, layout: Layout = "nn",
) -> ShapedSchedule:  # fmt: skip
    """Return the schedules of torch.mm on x86: MKL for float32, oneDNN or torch's own loop otherwise.

    For INT8 operands they are the schedules of torch._int_mm, which oneDNN computes. The operands must be contiguous in
    memory or transposed views of contiguous matrices, and torch.set_float32_matmul_precision must be "highest", its
    default. Float32 products are predicted for Intel's processors alone, the others for AMD's too.

    Args:
      isa, threads, l1, l2: as in `onednn`.
      mkl_isa: the instructions that MKL uses for FP32, which ONEDNN_MAX_CPU_ISA does not limit: "avx512" or "avx2".
        None for those of isa.
      layout: how the operands lie in memory: "nn" for torch.mm(a, b) with both in C order, "nt" for torch.mm(x, w.T),
        "tn" for torch.mm(x.T, b). `fp.matmul` does not look at strides. See `ShapedSchedule`.

    Raises:
      ValueError: an unknown isa or layout, or a size that is not a positive integer.

    Source: docs/cpu.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> cpu = fp.schedules.torch_mm("avx512_bf16")
      >>> [cpu.at(*shape).kernel for shape in ((4, 4, 64, "bf16"), (40, 50, 64, "bf16"), (40, 50, 64, "fp32"))]
      ["torch's own loop", 'brg_matmul', 'sgemm']
      >>> x = fp.cast(np.ones((40, 64), np.float32), fp.BF16)
      >>> float(fp.matmul(x, x.T, schedule=fp.schedules.torch_mm("avx512_bf16", layout="nt"))[0, 0])
      64.0
    """
    threads = positive(threads, "threads")
    inner = onednn(isa, threads, l1=l1, l2=l2, layout=layout)
    usual: Literal["avx512", "avx2"] = "avx2" if isa.startswith("avx2") else "avx512"
    if mkl_isa is not None:
        require_word("mkl_isa", mkl_isa, ("avx512", "avx2"))
    words = f", mkl_isa={mkl_isa!r}" if mkl_isa not in (None, usual) else ""
    name = f"torch_mm({inner.name.partition('(')[2][:-1]}{words})"
    small, floats = torch_native(layout=layout), mkl(threads, isa=mkl_isa or usual, layout=layout)
    return ShapedSchedule(name, LIBRARY, partial(_mm, isa, small, inner, floats), layout, SOURCE)


def _mm(
    isa: Isa, native: ShapedSchedule, of_onednn: ShapedSchedule, of_mkl: ShapedSchedule, shape: ProductShape
) -> ChosenSchedule:
    """Return the schedule of torch.mm for a shape, or raise a DeclinedShape if its order of additions is not known.

    torch calls one of three libraries, by shape and format: its own loop, oneDNN or MKL, whose schedules are native,
    of_onednn and of_mkl. isa: as in `onednn`.
    """
    if shape.fmt == INT8:
        return of_onednn.choose(shape)
    if shape.fmt == FP32:
        return of_mkl.choose(shape)
    has_half = shape.fmt == BF16 or isa in HALVES
    is_small = shape.m * shape.n * shape.k <= SMALL
    is_dot = shape.fmt == FP16 and shape.m == 1 < shape.n and shape.layout == "nt"
    loops = isa.startswith("avx2") or not has_half or is_small or is_dot
    return native.choose(shape) if loops else of_onednn.choose(shape)
