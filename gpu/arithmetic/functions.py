"""Arithmetic functions on the GPU, made from those of the CPU, with the same bits and flags."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, ParamSpec

from fpsim.arithmetic import comparison, conversion, functions
from fpsim.arithmetic.elementary import functions as elementary
from fpsim.arithmetic.keywords import OPERATIONS
from fpsim.gpu.arithmetic.evaluate import evaluate

Parameters = ParamSpec("Parameters")
Parameter = inspect.Parameter

ABOUT = """\
    This is `fpsim.{name}` on the GPU, with the same bits and flags. Operands are torch CUDA tensors, or arrays of
    cupy, numba or another library with `__cuda_array_interface__`. Of several operands, all but one may be numbers.

"""
ENDING = """    Returns:
      Array of the library of the first operand on the GPU, with the shape and dtype of `fpsim.{name}` in the byte order
      of the GPU; uint8 for truth values, and codes where the library lacks a format's dtype. The work is queued on the
      current stream of torch or cupy.

    Raises:
      GpuError: there is no GPU, or no room on it.
      ValueError, TypeError: as `fpsim.{name}`, and TypeError for operands that are not on the GPU.

    Source: docs/arithmetic.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     codes = torch.tensor([0x38, 0x7E], dtype=torch.uint8).cuda()
      ...     result = fp.gpu.{call}
"""
TARGETS = {"to": '"e5m2"', "fmt": '"e4m3"'}  # the targets of conversions in examples


def on_gpu(function: Callable[Parameters, Any]) -> Callable[Parameters, Any]:
    """Return the GPU version of a CPU arithmetic function such as `fpsim.add`, with its signature and a docstring."""
    name, signature = function.__name__, inspect.signature(function)
    called = OPERATIONS[name]
    shown = [
        argument.replace(annotation=Parameter.empty) if argument.name in (*called.operands, "out") else argument
        for argument in signature.parameters.values()
    ]
    plain = [argument for argument in shown if argument.kind is not Parameter.KEYWORD_ONLY]
    arguments_of = signature.replace(parameters=[*plain, Parameter("keywords", Parameter.VAR_KEYWORD)]).bind

    def operation(*values: Parameters.args, **keywords: Parameters.kwargs) -> Any:
        try:
            bound = arguments_of(*values, **keywords)
        except TypeError as reason:
            raise TypeError(f"{name}() {reason}") from None
        bound.apply_defaults()
        arguments = bound.arguments
        operands = tuple(arguments[operand] for operand in called.operands)
        return evaluate(name, operands, arguments["keywords"], arguments.get(called.target))

    operation.__name__ = operation.__qualname__ = name
    example = ["codes"] * len(called.operands)
    if called.target in TARGETS:
        example.append(TARGETS[called.target])
    if "fmt" in called.keywords:
        example.append('fmt="e4m3"')
    call = f"{name}({', '.join(example)})"
    operation.__doc__ = described(function, ABOUT.format(name=name), ENDING.format(name=name, call=call))
    operation.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=shown, return_annotation=signature.empty
    )
    return operation


def described(function: Callable[..., Any], about: str, ending: str) -> str:
    """Return a docstring for the GPU version of `function`, made of four parts in this order.

    They are the summary of `function`, the text `about`, the arguments of `function`, and the sections `ending`.
    """
    text = function.__doc__ or ""
    summary, *sections = re.split(r"^    (?=Args:|Keywords:|Returns:|Raises:|Source:|Example:)", text, flags=re.M)
    arguments = "".join(f"    {section}" for section in sections if section.startswith(("Args:", "Keywords:")))
    return f"{summary}{about}{arguments}{ending}"


absolute = on_gpu(functions.absolute)
add = on_gpu(functions.add)
cbrt = on_gpu(elementary.cbrt)
classify = on_gpu(comparison.classify)
convert = on_gpu(conversion.convert)
cos = on_gpu(elementary.cos)
divide = on_gpu(functions.divide)
equal = on_gpu(comparison.equal)
erf = on_gpu(elementary.erf)
erfc = on_gpu(elementary.erfc)
exp = on_gpu(elementary.exp)
exp2 = on_gpu(elementary.exp2)
expm1 = on_gpu(elementary.expm1)
fma = on_gpu(functions.fma)
from_int = on_gpu(conversion.from_int)
gelu = on_gpu(elementary.gelu)
less = on_gpu(comparison.less)
less_equal = on_gpu(comparison.less_equal)
log = on_gpu(elementary.log)
log1p = on_gpu(elementary.log1p)
log2 = on_gpu(elementary.log2)
maximum = on_gpu(comparison.maximum)
maximum_number = on_gpu(comparison.maximum_number)
minimum = on_gpu(comparison.minimum)
minimum_number = on_gpu(comparison.minimum_number)
multiply = on_gpu(functions.multiply)
negative = on_gpu(functions.negative)
next_down = on_gpu(functions.next_down)
next_up = on_gpu(functions.next_up)
reciprocal = on_gpu(elementary.reciprocal)
remainder = on_gpu(functions.remainder)
round_to_integral = on_gpu(functions.round_to_integral)
rsqrt = on_gpu(elementary.rsqrt)
sigmoid = on_gpu(elementary.sigmoid)
silu = on_gpu(elementary.silu)
sin = on_gpu(elementary.sin)
softplus = on_gpu(elementary.softplus)
sqrt = on_gpu(functions.sqrt)
subtract = on_gpu(functions.subtract)
tan = on_gpu(elementary.tan)
tanh = on_gpu(elementary.tanh)
to_int = on_gpu(conversion.to_int)
