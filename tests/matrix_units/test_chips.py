"""Chips: found by every name they are sold under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module as load
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.chips import CHIPS, find, names_of, resolve, sold_as
from tests.kit.processes import ROOT
from tests.kit.sweeps import in_turn


@in_turn(
    "words, arch",
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
        (("gfx90a", "AMD Instinct MI250X", "MI210", "MI250", "AMD Instinct MI250X/MI250"), "cdna2"),
        (("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA H200 MIG 1g.18gb+me", "NVIDIA H20-3e"), "hopper"),
        (("NVIDIA B300 SXM6 AC",), "blackwell"),
        (("gfx908", "MI100"), "cdna1"),
    ],
)
def test_chips_are_found_as_they_are_sold(words: tuple[str, ...], arch: str | None) -> None:
    assert {resolve(word).chip.arch for word in words} == ({arch} if arch else {"ampere", "volta"})


def test_the_multiprocessors_of_a_part_of_a_gpu_are_not_known() -> None:
    assert resolve("NVIDIA H100 80GB HBM3 MIG 3g.40gb").multiprocessors is None
    choice = fp.schedules.cublas_choice("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 64, 64, 64)
    assert "has an unknown number" in str(choice.reason)


@pytest.mark.parametrize("name", ["H100/MI300", "MI250X/", "/"])
def test_a_name_of_several_chips_names_none(name: str) -> None:
    assert find(name) is None


def test_no_two_chips_bear_one_name() -> None:
    sold = [name for chip in CHIPS.values() for name in names_of(chip) if name != chip.arch]
    assert len(sold) == len(set(sold)) > 30


def test_an_unknown_chip_is_answered_with_the_nearest() -> None:
    count = sum(len(sold_as(chip)) for chip in CHIPS.values())
    with pytest.raises(
        ValueError, match=rf"chip must be one of the {count} .*such as H100, .*; got 'H10'. Did .* 'H100'\?"
    ):
        resolve("H10")
    with pytest.raises(TypeError, match=r"chip must be the name of a chip, such as 'H100'; got 90"):
        resolve(90)  # type: ignore[arg-type]


@in_turn(
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
    for function in (resolve, fp.units):
        with pytest.raises(
            ValueError, match=rf"must be a chip whose matrix units are known here; got '{word}' \((sm|cd)\w+\)"
        ):
            function(word)


def test_empty_words_and_makers_name_no_chip() -> None:
    for word in ("", "  ", "NVIDIA", "nvidia geforce", "GPU", "80GB"):
        assert find(word) is None


@in_turn(
    "chip, arch",
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
    for function in (fp.schedules.cublas, lambda word: fp.schedules.deepgemm(chip=word)):
        try:
            schedule = function(arch)
        except ValueError:
            with pytest.raises(ValueError, match=r"the order of \w+ is not known here"):
                function(chip)
        else:
            assert function(chip) == schedule
            assert schedule.arch == arch


ONES = np.ones((2, 2), ml_dtypes.bfloat16)
SPELLINGS = ("H100", "h100", "NVIDIA H100 80GB HBM3", "hopper", "Hopper", "sm_90", "sm_90a", "SM90", "9.0")


@dataclass(frozen=True)
class Entrance:
    """A function that takes the name of a chip."""

    call: Callable[[str], Any]
    library: str = "cuBLAS"  # a library that the name may have without a change of the answer; "" for none
    needs: str = "fpsim"  # a package


def linear(name: str) -> Any:
    return fp.torch.LinearRecipe("bf16", "bf16", "bf16", fprop=fp.torch.Product(name))


def placed(name: str) -> Any:
    return load("fpsim.recipes.hardware").placed(fp.torch.RECIPES["BF16"], name)


def on_chip(name: str) -> Any:
    return load("fpsim.recipes.chips").on_chip(fp.torch.RECIPES["BF16"], name)


def trained(name: str) -> Any:
    return load("fpsim.train.side_by_side").recipe_on_chip(fp.train.recipes.FP8_TENSOR, name)[0]


def followed_in_diff(name: str) -> Any:
    module = load("fpsim.analysis.studies.differences.arithmetics")
    way = module.arithmetic("first", name, "BF16").of("up")
    return way.follow(module.Site("up"))


def budget(name: str) -> Any:
    return load("fpsim.analysis.studies.budget.budget").followed_by(fp.torch.RECIPES["BF16"], "up", name)


def schedule_of_fields(name: str) -> Any:
    choice = load("fpsim.schedules.libraries.cublas_choice")
    return choice.schedule_of(choice.Fields(66, 0, 4, 2, 0, 0, 35, 0, 0), name)


ENTRANCES = {
    "fp.units": Entrance(fp.units),
    "fp.unit": Entrance(lambda name: fp.unit(f"{name}_bf16_f32")),
    "accumulate of matmul": Entrance(lambda name: fp.matmul(ONES, ONES, accumulate=f"{name}_bf16_f32").tobytes()),
    "fp.schedules.cublas": Entrance(fp.schedules.cublas),
    "fp.schedules.deepgemm": Entrance(lambda name: fp.schedules.deepgemm(chip=name), "DeepGEMM"),
    "fp.torch.LinearRecipe": Entrance(linear, "", "torch"),
    "a recipe on a chip": Entrance(on_chip, "cuBLAS", "torch"),
    "on=": Entrance(placed, "", "torch"),
    "fp.analysis.budget": Entrance(budget, "", "torch"),
    "fp.analysis.diff": Entrance(followed_in_diff, "", "torch"),
    "fp.train.lockstep": Entrance(trained, "", "torch"),
    "fp.chips": Entrance(lambda name: fp.chips(chip=name).rows),
    "the GPU's units": Entrance(lambda name: load("fpsim.gpu.lab.lab").unit_name(name, ("e4m3", "e4m3"))),
    "the GPU's schedules": Entrance(schedule_of_fields),
}


@in_turn("entrance", ENTRANCES)
def test_every_spelling_of_a_chip_gives_one_answer(entrance: str) -> None:
    row = ENTRANCES[entrance]
    pytest.importorskip(row.needs)
    want = row.call("H100")
    spellings = (*SPELLINGS, *(f"{name} {row.library}" for name in SPELLINGS if row.library))
    assert [name for name in spellings if row.call(name) != want] == []


@in_turn("entrance", [name for name, row in ENTRANCES.items() if not row.library])
def test_every_spelling_of_a_chip_with_a_library_gives_one_answer(entrance: str) -> None:
    row = ENTRANCES[entrance]
    pytest.importorskip(row.needs)
    want = row.call("H100 cuBLAS")
    assert "schedule=cublas('sm_90'" in str(want)
    names = [f"{name}{gap}{library}" for name in SPELLINGS for gap in " -_" for library in ("cuBLAS", "CUBLAS")]
    assert [name for name in names if row.call(name) != want] == []


@in_turn("entrance", ENTRANCES)
def test_every_entrance_refuses_an_unknown_chip_with_the_nearest(entrance: str) -> None:
    row = ENTRANCES[entrance]
    pytest.importorskip(row.needs)
    nearest = {
        "fp.unit": r"\w+_bf16_f32", "accumulate of matmul": r"\w+_bf16_f32", "fp.torch.LinearRecipe": r"hopper_\w+",
    }.get(entrance, "H100")  # fmt: skip
    with pytest.raises(ValueError, match=rf"got 'H10\w*'\. Did you mean '{nearest}'\?"):
        row.call("H10")


def test_libraries_of_recipes_have_the_schedules_of_their_scales() -> None:
    pytest.importorskip("torch")
    recipe = fp.torch.DEEPSEEK_V3.replace(wgrad=fp.torch.Product("H100 cuBLAS"))
    assert recipe.wgrad.schedule == fp.schedules.cublas("H100", family="block_scaled")
    with pytest.raises(ValueError, match=r"cuBLAS has its own schedule; got accumulate=H100 cuBLAS with"):
        fp.torch.Product("H100 cuBLAS", promote=128)
    with pytest.raises(ValueError, match=r"fprop: how cuBLAS on hopper adds FP8 with a scale per row is not known"):
        fp.torch.LinearRecipe(
            "e4m3", "e4m3", input_scaling=fp.scalings.ROW, weight_scaling=fp.scalings.ROW,
            fprop=fp.torch.Product("9.0 cuBLAS"),
        )  # fmt: skip


def test_schedules_of_a_library_refuse_a_chip_with_another_library() -> None:
    with pytest.raises(ValueError, match=r"chip must be one alone or with cuBLAS; got 'H100 DeepGEMM'\. Leave Deep"):
        fp.schedules.cublas("H100 DeepGEMM")


def test_old_names_of_the_argument_warn() -> None:
    functions: tuple[Callable[..., Any], ...] = (fp.units, fp.schedules.cublas, fp.schedules.deepgemm)
    for function in functions:
        with pytest.warns(DeprecationWarning, match="arch= is now called chip="):
            assert function(arch="H100") == function(chip="H100")


def test_recipes_take_chips_as_they_are_sold() -> None:
    pytest.importorskip("torch")
    assert fp.torch.Product("H100") == fp.torch.Product("hopper")
    assert fp.torch.Product("RTX 4090").accumulate == "ada"


def test_the_page_that_an_unknown_chip_is_referred_to_lists_them() -> None:
    page = " ".join((ROOT / "docs" / "matrix-units.md").read_text().split())
    line = page.partition("Chips have the names under which they are sold: ")[2].partition(".")[0]
    assert line.split(", ") == [name for chip in CHIPS.values() for name in sold_as(chip)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("H100_fp8_f32", "Did you mean 'hopper_e4m3_f32' or 'hopper_e5m2_f32'"),
        ("L40S fp8 fp16", "Did you mean 'ada_e4m3_f16' or 'ada_e5m2_f16'"),
        ("h100_fp16_fp32", "Did you mean 'hopper_f16_f32'"),
        ("cdna2_half_float", "Did you mean 'cdna2_f16_f32'"),
        ("RTX 5090_e4m3_f32", r"got 'RTX 5090_e4m3_f32' \(sm_120\), whose are not"),
        ("mi355x-fp8-f32", r"got 'mi355x-fp8-f32' \(cdna4\), whose are not"),
    ],
)
def test_units_of_the_chip_are_suggested_for_formats_in_other_spellings(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fp.unit(name)
