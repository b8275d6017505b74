"""AdamW, with moments and weights stored in any format."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.errors import require_integer, require_kind, require_word, shown
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding, rounding_mode
from fpsim.recipes.optimizer_recipe import OptimizerRecipe, require_number
from fpsim.recipes.portable import power
from fpsim.runtime.processor import ieee_arithmetic
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.train import updates
from fpsim.train.operations import WORDS, kernels
from fpsim.train.operations.trace import report
from fpsim.train.updates import Clipping, UpdateCounts, flattened
from fpsim.train.updates import StepReport as StepReport

KEPT = ("weights", "first_moment", "second_moment", "compensation")


class AdamW:
    """AdamW on a model's weights, which it changes in place.

    A step does the operations of torch.nn.utils.clip_grad_norm_ and torch.optim.AdamW(foreach=False, fused=False), in
    their order. With "specified" arithmetic, each is an IEEE 754 operation in float32, norms are added in float64 in 32
    partial sums, and the bits are the same on every machine (docs/training.md). With "torch", torch computes them, and
    the bits depend on the processor. Stochastic modes draw random number i with the key `draw_key(seed, name, kind,
    step)` for element i of a flattened tensor; kind is "weights", "first_moment" or "second_moment".

    Args:
      weights: name -> contiguous float32 tensor on the CPU. If the recipe has a format for weights, they are
        rounded into it, to nearest even, when the object is created.
      recipe: the settings and formats of the optimizer.
      arithmetic: "specified" or "torch".

    Raises:
      TypeError, ValueError: weights is not such a mapping, or a tensor is not contiguous float32 on the CPU.

    Example:
      >>> import torch
      >>> from fpsim.train import OptimizerRecipe
      >>> from fpsim.train.optimizer import AdamW
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
            require_kind(f"weights[{name!r}]", weight, Tensor, "a torch tensor")
            if weight.dtype != torch.float32 or weight.device.type != "cpu" or not weight.is_contiguous():
                raise ValueError(
                    f"weights[{name!r}] must be a contiguous float32 tensor on the CPU; got {weight.dtype} on "
                    f"{weight.device} of strides {tuple(weight.stride())}."
                )
        self.recipe = recipe
        self.steps = 0
        self._seen = {name: weight.detach() for name, weight in weights.items()}  # they share the model's memory
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

    def step(
        self, gradients: Mapping[str, Tensor], *, steps_total: int, weight_error: float | None = None
    ) -> StepReport:
        """Clip gradients, update the weights, and return a report.

        Args:
          gradients: name -> float32 tensor of the weight's shape, for every weight; clipped in place.
          steps_total: steps of the whole run, on which the learning-rate schedule depends.
          weight_error: the relative quantisation error of the weights; None unless `recipe.lr_follows_error` is set.

        Raises:
          TypeError, ValueError: gradients have other names or shapes than the weights, or weight_error is missing.
        """
        lr = self.learning_rate(steps_total, weight_error)
        return self.update(gradients, self.clip(gradients), lr)

    def learning_rate(self, steps_total: int, weight_error: float | None = None) -> float:
        """Return the learning rate of the next step.

        steps_total: steps of the whole run. weight_error: the relative quantisation error of the weights, which
        `recipe.lr_follows_error` needs if it is set; a ValueError is raised if it is None then.
        """
        require_integer("steps_total", steps_total, 1)
        lr, follows = self.recipe.lr_at(self.steps, steps_total), self.recipe.lr_follows_error
        if not follows:
            return lr
        if weight_error is None:
            raise ValueError(f"lr_follows_error={follows} needs weight_error, the error to follow; got None.")
        require_number("weight_error", weight_error)
        return lr / (1 + follows * weight_error)

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """Return the Euclidean norm of all elements of several float32 gradients together, as a float32 number."""
        return updates.norm(gradients, self._specified)

    @torch.no_grad()
    def clip(self, gradients: Mapping[str, Tensor]) -> Clipping:
        """Clip a step's gradients in place, by value and then by norm, as torch.nn.utils does; return a report on it.

        gradients: name -> float32 tensor of the weight's shape, for every weight.

        Returns:
          A `Clipping`: the norm after clipping by value, the share of clipped elements, and the factor of clipping by
          norm.

        Raises:
          TypeError, ValueError: gradients of other names or shapes than the weights.
        """
        self._require_gradients(gradients)
        with self._arithmetic():
            return updates.clip(list(gradients.values()), self.recipe, self._specified)

    @torch.no_grad()
    def update(self, gradients: Mapping[str, Tensor], clipping: Clipping, lr: float) -> StepReport:
        """Update the weights by clipped gradients, and return a report.

        Args:
          gradients: name -> float32 tensor of the weight's shape, for every weight, clipped by `clip`.
          clipping: what `clip` returned, for the report.
          lr: the learning rate.

        Raises:
          TypeError, ValueError: gradients of other names or shapes than the weights.
        """
        self._require_gradients(gradients)
        with self._arithmetic():
            counts = [self._update(name, gradients[name], lr) for name in self._seen]
            # x * 0 sums to NaN if an element is Inf or NaN
            nonfinite = tuple(name for name, tensor in self._tensors() if float((tensor * 0).sum()) != 0)
        self.steps += 1
        return updates.report_of(self.steps - 1, lr, clipping, counts, nonfinite)

    def _require_gradients(self, gradients: Mapping[str, Tensor]) -> None:
        """Raise a TypeError or ValueError unless there is a gradient for each weight, of its shape."""
        _require_same("gradients", gradients, {name: weight.shape for name, weight in self._seen.items()})
        for name, gradient in gradients.items():
            require_kind(f"gradients[{name!r}]", gradient, Tensor, "a torch tensor")

    def _arithmetic(self) -> Any:
        """Return a context for a step's arithmetic; it does nothing if `arithmetic` is "torch".

        If it is "specified", the processor rounds this thread's results to nearest even and keeps subnormals.
        """
        return ieee_arithmetic() if self._specified else contextlib.nullcontext()

    def _update(self, name: str, gradient: Tensor, lr: float) -> UpdateCounts:
        """Update one weight in place by a clipped gradient, round its moments, and return the counts of its updates.

        name: the weight's name. lr: the learning rate. If there are float32 masters, they are updated, and the weight
        is rounded from its master.
        """
        recipe, weight = self.recipe, self._kept[name]
        decay = lr * recipe.weight_decay if weight.dim() >= 2 else 0.0
        step = self._by_adam(name, gradient, lr)
        report(f"{name}, AdamW", step)
        before = weight.clone()
        update = step
        if decay and self._specified:
            update = step.clone()
            kernels.decayed(flattened(weight), flattened(update), np.float32(decay))
        elif decay:
            update = step.add(weight, alpha=-decay)
        lost = None
        if self._format is None or recipe.masters:
            if decay:
                weight.mul_(1 - decay)
            weight.add_(step)
            if self._format is not None:
                self._show(name)
        else:
            lost = updates.add_rounded(
                weight, update, self._format, recipe.update_rounding, compensation=self._compensation.get(name),
                seed=updates.draw_key(recipe.seed, name, "weights", self.steps),
            )  # fmt: skip
        for kind, moments in self._moments.items():
            fmt, mode = recipe.format_of(kind), rounding_mode(recipe.moment_rounding)
            if fmt is not None:
                seed = updates.draw_key(recipe.seed, name, kind, self.steps) if mode is Rounding.STOCHASTIC else None
                moments[name].copy_(tensor_of(quantize(array_of(moments[name]), fmt, rounding=mode, seed=seed)))
        return updates.count_updates(before, update, weight, lost)

    def _by_adam(self, name: str, gradient: Tensor, lr: float) -> Tensor:
        """Update the moments of the weight `name` in place by a gradient; return the weight's update before decay.

        lr: the learning rate, a factor of the update.
        """
        first, second = self._moments["first_moment"][name], self._moments["second_moment"][name]
        (beta1, beta2), number = self.recipe.betas, self.steps + 1
        if self._specified:
            size, root = lr / (1 - power(beta1, number)), math.sqrt(1 - power(beta2, number))
            numbers = np.array([1 - beta1, beta2, 1 - beta2, root, self.recipe.eps, -size], np.float32)
            update = torch.empty_like(first)
            flat = np.ascontiguousarray(array_of(gradient)).reshape(-1)
            kernels.adamw(flat, flattened(first), flattened(second), numbers, flattened(update))
            return update
        # the operations of torch.optim.adam._single_tensor_adam, in its order
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (second.sqrt() / (1 - beta2**number) ** 0.5).add_(self.recipe.eps)
        return (first * -(lr / (1 - beta1**number))).div_(root)

    def _show(self, name: str) -> None:
        """Write one weight, rounded from its float32 master into the weights' format, to the model's tensor."""
        assert self._format is not None
        self._seen[name].copy_(tensor_of(quantize(array_of(self._kept[name]), self._format)))

    # ---- what later steps depend on

    def _tensors(self) -> list[tuple[str, Tensor]]:
        """Return (name as in `state`, tensor) of all weights, moments and compensations, which steps update."""
        groups = zip(KEPT, (self._kept, *self._moments.values(), self._compensation), strict=True)
        return [(f"{kind}/{name}", tensor) for kind, group in groups for name, tensor in group.items()]

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Return (arrays, fields for JSON): everything on which later steps depend, the weights included.

        Returns:
          Copies as float32 arrays by name: "weights/NAME" (the masters if there are any), "first_moment/NAME",
          "second_moment/NAME" and "compensation/NAME"; and a dict of the step number and settings.
        """
        return {name: array.copy() for name, array in self.arrays().items()}, self._fields()

    def arrays(self) -> dict[str, Array]:
        """Return the float32 arrays of weights, moments and compensation by name, as in `state`, but not copied.

        Later steps change them.
        """
        return {name: array_of(tensor) for name, tensor in self._tensors()}

    def _fields(self) -> dict[str, Any]:
        """Return the step number, and the fields that a checkpoint must match, as a dict for JSON.

        These are the formats of weights and moments, whether there are float32 masters, and the rounding of updates.
        """
        formats = {kind: str(self.recipe.format_of(kind) or FP32) for kind in ("weights", *self._moments)}
        recipe = self.recipe
        return {"step": self.steps, **formats, "masters": recipe.masters, "update_rounding": recipe.update_rounding}

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        """Continue from the arrays and fields that `state` returned; the model's weights are overwritten too.

        Raises:
          ValueError: the state has other weights, or formats and settings that differ from this recipe's; nothing is
            changed then.
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


# ---- checks


def _require_same(argument: str, got: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    """Raise a TypeError or ValueError unless `got` has the names of `shapes`, each with float32 of that shape.

    argument: the name of `got` in the message.
    """
    require_kind(argument, got, Mapping, "a dict by name")
    missing, extra = sorted(set(shapes) - set(got)), sorted(set(got) - set(shapes))
    if missing or extra:
        words = f"lacks {shown(missing[0])}" if missing else f"has {shown(extra[0])}"
        raise ValueError(f"{argument} must have the names of the weights and no others; it {words}.")
    for name, shape in shapes.items():
        x, dtype = got[name], getattr(got[name], "dtype", None)
        if not str(dtype).endswith("float32") or tuple(x.shape) != tuple(shape):
            is_array = dtype is not None and getattr(x, "shape", None) is not None
            kind = f"{dtype} of shape {tuple(x.shape)}" if is_array else shown(x)
            raise ValueError(f"{argument}[{name!r}] must be float32 of shape {tuple(shape)}; got {kind}.")
