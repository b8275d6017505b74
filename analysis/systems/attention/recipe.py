"""Recipes of attention as data: the format of each intermediate array, the order of steps, and the cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any

from fpsim.errors import require_integer, require_word, shown, unknown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.element import ElementLike, element_format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import FP32, FP64, Format, format_argument
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.scaling import Scaling
from fpsim.sums.accumulators import Accumulator, FusedMultiplyAdd

SCALES = ("token", "head", "channel", "block", "none")
PARTS = ("inputs", "scores", "softmax", "probabilities", "unnormalised", "output")


@dataclass(frozen=True)
class KVCache:
    """A cache of keys and values: the format that stores them, and which elements share a scale.

    Attributes:
      fmt: a float format, or a symmetric integer format such as "int8" and "int4".
      scales: "token": one scale for each token of a head; "head": one for all tokens of a head; "channel": one for each
        channel of a head; "block": one for each tile of `block`; "none": no scale.
      block: (tokens, channels) of a tile, for "block".
      keys: which elements of keys share a scale, a name as in `scales`, such as "channel" (KIVI); None: the same as
        `scales`. Values always follow `scales`.
      scale_format: the float format that stores the scales.

    Example:
      >>> from fpsim.analysis.systems.attention.recipe import KVCache
      >>> KVCache("int4", "block", block=(1, 32)).bits(64, 128)
      4.5
    """

    fmt: ElementLike
    scales: str = "token"
    block: tuple[int, int] = (1, 32)
    keys: str | None = None
    scale_format: FormatLike = "fp16"

    def __post_init__(self) -> None:
        object.__setattr__(self, "fmt", element_format(self.fmt))
        object.__setattr__(self, "scale_format", find_format(self.scale_format))
        if isinstance(self.fmt, IntegerFormat) and not self.fmt.signed:
            raise ValueError(
                f"fmt must be a float format or a signed integer format; got {self.fmt}. Take INT8 or INT4."
            )
        for name, word in (("scales", self.scales), ("keys", self.keys)):
            if word is not None:
                require_word(name, word, SCALES)
        if not isinstance(self.block, (tuple, list)) or len(self.block) != 2:
            raise ValueError(f"block must be (tokens, channels) of a tile; got {shown(self.block)}.")
        object.__setattr__(self, "block", tuple(self.block))
        for size in self.block:
            require_integer("block", size, 1)
        if "none" in (self.scales, self.keys) and not isinstance(self.fmt, Format):
            raise ValueError(
                f"{element_format(self.fmt).name} needs scales; got 'none'. Take scales='token', for example."
            )

    def scaling(self, word: str) -> Scaling | None:
        """Return the fp.Scaling, or None for no scale, of keys or values (tokens, channels) of one head.

        word: which elements share a scale, a name as in the attribute `scales`, such as "token".
        """
        blocks = {"token": (1, -1), "head": (-1, -1), "channel": (-1, 1), "block": self.block}
        return None if word == "none" else Scaling(block=blocks[word], scale_format=find_format(self.scale_format))

    def bits(self, tokens: int, channels: int, value_channels: int | None = None) -> float:
        """Return the bits stored per element of a head's keys and values (tokens, channels): codes and scales.

        value_channels: channels of the values; None for as many as the keys have.
        """
        assert isinstance(self.scale_format, Format)
        of_values = channels if value_channels is None else value_channels
        for name, size in (("tokens", tokens), ("channels", channels), ("value_channels", of_values)):
            require_integer(name, size, 1)
        scales = 0
        for word, width in ((self.keys or self.scales, channels), (self.scales, of_values)):
            scales += {
                "token": tokens, "head": 1, "channel": width, "none": 0,
                "block": -(-tokens // self.block[0]) * -(-width // self.block[1]),
            }[word]  # fmt: skip
        return element_format(self.fmt).bits + self.scale_format.bits * scales / (tokens * (channels + of_values))

    @property
    def name(self) -> str:
        """Name of the cache: format, `scales`, and `keys` unless None, such as "INT4, token, keys by channel"."""
        values = f"{self.scales} {self.block[0]}x{self.block[1]}" if self.scales == "block" else self.scales
        return f"{element_format(self.fmt).name}, {values}" + (f", keys by {self.keys}" if self.keys else "")


@dataclass(frozen=True)
class AttentionRecipe:
    """The formats of the intermediate arrays of an attention, and the order of its steps.

    Attributes:
      inputs: format of q, k and v.
      scaled_inputs: whether q, k and v of each head are divided by a scale before they are rounded, so that their
        largest magnitude becomes the largest value of the format; only in formats of up to 8 bits, such as FP8. Scores
        and outputs are multiplied by the scales in float32.
      scores: format of q.k, which is rounded before and after the multiplication by the attention's scale.
      softmax: format of the differences from the maximum, the exponentials, their sum, and the quotients.
      probabilities: format of the left operand of the product with v.
      unnormalised: format of the product with v, and in flash order of the running output.
      output: format of the attention's output.
      accumulate: the arithmetic of both products: a matrix unit without block scales or its name, whose operands can
        hold the values of `inputs` and `probabilities`; an accumulator such as fp.FusedMultiplyAdd("fp32"); or a format
        for fused multiply-adds in that format.
      probability_scale: a power of two by which probabilities are multiplied before they are rounded, and outputs are
        divided.
      block: number of keys of a block in flash order, where exponentials are relative to the running maximum and the
        division by their sum comes last; None for the plain order, where probabilities are divided by their sum before
        they are rounded.
      cache: a KVCache, or None for keys and values that are not cached.

    Example:
      >>> from fpsim.analysis.systems.attention.recipe import RECIPES
      >>> RECIPES["fp8_flash"].replace(probability_scale=256.0).probability_scale
      256.0
    """

    inputs: FormatLike = "bf16"
    scores: FormatLike = "fp32"
    softmax: FormatLike = "fp32"
    probabilities: FormatLike = "bf16"
    unnormalised: FormatLike = "fp32"
    output: FormatLike = "bf16"
    accumulate: MatrixUnit | Accumulator | Format | str = field(default_factory=lambda: FusedMultiplyAdd("fp32"))
    probability_scale: float = 1.0
    block: int | None = None
    cache: KVCache | None = None
    scaled_inputs: bool = False

    def __post_init__(self) -> None:
        for name in PARTS:
            fmt = format_argument(name, getattr(self, name))
            if fmt == FP64 or not fmt.signed or not fmt.has_zero:
                raise ValueError(f"{name} must be a signed format of up to 32 bits; got {fmt}. Take BF16 or FP32.")
            object.__setattr__(self, name, fmt)
        object.__setattr__(self, "accumulate", _accumulate(self.accumulate))
        if isinstance(self.accumulate, MatrixUnit):
            self._require_operands(self.accumulate)
        if self.block is not None:
            require_integer("block", self.block, 1)
        scale = self.probability_scale
        number = isinstance(scale, Real) and not isinstance(scale, bool)
        if not number or not FP32.smallest_normal <= scale <= FP32.max or math.frexp(scale)[0] != 0.5:
            raise ValueError(
                f"probability_scale must be a power of two in 2**-126 .. 2**127, such as 256.0; got {shown(scale)}."
            )
        object.__setattr__(self, "probability_scale", float(scale))
        if not isinstance(self.scaled_inputs, bool):
            raise TypeError(f"scaled_inputs must be True or False; got {shown(self.scaled_inputs)}.")
        if self.cache is not None and not isinstance(self.cache, KVCache):
            raise TypeError(f"cache must be an fp.analysis.KVCache or None; got {shown(self.cache)}.")

    def _require_operands(self, unit: MatrixUnit) -> None:
        """Raise ValueError unless a unit's operands hold all values of `inputs` and `probabilities`, without scales."""
        if unit.scale is not None:
            raise ValueError(
                f"accumulate must be a unit without block scales; got {unit.name}. Take 'hopper_e4m3_f32', for example."
            )
        for name, element in (("inputs", unit.a), ("inputs", unit.b), ("probabilities", unit.a)):
            fmt = find_format(getattr(self, name))
            if not element.carrier.holds(fmt):
                raise ValueError(
                    f"{name} must be in a format that the operands of {unit.name}, {element.fmt}, can hold; got {fmt}. "
                    f"Pass {name}={str(element.fmt)!r}, or another accumulate."
                )

    def replace(self, **changes: Any) -> AttentionRecipe:
        """Return a copy of the recipe in which the fields named in `changes`, field -> value, have these values.

        Raises:
          ValueError: an unknown field, or a value that the recipe refuses.
        """
        names = [field.name for field in fields(self)]
        for name in changes:
            if name not in names:
                raise unknown("a field", name, names)
        return replace(self, **changes)

    @property
    def order(self) -> str:
        """The order of the recipe's steps: "plain", or "flash" with the number of keys in a block."""
        return "plain" if self.block is None else f"flash, blocks of {self.block}"


