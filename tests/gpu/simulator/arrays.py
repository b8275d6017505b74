"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: tensors of torch, and a GPU that fails.

torch's CPU tensors stand for CUDA tensors: whatever is asked about the device is answered so, and the rest is torch's
own. Every line printed is a claim of `tests.gpu.test_device`.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda
from numba.cuda.simulator.cudadrv.devicearray import FakeCUDAArray

import fpsim as fp
from tests.gpu.simulator import layers

# modules of which parts are replaced
array: Any = importlib.import_module("fpsim.gpu.device.array")
launch: Any = importlib.import_module("fpsim.gpu.device.launch")
casts: Any = importlib.import_module("fpsim.gpu.casts.cast")
X = np.linspace(-3, 500, 12).astype(np.float32).reshape(3, 4)


def as_cuda(torch: Any) -> None:
    """Take torch's tensors for CUDA tensors."""
    torch.Tensor.is_cuda = property(lambda tensor: True)
    torch.cuda.current_device = lambda: None  # the index of the CPU's device
    array.device_number = lambda: None
    cuda.as_cuda_array = lambda x, sync=True: FakeCUDAArray(x.numpy() if hasattr(x, "numpy") else x.held)
    launch.stream_of = lambda like: 0


def torch_tensors(say: Callable[[str], None]) -> None:
    """Kinds, dtypes and layouts of tensors."""
    torch: Any = importlib.import_module("torch")
    as_cuda(torch)
    x = torch.from_numpy(X)
    codes = fp.gpu.encode(x, "e4m3")
    say(f"encode {codes.dtype} {np.array_equal(codes.numpy(), fp.encode(X, 'e4m3'))}")
    turned = fp.gpu.encode(x.t(), "e4m3")
    say(f"transposed {tuple(turned.shape)} {np.array_equal(turned.numpy(), fp.encode(X.T, 'e4m3'))}")
    negated = torch.conj(torch.tensor([1 + 2j])).imag  # the memory has 2
    say(f"negated {negated.is_neg()} {fp.gpu.quantize(negated, 'e4m3').tolist()}")
    try:
        fp.gpu.quantize(x[0, :1], "e4m3", out=negated)
    except ValueError as reason:
        say(f"negated out {reason}")
    eighth = fp.gpu.cast(x, "e4m3")
    say(f"cast {eighth.dtype} {torch.equal(eighth.view(torch.uint8), codes)}")
    say(f"cast without a dtype of torch {fp.gpu.cast(x, 'e3m4').dtype}")
    total = fp.gpu.add(eighth, eighth)
    want = fp.add(codes.numpy(), codes.numpy(), fmt="e4m3")
    say(f"sum {total.dtype} {np.array_equal(total.view(torch.uint8).numpy(), want)}")
    brains = x.to(torch.bfloat16)
    tripled = fp.gpu.multiply(brains, np.float32(3).astype(fp.BF16.dtype))
    say(f"bfloat16 {tripled.dtype} {torch.equal(tripled, brains * 3)}")
    shares = fp.gpu.softmax(brains, axis=0)
    want = fp.softmax(X.astype(fp.BF16.dtype), axis=0)
    say(f"softmax {shares.dtype} {np.array_equal(shares.view(torch.uint16).numpy(), want.view(np.uint16))}")
    say(f"mixed {type(fp.gpu.add(codes, cuda.to_device(codes.numpy()), fmt='e4m3')).__name__}")
    say(f"first operand {type(fp.gpu.add(cuda.to_device(codes.numpy()), codes, fmt='e4m3')).__name__}")
    say(f"integers {fp.gpu.to_int(brains, np.int16).dtype} {fp.gpu.from_int(torch.tensor([-3, 4]), 'e4m3').tolist()}")
    say(f"parameter {type(fp.gpu.quantize(torch.nn.Parameter(x), 'e4m3')).__name__}")
    say(f"comparison {fp.gpu.less(x, x.t().reshape(3, 4)).dtype}")
    try:
        fp.gpu.encode(x.to_sparse(), "e4m3")
    except TypeError as reason:
        say(f"sparse {reason}")
    array.device_number = lambda: 1
    try:
        fp.gpu.encode(x, "e4m3")
    except TypeError as reason:
        say(f"other device {reason}")
    array.device_number = lambda: None


class Foreign:
    """An array that offers its memory by DLPack alone, and says that a GPU holds it."""

    def __init__(self, held: Any, device: int) -> None:
        self.held, self.device_kind = held, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.held.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_kind, 0


def dlpack(say: Callable[[str], None]) -> None:
    """Arrays that speak DLPack."""
    torch: Any = importlib.import_module("torch")
    read = torch.from_dlpack
    torch.from_dlpack = lambda x: read(x.held)
    say(f"DLPack {type(fp.gpu.encode(Foreign(X, 2), 'e4m3')).__name__}")
    for kind in (Foreign(X, 1), X):
        try:
            fp.gpu.encode(kind, "e4m3")
        except TypeError as reason:
            say(f"DLPack of the CPU {reason}")


class CudaAPIError(Exception):
    """As numba raises it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        return f"[{self.args[0]}] {self.args[1]}"


OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})  # as torch and cupy name it


def failures(say: Callable[[str], None]) -> None:
    """Show a GPU without memory, and one that does not run a kernel; afterwards everything works."""

    def raises(reason: Exception) -> Callable[..., Any]:
        def failing(*_: Any, **__: Any) -> Any:
            raise reason

        return failing

    def said(name: str, call: Callable[[], Any]) -> None:
        try:
            call()
        except fp.gpu.GpuError as reason:
            say(f"{name} {reason}")

    x, made = cuda.to_device(X), cuda.device_array
    cuda.device_array = raises(CudaAPIError(2, "Call to cuMemAlloc results in CUDA_ERROR_OUT_OF_MEMORY"))
    said("result", lambda: fp.gpu.encode(x, "e4m3"))
    said("intermediate", lambda: fp.gpu.encode(x.T, "e4m3"))
    cuda.device_array = made
    cupy: Any = types.SimpleNamespace(empty=raises(OutOfMemoryError("CUDA out of memory.\nTried to allocate 1 GiB")))
    modules: dict[str, Any] = sys.modules
    modules["cupy"] = cupy
    like = type("ndarray", (), {"__module__": "cupy"})()
    array_like = array.GpuArray(None, (3,), fp.FP32, like)
    said("cupy", lambda: array.result_like(array_like, (1 << 20, 3), np.dtype(np.uint8)))
    kernel = casts.cast_kernel
    failing = raises(CudaAPIError(719, "Call to cuLaunchKernel results in CUDA_ERROR_LAUNCH_FAILED\n  at line 3"))
    casts.cast_kernel = lambda way: {(*launch.SIMULATED, 0): failing}
    said("launch", lambda: fp.gpu.encode(x, "e4m3"))
    casts.cast_kernel = kernel
    say(f"afterwards {np.array_equal(fp.gpu.encode(x, 'e4m3').copy_to_host(), fp.encode(X, 'e4m3'))}")


def main(*words: str) -> None:
    """Print all that is said; with torch, whose import takes as long as all else, where words say what layers get."""
    failures(print)
    if words:
        layers.main(*words)  # before the CPU's tensors are taken for CUDA tensors
        torch_tensors(print)
        dlpack(print)
