"""chain_matmul asks for chains of instructions in the order of a schedule; here twins of the loops run on the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.gpu.device import device
from fpsim.gpu.hardware import tensor_cores
from fpsim.gpu.hardware.tensor_cores import chain_matmul
from fpsim.gpu.lab.lab import unit_name

Array = npt.NDArray[Any]
S = fp.schedules
SHAPE = 20, 30, 300  # no multiples of a block


def dot(a: Array, b: Array, c: Array, pair: tuple[str, str], *, block_k: int) -> Array:
    """Do as fp.gpu.hardware.dot."""
    assert (a.shape[0] % 64, b.shape[1] % 64, a.shape[1] % block_k) == (0, 0, 0)
    return fp.matmul(a, b, c, accumulate=unit_name("hopper", pair)).view(np.uint32)


def scaled_dot(
    a: Array, b: Array, pair: tuple[str, str], scale_a: Any, scale_b: Any, c: Array, *, a_first: bool
) -> Array:
    """Do as fp.gpu.hardware.scaled_dot, block by block."""
    (m, k), n, total = a.shape, b.shape[1], c
    rows, columns = np.broadcast_to(scale_a, (m, k // 128)), np.broadcast_to(scale_b, (k // 128, n))
    for block in range(k // 128):
        terms = slice(128 * block, 128 * block + 128)
        partial = fp.matmul(a[:, terms], b[terms], accumulate=unit_name("hopper", pair))
        of_a, of_b = rows[:, block, None], columns[block]
        first, second = (partial * of_a, np.broadcast_to(of_b, total.shape)) if a_first else (partial, of_a * of_b)
        total = fp.fma(first, second, total)
    return total.view(np.uint32)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put twins in the place of a GPU."""
    monkeypatch.setattr(tensor_cores, "dot", dot)
    monkeypatch.setattr(tensor_cores, "scaled_dot", scaled_dot)
    monkeypatch.setattr(device, "require_device", lambda: None)
    monkeypatch.setattr(device, "capability", lambda: (9, 0))


def operands(*kinds: str, shape: tuple[int, int, int] = SHAPE) -> tuple[Array, Array]:
    """Return codes of two random matrices, of several magnitudes along K."""
    m, n, k = shape
    rng = np.random.default_rng([m, n, k])
    sizes = 2.0 ** rng.integers(-3, 3, k)
    a, b = rng.standard_normal((m, k)) * sizes, rng.standard_normal((k, n))
    return fp.encode(a, kinds[0]), fp.encode(b, kinds[-1])


FP8, HALF = ("e4m3",), ("fp16",)
BIAS = np.linspace(-2, 2, SHAPE[1], dtype=np.float32)
CASES: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (FP8, {}), (("e5m2", "e4m3"), {"promote": 32}), (FP8, {"promote": 128, "bias": BIAS, "out_fmt": "bf16"}),
    (FP8, {"schedule": S.cublas("sm_90", split_k=2), "alpha": 0.7, "bias": BIAS}),
    (FP8, {"schedule": S.cublas("sm_90", split_k=2, fast_accum=True), "out_fmt": "bf16"}),
    (FP8, {"schedule": S.triton(128, max_num_imprecise_acc=64)}), (FP8, {"schedule": S.cutlass_2xacc(64)}),
    (HALF, {"schedule": S.cublas("sm_90", family="cutlass", stages=7, split_k=3), "out_fmt": "fp16"}),
    (("bf16",), {"bias": BIAS, "out_fmt": "bf16"}), (("tf32",), {"alpha": 3.0}),
]  # fmt: skip


@pytest.mark.parametrize(("kinds", "keywords"), CASES, ids=[f"{'x'.join(k)} {' '.join(map(str, w))}" for k, w in CASES])
def test_every_schedule_has_the_bits_of_the_emulator(kinds: tuple[str, ...], keywords: dict[str, Any]) -> None:
    a, b = operands(*kinds)
    unit = unit_name("hopper", (kinds[0], kinds[-1]))
    words = {"accumulate": unit, "strict": False, **keywords}
    fp.testing.assert_bits_equal(chain_matmul(a, b, **words), fp.matmul(a, b, **words))


@pytest.mark.parametrize("schedule", [
    S.deepgemm(), S.deepgemm(fused=False), S.cutlass_blockwise(), S.cutlass_blockwise("b_first"),
    S.cublas("sm_90", family="block_scaled"),
])  # fmt: skip
def test_scales_of_blocks_have_the_bits_of_the_emulator(schedule: Any) -> None:
    a, b = operands("e4m3", shape=(24, 40, 384))
    rng = np.random.default_rng(1)
    scales = {"scale_a": rng.random((24, 3), np.float32) + 0.5, "scale_b": rng.random((3, 40), np.float32) + 0.5}
    words = {"accumulate": "hopper_e4m3_f32", "schedule": schedule, "strict": False, **scales}
    fp.testing.assert_bits_equal(chain_matmul(a, b, **words), fp.matmul(a, b, **words))


def test_a_sum_starts_at_c() -> None:
    a, b = operands("e4m3")
    c = np.random.default_rng(2).standard_normal(SHAPE[:2]).astype(np.float32)
    for more in ({}, {"promote": 128}, {"beta": 0.5}):
        words: dict[str, Any] = {"accumulate": "hopper_e4m3_f32", **more}
        fp.testing.assert_bits_equal(chain_matmul(a, b, c, **words), fp.matmul(a, b, c, **words))


@pytest.mark.parametrize(("unit", "keywords", "message"), [
    ("ada_e4m3_f32", {}, "this GPU, of compute capability 9.0, has no ada_e4m3_f32 but those of hopper"),
    ("hopper_mma_e4m3_f32", {}, "tl.dot takes e4m3, e5m2, f16, bf16, tf32 by wgmma .* got hopper_mma_e4m3_f32"),
    ("hopper_f16_f16", {}, "tl.dot takes"),
    (dataclasses.replace(fp.unit("hopper_e4m3_f32"), fraction_bits=9), {}, "tl.dot takes"),
    ("hopper_f16_f32", {"schedule": S.cublas("sm_90", family="gemv", option=5), "strict": False},
     "the schedule adds in lanes, without tensor cores"),
])  # fmt: skip
def test_what_the_tensor_cores_do_not_do_is_refused(unit: Any, keywords: dict[str, Any], message: str) -> None:
    a, b = operands("fp16" if "f16" in str(unit) else "e4m3", shape=(1, 8, 64))
    with pytest.raises(ValueError, match=message):
        chain_matmul(a, b, accumulate=unit, **keywords)


def test_unknown_keywords_are_named() -> None:
    a, b = operands("e4m3")
    with pytest.raises(TypeError, match=r"chain_matmul .*'tiles'"):
        chain_matmul(a, b, accumulate="hopper_e4m3_f32", tiles=2)
