"""Scalings as data: one named `Scaling` per granularity, microscaling rule and library, with its source."""

from __future__ import annotations

from typing import Any

from fpsim.errors import shown, unknown
from fpsim.formats.named import E4M3, E8M0, Format, find_by_name
from fpsim.lazy import face
from fpsim.scaling.scaling import Scaling

E8M0_SCALES: dict[str, Any] = {"scale_format": E8M0}
ROWS: dict[str, Scaling] = {}


def _row(name: str, block: tuple[int, int], **fields: Any) -> Scaling:
    """Return a new Scaling (recipe of tiles and scales), and add it to ROWS under its name.

    block: the size of a tile. fields: the other arguments of `Scaling`.
    """
    scaling = Scaling(block=block, name=name, **fields)
    ROWS[name] = scaling
    return scaling


# Granularities. DeepSeek-V3 (arXiv:2412.19437), 3.3: 1x128 for activations, 128x128 for weights, 128x1 for the
# backward pass; its UE8M0 option is a scale that is a power of two.
TENSOR = _row("TENSOR", (-1, -1))
ROW = _row("ROW", (1, -1))
COLUMN = _row("COLUMN", (-1, 1))
TILE_1X128 = _row("TILE_1X128", (1, 128))
TILE_128X1 = _row("TILE_128X1", (128, 1))
BLOCK_128X128 = _row("BLOCK_128X128", (128, 128))
TENSOR_POW2 = _row("TENSOR_POW2", (-1, -1), **E8M0_SCALES)
ROW_POW2 = _row("ROW_POW2", (1, -1), **E8M0_SCALES)
COLUMN_POW2 = _row("COLUMN_POW2", (-1, 1), **E8M0_SCALES)
TILE_1X128_POW2 = _row("TILE_1X128_POW2", (1, 128), **E8M0_SCALES)
TILE_128X1_POW2 = _row("TILE_128X1_POW2", (128, 1), **E8M0_SCALES)
BLOCK_128X128_POW2 = _row("BLOCK_128X128_POW2", (128, 128), **E8M0_SCALES)

# OCP Microscaling Formats (MX) v1.0, 6.3: the floor rule. The others are torchao's ScaleCalculationMode; RCEIL is that
# of cuBLAS, and NEAREST what a plain cast of the quotient does.
MX = _row("MX", (1, 32), **E8M0_SCALES, scale_rule="floor")
MX_CEIL = _row("MX_CEIL", (1, 32), **E8M0_SCALES, scale_rule="ceil")
MX_EVEN = _row("MX_EVEN", (1, 32), **E8M0_SCALES, scale_rule="even")
MX_RCEIL = _row("MX_RCEIL", (1, 32), **E8M0_SCALES, scale_rule="rceil")
MX_NEAREST = _row("MX_NEAREST", (1, 32), **E8M0_SCALES, scale_rule="nearest")

# NVIDIA, "Pretraining Large Language Models with NVFP4" (arXiv:2509.25149).
TWO_LEVELS: dict[str, Any] = {"scale_format": E4M3, "tensor_scale": True}
NVFP4 = _row("NVFP4", (1, 16), **TWO_LEVELS)

# "Four Over Six" (fouroversix 1.0.5): the largest magnitude of a tile becomes 6 or 4, whichever has the smaller error;
# scales of tiles are made for up to 256, so that 1.5 times that fits E4M3. IF4 (arXiv:2603.28765): E2M1, or integers
# times 6/7.
NVFP4_46 = _row("NVFP4_46", (1, 16), **TWO_LEVELS, tensor_top=256.0, adaptive="mse")
IF4 = _row("IF4", (1, 16), **TWO_LEVELS, adaptive="mse")

# HiFloat4 (arXiv:2602.11287; github.com/global-computing-consortium/HiFloat4): scales of 2**-48 to 49152, NaN 255.
E6M2 = Format(
    "E6M2", 6, 2, bias=48, signed=False, infinities=False, nan="top", subnormals=False, source="HiFloat4"
)  # fmt: skip
HIF4 = _row("HIF4", (1, 64), scale_format=E6M2)

