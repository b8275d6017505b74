"""Runs float32 functions on every input, and asks mpmath about those that are close to a rounding boundary.

`python -m tests.core.elementary.prove [NAME...]` prints a line for each function: how many inputs were run, how many have
a float64 evaluation within 2**-46 of the middle between two float32 numbers, which of these it rounds wrongly, and how
close to the middle the exact value of any of them is. With --write it writes fpsim/core/elementary/corrections.py.
"""  # noqa: E501

from __future__ import annotations

import argparse
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from mpmath import mp

from fpsim.core.elementary.corrections import CORRECTIONS, EDGES
from fpsim.core.elementary.float32 import FUNCTIONS, WIDE
from fpsim.core.elementary.steps import bits_of, float_of, narrowed
from fpsim.runtime.compile import kernel
from tests.kit.processes import ROOT
from tests.oracles.elementary import fraction, nearest_float32, real

mp.dps = 60
u8, u32, f64 = np.uint8, np.uint32, np.float64
Words = npt.NDArray[np.uint32]

FILE = ROOT / "fpsim" / "core" / "elementary" / "corrections.py"
MARGIN = 2.0**-46  # relative; evaluation errors are smaller
INFINITY, SIGN = 0x7F800000, 0x80000000
POSITIVE, NEGATIVE = range(1, INFINITY), range(SIGN + 1, SIGN + INFINITY)
SMALLEST_NORMAL = 0x00800000
HALVED = 0x01000000  # smaller numbers are halved to at most subnormal ones by silu and gelu
BLOCK, ROOM = 1 << 22, 1 << 22


def domain(name: str) -> list[range]:
    """Return the bits of all inputs of a function whose evaluation is used: those of one sign where it is symmetric."""
    if name in ("tanh", "erf"):
        return [range(1, 0x41A00000 if name == "tanh" else 0x40800000)]  # from 20 and 4 on, 1
    if name in ("log", "log2", "rsqrt", "sin", "cos", "tan", "cbrt", "reciprocal"):
        return [POSITIVE]
    if name == "log1p":
        return [POSITIVE, range(SIGN + 1, 0xBF800000)]
    if name in ("silu", "gelu"):
        return [range(HALVED, INFINITY), range(SIGN + HALVED, SIGN + INFINITY)]
    return [POSITIVE, NEGATIVE]


@cache
def near_kernel(name: str) -> Any:
    """Return the loop `(first bits, near)`: near[i] says whether the evaluation of first + i is near a boundary."""
    wide = WIDE[name]
    below, above = f64(1 - MARGIN), f64(1 + MARGIN)

    def look(first: Any, near: Any) -> None:
        for i in range(near.size):
            y = wide(f64(float_of(u32(first + u32(i)))))
            near[i] = u8(narrowed(y * below) != narrowed(y * above))

    return kernel(look)


def near_inputs(name: str) -> Words:
    """Return the bits of all inputs whose evaluation is within MARGIN of a rounding boundary."""
    found = []
    for part in domain(name):
        for start in range(part.start, part.stop, BLOCK):
            near = np.empty(min(BLOCK, part.stop - start), np.uint8)
            near_kernel(name)(u32(start), near)
            found.append(np.flatnonzero(near).astype(np.uint32) + u32(start))
    return np.concatenate(found)


@cache
def evaluation_kernel(name: str) -> Any:
    """Return the loop `(bits of x, bits of the evaluation rounded to float32)`, without corrections."""
    wide = WIDE[name]

    def evaluate(bits: Any, results: Any) -> None:
        for i in range(bits.size):
            results[i] = narrowed(wide(f64(float_of(bits[i]))))

    return kernel(evaluate)


@cache
def wide_kernel(name: str) -> Any:
    """Return the loop `(bits of x, evaluations in float64)`."""
    wide = WIDE[name]

    def evaluate(bits: Any, values: Any) -> None:
        for i in range(bits.size):
            values[i] = wide(f64(float_of(bits[i])))

    return kernel(evaluate)


