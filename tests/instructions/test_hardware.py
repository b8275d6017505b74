"""Matrix units beside real GPUs: 400 rows each of what a V100, A100, Ada, L40S, H100 or B200 gave, bit for bit."""

from __future__ import annotations

import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.published import recorded
from tests.kit.sweeps import in_turn
from tests.oracles.units.rows import Rows, dot_add_rows

UNITS = {
    "V100_f16_f32": "volta_f16_f32",
    "V100_f16_f16": "volta_f16_f16",
    "A100_f16_f32": "ampere_f16_f32",
    "A100_f16_f16": "ampere_f16_f16",
    "A100_bf16_f32": "ampere_bf16_f32",
    "A100_tf32_f32": "ampere_tf32_f32",
    "Ada_e4m3_f32": "ada_e4m3_f32",
    "Ada_e4m3_f16": "ada_e4m3_f16",
    "Ada_e5m2_f32": "ada_e5m2_f32",
    "Ada_e5m2_f16": "ada_e5m2_f16",
    "L40S_e4m3_f32": "ada_e4m3_f32",
    "L40S_e5m2_f32": "ada_e5m2_f32",
    "H100_f16_f32": "hopper_f16_f32",
    "H100_f16_f16": "hopper_f16_f16",
    "H100_bf16_f32": "hopper_bf16_f32",
    "H100_tf32_f32": "hopper_tf32_f32",
    "H100_e4m3_f32": "hopper_e4m3_f32",
    "H100_e5m2_f32": "hopper_e5m2_f32",
    "H100_e4m3_f16": "hopper_mma_e4m3_f16",
    "H100_e5m2_f16": "hopper_mma_e5m2_f16",
    "B200_f16_f32": "blackwell_f16_f32",
    "B200_f16_f16": "blackwell_f16_f16",
    "B200_bf16_f32": "blackwell_bf16_f32",
    "B200_tf32_f32": "blackwell_tf32_f32",
    "B200_e4m3_f32": "blackwell_mma_e4m3_f32",
    "B200_e4m3_f16": "blackwell_mma_e4m3_f16",
    "B200_e5m2_f32": "blackwell_mma_e5m2_f32",
    "B200_e5m2_f16": "blackwell_mma_e5m2_f16",
}
every_set = pytest.mark.parametrize("name", UNITS)


@every_set
def test_a_unit_gives_the_bits_of_real_hardware(name: str) -> None:
    rows, want = recorded(name)
    assert len(rows) == 400
    assert_bits_equal(fp.dot_add(rows.a, rows.b, rows.c, UNITS[name]), want)


@every_set
def test_the_oracle_gives_the_bits_of_real_hardware(name: str) -> None:
    rows, want = recorded(name)
    first = Rows(rows.a[:60], rows.b[:60], rows.c[:60])
    assert_bits_equal(dot_add_rows(first, fp.unit(UNITS[name])), want[:60])


@in_turn("name", UNITS.values())
def test_a_unit_with_a_record_of_hardware_says_so(name: str) -> None:
    assert fp.unit(name).evidence == "hardware"


def test_the_records_tell_chips_apart() -> None:
    rows, want = recorded("H100_e4m3_f32")
    other = fp.dot_add(rows.a, rows.b, rows.c, "blackwell_e4m3_f32")
    assert (other != want).mean() > 0.5
