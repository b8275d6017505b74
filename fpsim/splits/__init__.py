"""Products of wide floats from several products of narrow ones: recipes as data, and their arithmetic bit for bit."""

from fpsim.lazy import attach

__getattr__, __dir__, __all__ = attach(
    "fpsim.splits",
    {"split": ["Group", "Split"], "rows": ["AIE_BF16X6", "CUTLASS_BF16X6", "CUTLASS_BF16X9", "OOTOMO_FP16X2", "ROWS"]},
)
