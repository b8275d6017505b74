"""Twenty broken quantizers: functions from an array of floats to float32 values of a format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import quantize
from fpsim.formats.cast_options import FormatLike, cast_options
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, FP16
from fpsim.formats.named import format as find_format
from fpsim.testing.quantizers.inputs import inputs_of
from fpsim.testing.quantizers.model import QuantizerModel, model_of
from fpsim.testing.quantizers.rounder import grid_of, taken_apart, words_of
from fpsim.testing.quantizers.steps import Through

Quantizer = Callable[[Array], Array]


@dataclass(frozen=True)
class Mutant:
    """A broken quantizer for any format.

    Attributes:
      name: its name in `QUANTIZERS`.
      wrong: what it does wrong, as a clause without subject.
      factory: function from a `Format` to the quantizer; `make` also accepts names and dtypes.

    Example:
      >>> import fpsim as fp
      >>> broken = fp.testing.mutants.QUANTIZERS["flushes"]
      >>> broken.wrong, broken.make("e4m3")(np.float32([1.0, 2.0**-9]))
      ('turns subnormal results into zeros', array([1., 0.], dtype=float32))
      >>> broken.breaks("e4m3"), broken.breaks("e8m0")  # which has no subnormals
      (True, False)
    """

    name: str
    wrong: str
    factory: Callable[[Format], Quantizer]

    def make(self, fmt: FormatLike) -> Quantizer:
        """Return the broken quantizer for a format whose values float32 can represent.

        Raises:
          ValueError: the format is unknown.
        """
        made = self.factory(find_format(fmt))
        made.__name__ = self.name
        return made

    def breaks(self, fmt: FormatLike) -> bool:
        """Return whether the quantizer ever differs from the correct one; if not, the format cannot have the fault.

        Raises:
          ValueError: the format is unknown.
        """
        broken, correct = self.make(fmt), right(fmt)
        x, _, _ = inputs_of(find_format(fmt))
        turned = x[: x.size // 2 * 2].reshape(2, -1).T
        short = [x[start : start + 7] for start in range(0, x.size, x.size // 64)]
        with np.errstate(all="ignore"):
            for inputs in (x, np.full(2, np.inf, np.float32), x, turned, *short):  # some remember what they have seen
                argument = inputs.copy(order="K")
                results, wanted = (words_of(np.asarray(q, np.float64)) for q in (broken(argument), correct(inputs)))
                if (results != wanted).any() or argument.tobytes() != inputs.tobytes():
                    return True
        return False


def right(fmt: FormatLike) -> Quantizer:
    """Return the correct quantizer for a format, from an array of floats to float32 values, rounding to nearest even.

    Example:
      >>> from fpsim.testing.mutants.quantizers import right
      >>> right("e4m3")(np.float32([0.3]))
      array([0.3125], dtype=float32)
    """
    target_fmt = find_format(fmt)

    def quantizer(x: Array) -> Array:
        return quantize(x, target_fmt).astype(np.float32)

    return quantizer


def _model(**changes: Any) -> Callable[[Format], Quantizer]:
    """Return a function from a format to a quantizer whose `QuantizerModel` has the wrong parameters `changes`."""

    def make(fmt: Format) -> Quantizer:
        model: QuantizerModel = model_of(cast_options(fmt)).replace(**changes)

        def quantizer(x: Array) -> Array:
            with np.errstate(all="ignore"):
                values: Array = model.values(taken_apart(x)).reshape(np.shape(x)).astype(np.float32)
            return values

        return quantizer

    return make


def _changed(change: Callable[[Array, Array], None]) -> Callable[[Format], Quantizer]:
    """Return a function from a format to a quantizer that rounds correctly, but then overwrites results by `change`.

    change: function of the flat input and the flat results, which changes the results in place.
    """

    def make(fmt: Format) -> Quantizer:
        correct = right(fmt)

        def quantizer(x: Array) -> Array:
            values = np.asarray(x)
            results = np.array(correct(values), order="C")
            change(values.ravel(), results.reshape(-1))
            return results

        return quantizer

    return make


def _last_of_eight(x: Array, results: Array) -> None:
    """Set results in an incomplete last group of eight to 0, in place, where their magnitude exceeds the input's.

    A kernel's remainder loop may do so. x, results: flat arrays of one size.
    """
    rest = x.size % 8
    if rest:
        results[-rest:] = np.where(np.abs(results[-rest:]) > np.abs(x[-rest:].astype(np.float64)), 0, results[-rest:])


def _writes(fmt: Format) -> Quantizer:
    """Return a quantizer that replaces infinities in its input array, in place, by the largest value of `fmt`."""
    correct = right(fmt)

    def quantizer(x: Array) -> Array:
        results = correct(x)
        x[np.isinf(x)] = fmt.max
        return results

    return quantizer


def _remembers(fmt: Format) -> Quantizer:
    """Return a quantizer that flushes subnormal results in all calls after one with large values.

    Large values are two or more elements that are all infinite, or an element 30,000.
    """
    correct, seen = right(fmt), [False]

    def quantizer(x: Array) -> Array:
        results = correct(x)
        if seen[0]:
            results = np.where(np.abs(results) < fmt.smallest_normal, 0 * results, results)
        seen[0] = seen[0] or bool(np.isinf(x).all() and x.size > 1) or bool((np.asarray(x) == 3.0e4).any())
        return np.asarray(results, np.float32)

    return quantizer


def _by_memory(fmt: Format) -> Quantizer:
    """Return a quantizer that reads arrays of two or more axes in the order of memory, as if they were contiguous."""
    correct = right(fmt)

    def quantizer(x: Array) -> Array:
        if x.flags.c_contiguous or x.ndim < 2:
            return correct(x)
        return correct(x.ravel(order="K").reshape(x.shape))

    return quantizer


def _drawn(fmt: Format) -> Quantizer:
    """Return a quantizer that rounds stochastically, with a new seed at each call."""
    seeds = iter(range(1 << 40))

    def quantizer(x: Array) -> Array:
        return quantize(x, fmt, rounding="stochastic", seed=next(seeds)).astype(np.float32)

    return quantizer


_ROWS = (
    ("ties_away", "takes ties away from zero", _model(rounding="nearest_away")),
    ("truncates", "rounds toward zero", _model(rounding="toward_zero")),
    ("ties_up", "takes ties toward +Inf", _model(rounding="nearest_up")),
    ("through_fp16", "rounds to FP16 first", _model(through=Through("FP16", grid_of(FP16), max_code=FP16.max_code))),
    ("through_bf16", "rounds to BF16 first", _model(through=Through("BF16", grid_of(BF16), max_code=BF16.max_code))),
    (
        "truncated_to_bf16", "drops the lower half of each float32 first",
        _model(through=Through("BF16", grid_of(BF16), "toward_zero", BF16.max_code)),
    ),
    ("flushes", "turns subnormal results into zeros", _model(subnormals="flush")),
    ("subnormals_halved", "gives subnormals at half their size", _model(subnormals="half")),
    ("subnormals_away", "takes ties away from zero among subnormals", _model(subnormal_rule="nearest_away")),
    ("never_zero", "gives the smallest value for values that round to zero", _model(subnormals="never_zero")),
    ("unsigned_zero", "loses the sign of zeros", _model(zeros="positive")),
    ("limited", "limits the input to the largest value first", lambda fmt: _model(clamp=fmt.max)(fmt)),
    ("early_overflow", "takes all values above the largest one as too large", _model(edge="exact")),
    ("nan_to_max", "gives the largest value for NaN", _model(nan="max")),
    ("bias_off", "has an exponent bias that is off by one", _model(scale=1)),
    ("tail", "truncates the last elements of arrays whose length is no multiple of 8", _changed(_last_of_eight)),
    ("memory_order", "reads transposed matrices as if they were not", _by_memory),
    ("writes", "limits its input in place", _writes),
    ("remembers", "flushes subnormals once it has seen something too large", _remembers),
    ("draws", "rounds stochastically", _drawn),
)  # fmt: skip

QUANTIZERS: MappingProxyType[str, Mutant] = MappingProxyType({row[0]: Mutant(*row) for row in _ROWS})
