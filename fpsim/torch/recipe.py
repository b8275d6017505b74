"""Recipes of quantised linear layers: which formats and scalings the operands of the three matrix products have."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fpsim.errors import shown
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.scaling import recipes
from fpsim.scaling.scaling import Scaling
from fpsim.torch.operators import spec_text

Same = Literal["same"]


@dataclass(frozen=True)
class LinearRecipe:
    """Formats and scalings of the three matrix products of a linear layer, y = x w^T.

    Each product has two operands; a format of None leaves an operand as it is, a scaling of None casts it without
    scales. x and dy are matrices of (tokens, features), whatever batch axes there are.

    | product | operands and their scalings |
    |---|---|
    | y = x w^T | x by input_scaling, w by weight_scaling |
    | dx = dy w | dy by grad_scaling, w by weight_scaling_backward |
    | dw = dy^T x | dy by grad_scaling_backward, x by input_scaling_backward |

    The gradients are those of the products with quantised operands, straight through the casts: as in the libraries
    that these recipes come from, nothing is set to zero where an operand was clipped (`fake_quantize` does that).

    Args:
      input_fmt, weight_fmt, grad_fmt: element formats of x, w and dy, or None.
      input_scaling, weight_scaling, grad_scaling: of the products that read them as they lie.
      input_scaling_backward, weight_scaling_backward, grad_scaling_backward: of the products that read the other axis;
        "same" for the same numbers again.
      rounding: of x and w, forwards and backwards.
      grad_rounding: of dy.
      requantize_input: True quantises for dw what the forward product read (DeepSeek-V3), False the original x.
      seed: of stochastic modes. A layer draws with the key hash(seed, its name, operand) + steps, where steps counts
        its forward passes in training, so layers, operands and steps draw differently and a run can be repeated.
      name: what `repr` shows.

    Raises:
      ValueError: an unknown format or word, a seed out of range, or a scaling without its format.
      TypeError: a scaling is none.

    Example:
      >>> recipe = fp.torch.DEEPSEEK_V3.replace(grad_fmt="e5m2", grad_rounding="stochastic")
      >>> recipe.input_scaling_backward
      fp.scalings.TILE_128X1
    """

    input_fmt: Any = None
    weight_fmt: Any = None
    grad_fmt: Any = None
    input_scaling: Scaling | None = None
    weight_scaling: Scaling | None = None
    grad_scaling: Scaling | None = None
    input_scaling_backward: Scaling | Same | None = "same"
    weight_scaling_backward: Scaling | Same | None = "same"
    grad_scaling_backward: Scaling | Same | None = "same"
    rounding: str | Rounding = "nearest_even"
    grad_rounding: str | Rounding = "nearest_even"
    requantize_input: bool = False
    seed: int = 0
    name: str = dataclasses.field(default="", compare=False)

    def __post_init__(self) -> None:
        number = isinstance(self.seed, (int, np.integer)) and not isinstance(self.seed, bool)
        if not number or not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed must be an integer in 0 .. 2**64 - 1; got {shown(self.seed)}.")
        object.__setattr__(self, "seed", int(self.seed))
        for operand in ("input", "weight", "grad"):
            if getattr(self, f"{operand}_fmt") is not None:
                continue
            for field in (f"{operand}_scaling", f"{operand}_scaling_backward"):
                if getattr(self, field) not in (None, "same"):
                    raise ValueError(f"{field} needs {operand}_fmt; got None. Pass fp.E4M3, say.")
        plan_of(self, "")

    def replace(self, **changes: Any) -> LinearRecipe:
        """The same recipe with other fields, and without its name."""
        return dataclasses.replace(self, **{"name": "", **changes})

    def __repr__(self) -> str:
        if self.name:
            return f"fp.torch.{self.name}"
        changed = [f for f in dataclasses.fields(self) if f.compare and getattr(self, f.name) != f.default]
        words = (f"{field.name}={_short(getattr(self, field.name))}" for field in changed)
        return f"LinearRecipe({', '.join(words)})"


def _short(value: Any) -> str:
    return repr(value) if isinstance(value, (str, Scaling, int)) else str(value)


class Cast(NamedTuple):
    """How one operand is quantised: the text of a cast ("" for none), and the key of its draws, or -1."""

    spec: str
    key: int


class Plan(NamedTuple):
    """The casts of a layer."""

    input: Cast
    weight: Cast
    grad: Cast  # for dx
    weight_backward: Cast  # for dx
    grad_backward: Cast  # for dw
    input_backward: Cast  # for dw
    requantize_input: bool

    @property
    def draws(self) -> bool:
        """Whether any cast is stochastic."""
        return any(cast.key >= 0 for cast in self if isinstance(cast, Cast))


def plan_of(recipe: LinearRecipe, name: str) -> Plan:
    """The casts of the layer of a name."""

    def cast(operand: str, *, back: bool) -> Cast:
        fmt = getattr(recipe, f"{operand}_fmt")
        rounding = recipe.grad_rounding if operand == "grad" else recipe.rounding
        scaling = getattr(recipe, f"{operand}_scaling")
        other = getattr(recipe, f"{operand}_scaling_backward")
        same = isinstance(other, str) and other == "same"
        if isinstance(other, str) and not same:
            raise ValueError(f"{operand}_scaling_backward must be an fp.Scaling, None or 'same'; got {shown(other)}.")
        mode = rounding_mode(rounding)
        if fmt is None:
            return Cast("", -1)
        stochastic = mode is Rounding.STOCHASTIC
        role = f"{operand} back" if back and not same else operand  # the same numbers again come from the same draws
        key = _key(recipe.seed, name, role) if stochastic else -1
        return Cast(spec_text(fmt, other if back and not same else scaling, rounding, None, "keep", 32), key)

    return Plan(
        input=cast("input", back=False),
        weight=cast("weight", back=False),
        grad=cast("grad", back=False),
        weight_backward=cast("weight", back=True),
        grad_backward=cast("grad", back=True),
        input_backward=cast("input", back=True),
        requantize_input=bool(recipe.requantize_input),
    )


def _key(seed: int, name: str, role: str) -> int:
    """62 bits, so that the steps that are added never overflow an int64."""
    digest = hashlib.blake2b(f"{seed} {role} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


# ---- recipes

# DeepSeek-V3 (arXiv:2412.19437), 3.3: E4M3 everywhere, 1x128 for activations and gradients, 128x128 for weights, 128x1
# for the weight gradient, whose activations are those that the forward pass stored (3.5.2). The paper rounds the
# scales of some activations to powers of two; UE8M0 does so for all.
DEEPSEEK_V3 = LinearRecipe(
    "e4m3", "e4m3", "e4m3",
    recipes.TILE_1X128, recipes.BLOCK_128X128, recipes.TILE_1X128,
    input_scaling_backward=recipes.TILE_128X1, grad_scaling_backward=recipes.TILE_128X1, requantize_input=True,
    name="DEEPSEEK_V3",
)  # fmt: skip
DEEPSEEK_V3_POW2 = LinearRecipe(
    "e4m3", "e4m3", "e4m3",
    recipes.TILE_1X128_POW2, recipes.BLOCK_128X128_POW2, recipes.TILE_1X128_POW2,
    input_scaling_backward=recipes.TILE_128X1_POW2, grad_scaling_backward=recipes.TILE_128X1_POW2,
    requantize_input=True, name="DEEPSEEK_V3_POW2",
)  # fmt: skip
# Transformer Engine, Float8CurrentScaling(fp8_format=Format.HYBRID).
TE_HYBRID = LinearRecipe(
    "e4m3", "e4m3", "e5m2", recipes.TE_TENSOR, recipes.TE_TENSOR, recipes.TE_TENSOR, name="TE_HYBRID"
)
# Transformer Engine, MXFP8BlockScaling: E4M3, each operand quantised from the original along the axis that is summed.
_MX_COLUMNS = recipes.TE_MX.transposed()
MXFP8 = LinearRecipe(
    "e4m3", "e4m3", "e4m3", recipes.TE_MX, recipes.TE_MX, recipes.TE_MX,
    input_scaling_backward=_MX_COLUMNS, weight_scaling_backward=_MX_COLUMNS, grad_scaling_backward=_MX_COLUMNS,
    name="MXFP8",
)  # fmt: skip

RECIPES = {recipe.name: recipe for recipe in (DEEPSEEK_V3, DEEPSEEK_V3_POW2, TE_HYBRID, MXFP8)}
