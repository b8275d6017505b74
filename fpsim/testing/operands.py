"""Random operands of products, chosen to show how a kernel orders, aligns, truncates and rounds sums."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.casts.cast import encode
from fpsim.errors import require_integer, require_word, shown, unknown
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32, Format

Words = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Shape = tuple[int, int, int]  # M, N, K

FORMATS: dict[str, Format] = {"e4m3": E4M3, "e5m2": E5M2, "fp16": FP16, "bf16": BF16, "tf32": FP32, "fp32": FP32}
DROPPED = np.uint32(0x1FFF)  # bits of a float32 that TF32 does not keep
SPAN = {"e4m3": 7, "e5m2": 13, "fp16": 12, "bf16": 40, "tf32": 40}  # binades below and above 1 from which `wide` draws


def product_operands(name: str, shape: Shape, pair: tuple[str, str], seed: int = 0) -> tuple[Words, Words]:
    """Return random operands as codes, a (M, K) and b (K, N), whose product shows how a kernel orders and rounds sums.

    Args:
      name: kind of values, one of `OPERAND_SETS`. "normal": N(0, 1). "positive": U[0, 1). "wide": exponents over most
        of the format's range. "cancelling": half of the terms are the negatives of the others. "subnormal": subnormals
        and the smallest normal values. "special": N(0, 1) with a few Inf, NaN, zeros and largest values. "adversarial":
        a few large terms among small ones. "ties": powers of two. Short sums rounded to BF16 show their order with
        "cancelling", but not with "normal", "positive" and "wide".
      shape: (M, N, K).
      pair: formats of a and b: e4m3, e5m2, fp16, bf16, or tf32 (float32 patterns whose low 13 bits are zero).
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
    require_word("input set", name, tuple(SETS))
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(f"pair must be the formats of a and b, such as ('e4m3', 'e5m2'); got {shown(pair)}.")
    for fmt in pair:
        require_word("pair", fmt, tuple(FORMATS))
    if not isinstance(shape, (tuple, list)) or len(shape) != 3:
        raise ValueError(f"shape must be (M, N, K); got {shown(shape)}.")
    for size in shape:
        require_integer("shape", size, 0)
    require_integer("seed", seed, 0)
    m, n, k = shape
    rng = np.random.default_rng([seed, zlib.crc32(repr((name, shape, pair)).encode())])
    a, b = SETS[name](rng, (m, n, k), pair)
    return np.ascontiguousarray(a), np.ascontiguousarray(b)


def start(name: str, m: int, n: int, seed: int = 0) -> npt.NDArray[np.float32] | None:
    """Return random values at which accumulators start, float32 (m, n); None for the name "zero".

    name: "zero", "normal" (standard deviation 8), "wide" (exponents spread over 60 binades), "large" (magnitudes from
      2**14 to 2**26) or "special" (zeros, Inf, NaN, 1.5, subnormals). seed: seed of the random numbers.

    Raises:
      ValueError: the name is unknown.

    Example:
      >>> from fpsim.testing.operands import start
      >>> start("wide", 2, 2).dtype
      dtype('float32')
    """
    if name == "zero":
        return None
    if name not in STARTS:
        raise unknown("start", name, ["zero", *STARTS])
    return STARTS[name](np.random.default_rng([seed, zlib.crc32(name.encode()), m, n]), (m, n)).astype(np.float32)


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


# ---- the sets


def _encoded(values: Floats, kind: str) -> Words:
    """Return float64 values as codes of the operand format `kind`, such as "e4m3", saturated.

    Codes of "tf32" are float32 bit patterns.
    """
    with np.errstate(over="ignore", under="ignore"):
        codes = encode(np.asarray(values, np.float64), FORMATS[kind], overflow="saturate")
    return codes & ~DROPPED if kind == "tf32" else codes


def _each(rng: np.random.Generator, shape: Shape, pair: tuple[str, str], draw: Callable[..., Words]) -> Any:
    """Return (codes of a, (M, K); codes of b, (K, N)), both drawn by the same function.

    shape: (M, N, K). pair: formats of a and b. draw: function of a generator, an array's shape and its format.
    """
    m, n, k = shape
    return draw(rng, (m, k), pair[0]), draw(rng, (k, n), pair[1])


def _normal_codes(rng: np.random.Generator, shape: tuple[int, int], kind: str) -> Words:
    """Return codes of the format `kind`, an array of `shape`, for values drawn from N(0, 1)."""
    return _encoded(rng.standard_normal(shape), kind)


