"""softmax, log_softmax, rms_norm and layer_norm against an oracle that makes every rounding one at a time."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import arithmetic as ao
from tests.oracles import norms

Array = npt.NDArray[Any]

ORDERS = [
    ("fp32", fp.LaneSum(), norms.lanes(32)),
    ("fp32", fp.LaneSum(4), norms.lanes(4)),
    ("bf16", fp.Sequential("bf16"), norms.sequential(fp.BF16)),
    ("fp16", fp.LaneSum(), norms.lanes(32)),
    ("fp32", fp.Sequential("fp16"), norms.sequential(fp.FP16)),
]
NAMES = ("softmax", "log_softmax", "rms_norm", "layer_norm")
FORMATS = [fp.BF16, fp.FP16, fp.E4M3, fp.FP32]
SPECIAL = np.array([[0.0, -0.0, 1e-7, 3, -700], [np.inf, 1, 2, -np.inf, 0], [-np.inf] * 5, [np.nan, 1, 2, 3, 4]])
HUGE = fp.Format("huge", 10, 5)  # which float32 does not hold


def rows(fmt: fp.Format, shape: tuple[int, int], seed: int) -> Array:
    """Return codes of ordinary numbers."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return fp.encode(drawn * 3, fmt, overflow="saturate")


def codes_of(array: Array, fmt: fp.Format) -> list[norms.Code]:
    """Return the oracle's codes."""
    return [norms.Code(code, fmt) for code in array.tolist()]


def wanted(
    name: str, row: norms.Row, xs: list[norms.Code], more: list[list[norms.Code] | None], eps: float
) -> list[int]:
    """Return the oracle's codes of a row."""
    if name in ("softmax", "log_softmax"):
        return getattr(norms, name)(row, xs)  # type: ignore[no-any-return]
    return getattr(norms, name)(row, xs, *more, eps)  # type: ignore[no-any-return]


def check(name: str, x: Array, fmt: fp.Format, order: int, out: fp.Format | None = None, **words: Any) -> None:
    """Compare the codes of a function along the last axis with the oracle's."""
    between, accumulate, add_up = ORDERS[order]
    count = {"rms_norm": 1, "layer_norm": 2}.get(name, 0)
    operands: list[Array | None] = [rows(fmt, (1, x.shape[1]), 40 + i)[0] for i in range(count)]
    if order % 2:
        operands = [None, *operands[1:]][:count]
    keywords = {"eps": 0.01} if count else {}
    got = getattr(fp, name)(
        x, *operands, fmt=fmt, out_fmt=out, intermediate=between, accumulate=accumulate, **keywords, **words
    )
    row = norms.Row(fp.format(between), add_up, out or fmt, ao.Options(**words))
    more = [None if operand is None else codes_of(operand, fmt) for operand in operands]
    want = [wanted(name, row, codes_of(each, fmt), more, 0.01) for each in x]
    assert got.tolist() == want, (name, fmt, between, accumulate)


@in_turn("name", NAMES)
@sweep("size", (2, 35), (6, 300))
def test_every_rounding_is_the_one_that_is_named(name: str, size: tuple[int, int]) -> None:
    for order in range(len(ORDERS)):
        fmt = FORMATS[(order + len(name)) % 4]
        check(name, rows(fmt, size, order), fmt, order)


@in_turn("name", NAMES)
def test_the_result_may_have_another_format_and_mode(name: str) -> None:
    check(name, rows(fp.BF16, (2, 9), 5), fp.BF16, 0, fp.E4M3, rounding="up", overflow="saturate")
    check(name, rows(fp.E4M3, (2, 9), 6), fp.E4M3, 1, fp.FP32)


@in_turn("name", ("softmax", "log_softmax"))
def test_infinities_nan_and_zeros_follow_the_rules_of_each_step(name: str) -> None:
    for fmt in (fp.BF16, fp.FP32):
        for order in (0, 2):
            check(name, fp.encode(SPECIAL, fmt), fmt, order)


def test_zeros_of_both_signs_count_as_one_in_any_order() -> None:
    """The sign of the largest element shows where the sum of two ones is 1, as in a format that ends there."""
    one = fp.Format("one", 3, 0, bias=6, infinities=False, nan="top")
    rows_of_zeros = np.array([[-0.0, 0.0], [0.0, -0.0], [-0.0, -0.0]], np.float16)
    got = fp.log_softmax(rows_of_zeros, accumulate=fp.Sequential(one, overflow="saturate"))
    assert np.signbit(got).tolist() == [[True, False], [False, True], [False, False]]
    long = np.zeros((2, 50), np.float16)
    long[0, 1:] = long[1, :-1] = -0.0
    got = fp.log_softmax(long, accumulate=fp.Sequential(one, overflow="saturate"))
    assert np.array_equal(np.signbit(got), np.signbit(long))


def test_stochastic_results_take_the_words_of_their_elements() -> None:
    x = rows(fp.FP16, (3, 7), 8).view(np.float16)
    for axis in (0, 1):
        powers = fp.exp(fp.subtract(x, x.max(axis, keepdims=True), out_fmt="fp32"))
        total = np.expand_dims(fp.sum(powers, accumulate=fp.Sequential("fp32"), axis=axis), axis)
        want = fp.divide(powers, total, out_fmt="fp16", rounding="stochastic", seed=3).view(np.uint16)
        got = fp.softmax(x, axis=axis, accumulate=fp.Sequential("fp32"), rounding="stochastic", seed=3)
        assert np.array_equal(got.view(np.uint16), want)


