"""The tables of docs/specials.md, computed from the code; `python -m tests.arithmetic.specials_table` fills them in."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

import fpsim as fp
from tests.kit.processes import ROOT

PAGE = ROOT / "docs" / "specials.md"


class Family(NamedTuple):
    """Formats with the same specials: one is shown in the tables, the others give the same."""

    name: str
    shown: fp.Format
    others: tuple[fp.Format, ...] = ()
    p3109: str = ""  # how the names of the P3109 formats end that belong to it

    @property
    def head(self) -> str:
        """What stands above its column."""
        return self.name if self.name == self.shown.name else f"{self.name}<br>{self.shown.name}"


SIGNED = (
    Family("IEEE", fp.FP16, (fp.BF16, fp.TF32, fp.FP32, fp.E5M2, fp.E4M3_IEEE, fp.E3M4)),
    Family("E4M3", fp.E4M3),
    Family("FNUZ, P3109 sf", fp.E4M3FNUZ, (fp.E5M2FNUZ, fp.E4M3B11FNUZ), "sf"),
    Family("P3109 se", fp.format("p3109_k8p4se"), (), "se"),
    Family("FP4, FP6", fp.E2M1, (fp.E2M3, fp.E3M2)),
)
UNSIGNED = (
    Family("P3109 ue", fp.format("p3109_k8p4ue"), (), "ue"),
    Family("P3109 uf", fp.format("p3109_k8p4uf"), (), "uf"),
    Family("E8M0", fp.E8M0),
)

# The rows of each table, written as a reader would write the calls.
SIGNED_ROWS = {
    "sums": (
        "1 + Inf", "1 - Inf", "Inf + Inf", "Inf - Inf", "max + max", "-max - max", "1 - 1", "-0 + 0", "-0 - 0",
        "NaN + 1", "-NaN + 1", "NaN - Inf", "sNaN + 1",
    ),
    "products": (
        "1 * 0", "-1 * 0", "-1 * -0", "1 * Inf", "-1 * Inf", "0 * Inf", "max * max", "-max * max",
        "smallest * smallest", "-smallest * smallest", "NaN * 0", "sNaN * 0", "fma(0, Inf, 1)", "fma(0, Inf, NaN)",
        "fma(1, Inf, -Inf)", "fma(max, max, -Inf)", "fma(max, max, max)", "fma(0, 1, NaN)", "fma(0, 1, sNaN)",
        "fma(-1, 0, 0)", "fma(-1, 0, -0)", "fma(1, 1, -1)",
    ),
    "quotients": (
        "1 / 0", "-1 / 0", "1 / -0", "0 / 0", "Inf / 0", "Inf / -0", "Inf / Inf", "1 / Inf", "-1 / Inf", "0 / -1",
        "max / smallest", "NaN / 0", "remainder(1, 0)", "remainder(0, 0)", "remainder(Inf, 1)", "remainder(Inf, Inf)",
        "remainder(1, Inf)", "remainder(1, 1)", "remainder(-1, 1)", "remainder(-0, 1)", "remainder(NaN, 0)",
        "sqrt(-1)", "sqrt(-0)", "sqrt(Inf)", "sqrt(-Inf)", "sqrt(-NaN)", "sqrt(sNaN)",
    ),
    "extrema": (
        "minimum(-0, 0)", "minimum(0, -0)", "maximum(-0, 0)", "maximum(0, -0)", "minimum(1, -Inf)", "maximum(1, Inf)",
        "minimum(1, NaN)", "minimum(1, -NaN)", "maximum(NaN, Inf)", "minimum(1, sNaN)", "minimum_number(-0, 0)",
        "maximum_number(-0, 0)", "minimum_number(1, NaN)", "maximum_number(NaN, -Inf)", "maximum_number(1, sNaN)",
        "minimum_number(NaN, NaN)", "minimum_number(NaN, sNaN)",
    ),
    "neighbours": (
        "next_up(max)", "next_down(-max)", "next_up(Inf)", "next_down(Inf)", "next_up(-Inf)", "next_down(-Inf)",
        "next_up(-smallest)", "next_down(smallest)", "next_up(0)", "next_up(-0)", "next_down(0)", "next_down(-0)",
        "next_up(NaN)", "next_up(-NaN)", "next_up(sNaN)", "negative(0)", "negative(-0)", "negative(Inf)",
        "negative(NaN)", "negative(-NaN)", "negative(sNaN)", "absolute(-0)", "absolute(-Inf)", "absolute(-NaN)",
        "absolute(sNaN)",
    ),
    "integers": (
        "round_to_integral(Inf)", "round_to_integral(-0)", "round_to_integral(smallest)",
        "round_to_integral(-smallest)", "round_to_integral(NaN)", "round_to_integral(-NaN)", "round_to_integral(sNaN)",
        "to_int(Inf)", "to_int(-Inf)", "to_int(-0)", "to_int(-smallest)", "to_int(NaN)", "to_int(-NaN)",
        "to_int(sNaN)", "from_int(0)",
    ),
    "conversion": (
        "convert(Inf)", "convert(-Inf)", "convert(max)", "convert(-max)", "convert(smallest)", "convert(-smallest)",
        "convert(-0)", "convert(NaN)", "convert(-NaN)", "convert(sNaN)",
    ),
    "comparison": (
        "equal(-0, 0)", "equal(Inf, Inf)", "equal(NaN, NaN)", "equal(sNaN, 1)", "less(-0, 0)", "less(max, Inf)",
        "less(NaN, 1)", "less_equal(-0, 0)", "less_equal(NaN, NaN)", "classify(0)", "classify(-0)",
        "classify(smallest)", "classify(-smallest)", "classify(max)", "classify(Inf)", "classify(-Inf)",
        "classify(NaN)", "classify(-NaN)", "classify(sNaN)",
    ),
}  # fmt: skip

UNSIGNED_ROWS = {
    "unsigned arithmetic": (
        "1 + Inf", "1 - Inf", "Inf - Inf", "max + max", "1 - 1", "1 - max", "0 - smallest", "NaN + 1", "1 * 0",
        "1 * Inf", "0 * Inf", "max * max", "smallest * smallest", "NaN * 0", "fma(0, Inf, NaN)", "fma(max, max, Inf)",
        "fma(max, max, max)", "1 / 0", "0 / 0", "Inf / 0", "Inf / Inf", "1 / Inf", "max / smallest", "NaN / 0",
        "remainder(1, 0)", "remainder(Inf, 1)", "remainder(1, Inf)", "remainder(1, 1)", "sqrt(0)", "sqrt(Inf)",
        "sqrt(NaN)",
    ),
    "unsigned others": (
        "minimum(1, NaN)", "maximum(1, Inf)", "minimum_number(1, NaN)", "maximum_number(NaN, 1)",
        "minimum_number(NaN, NaN)", "next_up(max)", "next_up(Inf)", "next_down(Inf)", "next_up(0)",
        "next_down(smallest)", "next_down(0)", "next_up(NaN)", "negative(0)", "negative(1)", "negative(Inf)",
        "negative(NaN)", "absolute(NaN)", "round_to_integral(Inf)", "round_to_integral(smallest)",
        "round_to_integral(NaN)", "to_int(Inf)", "to_int(smallest)", "to_int(NaN)", "from_int(0)", "from_int(-1)",
        "convert(Inf)", "convert(-Inf)", "convert(max)", "convert(-max)", "convert(smallest)", "convert(-smallest)",
        "convert(0)", "convert(-0)", "convert(-1)", "convert(NaN)", "convert(-NaN)", "convert(sNaN)",
        "equal(NaN, NaN)", "less(max, Inf)", "less(NaN, 1)", "less_equal(NaN, NaN)", "classify(0)",
        "classify(smallest)", "classify(max)", "classify(Inf)", "classify(NaN)",
    ),
}  # fmt: skip


# ---- one cell

INFIX = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
NAMES = ("NaN", "-NaN", "sNaN", "-sNaN", "Inf", "-Inf", "0", "-0", "1", "-1", "max", "-max", "smallest", "-smallest")


class Cell(NamedTuple):
    """A result and the flags that it raises, by name."""

    result: str
    flags: str = ""

    def __str__(self) -> str:
        return f"{self.result} {self.flags}".rstrip()


NO_OPERAND, UNCHANGED = Cell("-"), Cell("same")


def parts(row: str) -> tuple[str, list[str]]:
    """The function that a row calls, and its operands: '1 / 0' is divide of 1 and 0."""
    words = row.split()
    if len(words) == 3 and words[1] in INFIX:
        return INFIX[words[1]], [words[0], words[2]]
    name, operands = row.removesuffix(")").split("(")
    return name, operands.split(", ")


@cache
def code_of(fmt: fp.Format, name: str) -> int | None:
    """The code that a name stands for, or None where the format has no such value."""
    if name == "-0":
        return fmt.sign_bit if fmt.negative_zero else None
    code = {
        "NaN": fmt.nan_code,
        "sNaN": fmt.max_code + 2 if fmt.nan == "ieee" else None,  # the first code above Inf
        "Inf": fmt.infinity_code,
        "0": 0 if fmt.has_zero else None,
        "1": int(fp.encode(1.0, fmt)),
        "max": fmt.max_code,
        "smallest": 1 if fmt.has_zero else 0,
    }[name.removeprefix("-")]
    if code is None or not name.startswith("-"):
        return code
    return code | fmt.sign_bit if code < fmt.sign_bit else None  # there is no sign bit, or it is NaN itself


def name_of(fmt: fp.Format, code: int) -> str:
    """The name of a code, or its value."""
    for name in NAMES:
        if code_of(fmt, name) == code:
            return name
    return f"{fmt.value_of(code):g}"


def cell(row: str, fmt: fp.Format, overflow: str = "nonfinite") -> Cell:
    """What a row gives in a format."""
    name, operands = parts(row)
    function = getattr(fp, name)
    source = fp.FP64 if name == "convert" else fmt
    arguments: list[Any] = []
    for operand in operands:
        code = int(operand) if name == "from_int" else code_of(source, operand)
        if code is None:
            return NO_OPERAND
        arguments.append(code if name == "from_int" else source.storage.type(code))
    words = {"fmt": source, "to": fmt, "dtype": np.int8, "overflow": overflow, "flags": "any"}
    words = {word: value for word, value in words.items() if word in inspect.signature(function).parameters}
    got = function(*arguments, **words)
    result, flags = got if "flags" in words else (got, fp.Flags.NONE)
    if name == "classify":
        text = fp.FloatClass(result).name.lower().replace("_", " ")
    elif name in ("to_int", "equal", "less", "less_equal"):
        text = str(result)
    else:
        text = name_of(fmt, int(result))
    return Cell(text, " ".join(str(flag.name) for flag in reversed(fp.Flags) if flag in flags))


def change(row: str, fmt: fp.Format, overflow: str) -> Cell:
    """What a row gives under another policy, where that differs."""
    under = cell(row, fmt, overflow)
    return UNCHANGED if under == cell(row, fmt) != NO_OPERAND else under


# ---- the tables


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("|".join(["", *(f" {text} " if text else " " for text in line), ""]) for line in lines)


def line_of(row: str, cells: Sequence[Cell]) -> list[str]:
    """A row of the page: flags that all its cells raise stand in the last column, others in the cells."""
    results = [cell for cell in cells if cell not in (NO_OPERAND, UNCHANGED)]
    alike = len({cell.flags for cell in results}) == 1
    return [f"`{row}`", *(cell.result if alike else str(cell) for cell in cells), results[0].flags if alike else ""]


def table(families: Sequence[Family], lines: Iterable[Sequence[str]]) -> str:
    """A table with a column for each family."""
    return markdown(["operation", *(family.head for family in families), "flags"], lines)


def results(families: Sequence[Family], rows: Sequence[str]) -> str:
    """What rows give in each family."""
    return table(families, [line_of(row, [cell(row, family.shown) for family in families]) for row in rows])


def changes(families: Sequence[Family], rows: Sequence[str], overflow: str) -> str:
    """What rows give in each family under another policy, the rows that change alone."""
    found = {row: [change(row, family.shown, overflow) for family in families] for row in rows}
    changed = {row: cells for row, cells in found.items() if set(cells) - {NO_OPERAND, UNCHANGED}}
    return table(families, [line_of(row, cells) for row, cells in changed.items()])


def traits(family: Family) -> list[str]:
    """What the formats of a family have in common."""
    fmt = family.shown
    others = [other.name for other in family.others] + [f"p3109_...{family.p3109}"] * bool(family.p3109)
    infinity = "none" if not fmt.has_infinity else "both signs" if fmt.signed else "one"
    nan = {
        "ieee": "both signs, quiet and signalling",
        "top": "both signs" if fmt.signed else "one",
        "negative_zero": "one, at the code of -0",
        "none": "none",
    }[fmt.nan]
    zero = "both signs" if fmt.negative_zero else "one" if fmt.has_zero else "none"
    return [family.name, fmt.name, ", ".join(others), infinity, nan, zero]


def tables() -> dict[str, str]:
    """Every table of the page by the name of its place."""
    head = ("family", "shown", "the same in", "Inf", "NaN", "zero")
    found = {"formats": markdown(head, map(traits, (*SIGNED, *UNSIGNED)))}
    for kind, families, named in (("signed", SIGNED, SIGNED_ROWS), ("unsigned", UNSIGNED, UNSIGNED_ROWS)):
        found |= {name: results(families, rows) for name, rows in named.items()}
        every = [row for rows in named.values() for row in rows]
        found |= {f"{word}, {kind}": changes(families, every, word) for word in ("saturate", "saturate_finite")}
    return found


def filled(page: str) -> str:
    """The page with each table in its place, which is between two comments."""
    for name, text in tables().items():
        before, after = page.split(f"<!-- table: {name} -->\n")
        page = f"{before}<!-- table: {name} -->\n\n{text}\n\n<!-- end -->{after.split('<!-- end -->', 1)[1]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
