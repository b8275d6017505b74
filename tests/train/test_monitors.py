"""Watchers of a step: what products lose, against plain counting, and the first Inf or NaN, by name."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch = pytest.importorskip("torch")
from fpsim.torch.products import CastOperand  # noqa: E402
from fpsim.train.monitors import CastFigures, Overflows, StepWatch, figures  # noqa: E402
from tests.kit.sweeps import in_turn  # noqa: E402


def cast(x: Any, fmt: Any, scaling: Any = None, **options: Any) -> CastOperand:
    if scaling is None:
        return CastOperand(x, fp.encode(x, fmt, **options), fmt)
    return CastOperand(x, fp.encode_scaled(x, fmt, scaling, **options), None)


def counted(operand: CastOperand, largest: float) -> CastFigures:
    """The figures by fractions, a value at a time; `largest` in the element format."""
    pairs = list(zip(operand.source.ravel().tolist(), operand.values.ravel().tolist(), strict=True))
    codes = operand.encoded if operand.fmt else operand.encoded.codes
    fmt = operand.fmt or operand.encoded.fmt
    elements = np.abs(fp.decode(codes, fmt)).ravel().tolist()
    nonzero = [pair for pair in pairs if pair[0]]
    lost = sum(value == 0 for _, value in nonzero)
    top = sum(not element < largest for element in elements)
    noise = sum((Fraction(value) - Fraction(source)) ** 2 for source, value in pairs)
    signal = sum(Fraction(source) ** 2 for source, _ in pairs)
    sqnr = 10 * math.log10(signal / noise) if noise else math.inf
    return CastFigures(lost / len(nonzero), beyond(operand, fmt), top / len(pairs), sqnr)


def beyond(operand: CastOperand, fmt: Any) -> float:
    """The share of values that nearest-even rounding takes beyond a format's range, by fractions."""
    scales = np.ones_like(operand.source)
    if operand.fmt is None:
        grid = operand.encoded.scales
        sizes = [length // count for length, count in zip(scales.shape, grid.shape, strict=True)]
        scales = grid.repeat(sizes[0], 0).repeat(sizes[1], 1)
    limit = Fraction(fmt.max) + Fraction(float(fmt.ulp(fmt.max))) / 2
    count = 0
    for quotient in np.abs(operand.source / scales).ravel().tolist():
        size = Fraction(quotient)
        count += size > limit or (size == limit and fmt.max_code % 2 == 1)
    return count / operand.source.size


@in_turn("fmt", [fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16])
@in_turn("scaling", [None, fp.scalings.TILE_1X128, fp.scalings.MX])
def test_figures_are_what_counting_finds(fmt: Any, scaling: Any) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((6, 256)) * 2.0 ** rng.integers(-18, 9, (6, 256))).astype(np.float32)
    x[0, :9] = 0.0
    operand = cast(x, fmt, scaling, overflow="saturate")
    found, wanted = figures(operand), counted(operand, fmt.max)
    assert found[:3] == wanted[:3]
    assert found.saturation == fp.analysis.error(x, fmt, scaling=scaling, overflow="saturate").saturation_rate
    if scaling is None:
        assert (found.saturation > 0) == (np.abs(x).max() > fmt.max)
    assert math.isclose(found.sqnr_db, wanted.sqnr_db, rel_tol=1e-9)
    assert figures(operand.transposed) == pytest.approx(found, rel=1e-12)


def test_saturation_is_that_of_the_report_of_errors() -> None:
    x = np.array([[448, 464, 465, -500, 1e9, 2.0**-30, 0, 1]], np.float32)
    for overflow in ("saturate", "nonfinite"):
        report = fp.analysis.error(x, "e4m3", overflow=overflow)
        assert figures(cast(x, fp.E4M3, overflow=overflow)).saturation == 3 / 8
        assert report.saturation_rate + report.overflow_rate == report.beyond_rate == 3 / 8
    for dtype in (np.float16, np.float64):
        assert figures(cast(np.minimum(x, 6e4).astype(dtype), fp.E4M3)).saturation == 3 / 8


def test_a_scale_that_follows_the_maximum_saturates_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    report = figures(cast(x, fp.E4M3, fp.scalings.TILE_1X128))
    assert report.saturation == 0
    assert report.at_maximum >= 8 / x.size  # one a tile at least
    floored = figures(cast(x, fp.E4M3, fp.scalings.MX))
    assert floored.saturation == fp.analysis.error(x, "e4m3", scaling=fp.scalings.MX).saturation_rate > 0
    for fmt in ("int8", "logfmt-8"):
        assert figures(cast(x, fmt, fp.scalings.TILE_1X128)).saturation == 0


