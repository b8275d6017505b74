"""Models of sums of integers: exact sums that wrap or saturate, at the end or after some terms."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array
from fpsim.display.optional import Axes
from fpsim.display.wording import plural
from fpsim.files import write_whole
from fpsim.formats.named import FP64
from fpsim.matrix_units.catalogue import integer_units
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.probe.black_box import BlackBox
from fpsim.probe.integers.rules import KINDS, IntegerRule, can_leave, drawn_integers, rules, terms_of
from fpsim.probe.model import Model
from fpsim.probe.operands import ProbedCall, operand_of, with_terms
from fpsim.probe.words import NOUNS

KIND = "fpsim model of a sum of integers"  # the mark of a saved model
SEEDS = (1, 2, 3)
MATRICES_AT_ONCE = 1 << 22  # most terms of products in memory at a time


class IntegerModel(Model):
    """A model of a black box that adds integers, which `fp.probe` has compared with it on many operands.

    It has the attributes of a Model; those that belong to floats, such as `.tree` and `.accumulator`, are None.

    Attributes:
      unit, units: names in `fp.units()` of the integer units with the same results for all operands of these dtypes and
        lengths; None and () if there are none.
      dtype: the dtype of the results, such as "int32".
      rules: the rules that reproduce all results; () if no rule does.
      names: these rules as text.
      saturates: whether sums beyond the range of `dtype` become its ends; None if unknown or not reachable.
      reachable: whether sums of operands of the dtypes can leave the range of `dtype`.
    """

    def __init__(
        self, call: ProbedCall, dtype: str, *, rules: tuple[IntegerRule, ...], reachable: bool,
        unknown: tuple[str, ...] = (), calls: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(call, FP64, unknown=unknown, calls=calls)
        self.dtype, self.rules, self.reachable = dtype, rules, reachable
        cuts = {rule.saturates for rule in rules}
        self.saturates = cuts.pop() if reachable and len(cuts) == 1 else None

    @property
    def found(self) -> bool:
        """True if a rule was found, so that the model can compute sums."""
        return bool(self.rules)

    @property
    def names(self) -> tuple[str, ...]:
        """Rules that reproduce all results of the black box, as text."""
        return tuple(rule.name if self.reachable else rule.name_within_range for rule in self.rules)

    @property
    def arithmetic(self) -> str | None:
        """The first of the rules in `names`, as text; None if no rule fits."""
        return self.names[0] if self.rules else None

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the integer units that give the same results as the model."""
        return tuple(unit.name for unit in integer_units() if self._is_of(unit))

    def _is_of(self, unit: IntegerUnit) -> bool:
        """Return whether an integer unit and the model have equal results for all operands of the model's length."""
        dtypes = [operand.integer for operand in self.operands]
        if dtypes != [unit.a.dtype.name, unit.b.dtype.name] or min(unit.a.bits, unit.b.bits) < 8:
            return False
        if unit.d.dtype.name != self.dtype:
            return False
        if unit.pair is not None:
            saturated = (unit.pair.dtype.name, True, 2)
            return any((rule.inner, rule.inner_saturates, rule.group) == saturated for rule in self.rules)
        plain = [rule for rule in self.rules if not rule.inner and not rule.backwards]
        if not self.reachable:
            return bool(plain)
        group = unit.terms if unit.saturates and unit.terms < self.n else 0
        return any((rule.group, rule.saturates) == (group, unit.saturates) for rule in plain)

    def explain(self) -> str:
        """Return the description of the model in a few sentences."""
        terms = f"{plural(self.n, 'term')} of {' by '.join(operand.integer for operand in self.operands)}"
        seen = f"seen in {plural(self.calls, 'call')}"
        lines = [f"A {NOUNS[self.kind]} of {terms}, {seen}: {self.arithmetic or 'nothing that fits'}."]
        if len(self.rules) > 1:
            lines.append(f"The same as {'; '.join(self.names[1:4])}.")
        if self.units:
            others = f" and of {plural(len(self.units) - 1, 'other unit')}" if len(self.units) > 1 else ""
            lines.append(f"It has the bits of {self.unit}{others}.")
        return "\n".join([*lines, *(f"Unknown: {sentence}." for sentence in self.unknown)])

    def __repr__(self) -> str:
        return f"IntegerModel({self.kind} of {self.n} terms: {self.arithmetic or 'nothing that fits'})"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Raise a ValueError, since exact sums have no order to draw."""
        raise ValueError("a model of integers adds exactly, in whatever order; there is no tree to draw. Print it.")

    # ---- run

    def sum(self, x: npt.ArrayLike) -> Any:
        """Return the sums of (..., n) integers along the last axis, in the dtype that the black box returned.

        Raises:
          ValueError: no rule was found, the model has two operands, or x has another number of terms or dtype.
        """
        if len(self.operands) == 2:
            raise ValueError("this is the model of a product, which has two operands. Call its dot or matmul.")
        return self._run(self._integers(x, 0, "x"))

    def dot(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Any:
        """Return the dot products of (..., n) integers over the last axis, in the dtype that the black box returned.

        Raises:
          ValueError: no rule was found, the model has one operand, or an argument has another number of terms or dtype.
        """
        self._refuse_sum()
        return self._run(*np.broadcast_arrays(self._integers(a, 0, "a"), self._integers(b, 1, "b")))

    def matmul(
        self, a: npt.ArrayLike, b: npt.ArrayLike, scale_a: npt.ArrayLike | None = None,
        scale_b: npt.ArrayLike | None = None,
    ) -> Array:  # fmt: skip
        """Return the product of (M, n) and (n, N) integers, in the dtype that the black box returned.

        scale_a and scale_b must be None.

        Raises:
          ValueError: no rule was found, the model has one operand, scales were passed, or an argument has another
            number of terms or dtype.
        """
        self._refuse_sum()
        if scale_a is not None or scale_b is not None:
            raise ValueError("a product of integers has no scales; got some. Leave scale_a and scale_b out.")
        left, right = self._integers(a, 0, "a"), self._integers(np.asarray(as_array(b, "b")).T, 1, "b").T
        if left.ndim != 2 or right.ndim != 2:
            raise ValueError(f"a and b must be matrices; got shapes {left.shape} and {right.shape}.")
        step = max(MATRICES_AT_ONCE // max(right.size, 1), 1)
        rule = self.rules[0]
        parts = [rule.sums(terms_of("matmul", (left[i : i + step], right))) for i in range(0, len(left), step)]
        return np.concatenate(parts) if parts else np.zeros((0, right.shape[1]), self.dtype)

    def _run(self, *values: Array) -> Any:
        """Return the sums (...) of one operand (..., n), or the dot products of two, by the first of `rules`."""
        return self.rules[0].sums(terms_of("dot", values))[()]

    def _integers(self, x: npt.ArrayLike, which: int, name: str) -> Array:
        """Return an argument `x` of a call as an array (..., n).

        which: the number of the operand, 0 or 1, whose dtype is required. name: the argument's name for error messages.

        Raises:
          ValueError: no rule was found, or x has another number of terms or dtype.
        """
        self._refuse_nothing()
        array = with_terms(x, self.n, name)
        if array.dtype.name != self.operands[which].integer:
            raise ValueError(
                f"{name} must hold {self.operands[which].integer}, which was probed; got {array.dtype}. Cast it."
            )
        return array

    # ---- saved

    def save(self, path: str | Path) -> None:
        """Write the model as a JSON file, which `fp.probe.load` reads.

        Raises:
          ValueError: no rule was found.
        """
        self._refuse_nothing()
        fields = {
            "what": KIND, "kind": self.kind, "n": self.n, "shape": list(self.shape),
            "operands": [operand.integer for operand in self.operands],
            "tensors": [operand.tensors for operand in self.operands], "dtype": self.dtype,
            "rules": [list(rule) for rule in self.rules], "unknown": list(self.unknown), "calls": self.calls,
            "layout": self.layout, "reachable": self.reachable,
        }  # fmt: skip
        write_whole(Path(path), json.dumps(fields, indent=1) + "\n")


def integer_model(box: BlackBox) -> IntegerModel:
    """Return the model of a black box that adds integers: all rules that agree with it on drawn operands."""
    assert box.dtype is not None
    out = box.dtype.name
    alike = list(rules(box, out))
    for seed, kind in product(SEEDS, KINDS):
        values = drawn_integers(kind, box, seed)
        results = box.call(*values) if box.kind == "matmul" else box.results(*values)
        terms = terms_of(box.kind, values)
        alike = [rule for rule in alike if np.array_equal(rule.sums(terms), results)]
        if not alike:
            break
    reachable = can_leave(box, out)
    unknown = []
    if not alike:
        unknown.append(
            "the arithmetic: no exact sum that wraps or saturates, at the end, after some terms, or in sums of two or "
            "four, reproduces its results. Scales, zero points and sums in floats are not tried"
        )
    elif not reachable:
        unknown.append(f"the result of sums beyond {out}, which {plural(box.n, 'term')} do not reach")
    if len(alike) > 1:
        unknown.append(f"how to tell {alike[0].name} from {alike[1].name}, which gave the same for all that was tried")
    return IntegerModel(
        box.arguments, out, rules=tuple(alike), reachable=reachable, unknown=tuple(unknown), calls=box.calls
    )


def loaded(fields: dict[str, Any]) -> IntegerModel:
    """Return the model that the fields of a file describe, as `IntegerModel.save` writes them.

    Raises:
      KeyError, TypeError, ValueError: the fields do not describe such a model.
    """
    pairs = zip(fields["operands"], fields["tensors"], strict=True)
    operands = tuple(
        operand_of(name, "operand", integers=True)._replace(tensors=bool(tensors)) for name, tensors in pairs
    )
    rules_of_it = tuple(IntegerRule(*fields_of_rule) for fields_of_rule in fields["rules"])
    rows, columns = (int(size) for size in fields["shape"])
    call = ProbedCall(fields["kind"], int(fields["n"]), operands, (rows, columns), layout=fields["layout"])
    return IntegerModel(
        call, str(fields["dtype"]), rules=rules_of_it, reachable=bool(fields["reachable"]),
        unknown=tuple(fields["unknown"]), calls=int(fields["calls"]),
    )  # fmt: skip
