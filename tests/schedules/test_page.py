"""docs/schedules.md: its tables of keywords and options are those of the code, and what it says of few terms holds."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

import fpsim as fp
from fpsim.schedules import Schedule, cublas
from fpsim.schedules.libraries.cublas import FIELDS, GEMV, GemvRow
from fpsim.schedules.libraries.cublas_table import NOT_ASKED, TOKENS, calls, table
from fpsim.schedules.plan import plan_of
from fpsim.testing import assert_bits_equal
from tests.kit.processes import ROOT
from tests.kit.sweeps import in_turn
from tests.schedules.checks import job, multiplied, spread


def rows_under(head: str) -> list[list[str]]:
    """The cells of the table that begins with a heading."""
    _, _, table = (ROOT / "docs" / "schedules.md").read_text().partition(f"| {head} |")
    lines = itertools.takewhile(lambda line: line.startswith("|"), table.splitlines()[2:])
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def without_name(schedule: Schedule) -> Schedule:
    """The same arithmetic."""
    return replace(schedule, name="")


@pytest.mark.parametrize("chip", GEMV)
def test_the_table_of_gemv_is_that_of_the_page(chip: str) -> None:
    found: dict[int, GemvRow] = {}
    for options, run, lanes, chunks, join in rows_under("CUSTOM_OPTION of gemv"):
        by_chips = [part.partition(":") for part in chunks.replace(" ", "").split(";")]  # "sm_90,sm_103:256;sm_100:0"
        of_chip = [after or before for before, _, after in by_chips if not after or chip in before.split(",")]
        row = GemvRow(int(run), int(lanes), int(of_chip[0]), butterfly=join == "butterfly")
        found |= {int(option): row for option in options.split(",")}
    assert found == GEMV[chip]


def test_the_shares_of_split_k_are_those_of_the_table() -> None:
    def shares(tokens: str, formats: tuple[str, ...], least: int, most: int) -> list[int]:
        """The smallest and the largest share of products with split-K among the kinds of calls, in percent."""
        recorded, found = table(), []
        for call, numbers in zip(calls(), recorded.numbers, strict=True):
            if call.tokens == tokens and call.a in formats:
                rows = numbers[[least <= count <= most for count in TOKENS]]
                found.append(100 * float((recorded.kernels[rows[rows != NOT_ASKED], 1] > 1).mean()))
        return [round(min(found)), round(max(found))]

    half, fp8 = ("bf16", "fp16"), ("e4m3", "e5m2")
    page = " ".join((ROOT / "docs" / "schedules.md").read_text().split())
    assert shares("m", half, 1, 16)[0] > 50
    assert "{} to {} % in FP8".format(*shares("m", fp8, 1, 16)) in page
    assert "with 1,024 tokens, {} to {} %".format(*shares("m", half + fp8, 1024, 1024)) in page
    assert f"with 16,384 tokens, at most {shares('m', half + fp8, 16384, 16384)[1]} %" in page
    assert f"with 32,768 tokens it is up to {shares('k', half, 32768, 32768)[1]} %" in page


def test_the_keywords_of_cublas_are_those_of_the_page() -> None:
    rows = rows_under("keyword")
    pairs = {(keyword.strip("`="), family) for keyword, families, _ in rows for family in families.split(", ")}
    keywords = {keyword for keyword, _ in pairs}
    assert pairs == {(field, family) for family, fields in FIELDS.items() for field in fields if field in keywords}
    assert keywords == {"split_k", "merge", "stages", "option"}


@pytest.mark.parametrize(
    ("words", "default"),
    [
        ({"family": "cutlass"}, {"merge": 2, "block_k": 32, "step": 16}),
        ({"family": "gemm_sn"}, {"option": 0}),
        ({"chip": "sm_89"}, {"merge": "serial"}),
    ],
    ids=str,
)
def test_defaults_are_those_of_the_page(words: dict[str, Any], default: dict[str, Any]) -> None:
    assert without_name(cublas(**words)) == without_name(cublas(**words, **default))


@pytest.mark.parametrize("words", [(2, "compute_type"), (4, "output_type"), (0, "none", 1, "in_place")])
def test_words_for_a_merge_mean_the_same(words: tuple[int | str, ...]) -> None:
    assert len({without_name(cublas(family="cutlass", merge=word)) for word in words}) == 1


@in_turn(
    "words, message",
    [
        ({"family": "cutlass", "stages": 6}, "stages must be a STAGES_ID of a CUTLASS kernel, 0, 7 to 20 or 25; got 6"),
        ({"family": "cutlass", "stages": 21}, "stages must be .*; got 21"),
        ({"family": "cutlass", "block_k": 16}, "block_k must be one of 32, 64, 128, .*; got 16"),
        ({"family": "cutlass", "step": 32}, "step must be 8 .* or 16 terms; got 32"),
        ({"family": "cutlass", "merge": "pairwise"}, "merge must be one of 0, 1, 2, 4, none, .*; got 'pairwise'"),
        ({"chip": "sm_89", "merge": 2}, "merge must be one of serial, pairwise; got 2"),
        ({"family": "gemm_sn", "option": 2}, "option must be a CUSTOM_OPTION of gemmSN, 0 or 1; got 2"),
        ({"family": "gemv"}, "option of gemv must be one of .*; got None"),
        ({"family": "gemv", "option": 5, "split_k": 2}, "option 5 of gemv was seen without split-K only"),
        ({"merge": 2}, "merge is no field of cuBLAS's nvjet kernels; got 2. They have split_k, fast_accum, tail_loss"),
    ],
)
def test_other_values_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cublas(**words)


@pytest.mark.parametrize(
    ("k", "slices", "terms"), [(3, 5, [3]), (63, 64, [63]), (100, 128, [64, 36]), (200, 300, [64, 64, 64, 8])]
)
def test_fewer_terms_than_slices_of_nvjet_are_cut_by_whole_blocks(k: int, slices: int, terms: list[int]) -> None:
    plan = plan_of(cublas("sm_90", split_k=slices), fp.unit("hopper_f16_f32"), k)
    assert [part.terms for part in plan.slices] == terms
    assert plan.lost.terms == 0


@pytest.mark.parametrize("slices", [1, 2])
def test_a_pairwise_merge_of_up_to_two_slices_is_that_of_the_page(slices: int) -> None:
    """One stays as it is; two are p_1 + p_0, the sum of the serial merge."""
    x = job(fp.unit("ada_e4m3_f32"), spread, (4, 512, 4))
    serial, pairwise = (multiplied(x, cublas("sm_89", split_k=slices, merge=m)) for m in ("serial", "pairwise"))
    assert_bits_equal(pairwise, serial)
    plan = plan_of(cublas("sm_89", split_k=5, merge="pairwise"), x.unit, 200)
    assert [part.terms for part in plan.slices] == [64, 64, 64, 8, 0]  # the one without a run counts for S
