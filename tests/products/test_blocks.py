"""Large products are made a block of rows and columns at a time: the same bits, in little memory."""

from __future__ import annotations

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.products import add_product, fused
from fpsim.sums import product
from fpsim.testing import assert_bits_equal

Array = npt.NDArray[Any]

UNITS: dict[str, Any] = {
    "hopper_e4m3_f32": {"promote": 64}, "hopper_f16_f32": {}, "volta_f16_f16": {}, "cdna3_f16_f32": {},
    "blackwell_mxfp8_e4m3_f32": {}, "hopper_bf16_f32": {}, "ada_e4m3_f32": {}, "ada_e4m3_f16": {},
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
    small_blocks(monkeypatch)
    for call, want in zip(calls, whole, strict=True):
        if want is not None:
            assert_bits_equal(call(), want)


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink blocks to 128 rows and columns, and runs of K to about 32 terms."""
    monkeypatch.setattr(add_product, "BLOCK_FLOATS", 128 * 128)
    for name, value in (("RUN_FLOATS", 32 * 128), ("RUN", 32), ("SHORT_RUN", 32)):
        monkeypatch.setattr(fused, name, value)


def test_runs_of_k_give_the_bits_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, c = operands(140, 1184, 152)
    x, y = (each * np.exp2(np.linspace(-30, 30, 1184)).reshape(shape) for each, shape in ((x, (1, -1)), (y, (-1, 1))))
    half, low, wide = ([fp.cast(each, fmt) for each in (x, y)] for fmt in (fp.FP16, fp.E4M3, fp.BF16))
    scaled = (
        fp.encode_scaled(x, fp.E4M3, fp.scalings.DEEPGEMM_1X128),
        fp.encode_scaled(np.ascontiguousarray(y), fp.E4M3, fp.scalings.DEEPGEMM_128X128),
    )
    split = fp.schedules.cublas("sm_90", split_k=4, fast_accum=True)
    calls: list[Any] = [
        lambda: fp.matmul(wide[0], wide[1], c, accumulate="hopper_bf16_f32"),
        lambda: fp.matmul(
            half[0], half[1], accumulate="hopper_f16_f32", schedule=fp.schedules.cublas("sm_90", split_k=3)
        ),
        lambda: fp.matmul(low[0], low[1], accumulate="hopper_e4m3_f32", schedule=split, strict=False),
        lambda: fp.matmul(low[0], low[1], c, accumulate="hopper_e4m3_f32", promote=96),
        lambda: fp.matmul(scaled[0], scaled[1], accumulate="hopper_e4m3_f32", promote=64),
        lambda: fp.matmul(low[0][:1], low[1], accumulate="hopper_e4m3_f32"),
        lambda: fp.matmul(low[0], low[1][:, 3:4], accumulate="hopper_e4m3_f32"),
        lambda: fp.matmul(np.asfortranarray(low[0]), low[1].T.copy().T, accumulate="hopper_e4m3_f16"),
    ]
    whole = [call() for call in calls]
    small_blocks(monkeypatch)
    for call, want in zip(calls, whole, strict=True):
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
