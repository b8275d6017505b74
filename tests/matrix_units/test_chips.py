"""Chips: found by every name they are sold under."""

from __future__ import annotations

import pytest

import fpsim as fp
from fpsim.matrix_units.chips import CHIPS, find, named, names_of, sold_as
from tests.kit.processes import ROOT


@pytest.mark.parametrize(
    ("words", "arch"),
    [
        (("H100", "h200", "H100 SXM", "sm_90", "sm_90a", "Hopper", "sm-90", "sm90"), "hopper"),
        (("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "H100-SXM5", "NVIDIA GH200 480GB", "H100 NVL"), "hopper"),
        (("NVIDIA GeForce RTX 4090", "rtx4090", "RTX-4080 SUPER", "NVIDIA RTX 6000 Ada Generation", "L4"), "ada"),
        (("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx_4070 ti"), "ada"),
        (("Tesla T4", "RTX 2080 Ti"), "turing"),
        (("NVIDIA A100-SXM4-80GB", "A30"), "ampere"),
        (("AMD Instinct MI300X OAM", "AMD Instinct MI325X"), "cdna3"),
        (("B200", "gb200", "GB300", "b300", "blackwell", "sm_100a", "sm_103"), "blackwell"),
        (("MI300X", "mi300", "cdna3"), "cdna3"),
        (("L40S", "rtx 4060"), "ada"),
        (("A100", "V100"), None),
        (("H20", "NVIDIA H20", "HGX H100", "DGX H100", "GH200 144G HBM3e"), "hopper"),
        (("B100", "HGX B200", "GB200 NVL72", "GB300 NVL72", "DGX B300", "sm_103a"), "blackwell"),
        (("L20", "NVIDIA L20"), "ada"),
        (("Quadro RTX 8000", "Quadro RTX 6000"), "turing"),
        (("Tesla V100-SXM2-32GB", "TITAN V", "Quadro GV100"), "volta"),
        (("gfx942", "AMD Instinct MI300A"), "cdna3"),
        (("gfx90a", "AMD Instinct MI250X", "MI210", "MI250"), "cdna2"),
        (("gfx908", "MI100"), "cdna1"),
    ],
)
def test_chips_are_found_as_they_are_sold(words: tuple[str, ...], arch: str | None) -> None:
    assert {named(word).arch for word in words} == ({arch} if arch else {"ampere", "volta"})


def test_no_two_chips_bear_one_name() -> None:
    sold = [name for chip in CHIPS.values() for name in names_of(chip) if name != chip.arch]
    assert len(sold) == len(set(sold)) > 30


def test_an_unknown_chip_is_answered_with_the_nearest() -> None:
    count = sum(len(sold_as(chip)) for chip in CHIPS.values())
    with pytest.raises(
        ValueError, match=rf"chip must be one of the {count} .*such as H100, .*; got 'H10'. Did .* 'H100'\?"
    ):
        named("H10")
    with pytest.raises(TypeError, match=r"chip must be the name of a chip, such as 'H100'; got 90"):
        named(90)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "word",
    [
        "RTX 3090",
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA GeForce RTX 5090",
        "sm_120",
        "sm_86",
        "RTX A5000",
        "A16",
        "MI350X",
        "MI355X",
        "gfx950",
        "GB10",
        "DGX Spark",
        "Jetson AGX Orin",
        "Jetson T5000",
        "RTX PRO 5000 Blackwell",
        "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    ],
)
def test_a_chip_without_units_is_told_from_an_unknown_word(word: str) -> None:
    for function in (named, fp.units):
        with pytest.raises(
            ValueError, match=rf"must be a chip whose matrix units are known here; got '{word}' \((sm|cd)\w+\)"
        ):
            function(word)


def test_empty_words_and_makers_name_no_chip() -> None:
    for word in ("", "  ", "NVIDIA", "nvidia geforce", "GPU", "80GB"):
        assert find(word) is None


@pytest.mark.parametrize(
    ("chip", "arch"),
    [
        ("H20", "hopper"),
        ("B100", "blackwell"),
        ("L20", "ada"),
        ("gfx942", "cdna3"),
        ("H100", "hopper"),
        ("A100", "ampere"),
        ("RTX 4090", "ada"),
        ("B200", "blackwell"),
        ("MI300X", "cdna3"),
    ],
)
def test_chips_are_taken_as_they_are_sold_wherever_they_are_asked_for(chip: str, arch: str) -> None:
    assert fp.units(chip) == fp.units(arch)
    with pytest.raises(ValueError, match=rf"Did you mean '{arch}_\w+_f32'"):
        fp.unit(chip)
    with pytest.raises(ValueError, match=rf"Did you mean '{arch}_bf16_f32'"):
        fp.unit(f"{chip} bf16")
    for function in (fp.schedules.cublas, lambda word: fp.schedules.deepgemm(arch=word)):
        try:
            schedule = function(arch)
        except ValueError:
            with pytest.raises(ValueError, match="nothing is known here"):
                function(chip)
        else:
            assert function(chip).arch == schedule.arch == arch


def test_recipes_take_chips_as_they_are_sold() -> None:
    pytest.importorskip("torch")
    assert fp.torch.Product("H100") == fp.torch.Product("hopper")
    assert fp.torch.Product("RTX 4090").accumulate == "ada"


def test_the_page_that_an_unknown_chip_is_referred_to_lists_them() -> None:
    page = " ".join((ROOT / "docs" / "matrix-units.md").read_text().split())
    line = page.partition("Chips are called what they are sold as: ")[2].partition(".")[0]
    assert line.split(", ") == [name for chip in CHIPS.values() for name in sold_as(chip)]
