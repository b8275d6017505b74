"""What a budget has to say besides its figures: a sentence for each reason, with all that it holds of."""

from __future__ import annotations

from collections.abc import Iterable

from fpsim.display.wording import listed

SHOWN = 8  # names of a sentence


class Notes:
    """Reasons, and what each holds of, in the order in which they come.

    Example:
      >>> from fpsim.analysis.studies.budget.notes import Notes
      >>> notes = Notes()
      >>> for name in ("conv1", "conv2", "conv1"):
      ...     notes.add("Left out, since convolutions stay as they are", name)
      >>> notes.sentences
      ('Left out, since convolutions stay as they are: conv1 and conv2.',)
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[str, None]] = {}

    def add(self, reason: str, of: str) -> None:
        """One more that a reason holds of."""
        self._found.setdefault(reason, {})[of] = None

    def extend(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Several reasons, each with what it holds of."""
        for reason, of in pairs:
            self.add(reason, of)

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each reason."""
        return tuple(f"{reason}: {listed(list(names), SHOWN)}." for reason, names in self._found.items())
