"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: products of FUSED and SCALED units.

Totals and marks go to the file that is named; `tests.gpu.test_fused_products` compares them with the CPU's products.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit
from fpsim.products.kernels.promotion import ADD, COLUMNS_FIRST, PRODUCT, ROWS_FIRST

Array = npt.NDArray[Any]

UNITS = (
    "hopper_e4m3_f32", "hopper_e5m2_f32", "hopper_e4m3xe5m2_f32", "hopper_e5m2_f16", "ada_e4m3_f32", "hopper_f16_f32",
    "hopper_f16_f16", "volta_f16_f32", "ampere_f16_f16", "ampere_bf16_f32", "hopper_bf16_f32", "ampere_tf32_f32",
    "hopper_tf32_f32", "blackwell_e3m2xe5m2_f32", "blackwell_e2m1xe4m3_f16", "blackwell_mxfp8_e4m3_f32",
    "blackwell_mxf8f6f4_e2m3xe5m2_f32",
)  # fmt: skip
WHOLE = "hopper_f16_f32"  # in one call
KINDS = ("ordinary", "codes", "cancelling", "tiny")
SHAPES = ((3, 3), (1, 5), (5, 1), (2, 4))
SIZES = ((1, 2), (2, 1))  # rows and columns of results of a simulated thread; those of a GPU's tiles have both
FACTORS = (ADD, PRODUCT, ROWS_FIRST, COLUMNS_FIRST)


class Case(NamedTuple):
    """A small product as fpsim.gpu.fused_product takes it."""

    unit: MatrixUnit
    total: Array  # (M, N) float32 patterns or FP16 codes
    a: Array  # (M, K) codes
    b: Array  # (K, N)
    scale_a: Array  # (M, blocks)
    scale_b: Array  # (blocks, N)
    terms: Array  # (terms,) int32
    promote: int
    rows: Array  # (M, parts) float32
    columns: Array  # (parts, N)
    mode: int


def _codes(rng: np.random.Generator, element: Element, shape: tuple[int, int], kind: str) -> Array:
    """Return codes of an operand of a kind."""
    fmt = element.carrier
    if kind == "codes":  # all exponents, NaN and Inf
        drawn = rng.integers(0, 1 << min(fmt.bits, 63), shape, dtype=np.uint64)
        if fmt.bits > 8:  # with so many exponents, half of them near 1
            near = fp.encode(rng.standard_normal(shape), fmt).astype(np.uint64)
            drawn = np.where(rng.random(shape) < 0.9, near, drawn)
        return drawn.astype(element.dtype)
    if kind == "tiny":  # the smallest exponents of the format, and zeros
        signs = rng.integers(0, 2, shape, dtype=np.uint64) << np.uint64(fmt.bits - 1)
        drawn = rng.integers(0, 3 << fmt.mantissa_bits, shape, dtype=np.uint64)
        return np.asarray(np.where(rng.random(shape) < 0.8, drawn | signs, 0), element.dtype)
    values = rng.standard_normal(shape)
    if kind == "cancelling":  # in pairs of terms, up to a few of other sizes
        values = np.where(rng.random(shape) < 0.1, values * 2.0 ** rng.integers(-6, 3, shape), 2.0)
        values *= rng.choice([-1.0, 1.0], shape)
    return np.asarray(fp.encode(values, fmt, overflow="saturate"), element.dtype)


def _total(rng: np.random.Generator, shape: tuple[int, int], kind: str, half: bool) -> Array:
    """Return the start of a sum."""
    values = rng.standard_normal(shape) * (rng.random(shape) < 0.7)
    if kind in ("codes", "tiny"):
        special = rng.choice([np.inf, -np.inf, np.nan, 1e38, -1e-40, 1e-44, -0.0, 2.0**-110, -3e-7, 65504.0], shape)
        values = np.where(rng.random(shape) < 0.4, special, values)
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint16) if half else values.astype(np.float32).view(np.uint32)


