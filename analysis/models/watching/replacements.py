"""Functions of modules, such as their forward passes, that are replaced for a while and restored later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Replacements:
    """The functions that a watcher has replaced in modules, with the original ones."""

    def __init__(self) -> None:
        self._before: list[tuple[torch.nn.Module, str, Any]] = []

    def replace(self, module: torch.nn.Module, function: Callable[..., Any], attribute: str = "forward") -> None:
        """Set an attribute of a module to `function`, and remember the original."""
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
