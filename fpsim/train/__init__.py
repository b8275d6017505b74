"""The reference trainer: small models trained by recipes whose every matrix product has the bits of a chip.

Its files, in the order to read them:

1. `settings.py`: the settings of a run, each with its reason; those of arithmetic are a recipe's (`fpsim/recipes/`).
2. `model.py`: a transformer and a perceptron, computed by `operations/`; `data.py` has their batches.
3. `loop.py`: `Trainer.step` is forward, backward, reduce, unscale, clip, update.
4. The parts of a step: `layers.py` (recipes that linear layers follow), `loss_scale.py`, `optimizer.py`, `updates.py`.
5. What the loop calls by name: `ranks.py` (micro-batches and processes), `monitors.py` (measurements, a controller's
   levels, the search for an overflow), `activations.py` (stored in a format or in files, or computed again) and
   `slices.py` (results of layers that are computed again in slices, and SwiGLU).
6. Around it: `runs.py` trains to the end, `checkpoint.py` stores states, `record.py` computes digests and stores runs.
7. Two runs: `side_by_side.py` (lockstep), `replays.py`, and `comparisons/` of recipes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.deprecation import former_modules
from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.divergence.divergence import Divergence as Divergence
    from fpsim.recipes.optimizer_recipe import OptimizerRecipe as OptimizerRecipe
    from fpsim.recipes.parts import Controller as Controller
    from fpsim.recipes.parts import Numerics as Numerics
    from fpsim.recipes.parts import Override as Override
    from fpsim.recipes.parts import Stored as Stored
    from fpsim.recipes.training_recipe import Recipe as Recipe
    from fpsim.train import recipes as recipes
    from fpsim.train.comparisons.comparison import Comparison as Comparison
    from fpsim.train.comparisons.comparison import compare as compare
    from fpsim.train.comparisons.gradient_probe import gradient_probe as gradient_probe
    from fpsim.train.comparisons.gradient_probe import probe as probe
    from fpsim.train.comparisons.gradient_probe import with_one_product as with_one_product
    from fpsim.train.loop import Trainer as Trainer
    from fpsim.train.loss_scale import LossScaler as LossScaler
    from fpsim.train.ranks import Ranks as Ranks
    from fpsim.train.replays import ReplayedRun as ReplayedRun
    from fpsim.train.replays import replay as replay
    from fpsim.train.runs import Run as Run
    from fpsim.train.runs import run as run
    from fpsim.train.settings import Recompute as Recompute
    from fpsim.train.settings import Settings as Settings
    from fpsim.train.side_by_side import lockstep as lockstep

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "comparisons.comparison": ["Comparison", "compare"],
        "comparisons.gradient_probe": ["gradient_probe", "probe", "with_one_product"],
        "loop": ["Trainer"],
        "loss_scale": ["LossScaler"],
        "ranks": ["Ranks"],
        "replays": ["ReplayedRun", "replay"],
        "runs": ["Run", "run"],
        "side_by_side": ["lockstep"],
        "fpsim.divergence.divergence": ["Divergence"],
        "fpsim.recipes.optimizer_recipe": ["OptimizerRecipe"],
        "fpsim.recipes.parts": ["Controller", "Numerics", "Override", "Stored"],
        "fpsim.recipes.training_recipe": ["Recipe"],
        "settings": ["Recompute", "Settings"],
    },
    modules=["recipes"],
)

former_modules(
    __name__,
    {
        "optimizer_recipe": "fpsim.recipes.optimizer_recipe", "parts": "fpsim.recipes.parts",
        "recipe": "fpsim.recipes.training_recipe",
    },
)  # fmt: skip
