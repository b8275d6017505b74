"""Layouts of E2M1 codes, two in a byte: NVFP4 as three libraries write it, and MXFP4 as three libraries do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np

from fpsim.analysis.tensors.layouts.unpacking import powers
from fpsim.analysis.tensors.writing.one_byte import E4M3, E8M0, F32, U8, fp8_codes, mx_metadata
from fpsim.analysis.tensors.writing.scales import block_amax, even_codes, floor_codes, swizzled_scales
from fpsim.analysis.tensors.writing.weights import LayoutOptions, WeightToWrite, WrittenWeight, like_model
from fpsim.arrays import Array
from fpsim.casts.cast import encode

NV, MX = 16, 32  # codes that share a scale
TENSOR_TOP = np.float32(2688)  # 448 * 6, to which the largest magnitude of a tensor is scaled
ONE = np.float32(1)


def e2m1_pairs(values: Array) -> Array:
    """Return float32 values rounded to E2M1 codes, two in a byte, the first in the low bits: (rows, K) become (rows, K
    / 2) uint8.
    """
    codes = encode(np.ascontiguousarray(values, np.float32), "e2m1", overflow="saturate")
    return np.asarray(codes[:, ::2] | codes[:, 1::2] << np.uint8(4))


def compressed_nvfp4(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in compressed-tensors' NVFP4, in which the tensor's scale g divides the blocks' scales.

    g = 2688 / (amax of the tensor). The scale s of a block is E4M3(g * (amax of the block / 6)), or 1/8 if that is 0;
    the quotient amax / 6 is rounded to the model's dtype. The codes are those of w / (s / g). weight: the matrix to
    write, (N, K), with a row for each output. The result lists the stored tensors, and yields their elements in pieces.
    options: not used.

    Source: compressed-tensors 0.20.0, which writes the same bytes.
    """
    n, k = weight.shape
    tensors = {
        "weight_packed": (U8, (n, k // 2)), "weight_scale": (E4M3, (n, k // NV)), "weight_global_scale": (F32, (1,)),
    }  # fmt: skip
    if weight.input_amax is not None:
        tensors["input_global_scale"] = (F32, (1,))

    def pieces() -> Iterator[tuple[str, Array]]:
        level = _inverse(weight.amax())
        for band in weight.bands(1):
            sixths = like_model(block_amax(band, NV) / np.float32(6), weight.half)
            scales = _decoded(fp8_codes(level * sixths))
            scales = np.where(scales == 0, np.float32(0.125), scales)
            yield "weight_packed", _quotients(band, NV, scales / level)
            yield "weight_scale", scales.astype(E4M3)
        yield "weight_global_scale", np.array([level], np.float32)
        if weight.input_amax is not None:
            yield "input_global_scale", np.array([_inverse(weight.input_amax)], np.float32)

    return WrittenWeight(tensors, pieces)


def modelopt_nvfp4(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in ModelOpt's NVFP4, in which the tensor's scale s2 multiplies the blocks' scales.

    s2 = (amax of the tensor) / 2688. The scale s of a block is E4M3(amax of the block / (6 s2)), from 2^-9 to 448; 1
    for a block of zeros. The codes are those of w / (s * s2). weight: the matrix to write, (N, K), with a row for each
    output. The result lists the stored tensors, and yields their elements in pieces. options: not used.

    Source: nvidia-modelopt 0.47.0, which writes the same bytes.
    """
    n, k = weight.shape
    tensors = {"weight": (U8, (n, k // 2)), "weight_scale": (E4M3, (n, k // NV)), "weight_scale_2": (F32, ())}
    if weight.input_amax is not None:
        tensors["input_scale"] = (F32, ())

    def pieces() -> Iterator[tuple[str, Array]]:
        level = _level(weight.amax())
        for band in weight.bands(1):
            amax = block_amax(band, NV)
            wanted = np.clip(amax / (np.float32(6) * level), np.float32(2**-9), np.float32(448))
            scales = _decoded(fp8_codes(np.where(amax == 0, ONE, wanted)))
            yield "weight", _quotients(band, NV, scales * level)
            yield "weight_scale", scales.astype(E4M3)
        yield "weight_scale_2", np.array(level, np.float32)
        if weight.input_amax is not None:
            yield "input_scale", np.array(_level(weight.input_amax), np.float32)

    return WrittenWeight(tensors, pieces)


def torchao_nvfp4(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in torchao's NVFP4, in which the tensor's scale p multiplies the blocks' scales.

    p = (amax of the tensor) / 2688. The scale s of a block is E4M3(amax of the block / 6 / p), from 2^-6 to 448. The
    codes are those of w * ((1 / p) / s). weight: the matrix to write, (N, K), with a row for each output. The result
    lists the stored tensors, and yields their elements in pieces. options: not used.

    Source: torchao 0.18.0, which writes the same bytes.
    """
    n, k = weight.shape
    tensors = {
        "_weight_qdata": (U8, (n, k // 2)), "_weight_scale": (E4M3, (n, k // NV)),
        "_weight_per_tensor_scale": (F32, ()),
    }  # fmt: skip

    def pieces() -> Iterator[tuple[str, Array]]:
        level = _level(weight.amax())
        for band in weight.bands(1):
            wanted = np.clip(block_amax(band, NV) / np.float32(6) / level, np.float32(2**-6), np.float32(448))
            scales = _decoded(fp8_codes(wanted))
            factors = (ONE / level) / scales
            yield (
                "_weight_qdata",
                e2m1_pairs((band.reshape(len(band), -1, NV) * factors[..., None]).reshape(band.shape)),
            )
            yield "_weight_scale", scales.astype(E4M3)
        yield "_weight_per_tensor_scale", np.array(level, np.float32)

    return WrittenWeight(tensors, pieces, _nvfp4_metadata(weight.dtype))


def torchao_nvfp4_swizzled(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in torchao's NVFP4 with scales in tiles of 128 x 4, the order that tensor cores read.

    weight: the matrix to write, (N, K), with a row for each output. The result lists the stored tensors, and yields
    their elements in pieces. options: not used.
    """
    written = swizzled_scales(torchao_nvfp4, weight, options)
    return written._replace(metadata=_nvfp4_metadata(weight.dtype, swizzled=True))


def _nvfp4_metadata(dtype: str, swizzled: bool = False) -> str:
    """Return torchao's metadata (JSON) of an NVFP4 weight; `dtype`: torch's name of the model's dtype. `swizzled`:
    whether scales are in tiles.
    """
    data = {
        "is_swizzled_scales": swizzled, "use_triton_kernel": False, "act_quant_kwargs": None, "block_size": NV,
        "orig_dtype": {"_type": "torch.dtype", "_data": dtype},
    }  # fmt: skip
    metadata = {"_type": "NVFP4Tensor", "_data": data, "_tensor_data_names": ["per_tensor_scale", "qdata", "scale"]}
    return json.dumps(metadata)


def compressed_mxfp4(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in compressed-tensors' MXFP4: scales 2^(floor(log2(a)) - 2), codes of w / scale.

    a is the largest magnitude of 32 values in a row, rounded to one mantissa bit. weight: the matrix to write, (N, K),
    with a row for each output. The result lists the stored tensors, and yields their elements in pieces. options: not
    used.

    Source: compressed-tensors 0.20.0, which writes the same bytes.
    """
    return _mxfp4(weight, "weight_packed", "weight_scale", U8, even_codes)


def torchao_mxfp4(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in torchao's MXFP4: scales 2^(floor(log2(amax)) - 2), codes of w / scale.

    amax is the largest magnitude of 32 values in a row; the scales follow torchao's default rule, FLOOR. weight: the
    matrix to write, (N, K), with a row for each output. The result lists the stored tensors, and yields their elements
    in pieces. options: not used.

    Source: torchao 0.18.0, which writes the same bytes.
    """
    written = _mxfp4(weight, "_weight_qdata", "_weight_scale", E8M0, floor_codes)
    return written._replace(metadata=mx_metadata(weight.dtype, "float4_e2m1fn_x2"))


def torchao_mxfp4_swizzled(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in torchao's MXFP4 with scales in tiles of 128 x 4, the order that tensor cores read.

    weight: the matrix to write, (N, K), with a row for each output. The result lists the stored tensors, and yields
    their elements in pieces. options: not used.
    """
    written = swizzled_scales(torchao_mxfp4, weight, options)
    return written._replace(metadata=mx_metadata(weight.dtype, "float4_e2m1fn_x2", swizzled=True))


def gpt_oss(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return a weight in gpt-oss's MXFP4, which has an axis for blocks: codes (..., N, K/32, 16), scales (..., N,
    K/32).

    weight: a matrix (N, K) to write, with a row for each output, or several of them. The result lists the stored
    tensors, and yields their elements in pieces. options: not used.

    Source: codes and scales of torchao 0.18.0's default rule, as transformers 5.24.0 reads them.
    """
    plain = _mxfp4(weight, "_blocks", "_scales", U8, floor_codes)
    *lead, n, k = weight.shape
    tensors = {"_blocks": (U8, (*lead, n, k // MX, MX // 2)), "_scales": (U8, (*lead, n, k // MX))}
    return plain._replace(tensors=tensors)


def _mxfp4(
    weight: WeightToWrite, codes: str, scale: str, dtype: np.dtype[np.generic], rule: Callable[[Array, str], Array]
) -> WrittenWeight:
    """Return a weight as E2M1 codes with a power-of-two scale per 32 codes of a row.

    `codes`, `scale`: ends of the names of both tensors. `dtype`: dtype of the scales. `rule`: called with the largest
    magnitude of each block and "e2m1"; returns the E8M0 codes of the blocks' scales.
    """
    *lead, n, k = weight.shape

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(1):
            stored = rule(block_amax(band, MX), "e2m1")
            yield codes, _quotients(band, MX, powers(stored))
            yield scale, stored.view(dtype)

    return WrittenWeight({codes: (U8, (*lead, n, k // 2)), scale: (dtype, (*lead, n, k // MX))}, pieces)


def _quotients(band: Array, width: int, scales: Array) -> Array:
    """Divide `band`, values (rows, K), by `scales`, (rows, K / width), and return E2M1 codes.

    The result is (rows, K / 2) uint8, two codes in a byte.
    """
    return e2m1_pairs((band.reshape(len(band), -1, width) / scales[..., None]).reshape(band.shape))


def _decoded(codes: Array) -> Array:
    """Return the values of E4M3 codes as float32."""
    return np.asarray(codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))


def _level(amax: float) -> np.float32:
    """Return the scale by which a reader multiplies all blocks of a tensor: amax / 2688; 1 for a tensor of zeros."""
    return np.float32(amax) / TENSOR_TOP if amax > 0 else ONE


def _inverse(amax: float) -> np.float32:
    """Return the scale by which a reader divides all blocks of a tensor: 2688 / amax; 1 for a tensor of zeros."""
    return TENSOR_TOP / np.float32(amax) if amax > 0 else ONE
