"""Products by a matrix unit on the GPU: by a fast float32 kernel if one serves the unit, else in integer arithmetic."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import cuda

from fpsim.core.units.nvidia import layouts_in, unit_fields
from fpsim.core.units.step_by_rule import steps_by_rule
from fpsim.formats.named import FP16, FP32, FP64
from fpsim.gpu.casts.cast import widened_codes
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import gpu_kernel, launch, scratch, uploaded
from fpsim.gpu.products.float_matrix import FloatMatrices
from fpsim.gpu.products.fused_product import add_fused, has_kernel
from fpsim.gpu.products.gpu_product import GpuProduct
from fpsim.instructions.plan import unit_plan
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit, Rule
from fpsim.products.unit_product import ADD, Factors, add_part

i64, u64 = np.int64, np.uint64

STEPS = steps_by_rule()


@cache
def product_kernel(rule: Rule, room: int, paired: bool) -> Any:
    """Return the GPU kernel (a, b, c, scale_a, scale_b, out, layouts, facts) -> None that adds as matrix units do.

    It computes in integers, and defines the results of every unit that adds by `rule` (matrix_units/rule.py). room:
    number of 64-bit digits of an exact sum. paired: whether result i is that of row i of a and row i of b; else it is
    that of row i // N of a and column i % N of b. a, b: matrices of codes. c: 1-D codes at which sums start; empty for
    +0. scale_a, scale_b: codes of block scales, with the rows of a and the columns (or rows) of b. out: 1-D, receives
    codes; it may be c. layouts, facts: constants of the unit's formats and of the unit, as integers.
    """
    one_step = STEPS[rule]

    def product(a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any, out: Any, layouts: Any, facts: Any) -> None:
        f, u = layouts_in(layouts), unit_fields(facts)
        digits = cuda.local.array(room, np.int64)
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            m, n = (i, i) if paired else (i // b.shape[1], i % b.shape[1])
            x, y = a[m], b[n] if paired else b[:, n]
            p, q = scale_a[m], scale_b[n] if paired else scale_b[:, n]
            total = u64(c[i]) if c.size > 0 else u64(0)
            for start in range(0, a.shape[1], u.step):
                total = one_step(x, y, p, q, i64(start), total, digits, f, u)
            out[i] = total

    return gpu_kernel(product)


@cache
def gather_kernel(along_rows: bool) -> Any:
    """Return the GPU kernel (source, places, out) -> None that copies rows or columns of the matrix `source` to `out`.

    along_rows: True to copy rows, False to copy columns. Row (or column) i of `out` is the one with index places[i], or
    zeros if that is -1.
    """

    def gather(source: Any, places: Any, out: Any) -> None:
        rows, columns = out.shape
        for i in range(cuda.grid(1), rows * columns, cuda.gridsize(1)):
            r, c = i // columns, i % columns
            place = places[r] if along_rows else places[c]
            if place < 0:
                out[r, c] = 0
            else:
                out[r, c] = source[place, c] if along_rows else source[r, place]

    return gpu_kernel(gather)


def add_product(total: Any, product: GpuProduct, backend: FloatMatrices) -> None:
    """Add a @ b to `total` in place, with the roundings of the product's matrix unit.

    total: (M, N) matrix on the GPU. Its elements are uint32 bit patterns of float32 sums; for units whose sums are
    float64, uint64 bit patterns of float64. FP16 sums are held as float32 of the same value. backend: the GPU, on whose
    stream the kernels run.
    """
    k = product.terms.size
    if k == 0 or math.prod(total.shape) == 0:
        return
    if has_kernel(product.unit):
        _add_in_tiles(total, product, backend)
        return
    if not product.promote:
        _add_by_specification(total, product, backend)
        return
    for part, start in enumerate(range(0, k, product.promote)):
        partial = backend.filled(total.shape, np.uint32(0))
        _add_by_specification(partial, product.part(start, min(start + product.promote, k)), backend)
        add_part(total, partial, product.factors, part, backend)


def _add_in_tiles(total: Any, p: GpuProduct, backend: FloatMatrices) -> None:
    """Add the product p to `total` in place by `add_fused`.

    If the unit's results are FP16 and the product is one sum, `total` is converted to FP16 before, and back afterwards.
    total: (M, N) float32 bits. backend: the GPU, on whose stream the kernels run.
    """
    operands = p._replace(terms=backend.sent(p.terms))
    if p.unit.d.fmt == FP16 and not p.promote:
        halves = backend.codes_of(total, FP16)
        add_fused(halves, operands, backend.like)
        backend.widened(halves, FP16, total)
        return
    if p.factors.mode != ADD:
        rows, columns = map(backend.sent, (p.factors.rows, p.factors.columns))
        operands = operands._replace(factors=Factors(rows, columns, p.factors.mode))
    add_fused(total, operands, backend.like)


def _add_by_specification(total: Any, product: GpuProduct, backend: FloatMatrices) -> None:
    """Add a product to `total` in place as one sum, by `product_kernel`, the integer code that defines the results.

    total: (M, N) float32 bits, or float64 bits for units with float64 sums. backend: the GPU, on whose stream kernels
    run.
    """
    fmt = product.unit.d.fmt
    codes = total if fmt in (FP32, FP64) else backend.codes_of(total, fmt)
    flat = codes.reshape(math.prod(total.shape))
    run_specification(_gathered(product, backend), flat, flat, backend.like, paired=False)
    if codes is not total:
        backend.widened(codes, fmt, total)


def _gathered(p: GpuProduct, backend: FloatMatrices) -> GpuProduct:
    """Return the product p with its operands and scales in the order in which terms are added.

    If all terms are in ascending order already, the product itself is returned; otherwise operands and scales are
    copied. backend: the GPU, on whose stream the kernels run.
    """
    if np.array_equal(p.terms, np.arange(p.a.shape[1], dtype=np.int32)):
        return p
    terms, block = np.arange(p.terms.size, dtype=np.int32), p.unit.block
    in_order = p._replace(a=taken(p.a, p.terms, False, backend), b=taken(p.b, p.terms, True, backend), terms=terms)
    if not p.unit.scale:
        return in_order
    blocks = p.terms[::block] // block
    return in_order._replace(
        scale_a=taken(p.scale_a, blocks, False, backend), scale_b=taken(p.scale_b, blocks, True, backend)
    )


def taken(matrix: Any, places: npt.NDArray[np.int32], along_rows: bool, backend: FloatMatrices) -> Any:
    """Return a copy of the rows (if along_rows) or columns of a GPU matrix at the indices `places`.

    An index of -1 gives zeros. backend: the GPU, on whose stream the kernel runs.
    """
    shape = (places.size, matrix.shape[1]) if along_rows else (matrix.shape[0], places.size)
    out = scratch(shape, matrix.dtype)
    launch(gather_kernel(along_rows), backend.like, math.prod(shape), matrix, backend.sent(places), out)
    return out


def run_specification(product: GpuProduct, c: Any, out: Any, like: Any, *, paired: bool) -> None:
    """Launch `product_kernel` over all of K, and write the codes of the results to `out`.

    product: the operands and their unit; its order of terms and its partial sums are ignored. c: 1-D codes at which
    sums start; empty for +0. out: 1-D codes. like: the array on whose stream kernels run. paired: True to multiply row
    i of a by row i of b, False to multiply every row of a by every column of b.
    """
    unit = product.unit
    plan = unit_plan(unit)
    launch(
        product_kernel(unit.rule, plan.digits, paired), like, out.size,
        _widened(product.a, unit.a, unit, like), _widened(product.b, unit.b, unit, like), c,
        product.scale_a, product.scale_b, out, uploaded(plan.layouts), uploaded(plan.facts),
    )  # fmt: skip


def _widened(codes: Any, element: Element, unit: MatrixUnit, like: Any) -> Any:
    """Return an operand's codes in the format that the unit's instruction reads.

    Units of `Rule.TWO_PASSES` read FP8 as FP16, so FP8 codes are converted for them; other codes are returned
    unchanged. codes: GPU matrix. element: the format of the codes. like: the array on whose stream kernels run.
    """
    if unit.rule is not Rule.TWO_PASSES or element.fmt == FP16:
        return codes
    flat = GpuArray(codes.reshape(math.prod(codes.shape)), codes.shape, element.fmt, like)
    return widened_codes(flat, element.fmt, unit.operand_format(element)).words.reshape(*codes.shape)
