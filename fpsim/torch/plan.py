"""The plan of a quantised layer: its casts and products as plain values, which compiled graphs store as text."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from fpsim.errors import require_word
from fpsim.formats.as_json import format_fields, format_from
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.cast_text import spec_text
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe, key_of
from fpsim.schedules.written import parsed
from fpsim.sums.accumulators import FusedMultiplyAdd, Sequential


class OperandCast(NamedTuple):
    """The cast of one operand of a product.

    Attributes:
      spec: the cast as JSON text, from `fpsim.recipes.cast_text.spec_text`; "" if the operand is not cast.
      key: the number to which the count of forward passes is added to seed random draws; -1 if there are none.
      delayed: whether the operand's scale follows from its amax in earlier steps.
    """

    spec: str  # JSON of `cast_text.spec_text`; "" for no cast
    key: int  # added to the count of forward passes to seed random draws; -1 without draws
    delayed: bool = False  # whether its scale follows from the amax of earlier steps


NO_CAST = OperandCast("", -1)


class ProductPlan(NamedTuple):
    """The arithmetic of one product as text: the fields of a `fp.torch.Product`, with "" or 0 for None.

    Attributes:
      unit: a matrix unit's name.
      accumulator, schedule: Python expressions, the reprs of an accumulator and of a schedule.
      promote: number of terms after which a partial sum is added to a float32 total.
      out_fmt: the format of the result, as JSON.
    """

    unit: str  # a matrix unit's name
    accumulator: str  # as its repr
    schedule: str  # as its repr
    promote: int  # number of terms after which a partial sum is added to a float32 total
    out_fmt: str  # JSON

    @property
    def is_torch(self) -> bool:
        """True if torch multiplies, because neither a unit nor an accumulator is named."""
        return not self.unit and not self.accumulator

    @property
    def is_float32(self) -> bool:
        """True if neither a matrix unit nor a schedule is named, so that torch or an accumulator adds."""
        return not self.unit and not self.schedule


class LayerPlan(NamedTuple):
    """The casts and products of one quantised layer, y = x w^T.

    Attributes:
      input, weight: casts of x and w, the operands of fprop (y = x w^T).
      grad, weight_backward: casts of dy and w, the operands of dgrad (dx = dy w).
      grad_backward, input_backward: casts of dy and x, the operands of wgrad (dw = dy^T x).
      stash: cast of x before wgrad casts it with `input_backward`; NO_CAST if wgrad reads x itself.
      fprop, dgrad, wgrad: arithmetic of the products.
      hadamard: size of the Hadamard transform for wgrad; 0 for none.
      signs: bit i is set if the transform changes the sign of term i.
      delayed: (history, amax, margin) of scales from earlier steps: the number of steps whose amax is stored; the amax
        that sets the scale, the largest ("max") or the newest ("most_recent"); and how many times the format's largest
        value is halved first. None if scales follow from the tensor itself.
      name: the layer's name.
      backend: where products are computed, as for `QuantLinear`.
    """

    input: OperandCast  # of x for y
    weight: OperandCast  # of w for y
    grad: OperandCast  # of dy for dx
    weight_backward: OperandCast  # of w for dx
    grad_backward: OperandCast  # of dy for dw
    input_backward: OperandCast  # of x for dw
    stash: OperandCast  # of x before `input_backward`; NO_CAST if dw reads x itself
    fprop: ProductPlan
    dgrad: ProductPlan
    wgrad: ProductPlan
    hadamard: int  # size of the Hadamard transform for dw; 0 for none
    signs: int  # of the Hadamard transform: bit i says whether term i changes its sign
    delayed: tuple[int, str, int] | None  # fields of the recipe's `Delayed`: history, amax, margin
    name: str  # of the layer
    backend: str  # as for `QuantLinear`

    @property
    def draws(self) -> bool:
        """True if a cast of the plan is stochastic."""
        return any(cast.key >= 0 for cast in self if isinstance(cast, OperandCast))

    @property
    def text(self) -> str:
        """Plan as JSON text, which `plan_from` reads."""
        return json.dumps(self)

    @property
    def is_float32(self) -> bool:
        """True if the layer computes plain float32 products: no casts, no matrix unit, no Hadamard transform.

        Torch multiplies, or an accumulator adds the terms in float32, one after another.
        """
        no_cast = all(cast.spec == "" for cast in self if isinstance(cast, OperandCast))
        chains = ("", repr(Sequential(FP32)), repr(FusedMultiplyAdd(FP32)))  # no accumulator: torch adds
        return no_cast and not self.hadamard and all(
            how.is_float32 and how.accumulator in chains and not how.promote and not how.out_fmt
            for how in map(self.of, PRODUCTS)
        )  # fmt: skip

    def of(self, product: str) -> ProductPlan:
        """Return the arithmetic of `product`: "fprop", "dgrad" or "wgrad".

        On the backend "float32" the result names no unit and no accumulator, so that torch multiplies.
        """
        how: ProductPlan = getattr(self, product)
        return how._replace(unit="", accumulator="") if self.backend == "float32" else how

    def with_product(self, product: str, other: LayerPlan) -> LayerPlan:
        """Return a copy of the plan with one product, and the casts of its operands, from another plan.

        product: "fprop", "dgrad" or "wgrad". other: the plan from which they are taken.
        """
        fields = {
            "fprop": ("input", "weight", "fprop"),
            "dgrad": ("grad", "weight_backward", "dgrad"),
            "wgrad": ("grad_backward", "input_backward", "stash", "wgrad", "hadamard", "signs"),
        }[product]
        taken = {field: getattr(other, field) for field in fields}
        return self._replace(**taken, delayed=self.delayed or other.delayed)


BACKENDS = ("emulated", "float32", "gpu", "hardware", "cpu")


@lru_cache(maxsize=1024)
def plan_from(text: str) -> LayerPlan:
    """Return the plan that JSON text describes, as `LayerPlan.text` wrote it."""
    fields = json.loads(text)
    made = [kind(*values) for kind, values in zip([OperandCast] * 7 + [ProductPlan] * 3, fields, strict=False)]
    hadamard, signs, delayed, name, backend = fields[len(made) :]
    return LayerPlan._make([*made, hadamard, signs, None if delayed is None else tuple(delayed), name, backend])


def plan_of(recipe: LinearRecipe, name: str, backend: str = "emulated") -> LayerPlan:
    """Return the plan of a layer that follows a recipe.

    name: the layer's name, from which the keys of random draws follow; backend: as for `QuantLinear`.
    """
    require_word("backend", backend, BACKENDS)

    def cast(operand: str, *, back: bool) -> OperandCast:
        spec, same = recipe.cast_of(operand, backward=back)
        mode = rounding_mode(recipe.grad_rounding if operand == "grad" else recipe.rounding)
        role = f"{operand} back" if back and not same else operand  # the same numbers again come from the same draws
        stochastic = bool(spec) and mode is Rounding.STOCHASTIC
        key = key_of(recipe.seed, name, role) if stochastic else -1
        return OperandCast(spec, key, bool(spec) and recipe.delayed is not None)

    forward = cast("input", back=False)
    stash = forward if recipe.requantize_input else NO_CAST
    if recipe.stash_fmt is not None:
        stash = OperandCast(spec_text(recipe.stash_fmt, recipe.stash_scaling, "nearest_even", None, "keep", 32), -1)
    delayed = recipe.delayed
    return LayerPlan(
        input=forward,
        weight=cast("weight", back=False),
        grad=cast("grad", back=False),
        weight_backward=cast("weight", back=True),
        grad_backward=cast("grad", back=True),
        input_backward=cast("input", back=True),
        stash=stash,
        fprop=_arithmetic(recipe, "fprop"),
        dgrad=_arithmetic(recipe, "dgrad"),
        wgrad=_arithmetic(recipe, "wgrad"),
        hadamard=recipe.hadamard,
        signs=key_of(recipe.seed, "", "hadamard") | key_of(recipe.seed, "", "hadamard, high") << 62,
        delayed=None if delayed is None else (delayed.history, delayed.amax, delayed.margin),
        name=name,
        backend=backend,
    )


def _arithmetic(recipe: LinearRecipe, product: str) -> ProductPlan:
    """Return the arithmetic of a recipe's product ("fprop", "dgrad" or "wgrad") as texts."""
    how, adds = getattr(recipe, product), recipe.accumulator(product)
    unit = adds if isinstance(adds, MatrixUnit) else None
    return ProductPlan(
        "" if unit is None else unit.name,
        "" if adds is None or unit is not None else repr(adds),
        "" if how.schedule is None else repr(how.schedule),
        how.promote or 0,
        "" if how.out_fmt is None else json.dumps(format_fields(how.out_fmt)),
    )


class Adds(NamedTuple):
    """The arithmetic of a `ProductPlan` as objects instead of text; None for fields that are empty in it.

    The fields are those of `ProductPlan`: a MatrixUnit, an accumulator, a schedule, a number of terms, and a format.
    """

    unit: MatrixUnit | None
    accumulator: Any
    schedule: Any
    promote: int | None
    out_fmt: Any


@lru_cache(maxsize=256)
def adds_of(how: ProductPlan) -> Adds:
    """Return the arithmetic of a product as objects, parsed from its texts."""
    return Adds(
        find_unit(how.unit) if how.unit else None,
        parsed(how.accumulator) if how.accumulator else None,
        parsed(how.schedule) if how.schedule else None,
        how.promote or None,
        format_from(json.loads(how.out_fmt)) if how.out_fmt else None,
    )
