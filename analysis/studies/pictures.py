"""The pictures on the page of a study: which tensors share a figure, and what to see in it."""

from __future__ import annotations

import importlib.util
import math
from html import escape

from fpsim.analysis.studies.results import StudyResults
from fpsim.errors import install

PICTURED = 48  # tensors; more make pictures that nobody reads
PER_FIGURE = 12
ROLES = {"input": "Layer inputs", "weight": "Weights", "output gradient": "Output gradients"}


def _groups(report: StudyResults) -> list[tuple[str, list[str], list[str]]]:
    """(title, tensors, labels) of each figure: by role where layers have one, else a dozen tensors at a time."""
    names = list(report.ranges_of)
    first = {name: rows[0] for name, rows in report.ranges_of.items()}
    if names and all(first[name].role for name in names):
        layers = list(dict.fromkeys(first[name].layer for name in names))
        groups = []
        for role in dict.fromkeys(first[name].role for name in names):
            mine = sorted((n for n in names if first[n].role == role), key=lambda n: layers.index(first[n].layer))
            groups.append((ROLES.get(role, role), mine, [first[name].layer for name in mine]))
        return groups
    if len(names) > PICTURED:
        worst = sorted(report.recommendations, key=lambda row: (row.met, _nan_last(row.sqnr_db)))[:PICTURED]
        chosen = {row.tensor for row in worst}
        names = [name for name in names if name in chosen]
    parts = [names[i : i + PER_FIGURE] for i in range(0, len(names), PER_FIGURE)]
    return [("Tensors" if len(parts) == 1 else f"Tensors, part {i + 1}", part, part) for i, part in enumerate(parts)]


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def pictures(report: StudyResults) -> str:
    groups = _groups(report)
    if not groups:
        return ""
    if importlib.util.find_spec("matplotlib") is None:
        return f"<h2>Pictures</h2><p>Pictures need matplotlib: {escape(install('plot'))}</p>"
    from fpsim.analysis.measures.exponent_figure import exponent_figure, window_of
    from fpsim.analysis.studies.figures import sqnr_figure, underflow_figure
    from fpsim.display.figure import to_svg

    shown = sum(len(names) for _, names, _ in groups)
    reports = [row.report for _, names, _ in groups for name in names for row in report.ranges_of[name]]
    window = window_of(reports, report.formats)
    kinds: list[tuple[str, str, str, list[str]]] = [
        ("Where the values lie", "exponents", EXPONENTS_CAPTION, []),
        ("What becomes zero", "underflow", UNDERFLOW_CAPTION, []),
        ("How much precision is left", "sqnr", SQNR_CAPTION, []),
    ]
    if any(len(rows) > 1 for rows in report.ranges_of.values()):
        kinds[0] = (*kinds[0][:2], kinds[0][2] + STEPS_CAPTION, [])
    for i, (title, names, labels) in enumerate(groups):
        histograms = [
            (label, [row.report for row in report.ranges_of[name]]) for name, label in zip(names, labels, strict=True)
        ]
        figures = (
            exponent_figure(histograms, report.formats, title, window),
            underflow_figure(report, names, labels, title),
            sqnr_figure(report, names, labels, title),
        )
        for (heading, kind, _, found), figure in zip(kinds, figures, strict=True):
            svg = to_svg(figure, f"{kind}{i}", f"{heading}: {title}")
            found.append(f"<figure>{svg}</figure>")
    omitted = len(report.ranges_of) - shown
    note = (
        f"<p class='quiet'>The pictures show the {shown} tensors that are hardest to store; {omitted} more are in the "
        "tables.</p>"
        if omitted
        else ""
    )
    return "\n".join(
        f"<h2 id='{kind}'>{heading}</h2><p>{caption}</p>{note}<div class='figures'>{''.join(found)}</div>"
        for heading, kind, caption, found in kinds
    )


EXPONENTS_CAPTION = (
    "A histogram of magnitudes for each tensor, by powers of two. The bars above show what each format reaches: its "
    "normal values in full colour, its subnormals, which lose precision, in the lighter tint; the lines drop from "
    "its ends. What lies left of a format's range is lost, what lies right of it overflows. A scale moves a "
    "histogram sideways without changing its width. "
)
STEPS_CAPTION = "Filled is the last step, the outlines are the earlier ones."
UNDERFLOW_CAPTION = (
    "Per cent of all elements that are not zero and become zero, at the worst step; +0 is less than 0.005."
)
SQNR_CAPTION = (
    "Bars: with an amax scale. Black marks: without a scale. A format gives its full precision where the range fits, "
    "and a scale changes little then; a mark far left of its bar asks for one."
)
