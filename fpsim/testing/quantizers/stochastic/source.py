"""Calls of stochastic quantizers with seeds, generators, random bits or uniform numbers, or without any of these."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.errors import require_word
from fpsim.testing.quantizers.black_box import CalledQuantizer, parameters_of

WORD_BITS = 32
DRIVEN = {
    "seed": ("seed", "key"),
    "generator": ("rng", "generator"),
    "bits": ("bits", "words", "random_words"),
    "uniform": ("u", "uniform", "noise", "rand"),
}
Values = npt.NDArray[np.float64]


class RandomSource:
    """A stochastic quantizer under test, called with an array and a number that selects its random numbers.

    Args:
      fn: the quantizer.
      box: the `CalledQuantizer` by which fn is called.
      driven: the kind of random numbers that fn takes, a key of DRIVEN, or "own" if it takes none and is random by
        itself; None to find the kind from the names of fn's parameters.

    Attributes:
      takes_words: whether fn takes random bits or uniform numbers, so that the share of these that round an input away
        from zero can be counted, not only estimated from draws.
    """

    def __init__(self, fn: Callable[..., Any], box: CalledQuantizer, driven: str | None) -> None:
        named = [parameter.name for parameter in parameters_of(fn)]
        if driven is None:
            driven = next((kind for kind, names in DRIVEN.items() if {*named} & {*names}), "own")
        require_word("random", driven, (*DRIVEN, "own"))
        self.fn, self.box, self.driven = fn, box, driven
        self.parameter = next((name for name in named if name in DRIVEN.get(driven, ())), None)
        if driven != "own" and self.parameter is None and len(named) > 1:
            self.parameter = named[1]
        self.takes_words = driven in ("bits", "uniform")
        self._settled = False

    def __call__(self, x: Array, number: int = 0, words: Array | None = None) -> Values:
        """Return the float64 results for x, flat.

        number: seed of the random numbers that are passed. words: uint32 random bits to pass instead, of x's shape.
        """
        self.box.fn = lambda inputs: self._driven_call(inputs, number, words)
        if not self._settled:
            self.box.settle(x if x.size >= 16 else np.resize(x, 16)) if words is None else self.box.call(x.copy())
            self._settled = True
        return self.box.call(x.copy(), new_values=number == 0).words.view(np.float64)

    def _driven_call(self, inputs: Any, number: int, words: Array | None) -> Any:
        """Call fn with random numbers of the kind that it takes, made from `number`, and return its result unchanged.

        Args:
          inputs: the array or tensor to round.
          number: seed of the random bits, uniform numbers or generator, or the seed to pass.
          words: uint32 random bits, of the shape of the inputs, to pass as bits or uniform numbers; None or another
            shape makes them from `number`.
        """
        if self.driven == "own":
            return self.fn(inputs)
        value: Any = number
        torch = sys.modules["torch"] if self.box.takes == "torch" else None
        if self.driven == "generator":
            value = np.random.default_rng(number) if torch is None else torch.Generator().manual_seed(number)
        elif self.takes_words:
            shape = tuple(inputs.shape)
            if words is None or words.shape != shape:
                words = np.random.default_rng(number).integers(0, 1 << WORD_BITS, shape, dtype=np.uint32)
            value = (
                words if self.driven == "bits" else (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
            )
            if torch is not None:
                value = torch.from_numpy(value.view(np.int32) if self.driven == "bits" else value)
        return self.fn(inputs, value) if self.parameter is None else self.fn(inputs, **{self.parameter: value})
