"""The reference trainer: small models trained by recipes whose every matrix product has the bits of a chip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.train import recipes as recipes
    from fpsim.train.activations.recomputation import Recompute as Recompute
    from fpsim.train.comparisons.comparison import Comparison as Comparison
    from fpsim.train.comparisons.comparison import compare as compare
    from fpsim.train.comparisons.gradient_probe import probe as probe
    from fpsim.train.comparisons.gradient_probe import with_one_product as with_one_product
    from fpsim.train.loop import Trainer as Trainer
    from fpsim.train.loss_scale import LossScaler as LossScaler
    from fpsim.train.optimizer_recipe import OptimizerRecipe as OptimizerRecipe
    from fpsim.train.parallel import Ranks as Ranks
    from fpsim.train.parts import Controller as Controller
    from fpsim.train.parts import Numerics as Numerics
    from fpsim.train.parts import Override as Override
    from fpsim.train.parts import Stored as Stored
    from fpsim.train.recipe import Recipe as Recipe
    from fpsim.train.runs import Run as Run
    from fpsim.train.runs import run as run
    from fpsim.train.setup.settings import Settings as Settings
    from fpsim.train.side_by_side import Divergence as Divergence
    from fpsim.train.side_by_side import lockstep as lockstep

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "comparisons.comparison": ["Comparison", "compare"],
        "comparisons.gradient_probe": ["probe", "with_one_product"],
        "loop": ["Trainer"],
        "loss_scale": ["LossScaler"],
        "optimizer_recipe": ["OptimizerRecipe"],
        "parallel": ["Ranks"],
        "parts": ["Controller", "Numerics", "Override", "Stored"],
        "recipe": ["Recipe"],
        "activations.recomputation": ["Recompute"],
        "runs": ["Run", "run"],
        "side_by_side": ["Divergence", "lockstep"],
        "setup.settings": ["Settings"],
    },
    modules=["recipes"],
)
