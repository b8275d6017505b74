"""Layouts of FP8 and INT8 codes, with scales of the tensor, of rows or of 128 x 128 blocks.

The same bytes are written by transformers 5.24.0 (DeepSeek's layouts; integrations/finegrained_fp8.py),
compressed-tensors 0.20.0 and nvidia-modelopt 0.47.0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.unpacking import powers
from fpsim.analysis.tensors.writing.scales import E4M3, E8M0, F32, I8, block_amax, ceil_codes, fp8_codes, with_eps
from fpsim.analysis.tensors.writing.weights import (
    LayoutOptions,
    WeightToWrite,
    WrittenWeight,
    filled,
    in_range,
    like_model,
)
from fpsim.arrays import Array

TOP = np.float32(448)
SIDE = 128  # rows and columns of a block
INT8_STEPS = np.float32(127.5)


def deepseek(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in DeepSeek-V3's blocks of 128 x 128: s = (1 / amax) * 448, code = w * s, and 1 / s is stored.

    Source: transformers 5.24.0, integrations/finegrained_fp8.py, which writes the same bytes.
    """

    def quantised(blocks: Array, amax: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore"):
            scales = in_range(np.where(amax > 0, np.float32(1) / amax * TOP, np.float32(1)))
        return blocks * scales[:, None, :, None], np.float32(1) / scales

    return _blocks(weight, "weight_scale_inv", F32, quantised)


def deepseek_ue8m0(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in DeepSeek's blocks of 128 x 128 with E8M0 scales, 2^ceil(log2(amax / 448)).

    Source: transformers 5.24.0, which writes the same bytes.
    """

    def quantised(blocks: Array, amax: Array) -> tuple[Array, Array]:
        codes = np.where(amax > 0, ceil_codes(amax, "e4m3"), np.uint8(127)).astype(np.uint8)
        return blocks * (np.float32(1) / powers(codes))[:, None, :, None], codes.view(E8M0)

    return _blocks(weight, "weight_scale_inv", E8M0, quantised)


def compressed_block(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in compressed-tensors' blocks of 128 x 128: s = amax / 448 in the model's dtype, code = w / s.

    Source: compressed-tensors 0.20.0, which writes the same bytes.
    """
    half = weight.half

    def quantised(blocks: Array, amax: Array) -> tuple[Array, Array]:
        scales = with_eps(like_model(amax / TOP, half), half)
        return like_model(blocks / scales[:, None, :, None], half), scales.astype(weight.scale_dtype)

    return _blocks(weight, "weight_scale", weight.scale_dtype, quantised)


def compressed_channel(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in compressed-tensors' FP8 with row scales: s = amax / 448 in the model's dtype, code = w / s.

    Source: compressed-tensors 0.20.0, which writes the same bytes.
    """
    return _rows(weight, E4M3, TOP, fp8_codes)


def compressed_tensor(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in compressed-tensors' FP8 with one scale: s = amax / 448 in the model's dtype, code = w / s.

    Source: compressed-tensors 0.20.0, which writes the same bytes.
    """
    half = weight.half
    tensors = {"weight": (E4M3, weight.shape), "weight_scale": (weight.scale_dtype, (1,))}
    if weight.input_amax is not None:
        tensors["input_scale"] = (weight.scale_dtype, (1,))

    def pieces() -> Iterator[tuple[str, Array]]:
        scale = with_eps(like_model(np.array([weight.amax()], np.float32) / TOP, half), half)
        for band in weight.bands(1):
            yield "weight", fp8_codes(like_model(band / scale, half))
        yield "weight_scale", scale.astype(weight.scale_dtype)
        if weight.input_amax is not None:
            yield "input_scale", (np.array([weight.input_amax], np.float32) / TOP).astype(weight.scale_dtype)

    return WrittenWeight(tensors, pieces)


def compressed_int8(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in compressed-tensors' INT8 with row scales.

    s = amax / 127.5, rounded to the model's dtype; code = clip(RNE(w / s), -128, 127).

    Source: compressed-tensors 0.20.0, which writes the same bytes.
    """
    return _rows(weight, I8, INT8_STEPS, lambda quotients: np.clip(np.rint(quotients), -128, 127).astype(np.int8))


def _rows(
    weight: WeightToWrite, dtype: np.dtype[Any], top: np.float32, coded: Callable[[Array], Array]
) -> WrittenWeight:
    """Encode a weight in compressed-tensors' layout with a scale per row: s = amax of the row / top.

    dtype: dtype of the codes. top: the number that w / s reaches at the row's amax, such as 448 for E4M3. coded:
    function that rounds an array of w / s to codes.
    """

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(1):
            scales = with_eps(like_model(block_amax(band, band.shape[1]) / top, weight.half), weight.half)
            yield "weight", coded(like_model(band / scales, weight.half))
            yield "weight_scale", scales.astype(weight.scale_dtype)

    shape = weight.shape
    return WrittenWeight({"weight": (dtype, shape), "weight_scale": (weight.scale_dtype, (shape[0], 1))}, pieces)


def modelopt_fp8(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in ModelOpt's FP8 with one scale: s = amax / 448 in float32; w / s is rounded to the model's
    dtype, then to E4M3.

    Source: nvidia-modelopt 0.47.0, which writes the same bytes.
    """
    tensors = {"weight": (E4M3, weight.shape), "weight_scale": (F32, ())}
    if weight.input_amax is not None:
        tensors["input_scale"] = (F32, ())

    def pieces() -> Iterator[tuple[str, Array]]:
        scale = np.float32(weight.amax()) / TOP
        divisor = scale if scale > 0 else np.float32(1)
        for band in weight.bands(1):
            yield "weight", fp8_codes(like_model(band / divisor, weight.half))
        yield "weight_scale", np.array(divisor, np.float32)
        if weight.input_amax is not None:
            yield "input_scale", np.array(np.float32(weight.input_amax) / TOP, np.float32)

    return WrittenWeight(tensors, pieces)


def modelopt_fp8_channel(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in ModelOpt's FP8 with a scale per row: s = amax / 448 in float32 (1 for rows of zeros); w / s is
    rounded once, to E4M3.

    Source: nvidia-modelopt 0.47.0, which writes the same bytes.
    """

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(1):
            amax = block_amax(band, band.shape[1])[:, 0]
            scales = np.where(amax > 0, amax / TOP, np.float32(1))
            yield "weight", fp8_codes(band / scales[:, None])
            yield "weight_scale", scales

    return WrittenWeight({"weight": (E4M3, weight.shape), "weight_scale": (F32, weight.shape[:1])}, pieces)


def _blocks(
    weight: WeightToWrite,
    end: str,
    dtype: np.dtype[np.generic],
    quantised: Callable[[Array, Array], tuple[Array, Array]],
) -> WrittenWeight:
    """Encode a weight as E4M3 codes with a scale per block of 128 x 128; blocks at the edges may be smaller.

    end, dtype: end of the name, and dtype, of the scales. quantised: called with blocks, (rows, 128, columns, 128), and
    their amax, (rows, columns); returns the values to round to E4M3, and the scales to store.
    """
    n, k = weight.shape

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(SIDE):
            padded = filled(band, SIDE, SIDE)
            blocks = padded.reshape(len(padded) // SIDE, SIDE, -1, SIDE)
            values, scales = quantised(blocks, np.maximum(blocks.max((1, 3)), -blocks.min((1, 3))))
            rows = values.reshape(padded.shape)[: len(band), :k]
            yield "weight", fp8_codes(rows)
            yield end, scales

    return WrittenWeight({"weight": (E4M3, (n, k)), end: (dtype, (-(-n // SIDE), -(-k // SIDE)))}, pieces)
