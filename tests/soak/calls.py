"""Public calls of every family of kernels, each with the digest of its result, which is the same on every machine."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fpsim as fp
from fpsim.arithmetic.operation import ELEMENTARY

RNG = np.random.default_rng(20261126)
NARROW = RNG.standard_normal((16, 64)).astype(np.float32)
ANY = RNG.integers(0, 1 << 32, (16, 64), dtype=np.uint32).view(np.float32)
HALF, WIDE = NARROW.astype(np.float16), NARROW.astype(np.float64)
LONG = np.resize(ANY, 1 << 22)
CODES = RNG.integers(0, 256, (16, 64), dtype=np.uint8)
MATRIX = RNG.standard_normal((128, 256)).astype(np.float32)
NEAR = np.full(16, 2**31 - 9, np.int32)


def _e4m3() -> Any:
    return fp.cast(NARROW, "e4m3")


def _float32(name: str) -> Any:
    x = np.concatenate([NARROW.reshape(-1), ANY.reshape(-1)])
    return getattr(fp, name)(x, flags=True)


def _exported(layout: str) -> Any:
    """Return the stored tensors of a matrix in a layout of checkpoints, and the values that are read from them."""
    from fpsim.analysis.tensors.layouts.joining import joined
    from fpsim.analysis.tensors.opening import from_mapping
    from fpsim.analysis.tensors.writing.catalogue import LAYOUTS_WRITTEN
    from fpsim.analysis.tensors.writing.weights import LayoutOptions, WeightToWrite, largest_of

    weight = WeightToWrite("up.weight", MATRIX.shape, "float32", lambda multiple: iter([MATRIX]), lambda: amax)
    amax = largest_of(MATRIX)
    written = LAYOUTS_WRITTEN[layout].write(weight, LayoutOptions())
    pieces: dict[str, list[Any]] = {}
    for end, piece in written.pieces():
        pieces.setdefault(end, []).append(piece.reshape(-1))
    stored = {f"up.{end}": np.concatenate(pieces[end]).view(dtype).reshape(shape)
              for end, (dtype, shape) in written.tensors.items()}  # fmt: skip
    if layout.startswith("gguf:"):
        return tuple(stored.values())
    [read] = joined(from_mapping(stored)[0])[0]
    return (*stored.values(), *read.chunks())


def _errors() -> Any:
    """Return the largest difference and the transpose that exports compute of a matrix."""
    from fpsim.analysis.tensors.writing.loops import add_errors, transpose

    sums, turned = np.zeros(3), np.empty(HALF.T.shape, np.uint16)
    add_errors(NARROW.reshape(-1), fp.quantize(NARROW, "e4m3").reshape(-1), sums)
    transpose(HALF.view(np.uint16), turned)
    return sums[2:], turned


CALLS: dict[str, Callable[[], Any]] = {
    "encode E4M3": lambda: fp.encode(ANY, "e4m3"),
    "encode E4M3, long": lambda: fp.encode(LONG, "e4m3"),
    "encode FP16, long": lambda: fp.encode(LONG, "fp16"),
    "encode E4M3 of float64": lambda: fp.encode(WIDE, "e4m3"),
    "encode E5M2, up": lambda: fp.encode(ANY, "e5m2", rounding="up"),
    "encode E2M1, down": lambda: fp.encode(ANY, "e2m1", rounding="down", overflow="saturate"),
    "encode BF16, stochastic": lambda: fp.encode(ANY, "bf16", rounding="stochastic", seed=3),
    "encode P3109": lambda: fp.encode(ANY, "p3109_k8p3se", rounding="odd"),
    "encode HiF8": lambda: fp.encode(ANY, "hif8"),
    "encode NF4 of float64": lambda: fp.encode(WIDE, "nf4", rounding="up"),
    "scaled NF4": lambda: _scaled("nf4", "ROW"),
    "scaled NVFP4, 4/6": lambda: _scaled("e2m1", "NVFP4_46"),
    "scaled IF4": lambda: _scaled("if4", "IF4"),
    "scaled HiF4": lambda: _scaled("hif4", "HIF4"),
    "decode E4M3": lambda: fp.decode(CODES, "e4m3"),
    "quantize FP16": lambda: fp.quantize(NARROW, "fp16"),
    "quantize E4M3": lambda: fp.quantize(NARROW, "e4m3"),
    "add FP16": lambda: fp.add(HALF, HALF[::-1]),
    "add E4M3, flags": lambda: fp.add(CODES, CODES[::-1], fmt="e4m3", flags=True),
    "multiply FP16, up": lambda: fp.multiply(HALF, HALF[::-1], rounding="up"),
    "divide BF16": lambda: fp.divide(fp.cast(NARROW, "bf16"), fp.cast(NARROW[::-1], "bf16")),
    "fma FP16": lambda: fp.fma(HALF, HALF, HALF[::-1]),
    "less E5M2": lambda: fp.less(CODES, CODES[::-1], fmt="e5m2"),
    "convert": lambda: fp.convert(HALF, "e4m3"),
    "classify": lambda: fp.classify(CODES, fmt="e4m3"),
    "exp FP16": lambda: fp.exp(HALF),
    "tan BF16, down": lambda: fp.tan(fp.cast(NARROW, "bf16"), rounding="down"),
    **{f"{name} FP32": partial(_float32, name) for name in ELEMENTARY},
    "softmax": lambda: fp.softmax(HALF),
    "layer_norm": lambda: fp.layer_norm(NARROW, NARROW[0], NARROW[1]),
    "tiles": lambda: _scaled("e4m3", "TILE_1X128"),
    "MX": lambda: _scaled("e2m1", "MX"),
    "NVFP4": lambda: _scaled("e2m1", "NVFP4"),
    "INT8": lambda: _scaled("int8", "ROW"),
    "sum, pairwise": lambda: fp.sum(NARROW, accumulate=fp.Pairwise("fp32"), axis=1),
    "sum, sequential": lambda: fp.sum(HALF, accumulate=fp.Sequential("fp16"), axis=1),
    "sum, exact": lambda: fp.sum(HALF, accumulate=fp.Exact("fp16"), axis=1),
    "product, sequential": lambda: fp.matmul(HALF, HALF.T, accumulate=fp.Sequential("bf16")),
    "dot_add, Hopper": lambda: fp.dot_add(_e4m3()[:, :32], _e4m3()[:, 32:], None, "hopper_e4m3_f32"),
    "product, Hopper FP8": lambda: fp.matmul(_e4m3(), _e4m3().T, accumulate="hopper_e4m3_f32", promote=32),
    "product, Ampere FP16": lambda: fp.matmul(HALF, HALF.T, accumulate="ampere_f16_f32"),
    "product, CDNA3": lambda: fp.matmul(HALF, HALF.T, accumulate="cdna3_f16_f32"),
    "product in an order": lambda: fp.matmul(
        HALF, HALF.T, accumulate=fp.FusedMultiplyAdd("fp32"), schedule=_halves(0, 64)
    ),
    "sum as NumPy": lambda: fp.sum(NARROW.reshape(4, 256), accumulate=fp.schedules.numpy_sum(), axis=1),
    "stack of products": lambda: fp.matmul(HALF[:, None], HALF.T, accumulate="hopper_f16_f32"),
    "dot_add, VNNI": lambda: fp.dot_add(CODES, CODES.view(np.int8), NEAR, "x86_vnni_u8xs8_s32_sat"),
    "product of integers": lambda: fp.matmul(CODES.view(np.int8), CODES.view(np.int8).T, accumulate="hopper_s8_s32"),
    "product of integers, saturated": lambda: fp.matmul(
        CODES, CODES.T, np.full((16, 16), 2**31 - 9, np.int32), accumulate="ada_u8_s32_sat"
    ),
    "range": lambda: np.array([fp.analysis.range(ANY).count]),
    **{
        f"checkpoint, {layout}": partial(_exported, layout)
        for layout in (
            "deepseek_fp8",
            "deepseek_fp8:ue8m0",
            "compressed-tensors:int8",
            "compressed-tensors:int4_asym",
            "modelopt:nvfp4",
            "torchao:mxfp8",
            "gptq",
            "awq",
            "bitsandbytes:nf4_double",
            "hqq:int4",
            "gguf:Q5_1",
        )
    },
    "errors of a checkpoint": _errors,
    "error with a scale": lambda: np.array([fp.analysis.error(NARROW, "e4m3", scale="amax", axis=0).count]),
}


def _halves(start: int, stop: int) -> Any:
    """Return the order that adds both halves of some terms, and their halves before."""
    middle = (start + stop) // 2
    return start if stop - start == 1 else (_halves(start, middle), _halves(middle, stop))


def _scaled(fmt: str, scaling: str) -> Any:
    scaled = fp.encode_scaled(NARROW, fmt, getattr(fp.scalings, scaling))
    return scaled.codes, scaled.scales, scaled.decode()


def digest(name: str) -> str:
    """Make a call, and return sixteen hexadecimal digits of its result."""
    result = CALLS[name]()
    content = hashlib.sha256()
    for array in result if isinstance(result, tuple) else (result,):
        content.update(np.ascontiguousarray(array).tobytes())
    return content.hexdigest()[:16]
