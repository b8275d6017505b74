"""The former address of `fpsim.divergence.divergence`, which objects pickled by 0.1 name."""

from __future__ import annotations

from fpsim.divergence.divergence import Divergence as Divergence
