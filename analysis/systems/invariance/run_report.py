"""The report on a comparison of the tensors of two runs of a model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from fpsim.analysis.measures.equality import EqualByValue
from fpsim.analysis.systems.saved_report import SavedReport
from fpsim.display.optional import Axes, DataFrame, frame
from fpsim.display.tables import html_paragraphs, html_table
from fpsim.display.wording import percent, plural
from fpsim.errors import require_word

LISTED = 12


@dataclass(frozen=True, eq=False)
class TensorDifference(EqualByValue):
    """The difference of one tensor between two runs.

    Attributes:
      step, layer, tensor: step, layer and name of the tensor; step and layer as in the first run.
      compared: "bits": both runs stored the elements, in one dtype; "values": both stored them, in different dtypes;
        "figures": a run stored only statistics, which may be equal although bits differ; "shape": the shapes differ.
      differs: whether what was compared differs, by more than the tolerance if one was set.
      differing: share of elements that differ; for "figures" a lower bound from the counts of elements by exponent; 1
        for "shape".
      relative: norm of the difference / norm in the first run, over elements finite in both; for "figures" the relative
        difference of the largest magnitudes; NaN for "shape".
      amax_first, amax_second: the largest finite magnitude in each run.
    """

    step: int
    layer: str
    tensor: str
    compared: str
    differs: bool
    differing: float
    relative: float
    amax_first: float
    amax_second: float


@dataclass(frozen=True, eq=False)
class TokenChange(EqualByValue):
    """A token at which the two runs' logits have different maxima.

    Attributes:
      step: step of the logits.
      row: index of the token among all rows of the logits at that step.
      first, second: the index of the largest logit in each run.
      margin: the first run's log-probability of `first` minus its log-probability of `second`, in nats.
    """

    step: int
    row: int
    first: int
    second: int
    margin: float


@dataclass(frozen=True, eq=False)
class RunComparison(EqualByValue, SavedReport):
    """A comparison of two runs: the first tensor that differs, growth of differences, and changes of output tokens.

    Attributes:
      rows: a TensorDifference for each tensor that both runs have, by step and in the order in which the first run
        computed them.
      names: names of the two runs.
      missing_first, missing_second: tensors, as "step layer tensor", that the first run does not have, and that the
        second run does not have, although the other run has them.
      logits: name of the tensor that was read as logits; "" for none.
      kl: mean KL(first || second) of the logits, in nats; NaN if there are no logits.
      tokens: number of tokens whose logits were compared.
      changes: a TokenChange for each token whose largest logit has another index, at most 1,000 of them.
      changed: number of all such tokens.
      notes: sentences on limits of the comparison: only statistics of some tensors were compared, or the models differ.
    """

    KIND = "a comparison of runs"
    ROW = TensorDifference

    rows: tuple[TensorDifference, ...]
    names: tuple[str, str]
    missing_first: tuple[str, ...]
    missing_second: tuple[str, ...]
    logits: str
    kl: float
    tokens: int
    changes: tuple[TokenChange, ...]
    changed: int
    notes: tuple[str, ...]

    def __bool__(self) -> bool:
        """Return whether some tensor of `rows` differs between the runs."""
        return self.first is not None

    @property
    def first(self) -> TensorDifference | None:
        """The first item of `rows` whose tensor differs between the runs; None if there is none."""
        return next((row for row in self.rows if row.differs), None)

    @property
    def growth(self) -> tuple[tuple[int, float, float], ...]:
        """Growth of differences: for each step (step, largest relative difference, share of tensors that differ)."""
        by_step: dict[int, list[TensorDifference]] = {}
        for row in self.rows:
            by_step.setdefault(row.step, []).append(row)
        growth = []
        for step, of_step in by_step.items():
            largest = max((row.relative for row in of_step if row.relative == row.relative), default=0.0)
            growth.append((step, largest, sum(row.differs for row in of_step) / len(of_step)))
        return tuple(growth)

    def to_frame(self, by: str = "tensor") -> DataFrame:
        """Return a pandas DataFrame with a row for each tensor of `rows`.

        With by="step" it has a row for each step of `growth`, and with by="token" for each of `changes`.

        Raises:
          ValueError: by is another name.
        """
        require_word("by", by, ("tensor", "step", "token"))
        if by == "step":
            names = ("step", "largest_relative", "differing_tensors")
            return frame([dict(zip(names, row, strict=True)) for row in self.growth])
        return frame([asdict(row) for row in (self.rows if by == "tensor" else self.changes)])

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the relative difference of each tensor, a curve for each step; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.invariance.figures import run_axes

        return run_axes(self, ax)

    @classmethod
    def _made(cls, contents: dict[str, Any]) -> RunComparison:
        contents["changes"] = tuple(TokenChange(**row) for row in contents["changes"])
        return cls(**contents)

    def __str__(self) -> str:
        """Return the sentences of the report as a text with one sentence on each line."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """Yield the lines of the text of the report: the first difference, growth, tokens, missing tensors, notes."""
        first = self.first
        steps = plural(len({row.step for row in self.rows}), "step")
        if first is None:
            kinds = {row.compared for row in self.rows}
            noun = "bit" if kinds == {"bits"} else "value" if "figures" not in kinds else "statistic"
            if any(row.differing or row.relative for row in self.rows):
                yield f"No difference of {plural(len(self.rows), 'tensor')} in {steps} is above the tolerance."
            else:
                yield f"No {noun} of {plural(len(self.rows), 'tensor')} in {steps} differs."
        else:
            size = f"relative difference {first.relative:.2g}" if first.relative else "only in signs of 0, Inf or NaN"
            how = f"{percent(first.differing)} of its elements, {size}"
            if first.compared == "figures":
                how = f"its statistics differ, largest magnitudes {first.amax_first:.7g} and {first.amax_second:.7g}"
            elif first.compared == "shape":
                how = "its shapes differ"
            yield f"First difference: step {first.step}, {first.layer or 'the model'} {first.tensor}: {how}."
            apart = sum(row.differs for row in self.rows)
            step, largest, _ = max(self.growth, key=lambda of_step: of_step[1])
            tensors = plural(len(self.rows), "tensor")
            most = f", at most by {largest:.2g} (relative), at step {step}" if largest else ""
            yield f"{apart} of {tensors} in {steps} {'differs' if apart == 1 else 'differ'}{most}."
        if self.logits and self.tokens:
            tokens = f"{self.changed:,} of {plural(self.tokens, 'token')} would change"
            yield f"KL of the outputs ({self.logits}): {self.kl:.2g} nats; {tokens}."
        for name, missing in zip(self.names, (self.missing_first, self.missing_second), strict=True):
            if missing:
                more = f" and {len(missing) - 2} more" if len(missing) > 2 else ""
                yield f"{name} does not have {', '.join(missing[:2])}{more}."
        yield from self.notes

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: the text of `str()`, and a table of the first 12 tensors that differ."""
        text = html_paragraphs(self._lines())
        rows = [asdict(row).values() for row in self.rows if row.differs][:LISTED]
        return text + html_table([x.name for x in fields(TensorDifference)], rows)
