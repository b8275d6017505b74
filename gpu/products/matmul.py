"""Sums and products of matrix units on the GPU, with the schedules and epilogues of `fpsim.matmul`."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.operands import Formats
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP16, FP32
from fpsim.gpu.arithmetic.operands import code_operand, result_dtype
from fpsim.gpu.device.array import gpu_array, result_like
from fpsim.gpu.device.copies import apart, refuse_overlap
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import scratch
from fpsim.gpu.device.transfer import host_array
from fpsim.gpu.products.backend import Gpu
from fpsim.gpu.products.operands import block_count, block_scales, on_host, operand
from fpsim.gpu.products.unit_product import GpuProduct, run_specification
from fpsim.gpu.scaling.scaled import Scaled
from fpsim.gpu.sums.product import accumulator_product
from fpsim.instructions.operands import refuse_axes, refuse_shapes
from fpsim.matrix_units.catalogue import unit as find_unit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import output_nan
from fpsim.products.matmul import format_pair, fused_chain, refuse_other_kinds, refuse_unit_options
from fpsim.products.request import Job, Request, job_of, refuse_conflicts
from fpsim.products.scaled_operand import Side, plain_side, scaled_side
from fpsim.products.total import total_of
from fpsim.scaling.scaled import Scaled as CpuScaled
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.schedule import Schedule
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd


def dot_add(a: Any, b: Any, c: Any, unit: str | MatrixUnit, *, scale_a: Any = None, scale_b: Any = None) -> Any:
    """c + sum of a[n, k] * b[n, k] for every row n, as a matrix unit computes it: the bits of `fpsim.dot_add`.

    Args:
      a, b: (N, K) codes of the unit's elements on the GPU, or arrays of their dtypes.
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
    left, right = operand(a, found.a, found, "a"), operand(b, found.b, found, "b")
    if left.shape != right.shape or len(left.shape) != 2:
        raise ValueError(f"a and b must have one shape (N, K); got {left.shape} and {right.shape}.")
    rows, k = left.shape
    scales = [
        block_scales(x, (rows, block_count(k, found)), found, name)
        for x, name in ((scale_a, "scale_a"), (scale_b, "scale_b"))
    ]
    start = None if c is None else operand(c, found.d, found, "c")
    if start is not None and start.shape != (rows,):
        raise ValueError(f"c must have the shape {(rows,)} of the rows of a; got {start.shape}.")
    result, out = result_like(left, (rows,), found.d.fmt.storage)
    codes = [x.words.reshape(*x.shape) for x in (left, right)]
    product = GpuProduct(found, codes[0], codes[1], scales[0], scales[1], np.arange(k, dtype=np.int32))
    words = scratch(0, found.d.fmt.storage) if start is None else start.words
    run_specification(product, words, out, left.like, paired=True)
    return result


def matmul(
    a: Any, b: Any, c: Any = None, *, accumulate: str | MatrixUnit | Accumulator, schedule: Schedule | None = None,
    promote: int | None = None, scale_a: Any = None, scale_b: Any = None, scale_order: str | None = None,
    bias: Any = None, alpha: float | None = None, beta: float | None = None, out_format: FormatLike | None = None,
    strict: bool = True, fmt: Formats = None, out: Any = None,
) -> Any:  # fmt: skip
    """c + a @ b on the GPU by a matrix unit, a library or an accumulator: the bits of `fpsim.matmul`.

    Args:
      a, b: (M, K) and (K, N) codes of the unit's elements on the GPU, arrays of their dtypes, or `fp.gpu.Scaled`.
      c: (M, N) on the GPU, what the accumulator starts at, or beta * c in the epilogue.
      accumulate: a unit or its name, or an accumulator such as `fp.Sequential(fp.BF16)`.
      schedule, promote, scale_order, alpha, beta, out_format, strict: as for `fpsim.matmul`.
      scale_a, scale_b: scale codes for block-scaled units, on the GPU; for other units float32 decode scales of the
        shapes that `fpsim.matmul` takes, on either side.
      bias: (N,) floats, on either side.
      fmt: the format of codes, or (format of a, format of b), for accumulators.
      out: takes the result.

    Returns:
      (M, N) array of a's kind, of the dtype that `fpsim.matmul` gives; codes for cupy and numba where NumPy has no such
      dtype.

    Raises:
      GpuError: no GPU, or no room on it.
      ValueError, TypeError: as `fpsim.matmul`.

    Source: docs/matrix-units.md, docs/schedules.md, docs/accumulators.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.full((16, 64), 0x38, dtype=torch.uint8).cuda()
      ...     print(fp.gpu.matmul(x, x.T.contiguous(), accumulate="hopper_e4m3_f32", promote=32))
    """
    refuse_other_kinds(accumulate)
    if isinstance(accumulate, Accumulator) and (schedule is None or accumulate != FusedMultiplyAdd(FP32)):
        refuse_unit_options(
            schedule=schedule, promote=promote, scale_a=scale_a, scale_b=scale_b, scale_order=scale_order, bias=bias,
            alpha=alpha, beta=beta, out_format=out_format,
        )  # fmt: skip
        return _by_accumulator(a, b, c, accumulate, fmt, out)
    asked = Request(
        schedule, promote, scale_a, scale_b, scale_order, on_host(bias, "bias"), alpha, beta, out_format, bool(strict)
    )
    refuse_conflicts(asked)
    unit = _unit(a, b, accumulate, schedule, fmt)
    blocks = schedule is not None and schedule.block_scaled
    left, right = _side(a, "a", unit, scale_a, blocks), _side(b, "b", unit, scale_b, blocks)
    job = job_of(unit, left, right, c, asked)
    owner = gpu_array(a.codes if isinstance(a, Scaled) else a, "a")
    result, words = result_like(owner, job.shape, job.dtype, out)
    _refuse_overlap(out, words, left.codes, right.codes)
    on = Gpu(owner.like)
    work = _work(job, words)
    total = total_of(job, _product(job), c, on, work)
    if job.fmt in (None, FP32) and job.own != np.float16:
        if total is not work:
            on.copied(total.reshape(words.size), words)
    else:
        on.codes(total, job.fmt or FP16, words)
    _name_nan(words, job, total, on)
    return result


