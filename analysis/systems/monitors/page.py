"""The HTML page of a training's monitors: curves, the first overflow, scales, and the range of every tensor."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from fpsim.analysis.models.recording import Recording
from fpsim.analysis.systems.monitors.overflow import first_overflow
from fpsim.display.pages import Picture, TableCell, TableRow, markup, render, versions
from fpsim.display.wording import plural
from fpsim.errors import install, require_kind
from fpsim.files import path_of, require_folder, write_whole

PLOTS = f"Pictures need matplotlib: {install('plot')}"
TEXT = ("layer", "tensor")
HEADS = (
    *((title, False) for title in TEXT),
    *((title, True) for title in ("smallest", "median", "amax", "zeros", "Inf", "NaN")),
)
SCALES = (("step", True), ("scale of", False), ("value", True), ("step skipped", False))


def monitors_page(recording: Recording, path: str | Path) -> Path:
    """Write an HTML page on a training: curves, the first overflow, scales, and tensors' ranges at the last step.

    Args:
      recording: a recording of `fp.analysis.record`.
      path: path of the HTML file; its folder is created if it does not exist.

    Returns:
      The path of the file that was written. Without matplotlib the page has no curves, and says so.

    Raises:
      TypeError: recording is not a Recording.
      ValueError: the recording has no rows, or the folder can't be written to.
      ImportError: jinja2 is not installed.
    """
    require_kind("recording", recording, Recording, "a recording of fp.analysis.record")
    if not len(recording):
        raise ValueError("recording must have rows; got none. Run the model inside `with fp.analysis.record(model):`.")
    target = path_of(path)
    require_folder(target.parent)
    overflow = first_overflow(recording)
    drawn = importlib.util.find_spec("matplotlib") is not None and len(recording.monitors) > 0
    pictures = []
    if drawn:
        from fpsim.display.figure import to_svg

        svg = to_svg(recording.monitors.plot().figure, "curves", "Gradients and updates")
        pictures.append(Picture("Gradients and updates", markup(svg)))
    last = recording.steps[-1]
    text = render(
        "fpsim.analysis.systems.monitors", "monitors.html.jinja", title="fpsim monitors",
        lead=f"{recording.model.partition(' ')[0]}, {plural(len(recording.steps), 'recorded step')}",
        answer="No tensor held Inf or NaN." if overflow is None else str(overflow),
        more=[str(recording.monitors) + "."], plots="" if drawn or not len(recording.monitors) else PLOTS,
        pictures=pictures,
        ranges=(HEADS, [_row(row) for row in recording if row.step == last]), last=last,
        scales=(SCALES, [TableRow((TableCell(str(one.step), one.step), one.name, TableCell(f"{one.scale:g}", one.scale),
                                   "yes" if one.fallback else ""), one.fallback) for one in recording.monitors.scales]),
        notes=[str(recording.coverage), *recording.notes], foot=versions("fpsim-numerics", "numpy", "torch"),
    )  # fmt: skip
    write_whole(target, text)
    return target


def _row(row: Any) -> TableRow:
    """Return the HTML page's table row for a RecordedRow, marked if the tensor holds Inf or NaN.

    It has layer, tensor, the smallest, median and largest magnitude, and the numbers of zeros, Inf and NaN.
    """
    spread = row.range
    figures = (spread.smallest, spread.magnitude(0.5), spread.amax)
    counts = (spread.zeros, spread.infinities, spread.nans)
    cells = [TableCell(f"{value:.3g}" if spread.smallest < math.inf else "", float(value)) for value in figures]
    cells += [TableCell(f"{count:,}" if count else "", float(count)) for count in counts]
    return TableRow((row.layer, row.tensor.replace("_", " "), *cells), bool(spread.infinities or spread.nans))
