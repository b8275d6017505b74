"""The cause of a difference between two products: the sums of one row and column are computed again, term by term."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from fpsim.arrays import Array, differing
from fpsim.casts.cast import decode, quantize
from fpsim.display.wording import capitalized
from fpsim.divergence.product import AddsLike, OperandLike, Product
from fpsim.formats.named import FP32, Format
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import output_overflow
from fpsim.products.matmul import matmul
from fpsim.scaling.scaled import Scaled
from fpsim.schedules.limits import remarks
from fpsim.schedules.schedule import FLAT, Chain, Schedule
from fpsim.schedules.trees.parts import arithmetic_of
from fpsim.schedules.trees.tree import Tree, tree
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd

Reason = Literal["arithmetic", "output"]
AT_ONCE = 256  # running sums that are computed in one product
LONGEST = 4096  # largest K for which every running sum is computed


class LinePair(NamedTuple):
    """The operands of one element of a product: a row of a, a column of b, and a bias or None.

    They are arrays (1, K), (K, n) and (n,) that `fpsim.matmul` takes. n is 1 if b has one column; else it is 2, and
    column and bias are repeated, because some schedules add a single column in another order.
    """

    a: Any
    b: Any
    bias: Array | None


def operands_of(product: Product, row: int, column: int) -> LinePair:
    """Return the row of a, the column of b and the bias from which element (row, column) of a product is computed."""
    unit, width = product.adds.unit, min(product.result.shape[1], 2)
    bias = None if product.bias is None else np.repeat(product.bias[column : column + 1].astype(np.float32), width)
    return LinePair(_line(product.a, row, 0, 1, unit), _line(product.b, column, 1, width, unit), bias)


def _line(x: OperandLike, index: int, axis: int, times: int, unit: MatrixUnit | None) -> Any:
    """Return row (axis 0) or column (axis 1) `index` of x, repeated `times` times, as `fpsim.matmul` takes it.

    It is an array of codes or a Scaled for `unit`; for TF32, or if unit is None, an array of float32 values.
    """
    if unit is None:
        return np.repeat(x.values.take([index], axis).astype(np.float32), times, axis)
    if not isinstance(x.encoded, Scaled):
        carrier = (unit.a if axis == 0 else unit.b).carrier
        read = x.encoded if x.fmt in (None, carrier) else x.values.astype(np.float32)  # TF32
        return np.repeat(read.take([index], axis), times, axis)
    block = x.encoded.scaling.block[axis]
    tile = 0 if block < 0 else index // block
    arrays = x.encoded._arrays().items()
    parts = {name: part.take([index if name == "codes" else tile], axis) for name, part in arrays}
    scaling = x.encoded.scaling
    if unit.scale is not None:
        scaling = scaling.replace(block=(1, scaling.block[1]) if axis == 0 else (scaling.block[0], 1))
        room = [(0, 0), (0, 0)]
        room[1 - axis] = (0, -parts["codes"].shape[1 - axis] % unit.block)
        parts["codes"] = np.pad(parts["codes"], room)  # zeros fill the last block, as in kernels
    return repeated(dataclasses.replace(x.encoded, scaling=scaling, **parts), axis, times)


def repeated(x: Any, axis: int, times: int) -> Any:
    """Return x, one row (axis 0) or column (axis 1) of codes or a Scaled, repeated `times` times along that axis."""
    if not isinstance(x, Scaled):
        return np.repeat(x, times, axis)
    block = x.scaling.block[axis]
    tiles = 1 if block < 0 else -(-times // block)
    parts: dict[str, Any] = {name: np.repeat(part, tiles, axis) for name, part in x._per_tile().items()}
    return dataclasses.replace(x, codes=np.repeat(x.codes, times, axis), **parts)


def result_of(product: Product, row: int, column: int, *, finished: bool = True) -> Array:
    """Compute element (row, column) of a product again, float32 (1,), with its bias and rounding if `finished`."""
    return _multiplied(product.adds, operands_of(product, row, column), finished)[0, :1]


def _multiplied(adds: AddsLike, operands: LinePair, finished: bool) -> Array:
    """Multiply `operands` with the arithmetic `adds`, float32; if `finished`, add the bias and round to `out_fmt`."""
    out_fmt, bias = (adds.out_fmt, operands.bias) if finished else (None, None)
    if adds.unit is None:
        sums = matmul(operands.a, operands.b, accumulate=adds.accumulator, schedule=adds.schedule)
        total = _float32(sums, adds.accumulator.result_format)
        total = total if bias is None else total + bias
        return total if out_fmt is None else quantize(total, out_fmt, overflow=output_overflow(out_fmt))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # matmul warns of the kernel that a library would choose
        product = matmul(
            operands.a, operands.b, accumulate=adds.unit, schedule=adds.schedule, promote=adds.promote, bias=bias,
            out_fmt=out_fmt, strict=False,
        )  # fmt: skip
    return _float32(product, out_fmt or FP32)


def _float32(codes: Array, fmt: Format) -> Array:
    """Return float32 values of `codes`: unsigned codes of `fmt`, or floats, which are only converted."""
    return np.asarray(decode(codes, fmt) if codes.dtype.kind == "u" else codes.astype(np.float32, copy=False))


class FirstTerm(NamedTuple):
    """The first term of K, with index k, after which the running sums of two products differ.

    before: the sum of terms 0 .. k - 1 of both products. first, second: each product's sum of terms 0 .. k.
    """

    k: int
    before: float
    first: float
    second: float


def first_term(first: Product, second: Product, row: int, column: int) -> FirstTerm | None:
    """Return the first k for which the sums of terms 0..k of one element differ, with both sums; None if all are equal.

    first, second: the products. row, column: the element. The terms after k are replaced by zeros. With more than 4096
    terms, sums are compared every 256 terms first, then term by term within the 256 in which they first differ, because
    comparing all sums takes time proportional to K squared.
    """
    both = [(product, operands_of(product, row, column)) for product in (first, second)]
    k = first.a.source.shape[1]
    # 0 * Inf is NaN: with Inf or NaN in b, each sum needs zeros in both operands
    finite = all((np.abs(product.b.values[:, column]) <= float(FP32.max)).all() for product in (first, second))
    step = AT_ONCE if finite else 1
    starts = range(0, k, step)
    if k > LONGEST:
        ends = [min(start + step, k) for start in starts]
        runs = (np.array(ends[i : i + step]) for i in range(0, len(ends), step))
        differ = np.concatenate([differing(*_sums(both, run)) for run in runs])
        starts = range(starts[int(differ.argmax())], k, step) if differ.any() else range(0)
    for start in starts:
        stops = np.arange(start, min(start + step, k)) + 1
        x, y = _sums(both, stops)
        places = np.flatnonzero(differing(x, y))
        if places.size:
            at = int(places[0])
            before = x[at - 1] if at else _sums(both, np.array([start]))[0][0]
            return FirstTerm(start + at, float(before), float(x[at]), float(y[at]))
    return None


def _sums(both: list[tuple[Product, LinePair]], stops: Array) -> tuple[Array, Array]:
    """Return, for each pair in `both`, its sums of terms 0 .. stop - 1 for the ascending `stops`: float32 arrays."""

    def cut(operands: LinePair) -> LinePair:
        return operands._replace(a=_cut_rows(operands.a, stops), b=_cut_columns(operands.b, stops[-1]))

    x, y = (_multiplied(product.adds, cut(operands), False)[:, 0] for product, operands in both)
    return x, y


def _cut_rows(x: Any, stops: Array) -> Any:
    """Return row x, (1, K) codes or a Scaled, repeated as (len(stops), K); row i is 0 from term stops[i] of K on."""
    codes = x.codes if isinstance(x, Scaled) else x
    kept = np.where(np.arange(codes.shape[1]) < stops[:, None], codes, codes.dtype.type(0))
    return dataclasses.replace(repeated(x, 0, len(stops)), codes=kept) if isinstance(x, Scaled) else kept


def _cut_columns(x: Any, stop: int) -> Any:
    """Return a copy of the columns x, codes (K, n) or a Scaled, with zeros from the term `stop` of K on."""
    codes = (x.codes if isinstance(x, Scaled) else x).copy()
    codes[stop:] = 0
    return dataclasses.replace(x, codes=codes) if isinstance(x, Scaled) else codes


def why(first: Product, second: Product, row: int, column: int, names: tuple[str, str]) -> tuple[Reason, str]:
    """Return (cause, explanation) for a difference of two products, with equal operands, at the element (row, column).

    The cause is "output" if sums are equal but rounded to unlike formats, else "arithmetic". names: names of the runs.
    """
    sentences = [f"Both read the same numbers. {adds_sentence(first, second, names)}"]
    pairs = ((first, names[0]), (second, names[1]))
    strays = [line for product, name in pairs for line in _stray_sentences(product, row, column, name)]
    sentences += strays
    if first.is_emulated and second.is_emulated:
        sums = [result_of(product, row, column, finished=False) for product, _ in pairs]
        if not strays and not differing(*sums).any():
            rounded = f"{_rounding_clause(first, names[0])}, {_rounding_clause(second, names[1])}"
            return "output", "\n".join([*sentences, f"Both sums are {float(sums[0][0])!r}; {rounded}."])
        sentences += _tree_sentences(first, second, names)
        term = first_term(first, second, row, column)
        if term is not None:
            before = f"The sums of terms 0..{term.k - 1} are equal, {term.before!r}; with" if term.k else "With"
            sentences.append(f"{before} term {term.k} {names[0]} has {term.first!r} and {names[1]} {term.second!r}.")
        sentences.append(_sums_sentence(first, column, list(zip(names, sums, strict=True))))
        return "arithmetic", "\n".join(sentences)
    if not first.is_emulated and not second.is_emulated and first.adds.out_fmt != second.adds.out_fmt:
        sentences.append(f"{_rounding_clause(first, names[0])}, {_rounding_clause(second, names[1])}.")
        return "output", "\n".join(sentences)
    sentences += [
        f"An instruction of {name} adds {unit.terms} products, {arithmetic_of(unit).words}."
        for product, name in pairs if (unit := product.adds.unit) is not None
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        products = first.a.values[row].astype(np.float64) * first.b.values[:, column].astype(np.float64)
        exact = math.fsum(products) if np.isfinite(products).all() else float(products.sum())
    known = [(name, result_of(product, row, column, finished=False)) for product, name in pairs if product.is_emulated]
    sentences.append(_sums_sentence(first, column, known, exact))
    return "arithmetic", "\n".join(sentences)


def _sums_sentence(product: Product, column: int, sums: Sequence[tuple[str, Array]], exact: float | None = None) -> str:
    """Return a sentence that lists the sums of one element of a product, and, with a bias, the sums plus the bias.

    column: that of the element. sums: (name of a run, its sum (1,)). exact: the sum in float64; None leaves it out.
    """
    parts = [f"{name}'s sum is {float(total[0])!r}" for name, total in sums]
    values = [float(total[0]) for _, total in sums]
    if exact is not None:
        parts.append(f"in float64 it is {exact:.9g}")
        values.append(exact)
    text = " and ".join(parts)
    if product.bias is not None:
        bias = float(product.bias[column])
        makes = "that makes" if len(values) == 1 else "these make"
        text += f"; with the bias {bias!r} {makes} {' and '.join(f'{value + bias:.9g}' for value in values)}"
    return f"{text[0] if sums else text[0].upper()}{text[1:]}."


def adds_sentence(first: Product, second: Product, names: tuple[str, str]) -> str:
    """Return a sentence on the unit, accumulator or library that adds each of two products.

    names: names of the two runs.
    """
    return capitalized(f"{_adds_clause(first, names[0])}; {_adds_clause(second, names[1])}.")


def _adds_clause(product: Product, name: str) -> str:
    """Return a clause that names what adds the product in the run `name`: a unit, an accumulator or torch."""
    adds = product.adds
    place = f" {product.place}" if product.place else ""
    if not product.is_emulated:
        return f"{name} multiplies by torch in {product.dtype or product.result.dtype}{place}, in an order of its own"
    schedule = schedule_of(product)
    how = "" if schedule is None else " in one chain" if schedule == FLAT else f" by {schedule}"
    by = f"by {adds.accumulator!r}" if adds.unit is None else f"on {adds.unit.name}"
    return f"{name} adds {by}{how}{place}"


def _stray_sentences(product: Product, row: int, column: int, name: str) -> list[str]:
    """Return [a sentence] if element (row, column), computed again, is not the one that the run `name` had, else []."""
    got = product.result[row, column].astype(np.float32).reshape(1)
    if not product.is_emulated or not differing(alone := result_of(product, row, column), got).any():
        return []
    return [f"{name}'s result, {float(got[0])!r}, is not what the emulator gives for it, {float(alone[0])!r}."]


def _rounding_clause(product: Product, name: str) -> str:
    """Return a clause that names the format to which the run `name` rounds a product's sums, after adding any bias."""
    fmt = product.adds.out_fmt
    rounded = "keeps it" if fmt is None else f"rounds it to {fmt}"
    return f"{name} {rounded}" if product.bias is None else f"{name} adds the bias and {rounded}"


