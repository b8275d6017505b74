"""Failures of torch, cuBLAS and Triton on the GPU, in one sentence each."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fpsim.gpu.device.device import GpuError
from fpsim.gpu.device.failures import is_no_room
from fpsim.gpu.hardware.tensors import torch_module

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MOST = 200  # characters of what a library says


def in_one_sentence(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """What fails on the GPU becomes a GpuError; room that a failed call had taken is given back."""

    @wraps(function)
    def called(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        try:
            return function(*arguments, **options)
        except GpuError:
            raise
        except Exception as reason:
            if not _is_of_the_gpu(reason):
                raise
            text = _sentence(function.__name__, reason)
        _give_back()  # outside, where the traceback no longer holds the call's arrays
        raise GpuError(text)

    return called


def _is_of_the_gpu(reason: Exception) -> bool:
    """torch and cuBLAS raise RuntimeError and what is derived from it; Triton has exceptions of its own."""
    return isinstance(reason, RuntimeError) or type(reason).__module__.partition(".")[0] == "triton"


def _sentence(name: str, reason: Exception) -> str:
    said = " ".join((str(reason).strip().splitlines() or [type(reason).__name__])[0].split())[:MOST].rstrip(".")
    if is_no_room(reason):
        return f"the GPU has no room for {name}: {said}. Take smaller operands, or free what other programs hold."
    advice = " A new process can go on." if "CUDA error" in said else ""
    return f"the GPU did not run {name}: {said}.{advice}"


def _give_back() -> None:
    """Memory that torch keeps for later, to the GPU."""
    torch: Any = torch_module()
    if torch.cuda.is_available():
        try:
            torch.cuda.empty_cache()
        except RuntimeError:  # after a failed launch nothing works any more
            return
