"""Sums and products of matrix units on the GPU: the integer specification, one thread per result."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.core import arithmetic
from fpsim.core.encode import encode_fields
from fpsim.core.number import unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.core.unit_rules import steps_by_rule
from fpsim.core.unit_step import Layouts, UnitLayout
from fpsim.formats import DTYPES, FP32
from fpsim.gpu.array import GpuArray, gpu_array, result_like
from fpsim.gpu.cast import widened_codes
from fpsim.gpu.launch import gpu_kernel, launch, uploaded
from fpsim.kernels.layout import pack_plan, unpack_layout
from fpsim.matrix_unit import Element, MatrixUnit, Rule
from fpsim.rounding import Rounding
from fpsim.unit_plan import unit_plan
from fpsim.units import unit as find_unit

i64, u64 = np.int64, np.uint64

MAGNITUDE, INFINITE = u64(0x7FFFFFFF), u64(0x7F800000)  # of a float32

STEPS = steps_by_rule(lambda function: function)


@cache
def _product_kernel(rule: Rule, room: int, paired: bool) -> Any:
    """The kernel `(a, b, c, scale_a, scale_b, out, layouts, facts, step, origin, promote, layouts of the total, nan)`.

    Result i is that of row i of a and row i of b where paired, else of row i // N of a and column i % N of b. An empty
    c stands for +0; promote: terms from one promotion to the next, 0 for none; room: digits of an exact sum.
    """
    one_step = STEPS[rule]

    def product(
        a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any, out: Any, fa: Any, fb: Any, fc: Any, fs: Any, fr: Any,
        facts: Any, step: Any, origin: Any, promote: Any, ft: Any, to: Any, nan: Any,
    ) -> None:  # fmt: skip
        f = Layouts(unpack_fields(fa), unpack_fields(fb), unpack_fields(fc), unpack_fields(fs), encode_fields(fr))
        u = UnitLayout(facts[0], facts[1], facts[2], facts[3], facts[4], facts[5], facts[6], facts[7], facts[8])
        of_total, to_total = unpack_fields(ft), encode_fields(to)
        digits = cuda.local.array(room, np.int64)
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            m, n = (i, i) if paired else (i // b.shape[1], i % b.shape[1])
            x, y = a[m], b[n] if paired else b[:, n]
            p, q = scale_a[m], scale_b[n] if paired else scale_b[:, n]
            total = u64(c[i]) if c.size > 0 else u64(0)
            partial = u64(0) if promote > 0 else total
            for start in range(0, a.shape[1], step):
                partial = one_step(x, y, p, q, i64(start), partial, digits, origin, f, u)
                stop = start + step
                if promote > 0 and (stop % promote == 0 or stop >= a.shape[1]):
                    exact, _ = arithmetic.add(unpack(total, of_total), unpack(partial, f.c), NEAREST_EVEN)
                    total, _ = pack(exact, NO_FLAG, u64(0), to_total, NEAREST_EVEN, u64(0))
                    partial = u64(0)
            is_nan = (promote > 0) & (u64(total & MAGNITUDE) > INFINITE)
            total = nan if is_nan else total
            out[i] = total if promote > 0 else partial

    return gpu_kernel(product)


def dot_add(a: Any, b: Any, c: Any, unit: str | MatrixUnit, *, scale_a: Any = None, scale_b: Any = None) -> Any:
    """c + sum of a[n, k] * b[n, k] for every row n, as a matrix unit computes it: the bits of `fpsim.dot_add`.

    Args:
      a, b: (N, K) contiguous codes of the unit's elements on the GPU, or arrays of their dtypes.
      c: (N,) codes of the accumulator or floats of its dtype; None for +0.
      unit: a unit or its name.
      scale_a, scale_b: (N, K / block) scale codes for block-scaled units.

    Returns:
      (N,) array of a's kind: codes of the result, in the accumulator's unsigned dtype.

    Raises:
      GpuError: no GPU, or no room on it.
      ValueError, TypeError: shapes or formats that the unit does not take.

    Source: docs/matrix-units.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.full((1, 32), 0x38, dtype=torch.uint8).cuda()
      ...     print(fp.gpu.dot_add(x, x, None, "hopper_e4m3_f32"))
    """
    found = find_unit(unit)
    left, right = _operand(a, found.a, found, "a"), _operand(b, found.b, found, "b")
    if left.shape != right.shape or len(left.shape) != 2:
        raise ValueError(f"a and b must have one shape (N, K); got {left.shape} and {right.shape}.")
    rows, k = left.shape
    scales = [
        _scales(x, (rows, _blocks(k, found)), found, name) for x, name in ((scale_a, "scale_a"), (scale_b, "scale_b"))
    ]
    result, out = result_like(left, (rows,), found.d.fmt.storage)
    start = _start(c, (rows,), found)
    _run(found, left, right, scales, start, out, paired=True, promote=0)
    return result


def matmul(
    a: Any, b: Any, c: Any = None, *, accumulate: str | MatrixUnit, promote: int | None = None, scale_a: Any = None,
    scale_b: Any = None, out: Any = None,
) -> Any:  # fmt: skip
    """c + a @ b on the GPU by a matrix unit: the bits of `fpsim.matmul`.

    Args:
      a, b: (M, K) and (K, N) contiguous codes of the unit's elements, or arrays of their dtypes.
      c: (M, N), what the sums start at; None for +0.
      accumulate: a unit or its name. Generic accumulators and schedules are those of `fpsim.matmul`, on the CPU.
      promote: terms of K after which the partial sum is added to a float32 total; a multiple of the unit's step.
      scale_a, scale_b: (M, K / block) and (K / block, N) scale codes for block-scaled units.
      out: takes the result.

    Returns:
      (M, N) array of a's kind in the accumulator's dtype, float32 where sums are promoted.

    Raises:
      GpuError: no GPU, or no room on it.
      ValueError, TypeError: shapes or formats that the unit does not take.

    Source: docs/matrix-units.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.full((16, 64), 0x38, dtype=torch.uint8).cuda()
      ...     print(fp.gpu.matmul(x, x.T.contiguous(), accumulate="hopper_e4m3_f32", promote=32))
    """
    found = find_unit(accumulate)
    left, right = _operand(a, found.a, found, "a"), _operand(b, found.b, found, "b")
    if len(left.shape) != 2 or len(right.shape) != 2 or left.shape[1] != right.shape[0]:
        raise ValueError(f"a (M, K) and b (K, N) must agree in K; got {left.shape} and {right.shape}.")
    (m, k), n = left.shape, right.shape[1]
    interval = _interval(promote, found)
    scales = [
        _scales(scale_a, (m, _blocks(k, found)), found, "scale_a"),
        _scales(scale_b, (_blocks(k, found), n), found, "scale_b"),
    ]
    start = _start(c, (m, n), found)
    if interval and start is not None and found.d.fmt != FP32:
        start = widened_codes(start, found.d.fmt, FP32)
    result, words = result_like(left, (m, n), DTYPES[FP32 if interval else found.d.fmt], out)
    _run(found, left, right, scales, start, words, paired=False, promote=interval)
    return result


def _run(
    unit: MatrixUnit,
    a: GpuArray,
    b: GpuArray,
    scales: list[Any],
    c: GpuArray | None,
    out: Any,
    *,
    paired: bool,
    promote: int,
) -> None:
    """Launch the specification of a unit over rows and columns."""
    plan = unit_plan(unit)
    to_total = pack_plan(FP32, Rounding.NEAREST_EVEN, "nonfinite", "keep", 32, "after").layout
    words = [_widened(x, element, unit) for x, element in ((a, unit.a), (b, unit.b))]
    start = cuda.device_array(0, unit.d.fmt.storage) if c is None else c.words
    step = 16 if unit.rule is Rule.TWO_PASSES else unit.terms
    launch(
        _product_kernel(unit.rule, plan.digits, paired), a.like, out.size,
        *(x.reshape(*shape) for x, shape in zip(words, (a.shape, b.shape), strict=True)), start, *scales, out,
        *map(uploaded, plan.layouts), uploaded(plan.facts), step, i64(plan.origin), promote,
        uploaded(unpack_layout(FP32, "keep")), uploaded(to_total),
        u64(unit.nan_code if unit.d.fmt == FP32 else FP32.top_magnitude),
    )  # fmt: skip


# ---- operands


def _operand(x: Any, element: Element, unit: MatrixUnit, name: str) -> GpuArray:
    """Codes of an element on the GPU."""
    given = gpu_array(x, name)
    fits = given.fmt in (None, element.carrier) and given.words.dtype.itemsize == element.dtype.itemsize
    if not fits:
        raise ValueError(
            f"{unit.name} takes {name} of {element.name} ({DTYPES.get(element.carrier, element.carrier.name)} or its "
            f"codes as {element.dtype}); got {x.dtype}. fpsim.gpu.encode makes codes."
        )
    return given


def _widened(x: GpuArray, element: Element, unit: MatrixUnit) -> Any:
    """Codes as the unit's steps see them: FP8 as FP16 where the instruction is built from FP16 steps."""
    if unit.rule is not Rule.TWO_PASSES:
        return x.words
    return widened_codes(x, element.fmt, unit.operand_format(element)).words