# AWS Neuron, nki.isa.quantize_mx (NeuronCore-v4): twice the scale of OCP's algorithm, so that nothing saturates.
TRAINIUM_MX = _row("TRAINIUM_MX", (1, 32), **E8M0_SCALES, scale_rule="twice_floor")

# DeepGEMM, deep_gemm/utils/math.py: per_token_cast_to_fp8, per_channel_cast_to_fp8, per_block_cast_to_fp8.
_DEEPGEMM: dict[str, Any] = {
    "amax_floor": 1e-4, "division": "multiply", "overflow": "saturate", "infinity": "propagate",
}  # fmt: skip
DEEPGEMM_1X128 = _row("DEEPGEMM_1X128", (1, 128), **_DEEPGEMM)
DEEPGEMM_128X1 = _row("DEEPGEMM_128X1", (128, 1), **_DEEPGEMM)
DEEPGEMM_128X128 = _row("DEEPGEMM_128X128", (128, 128), **_DEEPGEMM)
DEEPGEMM_1X128_UE8M0 = _row("DEEPGEMM_1X128_UE8M0", (1, 128), **_DEEPGEMM, **E8M0_SCALES)
DEEPGEMM_128X1_UE8M0 = _row("DEEPGEMM_128X1_UE8M0", (128, 1), **_DEEPGEMM, **E8M0_SCALES)
DEEPGEMM_128X128_UE8M0 = _row("DEEPGEMM_128X128_UE8M0", (128, 128), **_DEEPGEMM, **E8M0_SCALES)

# Transformer Engine: common/recipe/recipe_common.cuh (compute_scale_from_amax), common/util/ptx_arch_spec.cuh
# (float_to_e8m0), common/cast/nvfp4/core_nvfp4.cuh. Its maxima ignore NaN.
_TE: dict[str, Any] = {"overflow": "saturate", "nan": "element"}
_TE_FP8: dict[str, Any] = {**_TE, "quotient": "1/(max/amax)", "infinity": "one"}
TE_TENSOR = _row("TE_TENSOR", (-1, -1), **_TE_FP8)
TE_1X128 = _row("TE_1X128", (1, 128), **_TE_FP8, **E8M0_SCALES)
TE_128X128 = _row("TE_128X128", (128, 128), **_TE_FP8, **E8M0_SCALES)
TE_1X128_FP32 = _row("TE_1X128_FP32", (1, 128), **_TE_FP8)
TE_128X128_FP32 = _row("TE_128X128_FP32", (128, 128), **_TE_FP8)
TE_MX = _row(
    "TE_MX", (1, 32), **_TE, **E8M0_SCALES, scale_rule="rceil", quotient="amax*(1/max)", infinity="propagate",
    zero_scale="smallest",
)  # fmt: skip
TE_NVFP4 = _row("TE_NVFP4", (1, 16), **_TE, **TWO_LEVELS, quotient="1/(max/amax)")

