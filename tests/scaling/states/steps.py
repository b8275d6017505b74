"""Tensors of many steps, and every kind of state that may scale them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.scaling.states.delayed import DelayedScaling
from fpsim.scaling.states.periodic import OnlineScaling, PeriodicScaling

Array = npt.NDArray[Any]
f32: Any = np.float32
LARGEST = np.finfo(np.float32).max
NOTHING = np.zeros((0, 4), np.float32)


def tensors(steps: int, shape: tuple[int, ...] = (3, 5)) -> Iterator[Array]:
    """Tensors whose amax grows, shrinks, vanishes, is tiny, huge, infinite or beside NaN."""
    generator = np.random.default_rng(11)
    for step in range(steps):
        kind = generator.integers(12)
        x = generator.standard_normal(shape) * 2.0 ** (20 * math.sin(step / 7))
        if kind == 0:
            x *= 0
        elif kind == 1:
            x.flat[step % x.size] = np.nan
        elif kind == 2:
            x[:] = np.nan
        elif kind == 3 and generator.integers(4) == 0:
            x.flat[step % x.size] = -np.inf
        elif kind == 4:
            x *= 2.0**-150
        elif kind == 5:
            x = np.clip(x * 2.0**120, -float(LARGEST), float(LARGEST))
        yield x.astype(np.float32)


def kinds(fmt: Any = fp.E4M3, scaling: fp.Scaling = fp.scalings.TENSOR) -> list[Any]:
    return [
        DelayedScaling(fmt, scaling, history=3),
        PeriodicScaling(fmt, scaling, every=2),
        OnlineScaling(fmt, scaling),
    ]
