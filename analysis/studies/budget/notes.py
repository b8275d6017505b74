"""The notes of a budget: a sentence for each reason, with the names of the layers or products that it applies to."""

from __future__ import annotations

from collections.abc import Iterable

from fpsim.display.wording import listed

SHOWN = 8  # names that a sentence lists


class Notes:
    """Reasons, each with the names of the layers or products to which it applies, in the order of first use.

    Example:
      >>> from fpsim.analysis.studies.budget.notes import Notes
      >>> notes = Notes()
      >>> for name in ("conv1", "conv2", "conv1"):
      ...     notes.add("Left out, since convolutions stay exact", name)
      >>> notes.sentences
      ('Left out, since convolutions stay exact: conv1 and conv2.',)
    """

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}

    def add(self, reason: str, of: str) -> None:
        """Record that a reason applies to `of`, the name of a layer or product."""
        self._names.setdefault(reason, {})[of] = None

    def extend(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Add several (reason, name of a layer or product) pairs."""
        for reason, of in pairs:
            self.add(reason, of)

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each reason, with up to 8 of the names to which it applies, and the number of the others."""
        return tuple(f"{reason}: {listed(list(names), SHOWN)}." for reason, names in self._names.items())
