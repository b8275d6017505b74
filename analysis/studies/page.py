"""The page of a study: one HTML file that needs no other files, for phones and desktops."""

from __future__ import annotations

import html
import importlib.util
import math
from collections.abc import Iterable, Sequence
from typing import Any

from fpsim.analysis.studies.candidates import scaling_words
from fpsim.analysis.studies.recommend import SCALE_GAIN_DB
from fpsim.analysis.studies.results import StudyResults
from fpsim.analysis.studies.rows import RangeRow, Recommendation, Requirements, TensorGroup
from fpsim.analysis.studies.summaries import (
    NOTABLE_DB,
    CandidateSummary,
    Course,
    RoundingSummary,
    candidate_summaries,
    courses,
    exceptions,
    folded,
    hardest,
    of_role,
    ordered,
    rounding_sentence,
    rounding_summaries,
    specials,
    words,
)
from fpsim.analysis.studies.worst import CHANNEL_MARGIN_DB, HEADROOM
from fpsim.analysis.tensors.roles import OPERANDS, SPOKEN
from fpsim.display.pages import Picture, TableCell, TableRow, markup, render, versions
from fpsim.display.tables import html_table
from fpsim.display.wording import bytes_in_words, decibels, listed, percent, plural
from fpsim.errors import install
from fpsim.formats.named import Format

EXCEPTIONS = 12  # rows of the table of exceptions; the table of all tensors has the rest
LISTED = 2000  # most rows of a table; the files have all
UNFOLDED = 40  # most names of a group
HISTOGRAMS = 10  # most tensors of a role in a picture
OUTLINES = 4  # most steps of a tensor in a picture
SHOWN_STEPS = 12  # most steps of a list in a sentence or table cell; the files have all
ROLES = {"matrix": "Weights", "activation": "Activations", "gradient": "Gradients"}

KEPT = "For a tensor that keeps its dtype, SQNR and lost energy are those of the closest candidate."
PLOTS = f"Pictures need matplotlib: {install('plot')}"

DEFINITIONS = (
    ("SQNR", "10 log10 of the sum of x² over the sum of (result − x)², in decibels, over elements whose input and "
     "result are both finite. Every 6 dB is one bit."),
    ("Deficit", "the SQNR of the format on data that suits it, minus the SQNR of the tensor. For floats these data are "
     "normal, and their range fits: 31.5 dB for E4M3, 25.5 for E5M2, 55.6 for BF16, 73.7 for FP16. For integers they "
     "are uniform (48.1 dB for INT8), which few tensors are: the picture has that deficit, the tables have none."),
    ("Gain", "the sum of x · result divided by the sum of x²: below 1 where rounding shrinks values."),
    ("Lost energy", "the share of the sum of x² in elements that become zero."),
    ("Bits per value", "the bits of an element, and its share of the bits of the scales."),
    ("One scale", "one decode scale for the tensor: max|x| divided by the format's largest value, rounded to float32."),
    ("Worst step", "the step with the lowest SQNR of a tensor that was recorded at several steps. Its lowest SQNR and "
     "its largest lost energy count."),
)  # fmt: skip


def page(report: StudyResults, files: Sequence[str]) -> str:
    """Return the whole page of a study as HTML text.

    Args:
      report: the study.
      files: names of the table files to link, in the folder of the page.
    Raises:
      ImportError: jinja2 is not installed.
    """
    summaries = candidate_summaries(report)
    rounded = rounding_summaries(report)
    unusual = exceptions(report)
    moving = courses(report)
    drawn = drawable()
    return render(
        "fpsim.analysis.studies",
        "study.html.jinja",
        title="fpsim study",
        report=report,
        lead=_lead(report),
        notes=folded(report.notes),
        candidates=_candidate_pictures(report, summaries) if drawn else [],
        roundings=_rounding_pictures(rounded) if drawn else [],
        ranges=_range_pictures(report) if drawn else [],
        plots="" if drawn else PLOTS,
        required=report.requirements.min_sqnr,
        hardest=_hardest(report),
        kept=KEPT if any(row.failed for row in report.recommendations) else "",
        notable=NOTABLE_DB,
        exceptions=(EXCEPTION_HEADS, [_exception_row(row, why) for row, why in unusual[:EXCEPTIONS]]),
        more_exceptions=max(len(unusual) - EXCEPTIONS, 0),
        groups=(GROUP_HEADS, [_group_row(group) for group in report.groups]),
        rounding_sentence=rounding_sentence(rounded),
        tensors=(TENSOR_HEADS, [_tensor_row(report, row) for row in ordered(report)[:LISTED]]),
        tensor_count=len(report.recommendations),
        listed=LISTED,
        compared=(CANDIDATE_HEADS, [_candidate_row(one) for one in summaries]),
        steps=(STEP_HEADS, [_step_row(course) for course in moving[:LISTED]]),
        most_moved=max((course.moved for course in moving if not math.isnan(course.moved)), default=None),
        files=files,
        definitions=DEFINITIONS,
        rules=_rules(report.requirements),
        judged_rounding=words(report.judged_rounding),
        also_rounded=_also_rounded(report),
        formats=[repr(fmt).strip("<>") for fmt in report.formats],
        versions=versions("fpsim-numerics", "numpy", "ml_dtypes", "torch"),
    )


