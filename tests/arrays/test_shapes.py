"""Shapes that do not broadcast, and arrays for results, are refused or filled."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fpsim as fp
from tests.kit.refusal import refusal
from tests.kit.sweeps import in_turn

X = np.linspace(-3, 3, 64, dtype=np.float32).reshape(2, 32)
E4M3 = fp.cast(X, "e4m3")
SCALED: Any = fp.encode_scaled(X, "e4m3", fp.scalings.MX)
UNIT: Any = fp.unit("hopper_e4m3_f32")


def test_arrays_of_more_axes_than_numpy_broadcasts_are_refused() -> None:
    x = np.ones((1,) * 33, np.float16)
    assert fp.add(x, x).shape == x.shape
    assert refusal(lambda: fp.add(x, x[0])) == (
        "add broadcasts arrays of up to 32 axes, as NumPy does; got 33. Reshape them to one shape."
    )
    by_unit = partial(fp.dot, accumulate="hopper_f16_f32")
    assert by_unit(x, x).shape == x.shape[:-1]
    assert refusal(lambda: by_unit(x, x[0])) == (
        "dot broadcasts arrays of up to 32 axes, as NumPy does; got 33. Reshape them to one shape."
    )


def test_shapes_that_do_not_broadcast_are_refused_wherever_they_meet() -> None:
    x, y, nothing = np.ones((2, 4), np.float16), np.ones((3, 4), np.float16), np.ones((2, 1, 0), np.float16)
    ending = "Reshape one, or insert axes of length 1."
    assert (
        refusal(lambda: fp.add(x, y)) == f"add needs operands whose shapes broadcast; got (2, 4) and (3, 4). {ending}"
    )
    assert refusal(lambda: fp.dot(x, y, accumulate="hopper_f16_f32")) == (
        f"dot needs operands whose shapes broadcast; got (2, 4) and (3, 4). {ending}"
    )
    assert refusal(lambda: fp.array(nothing, "fp16") @ fp.array(np.ones((3, 0, 1), np.float16), "fp16")) == (
        f"@ needs operands whose shapes broadcast; got (2, 1, 0) and (3, 0, 1). {ending}"
    )


STRIDES: dict[str, Callable[[int], tuple[int, int]]] = {
    "broadcast": lambda size: (0, size),
    "overlapping rows": lambda size: (size, size),
    "overlapping bytes": lambda size: (256, 1),
}


@in_turn("strides", STRIDES)
@in_turn(
    "dtype, call",
    [
        (np.uint16, lambda out: fp.encode(X, "bf16", out=out)),
        (np.float32, lambda out: fp.quantize(X, "e4m3", out=out)),
        (np.float32, lambda out: fp.decode(E4M3, "e4m3", out=out)),
        (np.float16, lambda out: fp.add(X.astype(np.float16), np.float16(1), out=out)),
        (np.float32, lambda out: SCALED.decode(out=out)),
        (np.float32, lambda out: fp.quantize_scaled(X, "e4m3", fp.scalings.MX, out=out)),
        (np.float32, lambda out: fp.matmul(E4M3[:, :2], E4M3[:2], accumulate=UNIT, out=out)),
    ],
)
def test_an_out_whose_elements_share_bytes_is_refused(dtype: Any, call: Any, strides: str) -> None:
    out = np.ndarray((2, 32), dtype, np.zeros(4096, np.uint8), 0, STRIDES[strides](np.dtype(dtype).itemsize))
    assert "out must have separate bytes for every element; got shape (2, 32) in" in refusal(lambda: call(out))


@in_turn(
    "view", [lambda x: x[::2, ::-3], lambda x: x.T[:2, :32], lambda x: x[1:3, 2:34], lambda x: x[None, 4:6, :32][0]]
)
def test_an_out_with_gaps_is_filled(view: Any) -> None:
    whole = np.zeros((64, 96), np.float32)
    out = view(whole)
    x = np.resize(X, out.shape)
    fp.quantize(x, "e4m3", out=out)
    np.testing.assert_array_equal(out, fp.quantize(x, "e4m3"))


@in_turn("kind", [np.matrix, np.ma.MaskedArray])
@in_turn(
    "dtype, call",
    [
        (np.uint8, lambda out: fp.encode(X, "e4m3", out=out)),
        (np.uint8, lambda out: fp.encode(X, "nf4", out=out)),
        (np.float32, lambda out: fp.add(X, X, out=out)),
        (np.float32, lambda out: fp.decode(E4M3, "e4m3", out=out)),
    ],
)
def test_matrices_and_masked_arrays_are_not_filled(dtype: Any, call: Callable[[Any], Any], kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)
        out = kind(np.zeros(X.shape, dtype))
    assert "out must be a NumPy array of" in refusal(lambda: call(out))
    assert not np.asarray(out).any()
