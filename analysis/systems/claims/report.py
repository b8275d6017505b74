"""Results of claims: a row for each claim, with numbers and verdict; as a table, data frame, Markdown or file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fpsim.analysis.systems.claims.catalogue import CLAIMS, find_claim
from fpsim.analysis.systems.claims.claim import MEASURED, Claim, Figure, Figures, holds
from fpsim.analysis.systems.claims.page import markdown_of
from fpsim.display.optional import DataFrame, frame
from fpsim.display.tables import html_table
from fpsim.errors import shown
from fpsim.exact_json import from_json, to_json
from fpsim.files import path_of, write_whole

VERSION = 1
DIFFERS, FAILED = "differs here", "failed"


@dataclass(frozen=True)
class ClaimResult:
    """A claim with the results of its experiment.

    Attributes:
      claim: the claim, as the catalogue states it.
      figures: name -> number or string that the experiment returned; empty without an experiment, or if it failed.
      seconds: duration of the experiment; 0 without an experiment.
      error: the reason why the experiment failed; "" if it did not.
    """

    claim: Claim
    figures: Figures
    seconds: float = 0.0
    error: str = ""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Return how to pickle the result: by the claim's name in the catalogue, as experiments may be lambdas."""
        if CLAIMS.get(self.claim.name) is not self.claim:
            return super().__reduce_ex__(protocol)
        return _result_of, (self.claim.name, self.figures, self.seconds, self.error)

    @property
    def number(self) -> str:
        """Number of the claim in the catalogue, such as "69" or "P8"."""
        return self.claim.number

    @property
    def name(self) -> str:
        """Name of the claim in the catalogue, such as "ring-bf16"."""
        return self.claim.name

    @property
    def kind(self) -> str:
        """Kind of the claim: "measured", "arithmetic", "document", or "not run" if a measurement has no experiment."""
        return "not run" if self.claim.kind == MEASURED and self.claim.experiment is None else self.claim.kind

    @property
    def differing(self) -> tuple[str, ...]:
        """Names of the experiment's results that are missing, unexpected, or outside the expected range."""
        expected = self.claim.expected
        names = dict.fromkeys([*expected, *self.figures])
        return tuple(
            name
            for name in names
            if name not in expected or name not in self.figures or not holds(self.figures[name], expected[name])
        )

    @property
    def verdict(self) -> str:
        """Verdict of the claim if every result is as expected; "differs here" if not; "failed" after an error."""
        if self.error:
            return FAILED
        return DIFFERS if self.differing else self.claim.verdict

    @property
    def reason(self) -> str:
        """Text that explains the verdict: the error, or the results that differ, or the claim's own reason."""
        if self.error:
            return self.error
        lines = [
            f"{name} is {_text(self.figures[name]) if name in self.figures else 'missing'}, "
            f"expected {_range(self.claim.expected.get(name, 'no such figure'))}"
            for name in self.differing
        ]
        return "; ".join(lines) if lines else self.claim.reason

    @property
    def text(self) -> str:
        """The experiment's results as one line, "name: value; name: value"."""
        return "; ".join(f"{name}: {_text(value)}" for name, value in self.figures.items())

    def to_dict(self) -> dict[str, Any]:
        """Return column -> value: number, name, claim, source, kind, setup, figures, verdict, reason, seconds."""
        claim = self.claim
        return {
            "number": claim.number, "name": claim.name, "claim": claim.claim, "source": claim.source,
            "kind": self.kind, "setup": claim.setup, "figures": self.text, "verdict": self.verdict,
            "reason": self.reason, "seconds": self.seconds,
        }  # fmt: skip


def _result_of(name: str, figures: Figures, seconds: float, error: str) -> ClaimResult:
    """Return the ClaimResult for the claim of the catalogue named `name`."""
    return ClaimResult(CLAIMS[name], figures, seconds, error)


@dataclass(frozen=True)
class ClaimsReport:
    """A table of claims with the results of their experiments and verdicts.

    Attributes:
      rows: a ClaimResult for each claim, in the catalogue's order.
    """

    rows: tuple[ClaimResult, ...]

    def __getitem__(self, word: str | int) -> ClaimResult:
        """Return the row of the claim with the name or number `word`.

        Raises:
          ValueError: there is no such claim, or the report does not contain it.
          TypeError: word is neither a string nor an integer.
        """
        claim = find_claim(word)
        for row in self.rows:
            if row.claim.name == claim.name:
                return row
        raise ValueError(f"the report does not have the claim {shown(word)}. Run it: fp.analysis.claims({word!r}).")

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ClaimResult]:
        return iter(self.rows)

    @property
    def ok(self) -> bool:
        """True if no experiment failed and every result is as expected."""
        return not any(row.error or row.differing for row in self.rows)

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows with each verdict: verdict -> number."""
        verdicts = [row.verdict for row in self.rows]
        return {verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)}

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame: a row for each claim, with the columns of `ClaimResult.to_dict`."""
        return frame([row.to_dict() for row in self.rows])

    def to_markdown(self) -> str:
        """Return the rows as a Markdown page, as in docs/claims.md."""
        return markdown_of([row.to_dict() for row in self.rows])

    def __str__(self) -> str:
        """Return a text with a line for each claim: number, name, verdict, and results or the reason."""
        if not self.rows:
            return "no claims"
        width = max(len(row.name) for row in self.rows)
        lines = [f"{row.number:>4} {row.name:{width}} {row.verdict}: {row.text or row.reason}" for row in self.rows]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks: number, name, claim, results, verdict and reason of each claim."""
        names = ("number", "name", "claim", "figures", "verdict", "reason")
        return html_table(names, ([row.to_dict()[name] for name in names] for row in self.rows))

    def save(self, path: str | Path) -> Path:
        """Write the results of all rows to a JSON file, whole or not at all, and return its path.

        Raises:
          OSError: the file cannot be written.
        """
        target = path_of(path)
        rows = [
            {"name": row.name, "figures": to_json(row.figures), "seconds": row.seconds, "error": row.error}
            for row in self.rows
        ]
        write_whole(target, json.dumps({"claims": VERSION, "rows": rows}, indent=1) + "\n")
        return target

    @classmethod
    def load(cls, path: str | Path) -> ClaimsReport:
        """Read a report that `save` wrote.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: the file does not hold a ClaimsReport, or has claims that this version does not know.
        """
        source = path_of(path)
        try:
            content = json.loads(source.read_text(encoding="utf-8"))
            if content["claims"] != VERSION:
                raise KeyError(content["claims"])
            rows = [
                _result_of(row["name"], from_json(row["figures"]), float(row["seconds"]), str(row["error"]))
                for row in content["rows"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as reason:
            raise ValueError(
                f"path must be a file that ClaimsReport.save of this version wrote; got {shown(str(source))} "
                f"({type(reason).__name__}: {shown(str(reason))}). Run the claims again."
            ) from None
        return cls(tuple(rows))


def _text(figure: Figure) -> str:
    """Return the result `figure` as text: "yes" or "no" for a bool, integers in full, other floats to 4 digits.

    A float counts as an integer if it is whole and below 1e6 in magnitude. A string is returned unchanged.
    """
    if isinstance(figure, bool):
        return "yes" if figure else "no"
    if isinstance(figure, int) or (isinstance(figure, float) and figure.is_integer() and abs(figure) < 1e6):
        return f"{int(figure):,}"
    return f"{figure:.4g}" if isinstance(figure, float) else figure


def _range(expected: Any) -> str:
    """Return an expected value, or an interval (low, high), as text."""
    return f"{expected[0]:.4g} to {expected[1]:.4g}" if isinstance(expected, tuple) else str(expected)
