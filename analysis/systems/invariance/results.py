"""Reports on batches and decoding: which sizes change a row's bits, and how fast logits part."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, fields
from typing import Any

from fpsim.analysis.systems.saved_report import SavedReport, table
from fpsim.display.optional import frame
from fpsim.display.wording import percent, plural


@dataclass(frozen=True)
class BatchRow:
    """The bits of rows in batches of one size, compared with those in the smallest batch.

    Attributes:
      batch: rows of the batch.
      differing: share of the rows' elements whose bits differ from those in the smallest batch.
      relative: norm of the difference / norm of the result in the smallest batch.
      by_position: share of elements whose bits change where the row moves to the middle or the end of the batch.
      by_neighbours: share of elements whose bits change with the values of the other rows.
      by_repetition: share of elements whose bits change where the same call is made again.
      group: number of the group of sizes with equal bits, from 0.
      description: how the product is added, where it says so.
    """

    batch: int
    differing: float
    relative: float
    by_position: float
    by_neighbours: float
    by_repetition: float
    group: int
    description: str


@dataclass(frozen=True)
class BatchInvariance(SavedReport):
    """A report that says whether the bits of a row depend on the batch that it is in.

    Attributes:
      rows: a BatchRow for each size, ascending.
      thresholds: sizes at which bits change: the smallest size of each further group, found by bisection between
        neighbouring sizes.
      elements: elements that were compared for each size.
    """

    KIND = "a report on batch invariance"

    rows: tuple[BatchRow, ...]
    thresholds: tuple[int, ...]
    elements: int

    @property
    def invariant(self) -> bool:
        """Return whether no bit depended on size, position, neighbours or repetition."""
        return not self.causes

    @property
    def causes(self) -> tuple[str, ...]:
        """Names of all that bits depend on: of "size", "position", "neighbours" and "repetition"."""
        shares = {
            "size": max(row.differing for row in self.rows),
            "position": max(row.by_position for row in self.rows),
            "neighbours": max(row.by_neighbours for row in self.rows),
            "repetition": max(row.by_repetition for row in self.rows),
        }
        return tuple(name for name, share in shares.items() if share > 0)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame of a row for each size."""
        return frame([asdict(row) for row in self.rows])

    def plot(self, ax: Any = None) -> Any:
        """Draw the share of elements that differ against the size; returns the matplotlib axes."""
        from fpsim.analysis.systems.invariance.figures import batch_axes

        return batch_axes(self, ax)

    @classmethod
    def _made(cls, contents: dict[str, Any]) -> BatchInvariance:
        contents["rows"] = tuple(BatchRow(**row) for row in contents["rows"])
        return cls(**{**contents, "thresholds": tuple(contents["thresholds"])})

    def __str__(self) -> str:
        """Return whether bits depend on the batch, on what of it, and from which sizes on."""
        sizes = f"batches of {self.rows[0].batch} to {self.rows[-1].batch}"
        if self.invariant:
            return f"No bit of {plural(self.elements, 'element')} depends on the batch ({sizes})."
        lines = [f"Bits depend on {' and '.join(self.causes)} ({sizes})."]
        if "repetition" in self.causes:
            lines[0] += " As they change where nothing does, all else may follow from that."
        for threshold in self.thresholds:
            before = [row for row in self.rows if row.batch < threshold][-1]
            after = next(row for row in self.rows if row.batch >= threshold)
            how = f": {before.description} below, {after.description} from there" if after.description else ""
            lines.append(f"From {threshold} rows on, {percent(after.differing)} of the elements differ{how}.")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        text = "".join(f"<p>{html.escape(line)}</p>" for line in str(self).splitlines())
        return text + table([each.name for each in fields(BatchRow)], [asdict(row) for row in self.rows])


@dataclass(frozen=True)
class DecodingRow:
    """One step of two decoders.

    Attributes:
      length: tokens before the step, the prompt included.
      token_first, token_second: what each would choose: the largest logit.
      logprob_first, logprob_second: log-probability, in nats, that each gives the first one's token.
      kl: KL(first || second) of the next token, in nats.
      logit_difference: the largest |difference| of two log-probabilities of a token.
    """

    length: int
    token_first: int
    token_second: int
    logprob_first: float
    logprob_second: float
    kl: float
    logit_difference: float


@dataclass(frozen=True)
class DecodingReport(SavedReport):
    """The next tokens of two decoders of one prompt, at each length.

    Attributes:
      rows: a DecodingRow for each step.
      follow: "first": both read the first one's tokens; "own": each its own.
      prompt: tokens of the prompt.
    """

    KIND = "a report on decoding"

    rows: tuple[DecodingRow, ...]
    follow: str
    prompt: int

    @property
    def first_change(self) -> int | None:
        """The step, from 0, at which the two would choose other tokens for the first time; None for never."""
        return next((i for i, row in enumerate(self.rows) if row.token_first != row.token_second), None)

    @property
    def changed_tokens(self) -> float:
        """Share of steps at which the two would choose other tokens."""
        return sum(row.token_first != row.token_second for row in self.rows) / len(self.rows)

    @property
    def mean_kl(self) -> float:
        """Mean KL(first || second) of the steps, in nats."""
        return sum(row.kl for row in self.rows) / len(self.rows)

    @property
    def mean_logprob_difference(self) -> float:
        """Mean |difference| of the log-probabilities of the first one's tokens, in nats."""
        return sum(abs(row.logprob_first - row.logprob_second) for row in self.rows) / len(self.rows)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame of a row for each step."""
        return frame([asdict(row) for row in self.rows])

    def plot(self, ax: Any = None) -> Any:
        """Draw KL and log-probability differences against the length; returns the matplotlib axes."""
        from fpsim.analysis.systems.invariance.figures import decoding_axes

        return decoding_axes(self, ax)

    @classmethod
    def _made(cls, contents: dict[str, Any]) -> DecodingReport:
        contents["rows"] = tuple(DecodingRow(**row) for row in contents["rows"])
        return cls(**contents)

    def __str__(self) -> str:
        """Return the differences in a sentence."""
        change = self.first_change
        tokens = "no token changes" if change is None else f"the first token changes at step {change}"
        return (
            f"{plural(len(self.rows), 'step')}: {tokens}; mean KL {self.mean_kl:.2g} nats, "
            f"{self.rows[-1].kl:.2g} at length {self.rows[-1].length}."
        )

    def _repr_html_(self) -> str:
        names = [each.name for each in fields(DecodingRow)]
        return f"<p>{html.escape(str(self))}</p>{table(names, [asdict(row) for row in self.rows])}"
