"""Instructions of the GPU: Triton loops of `tl.dot`, conversions by PTX and torch, and calls of fpsim's GPU kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import TORCH_INTEGERS, integers_of
from fpsim.errors import require_integer
from fpsim.gpu.casts.cast import encode
from fpsim.gpu.device.device import FP8_CAPABILITY, require_capability, require_device
from fpsim.gpu.hardware import tensors
from fpsim.gpu.hardware.failures import in_one_sentence
from fpsim.gpu.hardware.tensors import DTYPES, FP8, Pair, Words, column_major, known, shapes_of, tensor, torch_module
from fpsim.gpu.hardware.tensors import words as words_of
from fpsim.lazy import public

KIND_OF = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
NAN_FROM = {"e4m3": 0x7F, "e5m2": 0x7D, "fp16": 0x7C01, "bf16": 0x7F81}  # the smallest NaN code without sign
BLOCK, TILE = 128, 64  # terms that share a scale; rows and columns that a Triton program of scaled_dot computes
LEAST_TERMS = {"e4m3": 32, "e5m2": 32, "fp16": 16, "bf16": 16, "tf32": 16}  # smallest BLOCK_K of tl.dot


@in_one_sentence
def dot(
    a: Any, b: Any, c: Any = None, pair: Pair = ("e4m3", "e4m3"), *, block_k: int = 128,
    max_num_imprecise_acc: int | None = None, block_m: int = 64, block_n: int = 64, num_warps: int = 4,
) -> Words:  # fmt: skip
    """Multiply by a Triton loop `acc = tl.dot(a, b, acc, max_num_imprecise_acc)` over blocks of K, starting from c.

    Args:
      a, b: (M, K) and (K, N) codes, or floats of the formats' dtypes.
      c: (M, N) float32 start of the accumulator; None for +0.
      pair: formats of a and b: "e4m3" and "e5m2" in any combination, or "fp16", "bf16" or "tf32" (float32) for both.
      block_m, block_n, block_k: Triton's block sizes, which divide M, N and K.
      max_num_imprecise_acc: as in tl.dot; None for Triton's default.
      num_warps: warps of a Triton program.

    Returns:
      (M, N) bit patterns of float32, as NumPy uint32.

    Raises:
      GpuError: there is no GPU, it cannot multiply these formats, or Triton is not installed.
      ValueError: unknown formats, or shapes that the blocks do not divide.

    Source: docs/schedules.md, Triton.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> if fp.gpu.available():
      ...     print(fp.gpu.hardware.dot(np.full((64, 128), 0x38, np.uint8), np.full((128, 64), 0x38, np.uint8))[0, 0])
    """
    m, n, k = _loop_shape(a, b, c, pair)
    if m % block_m or n % block_n or k % block_k or block_k < LEAST_TERMS[pair[0]]:
        raise ValueError(
            f"M, N and K must be multiples of the block, {block_m} x {block_n} x {block_k}, with at least "
            f"{LEAST_TERMS[pair[0]]} terms; got {m} x {n} x {k}. Pad with zeros."
        )
    if max_num_imprecise_acc is not None and not LEAST_TERMS["e4m3"] <= max_num_imprecise_acc <= block_k:
        raise ValueError(
            f"max_num_imprecise_acc must lie between 32 and block_k, {block_k}; got {max_num_imprecise_acc}."
        )
    triton_kernels = _kernels_for(pair[0], f"tl.dot of {pair[0]}")
    start = tensor(np.zeros((m, n), np.float32) if c is None else c, "fp32")
    result = torch_module().full_like(start, float("nan"))
    triton_kernels.dot(
        tensor(a, pair[0]), column_major(b, pair[1]), start, result, block_m=block_m, block_n=block_n,
        block_k=block_k, imprecise=max_num_imprecise_acc or 0, num_warps=num_warps,
    )  # fmt: skip
    return words_of(result)


@in_one_sentence
def scaled_dot(
    a: Any, b: Any, pair: Pair = ("e4m3", "e4m3"), scale_a: Any = 1.0, scale_b: Any = 1.0, c: Any = None, *,
    a_first: bool = False, fused: bool = True,
) -> Words:  # fmt: skip
    """Multiply by a Triton loop over blocks of 128 terms, which multiplies the sum of each block by its scales.

    Consecutive matrix instructions add the terms of a block, starting from +0; the scaled sums of blocks are added in
    float32. This is the loop of DeepGEMM (the default) and of CUTLASS's blockwise kernels (a_first=True); with scales
    of 1 it is a promotion every 128 terms.

    Args:
      a, b: (M, K) and (K, N) codes, or floats of the formats' dtypes.
      pair: formats of a and b, as for `dot`.
      scale_a, scale_b: decode scales that broadcast to (M, K / 128) and (K / 128, N), float32.
      c: (M, N) float32 start of the sum over blocks; None for +0.
      a_first: whether the sum of a block is multiplied by scale_a, then by scale_b, instead of by their product.
      fused: whether the last multiplication and the addition are one fused multiply-add.

    Returns:
      (M, N) bit patterns of float32, as NumPy uint32.

    Raises:
      GpuError: there is no GPU, it cannot multiply these formats, or Triton is not installed.
      ValueError: M or N is not a multiple of 64, or K not of 128.

    Source: docs/schedules.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> if fp.gpu.available():
      ...     ones = np.full((64, 128), 0x38, np.uint8)
      ...     print(fp.gpu.hardware.scaled_dot(ones, ones.T.copy()).view(np.float32)[0, 0])
    """
    m, n, k = _loop_shape(a, b, c, pair)
    if m % TILE or n % TILE or k % BLOCK:
        raise ValueError(f"M and N must be multiples of {TILE}, and K of {BLOCK}; got {m} x {n} x {k}. Pad with zeros.")
    triton_kernels = _kernels_for(pair[0], f"tl.dot of {pair[0]}")
    of_a = tensors.floats(scale_a).broadcast_to((m, k // BLOCK)).contiguous()
    of_b = tensors.floats(scale_b).broadcast_to((k // BLOCK, n)).contiguous()
    total = tensor(np.zeros((m, n), np.float32) if c is None else c, "fp32").clone()
    triton_kernels.scaled_dot(
        tensor(a, pair[0]), column_major(b, pair[1]), of_a, of_b, total, a_first=a_first, fused=fused
    )
    return words_of(total)


def _loop_shape(a: Any, b: Any, c: Any, pair: Pair) -> tuple[int, int, int]:
    """Return (M, N, K) of the operands of a Triton loop of `tl.dot`: a (M, K), b (K, N), and c (M, N) or None.

    pair: formats of a and b. Raises ValueError for formats that `tl.dot` cannot multiply, or shapes that do not fit.
    """
    for kind, name in zip(pair, ("a's format", "b's format"), strict=True):
        known(kind, tuple(LEAST_TERMS), name)
    if pair[0] != pair[1] and not set(pair) <= set(FP8):
        raise ValueError(f"tl.dot mixes formats of 8 bits only; got {pair}.")
    m, n, k = shapes_of(a, b)
    if c is not None and tuple(c.shape) != (m, n):
        raise ValueError(f"c must have the result's shape {(m, n)}; got {tuple(c.shape)}.")
    return m, n, k


def _kernels_for(kind: str, noun: str) -> Any:
    """Return the module of Triton kernels; raise a GpuError without Triton, or if the GPU lacks the format `kind`.

    noun: what needs the format, as the subject of the message.
    """
    require_capability(FP8_CAPABILITY if kind in FP8 else (8, 0), noun)
    from fpsim.gpu.hardware import triton_kernels

    triton_kernels.require_triton()
    return triton_kernels


@in_one_sentence
def ptx_cast(x: Any, target: str) -> Words:
    """Convert float32 values to codes by PTX's instruction `cvt.rn` (`.satfinite` for FP8).

    Args:
      x: float32 values of any shape, or their bit patterns.
      target: format of the codes: "e4m3", "e5m2", "fp16" or "bf16".

    Returns:
      NumPy uint8 (FP8) or uint16 codes of x's shape.

    Raises:
      GpuError: there is no GPU, it has no FP8, or Triton is not installed.
      ValueError: an unknown target.
    """
    known(target, ("e4m3", "e5m2", "fp16", "bf16"), "target")
    triton_kernels = _kernels_for("e4m3", f"the conversion to {target}")
    torch = torch_module()
    source = tensor(x, "fp32")
    codes = torch.zeros(source.numel(), dtype=torch.int32, device=source.device)
    triton_kernels.convert(source.reshape(-1), codes, target)
    kept = words_of(codes).astype(np.uint8 if target in FP8 else np.uint16)
    return kept.reshape(tuple(source.shape))


@in_one_sentence
def sweep(target: str, *, chunk: int = 1 << 26, chunks: int | None = None) -> tuple[int, int, str]:
    """Compare fp.gpu.encode with PTX's conversion for all 2**32 float32 bit patterns, on the GPU.

    Args:
      target: format of the codes: "e4m3", "e5m2", "fp16" or "bf16".
      chunk: number of values to convert at a time.
      chunks: number of chunks to compare, from the pattern 0x80000000 on; None for all.

    Returns:
      (number compared, number that differ, the first difference as text or ""). Any two NaNs are equal.

    Raises:
      GpuError: there is no GPU, it has no FP8, or Triton is not installed.
      ValueError: an unknown target, or a chunk that does not divide 2**32.
    """
    known(target, tuple(NAN_FROM), "target")
    require_integer("chunk", chunk, 1)
    if (1 << 32) % chunk:
        raise ValueError(f"chunk must divide 2**32, so that every value is converted; got {chunk}.")
    triton_kernels = _kernels_for("e4m3", f"the conversion to {target}")
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
        compared, wrong = compared + chunk, int(differ.sum())
        if wrong and not first:
            at = int(differ.nonzero()[0, 0])
            words = [int(x[at]) & 0xFFFFFFFF for x in (patterns, theirs, ours)]
            first = f"float32 0x{words[0]:08X}: hardware 0x{words[1]:X}, emulator 0x{words[2]:X}"
        differing += wrong
    return compared, differing, first


@in_one_sentence
def torch_cast(x: Any, target: str) -> Words:
    """Cast float16, bfloat16, float32 or float64 values of any shape by torch on the GPU.

    target: format name: "e4m3", "e5m2", "fp16", "bf16", "fp32" or "fp64". Return codes of x's shape as unsigned NumPy
    integers.
    """
    require_device()
    array = np.asarray(x)
    source = tensor(array, known(KIND_OF.get(array.dtype.name, array.dtype.name), tuple(KIND_OF.values()), "x's dtype"))
    return words_of(source.to(getattr(torch_module(), DTYPES[known(target, tuple(DTYPES), "target")])))


@in_one_sentence
def twin(name: str, *arrays: Any, **options: Any) -> Any:
    """Call a function of `fpsim.gpu` on NumPy arrays, copied to the GPU as torch tensors; return the result's bits.

    Args:
      name: name of the function, such as "encode".
      arrays: arguments: floats, codes, integers, or None.
      options: keyword arguments of the function, such as "fmt".

    Returns:
      Bit patterns of the result as unsigned NumPy integers, or a tuple of such arrays if the function returns several
      arrays (flags=True). For a scaled array the tuple has codes, scales, scale codes, zero points and tensor scale, as
      far as they exist, and the decoded values.
    """
    require_device()
    result = getattr(public("fpsim.gpu"), name)(*map(_to_gpu, arrays), **options)
    parts = tuple(map(words_of, tensors.parts_of(result)))
    return parts if len(parts) > 1 else parts[0]


def _to_gpu(x: Any) -> Any:
    """Return a NumPy array as a torch tensor on the GPU with the same dtype; None unchanged."""
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
