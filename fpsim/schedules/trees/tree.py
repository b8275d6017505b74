"""A sum as a tree: the products and partial sums that each addition adds, and its rounding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

from fpsim.deprecation import renamed_arguments
from fpsim.errors import is_integer, require_integer, require_kind, shown
from fpsim.formats.named import FP32, Format, find_by_name, format_argument
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.catalogue import named_unit
from fpsim.matrix_units.matrix_unit import ELEMENTS, MatrixUnit, Rule
from fpsim.schedules.plan import Span, plan_of
from fpsim.schedules.regions import Regions, SegmentLanes
from fpsim.schedules.schedule import Lanes, Schedule
from fpsim.schedules.shaped import ShapedSchedule
from fpsim.schedules.trees.difference import Comparison, difference
from fpsim.schedules.trees.nodes import Node, StackOperation, TrackedNode, operations, rounded
from fpsim.schedules.trees.parts import (
    LaneOrder,
    by_accumulator,
    by_chains,
    by_lanes,
    lane_order,
    merged,
    refuse_many_parts,
)
from fpsim.schedules.trees.segment_lanes import by_segment_lanes
from fpsim.schedules.trees.written_order import FLOAT32_SUMS, written_root
from fpsim.schedules.written import no_schedule, schedules_meant
from fpsim.sums.accumulators import Accumulator

FormatLike = str | Format
Addends = Schedule | MatrixUnit | Accumulator | SegmentLanes | str | tuple[Any, ...]  # the argument `how` of `tree`
LARGEST_K = 1 << 63
# fp.FusedMultiplyAdd(fp.FP32) as a unit of one term, for the schedules whose operands are float32
F32 = ELEMENTS["f32"]
FLOAT32_CHAIN = MatrixUnit("fused_multiply_add", "", F32, F32, F32, Rule.EXACT, 1, evidence="hardware")


@dataclass(frozen=True)
class Tree:
    """The additions behind one output of a product.

    Products with equal trees have equal bits for the same operands without C (all NaNs count as equal). Products with
    different trees usually have different bits for some operands, but not for all.

    Args:
      k: number of terms of the product.
      root: the last node: a Sum, Round or ScaledSum.
      lost: ranges of K whose terms are left out of the sum.
      lane_order: the lanes (partial sums of threads) that the tree was made of, from which its sums are computed
        faster; None for other trees.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.schedules import tree
      >>> tree(fp.schedules.FLAT, 256) == tree("hopper_e4m3_f32", 256)
      True
      >>> print(tree(fp.schedules.cutlass_2xacc(128), 256).compare(tree(fp.schedules.FLAT, 256)))
      terms 128..255: x adds them up from +0 for a sum of their own, y adds them to the running sum.
    """

    k: int
    root: Node
    lost: tuple[Span, ...] = ()
    lane_order: LaneOrder | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        require_integer("k", self.k, 0)
        require_kind("root", self.root, get_args(Node), "a Sum, Round or Scaled, such as the root of another tree")
        if not isinstance(self.lost, tuple) or not all(isinstance(span, Span) for span in self.lost):
            raise TypeError(f"lost must be a tuple of spans of terms; got {shown(self.lost)}.")

    @property
    def fmt(self) -> Format:
        """Format of the result."""
        return self.root.fmt

    @property
    def depth(self) -> int:
        """Number of levels of nodes, from the root down to the products.

        Example:
          >>> import fpsim as fp
          >>> [fp.schedules.tree(fp.schedules.cutlass_2xacc(128), k).depth for k in (32, 128, 4096)]
          [2, 2, 3]
        """
        return self.root.depth

    def operations(self) -> Iterator[StackOperation]:
        """Return the program that computes the tree with a stack of running sums, in the order of the terms.

        Example:
          >>> import fpsim as fp
          >>> [operation.kind for operation in fp.schedules.tree(fp.FusedMultiplyAdd("fp32"), 2).operations()]
          ['begin', 'step', 'step']
        """
        return operations(self.root)

    def compare(self, other: Tree, names: tuple[str, str] = ("x", "y")) -> Comparison:
        """Return whether another tree is equal, or the first difference.

        Args:
          other: the tree to compare with.
          names: the names of the two trees in the sentence.

        Example:
          >>> import fpsim as fp
          >>> tree = fp.schedules.tree
          >>> print(tree("hopper_f16_f32", 64).compare(tree("blackwell_f16_f32", 64)))
          The trees are equal, and so are the bits before the epilogue.
          >>> hopper, blackwell = tree("hopper_e4m3_f32", 64), tree("blackwell_e4m3_f32", 64)
          >>> print(hopper.compare(blackwell, ("Hopper", "Blackwell")))
          terms 0..31: Hopper keeps 13 fraction bits, Blackwell keeps 25 fraction bits.
        """
        require_kind("other", other, Tree, "a tree of fp.schedules.tree")
        return difference(self, other, names)

    def __repr__(self) -> str:
        lost = f", {sum(span.terms for span in self.lost)} lost" if self.lost else ""
        return f"Tree(k={self.k}, {self.depth} levels{lost}, result {self.fmt})"


@renamed_arguments(out_format="out_fmt")
def tree(
    how: Addends, k: int | None = None, *, n: int | None = None,
    accumulate: MatrixUnit | Accumulator | str | None = None, out_fmt: FormatLike | None = None,
    scaled: bool | None = None,
) -> Tree:  # fmt: skip
    """Return the tree by which a schedule, a matrix unit, an accumulator or an order by hand adds K products.

    Args:
      how: a schedule, a unit or its name (one chain), an accumulator such as `fp.Sequential(fp.BF16)`, an
        `fp.schedules.SegmentLanes`, or an order as nested tuples of terms, such as ((0, 1), (2, 3)) or the `.tree` of a
        model that `fp.probe` made.
      k: number of terms; may be None only for an order as nested tuples, whose terms are then counted.
      n: number of columns of the product. It matters only for cuBLAS's family "dot", whose order is another for n = 1.
        None for any number but 1.
      accumulate: how the terms are added. For a schedule: a unit; None for that of its architecture ("hopper" if it has
        none) for its `operands` with float32 results, such as "hopper_e4m3_f32", or for float32 fused multiply-adds if
        its `operands` are "fp32". For an order: an accumulator or a unit; None for `fp.Pairwise(fp.FP32)`. With
        `fp.Sequential` and `fp.FusedMultiplyAdd` every chain starts at +0, with `fp.Pairwise` a sum starts at its first
        product. With a unit, the terms of a tuple are one instruction, and two sums are added in float32.
      out_fmt: the format to which the result is rounded, and partial sums where the schedule says so; None for none.
      scaled: whether partial sums are multiplied by block scales; None for yes if the schedule is for operands with
      block scales.

    Raises:
      ValueError: the unit is unknown; k is below 0, or so large that the tree would have more than 2**20 parts;
        `scaled` is True for a schedule without block scales; `accumulate` is passed for a unit, an accumulator or
        SegmentLanes; or an order lacks or repeats a term, or cannot be added by its accumulator.
      TypeError: `how` is not a schedule, unit, accumulator or order.

    Source: docs/schedules.md, docs/matrix-units.md, docs/accumulators.md.

    Example:
      >>> import fpsim as fp
      >>> fp.schedules.tree(fp.schedules.cublas("sm_90", split_k=9), 11528)
      Tree(k=11528, 3 levels, 8 lost, result FP32)
      >>> by_hand = fp.schedules.tree((((0, 1), 2), 3), accumulate=fp.FusedMultiplyAdd("fp32"))
      >>> by_hand == fp.schedules.tree(fp.FusedMultiplyAdd("fp32"), 4)
      True
    """
    fmt = None if out_fmt is None else format_argument("out_fmt", out_fmt)
    if isinstance(how, tuple):
        return _by_hand(how, k, accumulate, fmt, scaled)
    if isinstance(accumulate, Accumulator):
        raise TypeError(f"accumulate must be a matrix unit or its name for {shown(how)}; got {accumulate}.")
    if k is None or not is_integer(k) or k < 0:
        raise ValueError(f"k must be a number of terms, 0 or more; got {shown(k)}.")
    if k > LARGEST_K:
        raise ValueError(f"k must be at most 2**63; got 2**{int(k).bit_length() - 1} or more.")
    if accumulate is not None and isinstance(how, (str, MatrixUnit, Accumulator, SegmentLanes)):
        raise ValueError(f"accumulate is for schedules and orders by hand; got it for {shown(how)}. Leave it out.")
    if isinstance(how, (str, MatrixUnit)):
        return tree(Schedule("one chain"), k, accumulate=_unit_named(how), out_fmt=fmt)
    if isinstance(how, Accumulator):
        return Tree(k, rounded(by_accumulator(how, k), fmt).node)
    if isinstance(how, SegmentLanes):
        if k != how.k:
            raise ValueError(f"{how} adds {how.k} terms; got k={k}.")
        return Tree(k, rounded(TrackedNode(by_segment_lanes(how), True), fmt).node)
    if not isinstance(how, Schedule):
        if isinstance(how, (ShapedSchedule, Regions)):
            raise no_schedule(how)
        raise TypeError(f"how must be a schedule, a matrix unit, its name or an accumulator; got {shown(how)}.")
    if scaled is not None:
        require_kind("scaled", scaled, bool, "True, False or None")
    if scaled and not how.block_scaled:
        raise ValueError(f"{how} takes no scales that change along K. Leave scaled out, or take deepgemm().")
    unit = unit_of(how, accumulate)
    refuse_many_parts(how, unit, k)
    plan = plan_of(how, unit, k)
    lost = (plan.lost,) if plan.lost.terms else ()
    if isinstance(how.sums, Lanes):
        root = rounded(merged(by_lanes(how.sums, plan, unit, n), how, fmt or FP32), fmt).node
        return Tree(k, root, lost, lane_order(root, how.sums, plan, unit, n))
    parts = by_chains(how, plan, unit, how.block_scaled if scaled is None else scaled)
    return Tree(k, rounded(merged(parts, how, fmt or FP32), fmt).node, lost)


@renamed_arguments(out_format="out_fmt")
def compare(
    x: Addends, y: Addends, k: int, *, n: int | None = None, accumulate: MatrixUnit | str | None = None,
    out_fmt: FormatLike | None = None, scaled: bool | None = None,
) -> Comparison:  # fmt: skip
    """Return whether two schedules, units or accumulators add K products in the same order, or their first difference.

    Args:
      x, y: as `how` of `fp.schedules.tree`.
      k, n, accumulate, out_fmt, scaled: as for `fp.schedules.tree`, for both. Without accumulate, a schedule that has
        no unit takes the other's, and an order as nested tuples takes the other's unit or accumulator.

    Returns:
      A Comparison; `.equal` and, as text, `.sentence`.

    Example:
      >>> import fpsim as fp
      >>> s = fp.schedules
      >>> print(s.compare(s.cutlass_2xacc(128), s.FLAT, 4096))
      terms 128..255: cutlass_2xacc(128) adds them up from +0 for a sum of their own, FLAT adds them to the running sum.
      >>> s.compare(s.cutlass_2xacc(128), s.FLAT, 128).equal
      True
    """
    units = [_own_unit(how) for how in (x, y)]
    shared = next((unit for unit in units if unit is not None), None)
    shared = shared if accumulate is None else named_unit("accumulate", accumulate)
    if accumulate is not None or FLOAT32_CHAIN not in units:  # no matrix unit adds in the place of float32 sums
        units = [shared, shared]
    first, second = (
        tree(
            how, k, n=n, out_fmt=out_fmt, accumulate=_adder(how, other, unit or shared),
            scaled=scaled if isinstance(how, Schedule) and how.block_scaled else None,
        )
        for how, other, unit in zip((x, y), (y, x), units, strict=True)
    )  # fmt: skip
    names = [shown(how) if isinstance(how, tuple) else str(how) for how in (x, y)]
    return first.compare(second, (names[0], names[1]))


def _adder(how: Addends, other: Addends, unit: MatrixUnit | None) -> MatrixUnit | Accumulator | None:
    """Return the argument `accumulate` of `tree` for `how`, which is compared with `other`.

    unit: the unit of both, None for none. Units, accumulators and orders of segments get none, since they add in their
    own way.
    """
    if isinstance(how, tuple):
        return other if isinstance(other, Accumulator) else unit
    return unit if isinstance(how, Schedule) else None


def _by_hand(
    order: tuple[Any, ...], k: int | None, accumulate: MatrixUnit | Accumulator | str | None, fmt: Format | None,
    scaled: bool | None,
) -> Tree:  # fmt: skip
    """Return the tree of an order of additions that is given as nested tuples of terms.

    k: its number of terms, or None to take it from the order. accumulate: the accumulator or unit that adds two numbers
    or the terms of a tuple; None for fp.Pairwise(fp.FP32). fmt: format to which the result is rounded, or None. scaled:
    must not be True.

    Raises:
      ValueError: the order, k, accumulate or scaled is not valid.
    """
    if k is not None and (not is_integer(k) or k < 0):
        raise ValueError(f"k must be a number of terms, 0 or more; got {shown(k)}.")
    if scaled:
        raise ValueError("an order has no place for block scales. Leave scaled out.")
    how: Accumulator | MatrixUnit = FLOAT32_SUMS
    if isinstance(accumulate, Accumulator):
        how = accumulate
    elif accumulate is not None:
        how = named_unit("accumulate", accumulate)
    terms, root = written_root(order, k, how)
    return Tree(terms, rounded(TrackedNode(root, False), fmt).node)


def unit_of(schedule: Schedule, accumulate: MatrixUnit | str | None = None) -> MatrixUnit:
    """Return the matrix unit `accumulate`, or the default unit of `schedule` if `accumulate` is None.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.schedules.trees.tree import unit_of
      >>> unit_of(fp.schedules.FLAT).name, unit_of(fp.schedules.cublas("sm_100")).name
      ('hopper_e4m3_f32', 'blackwell_f16_f32')
    """
    if accumulate is not None:
        return find_unit(accumulate)
    if schedule.operands == "fp32":
        return FLOAT32_CHAIN
    return find_unit(f"{schedule.arch or 'hopper'}_{schedule.operands}_f32")


def _own_unit(how: Addends) -> MatrixUnit | None:
    """Return the matrix unit of `how`: itself, by its name, or a schedule's default; None for FLAT and all others."""
    if isinstance(how, Schedule):
        return None if how.name == "FLAT" else unit_of(how)
    return _unit_named(how) if isinstance(how, (str, MatrixUnit)) else None


def _unit_named(how: MatrixUnit | str) -> MatrixUnit:
    """Return the matrix unit with the name `how`, or `how` itself if it is a unit.

    Raises:
      ValueError, TypeError: no unit has that name; the message also suggests schedules.
    """
    try:
        return named_unit("how", how)
    except ValueError as reason:
        meant = schedules_meant(how) if isinstance(how, str) and "Did you mean" not in str(reason) else []
        if not meant and isinstance(how, str) and find_by_name(how.lower()) is not None:
            raise  # the message suggests the format
        if not meant:
            raise ValueError(f"{reason} Schedules are passed as objects, such as fp.schedules.FLAT.") from None
    raise TypeError(
        f"how must be a schedule, a matrix unit, its name or an accumulator; got {shown(how)}. "
        f"Did you mean {' or '.join(meant)}?"
    )
