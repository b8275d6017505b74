"""cuBLAS's FP8 products on Hopper and Ada beside mmaemu, which replays recordings of an H100 and an RTX 4060."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.arrays import Array
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import sweep

torch = pytest.importorskip("torch")
mmaemu = pytest.importorskip("mmaemu")

SHAPES = ((16, 32, 512), (32, 16, 1040), (16, 16, 144))
PRODUCTS = list(enumerate((shape, split) for shape in SHAPES for split in (1, 2, 3, 4, 5, 7)))
SOME = [PRODUCTS[i] for i in (0, 3, 8, 11, 13, 16)]  # every shape, every split and every pair of formats
DTYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
OUTPUTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}


def operand(shape: tuple[int, int], fmt: str, seed: int) -> Array:
    """Codes of values over some sixteen binades."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 8, shape)
    return fp.encode(x.astype(np.float32), fmt, overflow="saturate")


def theirs(a: Array, b: Array, pair: tuple[str, str], scales: tuple[float, float], **options: Any) -> Array:
    """mmaemu's product, as words."""
    left = torch.from_numpy(a).view(DTYPES[pair[0]])
    right = torch.from_numpy(np.ascontiguousarray(b.T)).view(DTYPES[pair[1]]).t()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = mmaemu.scaled_mm(left, right, *(torch.tensor(s, dtype=torch.float32) for s in scales), **options)
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
    return np.asarray(got.view(integer).numpy())


@sweep("whole", False, True)
@pytest.mark.parametrize("out_fmt", list(OUTPUTS))
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "promoted"])
@pytest.mark.parametrize(
    ("arch", "chip", "scheme"),
    [("sm_90", "hopper", "contiguous"), ("sm_89", "ada", "serial"), ("sm_89", "ada", "pairwise")],
)
def test_split_products_have_the_bits_of_the_recorded_kernels(
    arch: str, chip: str, scheme: str, fast: bool, out_fmt: str, whole: bool
) -> None:
    half = SOME if out_fmt == "fp32" else SOME[list(OUTPUTS).index(out_fmt) % 2 :: 2]  # which FP32 shows best
    for seed, ((m, n, k), split) in PRODUCTS if whole else half:
        pair = (("e4m3", "e4m3"), ("e5m2", "e4m3"), ("e4m3", "e5m2"))[seed % 3]
        a, b = operand((m, k), pair[0], seed), operand((k, n), pair[1], seed + 100)
        scales = float(np.float32(0.3 + seed / 7)), float(np.float32(1.7 / (seed + 1)))
        want = theirs(
            a, b, pair, scales, out_dtype=OUTPUTS[out_fmt], use_fast_accum=fast, profile=chip,
            splitk=1 if split == 1 else (split, scheme),
        )  # fmt: skip
        merge = {"merge": scheme} if chip == "ada" else {}
        schedule = fp.schedules.cublas(arch, split_k=split, fast_accum=fast, **merge)  # type: ignore[arg-type]
        unit = f"{chip}_{pair[0] if pair[0] == pair[1] else 'x'.join(pair)}_f32"
        got = fp.matmul(a, b, accumulate=unit, schedule=schedule, scale_a=scales[0], scale_b=scales[1], out_fmt=out_fmt)
        assert_bits_equal(got.view(want.dtype), want)
