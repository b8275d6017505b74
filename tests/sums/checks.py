"""Runs accumulators and compares them with the oracle; a failure prints a line to paste."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.sums.accumulators import Accumulator, Chunked
from fpsim.sums.product import accumulator_product
from tests.kit import operands
from tests.oracles import sums as oracle
from tests.oracles.arithmetic import read

Array = npt.NDArray[Any]


def rule_of(accumulator: Accumulator) -> oracle.Rule:
    """The accumulator in the oracle's words."""
    words = {
        "rounding": accumulator.rounding.name.lower(),
        "seed": accumulator.seed,
        "overflow": accumulator.overflow,
        "subnormals": accumulator.subnormals,
        "random_bits": accumulator.random_bits,
    }
    chunked = isinstance(accumulator, Chunked)
    chunk, outer = (accumulator.chunk, accumulator.outer) if isinstance(accumulator, Chunked) else (1, None)
    assert chunked == (outer is not None)
    return oracle.Rule(type(accumulator).__name__, accumulator.fmt, words, chunk, outer)


def drawn(fmt: fp.Format, shape: tuple[int, ...], generator: np.random.Generator, wild: float = 0.1) -> Array:
    """Codes: values of about one, and with the probability `wild` any edge case of the format."""
    pool = operands.every_code(fmt) if fmt.bits <= 8 else operands.level_one(fmt)
    usual = fp.encode(generator.normal(size=shape) * (1 if fmt.signed else 0.5) + (not fmt.signed), fmt)
    if not fmt.signed:
        usual &= fmt.storage.type(fmt.top_magnitude)
    edge = generator.choice(pool, size=shape)
    return np.where(generator.random(shape) < wild, edge, usual).astype(fmt.storage)


def assert_same(got: Array, want: Array, accumulator: Accumulator, case: str) -> None:
    """Fail unless codes agree."""
    assert got.shape == want.shape, f"{accumulator!r} gives shape {got.shape}, not {want.shape}: {case}"
    differ = got != want
    if differ.any():
        where = tuple(int(i) for i in np.argwhere(differ)[0])
        raise AssertionError(
            f"{accumulator!r}: got {int(got[where]):#x}, want {int(want[where]):#x} at {where}; "
            f"{int(differ.sum())} of {differ.size} differ: {case}"
        )


def check_product(
    accumulator: Accumulator, a: Array, b: Array, c: Array | None, formats: tuple[fp.Format, fp.Format]
) -> None:
    """Compare a product of matrices with the oracle."""
    got = accumulator_product(a, b, c, accumulator, formats=formats)
    want, rule = np.empty_like(got), rule_of(accumulator)
    left = [[read(formats[0], int(code)) for code in row] for row in a]
    right = [[read(formats[1], int(code)) for code in column] for column in b.T]
    for i, row in enumerate(left):
        for j, column in enumerate(right):
            start = None if c is None else read(accumulator.result_format, int(c[i, j]))
            want[i, j] = oracle.dot(rule, row, column, start, i * len(right) + j)
    shown = f"a = {a.tolist()}, b = {b.tolist()}, c = {None if c is None else c.tolist()}, of {formats}"
    assert_same(got, want, accumulator, shown)


def ranges(generator: np.random.Generator, shape: tuple[int, ...], largest: float) -> dict[str, Array]:
    """Values that rounding into a format with a largest value has to think about."""
    usual = generator.normal(size=shape)
    spread = usual * np.exp2(generator.integers(-40, 30, shape))
    return {
        "usual": usual,
        "few bits, so that sums are ties": generator.integers(-9, 10, shape) / 4.0,
        "zeros among powers": np.exp2(generator.integers(-12, 12, shape)) * generator.integers(-1, 2, shape),
        "a wide range": spread,
        "products below float32's range": usual * 2.0**-66,
        "products beyond the largest value": usual * largest**0.5,
        "sums that reach the largest value": np.abs(usual) * (largest / 150) ** 0.5,
        "sums that come back from it": usual * (largest / 20) ** 0.5,
        "one large value": np.where(generator.random(shape) < 1e-3, 2.0**60, usual),
        "NaN and Inf": np.where(generator.random(shape) < 1e-3, generator.choice([np.nan, np.inf], shape), usual),
    }


def encoded(values: Array, fmt: fp.Format) -> Array:
    """Codes of a format, float64's included."""
    return values.view(np.uint64).copy() if fmt == fp.FP64 else fp.encode(values, fmt)
