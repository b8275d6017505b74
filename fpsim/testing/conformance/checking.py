"""Files of test vectors, and reports on implementations that are compared with them."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fpsim.errors import require_kind, shown, unknown
from fpsim.files import path_of, require_file
from fpsim.testing.conformance.choice import chosen
from fpsim.testing.conformance.files import is_text, load, save
from fpsim.testing.conformance.kinds import KINDS, computed, is_nan
from fpsim.testing.conformance.pipe import answers
from fpsim.testing.conformance.vectors import Vectors, Words, text_of

LISTED = 20  # sets with wrong answers that a text lists


@dataclass(frozen=True)
class ConformanceRow:
    """One row of a `ConformanceReport`: how many cases of one set an implementation answered, and how many wrongly.

    Attributes:
      set: title of the set of vectors, such as "cast format=E4M3 ...".
      cases: number of cases in the set.
      answered: number of cases that the implementation answered.
      wrong: number of answers that differ from the set's outputs; any two NaNs are equal.
      first: text with the first wrong answer, its inputs and the right answer; "" if none is wrong.
    """

    set: str
    cases: int
    answered: int
    wrong: int
    first: str = ""


@dataclass(frozen=True)
class ConformanceReport:
    """Report on how an implementation answers sets of test vectors; it is true if `.ok`.

    Attributes:
      name: name of the implementation.
      rows: one `ConformanceRow` per set.
    """

    name: str
    rows: tuple[ConformanceRow, ...]

    @property
    def ok(self) -> bool:
        """True if at least one case was answered and no answer is wrong."""
        return any(row.answered for row in self.rows) and not any(row.wrong for row in self.rows)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        wrong = [row for row in self.rows if row.wrong]
        skipped = [row for row in self.rows if not row.answered]
        answered, cases = sum(row.answered for row in self.rows), sum(row.cases for row in self.rows)
        lines = [
            f"{self.name}: {sum(row.wrong for row in wrong):,} of {answered:,} answers differ, in {len(wrong)} of "
            f"{len(self.rows) - len(skipped)} sets; {cases - answered:,} of {cases:,} cases were not answered."
        ]
        lines += [f"  {row.set}: {row.wrong} of {row.answered}, first {row.first}" for row in wrong[:LISTED]]
        if len(wrong) > LISTED:
            lines.append(f"  and {len(wrong) - LISTED} more in .rows")
        return "\n".join(lines)


def make(path: str | os.PathLike[str]) -> None:
    """Write the test vectors of this version of fpsim to a file: 640 KB of text, or .npz.

    Args:
      path: name of the file, ending in .txt or .npz; an existing file is replaced.

    Raises:
      ValueError: the path ends in neither .txt nor .npz.
      OSError: the file cannot be written.

    Example:
      >>> import tempfile, fpsim as fp
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     fp.testing.conformance.make(f"{folder}/vectors.npz")
      ...     fp.testing.conformance.check(f"{folder}/vectors.npz", only=["cast"]).ok
      True
    """
    is_text(path_of(path))  # reject other endings, and unwritable folders, before the vectors are computed
    require_file(path)
    save(chosen(), path)


def check(
    path: str | os.PathLike[str],
    command: str | None = None,
    *,
    only: Sequence[str] | None = None,
    timeout: float = 600.0,
) -> ConformanceReport:
    """Compare the outputs in a file of vectors with those of another implementation, or of the installed fpsim.

    Args:
      path: a file that `make` wrote.
      command: a program with arguments, as for a shell, that reads lines of inputs and writes lines of outputs
        (docs/conformance.md); None compares the installed fpsim.
      only: the sets to compare, by kind, such as ["cast", "add"], or by kind and format, unit or rounding, such as
        ["cast:E5M2", "dot_add:hopper_e4m3_f32"]; None for all.
      timeout: seconds after which the command is stopped.

    Returns:
      The report on the command, or on the installed fpsim if `command` is None.

    Raises:
      ValueError: the file is damaged, edited, or of another version; `only` or `timeout` is wrong; or, with a command,
        the file's outputs are not those of the installed fpsim, or the command fails or exceeds `timeout`.
      TypeError: the command is not a text.
      FileNotFoundError: there is no such file.

    Example:
      >>> import fpsim as fp
      >>> fp.testing.conformance.check("vectors.bin")
      Traceback (most recent call last):
      ValueError: the file's name must end in .txt or .npz; got 'vectors.bin'.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be seconds above 0; got {shown(timeout)}.")
    if command is not None:
        require_kind("command", command, str, "a text, such as './mine --fast', or None")
    sets = _selected(load(path), only)
    all_cases = [(_computed(vectors, path), np.arange(len(vectors.inputs), dtype=np.uint64)) for vectors in sets]
    own_report = ConformanceReport("fpsim", tuple(map(_row, sets, all_cases)))
    if command is None:
        return own_report
    first = next((row for row in own_report.rows if row.wrong), None)
    if first is not None:
        raise ValueError(
            f"{path}: its outputs are not those of this fpsim: {first.wrong} of {first.cases} differ in {first.set!r}, "
            f"first {first.first}. Make the file again."
        )
    return ConformanceReport(command, tuple(map(_row, sets, answers(sets, command, timeout))))


