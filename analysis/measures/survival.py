"""An assertion for tests that a tensor survives a cast: that the metrics of its error are within thresholds."""

from __future__ import annotations

import math
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.analysis.measures.candidates import Tiles
from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.measures.passes import whole_array
from fpsim.analysis.measures.rounding_error import RoundingWay, Scale, error
from fpsim.arrays import Array, float_array, without_gradient
from fpsim.casts.explain import explain
from fpsim.display.wording import decibels, percent, plural
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.keywords import check_keywords, with_keywords
from fpsim.formats.named import Format
from fpsim.formats.rounding import Rounding
from fpsim.scaling.decode import scale_of_elements
from fpsim.scaling.scaling import Scaling

# Threshold -> (metric of an ErrorReport that it bounds, whether it is a lower bound, the metric in error messages).
LIMITS = {
    "sqnr_db": ("sqnr_db", True, "SQNR"),
    "underflow": ("underflow_rate", False, "values that become zero"),
    "overflow": ("beyond_rate", False, "values beyond the range"),
    "lost_energy": ("lost_energy", False, "energy of values that become zero"),
    "max_relative": ("max_relative", False, "largest relative error"),
    "max_ulp": ("max_ulp", False, "largest error in ulps"),
}


class SurvivalThresholds(TypedDict, total=False):
    """The thresholds of `assert_survives`; None stands for no check of the metric.

    Attributes:
      sqnr_db: the smallest SQNR in dB.
      overflow: the largest share of finite values beyond the format's range, among all values.
      lost_energy: the largest share of sum x^2 in values that become zero.
      underflow: the largest share of nonzero values that become zero, among all values.
      max_relative: the largest |result - x| / |x|.
      max_ulp: the largest error in ulps of the format.
    """

    sqnr_db: float | None
    overflow: float | None
    lost_energy: float | None
    underflow: float | None
    max_relative: float | None
    max_ulp: float | None


USUAL: SurvivalThresholds = {
    "sqnr_db": 20.0, "overflow": 0.0, "lost_energy": 0.001, "underflow": None, "max_relative": None, "max_ulp": None,
}  # fmt: skip


@with_keywords(SurvivalThresholds, USUAL)
def assert_survives(
    x: npt.ArrayLike,
    fmt: FormatLike,
    *,
    scale: Scale = None,
    scaling: Scaling | str | None = None,
    rounding: str | Rounding = "nearest_even",
    subnormals: str = "keep",
    seed: int | None = None,
    **thresholds: Unpack[SurvivalThresholds],
) -> ErrorReport:
    """Raise AssertionError unless a tensor survives a cast, that is unless the metrics of its error are in bounds.

    This is meant for tests of models and kernels. The metrics are those of `fp.analysis.error`; a threshold of None is
    not checked. Elements of x that are Inf or NaN are ignored.

    Args:
      x: array or tensor of floats, of any shape.
      fmt: the format, by name, dtype or object.
      sqnr_db: the smallest signal-to-noise ratio allowed, in dB, 20 by default; 4-bit formats with fine scales have
        about 20.
      overflow: the largest share allowed of finite values beyond the format's range, as a share of all values; 0 by
        default.
      lost_energy: the largest share allowed of sum x^2 in values that become zero; 0.001 by default.
      underflow: the largest share allowed of nonzero values that become zero, as a share of all values; None by
        default.
      max_relative: the largest |result - x| / |x| allowed; None by default.
      max_ulp: the largest error allowed, in ulps of the format; None by default.
      scale, scaling: a scale for all of x, or one for each tile, as for `fp.analysis.error`.
      rounding, subnormals, seed: settings of the cast.

    Returns:
      The ErrorReport of a tensor that survives.

    Raises:
      AssertionError: a metric is outside its threshold; the message has each such metric, and explains the worst value.
      ValueError: x is empty, a threshold is not a number, a metric cannot be measured in this format, or as for
        `fp.analysis.error`.
      TypeError: x is not an array of floats.

    Example:
      >>> x = np.float32([0.5, 3.0, -100.0, 500.0])
      >>> round(fp.testing.assert_survives(x, "e4m3", scale="amax").sqnr_db)
      49
      >>> fp.testing.assert_survives(x, "e4m3")  # doctest: +ELLIPSIS
      Traceback (most recent call last):
      AssertionError: 4 values do not survive E4M3: values beyond the range 25.0 %, wanted at most 0 %.
      The worst is at (3,):
      500.0 in E4M3, rounding nearest_even, overflow nonfinite, subnormals keep
      ...
    """
    check_keywords(assert_survives, thresholds, USUAL)
    limits: dict[str, Any] = {**USUAL, **thresholds}
    for name, limit in limits.items():
        if limit is not None and (isinstance(limit, (bool, str)) or not _is_number(limit)):
            also = " It is not the overflow mode of the cast, which does not matter here." if name == "overflow" else ""
            raise ValueError(f"{name} must be a threshold, a number or None; got {shown(limit)}.{also}")
    array, _ = float_array(without_gradient(x))
    if not array.size:
        raise ValueError(f"x must hold a value; got an empty array, shape {array.shape}.")
    cast: dict[str, Any] = {"rounding": rounding, "subnormals": subnormals, "seed": seed}
    report = error(array, fmt, scale=scale, scaling=scaling, **cast)
    broken = {name: limit for name, limit in limits.items() if limit is not None and _breaks(report, name, limit)}
    if not broken:
        return report
    said = "; ".join(_sentence(report, name, limit) for name, limit in broken.items())
    verb = "does" if report.count == 1 else "do"
    way = RoundingWay(report.fmt, scale if report.scaling is None else report.scaling, **cast)
    worst = _worst(array, report, "overflow" if "overflow" in broken else next(iter(broken)), way)
    raise AssertionError(f"{plural(report.count, 'value')} {verb} not survive {report.format}: {said}.{worst}")


