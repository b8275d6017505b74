"""Losses and norms rounded at every step: exact functions, steps against NumPy's, and what low precision does."""

from __future__ import annotations

import decimal
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from fpsim.train.operations.numerics import cross_entropy, log_softmax, rms_norm, softmax, steps_of
from tests.kit.processes import python
from tests.kit.sweeps import in_turn, sweep

Array = npt.NDArray[Any]
HALVES = (fp.FP16, fp.BF16)
FP16_SUMS = fp.Sequential(fp.FP16)


def normal(*shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(0).standard_normal(shape) * scale).astype(np.float32)


# ---- exp, log and 1 / sqrt


def rounded(name: str, x: Array, fmt: fp.Format) -> tuple[Array, Array, Array]:
    """Values of a function rounded down, to nearest even and up."""
    modes = [steps_of(fmt, None, mode) for mode in ("down", "nearest_even", "up")]
    down, nearest, up = (fp.decode(steps.function(name, x), fmt, np.float64) for steps in modes)
    return down, nearest, up


def finite(fmt: fp.Format) -> Array:
    return fmt.table()[np.isfinite(fmt.table())]


def midpoint(low: float, high: float, fmt: fp.Format) -> float:
    """From where on the upper neighbour is nearer; Inf lies where the next value would."""
    return (low + high) / 2 if math.isfinite(high) else low + float(fmt.ulp(low)) / 2


@pytest.mark.parametrize("fmt", HALVES, ids=str)
@pytest.mark.parametrize("name", ["exp", "log"])
@sweep("step", 7, 1)
def test_exp_and_log_of_every_code_are_rounded_once(name: str, fmt: fp.Format, step: int) -> None:
    """Against 60 decimals: below, nearest and above, each the neighbour of the exact value."""
    x = finite(fmt)
    x = x[np.abs(x) < 200] if name == "exp" else x[x > 0]
    x = np.unique([0.0, 1.0, *x[::step]] if name == "exp" else [1.0, *x[::step]])
    down, nearest, up = rounded(name, x, fmt)
    with decimal.localcontext(prec=60, Emax=10**6, Emin=-(10**6)):
        for each, low, middle, high in zip(x.tolist(), down.tolist(), nearest.tolist(), up.tolist(), strict=True):
            exact = Decimal(each).exp() if name == "exp" else Decimal(each).ln()
            if exact == exact.to_integral_value() and each in (0, 1):
                assert low == middle == high == exact
                continue
            assert Decimal(low) < exact < Decimal(high), each
            assert middle == (low if exact < Decimal(midpoint(low, high, fmt)) else high), each
    assert_bits_equal(fp.next_up(fp.encode(down, fmt), fmt=fmt)[down != up], fp.encode(up, fmt)[down != up])


@pytest.mark.parametrize("fmt", HALVES, ids=str)
def test_exp_beyond_the_range_overflows_and_underflows_by_mode(fmt: fp.Format) -> None:
    x = finite(fmt)
    for each, want in (
        (x[x >= 200], (fmt.max, math.inf, math.inf)),
        (x[x <= -200], (0.0, 0.0, fmt.smallest_subnormal)),
    ):
        for got, value in zip(rounded("exp", each, fmt), want, strict=True):
            assert set(got.tolist()) == {value}
    assert rounded("exp", np.array([-math.inf]), fmt)[2][0] == 0


@pytest.mark.parametrize("fmt", HALVES, ids=str)
@sweep("step", 5, 1)
def test_inverse_roots_are_rounded_once(fmt: fp.Format, step: int) -> None:
    """Of every code, and of float32 numbers next to them: r^2 * v against 1, in fractions."""
    x = finite(fmt)[finite(fmt) >= 2.0**-20][::step]
    near = np.nextafter(x.astype(np.float32), np.float32(np.inf)).astype(np.float64)
    x = np.concatenate([x, near[np.isfinite(near)]])
    down, nearest, up = rounded("rsqrt", x, fmt)
    for each, low, middle, high in zip(x.tolist(), down.tolist(), nearest.tolist(), up.tolist(), strict=True):
        v = Fraction(each)
        assert Fraction(low) ** 2 * v <= 1 <= Fraction(high) ** 2 * v
        assert middle == (low if Fraction((low + high) / 2) ** 2 * v > 1 else high)


# ---- steps


def to(x: Array, fmt: fp.Format) -> Array:
    """Rounded by the dtype's own conversion."""
    assert fmt.dtype is not None
    return x.astype(fmt.dtype)


