"""Arithmetic calls on the GPU: validation of the arguments, launch of the kernels, and collection of flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fpsim.arithmetic.keywords import complete
from fpsim.arithmetic.operation import deciding, integer_dtype, operation_of
from fpsim.errors import unknown
from fpsim.formats.ieee import Flags
from fpsim.gpu.arithmetic.exact_kernels import union_kernel
from fpsim.gpu.arithmetic.operands import integers, operands, result_for, result_of
from fpsim.gpu.arithmetic.routes import compute, no_flags
from fpsim.gpu.device.array import result_like
from fpsim.gpu.device.launch import fetched, launch, zeroed


def evaluate(name: str, values: tuple[Any, ...], keywords: Mapping[str, Any], target: Any = None) -> Any:
    """Return the result of the elementwise operation `name` on GPU arrays, as an array of the operands' library.

    Args:
      name: an operation, such as "add".
      values: the operands: arrays, of which at least one is on the GPU, and numbers.
      keywords: keyword arguments of the call, as for `fpsim.add`.
      target: the format that convert and from_int round to, or the dtype of to_int; None for other operations.

    Returns:
      The result alone if the keyword `flags` is False. If it is True, (result, uint8 array with the flags of each
      element). If it is "any", (result, Flags that at least one element raised).
    """
    chosen, integer = complete(name, keywords), None
    if name == "from_int":
        inputs, integer = integers(values[0])
    else:
        inputs = operands(name, values, chosen["fmt"])
    if name == "to_int":
        integer = integer_dtype(target).newbyteorder("=")
    operation = operation_of(name, inputs.formats, target, integer, *deciding(chosen))
    if operation.holds_codes:
        result, words, inputs = result_for(inputs, operation.result.fmt, chosen["out"])
    else:
        dtype = np.dtype(np.uint8) if operation.word == np.bool_ else operation.word
        result, words, inputs = result_of(inputs, dtype, chosen["out"])
    flags = chosen["flags"]
    if not isinstance(flags, (bool, np.bool_)) and flags != "any":
        raise unknown("flags", flags, ("False", "True", "any"))
    if not flags:
        compute(operation, inputs, words, no_flags())
        return result
    flags_of_elements, raised = result_like(inputs.owner, inputs.shape, np.dtype(np.uint8))
    compute(operation, inputs, words, raised)
    if flags != "any":
        return result, flags_of_elements
    union = zeroed(1, np.uint32)
    launch(union_kernel(), inputs.like, inputs.size, raised, union, each=64)
    return result, Flags(int(fetched(union)[0]))