def _is_number(limit: Any) -> bool:
    """Return whether a threshold can be converted to a float other than NaN."""
    try:
        return not math.isnan(float(limit))
    except (TypeError, ValueError):
        return False


def _breaks(report: ErrorReport, name: str, limit: float) -> bool:
    """Return whether a report breaks a threshold; name: a field of `SurvivalThresholds`; limit: its value.

    Raises a ValueError if the metric cannot be measured in the format.
    """
    figure, is_lowest, _ = LIMITS[name]
    if figure in report.unmeasured:
        raise ValueError(f"{name} cannot be measured in {report.format}; got {limit!r}. Leave it out.")
    value = float(getattr(report, figure))
    if math.isnan(value):  # nothing was compared, or only zeros, which every format represents
        return report.sqnr_db != math.inf and name == "sqnr_db"
    return value < limit if is_lowest else value > limit


def _sentence(report: ErrorReport, name: str, limit: float) -> str:
    """Return the clause that states a metric and the threshold that it breaks.

    report: the report with the metric. name: the threshold, a field of `SurvivalThresholds`. limit: its value.
    """
    figure, is_lowest, words = LIMITS[name]
    value = float(getattr(report, figure))
    if math.isnan(value):
        return f"{words} is unknown, as no value is finite before and after the cast"
    in_words = decibels if name == "sqnr_db" else str if name.startswith("max") else percent
    bound = "at least" if is_lowest else "at most"
    return f"{words} {in_words(value)}, wanted {bound} {in_words(limit)}"


def _worst(x: Array, report: ErrorReport, name: str, way: RoundingWay) -> str:
    """Return a text on the element of x that breaks a threshold most: its index, its value, and the result of the cast.

    The text is "" if no element is finite. report: the report on x. name: the threshold, a field of
    `SurvivalThresholds`. way: the settings of the cast.
    """
    wide, cast = x.astype(np.float64), way.keywords
    candidate = way.candidate(x)
    rounded = whole_array(x, candidate)
    result = rounded.results.astype(np.float64).reshape(x.shape)
    scales: Any = scale_of_elements(candidate.scaled) if isinstance(candidate, Tiles) else np.float64(report.scale)
    with np.errstate(all="ignore"):
        lost = np.abs(result - wide)
        if name == "max_ulp":  # measured in float formats and in integers
            fmt: Any = getattr(report.fmt, "magnitudes", report.fmt)
            lost = lost / (fmt.ulp(rounded.exact).reshape(x.shape) * scales)
        badness = {
            "underflow": np.where(result == 0, np.abs(wide), 0), "lost_energy": np.where(result == 0, np.abs(wide), 0),
            "overflow": np.abs(wide / scales), "max_relative": lost / np.abs(wide),
        }.get(name, lost)  # fmt: skip
        compared = np.isfinite(wide) & np.isfinite(result)
        if name != "overflow":  # only elements that the metric compares, unless there are none
            badness = np.where(compared, badness, -1.0 if compared.any() else np.inf)
        badness = np.where(np.isfinite(wide) & ~np.isnan(badness), badness, -1.0)
    at = np.unravel_index(int(badness.argmax()), x.shape)
    if not np.isfinite(wide[at]):
        return ""
    scale = float(np.broadcast_to(scales, x.shape)[at])
    said = f"\nThe worst is at {tuple(map(int, at))}"
    is_scaled, is_usual = scale != 1, scale > 0 and math.isfinite(scale)
    if is_scaled or not isinstance(report.fmt, Format) or cast["seed"] is not None:
        said += f", {float(wide[at])!r}, which{f' with the scale {scale!r}' if is_scaled else ''} becomes "
        said += repr(float(result[at]))
    if not isinstance(report.fmt, Format) or not is_usual or cast["seed"] is not None:
        return f"{said}."
    words: dict[str, Any] = {"rounding": cast["rounding"], "subnormals": cast["subnormals"]}
    if report.scaling is not None:
        words["overflow"] = report.scaling.overflow
    quotient = rounded.exact.reshape(x.shape)[at] if is_scaled else x[at]
    return f"{said}:\n{explain(quotient, report.fmt, **words)}"
