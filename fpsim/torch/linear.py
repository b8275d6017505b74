"""Linear layers whose operands are quantised, forwards and backwards, by a recipe."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.torch.delayed import first_state, with_history
from fpsim.torch.linear_products import product_op
from fpsim.torch.operators import (
    Tensor,
    checksum_of,
    copy_op,
    in_backward_pass,
    refuse_meta,
    refuse_tangent,
    require_dense,
    torch,
)
from fpsim.torch.plan import LayerPlan, plan_of

REPEATED = 256  # forward passes that a layer remembers


class ForwardPass(NamedTuple):
    """A forward pass of a layer in training, which torch.utils.checkpoint may run again.

    Attributes:
      steps, scales: copies of the layer's buffers (count of forward passes, delayed scales) from before the pass; None
        for a buffer that the layer does not have. Passes that a layer remembers have the encode scales alone, (3, 1).
      checksum: CRC-32 of the layer's input; None if it has no values that can be read.
      counted: whether the pass updated the buffers, as passes with gradients do.
    """

    steps: Tensor | None = None
    scales: Tensor | None = None
    checksum: int | None = None
    counted: bool = False


class QuantLinear(torch.nn.Linear):
    """A linear layer whose matrix products read quantised operands; parameters are those of `torch.nn.Linear`.

    Operands are quantised and multiplied as `LinearRecipe` says: by a matrix unit, emulated bit for bit, or by torch in
    float32 (float64 for a float64 input), which chooses the order of additions. The bias is added in float32 before the
    result is rounded to its format; y has the input's dtype.

    With a stochastic mode the layer has a buffer `steps` that counts forward passes in training, and with delayed
    scales a buffer `scales`. Both are part of the state dict; a state dict of `torch.nn.Linear` loads too.

    Args:
      in_features, out_features, bias, device, dtype: as for `torch.nn.Linear`.
      recipe: formats, scalings and arithmetic.
      name: the layer's name, on which stochastic draws depend; `quantize_linears` passes the qualified name.
      backend: the backend that multiplies: "emulated" on the CPU; "float32", torch in place of every unit; "gpu", the
        emulation on a GPU; "hardware", the tensor cores of this machine; "cpu", this processor's matrix instructions.
        Layer and input must be on the CPU, where casts run; "gpu" and "hardware" copy operands to the GPU.

    Attributes:
      quant_name: the argument `name`.
      plan: the casts and products as JSON text, which follows from recipe, name and backend.
      steps, scales: the buffers, or None.

    Raises:
      TypeError: recipe is not a LinearRecipe.
      ValueError: the backend is unknown.

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
    _passes: tuple[ForwardPass, ...] = ()  # the last ones in training

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: torch.device | str | None = None,
        dtype: torch.dtype | None = None, *,
        recipe: LinearRecipe, name: str = "", backend: str = "emulated",
    ) -> None:  # fmt: skip
        super().__init__(in_features, out_features, bias, device, dtype)
        self._set_recipe(recipe, name, backend, layer_plan([recipe] * 3, name, backend))

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, recipe: LinearRecipe, name: str = "", backend: str = "emulated"
    ) -> QuantLinear:
        """Return a quantised layer that shares the parameters, hooks and mode of a linear layer, which is not changed.

        recipe, name, backend: as for `QuantLinear`. A subclass of `torch.nn.Linear` raises a TypeError.

        Example:
          >>> import torch
          >>> linear = torch.nn.Linear(32, 8)
          >>> fp.torch.QuantLinear.from_linear(linear, fp.torch.MXFP8).weight is linear.weight
          True
        """
        if type(linear) is not torch.nn.Linear:
            raise TypeError(f"linear must be a torch.nn.Linear, and no subclass; got {type(linear).__name__}.")
        twin = copy.copy(linear)
        for table in ("_parameters", "_buffers", "_modules"):
            twin.__dict__[table] = twin.__dict__[table].copy()
        return cls._take_over(twin, recipe, name, backend, layer_plan([recipe] * 3, name, backend))

    @classmethod
    def _take_over(
        cls, linear: torch.nn.Linear, recipe: LinearRecipe, name: str, backend: str, plan: LayerPlan
    ) -> QuantLinear:
        """Turn a `torch.nn.Linear` object into a quantised layer in place, and return it.

        recipe: the recipe of the forward product. name: the layer's name, on which random draws depend. backend: the
        backend that multiplies, such as "emulated". plan: the casts and products, as `layer_plan` returns them.
        """
        linear.__class__ = cls
        assert isinstance(linear, cls)
        linear._set_recipe(recipe, name, backend, plan)
        return linear

    def _set_recipe(self, recipe: LinearRecipe, name: str, backend: str, plan: LayerPlan) -> None:
        """Set the recipe, name, backend and plan of a new layer, and create its buffers."""
        self.recipe, self.quant_name, self.backend = recipe, name, backend
        self.register_buffer("steps", None)
        self.register_buffer("scales", None)
        self._set_plan(plan)

    def follow(self, fprop: LinearRecipe, dgrad: LinearRecipe, wgrad: LinearRecipe) -> None:
        """Set a separate recipe for each of the three products, from the next forward pass on.

        fprop, dgrad, wgrad: the recipes of y = x w^T, of the input's gradient dy w, and of the weight's gradient dy^T
        x. The buffers `steps` and `scales` keep their values; a longer history of amax begins with zeros, and a shorter
        one keeps the newest.

        Raises:
          ValueError: two recipes have delayed scales with different options.

        Example:
          >>> import torch
          >>> layer = fp.torch.QuantLinear(128, 64, recipe=fp.torch.NVFP4)
          >>> layer.follow(fp.torch.RECIPES["BF16"], fp.torch.NVFP4, fp.torch.NVFP4)
          >>> layer(torch.ones(2, 128)).shape
          torch.Size([2, 64])
        """
        plan = layer_plan((fprop, dgrad, wgrad), self.quant_name, self.backend)
        self.recipe = fprop
        self._set_plan(plan)

    def _set_plan(self, plan: LayerPlan) -> None:
        """Set the plan of casts and products; create the buffers `steps` and `scales` if the plan needs them."""
        self.plan = plan.text
        if plan.draws and self.steps is None:
            self.steps = torch.zeros((), dtype=torch.int64, device=self.weight.device)
        if plan.delayed is not None:
            history, scales = plan.delayed[0], self.scales
            self.scales = first_state(history, self.weight.device) if scales is None else with_history(scales, history)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Convert or move the layer as torch does, but keep its scales float32 (the layer may become bfloat16).

        Buffers that leave the meta device, which has no values, get those of a new layer. fn: converts a tensor.
        recurse: whether to convert submodules as well.
        """
        steps, scales = self.steps, self.scales
        module = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if steps is not None and self.steps is not None and steps.is_meta and not self.steps.is_meta:
            self.steps = torch.zeros_like(self.steps)
        if scales is not None and self.scales is not None:
            device = self.scales.device
            if scales.is_meta and device.type != "meta":
                self.scales = first_state(scales.shape[1] - 1, device)
            elif self.scales.dtype != scales.dtype:
                self.scales = scales.to(device)
        return module

    def forward(self, input: Tensor) -> Tensor:
        """Return y (..., out_features) for input x (..., in_features); in training, update `steps` and `scales`.

        torch.utils.checkpoint runs a layer again in the backward pass. Such a call repeats the random draws and the
        delayed scales of the last call with this input, among the last 256 calls. If none had this input, it repeats
        the last call, and warns. It updates nothing, unless the repeated call ran without gradients, which does not
        update the buffers either. Compiled layers with random draws or delayed scales cannot repeat a call: a
        RuntimeError is raised.
        """
        x = input
        self._refuse(x)
        refuse_tangent("QuantLinear", input=x, weight=self.weight, bias=self.bias)
        if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64:  # torch's layers leave float64 as it is, too
            x = x.to(torch.get_autocast_dtype("cpu"))
        trains = self.training and torch.is_grad_enabled()
        (step, state, *_), updates = self._counted(x, trains)
        if updates and self.steps is not None:
            self.steps.add_(1)
        rows = x.flatten(0, -2) if x.dim() > 1 else x.unsqueeze(0)
        y: Tensor
        live, once = self.scales if trains else None, updates and torch.compiler.is_compiling()
        y, after = product_op(rows, self.weight, self.bias, step, state, live, self.plan, once)
        if updates and self.scales is not None:
            self.scales.copy_(after.detach())
        return y.reshape(*x.shape[:-1], self.out_features)

    def _counted(self, x: Tensor, trains: bool) -> tuple[ForwardPass, bool]:
        """Return (copies of `steps` and `scales` for a forward pass, whether the pass must update these buffers).

        A pass that torch.utils.checkpoint repeats gets the copies of the pass that it repeats, and updates nothing. x:
        the input. trains: whether the layer is in training, with gradients enabled.
        """
        if self.steps is None and self.scales is None:
            return ForwardPass(), False
        compiling = torch.compiler.is_compiling()
        copy = copy_op if compiling else torch.clone  # a call of an operator takes longer
        steps, scales = (None if buffer is None else copy(buffer) for buffer in (self.steps, self.scales))
        if not self.training or compiling:
            return ForwardPass(steps, scales), trains
        this = ForwardPass(steps, scales, checksum_of(x), trains)
        if not in_backward_pass():
            kept = this if scales is None else this._replace(scales=scales[:, :1].clone())  # a history takes kilobytes
            self._passes = (*self._passes[1 - REPEATED :], kept)
        elif trains and self._passes:
            same = [known for known in self._passes if known.checksum == this.checksum]
            if not same:
                warnings.warn(
                    f"QuantLinear {self.quant_name!r} runs again in a backward pass, with an input that none of its "
                    "last forward passes had: it repeats the draws and scales of the last one, and gradients may be "
                    "wrong. Make what is computed again return what it returned before.",
                    RuntimeWarning, stacklevel=3,
                )  # fmt: skip
            repeated = (same or self._passes)[-1]
            if not repeated.counted:  # torch's reentrant checkpoints run the first pass without gradients
                return this._replace(steps=repeated.steps), True
            if scales is not None and repeated.scales is not None:
                scales[:, :1] = repeated.scales
            return this._replace(steps=repeated.steps), False
        return this, trains

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for a copy or pickle of the layer: all except the record of its last forward passes."""
        return {name: value for name, value in self.__dict__.items() if name != "_passes"}

    def _refuse(self, x: Tensor) -> None:
        """Raise a TypeError or ValueError unless x is a float tensor on the CPU with in_features in its last axis."""
        require_dense(x, "input")
        for name, tensor, whole in (("input", x, "input"), ("weight", self.weight, "model")):
            if tensor.device.type not in ("cpu", "meta"):
                raise ValueError(
                    f"{name} must be a tensor on the CPU, whatever the backend; got one on {tensor.device}. Use "
                    f"{whole}.cpu(): backend='gpu' and 'hardware' bring what they multiply to the GPU themselves."
                )
        refuse_meta(x, weight=self.weight, bias=self.bias, steps=self.steps, scales=self.scales)
        if not x.is_floating_point():
            raise TypeError(f"input must be a tensor of floats; got {x.dtype}. Convert with input.float().")
        if x.dim() == 0 or x.shape[-1] != self.in_features:
            raise ValueError(f"input must have {self.in_features} features in its last axis; got {tuple(x.shape)}.")

    def extra_repr(self) -> str:
        """Return the layer's sizes and recipe as text, for `repr`."""
        return f"{super().extra_repr()}, recipe={self.recipe!r}"

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        """Load a state dict as any module does; keep the layer's own steps and scales if the dict lacks them.

        prefix: the beginning of the layer's names in state_dict, such as "mlp.up."; rest: torch's other arguments.
        """
        for name in ("steps", "scales"):
            buffer = getattr(self, name)
            if buffer is not None and f"{prefix}{name}" not in state_dict:
                if buffer.is_meta:  # it has no values to keep, and torch may assign the dict's tensors
                    is_state, zero = name == "scales", torch.zeros((), dtype=torch.int64)
                    buffer = first_state(buffer.shape[1] - 1) if is_state else zero
                state_dict = {**state_dict, f"{prefix}{name}": buffer}
        saved = state_dict.get(f"{prefix}scales")
        if isinstance(saved, Tensor) and saved.dtype != torch.float32:  # torch may assign it
            state_dict = {**state_dict, f"{prefix}scales": saved.float()}
        super()._load_from_state_dict(state_dict, prefix, *rest)


def layer_plan(recipes: Sequence[LinearRecipe], name: str, backend: str) -> LayerPlan:
    """Return the plan of a layer whose products fprop, dgrad and wgrad follow three recipes, which may be equal.

    name: the layer's name, on which random draws depend. backend: the backend that multiplies.

    Raises:
      TypeError: a recipe is not a `LinearRecipe`.
      ValueError: the backend is unknown, or two recipes have delayed scales with different options.
    """
    for recipe in recipes:
        if not isinstance(recipe, LinearRecipe):
            raise TypeError(
                f"recipe must be an fp.torch.LinearRecipe, such as fp.torch.DEEPSEEK_V3; got {type(recipe).__name__}."
            )
    options = {recipe.delayed for recipe in recipes if recipe.delayed is not None}
    if len(options) > 1:
        raise ValueError(f"the products of a layer must share the options of delayed scales; got {options}.")
    plan = plan_of(recipes[0], name, backend)
    for product, recipe in zip(PRODUCTS[1:], recipes[1:], strict=True):
        if recipe is not recipes[0]:
            plan = plan.with_product(product, plan_of(recipe, name, backend))
    return plan
