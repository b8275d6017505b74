"""MX layouts: E4M3 codes, or E2M1 codes two in a byte, with a power-of-two scale per 32 values of a row.

Codes are those of w / scale. Libraries differ in how they compute scales and name tensors. compressed-tensors 0.20.0,
nvidia-modelopt 0.47.0 and torchao 0.18.0 write the same bytes in their layouts. Scales in gpt-oss's layout are computed
as by torchao; transformers 5.24.0 reads this layout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np

from fpsim.analysis.tensors.layouts.unpacking import powers
from fpsim.analysis.tensors.writing.scales import (
    E4M3,
    E8M0,
    U8,
    block_amax,
    ceil_codes,
    e2m1_pairs,
    even_codes,
    floor_codes,
    fp8_codes,
    of_whole_tiles,
    per_block,
    with_tiles,
)
from fpsim.analysis.tensors.writing.weights import LayoutOptions, WeightToWrite, WrittenWeight
from fpsim.arrays import Array

BLOCK = 32  # codes that share a scale
TORCH_NAMES = {"e4m3": "float8_e4m3fn", "e2m1": "float4_e2m1fn_x2"}


def compressed(weight: WeightToWrite, options: LayoutOptions, fmt: str) -> WrittenWeight:
    """Encode a weight in compressed-tensors' MXFP4 (fmt="e2m1") or MXFP8 (fmt="e4m3").

    The scales are those that `even_codes` returns.
    """
    return _blocks(weight, fmt, "weight_packed" if fmt == "e2m1" else "weight", "weight_scale", U8, even_codes)


def modelopt(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in ModelOpt's MXFP8, with scales amax / 448 rounded up to a power of two."""
    return _blocks(weight, "e4m3", "weight", "weight_scale", U8, ceil_codes)


def torchao(weight: WeightToWrite, options: LayoutOptions, fmt: str, swizzled: bool = False) -> WrittenWeight:
    """Encode a weight in torchao's MXFP4 (fmt="e2m1") or MXFP8 (fmt="e4m3"), with scales from `floor_codes`.

    swizzled: whether scales are in tiles of 128 x 4, the order that tensor cores read.
    """
    weight = of_whole_tiles(weight) if swizzled else weight
    written = _blocks(weight, fmt, "_weight_qdata", "_weight_scale", E8M0, floor_codes)
    written = written._replace(metadata=_metadata(weight.dtype, TORCH_NAMES[fmt], swizzled))
    return with_tiles(written) if swizzled else written


def gpt_oss(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in gpt-oss's MXFP4, whose codes have a separate axis for blocks: (..., N, K/32, 16) bytes.

    weight: the matrix or matrices to write, (..., N, K), with a row for each output.
    """
    plain = _blocks(weight, "e2m1", "_blocks", "_scales", U8, floor_codes)
    *lead, n, k = weight.shape
    return plain._replace(tensors={**plain.tensors, "_blocks": (U8, (*lead, n, k // BLOCK, BLOCK // 2))})


def _blocks(
    weight: WeightToWrite, fmt: str, codes: str, scale: str, dtype: np.dtype[np.generic],
    rule: Callable[[Array, str], Array],
) -> WrittenWeight:  # fmt: skip
    """Encode a weight in an MX layout, as a tensor of codes and a tensor of scales.

    fmt: format of the codes, "e2m1" or "e4m3". codes, scale: ends of the names of both tensors. dtype: dtype of the
    scales. rule: rule(largest magnitudes of the blocks, fmt) returns the E8M0 codes of their scales.
    """
    *lead, n, k = weight.shape
    pairs = fmt == "e2m1"

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(1):
            stored = rule(block_amax(band, BLOCK), fmt)
            quotients = per_block(np.divide, band, powers(stored))
            yield codes, e2m1_pairs(quotients) if pairs else fp8_codes(quotients)
            yield scale, stored.view(dtype)

    of_codes = (U8, (*lead, n, k // 2)) if pairs else (E4M3, (*lead, n, k))
    return WrittenWeight({codes: of_codes, scale: (dtype, (*lead, n, k // BLOCK))}, pieces)


def _metadata(dtype: str, element: str, swizzled: bool) -> str:
    """Return torchao's metadata (JSON) of an MX weight, by which torchao also quantises the layer's inputs.

    dtype, element: torch's names of the model's and the codes' dtype. swizzled: whether scales are in tiles.
    """
    common = {
        "elem_dtype": {"_type": "torch.dtype", "_data": element}, "block_size": BLOCK,
        "kernel_preference": {"_type": "KernelPreference", "_data": "EMULATED"}, "is_swizzled_scales": swizzled,
    }  # fmt: skip
    inputs = {**common, "scaling_mode": {"_type": "ScaleCalculationMode", "_data": "FLOOR"}}
    data = {
        **common, "orig_dtype": {"_type": "torch.dtype", "_data": dtype},
        "act_quant_kwargs": {"_type": "QuantizeTensorToMXKwargs", "_data": inputs},
    }  # fmt: skip
    return json.dumps({"_type": "MXTensor", "_data": data, "_tensor_data_names": ["qdata", "scale"]})
