"""Reported faults of quantizers with scales, planted in NumPy, are named, whatever these do with Inf and NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

Array = Any
S = fp.scalings
TILES = S.TILE_1X128.replace(block=(1, 16))
ONE_LEVEL = fp.Scaling(block=(1, 16), scale_format=fp.E4M3)  # NVFP4 without a scale of the whole tensor
INT8 = S.ROW


def tiles_of(x: Array, width: int, fill: float = 0) -> Array:
    rows, columns = x.shape
    padded = np.full((rows, -(-columns // width) * width), np.float32(fill))
    padded[:, :columns] = x
    return padded.reshape(rows, -1, width)


def spread(scales: Array, x: Array, width: int) -> Array:
    return scales.repeat(width, 1)[:, : x.shape[1]]


def usable(scales: Array) -> Array:
    return np.where(scales == 0, 1, scales).astype(np.float32)


def codes(quotients: Array) -> Array:
    return fp.encode(quotients.astype(np.float32), "e4m3", overflow="saturate_finite")


def scales_of(x: Array) -> Array:
    return usable(np.abs(tiles_of(x, 16)).max(2) / np.float32(448))


def reciprocal(x: Array) -> Any:
    scales = scales_of(x)
    return codes(x * spread(np.float32(1) / scales, x, 16)), scales


def reciprocal_of_largest(x: Array) -> Any:
    scales = usable(np.abs(tiles_of(x, 16)).max(2) * (np.float32(1) / np.float32(448)))
    return codes(x / spread(scales, x, 16)), scales


def signed(x: Array) -> Any:
    scales = usable(tiles_of(x, 16, -np.inf).max(2) / np.float32(448))
    return codes(x / spread(scales, x, 16)), scales


def integers(x: Array) -> Any:
    scales = scales_of(x)
    return (np.clip(np.rint(x / spread(scales, x, 16)), -448, 448) * spread(scales, x, 16)).astype(np.float32)


def right(x: Array) -> Any:
    scales = scales_of(x)
    return codes(x / spread(scales, x, 16)), scales


def logarithm(x: Array) -> Any:
    """Return the exponent of mlx 4353."""
    amax = np.abs(tiles_of(x, 32)).max(2).astype(np.float64)
    exponents = np.where(amax > 0, np.rint(np.log2(np.where(amax > 0, amax, 1) / 448)), -127)
    scales = np.exp2(np.clip(exponents, -127, 127)).astype(np.float32)
    return codes(x / spread(scales, x, 32)), scales


def rounded_late(x: Array) -> Any:
    """sglang 28307: elements have the exact scale, which is rounded to E8M0 afterwards."""
    exact = usable(np.abs(tiles_of(x, 32)).max(2) / np.float32(448))
    return codes(x / spread(exact, x, 32)), np.exp2(np.ceil(np.log2(exact.astype(np.float64)))).astype(np.float32)


def requantised(x: Array) -> Any:
    """vllm 58157."""
    first = fp.encode_scaled(x, "e4m3", S.BLOCK_128X128)
    return fp.encode_scaled(np.asarray(first.decode(), np.float32), "e4m3", S.MX_CEIL)


def power_over_largest(x: Array) -> Any:
    """MXFP4 by amax rounded up to a power of two, over 6 (trinity 694)."""
    amax = np.abs(tiles_of(x, 32)).max(2).astype(np.float64)
    scales = np.exp2(np.ceil(np.log2(np.where(amax > 0, amax, 1)))).astype(np.float32) / np.float32(6)
    return fp.encode(x / spread(scales, x, 32), "e2m1", overflow="saturate_finite"), scales


def one_level(scales_of_amax: Callable[[Array], Array], read: Callable[[Array], Array]) -> Callable[[Array], Any]:
    """Return a quantizer to FP4 with E4M3 scales from amax, which divides by what `read` makes of their codes."""

    def quantizer(x: Array) -> Any:
        scales = fp.cast(scales_of_amax(np.abs(tiles_of(x, 16)).max(2)), "e4m3")
        divisors = spread(read(scales.view(np.uint8)), x, 16)
        quotients = np.where(divisors > 0, x / divisors, 0).astype(np.float32)
        return fp.encode(quotients, "e2m1", overflow="saturate_finite"), scales

    return quantizer


def limited(amax: Array) -> Array:
    scales = fp.encode(np.minimum(amax / np.float32(6), np.float32(448)), "e4m3")
    return np.where(amax > 0, fp.decode(np.maximum(scales, 1), "e4m3"), np.float32(1))


def always_normal(codes: Array) -> Array:
    return np.ldexp(1 + (codes & 7) / np.float32(8), (codes >> 3).astype(np.int32) - 7).astype(np.float32)


def exchanged(x: Array) -> Any:
    encoded = fp.encode_scaled(x, "e2m1", S.NVFP4)
    places = np.arange(x.shape[1])
    whole = places.size // 2 * 2
    places[:whole] = places[:whole] ^ 1
    return encoded.codes[:, places], encoded.scales


def by_row(choose: Callable[[Array], Array]) -> Callable[[Array], Any]:
    def quantizer(x: Array) -> Any:
        scales = usable(np.abs(x).max(1, keepdims=True) / np.float32(127))
        return np.clip(choose(x / scales), -127, 127).astype(np.int8), scales

    return quantizer


def away(y: Array) -> Array:
    return np.copysign(np.floor(np.abs(y) + np.float32(0.5)), y)


def over_amax(
    divisor: float, lowest: int = -127, rows: Callable[[Array], Array] = lambda scales: scales,
    quotients: Callable[[Array, Array], Array] = np.divide,
) -> Callable[[Array], Any]:  # fmt: skip
    """Return a quantizer of rows to INT8 whose scales are rows(amax / divisor)."""

    def quantizer(x: Array) -> Any:
        scales = rows(usable(np.abs(x).max(1, keepdims=True) / np.float32(divisor)))
        return np.clip(np.rint(quotients(x, scales.astype(np.float32))), lowest, 127).astype(np.int8), scales

    return quantizer


NAMED: dict[str, tuple[Callable[[Array], Any], str, fp.Scaling, str]] = {
    "reciprocal scales": (
        reciprocal, "e4m3", TILES,
        "has division='multiply', not 'divide': it multiplies by the rounded reciprocal of the scale"),
    "reciprocal of the largest value": (
        reciprocal_of_largest, "e4m3", TILES,
        "has quotient='amax*(1/max)', not 'amax/max': it multiplies amax by the rounded reciprocal of max"),
    "amax without abs": (
        signed, "e4m3", TILES, "has as scales those of the largest value with its sign, not the largest magnitude"),
    "integers for a float": (
        integers, "e4m3", TILES, "rounds elements to integers, which are evenly spaced, not to E4M3"),
    "mlx 4353": (
        logarithm, "e4m3", S.MX,
        "has as scales powers of two nearest in the logarithm (2**round(log2(amax / max)))"),
    "trinity 694": (power_over_largest, "e2m1", S.MX, "has as scales 2**ceil(log2(amax)) / max"),
    "Model-Optimizer 1633": (
        one_level(lambda amax: amax / np.float32(6), lambda codes: fp.decode(codes, "e4m3")), "e2m1", ONE_LEVEL,
        "does not limit scales: scales too large for E4M3 become NaN, and too small ones 0"),
    "b12x 388": (
        one_level(limited, always_normal), "e2m1", ONE_LEVEL,
        "scales elements by the right ones, whose subnormal codes it reads as normal ones, and returns the right "
        "scales"),
    "a scale that is rounded after use": (
        rounded_late, "e4m3", S.MX_RCEIL,
        "scales elements by those before they are rounded, and returns the right scales"),
    "quantised twice": (
        requantised, "e4m3", S.MX_CEIL, "quantises twice, first to E4M3 by fp.scalings.BLOCK_128X128"),
    "exchanged nibbles": (
        exchanged, "e2m1", S.NVFP4,
        "exchanges the two elements of each pair along the row, as packed codes in the wrong order"),
    "aiter 4637: truncation": (by_row(np.trunc), "int8", INT8, "rounds elements toward zero"),
    "tract 2850: ties away": (by_row(away), "int8", INT8, "takes ties of elements away from zero"),
    "tt-metal 56525: floor(y + .5)": (
        by_row(lambda y: np.floor(y + np.float32(0.5))), "int8", INT8,
        "takes ties of elements up, toward +Inf"),
    "amax / 128": (over_amax(128), "int8", INT8, "has as scales amax/128, not amax/127"),
    "amax / 127.5": (over_amax(127.5), "int8", INT8, "has as scales amax/127.5, not amax/127"),
    "amax / 128, down to -128": (
        over_amax(128, -128), "int8", INT8, "has as scales amax/128, not amax/127, and elements down to -128"),
    "subnormal scales": (
        over_amax(127), "int8", INT8,
        "has as scales amax/127 also where that is below 2**-126, the recipe's smallest scale"),
    "a scale for the whole matrix": (
        over_amax(127, rows=lambda scales: np.full_like(scales, scales.max())), "int8", INT8,
        "has as scales that of the whole matrix for all tiles"),
    "scales in FP16": (
        over_amax(127, rows=lambda scales: scales.astype(np.float16)), "int8", INT8,
        "has as scales the right ones rounded to FP16, with Inf for large ones"),
    "products with reciprocals": (
        over_amax(127, quotients=lambda x, scales: x * (np.float32(1) / scales)), "int8", INT8,
        "has division='multiply', not 'divide': it multiplies by the rounded reciprocal of the scale"),
}  # fmt: skip


def report(fn: Callable[[Array], Any], fmt: str, scaling: fp.Scaling, **cast: Any) -> fp.testing.QuantizerReport:
    with np.errstate(all="ignore"):
        return fp.testing.check_quantizer(fn, fmt, scaling=scaling, raises=False, **cast)


@in_turn("name", NAMED, some=(
    "amax without abs", "mlx 4353", "exchanged nibbles", "tract 2850: ties away", "amax / 128", "subnormal scales",
    "Model-Optimizer 1633", "b12x 388",
))  # fmt: skip
def test_a_reported_fault_is_named(name: str) -> None:
    fn, fmt, scaling, words = NAMED[name]
    checked = report(fn, fmt, scaling)
    assert checked.causes[0] == words, checked
    assert not checked.ok
    assert checked.unexplained < checked.differ  # what is left are an Inf, a NaN and what float32 cannot scale
    if checked.unexplained:
        assert "which are left out of that" in checked.diagnosis


def test_a_right_quantizer_with_its_own_inf_and_nan_is_called_that() -> None:
    checked = report(right, "e4m3", TILES)
    assert len(checked.causes) == 1
    assert checked.causes[0].startswith("treats matrices with an Inf and ")
    assert checked.causes[0].endswith("as no recipe that was tried does")
    assert checked.unexplained == checked.differ > 0


def test_codes_of_an_integer_format_are_integers() -> None:
    def objects(x: Array) -> Any:
        q = fp.encode_scaled(x, "int8", INT8)
        return q.codes.astype(object), q.scales

    (broken,) = report(objects, "int8", INT8).broken
    assert (broken.property, broken.why) == ("dtype", "fn must return codes of INT8 as integers; got object.")


def test_rounding_to_nearest_is_called_that_where_truncation_is_promised() -> None:
    checked = report(lambda x: fp.encode_scaled(x, "e4m3", TILES), "e4m3", TILES, rounding="toward_zero")
    assert checked.causes == ("rounds elements to nearest, ties to the even code",)


@pytest.mark.parametrize(
    "name",
    [
        "mlx 4353", "amax without abs", "integers for a float", "quantised twice", "b12x 388", "trinity 694",
    ],
)  # fmt: skip
def test_a_fault_beside_a_recipe_is_part_of_its_identity(name: str) -> None:
    fn, fmt, _, words = NAMED[name]
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((40, 260)) * np.exp2(rng.integers(-9, 9, (40, 1)))).astype(np.float32)
    x[3, :16] = -np.abs(x[3, :16])  # a tile without a positive value
    with np.errstate(all="ignore"):
        identity = fp.testing.identify_scaling(fn, fmt, x)
    assert identity.faults == (words,)
    assert not identity.exact
    assert words in str(identity)


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero"])
def test_each_rounding_of_elements_has_one_phrase(rounding: str) -> None:
    from fpsim.testing.quantizers.scales.element_faults import faults_of_elements
    from fpsim.testing.quantizers.scales.encoding import Case, RightEncoding

    x = np.ones((2, 32), np.float32)
    for fmt in (fp.E4M3, fp.INT8):
        recipe = RightEncoding(fmt, fp.scalings.ROW, {"rounding": rounding})
        case = Case(x, np.zeros(x.size, np.uint64), np.ones((2, 1), np.float32), None)
        words = [words for words, _ in faults_of_elements(recipe, [case])]
        on_ties = [clause for clause in words if clause.startswith(("takes ties", "rounds elements to nearest, ties"))
                   and "by the bit above" not in clause]  # fmt: skip
        assert len(on_ties) > 10
        start = "takes ties of elements" if rounding == "nearest_even" else "rounds elements to nearest, ties"
        assert all(clause.startswith(start) for clause in on_ties)
        assert not any(clause.startswith(("takes ties ", "rounds toward")) and "in its" in clause for clause in words)