def drawable() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def recommendation_table(report: StudyResults) -> str:
    """Return a study's result in one sentence, and a table of its recommendations by group, as HTML without styles.

    Notebooks show it for a report. A group is all tensors with the same role and recommendation.
    """
    rows = ([c if isinstance(c, str) else c.text for c in _group_row(group).cells] for group in report.groups)
    return f"<p>{html.escape(report.answer)}</p>{html_table([title for title, _ in GROUP_HEADS], rows)}"


def _lead(report: StudyResults) -> str:
    """Return the line on what was studied: source, steps, and the numbers of tensors, values and candidates."""
    steps = sorted({row.step for row in report.ranges if row.step is not None})
    when = f" at {'steps' if len(steps) > 1 else 'step'} {', '.join(map(str, steps))}" if steps else ""
    if len(steps) > SHOWN_STEPS:
        when = f" at {plural(len(steps), 'step')} from {steps[0]} to {steps[-1]}"
    tensors = plural(len(report.ranges_of), "tensor")
    return (
        f"{report.description or 'tensors'}: {tensors}{when}, {report.element_count:,} values, "
        f"{plural(len(report.candidates), 'candidate')}"
    )


def _hardest(report: StudyResults) -> str:
    """Return a sentence on the operand that is hardest to store; "" if there are no operands.

    Operands without a good enough candidate are the hardest. If every operand has such a candidate, the hardest is the
    one whose SQNR is farthest below the SQNR that its recommended format has on normal data.
    """
    rows = hardest(report)
    if not rows:
        return ""
    row = rows[0]
    below = f", {row.deficit_db:.1f} dB below the SQNR of normal data" if row.deficit_db > 0 else ""
    return f"The hardest tensor is {row.tensor}: {decibels(row.sqnr_db)} in {row.choice}{below}."


# ---- cells


def _number(value: float, text: str) -> TableCell:
    """Return a table cell that shows `text` and is sorted by `value`; if `value` is NaN, it shows a dash."""
    return TableCell("–" if math.isnan(value) else text, value)


def _db(value: float) -> TableCell:
    """Return a table cell that shows a number of decibels, and "–" for NaN."""
    return _number(value, decibels(value))


def _bits(value: float) -> TableCell:
    """Return a table cell that shows a number of bits, with 4 digits, and "–" for NaN."""
    return _number(value, f"{value:.4g}")


def _count(value: int) -> TableCell:
    """Return a table cell that shows an integer, with commas between thousands."""
    return TableCell(f"{value:,}", value)


def _share(value: float) -> TableCell:
    """Return a table cell that shows a share, 0 to 1, as a percentage, and "–" for NaN."""
    return _number(value, percent(value))


# ---- rows

EXCEPTION_HEADS = (
    ("tensor", False), ("exception", False), ("choice", False), ("SQNR", True), ("deficit", True),
    ("lost energy", True), ("why", False),
)  # fmt: skip


def _exception_row(row: Recommendation, why: Sequence[str]) -> TableRow:
    """Return a row of the table of exceptions, for a tensor that the user should look at.

    row: the tensor's recommendation. why: the reasons for looking, as texts.
    """
    reasons = "; ".join(why)
    figures = (_db(row.sqnr_db), _db(row.deficit_db), _share(row.lost_energy))
    cells = (row.tensor, reasons, row.choice, *figures, row.reason)
    return TableRow(cells, marked=row.operand and not row.met)


