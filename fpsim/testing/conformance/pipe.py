"""Running of another implementation as a process: it reads lines of inputs and writes lines of outputs."""

from __future__ import annotations

import shlex
import subprocess

import numpy as np

from fpsim.testing.conformance.text import lines_of
from fpsim.testing.conformance.vectors import Vectors, Words, row_of, rows

SKIPPED = "?"  # the answer of an implementation that does not support a case
LONGEST = 2e6  # seconds to wait, three weeks; polling takes no more than 2**31 ms


def answers(sets: list[Vectors], command: str, timeout: float) -> list[tuple[Words, Words]]:
    """Run `command` once on the inputs of all sets, and return the outputs that it writes.

    The command reads a title line and a line per case of each set, and writes a line per case. The result has for each
    set the pair (output codes, uint64 (answered cases, numbers); indices of these cases). timeout: seconds.

    Raises:
      ValueError: the command is empty, fails, takes too long, or does not answer every case with numbers or "?".
    """
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise ValueError(f"the command must be words as for a shell ({problem}); got {command!r}.") from None
    if not words:
        raise ValueError("the command must be a program and its arguments; got nothing.")
    lines = [line for vectors in sets for line in [vectors.line, *lines_of(vectors)]]
    replies = _run(words, "".join(f"{line}\n" for line in lines), timeout)
    wanted = sum(len(vectors.inputs) for vectors in sets)
    if len(replies) != wanted:
        raise ValueError(f"{words[0]} must answer each of {wanted:,} cases with a line; got {len(replies):,} lines.")
    results, start = [], 0
    for vectors in sets:
        results.append(_read(vectors, replies[start : start + len(vectors.inputs)], words[0]))
        start += len(vectors.inputs)
    return results


def _run(words: list[str], text: str, timeout: float) -> list[str]:
    """Return the lines that a command writes when `text` is its standard input.

    words: program and arguments. timeout: seconds. Raises a ValueError if the command fails or takes longer.
    """
    try:
        limit = min(timeout, LONGEST)
        done = subprocess.run(words, input=text.encode("ascii"), capture_output=True, timeout=limit, check=False)
    except OSError as problem:
        raise ValueError(f"{words[0]} could not be run: {problem.strerror or problem}.") from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{words[0]} took more than {timeout:g} s; raise the limit, or answer fewer kinds.") from None
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        said = f"its last error line is {lines[-1][:200]!r}" if lines else "it wrote no error"
        raise ValueError(f"{words[0]} ended with exit code {done.returncode}; {said}.")
    return done.stdout.decode("ascii", "replace").splitlines()


def _read(vectors: Vectors, replies: list[str], program: str) -> tuple[Words, Words]:
    """Return (output codes, indices of answered cases) from a command's replies to one set of test vectors.

    Args:
      vectors: the set of test vectors.
      replies: one line per case; "?" skips the case.
      program: the command's name in errors.

    Raises:
      ValueError: a reply is neither the codes of a case nor "?".
    """
    answered = [number for number, reply in enumerate(replies) if reply.strip() != SKIPPED]
    outputs = []
    for number in answered:
        try:
            outputs.append(row_of(replies[number], vectors.gives))
        except ValueError as problem:
            case = f"case {number} of {vectors.title!r}"
            raise ValueError(f"{program} must answer with numbers or {SKIPPED!r}; for {case}: {problem}.") from None
    return rows(outputs, vectors.gives), np.array(answered, np.uint64)
