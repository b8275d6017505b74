"""The products of a layer, computed again from recorded operands, with the bits of `fpsim.torch.QuantLinear`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fpsim.analysis.studies.budget.layers import Kept
from fpsim.recipes.linear_recipe import LinearRecipe
from fpsim.torch.delayed import GRAD, INPUT, WEIGHT, quantized
from fpsim.torch.linear import QuantLinear
from fpsim.torch.operators import tensor_of, torch
from fpsim.torch.plan import plan_from
from fpsim.torch.trace import ProductCall, watching

Amaxes = Mapping[str, Sequence[float]]  # tensor -> its amax at earlier steps, for delayed scales
ROWS = {"input": INPUT, "weight": WEIGHT, "output_gradient": GRAD}


def product_name(kept: Kept) -> str:
    """Return the name from which stochastic rounding of a product is seeded: the name of the product's layer.

    If the layer has several groups or heads, the number of the group or head follows in brackets. `kept`: the recorded
    operands of the product.
    """
    return f"{kept.layer}[{kept.part.split()[-1]}]" if kept.part else kept.layer


def replayed(kept: Kept, recipes: Sequence[LinearRecipe], amaxes: Amaxes) -> dict[str, ProductCall]:
    """Compute the products of a layer from its recorded operands, and return product -> ProductCall.

    The products are "fprop", "dgrad" and "wgrad"; without a gradient only "fprop". A ProductCall has the cast operands
    and the result.

    Args:
      kept: the recorded operands.
      recipes: the recipes of fprop, dgrad and wgrad.
      amaxes: "input", "weight" or "output_gradient" -> its amaxes at earlier steps, which delayed scales need.
    Raises:
      ValueError: the arithmetic does not accept an operand or a shape; the message names the layer and product.
    """
    outputs, inputs = kept.weight.shape
    calls: dict[str, ProductCall] = {}

    def see(call: ProductCall) -> None:
        calls[call.product] = call

    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        layer = QuantLinear(inputs, outputs, False, recipe=recipes[0], name=product_name(kept), device="meta")
        layer.weight = torch.nn.Parameter(tensor_of(kept.weight.copy()))
        layer.follow(*recipes)
        if layer.steps is not None:
            layer.steps = torch.tensor(kept.step - 1)
        if layer.scales is not None:
            layer.scales = _history(layer, amaxes)
        x = tensor_of(kept.x.copy()).requires_grad_()
        try:
            with watching(see):
                y = layer(x)
                if kept.gradient is not None:
                    y.backward(tensor_of(kept.gradient.copy()))
        except ValueError as reason:
            product = "wgrad" if "dgrad" in calls else "dgrad" if calls else "fprop"
            text = str(reason).replace("strict=False computes it all the same.", "Or leave the layer out by layers=.")
            raise ValueError(f"{kept.layer}, {product}: {text}") from None
    return calls


def _history(layer: QuantLinear, amaxes: Amaxes) -> torch.Tensor:
    """Return a layer's state of delayed scales after casts of tensors with the given amaxes.

    The state is float32 of shape (3, 1 + h), with a row for input, weight and output gradient. A row holds the encode
    scale of the next cast, then the amaxes of the last h casts, where h is the history length of the layer's recipe.
    `amaxes`: "input", "weight" or "output_gradient" -> its amaxes, the earliest first.
    """
    plan = plan_from(layer.plan)
    casts = {"input": plan.input, "weight": plan.weight, "output_gradient": plan.grad}
    assert layer.scales is not None
    state = torch.zeros_like(layer.scales, device="cpu")
    state[:, 0] = 1.0
    for which, row in ROWS.items():
        for amax in amaxes.get(which, ()):
            one = torch.full((1, 1), float(np.float32(amax)))
            _, after = quantized(one, casts[which], torch.tensor(0), plan, state[row])
            if after is not None:
                state[row] = after
    return state
