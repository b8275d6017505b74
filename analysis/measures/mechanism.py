"""Why one element of two products differs: both sums once more, of that row and column alone and term by term."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, quantize
from fpsim.formats.named import FP32, Format
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.scaling.scaled import Scaled
from fpsim.schedules.schedule import FLAT, Chain, Schedule
from fpsim.schedules.trees.parts import arithmetic_of
from fpsim.schedules.trees.tree import Tree, tree
from fpsim.sums.accumulators import Accumulator

Reason = Literal["arithmetic", "output"]
AT_ONCE = 256  # sums of the first terms that are computed in one product
LONGEST = 4096  # terms of which every sum is computed


class OperandLike(Protocol):
    """What is read of an operand, such as `fpsim.torch.products.CastOperand`."""

    @property
    def source(self) -> Array:
        """What was cast, (rows, columns), floats."""

    @property
    def encoded(self) -> Any:
        """A Scaled, codes of `fmt`, or the source itself."""

    @property
    def fmt(self) -> Format | None:
        """Of codes; None for the others."""

    @property
    def values(self) -> Array:
        """What was multiplied, as float32 or float64."""


class AddsLike(Protocol):
    """How a product is added, such as `fpsim.torch.plan.Adds`; torch multiplies where there is neither of the first."""

    @property
    def unit(self) -> MatrixUnit | None:
        """A matrix unit."""

    @property
    def accumulator(self) -> Any:
        """An accumulator."""

    @property
    def schedule(self) -> Schedule | None:
        """Of the unit."""

    @property
    def promote(self) -> int | None:
        """Of the unit."""

    @property
    def out_fmt(self) -> Format | None:
        """What the result is rounded to, None for the sums' own."""


class Product(NamedTuple):
    """One matrix product as it was computed.

    Attributes:
      layer, product: what it belongs to, such as "blocks.0.mlp.down" and "fprop".
      a, b: the operands, (M, K) and (K, N).
      adds: what added it.
      result: (M, N) float32 or float64.
      bias: (N,), None for none.
      operands: what a and b are called.
      place: what computed it: "" for this processor, else in words.
      dtype: what torch multiplied, where it did; "" for the dtype of the result.
    """

    layer: str
    product: str
    a: OperandLike
    b: OperandLike
    adds: AddsLike
    result: Array
    bias: Array | None = None
    operands: tuple[str, str] = ("a", "b")
    place: str = ""
    dtype: str = ""

    @property
    def is_emulated(self) -> bool:
        """Whether its arithmetic is known here; torch adds in an order of its own."""
        return self.adds.unit is not None or self.adds.accumulator is not None


class LinePair(NamedTuple):
    """A row of a and a column of b, twice where b has several: some kernels add otherwise for one column."""

    a: Any
    b: Any
    bias: Array | None


def differing(x: Array, y: Array) -> Any:
    """Where the bits of two arrays of floats of one shape differ; NaN equals NaN.

    Example:
      >>> from fpsim.analysis.measures.mechanism import differing
      >>> nan = np.float32("nan")
      >>> differing(np.float32([0.0, 1.0, nan]), np.float32([-0.0, 1.0, -nan])).tolist()
      [True, False, False]
    """
    if x.dtype != y.dtype:
        x, y = x.astype(np.float64), y.astype(np.float64)
    unequal = x.view(f"u{x.itemsize}") != y.view(f"u{y.itemsize}")
    if unequal.any():
        unequal &= ~(np.isnan(x) & np.isnan(y))
    return unequal


def same_bits(x: Array, y: Array) -> bool:
    """Whether two arrays of floats have one shape and the same bits."""
    return x.shape == y.shape and not differing(x, y).any()


# ---- one element alone


def lines(of: Product, row: int, column: int) -> LinePair:
    """What one element of a product is made of."""
    unit, width = of.adds.unit, min(of.result.shape[1], 2)
    bias = None if of.bias is None else np.repeat(of.bias[column : column + 1].astype(np.float32), width)
    return LinePair(_line(of.a, row, 0, 1, unit), _line(of.b, column, 1, width, unit), bias)


