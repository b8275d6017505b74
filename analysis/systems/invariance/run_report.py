"""The report on two runs side by side."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from fpsim.analysis.systems.saved_report import SavedReport, table
from fpsim.display.optional import frame
from fpsim.display.wording import percent, plural
from fpsim.errors import require_word

LISTED = 12


@dataclass(frozen=True)
class TensorDifference:
    """One tensor of two runs.

    Attributes:
      step, layer, tensor: which; step and layer as the first run calls them.
      compared: "bits": both runs kept its elements; "values": they did in different dtypes; "figures": of one at least
        there are statistics alone, which may be equal where bits are not; "shape": shapes differ.
      differs: whether anything that was compared does.
      differing: share of elements that differ; for "figures" the share that counts by exponent cannot match.
      relative: norm of the difference / norm of the first; for "figures" the relative difference of the largest
        magnitudes; NaN for "shape".
      amax_first, amax_second: the largest finite magnitudes.
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


@dataclass(frozen=True)
class TokenChange:
    """A place at which the two runs would choose other tokens.

    Attributes:
      step: of the logits.
      row: the place among all rows of the logits.
      first, second: the tokens: the places of the largest logits.
      margin: the first run's log-probability of its token minus that of the other one, in nats.
    """

    step: int
    row: int
    first: int
    second: int
    margin: float


@dataclass(frozen=True)
class RunComparison(SavedReport):
    """Two runs side by side: the first tensor that differs, growth, and what becomes of the outputs.

    Attributes:
      rows: a TensorDifference for each tensor of both runs, by step and in the order of computing of the first run.
      names: what the runs are called.
      missing_first, missing_second: tensors, as "step layer tensor", that this run alone does not have.
      logits: which tensor was read as logits; "" for none.
      kl: mean KL(first || second) of the logits, in nats; NaN without logits.
      tokens: places at which tokens were compared.
      changes: a TokenChange for each place with another token, at most 1,000 of them.
      changed: how many there are.
      notes: what else there is to say.
    """

    KIND = "a comparison of runs"

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
        """Return whether a compared tensor differs."""
        return self.first is not None

    @property
    def first(self) -> TensorDifference | None:
        """The first tensor that differs; None where all are equal."""
        return next((row for row in self.rows if row.differs), None)

    @property
    def growth(self) -> tuple[tuple[int, float, float], ...]:
        """(step, largest relative difference, share of tensors that differ) of each step."""
        by_step: dict[int, list[TensorDifference]] = {}
        for row in self.rows:
            by_step.setdefault(row.step, []).append(row)
        growth = []
        for step, of_step in by_step.items():
            largest = max((row.relative for row in of_step if row.relative == row.relative), default=0.0)
            growth.append((step, largest, sum(row.differs for row in of_step) / len(of_step)))
        return tuple(growth)

    def to_frame(self, by: str = "tensor") -> Any:
        """Return a pandas DataFrame of a row for each tensor, or with by="step" of the growth, by="token" of changes.

        Raises:
          ValueError: another word.
        """
        require_word("by", by, ("tensor", "step", "token"))
        if by == "step":
            names = ("step", "largest_relative", "differing_tensors")
            return frame([dict(zip(names, row, strict=True)) for row in self.growth])
        return frame([asdict(row) for row in (self.rows if by == "tensor" else self.changes)])

    def plot(self, ax: Any = None) -> Any:
        """Draw the relative difference of each tensor; returns the matplotlib axes."""
        from fpsim.analysis.systems.invariance.figures import run_axes

        return run_axes(self, ax)

    @classmethod
    def _made(cls, contents: dict[str, Any]) -> RunComparison:
        contents["rows"] = tuple(TensorDifference(**row) for row in contents["rows"])
        contents["changes"] = tuple(TokenChange(**row) for row in contents["changes"])
        for name in ("names", "missing_first", "missing_second", "notes"):
            contents[name] = tuple(contents[name])
        return cls(**contents)

    def __str__(self) -> str:
        """Return the comparison in a few lines."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        first = self.first
        steps = plural(len({row.step for row in self.rows}), "step")
        if first is None:
            kinds = {row.compared for row in self.rows}
            noun = "bit" if kinds == {"bits"} else "value" if "figures" not in kinds else "figure"
            yield f"No {noun} of {plural(len(self.rows), 'tensor')} in {steps} differs."
        else:
            how = f"{percent(first.differing)} of its elements, by {first.relative:.2g} of its norm"
            if first.compared == "figures":
                how = f"by its statistics: largest magnitudes {first.amax_first:.7g} and {first.amax_second:.7g}"
            elif first.compared == "shape":
                how = "its shape is another one"
            yield f"First difference: step {first.step}, {first.layer or 'the model'} {first.tensor}: {how}."
            apart = sum(row.differs for row in self.rows)
            step, largest, _ = max(self.growth, key=lambda each: each[1])
            tensors = plural(len(self.rows), "tensor")
            yield f"{apart} of {tensors} in {steps} differ; most at step {step}, by {largest:.2g}."
        if self.logits:
            tokens = f"{self.changed:,} of {plural(self.tokens, 'token')} would change"
            yield f"KL of the outputs ({self.logits}): {self.kl:.2g} nats; {tokens}."
        for name, missing in zip(self.names, (self.missing_first, self.missing_second), strict=True):
            if missing:
                more = f" and {len(missing) - 2} more" if len(missing) > 2 else ""
                yield f"{name} lacks {', '.join(missing[:2])}{more}."
        yield from self.notes

    def _repr_html_(self) -> str:
        text = "".join(f"<p>{html.escape(line)}</p>" for line in self._lines())
        rows = [asdict(row) for row in self.rows if row.differs][:LISTED]
        return text + table([each.name for each in fields(TensorDifference)], rows)
