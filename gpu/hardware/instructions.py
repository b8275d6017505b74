"""Single instructions on the GPU: Triton's loops of `tl.dot`, conversions of PTX and torch, and fpsim's own kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import TORCH_INTEGERS, integers_of
from fpsim.gpu.casts.cast import encode
from fpsim.gpu.device.device import FP8_CAPABILITY, require_capability, require_device
from fpsim.gpu.hardware import tensors
from fpsim.gpu.hardware.failures import in_one_sentence
from fpsim.gpu.hardware.tensors import (
    DTYPES,
    FP8,
    Pair,
    Words,
    column_major,
    known,
    shapes_of,
    tensor,
    torch_module,
)
from fpsim.gpu.hardware.tensors import words as words_of
from fpsim.lazy import public

KIND_OF = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
NAN_FROM = {"e4m3": 0x7F, "e5m2": 0x7D, "fp16": 0x7C01, "bf16": 0x7F81}  # the least NaN without its sign
LEAST_TERMS = {"e4m3": 32, "e5m2": 32, "fp16": 16, "bf16": 16, "tf32": 16}  # of a block of tl.dot


@in_one_sentence
def dot(
    a: Any, b: Any, c: Any = None, pair: Pair = ("e4m3", "e4m3"), *, block_k: int = 128,
    max_num_imprecise_acc: int | None = None, block_m: int = 64, block_n: int = 64, num_warps: int = 4,
) -> Words:  # fmt: skip
    """A Triton loop `acc = tl.dot(a, b, acc, max_num_imprecise_acc)` over blocks of K, from an accumulator c.

    Args:
      a, b: (M, K) and (K, N) codes of pair: e4m3, e5m2 (mixed or not), fp16, bf16 or tf32 (float32).
      c: (M, N) float32 that the accumulator starts at; None for +0.
      block_k: BLOCK_K; block_m, block_n: of the tile of a program. M, N and K are multiples of them.
      max_num_imprecise_acc: as in tl.dot; None is Triton's own choice.

    Returns:
      (M, N) words of float32.

    Raises:
      GpuError: no GPU, one without FP8, or no Triton.
      ValueError: shapes that are not whole blocks.

    Source: docs/schedules.md, Triton.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> if fp.gpu.available():
      ...     print(fp.gpu.hardware.dot(np.full((64, 128), 0x38, np.uint8), np.full((128, 64), 0x38, np.uint8))[0, 0])
    """
    for kind, name in zip(pair, ("a's format", "b's format"), strict=True):
        known(kind, tuple(LEAST_TERMS), name)
    if pair[0] != pair[1] and not set(pair) <= set(FP8):
        raise ValueError(f"tl.dot mixes formats of 8 bits only; got {pair}.")
    m, n, k = shapes_of(a, b)
    if m % block_m or n % block_n or k % block_k or block_k < LEAST_TERMS[pair[0]]:
        raise ValueError(
            f"M, N and K must be multiples of the block, {block_m} x {block_n} x {block_k}, with at least "
            f"{LEAST_TERMS[pair[0]]} terms; got {m} x {n} x {k}. Pad with zeros."
        )
    if c is not None and tuple(c.shape) != (m, n):
        raise ValueError(f"c must have the result's shape {(m, n)}; got {tuple(c.shape)}.")
    if max_num_imprecise_acc is not None and not LEAST_TERMS["e4m3"] <= max_num_imprecise_acc <= block_k:
        raise ValueError(
            f"max_num_imprecise_acc must lie between 32 and block_k, {block_k}; got {max_num_imprecise_acc}."
        )
    require_capability(FP8_CAPABILITY if pair[0] in FP8 else (8, 0), f"tl.dot of {pair[0]}")
    from fpsim.gpu.hardware import triton_kernels

    triton_kernels.require_triton()
    start = tensor(np.zeros((m, n), np.float32) if c is None else c, "fp32")
    result = torch_module().full_like(start, float("nan"))
    triton_kernels.dot(
        tensor(a, pair[0]), column_major(b, pair[1]), start, result, block_m=block_m, block_n=block_n,
        block_k=block_k, imprecise=max_num_imprecise_acc or 0, num_warps=num_warps,
    )  # fmt: skip
    return words_of(result)


@in_one_sentence
def ptx_cast(x: Any, target: str) -> Words:
    """float32 values (any shape) through PTX's `cvt.rn` (`.satfinite` for FP8), as codes of "e4m3", "e5m2", "fp16"
    or "bf16"."""
    known(target, ("e4m3", "e5m2", "fp16", "bf16"), "target")
    require_capability(FP8_CAPABILITY, f"the conversion to {target}")
    from fpsim.gpu.hardware import triton_kernels

    triton_kernels.require_triton()
    torch = torch_module()
    source = tensor(x, "fp32")
    codes = torch.zeros(source.numel(), dtype=torch.int32, device=source.device)
    triton_kernels.convert(source.reshape(-1), codes, target)
    kept = words_of(codes).astype(np.uint8 if target in FP8 else np.uint16)
    return kept.reshape(tuple(source.shape))


@in_one_sentence
def sweep(target: str, *, chunk: int = 1 << 26, chunks: int | None = None) -> tuple[int, int, str]:
    """Every float32, 2**32 of them, through fp.gpu.encode and PTX's conversion, compared on the GPU.

    Args:
      target: "e4m3", "e5m2", "fp16" or "bf16".
      chunk: values at a time; chunks: how many chunks, None for all.

    Returns:
      (compared, differing, the first difference in words). A NaN equals any NaN.
    """
    known(target, tuple(NAN_FROM), "target")
    require_capability(FP8_CAPABILITY, f"the conversion to {target}")
    from fpsim.gpu.hardware import triton_kernels

    triton_kernels.require_triton()
    torch = torch_module()
    places = torch.arange(chunk, dtype=torch.int32, device=tensors.DEVICE)
    magnitude = 0x7F if target in FP8 else 0x7FFF
    compared = differing = 0
    first = ""
    for i in range((1 << 32) // chunk if chunks is None else chunks):
        patterns = places + (i * chunk - (1 << 31))
        theirs = torch.zeros_like(patterns)
        triton_kernels.convert(patterns.view(torch.float32), theirs, target)
        codes = encode(patterns.view(torch.float32), target, overflow="saturate" if target in FP8 else "nonfinite")
        ours = integers_of(codes).to(torch.int32) & (2 * magnitude + 1)
        theirs = theirs & (2 * magnitude + 1)
        nans = ((ours & magnitude) >= NAN_FROM[target]) & ((theirs & magnitude) >= NAN_FROM[target])
        differ = (ours != theirs) & ~nans
        compared, found = compared + chunk, int(differ.sum())
        if found and not first:
            at = int(differ.nonzero()[0, 0])
            words = [int(x[at]) & 0xFFFFFFFF for x in (patterns, theirs, ours)]
            first = f"float32 0x{words[0]:08X}: hardware 0x{words[1]:X}, emulator 0x{words[2]:X}"
        differing += found
    return compared, differing, first


@in_one_sentence
def torch_cast(x: Any, target: str) -> Words:
    """Floats (float16, bfloat16, float32, any shape) through torch's own cast on the GPU, as words of the target."""
    require_device()
    array = np.asarray(x)
    source = tensor(array, known(KIND_OF.get(array.dtype.name, array.dtype.name), tuple(KIND_OF.values()), "x's dtype"))
    return words_of(source.to(getattr(torch_module(), DTYPES[known(target, tuple(DTYPES), "target")])))


