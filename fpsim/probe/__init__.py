"""Models of the arithmetic of black boxes (functions that add), found by calling them, and with the same bits."""

from fpsim.lazy import face
from fpsim.probe.model import Model
from fpsim.probe.probing import dot, matmul, sum
from fpsim.probe.saved import load
from fpsim.probe.shapes.lengths import Sweep, sweep
from fpsim.probe.shapes.thresholds import ShapeThresholds, thresholds

__all__ = ["Model", "ShapeThresholds", "Sweep", "dot", "load", "matmul", "sum", "sweep", "thresholds"]

__getattr__, __dir__ = face(__name__, __all__)
