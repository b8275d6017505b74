"""A recipe for training as data: formats, scalings and arithmetic of everything that is kept or multiplied."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fpsim.analysis.measures.scales.policies import LossScalingPolicy, loss_scaling_policy
from fpsim.errors import require_integer, require_kind, require_word, shown
from fpsim.formats.element import element_format
from fpsim.formats.named import format as find_format
from fpsim.scaling.scaling import Scaling
from fpsim.sums.accumulators import Accumulator
from fpsim.torch.recipe import PRODUCTS, LinearRecipe
from fpsim.torch.rows import FP32, RECIPES
from fpsim.train.optimizer_recipe import OptimizerRecipe, require_number

WATCHED = ("underflow", "saturation", "gradient_norm")
ADAMW = OptimizerRecipe()
PARAMETRISATIONS = ("standard", "unit")


@dataclass(frozen=True)
class Override:
    """Products of some layers that follow another recipe for some of the steps.

    Args:
      layers: a shell pattern of layers' names, such as "blocks.*.mlp.*".
      products: of "fprop", "dgrad" and "wgrad".
      start, stop: the first share of the steps with it, and the first without: 0.85 and 1.0 are the last 15 %.
      linear: what they follow instead, a `fpsim.torch.LinearRecipe` or the name of one in fp.torch.RECIPES.

    Raises:
      TypeError, ValueError: a field that is none of these.

    Example:
      >>> from fpsim.train.recipe import Override
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
        for name in ("start", "stop"):
            require_number(name, getattr(self, name), highest=1.0)
        object.__setattr__(self, "linear", linear_recipe(self.linear))

    def holds(self, layer: str, step: int, steps: int) -> bool:
        """Whether it holds for a layer at a step, counted from 0, of so many."""
        return fnmatchcase(layer, self.layers) and self.start * steps <= step < self.stop * steps


@dataclass(frozen=True)
class Controller:
    """Precision that follows a figure, per layer, with hysteresis.

    Where the figure of a layer lies above `high` for `patience` steps in a row it moves one level up, where it lies
    below `low` for as many steps, one level down. Level 0 is the recipe's own, the levels above are `levels`.

    Args:
      watch: "underflow" (share of the output gradient's non-zero values that become zero), "saturation" (share of
        them at the largest value), or "gradient_norm" (norm of the layer's weight gradient over its average so far).
      high, low: where it moves up and down; low < high.
      patience: steps.
      levels: what layers fall back to, from the nearest to the most exact; names of fp.torch.RECIPES, or recipes.
      layers: a shell pattern of the layers that it governs.

    Raises:
      TypeError, ValueError: a field that is none of these.
    """

    watch: str = "underflow"
    high: float = 0.05
    low: float = 0.01
    patience: int = 3
    levels: tuple[LinearRecipe | str, ...] = ("BF16", "FP32")
    layers: str = "*"

    def __post_init__(self) -> None:
        require_word("watch", self.watch, WATCHED)
        for name in ("high", "low"):
            require_number(name, getattr(self, name))
        if not self.low < self.high:
            raise ValueError(f"low must be below high, so that there is a hysteresis; got {self.low} and {self.high}.")
        require_integer("patience", self.patience, 1)
        require_kind("layers", self.layers, str, "a shell pattern such as 'blocks.*.mlp.*'")
        if isinstance(self.levels, str) or not self.levels:
            raise ValueError(f"levels must be one recipe of linear layers or several; got {shown(self.levels)}.")
        object.__setattr__(self, "levels", tuple(linear_recipe(each) for each in self.levels))


@dataclass(frozen=True)
class Stored:
    """The format in which a module's activations wait for the backward pass.

    Args:
      modules: a shell pattern of modules' names: "*.act" (SwiGLU: its input is stored, its output computed again),
        "*.core" (attention), "*.norm*".
      fmt: an element format.
      scaling: its scales, over the last two axes; None for none.

    Raises:
      TypeError, ValueError: a field that is none of these.
    """

    modules: str
    fmt: Any
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        require_kind("modules", self.modules, str, "a shell pattern such as '*.act'")
        object.__setattr__(self, "fmt", element_format(self.fmt))
        require_kind("scaling", self.scaling, (Scaling, type(None)), "an fp.Scaling or None")


@dataclass(frozen=True)
class Numerics:
    """Formats of what is no matrix product; None for torch's own float32.

    Args:
      softmax: of attention.
      norm: of RMSNorm.
      loss: of log-softmax and the cross entropy.
      sums: the accumulator of their sums; None for float32.

    Raises:
      TypeError, ValueError: a field that is none of these.
    """

    softmax: Any = None
    norm: Any = None
    loss: Any = None
    sums: Accumulator | None = None

    def __post_init__(self) -> None:
        for name in ("softmax", "norm", "loss"):
            value = getattr(self, name)
            object.__setattr__(self, name, None if value is None else find_format(value))
        require_kind("sums", self.sums, (Accumulator, type(None)), "an accumulator such as fp.Sequential(fp.FP16)")


