"""MKL's products on two threads: what torch.mm gave in float32, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import Array, MmCase, digest, hashed, operands

LAYOUTS = ("nn", "nt", "tn")
NUMBER = 45
loose: Any = fp


def case(number: int) -> tuple[str, MmCase]:
    """Return the layout and shape of a recorded product: 17 to 100 rows and columns, K from 300 to 1,700."""
    m, n, k = hashed(2000 + number, 3).astype(np.float64) / 2.0**64
    sizes = 17 + int(m * 84), 17 + int(n * 84) if number % 5 else 2 + number % 9, 300 + int(k * 1400)
    return LAYOUTS[number % 3], MmCase(*sizes, "fp32")


@cache
def recorded() -> Array:
    """Return what torch.mm gave on an Intel Emerald Rapids (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "mkl.npz") as arrays:
        digests: Array = arrays["two_threads"]
    return digests


def compare(numbers: range) -> int:
    """Compare predictions with the recording, and return how many were made."""
    made = 0
    for number in numbers:
        layout, shape = case(number)
        library = loose.schedules.mkl(2, layout=layout)
        if not library.declines(*shape):
            a, b = (x.view(np.float32) for x in operands(shape, 10 * number))
            assert digest(fp.matmul(a, b, schedule=library)) == recorded()[number], (layout, shape)
            made += 1
    return made


def test_products_on_two_threads_are_predicted_bit_for_bit() -> None:
    assert compare(range(9)) == 9


@pytest.mark.slow
def test_of_all_recorded_products_on_two_threads_few_are_declined() -> None:
    assert compare(range(NUMBER)) >= NUMBER - 2


@in_turn(
    "shape, parts",
    [
        ((40, 50, 767), None),
        ((9, 9, 2000), None),
        ((97, 17, 1411), ((353, 353), (353, 352))),
        ((36, 25, 2352), ((384, 384, 384, 24), (384, 384, 384, 24))),
        ((70, 37, 768), ((384,), (384,))),
        ((70, 37, 1536), ((384, 384), (384, 384))),
        ((70, 37, 769), ((193, 192), (384,))),
    ],
)
def test_two_threads_halve_k_where_the_product_is_large(shape: tuple[int, int, int], parts: Any) -> None:
    schedule = fp.schedules.mkl(2).at(*shape, "fp32").schedule
    if parts is None:
        assert schedule == fp.schedules.mkl().at(*shape, "fp32").schedule
        return
    assert isinstance(schedule, fp.schedules.Regions)
    order = schedule.order_at(0, 0)
    assert (order.lengths, order.parts) == (parts[0] + parts[1], tuple(map(len, parts)))


def test_parts_are_sums_of_their_own() -> None:
    x = np.array([[2.0**24, 1, 1]], np.float32)
    for parts, rest in (((), 0), ((1, 2), 2), ((2, 1), 0)):
        order = fp.schedules.tree(fp.schedules.SegmentLanes((1, 1, 1), parts=parts), 3)
        assert fp.matmul(x, np.ones((3, 1), np.float32), schedule=order)[0, 0] == 2.0**24 + rest
    a, b = (y.view(np.float32) for y in operands(MmCase(6, 6, 50, "fp32"), 3))
    got = fp.matmul(a, b, schedule=fp.schedules.tree(fp.schedules.SegmentLanes((20, 10, 20), parts=(1, 2)), 50))
    chain = fp.FusedMultiplyAdd("fp32")
    first, second, third = (fp.matmul(a[:, i:j], b[i:j], accumulate=chain) for i, j in ((0, 20), (20, 30), (30, 50)))
    assert_bits_equal(got, first + (second + third))


@in_turn(
    "how, words",
    [
        ({"parts": (1, 2)}, "parts must add up to the 2 segments of lengths; got (1, 2)."),
        ({"parts": (0, 2)}, "a part must be an integer >= 1; got 0."),
        ({"parts": 2}, "parts must be a tuple of numbers of segments; got 2."),
    ],
)
def test_parts_that_do_not_fit_are_refused(how: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError)) as refused:
        loose.schedules.SegmentLanes((3, 4), **how)
    assert words in str(refused.value)
