"""The former module of `fpsim.divergence.divergence`, kept so that objects pickled by version 0.1 load."""

from __future__ import annotations

from fpsim.divergence.divergence import Divergence as Divergence
