"""Random operands of products, chosen to show how a kernel orders, aligns, truncates and rounds sums."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.casts.cast import encode
from fpsim.errors import require_integer, require_word, shown
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32, Format

Words = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Shape = tuple[int, int, int]  # M, N, K
Draw = Callable[[np.random.Generator, tuple[int, int], str, int], Words]  # (generator, shape, format, K) -> codes

FORMATS: dict[str, Format] = {"e4m3": E4M3, "e5m2": E5M2, "fp16": FP16, "bf16": BF16, "tf32": FP32, "fp32": FP32}
DROPPED = np.uint32(0x1FFF)  # bits of a float32 that TF32 does not keep
SPAN = {"e4m3": 7, "e5m2": 13, "fp16": 12, "bf16": 40, "tf32": 40, "fp32": 40}  # largest exponents in "wide"


def product_operands(name: str, shape: Shape, pair: tuple[str, str], seed: int = 0) -> tuple[Words, Words]:
    """Return random operands as codes, a (M, K) and b (K, N), whose product shows how a kernel orders and rounds sums.

    Args:
      name: kind of values, one of `OPERAND_SETS`. "normal": N(0, 1). "positive": U[0, 1). "wide": exponents over most
        of the format's range. "cancelling": half of the terms are the negatives of the others. "subnormal": subnormals
        and the smallest normal values. "special": N(0, 1) with a few Inf, NaN, zeros and largest values. "adversarial":
        a few large terms among small ones. "ties": powers of two. Short sums rounded to BF16 show their order with
        "cancelling", but not with "normal", "positive" and "wide".
      shape: (M, N, K).
      pair: formats of a and b: e4m3, e5m2, fp16, bf16, fp32, or tf32 (float32 patterns whose low 13 bits are zero).
      seed: seed of the random numbers.

    Returns:
      (a, b), unsigned integers of the width of each format; uint32 for tf32.

    Raises:
      TypeError, ValueError: an argument has the wrong type, an unknown name, or a negative size.

    Example:
      >>> import fpsim as fp
      >>> a, b = fp.testing.product_operands("normal", (2, 3, 4), ("e4m3", "e5m2"))
      >>> a.shape, b.shape, a.dtype
      ((2, 4), (4, 3), dtype('uint8'))
    """
    require_word("input set", name, OPERAND_SETS)
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(f"pair must be the formats of a and b, such as ('e4m3', 'e5m2'); got {shown(pair)}.")
    for fmt in pair:
        require_word("pair", fmt, tuple(FORMATS))
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"shape must be (M, N, K); got {shown(shape)}.")
    for size in shape:
        require_integer("shape", size, 0)
    require_integer("seed", seed, 0)
    m, n, k = (int(size) for size in shape)
    pair = pair[0], pair[1]
    rng = np.random.default_rng([seed, zlib.crc32(repr((name, (m, n, k), pair)).encode())])
    a, b = _cancelling(rng, (m, n, k), pair) if name == "cancelling" else _both(rng, (m, n, k), pair, name)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def scales(shape: tuple[int, ...], seed: int = 0, *, powers: bool = False) -> npt.NDArray[np.float32]:
    """Return random float32 decode scales from 1/16 to 16: powers of two if `powers`, else with random mantissas.

    shape: shape of the array. seed: seed of the random numbers.

    Example:
      >>> from fpsim.testing.operands import scales
      >>> scales((2, 1), powers=True).shape
      (2, 1)
    """
    rng = np.random.default_rng([seed, 77, *shape])
    exponents = rng.integers(-4, 4, shape)
    mantissas = 1.0 if powers else rng.uniform(1, 2, shape)
    return np.asarray(mantissas * 2.0**exponents, np.float32)


# ---- draws: functions of a generator, a shape (rows, columns), the name of a format, and K


def _encoded(values: Floats, kind: str) -> Words:
    """Return float64 values as codes of the operand format `kind`, such as "e4m3", saturated.

    Codes of "tf32" are float32 bit patterns.
    """
    with np.errstate(over="ignore", under="ignore"):
        codes = encode(np.asarray(values, np.float64), FORMATS[kind], overflow="saturate")
    return codes & ~DROPPED if kind == "tf32" else codes


def _both(rng: np.random.Generator, shape: Shape, pair: tuple[str, str], name: str) -> tuple[Words, Words]:
    """Return random codes of a, (M, K), and of b, (K, N), of the kind `name`, such as "wide".

    shape: (M, N, K). pair: names of the formats of a and b, such as ("e4m3", "e5m2").
    """
    m, n, k = shape
    of_a, of_b = DRAWS[name]
    return of_a(rng, (m, k), pair[0], k), of_b(rng, (k, n), pair[1], k)


def _codes_of(values: Callable[[np.random.Generator, tuple[int, int], int], Floats]) -> Draw:
    """Return a function (generator, shape, name of a format, K) -> codes of random values in that format.

    values: function (generator, shape, span) -> float64 values, which are encoded. span: the format's number in SPAN,
    by which `values` can limit exponents; for the kind "wide" they are from -span to span - 1.
    """
    return lambda rng, size, kind, k: _encoded(values(rng, size, SPAN[kind]), kind)


def _subnormal(rng: np.random.Generator, size: tuple[int, int], kind: str, k: int) -> Words:
    """Return codes for subnormals and the smallest normal values, of both signs.

    size: (rows, columns) of the result. kind: the codes' format, such as "e4m3". k: not read.
    """
    fmt = FORMATS[kind]
    low = rng.integers(0, 2 << fmt.mantissa_bits, size)
    codes = (low | (rng.integers(0, 2, size) << (fmt.bits - 1))).astype(fmt.storage)
    return codes & ~DROPPED if kind == "tf32" else codes


def _special(rng: np.random.Generator, size: tuple[int, int], kind: str, k: int) -> Words:
    """Return codes for values of N(0, 1), a few of them replaced by Inf, NaN, zeros and largest values.

    size: (rows, columns) of the result. kind: the codes' format, such as "e4m3" (in which Inf becomes NaN). k: number
    of terms of a sum, K; each element is replaced with probability 0.7 / k.
    """
    fmt = FORMATS[kind]
    specials = _encoded(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300, -1e300]), kind)
    specials[:3] = encode(np.array([np.inf, -np.inf, np.nan]), fmt)  # in E4M3 all three are NaN
    chosen = specials[rng.integers(0, len(specials), size)]
    return np.where(rng.random(size) < 0.7 / max(k, 1), chosen, _encoded(rng.standard_normal(size), kind)).astype(
        fmt.storage
    )


def _few_large(rng: np.random.Generator, size: tuple[int, int], kind: str, k: int) -> Words:
    """Return codes for values of magnitudes 2**-6 to 2**-3, but of 2**6 to 2**7 in a few random columns.

    These are one column and about 1 % of the others. Sums with large terms lose most bits of the small ones. size:
    (rows, columns) of the result. kind: the codes' format, such as "e4m3". k: number of columns.
    """
    tiny = rng.uniform(1, 2, size) * 2.0 ** rng.integers(-6, -3, size) * rng.choice([-1.0, 1.0], size)
    large = 2.0**6 * (1 + rng.integers(0, 8, size) / 8)
    at = rng.random(k) < 0.01
    if k:
        at[rng.integers(0, k)] = True
    return _encoded(np.where(at[None, :], large, tiny), kind)


def _cancelling(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a (M, K) and b (K, N): half of the terms are the negatives of the others, in random order.

    In 5 % of the negatives, the last bit of b's code is flipped. shape: (M, N, K). pair: formats of a and b.
    """
    a, b = _both(rng, shape, pair, "wide" if rng.random() < 0.5 else "normal")
    k = shape[2]
    place, half = rng.permutation(k), k // 2
    sign = b.dtype.type(1 << (8 * b.dtype.itemsize - 1))
    first, second = place[:half], place[half : 2 * half]
    a[:, second], b[second] = a[:, first], b[first] ^ sign
    step = np.uint32(DROPPED + 1) if pair[1] == "tf32" else b.dtype.type(1)
    off = rng.random((half, shape[1])) < 0.05
    b[second] = np.where(off, b[second] ^ step, b[second])
    return a, b


# Kind of values -> the functions that draw a and b.
DRAWS: dict[str, tuple[Draw, Draw]] = {
    "normal": (_codes_of(lambda g, size, _: g.standard_normal(size)),) * 2,
    "positive": (_codes_of(lambda g, size, _: g.random(size)),) * 2,  # sums grow, and truncation errors accumulate
    "wide": (_codes_of(lambda g, size, span: g.standard_normal(size) * 2.0 ** g.integers(-span, span, size)),) * 2,
    "subnormal": (_subnormal, _subnormal),
    "special": (_special, _special),
    "adversarial": (
        _few_large, _codes_of(lambda g, size, _: g.uniform(1, 2, size) * 2.0 ** g.integers(-3, 4, size)),
    ),
    "ties": (_codes_of(lambda g, size, _: g.choice([-1.0, 1.0], size) * 2.0 ** g.integers(-5, 6, size)),) * 2,
}  # fmt: skip
OPERAND_SETS = ("normal", "positive", "wide", "cancelling", "subnormal", "special", "adversarial", "ties")
