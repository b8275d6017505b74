"""Long columns of operands whose results are hard to round: made with float64, so that they are many and quick to make.

Random codes and edges come with operands that are solved for: a is drawn, and the last operand is what brings the
result next to a value, a midpoint, the largest value, the smallest normal one or half the smallest one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from tests.kit.operands import tuples

Array = npt.NDArray[Any]
Formats = tuple[fp.Format, ...]


def hard_columns(name: str, fmts: Formats, out: fp.Format, count: int, seed: int) -> list[Array]:
    """Return about 4 * count rows of operands of add, subtract, multiply, divide, sqrt or fma."""
    generator = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        parts = [
            [_random_codes(fmt, count, generator) for fmt in fmts],
            [column[:count] for column in tuples(fmts, count, seed)],
            _solved(name, fmts, out, count, generator),
            _cancelling(name, fmts, count, generator),
        ]
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def _random_codes(fmt: fp.Format, count: int, generator: np.random.Generator) -> Array:
    return generator.integers(0, 1 << fmt.bits, count).astype(fmt.storage)


def _finite_codes(fmt: fp.Format, count: int, generator: np.random.Generator) -> Array:
    """Return codes of any exponent, half of them with significands of few bits."""
    codes = generator.integers(0, fmt.max_code + 1, count)
    coarse = codes >> (fmt.mantissa_bits // 2) << (fmt.mantissa_bits // 2)
    codes = np.where(generator.random(count) < 0.5, codes, coarse)
    return (codes | np.where(generator.random(count) < 0.5, fmt.sign_bit, 0)).astype(fmt.storage)


def _values(codes: Array, fmt: fp.Format) -> Array:
    return np.asarray(fp.decode(codes, fmt, np.float64))


def _near(values: Array, fmt: fp.Format, generator: np.random.Generator) -> Array:
    """Return the codes of the nearest values, most of them moved by a code or two."""
    codes = fp.encode(values, fmt, overflow="saturate").astype(np.int64)
    moved = codes + generator.integers(-2, 3, codes.size)
    return (moved & ((1 << fmt.bits) - 1)).astype(fmt.storage)


def _targets(out: fp.Format, count: int, generator: np.random.Generator) -> Array:
    """Return numbers next to a value or a midpoint, most of them at the ends of the normal range."""
    normal, top = 1 << out.mantissa_bits, out.max_code
    edges = np.array([0, 1, 2, normal - 2, normal - 1, normal, normal + 1, top - 3, top - 2, top - 1])
    codes = np.where(generator.random(count) < 0.7, generator.choice(edges, count), generator.integers(0, top, count))
    codes = np.clip(codes, 0, top - 1)
    low, high = _values(codes.astype(out.storage), out), _values((codes + 1).astype(out.storage), out)
    # from the code before the largest one, 1.5 steps lead to where results overflow
    steps = generator.choice([0, 0.25, 0.5, 0.5, 0.5, 0.75, 1, 1.25, 1.5, 1.5, 1.75, 2], count)
    nudge = 1 + generator.choice([-1, 0, 0, 1], count) * 2.0**-30
    return np.asarray((low + steps * (high - low)) * nudge * generator.choice([1, -1], count))


def _solved(name: str, fmts: Formats, out: fp.Format, count: int, generator: np.random.Generator) -> list[Array]:
    """Return operands whose result is next to a target."""
    target = _targets(out, count, generator)
    if name == "sqrt":
        return [_near(target * abs(target), fmts[0], generator)]
    a = _finite_codes(fmts[0], count, generator)
    x = _values(a, fmts[0])
    if name == "fma":
        size = generator.choice([0, 0.5, 1, 2.0**-12, 2.0**-30], count)
        c = _near(target * size, fmts[2], generator)
        return [a, _near((target - _values(c, fmts[2])) / x, fmts[1], generator), c]
    last = {"add": target - x, "subtract": x - target, "multiply": target / x, "divide": x / target}[name]
    return [a, _near(last, fmts[1], generator)]


def _cancelling(name: str, fmts: Formats, count: int, generator: np.random.Generator) -> list[Array]:
    """Return operands whose last one nearly cancels the result of the others, or equals it."""
    drawn = [_finite_codes(fmt, count, generator) for fmt in fmts]
    if len(fmts) == 1:
        return drawn
    values = [_values(codes, fmt) for codes, fmt in zip(drawn, fmts, strict=True)]
    product = values[0] * values[1] if name == "fma" else values[0]
    sign = 1.0 if name == "subtract" else -1.0
    drawn[-1] = _near(sign * product, fmts[-1], generator)
    return drawn
