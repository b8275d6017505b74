"""Large products are made a block of rows and columns at a time: the same bits, in little memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.products import unit_product
from fpsim.sums import product
from fpsim.testing import assert_bits_equal

Array = npt.NDArray[Any]

UNITS: dict[str, Any] = {
    "hopper_e4m3_f32": {"promote": 64}, "hopper_f16_f32": {}, "volta_f16_f16": {}, "cdna3_f16_f32": {},
    "blackwell_mxfp8_e4m3_f32": {},
}  # fmt: skip
ACCUMULATORS = [
    fp.Sequential("fp32"), fp.Pairwise("fp16"), fp.Chunked("bf16", chunk=32, rounding="stochastic", seed=5),
    fp.Exact("fp16", rounding="stochastic", seed=5),
]  # fmt: skip


def operands(m: int, k: int, n: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(m * n)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n)))
    a[1, 2], b[3, 4] = np.inf, np.nan
    return a, b, rng.standard_normal((m, n)).astype(np.float32)


@pytest.mark.parametrize("name", UNITS)
def test_blocks_of_a_units_product_give_the_bits_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = operands(150, 128, 270)
    unit, options = fp.unit(name), dict(UNITS[name])
    x, y = (fp.cast(each, unit.a.carrier) for each in (a, b))
    if unit.scale:
        rng = np.random.default_rng(0)
        for word, shape in (("scale_a", (150, 4)), ("scale_b", (4, 270))):
            options[word] = rng.integers(120, 134, shape).astype(np.uint8)
    calls: list[Any] = [
        lambda: fp.matmul(x, y, accumulate=unit, **options),
        lambda: fp.matmul(y.T, x.T, accumulate=unit) if not unit.scale else None,
    ]
    whole = [call() for call in calls]
    monkeypatch.setattr(unit_product, "BLOCK_FLOATS", 128 * 128)
    for call, want in zip(calls, whole, strict=True):
        if want is not None:
            assert_bits_equal(call(), want)


@pytest.mark.parametrize("how", ACCUMULATORS, ids=str)
def test_blocks_of_an_accumulators_product_give_the_bits_of_the_whole(
    how: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = operands(130, 40, 200)
    x, y, z = fp.cast(a, "e5m2"), fp.cast(b, "e4m3"), fp.cast(c, how.result_format)
    want = [fp.matmul(x, y, accumulate=how), fp.matmul(x, y, z, accumulate=how)]
    monkeypatch.setattr(product, "BLOCK", 40 * 64)
    assert_bits_equal(fp.matmul(x, y, accumulate=how), want[0])
    assert_bits_equal(fp.matmul(x, y, z, accumulate=how), want[1])


@pytest.mark.parametrize("how", ["hopper_e4m3_f32", fp.Sequential("fp32")], ids=str)
def test_a_product_takes_less_than_64_mib_beside_operands_and_result(how: Any) -> None:
    a = np.full((1 << 9, 1 << 15), 0x38, np.uint8)
    b = np.full((1 << 15, 8), 0x38, np.uint8)
    x, y = a.view(ml_dtypes.float8_e4m3fn), b.view(ml_dtypes.float8_e4m3fn)
    fp.matmul(x[:2, :64], y[:64], accumulate=how)  # compiles
    for left, right in ((x, y), (y.T, x.T)):
        tracemalloc.start()
        try:
            fp.matmul(left, right, accumulate=how)
            assert tracemalloc.get_traced_memory()[1] < 64 << 20
        finally:
            tracemalloc.stop()


def test_blocks_do_not_write_what_later_blocks_start_from(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = operands(130, 40, 200)
    x, y = fp.cast(a, "fp16"), fp.cast(b, "fp16")
    room = np.random.default_rng(0).standard_normal((131, 200)).astype(np.float16)
    c, out = room[:-1], room[1:]
    want = fp.matmul(x, y, c.copy(), accumulate=fp.Sequential("fp16"))
    monkeypatch.setattr(product, "BLOCK", 40 * 64)
    assert_bits_equal(fp.matmul(x, y, c, accumulate=fp.Sequential("fp16"), out=out), want)
