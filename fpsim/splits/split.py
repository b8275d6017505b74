"""Recipe of a split: how float32 numbers are split into parts such as BF16, and how products of parts are added."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple

from fpsim.errors import integer_fields, is_integer, require_integer, require_kind, require_word, shown
from fpsim.formats.named import Format
from fpsim.formats.named import format as find_format
from fpsim.formats.policies import OVERFLOWS
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.matrix_units.catalogue import unit as find_unit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.reload import reloadable
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd

MOST_PARTS = 8
MOST_SHIFT, LEAST_SHIFT = 127, -149  # exponents of float32's largest and smallest power of two
Pair = tuple[int, int]  # indices of a part of a and of a part of b; 0 is the leading part


class Group(NamedTuple):
    """Products of parts that are added in one accumulator.

    Attributes:
      bands: pairs of parts (of a, of b) in the order of additions, grouped into bands of equal weight. Within a band,
        the pairs alternate, one instruction each. Between two bands, the accumulator is multiplied by 2**-shift, where
        `shift` is a field of the Split.
      interval: number of instructions along K, counted for one pair, after which the accumulator is added to a float32
        total (rounded to nearest even) and starts again at +0; None for a single accumulator over all of K, which
        requires a single band.
      log2_scale: exponent of the power of two by which the group's total is multiplied before the totals of all groups
        are added, -149 to 127.
    """

    bands: tuple[tuple[Pair, ...], ...]
    interval: int | None = None
    log2_scale: int = 0

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Pairs of parts that are multiplied, band after band, in the order of additions."""
        return tuple(pair for band in self.bands for pair in band)


def _has_pairs(group: Any) -> bool:
    """Return whether `group` is a Group whose `bands` are a tuple of one or more tuples of one or more tuples."""
    bands = group.bands if isinstance(group, Group) else None
    filled = isinstance(bands, tuple) and bands and all(isinstance(band, tuple) and band for band in bands)
    return bool(filled) and all(isinstance(pair, tuple) for band in bands or () for pair in band)


@reloadable
@dataclass(frozen=True)
class Split:
    """A recipe for computing a float32 product from products of narrow parts: numbers in a format of up to 16 bits.

    Part 0 of a number x is x rounded to `fmt`. The remainder, (x - part 0) * 2**shift, is split in the same manner, so
    that x is about part 0 + 2**-shift * (part 1 + 2**-shift * (...)).

    Args:
      name: name of the recipe in `repr` and reports.
      fmt: format of the parts, of up to 16 bits.
      parts: number of parts, 2 to 8.
      shift: exponent of the power of two by which each remainder is multiplied, 0 to 127.
      rounding: rounding to the parts, a deterministic mode of `fpsim.encode`.
      overflow: treatment of numbers beyond the format's range, an argument `overflow` of `fpsim.encode`.
      groups: groups of products; their float32 totals are added in this order, rounded to nearest even.
      accumulate: a matrix unit with operands in `fmt`, its name, or fp.FusedMultiplyAdd("fp32").
      source: text on where the recipe was published.

    Raises:
      ValueError, TypeError: a field has a wrong type or value, a group names a part that the split does not have, or
        the unit has other operands.

    Example:
      >>> import fpsim as fp
      >>> fp.splits.CUTLASS_BF16X9.replace(parts=2)
      Traceback (most recent call last):
      ...
      ValueError: pairs must be of 2 parts, 0 to 1; got (2, 2).
      >>> fp.splits.OOTOMO_FP16X2.products
      3
    """

    name: str
    fmt: Format
    parts: int
    shift: int
    rounding: Rounding
    overflow: str
    groups: tuple[Group, ...]
    accumulate: MatrixUnit | Accumulator
    source: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "fmt", find_format(self.fmt))
        put(self, "rounding", rounding_mode(self.rounding))
        if isinstance(self.accumulate, str):
            put(self, "accumulate", find_unit(self.accumulate))
        require_kind("name", self.name, str, "a text")
        require_word("overflow", self.overflow, tuple(OVERFLOWS))
        integer_fields(self, "parts", lowest=2)
        integer_fields(self, "shift", lowest=0)
        if self.parts > MOST_PARTS:
            raise ValueError(f"parts must be 2 to {MOST_PARTS}; got {self.parts}.")
        if self.shift > MOST_SHIFT:
            raise ValueError(f"shift must be 0 to {MOST_SHIFT}, as float32 holds 2**shift; got {self.shift}.")
        if self.fmt.bits > 16:
            raise ValueError(f"fmt must be a format of up to 16 bits; got {self.fmt}.")
        if self.rounding is Rounding.STOCHASTIC:
            raise ValueError("rounding must be deterministic; got 'stochastic'.")
        self._refuse_groups()
        self._refuse_accumulators()

    def _refuse_groups(self) -> None:
        """Raise an error unless `groups` is a tuple of Group with pairs of existing parts.

        Raises:
          ValueError: `groups` is no such tuple, or a group with several bands has no interval.
          TypeError, ValueError: an interval is not a positive integer, or a log2_scale no integer in -149 .. 127.
        """
        if not isinstance(self.groups, tuple) or not self.groups or not all(map(_has_pairs, self.groups)):
            raise ValueError(
                "groups must be a tuple of fp.splits.Group, whose bands are tuples of pairs such as (((0, 0),),); got "
                f"{shown(self.groups)}."
            )
        for group in self.groups:
            for pair in group.pairs:
                if len(pair) != 2 or not all(is_integer(part) and 0 <= part < self.parts for part in pair):
                    raise ValueError(f"pairs must be of {self.parts} parts, 0 to {self.parts - 1}; got {pair}.")
            if group.interval is None and len(group.bands) > 1:
                raise ValueError(f"a group of {len(group.bands)} bands needs an interval of 1 or more; got None.")
            if group.interval is not None:
                require_integer("interval", group.interval, 1)
            require_integer("log2_scale", group.log2_scale, LEAST_SHIFT)
            if group.log2_scale > MOST_SHIFT:
                raise ValueError(f"log2_scale must be {LEAST_SHIFT} to {MOST_SHIFT}; got {group.log2_scale}.")

    def _refuse_accumulators(self) -> None:
        """Raise an error unless `accumulate` accepts operands in the format of the parts and adds in float32.

        Raises:
          ValueError, TypeError: a matrix unit of other formats or with block scales; another kind of accumulator.
        """
        unit = self.accumulate
        if isinstance(unit, MatrixUnit):
            if (unit.a.fmt, unit.b.fmt, unit.d.fmt.name) != (self.fmt, self.fmt, "FP32") or unit.scale:
                raise ValueError(f"accumulate must be a unit of {self.fmt} that adds in FP32; got {unit.name}.")
        elif not isinstance(unit, FusedMultiplyAdd) or unit.fmt.name != "FP32":
            raise TypeError(f"accumulate must be a matrix unit or fp.FusedMultiplyAdd('fp32'); got {shown(unit)}.")

    @property
    def terms(self) -> int:
        """Number of terms of K that one instruction adds."""
        return self.accumulate.terms if isinstance(self.accumulate, MatrixUnit) else 1

    @property
    def products(self) -> int:
        """Number of products of two parts by which one float32 product is replaced."""
        return sum(len(group.pairs) for group in self.groups)

    def replace(self, **changes: Any) -> Split:
        """Return a copy of this split in which the fields named by keyword arguments have new values."""
        return dataclasses.replace(self, **changes)

    def __repr__(self) -> str:
        unit = getattr(self.accumulate, "name", self.accumulate)
        return f"<Split {self.name}: {self.products} products of {self.parts} {self.fmt} parts by {unit}>"
