"""Linear layers whose operands are quantised, forwards and backwards, by a recipe; and a swap of those in a model."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from fpsim.errors import shown
from fpsim.torch.operators import Tensor, quantize_op, refuse_tangent, torch
from fpsim.torch.recipe import Cast, LinearRecipe, Plan, plan_of

# ---- the layer


@lru_cache(maxsize=1024)
def _plan_from(text: str) -> Plan:
    *casts, requantize_input = json.loads(text)
    return Plan._make([*(Cast(*cast) for cast in casts), requantize_input])


def _operand(x: Tensor, cast: Cast, step: Tensor | None) -> Tensor:
    """x as the matrix product reads it: float32, float64 for float64 input."""
    if not cast.spec:
        return x.to(_product_dtype(x))
    seed = None if step is None or cast.key < 0 else step + cast.key
    values: Tensor = quantize_op(x, cast.spec, seed, None)
    return values.to(_product_dtype(x))


def _product_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, step: Tensor | None, plan: str) -> Tensor:
    casts = _plan_from(plan)
    left, right = _operand(x, casts.input, step), _operand(weight, casts.weight, step)
    with torch.autocast("cpu", enabled=False):
        y = torch.nn.functional.linear(left, right.to(left.dtype), None if bias is None else bias.to(left.dtype))
    return y.to(x.dtype)  # (tokens, out)


# The products are part of the operators, so that compiled graphs sum in the order of eager mode.
_product_op = torch.library.custom_op(
    "fpsim::linear", _product, mutates_args=(),
    schema="(Tensor x, Tensor weight, Tensor? bias, Tensor? step, str plan) -> Tensor",
)  # fmt: skip


@_product_op.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, step: Tensor | None, plan: str) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]))


def _gradient(dy: Tensor, other: Tensor, step: Tensor | None, plan: str, of: str) -> Tensor:
    """The gradient of "input" (other: w) or "weight" (other: x), in the dtype of the product."""
    casts = _plan_from(plan)
    with torch.autocast("cpu", enabled=False):
        if of == "input":
            left, right = _operand(dy, casts.grad, step), _operand(other, casts.weight_backward, step)
            return left @ right.to(left.dtype)  # (tokens, in)
        left = _operand(dy, casts.grad_backward, step).t()
        original = _operand(other, casts.input, step) if casts.requantize_input else other
        return left @ _operand(original, casts.input_backward, step)  # (out, in)


_gradient_op = torch.library.custom_op(
    "fpsim::linear_gradient", _gradient, mutates_args=(),
    schema="(Tensor dy, Tensor other, Tensor? step, str plan, str of) -> Tensor",
)  # fmt: skip


@_gradient_op.register_fake
def _(dy: Tensor, other: Tensor, step: Tensor | None, plan: str, of: str) -> Tensor:
    rows = dy.shape[0] if of == "input" else dy.shape[1]
    return dy.new_empty((rows, other.shape[1]), dtype=_product_dtype(dy))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias, step, ctx.plan = inputs
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, step)


def _backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight, step = ctx.saved_tensors
    dx = dw = db = None
    if ctx.needs_input_grad[0]:
        dx = _gradient_op(dy, weight, step, ctx.plan, "input").to(x.dtype)
    if ctx.needs_input_grad[1]:
        dw = _gradient_op(dy, x, step, ctx.plan, "weight").to(weight.dtype)
    if ctx.bias_dtype is not None and ctx.needs_input_grad[2]:
        db = dy.to(_product_dtype(dy)).sum(0).to(ctx.bias_dtype)
    return dx, dw, db, None, None


_product_op.register_autograd(_backward, setup_context=_setup)


class QuantLinear(torch.nn.Linear):
    """A linear layer whose matrix products read quantised operands; parameters are those of `torch.nn.Linear`.

    Operands are quantised as `LinearRecipe` says. torch multiplies them in float32 (float64 for a float64 input) and
    adds the bias there; the result is rounded to the input's dtype. So formats, scales and roundings of the operands
    are exact, while the order and width of the sums are torch's.

    A recipe with a stochastic mode keeps a buffer, `steps`, that counts forward passes in training and is saved with
    the state; state of a plain `torch.nn.Linear` loads as well. Other recipes have the keys of `torch.nn.Linear`.

    Args:
      in_features, out_features, bias, device, dtype: as of `torch.nn.Linear`.
      recipe: formats and scalings.
      name: of the layer, which stochastic draws depend on; `quantize_linears` gives the qualified name.

    Raises:
      TypeError: recipe is no LinearRecipe.

    Example:
      >>> import torch
      >>> layer = fp.torch.QuantLinear(256, 128, recipe=fp.torch.DEEPSEEK_V3)
      >>> layer(torch.ones(4, 256)).shape, sorted(layer.state_dict())
      (torch.Size([4, 128]), ['bias', 'weight'])
    """

    recipe: LinearRecipe
    quant_name: str
    plan: str
    steps: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None, *,
        recipe: LinearRecipe, name: str = "",
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set_recipe(recipe, name)

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, recipe: LinearRecipe, name: str = "") -> QuantLinear:
        """A quantised layer with the same parameters, hooks and mode as a linear layer, which stays as it is.

        Example:
          >>> import torch
          >>> linear = torch.nn.Linear(32, 8)
          >>> fp.torch.QuantLinear.from_linear(linear, fp.torch.MXFP8).weight is linear.weight
          True
        """
        _refuse_no_linear(linear)
        twin = copy.copy(linear)
        for own in ("_parameters", "_buffers", "_modules"):
            twin.__dict__[own] = twin.__dict__[own].copy()
        return cls._take_over(twin, recipe, name)

    @classmethod
    def _take_over(cls, linear: torch.nn.Linear, recipe: LinearRecipe, name: str) -> QuantLinear:
        """Make a linear layer one of this class, in place."""
        _refuse_no_recipe(recipe)
        linear.__class__ = cls
        assert isinstance(linear, cls)
        linear._set_recipe(recipe, name)
        return linear

    def _set_recipe(self, recipe: LinearRecipe, name: str) -> None:
        _refuse_no_recipe(recipe)
        plan = plan_of(recipe, name)
        self.recipe, self.quant_name, self.plan = recipe, name, json.dumps(plan)
        steps = torch.zeros((), dtype=torch.int64, device=self.weight.device) if plan.draws else None
        self.register_buffer("steps", steps)

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
        y: Tensor = _product_op(x.reshape(-1, self.in_features), self.weight, self.bias, step, self.plan)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _refuse(self, x: Tensor) -> None:
        """An error unless x is a tensor of floats on the CPU with as many features as the layer takes."""
        for name, tensor in (("input", x), ("weight", self.weight)):
            if tensor.device.type not in ("cpu", "meta"):
                raise ValueError(f"{name} must be a tensor on the CPU; got one on {tensor.device}. Use .cpu().")
        if not x.is_floating_point():
            raise TypeError(f"input must be a tensor of floats; got {x.dtype}. Convert with input.float().")
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"input must have {self.in_features} features in its last axis; got {tuple(x.shape)}.")

    def extra_repr(self) -> str:
        """Sizes and the recipe."""
        return f"{super().extra_repr()}, recipe={self.recipe!r}"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """As for any module, but state without a count of steps leaves it as it is."""
        if self.steps is not None and f"{prefix}steps" not in state_dict:
            state_dict = {**state_dict, f"{prefix}steps": self.steps}
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
    recipe: LinearRecipe,
    pattern: str | Sequence[str] = "*",
    exclude: str | Sequence[str] = (),
) -> list[str]:
    """Make linear layers of a model quantised ones, in place: each layer stays the object that it is.

    So parameters, tied weights, optimisers, hooks, buffers, modes and every reference to a layer stay valid. Layers of
    subclasses of `torch.nn.Linear` are left alone: those that are quantised already, and those whose weights other
    code reads without calling them (the output projection of `torch.nn.MultiheadAttention`). In evaluation
    `torch.nn.TransformerEncoderLayer` takes a fused path that would skip its layers; it is switched off where needed.

    Args:
      model: any module.
      recipe: formats and scalings.
      pattern: shell pattern, or several, of qualified names such as "blocks.*.mlp.*"; case matters.
      exclude: names to leave alone, in the same way.

    Returns:
      Qualified names of the layers that were swapped ("" for the model itself), in the model's order.

    Raises:
      ValueError: no linear layer has such a name; the message lists those that there are.
      TypeError: model is no module, or recipe no LinearRecipe.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
      >>> fp.torch.quantize_linears(model, fp.torch.TE_HYBRID, exclude="2")
      ['0']
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module; got {type(model).__name__}.")
    _refuse_no_recipe(recipe)
    included, excluded = _patterns(pattern, "pattern"), _patterns(exclude, "exclude")
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is torch.nn.Linear:
            names.setdefault(module, []).append(name)
    layers = {
        module: layer_names[0]
        for module, layer_names in names.items()
        if any(fnmatchcase(name, glob) for name in layer_names for glob in included)
        and not any(fnmatchcase(name, glob) for name in layer_names for glob in excluded)
    }
    if not layers:
        known_names = [name for layer_names in names.values() for name in layer_names]
        raise ValueError(_nothing_matches(model, known_names, included, excluded))
    for module, name in layers.items():
        assert isinstance(module, torch.nn.Linear)
        QuantLinear._take_over(module, recipe, name)
    for layer in model.modules():
        if isinstance(layer, torch.nn.TransformerEncoderLayer) and (layer.linear1 in layers or layer.linear2 in layers):
            layer.activation_relu_or_gelu = 0  # the fused path knows ReLU and GELU only
    return list(layers.values())


def _patterns(patterns: str | Sequence[str], label: str) -> list[str]:
    globs = [patterns] if isinstance(patterns, str) else patterns
    if not isinstance(globs, Sequence) or not all(isinstance(glob, str) for glob in globs):
        raise TypeError(f"{label} must be a shell pattern or several, such as 'blocks.*.mlp.*'; got {shown(patterns)}.")
    return list(globs)


def _nothing_matches(model: torch.nn.Module, names: list[str], included: list[str], excluded: list[str]) -> str:
    quantized = sum(isinstance(module, QuantLinear) for module in model.modules())
    but = f" without {', '.join(map(repr, excluded))}" if excluded else ""
    known = ", ".join(repr(name) for name in names) if names else "none"
    already = f" Quantised already: {quantized}." if quantized else ""
    globs = ", ".join(map(repr, included))
    return f"pattern {globs}{but} matches no torch.nn.Linear of the model, which has {known}.{already}"
