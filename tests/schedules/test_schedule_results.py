"""Results of schedules: lost terms, merged slices, zeros, NaN, threads, and short forms."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.cpu import Cpu
from fpsim.schedules import Schedule
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles.schedules import Array, Job
from tests.oracles.units.rows import normal
from tests.products.checks import chained, random_product, results
from tests.schedules.checks import (
    ADA,
    BASIC,
    CUTLASS,
    HOPPER,
    HOPPER_BF16,
    HOPPER_FP8,
    LANES,
    NVJET,
    TENSOR_CORES,
    XMMA,
    Case,
    block_scales,
    first,
    job,
    matrix,
    multiplied,
    spread,
)

f32 = np.float32


s = fp.schedules


# ---- terms that cuBLAS leaves out


def lost_terms(k: int, slices: int, name: str = HOPPER, **words: Any) -> list[int]:
    """Terms among the last 304 that do not reach the result: column n of b has a single one."""
    unit, columns = fp.unit(name), np.arange(304)
    b = np.zeros((k, columns.size), f32)
    b[columns - columns.size, columns] = 1
    x = Job(fp.encode(np.ones((1, k), f32), unit.a.fmt), fp.encode(b, unit.b.fmt), unit)
    missing = multiplied(x, s.cublas("sm_90", split_k=slices, **words))[0] == 0
    return [int(n) + k - columns.size for n in columns[missing]]


@pytest.mark.parametrize(("k", "slices", "lost"), [(11528, 9, 8), (8648, 9, 8), (57608, 9, 8), (57608, 45, 8)])
@pytest.mark.parametrize("unit", [HOPPER, "blackwell_f16_f32"])
def test_split_k_of_nvjet_loses_the_last_terms(k: int, slices: int, lost: int, unit: str) -> None:
    schedule = s.cublas("sm_90" if unit == HOPPER else "sm_100", split_k=slices)
    kept = s.cublas("sm_90" if unit == HOPPER else "sm_100", split_k=slices, tail_loss=False)
    x = job(fp.unit(unit), spread, (1, k, 8))
    want = multiplied(x, schedule)
    x.a[:, k - lost :] = 0x7E00  # NaN in exactly these terms is never seen
    assert_bits_equal(multiplied(x, schedule), want)
    assert np.isnan(multiplied(x, kept)).all()
    x.a[:, k - lost :], x.a[:, k - lost - 1] = 0, 0x7E00  # the one before is
    assert np.isnan(multiplied(x, schedule)).all()


def test_the_lost_tail_is_that_of_the_condition() -> None:
    for slices, blocks, tail in itertools.product((2, 5, 9, 64), (9, 10, 18, 20, 64), (0, 1, 4, 8, 63)):
        k = 64 * blocks + tail
        expected = tail if tail and blocks % slices == 0 and slices > tail else 0
        assert lost_terms(k, slices) == list(range(k - expected, k)), (k, slices)
        assert lost_terms(k, slices, tail_loss=False) == []


def test_fp8_loses_its_tail_by_blocks_of_128() -> None:
    assert lost_terms(128 * 18 + 16, 18, HOPPER_FP8) == list(range(128 * 18, 128 * 18 + 16))
    assert lost_terms(128 * 18 + 16, 9, HOPPER_FP8) == []
    assert lost_terms(64 * 18 + 16, 18, HOPPER_FP8) == []


def test_cutlass_kernels_lose_nothing() -> None:
    # 1 x 2 x 1032 meets nvjet's condition
    assert lost_terms(1032, 16) == list(range(1024, 1032))
    assert lost_terms(1032, 16, family=23) == []


# ---- what the kernel adds at once

ADDED_AT_ONCE = {  # schedule, unit, K, output, products
    "equal slices": (s.cublas("sm_90", split_k=4), HOPPER_FP8, 1024, fp.FP32, 1),
    "the last one short": (s.cublas("sm_90", split_k=3), HOPPER_FP8, 1000, fp.FP32, 1),
    "dealt out in turn": (s.cublas("sm_89", split_k=3), ADA, 1024, fp.FP32, 2),  # of 384, 320 and 320 terms
    "without instructions": (s.cublas("sm_90", family="magma"), HOPPER, 100, fp.FP32, 0),
    "rounded to what they are": (s.cublas("sm_90", family="cutlass", split_k=4, merge=0), HOPPER, 256, fp.FP32, 1),
    "rounded": (s.cublas("sm_90", family="cutlass", split_k=4, merge=4), HOPPER, 256, fp.FP16, 4),
    "a residue first": (s.cublas("sm_90", family="cutlass", split_k=2, stages=13), HOPPER, 200, fp.FP32, 2),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")  # cuBLAS takes other kernels for such shapes
@pytest.mark.parametrize("name", ADDED_AT_ONCE)
def test_slices_of_one_length_are_one_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel adds them to one another, instead of float32 matrices between products."""
    schedule, unit, k, out_fmt, count = ADDED_AT_ONCE[name]
    done: list[Any] = []

    def add_product(total: Any, product: Any) -> None:
        done.append(product)
        real(total, product)

    real = Cpu.add_product
    monkeypatch.setattr(Cpu, "add_product", staticmethod(add_product))
    p = random_product(fp.unit(unit), normal, (3, k, 8))
    fp.matmul(p.a, p.b, accumulate=unit, schedule=schedule, out_fmt=out_fmt, strict=False)
    assert len(done) == count


