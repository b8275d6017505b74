"""The former module of `fpsim.recipes.loss_scaling`, kept so that objects pickled by version 0.1 load."""

from __future__ import annotations

from fpsim.recipes.loss_scaling import LossScalingPolicy as LossScalingPolicy
from fpsim.recipes.loss_scaling import Seen as Seen
from fpsim.recipes.loss_scaling import State as State
