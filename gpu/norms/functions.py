"""softmax, log_softmax, rms_norm and layer_norm on the GPU, with the arguments and bits of the CPU's functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from fpsim.gpu.arithmetic.functions import described
from fpsim.gpu.norms.backend import GPU
from fpsim.norms import norms as cpu_norms
from fpsim.norms import softmax as cpu_softmax
from fpsim.norms.keywords import NormKeywords
from fpsim.norms.steps import read

Function = TypeVar("Function", bound=Callable[..., Any])

ABOUT = """\
    This is `fpsim.{name}` on the GPU, with the same bits. Operands are torch CUDA tensors, or arrays of cupy, numba or
    another library with `__cuda_array_interface__`.

"""
ENDING = """    Returns:
      Array of x's library, with the shape and dtype of `fpsim.{name}`'s result; codes if the library lacks the dtype.
      The work is queued on the current stream of torch or cupy.

    Raises:
      GpuError: there is no GPU, or not enough memory on it.
      ValueError, TypeError: as `fpsim.{name}`, and TypeError for operands that are not on the GPU.

    Source: docs/elementary.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16).cuda()
      ...     print(fp.gpu.{name}(x))
"""


def described_as(function: Callable[..., Any]) -> Callable[[Function], Function]:
    """Return a decorator that sets the signature and docstring of a GPU function from the CPU's `function`.

    The docstring gets the summary and arguments of `function`, with the GPU's results and errors.
    """
    name = function.__name__

    def describe(twin: Function) -> Function:
        signature = inspect.signature(function)
        shown = [
            parameter
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY
            else parameter.replace(annotation=inspect.Parameter.empty)
            for parameter in signature.parameters.values()
        ]
        twin.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        twin.__doc__ = described(function, ABOUT.format(name=name), ENDING.format(name=name))
        return twin

    return describe


@described_as(cpu_softmax.softmax)
def softmax(x: Any, **keywords: Unpack[NormKeywords]) -> Any:
    method, _ = read(softmax, {"x": x}, keywords, GPU)
    return cpu_softmax.softmax_steps(method)


@described_as(cpu_softmax.log_softmax)
def log_softmax(x: Any, **keywords: Unpack[NormKeywords]) -> Any:
    method, _ = read(log_softmax, {"x": x}, keywords, GPU)
    return cpu_softmax.log_softmax_steps(method)


@described_as(cpu_norms.rms_norm)
def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6, **keywords: Unpack[NormKeywords]) -> Any:
    method, (scale,) = read(rms_norm, {"x": x, "weight": weight}, keywords, GPU)
    return cpu_norms.normalised(method, method.x, scale, None, eps)


@described_as(cpu_norms.layer_norm)
def layer_norm(
    x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, **keywords: Unpack[NormKeywords]
) -> Any:
    operands = {"x": x, "weight": weight, "bias": bias}
    method, (scale, shift) = read(layer_norm, operands, keywords, GPU)
    return cpu_norms.normalised(method, method.centred(), scale, shift, eps)