def _blocks(k: int, unit: MatrixUnit) -> int:
    if unit.scale and k % unit.block:
        raise ValueError(f"K must be a multiple of {unit.name}'s scale block of {unit.block}; got K = {k}. Pad.")
    return k // unit.block if unit.scale else 1


def _scales(x: Any, shape: tuple[int, int], unit: MatrixUnit, name: str) -> Any:
    """Scale codes as a matrix on the GPU."""
    if unit.scale is None:
        if x is not None:
            raise ValueError(f"{unit.name} takes no block scales; got {name}. Leave it out.")
        return cuda.device_array(math.prod(shape), np.uint8).reshape(*shape)  # nobody reads it
    if x is None:
        raise ValueError(f"{unit.name} needs {name}: {unit.scale} codes, one per {unit.block} terms of K.")
    given = gpu_array(x, name)
    if given.shape != shape or given.words.dtype.itemsize != 1:
        raise ValueError(f"{name} must be codes of shape {shape}; got {x.dtype} of shape {given.shape}.")
    return given.words.reshape(*shape)


def _start(c: Any, shape: tuple[int, ...], unit: MatrixUnit) -> GpuArray | None:
    """What sums start at, or None for +0."""
    if c is None:
        return None
    given = _operand(c, unit.d, unit, "c")
    if given.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {given.shape}.")
    return given


def _interval(promote: int | None, unit: MatrixUnit) -> int:
    """Terms from one promotion to the next, 0 for none."""
    if promote is None:
        return 0
    if isinstance(promote, bool) or not isinstance(promote, (int, np.integer)) or promote < 1 or promote % unit.terms:
        raise ValueError(
            f"promote must be a multiple of the {unit.terms} terms that {unit.name} adds in a step; got {promote!r}."
        )
    if unit.d.name == "f64":
        raise ValueError(f"promote adds to a float32 total; {unit.name} has float64 sums. Leave it out.")
    return int(promote)
