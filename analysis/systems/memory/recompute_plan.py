"""A search for the recomputation that keeps activations within a budget of bytes with the fewest multiplications."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from fpsim.analysis.systems.memory.model_activations import blockwise
from fpsim.display.wording import bytes_in_words, percent
from fpsim.errors import require_integer, require_kind, shown
from fpsim.recipes.look_up import RecipeLike
from fpsim.recipes.look_up import find as find_recipe
from fpsim.train.model import Config
from fpsim.train.settings import NOTHING, Recompute

FINEST = 1 << 12  # slices


@dataclass(frozen=True)
class RecomputePlan:
    """The recomputation chosen to keep activations within a budget, with its memory and cost.

    Attributes:
      recompute: the chosen recomputation, for `fp.train.run(recompute=...)`.
      bytes: bytes of the activations of a micro-batch at their peak, recomputed ones included.
      without: bytes of the activations of a micro-batch without recomputation.
      budget: the limit of `bytes`.
      cost: multiplications of the recomputation / multiplications of a training step without it.
    """

    recompute: Recompute
    bytes: int
    without: int
    budget: int
    cost: float

    def __str__(self) -> str:
        """Return a clause: what is recomputed, the bytes with and without recomputation, and its cost."""
        again = self.recompute
        if not again.share:
            return f"nothing needs to be computed again: {bytes_in_words(self.bytes)} of activations"
        cuts = f" in {again.slices} slices of tokens" if again.slices > 1 else ""
        thing = "whole blocks" if again.by == "layer" else f"SwiGLU's input{cuts}"
        return (
            f"{thing} of {percent(again.share)} of the blocks: {bytes_in_words(self.bytes)} of activations instead of "
            f"{bytes_in_words(self.without)}, for {percent(self.cost)} more multiplications"
        )


def recompute_plan(config: Config, recipe: RecipeLike, *, tokens: int, budget: float) -> RecomputePlan:
    """Choose the recomputation with the fewest multiplications that keeps a micro-batch's activations within a budget.

    Candidates are: no recomputation; and for the first 1, 2, ... blocks either the recomputation of whole blocks, or of
    SwiGLU's input in slices of tokens, in as few slices as the budget permits. No candidate changes a bit of training.

    Args:
      config: shape of the transformer.
      recipe: an `fpsim.train.Recipe`, the name of a recipe in `fp.train.recipes`, or a TOML file.
      tokens: tokens of a micro-batch.
      budget: largest number of bytes that activations may need.

    Returns:
      A RecomputePlan.

    Raises:
      TypeError: config is not a Config.
      ValueError: every candidate needs more than the budget (the message names the smallest budget that suffices), or
        budget or tokens are not positive.

    Example:
      >>> from fpsim.train.model import Config
      >>> plan = fp.analysis.recompute_plan(Config(vocabulary=96, layers=4), "BF16", tokens=512, budget=9e6)
      >>> plan.recompute, plan.bytes <= 9e6
      (Recompute(share=0.25, by='layer', slices=1, layers=None), True)
    """
    require_kind("config", config, Config, "an fpsim.train.model.Config")
    chosen = find_recipe(recipe)
    if isinstance(budget, bool) or not isinstance(budget, Real) or not 0 < budget < math.inf:
        raise ValueError(f"budget must be a number of bytes > 0; got {shown(budget)}.")
    require_integer("tokens", tokens, 1)

    def measured(again: Recompute) -> tuple[int, float]:
        """Return bytes and cost, as in a RecomputePlan, of a micro-batch with the recomputation `again`."""
        activations = blockwise(config, chosen, tokens, again)
        return sum(row.bytes for row in activations.rows), activations.cost

    without = least = measured(NOTHING)[0]
    best: RecomputePlan | None = None
    can_be_sliced = not any(row.modules.endswith("act") or row.modules == "*" for row in chosen.stored)
    # of each kind, the first candidate that fits costs the least
    kinds: list[Callable[[float], Recompute]] = [Recompute]
    if can_be_sliced:
        kinds.insert(0, lambda share: _sliced(share, tokens, lambda again: measured(again)[0] <= budget))
    for blocks in range(config.layers + 1):
        for kind in list(kinds):
            again = kind(blocks / config.layers) if blocks else NOTHING
            size, cost = measured(again)
            least = min(least, size)
            if size > budget:
                continue
            kinds.remove(kind)
            if best is None or cost < best.cost:
                best = RecomputePlan(again, size, without, int(budget), cost)
    if best is None:
        raise ValueError(
            f"budget must be at least {least:,} bytes, the least that any recomputation needs; got {shown(budget)}. "
            "Take fewer tokens in a micro-batch."
        )
    return best


def _sliced(share: float, tokens: int, fits: Callable[[Recompute], bool]) -> Recompute:
    """Return the Recompute that recomputes SwiGLU's input in a share of the blocks, in the fewest slices that fit.

    fits: function that returns whether activations with a Recompute are within the budget of bytes. The number of
    slices is a power of two, the largest possible one if none fits. tokens: tokens of a micro-batch.
    """
    slices, finest = 1, 1 << (min(FINEST, tokens).bit_length() - 1)
    if not fits(Recompute(share, "m", finest)):
        return Recompute(share, "m", finest)
    while slices < finest and not fits(Recompute(share, "m", slices)):
        slices *= 2
    return Recompute(share, "m", slices)
