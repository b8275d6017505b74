"""Published recipes for computing float32 products from products of FP16 or BF16 numbers, each with its source."""

from __future__ import annotations

from fpsim.formats.named import BF16, FP16, FP32
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.catalogue import unit
from fpsim.splits.split import Group, Split
from fpsim.sums.accumulators import FusedMultiplyAdd

# The nine pairs of three parts, grouped by the weight of their products, smallest weight first.
BANDS = (((2, 2),), ((1, 2), (2, 1)), ((0, 2), (1, 1), (2, 0)), ((0, 1), (1, 0)), ((0, 0),))
CUTLASS = (
    "CUTLASS, include/cutlass/gemm/collective/sm100_mma_warpspecialized_emulated.hpp: mma() has the order, transform() "
    "the parts and accum() the float32 total; interval is AccPromotionInterval and shift ScalingFactor. Not compared "
    "with silicon"
)

CUTLASS_BF16X9 = Split(
    "CUTLASS_BF16X9", BF16, 3, 8, Rounding.NEAREST_EVEN, "saturate", (Group(BANDS, interval=1),),
    unit("blackwell_bf16_f32"), CUTLASS,
)  # fmt: skip
CUTLASS_BF16X6 = CUTLASS_BF16X9.replace(name="CUTLASS_BF16X6", groups=(Group(BANDS[2:], interval=1),))

OOTOMO_FP16X2 = Split(
    "OOTOMO_FP16X2", FP16, 2, 11, Rounding.NEAREST_EVEN, "nonfinite",
    (Group((((0, 0),),), interval=1), Group((((1, 0), (0, 1)),), log2_scale=-11)),
    unit("ampere_f16_f32"),
    "Ootomo and Yokota, Recovering single precision accuracy from Tensor Cores (arXiv:2203.03341): the leading product "
    "is added outside of the tensor core, to nearest even, the two corrections inside it; parts 1 times 1 is left out",
)  # fmt: skip

AIE_BF16X6 = Split(
    "AIE_BF16X6", BF16, 3, 0, Rounding.TOWARD_ZERO, "nonfinite",
    (Group((((0, 1), (1, 1), (0, 2), (2, 0), (0, 0), (1, 0)),)),), FusedMultiplyAdd(FP32),
    "AMD UG1603, FP32 emulation on AI Engines, \"fast\": six products of truncated parts. The order is not published; "
    "of all 720 this one is nearest to the published errors",
)  # fmt: skip

ROWS: dict[str, Split] = {row.name: row for row in (CUTLASS_BF16X9, CUTLASS_BF16X6, OOTOMO_FP16X2, AIE_BF16X6)}
