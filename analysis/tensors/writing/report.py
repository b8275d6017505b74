"""The report on a written checkpoint: its files, and the errors of its weights and of the model's outputs."""

from __future__ import annotations

import html
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from fpsim.deprecation import warn_renamed
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.display.wording import bytes_in_words, decibels, plural, short
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole

VERSION = 1  # of the saved file's fields
SHOWN = 12  # rows of a notebook's table of weights


class ExportedWeight(NamedTuple):
    """The error of a weight: its values decoded from the written file, compared with the original ones.

    Attributes:
      tensor: the name of the weight.
      shape: the shape of the weight.
      bits_per_value: bits per stored value, including its share of the scales.
      signal: the sum of the squares of the original values.
      noise: the sum of the squares of (decoded value - original value).
      max_error: the largest magnitude of a difference.
    """

    tensor: str
    shape: tuple[int, ...]
    bits_per_value: float
    signal: float
    noise: float
    max_error: float

    @property
    def bits(self) -> float:
        """Deprecated name of `bits_per_value`; using it warns."""
        warn_renamed("ExportedWeight.bits", "bits_per_value")
        return self.bits_per_value

    @property
    def sqnr_db(self) -> float:
        """Signal-to-noise ratio in dB; infinite if no value changed."""
        return _decibels(self.signal, self.noise)

    @property
    def relative_error(self) -> float:
        """norm(decoded - original) / norm(original) of the weight; norm(decoded - original) if the original is 0."""
        return math.sqrt(self.noise / self.signal) if self.signal else math.sqrt(self.noise)


@dataclass(frozen=True)
class ExportReport:
    """A written checkpoint, and the errors of its weights and outputs.

    Attributes:
      layout: the full name of the layout, such as "compressed-tensors:fp8_channel".
      path: the written folder or file.
      files: the names of the written files.
      weights: the error of each quantised weight.
      kept: the name of each tensor that was written unquantised -> the reason.
      source_bytes, stored_bytes: bytes of all tensors before the export, and of the written tensor files.
      output_error: the norm of the change of the model's outputs on the batch that was passed to the export, divided by
        the norm of the outputs; None without a batch.
      output_kl: the mean of KL(softmax of the output before the export || softmax of it after), in nats, along the last
        axis of the first output that has one longer than 1; None without a batch or such an output.
      notes: sentences that users of the file should know.
    """

    layout: str
    path: str
    files: tuple[str, ...]
    weights: tuple[ExportedWeight, ...]
    kept: dict[str, str]
    source_bytes: float
    stored_bytes: float
    output_error: float | None = None
    output_kl: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def sqnr_db(self) -> float:
        """Signal-to-noise ratio in dB of all quantised weights together."""
        return _decibels(math.fsum(one.signal for one in self.weights), math.fsum(one.noise for one in self.weights))

    @property
    def worst(self) -> ExportedWeight:
        """The quantised weight with the lowest signal-to-noise ratio."""
        return min(self.weights, key=lambda one: one.sqnr_db)

    def __str__(self) -> str:
        """Return a text: layout, sizes before and after, SQNR of the weights, change of the outputs, and the notes."""
        lines = [
            f"{self.path}: {self.layout}, {plural(len(self.weights), 'weight')} quantised, "
            f"{bytes_in_words(self.source_bytes)} became {bytes_in_words(self.stored_bytes)}.",
            f"The SQNR of the weights is {decibels(self.sqnr_db)}; the lowest is {decibels(self.worst.sqnr_db)}, of "
            f"{self.worst.tensor}.",
        ]
        if self.output_error is not None:
            divergence = "" if self.output_kl is None else f", their KL divergence {self.output_kl:.2g} nats"
            lines.append(f"The relative change of the outputs is {self.output_error:.2g}{divergence}.")
        return "\n".join([*lines, *self.notes])

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each quantised weight.

        The columns are tensor, shape, bits_per_value, sqnr_db, relative_error and max_error.
        """
        return frame([
            {"tensor": one.tensor, "shape": one.shape, "bits_per_value": one.bits_per_value, "sqnr_db": one.sqnr_db,
             "relative_error": one.relative_error, "max_error": one.max_error}
            for one in self.weights
        ])  # fmt: skip

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the 36 lowest signal-to-noise ratios of weights, the lowest on top, and return the matplotlib axes.

        ax: the axes to draw into; None for new ones.
        """
        from fpsim.display.figure import COLORS, axes_of, figure_style

        rows = sorted(self.weights, key=lambda one: one.sqnr_db)[: 3 * SHOWN]
        finite = [one.sqnr_db for one in rows if math.isfinite(one.sqnr_db)]
        top = max(finite, default=1.0)
        with figure_style():
            ax = axes_of(ax, 0.8 + 0.2 * len(rows))
            names = [short(one.tensor, 40) for one in rows]
            ax.barh(range(len(rows)), [min(one.sqnr_db, top) for one in rows], color=next(iter(COLORS.values())))
            ax.set_yticks(range(len(rows)), names)
            ax.invert_yaxis()
            ax.set_xlabel("SQNR in dB")
            ax.set_title(f"{self.layout}: SQNR of the weights")
        return ax

    def _repr_html_(self) -> str:
        """Return the summary, and a table of the weights with the lowest SQNR, as HTML for notebooks."""
        rows = sorted(self.weights, key=lambda one: one.sqnr_db)[:SHOWN]
        cells = ([one.tensor, f"{one.bits_per_value:.4g}", decibels(one.sqnr_db)] for one in rows)
        text = html.escape(str(self)).replace("\n", "<br>")
        return f"<p>{text}</p>{html_table(['weight', 'bits per value', 'SQNR'], cells)}"

    def save(self, path: str | Path) -> None:
        """Write the report to a file as JSON; an older file is replaced only once all is written."""
        write_whole(path, self.to_json())

    def to_json(self) -> str:
        """Return the report as JSON, which `load` reads from a file."""
        content = {**asdict(self), "weights": [[*one[:1], list(one.shape), *one[2:]] for one in self.weights]}
        content |= {"files": list(self.files), "notes": list(self.notes)}
        return json.dumps({"version": VERSION, **to_json(content)}, indent=1) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> ExportReport:
        """Return the report in a file that `save` wrote, or in the fpsim_export.json of an export's folder.

        Raises:
          ValueError: the file is not such a report.
        """
        try:
            content = json.loads(path_of(path).read_text(encoding="utf-8"))
            assert content.pop("version") == VERSION
            content = from_json(content)
            weights = [ExportedWeight(row[0], tuple(row[1]), *row[2:]) for row in content.pop("weights")]
            files, notes = tuple(content.pop("files")), tuple(content.pop("notes"))
            return cls(weights=tuple(weights), files=files, notes=notes, **content)
        except (ValueError, AssertionError, KeyError, TypeError, AttributeError, IndexError) as problem:
            raise ValueError(
                f"{path} is not a report that ExportReport.save wrote. Run fp.torch.export again."
            ) from problem


def _decibels(signal: float, noise: float) -> float:
    """Return the ratio of two sums of squares in dB: inf without noise, -inf if the signal is 0 or the noise not
    finite.
    """
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf
