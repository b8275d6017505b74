"""Arithmetic on the GPU: every operation with the bits and flags of the functions on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.evaluate import rounded_operation
from fpsim.arithmetic.keywords import Function, complete, rounded
from fpsim.arithmetic.operands import Formats
from fpsim.arithmetic.operation import operation
from fpsim.core.layouts import pack_plan, unpack_layout
from fpsim.errors import unknown
from fpsim.formats.ieee import Flags
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding
from fpsim.gpu.arithmetic.exact_kernels import (
    from_integer_kernel,
    neighbour_kernel,
    sign_kernel,
    to_integer_kernel,
    union_kernel,
)
from fpsim.gpu.arithmetic.operands import Operands, operands, result_for, result_of
from fpsim.gpu.arithmetic.routes import compute, no_flags
from fpsim.gpu.device.array import gpu_array, result_like
from fpsim.gpu.device.launch import fetched, launch, uploaded, zeroed

u64 = np.uint64


def _with_flags(wanted: Any, given: Operands, result: Any, run: Callable[[Any], None]) -> Any:
    """The result, and its flags where they are wanted; run(flags) computes both."""
    if not isinstance(wanted, (bool, np.bool_)) and wanted != "any":
        raise unknown("flags", wanted, ("False", "True", "any"))
    if not wanted:
        run(no_flags())
        return result
    each, raised = result_like(given.owner, given.shape, np.dtype(np.uint8))
    run(raised)
    return (result, _union(raised, given)) if wanted == "any" else (result, each)


def _union(raised: Any, given: Operands) -> Flags:
    """The flags that any element raised."""
    found = zeroed(1, np.uint32)
    launch(union_kernel(), given.like, given.size, raised, found, each=64)
    return Flags(int(fetched(found)[0]))


def _evaluate(name: str, values: tuple[Any, ...], keywords: dict[str, Any], out_fmt: Any = None) -> Any:
    """The result of an operation that rounds."""
    words = complete(name, keywords)
    given = operands(name, values, words["fmt"])
    what = rounded_operation(name, given.formats, words, out_fmt)
    result, codes, given = result_for(given, what.result.fmt, words["out"])
    return _with_flags(words["flags"], given, result, lambda flags: compute(what, given, codes, flags))


def _compare(name: str, a: Any, b: Any, fmt: Formats, input_subnormals: str, flags: Any, out: Any) -> Any:
    """The result of a comparison."""
    given = operands(name, (a, b), fmt)
    what = operation(name, given.formats, given.formats[0], input_subnormals=input_subnormals)
    result, booleans, given = result_of(given, np.dtype(np.uint8), out)
    return _with_flags(flags, given, result, lambda raised: compute(what, given, booleans, raised))


def _next(downward: int, a: Any, fmt: Formats, overflow: str, flags: Any, out: Any) -> Any:
    """The neighbour of every element."""
    name = "next_down" if downward else "next_up"
    given = operands(name, (a,), fmt)
    what = operation(name, given.formats, given.formats[0], overflow=overflow)
    result, codes, given = result_for(given, given.formats[0], out)
    plan = pack_plan(*what.result[:4], what.result.random_bits, what.tininess)
    layout = uploaded(unpack_layout(given.formats[0], "keep"))

    def run(raised: Any) -> None:
        kernel = neighbour_kernel(downward)
        launch(kernel, given.like, given.size, *given.words, codes, raised, layout, uploaded(plan.layout))

    return _with_flags(flags, given, result, run)


def _on_codes(name: str, a: Any, fmt: Formats, overflow: str, out: Any) -> Any:
    """The result of an operation that looks at a code alone."""
    given = operands(name, (a,), fmt)
    what = operation(name, given.formats, given.formats[0], overflow=overflow)
    if name == "classify":
        result, words, given = result_of(given, np.dtype(np.uint8), out)
    else:
        result, words, given = result_for(given, given.formats[0], out)
    plan = pack_plan(*what.result[:4], what.result.random_bits, what.tininess)
    layouts = uploaded(unpack_layout(given.formats[0], "keep")), uploaded(plan.layout)
    launch(sign_kernel(name), given.like, given.size, *given.words, words, *layouts)
    return result


# ---- the public functions


HELP = """      rounding, overflow, subnormals, seed, random_bits: as for `fpsim.encode`; stochastic results are those
        of the CPU.
      flags: True to return (result, flags) with uint8 flags per element, "any" for one `fpsim.Flags` of all.
      tininess: "after" or "before" rounding, which decides UNDERFLOW.
      out: array on the GPU to fill, of the result's shape and dtype (or of its codes'); it may be an operand.

    Returns:
      Array of the kind of the first operand on the GPU, of the broadcast shape: of the result format's dtype where all
      operands came in a float dtype and the library has it, else codes. With flags, a tuple of it and them. The work is
      queued on the current stream of torch or cupy.

    Raises:
      GpuError: no GPU, or no room on it.
      ValueError: unknown word or format, shapes that do not broadcast, formats that differ without out_fmt, codes out
        of range or without fmt, an `out` that does not fit.
      TypeError: operands that are neither codes nor arrays of a float dtype on the GPU.

    Source: docs/arithmetic.md, docs/gpu.md.
