"""Reports on batch invariance (sizes at which a result's bits change) and on decoding (divergence of logits)."""

from __future__ import annotations

from dataclasses import dataclass

from fpsim.analysis.measures.equality import EqualByValue
from fpsim.analysis.systems.saved_report import SavedReport
from fpsim.display.optional import Axes
from fpsim.display.wording import listed, percent, plural


@dataclass(frozen=True)
class BatchRow:
    """The results for the tested rows in batches of one size, compared with those in the smallest batch.

    Attributes:
      batch: number of rows of the batch.
      differing: share of the results' elements whose bits differ from those in the smallest batch, averaged over the
        tested rows.
      relative: norm of the difference / norm of the results in the smallest batch.
      by_position: share of elements whose bits change when the tested row moves to the middle or the end of the batch,
        the largest of all tested rows and places.
      by_neighbours: share of elements whose bits change when the other rows are replaced, the largest of all tested
        rows.
      by_repetition: share of elements whose bits change when the same call is repeated, the largest of all tested rows.
      group: consecutive batch sizes with equal bits have the same number, from 0.
      description: the order of additions as `fn.describe` returns it; "" if fn has no such method.
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
    """A report on whether the bits of a row's result depend on its batch.

    Attributes:
      rows: a BatchRow for each batch size, ascending.
      thresholds: batch sizes at which bits change, ascending: the smallest size with the new bits, found by bisection
        between two of the tested sizes, or with bisect=False the tested size itself.
      elements: number of elements that were compared for each batch size.
    """

    KIND = "a report on batch invariance"
    ROW = BatchRow

    rows: tuple[BatchRow, ...]
    thresholds: tuple[int, ...]
    elements: int

    @property
    def invariant(self) -> bool:
        """True if no bit depends on the batch's size, the row's position, the other rows or repetition of the call."""
        return not self.causes

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes that change bits of a row's result: some of "size", "position", "neighbours" and "repetition".

        They are the size of the batch, the row's position in it, its other rows, and a second identical call.
        """
        names = ("position", "neighbours", "repetition")
        columns = {"size": "differing", **{name: f"by_{name}" for name in names}}
        return tuple(name for name, column in columns.items() if max(getattr(row, column) for row in self.rows) > 0)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the share of elements that differ against the batch size; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.invariance.figures import batch_axes

        return batch_axes(self, ax)

    def __str__(self) -> str:
        """Return a text: whether bits depend on the batch, the causes, and the sizes at which bits change."""
        if len(self.rows) == 1:
            sizes = f"only batches of {plural(self.rows[0].batch, 'row')}, so that other sizes may change bits"
        else:
            sizes = f"batches of {self.rows[0].batch} to {self.rows[-1].batch}"
        if self.invariant:
            return f"No bit of {plural(self.elements, 'element')} depends on the batch ({sizes})."
        lines = [f"Bits depend on {listed(self.causes)} ({sizes})."]
        if "repetition" in self.causes:
            lines[0] += " As repeating a call changes bits, the other causes may follow from that."
        for threshold in self.thresholds:
            before = [row for row in self.rows if row.batch < threshold][-1]
            after = next(row for row in self.rows if row.batch >= threshold)
            how = f" ({before.description} below, {after.description} from there on)" if after.description else ""
            lines.append(f"From {threshold} rows on, {percent(after.differing)} of the elements differ{how}.")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class DecodingRow(EqualByValue):
    """The difference of two decoders' distributions of one token.

    Attributes:
      length: number of tokens before this one, the prompt included.
      token_first, token_second: the token with the largest logit in each decoder.
      logprob_first, logprob_second: log-probability of `token_first` in each decoder, in nats.
      kl: KL(first || second) of the two distributions, in nats.
      logit_difference: the largest |difference| of log-probabilities over the vocabulary, in nats.
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
    """A comparison of two decoders of one prompt, token by token.

    Attributes:
      rows: a DecodingRow for each decoded token.
      follow: "first": both decoders continue from the first decoder's tokens; "own": each from the tokens it chose.
      prompt: number of tokens of the prompt.
    """

    KIND = "a report on decoding"
    ROW = DecodingRow

    rows: tuple[DecodingRow, ...]
    follow: str
    prompt: int

    @property
    def first_change(self) -> int | None:
        """Index in `rows` of the first token that the decoders choose differently; None if there is none."""
        return next((i for i, row in enumerate(self.rows) if row.token_first != row.token_second), None)

    @property
    def changed_tokens(self) -> float:
        """Share of `rows` in which the decoders choose different tokens."""
        return sum(row.token_first != row.token_second for row in self.rows) / len(self.rows)

    @property
    def mean_kl(self) -> float:
        """Mean over the decoded tokens (`rows`) of the Kullback-Leibler divergence KL(first || second), in nats.

        For each token, it compares the probabilities that the two decoders give to all tokens of the vocabulary: it is
        the sum of p * log(p / q), with p of the first decoder and q of the second.
        """
        return sum(row.kl for row in self.rows) / len(self.rows)

    @property
    def mean_logprob_difference(self) -> float:
        """Mean over the decoded tokens (`rows`) of |logprob_first - logprob_second|, in nats.

        These are log-probabilities of the first decoder's most probable token in the first and the second decoder.
        """
        return sum(abs(row.logprob_first - row.logprob_second) for row in self.rows) / len(self.rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw KL and log-probability differences against the number of earlier tokens; return the matplotlib axes.

        ax: axes to draw on; None makes new ones.
        """
        from fpsim.analysis.systems.invariance.figures import decoding_axes

        return decoding_axes(self, ax)

    def __str__(self) -> str:
        """Return a sentence with the first token that the decoders choose differently, and the mean and last KL."""
        change = self.first_change
        tokens = "no token changes" if change is None else f"the first token changes at step {change}"
        return (
            f"{plural(len(self.rows), 'step')}: {tokens}; mean KL {self.mean_kl:.2g} nats, "
            f"{self.rows[-1].kl:.2g} at length {self.rows[-1].length}."
        )