@in_one_sentence
def twin(name: str, *arrays: Any, **options: Any) -> Any:
    """A function of `fpsim.gpu` on NumPy arrays: they go to the GPU as torch tensors, and results come back as words.

    Args:
      name: "encode", "add", ...
      arrays: floats, codes, integers, or None where the function takes it; options: the function's own, "fmt" among
        them.

    Returns:
      Words, or a tuple of them where the function returns several (flags=True). Scaled arrays come as those of their
      codes, scales, scale codes, zero points and tensor's scale, as far as they have them, and of their values.
    """
    require_device()
    result = getattr(public("fpsim.gpu"), name)(*map(_to_gpu, arrays), **options)
    if hasattr(result, "scales"):
        parts = (result.codes, result.scales, result.scale_codes, result.zero_points, result.tensor_scale)
        return tuple(words_of(part) for part in (*parts, result.decode()) if part is not None)
    return tuple(map(words_of, result)) if isinstance(result, tuple) else words_of(result)


def _to_gpu(x: Any) -> Any:
    """Return an array as a tensor: floats and signed integers of their own dtype, codes as unsigned integers."""
    if x is None:
        return None
    array = np.ascontiguousarray(x)
    kind = KIND_OF.get(array.dtype.name)
    if kind is not None:
        return tensor(array, kind)
    torch = torch_module()
    if array.dtype.kind == "i":
        return torch.from_numpy(array.copy()).cuda()
    size = array.dtype.itemsize
    return torch.from_numpy(array.view(TORCH_INTEGERS[size]).copy()).cuda().view(getattr(torch, f"uint{8 * size}"))
