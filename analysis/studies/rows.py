"""Records of a study: errors and ranges of tensors, the requirements of a recommended format, and recommendations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

from fpsim.analysis.measures.error_report import ErrorReport
from fpsim.analysis.measures.exponent_range import RangeReport
from fpsim.analysis.studies.candidates import scaling_words
from fpsim.analysis.tensors.roles import OPERANDS, SPOKEN
from fpsim.display.wording import plural
from fpsim.errors import shown


class Requirements(NamedTuple):
    """The requirements that a recommended candidate (format with a scaling) must meet at every step of an operand.

    A candidate without scales must also be in a format whose largest value is at least twice the operand's.

    Attributes:
      min_sqnr: least SQNR of the operand in dB; nine of ten rows, and nine of ten columns, need an SQNR of at least
        `min_sqnr` - 3 dB.
      max_lost: largest share (0 to 1) of the energy (sum of squares) in elements that become zero.
      budget_bits: most bits per value, scales included; None for any number.
    """

    min_sqnr: float = 25.0  # E4M3 and INT8 have a larger SQNR, 4-bit formats a smaller one
    max_lost: float = 1e-3
    budget_bits: float | None = None

    def checked(self) -> Requirements:
        """Return the requirements with all numbers as floats; a `budget_bits` of None stays None.

        Raises:
          ValueError: a requirement is not a number in its range.
        """
        limits = {"min_sqnr": (-math.inf, 400.0), "max_lost": (0.0, 1.0), "budget_bits": (1.0, 64.0)}
        numbers = {}
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if name == "budget_bits" and value is None:
                continue
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not number or not low <= value <= high:
                raise ValueError(f"{name} must be a number from {low:g} to {high:g}; got {shown(value)}.")
            numbers[name] = float(value)
        return self._replace(**numbers)


class ErrorRow(NamedTuple):
    """The error of one tensor at one training step in one format, scaling and rounding.

    Attributes:
      tensor: name of the tensor.
      step: the training step; None for a tensor without steps.
      scaling: "none", "amax" or the repr of an fp.Scaling.
      report: the metrics, with the format and rounding.
      channel_sqnr_db: an SQNR in dB that 90 % of the rows and 90 % of the columns of a sample reach or exceed; NaN if
        it was not measured. It is measured only for operands, in the one rounding on which recommendations are based.
    """

    tensor: str
    step: int | None
    scaling: str
    report: ErrorReport
    channel_sqnr_db: float = math.nan


class RangeRow(NamedTuple):
    """The range of one tensor at one training step, before rounding.

    Attributes:
      tensor, layer: name of the tensor, and of its layer.
      role: the use of the tensor, such as "matrix", "activation" or "bias".
      step: the training step; None for a tensor without steps.
      dtype, shape: name of the dtype that the source holds, and the shape of the tensor.
      report: the range.
      stored_bits: bits per element as stored in the source, its share of the bits of scales included.
    """

    tensor: str
    layer: str
    role: str
    step: int | None
    dtype: str
    shape: tuple[int, ...]
    report: RangeReport
    stored_bits: float


@dataclass(frozen=True)
class Recommendation:
    """The recommended format and scaling of one tensor for all its steps.

    Attributes:
      tensor, role: name of the tensor, and its use, such as "matrix", "activation" or "bias".
      format: name of the recommended format; the tensor's own dtype if it keeps that.
      scaling: "none", "amax" or the repr of an fp.Scaling.
      bits_per_value: bits per element in the recommended format, its share of the bits of scales included.
      sqnr_db, lost_energy: lowest SQNR in dB over the steps, and largest share (0 to 1) of the energy (sum of squares)
        in values that become 0. They are those of the recommended candidate, or of the nearest one if none is good
        enough. NaN if the tensor was not judged, or keeps its dtype since no candidate saves a tenth of the bits. The
        SQNR is also NaN if it cannot be measured.
      deficit_db: SQNR of the format on normal data minus `sqnr_db`, at least 0; NaN for integers and for tensors that
        keep their dtype.
      runner_up: name of the candidate with the highest SQNR in another format of equally many bits; "" if there is
        none.
      margin_db: `sqnr_db` minus the SQNR of the runner-up, 0 if both are Inf; NaN if there is none.
      met: whether a candidate is recommended; if not, the tensor keeps its dtype.
      values: number of elements of the tensor at one step.
      stored_bits: bits per element as stored in the source, its share of the bits of scales included.
      reason: the reason for the recommendation, in a few sentences.
    """

    tensor: str
    role: str
    format: str
    scaling: str
    bits_per_value: float
    sqnr_db: float
    lost_energy: float
    deficit_db: float
    runner_up: str
    margin_db: float
    met: bool
    values: int
    stored_bits: float
    reason: str

    @property
    def operand(self) -> bool:
        """True if the tensor is an operand of products (weight, activation or gradient).

        Only operands get formats of few bits.
        """
        return self.role in OPERANDS

    @property
    def failed(self) -> bool:
        """True if the tensor was judged and keeps its dtype, since no candidate is good enough."""
        return not self.met and not math.isnan(self.lost_energy)

    @property
    def choice(self) -> str:
        """The recommended format and scaling as text; the tensor's dtype if it keeps that."""
        return f"{self.format} {scaling_words(self.scaling)}" if self.met else self.format


class TensorGroup(NamedTuple):
    """Tensors with the same role and recommendation, which share a row of a table.

    Attributes:
      role: the use of the tensors, such as "matrix".
      choice: the recommended format and scaling as text, or "keep their dtype" ("keeps its dtype" for one tensor).
      met: whether a candidate is recommended; if not, the tensors keep their dtypes.
      rows: the recommendations, one for each tensor.
    """

    role: str
    choice: str
    met: bool
    rows: tuple[Recommendation, ...]

    @property
    def values(self) -> int:
        """Number of elements of all tensors of the group."""
        return sum(row.values for row in self.rows)

    @property
    def sqnr_db(self) -> float:
        """Lowest SQNR of the group's tensors in the recommended format, in dB; NaN if they keep their dtypes."""
        return min(row.sqnr_db for row in self.rows) if self.met else math.nan

    @property
    def title(self) -> str:
        """Number and role of the tensors, such as "3 weights"."""
        noun = {"statistics": "statistic", "matrix": "weight"}.get(self.role, SPOKEN.get(self.role, self.role))
        return plural(len(self.rows), noun, {"bias": "biases"}.get(noun, ""))


def groups_of(rows: Sequence[Recommendation]) -> tuple[TensorGroup, ...]:
    """Return the tensors grouped by role and recommendation.

    The largest group comes first, and groups that keep their dtype come last. rows: the recommendations.
    """
    equal: dict[tuple[str, str, bool], list[Recommendation]] = {}
    for row in rows:
        key = (row.role, row.choice if row.met else "keep their dtype", row.met)
        equal.setdefault(key, []).append(row)
    groups = [
        TensorGroup(role, "keeps its dtype" if not met and len(rows) == 1 else choice, met, tuple(rows))
        for (role, choice, met), rows in equal.items()
    ]
    return tuple(sorted(groups, key=lambda group: (not group.met, -group.values)))
