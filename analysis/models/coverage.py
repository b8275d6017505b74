"""The share of a model's weights and multiplications that a report covers, and the parts that are missing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fpsim.display.wording import listed, percent, printable

NAMED = 4  # most parts of a model that a sentence names
MOST = 0.5  # share of the weights or multiplications below which a report warns


@dataclass(frozen=True)
class CoveredPart:
    """A layer, function or module of a model, with its weights and multiplications.

    Attributes:
      name: name of the layer or module.
      kind: the module's class, or the function of torch that multiplies in it.
      parameters: names of the weights that it reads.
      multiplications: number of multiplications in its forward passes.
      seen: whether the report contains its products.
    """

    name: str
    kind: str
    parameters: tuple[str, ...] = ()
    multiplications: int = 0
    seen: bool = True


@dataclass(frozen=True)
class Coverage:
    """The parts of a model that a report covers ("sees").

    str() states the shares of weights and multiplications, and what is missing.

    Weights are the elements of parameters with two or more axes, without those of norms and without embedding tables
    that are only looked up. Multiplications are those of torch functions in forward passes.

    Attributes:
      sizes: name of a parameter -> number of its elements, for these weights.
      parts: a CoveredPart for each layer, and for each module or function whose products the report does not contain.
      is_chosen: whether the user selected layers; then reports do not warn of layers that were not selected.

    Example:
      >>> from fpsim.analysis.models.coverage import Coverage, CoveredPart
      >>> print(Coverage({"a.weight": 300, "b.weight": 700},
      ...                (CoveredPart("a", "Linear", ("a.weight",), 30), CoveredPart("b", "LSTM", (), 70, False))))
      Only 30.0 % of the model's weights and 30.0 % of its multiplications are seen; not seen: b (LSTM).
    """

    sizes: Mapping[str, int]
    parts: tuple[CoveredPart, ...]
    is_chosen: bool = False

    @property
    def weights(self) -> float:
        """Share of the weights that the report covers, 0 to 1; NaN for a model without weights."""
        names = {name for part in self.parts if part.seen for name in part.parameters if name in self.sizes}
        return _share(sum(self.sizes[name] for name in names), sum(self.sizes.values()))

    @property
    def multiplications(self) -> float:
        """Share of the multiplications that the report covers, 0 to 1; NaN if there are none."""
        seen = sum(part.multiplications for part in self.parts if part.seen)
        return _share(seen, sum(part.multiplications for part in self.parts))

    @property
    def unseen(self) -> tuple[CoveredPart, ...]:
        """Parts that the report does not cover, the largest share of weights or multiplications first.

        A part without multiplications is left out if products that are covered read all of its weights.
        """
        read = {name for part in self.parts if part.seen for name in part.parameters}
        missing = [
            part for part in self.parts
            if not part.seen and (part.multiplications or not read.issuperset(part.parameters) or not part.parameters)
        ]  # fmt: skip
        return tuple(sorted(missing, key=lambda part: -self._size(part)))

    @property
    def is_minor(self) -> bool:
        """True if less than half of the weights or multiplications is covered, and the user has not selected layers."""
        return not self.is_chosen and (self.weights < MOST or self.multiplications < MOST)

    def of(self, layers: Collection[str], is_chosen: bool = False) -> Coverage:
        """Return the coverage of a report on some layers only; parts with other names are marked as not seen.

        Args:
          layers: names of these layers in the recording.
          is_chosen: whether the user selected layers.
        """
        parts = tuple(replace(part, seen=part.seen and part.name in layers) for part in self.parts)
        return replace(self, parts=parts, is_chosen=self.is_chosen or is_chosen)

    def merge(self, other: Coverage) -> Coverage:
        """Return the coverage of two recordings of one model together: this one's and `other`.

        Multiplications of parts with the same name, kind and `seen` are added.
        """
        parts: Parts = {}
        for part in (*self.parts, *other.parts):
            add_part(parts, part)
        return Coverage({**other.sizes, **self.sizes}, tuple(parts.values()), self.is_chosen or other.is_chosen)

    def _size(self, part: CoveredPart) -> float:
        """Return the larger of two shares that a part has of the model: of the weights, and of the multiplications."""
        weights = sum(self.sizes.get(name, 0) for name in part.parameters)
        whole = sum(part.multiplications for part in self.parts)
        return max(_share(weights, sum(self.sizes.values())), _share(part.multiplications, whole), 0.0)

    def __str__(self) -> str:
        """Return a sentence on the covered shares of weights and multiplications, and on the parts that are missing."""
        if self.is_minor:
            return self.headline
        seen = f"{percent(self.weights)} of the weights and {percent(self.multiplications)} of the multiplications"
        return f"Seen: {seen}{self._missing()}."

    @property
    def headline(self) -> str:
        """The warning that a report shows first if it covers less than half of the model (`is_minor`); else ""."""
        shares = f"{percent(self.weights)} of the model's weights and {percent(self.multiplications)} of its"
        return f"Only {shares} multiplications are seen{self._missing()}." if self.is_minor else ""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentence str(self) on the coverage, as a tuple of one, for the notes of a report.

        The tuple is empty if the report begins with this sentence (see `headline`), or if there are no parts.
        """
        return (str(self),) if self.parts and not self.is_minor else ()

    def _missing(self) -> str:
        """Return the clause that names up to 4 parts that the report does not cover; "" if it covers all."""
        missing = list(dict.fromkeys(f"{printable(part.name) or 'the model'} ({part.kind})" for part in self.unseen))
        if not missing:
            return ""
        return f"; not seen: {listed(missing, NAMED)}"

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes, name -> value, as values that JSON can represent."""
        parts = [[p.name, p.kind, list(p.parameters), p.multiplications, p.seen] for p in self.parts]
        return {"sizes": dict(self.sizes), "parts": parts, "is_chosen": self.is_chosen}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> Coverage:
        """Return the coverage from `fields`, a dict of its attributes that `to_dict` returned."""
        parts = (CoveredPart(name, kind, tuple(read), count, seen) for name, kind, read, count, seen in fields["parts"])
        return Coverage(dict(fields["sizes"]), tuple(parts), fields["is_chosen"])


NOTHING = Coverage({}, ())
EVERY = ("*", ["*"], ("*",))  # patterns that select all layers
Parts = dict[tuple[str, str, bool], CoveredPart]


def add_part(parts: Parts, part: CoveredPart) -> None:
    """Add a part of a model to `parts`, in place.

    If `parts` has a part of the same name, kind and `seen`, the two are merged: their multiplications are added, and
    their parameters joined. parts: (name, kind, seen) -> part.
    """
    key = part.name, part.kind, part.seen
    mine = parts.get(key)
    parts[key] = part if mine is None else replace(
        part, multiplications=mine.multiplications + part.multiplications,
        parameters=tuple(dict.fromkeys((*mine.parameters, *part.parameters))),
    )  # fmt: skip


def _share(part: float, whole: float) -> float:
    """Return part / whole, or NaN if the whole is 0."""
    return part / whole if whole else math.nan