def largest_error(name: str, count: int) -> float:
    """Return the largest relative error of evaluations at random inputs whose results are ordinary numbers."""
    rng = np.random.default_rng(len(name))
    parts = domain(name)
    drawn = [rng.integers(part.start, part.stop, count // len(parts)) for part in parts]
    near_one = [part.start - part.start % SIGN + rng.integers(0x3C000000, 0x42C00000, count // 4) for part in parts]
    inside = [each[(each >= part.start) & (each < part.stop)] for each, part in zip(near_one, parts, strict=True)]
    bits = np.concatenate(drawn + inside).astype(np.uint32)
    values = np.empty(bits.size)
    wide_kernel(name)(bits, values)
    worst = 0.0
    for source, got in zip(bits.tolist(), values.tolist(), strict=True):
        if 1e-44 < abs(got) < 3.4e38:
            value = fraction(real(name, float(np.uint32(source).view(np.float32))))
            worst = max(worst, float(abs(Fraction(got) - value) / abs(value)))
    return worst


def wrong_halves(name: str) -> int:
    """Return how many results of silu or gelu below HALVED are not x / 2, rounded by the sign of the next term."""
    wrong = 0
    for sign in (0, SIGN):
        magnitudes = np.arange(1, HALVED, dtype=np.uint32)
        results = np.empty_like(magnitudes)
        evaluation_kernel(name)(magnitudes | u32(sign), results)
        normal = magnitudes >= SMALLEST_NORMAL << 1
        # a half of a subnormal number is a tie, which the term decides: away from 0 for positive numbers
        significands = np.where(magnitudes < SMALLEST_NORMAL, magnitudes, (magnitudes & 0x7FFFFF) | SMALLEST_NORMAL)
        halves = (significands + (0 if sign else 1)) >> 1
        want = np.where(normal, magnitudes - SMALLEST_NORMAL, halves).astype(np.uint32) | u32(sign)
        wrong += int((results != want).sum())
    return wrong


class Proof(NamedTuple):
    """What the sweep over all inputs of a function found."""

    near: int  # inputs whose evaluation is within MARGIN of a boundary
    wrong: tuple[tuple[int, int], ...]  # inputs that round wrongly without corrections, with the right results
    closest: float  # log2 of the smallest relative distance to a boundary among them


def proof(name: str, bits: Words) -> Proof:
    """Compare the results of some inputs with mpmath."""
    results = np.empty_like(bits)
    evaluation_kernel(name)(bits, results)
    wrong, closest = [], 0.0
    for source, got in zip(bits.tolist(), results.tolist(), strict=True):
        value = real(name, float(np.uint32(source).view(np.float32)))
        want = int(nearest_float32(value).view(np.uint32))
        if want != got:
            wrong.append((source, want))
        closest = min(closest, distance(value))
    return Proof(bits.size, tuple(wrong), closest)


def distance(value: Any) -> float:
    """Return log2 of the relative distance of a number from the middle between two float32 numbers."""
    exact = abs(fraction(value))
    unit = fraction(mp.mpf(2) ** max(int(mp.floor(mp.log(abs(value), 2))) - 24, -150))
    odd = exact / unit
    nearest = 2 * round((odd - 1) / 2) + 1
    return float(mp.log(mp.mpf(abs(odd - nearest).numerator) / abs(odd - nearest).denominator, 2)) - float(
        mp.log(mp.mpf(odd.numerator) / odd.denominator, 2)
    )


HALF_UNIT = 2.0**-25
# Bits of inputs that may give 2**-126: those around it, and those from 8 to 128, of exp(x) and the like.
EDGE_INPUTS = [
    range(sign + start, sign + stop) for sign in (0, SIGN) for start, stop in ((1, 1 << 25), (0x41000000, 0x43000000))
]


@cache
def edge_kernel(name: str) -> Any:
    """Return the loop `(first bits, edges)`: edges[i] says whether the result of first + i is +-2**-126."""
    function, magnitude = FUNCTIONS[name], u32(SIGN - 1)

    def look(first: Any, edges: Any) -> None:
        for i in range(edges.size):
            y = bits_of(function(float_of(u32(first + u32(i)))))
            edges[i] = u8(u32(y & magnitude) == u32(SMALLEST_NORMAL))

    return kernel(look)


def edges(name: str) -> tuple[tuple[int, int, int], ...]:
    """Return inputs with the result +-2**-126 whose exact value is smaller: bits, tiny after and before rounding."""
    result = []
    for part in EDGE_INPUTS:
        got = np.empty(len(part), np.uint8)
        edge_kernel(name)(u32(part.start), got)
        for bits in np.flatnonzero(got) + part.start:
            value = real(name, float(np.uint32(bits).view(np.float32)), 200)  # x - x**3 / 6 differs in bit 254
            ratio = abs(fraction(value)) * 2**126
            if ratio < 1:
                result.append((int(bits), int(ratio < 1 - fraction(mp.mpf(HALF_UNIT))), 1))
    return tuple(result)


HEAD = '''"""Inputs of float32 functions, as bit patterns, whose result or flags the float64 evaluation gets wrong.

Written by `python -m tests.core.elementary.prove --write`, which runs every input and checks with mpmath those whose
result is close to the middle between two float32 numbers.
"""

'''
WRONG = "# Inputs whose evaluation rounds to the wrong neighbour, with the right result.\n"
TINY = (
    "# Inputs whose exact result is just below 2**-126 in magnitude, to which it rounds: whether it is tiny after\n"
    "# rounding to 24 bits, and before.\n"
)


def written(corrections: dict[str, Any], tiny: dict[str, Any]) -> str:
    """Return the file of corrections."""
    lines = [HEAD, WRONG, "CORRECTIONS: dict[str, tuple[tuple[int, int], ...]] = {\n", *_rows(corrections), "}\n"]
    lines += [TINY, "EDGES: dict[str, tuple[tuple[int, int, int], ...]] = {\n", *_rows(tiny), "}\n"]
    return "".join(lines)


def _rows(table: dict[str, Any]) -> list[str]:
    """Return the lines of a dictionary of tuples, as ruff formats them."""
    lines = []
    for name, pairs in table.items():
        rows = [f"(0x{source:08X}, {', '.join(_number(word) for word in more)})" for source, *more in pairs]
        if len(rows) < 2:
            lines.append(f'    "{name}": ({"".join(f"{row}," for row in rows)}),\n')
        else:
            lines += [f'    "{name}": (\n', *(f"        {row},\n" for row in rows), "    ),\n"]
    return lines


def _number(word: int) -> str:
    """Return a truth value as a digit, and bits of a float as hexadecimal digits."""
    return str(word) if word < 2 else f"0x{word:08X}"


def main(words: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.core.elementary.prove", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(WIDE))
    parser.add_argument("--write", action="store_true", help="write the file of corrections")
    options = parser.parse_args(words)
    wrong, tiny = dict(CORRECTIONS), dict(EDGES)
    for name in options.names:
        result = proof(name, near_inputs(name))
        count = sum(len(part) for part in domain(name))
        print(
            f"{name}: {count} inputs, {result.near} near, {len(result.wrong)} wrong, closest 2**{result.closest:.1f}",
            flush=True,
        )
        wrong[name], tiny[name] = result.wrong, edges(name)
    if options.write:
        FILE.write_text(written(wrong, tiny))
    elif (wrong, tiny) != (CORRECTIONS, EDGES):
        print(f"{FILE} differs: run again with --write")


if __name__ == "__main__":
    main()
