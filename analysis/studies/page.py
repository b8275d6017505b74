"""The page of a study: one HTML file without scripts or network, for a phone as well as for a desktop."""

from __future__ import annotations

import importlib.util
import math
import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib import metadata

from fpsim.analysis.studies.page_style import CSS
from fpsim.analysis.studies.pictures import ROLES, pictures
from fpsim.analysis.studies.recommend import HEADROOM, REQUIREMENTS, SCALE_GAIN_DB, Recommendation
from fpsim.analysis.studies.results import StudyResults
from fpsim.display.wording import decibels, percent, plural, power_of_two, printable

LISTED = 400  # rows of the table of errors on the page; the files have them all

PICTURES = {"exponents": "Ranges", "underflow": "Underflow", "sqnr": "Precision"}

DEFINITIONS = (
    ("SQNR", "10 log10 of the sum of x² over the sum of (result − x)², in decibels, over elements whose input and "
     "result are both finite. Every 6 dB is one bit."),
    ("Underflow", "share of elements that are not zero and become zero (0 or −0)."),
    ("Subnormal", "share of results below the format's smallest normal value, where it loses precision."),
    ("Overflow", "share of elements that are finite and become Inf or NaN."),
    ("Saturation", "share of inputs beyond the range of nearest-even rounding that become the largest finite value."),
    ("Bias", "mean of result − x."),
    ("Amax scale", "one decode scale per tensor, max|x| / largest value of the format, rounded to float32: the "
     "result is quantize(x / scale) × scale."),
)  # fmt: skip


def _navigation() -> str:
    """Links to the sections that the page has."""
    drawn = PICTURES if importlib.util.find_spec("matplotlib") is not None else {}
    sections = {"recommendation": "Recommendation", **drawn, "numbers": "Numbers", "method": "Method"}
    links = " ".join(f"<a href='#{name}'>{title}</a>" for name, title in sections.items())
    return f"<nav>{links}</nav>"