def _normal(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a, (M, K), and of b, (K, N), for values of N(0, 1).

    shape: (M, N, K). pair: formats of a and b, such as ("e4m3", "e5m2").
    """
    return _each(rng, shape, pair, _normal_codes)  # type: ignore[no-any-return]


def _positive(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a and b for values of U[0, 1), whose sums only grow, so that truncation errors accumulate.

    shape: (M, N, K). pair: formats of a and b.
    """
    return _each(rng, shape, pair, lambda g, size, kind: _encoded(g.random(size), kind))  # type: ignore[no-any-return]


def _wide(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a and b for values whose exponents span most of the format's range.

    The values are N(0, 1) times random powers of two; SPAN lists their exponents for each format. shape: (M, N, K).
    pair: formats of a and b.
    """

    def draw(g: np.random.Generator, size: tuple[int, int], kind: str) -> Words:
        span = SPAN[kind]
        return _encoded(g.standard_normal(size) * 2.0 ** g.integers(-span, span, size), kind)

    return _each(rng, shape, pair, draw)  # type: ignore[no-any-return]


def _cancelling(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a and b whose terms cancel, in random order: half of them are the negatives of the other half.

    In 5 % of the negatives, the last bit of b's code is flipped. shape: (M, N, K). pair: formats of a and b.
    """
    a, b = _wide(rng, shape, pair) if rng.random() < 0.5 else _normal(rng, shape, pair)
    k = shape[2]
    place, half = rng.permutation(k), k // 2
    sign = b.dtype.type(1 << (8 * b.dtype.itemsize - 1))
    first, second = place[:half], place[half : 2 * half]
    a[:, second], b[second] = a[:, first], b[first] ^ sign
    step = np.uint32(DROPPED + 1) if pair[1] == "tf32" else b.dtype.type(1)
    off = rng.random((half, shape[1])) < 0.05
    b[second] = np.where(off, b[second] ^ step, b[second])
    return a, b


def _subnormal(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a and b for subnormals and the smallest normal values, of both signs.

    shape: (M, N, K). pair: formats of a and b.
    """

    def draw(g: np.random.Generator, size: tuple[int, int], kind: str) -> Words:
        fmt = FORMATS[kind]
        low = g.integers(0, 2 << fmt.mantissa_bits, size)
        codes = low | (g.integers(0, 2, size) << (fmt.bits - 1))
        return codes.astype(fmt.storage) & (~DROPPED if kind == "tf32" else fmt.storage.type(~fmt.storage.type(0)))

    return _each(rng, shape, pair, draw)  # type: ignore[no-any-return]


def _special(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a and b for values of N(0, 1), a few of them replaced by Inf, NaN, zeros and largest values.

    shape: (M, N, K). pair: formats of a and b.
    """

    def draw(g: np.random.Generator, size: tuple[int, int], kind: str) -> Words:
        fmt = FORMATS[kind]
        specials = _encoded(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300, -1e300]), kind)
        specials[:3] = encode(np.array([np.inf, -np.inf, np.nan]), fmt)  # in E4M3 all three are NaN
        chosen = specials[g.integers(0, len(specials), size)]
        return np.where(g.random(size) < 0.7 / shape[2], chosen, _normal_codes(g, size, kind)).astype(fmt.storage)

    return _each(rng, shape, pair, draw)  # type: ignore[no-any-return]


def _adversarial(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a and b whose sums have a few large terms and many small ones.

    Most bits of the small terms are below a sum's last place. Of a, one column in a hundred, and at least one, has
    values from 2**6 to 2**7, all others from 2**-6 to 2**-3. b has values from 2**-3 to 2**4. shape: (M, N, K). pair:
    formats of a and b.
    """

    def draw(g: np.random.Generator, size: tuple[int, int], kind: str) -> Words:
        along = size[1] if size[1] == shape[2] else size[0]
        tiny = g.uniform(1, 2, size) * 2.0 ** g.integers(-6, -3, size) * g.choice([-1.0, 1.0], size)
        large = 2.0**6 * (1 + g.integers(0, 8, size) / 8)
        at = g.random(size[1] if along == size[1] else size[0]) < 0.01
        at[g.integers(0, along)] = True
        where = at[None, :] if along == size[1] else at[:, None]
        return _encoded(np.where(where, large, tiny), kind)

    m, n, k = shape
    return draw(rng, (m, k), pair[0]), _encoded(rng.uniform(1, 2, (k, n)) * 2.0 ** rng.integers(-3, 4, (k, n)), pair[1])


def _ties(rng: np.random.Generator, shape: Shape, pair: tuple[str, str]) -> tuple[Words, Words]:
    """Return codes of a and b for powers of two of both signs, whose sums often are ties or next to ties.

    Magnitudes are from 2**-5 to 2**5. shape: (M, N, K). pair: formats of a and b.
    """

    def draw(g: np.random.Generator, size: tuple[int, int], kind: str) -> Words:
        return _encoded(g.choice([-1.0, 1.0], size) * 2.0 ** g.integers(-5, 6, size), kind)

    return _each(rng, shape, pair, draw)  # type: ignore[no-any-return]


SETS: dict[str, Callable[[np.random.Generator, Shape, tuple[str, str]], tuple[Words, Words]]] = {
    "normal": _normal, "positive": _positive, "wide": _wide, "cancelling": _cancelling, "subnormal": _subnormal,
    "special": _special, "adversarial": _adversarial, "ties": _ties,
}  # fmt: skip
OPERAND_SETS = tuple(SETS)

STARTS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Floats]] = {
    "normal": lambda g, size: g.standard_normal(size) * 8,
    "wide": lambda g, size: g.standard_normal(size) * 2.0 ** g.integers(-30, 30, size),
    "large": lambda g, size: g.choice([-1.0, 1.0], size) * 2.0 ** g.integers(14, 26, size) * g.uniform(1, 2, size),
    "special": lambda g, size: g.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, 1e-42, -1e-45], size),
}