def test_operands_that_nothing_was_done_to_lose_nothing() -> None:
    x = np.array([[1.0, math.nan]], np.float32)
    assert figures(CastOperand(x, x, None)) == (0.0, 0.0, 0.0, math.inf)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([0.0, -0.0, 0.0, 0.0], (0.0, 0.0, 0.0, math.nan)),  # no signal
        ([1.0, 2.0, 4.0, -8.0], (0.0, 0.0, 0.0, math.inf)),  # no noise
        ([math.nan, 1.0, 1.0, 1.0], (0.0, 0.0, 0.25, math.nan)),
        ([math.inf, 1.0, 1.0, 2.0**-30], (0.25, 0.25, 0.25, math.nan)),
        ([-448.0, 448.0, 2.0**-30, 1.0], (0.25, 0.0, 0.5, None)),
    ],
)
def test_special_values_have_figures(values: list[float], wanted: Any) -> None:
    report = figures(cast(np.array([values], np.float32), fp.E4M3))
    assert report[:3] == wanted[:3]
    if wanted[3] is not None:
        assert repr(report.sqnr_db) == repr(wanted[3])


def layer(recipe: Any) -> Any:
    torch.manual_seed(0)
    return fp.torch.QuantLinear(32, 32, bias=False, recipe=recipe, name="up", backend="float32")


def backward(module: Any, x: Any, scale: float = 1.0) -> None:
    (module(x).sum() * scale).backward()


def test_a_controller_watches_what_lies_beyond_the_range_and_not_the_maximum_of_each_tile() -> None:
    tile = fp.scalings.TILE_1X128
    scaled = fp.torch.LinearRecipe(grad_fmt="e4m3", grad_scaling=tile, grad_scaling_backward=tile)
    raw = fp.torch.LinearRecipe(grad_fmt="e4m3")
    for recipe, scale, wanted in ((scaled, 1.0, (0.0, 1.0)), (raw, 1.0, (0.0, 0.0)), (raw, 1000.0, (1.0, 1.0))):
        module, x = layer(recipe), torch.ones(32, 32)
        for watched, figure in zip(("saturation", "at_maximum"), wanted, strict=True):
            with StepWatch(0, False, watched, ["up"]) as watch:
                backward(module, x, scale)
            assert watch.figures == {"up": figure}


def test_a_watch_keeps_rows_and_the_largest_figure_of_micro_batches() -> None:
    raw = fp.torch.LinearRecipe(grad_fmt="e4m3")
    module, x = layer(raw), torch.ones(32, 32)
    with StepWatch(7, True, "underflow", ["up"], {"up": fp.torch.LinearRecipe(grad_fmt="e5m2")}) as watch:
        backward(module, x, 2.0**-11)  # zero in E4M3, not in E5M2
        backward(module, x)
    assert (watch.figures, watch.below) == ({"up": 1.0}, {"up": 0.0})
    assert [(row["step"], row["layer"], row["product"], row["operand"]) for row in watch.rows[:4]] == [
        (7, "up", "fprop", "input"), (7, "up", "fprop", "weight"),
        (7, "up", "wgrad", "output_gradient"), (7, "up", "wgrad", "input"),
    ]  # fmt: skip
    assert [row["underflow"] for row in watch.rows if row["operand"] == "output_gradient"] == [1.0, 0.0]


def test_a_watch_that_is_asked_nothing_sees_nothing() -> None:
    with StepWatch(0, False) as watch:
        backward(layer(fp.torch.MXFP8), torch.ones(32, 32))
    assert (watch.rows, watch.figures, watch.below) == ([], {}, {})


def test_the_first_overflow_is_named() -> None:
    torch.manual_seed(0)
    recipe = fp.torch.LinearRecipe(grad_fmt="fp16")
    module = fp.torch.QuantLinear(32, 32, bias=False, recipe=recipe, name="up", backend="float32")
    head = torch.nn.Linear(32, 4, bias=False)
    model = {"up": module, "head": head}
    with Overflows(model) as overflows:
        (head(module(torch.ones(32, 32))).sum() * 1e30).backward()
    assert overflows.first == "up, wgrad: 1024 of 1024 values of its result are Inf or NaN"
    with Overflows(model) as overflows, torch.no_grad():
        head.weight[1] = math.nan
        head(module(torch.ones(32, 32)))
    assert overflows.first == "head, forwards: 32 of 128 values of its result are Inf or NaN"
    with Overflows(model) as overflows:
        module(torch.ones(2, 32))
    assert overflows.first == ""
    assert not module._forward_hooks