"""


def _rounded(function: Function) -> Function:
    """Show and describe the keywords of an operation that rounds."""
    return rounded(function, HELP)


@_rounded
def add(a: Any, b: Any, **keywords: Any) -> Any:
    """a + b on the GPU, rounded once: the bits and flags of `fpsim.add`.

    Args:
      a, b: arrays of a float dtype on the GPU, or unsigned codes with `fmt`; their shapes broadcast. One of them may be
        a number of the CPU, as `fpsim.add` takes it.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.tensor([0x38, 0x7E], dtype=torch.uint8).cuda()
      ...     print(fp.gpu.add(x, x, fmt="e4m3"))
    """
    return _evaluate("add", (a, b), keywords)


@_rounded
def subtract(a: Any, b: Any, **keywords: Any) -> Any:
    """a - b on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("subtract", (a, b), keywords)


@_rounded
def multiply(a: Any, b: Any, **keywords: Any) -> Any:
    """a * b on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("multiply", (a, b), keywords)


@_rounded
def divide(a: Any, b: Any, **keywords: Any) -> Any:
    """a / b on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("divide", (a, b), keywords)


@_rounded
def remainder(a: Any, b: Any, **keywords: Any) -> Any:
    """The remainder of IEEE 754 on the GPU; arguments as for `add`."""
    return _evaluate("remainder", (a, b), keywords)


@_rounded
def minimum(a: Any, b: Any, **keywords: Any) -> Any:
    """The smaller of two values on the GPU, NaN if one is; arguments as for `add`."""
    return _evaluate("minimum", (a, b), keywords)


@_rounded
def maximum(a: Any, b: Any, **keywords: Any) -> Any:
    """The larger of two values on the GPU, NaN if one is; arguments as for `add`."""
    return _evaluate("maximum", (a, b), keywords)


@_rounded
def minimum_number(a: Any, b: Any, **keywords: Any) -> Any:
    """The smaller of two values on the GPU, where a NaN gives way to a number; arguments as for `add`."""
    return _evaluate("minimum_number", (a, b), keywords)


@_rounded
def maximum_number(a: Any, b: Any, **keywords: Any) -> Any:
    """The larger of two values on the GPU, where a NaN gives way to a number; arguments as for `add`."""
    return _evaluate("maximum_number", (a, b), keywords)


@_rounded
def fma(a: Any, b: Any, c: Any, **keywords: Any) -> Any:
    """a * b + c on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("fma", (a, b, c), keywords)


@_rounded
def sqrt(a: Any, **keywords: Any) -> Any:
    """The square root on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("sqrt", (a,), keywords)


@_rounded
def round_to_integral(a: Any, **keywords: Any) -> Any:
    """The nearest integral value on the GPU; arguments as for `add`."""
    return _evaluate("round_to_integral", (a,), keywords)