def _by_accumulator(a: Any, b: Any, c: Any, accumulate: Accumulator, fmt: Formats, out: Any) -> Any:
    """The product by a generic accumulator."""
    _refuse_scaled(a, b)
    of_a, of_b = format_pair(fmt)
    (left, of_a), (right, of_b) = code_operand(a, of_a, "a"), code_operand(b, of_b, "b")
    refuse_axes(left, "a")
    refuse_axes(right, "b")
    refuse_shapes(left, right)
    shape = left.shape[0], right.shape[1]
    start = None if c is None else code_operand(c, accumulate.result_format, "c")[0]
    if start is not None and start.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {start.shape}.")
    result, words = result_like(left, shape, result_dtype(accumulate.result_format), out)
    _refuse_overlap(out, words, left.words, right.words)
    if start is not None:
        start = start._replace(words=apart(start.words, words, left.like))
    accumulator_product(left, right, start, accumulate, (of_a, of_b), words)
    return result


def _refuse_scaled(*operands: Any) -> None:
    """A TypeError for operands with scales."""
    if any(isinstance(x, (Scaled, CpuScaled)) for x in operands):
        raise TypeError("an accumulator takes no Scaled operands; decode them first: a.decode().")


def _refuse_overlap(out: Any, words: Any, *operands: Any) -> None:
    """A ValueError where the result would overwrite an operand."""
    if out is not None:
        refuse_overlap(words, *operands, what="a or b")


# ---- operands


def _unit(a: Any, b: Any, accumulate: Any, schedule: Schedule | None, fmt: Formats) -> MatrixUnit:
    """The unit that adds."""
    if schedule is not None and accumulate == FusedMultiplyAdd(FP32):
        _refuse_scaled(a, b)
        return fused_chain(
            *(code_operand(x, one, name)[1] for x, one, name in zip((a, b), format_pair(fmt), "ab", strict=True))
        )
    unit = find_unit(accumulate)
    if fmt is not None:
        raise ValueError(f"fmt is for accumulators; {unit.name} says itself what it takes. Leave it out.")
    return unit


def _side(x: Any, name: str, unit: MatrixUnit, given: Any, blocks: bool) -> Side:
    """An operand with what scales it."""
    element = unit.a if name == "a" else unit.b
    if isinstance(x, CpuScaled):
        raise TypeError(f"{name} must lie on the GPU; got an fpsim.Scaled. fp.gpu.Scaled.from_cpu({name}) sends it.")
    if isinstance(x, Scaled):
        tensor = None if x.tensor_scale is None else np.float32(host_array(x.tensor_scale).reshape(-1)[0])
        codes = _matrix(gpu_array(x.codes, name))
        return scaled_side(
            _Scaled(codes, host_array(x.scales), x.fmt, x.scaling, x.scale_codes, tensor), name, unit, given
        )
    codes = _matrix(operand(x, element, unit, name))
    return plain_side(codes, name, unit, given if unit.scale else on_host(given, f"scale_{name}"), blocks)


class _Scaled(NamedTuple):
    """What `fpsim.unit_side` reads of a Scaled operand: codes on the GPU, scales for epilogues on the CPU."""

    codes: Any
    scales: npt.NDArray[np.float32]
    fmt: Any
    scaling: Scaling
    scale_codes: Any
    tensor_scale: np.float32 | None


def _matrix(x: GpuArray) -> Any:
    """Codes with the axes that they came with."""
    return x.words.reshape(*x.shape) if x.shape else x.words


def _product(job: Job) -> GpuProduct:
    """The operands as the kernels take them."""
    (m, n), k, unit = job.shape, job.plan.k, job.unit
    blocks = block_count(k, unit)
    scales = (
        block_scales(job.left.block_scales, (m, blocks), unit, "scale_a"),
        block_scales(job.right.block_scales, (blocks, n), unit, "scale_b"),
    )
    return GpuProduct(unit, job.left.codes, job.right.codes, *scales, np.arange(k, dtype=np.int32))


# ---- the result


def _work(job: Job, words: Any) -> Any:
    """The result where sums can be worked out in it."""
    return words.reshape(*job.shape) if job.dtype == job.own != np.float16 else None


def _name_nan(words: Any, job: Job, total: Any, on: Gpu) -> None:
    """Give every NaN of a result the code that the unit, or the output's conversion, gives it."""
    unit, fmt = job.unit, job.fmt
    if fmt is not None and fmt != FP32:
        nan = output_nan(fmt)
        if nan is not None:
            on.with_nan_code(total, words, nan)
    elif not job.untouched:
        # sums of FP16 units that were promoted are float32
        half = job.own == np.float16 and fmt is None
        kept = FP16 if half else FP32 if unit.d.name == "f16" else unit.d.fmt
        nan = unit.nan_code if kept == unit.d.fmt else kept.top_magnitude
        on.with_one_nan(words, kept.max_code + 1, kept.sign_bit, nan)
