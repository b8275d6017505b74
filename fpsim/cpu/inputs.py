"""Test inputs of instructions, of several kinds; each kind reveals one difference between arithmetics."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.cpu.instructions import INSTRUCTIONS, AnyInstruction, Instruction, TileInstruction
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, FP16, FP32, FP64
from fpsim.matrix_units.catalogue import unit
from fpsim.matrix_units.integer_unit import IntegerUnit

Operands = tuple[Array, ...]


class OperandFormats(NamedTuple):
    """The formats and shapes of an instruction's operands.

    Attributes:
      formats: format of each operand.
      shapes: shape of each operand for one result; for N results it is (N, *shape).
      edge: the format around whose smallest normal value and largest value some kinds of inputs are drawn.
    """

    formats: tuple[Format, ...]
    shapes: tuple[tuple[int, ...], ...]
    edge: Format

    @property
    def is_dot(self) -> bool:
        """True if the operands are two rows of terms and an accumulator."""
        return len(self.shapes) == 3 and self.shapes[0] != self.shapes[2]


def operand_formats(name: str) -> OperandFormats:
    """Return the formats and shapes of the operands of the instruction with this name."""
    row = INSTRUCTIONS[name]
    if row.unit:
        of = unit(row.unit)
        terms = terms_of(row)
        return OperandFormats((of.a.fmt, of.b.fmt, of.d.fmt), ((terms,), (terms,), ()), of.d.fmt)
    assert isinstance(row, Instruction)
    stored = {"uint16": FP16, "uint32": FP32, "uint64": FP64}
    formats = tuple(stored[register.dtype] for register in row.operands)
    shapes = tuple((register.words,) if register.words > 1 else () for register in row.operands)
    edges = {"VCVTNEPS2BF16": BF16, "VFMADDPS": FP32}
    return OperandFormats(formats, shapes, edges.get(name, FP16))


def terms_of(row: AnyInstruction) -> int:
    """Return the number of products that one instruction, `row`, adds to an accumulator."""
    return row.terms if isinstance(row, TileInstruction) else row.operands[0].words


def inputs_of(name: str, count: int, seed: int = 0) -> dict[str, Operands]:
    """Return test inputs of the instruction `name`, {kind of inputs: operands}.

    The operands are a tuple of arrays of bit patterns, as `fp.cpu.run` takes them. Each kind has operands for
    ceil(count / number of kinds) results. Instructions on one FP16 operand get all 65,536 codes instead. seed: seed of
    the draws.

    Source: docs/cpu.md describes the kinds.

    Example:
      >>> from fpsim.cpu.inputs import inputs_of
      >>> {kind: x.shape for kind, (x,) in inputs_of("VCVTPH2PS", 1000).items()}
      {'all codes': (65536,)}
    """
    row = INSTRUCTIONS[name]
    if row.unit and isinstance(unit(row.unit), IntegerUnit):
        return _of_integers(name, terms_of(row), count, seed)
    of = operand_formats(name)
    kinds = _kinds(name, of)
    rows = max(-(-count // len(kinds)), 1)
    inputs = {}
    for kind, make in kinds.items():
        rng = np.random.default_rng([seed, zlib.crc32(f"{name} {kind}".encode())])
        inputs[kind] = make(rng, of, rows)
    return inputs


def _of_integers(name: str, terms: int, count: int, seed: int) -> dict[str, Operands]:
    """Return two kinds of inputs of the integer instruction `name`: any bits, and extreme ones whose sums overflow.

    The dict has each kind's operands (a, b, c): uint8 (N, terms), uint8 (N, terms) and uint32 (N,). terms: products in
    a sum. count: number of results of both kinds together. seed: seed of the draws.
    """
    half = -(-count // 2)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    anything = [rng.integers(0, 256, (half, terms)).astype(np.uint8) for _ in "ab"]
    ends = np.array([0, 1, 127, 128, 129, 255], np.uint8)
    extreme = [ends[rng.integers(0, len(ends), (half, terms))] for _ in "ab"]
    near = np.array([0, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])[rng.integers(0, 4, half)]
    sums = near + rng.integers(-40_000, 40_000, half)
    return {
        "any bytes": (*anything, rng.integers(0, 1 << 32, half).astype(np.uint32)),
        "ends of ranges": (*extreme, (sums & 0xFFFFFFFF).astype(np.uint32)),
    }


# Functions (generator of random numbers, formats and shapes, number of results) -> operands, arrays of codes.
Make = Callable[[np.random.Generator, OperandFormats, int], Operands]


def _kinds(name: str, of: OperandFormats) -> dict[str, Make]:
    """Return a dict from each kind of inputs of the float instruction `name` to the function that draws them.

    of: formats and shapes of the operands.
    """
    if name in ("VCVTPH2PS", "VSQRTPH"):
        return {"all codes": lambda rng, of, count: (np.arange(1 << 16, dtype=np.uint16),)}
    if len(of.formats) == 1:

        def near(low: int, high: int) -> Make:
            return lambda rng, of, count: (with_exponents(rng, of.formats[0], (count,), low, high),)

        lowest, highest = of.edge.min_exponent, of.edge.bias
        return {
            "any bits": any_bits, "ties": ties,
            "near the smallest normal value": near(lowest - of.edge.mantissa_bits - 3, lowest + 1),
            "near overflow": near(highest - 1, highest + 1), "specials": specials,
        }  # fmt: skip
    return {
        "any bits": any_bits, "similar exponents": similar, "cancelling": cancelling,
        "near the smallest normal value": near_smallest, "near overflow": near_overflow, "specials": specials,
    }  # fmt: skip


def _shaped(of: OperandFormats, count: int) -> list[tuple[Format, tuple[int, ...]]]:
    """Return (format, shape) of each operand for `count` results; of: formats, and shapes for one result."""
    return [(fmt, (count, *shape)) for fmt, shape in zip(of.formats, of.shapes, strict=True)]


def any_bits(rng: np.random.Generator, of: OperandFormats, count: int) -> Operands:
    """Return operands of random bit patterns for `count` results; of: formats and shapes of the operands."""
    return tuple(
        rng.integers(0, 1 << fmt.bits, shape, dtype=np.uint64).astype(fmt.storage) for fmt, shape in _shaped(of, count)
    )


def with_exponents(rng: np.random.Generator, fmt: Format, shape: tuple[int, ...], low: int, high: int) -> Array:
    """Return codes of the format `fmt` with random signs, mantissas, and exponents from low to high.

    low, high: unbiased exponents, both included; they are clipped to those of the format's finite values. rng:
    generator of random numbers. shape: shape of the array.
    """
    fields = np.clip(rng.integers(low, high + 1, shape) + fmt.bias, 0, (1 << fmt.exponent_bits) - 2)
    codes = rng.integers(0, 1 << fmt.mantissa_bits, shape, dtype=np.uint64)
    codes |= fields.astype(np.uint64) << np.uint64(fmt.mantissa_bits)
    return (codes | rng.integers(0, 2, shape, dtype=np.uint64) << np.uint64(fmt.bits - 1)).astype(fmt.storage)


def similar(rng: np.random.Generator, of: OperandFormats, count: int) -> Operands:
    """Return operands of either sign around 1, for `count` results, so that most results lose bits by rounding.

    Exponents are drawn from -s .. s, where s is 8, or of.edge.bias // 3 if that is smaller. of: formats and shapes.
    """
    spread = min(8, of.edge.bias // 3)
    return tuple(with_exponents(rng, fmt, shape, -spread, spread) for fmt, shape in _shaped(of, count))


def cancelling(rng: np.random.Generator, of: OperandFormats, count: int) -> Operands:
    """Return operands whose terms nearly cancel in each of `count` results, which shows where sums are rounded.

    The last operand, such as the addend of a * b + c, is minus the exact result of the others (-a * b), moved by up to
    2 codes. In dot products, the second half of the products also nearly cancels the first. of: formats and shapes.
    """
    operands = list(similar(rng, of, count))
    last = of.formats[-1]
    with np.errstate(all="ignore"):
        values = [decode(x, fmt, np.float64) for x, fmt in zip(operands, of.formats, strict=True)]
        if len(operands) == 2:
            target = values[0]
        elif of.is_dot:  # products of the second half nearly cancel those of the first: factors differ in the last bit
            half = of.shapes[0][0] // 2
            flipped = operands[1][:, :half] ^ np.array(of.formats[1].sign_bit, operands[1].dtype)
            operands[1][:, half:] = flipped ^ (rng.random(flipped.shape) < 0.5).astype(flipped.dtype)
            operands[0][:, half:] = operands[0][:, :half]
            products = decode(operands[0], of.formats[0], np.float64) * decode(operands[1], of.formats[1], np.float64)
            target = products.sum(axis=1)
        else:
            target = values[0] * values[1]
        codes = encode(-target, last).astype(np.int64)
    near = codes + rng.integers(-2, 3, codes.shape)
    operands[-1] = np.clip(near, 0, (1 << last.bits) - 1).astype(last.storage)
    return tuple(operands)


def near_smallest(rng: np.random.Generator, of: OperandFormats, count: int) -> Operands:
    """Return operands for `count` results, whose products and sums are near the smallest normal value of `of.edge`.

    of: formats and shapes of the operands.
    """
    lowest = of.edge.min_exponent
    *factors, last = _shaped(of, count)
    if len(factors) == 1:  # tiny numbers with tiny ones, with ordinary ones, and with powers of two
        fmt, shape = last
        others = with_exponents(rng, fmt, shape, -8, 10)
        powers = with_exponents(rng, fmt, shape, -3, 3) & np.array(fmt.infinity_code, fmt.storage)  # ties, when divided
        small = with_exponents(rng, fmt, shape, lowest - 1, lowest + 4)
        choice = np.minimum(rng.integers(0, 4, shape), 2)
        return with_exponents(rng, *factors[0], lowest - 1, lowest + 6), np.choose(choice, [small, others, powers])
    middle = lowest // 2
    return (
        *(with_exponents(rng, fmt, shape, middle - 7, middle + 2) for fmt, shape in factors),
        with_exponents(rng, *last, lowest - 1, lowest + 4),
    )


def near_overflow(rng: np.random.Generator, of: OperandFormats, count: int) -> Operands:
    """Return operands for `count` results, whose products and sums are near the largest value of `of.edge`.

    of: formats and shapes of the operands.
    """
    highest = of.edge.bias
    *factors, last = _shaped(of, count)
    if len(factors) == 1:
        return tuple(with_exponents(rng, fmt, shape, highest - 3, highest) for fmt, shape in (*factors, last))
    middle = highest // 2
    return (
        *(with_exponents(rng, fmt, shape, middle - 2, middle + 1) for fmt, shape in factors),
        with_exponents(rng, *last, highest - 2, highest),
    )


def specials(rng: np.random.Generator, of: OperandFormats, count: int) -> Operands:
    """Return operands for `count` results, half of them zeros, infinities, NaNs and extreme values, half ordinary.

    of: formats and shapes of the operands.
    """
    operands = []
    for fmt, shape in _shaped(of, count):
        infinity = ((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits
        one = fmt.bias << fmt.mantissa_bits
        ends = [0, 1, (1 << fmt.mantissa_bits) - 1, 1 << fmt.mantissa_bits, one, infinity - 1, infinity, infinity,
                infinity + 1, infinity | 1 << fmt.mantissa_bits - 1]  # fmt: skip
        chosen = np.array(ends, np.uint64)[rng.integers(0, len(ends), shape)]
        chosen |= rng.integers(0, 2, shape, dtype=np.uint64) << np.uint64(fmt.bits - 1)
        ordinary = with_exponents(rng, fmt, shape, -4, 4).astype(np.uint64)
        operands.append(np.where(rng.random(shape) < 0.5, chosen, ordinary).astype(fmt.storage))
    return tuple(operands)


# ---- inputs of conversions to a format of fewer bits, `edge`


def ties(rng: np.random.Generator, of: OperandFormats, count: int) -> Operands:
    """Return operands of a conversion to `of.edge`: `count` numbers at, or next to, midpoints of neighbouring values.

    of: format and shape of the only operand, and the format `edge` of the results.
    """
    (source,) = of.formats
    with np.errstate(all="ignore"):
        codes = rng.integers(0, of.edge.infinity_code or of.edge.top_magnitude, count).astype(of.edge.storage)
        low, high = (decode(x, of.edge, np.float64) for x in (codes, codes + np.uint16(1)))
        middle = encode(np.where(np.isfinite(high), (low + high) / 2, low), source).astype(np.uint64)
    near = middle.astype(np.int64) + rng.integers(-1, 2, count)
    signs = rng.integers(0, 2, count, dtype=np.uint64) << np.uint64(source.bits - 1)
    return ((np.maximum(near, 0).astype(np.uint64) | signs).astype(source.storage),)
