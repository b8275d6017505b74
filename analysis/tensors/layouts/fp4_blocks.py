"""Weights of E2M1 codes, two in a byte, with scales of blocks: MXFP4, and NVFP4 with a further scale for the tensor."""

from __future__ import annotations

import numpy as np

from fpsim.analysis.tensors.layouts.float_blocks import float_blocks, scale_values
from fpsim.analysis.tensors.layouts.parts import Decoder, LayoutError, WeightParts
from fpsim.analysis.tensors.layouts.unpacking import fp4_values, nibbles, swizzled_shape, unswizzled
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.arrays import Array

NVFP4, MXFP4 = 16, 32  # codes that share a scale


def packed_pairs(parts: WeightParts) -> Tensor:
    """Return a weight of later DeepSeek checkpoints, in FP4 or FP8, as a Tensor that is decoded when it is read.

    The Tensor yields float32 values. parts: the weight's stored tensors: `parts.codes`, and its scales,
    `parts.beside["scale"]`. Codes of dtype int8 are FP4: two E2M1 codes in a byte, the low nibble first, with an E8M0
    scale per 32 elements. Codes of another dtype are FP8: one code in a byte, with one scale per block of elements.
    Experts are FP4, all other layers FP8.

    Raises:
      LayoutError: the shape of the scales does not fit the codes.

    Source: transformers 5.24, integrations/finegrained_fp8.py.
    """
    codes, scale = parts.codes, parts.beside["scale"]
    pairs = codes.dtype == "int8" and scale.dtype == "float8_e8m0fnu" and len(codes.shape) > 1
    if pairs and scale.shape and (*scale.shape[:-1], scale.shape[-1] * MXFP4 // 2) == codes.shape:
        return fp4_blocks(parts)
    return float_blocks(parts)


def fp4_blocks(parts: WeightParts) -> Tensor:
    """Return a weight stored as E2M1 codes, with a scale for each block and perhaps one for the whole tensor.

    The tensor's scale multiplies the blocks' scales (ModelOpt's weight_scale_2), or divides them (compressed-tensors'
    weight_global_scale); the result is rounded to float32 before it multiplies the codes' values.

    Raises:
      LayoutError: the shape of the scales does not fit the codes.

    Source: compressed-tensors and ModelOpt, whose own readers return the same bits.
    """
    codes, stored = parts.codes, parts.beside["scale"]
    if len(codes.shape) < 2:
        raise LayoutError(f"it has scales, and the shape {codes.shape}; wanted a matrix")
    if len(codes.shape) == len(stored.shape) + 1:  # a separate axis for blocks
        shape, width = (*codes.shape[:-2], codes.shape[-2] * codes.shape[-1] * 2), codes.shape[-1] * 2
    else:
        shape, width = (*codes.shape[:-1], codes.shape[-1] * 2), 0
    of_scales = stored.shape
    side = NVFP4 if stored.dtype == "float8_e4m3fn" else MXFP4
    if len(shape) == 2 and of_scales == swizzled_shape(shape[0], shape[1] // side):
        of_scales = shape[0], shape[1] // side
    fits = of_scales[:-1] == shape[:-1] and of_scales[-1] and shape[-1] % of_scales[-1] == 0
    block = shape[-1] // of_scales[-1] if fits else 0
    if not fits or width not in (0, block):
        raise LayoutError(f"its scales of shape {stored.shape} do not fit blocks of its codes of shape {codes.shape}")
    levels = {key: parts.number(key) for key in ("tensor_divisor", "tensor_scale") if key in parts.beside}
    table = fp4_values() if parts.minus_zero else fp4_values() + np.float32(0)

    def load() -> Decoder:
        scales = scale_values(stored)
        if of_scales != stored.shape:
            scales = unswizzled(scales, *of_scales)
        with np.errstate(all="ignore"):
            scales = scales.reshape(-1) / np.float32(levels.get("tensor_divisor", 1))
            scales = scales * np.float32(levels.get("tensor_scale", 1))

        def decode(band: Array, first: int) -> Array:
            values = table[nibbles(np.ascontiguousarray(band).view(np.uint8))].reshape(-1, block)
            start = first * band.shape[1] * 2 // block
            with np.errstate(all="ignore"):  # scales may be anything
                return values * scales[start : start + len(values), None]

        return decode

    known = {("float8_e4m3fn", NVFP4): "NVFP4", ("uint8", MXFP4): "MXFP4", ("float8_e8m0fnu", MXFP4): "MXFP4"}
    words = known.get((stored.dtype, block), f"E2M1 in 1x{block} blocks")
    return parts.weight(shape, words, load)
