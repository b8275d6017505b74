"""fp.matmul by a library's schedule: every kernel family adds as its composition from dot_add, add and fma does."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.cpu import Cpu
from fpsim.schedules import Schedule
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import schedules as written
from tests.oracles.matrix_units import normal, wide
from tests.oracles.schedules import Array, Job
from tests.products.checks import chained, random_product, results
from tests.schedules.checks import (
    ADA,
    BASIC,
    BLOCK_SCALED,
    BLOCKWISE,
    CUTLASS,
    HOPPER,
    HOPPER_BF16,
    HOPPER_FP8,
    KINDS,
    LANES,
    LENGTHS,
    NVJET,
    ROWS,
    ROWWISE,
    TENSOR_CORES,
    XMMA,
    Case,
    block_scales,
    check,
    first,
    job,
    matrix,
    multiplied,
    spread,
    with_units,
)

f32 = np.float32
s = fp.schedules

# ---- tensor cores


@in_turn("case, unit", with_units([*TENSOR_CORES, *ROWWISE]))
@sweep("whole", False, True)
def test_a_schedule_is_its_composition_around_every_boundary(case: Case, unit: MatrixUnit, whole: bool) -> None:
    every = 1 if whole else 2 if unit.name == case.units[0] else 4  # neighbouring cases take different lengths
    turn = [*TENSOR_CORES, *ROWWISE].index(case)
    for i, k in enumerate(LENGTHS):
        if (i + turn) % every:
            continue
        if whole or i // every % 2:
            check(job(unit, KINDS[i % len(KINDS)], (3, k, 7), seed=i), case)
        if whole or i // every % 2 == 0:
            check(job(unit, spread, (7, k, 3), seed=i), case)


FORMATS = (fp.FP16, fp.BF16, fp.E4M3, fp.E5M2)
KINDS_AND_FORMATS = list(itertools.product(KINDS, (fp.FP32, *FORMATS)))
SOME_OF_THEM = list(zip(KINDS, itertools.cycle((fp.FP32, *FORMATS)), strict=False))


@in_turn("case, unit", first(TENSOR_CORES))
@sweep("pairs", SOME_OF_THEM, KINDS_AND_FORMATS)
def test_a_schedule_is_its_composition_for_every_kind_of_number(case: Case, unit: MatrixUnit, pairs: Any) -> None:
    for kind, fmt in pairs:
        check(job(unit, kind, (5, 390, 9), out_fmt=fmt), case)


@in_turn("case, unit", first(TENSOR_CORES))
@sweep("shapes", [(1, 1), (1, 17), (17, 1), (3, 130), (130, 3), (17, 5)], [(130, 130)])
def test_a_schedule_is_its_composition_for_every_shape(case: Case, unit: MatrixUnit, shapes: Any) -> None:
    for m, n in shapes:
        check(job(unit, spread, (m, 333 if m * n < 1000 else 145, n)), case)


@in_turn("case, unit", first([case for case in TENSOR_CORES if case.schedule.slicing.count > 1]))
@sweep("whole", False, True)
def test_a_schedule_is_its_composition_around_the_ends_of_slices(case: Case, unit: MatrixUnit, whole: bool) -> None:
    count = case.schedule.slicing.count
    for block in (8, 64, 128):
        ends = itertools.product((count, 2 * count - 1, 2 * count), (-8, -1, 0, 1, 8, block // 2))
        some = ((count, -1), (2 * count - 1, 0), (count, 8))
        for chunks, more in ends if whole else some:
            check(job(unit, spread, (2, max(chunks * block + more, 1), 3)), case)


@settings(max_examples=60)
@given(st.data())
def test_any_schedule_of_any_shape_is_its_composition(data: st.DataObject) -> None:
    case = data.draw(st.sampled_from([*TENSOR_CORES, *ROWWISE]))
    unit = fp.unit(data.draw(st.sampled_from(case.units)))
    shape = data.draw(st.tuples(st.integers(1, 20), st.integers(1, 700), st.integers(1, 20)))
    fmt = data.draw(st.sampled_from([fp.FP32, fp.FP16, fp.BF16, fp.E4M3]))
    check(job(unit, data.draw(st.sampled_from(KINDS)), shape, data.draw(st.integers(0, 99)), out_fmt=fmt), case)


DISTINCT = {
    "fp8": (HOPPER_FP8, [s.FLAT, s.cutlass_2xacc(), s.cutlass_2xacc(64), s.triton(128, 96), s.triton(256, 96),
                         *[s.cublas("sm_90", split_k=n, fast_accum=f) for n in (2, 3, 5) for f in (False, True)]]),
    "output": (HOPPER, [s.cublas("sm_90", family="cutlass", split_k=n, merge=merge)
                        for n in (2, 3) for merge in (0, 2, 4)]),
    "f16": (HOPPER, [s.FLAT, s.cutlass_2xacc(), *[s.cublas("sm_90", split_k=n) for n in (2, 3, 4, 7)],
                     *[s.cublas("sm_90", family="cutlass", split_k=n, block_k=block_k, step=step)
                       for n in (2, 3) for block_k, step in ((32, 16), (32, 8), (64, 16))]]),
    "ada": ("ada_e4m3_f32", [*[s.cublas("sm_89", split_k=n, merge=merge) for n in (2, 3, 4, 5)
                               for merge in ("serial", "pairwise")[: 1 + (n > 2)]], s.cublas("sm_89")]),
    "lanes": (HOPPER, [s.cublas("sm_90", family="gemm_sn", option=0), s.cublas("sm_90", family="gemm_sn", option=1),
                       s.cublas("sm_90", family="magma"), s.cublas("sm_90", family="dot", split_k=2),
                       *[s.cublas("sm_90", family="gemv", option=row) for row in ROWS if row not in (0, 7, 84)]]),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTINCT)
def test_schedules_are_told_apart(name: str) -> None:
    unit, schedules = DISTINCT[name]
    x = job(fp.unit(unit), spread, (31, 1125, 61), out_fmt=fp.FP16 if name == "output" else fp.FP32)
    found = {multiplied(x, schedule).tobytes(): schedule for schedule in schedules}
    assert len(found) == len(schedules)


def test_up_to_64_terms_have_nothing_to_merge() -> None:
    for case in (*NVJET, *XMMA):
        unit = fp.unit(case.units[0])
        x = job(unit, spread, (3, 64, 7))
        assert_bits_equal(multiplied(x, case.schedule), multiplied(x, s.FLAT))


# ---- kernels without tensor cores


@in_turn("case, unit", with_units(LANES))
def test_kernels_without_tensor_cores_are_their_composition(case: Case, unit: MatrixUnit) -> None:
    for k in (1, 2, 17, 65, 300):
        check(job(unit, spread, (1, k, 5), seed=k), case)
    check(job(unit, spread, (5, 333, 1)), case)


@in_turn("case, unit", first(LANES))
def test_kernels_without_tensor_cores_are_their_composition_for_every_shape(case: Case, unit: MatrixUnit) -> None:
    check(job(unit, wide, (1, 1100, 5)), case)
    for m, n in ((1, 1), (1, 130), (130, 1), (3, 17), (17, 3)):
        check(job(unit, KINDS[(m + n) % len(KINDS)], (m, 97, n)), case)


def test_lanes_may_chain_any_formats() -> None:
    case = Case(s.cublas("sm_90", family="gemv", option=10), partial(written.gemv, row=ROWS[10]))
    x = job(fp.unit(HOPPER), spread, (1, 300, 5))
    got = fp.matmul(x.a, x.b, accumulate=fp.FusedMultiplyAdd(fp.FP32), schedule=case.schedule, fmt=fp.FP16)
    assert_bits_equal(results(got), case.oracle(x))


# lanes -> CUSTOM_OPTION of gemv whose lanes take one term in turn, and those whose lanes take up to 64
ONE = {2: (49, 57, 63, 95), 4: (41, 51, 59, 65, 69, 111), 8: (43, 53, 61, 67, 89), 16: (35, 45, 55, 81, 91, 101),
       32: (37, 47, 75, 83, 93)}  # fmt: skip
MANY = {2: (48, 56, 62, 102), 4: (40, 50, 58, 68, 86, 96, 110), 8: (42, 52, 60, 66, 98, 106), 16: (44, 54, 72, 90, 100),
        32: (36, 46, 74, 82, 92)}  # fmt: skip
EVERY_ROW = {
    **{option: (run, lanes, 0, True) for run, table in ((1, ONE), (-64, MANY)) for lanes, options in table.items()
       for option in options},
    6: (1, 1, 0, False), 84: (1, 1, 0, False), 10: (4, 32, 0, True), 11: (1, 16, 32, False),
    **dict.fromkeys((12, 13, 14), (1, 16, 16, False)),
}  # fmt: skip
CHUNKS = {"sm_90": {0: 512, 7: 256, 8: 256}, "sm_100": {0: 0, 7: 0, 8: 0}, "sm_103": {0: 0, 7: 0, 8: 256}}


def test_every_option_of_gemv_has_its_lanes() -> None:
    x = job(fp.unit(HOPPER), spread, (1, 700, 3))
    written_out = {row: written.gemv(x, row) for row in set(EVERY_ROW.values())}
    for option, row in EVERY_ROW.items():
        got = multiplied(x, s.cublas("sm_90", family="gemv", option=option))
        assert_bits_equal(results(got), written_out[row])


@pytest.mark.parametrize("arch", CHUNKS)
def test_chunks_of_gemv_depend_on_the_chip(arch: str) -> None:
    unit = fp.unit(HOPPER if arch == "sm_90" else "blackwell_f16_f32")
    x = job(unit, spread, (1, 1100, 3))
    for option, chunk in CHUNKS[arch].items():
        case = Case(s.cublas(arch, family="gemv", option=option), partial(written.gemv, row=(1, 1, chunk, False)))
        check(x, case, strict=True)


def test_families_go_by_their_number() -> None:
    x = job(fp.unit(HOPPER), spread, (1, 333, 8))
    numbers: dict[int, tuple[str, dict[str, Any]]] = {
        66: ("nvjet", {}), 12: ("cutlass", {}), 21: ("cutlass", {"stages": 13}),
        23: ("cutlass", {"merge": 4, "split_k": 2}), 24: ("cutlass", {"step": 8}), 11: ("gemm_sn", {"option": 1}),
        16: ("magma", {}), 13: ("gemv", {"option": 69}), 14: ("dot", {"split_k": 3}),
    }  # fmt: skip
    for number, (family, fields) in numbers.items():
        by_number = multiplied(x, s.cublas("sm_90", family=number, **fields))
        assert_bits_equal(by_number, multiplied(x, s.cublas("sm_90", family=family, **fields)))
    assert_bits_equal(multiplied(x, s.cublas("sm_90", family="simt")), multiplied(x, s.cublas(family="gemm_sn")))


def test_words_for_reduction_schemes() -> None:
    x = job(fp.unit(HOPPER), spread, (5, 333, 8), out_fmt=fp.FP16)
    for number, word in {0: "none", 1: "in_place", 2: "compute_type", 4: "output_type"}.items():
        got, want = (multiplied(x, s.cublas("sm_90", family="cutlass", split_k=4, merge=m)) for m in (number, word))
        assert_bits_equal(got, want)


# ---- scales along K


every_pair = pytest.mark.parametrize(
    ("of_a", "of_b"),
    [("1d", "2d"), ("1d", "1d"), ("2d", "1d"), ("2d", "2d"), ("1d", "none"), ("none", "2d"), ("none", "none")],
)


@in_turn("case, unit", with_units([*BLOCKWISE, *BLOCK_SCALED]))
@every_pair
@sweep("whole", False, True)
def test_scales_per_block_are_their_composition(
    case: Case, unit: MatrixUnit, of_a: str, of_b: str, whole: bool
) -> None:
    turn = len(case.name) + ("1d", "2d", "none").index(of_a) + ("1d", "2d", "none").index(of_b)
    for i, k in enumerate((16, 33, 127, 128, 129, 255, 256, 257, 400)):
        if not whole and (i + turn) % 3:
            continue  # each pair of scales with one of three lengths
        for m, n in ((3, 7), (7, 3)) if whole else ((3, 7) if i % 2 else (7, 3),):
            check(block_scales(job(unit, KINDS[i % len(KINDS)], (m, k, n), seed=i), of_a, of_b), case)
    some = ((130, 131),) if of_a == of_b == "2d" else ((3, 130), (130, 3))[turn // 3 % 2 :][:1]
    for m, n in ((3, 130), (130, 3), (129, 257)) if whole else some:
        check(block_scales(job(unit, spread, (m, 145, n)), of_a, of_b), case)


@pytest.mark.parametrize(("of_a", "of_b", "order"), [("1d", "2d", "product"), ("1d", "1d", "a_first"),
                                                     ("2d", "1d", "product"), ("2d", "2d", "product")])  # fmt: skip
def test_cublas_multiplies_the_scales_first_where_one_is_that_of_a_block(of_a: str, of_b: str, order: str) -> None:
    case = Case(s.cublas("sm_90", family="block_scaled"), partial(written.block_scaled, order=order))
    for k in (16, 128, 400):
        for m, n in ((4, 8), (8, 4), (132, 8), (4, 136)):
            check(block_scales(job(fp.unit(HOPPER_FP8), spread, (m, k, n)), of_a, of_b), case)


def test_orders_of_scales_are_told_apart() -> None:
    x = block_scales(job(fp.unit(HOPPER_FP8), spread, (13, 400, 31)), "1d", "2d")
    schedules = [case.schedule for case in (*BLOCKWISE[:4], *BLOCK_SCALED)]
    found = [multiplied(x, schedule).tobytes() for schedule in schedules]
    assert len(set(found)) == 4
    assert (found[4], found[5]) == (found[1], found[2])
    assert multiplied(x, s.deepgemm()).tobytes() == found[0]


def scaled_operands(m: int, k: int, n: int) -> tuple[fp.Scaled, fp.Scaled]:
    """a per 1x128, b per 128x128."""
    a = fp.encode_scaled(matrix(m, k), fp.E4M3, fp.scalings.TILE_1X128)
    return a, fp.encode_scaled(matrix(k, n, 1), fp.E4M3, fp.scalings.BLOCK_128X128)


@pytest.mark.parametrize("schedule", [None, *[case.schedule for case in BLOCKWISE[:3]], s.deepgemm(),
                                      s.cublas("sm_90", family="block_scaled")], ids=str)  # fmt: skip
def test_scales_as_arrays_are_those_of_scaled_operands(schedule: Schedule | None) -> None:
    for m, k, n in ((4, 400, 8), (4, 128, 136), (132, 272, 8), (4, 16, 8)):
        a, b = scaled_operands(m, k, n)
        words: dict[str, Any] = {"accumulate": HOPPER_FP8, "schedule": schedule}
        want = fp.matmul(a, b, **words)
        if schedule is not None or k > 128:  # without a schedule one column of scales is one of rows
            assert_bits_equal(fp.matmul(a.codes, b.codes, scale_a=a.scales, scale_b=b.scales, **words), want)
            assert_bits_equal(fp.matmul(a, b.codes, **words, scale_b=b.scales), want)
            assert_bits_equal(fp.matmul(a.codes, b, **words, scale_a=a.scales), want)


def test_deepgemm_on_blackwell_is_one_chain_of_a_block_scaled_unit() -> None:
    unit = fp.unit("blackwell_mxfp8_e4m3_f32")
    p = random_product(unit, normal, (3, 416, 9))._replace(c=None)
    got = fp.matmul(p.a, p.b, accumulate=unit, schedule=s.deepgemm("1d1d", "sm_100"), **p.scales())
    assert_bits_equal(results(got), chained(p, unit))
    c = matrix(3, 9)
    got = fp.matmul(p.a, p.b, c, accumulate=unit, schedule=s.deepgemm("1d1d", "sm_100"), **p.scales())
    assert_bits_equal(got, fp.add(c, chained(p, unit).view(f32)))


def test_slices_of_block_scaled_units_keep_their_scales() -> None:
    unit = fp.unit("blackwell_mxfp8_e4m3_f32")
    p = random_product(unit, normal, (3, 992, 9))._replace(c=None)
    for slices in (2, 3, 5):
        parts = [chained(p.part(*span, unit), unit).view(f32) for span in written.nvjet_slices(992, slices, 128)]
        schedule = s.cublas("sm_100", split_k=slices)
        got = fp.matmul(p.a, p.b, accumulate=unit, schedule=schedule, strict=False, **p.scales())
        assert_bits_equal(got, written.forward(parts))


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
