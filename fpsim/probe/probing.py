"""From a callable alone to a model: the order of its additions, their arithmetic, its name, and the proof."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from fpsim.arrays import Array, as_array
from fpsim.casts.cast import quantize
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import DTYPES
from fpsim.formats.named import BF16, FP16, Format
from fpsim.matrix_units.matrix_unit import SCALES, MatrixUnit
from fpsim.probe.arithmetic import mixed_programs, other_flushes, programs
from fpsim.probe.black_box import BlackBox, Function, ProbedOperand, operand_of
from fpsim.probe.candidates import AdderCandidate, by_accumulators, by_units, may_have, order_of
from fpsim.probe.counter import Counter, HiddenOrderError
from fpsim.probe.draws import EDGES, USUAL, answers, drawn, drawn_scales, same_bits
from fpsim.probe.integers.model import integer_model
from fpsim.probe.masks import NoOrderError, revealed
from fpsim.probe.model import Model
from fpsim.probe.order import Order
from fpsim.probe.program import Program
from fpsim.probe.scaled_sums import UnscaledBox, factor_of, scaled_programs
from fpsim.probe.words import WORDS
from fpsim.schedules.trees.tree import Tree

SMALL = ("subnormal", "vanishing")  # kinds of operands that show which subnormals become zero
FRESH = (2, 3)  # seeds of the operands that a model is held against at last


def sum(fn: Function, n: int, dtype: FormatLike = np.float32) -> Model:
    """Reveal how a function adds n terms.

    Args:
      fn: fn(x) of an (n,) array -> one float. It must give the same bits for the same operands.
      n: terms.
      dtype: of x: a dtype of NumPy, ml_dtypes or torch (x is a tensor then), or a format by name. A function that
        raises for arrays gets tensors too, where torch is loaded; `explain` says so. An integer dtype, such as np.int8,
        is for exact sums that wrap or saturate; fn returns an integer then.

    Returns:
      A Model that has been compared with fresh operands bit for bit; `.tree` is None and `.unknown` says why where
      nothing fits. Of integers it is an IntegerModel, whose `.names` say how sums wrap or saturate.

    Raises:
      ValueError: fn raises, gives another shape, other bits for the same operands, or writes into them; n below 1.
      TypeError: fn is no function, or gives something else than floats.

    Source: docs/probe.md.

    Example:
      >>> import fpsim as fp
      >>> model = fp.probe.sum(lambda x: (x[0] + x[2]) + (x[1] + x[3]), 4)
      >>> model.tree, model.accumulator.name
      (((0, 2), (1, 3)), 'FP32')
      >>> float(model.sum(np.float32([1, 2, 3, 4])))
      10.0
    """
    return model_of(BlackBox(fn, "sum", n, (operand_of(dtype, "dtype", integers=True),)))


def dot(fn: Function, n: int, dtype: FormatLike = np.float32, *, a: Any = None, b: Any = None) -> Model:
    """Reveal how a function adds the n products of two vectors.

    Args:
      fn: fn(a, b) of two (n,) arrays -> one float.
      n: products.
      dtype: of both, as in `fp.probe.sum`.
      a, b: of one of them, instead.

    Returns, Raises, Source: as for `fp.probe.sum`.

    Example:
      >>> import fpsim as fp
      >>> model = fp.probe.dot(lambda a, b: a[0] * b[0] + a[1] * b[1] + a[2] * b[2], 3)
      >>> model.tree, model.names
      (((0, 1), 2), ('Pairwise(FP32)',))
    """
    operands = _operands(dtype if a is None else a, dtype if b is None else b)
    return model_of(BlackBox(fn, "dot", n, operands))


def matmul(
    fn: Function, k: int, *, a: Any = np.float32, b: Any = None, rows: int = 16, columns: int = 16,
    scale: str | None = None, block: int = 0, layout: str = "nn",
) -> Model:  # fmt: skip
    """Reveal how a function adds the k products of every element of a matrix product.

    Args:
      fn: fn(a, b) of (rows, k) and (k, columns) -> (rows, columns) floats.
      k: products of an element.
      a: what a holds: a dtype of NumPy, ml_dtypes or torch, or an element as units name it ("e4m3", "f16", "tf32").
        Formats without a dtype come as codes, TF32 as float32.
      b: of the other operand; None for the same.
      rows, columns: of the product; an order may depend on them too.
      scale, block: of block-scaled products: "ue8m0" or "ue4m3", and the terms that share a scale. fn takes
        (a, b, scale_a, scale_b) then, (rows, k / block) and (k / block, columns).
      layout: of a and b in memory, in BLAS's letters: "n" is row-major, "t" is a transposed view of a row-major matrix.
        "nt" is what `x @ w.T` passes. Libraries have other kernels for some of them, for one row or column above all.

    Returns, Raises, Source: as for `fp.probe.sum`.

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
    return model_of(BlackBox(fn, "matmul", k, operands, (rows, columns), scale or "", block, layout))