def schedule_of(product: Product) -> Schedule | None:
    """Return the recorded order in which a product's matrix unit or accumulator adds along K (`adds.schedule`).

    If none was recorded, an accumulator has its own order, and the result is None. With a unit, a new chain begins
    every `adds.promote` terms; without promotion, at each block of scales.
    """
    if product.adds.schedule is not None or product.adds.unit is None:
        return product.adds.schedule
    blocks = [
        x.encoded.scaling.block[along] for x, along in ((product.a, 1), (product.b, 0))
        if isinstance(x.encoded, Scaled) and product.adds.unit.scale is None and x.encoded.scaling.block[along] > 0
    ]  # fmt: skip
    interval = product.adds.promote or min(blocks, default=0)
    if not interval:
        return FLAT
    return Schedule(f"promotion every {interval} terms", sums=Chain(interval), block_scaled=bool(blocks))


def tree_of(product: Product) -> Tree | None:
    """Return the tree of additions of an element of `product`; None if torch multiplied, or for over 2**20 nodes."""
    unit, schedule = product.adds.unit, schedule_of(product)
    how: Schedule | Accumulator | None = product.adds.accumulator if schedule is None else schedule
    if unit is None and schedule is not None:
        chained = product.adds.accumulator == FusedMultiplyAdd(FP32)
        how = dataclasses.replace(schedule, operands="fp32") if chained else None
    if how is None:
        return None
    try:
        return tree(how, product.a.source.shape[1], n=product.result.shape[1], accumulate=unit)
    except ValueError:
        return None  # more parts than a tree can have


def _tree_sentences(first: Product, second: Product, names: tuple[str, str]) -> list[str]:
    """Return sentences on how two products' trees of additions differ, [] if one is unknown; names: of both runs."""
    x, y = tree_of(first), tree_of(second)
    if x is None or y is None:
        return []  # the sentence on the first different term is enough
    comparison = x.compare(y, names)
    if not comparison.equal:
        return [f"Their trees differ: {comparison}"]
    how, unit, (m, k) = schedule_of(first), first.adds.unit, first.a.source.shape
    if (how, unit, first.adds.accumulator) != (schedule_of(second), second.adds.unit, second.adds.accumulator):
        return ["Both sums have the same tree, so they differ in how scales are multiplied in, or in the machine."]
    other_kernels = [] if unit is None or how is None else remarks(how, unit, m, first.result.shape[1], k)
    return ["Both name the same sum, so one of the machines adds otherwise.", *other_kernels]
