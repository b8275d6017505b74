"""The former address of `fpsim.recipes.loss_scaling`, which objects pickled by 0.1 name."""

from __future__ import annotations

from fpsim.recipes.loss_scaling import LossScalingPolicy as LossScalingPolicy
from fpsim.recipes.loss_scaling import Seen as Seen
from fpsim.recipes.loss_scaling import State as State
