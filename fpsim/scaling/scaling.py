"""Scalings: the rules by which tiles get their scales; a field for every decision in which libraries differ."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fpsim.errors import is_integer, require_kind, require_word, shown
from fpsim.formats.as_json import format_fields, format_from
from fpsim.formats.named import E8M0, FP32, Format, format_argument
from fpsim.formats.policies import OVERFLOWS
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.reload import reloadable

SCALE_RULES = ("amax", "floor", "twice_floor", "ceil", "even", "rceil", "nearest")
QUOTIENTS = ("amax/max", "amax*(1/max)", "1/(max/amax)")
DIVISIONS = ("divide", "multiply")
NANS = ("tile", "element")
INFINITIES = ("skip", "propagate", "one")
ZERO_SCALES = ("one", "smallest")
ADAPTIVE = ("", "mse", "mae", "abs_max")
LARGEST_DOUBLE = float(np.finfo(np.float64).max)


@reloadable
@dataclass(frozen=True)
class Scaling:
    """A recipe for scales: how an array is cut into tiles and how each tile's scale follows from its amax.

    docs/scaling.md states what each field does, step by step.

    Args:
      block: size of a tile along the last axes, -1 for a whole axis; a first size of -1 covers earlier axes as well.
      scale_format: format of the scales; it must have a NaN, and float32 must hold its values.
      scale_rule: how the scale follows from amax and max, the elements' largest value; emax = floor(log2(max)).
        "amax": amax / max, rounded by `scale_rounding`. "rceil": amax / max, rounded up. "nearest": amax / max, rounded
        to nearest even. "floor": 2**(floor(log2(amax)) - emax). "ceil": 2**(ceil(log2(amax)) - emax). "twice_floor":
        twice the scale of "floor". "even": the scale of "floor" after amax is rounded to the elements' mantissa bits
        (b - 2 for integers of b bits).
      scale_rounding: how "amax" rounds the quotient into scale_format; None: up for powers of two, else nearest even.
      amax_floor: a smaller amax is raised to this; at most float32's largest value.
      quotient: "amax/max", "amax*(1/max)" or "1/(max/amax)", which computes an encode scale and inverts it.
      division: "divide" (x / s) or "multiply" (x * (1 / s), where 1 / s is at most the largest float).
      tensor_scale: True for a second level, a float32 scale of the whole array that multiplies all scales (NVFP4).
      tensor_top: with a second level, the first-level scale of the tile that has the array's largest magnitude: the
        scale of the array is that magnitude / (tensor_top * max). None: the largest value of the scale format.
      adaptive: "mse", "mae" or "abs_max": the error by which a tile chooses between two encodings of E2M1 (its largest
        magnitude becomes 6 or 4) or of IF4 (floats or integers); "" for one encoding.
      symmetric: False gives integer elements a zero point per tile.
      overflow: default for the elements' cast: an overflow mode of `fpsim.encode`; integers always saturate.
      nan: "tile" (a NaN makes its tile NaN) or "element" (it is ignored by the scale).
      infinity: "skip" (amax of the finite elements), "propagate" (Inf is the amax) or "one" (the tile's scale is 1).
      zero_scale: "one" or "smallest", the scale of tiles of zeros.
      smallest_scale: a smaller scale is raised to this; None: the scale format's smallest positive value or, if that
        is below 2**-127, the larger of 2**-127 and the format's smallest normal value.
      name: what `repr` shows; comparison ignores it.

    Raises:
      ValueError: a field has another value than those above, or two fields exclude each other.

    Example:
      >>> import fpsim as fp
      >>> fp.Scaling(block=(1, 32), scale_format="e8m0", scale_rule="floor") == fp.scalings.MX
      True
      >>> fp.scalings.TILE_1X128.replace(division="multiply")
      Scaling(block=(1, 128), division='multiply')
    """

    block: tuple[int, ...] = (1, 128)
    scale_format: Format = FP32
    scale_rule: str = "amax"
    scale_rounding: Rounding | None = None
    amax_floor: float = 0.0
    quotient: str = "amax/max"
    division: str = "divide"
    tensor_scale: bool = False
    tensor_top: float | None = None
    adaptive: str = ""
    symmetric: bool = True
    overflow: str = "saturate_finite"
    nan: str = "tile"
    infinity: str = "skip"
    zero_scale: str = "one"
    smallest_scale: float | None = None
    name: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "block", _checked_block(self.block))
        put(self, "scale_format", format_argument("scale_format", self.scale_format))
        for field, words in (
            ("scale_rule", SCALE_RULES),
            ("quotient", QUOTIENTS),
            ("division", DIVISIONS),
            ("overflow", tuple(OVERFLOWS)),
            ("nan", NANS),
            ("infinity", INFINITIES),
            ("zero_scale", ZERO_SCALES),
            ("adaptive", ADAPTIVE),
        ):
            require_word(field, getattr(self, field), words)
        require_kind("name", self.name, str, "a text")
        for field in ("tensor_scale", "symmetric"):
            value = getattr(self, field)
            if not isinstance(value, (bool, np.bool_)):
                raise ValueError(f"{field} must be True or False; got {shown(value)}.")
            put(self, field, bool(value))
        if self.scale_rounding is not None:
            put(self, "scale_rounding", rounding_mode(self.scale_rounding))
        put(self, "amax_floor", _checked_number("amax_floor", self.amax_floor, 0.0))
        if self.amax_floor > FP32.max:
            raise ValueError(
                f"amax_floor must be at most float32's largest value, {FP32.max!r}, for scales are float32; got "
                f"{shown(self.amax_floor)}. Leave it out for no floor."
            )
        if self.smallest_scale is not None:
            put(self, "smallest_scale", _checked_number("smallest_scale", self.smallest_scale, None))
        if self.tensor_top is not None:
            put(self, "tensor_top", _checked_number("tensor_top", self.tensor_top, 0.0))
        self._refuse_scale_formats()
        self._refuse_combinations()
        self._refuse_choices()

    def __hash__(self) -> int:
        return self._hash  # scalings key the caches of plans, which every call looks up

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields as a dict for pickle, without the cached hash: hashes of str differ between processes."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @cached_property
    def _hash(self) -> int:
        """Hash of the fields that comparison uses, computed once."""
        return hash(tuple(getattr(self, field.name) for field in dataclasses.fields(self) if field.compare))

    def _refuse_scale_formats(self) -> None:
        """Raise a ValueError if the scale format does not fit float32 or the other fields.

        The scale format must have a NaN, and float32 must hold all values of the format. The value 1 must be one of
        them if `zero_scale` or `infinity` is "one". So must `smallest_scale`, or the default of that field.
        """
        fmt = self.scale_format
        if not FP32.holds(fmt) or 16 < fmt.bits < 32:
            raise ValueError(
                f"scale_format must be FP32 or a format of up to 16 bits that float32 holds; got {fmt}. "
                "Use FP32, BF16, E8M0 or E4M3."
            )
        if not fmt.has_nan:
            raise ValueError(f"scale_format must have a NaN, for tiles with NaN; got {fmt}. Use E8M0, E4M3 or FP32.")
        smallest = self.smallest_scale
        if smallest is None and not _is_value(self.lower_bound, fmt):
            raise ValueError(
                f"scale_format must have the value {self.lower_bound!r}, the default of smallest_scale; "
                f"got {fmt}, up to {fmt.max!r}. Choose a smaller bias, or one of its values as smallest_scale."
            )
        if smallest is not None and not (0 < smallest <= fmt.max and _is_value(smallest, fmt)):
            raise ValueError(f"smallest_scale must be a positive value of {fmt}; got {shown(smallest)}.")
        if "one" in (self.zero_scale, self.infinity) and not _is_value(1.0, fmt):
            raise ValueError(
                f"a scale of 1 needs a scale_format with that value; got {fmt}. "
                "Use zero_scale='smallest' and another infinity than 'one'."
            )

    def _refuse_combinations(self) -> None:
        """Raise a ValueError for fields that exclude each other.

        `scale_rounding` must be deterministic and needs the rule "amax". FP32 scales need nearest even. The quotient
        "1/(max/amax)" needs the rule "amax" and scales in FP32 or E8M0 (with two levels, in any format but FP32). Two
        levels need the rule "amax", a quotient other than "amax*(1/max)", scales with a mantissa, and an `infinity`
        other than "one". Zero points need the rule "amax", the quotient "amax/max" and one level.
        """
        power = self.scale_format.mantissa_bits == 0
        if self.scale_rounding is Rounding.STOCHASTIC:
            raise ValueError("scale_rounding must be deterministic; got 'stochastic'.")
        if self.scale_rounding is not None and self.scale_rule != "amax":
            raise ValueError(
                f"scale_rounding needs scale_rule='amax'; got {self.scale_rule!r}, which rounds by itself. Omit it."
            )
        if self.scale_format == FP32 and self.quotient_rounding is not Rounding.NEAREST_EVEN:
            raise ValueError(
                "scales in FP32 are quotients rounded to nearest even; got "
                f"scale_rounding={self.scale_rounding!s}, scale_rule={self.scale_rule!r}. Use scale_format='e8m0'."
            )
        if self.quotient == "1/(max/amax)" and self.scale_rule != "amax":
            raise ValueError(f"quotient '1/(max/amax)' needs scale_rule='amax'; got {self.scale_rule!r}.")
        mirrored = power and np.array_equal(self.scale_format.table(), E8M0.table(), equal_nan=True)
        if self.quotient == "1/(max/amax)" and not (self.tensor_scale or mirrored or self.scale_format == FP32):
            raise ValueError(f"quotient '1/(max/amax)' needs scale_format FP32 or E8M0; got {self.scale_format}.")
        if self.tensor_scale and (self.scale_rule != "amax" or self.quotient == "amax*(1/max)" or power):
            raise ValueError(
                "tensor_scale needs scale_rule='amax', quotient 'amax/max' or '1/(max/amax)', scales with a mantissa; "
                f"got {self.scale_rule!r}, {self.quotient!r}, {self.scale_format}."
            )
        if self.tensor_scale and self.quotient == "1/(max/amax)" and self.scale_format == FP32:
            raise ValueError(
                "tensor_scale with quotient '1/(max/amax)' needs scales narrower than the array's own; got FP32. "
                "Use scale_format='e4m3', or tensor_scale=False."
            )
        if self.tensor_scale and self.infinity == "one":
            raise ValueError(
                "infinity='one' needs tensor_scale=False, because with two levels a tile's scale is a multiple of the "
                "array's; got tensor_scale=True. Use infinity='skip'."
            )
        if not self.symmetric and (self.scale_rule != "amax" or self.quotient != "amax/max" or self.tensor_scale):
            raise ValueError(
                "symmetric=False needs scale_rule='amax', quotient='amax/max' and tensor_scale=False; "
                f"got {self.scale_rule!r}, {self.quotient!r} and {self.tensor_scale}."
            )

    def _refuse_choices(self) -> None:
        """Raise a ValueError if `tensor_top` or `adaptive` does not fit the other fields.

        `tensor_top` needs two levels, and must be positive and at most the scale format's largest value. `adaptive`
        needs the rule "amax", the quotient "amax/max", scales with a mantissa, and no zero points.
        """
        top = self.tensor_top
        if top is not None and not (self.tensor_scale and 0 < top <= self.scale_format.max):
            raise ValueError(
                f"tensor_top must be a positive scale of {self.scale_format} with tensor_scale=True; got {top}, "
                f"tensor_scale={self.tensor_scale}."
            )
        plain = self.scale_rule == "amax" and self.quotient == "amax/max" and self.symmetric
        if self.adaptive and not (plain and self.scale_format.mantissa_bits):
            raise ValueError(
                "adaptive needs scale_rule='amax', quotient='amax/max', symmetric=True and scales with a mantissa; got "
                f"{self.scale_rule!r}, {self.quotient!r}, {self.symmetric} and {self.scale_format}."
            )

    @cached_property
    def quotient_rounding(self) -> Rounding:
        """Rounding mode by which the quotient amax / max (or max / amax) is rounded into the scale format."""
        if self.scale_rule == "rceil":
            return Rounding.UP
        if self.scale_rule == "amax" and self.scale_rounding is not None:
            return self.scale_rounding
        up = self.scale_rule == "amax" and self.scale_format.mantissa_bits == 0
        return Rounding.UP if up else Rounding.NEAREST_EVEN

    @cached_property
    def rounds_up(self) -> bool:
        """True if the rule is "ceil" or rounds the quotient up, so that no scale is below amax / max."""
        return self.scale_rule == "ceil" or self.quotient_rounding is Rounding.UP

    @cached_property
    def lower_bound(self) -> float:
        """Smallest scale that the recipe can produce."""
        if self.smallest_scale is not None:
            return self.smallest_scale
        fmt = self.scale_format
        smallest = fmt.smallest_subnormal if fmt.has_zero else fmt.smallest_normal
        return smallest if smallest >= 2.0**-127 else max(fmt.smallest_normal, 2.0**-127)

    def replace(self, **changes: Any) -> Scaling:
        """Return this scaling with the given fields changed, and without its name.

        Raises:
          ValueError: a field has a value that `Scaling` refuses, or two fields exclude each other.
        """
        return dataclasses.replace(self, **{"name": "", **changes})

    def transposed(self) -> Scaling:
        """Return this scaling with the block reversed, which gives a transposed matrix the same tiles.

        A block of one axis counts as a row, such as (1, 128) for (128,). The result has no name.

        Raises:
          ValueError: the block has more than two axes.
        """
        block = self.block
        if len(block) > 2:
            raise ValueError(f"only blocks of two axes can be transposed; got {block}.")
        if len(block) == 1:
            block = (-1, -1) if block == (-1,) else (1, block[0])
        return self.replace(block=block[::-1])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, as a dict, without `name`.

        Formats are given by their names, and rounding modes by their names in lower case.
        """
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in ("scale_format", "name") and value != field.default:
                fields[field.name] = value.name.lower() if isinstance(value, Rounding) else value
        if self.scale_format != FP32:
            fields["scale_format"] = self.scale_format.name
        return fields

    def __repr__(self) -> str:
        if self.name:
            return f"fp.scalings.{self.name}"
        fields = {"block": self.block, **self.to_dict()}
        return f"Scaling({', '.join(f'{name}={value!r}' for name, value in fields.items())})"


def _checked_block(block: Any) -> tuple[int, ...]:
    """Return `block`, the size of a tile as an integer, tuple or list, as a tuple of integers.

    Raises:
      ValueError: a size is neither -1 (a whole axis) nor an integer of at least 1, or there is none.
    """
    sizes = (block,) if is_integer(block) else block
    valid = isinstance(sizes, (tuple, list)) and all(is_integer(n) and (n >= 1 or n == -1) for n in sizes)
    if not valid or not sizes:
        raise ValueError(
            f"block must be a tuple of tile sizes >= 1, or -1 for a whole axis, such as (1, 128); got {shown(block)}."
        )
    return tuple(int(size) for size in sizes)


def _checked_number(name: str, value: Any, lowest: float | None) -> float:
    """Return the value as a finite float, or raise a ValueError.

    name: the argument's name, for the message. value: any object. lowest: the smallest value allowed, or None for no
    limit.
    """
    value = float(value) if isinstance(value, np.floating) else value  # NumPy would cast the limit to float16
    number = isinstance(value, (int, float, np.integer)) and not isinstance(value, bool)
    if not number or not abs(value) <= LARGEST_DOUBLE or (lowest is not None and value < lowest):
        raise ValueError(f"{name} must be a finite number{' >= 0' if lowest == 0 else ''}; got {shown(value)}.")
    return float(value)


def _is_value(x: float, fmt: Format) -> bool:
    """Return whether x, a positive number, is a value of `fmt`, which is FP32 or a format of up to 16 bits."""
    if fmt == FP32:  # by operations that are exact whether the processor flushes float32's subnormals or rounds up
        place = max(math.frexp(x)[1] - FP32.precision, FP32.min_exponent - FP32.mantissa_bits)
        return math.ldexp(x, -place).is_integer()
    return bool(np.any(fmt.table() == x))


def scaling_fields(scaling: Scaling) -> dict[str, Any]:
    """Return a scaling as a dict for JSON: block, scale format, name, and the fields that differ from the defaults.

    `scaling_from` reads it back.
    """
    return {
        **scaling.to_dict(),
        "block": list(scaling.block),
        "scale_format": format_fields(scaling.scale_format),
        "name": scaling.name,
    }


def scaling_from(fields: Any) -> Scaling:
    """Return the scaling that `fields`, a dict such as `scaling_fields` returns, describes.

    Raises:
      ValueError: the dict does not describe a scaling.
    """
    try:
        changed = {"block": tuple(fields["block"]), "scale_format": format_from(fields["scale_format"])}
        return Scaling(**{**fields, **changed})
    except (KeyError, TypeError, ValueError) as reason:
        raise ValueError(f"a scaling must be described as scaling_fields does; got {shown(fields)}.") from reason
