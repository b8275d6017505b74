"""Models for sums of several lengths, for functions whose order of additions depends on the number of terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy.typing as npt

from fpsim.arrays import Array, as_array
from fpsim.display.wording import plural
from fpsim.errors import require_integer, require_word, shown
from fpsim.probe.black_box import Function
from fpsim.probe.model import Model
from fpsim.probe.probing import dot, matmul, sum
from fpsim.probe.words import called

PROBES: dict[str, Callable[..., Model]] = {"sum": sum, "dot": dot, "matmul": matmul}


class Sweep(Mapping[int, Model]):
    """A mapping from a number of terms to the model of such sums, as `fp.probe.sweep` returns it.

    Its `sum`, `dot` and `matmul` choose the model by the operands' length.

    Attributes:
      kind: "sum", "dot" or "matmul".
      models: number of terms -> model, ascending.
    """

    def __init__(self, kind: str, models: Iterable[Model]) -> None:
        self.kind = kind
        self.models = {model.n: model for model in sorted(models, key=lambda model: model.n)}

    def __getitem__(self, n: int) -> Model:
        if n not in self.models:
            lengths = ", ".join(map(str, self.models))
            raise KeyError(f"n must be a length that was probed, one of {lengths}; got {shown(n)}.")
        return self.models[n]

    def __iter__(self) -> Iterator[int]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def sum(self, x: npt.ArrayLike) -> Any:
        """Return the sums (...) of x along its last axis, by the model of its length; see `Model.sum`.

        Raises:
          ValueError: the length of x was not probed, or `Model.sum` raises it.
        """
        return self._of(x, "x").sum(x)

    def dot(self, a: npt.ArrayLike, b: npt.ArrayLike) -> Any:
        """Return the dot products (...) of a and b along the last axis, by the model of its length; see `Model.dot`.

        Raises:
          ValueError: the length of a was not probed, or `Model.dot` raises it.
        """
        return self._of(a, "a").dot(a, b)

    def matmul(
        self, a: npt.ArrayLike, b: npt.ArrayLike, scale_a: npt.ArrayLike | None = None,
        scale_b: npt.ArrayLike | None = None,
    ) -> Array:  # fmt: skip
        """Return the product (M, N) of matrices (M, K) and (K, N) by the model of their K; see `Model.matmul`.

        scale_a, scale_b: the scales of block-scaled products; None for other products.

        Raises:
          ValueError: K was not probed, or `Model.matmul` raises it.
        """
        return self._of(a, "a").matmul(a, b, scale_a, scale_b)

    def _of(self, x: npt.ArrayLike, name: str) -> Model:
        """Return the model for the last axis of an operand; raise a ValueError if its length was not probed.

        name: the argument's name in the error.
        """
        shape = as_array(x, name).shape
        if not shape or shape[-1] not in self.models:
            lengths = ", ".join(map(str, self.models))
            raise ValueError(
                f"{name} must have as many terms as one of the models, {lengths}; got shape {shape}. Probe that length."
            )
        return self.models[shape[-1]]

    def explain(self) -> str:
        """Return the description of each model on a line; neighbouring lengths with equal descriptions share one."""
        told = []
        for text, group in groupby(self.models.values(), key=_described):
            lengths = [model.n for model in group]
            told.append(f"{', '.join(map(str, lengths))} {'term' if lengths == [1] else 'terms'}: {text}")
        return "\n".join(told)

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"Sweep({self.kind} of {', '.join(map(str, self.models))} terms)"


def _described(model: Model) -> str:
    """Return the description of a model without its number of terms and of calls."""
    _, *rest = model.explain().split("\n")
    others = len(model.names) - 1 if model.arithmetic is None else 0
    more = f" and {plural(others, 'other name')}" if others > 0 else ""
    return " ".join([f"{called(model)}{more}.", *rest])


def sweep(fn: Function, lengths: Iterable[int], *, kind: str = "matmul", **options: Any) -> Sweep:
    """Probe a function for several numbers of terms, on which its order of additions may depend.

    Args:
      fn: a function of any number of terms, called as `fp.probe.sum`, `dot` or `matmul` would.
      lengths: numbers of terms; for a matrix product the sizes K.
      kind: the probe, "sum", "dot" or "matmul".
      options: keyword arguments of that probe, such as dtype= or a=.

    Returns:
      A Sweep: a mapping from each length to its Model, which computes sums of these lengths.

    Raises:
      ValueError: lengths is empty, the kind is unknown, or the probe raises a ValueError.
      TypeError: a length is not an integer, or the probe does not have an option.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> models = fp.probe.sweep(np.sum, [4, 20], kind="sum")
      >>> models[4].names, models[20].names
      (('Sequential(FP32)',), ())
      >>> float(models.sum(np.ones(20, np.float32)))
      20.0
    """
    require_word("kind", kind, tuple(PROBES))
    sizes = list(lengths) if isinstance(lengths, Iterable) else [lengths]
    if not sizes:
        raise ValueError("lengths must have one length at least, such as [300, 600]; got none.")
    for n in sizes:
        require_integer("a length", n, 1)
    return Sweep(kind, [PROBES[kind](fn, int(n), **options) for n in dict.fromkeys(sizes)])
