"""Linear layers whose operands are quantised, forwards and backwards, by a recipe; and a swap of those in a model."""

from __future__ import annotations

import copy
import difflib
import warnings
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from fpsim.errors import SHOWN, shown
from fpsim.recipes.blocks import STRICT, block_of
from fpsim.recipes.linear import FP32
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.look_up import find_either
from fpsim.recipes.training_recipe import Recipe
from fpsim.torch.delayed import GRAD, INPUT, WEIGHT, first_state, quantized
from fpsim.torch.hadamard import hadamard
from fpsim.torch.operators import Tensor, array_of, operator, refuse_tangent, tensor_of, torch
from fpsim.torch.plan import LayerPlan, plan_from, plan_of
from fpsim.torch.products import CastOperand, multiply
from fpsim.torch.trace import ProductCall, is_watched, show

# ---- the operators


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, step: Tensor | None, state: Tensor | None, live: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """y, and the state of delayed scales after it, empty where there is none."""
    casts = plan_from(plan)
    left, row_x = quantized(x, casts.input, step, casts, _row(state, INPUT))
    right, row_w = quantized(weight, casts.weight, step, casts, _row(state, WEIGHT))
    y = _shown("fprop", left, right, "b", bias, casts)
    return y.to(x.dtype), _with_rows(state, {INPUT: row_x, WEIGHT: row_w})  # (tokens, out)


# The products are part of the operators, so that compiled graphs sum in the order of eager mode.
_product_op = operator(
    "fpsim::linear", _product,
    "(Tensor x, Tensor weight, Tensor? bias, Tensor? step, Tensor? state, Tensor? live, str plan) "
    "-> (Tensor, Tensor)",
)  # fmt: skip