@dataclass(frozen=True)
class Recipe:
    """How a model is trained, as plain values.

    Args:
      name: what it is called.
      linear: formats, scalings and arithmetic of linear layers: a `fp.torch.LinearRecipe`, or the name of one.
      keep: shell patterns of the linear layers that stay in float32.
      overrides: what other layers, products and steps follow; of several that hold, the last one counts.
      controller: precision that follows a figure; None for none.
      stored: formats of activations that wait for the backward pass.
      numerics: formats of softmax, norm and loss.
      loss_scaling: a policy or its name: "none", "static", "dynamic", "ema", or a faulty one.
      loss_factor: the loss is multiplied by it before its scale, and gradients are divided by it, as if they were so
        much smaller.
      optimizer: learning rate, clipping, formats of moments and weights.
      reduction: the format that gradients of micro-batches and processes are rounded to before they are added, in
        float32 and in order; None for float32.
      parametrisation: of the model: "standard", or "unit" (unit scaling).
      source: where it comes from.

    Raises:
      TypeError, ValueError: a field that is none of these.

    Example:
      >>> from fpsim.train import recipes
      >>> mine = recipes.DEEPSEEK_V3.replace(name="mine", loss_factor=2.0**-12)
      >>> mine.differences(recipes.DEEPSEEK_V3)
      ['loss_factor: 0.000244140625 instead of 1.0']
    """

    name: str = ""
    linear: LinearRecipe | str = FP32
    keep: tuple[str, ...] = ("head",)
    overrides: tuple[Override, ...] = ()
    controller: Controller | None = None
    stored: tuple[Stored, ...] = ()
    numerics: Numerics = Numerics()
    loss_scaling: LossScalingPolicy | str = "none"
    loss_factor: float = 1.0
    optimizer: OptimizerRecipe = ADAMW
    reduction: Any = None
    parametrisation: str = "standard"
    source: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        for text in ("name", "source"):
            require_kind(text, getattr(self, text), str, "a text")
        object.__setattr__(self, "linear", linear_recipe(self.linear))
        object.__setattr__(self, "keep", words_of("keep", self.keep))
        for name, kind in (("overrides", Override), ("stored", Stored)):
            rows = getattr(self, name)
            if not isinstance(rows, (list, tuple)) or not all(isinstance(row, kind) for row in rows):
                raise TypeError(f"{name} must be a tuple of {kind.__name__}; got {shown(rows)}.")
            object.__setattr__(self, name, tuple(rows))
        require_kind("controller", self.controller, (Controller, type(None)), "a Controller or None")
        require_kind("numerics", self.numerics, Numerics, "a Numerics")
        object.__setattr__(self, "loss_scaling", loss_scaling_policy(self.loss_scaling))
        require_number("loss_factor", self.loss_factor, positive=True)
        require_kind("optimizer", self.optimizer, OptimizerRecipe, "an OptimizerRecipe")
        if self.reduction is not None:
            object.__setattr__(self, "reduction", find_format(self.reduction))
        require_word("parametrisation", self.parametrisation, PARAMETRISATIONS)

    def replace(self, **changes: Any) -> Recipe:
        """The same recipe with other fields.

        Raises:
          ValueError: an unknown field.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            require_word("field", name, names)
        return dataclasses.replace(self, **changes)

    def linear_of(self, layer: str, product: str, step: int, steps: int) -> LinearRecipe:
        """What a product of a layer follows at a step, the controller aside."""
        found = FP32 if any(fnmatchcase(layer, pattern) for pattern in self.keep) else self.linear
        for override in self.overrides:
            if product in override.products and override.holds(layer, step, steps):
                found = override.linear
        assert isinstance(found, LinearRecipe)
        return found

    def to_toml(self, path: Any = None) -> str:
        """The recipe as TOML, also written to a file where a path is given.

        Example:
          >>> from fpsim.train import recipes
          >>> print(recipes.BF16.to_toml())
          name = "BF16"
          linear = "BF16"
          keep = []
          source = "torch.autocast(dtype=torch.bfloat16): operands and results in BF16, sums in float32"
          <BLANKLINE>
        """
        from fpsim.train.written import write

        return write(self, path)

    @classmethod
    def from_toml(cls, path: Any) -> Recipe:
        """The recipe of a TOML file, or of a text of TOML with a line break.

        Raises:
          ValueError: it is no recipe; the sentence says where.
          OSError: the file cannot be read.
        """
        from fpsim.train.written import read

        return read(path)

    def differences(self, other: Recipe) -> list[str]:
        """What is different from another recipe, one line for each field."""
        from fpsim.train.written import differences

        return differences(self, other)

    def __repr__(self) -> str:
        return f"<Recipe {self.name or 'without a name'}: linear layers {self.linear!r}>"


def linear_recipe(spec: LinearRecipe | str) -> LinearRecipe:
    """A recipe of linear layers, or the row of that name.

    Raises:
      ValueError: no row has that name.
      TypeError: something else.
    """
    if isinstance(spec, LinearRecipe):
        return spec
    if isinstance(spec, Recipe):
        return linear_recipe(spec.linear)
    if not isinstance(spec, str):
        raise TypeError(f"linear must be an fp.torch.LinearRecipe or the name of one; got {shown(spec)}.")
    require_word("linear", spec, tuple(RECIPES))
    return RECIPES[spec]


def words_of(name: str, value: Sequence[str] | str) -> tuple[str, ...]:
    """A word or several as a tuple."""
    words = (value,) if isinstance(value, str) else value
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, str) for word in words):
        raise TypeError(f"{name} must be a text or several; got {shown(value)}.")
    return tuple(words)