# ---- -0


def zero_signs(slices: tuple[float, ...], schedule: Schedule, unit: str = HOPPER, fmt: fp.Format = fp.FP16) -> int:
    """The result's code where every 64 terms hold one product of the given value."""
    a = np.zeros((1, 64 * len(slices)), f32)
    a[0, ::64] = 2.0**-13
    b = np.zeros((64 * len(slices), 8), f32)
    b[::64] = np.array(slices, f32)[:, None] * 2.0**13
    operands = (fp.cast(x, fp.unit(unit).a.fmt) for x in (a, b))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return int(results(fp.matmul(*operands, accumulate=unit, schedule=schedule, out_fmt=fmt))[0, 0])


def cutlass(merge: int) -> Schedule:
    """Four slices."""
    return s.cublas("sm_90", family="cutlass", split_k=4, merge=merge)


def test_partial_sums_that_round_to_negative_zero_stay_negative() -> None:
    tiny = -(2.0**-26)  # a quarter of FP16's smallest number
    assert zero_signs(4 * (tiny,), cutlass(2)) == 0x8001  # together they reach it
    assert zero_signs(4 * (tiny,), s.cublas("sm_90", split_k=4)) == 0x8001
    for merge in (0, 1, 4):
        assert zero_signs(4 * (tiny,), cutlass(merge)) == 0x8000
        assert zero_signs((tiny, 0.0, 0.0, 0.0), cutlass(merge)) == 0x0000  # -0 + +0
        assert zero_signs((0.0, tiny, tiny, tiny), cutlass(merge)) == (0x0000 if merge == 4 else 0x8000)
    assert zero_signs((tiny, 0.0, 0.0, 0.0), cutlass(2)) == 0x8000


def test_tensor_cores_give_no_negative_zero() -> None:
    for schedule in (s.FLAT, s.cutlass_2xacc(), s.cublas("sm_90", split_k=4), cutlass(0), cutlass(2), cutlass(4)):
        assert zero_signs(4 * (-0.0,), schedule) == 0x0000
        assert zero_signs(4 * (-0.0,), schedule, HOPPER_BF16, fp.FP32) == 0


def test_sums_below_the_output_keep_their_sign() -> None:
    for schedule in (s.FLAT, s.cublas("sm_90", split_k=4), cutlass(2), cutlass(4)):
        assert zero_signs(4 * (-(2.0**-140),), schedule, HOPPER_BF16, fp.BF16) == 0x8000


@in_turn("schedule, code", [
    (s.FLAT, 0x80000000), (s.cutlass_2xacc(), 0), (s.cublas("sm_90"), 0x80000000),
    (s.cublas("sm_90", split_k=2), 0x80000000), (cutlass(2), 0x80000000), (cutlass(4), 0x80000000),
    (cutlass(0), 0x80000000), (s.cublas("sm_90", family="gemm_sn"), 0), (s.cublas("sm_90", family="magma"), 0),
    (s.cublas("sm_90", family="gemv", option=10), 0x80000000), (s.cublas("sm_90", family="dot", split_k=2), 0),
])  # fmt: skip
def test_slices_of_negative_zero_give_negative_zero(schedule: Schedule, code: int) -> None:
    # products that underflow in a fused multiply-add from +0; only totals that start at +0 lose the sign
    a, b = fp.cast(np.full((1, 256), -(2.0**-100), f32), fp.BF16), fp.cast(np.full((256, 8), 2.0**-100), fp.BF16)
    got = fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd(fp.FP32), schedule=schedule, strict=False)
    assert set(results(got).flat) == {code}