GROUP_HEADS = (
    ("tensors", False), ("choice", False), ("lowest SQNR", True), ("values", True), ("bits before", True),
    ("bits after", True), ("size", True), ("saved", True),
)  # fmt: skip


def _group_row(group: TensorGroup) -> TableRow:
    """Return the table row of a group of tensors that share a role and a recommendation.

    A reader of the page can unfold the row to see the names of up to 40 of the tensors.
    """
    before = sum(row.values * row.stored_bits for row in group.rows)
    after = sum(row.values * row.bits_per_value for row in group.rows)
    names = [row.tensor for row in group.rows[:UNFOLDED]]
    more = len(group.rows) - len(names)
    values = group.values or math.nan
    return TableRow(
        (
            group.title, group.choice, _db(group.sqnr_db), _count(group.values),
            _bits(before / values), _bits(after / values), TableCell(bytes_in_words(after / 8), after / 8),
            _share(1 - after / (before or math.nan)),
        ),
        inside=[*names, *([f"and {more} more"] if more else [])],
    )  # fmt: skip


CANDIDATE_HEADS = (
    ("candidate", False), ("bits per value", True), ("SQNR of all values", True), ("lowest SQNR", True),
    ("on normal data", True), ("good enough for", True), ("chosen for", True),
)  # fmt: skip


def _candidate_row(one: CandidateSummary) -> TableRow:
    """Return the table row of `one`, a candidate (a format with a scaling) with its metrics over all operands."""
    count = len(one.judged)
    figures = _bits(one.bits_per_value), _db(one.sqnr_db), _db(one.lowest_db), _db(one.ideal_db)
    return TableRow((one.name, *figures, TableCell(f"{one.good} of {count}", one.good), _count(one.chosen)))


TENSOR_HEADS = (
    ("tensor", False), ("role", False), ("choice", False), ("bits", True), ("SQNR", True), ("deficit", True),
    ("lost energy", True), ("runner-up", False), ("margin", True), ("values", True), ("stored", False),
    ("amax", True), ("NaN, Inf", True), ("why", False),
)  # fmt: skip


def _tensor_row(report: StudyResults, row: Recommendation) -> TableRow:
    """Return the table row of a tensor, given the recommendation `row` for it.

    The row has the recommended format and scaling with their metrics and the reason, and the runner-up: the best
    candidate in another format of equally many bits. It also has the tensor's dtype, shape and amax, and the number
    of its NaN and Inf.
    """
    ranges = report.ranges_of[row.tensor]
    amax = max(one.report.amax for one in ranges)
    special = sum(specials(report, row.tensor))
    shape = "×".join(map(str, ranges[-1].shape)) or "scalar"
    margin = _number(row.margin_db, f"{row.margin_db:.1f} dB")
    return TableRow(
        (
            row.tensor, SPOKEN.get(row.role, row.role), row.choice, _bits(row.bits_per_value), _db(row.sqnr_db),
            _db(row.deficit_db), _share(row.lost_energy), row.runner_up, margin, _count(row.values),
            f"{ranges[0].dtype} {shape}", TableCell(f"{amax:.3g}", amax), _count(special), row.reason,
        ),
        marked=row.failed,
    )  # fmt: skip


STEP_HEADS = (
    ("tensor", False), ("amax moves by", True), ("largest amax by step", False), ("SQNR of the choice by step", False),
    ("lowest SQNR", True), ("worst step", True),
)  # fmt: skip


def _step_row(course: Course) -> TableRow:
    """Return the table row that shows how an operand's amax and SQNR in dB change over the training steps."""
    amax = _by_step(f"{value:.3g}" for value in course.amax)
    sqnr = _by_step("–" if math.isnan(value) else f"{value:.1f}" for value in course.sqnr_db)
    lowest = min((value for value in course.sqnr_db if not math.isnan(value)), default=math.nan)
    worst = TableCell("–", math.nan) if course.worst_step is None else _count(course.worst_step)
    return TableRow((course.tensor, _number(course.moved, f"{course.moved:.3g}×"), amax, sqnr, _db(lowest), worst))


