"""Library schedules written out: chains of fp.dot_add, then fp.add, fp.fma, fp.multiply and fp.encode in full view.

A function per kernel family takes a `Job`, which is one call of `fp.matmul`, and gives the codes of its result. The
orders are those of docs/schedules.md; nothing of fpsim.schedules is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit

Array = npt.NDArray[Any]
Span = tuple[int, int]

f32 = np.float32
ZERO = np.zeros((), f32)
FLOAT_NAN = 0x7FFFFFFF
NARROW_NAN = {fp.FP16: 0x7FFF, fp.BF16: 0x7FFF, fp.E4M3: 0x7F, fp.E5M2: 0x7F}


@dataclass(frozen=True)
class Job:
    """One call of `fp.matmul`: codes a (M, K) and b (K, N), and the rest as it is passed."""

    a: Array
    b: Array
    unit: MatrixUnit
    scale_a: Array | None = None
    scale_b: Array | None = None
    bias: Array | None = None
    c: Array | None = None
    alpha: float | None = None
    beta: float | None = None
    out_fmt: fp.Format = fp.FP32

    @property
    def shape(self) -> tuple[int, int]:
        """Of the result."""
        return len(self.a), self.b.shape[1]

    @property
    def k(self) -> int:
        """Terms of a sum."""
        return len(self.b)

    @property
    def is_fp8(self) -> bool:
        """Whether operands have eight bits."""
        return self.a.dtype.itemsize == 1

    def words(self) -> dict[str, Any]:
        """Keywords of `fp.matmul` but for the schedule."""
        words: dict[str, Any] = {"c": self.c, "scale_a": self.scale_a, "scale_b": self.scale_b, "bias": self.bias}
        words |= {"alpha": self.alpha, "beta": self.beta}
        words |= {"out_fmt": None if self.out_fmt == fp.FP32 else self.out_fmt}
        return {name: value for name, value in words.items() if value is not None}


Oracle = Callable[[Job], Array]


# ---- float32, every operation rounded once


def add(x: Any, y: Any) -> Array:
    """Return x + y."""
    result: Array = fp.add(*whole(x, y))
    return result


def multiply(x: Any, y: Any) -> Array:
    """Return x * y."""
    result: Array = fp.multiply(*whole(x, y))
    return result


def fma(x: Any, y: Any, z: Any) -> Array:
    """Return x * y + z."""
    result: Array = fp.fma(*whole(x, y, z))
    return result


def whole(*arrays: Any) -> list[Array]:
    """Return the arrays as float32, broadcast to one shape."""
    return [np.ascontiguousarray(each, f32) for each in np.broadcast_arrays(*arrays)]


def forward(parts: Sequence[Array]) -> Array:
    """Return ((p0 + p1) + p2) + ..., with p0 unchanged."""
    return reduce(add, parts)


# ---- chains of the unit


def dots(job: Job, terms: Any, start: Array | None = None) -> Array:
    """Return a chain of fp.dot_add over some terms of K, from +0 or from float32 numbers."""
    (m, n), unit = job.shape, job.unit
    a, b = np.repeat(job.a[:, terms], n, axis=0), np.tile(job.b[terms].T, (m, 1))
    c = None if start is None else np.ascontiguousarray(start, f32).reshape(-1).view(np.uint32)
    return fp.dot_add(a, b, c, unit).view(f32).reshape(m, n)


def over(span: Span) -> slice:
    """Return the terms of a span."""
    return slice(*span)


def ceiling(terms: int, parts: int) -> int:
    """Return terms / parts, rounded up."""
    return -(-terms // parts)


def cut(start: int, stop: int, size: int) -> list[Span]:
    """Cut start .. stop into spans of a size, the last of which may be shorter."""
    return [(first, min(first + size, stop)) for first in range(start, stop, size)]


def zeros(job: Job) -> Array:
    """Return +0 for every output."""
    return np.zeros(job.shape, f32)


def begin(job: Job) -> Array | None:
    """Return the start of a sum: c, unless it belongs to the epilogue, or scales or alpha multiply only the sum."""
    multiplied = job.alpha is not None or job.scale_a is not None or job.scale_b is not None
    return None if job.beta is not None or multiplied else job.c


# ---- scales


def factors(job: Job) -> tuple[Any, Any]:
    """Scales of tensors, rows and columns that broadcast to (M, N); 1 for none."""
    of_a, of_b = (f32(1) if x is None else np.asarray(x, f32) for x in (job.scale_a, job.scale_b))
    return of_a, of_b


def block_factors(job: Job, block: int) -> tuple[Array, Array]:
    """(M, 1) and (1, N) scales of a block of 128 terms, from scales per 1x128 or 128x128."""
    (m, n), one = job.shape, np.ones((1, 1), f32)
    a = one if job.scale_a is None else job.scale_a[:, block : block + 1]
    b = one if job.scale_b is None else job.scale_b[block : block + 1]
    return a[tile_of(m, len(a))], b[:, tile_of(n, b.shape[1])]


def tile_of(count: int, tiles: int) -> Array:
    """Return the tile of every row: all in one, one each, or 128 in a tile."""
    return np.arange(count) // (count if tiles == 1 else 1 if tiles == count else 128)


# ---- epilogues


def cast(y: Array, fmt: fp.Format) -> Array:
    """Codes of the output: to nearest even, FP8 saturates, NaN is all ones."""
    if fmt == fp.FP32:
        codes = np.ascontiguousarray(y).view(np.uint32).copy()
        codes[np.isnan(y)] = FLOAT_NAN
        return codes
    codes = fp.encode(y, fmt, overflow="saturate" if fmt.bits == 8 else "nonfinite")
    codes[np.isnan(y)] = NARROW_NAN[fmt]
    return codes


def rounded(y: Array, fmt: fp.Format) -> Array:
    """Return the output as float32 again."""
    return y if fmt == fp.FP32 else fp.decode(cast(y, fmt), fmt)


def scaled(job: Job, y: Array, addend: Any = ZERO, rows_in_turn: bool = False) -> Array:
    """fma(RN(RN(scale_a * scale_b) * alpha), y, addend); without any of them nothing is multiplied.

    rows_in_turn: with scales per row or column fma(RN(y * scale_b), RN(scale_a * alpha), addend), as nvjet on Hopper.
    """
    if job.scale_a is None and job.scale_b is None and job.alpha is None:
        return y if addend is ZERO else add(y, addend)
    if job.scale_a is None and job.scale_b is None:
        return fma(f32(job.alpha), y, addend)
    of_a, of_b = factors(job)
    if rows_in_turn and max(np.size(of_a), np.size(of_b)) > 1:
        return fma(multiply(y, of_b), of_a if job.alpha is None else multiply(of_a, f32(job.alpha)), addend)
    factor = multiply(of_a, of_b)
    if job.alpha is not None:
        factor = multiply(factor, f32(job.alpha))
    return fma(factor, y, addend)


def source(job: Job) -> Any:
    """Return the C of an epilogue as float32."""
    return np.asarray(job.c).astype(f32)


def beta(job: Job) -> np.float32:
    """1 where none is given."""
    return f32(1 if job.beta is None else job.beta)


def with_bias(job: Job, y: Array) -> Array:
    """Return y + bias."""
    return y if job.bias is None else add(y, np.asarray(job.bias).astype(f32)[None])


def cublas_end(job: Job, y: Array, rows_in_turn: bool = False) -> Array:
    """Scales and alpha, + bias, fma(beta, C, y), one cast."""
    y = with_bias(job, scaled(job, y, rows_in_turn=rows_in_turn))
    if job.c is not None:
        y = fma(beta(job), source(job), y)
    return cast(y, job.out_fmt)


def source_first(job: Job, y: Array) -> Array:
    """fma(alpha, sum, RN(beta * C)), before bias and cast."""
    addend = ZERO if job.c is None else multiply(beta(job), source(job)) if job.beta is not None else source(job)
    return scaled(job, y, addend)


def sum_end(job: Job, y: Array) -> Array:
    """Of schedules whose sum starts at c: what multiplies the sum joins c in one operation, as beta * C does."""
    if job.beta is not None:
        return cublas_end(job, y)
    y = y if job.c is None or begin(job) is not None else source_first(job, y)
    return cast(with_bias(job, y if job.c is not None else scaled(job, y)), job.out_fmt)


def fused_bias_end(job: Job, y: Array) -> Array:
    """fma(beta, C, fma(alpha, sum, bias)) of CUTLASS 3 kernels."""
    if job.c is not None and job.beta is None:
        return sum_end(job, y)
    y = scaled(job, y, ZERO if job.bias is None else np.asarray(job.bias).astype(f32)[None])
    if job.c is not None:
        y = fma(beta(job), source(job), y)
    return cast(y, job.out_fmt)


# ---- one chain, and promotion to a float32 total


def flat(job: Job) -> Array:
    """Instructions chained over ascending k from c."""
    return sum_end(job, dots(job, slice(None), begin(job)))


def promoted(job: Job, spans: Sequence[Span], total: Array | None = None) -> Array:
    """Partial sums from +0 added to a float32 total, which starts at +0 unless it is given."""
    return reduce(add, [dots(job, over(span)) for span in spans], zeros(job) if total is None else total)


def cutlass_2xacc(job: Job, interval: int = 128) -> Array:
    """Return the sum with a promotion after every interval."""
    return fused_bias_end(job, promoted(job, cut(0, job.k, interval), begin(job)))


def triton(job: Job, block_k: int = 128, limit: int | None = None) -> Array:
    """Within every block of K a promotion every ceil(limit / 32) * 32 terms, for FP8 that keeps 13 bits."""
    if limit is None or not job.is_fp8 or job.unit.result_bits != 13:
        return flat(job)
    interval = ceiling(limit, 32) * 32
    spans = [span for block in cut(0, job.k, block_k) for span in cut(*block, interval)]
    return sum_end(job, promoted(job, spans, begin(job)))


def torch_rowwise(job: Job, fast_accum: bool = False) -> Array:
    """2xAcc or one chain, then (sum * scale_a) * scale_b + bias."""
    spans = [(0, job.k)] if fast_accum else cut(0, job.k, 128)
    y = dots(job, slice(None), begin(job)) if fast_accum else promoted(job, spans, begin(job))
    of_a, of_b = factors(job)
    y = with_bias(job, multiply(multiply(y, of_a), of_b))
    if job.beta is not None:
        y = fma(beta(job), source(job), y)
    return cast(y, job.out_fmt)


# ---- scales per 128 terms of K


def joined(job: Job, order: str, interval: int = 128, total: Array | None = None, *, fused: bool = True) -> Array:
    """Partial sums times both scales, fused into the total or rounded first: "product", "a_first" or "b_first"."""
    total = zeros(job) if total is None else total
    for span in cut(0, job.k, interval):
        partial = dots(job, over(span))
        of_a, of_b = block_factors(job, span[0] // 128)
        if order == "product":
            x, y = multiply(of_a, of_b), partial
        elif order == "a_first":
            x, y = multiply(partial, of_a), of_b
        else:
            x, y = multiply(partial, of_b), of_a
        total = fma(x, y, total) if fused else add(total, multiply(x, y))
    return total


def without_scales(job: Job) -> Job:
    """For the epilogue of sums that have met their scales."""
    return replace(job, scale_a=None, scale_b=None)


def cutlass_blockwise(job: Job, order: str = "a_first", interval: int = 128, *, fused: bool = True) -> Array:
    """Return the sum with accum += partial * scale_a * scale_b, contracted by the compiler."""
    plain = without_scales(job)
    return fused_bias_end(plain, joined(job, order, interval, begin(plain), fused=fused))


def deepgemm(job: Job, *, fused: bool = True) -> Array:
    """Return the sum with final += (scale_a * scale_b) * partial."""
    return cublas_end(without_scales(job), joined(job, "product", fused=fused))


def block_scaled(job: Job, order: str) -> Array:
    """cuBLAS: bias before the cast; C joins the output that was cast, and the sum is cast again."""
    plain = without_scales(job)
    y = with_bias(plain, scaled(plain, joined(job, order)))
    if job.c is not None:
        y = fma(beta(job), source(job), rounded(y, job.out_fmt))
    return cast(y, job.out_fmt)