@_product_op.register_fake
def _(
    x: Tensor, weight: Tensor, bias: Tensor | None, step: Tensor | None, state: Tensor | None, live: Tensor | None,
    plan: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return x.new_empty((x.shape[0], weight.shape[0])), x.new_empty(() if state is None else state.shape)


def _gradients(
    dy: Tensor, x: Tensor, weight: Tensor, step: Tensor | None, state: Tensor | None, live: Tensor | None, plan: str,
    of_x: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dx and dw in the dtype of the product, empty where not asked for, and the state after them."""
    casts = plan_from(plan)
    dx, dw = dy.new_zeros(()), dy.new_zeros(())
    row = grad = None
    if of_x or not casts.hadamard:
        grad, row = quantized(dy, casts.grad, step, casts, _row(live, GRAD))
    if of_x:
        assert grad is not None
        right, _ = quantized(weight, casts.weight_backward, step, casts, _row(state, WEIGHT))
        dx = _shown("dgrad", grad, right, "", None, casts)  # (tokens, in)
    if of_weight:
        kept = x
        if casts.stash.spec:
            kept = tensor_of(quantized(x, casts.stash, step, casts, _row(state, INPUT))[0].values)
        if casts.hadamard:
            dy, kept = _mixed(dy, casts), _mixed(kept, casts)
        if casts.hadamard or casts.grad_backward != casts.grad:
            grad, _ = quantized(dy, casts.grad_backward, step, casts, _row(live, GRAD))
        right, _ = quantized(kept, casts.input_backward, step, casts, _row(state, INPUT))
        assert grad is not None
        dw = _shown("wgrad", grad, right, "a", None, casts)  # (out, in)
    return dx, dw, _with_rows(live, {GRAD: row})


_gradients_op = operator(
    "fpsim::linear_gradients", _gradients,
    "(Tensor dy, Tensor x, Tensor weight, Tensor? step, Tensor? state, Tensor? live, str plan, bool of_x, "
    "bool of_weight) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip


@_gradients_op.register_fake
def _(
    dy: Tensor, x: Tensor, weight: Tensor, step: Tensor | None, state: Tensor | None, live: Tensor | None, plan: str,
    of_x: bool, of_weight: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dtype = _product_dtype(dy)
    dx = dy.new_empty(x.shape, dtype=dtype) if of_x else dy.new_empty(())
    dw = dy.new_empty(weight.shape, dtype=dtype) if of_weight else dy.new_empty(())
    return dx, dw, dy.new_empty(() if live is None else live.shape)


def _product_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _shown(product: str, a: CastOperand, b: CastOperand, turned: str, bias: Tensor | None, plan: LayerPlan) -> Tensor:
    """A product, shown to whoever watches."""
    how = plan.of(product)
    found = multiply(a, b, turned, how, bias, plan.backend)
    if is_watched():
        left, right = a.transposed if turned == "a" else a, b.transposed if turned == "b" else b
        added = None if bias is None else array_of(bias)
        # copies, since weights and gradients change in place while whoever watches may still hold the call
        left, right = (each._replace(source=each.source.copy()) for each in (left, right))
        show(ProductCall(plan.name, product, left, right, how, array_of(found).copy(), added))
    return found


def _mixed(x: Tensor, plan: LayerPlan) -> Tensor:
    if x.shape[0] % plan.hadamard:
        raise ValueError(
            f"the Hadamard transform of {plan.hadamard} terms needs a multiple of as many tokens; got {x.shape[0]}."
        )
    return tensor_of(hadamard(array_of(x.float()), plan.hadamard, plan.signs))


def _row(state: Tensor | None, row: int) -> Tensor | None:
    return None if state is None else state[row]


def _with_rows(state: Tensor | None, rows: dict[int, Tensor | None]) -> Tensor:
    if state is None:
        return torch.zeros(())
    new = state.clone()
    for row, values in rows.items():
        if values is not None:
            new[row] = values
    return new


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, step, state, ctx.live, ctx.plan = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, step, state)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    x, weight, step, state = ctx.saved_tensors
    of_x, of_weight, of_bias = ctx.needs_input_grad[:3]
    dx = dw = db = None
    if dy is not None:
        dx, dw, live = _gradients_op(dy, x, weight, step, state, ctx.live, ctx.plan, of_x, of_weight)
        dx, dw = dx.to(x.dtype) if of_x else None, dw.to(weight.dtype) if of_weight else None
        if ctx.live is not None:
            ctx.live.copy_(live.detach())
        if ctx.bias_dtype is not None and of_bias:
            db = dy.to(_product_dtype(dy)).sum(0).to(ctx.bias_dtype)
    return dx, dw, db, None, None, None, None


_product_op.register_autograd(_backward, setup_context=_setup)


# ---- the layer


class QuantLinear(torch.nn.Linear):
    """A linear layer whose matrix products read quantised operands; parameters are those of `torch.nn.Linear`.

    Operands are quantised and multiplied as `LinearRecipe` says: by a matrix unit with all its bits, or by torch in
    float32 (float64 for a float64 input), where the order and width of the sums are torch's. The bias is added in
    float32 before the result is rounded to its format; y has the input's dtype.

    A recipe with a stochastic mode keeps a buffer, `steps`, that counts forward passes in training, and one with
    delayed scales a buffer `scales`; both are saved with the state, and state of a plain `torch.nn.Linear` loads as
    well. Other recipes have the keys of `torch.nn.Linear`.

    Args:
      in_features, out_features, bias, device, dtype: as of `torch.nn.Linear`.
      recipe: formats and scalings.
      name: of the layer, which stochastic draws depend on; `quantize_linears` gives the qualified name.
      backend: what multiplies: "emulated" on the CPU; "float32", torch in place of every unit; "gpu", emulated there;
        "hardware", the tensor cores of this machine. The layer and its input are on the CPU, where casts run, for
        all of them; the last two bring what they multiply to the GPU.

    Raises:
      TypeError: recipe is no LinearRecipe.
      ValueError: an unknown backend.

    Example:
      >>> import torch
      >>> layer = fp.torch.QuantLinear(256, 128, recipe=fp.torch.DEEPSEEK_V3)
      >>> layer(torch.ones(4, 256)).shape, sorted(layer.state_dict())
      (torch.Size([4, 128]), ['bias', 'weight'])
    """

    recipe: LinearRecipe
    quant_name: str
    backend: str
    plan: str
    steps: Tensor | None
    scales: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None, *,
        recipe: LinearRecipe, name: str = "", backend: str = "emulated",
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set_recipe(recipe, name, backend)

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, recipe: LinearRecipe, name: str = "", backend: str = "emulated"
    ) -> QuantLinear:
        """A quantised layer with the same parameters, hooks and mode as a linear layer, which stays as it is.

        Example:
          >>> import torch
          >>> linear = torch.nn.Linear(32, 8)
          >>> fp.torch.QuantLinear.from_linear(linear, fp.torch.MXFP8).weight is linear.weight
          True
        """
        _refuse_no_linear(linear)
        twin = copy.copy(linear)
        for table in ("_parameters", "_buffers", "_modules"):
            twin.__dict__[table] = twin.__dict__[table].copy()
        return cls._take_over(twin, recipe, name, backend)

    @classmethod
    def _take_over(cls, linear: torch.nn.Linear, recipe: LinearRecipe, name: str, backend: str) -> QuantLinear:
        """Make a linear layer one of this class, in place."""
        _refuse_no_recipe(recipe)
        linear.__class__ = cls
        assert isinstance(linear, cls)
        linear._set_recipe(recipe, name, backend)
        return linear

    def _set_recipe(self, recipe: LinearRecipe, name: str, backend: str) -> None:
        _refuse_no_recipe(recipe)
        self.recipe, self.quant_name, self.backend = recipe, name, backend
        self.register_buffer("steps", None)
        self.register_buffer("scales", None)
        self._set_plan(plan_of(recipe, name, backend))

    def follow(self, fprop: LinearRecipe, dgrad: LinearRecipe, wgrad: LinearRecipe) -> None:
        """Take each product, its operands included, from a recipe of its own, from the next forward pass on.

        Counts of steps and scales of earlier steps stay as they are.

        Raises:
          ValueError: two recipes have delayed scales with other options.

        Example:
          >>> import torch
          >>> layer = fp.torch.QuantLinear(128, 64, recipe=fp.torch.NVFP4)
          >>> layer.follow(fp.torch.RECIPES["BF16"], fp.torch.NVFP4, fp.torch.NVFP4)
          >>> layer(torch.ones(2, 128)).shape
          torch.Size([2, 64])
        """
        for recipe in (fprop, dgrad, wgrad):
            _refuse_no_recipe(recipe)
        options = {recipe.delayed for recipe in (fprop, dgrad, wgrad) if recipe.delayed is not None}
        if len(options) > 1:
            raise ValueError(f"the products of a layer must share the options of delayed scales; got {options}.")
        plans = [plan_of(recipe, self.quant_name, self.backend) for recipe in (fprop, dgrad, wgrad)]
        self.recipe = fprop
        self._set_plan(plans[0].with_product("dgrad", plans[1]).with_product("wgrad", plans[2]))

    def _set_plan(self, plan: LayerPlan) -> None:
        """Follow a plan, with the buffers that it needs."""
        self.plan = plan.text
        if plan.draws and self.steps is None:
            self.steps = torch.zeros((), dtype=torch.int64, device=self.weight.device)
        if plan.delayed is not None and self.scales is None:
            self.scales = first_state(plan.delayed[0])

    def forward(self, input: Tensor) -> Tensor:
        """y of shape (..., out_features) for x of shape (..., in_features)."""
        x = input
        self._refuse(x)
        refuse_tangent("QuantLinear", input=x, weight=self.weight, bias=self.bias)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        step = None
        if self.steps is not None:
            step = self.steps.clone()
            if self.training and torch.is_grad_enabled():
                self.steps.add_(1)
        updates = self.scales is not None and self.training and torch.is_grad_enabled()
        state = None if self.scales is None else self.scales.clone()
        live = self.scales if updates else None
        rows = x.reshape(-1, self.in_features)
        y: Tensor
        y, after = _product_op(rows, self.weight, self.bias, step, state, live, self.plan)
        if updates:
            assert self.scales is not None
            self.scales.copy_(after.detach())
        return y.reshape(*x.shape[:-1], self.out_features)

    def _refuse(self, x: Tensor) -> None:
        """An error unless x is a tensor of floats on the CPU with as many features as the layer takes."""
        for name, tensor, whole in (("input", x, "input"), ("weight", self.weight, "model")):
            if tensor.device.type not in ("cpu", "meta"):
                raise ValueError(
                    f"{name} must be a tensor on the CPU, whatever the backend; got one on {tensor.device}. Use "
                    f"{whole}.cpu(): backend='gpu' and 'hardware' bring what they multiply to the GPU themselves."
                )
        if not x.is_floating_point():
            raise TypeError(f"input must be a tensor of floats; got {x.dtype}. Convert with input.float().")
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"input must have {self.in_features} features in its last axis; got {tuple(x.shape)}.")

    def extra_repr(self) -> str:
        """Sizes and the recipe."""
        return f"{super().extra_repr()}, recipe={self.recipe!r}"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """As for any module, but state without a count of steps or scales leaves them as they are."""
        for name in ("steps", "scales"):
            if getattr(self, name) is not None and f"{prefix}{name}" not in state_dict:
                state_dict = {**state_dict, f"{prefix}{name}": getattr(self, name)}
        super()._load_from_state_dict(state_dict, prefix, *rest)


def _refuse_no_recipe(recipe: object) -> None:
    if not isinstance(recipe, LinearRecipe):
        raise TypeError(
            f"recipe must be an fp.torch.LinearRecipe, such as fp.torch.DEEPSEEK_V3; got {type(recipe).__name__}."
        )


def _refuse_no_linear(linear: object) -> None:
    if type(linear) is not torch.nn.Linear:
        raise TypeError(f"linear must be a torch.nn.Linear, and no subclass; got {type(linear).__name__}.")


# ---- models


def quantize_linears(
    model: torch.nn.Module,
    recipe: Any,
    pattern: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
    *,
    backend: str = "emulated",
) -> list[str]:
    """Make linear layers of a model quantised ones, in place: each layer stays the object that it is.

    So parameters, tied weights, optimisers, hooks, buffers, modes and every reference to a layer stay valid. Layers of
    subclasses of `torch.nn.Linear` are left alone: those that are quantised already, and those whose weights other
    code reads without calling them (the output projection of `torch.nn.MultiheadAttention`). In evaluation
    `torch.nn.TransformerEncoderLayer` takes a fused path that would skip its layers; it is switched off where needed.

    Where a product's terms are no multiple of those that share a scale, the last block is filled up with zeros, as
    DeepGEMM's kernels do and as a padded layer would have it. Transformer Engine, `fp.train` and `fp.analysis.plan`
    ask for whole blocks, so features that are none give a warning; tokens, which only a batch has, do not.

    Args:
      model: any module.
      recipe: formats and scalings: a LinearRecipe, or the name of one; or a recipe of training (`fp.train.Recipe`,
        the name of one, or the path of one in TOML), of which layers follow `linear` and the overrides, product by
        product, and those that it keeps stay as they are; or a plan of `fp.analysis.plan`, which is such a recipe.
      pattern: shell pattern, or several, of qualified names such as "blocks.*.mlp.*"; case matters.
      exclude: names to leave alone, in the same way.
      backend: what multiplies, as of `QuantLinear`.

    Returns:
      Qualified names of the layers that were swapped ("" for the model itself), in the model's order.

    Raises:
      ValueError: no linear layer has such a name, the message lists those that there are; an override matches none,
        or holds for some of the steps of a training only.
      TypeError: model is no module, or recipe neither.
      OSError: the file cannot be read.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
      >>> fp.torch.quantize_linears(model, fp.torch.TE_HYBRID, exclude="2")
      ['0']
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    included, excluded = _patterns(pattern, "pattern"), _patterns(exclude, "exclude")
    overrides: tuple[Any, ...] = ()
    kept: tuple[str, ...] = ()
    recipe = find_either(recipe)
    if isinstance(recipe, Recipe):
        recipe, overrides, kept = recipe.linear, _lasting(recipe), recipe.keep
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is torch.nn.Linear:
            names.setdefault(module, []).append(name)
    known_names = [name for layer_names in names.values() for name in layer_names]
    _refuse_lost_overrides(overrides, known_names)
    layers = {
        module: layer_names[0]
        for module, layer_names in names.items()
        if any(fnmatchcase(name, glob) for name in layer_names for glob in included)
        and not any(fnmatchcase(name, glob) for name in layer_names for glob in excluded)
        and (
            not any(fnmatchcase(name, glob) for name in layer_names for glob in kept)
            or any(fnmatchcase(layer_names[0], row.layers) for row in overrides)
        )
    }
    if not layers:
        raise ValueError(_nothing_matches(model, known_names, included, excluded, kept))
    filled: list[str] = []
    for module, name in layers.items():
        assert isinstance(module, torch.nn.Linear)
        rest = FP32 if any(fnmatchcase(name, glob) for glob in kept) else recipe
        products = [_followed(rest, overrides, name, product) for product in PRODUCTS]
        filled += _filled_up(module, name, products)
        taken = QuantLinear._take_over(module, products[0], name, backend)
        if products != [products[0]] * 3:
            taken.follow(*products)
    for layer in model.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer) and (layer.linear1 in layers or layer.linear2 in layers):
            layer.activation_relu_or_gelu = 0  # the fused path knows ReLU and GELU only
    if filled:
        more = f" (and {len(filled) - 1} more like it)" if len(filled) > 1 else ""
        warnings.warn(
            f"{filled[0]}{more}: the last block is filled up with zeros, where {STRICT} refuse the layer and "
            "fp.analysis.plan does not offer the recipe. Pad the layer, or leave it out with exclude=.",
            stacklevel=2,
        )
    return list(layers.values())


def _filled_up(layer: torch.nn.Linear, name: str, products: Sequence[LinearRecipe]) -> list[str]:
    """A clause for each product whose features are no whole blocks."""
    said = []
    for product, recipe, length in zip(PRODUCTS, products, (layer.in_features, layer.out_features), strict=False):
        block = block_of(recipe, product)
        if length % block:
            said.append(
                f"{product} of layer {name!r} sums {length} terms, no multiple of the {block} that share a scale "
                f"in {recipe.name or 'the recipe'}"
            )
    return said


def _lasting(recipe: Any) -> tuple[Any, ...]:
    """The overrides of a recipe of training.

    Raises:
      ValueError: one holds for some of the steps only, which a model that is not trained by it does not count.
    """
    for row in recipe.overrides:
        if (row.start, row.stop) != (0.0, 1.0):
            raise ValueError(
                f"recipe must be the same for all steps, which layers do not count; got {recipe.name!r}, where layers "
                f"{row.layers!r} follow another one from {row.start:g} to {row.stop:g} of the steps. Train with "
                "fp.train, or pass its linear."
            )
    return tuple(recipe.overrides)


def _refuse_lost_overrides(overrides: Sequence[Any], names: Sequence[str]) -> None:
    """A ValueError for an override that matches no layer."""
    for row in overrides:
        if not any(fnmatchcase(name, row.layers) for name in names):
            near = ", ".join(map(repr, difflib.get_close_matches(row.layers, names, SHOWN, cutoff=0.0))) or "none"
            raise ValueError(
                "overrides of the recipe must match linear layers of the model; got "
                f"{row.layers!r}, which matches none of {len(names)}. Near it: {near}."
            )


def _followed(rest: LinearRecipe, overrides: Sequence[Any], layer: str, product: str) -> LinearRecipe:
    """What a product follows: the last override that holds, or the rest."""
    found: LinearRecipe = rest
    for row in overrides:
        if product in row.products and fnmatchcase(layer, row.layers):
            found = row.linear
    return found


def _patterns(patterns: str | Sequence[str], label: str) -> list[str]:
    globs = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(globs, Sequence) or not all(isinstance(glob, str) for glob in globs):
        raise TypeError(f"{label} must be a shell pattern or several, such as 'blocks.*.mlp.*'; got {shown(patterns)}.")
    return list(globs)


def _nothing_matches(
    model: torch.nn.Module, names: list[str], included: list[str], excluded: list[str], kept: Sequence[str]
) -> str:
    quantized = sum(isinstance(module, QuantLinear) for module in model.modules())
    without = [f"{', '.join(map(repr, excluded))}"] if excluded else []
    without += [f"{', '.join(map(repr, kept))}, which the recipe keeps"] if kept else []
    but = f" without {' and '.join(without)}{',' if kept else ''}" if without else ""
    known = ", ".join(repr(name) for name in names) if names else "none"
    already = f" Quantised already: {quantized}." if quantized else ""
    globs = ", ".join(map(repr, included))
    return f"pattern {globs}{but} matches no torch.nn.Linear of the model, which has {known}.{already}"
