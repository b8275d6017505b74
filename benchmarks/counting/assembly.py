"""Innermost loops in the assembly of a compiled function (x86-64, AT&T order), and their instructions by kind.

A vector instruction counts once for every 32-bit lane of its widest register, so that loops that do the same with
256-bit and 512-bit vectors have the same count.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LABEL = re.compile(r"^([\w.$@]+|\"[^\"]+\"):")
JUMP = re.compile(r"^(j\w+)\s+(\S+)$")
LANES = {"x": 4, "y": 8, "z": 16}  # 32-bit lanes of xmm, ymm, zmm
MOVES = re.compile(r"v?(mov|pmov[zs]x|broadcast|pbroadcast|lddqu|prefetch)")
MULTIPLIES = re.compile(r"vpmul(udq|dq|lq|hd)")  # one product for two lanes
FLOATS = re.compile(r"v(fn?m(add|sub)\w*|mul|scalef|div|sqrt)(ps|pd)")
STORED = {"vmovd": 4, "vmovss": 4, "vmovq": 8, "vmovsd": 8, "vmovlps": 8, "vmovlpd": 8, "vmovhps": 8, "vmovhpd": 8}
STORED |= {"vpextrb": 1, "vpextrw": 2, "vpextrd": 4, "vpextrq": 8, "vextractps": 4}  # bytes of a part of a register
NARROWING = {"db": 4, "dw": 2, "wb": 2, "qd": 2, "qw": 4, "qb": 8}
KINDS = ("integer", "float", "multiply", "scalar")


class AssemblyLoop(NamedTuple):
    """An innermost loop: the function that it is in, and its instructions as text, from its label to its jump."""

    function: str
    lines: tuple[str, ...]

    @property
    def instructions(self) -> int:
        """Number of instructions of one turn of the loop."""
        return len(self.lines)

    def count(self, mnemonic: str) -> int:
        """Count the instructions whose whole mnemonic matches a regular expression."""
        return sum(bool(re.fullmatch(mnemonic, line.split()[0])) for line in self.lines)

    def lanes(self, mnemonic: str) -> int:
        """Count the 32-bit lanes of the instructions whose mnemonic matches."""
        return sum(_lanes(line) for line in self.lines if re.fullmatch(mnemonic, line.split()[0]))

    def operations(self) -> dict[str, int]:
        """Return the operations of one turn by kind: "integer", "float", "multiply" and "scalar".

        Vector operations are counted in 32-bit lanes (multiplications in 64-bit lanes); "integer" counts all vector
        instructions except moves, also those that another kind counts.
        """
        counts = dict.fromkeys(KINDS, 0)
        for line in self.lines:
            name, width = line.split()[0], _lanes(line)
            if not width:
                counts["scalar"] += 1
                continue
            if MOVES.match(name):
                continue
            counts["integer"] += width
            if MULTIPLIES.fullmatch(name):
                counts["multiply"] += width // 2
            if FLOATS.fullmatch(name):
                counts["float"] += width
        return counts

    def stored(self) -> int:
        """Return the bytes that vector instructions of a turn write, without stores that bypass the caches."""
        return sum(_stored(line) for line in self.lines)


def _lanes(line: str) -> int:
    """Return the 32-bit lanes of the widest vector register that an instruction names, 0 if there is none."""
    return max((LANES[letter] for letter in re.findall(r"%([xyz])mm\d", line)), default=0)


def _stored(line: str) -> int:
    name, _, operands = line.partition("\t")
    to_memory = re.search(r",\s*[^,]*\([^()]*\)$", operands.split("{")[0].rstrip())
    if not to_memory or not name.startswith("v") or name.startswith("vmovnt"):
        return 0
    if name in STORED:
        return STORED[name]
    width = 4 * _lanes(line)
    narrowed = re.fullmatch(r"vpmovu?s?([dqw][bwd])", name)
    if narrowed:
        return width // NARROWING[narrowed[1]]
    return width // 2 if name == "vcvtps2ph" else width


def inner_loops(assembly: str) -> list[AssemblyLoop]:
    """Return every loop that contains no other loop, in order."""
    result: list[AssemblyLoop] = []
    function, lines = "", []  # type: tuple[str, list[str]]
    labels: dict[str, int] = {}
    last_back = -1  # where the last loop began
    for raw in assembly.splitlines():
        line = raw.split("#")[0].strip()
        label = LABEL.match(line)
        if label:
            name = label[1].strip('"')
            if not name.startswith(".L"):
                function, lines, labels, last_back = name, [], {}, -1
            labels[name] = len(lines)
        elif line and not line.startswith("."):
            lines.append(re.sub(r"\s+", "\t", line, count=1))
            jump = JUMP.match(line)
            if jump and jump[2] in labels:
                start = labels[jump[2]]
                if start > last_back:
                    result.append(AssemblyLoop(function, tuple(lines[start:])))
                    last_back = start
    return result