def _selected(sets: list[Vectors], only: Sequence[str] | None) -> list[Vectors]:
    """Return the sets of test vectors that `only` selects; all of them if it is None.

    only: kinds such as "cast", or kinds with a format, unit or rounding, such as "cast:E5M2".

    Raises:
      ValueError: `only` is not a list of texts, a kind is unknown, or no set of that kind has that format, unit or
        rounding.
    """
    if only is None:
        return sets
    if not isinstance(only, (list, tuple, set)) or not only or not all(isinstance(words, str) for words in only):
        raise ValueError(f"only must be a list of one or more texts, such as ['cast'], or None; got {shown(only)}.")
    chosen_sets: dict[int, None] = {}
    for words in only:
        kind, colon, value = words.partition(":")
        if kind not in KINDS:
            raise unknown("only", kind, list(KINDS))
        of_kind = [place for place, vectors in enumerate(sets) if vectors.kind == kind]
        if colon and of_kind:
            of_kind = _with_value([(place, sets[place].words) for place in of_kind], value, kind)
        chosen_sets.update(dict.fromkeys(of_kind))
    return [sets[place] for place in sorted(chosen_sets)]


def _with_value(titles: list[tuple[int, dict[str, str]]], value: str, kind: str) -> list[int]:
    """Return the places of the sets that have a value, whatever its case, under the first word under which any has it.

    FP32, for example, is the format of casts to FP32, not also what most casts are from. titles: place and words of
    each set. kind: the sets' kind, for errors.

    Raises:
      ValueError: no set has the value.
    """
    for word in dict.fromkeys(word for _, words in titles for word in words):
        places = [place for place, words in titles if words.get(word, "").casefold() == value.casefold()]
        if places:
            return places
    values = dict.fromkeys(known for _, words in titles for known in words.values())
    raise unknown(f"what follows {kind}:", value, list(values))


def _computed(vectors: Vectors, path: object) -> Words:
    """Return the installed fpsim's outputs for a set of test vectors: codes, uint64, (cases, numbers).

    path: the file of the set, which errors name.

    Raises:
      ValueError: the installed fpsim cannot compute the set.
    """
    try:
        return computed(vectors)
    except (ValueError, TypeError) as problem:
        raise ValueError(f"{path}: this fpsim does not compute {vectors.title!r}: {problem}") from None


def _row(vectors: Vectors, result: tuple[Words, Words]) -> ConformanceRow:
    """Return the row of the report that compares an implementation's answers to one set of test vectors.

    result: (outputs of the answered cases, codes (cases, numbers); indices of these cases).
    """
    got, answered = result
    want = vectors.outputs[answered.astype(np.int64)]
    differ = (got != want) & ~(is_nan(got, vectors.gives) & is_nan(want, vectors.gives))
    wrong = differ.any(axis=1)
    first = ""
    if wrong.any():
        at = int(np.argmax(wrong))
        takes = text_of(vectors.inputs[int(answered[at])], vectors.takes)
        first = f"{takes}: got {text_of(got[at], vectors.gives)}, want {text_of(want[at], vectors.gives)}"
    return ConformanceRow(vectors.title, len(vectors.inputs), len(got), int(wrong.sum()), first)
