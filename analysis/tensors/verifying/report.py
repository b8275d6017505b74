"""The report on a checkpoint: its layout, and what contradicts the layout."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from fpsim.display.optional import DataFrame, frame
from fpsim.display.wording import plural
from fpsim.files import path_of, write_whole

VERSION = 1  # of the saved file's fields


class Finding(NamedTuple):
    """A statement about a weight or the whole checkpoint: a contradiction of the layout, or information.

    Attributes:
      tensor: the weight's name in the unquantised model; "" for the whole checkpoint.
      kind: a few words for the kind of statement, equal for all tensors with the same fault.
      text: the statement, a sentence that begins with the tensor's name.
      contradicts: True for a contradiction of the layout. False for information: a library's reader that handles this
        checkpoint wrongly, or something that the file alone cannot show.
    """

    tensor: str
    kind: str
    text: str
    contradicts: bool = True

    @classmethod
    def about(cls, tensor: str, kind: str, text: str, contradicts: bool = True) -> Finding:
        """Return a Finding on the weight called `tensor`, whose text is "TENSOR: TEXT"; other fields are as passed."""
        return cls(tensor, kind, f"{tensor}: {text}", contradicts)


@dataclass(frozen=True)
class LayoutReport:
    """The layout of a checkpoint, and what contradicts the layout.

    Attributes:
      path: the path of the checkpoint.
      layout: the name of the layout, such as "gptq_v2"; several names are joined by " + "; "plain" for a checkpoint
        without quantised weights; "" for a file that cannot be read.
      weights: the number of quantised weights that were checked.
      findings: all contradictions and notes.
    """

    path: str
    layout: str
    weights: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """True if nothing contradicts the layout."""
        return not any(one.contradicts for one in self.findings)

    @property
    def problems(self) -> list[str]:
        """A sentence for each kind of contradiction: that of its first weight, and the number of further weights."""
        return list(_folded(one for one in self.findings if one.contradicts))

    @property
    def notes(self) -> list[str]:
        """A sentence for each kind of note: on a library that misreads this checkpoint, or on a possible fault.

        A possible fault, such as exchanged codes, shows only in a comparison with the unquantised model.
        """
        return list(_folded(one for one in self.findings if not one.contradicts))

    def __str__(self) -> str:
        """Return the verdict, then the problems and the notes, one on each line."""
        return "\n".join([self.verdict, *self.problems, *self.notes])

    @property
    def verdict(self) -> str:
        """A sentence with the path, the layout, and the numbers of weights and problems."""
        checked = plural(self.weights, "quantised weight")
        if self.ok:
            return f"{self.path}: {self.layout}, {checked}, nothing contradicts it."
        return f"{self.path}: {self.layout or 'unreadable'}, {checked}, {plural(len(self.problems), 'problem')}."

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame with a row for each finding; the columns are tensor, kind, text and
        contradicts.
        """
        return frame([one._asdict() for one in self.findings])

    def _repr_html_(self) -> str:
        """Return the verdict with a list of problems and notes as HTML for notebooks."""
        rows = "".join(f"<li>{html.escape(line)}</li>" for line in self.problems)
        notes = "".join(f"<li><i>{html.escape(line)}</i></li>" for line in self.notes)
        return f"<p><b>{html.escape(self.verdict)}</b></p><ul>{rows}{notes}</ul>"

    def save(self, path: str | Path) -> None:
        """Write the report to a file as JSON; an older file is replaced only once all is written."""
        content = {"version": VERSION, **asdict(self), "findings": [one._asdict() for one in self.findings]}
        write_whole(path, json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> LayoutReport:
        """Return a report that `save` wrote.

        Raises:
          ValueError: the file is not such a report.
        """
        try:
            content = json.loads(path_of(path).read_text(encoding="utf-8"))
            assert content.pop("version") == VERSION
            findings = tuple(Finding(**row) for row in content.pop("findings"))
            return cls(findings=findings, **content)
        except (ValueError, AssertionError, KeyError, TypeError, AttributeError) as problem:
            raise ValueError(
                f"{path} is not a report that LayoutReport.save wrote. Run fp.analysis.verify again."
            ) from (problem)


def _folded(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield one text for each `Finding.kind`: that of its first finding, and the number of further weights with one."""
    by_kind: dict[str, list[Finding]] = {}
    for one in findings:
        by_kind.setdefault(one.kind, []).append(one)
    for same in by_kind.values():
        more = f" The same holds for {plural(len(same) - 1, 'further weight')}." if len(same) > 1 else ""
        yield same[0].text + more
