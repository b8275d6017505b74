"""Functions of modules, such as forward passes, that are replaced temporarily."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Replacements:
    """The functions that were replaced in modules, with the originals to restore."""

    def __init__(self) -> None:
        self._before: list[tuple[torch.nn.Module, str, Any]] = []

    def replace(self, module: torch.nn.Module, function: Callable[..., Any], attribute: str = "forward") -> None:
        """Set an attribute of a module, such as "forward", to `function`, and remember the original."""
        self._before.append((module, attribute, module.__dict__.get(attribute)))
        module.__dict__[attribute] = function

    def restore(self) -> None:
        """Restore the original functions of all modules, the last replaced first."""
        for module, attribute, before in reversed(self._before):
            if before is None:
                del module.__dict__[attribute]
            else:
                module.__dict__[attribute] = before
        self._before = []
