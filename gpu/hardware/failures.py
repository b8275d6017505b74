"""Converts failures of torch, cuBLAS and Triton on the GPU to GpuErrors of one or two sentences."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from fpsim.gpu.device.device import GpuError
from fpsim.gpu.device.failures import is_no_room
from fpsim.gpu.hardware.tensors import torch_module

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

MOST = 200  # characters of a library's message


def in_one_sentence(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Return the function with RuntimeErrors and Triton's exceptions converted to GpuErrors of one sentence.

    After such a failure it also frees torch's cached GPU memory.
    """

    @wraps(function)
    def called(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        try:
            return function(*arguments, **options)
        except GpuError:
            raise
        except Exception as reason:
            # torch and cuBLAS raise RuntimeError and subclasses; Triton has separate exceptions
            if not isinstance(reason, RuntimeError) and type(reason).__module__.partition(".")[0] != "triton":
                raise
            said = " ".join((str(reason).strip().splitlines() or [type(reason).__name__])[0].split())[:MOST].rstrip(".")
            text = f"the GPU did not run {function.__name__}: {said}."
            if is_no_room(reason):
                text = (
                    f"the GPU has no room for {function.__name__}: {said}. Take smaller operands, or free what other "
                    "programs hold."
                )
            elif "CUDA error" in said:
                text += " A new process can go on."
        torch = torch_module()
        if torch.cuda.is_available():  # outside of the except block, whose traceback holds the call's arrays
            with suppress(RuntimeError):  # after a failed launch every CUDA call fails
                torch.cuda.empty_cache()
        raise GpuError(text)

    return called
