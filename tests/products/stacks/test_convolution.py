"""Convolutions are the products of their patches, whose terms lie as torch's unfold has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.products.stacks import convolution
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.products.stacks.test_batched import codes

Array = npt.NDArray[Any]
f32 = np.float32
BF16 = "hopper_bf16_f32"
# Shapes of images and filters, and how they are convolved.
CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 7, 8), (4, 3, 3, 3), {}), ((1, 4, 6, 9), (6, 2, 3, 2), {"groups": 2, "stride": (2, 1), "padding": (1, 0)}),
    ((3, 2, 9, 9), (2, 2, 3, 3), {"dilation": (2, 3), "padding": 2}), ((2, 5, 4, 4), (3, 5, 1, 1), {"stride": 2}),
    ((1, 1, 5, 6), (1, 1, 4, 3), {"padding": "same"}), ((2, 4, 5, 5), (4, 1, 2, 2), {"groups": 4, "padding": "valid"}),
    ((1, 2, 3, 3), (2, 2, 3, 3), {}),
]  # fmt: skip


def written_out(x: Array, weight: Array, **how: Any) -> list[tuple[tuple[int, ...], Array, Array]]:
    """Return each output's place and the terms of both operands, channel by channel, row by row, column by column."""
    pairs = {name: how.get(name, default) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))}
    (o, c, r, s), groups = weight.shape, how.get("groups", 1)
    two = {name: value if isinstance(value, tuple) else (value, value) for name, value in pairs.items()}
    reach = [two["dilation"][0] * (r - 1) + 1, two["dilation"][1] * (s - 1) + 1]
    zeros = [(value, value) for value in two["padding"]]
    if pairs["padding"] in ("same", "valid"):
        zeros = [((n - 1) // 2, n - 1 - (n - 1) // 2) if pairs["padding"] == "same" else (0, 0) for n in reach]
    padded = np.pad(x, ((0, 0), (0, 0), *zeros))
    found: list[tuple[tuple[int, ...], Array, Array]] = []
    for n in range(x.shape[0]):
        for out in range(o):
            first = out // (o // groups) * c
            for p in range((padded.shape[2] - reach[0]) // two["stride"][0] + 1):
                for q in range((padded.shape[3] - reach[1]) // two["stride"][1] + 1):
                    at = [
                        (n, first + i, p * two["stride"][0] + j * two["dilation"][0],
                         q * two["stride"][1] + k * two["dilation"][1])
                        for i in range(c) for j in range(r) for k in range(s)
                    ]  # fmt: skip
                    found.append(((n, out, p, q), np.array([padded[place] for place in at]), weight[out].reshape(-1)))
    return found


@in_turn("x, weight, how", CASES)
def test_every_output_is_the_dot_product_of_its_patch(x: Any, weight: Any, how: dict[str, Any]) -> None:
    images, filters = codes(x, fp.BF16), codes(weight, fp.BF16, 1)
    outputs = written_out(images, filters, **how)
    terms, factors = np.array([a for _, a, _ in outputs]), np.array([b for _, _, b in outputs])
    for accumulate, fmt in ((BF16, None), (fp.Sequential(fp.FP32), fp.BF16)):
        got = fp.conv2d(images, filters, accumulate=accumulate, fmt=fmt, **how)
        want = fp.dot(terms, factors, accumulate=accumulate, fmt=fmt)
        assert_bits_equal(np.array([got[place] for place, _, _ in outputs]), np.asarray(want).view(f32))
        assert got.size == len(outputs)


@in_turn("x, weight, how", CASES)
def test_patches_have_the_order_of_unfold(x: Any, weight: Any, how: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    how = {name: value for name, value in how.items() if name != "groups"}
    if isinstance(how.get("padding"), str):
        return  # which unfold does not take
    images = np.arange(np.prod(x), dtype=f32).reshape(x)
    got = fp.patches(images, weight[2:], **how)
    want = torch.nn.functional.unfold(torch.from_numpy(images), tuple(weight[2:]), **how).numpy()
    assert_bits_equal(got.reshape(x[0], -1, got.shape[-1]), want.swapaxes(1, 2))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_shapes_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    for x, weight, how in CASES:
        a, b = np.ones(x, f32), np.ones(weight, f32)
        want = torch.nn.functional.conv2d(torch.from_numpy(a), torch.from_numpy(b), **how).numpy()
        got = fp.conv2d(a, b, accumulate=fp.Sequential(fp.FP32), **how)
        assert_bits_equal(got, want)  # of small integers, whose sums are exact


def test_bias_and_epilogue_belong_to_outputs() -> None:
    x, weight, bias = codes((2, 4, 5, 5), fp.BF16), codes((6, 2, 3, 3), fp.BF16, 1), np.arange(6, dtype=f32)
    got = fp.conv2d(x, weight, accumulate=BF16, groups=2, bias=bias, out_fmt="bf16")
    plain = fp.conv2d(x, weight, accumulate=BF16, groups=2)
    assert_bits_equal(got, fp.cast(plain + bias[:, None, None], fp.BF16))


def test_images_go_in_turn_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = codes((5, 2, 6, 6), fp.BF16), codes((3, 2, 3, 3), fp.BF16, 1)
    want = fp.conv2d(x, weight, accumulate=BF16)
    monkeypatch.setattr(convolution, "AT_ONCE", 1000)
    assert_bits_equal(fp.conv2d(x, weight, accumulate=BF16), want)
    how = fp.Sequential(fp.FP16, rounding="stochastic", seed=3)
    rows = fp.patches(x, 3).reshape(-1, 18)
    together = fp.matmul(rows, weight.reshape(3, -1).T, accumulate=how, fmt=fp.BF16)
    got = fp.conv2d(x, weight, accumulate=how, fmt=fp.BF16)
    assert_bits_equal(np.moveaxis(got, 1, 3).reshape(-1, 3), together)


def test_no_images_are_a_result_too() -> None:
    got = fp.conv2d(np.ones((0, 2, 4, 4), np.float16), np.ones((3, 2, 3, 3), np.float16), accumulate="hopper_f16_f32")
    assert got.shape == (0, 3, 2, 2)


X, W = np.ones((2, 4, 5, 5), f32), np.ones((6, 4, 3, 3), f32)
HALF: Any = 2.5
SCALED = fp.encode_scaled(np.ones((1, 1, 4, 4), f32), fp.E4M3, fp.scalings.TENSOR)


def convolved(x: Any = X, weight: Any = W, **how: Any) -> Array:
    """Return a convolution that is right but for what a case changes."""
    return fp.conv2d(x, weight, accumulate=fp.Sequential("fp32"), **how)


@in_turn(
    "call, words",
    [
        (lambda: convolved(X[0]), r"x must have four axes, \(N, C, H, W\); got shape \(4, 5, 5\)"),
        (lambda: convolved(weight=W[0]), r"weight must have four axes, \(O, C / groups, R, S\)"),
        (lambda: convolved(weight=W[:, :3]), r"weight must have 4 channels.*got 3"),
        (lambda: convolved(groups=3), r"groups must divide the 4 channels of x and the 6 outputs of weight; got 3"),
        (lambda: convolved(groups=0), r"groups must divide .* got 0"),
        (lambda: convolved(groups=2.0), r"groups must be an integer; got 2\.0"),
        (lambda: convolved(stride=0), r"stride must be at least 1; got 0"),
        (lambda: convolved(stride=(1, 2, 3)), r"stride must be an integer, or one for rows and one for columns"),
        (lambda: convolved(padding=-1), r"padding must be at least 0; got -1"),
        (lambda: convolved(padding=10**30), r"padding must be at most 1,048,576; got 10+"),
        (lambda: convolved(padding="full"), r"'same' or 'valid'; got 'full'"),
        (lambda: convolved(padding="same", stride=2), r"padding='same' is for a stride of 1"),
        (lambda: convolved(dilation=3), r"a patch must fit the padded image of 5 x 5; it reaches over 7 x 7"),
        (lambda: convolved(bias=np.ones(5, f32)), r"bias must have one number for each of the 6 outputs; got 5"),
        (lambda: convolved(SCALED), r"x must be codes or floats, as patches share tiles; got a Scaled array"),
        (lambda: fp.patches(X, HALF), r"size must be an integer"),
    ],
)
def test_bad_convolutions_get_one_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_a_convolution_of_no_channels_is_its_bias() -> None:
    x, weight, bias = (
        np.ones((2, 0, 4, 4), np.float16),
        np.ones((3, 0, 3, 3), np.float16),
        np.arange(3, dtype=np.float32),
    )
    got = fp.conv2d(x, weight, accumulate="hopper_f16_f32", bias=bias)
    assert (got == bias[:, None, None]).all()
    assert got.shape == (2, 3, 2, 2)
