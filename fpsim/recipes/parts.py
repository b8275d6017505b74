"""Parts of a training recipe as data: overrides, controller, stored activations, formats of other operations."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from fpsim.casts.cast import refuse_unless_held
from fpsim.errors import integer_fields, require_kind, require_word, shown, texts_of
from fpsim.formats import named
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.element import ElementLike, element_format
from fpsim.formats.named import format_argument
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.recipes.cast_text import spec_text
from fpsim.recipes.linear import FP32, LINEAR, linear_recipe
from fpsim.recipes.linear_recipe import PRODUCTS, SCALINGS, LinearRecipe
from fpsim.recipes.optimizer_recipe import require_number
from fpsim.reload import reloadable
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.shaped import CHAIN
from fpsim.sums.accumulators import Accumulator

# Metrics that a controller may watch, each with its default limits (high, low).
# Values beyond the range are the largest ones: saturating one in a thousand does more harm than five in a hundred that
# become 0. The gradient norm is relative to its average so far, so it is about 1 in stable training.
LIMITS: dict[str, tuple[float, float]] = {
    "underflow": (0.05, 0.01), "saturation": (1e-3, 1e-4), "at_maximum": (0.05, 0.01), "gradient_norm": (2.0, 1.2),
}  # fmt: skip
WATCHED = tuple(LIMITS)


@reloadable
@dataclass(frozen=True)
class Override:
    """A linear recipe that some layers and products follow instead of the main one, during some of the steps.

    Args:
      layers: a shell pattern of layers' names, such as "blocks.*.mlp.*".
      products: the products that follow the override, one or more of "fprop", "dgrad" and "wgrad".
      start, stop: the range of steps as shares of the run: 0.85 and 1.0 are the last 15 %.
      linear: the recipe to follow, a `fpsim.torch.LinearRecipe` or the name of one in fp.torch.RECIPES.

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
        object.__setattr__(self, "products", texts_of("products", self.products))
        for product in self.products:
            require_word("product", product, PRODUCTS)
        if not self.products:
            raise ValueError(f"products must be one of {', '.join(PRODUCTS)}, or several; got none.")
        for name in ("start", "stop"):
            require_number(name, getattr(self, name), highest=1.0)
        if not self.start < self.stop:
            raise ValueError(
                f"start must be below stop, or the override never applies; got {self.start} and {self.stop}."
            )
        object.__setattr__(self, "linear", linear_recipe(self.linear))

    def holds(self, layer: str, step: int, steps: int) -> bool:
        """Return whether the override applies to a layer at a step, counted from 0, of a run of `steps` steps.

        layer: the layer's name. The field `products` is not considered.
        """
        first, end = (round(share * steps, 6) for share in (self.start, self.stop))  # 0.07 * 100 is above 7
        return fnmatchcase(layer, self.layers) and first <= step < end


@dataclass(frozen=True)
class Controller:
    """A rule that moves each layer to more or less precise recipes by a measured metric, with hysteresis.

    At level 0 a layer follows the recipe's own linear recipe, at level i levels[i - 1]. It moves one level up after its
    metric was above `high` for `patience` steps in a row. It moves one level down after the metric that it would have
    one level below was under `low` for `patience` steps in a row. Over micro-batches and processes the largest metric
    counts; NaN counts as too high. Layers that `Recipe.keep` leaves in float32 have no levels.

    Args:
      watch: "underflow" (share of the output gradient's non-zero values that become zero), "saturation" (share of
        its values beyond the format's range), "at_maximum" (share of its codes at the largest magnitude), or
        "gradient_norm" (norm of the layer's weight gradient over its average so far).
      high, low: the values of the metric above which a layer moves up, and below which it moves down; low < high. None
        for 0.05 and 0.01 ("underflow", "at_maximum"), 0.001 and 0.0001 ("saturation"), 2 and 1.2 ("gradient_norm").
      patience: the number of steps in a row after which a layer moves.
      levels: linear recipes, or names in fp.torch.RECIPES, in order of precision, the most precise one last.
      layers: a shell pattern of the names of the layers that the controller governs.

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
        integer_fields(self, "patience", lowest=1)
        require_kind("layers", self.layers, str, "a shell pattern such as 'blocks.*.mlp.*'")
        if not isinstance(self.levels, (list, tuple)) or not self.levels:
            raise ValueError(f"levels must be one recipe of linear layers or several; got {shown(self.levels)}.")
        object.__setattr__(self, "levels", tuple(linear_recipe(level) for level in self.levels))

    @property
    def limits(self) -> tuple[float, float]:
        """Limits (high, low) of the metric `watch`, with the metric's defaults for fields that are None."""
        high, low = LIMITS[self.watch]
        return (high if self.high is None else self.high, low if self.low is None else self.low)


@reloadable
@dataclass(frozen=True)
class Stored:
    """The format in which the activations of some modules are stored for the backward pass.

    Args:
      modules: a shell pattern of modules' names: "*.act" (SwiGLU, whose input is stored and whose output is computed
        again), "*.core" (attention), "*.norm*".
      fmt: the element format.
      scaling: the scaling, with tiles over the last two axes; None for a cast without scales.

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
        spec_text(self.fmt, self.scaling, "nearest_even", None, "keep", 32)  # refuses a format that needs a scale


@dataclass(frozen=True)
class Numerics:
    """Formats of a model's operations besides the products of linear layers.

    Args:
      softmax: the format of each step of attention's softmax; None for float32.
      norm: the format of each step of RMSNorm; None for float32.
      loss: the format of each step of log-softmax and the cross entropy; None for float32.
      sums: the accumulator of the sums in these three; None for float32.
      attention: the linear recipe, without scales, of attention's products, or its name; in q k^T, q is cast as input
        and k as weight, and in p v, p as input and v as weight. None leaves the operands in float32.
      products: the accumulator of float32 products: attention's, and those of layers in float32. In runs with
        arithmetic="torch", an argument of `fp.train.run`, torch computes these products instead.

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
        for name in ("sums", "products"):
            accumulator = getattr(self, name)
            if accumulator is not None and accumulator.rounding is Rounding.STOCHASTIC:
                raise ValueError(
                    f"{name} must be an accumulator that draws nothing, as all {name} would draw the same numbers; got "
                    f"{accumulator!r}. Take fp.FusedMultiplyAdd(fp.FP32), say."
                )
        refuse_unless_held(self.products.result_format, named.FP32, "take an accumulator in FP32")
        if self.attention is not None:
            object.__setattr__(self, "attention", _without_scales(linear_recipe(self.attention, "attention")))


def _without_scales(attention: LinearRecipe) -> LinearRecipe:
    """Check a linear recipe for attention's products, and return it unchanged.

    Raises:
      ValueError: it has scales, stochastic rounding, a Hadamard transform or a stash format.
    """
    scaled = attention.delayed is not None or any(getattr(attention, field) not in (None, "same") for field in SCALINGS)
    draws = {rounding_mode(attention.rounding), rounding_mode(attention.grad_rounding)} & {Rounding.STOCHASTIC}
    if scaled or draws or attention.hadamard or attention.stash_fmt is not None:
        raise ValueError(
            "attention must be a recipe whose casts have no scales and draw nothing, without hadamard and stash_fmt; "
            f"got {attention!r}. Take 'BF16' or 'FP16', or leave attention out."
        )
    return attention
