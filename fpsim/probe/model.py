"""Models of black boxes, which describe, draw and save the arithmetic that a probe found, and compute the same bits."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array
from fpsim.display.optional import Axes
from fpsim.files import path_of, write_whole
from fpsim.formats.float_format import DTYPES
from fpsim.formats.named import Format, find_by_name
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.candidates import AdderCandidate, order_of
from fpsim.probe.operands import ProbedCall
from fpsim.probe.order import Nested, Order
from fpsim.probe.own_unit import own_unit
from fpsim.probe.plain_sums import arithmetic_of
from fpsim.probe.programs.program import Program
from fpsim.probe.structure import structure_of
from fpsim.probe.traits import traits_of
from fpsim.probe.words import WORDS, called, in_ranges, sentences
from fpsim.schedules.schedule import Schedule
from fpsim.schedules.trees.array_sums import SUM_ROWS

# Attributes of a model that are unknown if the sentence on differing bits has the given words.
FIELDS_OF_EDGES = (
    ("flushes_subnormals", WORDS["subnormal"]), ("flushes", WORDS["subnormal"]), ("flushes", WORDS["vanishing"]),
    ("saturates", WORDS["large"]),
)  # fmt: skip
KIND = "fpsim model of a sum"  # the mark of a saved model


class Model:
    """A model of a black box, which `fp.probe` has compared with it bit for bit.

    Properties such as `tree`, `structure`, `unit`, `names` and `arithmetic` say what it is; they describe themselves.

    Args:
      call: the form of the black box's calls.
      out: the format of the values of its results.
      order: the order of its additions; None if unknown.
      alike: the units with schedules, and the accumulators, that reproduce its bits.
      program: an order with an arithmetic that reproduces its bits; None if there is none.
      unknown, calls: see below.
      returned: the format in which it returns results, if that is wider than `out`.

    Attributes:
      kind: "sum", "dot" or "matmul".
      n: number of terms; orders depend on it, so a model of 600 terms says nothing about sums of 300.
      shape: rows and columns of the probed matrix product, (1, 1) for other probes.
      operands: the formats of the operands, and the arrays in which they are passed.
      layout: the memory layout of the probed matrices a and b: "n" is row-major, "t" transposed.
      out: the format of the results.
      terms_per_step: number of products that one addition takes.
      fraction_bits: bits below the largest exponent that aligned terms keep; None if nothing is cut.
      alignment: "truncate", "floor" or "nearest", by which terms are cut; "exact": every sum is the exact one, rounded
        once; "rounded": an instruction does several additions, each rounded.
      rounding: the rounding mode of sums, named as for `fp.encode`.
      accumulator: the format of sums; None if additions have different formats.
      promotion: number of terms after which partial sums are added to a total; None if they are not promoted.
      flushes_subnormals: whether subnormal sums become zero.
      flushes: the numbers whose subnormals become zero: "inputs" (or "inputs of a", "inputs of b"), "products" before
        they are added, "sums", and "results" in the format of the results.
      saturates: whether sums beyond the largest number become the largest number.
      unknown: sentences on what the probe could not determine, and on what would help.
      calls: number of calls of the black box.
    """

    def __init__(
        self, call: ProbedCall, out: Format, *, order: Order | None = None, alike: tuple[AdderCandidate, ...] = (),
        program: Program | None = None, unknown: tuple[str, ...] = (), calls: int = 0, returned: Format | None = None,
    ) -> None:  # fmt: skip
        self.kind, self.n, self.operands, self.shape, self.scale, self.block, self.layout = self.call = call
        self.out = out
        self.order, self.alike, self.program = order, alike, program
        self.unknown, self.calls = unknown, calls
        self.returned = returned or out  # the format in which results are returned, maybe wider than their own
        trees = {adder.tree(self.n, self.call.columns): adder for adder in alike[::-1]}
        self.traits = traits_of(tuple(trees.values()), program)
        for field, word in FIELDS_OF_EDGES:
            if any(word in sentence for sentence in unknown):
                self.traits = self.traits._replace(**{field: None})
        (
            self.terms_per_step, self.fraction_bits, self.alignment, self.rounding, self.accumulator, self.promotion,
            self.flushes_subnormals, self.flushes, self.saturates,
        ) = self.traits  # fmt: skip

    @property
    def found(self) -> bool:
        """True if an arithmetic was found, so that the model can compute sums."""
        return bool(self.alike) or self.program is not None

    @property
    def tree(self) -> Nested | None:
        """Order of additions as nested tuples of terms' indices, sorted by their smallest term; None if unknown."""
        return None if self.order is None else self.order.nested

    @property
    def structure(self) -> str | None:
        """Order of additions as text, such as "two halves of 4 terms; in each the terms are one chain".

        None if it is unknown or needs more than a few words.
        """
        return None if self.order is None else structure_of(self.order)

    @cached_property
    def sum_rows(self) -> tuple[str, ...]:
        """Entries of `fp.schedules.SUM_ROWS` (orders of NumPy, torch and JAX) with the model's order, as expressions.

        For few terms, several entries have the same order. The result is empty for models of products.
        """
        if self.order is None or self.kind != "sum":
            return ()
        rows = (row for row in SUM_ROWS if not 0 < row.most < self.n)
        return tuple(str(row) for row in rows if order_of(row.tree(self.n)) == self.order)

    @property
    def lost(self) -> tuple[int, ...]:
        """Indices of the terms that the black box leaves out of the sum."""
        if self.order is None:
            return ()
        return tuple(sorted(set(range(self.n)) - {term for term in self.order.program if term >= 0}))

    @property
    def factor(self) -> float | None:
        """Factor by which the sum is multiplied, such as 1 / n for a mean; 1 for a plain sum, None if nothing fits."""
        scale = None if self.program is None else self.program.scale
        return (1.0 if self.found else None) if scale is None else 1 / scale.by if scale.how == "over" else scale.by

    @property
    def units(self) -> tuple[str, ...]:
        """Names in `fp.units()` of the matrix units with the model's bits, which the probe cannot distinguish."""
        return tuple(dict.fromkeys(adder.how.name for adder in self.alike if isinstance(adder.how, MatrixUnit)))

    @property
    def unit(self) -> str | None:
        """Name of the first matrix unit that gives the same bits as the model; None if there is none."""
        return next(iter(self.units), None)

    @property
    def schedules(self) -> tuple[str, ...]:
        """Schedules with which units give the same bits as the model, as Python expressions."""
        return tuple(dict.fromkeys(str(adder.schedule) for adder in self.alike if adder.schedule is not None))

    @property
    def schedule(self) -> Schedule | None:
        """First schedule with which a unit gives the same bits as the model; None if there is none."""
        return next((adder.schedule for adder in self.alike if adder.schedule is not None), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Python expressions of the units with schedules, and of the accumulators, that give the model's bits.

        If `arithmetic` is not None, accumulators without a schedule come first.
        """
        firsts = sorted(self.alike, key=lambda adder: self.arithmetic is not None and adder.schedule is not None)
        return tuple(adder.name for adder in firsts)

    @cached_property
    def arithmetic(self) -> str | None:
        """Additions as text, such as "float32 fused multiply-adds in order", if they are ordinary ones; else None.

        Ordinary additions take two numbers, and round their exact sum to one format. Tensor cores add more numbers at
        once; `units` names them instead.
        """
        return arithmetic_of(self.kind, self.order, self.traits, self.alike)

    # ---- shown

    def explain(self) -> str:
        """Return the description of the model in a few sentences, one per line."""
        return "\n".join(sentences(self))

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"Model({self.kind} of {self.n} terms: {called(self)})"

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the tree of additions: terms from left to right, sums above them.

        Args:
          ax: matplotlib Axes; None for those of a new figure.

        Returns:
          The Axes.

        Raises:
          ValueError: no arithmetic was found.
        """
        from fpsim.probe.drawn_tree import tree_of
        from fpsim.schedules.trees.picture import tree_axes

        self._refuse_nothing()
        if self.alike:
            first = self.alike[0]
            return tree_axes(first.tree(self.n, self.call.columns), ax, f"{called(self)}, {self.n} terms")
        assert self.program is not None
        return tree_axes(tree_of(self.program), ax, f"a {self.kind} of {self.n} terms")

    # ---- run

    def sum(self, x: npt.ArrayLike) -> Any:
        """Return the sums along the last axis, with the black box's bits.

        Args:
          x: (..., n) array of the probed dtype, or unsigned codes of its format; a model of a product multiplies it by
            1.

        Returns:
          (...) array in the dtype in which the black box returned results.

        Raises:
          ValueError: no arithmetic was found, or x has another number of terms or format.
        """
        terms = self._read(x, 0, "x")
        rows = terms.reshape(-1, self.n)
        ones = [np.ones(rows.shape)] * (len(self.operands) - 1)
        return self._rows(rows, *ones).reshape(terms.shape[:-1])[()]

    def dot(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Any:
        """Return the dot products along the last axis, with the black box's bits.

        Args:
          a, b: (..., n) arrays of the probed dtypes, or codes of their formats; the other axes broadcast.

        Returns:
          (...) array in the dtype in which the black box returned results.

        Raises:
          ValueError: no arithmetic was found, the black box was a sum of one operand, or an argument has another number
            of terms or format.
        """
        self._refuse_sum()
        left, right = np.broadcast_arrays(self._read(a, 0, "a"), self._read(b, 1, "b"))
        return self._rows(left.reshape(-1, self.n), right.reshape(-1, self.n)).reshape(left.shape[:-1])[()]

    def matmul(
        self, a: npt.ArrayLike, b: npt.ArrayLike, scale_a: npt.ArrayLike | None = None,
        scale_b: npt.ArrayLike | None = None,
    ) -> Array:  # fmt: skip
        """Return the product of two matrices, with the black box's bits.

        Args:
          a, b: (M, n) and (n, N) arrays of the probed dtypes, or codes of their formats.
          scale_a, scale_b: the scale codes of block-scaled units, as for `fp.matmul`.

        Returns:
          (M, N) array in the dtype in which the black box returned results.

        Raises:
          ValueError: no arithmetic was found, the black box was a sum, or an argument has another shape or format.
        """
        self._refuse_sum()
        right = as_array(b, "b")
        if right.ndim != 2:
            raise ValueError(f"b must be a matrix ({self.n}, N); got shape {right.shape}.")
        x, y = self._read(a, 0, "a"), self._read(np.ascontiguousarray(right.T), 1, "b").T  # (M, n), (n, N)
        if x.ndim != 2:
            raise ValueError(f"a must be a matrix (M, {self.n}); got shape {x.shape}.")
        named = self.alike[0] if self.alike else self._own_unit
        if named is not None:
            first, second = (operand.passed(z) for operand, z in zip(self.operands, (x, y), strict=True))
            scales = [None if s is None else as_array(s, "scale") for s in (scale_a, scale_b)]
            # of a dot product whose order depends on the number of columns, each column is multiplied alone
            alone = self.kind == "dot" and named.tree(self.n, 1) != named.tree(self.n, None)
            parts = np.split(second, max(second.shape[1], 1), axis=1) if alone else [second]
            done = [named.matmul(first, np.ascontiguousarray(part), *scales, fmt=self._codes) for part in parts]
            return self._passed(np.concatenate(done, axis=1))
        assert self.program is not None
        return self._passed(self.program.run_product(x, y))

    def returned_in(self, fmt: Format, calls: int) -> Model:
        """Return a copy of the model whose results have a wider format, `fmt`.

        calls: a number of calls of the black box, added to the attribute `calls` of the copy.
        """
        return Model(
            self.call, self.out, order=self.order, alike=self.alike, program=self.program, unknown=self.unknown,
            calls=self.calls + calls, returned=fmt,
        )  # fmt: skip

    def _passed(self, results: Array) -> Array:
        """Return results in the dtype in which the black box returned them, such as float32 for BF16 values."""
        results = results.view(DTYPES.get(self.out, results.dtype))
        return results if self.returned == self.out else results.astype(DTYPES[self.returned])

    @cached_property
    def _own_unit(self) -> AdderCandidate | None:
        """Matrix unit made for this model, with which `fp.matmul` has the model's bits; None if there is none."""
        return None if self.program is None else own_unit(self.program, self.operands)

    def _rows(self, *values: Array) -> Array:
        """Return the sums (R,) of float64 rows (R, n) of each operand, in the dtype that the black box returned."""
        if self.program is not None:
            return self._passed(self.program.run(*values))
        passed = [operand.passed(x) for operand, x in zip(self.operands, values, strict=True)]
        first, codes = self.alike[0], self._codes
        return self._passed(first.sum(*passed, fmt=codes[0]) if len(codes) == 1 else first.dot(*passed, fmt=codes))

    @property
    def _codes(self) -> tuple[Format | None, ...]:
        """Format of each operand that is passed as codes, None for the others."""
        return tuple(operand.code_format for operand in self.operands)

    def _read(self, x: npt.ArrayLike, which: int, name: str) -> Array:
        """Return the argument x of a call as float64 (..., n); raise a ValueError if the model cannot take it.

        which: the operand, 0 or 1, for which x is passed. name: the argument's name, for error messages.
        """
        self._refuse_nothing()
        return self.operands[which].read(x, self.n, name)

    def _refuse_nothing(self) -> None:
        """Raise a ValueError if no arithmetic was found, so that the model cannot compute sums."""
        if not self.found:
            raise ValueError(f"this model does not run: {'; '.join(self.unknown) or 'nothing fits'}.")

    def _refuse_sum(self) -> None:
        """Raise a ValueError if the black box was a sum, which has one operand."""
        if len(self.operands) == 1:
            raise ValueError(
                "this is the model of a sum, which has one operand. Probe fp.probe.dot or fp.probe.matmul."
            )

    # ---- saved

    def save(self, path: str | Path) -> None:
        """Write the model as a JSON file, which `fp.probe.load` reads.

        Units, schedules and accumulators are saved as Python expressions, the order in reverse Polish notation.

        Args:
          path: the file to write.

        Raises:
          ValueError: no arithmetic was found, or an operand has a format that `fp.format` does not find by its name.
        """
        self._refuse_nothing()
        for operand in self.operands:
            if find_by_name(operand.fmt.name) != operand.fmt:
                raise ValueError(
                    f"a saved model names its formats; got {operand.fmt}, which fp.format does not find by its name."
                )
        fields: dict[str, Any] = {
            "what": KIND, "kind": self.kind, "n": self.n, "shape": list(self.shape), "out": self.out.name,
            "returned": self.returned.name,
            "operands": [operand.element or operand.fmt.name for operand in self.operands],
            "tensors": [operand.tensors for operand in self.operands], "scale": self.scale, "block": self.block,
            "layout": self.layout,
            "alike": [
                [adder.how.name if isinstance(adder.how, MatrixUnit) else repr(adder.how), str(adder.schedule or "")]
                for adder in self.alike
            ],
            "order": None if self.order is None else str(self.order), "unknown": list(self.unknown),
            "calls": self.calls,
        }  # fmt: skip
        if self.program is not None:
            rule = self.program.rule
            fields["rule"] = {**rule.__dict__, "fmt": rule.fmt.name, "product": rule.product and rule.product.name}
            scale = self.program.scale
            fields["sum_scale"] = scale and [scale.how, scale.by, scale.fmt.name]
            fields["formats"] = [fmt.name for fmt in self.program.formats]
            fields["unrounded_products"] = in_ranges(self.program.exact)
        write_whole(path_of(path), json.dumps(fields, indent=1) + "\n")
