"""Products of matrices to compare fp.matmul with: random operands, and what they give by chains of fp.dot_add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products import add_product, fused, plain
from fpsim.testing import assert_bits_equal
from tests.oracles.units.rows import Rows, Sides, random_rows

Array = npt.NDArray[Any]
Kind = Callable[[Sides], Rows]

f32 = np.float32
MOST_SUMS = 4099  # accumulators that are drawn, those of larger products again and again; a prime, unlike their rows


def _route(unit: MatrixUnit) -> tuple[Any, ...]:
    """Return the facts of a unit that decide which kernel runs, and on which path."""
    far = unit.a.fmt.exponent_bits > 5
    return (
        unit.rule,
        unit.terms,
        unit.fraction_bits,
        unit.d,
        unit.result_bits,
        far,
        unit.a.carrier.bits > 16,
        unit.block,
    )


KERNELS = tuple({_route(unit): unit for unit in reversed(float_units())}.values())[::-1]


def take_other_loops(patch: pytest.MonkeyPatch, **answers: Any) -> None:
    """Let products by units take loops that they would not take: answers replace what fast_units says of any unit.

    rows_of="plain": the loops for any processor; source_of="floats": panels from them.
    """
    for name, answer in answers.items():
        patch.setattr(fused, name, lambda *_, answer=answer: answer)
    # plans keep the loops that a unit takes
    patch.setattr(add_product, "fused_plan", fused.fused_plan.__wrapped__)
    patch.setattr(plain, "plain_unit", lambda *_: None)


class Product(NamedTuple):
    """Codes a (M, K), b (K, N) and c (M, N) or None; scale codes (M, K / block) and (K / block, N), or None."""

    a: Array
    b: Array
    c: Array | None = None
    scale_a: Array | None = None
    scale_b: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the result, (m, n)."""
        return len(self.a), self.b.shape[1]

    def scales(self) -> dict[str, Any]:
        """Keywords of `fp.matmul`."""
        named = {"scale_a": self.scale_a, "scale_b": self.scale_b}
        return {name: codes for name, codes in named.items() if codes is not None}

    def each(self, change: Callable[[Array], Array]) -> Product:
        """Return the product with every array changed."""
        c, scale_a, scale_b = (None if x is None else change(x) for x in self[2:])
        return Product(change(self.a), change(self.b), c, scale_a, scale_b)

    def transposed(self) -> Product:
        """Return the product of the transposes in the other order."""
        p = self.each(np.transpose)
        return p._replace(a=p.b, b=p.a, scale_a=p.scale_b, scale_b=p.scale_a)

    def rows(self, picked: Any) -> Product:
        """Return some rows of the product."""
        c, scale_a = (None if x is None else x[picked] for x in (self.c, self.scale_a))
        return self._replace(a=self.a[picked], c=c, scale_a=scale_a)

    def columns(self, picked: Any) -> Product:
        """Return some columns of the product."""
        c, scale_b = (None if x is None else x[:, picked] for x in (self.c, self.scale_b))
        return self._replace(b=self.b[:, picked], c=c, scale_b=scale_b)

    def part(self, start: int, stop: int, unit: MatrixUnit) -> Product:
        """Terms start .. stop of K, from +0."""
        blocks = slice(start // (unit.block or 1), -(-stop // (unit.block or 1)))
        scale_a = None if self.scale_a is None else self.scale_a[:, blocks]
        scale_b = None if self.scale_b is None else self.scale_b[blocks]
        return Product(self.a[:, start:stop], self.b[start:stop], None, scale_a, scale_b)


def random_product(unit: MatrixUnit, kind: Kind, shape: tuple[int, int, int], seed: int = 0) -> Product:
    """Operands of a kind for a shape (M, K, N), with accumulators of that kind."""
    m, k, n = shape
    rows = random_rows(unit, kind, max(m, n), k, seed)
    c = random_rows(unit, kind, min(m * n, MOST_SUMS), unit.block or 1, seed).c
    scale_a = None if rows.scale_a is None else rows.scale_a[:m]
    scale_b = None if rows.scale_b is None else rows.scale_b[:n].T
    return Product(rows.a[:m], rows.b[:n].T, np.resize(c, (m, n)), scale_a, scale_b)


def multiplied(p: Product, unit: MatrixUnit, **words: Any) -> Array:
    """fp.matmul of a product."""
    return fp.matmul(p.a, p.b, p.c, accumulate=unit, **p.scales(), **words)


def chained(p: Product, unit: MatrixUnit) -> Array:
    """Codes of every element by fp.dot_add."""
    m, n = p.shape
    scales = {}
    if p.scale_a is not None and p.scale_b is not None:
        scales = {"scale_a": np.repeat(p.scale_a, n, axis=0), "scale_b": np.tile(p.scale_b.T, (m, 1))}
    c = None if p.c is None else p.c.reshape(-1)
    return fp.dot_add(np.repeat(p.a, n, axis=0), np.tile(p.b.T, (m, 1)), c, unit, **scales).reshape(m, n)


def results(array: Array) -> Array:
    """Return the codes of results."""
    return array.view(f"u{array.dtype.itemsize}")


def check(p: Product, unit: MatrixUnit) -> None:
    """Compare a product with chains of fp.dot_add, NaN by its code."""
    got, want = multiplied(p, unit), chained(p, unit)
    assert got.dtype == float_dtype(unit)
    assert_bits_equal(results(got), want)


def float_dtype(unit: MatrixUnit) -> np.dtype[Any]:
    """Return the dtype of a unit's results."""
    return np.dtype(f"f{unit.d.dtype.itemsize}")


def widened(codes: Array, unit: MatrixUnit) -> Array:
    """Return codes of results as float32."""
    return fp.decode(codes, unit.d.fmt)


def partials(p: Product, unit: MatrixUnit, promote: int) -> list[Array]:
    """Return the float32 partial sums of `promote` terms each, from +0."""
    k = p.a.shape[1]
    starts = range(0, k, promote)
    return [widened(chained(p.part(start, min(start + promote, k), unit), unit), unit) for start in starts]


def started(p: Product, unit: MatrixUnit) -> Array:
    """Return the float32 total before the first partial sum."""
    return np.zeros(p.shape, f32) if p.c is None else widened(p.c, unit)


def promoted(p: Product, unit: MatrixUnit, promote: int) -> Array:
    """Return partial sums added one after the other to a float32 total."""
    total = started(p, unit)
    with np.errstate(over="ignore", invalid="ignore"):
        for partial in partials(p, unit, promote):
            total = np.add(total, partial)
    return total


def powers(unit: MatrixUnit, rows: Array, columns: Array, spread: int, seed: int = 0) -> Product:
    """Values in [1, 2) of either sign times 2**exponents, those given and up to `spread` more or less.

    rows: (M, K), columns: (K, N) exponents, clipped to those of normal float32 numbers.
    """
    generator = np.random.default_rng(seed)

    def codes(centre: Array, element: Any) -> Array:
        exponent = np.clip(centre + generator.integers(-spread, spread + 1, centre.shape), -126, 126)
        values = np.ldexp(1 + generator.random(centre.shape), exponent).astype(f32)
        signed = np.where(generator.random(centre.shape) < 0.5, values, -values)
        codes: Array = fp.encode(signed, element.carrier)
        return codes

    return Product(codes(rows, unit.a), codes(columns, unit.b))


def anything(unit: MatrixUnit, shape: tuple[int, int, int], drawn: Callable[[int], bytes]) -> Product:
    """Return a product of any codes, from bytes: drawn(count)."""
    m, k, n = shape

    def codes(count: tuple[int, int], dtype: np.dtype[Any], bits: int) -> Array:
        words = np.frombuffer(drawn(count[0] * count[1] * dtype.itemsize), dtype).reshape(count)
        masked: Array = words & dtype.type((1 << bits) - 1)
        return masked

    (a, b, c), blocks = (
        (
            codes(size, element.dtype, element.carrier.bits)
            for size, element in (((m, k), unit.a), ((k, n), unit.b), ((m, n), unit.d))
        ),
        k // (unit.block or 1),
    )
    if unit.scale is None:
        return Product(a, b, c)
    byte = np.dtype(np.uint8)
    return Product(a, b, c, codes((m, blocks), byte, 8), codes((blocks, n), byte, 8))


def extremes(unit: MatrixUnit, shape: tuple[int, int, int], seed: int = 0) -> Product:
    """Return steps of the largest values of either sign, infinities, ones and zeros alone."""
    (m, k, n), generator = shape, np.random.default_rng(seed)

    def codes(element: Any, shape: tuple[int, ...]) -> Array:
        fmt, low = element.fmt, element.carrier.bits - element.fmt.bits
        magnitudes = [fmt.max_code, fmt.max_code, 0, fp.encode(1.0, fmt), fmt.infinity_code]
        some = np.array([int(code) for code in magnitudes if code is not None], np.uint64)
        picked = generator.choice(some, shape)
        signs = generator.integers(0, 2, shape).astype(np.uint64) * np.uint64(fmt.sign_bit) * (picked != 0)
        carried: Array = ((picked | signs) << np.uint64(low)).astype(element.dtype)
        return carried

    steps = -(-k // unit.terms)
    a = np.repeat(codes(unit.a, (m, steps)), unit.terms, axis=1)[:, :k]
    b = np.repeat(codes(unit.b, (steps, n)), unit.terms, axis=0)[:k]
    p = Product(a, b, codes(unit.d, (m, n)))
    if unit.scale is None:
        return p
    one = 127 if unit.scale == "ue8m0" else 0x38
    return with_scales(p, unit, np.full(m, one, np.uint8), np.full(n, one, np.uint8))


def with_scales(p: Product, unit: MatrixUnit, rows: Array, columns: Array, *, vary: bool = False) -> Product:
    """Return the product with a scale for each row and column, or with these in turn along K."""
    blocks = np.arange(p.a.shape[1] // unit.block) * vary
    scale_a = rows[(np.arange(rows.size)[:, None] + blocks) % rows.size]
    scale_b = columns[(np.arange(columns.size) + blocks[:, None]) % columns.size]
    return p._replace(scale_a=scale_a, scale_b=scale_b)


def lengths(unit: MatrixUnit) -> tuple[int, ...]:
    """One term or block, one step, one and a bit, several and a part of one."""
    least = unit.block or 1
    return (least, unit.terms, unit.terms + least, 2 * unit.terms + max(unit.terms // 2, least))


# ---- a multiply-add in float32, of which test_lane_product.py says that it rounds once


def multiply_add(x: Array, y: Array, z: Array) -> Array:
    """Return x * y + z, rounded once: both are added to odd, so that the second rounding gives the same."""
    exact, addend = x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64)
    total = exact + addend
    back = total - exact
    error = (exact - (total - back)) + (addend - back)  # TwoSum
    bits = total.view(np.int64)
    odd = bits + np.where((error > 0) == (total > 0), 1, -1)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    return np.asarray(np.where(inexact, odd, bits).view(np.float64).astype(f32))
