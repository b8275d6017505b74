"""Training recipes as data: formats, scalings and arithmetic of all that training stores or multiplies."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any

from fpsim.errors import require_kind, require_word, shown, texts_of
from fpsim.formats.cast_options import FormatLike
from fpsim.recipes import written
from fpsim.recipes.linear import FP32, linear_recipe
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.recipes.loss_scaling import POLICIES, LossScalingPolicy, loss_scaling_policy
from fpsim.recipes.optimizer_recipe import OptimizerRecipe, kept_format, require_number
from fpsim.recipes.parts import Controller, Numerics, Override, Stored
from fpsim.reload import reloadable

ADAMW, FLOAT32 = OptimizerRecipe(), Numerics()
PARAMETRISATIONS = ("standard", "unit")


@reloadable
@dataclass(frozen=True)
class Recipe:
    """The formats and arithmetic by which a model is trained, as data.

    Args:
      name: the recipe's name.
      linear: formats, scalings and arithmetic of linear layers: a `fp.torch.LinearRecipe`, or the name of one.
      keep: shell patterns of the linear layers that stay in float32.
      overrides: recipes for some layers, products and steps; if several apply, the last one counts.
      controller: the rule that changes layers' precision by a measured metric; None for none.
      stored: formats of activations that are stored for the backward pass.
      numerics: formats of softmax, norm and loss, and the arithmetic of attention.
      loss_scaling: a policy or its name: "none", "static", "dynamic", "ema", or a faulty one.
      loss_factor: a further factor of the loss, by which gradients are divided again: a small factor shows
        how the recipe treats gradients that are that much smaller; 2**-126 to 2**126.
      optimizer: learning rate, clipping, formats of moments and weights.
      reduction: the format that gradients of micro-batches and processes are rounded to before they are added, in
        float32 and in order; None for float32.
      gradients: the format in which a process stores gradients; None for float32. A micro-batch's gradients are rounded
        to it and added to the stored sum, which is rounded to it again, to nearest even (docs/systems.md).
      parametrisation: the model's parametrisation: "standard", or "unit" (unit scaling).
      source: the library or paper that the recipe comes from.

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> from fpsim.train import recipes
      >>> mine = recipes.DEEPSEEK_V3.replace(name="mine", loss_factor=2.0**-12)
      >>> mine.differences(recipes.DEEPSEEK_V3)
      ['loss_factor: 0.000244140625 instead of 1.0']
    """

    name: str = ""
    linear: LinearRecipe | str = FP32
    keep: tuple[str, ...] = ("head",)  # as DeepSeek-V3 does, arXiv:2412.19437, 3.3.1
    overrides: tuple[Override, ...] = ()
    controller: Controller | None = None
    stored: tuple[Stored, ...] = ()
    numerics: Numerics = FLOAT32
    loss_scaling: LossScalingPolicy | str = POLICIES["none"]  # only FP16 needs one: others have range or scales
    loss_factor: float = 1.0  # smaller ones show which gradients underflow
    optimizer: OptimizerRecipe = ADAMW
    reduction: FormatLike | None = None  # torch.distributed sends gradients without a cast
    gradients: FormatLike | None = None
    parametrisation: str = "standard"  # GPT-2's
    source: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        for text in ("name", "source"):
            require_kind(text, getattr(self, text), str, "a text")
        object.__setattr__(self, "linear", linear_recipe(self.linear))
        object.__setattr__(self, "keep", texts_of("keep", self.keep))
        for name, kind in (("overrides", Override), ("stored", Stored)):
            rows = getattr(self, name)
            if not isinstance(rows, (list, tuple)) or not all(isinstance(row, kind) for row in rows):
                raise TypeError(f"{name} must be a tuple of {kind.__name__}; got {shown(rows)}.")
            object.__setattr__(self, name, tuple(rows))
        require_kind("controller", self.controller, (Controller, type(None)), "a Controller or None")
        require_kind("numerics", self.numerics, Numerics, "a Numerics")
        object.__setattr__(self, "loss_scaling", loss_scaling_policy(self.loss_scaling))
        require_number("loss_factor", self.loss_factor, positive=True)
        if not 2.0**-126 <= self.loss_factor <= 2.0**126:  # float32 also holds the inverse, which multiplies gradients
            raise ValueError(f"loss_factor must be in 2**-126 .. 2**126; got {self.loss_factor}.")
        require_kind("optimizer", self.optimizer, OptimizerRecipe, "an OptimizerRecipe")
        for name in ("reduction", "gradients"):
            object.__setattr__(self, name, kept_format(name, getattr(self, name)))
        require_word("parametrisation", self.parametrisation, PARAMETRISATIONS)

    def replace(self, **changes: Any) -> Recipe:
        """Return a copy of the recipe with other values of some fields; changes: the fields by name.

        Raises:
          ValueError: an unknown field.
        """
        names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            require_word("field", name, names)
        return dataclasses.replace(self, **changes)

    def operands_only(self) -> Recipe:
        """Return a recipe that rounds only the operands of linear layers' products, with the head in float32.

        Results are not rounded to `out_fmt`, each operand is rounded once from its original, and activations are kept
        unrounded. Emulators that cast only before products compute this. Overrides and the controller's levels are
        changed the same way; optimizer, loss scaling and reduction are not changed.

        Example:
          >>> from fpsim.train import recipes
          >>> recipe = recipes.BF16.operands_only()
          >>> recipe.name, recipe.keep, recipe.linear.fprop.out_fmt
          ('BF16, operands only', ('head',), None)
        """
        controller = self.controller
        if controller is not None:
            levels = tuple(linear_recipe(level).operands_only() for level in controller.levels)
            controller = dataclasses.replace(controller, levels=levels)
        overrides = (
            dataclasses.replace(row, linear=linear_recipe(row.linear).operands_only()) for row in self.overrides
        )  # fmt: skip
        kept = any(fnmatchcase("head", pattern) for pattern in self.keep)
        return self.replace(
            name=f"{self.name}, operands only" if self.name else "", linear=linear_recipe(self.linear).operands_only(),
            keep=self.keep if kept else (*self.keep, "head"), overrides=tuple(overrides), controller=controller,
            stored=(), numerics=FLOAT32,
        )  # fmt: skip

    def linear_of(self, layer: str, product: str, step: int, steps: int) -> LinearRecipe:
        """Return the linear recipe that a layer's product follows at a step, counted from 0, of a run of `steps` steps.

        The last override that applies gives the recipe. Without one it is FP32 for a layer that matches `keep`, and the
        field `linear` for others. The controller is ignored. layer: the layer's name. product: "fprop", "dgrad" or
        "wgrad".
        """
        linear = FP32 if any(fnmatchcase(layer, pattern) for pattern in self.keep) else self.linear
        for override in self.overrides:
            if product in override.products and override.holds(layer, step, steps):
                linear = override.linear
        assert isinstance(linear, LinearRecipe)
        return linear

    def to_toml(self, path: str | PathLike[str] | None = None) -> str:
        """Return the recipe as TOML, and write it to a file if a path is given.

        Example:
          >>> from fpsim.train import recipes
          >>> print(recipes.BF16.to_toml())
          name = "BF16"
          linear = "BF16"
          keep = []
          source = "torch.autocast(dtype=torch.bfloat16): operands and results in BF16, sums in float32"
          <BLANKLINE>
        """
        return written.write(self, path)

    @classmethod
    def from_toml(cls, path: str | PathLike[str]) -> Recipe:
        """Return the recipe in a TOML file, or in a text of TOML that has a line break.

        Raises:
          TypeError, ValueError: the file or text describes no recipe; the message names the field.
          OSError: the file cannot be read.
        """
        return cls.from_plain(written.read(path))

    def to_plain(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults as a dict, for JSON or TOML.

        Its values are str, numbers, bools, and lists and dicts of these.
        """
        return written.plain(self)

    @classmethod
    def from_plain(cls, table: Mapping[str, Any]) -> Recipe:
        """Return the recipe that a dict describes, such as `to_plain` returns.

        table: {name of a field: its value as str, number, bool, list or dict}.

        Raises:
          TypeError, ValueError: a key is not a field's name, or a field cannot have its value.
        """
        return written.structured(table, cls)

    def differences(self, other: Recipe) -> list[str]:
        """List the fields in which this recipe differs from `other`, as texts: "loss_factor: 0.5 instead of 1.0".

        Differences in name and source are ignored.
        """
        require_kind("other", other, Recipe, "a Recipe")
        return written.differences(self.replace(name="", source=""), other.replace(name="", source=""))

    def __repr__(self) -> str:
        return f"<Recipe {self.name or 'without a name'}: linear layers {self.linear!r}>"
