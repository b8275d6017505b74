"""The former address of `fpsim.recipes.parts`, which objects pickled by 0.1 name."""

from __future__ import annotations

from fpsim.recipes.parts import Controller as Controller
from fpsim.recipes.parts import Numerics as Numerics
from fpsim.recipes.parts import Override as Override
from fpsim.recipes.parts import Stored as Stored
