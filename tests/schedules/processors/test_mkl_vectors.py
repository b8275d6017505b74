"""MKL's products with one row or one column: what torch.mm gave in float32, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.torch_mm import Array, MmCase, digest, hashed, operands

NUMBER = 90
LAYOUTS = ("nt", "nn", "nt")  # of a row, a column, and a column whose b is a transposed row
loose: Any = fp


def case(number: int) -> tuple[str, MmCase]:
    """Return the layout and shape of a recorded product: up to 600 results, log2 K uniform up to 4096."""
    size, terms = hashed(1000 + number, 2).astype(np.float64) / 2.0**64
    results, k = 4 * (1 + int(size * 150)), int(2 ** (terms * np.log2(4097)))
    return LAYOUTS[number % 3], MmCase(*((1, results) if number % 3 == 0 else (results, 1)), k, "fp32")


def floats(number: int) -> tuple[Array, Array]:
    """Return operands of a recorded product: cancelling, partly -0, or with products below float32's range."""
    a, b = (x.view(np.float32) for x in operands(case(number)[1], 10 * number))
    if number % 9 == 4:
        a[:, :2] = -0.0
    scale = np.float32(2.0**-75 if number % 9 == 8 else 1)
    return a * scale, b * scale


@cache
def recorded() -> Array:
    """Return what torch.mm gave on an Intel Emerald Rapids (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "mkl.npz") as arrays:
        digests: Array = arrays["vectors"]
    return digests


def test_rows_and_columns_are_predicted_bit_for_bit() -> None:
    for number in range(NUMBER):
        layout, shape = case(number)
        library = loose.schedules.mkl(layout=layout)
        assert library.at(*shape).kernel == "sgemv"
        got = fp.matmul(*floats(number), schedule=library)
        assert digest(got) == recorded()[number], (layout, shape)


def test_a_column_is_added_like_the_row_of_the_transposed_product() -> None:
    a, b = floats(1)
    column = fp.matmul(a, b, schedule=fp.schedules.torch_mm())
    row = fp.matmul(b.T, a.T, schedule=fp.schedules.torch_mm(layout="nt"))
    assert_bits_equal(row.T, column)
    assert not np.array_equal(column, fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd("fp32")))


@pytest.mark.parametrize(
    ("threads", "layout", "shape", "missing"),
    [
        (1, "nt", (1, 1, 9), "the kernel of one result of operands that are not in C order is not known."),
        (2, "nn", (9, 1, 20_000), "how 2 threads share a vector of 20000 terms or more is not known."),
        (3, "nn", (9, 1, 9), "how 3 threads share a product is not known."),
    ],
)
def test_other_vectors_are_declined(threads: int, layout: str, shape: tuple[int, int, int], missing: str) -> None:
    assert loose.schedules.mkl(threads, layout=layout).declines(*shape, "fp32").endswith(missing)