def _accumulate(value: object) -> MatrixUnit | Accumulator:
    """Return the matrix unit or accumulator that `value` names or is; a format means fused multiply-adds in it.

    Raises TypeError for other objects, ValueError for unknown names.
    """
    if isinstance(value, (MatrixUnit, Accumulator)):
        return value
    if isinstance(value, Format):
        return FusedMultiplyAdd(value)
    if isinstance(value, str):
        try:
            return FusedMultiplyAdd(find_format(value))
        except ValueError:
            return find_unit(value)
    raise TypeError(
        f"accumulate must be a unit or its name, an accumulator or a format; got {shown(value)}. Pass "
        "fp.FusedMultiplyAdd('fp32'), for instance."
    )


RECIPES = {
    "fp32": AttentionRecipe("fp32", "fp32", "fp32", "fp32", "fp32", "fp32"),
    "bf16": AttentionRecipe("bf16", "bf16", "fp32", "bf16", "bf16", "bf16"),
    "fp16": AttentionRecipe("fp16", "fp16", "fp32", "fp16", "fp16", "fp16"),
    "bf16_flash": AttentionRecipe(block=128),
    "fp16_flash": AttentionRecipe("fp16", "fp32", "fp32", "fp16", "fp32", "fp16", block=128),
    "fp8_flash": AttentionRecipe("e4m3", "fp32", "fp32", "e4m3", "fp32", "bf16", block=128, scaled_inputs=True),
}


def recipe_of(value: Any) -> AttentionRecipe:
    """Return the attention recipe with the name `value`, or `value` itself if it is an AttentionRecipe.

    Raises ValueError otherwise.
    """
    if isinstance(value, AttentionRecipe):
        return value
    if not isinstance(value, str) or value not in RECIPES:
        raise unknown("recipe", value, tuple(RECIPES), others="or a fp.analysis.AttentionRecipe")
    return RECIPES[value]
