"""Matrix units as users make them, with any allowed fields, and products that compare them with the oracle."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.matrix_units.matrix_unit import ELEMENTS, Element, MatrixUnit, Rule
from fpsim.schedules.schedule import Chain, Schedule, Slicing
from fpsim.testing import assert_bits_equal
from tests.kit.samples import P3109, STRANGE
from tests.oracles.units.rows import KINDS, Rows, dot_add_rows
from tests.products.checks import Product, chained, extremes, multiplied, partials, random_product, results, started

Array = npt.NDArray[Any]
Rng = np.random.Generator

OWN = {fmt.name: Element(fmt.name, fmt, fmt) for fmt in (*STRANGE, *P3109, fp.E8M0, fp.E4M3B11FNUZ, fp.TF32)} | {
    "bf16 in f32": Element("bf16 in f32", fp.BF16, fp.FP32),
    "e5m2 in f16": Element("e5m2 in f16", fp.E5M2, fp.FP16),
}
USUAL = [ELEMENTS[name] for name in ("f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "e3m2", "e2m1", "fp8")]
HELD_BY_FP16 = [ELEMENTS[name] for name in ("f16", "e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "fp8", "bf8")]
RESULTS = [
    ELEMENTS["f32"], ELEMENTS["f16"], ELEMENTS["bf16"], ELEMENTS["e5m2"], ELEMENTS["f64"],
    Element("e6m5", fp.Format("e6m5", 6, 5), fp.Format("e6m5", 6, 5)),
]  # fmt: skip
UNCUT = (Rule.EXACT, Rule.FLUSHED_TREE, Rule.REVERSED_CHAIN, Rule.TWO_CHAINS, Rule.ODD_PAIR, Rule.FUSED_PAIR)
TERMS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 20, 24, 28, 31, 32, 33, 40, 48, 64)


def _one(rng: Rng, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def random_unit(rng: Rng, rule: Rule | None = None) -> MatrixUnit:
    """Draw a unit of any rule with allowed fields, most of them near those of a chip."""
    while True:
        try:
            return _any_unit(rng, _one(rng, list(Rule)) if rule is None else rule)
        except ValueError:  # a description that means nothing
            continue


def _any_unit(rng: Rng, rule: Rule) -> MatrixUnit:
    """Draw a unit that may be refused."""
    pool = USUAL if rng.random() < 0.7 else [*OWN.values(), ELEMENTS["f64"]]
    a, b, d = _one(rng, pool), _one(rng, pool), RESULTS[0] if rng.random() < 0.5 else _one(rng, RESULTS)
    a = b if rng.random() < 0.5 else a
    if rule is Rule.TWO_PASSES:
        a, b = _one(rng, HELD_BY_FP16), _one(rng, HELD_BY_FP16)
    if rule is Rule.GROUPED:
        a = b = ELEMENTS["e2m1"]
    if rule in (Rule.ODD_PAIR, Rule.FUSED_PAIR):
        d = RESULTS[0]
    if rule is Rule.EXACT and rng.random() < 0.2:
        a = b = d = ELEMENTS["f64"]
    terms = int(_one(rng, TERMS)) if rng.random() < 0.8 else int(rng.integers(1, 65))
    bits = int(rng.integers(10, 30)) if rng.random() < 0.7 else int(rng.integers(0, 60))
    if rule in (Rule.SEPARATE, Rule.EVEN_ODD) and rng.random() < 0.3:
        bits = 24
    floor = int(rng.integers(-160, -100)) if rng.random() < 0.6 else int(rng.integers(-300, 60))
    floor = -126 if rng.random() < 0.2 else d.fmt.min_exponent - 7 if rng.random() < 0.2 else floor
    whole = d.fmt.mantissa_bits
    kept = whole if rng.random() < 0.6 else int(rng.integers(0, whole + 1))
    scale = _one(rng, ["ue8m0", "ue4m3"]) if rule is Rule.GROUPED else "ue8m0" if rule is Rule.SCALED else None
    if rule is Rule.GROUPED:
        terms = 16 * int(rng.integers(1, 6))
    block = (
        0
        if scale is None
        else 16 * int(rng.integers(1, 4))
        if rule is Rule.GROUPED
        else terms * int(rng.integers(1, 3))
    )
    uncut = rule in UNCUT
    return MatrixUnit("mine", "", a, b, d, rule, terms, 0 if uncut else bits, floor, kept, scale, block)


def random_case(unit: MatrixUnit, rng: Rng, most: int = 4) -> Product:
    """Draw operands of a small product, some of them transposed in memory."""
    m, n = (int(size) for size in rng.integers(1, most + 1, 2))
    block = unit.block or 1
    k = block * int(rng.integers(1, max(2 * unit.terms // block, 1) + 2))
    shape, seed = (m, k, n), int(rng.integers(1 << 30))
    p = extremes(unit, shape, seed) if rng.random() < 0.1 else random_product(unit, _one(rng, KINDS), shape, seed)
    p = p._replace(c=None) if rng.random() < 0.3 else p
    return p.each(lambda x: np.array(x, order="F" if rng.random() < 0.5 else "C"))


def check_case(p: Product, unit: MatrixUnit, rng: Rng) -> None:
    """Check that each element of fp.matmul is a chain of fp.dot_add and that of the oracle, promoted and sliced too."""
    want = chained(p, unit)
    assert_bits_equal(want.reshape(-1), by_oracle(p, unit))
    assert_bits_equal(results(multiplied(p, unit)), want)
    if unit.d.fmt == fp.FP64:
        return
    interval = unit.terms * int(rng.integers(1, 3))
    if unit.scale is None or interval % unit.block == 0:
        assert_bits_equal(results(multiplied(p, unit, promote=interval)), promoted(p, unit, interval))
    if unit.scale is None and p.c is None:
        count = int(rng.integers(2, 4))
        schedule = Schedule("slices", slicing=Slicing(count), sums=Chain())
        got = multiplied(p, unit, schedule=schedule)
        length = -(-p.a.shape[1] // count)
        if length < p.a.shape[1]:
            assert_bits_equal(results(got), merged(p, unit, length))


def by_oracle(p: Product, unit: MatrixUnit) -> Array:
    """Return the codes of every element by the oracle."""
    m, n = p.shape
    c = np.zeros(m * n, unit.d.dtype) if p.c is None else p.c.reshape(-1)
    scale_a = None if p.scale_a is None else np.repeat(p.scale_a, n, axis=0)
    scale_b = None if p.scale_b is None else np.tile(p.scale_b.T, (m, 1))
    return dot_add_rows(Rows(np.repeat(p.a, n, axis=0), np.tile(p.b.T, (m, 1)), c, scale_a, scale_b), unit)


def promoted(p: Product, unit: MatrixUnit, interval: int) -> Array:
    """Return float32 patterns of the totals of partial sums, every NaN with the unit's code."""
    total = started(p, unit)
    with np.errstate(over="ignore", invalid="ignore"):
        for partial in partials(p, unit, interval):
            total = total + partial
    return _with_nan(total, unit)


def merged(p: Product, unit: MatrixUnit, length: int) -> Array:
    """Return float32 patterns of slices of K that are summed in order."""
    parts = partials(p, unit, length)
    total = parts[0]
    with np.errstate(over="ignore", invalid="ignore"):
        for partial in parts[1:]:
            total = total + partial
    return _with_nan(total, unit)


def _with_nan(total: Array, unit: MatrixUnit) -> Array:
    """Return patterns with every NaN as the unit's code, or as all ones if its results are not float32."""
    patterns = total.view(np.uint32).copy()
    patterns[np.isnan(total)] = unit.nan_code if unit.d.fmt == fp.FP32 else 0x7FFFFFFF
    return patterns


def changed(name: str, **changes: Any) -> MatrixUnit:
    """Return a unit of the catalogue with other fields."""
    return replace(fp.unit(name), name="mine", **changes)