@_rounded
def convert(a: Any, to: Any, **keywords: Any) -> Any:
    """Values of one format in another on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("convert", (a,), keywords, out_fmt=find_format(to))


def next_up(a: Any, *, fmt: Formats = None, overflow: str = "nonfinite", flags: Any = False, out: Any = None) -> Any:
    """The next larger value of the format, on the GPU; arguments as for `fpsim.next_up`."""
    return _next(0, a, fmt, overflow, flags, out)


def next_down(a: Any, *, fmt: Formats = None, overflow: str = "nonfinite", flags: Any = False, out: Any = None) -> Any:
    """The next smaller value of the format, on the GPU; arguments as for `fpsim.next_down`."""
    return _next(1, a, fmt, overflow, flags, out)


def equal(
    a: Any, b: Any, *, fmt: Formats = None, input_subnormals: str = "keep", flags: Any = False, out: Any = None
) -> Any:
    """Whether a == b by value, on the GPU, as uint8; arguments as for `fpsim.equal`."""
    return _compare("equal", a, b, fmt, input_subnormals, flags, out)


def less(
    a: Any, b: Any, *, fmt: Formats = None, input_subnormals: str = "keep", flags: Any = False, out: Any = None
) -> Any:
    """Whether a < b by value, on the GPU, as uint8; arguments as for `fpsim.less`."""
    return _compare("less", a, b, fmt, input_subnormals, flags, out)


def less_equal(
    a: Any, b: Any, *, fmt: Formats = None, input_subnormals: str = "keep", flags: Any = False, out: Any = None
) -> Any:
    """Whether a <= b by value, on the GPU, as uint8; arguments as for `fpsim.less_equal`."""
    return _compare("less_equal", a, b, fmt, input_subnormals, flags, out)


def negative(a: Any, *, fmt: Formats = None, overflow: str = "nonfinite", out: Any = None) -> Any:
    """-a on the GPU, exact; arguments as for `fpsim.negative`."""
    return _on_codes("negative", a, fmt, overflow, out)


def absolute(a: Any, *, fmt: Formats = None, out: Any = None) -> Any:
    """|a| on the GPU, exact; arguments as for `fpsim.absolute`."""
    return _on_codes("absolute", a, fmt, "nonfinite", out)


def classify(a: Any, *, fmt: Formats = None, out: Any = None) -> Any:
    """The class of each element on the GPU, as uint8; arguments as for `fpsim.classify`."""
    return _on_codes("classify", a, fmt, "nonfinite", out)


@_rounded
def from_int(n: Any, fmt: Any, **keywords: Any) -> Any:
    """Integers on the GPU rounded into a format, as codes; arguments as for `fpsim.from_int`."""
    words = complete("from_int", keywords)
    source = gpu_array(n, "n")
    if source.fmt is not None:
        raise TypeError(f"n must be an array of integers on the GPU; got {n.dtype}. fpsim.gpu.encode rounds floats.")
    signed = not str(n.dtype).removeprefix("torch.").startswith("u")
    what = operation(
        "from_int", (), find_format(fmt), rounding=words["rounding"], overflow=words["overflow"],
        subnormals=words["subnormals"], seed=words["seed"], random_bits=words["random_bits"],
        tininess=words["tininess"], integer=np.dtype("i8" if signed else "u8"),
    )  # fmt: skip
    given = Operands((source.words,), (1,), (), source.shape, source, False)
    result, codes, given = result_for(given, what.result.fmt, words["out"])
    plan = pack_plan(*what.result[:4], what.result.random_bits, what.tininess)
    sign, key = 1 << (8 * source.words.dtype.itemsize - 1) if signed else 0, what.result.seed or 0

    def run(flags: Any) -> None:
        launch(
            from_integer_kernel(int(what.result.rounding)), given.like, given.size, *given.words, codes, flags,
            u64(sign), uploaded(plan.layout), u64(plan.rules), u64(key & 0xFFFFFFFF), u64(key >> 32),
        )  # fmt: skip

    return _with_flags(words["flags"], given, result, run)


def to_int(
    a: Any, dtype: npt.DTypeLike = np.int64, *, fmt: Formats = None, rounding: str | Rounding = "nearest_even",
    input_subnormals: str = "keep", seed: int | None = None, random_bits: int = 32, flags: Any = False, out: Any = None,
) -> Any:  # fmt: skip
    """Values on the GPU rounded to integers; arguments as for `fpsim.to_int`."""
    try:
        integer = np.dtype(dtype).newbyteorder("=")
    except TypeError:
        integer = np.dtype(np.void)  # not a dtype at all
    if integer.kind not in "iu":
        raise ValueError(f"dtype must be an integer dtype such as np.int32 or np.uint8; got {dtype!r}.")
    given = operands("to_int", (a,), fmt)
    what = operation(
        "to_int", given.formats, given.formats[0], rounding=rounding, seed=seed, random_bits=random_bits,
        input_subnormals=input_subnormals, integer=integer,
    )  # fmt: skip
    result, words, given = result_of(given, integer, out)
    limits, key = np.iinfo(integer), what.result.seed or 0
    random_mask = ((1 << what.result.random_bits) - 1) << (32 - what.result.random_bits)
    layout = uploaded(unpack_layout(given.formats[0], input_subnormals))

    def run(raised: Any) -> None:
        launch(
            to_integer_kernel(int(what.result.rounding)), given.like, given.size, *given.words, words, raised, layout,
            u64(-int(limits.min)), u64(limits.max), u64(random_mask), u64((1 << 8 * integer.itemsize) - 1),
            u64(key & 0xFFFFFFFF), u64(key >> 32),
        )  # fmt: skip

    return _with_flags(flags, given, result, run)
