"""The report about a written checkpoint: what was written, and what the weights and outputs lost."""

from __future__ import annotations

import html
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fpsim.deprecation import warn_renamed
from fpsim.display.optional import frame
from fpsim.display.wording import bytes_in_words, decibels, plural, short
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole

VERSION = 1  # of the file
SHOWN = 12  # weights that the table of a notebook lists


class ExportedWeight(NamedTuple):
    """What a weight lost, by the values that the written file is read with.

    Attributes:
      tensor: its name.
      shape: of the weight.
      bits_per_value: bits of a stored value, its share of the scales included.
      signal: sum of squares of the weight.
      noise: sum of squares of the differences.
      max_error: the largest difference.
    """

    tensor: str
    shape: tuple[int, ...]
    bits_per_value: float
    signal: float
    noise: float
    max_error: float

    @property
    def bits(self) -> float:
        """The old name of `bits_per_value`."""
        warn_renamed("ExportedWeight.bits", "bits_per_value")
        return self.bits_per_value

    @property
    def sqnr_db(self) -> float:
        """The signal-to-noise ratio, in dB; infinite without an error."""
        return _decibels(self.signal, self.noise)

    @property
    def relative_error(self) -> float:
        """The norm of the differences, in that of the weight; 0 where both are 0."""
        return math.sqrt(self.noise / self.signal) if self.signal else math.sqrt(self.noise)


@dataclass(frozen=True)
class ExportReport:
    """What was written, and what it lost.

    Attributes:
      layout: the full name, such as "compressed-tensors:fp8_channel".
      path: the folder or file.
      files: names of the files in it.
      weights: what each quantised weight lost.
      kept: name of each tensor that was written as it is -> why.
      source_bytes, stored_bytes: of all tensors before and after.
      output_error: norm of the difference of the model's outputs on the batch, in that of the outputs; None without a
        batch.
      output_kl: mean KL divergence in nats of the softmax of the outputs' last axis; None without a batch.
      notes: a sentence for each thing that readers of the file should know.
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
        """The signal-to-noise ratio of all quantised weights together, in dB."""
        return _decibels(math.fsum(one.signal for one in self.weights), math.fsum(one.noise for one in self.weights))

    @property
    def worst(self) -> ExportedWeight:
        """The quantised weight of the lowest signal-to-noise ratio."""
        return min(self.weights, key=lambda one: one.sqnr_db)

    def __str__(self) -> str:
        """Return what was written and lost, in a few lines."""
        lines = [
            f"{self.path}: {self.layout}, {plural(len(self.weights), 'weight')} quantised, "
            f"{bytes_in_words(self.source_bytes)} became {bytes_in_words(self.stored_bytes)}.",
            f"Weights keep {decibels(self.sqnr_db)}; the worst is {self.worst.tensor} with "
            f"{decibels(self.worst.sqnr_db)}.",
        ]
        if self.output_error is not None:
            lines.append(f"Outputs change by {self.output_error:.2g} of their norm, KL {self.output_kl:.2g} nats.")
        return "\n".join([*lines, *self.notes])

    def to_frame(self) -> Any:
        """Return a pandas frame with a row for each quantised weight."""
        return frame([
            {"tensor": one.tensor, "shape": one.shape, "bits_per_value": one.bits_per_value, "sqnr_db": one.sqnr_db,
             "relative_error": one.relative_error, "max_error": one.max_error}
            for one in self.weights
        ])  # fmt: skip

    def plot(self, ax: Any = None) -> Any:
        """Draw the signal-to-noise ratio of each weight, the lowest first; returns the matplotlib axes."""
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
            ax.set_title(f"{self.layout}: what weights keep")
        return ax

    def _repr_html_(self) -> str:
        """Return the summary, and the weights that lose most."""
        rows = sorted(self.weights, key=lambda one: one.sqnr_db)[:SHOWN]
        cells = "".join(
            f"<tr><td>{html.escape(one.tensor)}</td><td>{one.bits_per_value:.4g}</td><td>{decibels(one.sqnr_db)}</td></tr>"
            for one in rows
        )
        text = html.escape(str(self)).replace("\n", "<br>")
        return f"<p>{text}</p><table><tr><th>weight</th><th>bits</th><th>SQNR</th></tr>{cells}</table>"

    def save(self, path: str | Path) -> None:
        """Write the report as JSON, whole or not at all."""
        write_whole(path, self.to_json())

    def to_json(self) -> str:
        """Return the report as JSON that `load` reads."""
        content = {**asdict(self), "weights": [[*one[:1], list(one.shape), *one[2:]] for one in self.weights]}
        content |= {"files": list(self.files), "notes": list(self.notes)}
        return json.dumps({"version": VERSION, **to_json(content)}, indent=1) + "\n"

    @classmethod
    def load(cls, path: str | Path) -> ExportReport:
        """Read a report that `save` wrote, or the fpsim_export.json of an export's folder.

        Raises:
          ValueError: the file is none.
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
                f"{path} is no report that ExportReport.save wrote. Run fp.torch.export again."
            ) from problem


def _decibels(signal: float, noise: float) -> float:
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 and math.isfinite(noise) else -math.inf