def _by_step(figures: Iterable[str]) -> str:
    """Return texts, one for each step, as a list in a table cell: of more than 12, only the first and the last 6."""
    texts = list(figures)
    half = SHOWN_STEPS // 2
    return ", ".join(texts if len(texts) <= SHOWN_STEPS else [*texts[:half], "...", *texts[-half:]])


# ---- pictures


def _candidate_pictures(report: StudyResults, summaries: Sequence[CandidateSummary]) -> list[Picture]:
    """Return a picture for each role (weights, activations, gradients) with operands: their SQNR by candidate.

    `summaries`: the candidates, each with the metrics of its operands. A picture shows SQNR deficits: how many dB an
    operand's SQNR is below that of the format on normal data.
    """
    from fpsim.analysis.studies.figures import candidates_figure

    pictures = []
    for role in OPERANDS:
        mine = of_role(summaries, role)
        if mine:
            title = f"{ROLES[role]} ({plural(len(mine[0].judged), 'tensor')})"
            figure = candidates_figure(mine, report.requirements.min_sqnr)
            pictures.append(picture(figure, f"candidates-{role}", title, f"SQNR of {title} by candidate"))
    return pictures


def _rounding_pictures(rows: Sequence[RoundingSummary]) -> list[Picture]:
    """Return two pictures, of the gain and of the SQNR, with a row for each format and rounding; [] without `rows`."""
    from fpsim.analysis.studies.figures import rounding_figures

    return [
        picture(figure, f"roundings-{i}", title, f"{title}, by format and rounding")
        for i, (title, figure) in enumerate(rounding_figures(rows))
    ]


def _range_pictures(report: StudyResults) -> list[Picture]:
    """Return a picture of magnitudes for each role (weights, activations, gradients) that has operands.

    It shows up to 10 tensors of the role: those that are hardest to store, in the order of `hardest`. Of each tensor it
    shows up to 4 steps, evenly spaced, of which the last is the tensor's last one.
    """
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
            rows = [(name, [one.report for one in _spaced(report.ranges_of[name])]) for name in groups[role]]
            figure = exponent_figure(rows, formats, "", window)
            pictures.append(picture(figure, f"ranges-{role}", ROLES[role], f"Magnitudes of {ROLES[role].lower()}"))
    return pictures


def _spaced(ranges: Sequence[RangeRow]) -> Sequence[RangeRow]:
    """Return up to 4 of a tensor's ranges, one for each step: the first, the last, and evenly spaced ones between."""
    count, last = min(len(ranges), OUTLINES), len(ranges) - 1
    return [ranges[last * i // max(count - 1, 1)] for i in range(count)]


def picture(figure: Any, name: str, title: str, label: str) -> Picture:
    """Return a matplotlib figure as an SVG picture for a page.

    name: prefix of the ids in the SVG. title: heading of the picture. label: description for screen readers.
    """
    from fpsim.display.figure import to_svg

    return Picture(title, markup(to_svg(figure, name, label)))


# ---- method


def _also_rounded(report: StudyResults) -> str:
    """Return a clause on the candidates that were measured in further roundings than the one of recommendations.

    Without such candidates, return "".
    """
    others = [words(mode) for mode in report.roundings if mode != report.judged_rounding]
    rows = (row for row in report.errors if row.report.rounding != report.judged_rounding)
    names = dict.fromkeys(f"{row.report.format} {scaling_words(row.scaling)}" for row in rows)
    return f", and {listed(list(names))} also with {listed(others)} rounding" if names else ""


def _rules(wanted: Requirements) -> str:
    """Return the requirements that a recommended candidate must meet as a clause for a sentence."""
    budget = "" if wanted.budget_bits is None else f", at most {wanted.budget_bits:g} bits per value"
    return (
        f"an SQNR of at least {wanted.min_sqnr:g} dB{budget}, and at most {percent(wanted.max_lost)} of the energy in "
        f"values that become zero; nine of ten rows and columns have at most {CHANNEL_MARGIN_DB:g} dB less; without "
        f"scales no value is beyond the range, and the format's largest value is at least {HEADROOM:g} times the "
        "tensor's. Among such candidates the fewest bits win, then the highest SQNR; scales that add less than "
        f"{SCALE_GAIN_DB:g} dB are left out"
    )
