"""The random generators that models draw from: Python's, NumPy's and torch's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def restored_generators() -> Iterator[None]:
    """Restore the global random generators of Python, NumPy and torch (of the CPU) at the end of a `with` block.

    Example:
      >>> import random
      >>> from fpsim.analysis.models.draws import restored_generators
      >>> with restored_generators():
      ...     drawn = random.random()
      >>> random.random() == drawn
      True
    """
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002 - models draw from it
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])
