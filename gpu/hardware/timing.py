"""Measurements of the GPU benchmark: operands and calls of each benchmark row, and their times by CUDA events."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from fpsim.formats.named import format as find_format
from fpsim.gpu.device.device import FP8_CAPABILITY, require_capability, require_device
from fpsim.gpu.hardware.failures import in_one_sentence
from fpsim.gpu.hardware.tensors import DEVICE, DTYPES, torch_module
from fpsim.gpu.lab.bench_rows import COPY, BenchWork
from fpsim.lazy import public
from fpsim.scaling import recipes

BATCH = 0.01  # seconds of calls between two events: launching a call overlaps with running the one before
MOST_CALLS, MOST_RUNS = 100, 9
ROW = 256  # elements of a row of an operand: whole tiles of every scaling
FLOATS = ("float32", "bfloat16")  # dtypes of operands that are not codes
KINDS = {"E4M3": "e4m3", "E5M2": "e5m2", "FP16": "fp16", "BF16": "bf16"}

Call = Callable[[], Any]


class TorchArrays:
    """A factory of random operands as torch tensors on the GPU."""

    def floats(self, kind: str, shape: tuple[int, ...]) -> Any:
        """Return a tensor of N(0, 1) values of the dtype `kind`, "float32" or "bfloat16", of this shape."""
        torch = torch_module()
        return torch.randn(shape, device=DEVICE, dtype=getattr(torch, kind))

    def codes(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Return a tensor of this shape of uniformly random codes of a format of up to 16 bits.

        fmt: name of the format. The dtype is uint8 for formats of up to 8 bits, else uint16.
        """
        torch, bits = torch_module(), find_format(fmt).bits
        if bits <= 8:
            return torch.randint(0, 1 << bits, shape, device=DEVICE, dtype=torch.uint8)
        return torch.randint(-(1 << 15), 1 << 15, shape, device=DEVICE, dtype=torch.int16).view(torch.uint16)

    def values(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Return a tensor of N(0, 1) values of this shape, in the torch dtype of a format.

        fmt: "E4M3", "E5M2", "FP16" or "BF16".
        """
        torch = torch_module()
        return torch.randn(shape, device=DEVICE).to(getattr(torch, DTYPES[KINDS[fmt]]))

    def copied(self, source: Any) -> Call:
        """Return a function without arguments that copies the tensor `source` to another one on the GPU."""
        target = torch_module().empty_like(source)
        return lambda: target.copy_(source)


def call_of(work: BenchWork, size: int, arrays: Any, functions: Any = None) -> Call:
    """Return the function without arguments that a benchmark row measures.

    If the benchmarked function has an argument `out`, each call writes into the result of the first call.

    Args:
      work: the benchmark row: name of the function, formats or dtypes of its operands, and keyword arguments.
      size: number of elements of an operand; for products, the side of square matrices.
      arrays: an object that makes operands, with the methods of `TorchArrays`.
      functions: an object that has the functions to call as attributes; None for `fpsim.gpu`.
    """
    shape = (size, size) if work.is_product else (size // ROW, ROW)
    if work.function == "cublas":
        return _cublas(work.operands[0], shape)
    coded = arrays.values if work.is_product else arrays.codes
    operands = [(arrays.floats if kind in FLOATS else coded)(kind, shape) for kind in work.operands]
    if work.function == COPY:
        copied: Callable[[], Any] = arrays.copied(operands[0])
        return copied
    options = dict(work.options)
    if "scaling" in options:
        options["scaling"] = getattr(recipes, options["scaling"])
    function = getattr(public("fpsim.gpu") if functions is None else functions, work.function)
    if work.function in ("encode", "encode_scaled", "decode"):
        operands.append(options.pop("fmt"))
    if "out" not in inspect.signature(function).parameters:
        return partial(function, *operands, **options)
    result = [function(*operands, **options)]

    def again() -> Any:
        result[0] = function(*operands, **options, out=result[0])
        return result[0]

    return again


def _cublas(fmt: str, shape: tuple[int, ...]) -> Call:
    """Return a function without arguments that multiplies two random matrices by torch on tensor cores.

    fmt: format of the operands, "E4M3", "E5M2", "FP16" or "BF16"; for FP8 both are contiguous along K, and the result
    is BF16. shape: (side, side) of both.
    """
    torch, arrays = torch_module(), TorchArrays()
    require_capability(FP8_CAPABILITY if fmt in ("E4M3", "E5M2") else (8, 0), f"cuBLAS's product of {fmt}")
    left, right = arrays.values(fmt, shape), arrays.values(fmt, shape)
    if fmt not in ("E4M3", "E5M2"):
        result = torch.empty(shape, dtype=left.dtype, device=DEVICE)
        return lambda: torch.mm(left, right, out=result)
    one = torch.ones((), device=DEVICE)
    columns = right.t()
    return lambda: torch._scaled_mm(
        left, columns, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=False
    )


@in_one_sentence
def measure(work: BenchWork, size: int, seconds: float) -> list[float]:
    """Measure a benchmark row after one call that is not timed; return the seconds of a call in each of several runs.

    A run is 1 to 100 consecutive calls, about 10 ms in all. There are up to 9 runs, as many as fit into `seconds`, but
    at least one. work: the benchmark row. size: number of elements of an operand; for products, the side of square
    matrices.
    """
    require_device()
    torch = torch_module()
    call: Call | None = None
    try:
        call = call_of(work, size, TorchArrays())
        call()
        torch.cuda.synchronize()
        once = max(_timed(torch, call, 1), 1e-7)
        calls = min(max(int(BATCH / once), 1), MOST_CALLS)
        runs = min(max(int(seconds / (once * calls)), 1), MOST_RUNS)
        return [_timed(torch, call, calls) for _ in range(runs)]
    finally:
        call = None  # frees its arrays before the next benchmark row
        torch.cuda.empty_cache()


def _timed(torch: Any, call: Call, calls: int) -> float:
    """Return the mean seconds of a call among `calls` consecutive ones of the function `call`, by CUDA events.

    torch: the module torch.
    """
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / calls


def room() -> int:
    """Return the number of free bytes of GPU memory."""
    require_device()
    return int(torch_module().cuda.mem_get_info()[0])
