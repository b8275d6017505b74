"""Vectors as text: one line per set, one line per case, a digest at the end (docs/conformance.md)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np

from fpsim.testing.conformance.vectors import Vectors, read_line, row_of, rows, text_of

VERSION = 1
FIRST = f"fpsim-conformance {VERSION}"
END = "end sha256="


def written(sets: Iterable[Vectors]) -> str:
    """Return the text of a file that contains the given sets of test vectors."""
    lines = [FIRST]
    for vectors in sets:
        lines.append(vectors.line)
        takes = lines_of(vectors)
        lines += [f"{case} {text_of(row, vectors.gives)}" for case, row in zip(takes, vectors.outputs, strict=True)]
    body = "".join(f"{line}\n" for line in lines)
    return f"{body}{END}{_digest(body)}\n"


def lines_of(vectors: Vectors) -> list[str]:
    """Return the inputs of a set of test vectors as text, one line of hexadecimal numbers per case."""
    return [text_of(row, vectors.takes) for row in vectors.inputs]


def read(text: str) -> list[Vectors]:
    """Return the sets of test vectors in the text of a file.

    Raises:
      ValueError: the file is of another version, its digest is wrong, or a line is malformed.
    """
    first, _, _ = text.partition("\n")
    if first != FIRST:
        raise ValueError(f"the first line must be {FIRST!r}; got {first[:60]!r}")
    body, mark, last = text.rpartition(f"\n{END}")
    if not mark or not last.endswith("\n") or len(last) != 65:
        raise ValueError(f"the last line must be '{END}' and 64 digits: the file is cut short")
    if last.strip() != _digest(f"{body}\n"):
        raise ValueError("its content differs from its digest")
    lines = enumerate(body.split("\n")[1:], 2)
    return list(_sets(lines))


def _digest(body: str) -> str:
    """Return the SHA-256 of an ASCII text as 64 hexadecimal digits."""
    return hashlib.sha256(body.encode("ascii")).hexdigest()


def _sets(lines: Iterator[tuple[int, str]]) -> Iterator[Vectors]:
    """Yield the sets of test vectors that lines describe; lines: pairs of a line's number, for errors, and its text.

    Raises:
      ValueError: a line is malformed; the message names its number.
    """
    for number, line in lines:
        try:
            vectors, cases = read_line(line)
            pairs: list[list[int]] = []
            for _ in range(cases):
                number, line = next(lines, (number, ""))
                pairs.append(row_of(line, vectors.takes + vectors.gives))
        except ValueError as problem:
            raise ValueError(f"line {number}: {problem}") from None
        both = rows(pairs, vectors.takes + vectors.gives)
        inputs, outputs = np.split(both, [vectors.inputs.shape[1]], axis=1)
        yield vectors._replace(inputs=inputs, outputs=outputs)
