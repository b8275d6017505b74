"""Style of matplotlib figures, and their conversion to SVG."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Literal

from fpsim.display.optional import Axes, load

matplotlib = load("matplotlib", "drawing")


WIDTH = 4.0  # inches; a figure fills a phone's screen, and a few fit side by side on a desktop's
INK, QUIET, GRID = "#222222", "#666666", "#dddddd"
DATA = "#4d5a66"
# Okabe and Ito's colours, which colour-blind readers can distinguish.
COLORS = {"E4M3": "#0072B2", "E5M2": "#D55E00", "FP16": "#009E73", "BF16": "#CC79A7", "E2M1": "#E69F00"}
INTEGER_COLORS = {"INT8": "#56B4E9", "INT4": "#7A5C00"}
OTHER_COLORS = ("#8A4FBF", "#8DB600", "#A3324F", "#2F8F9D")
SHADES = (*COLORS.values(), *OTHER_COLORS)  # of curves, one after another

# Colour, in lower case -> the CSS variable that replaces it, so that figures follow a page's light or dark theme.
THEME = {INK: "ink", QUIET: "quiet", GRID: "grid", DATA: "data", "#ffffff": "paper"} | {
    value.lower(): name.lower() for name, value in (COLORS | INTEGER_COLORS).items()
}

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
    """Return the colour (#rrggbb) of the format `name` in figures that compare `formats`.

    Common formats have fixed colours; others, which must be in `formats`, get one by their order there.
    """
    known = COLORS | INTEGER_COLORS
    if name in known:
        return known[name]
    others = [fmt for fmt in dict.fromkeys(formats) if fmt not in known]
    return OTHER_COLORS[others.index(name) % len(OTHER_COLORS)]


@contextlib.contextmanager
def figure_style() -> Iterator[None]:
    """Return a context manager that applies the style of fpsim's figures."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has fonts for other scripts
        yield


def axes_of(ax: Axes | None, height: float) -> Any:
    """Return `ax`, or, if it is None, the axes of a new pyplot figure that is `height` inches high."""
    if ax is not None:
        return ax
    pyplot = load("matplotlib.pyplot", "drawing")
    return pyplot.subplots(figsize=(WIDTH + 1.5, height), layout="constrained")[1]


def plain_axes(ax: Axes, grid: Literal["both", "x", "y", ""] = "both", *, left: bool = True) -> None:
    """Draw a light grid behind the data, and hide the lines at the top and right of the axes.

    ax: the matplotlib axes. grid: the axis whose grid lines are drawn, "x", "y" or "both"; "" draws none. left: False
    hides the line at the left too.
    """
    if grid:
        ax.grid(axis=grid, color=GRID, linewidth=0.5)
        ax.set_axisbelow(True)
    for side in ("top", "right") if left else ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def to_svg(figure: Any, name: str, title: str) -> str:
    """Return a matplotlib figure as an <svg> element to be put into an HTML page.

    name: beginning of all ids in it. title: text that screen readers read. Colours become CSS variables of the page.
    """
    text = io.StringIO()
    with figure_style():
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
    themed = {value: f"var(--{name}, {value})" for value, name in THEME.items()}  # the colour is the fallback
    svg = re.sub(r"#[0-9a-f]{6}\b(?=[;\"])", lambda match: themed.get(match[0], match[0]), svg)
    svg = svg.replace("'DejaVu Sans'", "system-ui, 'DejaVu Sans', sans-serif")
    return re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg)).strip()


def blank_figure(height: float, layout: str = "constrained") -> Any:
    """Return a matplotlib figure without axes or window, `height` inches high.

    layout: matplotlib's layout engine, by which axes are moved to make room for labels; "none" never moves them.
    """
    return load("matplotlib.figure", "drawing").Figure(figsize=(WIDTH, height), layout=layout)
