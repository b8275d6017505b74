"""A claim as data: a statement, its source, an experiment, and the numbers that justify its verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fpsim.errors import require_word

RIGHT, WRONG, CONDITIONAL = "right", "wrong", "only under these conditions"
UNSETTLED, OPEN = "cannot be settled here", "not settled yet"
VERDICTS = (RIGHT, WRONG, CONDITIONAL, UNSETTLED, OPEN)
MEASURED, ARITHMETIC, DOCUMENT = "measured", "arithmetic", "document"
KINDS = (MEASURED, ARITHMETIC, DOCUMENT)
V3 = "DeepSeek-V3, arXiv:2412.19437"  # a source of many claims

Figure = float | int | bool | str
Figures = dict[str, Figure]
Expected = Figure | tuple[float, float]


def near(value: float, share: float) -> tuple[float, float]:
    """Return the interval (low, high) of `value` plus or minus `share` times |value|.

    Example:
      >>> from fpsim.analysis.systems.claims.claim import near
      >>> near(-8.0, 0.25)
      (-10.0, -6.0)
    """
    return around(value, abs(value) * share)


def around(value: float, distance: float) -> tuple[float, float]:
    """Return the interval (low, high) of `value` plus or minus `distance`.

    Example:
      >>> from fpsim.analysis.systems.claims.claim import around
      >>> around(31.5, 0.5)
      (31.0, 32.0)
    """
    return (value - distance, value + distance)


def holds(figure: Figure, expected: Expected) -> bool:
    """Return whether a result, `figure`, equals the `expected` value, or is in the `expected` interval (ends included).

    Example:
      >>> from fpsim.analysis.systems.claims.claim import holds
      >>> holds(65504.0, 65504), holds(0.3, (0.1, 0.2)), holds(float("nan"), (0.0, 1.0))
      (True, False, False)
    """
    if isinstance(expected, tuple):
        return not isinstance(figure, str) and expected[0] <= figure <= expected[1]
    return figure == expected


@dataclass(frozen=True)
class Claim:
    """A statement about low precision, and the experiment that settles whether it is right.

    Attributes:
      number: "1" to "104" for claims of circulating articles, "P1" and so on for published numbers, "R1" and so on for
        numbers of reports.
      name: a short name with hyphens, such as "ring-bf16".
      claim: the statement, as this project words it.
      source: the publication that makes the statement.
      setup: the inputs and the metric of the experiment, or the documents that the claim is compared with.
      verdict: "right", "wrong", "only under these conditions", "cannot be settled here" or "not settled yet"; it holds
        if the experiment's results are as `expected`.
      reason: a sentence that explains the verdict, with the conditions if the claim holds only under some.
      kind: "measured" (by an experiment), "arithmetic" (for cost, speed, energy and sizes: only whether numbers agree
        with each other), or "document" (by comparison with a publication).
      experiment: a function without arguments that returns its results, name -> number or string; None for no
        experiment.
      expected: name of a result -> the value that it must equal, or (low, high), the interval that it must be in.

    Raises:
      ValueError: an unknown verdict or kind, or a verdict without the experiment or expectations that it needs.
    """

    number: str
    name: str
    claim: str
    source: str
    setup: str
    verdict: str
    reason: str
    kind: str = MEASURED
    experiment: Callable[[], Figures] | None = None
    expected: Mapping[str, Expected] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_word("verdict", self.verdict, VERDICTS)
        require_word("kind", self.kind, KINDS)
        if self.verdict in (RIGHT, WRONG, CONDITIONAL) and self.kind != DOCUMENT and self.experiment is None:
            raise ValueError(f"a claim that is {self.verdict} must have an experiment; {self.name} has none. Add one.")
        if (self.experiment is None) != (not self.expected):
            raise ValueError(f"an experiment and expected figures must come together; {self.name} has one. Add both.")
