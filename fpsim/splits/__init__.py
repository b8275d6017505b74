"""Float32 products computed from products of narrower floats, with published recipes as data."""

from fpsim.lazy import attach

__getattr__, __dir__, __all__ = attach(
    "fpsim.splits",
    {"split": ["Group", "Split"], "rows": ["AIE_BF16X6", "CUTLASS_BF16X6", "CUTLASS_BF16X9", "OOTOMO_FP16X2", "ROWS"]},
)
