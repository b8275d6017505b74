"""The former address of `fpsim.divergence.mechanism`, which objects pickled by 0.1 name."""

from __future__ import annotations

from fpsim.divergence.mechanism import Product as Product
