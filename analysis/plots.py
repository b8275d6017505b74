"""Pictures of a study: exponent histograms over the formats' ranges, underflow, SQNR. The one place with matplotlib."""

from __future__ import annotations

import contextlib
import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fpsim.analysis.optional import load
from fpsim.analysis.range import RangeReport
from fpsim.analysis.wording import power, short
from fpsim.cast import FormatLike
from fpsim.formats import Format
from fpsim.formats import format as find_format

if TYPE_CHECKING:
    from fpsim.analysis.study_report import StudyReport

matplotlib = load("matplotlib", "drawing")

WIDTH = 4.0  # inches; a figure fills a phone, and a few stand side by side on a desktop
INK, QUIET, GRID = "#222222", "#666666", "#dddddd"
DATA = "#4d5a66"
# Okabe and Ito's colours, which colour-blind readers tell apart.
COLORS = {"E4M3": "#0072B2", "E5M2": "#D55E00", "FP16": "#009E73", "BF16": "#CC79A7", "E2M1": "#E69F00"}
OTHER_COLORS = ("#56B4E9", "#7A5C00", "#8A4FBF", "#000000", "#8DB600")
STYLE = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "text.color": INK,
    "text.parse_math": False,  # a $ in a tensor's name is a $
    "xtick.color": QUIET,
    "ytick.color": INK,
    "ytick.major.size": 0,
    "xtick.labelsize": 7,
    "figure.facecolor": "white",
    "svg.fonttype": "none",  # text stays text: it can be searched, and no font is embedded
    "svg.hashsalt": "fpsim",  # the same picture gives the same bytes
}


def color(name: str, formats: Sequence[str]) -> str:
    """The colour of a format among those of a study."""
    if name in COLORS:
        return COLORS[name]
    others = [one for one in formats if one not in COLORS]
    return OTHER_COLORS[others.index(name) % len(OTHER_COLORS)]


@contextlib.contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has fonts for other scripts
        yield


def _axes(ax: Any, height: float) -> Any:
    if ax is not None:
        return ax
    pyplot = load("matplotlib.pyplot", "drawing")
    return pyplot.subplots(figsize=(WIDTH + 1.5, height), layout="constrained")[1]


def to_svg(figure: Any, name: str, title: str) -> str:
    """A figure as an <svg> element for inline use: ids start with its name, and screen readers get its title."""
    from html import escape

    text = io.StringIO()
    with _style():
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\1{name}-", svg)
    svg = svg.replace(
        'xmlns="http://www.w3.org/2000/svg"',
        f'xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}"',
    )
    return svg.strip()


def _new_figure(height: float) -> Any:
    return load("matplotlib.figure", "drawing").Figure(figsize=(WIDTH, height), layout="constrained")


# ---- exponent histograms


def _extent(fmt: Format) -> tuple[int, int, int]:
    """Exponents: of the smallest subnormal, the smallest normal, and one above the largest value."""
    lowest, top = (math.frexp(value)[1] - 1 for value in (fmt.smallest_subnormal, fmt.max))
    return lowest, fmt.min_exponent, top + 1


def _window(reports: Sequence[RangeReport], formats: Sequence[Format]) -> tuple[int, int]:
    """The exponents to show: where data lies (but for a thousandth at either end) and the 8-bit formats reach."""
    low = [low for report in reports if (low := report.quantile(0.001)) is not None]
    high = [math.frexp(report.amax)[1] - 1 for report in reports if report.amax > 0]
    small = [_extent(fmt) for fmt in formats if fmt.exponent_bits <= 5] or [(-10, -8, 8)]
    left = min([*low, *(extent[0] for extent in small)])
    right = max([*high, *(extent[2] for extent in small)])
    return max(left, right - 80) - 1, right + 2


def exponent_figure(
    rows: Sequence[tuple[str, Sequence[RangeReport]]],
    formats: Sequence[Format],
    title: str,
    window: tuple[int, int] | None,
) -> Any:
    """A row of histograms for each tensor, one per step, the last one filled."""
    with _style():
        figure = _new_figure(0.75 + 0.17 * len(formats) + 0.4 * len(rows))
        ax = figure.add_subplot()
        _draw_exponents(ax, rows, formats, window)
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold")
        return figure


def exponent_axes(
    rows: Sequence[tuple[str, RangeReport]], formats: Sequence[FormatLike] = tuple(COLORS), ax: Any = None
) -> Any:
    """Draw one histogram per row into axes, over the ranges of formats."""
    with _style():
        ax = _axes(ax, 1.6 + 0.5 * len(rows))
        _draw_exponents(ax, [(name, [report]) for name, report in rows], [find_format(fmt) for fmt in formats], None)
        return ax


