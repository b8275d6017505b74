"""Sets of test vectors (an operation, and codes of its inputs and outputs) and their lines of text."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.integer_unit import INTEGER_ELEMENTS, IntegerElement

Words = npt.NDArray[np.uint64]
MOST_FIELDS, MOST_CASES = 1 << 14, 1 << 24  # that a file may have
PLAIN = re.compile(r"[A-Za-z0-9_.,:+*/-]+")


class Field(NamedTuple):
    """Consecutive numbers in each case of a set of test vectors: codes of one format.

    Attributes:
      fmt: the format; codes of an integer format are in two's complement.
      numbers: number of codes.
    """

    fmt: Format | IntegerElement
    numbers: int

    @property
    def digits(self) -> int:
        """Number of hexadecimal digits in which a code of the field is written."""
        return -(-self.fmt.bits // 4)

    @property
    def storage(self) -> np.dtype[Any]:
        """Unsigned integer dtype that holds the field's codes."""
        return self.fmt.storage if isinstance(self.fmt, Format) else np.dtype(f"u{self.fmt.dtype.itemsize}")

    def __str__(self) -> str:
        return self.fmt.name if self.numbers == 1 else f"{self.fmt.name}*{self.numbers}"


class Vectors(NamedTuple):
    """A set of test vectors: an operation, and codes of its inputs and outputs, one case per row.

    Attributes:
      kind: the operation, such as "cast".
      words: its keywords, such as {"format": "E4M3"}.
      takes, gives: fields of the inputs and of the outputs of one case.
      inputs, outputs: codes, uint64, (cases, numbers).
    """

    kind: str
    words: dict[str, str]
    takes: tuple[Field, ...]
    gives: tuple[Field, ...]
    inputs: Words
    outputs: Words

    @property
    def title(self) -> str:
        """Name of the set, such as "cast format=E4M3 rounding=nearest_even"."""
        return " ".join([self.kind, *(f"{word}={value}" for word, value in self.words.items())])

    @property
    def line(self) -> str:
        """Line of text that begins the set in a file and in the input of a command."""
        return f"set {self.title} in={in_words(self.takes)} out={in_words(self.gives)} cases={len(self.inputs)}"


def in_words(fields: tuple[Field, ...]) -> str:
    """Return the fields of a test case as text, such as "E4M3*16,FP32" for 16 codes of E4M3 and one of FP32."""
    return ",".join(map(str, fields))


def read_line(line: str) -> tuple[Vectors, int]:
    """Return (a set of test vectors without cases, the number of its cases) from the line of text that begins the set.

    Raises:
      ValueError: the line does not begin a set, or names an unknown format or too many cases or numbers.
    """
    first, *parts = line.split(" ")
    if first != "set" or not parts or not all(PLAIN.fullmatch(part.replace("=", "", 1)) for part in parts):
        raise ValueError(f"a set must begin with 'set KIND word=value ...'; got {line[:80]!r}")
    pairs = [part.partition("=") for part in parts[1:]]
    words = {word: value for word, _, value in pairs}
    if len(words) != len(pairs) or not {"in", "out", "cases"} <= words.keys():
        raise ValueError(f"a set must have in=, out= and cases=, and each word once; got {line[:80]!r}")
    takes, gives, cases = _fields(words.pop("in")), _fields(words.pop("out")), _count(words.pop("cases"), MOST_CASES)
    empty = Vectors(parts[0], words, takes, gives, rows([], takes), rows([], gives))
    return empty, cases


def _fields(text: str) -> tuple[Field, ...]:
    """Return the fields of a test case that a text such as "E4M3*16,FP32" lists.

    Raises:
      ValueError: an unknown format, or a wrong count.
    """
    fields = []
    for part in text.split(","):
        name, star, count = part.partition("*")
        fmt = INTEGER_ELEMENTS[name] if name in INTEGER_ELEMENTS else find_format(name)
        fields.append(Field(fmt, _count(count, MOST_FIELDS) if star else 1))
    if sum(field.numbers for field in fields) > MOST_FIELDS:
        raise ValueError(f"a line must have at most {MOST_FIELDS} numbers; got {text!r}")
    return tuple(fields)


def _count(text: str, most: int) -> int:
    """Return the integer that a text spells; raise a ValueError unless it is from 0 to `most`."""
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) > most:
        raise ValueError(f"a count must be an integer from 0 to {most}; got {text[:20]!r}")
    return int(text)


def rows(lines: list[list[int]], fields: tuple[Field, ...]) -> Words:
    """Return test cases, each a list of codes, as a uint64 array (cases, numbers).

    lines: the lists. fields: the fields of a case, whose numbers of codes add up to the length of each list.
    """
    return np.array(lines, np.uint64).reshape(len(lines), sum(field.numbers for field in fields))


def text_of(row: Words, fields: tuple[Field, ...]) -> str:
    """Return the codes of a test case as hexadecimal text, separated by spaces, with all digits of their formats.

    row: the codes, uint64 (numbers,). fields: their formats, and how many consecutive codes have each.
    """
    widths = [field.digits for field in fields for _ in range(field.numbers)]
    return " ".join(f"{int(word):0{width}x}" for word, width in zip(row, widths, strict=True))


def row_of(text: str, fields: tuple[Field, ...]) -> list[int]:
    """Return the codes of a test case from a line of hexadecimal text; fields: their formats and numbers.

    Raises:
      ValueError: the line has more or fewer numbers than the fields, or one is not a code of its field's format.
    """
    parts = text.split()
    formats = [field.fmt for field in fields for _ in range(field.numbers)]
    if len(parts) != len(formats):
        raise ValueError(f"a line must have {len(formats)} numbers; got {len(parts)} in {text[:60]!r}")
    codes = []
    for part, fmt in zip(parts, formats, strict=True):
        if not re.fullmatch(r"[0-9A-Fa-f]{1,16}", part) or int(part, 16) >> fmt.bits:
            raise ValueError(f"{part[:20]!r} is no code of {fmt.name}, in hexadecimal without 0x")
        codes.append(int(part, 16))
    return codes


def split(codes: Words, fields: tuple[Field, ...]) -> list[npt.NDArray[Any]]:
    """Return the codes of cases field by field, each an array (cases, field.numbers) in the field's storage dtype.

    codes: uint64 (cases, numbers); the first columns belong to the first field, the next ones to the second, and so on.
    """
    ends = np.cumsum([field.numbers for field in fields])[:-1]
    parts = np.split(codes, ends, axis=1)
    return [part.astype(field.storage) for part, field in zip(parts, fields, strict=True)]
