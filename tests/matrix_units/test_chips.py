"""Chips: found by every name they are sold under."""

from __future__ import annotations

import pytest

from fpsim.matrix_units.chips import CHIPS, named, names_of, sold_as
from tests.kit.processes import ROOT


@pytest.mark.parametrize(
    ("words", "arch"),
    [
        (("H100", "h200", "H100 SXM", "sm_90", "sm_90a", "Hopper", "sm-90"), "hopper"),
        (("B200", "gb200", "GB300", "b300", "blackwell", "sm_100a", "sm_103"), "blackwell"),
        (("MI300X", "mi300", "cdna3"), "cdna3"),
        (("L40S", "rtx 4060"), "ada"),
        (("A100", "V100"), None),
    ],
)
def test_chips_are_found_as_they_are_sold(words: tuple[str, ...], arch: str | None) -> None:
    assert {named(word).arch for word in words} == ({arch} if arch else {"ampere", "volta"})


def test_no_two_chips_bear_one_name() -> None:
    sold = [name for chip in CHIPS.values() for name in names_of(chip) if name != chip.arch]
    assert len(sold) == len(set(sold)) > 30


def test_an_unknown_chip_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"chip must be one of the 23 .*such as H100, .*; got 'H10'. Did .* 'H100'\?"):
        named("H10")
    with pytest.raises(TypeError, match=r"chip must be the name of a chip, such as 'H100'; got 90"):
        named(90)  # type: ignore[arg-type]


def test_the_page_that_an_unknown_chip_is_referred_to_lists_them() -> None:
    page = " ".join((ROOT / "docs" / "matrix-units.md").read_text().split())
    line = page.partition("Chips are called what they are sold as: ")[2].partition(".")[0]
    assert line.split(", ") == [name for chip in CHIPS.values() for name in sold_as(chip)]
