"""Reports on batches and decoding: sizes at which a row's bits change, and the divergence of logits."""

from __future__ import annotations

from dataclasses import dataclass

from fpsim.analysis.systems.saved_report import SavedReport
from fpsim.display.optional import Axes
from fpsim.display.wording import percent, plural


@dataclass(frozen=True)
class BatchRow:
    """The bits of rows in batches of one size, compared with those in the smallest batch.

    Attributes:
      batch: number of rows of the batch.
      differing: share of the rows' elements whose bits differ from those in the smallest batch.
      relative: norm of the difference / norm of the result in the smallest batch.
      by_position: share of elements whose bits change when the row moves to the middle or the end of the batch.
      by_neighbours: share of elements whose bits change with the values of the other rows.
      by_repetition: share of elements whose bits change when the same call is repeated.
      group: number of the group of sizes with equal bits, from 0.
      description: the order of additions as `fn.describe` returns it; "" without that method.
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
    """A report on whether the bits of a row depend on its batch.

    Attributes:
      rows: a BatchRow for each size, ascending.
      thresholds: sizes at which bits change: the smallest size of each further group, found by bisection between
        neighbouring sizes.
      elements: number of elements that were compared for each size.
    """

    KIND = "a report on batch invariance"
    ROW = BatchRow

    rows: tuple[BatchRow, ...]
    thresholds: tuple[int, ...]
    elements: int

    @property
    def invariant(self) -> bool:
        """True if no bit of a row depends on the batch's size, the row's position, its neighbours or the repetition."""
        return not self.causes

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes of different bits, a subset of "size", "position", "neighbours" and "repetition"."""
        shares = {
            "size": max(row.differing for row in self.rows),
            "position": max(row.by_position for row in self.rows),
            "neighbours": max(row.by_neighbours for row in self.rows),
            "repetition": max(row.by_repetition for row in self.rows),
        }
        return tuple(name for name, share in shares.items() if share > 0)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the share of elements that differ against the size, and return the matplotlib axes."""
        from fpsim.analysis.systems.invariance.figures import batch_axes

        return batch_axes(self, ax)

    def __str__(self) -> str:
        """Return whether bits depend on the batch, the causes, and the sizes at which they change."""
        sizes = f"batches of {self.rows[0].batch} to {self.rows[-1].batch}"
        if self.invariant:
            return f"No bit of {plural(self.elements, 'element')} depends on the batch ({sizes})."
        lines = [f"Bits depend on {' and '.join(self.causes)} ({sizes})."]
        if "repetition" in self.causes:
            lines[0] += " As repeating a call changes bits, the other causes may follow from that."
        for threshold in self.thresholds:
            before = [row for row in self.rows if row.batch < threshold][-1]
            after = next(row for row in self.rows if row.batch >= threshold)
            how = f" ({before.description} below, {after.description} from there on)" if after.description else ""
            lines.append(f"From {threshold} rows on, {percent(after.differing)} of the elements differ{how}.")
        return "\n".join(lines)


@dataclass(frozen=True)
class DecodingRow:
    """The difference of two decoders at one step, which is one token.

    Attributes:
      length: number of tokens before the step, the prompt included.
      token_first, token_second: the token that each decoder chooses, that of the largest logit.
      logprob_first, logprob_second: log-probability of the first decoder's token in each decoder, in nats.
      kl: KL(first || second) of the next token, in nats.
      logit_difference: the largest |difference| of the log-probabilities of a token.
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
      follow: "first": both read the first decoder's tokens; "own": each reads its own.
      prompt: number of tokens of the prompt.
    """

    KIND = "a report on decoding"
    ROW = DecodingRow

    rows: tuple[DecodingRow, ...]
    follow: str
    prompt: int

    @property
    def first_change(self) -> int | None:
        """The first step, from 0, at which the decoders choose different tokens; None if there is none."""
        return next((i for i, row in enumerate(self.rows) if row.token_first != row.token_second), None)

    @property
    def changed_tokens(self) -> float:
        """Share of steps at which the decoders choose different tokens."""
        return sum(row.token_first != row.token_second for row in self.rows) / len(self.rows)

    @property
    def mean_kl(self) -> float:
        """Mean KL(first || second) over the steps, in nats."""
        return sum(row.kl for row in self.rows) / len(self.rows)

    @property
    def mean_logprob_difference(self) -> float:
        """Mean |difference| of the log-probabilities of the first decoder's tokens, in nats."""
        return sum(abs(row.logprob_first - row.logprob_second) for row in self.rows) / len(self.rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw KL and log-probability differences against the length, and return the matplotlib axes."""
        from fpsim.analysis.systems.invariance.figures import decoding_axes

        return decoding_axes(self, ax)

    def __str__(self) -> str:
        """Return the differences in a sentence."""
        change = self.first_change
        tokens = "no token changes" if change is None else f"the first token changes at step {change}"
        return (
            f"{plural(len(self.rows), 'step')}: {tokens}; mean KL {self.mean_kl:.2g} nats, "
            f"{self.rows[-1].kl:.2g} at length {self.rows[-1].length}."
        )