def _terms(rng: np.random.Generator, unit: MatrixUnit, k: int, order: int) -> Array:
    """Places of terms: in order, with a short last step; in any order, with gaps; a slice."""
    places = np.arange(k, dtype=np.int32)
    if order == 0:
        return places[: k - unit.terms // 2]
    if unit.scale:  # the terms of a step share a block
        steps = rng.permutation(places.reshape(-1, unit.terms))
        return np.where(rng.random(steps.shape) < 0.2, -1, rng.permuted(steps, axis=1)).astype(np.int32).ravel()
    places = np.insert(rng.permutation(places), 3, [-1, -1, -1]).astype(np.int32)
    return places if order == 1 else places[unit.terms // 2 : -2]


def case(name: str, kind: str) -> Case:
    """Return the case of a unit and a kind of data; the rest varies from one to the next."""
    number = UNITS.index(name) * len(KINDS) + KINDS.index(kind)
    unit, rng = fp.unit(name), np.random.default_rng(number)
    (m, n), k = SHAPES[number // 3 % len(SHAPES)], (2 if unit.terms == 32 else 3) * unit.terms
    promote = (0, unit.terms, 2 * unit.terms)[(number + number // 4) % 3]
    mode = FACTORS[number // 5 % 4] if promote else ADD
    blocks = k // unit.block if unit.scale else 1
    scales = [rng.integers(120, 135, shape).astype(np.uint8) for shape in ((m, blocks), (blocks, n))]
    if kind in ("codes", "tiny"):
        drawn = [rng.integers(0, 256, x.shape).astype(np.uint8) for x in scales]
        scales = [np.where(rng.random(x.shape) < 0.3, y, x) for x, y in zip(scales, drawn, strict=True)]
    terms = _terms(rng, unit, k, number % 3)
    parts = -(-terms.size // promote) if promote else 1
    rows, columns = (np.exp2(rng.normal(0, 3, shape)).astype(np.float32) for shape in ((m, parts), (parts, n)))
    if kind == "codes":
        rows[0, 0], columns[-1, -1] = np.inf, np.nan
    total = _total(rng, (m, n), kind, unit.d.name == "f16" and not promote)
    a, b = _codes(rng, unit.a, (m, k), kind), _codes(rng, unit.b, (k, n), kind)
    return Case(unit, total, a, b, scales[0], scales[1], terms, promote, rows, columns, mode)


def in_high_tiles(n: int) -> Case:
    """Return a product over two tiles of a GPU, the second of them with few rows, in a step and a bit."""
    unit, rng, (m, k) = fp.unit("ampere_f16_f32"), np.random.default_rng(5), (131, 10)
    a, b = _codes(rng, unit.a, (m, k), "ordinary"), _codes(rng, unit.b, (k, n), "cancelling")
    total, nothing = _total(rng, (m, n), "ordinary", half=False), np.zeros((1, 1))
    scales = nothing.astype(np.uint8), nothing.astype(np.uint8)
    return Case(unit, total, a, b, *scales, np.arange(k, dtype=np.int32), unit.terms, nothing, nothing, ADD)


def simulated() -> dict[str, Array]:
    """Totals, marks, and the totals of the float32 kernel alone, by name."""
    from numba import cuda

    from fpsim.gpu.products.fused_product import SIMULATED_TILE, add_fused, add_marked, add_tiles
    from fpsim.gpu.products.gpu_product import GpuProduct
    from fpsim.products.unit_product import Factors

    results: dict[str, Array] = {}
    tiles = [SIMULATED_TILE._replace(rows=rows, columns=columns) for rows, columns in SIZES]
    for i, name in enumerate(UNITS):
        for j, kind in enumerate(KINDS):
            x = case(name, kind)
            total, a, b, p, q, terms = (cuda.to_device(each) for each in x[1:7])
            rows, columns = (cuda.to_device(each) for each in (x.rows, x.columns))
            factors = Factors(rows, columns, x.mode) if x.mode != ADD else Factors()
            product = GpuProduct(x.unit, a, b, p, q, terms, x.promote, factors)
            marks, any_mark = add_tiles(total, product, total, tiles[(i + j) % len(tiles)])
            results[f"tiles {name} {kind}"] = total.copy_to_host()
            results[f"marks {name} {kind}"] = marks.copy_to_host()
            results[f"any {name} {kind}"] = any_mark.copy_to_host()
            add_marked(total, marks, product, total)
            results[f"total {name} {kind}"] = total.copy_to_host()
    for kind in ("ordinary", "codes"):
        x = case(WHOLE, kind)
        for name, places in (("whole", x.terms), ("nothing", x.terms[:0])):
            total, a, b, p, q, terms = (cuda.to_device(each) for each in (*x[1:6], places))
            add_fused(total, GpuProduct(x.unit, a, b, p, q, terms, x.promote), total)
            results[f"{name} {kind}"] = total.copy_to_host()
    return results


HIGH = {"narrow": 13, "whole": 61}  # columns of a product


def simulated_in_high_tiles(width: str) -> dict[str, Array]:
    """Return a total by the tiles of a GPU, or by as high ones of a quarter of their threads."""
    from numba import cuda

    from fpsim.gpu.products.fused_product import TILE, add_tiles
    from fpsim.gpu.products.gpu_product import GpuProduct

    x = in_high_tiles(HIGH[width])
    total, a, b, p, q, terms = (cuda.to_device(each) for each in x[1:7])
    tile = TILE if width == "whole" else TILE._replace(wide=TILE.wide // 4)
    add_tiles(total, GpuProduct(x.unit, a, b, p, q, terms, x.promote), total, tile)
    return {"high tiles": total.copy_to_host()}


def main(file: str, *width: str) -> None:
    """Write every result to a file, or those of high tiles."""
    np.savez(file, **(simulated_in_high_tiles(*width) if width else simulated()))  # type: ignore[arg-type]
