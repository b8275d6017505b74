"""NVFP4 as three libraries write it: E2M1 codes, two in a byte, an E4M3 scale per 16 codes, a scale of the tensor.

The same bytes are written by compressed-tensors 0.20.0, nvidia-modelopt 0.47.0 and torchao 0.18.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from fpsim.analysis.tensors.writing.scales import (
    E4M3,
    F32,
    U8,
    block_amax,
    e2m1_pairs,
    fp8_codes,
    of_whole_tiles,
    per_block,
    with_tiles,
)
from fpsim.analysis.tensors.writing.weights import LayoutOptions, WeightToWrite, WrittenWeight, in_range, like_model
from fpsim.arrays import Array

BLOCK = 16  # codes that share a scale
TOP, SIX = np.float32(448), np.float32(6)  # largest values of the formats of scales and codes
TENSOR_TOP = TOP * SIX  # to which the largest magnitude of a tensor is scaled
ONE = np.float32(1)


def compressed(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in compressed-tensors' NVFP4, in which the tensor's scale g divides the blocks' scales.

    g = 2688 / (amax of the tensor). The scale s of a block is E4M3(g * (amax of the block / 6)), or 1/8 if that is 0;
    the quotient amax / 6 is rounded to the model's dtype. The codes are those of w / (s / g).
    """
    n, k = weight.shape
    tensors = {
        "weight_packed": (U8, (n, k // 2)), "weight_scale": (E4M3, (n, k // BLOCK)), "weight_global_scale": (F32, (1,)),
    }  # fmt: skip
    if weight.input_amax is not None:
        tensors["input_global_scale"] = (F32, (1,))

    def pieces() -> Iterator[tuple[str, Array]]:
        level = _inverse(weight.amax())
        for band in weight.bands(1):
            sixths = like_model(block_amax(band, BLOCK) / SIX, weight.half)
            scales = fp8_codes(level * sixths).astype(np.float32)
            scales = np.where(scales == 0, np.float32(0.125), scales)
            yield "weight_packed", e2m1_pairs(per_block(np.divide, band, scales / level))
            yield "weight_scale", scales.astype(E4M3)
        yield "weight_global_scale", np.array([level], np.float32)
        if weight.input_amax is not None:
            yield "input_global_scale", np.array([_inverse(weight.input_amax)], np.float32)

    return WrittenWeight(tensors, pieces)


def modelopt(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in ModelOpt's NVFP4, in which the tensor's scale s2 multiplies the blocks' scales.

    s2 = (amax of the tensor) / 2688. The scale s of a block is E4M3(amax of the block / (6 s2)), from 2^-9 to 448; 1
    for a block of zeros. The codes are those of w / (s * s2).
    """
    n, k = weight.shape
    tensors = {"weight": (U8, (n, k // 2)), "weight_scale": (E4M3, (n, k // BLOCK)), "weight_scale_2": (F32, ())}
    if weight.input_amax is not None:
        tensors["input_scale"] = (F32, ())

    def pieces() -> Iterator[tuple[str, Array]]:
        level = _level(weight.amax())
        for band in weight.bands(1):
            amax = block_amax(band, BLOCK)
            wanted = np.clip(amax / (SIX * level), np.float32(2**-9), TOP)
            scales = fp8_codes(np.where(amax == 0, ONE, wanted))
            yield "weight", e2m1_pairs(per_block(np.divide, band, scales.astype(np.float32) * level))
            yield "weight_scale", scales
        yield "weight_scale_2", np.array(level, np.float32)
        if weight.input_amax is not None:
            yield "input_scale", np.array(_level(weight.input_amax), np.float32)

    return WrittenWeight(tensors, pieces)


def torchao(weight: WeightToWrite, options: LayoutOptions, swizzled: bool = False) -> WrittenWeight:
    """Encode a weight in torchao's NVFP4, in which the tensor's scale p multiplies the blocks' scales.

    p = (amax of the tensor) / 2688. The scale s of a block is E4M3(amax of the block / 6 / p), from 2^-6 to 448. The
    codes are those of w * ((1 / p) / s).

    swizzled: whether scales are in tiles of 128 x 4, the order that tensor cores read.
    """
    weight = of_whole_tiles(weight) if swizzled else weight
    n, k = weight.shape
    tensors = {
        "_weight_qdata": (U8, (n, k // 2)), "_weight_scale": (E4M3, (n, k // BLOCK)),
        "_weight_per_tensor_scale": (F32, ()),
    }  # fmt: skip

    def pieces() -> Iterator[tuple[str, Array]]:
        level = _level(weight.amax())
        for band in weight.bands(1):
            scales = fp8_codes(np.clip(block_amax(band, BLOCK) / SIX / level, np.float32(2**-6), TOP))
            factors = in_range((ONE / level) / scales.astype(np.float32))
            yield "_weight_qdata", e2m1_pairs(per_block(np.multiply, band, factors))
            yield "_weight_scale", scales
        yield "_weight_per_tensor_scale", np.array(level, np.float32)

    data = {
        "is_swizzled_scales": swizzled, "use_triton_kernel": False, "act_quant_kwargs": None, "block_size": BLOCK,
        "orig_dtype": {"_type": "torch.dtype", "_data": weight.dtype},
    }  # fmt: skip
    metadata = {"_type": "NVFP4Tensor", "_data": data, "_tensor_data_names": ["per_tensor_scale", "qdata", "scale"]}
    written = WrittenWeight(tensors, pieces, json.dumps(metadata))
    return with_tiles(written) if swizzled else written


def _level(amax: float) -> np.float32:
    """Return the scale by which a reader multiplies all blocks of a tensor: amax / (6 * 448), or 1 if `amax` is 0.

    amax: the largest magnitude of the tensor.

    Raises:
      ScaleRangeError: the scale is 0 in float32.
    """
    return in_range(np.float32(amax) / TENSOR_TOP) if amax > 0 else ONE


def _inverse(amax: float) -> np.float32:
    """Return the scale by which a reader divides all blocks of a tensor: 6 * 448 / amax, or 1 if `amax` is 0.

    amax: the largest magnitude of the tensor.

    Raises:
      ScaleRangeError: the scale is Inf in float32.
    """
    return in_range(TENSOR_TOP / np.float32(amax)) if amax > 0 else ONE
