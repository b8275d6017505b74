"""docs/specials.md: the page is what the code gives, and the rows that the standards decide are what they say."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import fpsim as fp
from tests.arithmetic import specials_table as specials
from tests.kit import samples
from tests.kit.sweeps import in_turn

FAMILIES = [(family, specials.SIGNED_ROWS) for family in specials.SIGNED]
FAMILIES += [(family, specials.UNSIGNED_ROWS) for family in specials.UNSIGNED]
every_family = pytest.mark.parametrize(("family", "rows"), FAMILIES, ids=[family.name for family, _ in FAMILIES])


def test_the_page_is_what_the_code_gives() -> None:
    page = specials.PAGE.read_text(encoding="utf-8")
    assert page == specials.filled(page), "if the new results are right, run python -m tests.arithmetic.specials_table"


def test_every_operation_has_a_row() -> None:
    modules = {"fpsim.arithmetic.functions", "fpsim.arithmetic.comparison", "fpsim.arithmetic.conversion"}
    operations = {name for name in fp.__all__ if getattr(getattr(fp, name), "__module__", "") in modules}
    for rows in (specials.SIGNED_ROWS, specials.UNSIGNED_ROWS):
        assert {specials.parts(row)[0] for row in itertools.chain(*rows.values())} == operations


def assert_same(family: specials.Family, others: list[fp.Format], rows: dict[str, tuple[str, ...]]) -> None:
    for overflow in ("nonfinite", "saturate", "saturate_finite"):
        for row in itertools.chain(*rows.values()):
            want = specials.cell(row, family.shown, overflow)
            got = {fmt.name: specials.cell(row, fmt, overflow) for fmt in others}
            assert {name: cell for name, cell in got.items() if cell != want} == {}, f"{row}, {overflow}: {want}"


@every_family
def test_formats_of_a_family_give_the_same(family: specials.Family, rows: dict[str, tuple[str, ...]]) -> None:
    p3109 = [fmt for fmt in samples.P3109 if family.p3109 and fmt.name.endswith(family.p3109)]
    assert_same(family, [*family.others, *(fmt for fmt in p3109 if fmt.bits >= 5 and fmt.precision >= 2)], rows)


@pytest.mark.slow
@every_family
def test_all_p3109_formats_of_a_family_give_the_same(family: specials.Family, rows: dict[str, tuple[str, ...]]) -> None:
    p3109 = [fp.format(name) for name in samples.p3109_names(within_float64=True) if name.endswith(family.p3109 or "-")]
    assert_same(family, [fmt for fmt in p3109 if fmt.bits >= 5 and fmt.precision >= 2], rows)


# ---- by hand: cells as the page shows them

IEEE_754_2019 = [
    ("Inf - Inf", "NaN INVALID"),  # 7.2 d
    ("0 * Inf", "NaN INVALID"),  # 7.2 b
    ("fma(1, Inf, -Inf)", "NaN INVALID"),  # 7.2 d
    ("0 / 0", "NaN INVALID"),  # 7.2 e
    ("Inf / Inf", "NaN INVALID"),
    ("remainder(1, 0)", "NaN INVALID"),  # 7.2 f
    ("remainder(Inf, 1)", "NaN INVALID"),
    ("remainder(1, Inf)", "1"),  # 5.3.1
    ("remainder(-1, 1)", "-0"),
    ("sqrt(-1)", "NaN INVALID"),  # 7.2 g
    ("sqrt(-0)", "-0"),  # 6.3
    ("sNaN + 1", "NaN INVALID"),  # 7.2 a
    ("NaN + 1", "NaN"),  # 6.2
    ("1 / 0", "Inf DIVIDE_BY_ZERO"),  # 7.3
    ("1 / -0", "-Inf DIVIDE_BY_ZERO"),
    ("Inf / 0", "Inf"),  # 6.1
    ("-1 / Inf", "-0"),
    ("max + max", "Inf OVERFLOW INEXACT"),  # 7.4
    ("smallest * smallest", "0 UNDERFLOW INEXACT"),  # 7.5
    ("-1 * 0", "-0"),  # 6.3
    ("-0 + 0", "0"),
    ("-0 - 0", "-0"),
    ("next_up(max)", "Inf"),  # 5.3.1
    ("next_up(-Inf)", "-max"),
    ("next_up(-smallest)", "-0"),
    ("next_up(-0)", "smallest"),
    ("minimum(0, -0)", "-0"),  # 9.6
    ("minimum(1, NaN)", "NaN"),
    ("minimum_number(1, NaN)", "1"),
    ("maximum_number(1, sNaN)", "1 INVALID"),
    ("round_to_integral(-smallest)", "-0 INEXACT"),  # 5.9
    ("equal(NaN, NaN)", "False"),  # 5.11
    ("less(NaN, 1)", "False INVALID"),
    ("negative(sNaN)", "-sNaN"),  # 5.5.1
    ("classify(sNaN)", "signaling nan"),  # 5.7.2
]


@in_turn("row, want", IEEE_754_2019)
def test_ieee_754_decides_what_its_formats_give(row: str, want: str) -> None:
    assert str(specials.cell(row, fp.FP16)) == want


@in_turn(
    "row, fmt, overflow, want",
    [
        ("-max - max", fp.E4M3, "nonfinite", "-NaN OVERFLOW INEXACT"),
        ("-max - max", fp.E4M3, "saturate", "-max OVERFLOW INEXACT"),
        ("convert(Inf)", fp.E4M3, "nonfinite", "NaN OVERFLOW INEXACT"),
        ("convert(Inf)", fp.E4M3, "saturate", "max OVERFLOW INEXACT"),
        ("convert(Inf)", fp.E4M3, "saturate_finite", "NaN OVERFLOW INEXACT"),
        ("convert(NaN)", fp.E2M1, "nonfinite", "max INVALID"),
        ("1 / 0", fp.FP16, "saturate", "max DIVIDE_BY_ZERO"),
        ("1 / 0", fp.FP16, "saturate_finite", "Inf DIVIDE_BY_ZERO"),
        ("-1 * 0", fp.E4M3FNUZ, "nonfinite", "0"),
        ("1 - Inf", fp.format("p3109_k8p4ue"), "nonfinite", "NaN INVALID"),
        ("1 - Inf", fp.format("p3109_k8p4ue"), "saturate", "0 INVALID"),
        ("1 - 1", fp.E8M0, "nonfinite", "NaN INVALID"),
        ("smallest * smallest", fp.E8M0, "nonfinite", "smallest UNDERFLOW INEXACT"),
        ("0 / 0", fp.E8M0, "nonfinite", "-"),
    ],
)
def test_formats_without_specials_give_what_stands_for_them(row: str, fmt: fp.Format, overflow: str, want: str) -> None:
    assert str(specials.cell(row, fmt, overflow)) == want


# ---- by hand: codes, so that nothing above need be believed


def test_one_by_zero_is_what_the_format_has_for_infinity_and_raises_divide_by_zero_alone() -> None:
    codes = [(fp.E4M3, 0x38, 0x7F), (fp.E2M1, 0x2, 0x7), (fp.E4M3FNUZ, 0x40, 0x80), (fp.E5M2, 0x3C, 0x7C)]
    for fmt, one, want in codes:
        got = fp.divide(np.uint8(one), np.uint8(0), fmt=fmt, flags="any")
        assert got == (want, fp.Flags.DIVIDE_BY_ZERO), fmt


def test_names_stand_for_these_codes() -> None:
    ieee = {"NaN": 0x7E00, "sNaN": 0x7C01, "-Inf": 0xFC00, "-0": 0x8000, "1": 0x3C00, "max": 0x7BFF, "smallest": 1}
    e4m3 = {"NaN": 0x7F, "-NaN": 0xFF, "sNaN": None, "Inf": None, "-0": 0x80, "-1": 0xB8, "max": 0x7E, "smallest": 1}
    fnuz = {"NaN": 0x80, "-NaN": None, "-0": None, "0": 0, "-max": 0xFF, "-smallest": 0x81}
    e8m0 = {"NaN": 0xFF, "-NaN": None, "0": None, "-0": None, "1": 0x7F, "-1": None, "max": 0xFE, "smallest": 0}
    for fmt, codes in ((fp.FP16, ieee), (fp.E4M3, e4m3), (fp.E4M3FNUZ, fnuz), (fp.E8M0, e8m0)):
        assert {name: specials.code_of(fmt, name) for name in codes} == codes
