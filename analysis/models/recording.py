"""A recording of a model: measurements of its tensors, stored operands and outputs, and effects of the optimizer."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any

from fpsim.analysis.measures.exponent_range import RangeReport
from fpsim.analysis.models.coverage import NOTHING, Coverage
from fpsim.analysis.models.file import Contents, read, write
from fpsim.analysis.models.monitors import Monitors
from fpsim.analysis.models.rows import MASK, OPERANDS, TENSORS, RecordedRow
from fpsim.analysis.models.step_figures import StepFigures, figures_of
from fpsim.analysis.tensors.opening import tensor
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.arrays import Array
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_paragraphs
from fpsim.display.wording import decibels, plural
from fpsim.errors import require_kind, require_same, require_word, shown
from fpsim.formats.element import element_format
from fpsim.formats.named import Format
from fpsim.lazy import public

Key = tuple[int, str, str]  # step, layer, tensor
SETTINGS = ("model", "formats", "sample", "keep", "seed")  # attributes in which merged recordings must agree
DRAWN = 24  # most operands in a figure
SMALLEST = 1000  # fewest values of a tensor, over all steps, for which shares are meaningful


class Recording:
    """The record of a model's products that `fp.analysis.record` fills while its block runs; iteration yields its rows.

    Attributes:
      model: name of the model's class, and a digest of its parameters' names and shapes.
      formats: names of the formats whose error was measured.
      sample, keep, seed: arguments of `fp.analysis.record`.
      steps: the numbers of the recorded steps.
      monitors: the optimizer's effects on the weights, a `Monitors`.
      notes: sentences on modules and functions whose products were not recorded.
      coverage: the shares of the model's weights and multiplications that were recorded, a `Coverage`.

    Example:
      >>> import torch
      >>> model, x = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU()), torch.ones(128, 64)
      >>> with fp.analysis.record(model) as r:
      ...     y = model(x)
      >>> [(row.layer, row.tensor, row.shape) for row in r]
      [('0', 'input', (128, 64)), ('0', 'weight', (32, 64)), ('0', 'output', (128, 32))]
    """

    def __init__(
        self, model: str, formats: tuple[str, ...], sample: int | None = None, keep: int = 0, seed: int = 0
    ) -> None:
        self.model, self.formats, self.sample, self.keep, self.seed = model, formats, sample, keep, seed
        self.steps: tuple[int, ...] = ()
        self.monitors = Monitors()
        self.notes: tuple[str, ...] = ()
        self.coverage: Coverage = NOTHING
        self._rows: dict[Key, RecordedRow] = {}
        self._kept: dict[Key, Array] = {}
        self._settings: dict[tuple[int, str], Mapping[str, Any]] = {}  # settings of kept products
        self._outputs: dict[Key, Array] = {}
        self._end_step: Callable[[], None] | None = None
        self._listeners: list[Callable[[StepFigures], None]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RecordedRow]:
        return iter(self._rows.values())

    def __getitem__(self, key: Key) -> RecordedRow:
        """Return the row of the key (step, layer, tensor); raise a KeyError if there is none."""
        if key not in self._rows:
            raise KeyError(f"no row of step, layer and tensor {shown(key)}; there are {plural(len(self), 'row')}")
        return self._rows[key]

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers that have rows, in the order in which their first products ran."""
        return tuple(dict.fromkeys(row.layer for row in self))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The stored operands as tensors for `fp.analysis.study`, named by layer and operand, without the step."""
        return tuple(
            tensor(f"{layer} {which.replace('_', ' ')}", x, layer=layer, role=self.role(step, layer, which), step=step)
            for (step, layer, which), x in self._kept.items()
            if which != MASK
        )

    @property
    def operands(self) -> dict[Key, Array]:
        """The stored operands: (step, layer, tensor) -> array in the shape and dtype in which the product read it.

        Attention with a mask has an operand "mask" too: float32 that is added to the scores, -Inf for those left out.

        Example:
          >>> import torch
          >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
          >>> with fp.analysis.record(model, keep=1) as r:
          ...     y = model(torch.ones(128, 64))
          >>> {key: x.shape for key, x in r.operands.items()}
          {(1, '0', 'input'): (128, 64), (1, '0', 'weight'): (32, 64)}
        """
        return dict(self._kept)

    @property
    def outputs(self) -> dict[Key, Array]:
        """The model's outputs, stored with `record(outputs=True)`: (step, "", "output") -> array.

        Example:
          >>> import torch
          >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
          >>> with fp.analysis.record(model, outputs=True) as r:
          ...     y = model(torch.ones(128, 64))
          >>> {key: x.shape for key, x in r.outputs.items()}
          {(1, '', 'output'): (128, 32)}
        """
        return dict(self._outputs)

    def role(self, step: int, layer: str, which: str) -> str:
        """Return the role of a layer's tensor at a step, such as "activation" or "matrix".

        which: the tensor, such as "input". If the tensor was not recorded at this step, the role is the usual one of a
        tensor of this name.
        """
        row = self._rows.get((step, layer, which))
        return TENSORS[which] if row is None else row.role

    def settings(self, step: int, layer: str) -> Mapping[str, Any]:
        """Return the settings of a layer's product at a step, such as a convolution's stride, as name -> value.

        layer: the layer's name. The names of settings are those of `RecordedProduct.settings`. The result is {} if the
        product has no settings, or its operands were not stored.

        Example:
          >>> import torch
          >>> model = torch.nn.Sequential(torch.nn.Conv1d(16, 8, 3, stride=2))
          >>> with fp.analysis.record(model, keep=1) as r:
          ...     y = model(torch.ones(4, 16, 32))
          >>> r.settings(1, "0")
          {'stride': [2], 'padding': [[0, 0]], 'dilation': [1], 'groups': 1}
        """
        return self._settings.get((step, layer), {})

    def step(self) -> None:
        """End the current step, for training loops without a torch optimizer (an optimizer's update ends a step by
        itself).

        Do nothing if the model has not run since the last step ended, so that no step counts twice.

        Raises:
          ValueError: the recording has ended, or was loaded from a file.
        """
        if self._end_step is None:
            raise ValueError("step() ends a step of a recording that runs; this one has ended.")
        self._end_step()

    def listen(self, listener: Callable[[StepFigures], None]) -> None:
        """Call a listener with the `StepFigures` of every recorded step when it ends.

        Args:
          listener: a function, such as `fp.analysis.to_terminal()` or `fp.analysis.to_events(folder)`.
        Raises:
          TypeError: the listener cannot be called.

        Example:
          >>> import torch
          >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32))
          >>> optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
          >>> with fp.analysis.record(model) as r:
          ...     r.listen(seen.append)
          ...     model(torch.ones(64, 64)).square().mean().backward()
          ...     optimizer.step()
          >>> [(figures.step, figures.overflow) for figures in seen]
          [(1, None)]
        """
        if not callable(listener):
            raise TypeError(f"listener must be a function of the figures of a step; got {shown(listener)}.")
        self._listeners.append(listener)

    def tell(self, step: int) -> None:
        """Call each listener with the measurements of the step numbered `step`, which has ended."""
        if self._listeners:
            figures = figures_of(step, self, self.monitors)
            for listener in self._listeners:
                listener(figures)

    def add(self, row: RecordedRow) -> None:
        """Add a row to the recording; merge it with a row of the same step, layer and tensor, if there is one."""
        mine = self._rows.get(row.key)
        self._rows[row.key] = row if mine is None else mine.merge(row)

    def study(self, **options: Any) -> Any:
        """Study the stored operands; return the result of `fp.analysis.study` of `self.tensors` with `options`.

        Args:
          options: as for `fp.analysis.study`.
        Raises:
          ValueError: no operands were stored.
        """
        if not self._kept:
            raise ValueError("study() needs kept operands; got a recording without. Pass keep=1 or more to record.")
        return public("fpsim.analysis").study(list(self.tensors), **options)

    def merge(self, other: Recording) -> Recording:
        """Return one Recording with all measurements, stored tensors and notes of this recording and of `other`.

        Raises:
          TypeError: other is not a Recording.
          ValueError: the recordings are of different models, formats, samples or seeds.
        """
        require_kind("other", other, Recording, "a Recording")
        require_same("recordings", self, other, SETTINGS, shown)
        merged = Recording(*(getattr(self, name) for name in SETTINGS))
        merged.steps = tuple(sorted({*self.steps, *other.steps}))
        merged.monitors = self.monitors.merge(other.monitors)
        merged.notes = tuple(dict.fromkeys((*self.notes, *other.notes)))
        merged.coverage = self.coverage.merge(other.coverage)
        rows = [*self, *other]
        for row in sorted(rows, key=lambda row: row.step):
            merged.add(row)
        merged._kept = {**other._kept, **self._kept}
        merged._settings = {**other._settings, **self._settings}
        for (step, _, _), output in (*self._outputs.items(), *other._outputs.items()):
            merged.keep_output(step, output)
        merged._keep_sample()
        return merged

    def _keep_sample(self, step: int | None = None) -> bool:
        """Choose up to `keep` steps among those with stored operands and `step`; drop the operands of all other steps.

        The steps with the smallest hashes of (seed, step) are chosen. Return whether `step` is among them; False for
        None.
        """
        steps = {key[0] for key in self._kept} | (set() if step is None else {step})
        chosen = sorted(steps, key=lambda step: hashlib.sha256(f"{self.seed} {step}".encode()).digest())[: self.keep]
        self._kept = {key: self._kept[key] for key in sorted(self._kept, key=lambda key: key[0]) if key[0] in chosen}
        self._settings = {key: settings for key, settings in self._settings.items() if key[0] in chosen}
        return step in chosen

    def keep_operand(self, key: Key, x: Array) -> None:
        """Store an operand x under the key (step, layer, tensor), unless one is stored there already."""
        self._kept.setdefault(key, x)

    def keep_output(self, step: int, x: Array) -> None:
        """Store x, an output of the model at a step, as "output"; further ones of that step as "output 2", "output 3"
        and so on."""
        number = sum(key[0] == step for key in self._outputs) + 1
        self._outputs[step, "", "output" if number == 1 else f"output {number}"] = x

    def keep_settings(self, step: int, layer: str, settings: Mapping[str, Any]) -> None:
        """Store the settings of a product whose operands are stored, unless settings of this layer are stored at this
        step already."""
        self._settings.setdefault((step, layer), dict(settings))

    def too_few(self) -> dict[str, int]:
        """Return layer -> number of recorded values, for layers with fewer than 1,000 over all steps.

        The values are those of the layer's input, or of the queries of attention.
        """
        counts: dict[str, int] = {}
        for row in self:
            if row.tensor in ("input", "query"):
                counts[row.layer] = counts.get(row.layer, 0) + row.range.count
        return {layer: count for layer, count in counts.items() if count < SMALLEST}

    def to_frame(self, by: str = "tensor") -> DataFrame:
        """Return the measurements as a pandas DataFrame.

        With by="tensor", the DataFrame has a row for each step, layer and tensor; with by="format", a row for each
        step, layer, tensor and format. The first columns are step, layer, tensor, role, shape, dtype and calls.

        With by="tensor", the columns count, zeros, infinities, nans, amax, smallest and median of all elements follow.
        Then follow, for each format, metrics of the sample, such as E4M3_sqnr_db, and shares such as E4M3_below: of the
        elements that, without a scale, are below the format's range, subnormal, normal, or above its range. With
        by="format", the format's name and every metric of `fp.analysis.error` for the sample follow.

        Args:
          by: "tensor" or "format".
        Raises:
          ValueError: by is neither.
        """
        require_word("by", by, ("tensor", "format"))
        if by == "format":
            return frame([line for row in self for line in row.to_dicts()])
        return frame([row.to_dict() for row in self])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the range of magnitudes of each operand over all steps, and the ranges of the recorded formats.

        If there are more than 24 operands, those with the lowest SQNR in the first format are drawn; without formats,
        the first ones.

        Args:
          ax: matplotlib axes; None for those of a new figure.
        Returns:
          The axes.
        Raises:
          ValueError: nothing was recorded.
        """
        from fpsim.analysis.measures.exponent_figure import exponent_axes

        rows_of: dict[tuple[str, str], list[RecordedRow]] = {}
        for row in self:
            if row.tensor in OPERANDS:
                rows_of.setdefault((row.layer, row.tensor), []).append(row)
        if not rows_of:
            raise ValueError("nothing was recorded that could be drawn. Run the model in the block of record().")
        worst = sorted(rows_of, key=lambda key: min(map(_sqnr, rows_of[key])))[:DRAWN]
        worst.sort(key=lambda key: (self.layers.index(key[0]), OPERANDS.index(key[1])))
        rows = []
        for key in worst:
            ranges = [row.range for row in rows_of[key]]
            rows.append(
                (" ".join(key).replace("output_gradient", "output gradient"), reduce(RangeReport.merge, ranges))
            )
        formats = tuple(name for name in self.formats if isinstance(element_format(name), Format))
        ax = exponent_axes(rows, formats, ax=ax)
        if len(rows) < len(rows_of):
            which = f"the lowest SQNR in {self.formats[0]}" if self.formats else "the first"
            ax.set_title(f"{len(rows)} of {len(rows_of)} operands, {which}", loc="left", fontsize=7)
        return ax

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the recording to one file, .npz or .safetensors; after an error, no partial file is left.

        Raises:
          ValueError: the path ends in neither .npz nor .safetensors.
          OSError: the file cannot be written.
        """
        settings = {name: getattr(self, name) for name in SETTINGS} | {"formats": list(self.formats)}
        rows, kept = list(self), self._kept
        contents = Contents(
            settings, self.steps, self.notes, rows, kept, self.monitors, self._settings, self.coverage, self._outputs
        )
        write(path, contents)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Recording:
        """Return the recording that `save` wrote to a file, bit for bit.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file is damaged, or is not a recording.
        """
        contents = read(path)
        loaded = Recording(**contents.settings | {"formats": tuple(contents.settings["formats"])})
        loaded.steps, loaded.notes, loaded.monitors = contents.steps, contents.notes, contents.monitors
        loaded.coverage = contents.coverage
        for row in contents.rows:
            loaded.add(row)
        loaded._kept, loaded._settings = contents.kept, contents.kept_settings
        loaded._outputs = dict(contents.outputs)
        return loaded

    def __repr__(self) -> str:
        kept = f", {plural(len(self._kept), 'operand')} kept" if self._kept else ""
        size = f"{plural(len(self.layers), 'layer')}, {plural(len(self.steps), 'step')}, {plural(len(self), 'row')}"
        return f"<recording of {self.model}: {size}{kept}>"

    def __str__(self) -> str:
        """Return a summary in a few lines: coverage of the model, worst tensor, the optimizer's last step, notes."""
        coverage = self.coverage
        lines = [*filter(None, [coverage.headline]), repr(self)[1:-1], *coverage.sentences]
        rows = [row for row in self if row.errors and row.errors[0].sqnr_db == row.errors[0].sqnr_db]
        if rows:
            worst = min(rows, key=lambda row: row.errors[0].sqnr_db)
            error = worst.errors[0]
            lines.append(
                f"worst in {error.format}: {decibels(error.sqnr_db)}, {worst.layer} {worst.tensor}, step {worst.step}"
            )
        return "\n".join([*lines, str(self.monitors), *self.notes])

    def _repr_html_(self) -> str:
        """Return the summary as HTML for notebooks."""
        return html_paragraphs(str(self).splitlines())


def _sqnr(row: RecordedRow) -> float:
    """Return the SQNR (dB) of a row in the first of the recorded formats; Inf if the row has no format or the SQNR is
    NaN."""
    value = row.errors[0].sqnr_db if row.errors else math.inf
    return math.inf if math.isnan(value) else value
