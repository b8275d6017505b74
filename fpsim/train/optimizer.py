"""AdamW whose moments and weights are kept in any format, and a report on the effects of its updates."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.errors import require_integer, require_kind, require_word, shown
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.recipes.optimizer_recipe import OptimizerRecipe as OptimizerRecipe
from fpsim.recipes.optimizer_recipe import require_number
from fpsim.recipes.portable import power
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.train.operations import WORDS, updates
from fpsim.train.operations import sums as lane_sums
from fpsim.train.operations.trace import report
from fpsim.train.rounded_updates import add_rounded, draw_key

KEPT = ("weights", "first_moment", "second_moment", "compensation")
EPSILON = 1e-6  # torch.nn.utils.clip_grad_norm_ adds it to the norm


@dataclass(frozen=True)
class StepReport:
    """The measured effects of one step of the optimizer.

    An update is what AdamW asks for: the step of the moments and the decay together, in float32. Kept weights are
    the masters, or the weights themselves where there are none.

    Attributes:
      step: the number of the step, from 0.
      lr: the learning rate.
      gradient_norm: the norm of all gradients together, after clipping by value and before clipping by norm.
      clipped_share: share of gradients' elements that clip_value limited.
      clip_factor: what clipping by norm multiplied all gradients by; 1.0 where it left them as they were.
      updates: elements whose update is not 0.
      unchanged: those of them whose kept weight is what it was.
      lost: those of them that could not change anything: unchanged, with nothing more in the compensation, and too
        small for a random draw. Over many steps a stochastic update that left a weight as it is arrives, a lost one
        never does.
      ratios: elements by the exponent of two of abs(update) / abs(kept weight), where that is at least 2**-126
        and finite.
      nonfinite: what holds an Inf or NaN after the step, such as "first_moment/head.weight".
    """

    step: int
    lr: float
    gradient_norm: float
    clipped_share: float
    clip_factor: float
    updates: int
    unchanged: int
    lost: int
    ratios: Mapping[int, int] = field(repr=False)
    nonfinite: tuple[str, ...] = ()

    @property
    def lost_share(self) -> float:
        """Share of the updates that were lost; NaN if there were no updates."""
        return self.lost / self.updates if self.updates else math.nan

    @property
    def update_ratio(self) -> float:
        """Power of two below the median of abs(update) / abs(kept weight); NaN if there were no updates."""
        counted, half = 0, sum(self.ratios.values()) / 2
        for exponent in sorted(self.ratios):
            counted += self.ratios[exponent]
            if counted >= half:
                return 2.0**exponent
        return math.nan


class AdamW:
    """AdamW on a model's weights, which it changes in place.

    A step is that of torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW(foreach=False, fused=False), operation by
    operation. Specified, each of them is one of IEEE 754 in float32, norms are summed by 32 lanes in float64, and the
    bits are the same on every machine (docs/training.md); as torch computes them, they are torch's, and depend on the
    processor. Stochastic modes draw with the key `draw_key(seed, name, kind, step)` for the element of a flat index.

    Args:
      weights: name -> contiguous float32 tensor on the CPU. Where the recipe has a format for them, they are rounded
        into it now, to nearest even.
      recipe: the settings and formats of the optimizer.
      arithmetic: "specified" or "torch".

    Raises:
      TypeError, ValueError: weights is not such a mapping, or a tensor is not contiguous float32 on the CPU.

    Example:
      >>> import torch
      >>> from fpsim.train.optimizer import AdamW, OptimizerRecipe
      >>> weights = {"w": torch.ones(4)}
      >>> recipe = OptimizerRecipe(lr=1e-3, weights="bf16", masters=False)
      >>> report = AdamW(weights, recipe).step({"w": torch.tensor([1.0, -1.0, 0.0, 1.0])}, steps_total=1)
      >>> weights["w"], report.updates, report.lost  # 0.999 and 1.001 round to 1 and 1
      (tensor([1., 1., 1., 1.]), 3, 3)
    """

    def __init__(
        self, weights: Mapping[str, Tensor], recipe: OptimizerRecipe, arithmetic: str = "specified"
    ) -> None:  # fmt: skip
        require_word("arithmetic", arithmetic, WORDS)
        self._specified = arithmetic == "specified"
        require_kind("recipe", recipe, OptimizerRecipe, "an OptimizerRecipe")
        require_kind("weights", weights, Mapping, "a dict of tensors by name")
        for name, weight in weights.items():
            _require_tensor(f"weights[{name!r}]", weight)
        self.recipe = recipe
        self.steps = 0
        self._seen = {name: weight.detach() for name, weight in weights.items()}  # share their memory
        self._format = recipe.format_of("weights")
        copies = self._format is not None and recipe.masters
        self._kept = {name: weight.clone() if copies else weight for name, weight in self._seen.items()}
        for name in self._seen if self._format is not None else ():
            self._show(name)
        kahan = recipe.update_rounding == "kahan"
        self._moments = {
            kind: {name: torch.zeros_like(weight) for name, weight in self._seen.items()}
            for kind in ("first_moment", "second_moment")
        }
        self._compensation = {name: torch.zeros_like(weight) for name, weight in self._seen.items() if kahan}

    @torch.no_grad()
    def step(
        self, gradients: Mapping[str, Tensor], *, steps_total: int, weight_error: float | None = None
    ) -> StepReport:
        """Update the weights, and return a report.

        Args:
          gradients: name -> float32 tensor of the weight's shape, for every weight; clipped in place.
          steps_total: steps of the run, which a falling learning rate ends with.
          weight_error: the relative quantisation error of the weights, where the learning rate follows it.

        Raises:
          TypeError, ValueError: gradients of other names or shapes, or no error to follow.
        """
        _require_same("gradients", gradients, {name: weight.shape for name, weight in self._seen.items()})
        require_integer("steps_total", steps_total, 1)
        with ieee_arithmetic() if self._specified else contextlib.nullcontext():
            return self._step(gradients, self._learning_rate(steps_total, weight_error))

    def _step(self, gradients: Mapping[str, Tensor], lr: float) -> StepReport:
        """Update the weights with gradients that fit them."""
        clipping = self._clip(list(gradients.values()))
        counts = [self._update(name, gradients[name], lr) for name in self._seen]
        ratios = sum((count.ratios for count in counts), np.zeros(254, np.int64))
        report = StepReport(
            self.steps, lr, *clipping,
            updates=sum(count.updates for count in counts),
            unchanged=sum(count.unchanged for count in counts),
            lost=sum(count.lost for count in counts),
            ratios={int(i) - 126: int(ratios[i]) for i in np.flatnonzero(ratios)},
            nonfinite=tuple(name for name, tensor in self._tensors() if not _is_finite(tensor)),
        )  # fmt: skip
        self.steps += 1
        return report

    def _learning_rate(self, steps_total: int, weight_error: float | None) -> float:
        """Return the learning rate of this step."""
        lr, follows = self.recipe.lr_at(self.steps, steps_total), self.recipe.lr_follows_error
        if not follows:
            return lr
        if weight_error is None:
            raise ValueError(f"lr_follows_error={follows} needs weight_error, the error to follow; got None.")
        require_number("weight_error", weight_error)
        return lr / (1 + follows * weight_error)

    def norm(self, gradients: list[Tensor]) -> float:
        """Return the norm of all elements of some gradients together, a float32 number."""
        if self._specified:
            return float(np.float32(math.sqrt(sum_of_squares(gradients))))
        norms = [torch.linalg.vector_norm(gradient, 2.0) for gradient in gradients]
        return float(torch.linalg.vector_norm(torch.stack(norms), 2.0)) if norms else 0.0

    def _clip(self, gradients: list[Tensor]) -> _Clipping:
        """Clip gradients in place, by value and then by norm, as torch.nn.utils does."""
        limit, most, limited = self.recipe.clip_value, self.recipe.clip_norm, 0
        if limit is not None:
            for gradient in gradients:
                limited += int(torch.count_nonzero(gradient.abs() > limit))
                gradient.clamp_(-limit, limit)
        count = sum(gradient.numel() for gradient in gradients)
        norm, factor = self.norm(gradients), np.float32(1)
        if most is not None:
            with np.errstate(all="ignore"):  # a norm that is Inf or NaN clips as torch's does
                factor = np.minimum(np.float32(most) / (np.float32(norm) + np.float32(EPSILON)), np.float32(1))
            for gradient in gradients:
                gradient.mul_(float(factor))
        return _Clipping(norm, limited / count if count else 0.0, float(factor))

    def _update(self, name: str, gradient: Tensor, lr: float) -> _Counts:
        """Update one weight."""
        recipe, weight = self.recipe, self._kept[name]
        decay = lr * recipe.weight_decay if weight.dim() >= 2 else 0.0
        step = self._by_adam(name, gradient, lr)
        report(f"{name}, AdamW", step)
        before = weight.clone()
        update = self._with_decay(step, weight, decay) if decay else step
        lost = None
        if self._format is None or recipe.masters:
            if decay:
                weight.mul_(1 - decay)
            weight.add_(step)
            if self._format is not None:
                self._show(name)
        else:
            lost = add_rounded(
                weight, update, self._format, recipe.update_rounding, compensation=self._compensation.get(name),
                seed=draw_key(recipe.seed, name, "weights", self.steps),
            )  # fmt: skip
        for kind in self._moments:
            self._round_moment(kind, name)
        return _count(before, update, weight, lost)

    def _by_adam(self, name: str, gradient: Tensor, lr: float) -> Tensor:
        """Change the moments of one weight, and return its update before decay."""
        first, second = self._moments["first_moment"][name], self._moments["second_moment"][name]
        (beta1, beta2), number = self.recipe.betas, self.steps + 1
        if self._specified:
            size, root = lr / (1 - power(beta1, number)), math.sqrt(1 - power(beta2, number))
            numbers = np.array([1 - beta1, beta2, 1 - beta2, root, self.recipe.eps, -size], np.float32)
            update = torch.empty_like(first)
            flat = np.ascontiguousarray(array_of(gradient)).reshape(-1)
            updates.adamw(flat, _flat(first), _flat(second), numbers, _flat(update))
            return update
        # the operations of torch.optim.adam._single_tensor_adam, in its order
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (second.sqrt() / (1 - beta2**number) ** 0.5).add_(self.recipe.eps)
        return (first * -(lr / (1 - beta1**number))).div_(root)

    def _with_decay(self, step: Tensor, weight: Tensor, decay: float) -> Tensor:
        """Return an update with what decay takes from the weight."""
        if not self._specified:
            return step.add(weight, alpha=-decay)
        update = step.clone()
        updates.decayed(_flat(weight), _flat(update), np.float32(decay))
        return update

    def _round_moment(self, kind: str, name: str) -> None:
        """Round the moment `kind` of one weight into the format in which it is kept, if it has one."""
        fmt = self.recipe.format_of(kind)
        if fmt is not None:
            mode = rounding_mode(self.recipe.moment_rounding)
            seed = draw_key(self.recipe.seed, name, kind, self.steps) if mode is Rounding.STOCHASTIC else None
            moment = self._moments[kind][name]
            moment.copy_(tensor_of(quantize(array_of(moment), fmt, rounding=mode, seed=seed)))

    def _show(self, name: str) -> None:
        """Write one weight, rounded from its kept value to the format of weights, into the model's tensor."""
        assert self._format is not None
        self._seen[name].copy_(tensor_of(quantize(array_of(self._kept[name]), self._format)))

    # ---- what later steps depend on

    def _tensors(self) -> list[tuple[str, Tensor]]:
        """Return (name, tensor) of everything that is kept from step to step, with the names that `state` uses."""
        groups = zip(KEPT, (self._kept, *self._moments.values(), self._compensation), strict=True)
        return [(f"{kind}/{name}", tensor) for kind, group in groups for name, tensor in group.items()]

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return all that later steps depend on, with the weights.

        Returns:
          Copies as float32 arrays by name, such as "weights/NAME" (the masters where there are any),
          "first_moment/NAME", "second_moment/NAME" and "compensation/NAME"; and fields that JSON holds.
        """
        return {name: array.copy() for name, array in self.arrays().items()}, self._fields()

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of `state` themselves, which later steps change."""
        return {name: array_of(tensor) for name, tensor in self._tensors()}

    def _fields(self) -> dict[str, Any]:
        """Return the step number and the settings, which a checkpoint must match."""
        formats = {kind: str(self.recipe.format_of(kind) or FP32) for kind in ("weights", *self._moments)}
        recipe = self.recipe
        return {"step": self.steps, **formats, "masters": recipe.masters, "update_rounding": recipe.update_rounding}

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Continue from what `state` returned; the weights are set too.

        Raises:
          ValueError: the state is of other weights, or of a recipe that keeps other things; nothing is changed then.
        """
        own_fields = self._fields()
        for key, value in own_fields.items():
            if key not in facts or (key != "step" and facts[key] != value):
                theirs = shown(facts.get(key))
                raise ValueError(f"facts[{key!r}] must be {shown(value)}, as in this optimizer's recipe; got {theirs}.")
        require_integer("facts['step']", facts["step"], 0)
        tensors = dict(self._tensors())
        _require_same("arrays", arrays, {name: tensor.shape for name, tensor in tensors.items()})
        with torch.no_grad():
            for name, tensor in tensors.items():
                np.copyto(array_of(tensor), arrays[name], casting="no")
        self.steps = int(facts["step"])
        for name in self._seen if self._format is not None else ():
            self._show(name)


class _Counts(NamedTuple):
    updates: int
    unchanged: int
    lost: int
    ratios: Array  # by exponent, from -126


def _count(before: Tensor, update: Tensor, weight: Tensor, lost: Tensor | None) -> _Counts:
    """Count the updates of a weight that are not 0, leave it unchanged, and are lost (`lost` None: all unchanged)."""
    exponents = np.zeros(256, np.int64)  # zeros and subnormal quotients have 0, those by a weight of 0 have 255
    moves, unchanged = updates.count(_flat(before), _flat(update), _flat(weight), exponents)
    return _Counts(
        int(moves), int(unchanged), int(unchanged if lost is None else torch.count_nonzero(lost)), exponents[1:255]
    )  # fmt: skip


def _flat(x: Tensor) -> Array:
    """Return a contiguous tensor as an array of one axis, without a copy."""
    return array_of(x).reshape(-1)


def _is_finite(x: Tensor) -> bool:
    """Return whether all elements are finite, by adding x * 0: NaN and Inf times 0 are NaN, and so is the sum."""
    return float((x * 0).sum()) == 0


class _Clipping(NamedTuple):
    norm: float
    share: float
    factor: float


def sum_of_squares(tensors: Iterable[Tensor]) -> float:
    """Return the float64 sum of the squares of all elements of float32 tensors, by 32 lanes, tensor after tensor."""
    total = 0.0
    for tensor in tensors:
        flat = np.ascontiguousarray(array_of(tensor)).reshape(-1)
        total += float(lane_sums.sum_of_squares(flat, np.empty(-(-flat.size // lane_sums.CHUNK))))
    return total


# ---- checks


def _require_tensor(name: str, tensor: object) -> None:
    """Raise a TypeError or ValueError unless a value is a contiguous float32 tensor on the CPU."""
    require_kind(name, tensor, Tensor, "a torch tensor")
    assert isinstance(tensor, Tensor)
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must be a contiguous float32 tensor on the CPU; got {tensor.dtype} on {tensor.device} of strides "
            f"{tuple(tensor.stride())}."
        )


def _require_same(argument: str, got: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    """Raise a TypeError or ValueError unless a mapping has these names, with float32 of these shapes."""
    require_kind(argument, got, Mapping, "a dict by name")
    missing, extra = sorted(set(shapes) - set(got)), sorted(set(got) - set(shapes))
    if missing or extra:
        words = f"lacks {shown(missing[0])}" if missing else f"has {shown(extra[0])}"
        raise ValueError(f"{argument} must have the names of the weights and no others; it {words}.")
    for name, shape in shapes.items():
        x = got[name]
        if not str(getattr(x, "dtype", None)).endswith("float32") or tuple(x.shape) != tuple(shape):
            raise ValueError(f"{argument}[{name!r}] must be float32 of shape {tuple(shape)}; got {_kind_of(x)}.")


def _kind_of(x: Any) -> str:
    shape, dtype = getattr(x, "shape", None), getattr(x, "dtype", None)
    return shown(x) if shape is None or dtype is None else f"{dtype} of shape {tuple(shape)}"