def _operands(a: Any, b: Any) -> tuple[ProbedOperand, ProbedOperand]:
    left, right = operand_of(a, "a", integers=True), operand_of(b, "b", integers=True)
    if bool(left.integer) != bool(right.integer):
        raise ValueError("a and b must both be integers, or both be floats; got one of each. Cast one of them in fn.")
    return left, right


def model_of(box: BlackBox) -> Model:
    """Return the model of a black box; where nothing fits its results, that of the narrower format that they lie in."""
    if box.operands[0].integer:
        return integer_model(box)
    model = _float_model(box)
    narrow = None if model.found else _narrower(box)
    if narrow is None:
        return model
    fn = box.fn
    cast = BlackBox(
        lambda *operands: _cast_exactly(fn(*operands), narrow), box.kind, box.n, box.operands, box.shape, box.scale,
        box.block, box.layout, box.longest,
    )  # fmt: skip
    try:
        of_narrow = _float_model(cast)
    except ValueError:  # some results lie outside the narrower format
        return model
    return of_narrow.returned_in(box.fmt, box.calls) if of_narrow.found else model


def _narrower(box: BlackBox) -> Format | None:
    """Return FP16 or BF16 where all results of ordinary operands lie in it, else None."""
    witness = _Witness(box)
    results = np.concatenate([witness.of(kind)[2].reshape(-1).astype(np.float64) for kind in USUAL])
    for fmt in (FP16, BF16):
        if box.fmt.precision > fmt.precision and np.array_equal(quantize(results, fmt), results, equal_nan=True):
            return fmt
    return None


def _cast_exactly(result: Any, fmt: Format) -> Any:
    """Return a result in the narrower format of its values.

    Raises:
      ValueError: a value that the format doesn't hold.
    """
    array = as_array(result, "what fn returns")
    with np.errstate(all="ignore"):
        narrow = array.astype(DTYPES[fmt])
        if not np.array_equal(narrow.astype(array.dtype), array, equal_nan=True):
            raise ValueError(f"fn returned values of {fmt} for most operands, and others for some.")
    return narrow


def _float_model(box: BlackBox) -> Model:
    """Return the model of a black box that adds floats."""
    unknown: list[str] = []
    factor = factor_of(box)
    counter, order = _order(box if factor is None else UnscaledBox(box, factor), unknown)
    if factor is not None and order is None:
        unknown = [f"{sentence}; a 1 beside zeros gives {factor!r}" for sentence in unknown]
    witness = _Witness(box)
    alike = _named(box, order, witness) if factor is None else ()
    program: Program | None = None
    if alike and order is None:
        orders = {_order_for(each, box) for each in alike}
        order = orders.pop() if len(orders) == 1 else None
    if not alike and counter is not None and order is not None:
        program, missing = _program(counter, order, witness, factor)
        unknown += missing
        if program is None:
            order = None
    fits = bool(alike) or program is not None
    if not fits and not unknown:
        unknown.append("what it adds up to: no unit, schedule or accumulator gives its bits")
    unknown += _apart(alike, box)
    return Model(
        box.kind, box.n, box.shape, box.operands, box.fmt, order=order, alike=alike, program=program,
        unknown=tuple(unknown), calls=box.calls, scale=box.scale, block=box.block, layout=box.layout,
    )  # fmt: skip


