"""AdamW in any format: clipping, moments, updates, and what they change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.train.optimizer.adamw import AdamW as AdamW
    from fpsim.train.optimizer.report import StepReport as StepReport

__getattr__, __dir__, __all__ = attach(__name__, {"adamw": ["AdamW"], "report": ["StepReport"]})
