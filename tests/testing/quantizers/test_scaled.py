"""Quantizers with scales: recipes are named, and codes, scales and axes told apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.scaling.recipes import ROWS
from tests.kit.sweeps import case, sweep

S = fp.scalings
BOTH = {"codes", "scales"}


def matrix() -> Any:
    rng = np.random.default_rng(1)
    x = np.random.default_rng(0).standard_normal((130, 300)) * np.exp2(rng.integers(-9, 9, (130, 1)))
    return x.astype(np.float32)


def report(fn: Callable[..., Any], fmt: str, scaling: fp.Scaling) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, scaling=scaling, raises=False)


NAMES = ("ROW", "TILE_1X128", "MX", "NVFP4", "TE_MX")
RESULTS = ("scaled", "pair", "values")


@sweep(
    "calls",
    [(name, result) for i, name in enumerate(NAMES) for result in RESULTS if name == "MX" or result == RESULTS[i % 3]],
    list(itertools.product(NAMES, RESULTS)),
)
def test_fpsims_own_encodings_pass_as_scaled_pairs_and_values(calls: list[tuple[str, str]]) -> None:
    for name, result in calls:
        with case(name, result):
            check_own(ROWS[name], result)


def check_own(scaling: fp.Scaling, result: str) -> None:

    def pair(x: Any) -> Any:
        q = fp.encode_scaled(x, "e4m3", scaling)
        return q.codes, q.scales

    own: dict[str, Callable[[Any], Any]] = {
        "scaled": lambda x: fp.encode_scaled(x, "e4m3", scaling),
        "pair": pair,
        "values": lambda x: fp.quantize_scaled(x, "e4m3", scaling),
    }
    found = report(own[result], "e4m3", scaling)
    assert found.ok, found


def test_integers_pass() -> None:
    assert report(lambda x: fp.encode_scaled(x, "int8", S.ROW), "int8", S.ROW).ok


@sweep("some", list(ROWS)[::4], list(ROWS))
def test_every_recipe_is_identified_by_its_results(some: list[str]) -> None:
    x = matrix()
    for name in some:
        scaling = ROWS[name]
        found = fp.testing.identify_scaling(lambda x, s=scaling: fp.encode_scaled(x, "e4m3", s), "e4m3", x)
        assert found.exact, (name, str(found))
        assert name in found.names, (name, str(found))


def turned(scaling: fp.Scaling, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def encode(x: Any) -> Any:
        q = fp.encode_scaled(x, "e4m3", scaling)
        return q.codes, change(q.scales)

    return encode


@pytest.mark.parametrize(
    ("fn", "asked", "cause", "broken"),
    [
        (lambda x: fp.encode_scaled(x, "e4m3", S.MX_CEIL), S.MX, "has scale_rule='ceil', not 'floor'", BOTH),
        (
            lambda x: fp.encode_scaled(x, "e4m3", S.TILE_128X1), S.TILE_1X128, "has block=(128, 1), not (1, 128)",
            {"codes", "axis"},
        ),
        (
            lambda x: fp.encode_scaled(x, "e4m3", S.TILE_1X128.replace(amax_floor=1e-10)), S.TILE_1X128,
            "has amax_floor=1e-10, not 0.0", {"codes", "scales"},
        ),
        (turned(S.ROW, lambda s: np.float32(1) / s), S.ROW, "lays its scales out as tiles reciprocal", {"scales"}),
        (
            turned(S.BLOCK_128X128, lambda scales: scales.T.copy()), S.BLOCK_128X128,
            "lays its scales out as transposed", {"scales"},
        ),
    ],
)  # fmt: skip
def test_wrong_scales_are_named(fn: Any, asked: fp.Scaling, cause: str, broken: set[str]) -> None:
    found = report(fn, "e4m3", asked)
    assert found.causes == (cause,), found
    assert {one.property for one in found.broken} == broken


def test_another_block_behind_values_is_named() -> None:
    found = report(lambda x: fp.quantize_scaled(x, "e2m1", S.NVFP4), "e2m1", S.MX)
    assert "has block=(1, 16), not (1, 32)" in found.causes
    assert "= fp.scalings.NVFP4 (0 differ from that)" in str(found)


def test_bad_results_are_said() -> None:
    (broken,) = report(lambda x: "nothing", "e4m3", S.MX).broken
    assert broken.property == "returns"
    with pytest.raises(TypeError, match=r"scaling must be an fp\.Scaling, such as fp\.scalings\.MX; got 'MX'"):
        fp.testing.check_quantizer(abs, "e4m3", scaling="MX")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must be a float32 matrix; got"):
        fp.testing.identify_scaling(abs, "e4m3", [1.0])


def test_a_check_compiles_no_loop_for_a_single_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries hundreds, and a loop takes a second to compile."""
    from fpsim.scaling import plan, run_tiles
    from fpsim.scaling.kernels import elements as kernels
    from fpsim.scaling.kernels import scales

    settles, elements = scales.settle_kernel, kernels.element_strips
    fixed: list[Any] = []

    def settle_kernel(width: int, encodes: bool, choices: Any) -> Any:
        fixed.append(choices)
        return settles(width, encodes, choices)

    def element_strips(how: Any) -> Any:
        fixed.append(how.choices)
        return elements(how)

    monkeypatch.setattr(plan, "settle_kernel", settle_kernel)
    monkeypatch.setattr(run_tiles, "element_strips", element_strips)
    for scaling in (fp.scalings.MX, fp.scalings.NVFP4):
        assert fp.testing.check_quantizer(
            lambda x, how=scaling: fp.encode_scaled(x, "e4m3", how), "e4m3", scaling=scaling
        ).ok
    assert len(fixed) > 500
    assert set(fixed) == {None}
