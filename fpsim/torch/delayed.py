"""Scales from the amax of earlier steps, stored in a tensor beside a layer's weights: one row for each operand."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.element import Element
from fpsim.recipes.cast_text import spec_from
from fpsim.scaling.report import ScaleCounts
from fpsim.scaling.states.delayed import DelayedScaling
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.torch.plan import LayerPlan, OperandCast
from fpsim.torch.products import CastOperand, operand

INPUT, WEIGHT, GRAD = range(3)  # rows of a state, each with the encode scale and the amax of earlier steps
_STEPS = np.array([0, 0, 0, 1, 0], np.int64)  # counts in a state dict after one step
assert len(_STEPS) == len(ScaleCounts.__dataclass_fields__)


def first_state(history: int, device: torch.device | None = None) -> Tensor:
    """Return a layer's state of delayed scales before the first step, a float32 tensor (3, 1 + history).

    Its rows are for the input x, the weight w and the gradient dy. Column 0 is the encode scale, 1; the other columns
    are the amax of earlier steps, 0. history: the number of these steps. device: the tensor's device; None for the CPU.
    """
    state = torch.zeros((3, 1 + history), dtype=torch.float32, device="cpu" if device is None else device)
    state[:, 0] = 1.0
    return state


def with_history(state: Tensor, history: int) -> Tensor:
    """Return a state of delayed scales with the amax of `history` steps: the newest, after zeros if there are fewer.

    state: float32 (3, 1 + earlier history), which is returned itself if it has this history.

    Example:
      >>> import torch
      >>> from fpsim.torch.delayed import first_state, with_history
      >>> state = first_state(2)
      >>> state[:, 1:] = torch.tensor([3.0, 5.0])  # oldest first
      >>> with_history(state, 3)[0].tolist(), with_history(state, 1)[0].tolist()
      ([1.0, 0.0, 3.0, 5.0], [1.0, 5.0])
    """
    if state.shape[1] == 1 + history:
        return state
    new, kept = first_state(history, state.device), min(history, state.shape[1] - 1)
    new[:, 0], new[:, -kept:] = state[:, 0], state[:, -kept:]
    return new


def with_largest_amax(states: Sequence[Array]) -> Array:
    """Return the state of delayed scales after a step: for each operand, the row whose newest amax is the largest.

    states: the state, float32 (3, 1 + history), after each micro-batch or process of the step: for each operand the
    encode scale and then amax, oldest first. All began with one state, so only the newest amax and the scale differ.
    NaN counts as the largest amax.

    Example:
      >>> from fpsim.torch.delayed import with_largest_amax
      >>> first, second = np.ones((2, 3, 3), np.float32)  # scale, earlier amax, newest amax
      >>> second[0] = 0.5, 1, 2
      >>> with_largest_amax([first, second])[:2].tolist()
      [[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]]
    """
    stacked = np.stack(states)  # (parts, 3, 1 + history)
    chosen = stacked[:, :, -1].argmax(axis=0)  # a NaN counts as the largest, and leaves the scale as it was
    return np.asarray(stacked[chosen, np.arange(stacked.shape[1])])


def quantized(
    x: Tensor, cast: OperandCast, step: Tensor | None, plan: LayerPlan, row: Tensor | None
) -> tuple[CastOperand, Tensor | None]:
    """Cast a tensor (rows, columns); return (the cast operand, its new row of delayed scales or None).

    Args:
      x: the tensor.
      cast: format, scaling, rounding and seed key of the cast.
      step: the layer's count of forward passes, for stochastic rounding; None without it.
      plan: the plan of the layer, which has the options of delayed scales.
      row: the operand's row of the state of delayed scales, float32 (1 + history,); None if scales are not delayed.
    """
    if not cast.delayed or plan.delayed is None or row is None:
        return operand(x, cast, step), None
    how, source = spec_from(cast.spec), array_of(x)
    seed = None if step is None or cast.key < 0 else (int(step.item()) + cast.key) & 0xFFFFFFFFFFFFFFFF
    words = how.keywords(seed)
    shared, fields = _scaling(how.element, plan.delayed)
    scaling = copy.copy(shared)  # other threads may load their states into theirs
    before = array_of(row)
    arrays = {"encode_scales": before[:1].reshape(1, 1), "amax_history": before[1:].reshape(-1, 1, 1)}
    scaling.load_state_dict({**fields, **arrays})
    encoded = scaling.encode(source, **words)
    after = scaling.state_dict()
    new = np.concatenate((after["encode_scales"].reshape(1), after["amax_history"].reshape(-1)))
    return CastOperand(source, encoded, None), tensor_of(new.astype(np.float32))


@lru_cache(maxsize=64)
def _scaling(element: Element, delayed: tuple[int, str, int]) -> tuple[DelayedScaling, dict[str, Any]]:
    """Return (a delayed scaling for an element format, the parts of its state dict that no step changes); cached.

    delayed: (number of steps whose amax is stored, "max" or "most_recent", times that the format's maximum is halved),
    as in `LayerPlan`.
    """
    history, amax, margin = delayed
    scaling = DelayedScaling(element, history=history, amax=amax, margin=margin)
    state = scaling.state_dict()
    fields = {name: state[name] for name in ("class", "fmt", "scaling", "options")}
    return scaling, {**fields, "counts": _STEPS, "last": _STEPS}
