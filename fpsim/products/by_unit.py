"""matmul by a matrix unit on the processor: operands at the door, the sums, and the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array, output, words
from fpsim.casts.cast import encode
from fpsim.formats.named import DTYPES, FP16, FP32, Format
from fpsim.instructions.operands import refuse_overlap, scales
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import output_nan, output_overflow
from fpsim.products.cpu import Cpu
from fpsim.products.kernels.panel import canonical_nan
from fpsim.products.request import Job, Request, job_of, refuse_conflicts
from fpsim.products.scaled_operand import side
from fpsim.products.total import total_of
from fpsim.products.unit_product import Factors, Product
from fpsim.runtime.processor import under_ieee

CPU = Cpu()


@under_ieee
def unit_matmul(a: Any, b: Any, c: Any, unit: MatrixUnit, asked: Request, out: Array | None) -> Array:
    """`fpsim.matmul` by a matrix unit."""
    refuse_conflicts(asked)
    blocks = asked.schedule is not None and asked.schedule.block_scaled
    left, right = side(a, "a", unit, asked.scale_a, blocks), side(b, "b", unit, asked.scale_b, blocks)
    job = job_of(unit, left, right, c, asked)
    result = output(out, job.shape, job.dtype, left.codes, "the result's")
    refuse_overlap(out, left.codes, right.codes)
    product = Product(unit, left.codes, right.codes, *_block_scales(job), 0, Factors())
    total = total_of(job, product, c, CPU, _work(job, result))
    done = total.astype(job.own, copy=False) if job.untouched else _as_result(total, unit, job.own, job.fmt)
    if done is not result:
        result[...] = done
    return result


def _work(job: Job, result: Array) -> Array | None:
    """The result where sums can be worked out in it."""
    return result if job.dtype == job.own != np.float16 and result.flags.c_contiguous else None


def _block_scales(job: Job) -> tuple[Array, Array]:
    """The scale codes of both operands, (M, blocks) and (blocks, N)."""
    (m, n), k = job.shape, job.plan.k
    of_a = scales(job.left.block_scales, (m,), k, job.unit, "scale_a")
    return of_a, scales(job.right.block_scales, (n,), k, job.unit, "scale_b", blocks_first=True)


def _as_result(total: Array, unit: MatrixUnit, own: np.dtype[Any], fmt: Format | None) -> Array:
    """Sums in the dtype of the result, NaN as the unit gives it."""
    if fmt is not None and fmt != FP32:
        codes = encode(total, fmt, overflow=output_overflow(fmt))
        nan_code = output_nan(fmt)
        if nan_code is not None:
            codes[np.isnan(total)] = nan_code
        return codes.view(DTYPES.get(fmt, codes.dtype))
    # sums of FP16 units that were promoted are float32
    kept = FP16 if own == np.float16 and fmt is None else FP32 if unit.d.name == "f16" else unit.d.fmt
    nan = unit.nan_code if kept == unit.d.fmt else kept.top_magnitude
    done = encode(total, FP16).view(np.float16) if kept == FP16 else total
    word = words(done).dtype.type
    infinity, sign = (word(code) for code in (kept.max_code + 1, kept.sign_bit))
    canonical_nan()(words(done).reshape(-1), infinity, sign, word(nan))
    return done
