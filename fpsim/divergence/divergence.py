"""The first difference between two runs of a model, given as records of products: layer, product, element, cause."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np

from fpsim.arrays import Array, differing, format_of, same_bits
from fpsim.casts.cast import encode
from fpsim.casts.explain import explain
from fpsim.display.optional import DataFrame, frame
from fpsim.display.wording import capitalized
from fpsim.divergence.mechanism import tree_of, why
from fpsim.divergence.product import OperandLike, Product
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import FP32, FP64
from fpsim.scaling.scaled import Scaled
from fpsim.schedules.trees.tree import Tree

BETWEEN = (
    "what makes this operand differs, such as norms, softmax, activations, the loss, what is stored for the backward "
    "pass, or a layer that torch multiplies"
)
Cause = Literal["operands", "cast", "arithmetic", "output", "order", "update", "none"]


@dataclass(frozen=True)
class Divergence:
    """The first difference between two runs of a model.

    Attributes:
      step: the training step, counted from 0; None if the runs have no steps.
      layer: name of the layer, weight or module that differs, such as "blocks.0.mlp.down".
      product: "fprop", "dgrad" or "wgrad" of a layer, "update" of a weight, or "output" of a module.
      operand: the operand that differs, such as "input"; "" if the result differs.
      element: (row, column) of the first element that differs; None for the cause "order".
      bits: its bit patterns in both runs, codes of `fmt`.
      values: its values in both runs.
      fmt: the format of these codes; None for the cause "order".
      count, size: number of elements that differ, and number of all elements; both 0 for the cause "order".
      largest: the largest |x - y| / max(|x|, |y|) over all elements x and y of both runs.
      cause: "operands" (operands differ before their casts), "cast" (equal operands became other codes or scales),
        "arithmetic" (equal codes, unequal sums), "output" (equal sums, rounded differently; or a module's output),
        "order" (unlike products), "update" (unequal weights after equal products), or "none" (no bit differs).
      explanation: a few lines of text on the difference and its cause.
      names: names of the runs.
      trees: each run's tree of additions if results differ; None if torch multiplied, or for over 2**20 nodes.
    """

    step: int | None
    layer: str
    product: str
    operand: str
    element: tuple[int, int] | None
    bits: tuple[int, int]
    values: tuple[float, float]
    fmt: Element | None = field(repr=False)
    count: int
    size: int
    largest: float
    cause: Cause
    explanation: str = field(repr=False)
    names: tuple[str, str] = ("first", "second")
    trees: tuple[Tree | None, Tree | None] = field(default=(None, None), repr=False)

    def __str__(self) -> str:
        return self.explanation

    def to_frame(self) -> DataFrame:
        """Return a pandas DataFrame of one row, with the attributes of this difference as columns."""
        row, column = self.element or (None, None)
        return frame([{
            "step": self.step, "layer": self.layer, "product": self.product, "operand": self.operand, "row": row,
            "column": column, "first": self.values[0], "second": self.values[1], "first_bits": self.bits[0],
            "second_bits": self.bits[1], "format": str(self.fmt), "count": self.count, "size": self.size,
            "largest": self.largest, "cause": self.cause,
        }])  # fmt: skip

    def _repr_html_(self) -> str:
        """Return the explanation as HTML, which notebooks display, with a line break between its lines."""
        return "<br>".join(map(html.escape, self.explanation.splitlines()))


def first_divergence(
    first: Iterable[Product], second: Iterable[Product], names: tuple[str, str] = ("first", "second"), *,
    step: int | None = 0, after: str = "",
) -> Divergence | None:  # fmt: skip
    """Return the first difference between two sequences of products, with its cause; None if all bits are equal.

    NaN equals NaN; -0.0 differs from 0.0. For each product, the operands before their casts are compared first, then
    their codes and scales (or values, if formats or scalings differ), then the results. Everything before the
    difference that is returned is therefore equal. If one sequence is longer, the difference has the cause "order".

    Args:
      first, second: the products of both runs, in the order in which they were computed.
      names: names of the two runs in the explanation.
      step: the training step; None if the runs have no steps.
      after: for the explanation, name of the last equal product or tensor before the two sequences; "" for none.

    Example:
      >>> from types import SimpleNamespace as Of
      >>> from fpsim.divergence.divergence import first_divergence
      >>> from fpsim.divergence.product import Product
      >>> x = fp.encode(np.full((1, 4096), 0.3, np.float32), fp.E4M3)
      >>> a, b = (Of(source=v, values=v, encoded=c, fmt=fp.E4M3) for c in (x, x.T) for v in [fp.decode(c, fp.E4M3)])
      >>> def computed(unit):
      ...     adds = Of(unit=fp.unit(unit), accumulator=None, schedule=None, promote=None, out_fmt=None)
      ...     return [Product("up", "fprop", a, b, adds, fp.matmul(x, x.T, accumulate=unit))]
      >>> hopper, blackwell = computed("hopper_e4m3_f32"), computed("blackwell_e4m3_f32")
      >>> print(first_divergence(hopper, blackwell, ("Hopper", "Blackwell")))
      step 0, up, fprop: element (0, 0) of the result is 0x43C15000 (386.625) on Hopper and 0x43C80000 (400.0) on
      Blackwell, in FP32; 1 of 1 elements differ.
      Both read the same numbers. Hopper adds on hopper_e4m3_f32 in one chain; Blackwell adds on blackwell_e4m3_f32 in
      one chain.
      Their trees differ: terms 0..31: Hopper keeps 13 fraction bits, Blackwell keeps 25 fraction bits.
      The sums of terms 0..655 are equal, 64.0625; with term 656 Hopper has 64.15625 and Blackwell 64.16015625.
      Hopper's sum is 386.625 and Blackwell's sum is 400.0.
      >>> first_divergence(hopper, hopper) is None
      True
    """
    for x, y in zip_longest(first, second):
        divergence = _of_order(x, y, names, step) or _of_pair(x, y, names, step, after)
        if divergence is not None:
            return divergence
        after = f"{x.layer}, {x.product}"
    return None


def equal(x: Product, y: Product) -> bool:
    """Return whether the products x and y are equal bit for bit: names, operands, bias and result."""
    return (
        _of_order(x, y, ("", ""), 0) is None
        and all(_same_operand(p, q) for p, q in ((x.a, y.a), (x.b, y.b)))
        and (x.bias is None) == (y.bias is None)
        and (x.bias is None or y.bias is None or same_bits(x.bias, y.bias))
        and same_bits(x.result, y.result)
    )


def weight_divergence(
    name: str, x: Array, y: Array, names: tuple[str, str] = ("first", "second"), *, step: int = 0
) -> Divergence | None:
    """Return the difference of a weight between two runs whose products are equal; None if its bits are equal, too.

    name: name of the weight. x, y: its values in both runs, float arrays of one shape. names: names of the runs. step:
    the training step.

    Example:
      >>> from fpsim.divergence.divergence import weight_divergence
      >>> print(weight_divergence("up.weight", np.float32([[1.0, 0.5]]), np.float32([[1.0, -0.5]])))
      step 0, up.weight, update: element (0, 1) of the weight is 0x3F000000 (0.5) on first and 0xBF000000 (-0.5) on
      second, in FP32; 1 of 2 elements differ.
      Every product of this step was equal, so gradients of other weights, their reduction, clipping or the optimizer
      differ.
    """
    if same_bits(x, y):
        return None
    p, q = (weight.reshape(-1, weight.shape[-1]) if weight.ndim else weight.reshape(1, 1) for weight in (x, y))
    place = _Place(step, name, "update", "", names)
    return _first(place, p, q, "update", lambda *_: (
        "Every product of this step was equal, so gradients of other weights, their reduction, clipping or the "
        "optimizer differ."
    ))  # fmt: skip


def matrix_divergence(
    name: str, x: Array, y: Array, names: tuple[str, str] = ("first", "second"), because: str = "", *, fmt: Any = None
) -> Divergence:  # fmt: skip
    """Return the difference between two float matrices, x and y, of one shape that a module returned in two runs.

    Args:
      name: name of the module.
      x, y: the matrices, float arrays of values with two axes, which must differ.
      names: names of the runs in the explanation.
      because: a sentence at the end of the explanation.
      fmt: the format as whose codes the explanation shows the elements; None for that of their dtype.

    Example:
      >>> from fpsim.divergence.divergence import matrix_divergence
      >>> x, y = np.float32([[1.0, 0.5]]), np.float32([[1.0, -0.5]])
      >>> print(matrix_divergence("up", x, y, because="It is the first."))
      up, output: element (0, 1) of the output is 0x3F000000 (0.5) on first and 0xBF000000 (-0.5) on second, in FP32; 1
      of 2 elements differ.
      It is the first.
    """
    return _first(_Place(None, name, "output", "", names), x, y, "output", lambda *_: because, codes=fmt)


class _Place(NamedTuple):
    """The place of a difference: step (or None), layer, product and operand as in `Divergence`; names of both runs."""

    step: int | None
    layer: str
    product: str
    operand: str
    names: tuple[str, str]

    def __str__(self) -> str:
        return f"{_of_step(self.step, ', ')}{self.layer}, {self.product}"

    @property
    def array(self) -> str:
        """Name of the array that differs, such as "weight" or "result"."""
        return self.operand or {"update": "weight", "output": "output"}.get(self.product, "result")


def _of_step(step: int | None, then: str) -> str:
    """Return the step and the separator `then` as text, such as "step 3: " for (3, ": "); "" if the step is None."""
    return "" if step is None else f"step {step}{then}"


Why = Callable[[int, int], str]


def _first(place: _Place, x: Array, y: Array, cause: Cause, why: Why, *, codes: Any = None) -> Divergence:
    """Return the divergence at the first element in which two float matrices differ.

    place: layer, product, operand, names of runs. x, y: matrices of both runs. cause: as in `Divergence`. why: function
    (row, column) -> text on the cause. codes: format of the elements; None for that of their dtype, or FP32 or FP64 if
    the dtypes differ.
    """
    if codes is None and x.dtype == y.dtype:
        codes = format_of(x.dtype)
    if codes is None:  # NumPy promotes no two of float16, bfloat16 and the dtypes of FP8
        codes = FP64 if np.float64 in (x.dtype, y.dtype) else FP32
    differ = differing(x, y)
    row, column = (int(i) for i in np.argwhere(differ)[0])
    values = float(x[row, column]), float(y[row, column])
    bits = int(encode(np.float64(values[0]), codes)), int(encode(np.float64(values[1]), codes))
    count, digits = int(differ.sum()), -(-codes.bits // 4)
    shown = [
        f"0x{code:0{digits}X} ({value!r}) on {name}"
        for code, value, name in zip(bits, values, place.names, strict=True)
    ]
    text = (
        f"{place}: element {(row, column)} of the {place.array} is {shown[0]} and {shown[1]}, in {codes}; {count} of "
        f"{differ.size} elements differ.\n{why(row, column)}"
    )
    return Divergence(
        place.step, place.layer, place.product, place.operand, (row, column), bits, values, codes, count, differ.size,
        _largest(x, y), cause, text, place.names,
    )  # fmt: skip


def _largest(x: Array, y: Array) -> float:
    """Return the largest relative difference |x - y| / max(|x|, |y|) over all elements of two arrays.

    It is Inf if x and y differ in an element in which one of them is not finite; equal elements, and two NaNs, give 0.
    """
    with np.errstate(all="ignore"):
        p, q = x.astype(np.float64), y.astype(np.float64)
        most = np.maximum(np.abs(p), np.abs(q))
        apart = np.where(np.isfinite(p - q), np.abs(p - q) / most, np.abs(p / most - q / most))
        same = (p == q) | (np.isnan(p) & np.isnan(q))
        apart[same] = 0.0
        apart[~same & ~(np.isfinite(p) & np.isfinite(q))] = np.inf
    return float(apart.max(initial=0.0))


def _of_order(x: Product | None, y: Product | None, names: tuple[str, str], step: int | None) -> Divergence | None:
    """Return a divergence of cause "order" if products x and y differ in name or shape, or one is None; else None.

    names: names of the runs. step: the training step; None if the runs have no steps.
    """
    descriptions = [_described(product) for product in (x, y)]
    if descriptions[0] == descriptions[1]:
        return None
    there = x or y
    assert there is not None
    text = f"{_of_step(step, ': ')}{names[0]} computes {descriptions[0]} where {names[1]} computes {descriptions[1]}."
    return Divergence(step, there.layer, there.product, "", None, (0, 0), (np.nan, np.nan), None, 0, 0, np.nan,
                      "order", text, names)  # fmt: skip


def _described(x: Product | None) -> str:
    """Return a product as text, such as "up, fprop of 4 x 8 x 16" (M x N x K); "no further one" for None."""
    if x is None:
        return "no further one"
    (m, k), n = x.a.source.shape, x.b.source.shape[1]
    return f"{x.layer}, {x.product} of {m} x {n} x {k}"


def _of_pair(x: Product, y: Product, names: tuple[str, str], step: int | None, after: str) -> Divergence | None:
    """Return the first difference between two products of one name and shape, or None if they are equal.

    x, y: the products. names: names of the runs. step: the training step; None if the runs have no steps. after: name
    of the last product or tensor before these, which was equal in both runs; "" if there is none.
    """
    operands = list(zip(x.operands, (x.a, x.b), (y.a, y.b), strict=True))
    for name, p, q in operands:
        if not same_bits(p.source, q.source):
            between = "the weights themselves differ" if name == "weight" and step is None else BETWEEN
            return _first(_Place(step, x.layer, x.product, name, names), p.source, q.source, "operands",
                          lambda *_, between=between: f"{_before(after)}: {between}.")  # fmt: skip
    for name, p, q in operands:
        if not _same_operand(p, q):
            return _of_cast(_Place(step, x.layer, x.product, name, names), p, q)
    if x.bias is not None and y.bias is not None and not same_bits(x.bias, y.bias):
        return _first(_Place(step, x.layer, x.product, "bias", names), x.bias[None], y.bias[None], "operands",
                      lambda *_: f"{_before(after)}: the bias differs.")  # fmt: skip
    if same_bits(x.result, y.result):
        return None
    row, column = (int(i) for i in np.argwhere(differing(x.result, y.result))[0])
    cause, text = why(x, y, row, column, names)
    shared = x.adds.out_fmt if x.adds.out_fmt == y.adds.out_fmt else None
    place = _Place(step, x.layer, x.product, "", names)
    divergence = _first(
        place, x.result, y.result, cause, lambda *_: "\n".join(map(capitalized, text.splitlines())), codes=shared
    )
    return replace(divergence, trees=(tree_of(x), tree_of(y)))


def _before(after: str) -> str:
    """Return "Everything up to fc1 was equal" if `after` is "fc1", or "It is the first product" if it is ""."""
    return f"Everything up to {after} was equal" if after else "It is the first product"


class _OperandCodes(NamedTuple):
    """An operand after its cast: its format, scaling, codes, scales and zero points, each None if it has none.

    codes: the codes, or the values if the operand was not cast.
    """

    fmt: Any
    scaling: Any
    codes: Array
    scales: Array | None
    zero_points: Array | None = None


def _cast_of(x: OperandLike) -> _OperandCodes:
    """Return the format, scaling, codes, scales and zero points of the operand x after its cast."""
    if isinstance(x.encoded, Scaled):
        of = x.encoded
        return _OperandCodes(of.fmt, of.scaling, of.codes, of.scales, of.zero_points)
    return _OperandCodes(x.fmt, None, x.encoded, None)


def _same_operand(x: OperandLike, y: OperandLike) -> bool:
    """Return whether two operands are equal bit for bit, both before and after their casts."""
    if not same_bits(x.source, y.source):
        return False
    p, q = _cast_of(x), _cast_of(y)
    have_scales = (p.fmt, p.scaling) == (q.fmt, q.scaling) and p.scales is not None and q.scales is not None
    return (not have_scales or same_bits(p.scales, q.scales)) and same_bits(x.values, y.values)  # type: ignore[arg-type]


def _of_cast(place: _Place, x: OperandLike, y: OperandLike) -> Divergence:
    """Return the divergence of two operands, x and y, that are equal before their casts but not after.

    It is at the first scale that differs. If scales are equal, or cannot be compared because formats or scalings
    differ, it is at the first value that differs. place: layer, product and operand.
    """
    p, q = _cast_of(x), _cast_of(y)
    one = (p.fmt, p.scaling) == (q.fmt, q.scaling)
    if one and p.scales is not None and q.scales is not None and not same_bits(p.scales, q.scales):
        scales_place = _Place(place.step, place.layer, place.product, f"{place.operand}'s scales", place.names)
        return _first(scales_place, p.scales, q.scales, "cast", lambda *_: (
            f"The {place.operand} is the same, and {p.scaling!r} gives it other scales, so they come from elsewhere, "
            "such as the amax of earlier steps."
        ))  # fmt: skip

    def words(row: int, column: int) -> str:
        value = x.source[row, column]
        lines = [f"The {place.operand} is the same, {float(value)!r}, and is cast otherwise."]
        return "\n".join([*lines, *(_cast_words(operand, value, row, column, name)
                                    for operand, name in zip((x, y), place.names, strict=True))])  # fmt: skip

    return _first(place, x.values, y.values, "cast", words)


def _cast_words(x: OperandLike, value: Any, row: int, column: int, name: str) -> str:
    """Return a sentence on how the run `name` cast `value`, which is element (row, column) of the operand x."""
    cast = _cast_of(x)
    if cast.fmt is None:
        return f"{name} does not cast it."
    result = float(x.values[row, column])
    text = f"{name} makes it {result!r} in {cast.fmt}"
    quotient = value
    if cast.scales is not None:
        tall, wide = (max(block, 0) for block in cast.scaling.block)
        tile = row // tall if tall else 0, column // wide if wide else 0
        scale, code = cast.scales[tile], int(cast.codes[row, column]) & ((1 << cast.fmt.bits) - 1)
        points = cast.zero_points if isinstance(cast.fmt, IntegerFormat) else None
        zero = "" if points is None else f" minus the zero point {int(points[tile])},"
        text += f" with {cast.scaling!r}, code 0x{code:02X}{zero} times the scale {float(scale)!r}"
        with np.errstate(all="ignore"):
            quotient = np.float32(value / scale)
    if isinstance(cast.fmt, Format):
        ways = [explain(np.float32(quotient), cast.fmt, overflow=overflow) for overflow in ("saturate", "nonfinite")]
        nearest = next((way for way in ways if way.code == int(cast.codes[row, column])), None)
        text += f", as nearest even does: {nearest.reason}" if nearest else ", which is not what nearest even gives"
    return f"{text}."