# ---- short forms


def equal_products(one: Callable[[], Array], other: Callable[[], Array]) -> None:
    assert_bits_equal(one(), other())


@pytest.mark.parametrize("name", [HOPPER_FP8, HOPPER, "hopper_f16_f16", "ada_e4m3_f32", "blackwell_e4m3_f32"])
def test_promote_is_short_for_2xacc(name: str) -> None:
    unit = fp.unit(name)
    x = job(unit, spread, (5, 333, 9))
    c, bias = matrix(5, 9).astype(f"f{unit.d.dtype.itemsize}"), matrix(1, 9, 1)[0]
    of_rows = {"scale_a": np.abs(matrix(5, 1)), "scale_b": np.abs(matrix(1, 9))}
    for words in ({}, {"c": c}, {"bias": bias}, {"alpha": 0.3}, {"c": c, "alpha": 0.3}, {"bias": bias, "alpha": 0.3},
                  {"c": c, "beta": 0.3}, {"c": c, "beta": 0.3, "alpha": 0.7, "bias": bias}, of_rows,
                  {**of_rows, "c": c}, {**of_rows, "bias": bias}, {"scale_a": f32(0.3)}):  # fmt: skip
        for promote in (64, 128):
            got = fp.matmul(x.a, x.b, accumulate=unit, promote=promote, **words)
            want = fp.matmul(x.a, x.b, accumulate=unit, schedule=s.cutlass_2xacc(promote), **words)
            assert_bits_equal(results(got), results(want))


@pytest.mark.parametrize("name", [HOPPER_FP8, HOPPER, "hopper_f16_f16", "ampere_tf32_f32", "ampere_f64_f64"])
def test_flat_is_the_plain_product(name: str) -> None:
    unit = fp.unit(name)
    p = random_product(unit, normal, (5, 67, 9))
    for c in (None, p.c):
        got = fp.matmul(p.a, p.b, c, accumulate=unit, schedule=s.FLAT)
        assert_bits_equal(got, fp.matmul(p.a, p.b, c, accumulate=unit))
        assert_bits_equal(results(got), chained(p._replace(c=c), unit))
    if name != "ampere_f64_f64":
        words = {"bias": matrix(1, 9)[0], "alpha": 0.3, "out_fmt": fp.BF16}
        got = fp.matmul(p.a, p.b, accumulate=unit, schedule=s.FLAT, **words)
        assert_bits_equal(got, fp.matmul(p.a, p.b, accumulate=unit, **words))


def test_fused_chains_have_schedules_too() -> None:
    a, b = matrix(3, 40), matrix(40, 9, 1)
    accumulate = fp.FusedMultiplyAdd(fp.FP32)
    equal_products(lambda: fp.matmul(a, b, accumulate=accumulate, schedule=s.FLAT),
                   lambda: fp.matmul(a, b, accumulate=accumulate))  # fmt: skip
    parts = [fp.matmul(a[:, i : i + 16], b[i : i + 16], accumulate=accumulate) for i in (0, 16, 32)]
    total = fp.add(fp.add(parts[0], parts[1]), parts[2])
    equal_products(lambda: fp.matmul(a, b, accumulate=accumulate, schedule=s.cutlass_2xacc(16)), lambda: total)


# ---- NaN, threads, empty products


@pytest.mark.parametrize(("fmt", "code"), [(None, 0x7FFFFFFF), (fp.FP32, 0x7FFFFFFF), (fp.FP16, 0x7FFF),
                                           (fp.BF16, 0x7FFF), (fp.E4M3, 0x7F), (fp.E5M2, 0x7F)])  # fmt: skip
def test_nan_is_all_ones(fmt: fp.Format | None, code: int) -> None:
    a, b = np.full((16, 320), -np.nan, np.float16), np.ones((320, 16), np.float16)
    for case in (*BASIC[:3], *NVJET[:3], *CUTLASS[:9], LANES[0]):
        got = fp.matmul(a, b, accumulate=HOPPER, schedule=case.schedule, out_fmt=fmt)
        assert set(results(got).flat) == {code}, case
    got = fp.matmul(np.ones((16, 320), np.float16), b, accumulate=HOPPER, bias=np.full(16, -np.nan, f32), out_fmt=fmt)
    assert set(results(got).flat) == {code}


