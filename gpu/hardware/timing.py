"""Rows of the GPU benchmark on the GPU: operands, calls, and their times by CUDA events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from fpsim.casts.cast import encode
from fpsim.formats.named import format as find_format
from fpsim.gpu.device.device import FP8_CAPABILITY, require_capability, require_device
from fpsim.gpu.hardware.failures import in_one_sentence
from fpsim.gpu.hardware.tensors import DEVICE, DTYPES, torch_module
from fpsim.gpu.lab.bench_rows import COPY, BenchWork
from fpsim.lazy import public
from fpsim.scaling import recipes

BATCH = 0.01  # seconds of calls between two events, so that what a launch costs the CPU is hidden behind the one before
MOST_CALLS, MOST_RUNS = 100, 9
ROW = 256  # elements of a row: whole tiles of every scaling
KINDS = {"E4M3": "e4m3", "E5M2": "e5m2", "FP16": "fp16", "BF16": "bf16"}

Call = Callable[[], Any]


class Arrays(Protocol):
    """Makes operands of one library's arrays."""

    def floats(self, kind: str, shape: tuple[int, ...]) -> Any:
        """Random "float32" or "bfloat16"."""

    def codes(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Random codes of a format, each as likely."""

    def values(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Codes of normally distributed values."""

    def copied(self, source: Any) -> Call:
        """What copies an array to another place on the GPU."""


class TorchArrays:
    """Tensors that are made on the GPU."""

    def floats(self, kind: str, shape: tuple[int, ...]) -> Any:
        """Normally distributed."""
        torch = torch_module()
        return torch.randn(shape, device=DEVICE, dtype=getattr(torch, kind))

    def codes(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Of the smallest unsigned dtype."""
        torch, found = torch_module(), find_format(fmt)
        if found.bits <= 8:
            return torch.randint(0, 1 << found.bits, shape, device=DEVICE, dtype=torch.uint8)
        return torch.randint(-(1 << 15), 1 << 15, shape, device=DEVICE, dtype=torch.int16).view(torch.uint16)

    def values(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Of the format's own dtype."""
        torch = torch_module()
        return torch.randn(shape, device=DEVICE).to(getattr(torch, DTYPES[KINDS[fmt]]))

    def copied(self, source: Any) -> Call:
        """By torch."""
        target = torch_module().empty_like(source)
        return lambda: target.copy_(source)


class NumbaArrays:
    """Arrays of numba, also where the GPU is simulated."""

    def floats(self, kind: str, shape: tuple[int, ...]) -> Any:
        """Normally distributed; codes stand for bfloat16, which numba does not know."""
        drawn = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        return self._sent(drawn if kind == "float32" else drawn.astype(np.float16))

    def codes(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """Of the smallest unsigned dtype."""
        found = find_format(fmt)
        return self._sent(np.random.default_rng(1).integers(0, 1 << found.bits, shape).astype(found.storage))

    def values(self, fmt: str, shape: tuple[int, ...]) -> Any:
        """As codes."""
        return self._sent(encode(np.random.default_rng(2).standard_normal(shape), find_format(fmt)))

    def copied(self, source: Any) -> Call:
        """By numba."""
        from numba import cuda

        target = cuda.device_array_like(source)

        def again() -> Any:
            target.copy_to_device(source)
            return target

        return again

    def _sent(self, x: Any) -> Any:
        from numba import cuda

        return cuda.to_device(x)


def call_of(work: BenchWork, size: int, arrays: Arrays, functions: Any = None) -> Call:
    """A row's call on operands of a size, which writes into the result of the first one."""
    shape = (size, size) if work.is_product else (size // ROW, ROW)
    if work.function == "cublas":
        return _cublas(work.operands[0], shape)
    operands = [_operand(kind, shape, work, arrays) for kind in work.operands]
    if work.function == COPY:
        return arrays.copied(operands[0])
    options = dict(work.options)
    if "scaling" in options:
        options["scaling"] = getattr(recipes, options["scaling"])
    function = getattr(public("fpsim.gpu") if functions is None else functions, work.function)
    if work.function in ("encode", "encode_scaled", "decode"):
        operands.append(options.pop("fmt"))
    result = [function(*operands, **options)]

    def again() -> Any:
        result[0] = function(*operands, **options, out=result[0])
        return result[0]

    return again


def _operand(kind: str, shape: tuple[int, ...], work: BenchWork, arrays: Arrays) -> Any:
    if kind in ("float32", "bfloat16"):
        return arrays.floats(kind, shape)
    return arrays.values(kind, shape) if work.is_product else arrays.codes(kind, shape)


def _cublas(fmt: str, shape: tuple[int, ...]) -> Call:
    """torch's product on tensor cores, with both operands contiguous along K for FP8."""
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


# ---- time


@in_one_sentence
def measure(work: BenchWork, size: int, seconds: float) -> list[float]:
    """Seconds that a row's call takes, warm, once per run; the runs together take about `seconds`, or one run."""
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
        call = None  # its arrays go, also where another row needs their room
        torch.cuda.empty_cache()


def _timed(torch: Any, call: Call, calls: int) -> float:
    """Seconds of one of several calls in a row, by CUDA events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / calls


def room() -> int:
    """Free bytes on the GPU."""
    require_device()
    return int(torch_module().cuda.mem_get_info()[0])
