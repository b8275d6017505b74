"""Probes of black boxes: they call a function, and find the order of its additions and their arithmetic."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice, product
from typing import Any

import numpy as np

from fpsim.arrays import Array, as_array, same_bits
from fpsim.casts.cast import quantize
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import DTYPES
from fpsim.formats.named import BF16, FP16, Format
from fpsim.matrix_units.matrix_unit import SCALES, MatrixUnit
from fpsim.probe.arithmetic import mixed_programs, other_flushes, programs
from fpsim.probe.black_box import BlackBox, Function
from fpsim.probe.candidates import AdderCandidate, by_accumulators, by_units, may_have, order_of
from fpsim.probe.counter import Counter, HiddenOrderError
from fpsim.probe.draws import EDGES, USUAL, answers, drawn, drawn_scales
from fpsim.probe.integers.model import integer_model
from fpsim.probe.masks import NoOrderError, revealed
from fpsim.probe.model import Model
from fpsim.probe.operands import ProbedCall, ProbedOperand, operand_of
from fpsim.probe.order import Order
from fpsim.probe.programs.program import Program
from fpsim.probe.scaled_sums import UnscaledBox, factor_of, scaled_programs
from fpsim.probe.words import WORDS
from fpsim.schedules.schedule import FLAT
from fpsim.schedules.trees.tree import Tree

SMALL = ("subnormal", "vanishing")  # kinds of operands that show which subnormals become zero
FRESH = (2, 3)  # seeds of the operands for the final comparison with the black box
FEW_ROWS = [0, -1]  # rows of a product that are compared first


def sum(fn: Function, n: int, dtype: FormatLike = np.float32) -> Model:
    """Find the order and arithmetic with which a function adds n terms, by calling it.

    Args:
      fn: fn(x) of an (n,) array -> one float. It must return the same bits for the same operands.
      n: number of terms.
      dtype: the dtype of x: one of NumPy, ml_dtypes or torch (then x is a tensor), or a format by name. A function that
        raises for arrays is called with tensors if torch is imported; `Model.explain` reports it. An integer dtype,
        such as np.int8, is for exact sums that wrap or saturate; then fn must return an integer.

    Returns:
      A Model that has been compared with fn bit for bit on fresh operands. If no arithmetic fits, `.tree` is None and
      `.unknown` says why. For integers it is an IntegerModel, whose `.names` say how sums wrap or saturate.

    Raises:
      ValueError: fn raises, returns another shape, returns other bits for the same operands, or writes into operands;
        or n is below 1.
      TypeError: fn is not a function, or its results are not floats (integers for integers).

    Source: docs/probe.md.

    Example:
      >>> import fpsim as fp
      >>> model = fp.probe.sum(lambda x: (x[0] + x[2]) + (x[1] + x[3]), 4)
      >>> model.tree, model.accumulator.name
      (((0, 2), (1, 3)), 'FP32')
      >>> float(model.sum(np.float32([1, 2, 3, 4])))
      10.0
    """
    return model_of(BlackBox(fn, ProbedCall("sum", n, (operand_of(dtype, "dtype", integers=True),))))


def dot(
    fn: Function, n: int, dtype: FormatLike = np.float32, *, a: FormatLike | None = None, b: FormatLike | None = None
) -> Model:
    """Find the order and arithmetic with which a function adds the n products of two vectors, by calling it.

    Args:
      fn: fn(a, b) of two (n,) arrays -> one float.
      n: number of products.
      dtype: the dtype of both vectors, as in `fp.probe.sum`.
      a, b: the dtype of one vector, in place of `dtype`.

    The Model that is returned has been compared with fn bit for bit. Errors are those of `fp.probe.sum`.

    Example:
      >>> import fpsim as fp
      >>> model = fp.probe.dot(lambda a, b: a[0] * b[0] + a[1] * b[1] + a[2] * b[2], 3)
      >>> model.tree, model.names
      (((0, 1), 2), ('Pairwise(FP32)',))
    """
    operands = _operands(dtype if a is None else a, dtype if b is None else b)
    return model_of(BlackBox(fn, ProbedCall("dot", n, operands)))


def matmul(
    fn: Function, k: int, *, a: FormatLike = np.float32, b: FormatLike | None = None, rows: int = 16, columns: int = 16,
    scale: str | None = None, block: int = 0, layout: str = "nn",
) -> Model:  # fmt: skip
    """Find the order and arithmetic with which a function adds the k products of each element of a matrix product.

    Args:
      fn: fn(a, b) of (rows, k) and (k, columns) -> (rows, columns) floats.
      k: number of products that each element adds.
      a: the format of a: a dtype of NumPy, ml_dtypes or torch, or an element type as units name it ("e4m3", "f16",
        "tf32"). Formats without a dtype are passed as codes, TF32 as float32.
      b: the format of b; None for the format of a.
      rows, columns: shape of the product, on which the order may depend.
      scale, block: for block-scaled products, the scales' format "ue8m0" or "ue4m3", and the number of terms that share
        a scale. The calls are fn(a, b, scale_a, scale_b) then, with scales (rows, k / block) and (k / block, columns).
      layout: memory layouts of a and b, as in BLAS: "n" is row-major, "t" is a transposed view of a row-major matrix;
        `x @ w.T` passes "nt". Libraries have different kernels for some layouts, above all for one row or column.

    The Model that is returned has been compared with fn bit for bit. Errors are those of `fp.probe.sum`.

    Example:
      >>> import fpsim as fp
      >>> black_box = lambda a, b: fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)
      >>> model = fp.probe.matmul(black_box, 256, a="e4m3")
      >>> model.unit, model.terms_per_step, model.fraction_bits, model.promotion
      ('hopper_e4m3_f32', 32, 13, 128)
    """
    if scale is not None and (not isinstance(scale, str) or scale not in SCALES):
        raise ValueError(f"scale must be 'ue8m0', 'ue4m3' or None; got {shown(scale)}.")
    operands = _operands(a, a if b is None else b)
    call = ProbedCall("matmul", k, operands, (rows, columns), scale or "", block, layout)
    return model_of(BlackBox(fn, call))


def _operands(a: Any, b: Any) -> tuple[ProbedOperand, ProbedOperand]:
    """Return the operands for the formats or dtypes `a` and `b`, as the public probes take them.

    Raises:
      ValueError: one is an integer dtype and the other is not, or there is no such format.
    """
    left, right = operand_of(a, "a", integers=True), operand_of(b, "b", integers=True)
    if bool(left.integer) != bool(right.integer):
        raise ValueError("a and b must both be integers, or both be floats; got one of each. Cast one of them in fn.")
    return left, right


def model_of(box: BlackBox) -> Model:
    """Return the model of a black box, or of its results cast to a narrower format if no model fits without the cast.

    The format is FP16 or BF16. The cast model is returned only if the cast changes no result and that model fits; else
    the model is that of the results without a cast, whose `unknown` says why none fits.
    """
    if box.operands[0].integer:
        return integer_model(box)
    model = _float_model(box)
    narrow = None if model.found else _narrower(box)
    if narrow is None:
        return model
    fn = box.fn
    cast = BlackBox(lambda *operands: _cast_exactly(fn(*operands), narrow), box.arguments, box.longest)
    try:
        of_narrow = _float_model(cast)
    except ValueError:  # the narrower format cannot represent some results
        return model
    return of_narrow.returned_in(box.fmt, box.calls) if of_narrow.found else model


def _narrower(box: BlackBox) -> Format | None:
    """Return FP16 or BF16 if it is narrower than the results' format and represents all results; else None.

    The results are the black box's for drawn operands of all kinds in USUAL.
    """
    witness = _Witness(box)
    results = np.concatenate([witness.of(kind)[2].reshape(-1).astype(np.float64) for kind in USUAL])
    for fmt in (FP16, BF16):
        if box.fmt.precision > fmt.precision and np.array_equal(quantize(results, fmt), results, equal_nan=True):
            return fmt
    return None


def _cast_exactly(result: Any, fmt: Format) -> Any:
    """Return `result`, an array or tensor, in the dtype of `fmt`; raise a ValueError if `fmt` cannot represent it."""
    array = as_array(result, "what fn returns")
    with np.errstate(all="ignore"):
        narrow = array.astype(DTYPES[fmt])
        if not np.array_equal(narrow.astype(array.dtype), array, equal_nan=True):
            raise ValueError(f"fn returned values of {fmt} for most operands, and others for some.")
    return narrow


def _float_model(box: BlackBox) -> Model:
    """Return the model of a black box that adds floats; its attribute `unknown` says what was not found."""
    unknown: list[str] = []
    factor = factor_of(box)
    counter, order = _order(box if factor is None else UnscaledBox(box, factor), unknown)
    if factor is not None and order is None:
        unknown = [f"{sentence}; a 1 with zeros gives {factor!r}" for sentence in unknown]
    witness = _Witness(box)
    alike = _named(box, order, witness) if factor is None else ()
    program: Program | None = None
    if alike and order is None:
        orders = {order_of(candidate.tree(box.n, box.arguments.columns)) for candidate in alike}
        order = orders.pop() if len(orders) == 1 else None
    if not alike and counter is not None and order is not None:
        program, missing = _program(counter, order, witness, factor)
        unknown += missing
        if program is None:
            order = None
    fits = bool(alike) or program is not None
    if not fits and not unknown:
        unknown.append("the arithmetic: no unit, schedule or accumulator reproduces its bits")
    unknown += _undecided(alike, box)
    return Model(
        box.arguments, box.fmt, order=order, alike=alike, program=program, unknown=tuple(unknown), calls=box.calls
    )


def _order(box: BlackBox, unknown: list[str]) -> tuple[Counter | None, Order | None]:
    """Return (the black box's Counter, its order of additions), each None if it cannot be made or found.

    Without an order, the reason is appended to `unknown` as a sentence.
    """
    counter, reasons = None, []
    for sign in (1.0, -1.0):
        try:
            counter = Counter(box, sign)
            return counter, revealed(counter, [int(k) for k in counter.alive])
        except HiddenOrderError as reason:
            unknown.append(f"the order of additions: {reason}")
            return None, None
        except NoOrderError as reason:
            reasons.append(f"the order of additions, since no tree explains the results: {reason}")
        except RecursionError:
            reasons.append("the order of additions, which is nested too deeply")
    unknown.append(reasons[0])
    return counter, None


# ---- names


class _Witness:
    """The black box's results for drawn operands; each result is computed once and cached."""

    def __init__(self, box: BlackBox) -> None:
        self.box = box
        self.seen: dict[tuple[str, int], tuple[tuple[Array, ...], tuple[Array, ...], Array]] = {}

    def of(self, kind: str, seed: int = 1) -> tuple[tuple[Array, ...], tuple[Array, ...], Array]:
        """Return (operands, block scales, the black box's results) for operands drawn with a kind and a seed.

        kind: a name that `drawn` accepts, such as "wide". seed: the seed of the draws.
        """
        if (kind, seed) not in self.seen:
            values = drawn(kind, self.box, seed)
            scales = drawn_scales(kind, self.box, seed)
            self.seen[kind, seed] = values, scales, answers(self.box, values, scales)
        return self.seen[kind, seed]

    def agrees(self, model: AdderCandidate | Program, kinds: Sequence[str], seeds: Sequence[int] = (1,)) -> bool:
        """Return whether a model reproduces the black box's bits for operands drawn with each seed and kind.

        If the black box raises a ValueError for operands at the edges of the range, the result is False.
        """
        for seed, kind in product(seeds, kinds):
            try:
                values, scales, want = self.of(kind, seed)
            except ValueError:
                if kind in EDGES:
                    return False
                raise
            if isinstance(model, Program) and self.box.kind == "matmul" and want.shape[0] > len(FEW_ROWS):
                some = (values[0][FEW_ROWS, :], *values[1:])  # enough to rule out most programs
                if not same_bits(_result(self.box, model, some, scales), want[FEW_ROWS, :]):
                    return False
            if not same_bits(_result(self.box, model, values, scales), want):
                return False
        return True


def _result(
    box: BlackBox, model: AdderCandidate | Program, values: tuple[Array, ...], scales: tuple[Array, ...]
) -> Array:
    """Return the results of a model for float64 operands, in the dtype of the black box's results.

    values: the operands, as `drawn` returns them. scales: codes of both operands' block scales; () without scales.
    """
    with np.errstate(all="ignore"):
        if isinstance(model, Program):
            codes = model.run_product(*values) if box.kind == "matmul" else model.run(*values)
            return codes.view(DTYPES.get(box.fmt, codes.dtype))
        passed = [operand.passed(x) for operand, x in zip(box.operands, values, strict=True)]
        formats = tuple(operand.code_format for operand in box.operands)
        if box.kind == "matmul":
            return model.matmul(*passed, *scales, fmt=formats)
        return model.sum(*passed, fmt=formats[0]) if box.kind == "sum" else model.dot(*passed, fmt=formats)


def _named(box: BlackBox, order: Order | None, witness: _Witness) -> tuple[AdderCandidate, ...]:
    """Return the candidates that reproduce the black box's bits.

    Schedules for which a library has no kernel with these operands are tried only if no other candidate fits. Promotion
    after every instruction is left out if a unit fits without a schedule, as a step of that unit is the same. order:
    the order of additions that candidates must have; None to try all. witness: the black box's results.
    """
    for refused in (False, True):
        groups: dict[Tree, list[AdderCandidate]] = {}
        candidates: list[AdderCandidate] = []
        if len(box.operands) == 2:
            candidates += by_units(box.operands[0], box.operands[1], box.fmt, order, box.scale, box.block, refused)
        if not refused and not box.scale and box.fmt in DTYPES:
            candidates += by_accumulators(box.fmt, order, [operand.fmt for operand in box.operands])
        for candidate in dict.fromkeys(candidates):
            how = candidate.tree(box.n, box.arguments.columns)
            if order is None or (may_have(how, order) and order_of(how) == order):
                groups.setdefault(how, []).append(candidate)
        matches: list[AdderCandidate] = []
        for group in groups.values():
            if witness.agrees(group[0], (*USUAL, *EDGES)) and witness.agrees(group[0], USUAL, FRESH):
                matches += group
        if any(one.schedule == FLAT for one in matches):
            matches = [one for one in matches if not isinstance(one.how, MatrixUnit) or one.promotion != one.how.terms]
        if matches:
            return tuple(matches)
    return ()


def _undecided(alike: tuple[AdderCandidate, ...], box: BlackBox) -> list[str]:
    """Return [a sentence] if `alike`, the candidates with the black box's bits, have different trees; else []."""
    firsts: dict[Tree, AdderCandidate] = {}
    for candidate in alike:
        firsts.setdefault(candidate.tree(box.n, box.arguments.columns), candidate)
    if len(firsts) < 2:
        return []
    names = " from ".join(candidate.name for candidate in islice(firsts.values(), 2))
    of_units = all(isinstance(candidate.how, MatrixUnit) for candidate in firsts.values())
    longer = "more terms" if of_units else "operands of more bits"
    return [
        f"how to tell {names}{' and others' if len(firsts) > 2 else ''}, which gave the same bits for all that was "
        f"tried; {longer} may tell"
    ]


# ---- arithmetic without a name


def _program(
    counter: Counter, order: Order, witness: _Witness, factor: float | None
) -> tuple[Program | None, list[str]]:
    """Find an arithmetic for an order of additions; return (a program, or None; sentences on what it cannot reproduce).

    A program is an order with its arithmetic. Return the first one that has the black box's bits for all operands, with
    []. If there is none, return the first one that has the bits for usual operands, with one sentence on the operands
    at the edges of the range for which bits differ. If there is none either, return (None, [the reason]).

    counter: the Counter of the black box. order: the order of the additions. witness: the black box's results. factor:
    the number by which the black box multiplies its sum; None for a plain sum.
    """
    nearly: Program | None = None
    varied = set[Program]()  # programs whose flushes have been varied
    try:
        tried: Iterable[Program] = chain(programs(counter, order), mixed_programs(counter, order))
        if factor is not None:
            tried = scaled_programs(counter, order, tried, factor)
        for candidate in tried:
            if not witness.agrees(candidate, USUAL, (1, *FRESH)):
                continue
            if witness.agrees(candidate, EDGES):
                return candidate, []
            plain = replace(candidate, rule=replace(candidate.rule, flushes=(), least_inputs=()))
            if plain not in varied:
                varied.add(plain)
                # the variant with the fewest flushes that has the black box's bits
                variants = other_flushes(candidate, witness.box)
                kinds = (*SMALL, *USUAL)
                fits = (v for v in variants if all(witness.agrees(v, [kind], (1, *FRESH)) for kind in kinds))
                candidate = next(fits, candidate)
                if witness.agrees(candidate, EDGES):
                    return candidate, []
            nearly = nearly or candidate
    except NoOrderError as reason:
        return None, [f"the arithmetic: {reason}"]
    if nearly is not None:
        products = len(witness.box.operands) == 2
        edges = [kind for kind in EDGES if products or kind != "vanishing"]
        wrong = [WORDS[kind] for kind in edges if not witness.agrees(nearly, [kind])]
        return nearly, [f"{', '.join(wrong)}: the model's bits differ from fn's for these operands, or fn raises"]
    return None, [
        "the arithmetic: the order of additions was found, but no arithmetic that was tried reproduces the bits of "
        "further operands with it. Sums that correct themselves, or round between additions, have such results"
    ]