def _line(x: OperandLike, index: int, axis: int, times: int, unit: MatrixUnit | None) -> Any:
    """A row (axis 0) or column (axis 1) of an operand as the unit takes it, so many times."""
    if unit is None:
        return np.repeat(x.values.take([index], axis).astype(np.float32), times, axis)
    if not isinstance(x.encoded, Scaled):
        carrier = (unit.a if axis == 0 else unit.b).carrier
        read = x.encoded if x.fmt in (None, carrier) else x.values.astype(np.float32)  # TF32
        return np.repeat(read.take([index], axis), times, axis)
    block = x.encoded.scaling.block[axis]
    tile = 0 if block < 0 else index // block
    parts = {name: getattr(x.encoded, name) for name in ("codes", "scales", "scale_codes", "zero_points")}
    parts = {name: part.take([index if name == "codes" else tile], axis) for name, part in parts.items()
             if part is not None}  # fmt: skip
    scaling = x.encoded.scaling
    if unit.scale is not None:
        scaling = scaling.replace(block=(1, scaling.block[1]) if axis == 0 else (scaling.block[0], 1))
        room = [(0, 0), (0, 0)]
        room[1 - axis] = (0, -parts["codes"].shape[1 - axis] % unit.block)
        parts["codes"] = np.pad(parts["codes"], room)  # zeros fill the last block, as in kernels
    return repeated(dataclasses.replace(x.encoded, scaling=scaling, **parts), axis, times)


