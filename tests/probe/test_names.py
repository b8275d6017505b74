"""Every unit and every schedule, used as a black box, is found by its name."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

import fpsim as fp
from fpsim.matrix_units.catalogue import float_units
from fpsim.probe.model import Model
from fpsim.schedules.schedule import FLAT, Schedule
from fpsim.schedules.trees.tree import unit_of
from tests.kit.sweeps import case, sweep

UNITS = float_units()
# one of every rule and format of the result, of wide and of narrow operands
SOME_UNITS = tuple({(unit.rule, unit.d.name, unit.a.fmt.bits > 8): unit for unit in UNITS}.values())
ROWS = fp.schedules.ROWS
SOME_ROWS = tuple({(row.library, row.family): row for row in ROWS}.values())


def probed(unit: fp.MatrixUnit, schedule: Schedule, k: int) -> Model:
    """What is found of a unit with a schedule."""

    def fn(a: Any, b: Any, scale_a: Any = None, scale_b: Any = None) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return fp.matmul(
                a, b, accumulate=unit, schedule=schedule, scale_a=scale_a, scale_b=scale_b, strict=False
            )  # fmt: skip

    scales: dict[str, Any] = {"scale": unit.scale, "block": unit.block} if unit.scale else {}
    return fp.probe.matmul(fn, k, a=unit.a.name, b=unit.b.name, **scales)


@sweep("units", SOME_UNITS, UNITS)
def test_every_unit_is_found_by_its_name(units: Sequence[fp.MatrixUnit]) -> None:
    for unit in units:
        with case(unit):
            model = probed(unit, FLAT, 256 if units is UNITS else 160)
            assert unit.name in model.units
            assert FLAT.name in model.schedules
            for other in model.units:
                # units that have the same bits have the same facts; or what tells them apart is said
                facts = [(x.rule, x.terms, x.fraction_bits, x.result_bits) for x in (unit, fp.unit(other))]
                assert facts[0] == facts[1] or any(other in sentence for sentence in model.unknown)
            if model.terms_per_step is not None:
                assert model.terms_per_step == unit.terms
                assert model.fraction_bits == (unit.fraction_bits or None)
                assert model.accumulator == unit.d.fmt
                assert model.rounding == unit.rounding


@sweep("rows", SOME_ROWS, ROWS)
def test_every_schedule_is_found_by_its_name(rows: Sequence[Schedule]) -> None:
    for row in rows:
        if row.family == "cutlass_fp32":  # takes float32, which no unit of NVIDIA does
            continue
        with case(row):
            unit = unit_of(row)
            model = probed(unit, row, 512 if rows is ROWS else 320)
            assert unit.name in model.units
            assert row.name in model.schedules


def test_sizes_that_no_row_has_are_found_too() -> None:
    unit = fp.unit("hopper_e4m3_f32")
    for schedule in (fp.schedules.cutlass_2xacc(64), fp.schedules.cutlass_2xacc(256)):
        model = probed(unit, schedule, 512)
        assert f"hopper_e4m3_f32, {schedule}" in model.names
        assert model.promotion == schedule.sums.interval  # type: ignore[union-attr]
    split = fp.schedules.cublas("sm_90", split_k=4)
    assert split.name in probed(fp.unit("hopper_f16_f32"), split, 512).schedules


def test_promotion_after_every_instruction_and_a_last_sum_of_one_term_are_found() -> None:
    for unit, interval, k in (("hopper_e4m3_f32", 32, 70), ("hopper_f16_f32", 16, 17), ("ada_e4m3_f32", 32, 65)):
        with case((unit, interval, k)):
            model = probed(fp.unit(unit), fp.schedules.cutlass_2xacc(interval), k)
            assert (unit in model.units, f"cutlass_2xacc({interval})" in model.schedules) == (True, True)
    accumulator = fp.Chunked("fp16", 8, "fp32")
    model = fp.probe.sum(partial(fp.sum, accumulate=accumulator), 17)
    assert model.names == ("Chunked(FP16, chunk=8, outer=FP32)",)


def test_lost_terms_of_split_k_are_seen() -> None:
    model = probed(fp.unit("hopper_f16_f32"), fp.schedules.cublas("sm_90", split_k=9), 584)
    assert model.lost == tuple(range(576, 584))


def test_equal_units_are_listed_and_different_ones_told_apart() -> None:
    model = probed(fp.unit("hopper_f16_f32"), FLAT, 64)
    assert model.unit == "hopper_f16_f32"
    assert model.units == ("hopper_f16_f32", "blackwell_f16_f32")
    assert probed(fp.unit("ampere_f16_f32"), FLAT, 64).units == ("turing_f16_f32", "ampere_f16_f32", "ada_f16_f32")


def test_an_accumulator_is_found_by_its_name() -> None:
    for how in (
        fp.Sequential("bf16"), fp.Pairwise("fp32"), fp.Chunked("fp16", 16, "fp32"), fp.FusedMultiplyAdd("fp16"),
        fp.Exact("bf16"), fp.Chunked("bf16", 8),
    ):  # fmt: skip
        with case(how):
            dtype = "bf16" if "BF16" in repr(how) else "fp16"
            model = fp.probe.dot(partial(fp.dot, accumulate=how), 64, dtype)
            assert repr(how) in model.names


def test_a_unit_that_is_in_no_table_is_described_and_has_no_name() -> None:
    unit = replace(fp.unit("hopper_f16_f32"), name="mine", terms=12, fraction_bits=27)

    def fn(a: Any, b: Any) -> Any:
        return fp.dot_add(a[None], b[None], None, unit).view(np.float32)[0]

    model = fp.probe.dot(fn, 60, "f16")
    assert (model.unit, model.names) == (None, ())
    assert (model.terms_per_step, model.fraction_bits, model.alignment) == (12, 27, "truncate")
    assert (model.rounding, model.accumulator) == ("toward_zero", fp.FP32)
    a, b = np.random.default_rng(3).standard_normal((2, 40, 60)).astype(np.float16)
    assert np.array_equal(model.dot(a, b).view(np.uint32), fp.dot_add(a, b, None, unit))
