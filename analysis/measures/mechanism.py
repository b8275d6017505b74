"""The former module of `fpsim.divergence.mechanism`, kept so that objects pickled by version 0.1 load."""

from __future__ import annotations

from fpsim.divergence.product import Product as Product
