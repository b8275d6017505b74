"""identify_quantizer: policies, NaNs, and faults with numbers of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import sweep

Array = Any


E4M3 = ml_dtypes.float8_e4m3fn


MODES = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "odd")


def report(fn: Callable[..., Any], fmt: Any = "e4m3", **keywords: Any) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, raises=False, **keywords)


# ---- causes


def through_fp16(x: Array) -> Array:
    return x.astype(np.float16).astype(E4M3)


# ---- functions that break the rules


def one(kind: str, found: fp.testing.QuantizerReport) -> str:
    (broken,) = found.broken
    assert broken.property == kind
    return broken.why


# ---- identify


POLICIES = list(itertools.product(MODES, ("nonfinite", "saturate"), ("keep", "flush")))


PAIRS = [each for i, each in enumerate(POLICIES) if i % 4 in ((0, 3) if i // 4 % 2 else (1, 2))]  # any two words meet


@sweep("policies", PAIRS, POLICIES)
def test_every_policy_is_identified(policies: list[tuple[str, str, str]]) -> None:
    for rounding, overflow, subnormals in policies:
        words: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
        identity = fp.testing.identify_quantizer(lambda x, w=words: fp.quantize(x, "e5m2", **w), "e5m2")
        assert identity.is_policy, identity
        again = fp.quantize(fp.testing.points("e5m2"), "e5m2", **identity.keywords)
        np.testing.assert_array_equal(again, fp.quantize(fp.testing.points("e5m2"), "e5m2", **words))


def test_an_intermediate_format_is_identified() -> None:
    identity = fp.testing.identify_quantizer(lambda x: through_fp16(x).astype(np.float32), "e4m3")
    assert (identity.intermediate, identity.exact, identity.rounding) == ("FP16", True, "nearest_even")
    assert "but it rounds to FP16 first" in str(identity)


def test_a_function_that_is_not_deterministic_has_no_identity() -> None:
    seeds = itertools.count()
    with pytest.raises(ValueError, match=r"fn is not deterministic: x = .* Use check_stochastic\."):
        fp.testing.identify_quantizer(lambda x: fp.quantize(x, "e4m3", rounding="SR", seed=next(seeds)), "e4m3")


@pytest.mark.parametrize(
    ("fmt", "nans"), [("e5m2", (0x7D, 0x7E, 0xFD, 0xFF)), ("e4m3", (0x7F, 0xFF)), ("e4m3fnuz", (0x80,))]
)
def test_every_nan_code_of_a_format_is_its_nan_and_no_other_code_is(fmt: str, nans: tuple[int, ...]) -> None:
    def with_nan(code: int) -> Any:
        return lambda x: np.where(np.isnan(x), np.uint8(code), fp.encode(x, fmt))

    for code in nans:
        assert fp.testing.check_quantizer(with_nan(code), fmt).ok
    largest = int(fp.encode(np.float32(fp.format(fmt).max), fmt))
    for code in (largest, largest | 0x80):
        report = fp.testing.check_quantizer(with_nan(code), fmt, raises=False)
        assert "NaN" in [one.property for one in report.broken], str(report)


def test_nans_as_values_may_have_any_sign_and_payload() -> None:
    def negative(x: Any) -> Any:
        got = np.asarray(fp.quantize(x, "e4m3"), np.float32)
        return np.where(np.isnan(x), np.uint32(0xFFC12345).view(np.float32), got)

    assert fp.testing.check_quantizer(negative, "e4m3").ok


def _as_is(x: Any) -> Any:
    return fp.quantize(x, "e4m3").astype(np.float32)


def _bits_to_bf16(x: Any) -> Any:
    """Round by the usual trick with bits, which forgets NaN."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).view(ml_dtypes.bfloat16)


def _infinite_nan(x: Any) -> Any:
    low = np.isnan(x) & (x.astype(np.float32).view(np.uint32) & 0x7F0000 == 0)
    return np.where(low, np.copysign(np.float32(np.inf), x), fp.quantize(x, "bf16").astype(np.float32))


@pytest.mark.parametrize(
    ("fn", "fmt", "causes"),
    [
        (lambda x: np.clip(_as_is(x), -240, 240), "e4m3", ("limits results to +-240",)),
        (lambda x: _as_is(x * np.float32(1.0000001)), "e4m3", ("multiplies the input by 1.0000001192092896 first",)),
        (lambda x: _as_is(x + np.float32(1e-6)), "e4m3", ("adds 1e-06 to the input first",)),
        (
            lambda x: np.where(np.signbit(x) & ~np.isnan(x), np.float32(0), _as_is(x)), "e4m3",
            ("gives +0 for negative values",),
        ),
        (
            lambda x: np.where(np.abs(x) < 2.0**-5, 0 * x, _as_is(x)), "e4m3",
            ("gives zeros for magnitudes below 2**-5",),
        ),
        (lambda x: np.clip(x.astype(np.float16), -32768, 32768), "fp16", ("limits results to +-32768",)),
        (
            lambda x: np.where(np.isnan(x), np.float32(np.inf), np.where(np.isinf(x), np.nan, fp.quantize(x, "e5m2"))),
            "e5m2", ("gives +Inf for NaN", "gives NaN for Inf"),
        ),
        (_bits_to_bf16, "bf16", ("reads the bits of NaN as a number, and lets codes run over into the sign",)),
        (_infinite_nan, "bf16", ("gives Inf, where its first bits are none, for NaN",)),
    ],
)  # fmt: skip
def test_faults_with_numbers_and_bits_of_their_own_are_named(fn: Any, fmt: str, causes: tuple[str, ...]) -> None:
    checked = fp.testing.check_quantizer(lambda x: fn(x.astype(np.float32)), fmt, raises=False)
    assert (checked.causes, checked.unexplained) == (causes, 0), checked