def float32_sum(x: Array) -> Array:
    """Term after term."""
    return np.cumsum(x.astype(np.float32), -1, dtype=np.float32)[..., -1:]


@pytest.mark.parametrize("fmt", HALVES, ids=str)
def test_softmax_is_these_steps(fmt: fp.Format) -> None:
    x = to(normal(50, 77, scale=3), fmt)
    shifted = x - x.max(-1, keepdims=True)
    powers = to(np.exp(shifted.astype(np.float64)), fmt)
    total = float32_sum(powers)
    want = to(powers.astype(np.float64) / total, fmt)
    log_want = shifted - to(np.log(total.astype(np.float64)), fmt)
    assert_bits_equal(softmax(x, fmt), want.astype(np.float32))
    assert_bits_equal(log_softmax(x, fmt), log_want.astype(np.float32))


@pytest.mark.parametrize("fmt", HALVES, ids=str)
def test_rms_norm_is_these_steps(fmt: fp.Format) -> None:
    x, w = to(normal(50, 77, scale=3) + 1, fmt), to(normal(77), fmt)
    eps = np.float32(1e-6)

    def ratios(x: Array) -> Array:
        square = float32_sum(np.square(x.astype(np.float32))) / np.float32(77)
        return x * to(1 / np.sqrt((square + eps).astype(np.float64)), fmt)

    assert_bits_equal(rms_norm(x, w, fmt), (ratios(x) * w).astype(np.float32))
    assert_bits_equal(rms_norm(x, None, fmt), ratios(x).astype(np.float32))


def test_sums_are_the_accumulators() -> None:
    x = normal(4, 300)
    for sums in (FP16_SUMS, fp.Pairwise("bf16"), fp.Chunked("fp16", outer="fp32")):
        powers = fp.quantize(
            np.exp(np.float64(fp.quantize(np.float16(x) - np.float16(x).max(-1, keepdims=True), "fp16"))), "fp16"
        )
        total = fp.sum(np.float16(powers), accumulate=sums, axis=-1).astype(np.float64)
        assert_bits_equal(
            softmax(x, "fp16", sums=sums), fp.quantize(powers / total[:, None], "fp16").astype(np.float32)
        )


@in_turn("fmt", ["e4m3", "e5m2", "fp16", "bf16", "tf32"])
@in_turn("rounding", ["nearest_even", "toward_zero", "up"])
def test_results_lie_on_the_grid(fmt: str, rounding: str) -> None:
    x, w = normal(3, 2, 40), normal(40)
    found = [
        softmax(x, fmt, rounding=rounding), log_softmax(x, fmt, rounding=rounding),
        rms_norm(x, w, fmt, rounding=rounding),
        cross_entropy(x, np.zeros((3, 2), int), fmt, rounding=rounding).gradient,
    ]  # fmt: skip
    for each in found:
        assert each.shape == x.shape
        assert each.dtype == np.float32
        assert_bits_equal(each, fp.quantize(each, fmt))