def _order(box: BlackBox, unknown: list[str]) -> tuple[Counter | None, Order | None]:
    """The order that masks show; where they show none, why."""
    counter, reasons = None, []
    for sign in (1.0, -1.0):
        try:
            counter = Counter(box, sign)
            return counter, revealed(counter, [int(k) for k in counter.alive])
        except HiddenOrderError as reason:
            unknown.append(f"the order of additions: {reason}")
            return None, None
        except NoOrderError as reason:
            reasons.append(f"the order of additions, for it behaves as no tree does: {reason}")
        except RecursionError:
            reasons.append("the order of additions, which is nested too deeply")
    unknown.append(reasons[0])
    return counter, None


# ---- names


class _Witness:
    """The results of the black box, each asked for once."""

    def __init__(self, box: BlackBox) -> None:
        self.box = box
        self.seen: dict[tuple[str, int], tuple[tuple[Array, ...], tuple[Array, ...], Array]] = {}

    def of(self, kind: str, seed: int = 1) -> tuple[tuple[Array, ...], tuple[Array, ...], Array]:
        """Operands, block scales, and the results."""
        if (kind, seed) not in self.seen:
            values = drawn(kind, self.box, seed)
            scales = drawn_scales(kind, self.box, seed)
            self.seen[kind, seed] = values, scales, answers(self.box, values, scales)
        return self.seen[kind, seed]

    def agrees(self, model: AdderCandidate | Program, kind: str, seed: int = 1) -> bool:
        """Return whether a model gives the same bits; not where the black box raises at the edges of the range."""
        try:
            values, scales, want = self.of(kind, seed)
        except ValueError:
            if kind in EDGES:
                return False
            raise
        return same_bits(_result(self.box, model, values, scales), want)


def _result(
    box: BlackBox, model: AdderCandidate | Program, values: tuple[Array, ...], scales: tuple[Array, ...]
) -> Array:
    """Return what a model gives for operands of `drawn`."""
    with np.errstate(all="ignore"):
        if isinstance(model, AdderCandidate):
            passed = [operand.passed(x) for operand, x in zip(box.operands, values, strict=True)]
            if box.kind == "matmul":
                return model.matmul(*passed, *scales)
            return model.sum(*passed) if box.kind == "sum" else model.dot(*passed)
        if box.kind == "matmul":
            return _typed(box, model.run_product(*values))
        return _typed(box, model.run(*values))


def _typed(box: BlackBox, codes: Array) -> Array:
    return codes.view(DTYPES.get(box.fmt, codes.dtype))


def _named(box: BlackBox, order: Order | None, witness: _Witness) -> tuple[AdderCandidate, ...]:
    """Everything of the catalogue that has the black box's bits."""
    return _that_agree(box, order, witness, refused=False) or _that_agree(box, order, witness, refused=True)


def _that_agree(box: BlackBox, order: Order | None, witness: _Witness, refused: bool) -> tuple[AdderCandidate, ...]:
    """Those of the catalogue, or else those that no library takes, with the black box's order and bits."""
    groups: dict[Tree, list[AdderCandidate]] = {}
    for each in dict.fromkeys(_candidates(box, order, refused)):
        how = each.tree(box.n, _columns(box))
        if order is None or (may_have(how, order) and order_of(how) == order):
            groups.setdefault(how, []).append(each)
    found: list[AdderCandidate] = []
    for group in groups.values():
        first = group[0]
        usual = all(witness.agrees(first, kind) for kind in (*USUAL, *EDGES))
        if usual and all(witness.agrees(first, kind, seed) for seed in FRESH for kind in USUAL):
            found += group
    return tuple(found)


