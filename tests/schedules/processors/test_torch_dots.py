"""torch's own dot products over a transposed b, of BF16 and FP16: what torch.mm gave, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import FORMATS, Array, MmCase, digest, operands, shapes

NUMBER = 60
SHAPES = [(1 + m // 4, 2 + n // 4, 1 + k // 4) for m, n, k in shapes(NUMBER, seed=17)]
LIBRARY = fp.schedules.torch_native(layout="nt")


def codes(number: int, fmt: str) -> tuple[Array, Array]:
    """Return codes of the operands of a recorded product, which cancel."""
    return operands(MmCase(*SHAPES[number], fmt), 10 * number)


@cache
def recorded() -> dict[str, Array]:
    """Return what torch.mm gave on an Intel Emerald Rapids (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "torch_dots.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@in_turn("fmt", ["bf16", "fp16"])
def test_dot_products_over_a_transposed_b_are_predicted_bit_for_bit(fmt: str) -> None:
    for number in range(NUMBER):
        got = fp.matmul(*codes(number, fmt), schedule=LIBRARY, fmt=FORMATS[fmt])
        assert got.dtype == FORMATS[fmt].dtype
        assert digest(got) == recorded()[fmt][number], (fmt, SHAPES[number])


def test_a_result_may_be_kept_in_float32() -> None:
    a, b = codes(3, "bf16")
    sums = fp.matmul(a, b, schedule=LIBRARY, fmt="bf16", out_fmt="fp32")
    assert sums.dtype == np.float32
    assert_bits_equal(fp.cast(sums, fp.BF16), fp.matmul(a, b, schedule=LIBRARY, fmt="bf16"))
    assert not np.array_equal(sums, fp.matmul(a, b, schedule=fp.schedules.torch_native(), fmt="bf16", out_fmt="fp32"))