# torchao: float8/float8_utils.py (amax_to_scale), prototype/blockwise_fp8_training/kernels.py,
# prototype/mx_formats/mx_tensor.py (to_mx), prototype/mx_formats/nvfp4_tensor.py (nvfp4_quantize).
_TORCHAO: dict[str, Any] = {"overflow": "saturate", "infinity": "propagate"}
_TORCHAO_FP8: dict[str, Any] = {**_TORCHAO, "quotient": "1/(max/amax)", "amax_floor": 1e-12}
_TORCHAO_MX: dict[str, Any] = {**_TORCHAO, **E8M0_SCALES, "zero_scale": "smallest"}
TORCHAO_TENSOR = _row("TORCHAO_TENSOR", (-1, -1), **_TORCHAO_FP8)
TORCHAO_ROW = _row("TORCHAO_ROW", (1, -1), **_TORCHAO_FP8, **E8M0_SCALES)
TORCHAO_1X128 = _row("TORCHAO_1X128", (1, 128), **_TORCHAO_FP8)
TORCHAO_128X1 = _row("TORCHAO_128X1", (128, 1), **_TORCHAO_FP8)
TORCHAO_128X128 = _row("TORCHAO_128X128", (128, 128), **_TORCHAO_FP8)
TORCHAO_MX = _row("TORCHAO_MX", (1, 32), **_TORCHAO_MX, scale_rule="floor")
TORCHAO_MX_CEIL = _row("TORCHAO_MX_CEIL", (1, 32), **_TORCHAO_MX, scale_rule="ceil")
TORCHAO_MX_EVEN = _row("TORCHAO_MX_EVEN", (1, 32), **_TORCHAO_MX, scale_rule="even")
TORCHAO_MX_RCEIL = _row("TORCHAO_MX_RCEIL", (1, 32), **_TORCHAO_MX, scale_rule="rceil")
TORCHAO_NVFP4 = _row(
    "TORCHAO_NVFP4", (1, 16), **TWO_LEVELS, division="multiply", smallest_scale=2.0**-6, overflow="saturate",
    zero_scale="smallest",
)  # fmt: skip

__all__ = list(ROWS)  # filled in above

# The scalings for elements of any format.
ANY_ELEMENT = {name: row for name, row in ROWS.items() if not row.adaptive and row.scale_format != E6M2}

# Other names of scalings.
_MEANT = {
    **dict.fromkeys(("mxfp8", "mxfp6", "mxfp4", "mx32", "block_1x32"), "MX"), "fp4": "NVFP4",
    "4/6": "NVFP4_46", "fouroversix": "NVFP4_46", "hifloat4": "HIF4", "trainium": "TRAINIUM_MX",
    "per_tensor": "TENSOR", "per_row": "ROW", "per_token": "ROW", "rowwise": "ROW", "per_column": "COLUMN",
    "per_channel": "COLUMN", "columnwise": "COLUMN",
    **dict.fromkeys(("deepseek", "deepseek_v3", "1x128", "tile"), "TILE_1X128"), "128x1": "TILE_128X1",
    **dict.fromkeys(("128x128", "block", "blockwise", "per_block"), "BLOCK_128X128"),
}  # fmt: skip


ScalingLike = str | Scaling  # types that `scaling_of` accepts


def scaling_of(scaling: Any, argument: str = "scaling", others: str = "") -> Scaling:
    """Return the scaling that a name, in any case, stands for; a `Scaling` is returned unchanged.

    Args:
      scaling: an fp.Scaling, the name of one in `fp.scalings`, such as "mx", or that name as `repr` writes it.
      argument: the name of the caller's argument, for the error's text.
      others: text that names what else the caller accepts, such as "or None", for the error's text.

    Raises:
      TypeError: scaling is neither a text nor a scaling.
      ValueError: no scaling has that name.

    Example:
      >>> from fpsim.scaling.recipes import scaling_of
      >>> scaling_of("mx"), scaling_of("fp.scalings.TILE_1X128")
      (fp.scalings.MX, fp.scalings.TILE_1X128)
    """
    if isinstance(scaling, Scaling):
        return scaling
    if not isinstance(scaling, str):
        raise TypeError(
            f"{argument} must be an fp.Scaling, such as fp.scalings.TILE_1X128, or the name of one"
            f"{others and f', {others}'}; got {type(scaling).__name__} {shown(scaling)}."
        )
    name = scaling.upper().replace("-", "_").removeprefix("FP.SCALINGS.")
    if name not in ROWS:
        refusal = unknown(argument, scaling, list(ROWS), _MEANT, listing="fp.scalings", others=others)
        if find_by_name(scaling) is not None:
            raise ValueError(f"{refusal} That is a format, which comes before the scaling.")
        raise refusal
    return ROWS[name]


__getattr__, __dir__ = face("fpsim.scalings", [*ROWS, "ROWS"], _MEANT)