def test_cross_entropy_and_its_gradient_come_near_float64() -> None:
    x, targets = normal(64, 100), np.arange(64) % 100
    p = np.exp(x.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    loss, gradient = cross_entropy(x, targets, "fp16", scale=64.0)
    assert float(loss) == pytest.approx(-np.log(p[np.arange(64), targets]).mean(), rel=2.0**-11)
    p[np.arange(64), targets] -= 1
    assert np.abs(gradient - p).max() < 2.0**-11


def test_masked_and_non_finite_logits_stay_what_they_are() -> None:
    x = np.array([[1, -math.inf, 1], [math.nan, 1, 1], [-math.inf] * 3], np.float32)
    got = softmax(x, "bf16")
    assert got[0].tolist() == [0.5, 0, 0.5]
    assert np.isnan(got[1:]).all()


# ---- what low precision does


@pytest.mark.parametrize(("rms", "dies"), [(3.9, False), (4.1, True)])
def test_a_sum_of_squares_overflows_fp16_where_d_times_the_square_exceeds_65504(rms: float, dies: bool) -> None:
    """d = 4096: from a root mean square of 4 on, every output is 0."""
    x = np.where(np.arange(4096) % 2, rms, -rms).astype(np.float32)
    assert (rms_norm(x, None, "fp16", sums=fp.Pairwise("fp16")) == 0).all() == dies
    assert np.abs(np.abs(rms_norm(x, None, "fp16")) - 1).max() < 2.0**-9


@pytest.mark.parametrize(
    ("classes", "mean_over", "scale", "zeros"),
    [
        (1000, "tokens", 1, 0.011), (1000, "elements", 1, 1.0), (32000, "tokens", 1, 0.88), (32000, "elements", 1, 1.0),
        (32000, "elements", 65536, 0.67),
    ],
)  # fmt: skip
def test_dividing_by_classes_too_turns_fp16_gradients_to_zeros(
    classes: int, mean_over: str, scale: int, zeros: float
) -> None:
    """The published shares for 2048 tokens of normal logits; 32 of them, with a loss 2048 / 32 times as small."""
    x = normal(32, classes)
    gradient = cross_entropy(x, np.zeros(32, int), "fp16", mean_over=mean_over, scale=scale * 32 / 2048).gradient
    assert np.mean(gradient == 0) == pytest.approx(zeros, abs=0.005)


def test_the_divergence_of_a_low_precision_softmax_grows_with_its_logits() -> None:
    """KL from float64's: BF16 has half a unit at 64, FP16 one at 1024; beyond 65504 FP16 has nothing left."""

    def divergence(scale: float, fmt: str) -> float:
        x = (normal(64, 512) * np.float32(scale)).astype(np.float64)
        exact = x - x.max(-1, keepdims=True)
        exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
        low = log_softmax(x, fmt).astype(np.float64)
        low -= np.log(np.exp(low).sum(-1, keepdims=True))
        return float((np.exp(exact) * (exact - low)).sum(-1).mean())

    bf16, fp16 = ([divergence(2.0**k, fmt) for k in range(0, 10, 2)] for fmt in ("bf16", "fp16"))
    assert bf16 == sorted(bf16)
    assert bf16[0] < 1e-4 < 4e-3 < bf16[-1]
    for wide, narrow in zip(bf16[:4], fp16, strict=False):
        assert wide / narrow == pytest.approx(64, rel=0.1)  # three bits less, and it goes with the square
    assert math.isnan(divergence(2.0**16, "fp16"))


def test_numerics_and_recipes_do_without_torch() -> None:
    script = """
        import sys
        sys.modules["torch"] = None
        import numpy as np
        from fpsim.train.operations.numerics import softmax
        from fpsim.recipes.optimizer_recipe import OptimizerRecipe
        print(softmax(np.zeros(2, np.float32), "bf16")[0], OptimizerRecipe(weights="bf16").lr)
    """
    assert python(script) == "0.5 0.003"


# ---- refusals

words: dict[str, Any] = {"fp16": "fp16", "big": "big"}  # what type checkers would refuse


@in_turn(
    "call, message",
    [
        (lambda x: softmax(x, "fp32"), "fmt must be a signed format with a zero and up to 16 bits of precision"),
        (lambda x: softmax(x, "e8m0"), "fmt must be a signed format with a zero"),
        (lambda x: softmax(x, "fp16", rounding="stochastic"), "rounding must be a mode that draws nothing"),
        (lambda x: softmax(x, "fp16", sums=words["fp16"]), r"sums must be an accumulator such as fp\.Sequential"),
        (lambda x: softmax(x, "fp16", sums=fp.Exact("fp64")), "float32 cannot hold"),
        (lambda x: softmax(np.float32(1), "fp16"), "x must have a last axis of at least one element"),
        (lambda x: softmax(x.astype(int), "fp16"), "x must be an array of float16"),
        (lambda x: rms_norm(x, np.ones(3, np.float32), "fp16"), r"weight must have shape \(4,\), the last axis of"),
        (lambda x: rms_norm(x, None, "fp16", eps=-1), "eps must be a number >= 0 and < 1; got -1"),
        (lambda x: cross_entropy(x, [0, 4], "fp16"), r"targets must be classes in 0 \.\. 3; got 0 \.\. 4"),
        (lambda x: cross_entropy(x, [0], "fp16"), r"targets must have the shape \(2,\) of the logits' tokens"),
        (lambda x: cross_entropy(x, [0.0, 1.0], "fp16"), "targets must be integers"),
        (lambda x: cross_entropy(x, [0, 1], "fp16", mean_over="batch"), "mean_over must be one of tokens, elements"),
        (lambda x: cross_entropy(x, [0, 1], "fp16", scale=words["big"]), "scale must be a number; got 'big'"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_in_a_sentence(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call(np.zeros((2, 4), np.float32))
