"""A slow, obvious oracle for orders of additions: nested tuples of terms, added node by node in exact fractions.

The rules are those of docs/schedules.md ("Orders of your own"); every rounding is that of oracles/arithmetic.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fpsim.formats.named import Format
from tests.oracles import arithmetic as ao
from tests.oracles.arithmetic import Exact, Operand
from tests.oracles.sums import Rule, as_operand, code_of, rounded

ZERO = Operand("finite")


def product_sum(rule: Rule, order: Any, a: Sequence[Operand], b: Sequence[Operand]) -> int:
    """Return the code of the sum of products a[k] * b[k] in an order."""
    return _code(rule, order, [as_operand(ao.exact_product(x, y)) for x, y in zip(a, b, strict=True)], False)


def term_sum(rule: Rule, order: Any, terms: Sequence[Operand]) -> int:
    """Return the code of the sum of terms in an order."""
    return _code(rule, order, terms, True)


def _code(rule: Rule, order: Any, terms: Sequence[Operand], are_terms: bool) -> int:
    """Return the code of a sum, whose terms are exact products or terms of a sum."""
    fmt = rule.fmt

    def rounds(exact: Exact) -> Operand:
        return rounded(exact, fmt, rule, 0)

    def value(node: Any) -> Operand:
        """Return a sum, or a term by itself."""
        if isinstance(node, int):
            return started(node)
        x, y = node
        if isinstance(x, int) and isinstance(y, int):
            return joined(started(x), y)
        if isinstance(x, int) or isinstance(y, int):
            (total, term) = (value(y), x) if isinstance(x, int) else (value(x), y)
            return joined(total, term)
        return rounds(ao.exact_sum(value(x), value(y)))

    def alone(k: int) -> Operand:
        """Return a term rounded by itself."""
        term = terms[k]
        return rounds(ao.nan(term) if term.kind == "nan" else Exact(term.kind, term.negative, term.magnitude))

    def started(k: int) -> Operand:
        """Return the sum of a term and nothing else."""
        return alone(k) if rule.kind == "Pairwise" else joined(ZERO, k)

    def joined(total: Operand, k: int) -> Operand:
        """Return a sum plus a term, which is rounded first unless it is fused."""
        fused = rule.kind == "FusedMultiplyAdd" or (are_terms and rule.kind == "Sequential")
        return rounds(ao.exact_sum(total, terms[k] if fused else alone(k)))

    return code_of(value(order), fmt)


def read_row(fmt: Format, codes: Sequence[int]) -> list[Operand]:
    """Return codes as operands."""
    return [ao.read(fmt, int(code)) for code in codes]