def window_of(reports: Sequence[RangeReport], formats: Sequence[Format]) -> tuple[int, int]:
    """The exponents that a set of figures shows, so that they can be compared."""
    return _window(reports, formats)


def _draw_exponents(
    ax: Any,
    rows: Sequence[tuple[str, Sequence[RangeReport]]],
    formats: Sequence[Format],
    window: tuple[int, int] | None,
) -> None:
    left, right = window or _window([report for _, reports in rows for report in reports], formats)
    names = [fmt.name for fmt in formats]
    strip = 0.42  # height of a format's bar, in rows
    bottom = len(rows) + 0.1
    for i, fmt in enumerate(formats):
        tint = color(fmt.name, names)
        lowest, normal, top = _extent(fmt)
        y = -strip * (len(formats) - i) - 0.15
        begin, end = max(lowest, left), min(top, right)
        ax.fill_between([begin, end], y + 0.04, y + strip - 0.06, color=tint, alpha=0.25, linewidth=0)
        ax.fill_between([max(normal, left), end], y + 0.04, y + strip - 0.06, color=tint, alpha=0.75, linewidth=0)
        wide = end - max(normal, left) > 0.1 * (right - left)
        ax.text(
            (max(normal, left) + end) / 2 if wide else end + 0.4, y + strip / 2, fmt.name, fontsize=6.5,
            ha="center" if wide else "left", va="center_baseline", fontweight="bold", color="white" if wide else INK,
            clip_on=True,
        )  # fmt: skip
        for x in (lowest, top):
            if left < x < right:
                ax.plot([x, x], [y + strip / 2, bottom], color=tint, linewidth=0.8, alpha=0.55, zorder=0)
        ax.fill_between([begin, end], 0, bottom, color=DATA, alpha=0.045, linewidth=0, zorder=-1)
    for i, (_, reports) in enumerate(rows):
        base = i + 0.95
        for j, report in enumerate(reports):
            last = j == len(reports) - 1
            xs, ys = _outline(report, left, right)
            if last:
                ax.fill_between(xs, base, base - 0.85 * ys, color=DATA, alpha=0.75, linewidth=0, zorder=3)
            else:
                ys[(ys == 0) & (np.roll(ys, 1) == 0) & (np.roll(ys, -1) == 0)] = (
                    np.nan
                )  # no line where there is nothing
                ax.plot(xs, base - 0.85 * ys, color=DATA, linewidth=0.6, alpha=0.45 + 0.25 * j, zorder=4)
        ax.plot([left, right], [base, base], color=GRID, linewidth=0.6, zorder=1)
    ax.set_xlim(left, right)
    ax.set_ylim(bottom, -strip * len(formats) - 0.25)
    ax.set_yticks([i + 0.7 for i in range(len(rows))], [short(name, 26) for name, _ in rows])
    step = 8 if right - left <= 64 else 16
    ticks = [x for x in range(-1088, 1088, step) if left <= x <= right]
    ax.set_xticks(ticks, [power(x) for x in ticks])
    ax.set_xlabel("magnitude |x|")
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)


def _outline(report: RangeReport, left: int, right: int) -> tuple[Any, Any]:
    """Steps of a histogram over [left, right], 1 at its mode; what lies outside is in the outermost bins."""
    heights = np.zeros(right - left)
    for exponent, count in report.counts:
        heights[min(max(exponent, left), right - 1) - left] += count
    heights /= max(1, heights.max(initial=0))
    edges = np.repeat(np.arange(left, right + 1), 2)[1:-1]
    return np.concatenate([[left], edges, [right]]), np.concatenate([[0], np.repeat(heights, 2), [0]])


# ---- underflow


def underflow_figure(report: StudyReport, tensors: Sequence[str], labels: Sequence[str], title: str) -> Any:
    """The heat map of some tensors."""
    with _style():
        figure = _new_figure(0.95 + 0.23 * len(tensors))
        ax = figure.add_subplot()
        _draw_underflow(ax, report, tensors, labels)
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=32)
        return figure


def underflow_axes(report: StudyReport, tensors: Sequence[str], ax: Any = None) -> Any:
    """Draw the heat map into axes."""
    with _style():
        ax = _axes(ax, 1 + 0.25 * len(tensors))
        _draw_underflow(ax, report, tensors, tensors)
        return ax