@in_turn("name", NAMES)
def test_every_axis_gives_what_the_last_one_gives(name: str) -> None:
    x = rows(fp.BF16, (5, 6), 9).view(ml_dtypes.bfloat16).reshape(5, 2, 3)
    function = getattr(fp, name)
    for axis in (0, 1, -2):
        turned = np.ascontiguousarray(np.moveaxis(x, axis, -1))
        want = np.moveaxis(function(turned), -1, axis)
        got = function(x, axis=axis)
        assert got.dtype == x.dtype
        assert np.array_equal(got.view(np.uint16), want.view(np.uint16))


def test_results_are_as_near_to_float64_as_their_roundings_allow() -> None:
    """Bounds count the roundings to float32 on the way, each half an ulp; a sum of 64 in lanes has 7 of them."""
    x = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    weight, bias = x[0] + 1, x[1]
    z, w, shift = (array.astype(np.float64) for array in (x, weight, bias))
    half_ulp = 2.0**-24 * (1 + 2.0**-10)  # the factor covers products of errors

    distance = z - z.max(-1, keepdims=True)
    exponentials = np.exp(distance)
    total = exponentials.sum(-1, keepdims=True)
    farthest = np.abs(distance).max(-1, keepdims=True)  # a rounded distance d makes exp(d) wrong by |d| half ulps
    soft = exponentials / total
    assert (np.abs(fp.softmax(x) - soft) <= half_ulp * soft * (2 * farthest + 10)).all()
    logarithm = distance - np.log(total)
    bound = np.abs(distance) + farthest + 8 + np.log(total) + np.abs(logarithm)
    assert (np.abs(fp.log_softmax(x) - logarithm) <= half_ulp * bound).all()

    root = z * w / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-6)
    assert (np.abs(fp.rms_norm(x, weight) - root) <= half_ulp * 16 * np.abs(root)).all()

    centred = z - z.mean(-1, keepdims=True)
    deviation = np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    layer = centred / deviation * w + shift
    off = 9 * np.abs(z).mean(-1, keepdims=True) / deviation  # half ulps of the mean, beside the deviation
    bound = np.abs(w) * (off + np.abs(centred) / deviation * (16 + off)) + 2 * np.abs(layer) + np.abs(shift)
    assert (np.abs(fp.layer_norm(x, weight, bias) - layer) <= half_ulp * bound).all()


def test_lanes_add_what_float32_holds_whatever_the_operand_is() -> None:
    codes = fp.encode(np.array([-1e100, 0.0, 1.0]), HUGE)
    want = fp.softmax(np.array([-np.inf, 0.0, 1.0], np.float32), out_fmt="fp16")
    assert np.array_equal(fp.softmax(codes, fmt=HUGE, out_fmt="fp16"), want.view(np.uint16))


# ---- bad input

X = np.ones((2, 3), np.float16)
FP: Any = fp  # without its types


@in_turn(
    "call,message",
    [
        (lambda: FP.softmax(X, axis=2), r"axis must be one of the 2 axes of x"),
        (lambda: FP.softmax(X, axis=None), r"softmax works along one axis of x; got axis=None"),
        (lambda: FP.softmax(np.float16(1)), r"axis must be one of the 0 axes of x"),
        (lambda: FP.softmax(np.ones((2, 0), np.float16)), r"softmax works along an axis of 1 to 2\*\*24 elements"),
        (lambda: FP.softmax(X, intermediate="fp64"), r"intermediate must be FP32, or a signed format"),
        (
            lambda: FP.softmax(X, intermediate="e8m0"),
            r"signed format of up to 16 bits with a zero, for softmax; got E8M0",
        ),
        (lambda: FP.softmax(X, accumulate=fp.Exact("fp64")), r"sums of up to 32 bits; got FP64"),
        (lambda: FP.softmax(X.astype(np.float64)), r"softmax takes formats of up to 32 bits; got FP64"),
        (lambda: FP.rms_norm(X, np.ones(2, np.float16)), r"weight must have one element for each .* shape \(3,\)"),
        (lambda: FP.layer_norm(X, bias=np.ones((1, 3), np.float16)), r"bias must have one element .* \(1, 3\)"),
        (lambda: FP.rms_norm(X, eps=-1), r"eps must be a finite number >= 0; got -1"),
        (lambda: FP.rms_norm(X, eps="1e-5"), r"eps must be a finite number >= 0; got '1e-5'"),
        (lambda: FP.layer_norm(X, eps=True), r"eps must be a finite number >= 0; got True"),
        (lambda: FP.softmax(X, rounding="stochastic"), r"stochastic rounding needs a seed"),
        (lambda: FP.LaneSum(12), r"lanes must be a power of two from 1 to 1024; got 12"),
        (lambda: FP.rms_norm(np.zeros(3, np.uint16), fmt=HUGE), r"fp.LaneSum adds in float32, which"),
        (lambda: FP.softmax(X, intermediate=HUGE), r"fp.LaneSum adds in float32, which"),
        (lambda: FP.layer_norm(X, intermediate=HUGE), r"fp.LaneSum adds in float32, which"),
    ],
)
def test_calls_that_make_no_sense_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@in_turn(
    "call,message",
    [
        (lambda: FP.softmax(X, accumulate="fp32"), r"accumulate must be fp.LaneSum\(\), Sequential, .* got 'fp32'"),
        (lambda: FP.softmax(X, axes=1), r"softmax takes the keywords axis, .* got 'axes'. Did you mean 'axis'"),
        (lambda: FP.softmax([1.0, 2.0]), r"x must be codes or of a float dtype"),
        (lambda: FP.softmax(None), r"x must be .* got None"),
        (lambda: FP.layer_norm(None), r"x must be .* got None"),
        (lambda: FP.LaneSum(2.0), r"lanes must be an integer"),
    ],
)
def test_arguments_of_the_wrong_type_are_refused(call: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()
