"""fp.matmul by a library's schedule: every kernel family adds as its composition from dot_add, add and fma does."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules import Schedule
from fpsim.schedules.written import parsed
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles import cublas
from tests.oracles import schedules as written
from tests.oracles.units.rows import normal, wide
from tests.products.checks import chained, random_product, results
from tests.schedules.checks import (
    BLOCK_SCALED,
    BLOCKWISE,
    HOPPER,
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
    case = Case(s.cublas("sm_90", family="gemv", option=10), partial(cublas.gemv, row=ROWS[10]))
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
    written_out = {row: cublas.gemv(x, row) for row in set(EVERY_ROW.values())}
    for option, row in EVERY_ROW.items():
        got = multiplied(x, s.cublas("sm_90", family="gemv", option=option))
        assert_bits_equal(results(got), written_out[row])


@pytest.mark.parametrize("arch", CHUNKS)
def test_chunks_of_gemv_depend_on_the_chip(arch: str) -> None:
    unit = fp.unit(HOPPER if arch == "sm_90" else "blackwell_f16_f32")
    x = job(unit, spread, (1, 1100, 3))
    for option, chunk in CHUNKS[arch].items():
        case = Case(s.cublas(arch, family="gemv", option=option), partial(cublas.gemv, row=(1, 1, chunk, False)))
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


def test_scaled_sums_may_be_rounded_before_they_are_added() -> None:
    x = block_scales(job(fp.unit(HOPPER_FP8), spread, (13, 400, 31)), "1d", "2d")
    for fused, rounded in (
        (s.deepgemm(), s.deepgemm(fused=False)), (s.deepgemm("1d1d"), s.deepgemm("1d1d", fused=False)),
        (s.cutlass_blockwise("b_first", 64), s.cutlass_blockwise("b_first", 64, fused=False)),
    ):  # fmt: skip
        assert np.count_nonzero(multiplied(x, fused) != multiplied(x, rounded)) > 50
        assert rounded.name == fused.name.replace(")", ", fused=False)")
        assert parsed(rounded.name) == rounded
        assert ", in two roundings instead of one:" in str(s.explain(rounded, 8, 8, 256))
        assert str(s.compare(fused, rounded, 256)).count("rounded before the addition") == 1
    with pytest.raises(ValueError, match="fused=False is for Hopper; on Blackwell tensor cores apply the scales"):
        s.deepgemm(chip="sm_100", fused=False)
    with pytest.raises(TypeError, match="fused must be True or False; got 1"):
        s.cutlass_blockwise(fused=1)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    "text", ["-" * 50_000 + "1", "[" * 900 + "]" * 900, "Chunked(FP16, chunk=3, chunk=64)", "cublas('\0')"]
)
def test_texts_that_are_no_call_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(ValueError, match=r"a schedule or an accumulator .* is needed; got|chip must be"):
        parsed(text)


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
        parts = [chained(p.part(*span, unit), unit).view(f32) for span in cublas.nvjet_slices(992, slices, 128)]
        schedule = s.cublas("sm_100", split_k=slices)
        got = fp.matmul(p.a, p.b, accumulate=unit, schedule=schedule, strict=False, **p.scales())
        assert_bits_equal(got, written.forward(parts))


@pytest.mark.parametrize("number", [np.int8, np.uint8, np.int64])
def test_numbers_of_a_schedule_may_be_numpy_integers(number: Any) -> None:
    a = np.random.default_rng(0).standard_normal((3, 700)).astype(np.float16)
    chain = fp.FusedMultiplyAdd(fp.FP32)
    cases: tuple[tuple[Any, Any], ...] = (
        ("hopper_f16_f32", lambda of: Schedule("own", sums=fp.schedules.Chain(of(64)))),
        (chain, lambda of: Schedule("own", sums=fp.schedules.Lanes(of(8), run=of(4)))),
        (chain, lambda of: Schedule("own", slicing=fp.schedules.Slicing(of(3)))),
    )
    for accumulate, made in cases:
        want = fp.matmul(a, a.T, accumulate=accumulate, schedule=made(int))
        assert_bits_equal(fp.matmul(a, a.T, accumulate=accumulate, schedule=made(number)), want)
        assert made(number) == made(int)