def _draw_underflow(ax: Any, report: StudyReport, tensors: Sequence[str], labels: Sequence[str]) -> None:
    columns = [(scaling, fmt) for scaling in report.scales for fmt in report.formats]
    rates = np.full((len(tensors), len(columns)), np.nan)
    for i, tensor in enumerate(tensors):
        for j, (scaling, fmt) in enumerate(columns):
            found = [
                row.report.underflow_rate
                for row in judged(report, tensor)
                if (row.scaling, row.report.fmt) == (scaling, fmt)
            ]
            rates[i, j] = max(found, default=np.nan)
    shades = matplotlib.colormaps["Oranges"]
    levels = np.sqrt(np.nan_to_num(rates))  # so that one per cent can be told from none
    gap = 0.35
    for j, (_, fmt) in enumerate(columns):
        x = j + gap * (j // len(report.formats))
        for i in range(len(tensors)):
            shade = shades(0.85 * levels[i, j]) if rates[i, j] > 0 else "#f7f7f7"
            ax.fill_between([x + 0.03, x + 0.97], i + 0.04, i + 0.96, color=shade, linewidth=0)
            text = "" if np.isnan(rates[i, j]) else _cell(100 * rates[i, j])
            ink = "white" if levels[i, j] > 0.75 else INK if rates[i, j] > 0 else "#999999"
            ax.text(x + 0.5, i + 0.53, text, ha="center", va="center", fontsize=6, color=ink)
        ax.text(x + 0.5, -0.15, fmt.name, ha="center", va="bottom", fontsize=5.8, color=INK)
    for k, scaling in enumerate(report.scales):
        middle = (k + 0.5) * len(report.formats) + gap * k
        words = "no scale" if scaling == "none" else "amax scale"
        ax.text(middle, -0.95, words, ha="center", va="bottom", fontsize=7.5, color=QUIET)
    ax.set_xlim(-0.1, len(columns) + gap * (len(report.scales) - 1) + 0.1)
    ax.set_ylim(len(tensors), 0)
    ax.set_yticks([i + 0.5 for i in range(len(tensors))], [short(label, 22) for label in labels])
    ax.set_xticks([])
    for spine in ax.spines.values():
        spine.set_visible(False)


def _cell(value: float) -> str:
    if value == 0:
        return "0"
    if value < 0.1:
        return f"{value:.2f}"[1:] if value >= 0.005 else "+0"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}" if value <= 99.5 or value == 100 else ">99"


def judged(report: StudyReport, tensor: str) -> list[Any]:
    """A tensor's error rows of the rounding that pictures show."""
    return [row for row in report.errors_of.get(tensor, ()) if row.report.rounding == report.judged_rounding]


# ---- SQNR


def sqnr_figure(report: StudyReport, tensors: Sequence[str], labels: Sequence[str], title: str) -> Any:
    """Bars per tensor and format: with the best-placed scale, and a mark for the value without one."""
    with _style():
        count = len(report.formats)
        figure = _new_figure(0.95 + (0.14 + 0.075 * count) * len(tensors))
        ax = figure.add_subplot()
        _draw_sqnr(ax, report, tensors, labels)
        ax.set_title(title, loc="left", fontsize=9, fontweight="bold", pad=20)
        return figure


def _draw_sqnr(ax: Any, report: StudyReport, tensors: Sequence[str], labels: Sequence[str]) -> None:
    names = [fmt.name for fmt in report.formats]
    scaled = "amax" if "amax" in report.scales else report.scales[0]
    height = 0.8 / len(names)
    for i, tensor in enumerate(tensors):
        for j, fmt in enumerate(report.formats):
            y = i + 0.1 + height * (j + 0.5)
            worst: dict[str, float] = {}
            for row in judged(report, tensor):
                if row.report.fmt == fmt and not math.isnan(row.report.sqnr_db):
                    worst[row.scaling] = min(worst.get(row.scaling, math.inf), row.report.sqnr_db)
            if scaled in worst:
                ax.barh(
                    y, min(max(worst[scaled], 0), 100), height=0.86 * height, color=color(fmt.name, names), linewidth=0
                )
            if "none" in worst and scaled != "none":
                x = min(max(worst["none"], 0), 100)
                ax.plot([x, x], [y - 0.43 * height, y + 0.43 * height], color=INK, linewidth=1.3, solid_capstyle="butt")
    ax.set_ylim(len(tensors), 0)
    ax.set_yticks([i + 0.5 for i in range(len(tensors))], [short(label, 26) for label in labels])
    ax.set_xlim(0, max(80, ax.get_xlim()[1]))
    ax.set_xlabel("SQNR in dB, worst step")
    ax.grid(axis="x", color=GRID, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
    patches = [matplotlib.patches.Patch(color=color(name, names), label=name) for name in names]
    ax.legend(
        handles=patches, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names), frameon=False, fontsize=7,
        handlelength=0.9, handletextpad=0.4, columnspacing=1.0, borderpad=0,
    )  # fmt: skip
