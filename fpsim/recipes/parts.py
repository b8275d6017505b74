"""Parts of a recipe of training, as data: overrides, stored activations, and formats of operations besides products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fpsim.casts.cast import refuse_unless_held
from fpsim.errors import require_integer, require_kind, require_word, shown
from fpsim.formats import named
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.element import ElementLike, element_format
from fpsim.formats.named import format_argument
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.recipes.linear import FP32, LINEAR, linear_recipe
from fpsim.recipes.linear_recipe import OPERANDS, PRODUCTS, LinearRecipe
from fpsim.recipes.optimizer_recipe import require_number
from fpsim.reload import reloadable
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.shaped import CHAIN
from fpsim.sums.accumulators import Accumulator

# Figures that a controller may watch, each with the limits above and below which layers move unless others are passed.
# Values beyond the range are the largest ones: a thousandth of them weighs more than five of a hundred that vanish.
# A gradient norm is that over its average so far, which is about 1 in a calm training.
LIMITS: dict[str, tuple[float, float]] = {
    "underflow": (0.05, 0.01), "saturation": (1e-3, 1e-4), "at_maximum": (0.05, 0.01), "gradient_norm": (2.0, 1.2),
}  # fmt: skip
WATCHED = tuple(LIMITS)


@reloadable
@dataclass(frozen=True)
class Override:
    """A recipe that some layers and products follow instead of the main one, for a share of the steps.

    Args:
      layers: a shell pattern of layers' names, such as "blocks.*.mlp.*".
      products: the products that follow it: some of "fprop", "dgrad" and "wgrad".
      start, stop: the shares of the steps at which it begins and ends: 0.85 and 1.0 are the last 15 %.
      linear: the recipe that they follow, a `fpsim.torch.LinearRecipe` or the name of one in fp.torch.RECIPES.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> from fpsim.recipes.training_recipe import Override
      >>> Override(products=("fprop",), start=0.85, linear="BF16").holds("blocks.0.mlp.down", 230, 250)
      True
    """

    layers: str = "*"
    products: tuple[str, ...] = PRODUCTS
    start: float = 0.0
    stop: float = 1.0
    linear: LinearRecipe | str = FP32

    def __post_init__(self) -> None:
        require_kind("layers", self.layers, str, "a shell pattern such as 'blocks.*.mlp.*'")
        object.__setattr__(self, "products", words_of("products", self.products))
        for product in self.products:
            require_word("product", product, PRODUCTS)
        if not self.products:
            raise ValueError(f"products must be one of {', '.join(PRODUCTS)}, or several; got none.")
        for name in ("start", "stop"):
            require_number(name, getattr(self, name), highest=1.0)
        if not self.start < self.stop:
            raise ValueError(f"start must be below stop, or it never holds; got {self.start} and {self.stop}.")
        object.__setattr__(self, "linear", linear_recipe(self.linear))

    def holds(self, layer: str, step: int, steps: int) -> bool:
        """Return whether the override applies to a layer at a step, counted from 0, of `steps` steps."""
        return fnmatchcase(layer, self.layers) and self.start * steps <= step < self.stop * steps


@dataclass(frozen=True)
class Controller:
    """A rule that moves each layer to more or less exact recipes by a measured quantity, with hysteresis.

    A layer moves one level up where its figure is above `high` for `patience` steps in a row, and one level down where
    the figure that it would have at the level below is under `low` for as many. Level 0 is the recipe's own, the levels
    above are `levels`. Layers that the recipe keeps in float32 have no levels. Of several micro-batches and processes
    the largest figure counts; one that is not a number counts as too high.

    Args:
      watch: "underflow" (share of the output gradient's non-zero values that become zero), "saturation" (share of
        its values beyond the format's range), "at_maximum" (share of its codes at the largest magnitude), or
        "gradient_norm" (norm of the layer's weight gradient over its average so far).
      high, low: the figures above and below which a layer moves up and down; low < high. None: 0.05 and 0.01 of
        underflow and codes at the maximum, 0.001 and 0.0001 of saturation, 2 and 1.2 of the gradient norm.
      patience: the number of steps in a row after which a layer moves.
      levels: the recipes that layers fall back to, from the nearest to the most exact; names of fp.torch.RECIPES too.
      layers: a shell pattern of the layers that it governs.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> from fpsim.recipes.parts import Controller
      >>> Controller(watch="saturation").limits, Controller(high=0.2).limits
      ((0.001, 0.0001), (0.2, 0.01))
    """

    watch: str = "underflow"
    high: float | None = None
    low: float | None = None
    patience: int = 3
    levels: tuple[LinearRecipe | str, ...] = (LINEAR["BF16"], FP32)
    layers: str = "*"

    def __post_init__(self) -> None:
        require_word("watch", self.watch, WATCHED)
        for name in ("high", "low"):
            if getattr(self, name) is not None:
                require_number(name, getattr(self, name))
        high, low = self.limits
        if not low < high:
            raise ValueError(f"low must be below high, so that there is a hysteresis; got {low} and {high}.")
        require_integer("patience", self.patience, 1)
        require_kind("layers", self.layers, str, "a shell pattern such as 'blocks.*.mlp.*'")
        if not isinstance(self.levels, (list, tuple)) or not self.levels:
            raise ValueError(f"levels must be one recipe of linear layers or several; got {shown(self.levels)}.")
        object.__setattr__(self, "levels", tuple(linear_recipe(level) for level in self.levels))

    @property
    def limits(self) -> tuple[float, float]:
        """The limits of the watched quantity, (high, low): a layer moves up above high and down below low."""
        high, low = LIMITS[self.watch]
        return (high if self.high is None else self.high, low if self.low is None else self.low)


@reloadable
@dataclass(frozen=True)
class Stored:
    """The format in which the activations of some modules are kept for the backward pass.

    Args:
      modules: a shell pattern of modules' names: "*.act" (SwiGLU: its input is stored, its output computed again),
        "*.core" (attention), "*.norm*".
      fmt: an element format.
      scaling: the scaling of the elements, over the last two axes; None for a cast without scales.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.
    """

    modules: str
    fmt: ElementLike
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        require_kind("modules", self.modules, str, "a shell pattern such as '*.act'")
        object.__setattr__(self, "fmt", element_format(self.fmt))
        if self.scaling is not None:
            object.__setattr__(self, "scaling", scaling_of(self.scaling, others="or None"))


@dataclass(frozen=True)
class Numerics:
    """Formats of the operations that are no product of a linear layer; None for float32.

    Args:
      softmax: the format of attention's softmax.
      norm: the format of RMSNorm.
      loss: the format of log-softmax and the cross entropy.
      sums: the accumulator of their sums; None for float32.
      attention: the recipe of attention's products, or its name: casts without scales; q k^T takes q as input and k as
        weight, and so does the product of shares and values. None multiplies float32 numbers by `products`.
      products: the accumulator of float32 products that name none: attention's, and those of layers that are kept in
        float32. Training with torch's own arithmetic leaves these products to torch.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> fp.train.recipes.FP32.numerics.products
      FusedMultiplyAdd(FP32)
    """

    softmax: FormatLike | None = None
    norm: FormatLike | None = None
    loss: FormatLike | None = None
    sums: Accumulator | None = None
    attention: LinearRecipe | str | None = None
    products: Accumulator = CHAIN

    def __post_init__(self) -> None:
        for name in ("softmax", "norm", "loss"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else format_argument(name, value))
        require_kind("sums", self.sums, (Accumulator, type(None)), "an accumulator such as fp.Sequential(fp.FP16)")
        require_kind("products", self.products, Accumulator, "an accumulator such as fp.FusedMultiplyAdd(fp.FP32)")
        if self.products.rounding is Rounding.STOCHASTIC:
            raise ValueError(
                "products must be an accumulator that draws nothing, as every product would draw the same numbers; got "
                f"{self.products!r}. Take fp.FusedMultiplyAdd(fp.FP32), say."
            )
        refuse_unless_held(self.products.result_format, named.FP32, "take an accumulator in FP32")
        if self.attention is not None:
            object.__setattr__(self, "attention", _without_scales(linear_recipe(self.attention, "attention")))


def _without_scales(attention: LinearRecipe) -> LinearRecipe:
    """Return a recipe of attention's products, or raise a ValueError if it does more than cast, multiply and round."""
    scaled = any(getattr(attention, f"{operand}_scaling") is not None for operand in OPERANDS)
    draws = {rounding_mode(attention.rounding), rounding_mode(attention.grad_rounding)} & {Rounding.STOCHASTIC}
    if scaled or draws or attention.hadamard or attention.delayed is not None:
        raise ValueError(
            f"attention must be a recipe whose casts have no scales and draw nothing; got {attention!r}. Take 'BF16' "
            "or 'FP16', or leave attention out."
        )
    return attention


def words_of(name: str, value: Sequence[str] | str) -> tuple[str, ...]:
    """Return one text or several as a tuple."""
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise TypeError(f"{name} must be a text or several; got {shown(value)}.")
    return tuple(words)
