"""The pictures on the page of a study: SVG, each with a title."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from fpsim.analysis.studies.results import StudyResults
from fpsim.analysis.studies.summaries import CandidateSummary, RoundingSummary, hardest, of_role
from fpsim.analysis.tensors.roles import OPERANDS
from fpsim.display.pages import Picture, markup
from fpsim.display.wording import plural
from fpsim.formats.named import Format

ROLES = {"matrix": "Weights", "activation": "Activations", "gradient": "Gradients"}
HISTOGRAMS = 10  # most tensors of a role in a picture


def drawable() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def candidate_pictures(report: StudyResults, summaries: Sequence[CandidateSummary]) -> list[Picture]:
    """Return a picture of SQNR deficits for each role (weights, activations, gradients) that has operands."""
    from fpsim.analysis.studies.figures import candidates_figure

    pictures = []
    for role in OPERANDS:
        mine = of_role(summaries, role)
        if mine:
            title = f"{ROLES[role]} ({plural(len(mine[0].judged), 'tensor')})"
            figure = candidates_figure(mine, report.requirements.min_sqnr)
            pictures.append(_picture(figure, f"candidates-{role}", title, f"SQNR of {title} by candidate"))
    return pictures


def rounding_pictures(rows: Sequence[RoundingSummary]) -> list[Picture]:
    """Return two pictures, of the gain and of the SQNR, with a row for each format and rounding; [] without `rows`."""
    from fpsim.analysis.studies.figures import rounding_figures

    return [
        _picture(figure, f"roundings-{i}", title, f"{title}, by format and rounding")
        for i, (title, figure) in enumerate(rounding_figures(rows))
    ]


def range_pictures(report: StudyResults) -> list[Picture]:
    """Return for each role of operands a picture of the magnitudes of 10 tensors at most, the hardest first."""
    from fpsim.analysis.measures.exponent_figure import exponent_figure, window_of

    formats = [fmt for fmt in report.formats if isinstance(fmt, Format)]
    groups: dict[str, list[str]] = {}
    for row in hardest(report):
        names = groups.setdefault(row.role, [])
        if len(names) < HISTOGRAMS:
            names.append(row.tensor)
    shown = [one.report for names in groups.values() for name in names for one in report.ranges_of[name]]
    if not shown:
        return []
    window = window_of(shown, formats)
    pictures = []
    for role in OPERANDS:
        if role in groups:
            rows = [(name, [one.report for one in report.ranges_of[name]]) for name in groups[role]]
            figure = exponent_figure(rows, formats, "", window)
            pictures.append(_picture(figure, f"ranges-{role}", ROLES[role], f"Magnitudes of {ROLES[role].lower()}"))
    return pictures


def _picture(figure: Any, name: str, title: str, label: str) -> Picture:
    """Return a matplotlib figure as an SVG picture.

    `name`: prefix of the ids in the SVG. `label`: description for screen readers.
    """
    from fpsim.display.figure import to_svg

    return Picture(title, markup(to_svg(figure, name, label)))
