"""Triton kernels of matrix products with a fixed order of matrix instructions, and of PTX conversions.

On Hopper, blocks of at least 64 rows compile to `wgmma`, smaller ones to `mma.sync` (docs/schedules.md, Triton).
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from fpsim.gpu.device.device import GpuError


def _imported(name: str) -> Any:
    """Return the module of this name; None if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# Triton looks these names up when it compiles a kernel; without Triton the module can still be imported
triton: Any = _imported("triton")
tl: Any = _imported("triton.language")
HAS_TRITON = triton is not None and tl is not None


def _kernel(function: Any) -> Any:
    """Return the function as a kernel that Triton compiles when it is launched; unchanged without Triton."""
    return triton.jit(function) if HAS_TRITON else function


def require_triton() -> None:
    """Raise GpuError if Triton is not installed, or interprets kernels on the CPU, where BF16 products are wrong."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise GpuError("Triton interprets kernels on the CPU instead of the GPU. Unset TRITON_INTERPRET.")
    if not HAS_TRITON:
        raise GpuError("these kernels need Triton, which is not installed. Install it with: pip install triton")


@_kernel
def dot_kernel(  # type: ignore[no-untyped-def]
    a, b, c, d, m, n, k,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, imprecise: tl.constexpr,
):  # fmt: skip
    """Write d = c + a @ b by a loop of `tl.dot` over blocks of K.

    a, b, c, d are pointers to matrices: a (m, k) row-major, b (k, n) column-major, c and d (m, n) float32 row-major.
    block_m, block_n and block_k divide m, n and k. imprecise: max_num_imprecise_acc of `tl.dot`; 0 for Triton's
    default.
    """
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    columns = tl.program_id(1) * block_n + tl.arange(0, block_n)
    terms = tl.arange(0, block_k)
    places = rows[:, None] * n + columns[None, :]
    total = tl.load(c + places)
    for start in range(0, k, block_k):
        left = tl.load(a + rows[:, None] * k + (start + terms)[None, :])
        right = tl.load(b + columns[None, :] * k + (start + terms)[:, None])
        if imprecise == 0:
            total = tl.dot(left, right, total)
        else:
            total = tl.dot(left, right, total, max_num_imprecise_acc=imprecise)
    tl.store(d + places, total)


@_kernel
def scaled_dot_kernel(  # type: ignore[no-untyped-def]
    a, b, scale_a, scale_b, d, n, k, tile: tl.constexpr, a_first: tl.constexpr, fused: tl.constexpr,
):  # fmt: skip
    """Add a @ b to d, where the sum over each block of 2 * tile terms of K is multiplied by its scales first.

    The sum of a block starts from +0, and its result is scale_a * scale_b * sum. A Triton program computes tile x tile
    elements of d. All matrices are pointers: a (m, k) row-major, b (k, n) column-major, d (m, n) float32, scale_a (m,
    blocks) and scale_b (blocks, n) float32, with blocks = k / (2 * tile). a_first: multiply the sum by scale_a, then by
    scale_b, instead of by their product. fused: multiply by the last factor and add to d with one rounding.
    """
    block: tl.constexpr = 2 * tile
    rows = tl.program_id(0) * tile + tl.arange(0, tile)
    columns = tl.program_id(1) * tile + tl.arange(0, tile)
    terms = tl.arange(0, block)
    places = rows[:, None] * n + columns[None, :]
    total = tl.load(d + places)
    for number in range(k // block):
        left = tl.load(a + rows[:, None] * k + (number * block + terms)[None, :])
        right = tl.load(b + columns[None, :] * k + (number * block + terms)[:, None])
        of_a = tl.load(scale_a + rows * (k // block) + number)[:, None]
        of_b = tl.broadcast_to(tl.load(scale_b + number * n + columns)[None, :], (tile, tile))
        partial = tl.dot(left, right)
        if a_first:
            first, second = partial * of_a, of_b
        else:
            first, second = partial, of_a * of_b
        if fused:
            total = tl.fma(first, second, total)
        else:
            total = total + first * second
    tl.store(d + places, total)


@_kernel
def convert_kernel(source, codes, size, block: tl.constexpr, asm: tl.constexpr):  # type: ignore[no-untyped-def]
    """Convert source[i], float32, by PTX instructions, and write the code to codes[i], int32, for i < size.

    source, codes: pointers. block: number of elements of a Triton program. asm: PTX text that computes the code $0 from
    the float32 $1.
    """
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < size
    values = tl.load(source + places, mask=inside, other=0.0)
    converted = tl.inline_asm_elementwise(asm, "=r,r", [values], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(codes + places, converted, mask=inside)


# PTX ISA, cvt: the pair instruction takes the upper element first, here zero
CONVERSIONS = {
    "e4m3": "{ .reg .b16 h; .reg .f32 z; mov.f32 z, 0f00000000; cvt.rn.satfinite.e4m3x2.f32 h, z, $1; "
            "cvt.u32.u16 $0, h; }",
    "e5m2": "{ .reg .b16 h; .reg .f32 z; mov.f32 z, 0f00000000; cvt.rn.satfinite.e5m2x2.f32 h, z, $1; "
            "cvt.u32.u16 $0, h; }",
    "fp16": "{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.u32.u16 $0, h; }",
    "bf16": "{ .reg .b16 h; cvt.rn.bf16.f32 h, $1; cvt.u32.u16 $0, h; }",
}  # fmt: skip


def dot(
    a: Any, b: Any, c: Any, d: Any, *, block_m: int, block_n: int, block_k: int, imprecise: int, num_warps: int
) -> None:
    """Launch `dot_kernel`, which writes d = c + a @ b, on torch CUDA tensors.

    a: (m, k), row-major. b: (k, n), column-major. c, d: (m, n) float32. block_m, block_n, block_k: Triton's block
    sizes, which divide m, n and k. imprecise: max_num_imprecise_acc of `tl.dot`; 0 for Triton's default. num_warps:
    warps of a Triton program.
    """
    m, k = a.shape
    n = b.shape[1]
    dot_kernel[(m // block_m, n // block_n)](
        a, b, c, d, m, n, k, block_m=block_m, block_n=block_n, block_k=block_k, imprecise=imprecise,
        num_warps=num_warps, num_stages=2,
    )  # fmt: skip


def scaled_dot(a: Any, b: Any, scale_a: Any, scale_b: Any, d: Any, *, a_first: bool, fused: bool) -> None:
    """Launch `scaled_dot_kernel`, which adds the scaled product of a and b to d in place, on torch CUDA tensors.

    a: (m, k), row-major. b: (k, n), column-major. scale_a, scale_b: (m, k / 128) and (k / 128, n) float32 scales of
    sums of 128 terms. d: (m, n) float32. m and n must be multiples of 64, and k of 128. a_first: multiply a sum by
    scale_a, then by scale_b, instead of by their product. fused: multiply by the last factor and add to d with one
    rounding.
    """
    m, k = a.shape
    n, tile = b.shape[1], 64
    scaled_dot_kernel[(m // tile, n // tile)](
        a, b, scale_a, scale_b, d, n, k, tile=tile, a_first=a_first, fused=fused, num_warps=4, num_stages=2,
        enable_fp_fusion=False,
    )  # fmt: skip


def convert(source: Any, codes: Any, target: str) -> None:
    """Launch `convert_kernel`, which writes codes by PTX's `cvt.rn` (FP8 saturates), on CUDA tensors.

    source: flat float32. codes: flat int32 of the same size, written. target: format of the codes, "e4m3", "e5m2",
    "fp16" or "bf16".
    """
    size, block = source.numel(), 1024
    convert_kernel[(-(-size // block),)](source, codes, size, block=block, asm=CONVERSIONS[target])