def page(report: StudyResults, files: Sequence[str]) -> str:
    """The whole page as text.

    Args:
      report: the study.
      files: names of the tables that lie beside the page.
    """
    parts = [
        "<h1>How these tensors survive in low precision</h1>",
        f"<p>{_lead(report)}</p>",
        _problems(report),
        _navigation(),
        "<h2 id='recommendation'>Recommendation</h2>",
        _answer(report),
        _basis(report),
        f"<details open='open'><summary>Tensor by tensor</summary>{recommendation_table(report)}</details>",
        pictures(report),
        "<h2 id='numbers'>Every number</h2>",
        _errors(report),
        _ranges(report),
        f"<p class='quiet'>Files beside this page: {_links(files)}.</p>" if files else "",
        "<h2 id='method'>Method</h2>",
        _method(report),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'/>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'/>\n"
        f"<title>fpsim study</title>\n<style>{CSS}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _text(value: str) -> str:
    """Untrusted text for HTML."""
    return escape(printable(value))


def _links(files: Iterable[str]) -> str:
    return ", ".join(f"<a href='{_text(name)}'>{_text(name)}</a>" for name in files)


def _lead(report: StudyResults) -> str:
    tensors = plural(len(report.ranges_of), "tensor")
    steps = sorted({row.step for row in report.ranges if row.step is not None})
    when = f" recorded at step {_listed([str(step) for step in steps])}," if steps else ""
    source = f" The tensors are those of {_text(report.description)}." if report.losses else ""
    where = f" ({_text(report.description)})" if report.description and not report.losses else ""
    formats = _listed([fmt.name for fmt in report.formats])
    return f"{tensors}{where},{when} {report.element_count:,} values, each rounded to {formats}.{source}"


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _problems(report: StudyResults) -> str:
    lines = [f"<p class='warn'>Not studied: {_text(line)}</p>" for line in report.problems]
    if report.notes:
        items = "".join(f"<li>{_text(line)}</li>" for line in report.notes)
        lines.append(
            f"<details><summary>{plural(len(report.notes), 'tensor')} left out</summary><ul>{items}</ul></details>"
        )
    return "\n".join(lines)


def choice(row: Recommendation) -> str:
    """A recommendation in a few words.

    Example:
      >>> from fpsim.analysis.studies.page import choice
      >>> from fpsim.analysis.studies.recommend import Recommendation
      >>> choice(Recommendation("w", "E4M3", "amax", 0.5, 31.5, 0.0, True, ""))
      'E4M3, amax scale'
    """
    if not row.met:
        return f"keep {row.format}"
    return f"{row.format}, amax scale" if row.scaling == "amax" else f"{row.format}, no scale"


def _answer(report: StudyResults) -> str:
    """One sentence for each role: what its tensors need."""
    roles: dict[str, Counter[str]] = {}
    for row in report.recommendations:
        roles.setdefault(report.ranges_of[row.tensor][0].role, Counter())[choice(row)] += 1
    lines = []
    for role, counts in roles.items():
        total = sum(counts.values())
        parts = [
            f"<b>{_text(answer)}</b>" + (f" ({number} of {total})" if len(counts) > 1 else "")
            for answer, number in counts.most_common()
        ]
        kind = ROLES.get(role, "Tensors")
        lines.append(f"<li>{kind}: {', '.join(parts)}</li>")
    return f"<ul class='answer'>{''.join(lines)}</ul>" if lines else "<p>There is no tensor to judge.</p>"


def recommendation_table(report: StudyResults) -> str:
    """The recommendations as an HTML table."""
    rows = []
    for row in report.recommendations:
        style = "tag" if row.met else "tag none"
        scale = f"{row.scale:.3g}" if row.scaling == "amax" else ""
        rows.append(
            f"<tr><th class='name'>{_text(row.tensor)}</th><td><span class='{style}'>{_text(choice(row))}</span></td>"
            f"<td class='n'>{scale}</td><td class='reason'>{_text(row.reason)}</td></tr>"
        )
    heads = "<th>tensor</th><th>recommendation</th><th class='n'>decode scale</th><th>because</th>"
    return _table(heads, rows, " class='cards'")


def _table(heads: str, rows: Sequence[str], kind: str = "") -> str:
    return f"<div class='box'><table{kind}><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def _basis(report: StudyResults) -> str:
    rules = "; ".join(
        f"up to {row.bits} bits: SQNR at least {row.sqnr_db:g} dB and underflow at most {percent(row.underflow_rate)}"
        for row in REQUIREMENTS
    )
    return (
        "<p class='quiet'>The recommendation is the narrowest format that meets these requirements with "
        f"{report.judged_rounding.replace('_', ' ')} rounding at every recorded step, without a value beyond its "
        f"range: {rules}. Of one width the more precise wins. A scale is advised where it is needed or wins more than "
        f"{SCALE_GAIN_DB:g} dB; without one, the tensor's largest value must stay a factor of {HEADROOM:g} below the "
        "format's. These figures say how well numbers are stored, not how well a model trains: confirm the choice "
        "with a training run.</p>"
    )


# ---- tables


ERROR_HEADS = (
    "step", "format", "scale", "SQNR", "bias", "underflow", "subnormal", "overflow", "saturation", "max ulp",
)  # fmt: skip
RANGE_HEADS = ("elements", "dtype", "amax", "as a power", "smallest", "zeros", "NaN", "Inf")


def _errors(report: StudyResults) -> str:
    """Errors with the judged rounding; of the last step where all steps are too many for a page."""
    judged = [row for row in report.errors if row.report.rounding == report.judged_rounding]
    shown = judged
    if len(judged) > LISTED:
        last = {name: found[-1].step for name, found in report.ranges_of.items()}
        shown = [row for row in judged if row.step == last[row.tensor]][:LISTED]
    rows = []
    for row in shown:
        r = row.report
        cells = (
            "" if row.step is None else str(row.step), r.format, row.scaling, decibels(r.sqnr_db), f"{r.bias:.2g}",
            percent(r.underflow_rate), percent(r.subnormal_rate), percent(r.overflow_rate),
            percent(r.saturation_rate), f"{r.max_ulp:.2f}",
        )  # fmt: skip
        rows.append(_row(row.tensor, cells))
    cut = f": {len(shown)} of {len(judged)} rows; errors.csv has all" if len(shown) < len(judged) else ""
    summary = f"Errors with {report.judged_rounding.replace('_', ' ')} rounding{cut}"
    return f"<details><summary>{summary}</summary>{_table(_heads(ERROR_HEADS), rows)}</details>"


def _ranges(report: StudyResults) -> str:
    """Ranges of every tensor at its last step, with the special values."""
    rows = []
    for name, found in report.ranges_of.items():
        r = found[-1].report
        smallest = power_of_two(r.smallest) if math.isfinite(r.smallest) else "–"
        cells = (
            f"{r.count:,}", found[-1].dtype, f"{r.amax:.3g}", power_of_two(r.amax), smallest, f"{r.zeros:,}",
            f"{r.nans:,}", f"{r.infinities:,}",
        )  # fmt: skip
        rows.append(_row(name, cells))
    return f"<details><summary>Ranges at the last step</summary>{_table(_heads(RANGE_HEADS), rows)}</details>"


def _heads(names: Sequence[str]) -> str:
    return "<th>tensor</th>" + "".join(f"<th class='n'>{name}</th>" for name in names)


def _row(tensor: str, cells: Sequence[str]) -> str:
    return (
        f"<tr><th class='name'>{_text(tensor)}</th>"
        + "".join(f"<td class='n'>{escape(c)}</td>" for c in cells)
        + "</tr>"
    )


# ---- method


def _method(report: StudyResults) -> str:
    formats = "".join(f"<li>{escape(repr(fmt).strip('<>'))}</li>" for fmt in report.formats)
    terms = "".join(f"<dt>{term}</dt><dd>{meaning}</dd>" for term, meaning in DEFINITIONS)
    roundings = _listed([name.replace("_", " ") for name in report.roundings])
    scales = _listed([{"none": "no scale", "amax": "an amax scale"}[name] for name in report.scales])
    packages = ("fpsim-numerics", "numpy", "ml_dtypes", "torch")
    versions = "".join(f", {name} {found}" for name in packages if (found := _version(name)))
    loss = ""
    if report.losses:
        loss = (
            f"<p>The transformer learned while it was recorded: its loss went from {report.losses[0]:.2f} to "
            f"{report.losses[-1]:.2f} nats per byte in {plural(len(report.losses), 'step')}.</p>"
        )
    return (
        "<p>Every value is rounded once, from its exact value, bit for bit as the format's definition says, with "
        f"{roundings} rounding, with {scales}. Overflow is not clipped: it becomes Inf, or NaN in a format without "
        "Inf, and is counted; a format with neither takes its largest value. NaN and Inf in the data are counted and "
        "left out of the averages. Every rate is a share of all elements. "
        f"Seed {report.seed}: stochastic rounding is a function of the value, the seed and the element's index.</p>"
        f"{loss}<ul>{formats}</ul><dl>{terms}</dl>"
        f"<p class='quiet'>Python {platform.python_version()}{versions}.</p>"
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
