"""Short arrays share a loop that reads recipe and rounding at run time; longer ones have loops of their own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import fpsim as fp
from fpsim.casts import pipelines
from fpsim.runtime.compile import KERNELS
from fpsim.scaling import plan, tile_jobs
from fpsim.testing import assert_bits_equal
from tests.oracles import casts
from tests.scaling.checks import assert_same_encoding, preset
from tests.scaling.data import anything, normal, wide
from tests.scaling.test_presets import ROWS

CASES = [(name, "nearest_even") for name in ROWS]
CASES += [("TILE_1X128", mode) for mode in casts.MODES if mode != "nearest_even"]
MORE = [case for case in zip(ROWS, itertools.cycle(casts.MODES), strict=False) if case not in CASES]


@pytest.mark.parametrize(
    ("name", "rounding"), [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)]
)
def test_both_kinds_of_loops_give_the_same_bits(name: str, rounding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: list[Any] = [wide((40, 130)), anything((7, 50))]
    options: dict[str, Any] = {"rounding": rounding, "seed": 3}
    encoded: list[list[Any]] = []
    for longest_brief in (0, arrays[0].size):
        monkeypatch.setattr(tile_jobs, "SHORT", longest_brief)
        monkeypatch.setattr(plan, "FEW_TILES", longest_brief)
        encoded.append([fp.encode_scaled(x, fp.E4M3, preset(name), **options) for x in arrays])
    for long, brief in zip(*encoded, strict=True):
        assert_same_encoding(long, brief)
        assert long.report == brief.report


@pytest.mark.parametrize("fmt", [fp.INT8, fp.INT4, fp.E2M1], ids=str)
@pytest.mark.parametrize("rounding", ["up", "stochastic"])
def test_so_they_do_for_integers_and_for_values(fmt: Any, rounding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x: Any = anything((7, 50))
    options: dict[str, Any] = {"rounding": rounding, "seed": 3}
    found: list[Any] = []
    for longest_brief in (0, x.size):
        monkeypatch.setattr(tile_jobs, "SHORT", longest_brief)
        codes = fp.encode_scaled(x, fmt, fp.scalings.TILE_1X128, **options).codes
        found.append((codes, fp.quantize_scaled(x, fmt, fp.scalings.TILE_1X128, **options)))
    for long, brief in zip(*found, strict=True):
        assert_bits_equal(long, brief)


FROZEN = [("TILE_1X128", fp.E4M3), ("NVFP4", fp.E2M1), ("MX", fp.E5M2), ("TENSOR", fp.E4M3), ("BLOCK_128X128", fp.E3M2)]


@pytest.mark.parametrize(
    ("name", "fmt", "convert"),
    [
        # each is a loop of its own, which takes seconds to compile
        pytest.param(name, fmt, convert, id=f"{name}-{convert.__name__}", marks=[pytest.mark.slow] * (i > 0))
        for i, (convert, (name, fmt)) in enumerate(itertools.product((fp.encode_scaled, fp.quantize_scaled), FROZEN))
    ],
)
def test_loops_with_a_formats_layout_compiled_in_give_the_same_bits(
    name: str, fmt: fp.Format, convert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays: list[Any] = [wide((40, 384)), normal((130, 128)), anything((7, 64))]
    general = [convert(x, fmt, preset(name)) for x in arrays]
    monkeypatch.setattr(pipelines, "LARGE", 1)
    monkeypatch.setattr(tile_jobs, "FUSED", 1)
    for x, want in zip(arrays, general, strict=True):
        got = convert(x, fmt, preset(name))
        (assert_same_encoding if convert is fp.encode_scaled else assert_bits_equal)(want, got)


def test_another_recipe_or_rounding_of_a_short_array_compiles_nothing() -> None:
    x = normal((3, 40))
    fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
    before = len(KERNELS)
    for name, rounding in (("MX", "up"), ("NVFP4", "stochastic"), ("TORCHAO_128X1", "odd"), ("DEEPGEMM_1X128", "down")):
        scaling = preset(name).replace(block=(1, 20))
        fp.encode_scaled(x, "e5m2", scaling, rounding=rounding, seed=1)
        fp.encode_scaled(x, "int8", scaling, rounding=rounding, seed=1)
    assert len(KERNELS) == before