@in_turn("case, unit", first([BASIC[1], NVJET[2], NVJET[3], CUTLASS[6], CUTLASS[8], XMMA[5], *LANES[::6]]))
def test_results_do_not_depend_on_the_number_of_threads(
    case: Case, unit: MatrixUnit, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr("fpsim.runtime.threads.SMALLEST", 1)
    for m, n in ((5, 300), (300, 140), (300, 1)):
        x, found = job(unit, spread, (m, 333, n), out_fmt=fp.BF16), []
        for threads in ("1", "2", "3"):
            monkeypatch.setenv("FPSIM_NUM_THREADS", threads)
            found.append(multiplied(x, case.schedule))
        assert_bits_equal(found[1], found[0])
        assert_bits_equal(found[2], found[0])


@in_turn("case, unit", first([*TENSOR_CORES, *LANES]))
def test_products_may_be_empty(case: Case, unit: MatrixUnit) -> None:
    for m, k, n in ((0, 64, 8), (1, 64, 0), (1, 0, 8), (0, 0, 0)):
        a, b = np.zeros((m, k), unit.a.dtype), np.zeros((k, n), unit.b.dtype)
        options: tuple[dict[str, Any], ...] = ({}, {"bias": np.ones(n, f32), "out_fmt": fp.BF16})
        for words in options:
            got = fp.matmul(a, b, accumulate=unit, schedule=case.schedule, strict=False, **words)
            want = np.ones((m, n), f32) if words else np.zeros((m, n), f32)
            assert_bits_equal(got.astype(f32), want)


def test_the_result_may_be_given() -> None:
    x = job(fp.unit(HOPPER), spread, (3, 333, 9))
    for case, fmt in itertools.product((BASIC[0], BASIC[1], NVJET[2], CUTLASS[6], LANES[0]), (None, fp.FP16, fp.BF16)):
        want = multiplied(x, case.schedule, out_fmt=fmt)
        out = np.zeros((9, 3), want.dtype).T
        assert multiplied(x, case.schedule, out_fmt=fmt, out=out) is out
        assert_bits_equal(out, want)


def test_torch_tensors_are_operands_and_scales() -> None:
    torch = pytest.importorskip("torch")
    x = job(fp.unit(HOPPER_FP8), spread, (16, 256, 16))
    x = block_scales(x, "1d", "2d")
    a, b = (torch.from_numpy(y.copy()).view(torch.float8_e4m3fn) for y in (x.a, x.b))
    assert x.scale_a is not None
    assert x.scale_b is not None
    of_a, of_b, c = (torch.from_numpy(y.copy()) for y in (x.scale_a, x.scale_b, matrix(16, 16)))
    bias = torch.from_numpy(matrix(1, 16)[0]).to(torch.bfloat16)
    schedule = s.cublas("sm_90", family="block_scaled")
    got = fp.matmul(a, b, c, accumulate=HOPPER_FP8, schedule=schedule, scale_a=of_a, scale_b=of_b, bias=bias,
                    out_fmt=torch.bfloat16)  # fmt: skip
    want = fp.matmul(x.a, x.b, c.numpy(), accumulate=HOPPER_FP8, schedule=schedule, scale_a=x.scale_a,
                     scale_b=x.scale_b, bias=bias.to(torch.float32).numpy(), out_fmt=fp.BF16)  # fmt: skip
    assert_bits_equal(got, want)
    got = fp.matmul(
        a, b, accumulate=HOPPER_FP8, schedule=s.cublas("sm_90"), scale_a=torch.tensor(0.3), scale_b=of_b[0, 0]
    )
    want = fp.matmul(x.a, x.b, accumulate=HOPPER_FP8, schedule=s.cublas("sm_90"), scale_a=f32(0.3),
                     scale_b=of_b.numpy()[0, 0])  # fmt: skip
    assert_bits_equal(got, want)


def test_a_chain_is_not_both_promoted_and_residue_first() -> None:
    with pytest.raises(ValueError, match=r"got interval=32 and residue=64\. Leave one out"):
        fp.schedules.Chain(interval=32, residue=64)


@pytest.mark.parametrize("name", ["cdna1_f32_f32", "blackwell_e2m1_f32"])
def test_triton_refuses_operands_that_wgmma_does_not_take(name: str) -> None:
    unit = fp.unit(name)
    codes = np.zeros((2, 64), unit.a.dtype)
    with pytest.raises(ValueError, match=rf"^Triton's tl\.dot runs on wgmma, which takes FP16, .*; got {name}\."):
        fp.matmul(codes, codes.T, accumulate=unit, schedule=fp.schedules.triton())
    fp.matmul(codes, codes.T, accumulate=unit, schedule=fp.schedules.triton(), strict=False)