def _candidates(box: BlackBox, order: Order | None, refused: bool) -> Iterable[AdderCandidate]:
    """Return what may be tried."""
    if len(box.operands) == 2:
        operands: tuple[ProbedOperand, ProbedOperand] = (box.operands[0], box.operands[1])
        yield from by_units(*operands, box.fmt, order, box.scale, box.block, refused)
    if not refused and not box.scale and box.fmt in DTYPES:
        yield from by_accumulators(box.fmt, order, len(box.operands) == 2)


def _columns(box: BlackBox) -> int | None:
    return box.shape[1] if box.kind == "matmul" else 1 if box.kind == "dot" else None


def _order_for(candidate: AdderCandidate, box: BlackBox) -> Order | None:
    return order_of(candidate.tree(box.n, _columns(box)))


def _apart(alike: tuple[AdderCandidate, ...], box: BlackBox) -> list[str]:
    """Candidates with different arithmetic that these operands do not tell apart."""
    trees = list(dict.fromkeys(each.tree(box.n, _columns(box)) for each in alike))
    if len(trees) < 2:
        return []
    firsts = [next(each for each in alike if each.tree(box.n, _columns(box)) == tree) for tree in trees]
    names = " from ".join(each.name for each in firsts[:2])
    units = [each.how for each in firsts if isinstance(each.how, MatrixUnit)]
    longer = "more terms" if len(units) == len(firsts) else "operands of more bits"
    return [
        f"how to tell {names}{' and others' if len(firsts) > 2 else ''}, which gave the same bits for all that was "
        f"tried; {longer} may tell"
    ]


# ---- arithmetic of its own


def _flushing(program: Program, witness: _Witness) -> Program:
    """A program with the fewest flushes that give the bits of subnormal operands and products, where some do."""
    subnormal = [(kind, seed) for kind in SMALL for seed in (1, *FRESH)]
    usual = [(kind, seed) for kind in USUAL for seed in (1, *FRESH)]
    for each in other_flushes(program, witness.box):
        if all(witness.agrees(each, *drawing) for drawing in (*subnormal, *usual)):
            return each
    return program


def _program(
    counter: Counter, order: Order, witness: _Witness, factor: float | None
) -> tuple[Program | None, list[str]]:
    """The first program that gives the black box's bits, and what of its edges it does not."""
    nearly: Program | None = None
    varied = set[Program]()  # programs whose flushes have been varied
    try:
        tried: Iterable[Program] = chain(programs(counter, order), mixed_programs(counter, order))
        if factor is not None:
            tried = scaled_programs(counter, order, tried, factor)
        for each in tried:
            if not all(witness.agrees(each, kind) for kind in USUAL):
                continue
            if not all(witness.agrees(each, kind, seed) for seed in FRESH for kind in USUAL):
                continue
            if all(witness.agrees(each, kind) for kind in EDGES):
                return each, []
            plain = replace(each, rule=replace(each.rule, flushes=(), least_inputs=()))
            if plain not in varied:
                varied.add(plain)
                each = _flushing(each, witness)
                if all(witness.agrees(each, kind) for kind in EDGES):
                    return each, []
            nearly = nearly or each
    except NoOrderError as reason:
        return None, [f"the arithmetic: {reason}"]
    if nearly is not None:
        products = len(witness.box.operands) == 2
        edges = [kind for kind in EDGES if products or kind != "vanishing"]
        wrong = [WORDS[kind] for kind in edges if not witness.agrees(nearly, kind)]
        return nearly, [f"{', '.join(wrong)}: the model gives other bits there, or fn raises"]
    return None, [
        "the arithmetic: an order of additions was seen, but none that was tried gives the bits of fresh operands with "
        "it. A sum that corrects itself, or rounds between additions, behaves so"
    ]
