"""What libraries refuse, and what their heuristics choose for other shapes: a sentence each, with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32, Format
from fpsim.matrix_units.matrix_unit import MatrixUnit, Rule
from fpsim.schedules.schedule import Schedule

MULTIPROCESSORS = {"hopper": 132, "blackwell": 152}  # of an H100 SXM; of a GB200 and a GB300
LEAST_BLOCK = 16  # terms of K of a tl.dot
GEMV_BUTTERFLY = 10  # the option of gemv that has other lanes where there are many outputs
GEMV_SLICES = 5  # the option that was met with one row only

OUTPUTS = (FP32, FP16, BF16, E4M3, E5M2)

HEURISTIC = "facebookexperimental/triton, bitequiv/cublas_match"
MMAEMU = "mmaemu"
TORCH = "torch._scaled_mm"
DOC = "cuBLAS manual, cublasLtMatmul"
TE = "TransformerEngine, test_float8_blockwise_gemm_exact.py"


class Call(NamedTuple):
    """A product as a library would see it."""

    schedule: Schedule
    unit: MatrixUnit
    m: int
    n: int
    k: int
    scale_a: str = "none"  # "none", "tensor", "row", "1x128", "128x128"
    scale_b: str = "none"
    out_format: Format = FP32

    @property
    def is_fp8(self) -> bool:
        """Whether the operands have eight bits."""
        return self.unit.a.fmt.bits == 8

    @property
    def is_half(self) -> bool:
        """Whether the operands are FP16 or BF16."""
        return self.unit.a.fmt in (FP16, BF16) and self.unit.a == self.unit.b


def refusals(call: Call) -> list[str]:
    """Why the library refuses a call, a sentence each; empty where it does not."""
    return [sentence for check in CHECKS.get(call.schedule.library, ()) for sentence in check(call)]


def _arch(call: Call) -> Iterator[str]:
    wanted = call.schedule.arch
    if wanted and call.unit.arch not in (wanted, ""):
        yield f"{call.schedule} runs on {wanted}; got {call.unit.name}. Take a unit named {wanted}_..."


def _operands(call: Call) -> Iterator[str]:
    family, unit = call.schedule.family, call.unit
    takes_half, takes_fp8 = family not in ("xmma", "block_scaled"), family in ("nvjet", "xmma", "block_scaled")
    if not (takes_half and call.is_half) and not (takes_fp8 and call.is_fp8):
        kinds = " or ".join(["FP16 or BF16"] * takes_half + ["FP8"] * takes_fp8)
        source = MMAEMU if family == "xmma" else HEURISTIC
        yield f"cuBLAS's {family} kernels take {kinds} ({source}); got {unit.name}."
    if takes_fp8 and unit.rule is not Rule.FUSED:
        yield f"cuBLAS's {family} kernels run on wgmma, tcgen05 or, on Ada, mma, without block scales; got {unit.name}."
    if call.out_format not in OUTPUTS:
        yield f"cuBLAS gives {', '.join(map(str, OUTPUTS))} ({DOC}); got out_format {call.out_format}."
    if unit.d.name != "f32":
        yield f"cuBLAS is known with float32 sums alone, CUBLAS_COMPUTE_32F ({HEURISTIC}); got {unit.name}."
    if unit.a.fmt == E5M2 and unit.b.fmt == E5M2:
        yield f"cuBLAS does not multiply E5M2 by E5M2 ({DOC}, table of FP8 types). Encode one operand in E4M3."


def _alignment(call: Call) -> Iterator[str]:
    m, n, k = call.m, call.n, call.k
    if call.schedule.family == "block_scaled":
        if m % 4 or n % 8 or k % 16:
            yield f"cuBLAS's block scaling wants M % 4, N % 8 and K % 16 to be 0 ({TE}); got {m} x {n} x {k}. Pad."
    elif call.is_fp8 and (m % 16 or n % 16 or k % 16):
        yield (
            f"cuBLAS takes FP8 only where M, N and K are multiples of 16 ({DOC}: FP8 kernels; {HEURISTIC}); "
            f"got {m} x {n} x {k}. Pad with zeros."
        )


def _scales(call: Call) -> Iterator[str]:
    kinds = {call.scale_a, call.scale_b} - {"none"}
    if kinds and call.is_half:
        yield f"cuBLAS has scales for FP8 operands only ({DOC}, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER); got scales."
    if call.schedule.family != "block_scaled":
        return
    if call.scale_a == "128x128" and call.scale_b == "128x128":
        yield f"cuBLAS has no product of 128x128 by 128x128 blocks of scales ({DOC}; {TORCH}). Scale one side by 1x128."
    if call.schedule.fast_accum:
        yield f"cuBLAS has no fast accumulation with block scaling ({TORCH}: get_scale_mode). Leave fast_accum out."
    if call.out_format not in (FP16, BF16, FP32):
        yield f"cuBLAS gives block-scaled products in FP16, BF16 or FP32 ({DOC}); got out_format {call.out_format}."


def _outputs(call: Call) -> Iterator[str]:
    family, outputs = call.schedule.family, call.m * call.n
    if family in ("gemv", "dot") and min(call.m, call.n) > 1:
        yield f"cuBLAS's {family} kernels need M = 1 or N = 1 ({HEURISTIC}); got {call.m} x {call.n}."
    option = call.schedule.option("option", -1)
    if family == "gemv" and option == GEMV_SLICES and call.m > 1:
        yield f"option {GEMV_SLICES} of gemv was met with M = 1 only ({HEURISTIC}); got {call.m} x {call.n}."
    limit = MULTIPROCESSORS.get(call.schedule.arch, 132) * 2048 // 32
    if family == "gemv" and option == GEMV_BUTTERFLY and outputs > limit:
        yield (
            f"option {GEMV_BUTTERFLY} of gemv has these lanes for up to {limit} outputs, 2048 / 32 per multiprocessor "
            f"({HEURISTIC}); got {outputs}."
        )


def _deepgemm(call: Call) -> Iterator[str]:
    if not call.is_fp8:
        yield f"{call.schedule} takes FP8 (DeepGEMM, csrc/apis/gemm.hpp); got {call.unit.name}."


def _rowwise(call: Call) -> Iterator[str]:
    if call.n % 16 or call.k % 16:
        yield f"{TORCH} wants N and K to be multiples of 16; got N = {call.n}, K = {call.k}. Pad with zeros."
    if call.unit.a.fmt == E5M2 and call.unit.b.fmt == E5M2:
        yield f"{TORCH} does not multiply E5M2 by E5M2 on CUDA. Encode one operand in E4M3."


def _triton(call: Call) -> Iterator[str]:
    block_k = call.schedule.option("block_k", LEAST_BLOCK)
    if block_k < LEAST_BLOCK or block_k & (block_k - 1):
        yield f"Triton takes blocks of K that are a power of two, {LEAST_BLOCK} or more (tl.dot); got {block_k}."


CHECKS: dict[str, tuple[Callable[[Call], Iterator[str]], ...]] = {
    "cuBLAS": (_arch, _operands, _alignment, _scales, _outputs),
    "DeepGEMM": (_arch, _deepgemm),
    "PyTorch": (_arch, _rowwise),
    "Triton": (_triton,),
}


def remarks(schedule: Schedule, unit: MatrixUnit, m: int, n: int, k: int) -> list[str]:
    """Which other kernels cuBLAS's heuristic takes for a shape, a sentence each; empty where it may take this one.

    Source: facebookexperimental/triton, bitequiv/cublas_match, with row-major operands that are not transposed.
    """
    call = Call(schedule, unit, m, n, k)
    if schedule.library != "cuBLAS" or not call.is_half:
        return []
    if schedule.family == "nvjet" and (k % 8 or n % 8):
        return [f"cuBLAS takes nvjet where K and N are multiples of 8; for K = {k}, N = {n} it takes a CUTLASS kernel."]
    return []