def repeated(x: Any, axis: int, times: int) -> Any:
    """A line so many times."""
    if not isinstance(x, Scaled):
        return np.repeat(x, times, axis)
    block = x.scaling.block[axis]
    tiles = 1 if block < 0 else -(-times // block)
    parts = {name: getattr(x, name) for name in ("scales", "scale_codes", "zero_points")}
    parts = {name: np.repeat(part, tiles, axis) for name, part in parts.items() if part is not None}
    return dataclasses.replace(x, codes=np.repeat(x.codes, times, axis), **parts)


def result_of(of: Product, row: int, column: int, *, whole: bool = True) -> Array:
    """One element of a product alone, (1,), with its bias and rounded to its format; or, if not whole, its sum."""
    found = _multiplied(of.adds, lines(of, row, column), whole)
    return found[0, :1]


def _multiplied(adds: AddsLike, of: LinePair, whole: bool) -> Array:
    """A product as a layer has it, float32; without bias and last rounding unless it is to be whole."""
    out_fmt, bias = (adds.out_fmt, of.bias) if whole else (None, None)
    if adds.unit is None:
        total = _float32(matmul(of.a, of.b, accumulate=adds.accumulator), adds.accumulator.result_format)
        total = total if bias is None else total + bias
        return total if out_fmt is None else quantize(total, out_fmt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # which kernel a library takes for one row
        found = matmul(
            of.a, of.b, accumulate=adds.unit, schedule=adds.schedule, promote=adds.promote, bias=bias,
            out_fmt=out_fmt, strict=False,
        )  # fmt: skip
    return _float32(found, out_fmt or FP32)


def _float32(found: Array, fmt: Format) -> Array:
    if found.dtype.kind == "u":
        return np.asarray(decode(found, fmt))
    return np.asarray(found.astype(np.float32, copy=False))


class FirstTerm(NamedTuple):
    """Where two sums part: the term of K with which they do, and both before and after it."""

    k: int
    before: float
    first: float
    second: float


def first_term(first: Product, second: Product, row: int, column: int) -> FirstTerm | None:
    """The first k for which the sums of terms 0..k differ, later terms being zeros; None where all are equal.

    Of more than 4096 terms it is the first in the first run of 256 behind which they differ: every run is looked at in
    a time that grows with the square of K.
    """
    both = [(of, lines(of, row, column)) for of in (first, second)]
    k = first.a.source.shape[1]
    # 0 * Inf is NaN: without finite columns each sum has zeros of its own in both operands
    finite = all(np.isfinite(of.b.source[:, column]).all() for of in (first, second))
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
        found = np.flatnonzero(differing(x, y))
        if found.size:
            at = int(found[0])
            before = x[at - 1] if at else _sums(both, np.array([start]))[0][0]
            return FirstTerm(start + at, float(before), float(x[at]), float(y[at]))
    return None


def _sums(both: list[tuple[Product, LinePair]], stops: Array) -> tuple[Array, Array]:
    """The sums of an element's terms in front of each stop, in ascending order, by both products."""
    x, y = (
        _multiplied(of.adds, each._replace(a=_cut_rows(each.a, stops), b=_cut_columns(each.b, stops[-1])), False)[:, 0]
        for of, each in both
    )
    return x, y


def _cut_rows(x: Any, stops: Array) -> Any:
    """A row once for each stop, zeros from there on."""
    codes = x.codes if isinstance(x, Scaled) else x
    kept = np.where(np.arange(codes.shape[1]) < stops[:, None], codes, codes.dtype.type(0))
    return dataclasses.replace(repeated(x, 0, len(stops)), codes=kept) if isinstance(x, Scaled) else kept


def _cut_columns(x: Any, stop: int) -> Any:
    """Columns with zeros from a stop on."""
    codes = (x.codes if isinstance(x, Scaled) else x).copy()
    codes[stop:] = 0
    return dataclasses.replace(x, codes=codes) if isinstance(x, Scaled) else codes


# ---- in words


def why(first: Product, second: Product, row: int, column: int, names: tuple[str, str]) -> tuple[Reason, str]:
    """The cause, "arithmetic" or "output", of an element that differs though operands do not, and its sentences."""
    said = [f"Both read the same numbers. {_name(first, names[0])}; {_name(second, names[1])}."]
    pairs = ((first, names[0]), (second, names[1]))
    strays = [line for of, name in pairs for line in _stray(of, row, column, name)]
    said += strays
    if first.is_emulated and second.is_emulated:
        sums = [result_of(of, row, column, whole=False) for of, _ in pairs]
        if not strays and not differing(*sums).any():
            rounded = f"{_rounded(first, names[0])}, {_rounded(second, names[1])}"
            return "output", "\n".join([*said, f"Both sums are {float(sums[0][0])!r}; {rounded}."])
        said += _trees(first, second, names)
        found = first_term(first, second, row, column)
        if found is not None:
            said.append(_parting(found, names))
        said.append(_whole(first, row, column, tuple(zip(names, sums, strict=True))))
        return "arithmetic", "\n".join(said)
    if not first.is_emulated and not second.is_emulated and first.adds.out_fmt != second.adds.out_fmt:
        return "output", "\n".join([*said, f"{_rounded(first, names[0])}, {_rounded(second, names[1])}."])
    said += [_arithmetic(of, name) for of, name in pairs if of.is_emulated and of.adds.unit is not None]
    with np.errstate(all="ignore"):
        exact = math.fsum(first.a.values[row].astype(np.float64) * first.b.values[:, column].astype(np.float64))
    known = [(name, result_of(of, row, column, whole=False)) for of, name in pairs if of.is_emulated]
    said.append(_whole(first, row, column, known, exact))
    return "arithmetic", "\n".join(said)


def _whole(
    of: Product, row: int, column: int, sums: Sequence[tuple[str, Array]], exact: float | None = None
) -> str:  # fmt: skip
    """Return the sentence that has the sums of an element, its bias and what both come to.

    Args:
      sums: the name of each run whose sum is known, and that sum.
      exact: the sum in float64, None where both are known.
    """
    bias = 0.0 if of.bias is None else float(of.bias[column])
    parts = [f"{name}'s sum is {float(total[0])!r}" for name, total in sums]
    if exact is not None:
        parts.append(f"in float64 it is {exact:.9g}")
    said = " and ".join(parts)
    if of.bias is not None:
        each = [f"{float(total[0]) + bias:.9g}" for _, total in sums] + (
            [] if exact is None else [f"{exact + bias:.9g}"]
        )
        said += f"; with the bias {bias!r} {'that makes' if len(each) == 1 else 'these make'} {' and '.join(each)}"
    return f"{said[0].upper() if exact is not None and not sums else said[0]}{said[1:]}."


def _name(of: Product, name: str) -> str:
    """What adds a product, in words."""
    adds = of.adds
    place = f" {of.place}" if of.place else ""
    if not of.is_emulated:
        return f"{name} multiplies by torch in {of.dtype or of.result.dtype}{place}, in an order of its own"
    if adds.unit is None:
        return f"{name} adds by {adds.accumulator!r}{place}"
    schedule = schedule_of(of)
    how = "in one chain" if schedule == FLAT else f"by {schedule}"
    return f"{name} adds on {adds.unit.name} {how}{place}"


def _arithmetic(of: Product, name: str) -> str:
    """Return what a step of a product's unit keeps, as a sentence."""
    unit = of.adds.unit
    assert unit is not None
    return f"An instruction of {name} adds {unit.terms} products, {arithmetic_of(unit).words}."


def _stray(of: Product, row: int, column: int, name: str) -> list[str]:
    """A sentence where a result is not what its arithmetic gives for that row and column alone."""
    if not of.is_emulated:
        return []
    alone = result_of(of, row, column)
    got = of.result[row, column].astype(np.float32).reshape(1)
    if not differing(alone, got).any():
        return []
    return [f"{name}'s result, {float(got[0])!r}, is not what the emulator gives for it, {float(alone[0])!r}."]


def _rounded(of: Product, name: str) -> str:
    fmt = of.adds.out_fmt
    rounded = "keeps it" if fmt is None else f"rounds it to {fmt}"
    return f"{name} {rounded}" if of.bias is None else f"{name} adds the bias and {rounded}"


def schedule_of(of: Product) -> Schedule:
    """The schedule of a unit's product: its own, or the promotion that is asked for or that scales along K need."""
    if of.adds.schedule is not None:
        return of.adds.schedule
    assert of.adds.unit is not None
    blocks = [
        x.encoded.scaling.block[along] for x, along in ((of.a, 1), (of.b, 0))
        if isinstance(x.encoded, Scaled) and of.adds.unit.scale is None and x.encoded.scaling.block[along] > 0
    ]  # fmt: skip
    interval = of.adds.promote or min(blocks, default=0)
    if not interval:
        return FLAT
    return Schedule(f"promotion every {interval} terms", sums=Chain(interval), block_scaled=bool(blocks))


def tree_of(of: Product) -> Tree | None:
    """By which additions an element of a product was made; None where torch adds, or where a tree has no room."""
    how: Schedule | Accumulator = of.adds.accumulator
    unit = of.adds.unit
    if unit is not None:
        how = schedule_of(of)
    elif how is None:
        return None
    try:
        return tree(how, of.a.source.shape[1], n=of.result.shape[1], accumulate=unit)
    except ValueError:
        return None  # more parts than a tree has


def _trees(first: Product, second: Product, names: tuple[str, str]) -> list[str]:
    """Where the trees of both sums first differ."""
    x, y = tree_of(first), tree_of(second)
    if x is None or y is None:
        return []  # the first term says enough
    compared = x.compare(y, names)
    if compared.equal:
        return ["Both sums have the same tree, so what differs is how scales join them, or the machine."]
    return [f"Their trees differ: {compared}"]


def _parting(found: FirstTerm, names: tuple[str, str]) -> str:
    """Where the sums part, in words."""
    before = f"The sums of terms 0..{found.k - 1} are equal, {found.before!r}; with" if found.k else "With"
    return f"{before} term {found.k} {names[0]} has {found.first!r} and {names[1]} {found.second!r}."
