"""Hypothesis strategies of formats, codes, values and operands; no other package of fpsim imports Hypothesis."""

from fpsim.errors import install
from fpsim.lazy import face

try:
    from fpsim.testing.strategies.arrays import arrays, from_dtype, scaled_arrays
    from fpsim.testing.strategies.numbers import (
        codes,
        float32_bits,
        inputs,
        near_overflow,
        subnormal_seam,
        ties,
        values,
    )
    from fpsim.testing.strategies.products import products
    from fpsim.testing.strategies.words import formats, policies, roundings
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] != "hypothesis":
        raise
    raise ImportError(f"fp.testing.strategies needs hypothesis, which is not installed: {install('testing')}") from None

__all__ = [
    "arrays", "codes", "float32_bits", "formats", "from_dtype", "inputs", "near_overflow", "policies", "products",
    "roundings", "scaled_arrays", "subnormal_seam", "ties", "values",
]  # fmt: skip

__getattr__, __dir__ = face(__name__, __all__)
