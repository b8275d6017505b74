"""Arithmetic on the GPU: every operation by the integer core, with the bits and flags of the functions on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from fpsim.core import arithmetic
from fpsim.core.encode import encode_fields
from fpsim.core.neighbour import neighbour
from fpsim.core.number import NAN, unpack, unpack_fields
from fpsim.core.operations import BINARY, COMPARISONS, UNARY
from fpsim.core.pack import INVALID, NO_FLAG, pack
from fpsim.core.philox import random_word
from fpsim.errors import unknown
from fpsim.evaluate import rounded_operation
from fpsim.flags import Flags
from fpsim.formats import DTYPES, Format
from fpsim.formats import format as find_format
from fpsim.gpu.array import GpuArray, gpu_array, result_like
from fpsim.gpu.launch import gpu_kernel, launch, uploaded
from fpsim.kernels.layout import pack_plan, unpack_layout
from fpsim.keywords import complete
from fpsim.operands import Formats
from fpsim.operation import Operation, operation
from fpsim.rounding import Rounding

u32, u64 = np.uint32, np.uint64

NAMES = ("a", "b", "c")
STOCHASTIC = int(Rounding.STOCHASTIC)


class Operands(NamedTuple):
    """Operands on the GPU: their words, formats, and how far apart their elements are (0: one for all)."""

    words: tuple[Any, ...]
    steps: tuple[int, ...]
    formats: tuple[Format, ...]
    owner: GpuArray  # the first that has the result's shape
    typed: bool


@cache
def _rounding_kernel(name: str, mode: int) -> Any:
    """The kernel `(a, b, c, steps of a, b, c, codes, flags, layouts of a, b, c, of the result, rules, k0, k1)`."""
    is_unary, is_binary = name in UNARY, name in BINARY
    unary: Any = UNARY.get(name)
    binary: Any = BINARY.get(name)

    def compute(
        a: Any, b: Any, c: Any, sa: Any, sb: Any, sc: Any, codes: Any, flags: Any, la: Any, lb: Any, lc: Any, out: Any,
        rules: Any, k0: Any, k1: Any,
    ) -> None:  # fmt: skip
        fa, fb, fc, f = unpack_fields(la), unpack_fields(lb), unpack_fields(lc), encode_fields(out)
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            word = u64(random_word(u64(i), k0, k1)) if mode == STOCHASTIC else u64(0)
            x = unpack(u64(a[i * sa]), fa)
            if is_unary:
                exact, raised = unary(x, word, f.random_mask, mode)
            elif is_binary:
                exact, raised = binary(x, unpack(u64(b[i * sb]), fb), mode)
            else:
                exact, raised = arithmetic.fma(x, unpack(u64(b[i * sb]), fb), unpack(u64(c[i * sc]), fc), mode)
            code, found = pack(exact, raised, word, f, mode, rules)
            codes[i] = code
            if flags.size > 0:
                flags[i] = found

    return gpu_kernel(compute)


@cache
def _comparison_kernel(name: str) -> Any:
    """The kernel `(a, b, steps of a, b, results, flags, layouts of a, b)`."""
    compare, quiet = COMPARISONS[name], name == "equal"

    def compute(a: Any, b: Any, sa: Any, sb: Any, results: Any, flags: Any, la: Any, lb: Any) -> None:
        fa, fb = unpack_fields(la), unpack_fields(lb)
        for i in range(cuda.grid(1), results.size, cuda.gridsize(1)):
            x, y = unpack(u64(a[i * sa]), fa), unpack(u64(b[i * sb]), fb)
            nan = (x.kind >= u64(NAN)) | (y.kind >= u64(NAN))
            results[i] = (not nan) & compare(x, y)
            if flags.size > 0:
                raised = u64(arithmetic.signals(x) | arithmetic.signals(y))
                flags[i] = raised if quiet else (INVALID if nan else NO_FLAG)

    return gpu_kernel(compute)


@cache
def _neighbour_kernel(downward: int) -> Any:
    """The kernel `(a, codes, flags, layout of a, and as a result)`."""

    def compute(a: Any, codes: Any, flags: Any, la: Any, out: Any) -> None:
        fa, f = unpack_fields(la), encode_fields(out)
        for i in range(cuda.grid(1), codes.size, cuda.gridsize(1)):
            x = u64(a[i])
            code, found = neighbour(x, unpack(x, fa), u64(downward), fa, f)
            codes[i] = code
            if flags.size > 0:
                flags[i] = found

    return gpu_kernel(compute)


# ---- operands and results


def _operands(name: str, values: tuple[Any, ...], fmt: Formats) -> Operands:
    """Operands at the door."""
    given = [gpu_array(value, label) for value, label in zip(values, NAMES, strict=False)]
    wanted = fmt if isinstance(fmt, (tuple, list)) else (fmt,) * len(given)
    if len(wanted) != len(given):
        raise ValueError(f"fmt must name one format, or {len(given)} for {name}; got {len(wanted)}: {fmt!r}.")
    formats = tuple(_format(x, want, label) for x, want, label in zip(given, wanted, NAMES, strict=False))
    shape = max((x.shape for x in given), key=lambda each: (int(np.prod(each, dtype=np.int64)), len(each)))
    for x, label in zip(given, NAMES, strict=False):
        if x.shape != shape and x.size != 1:
            raise ValueError(
                f"operands on the GPU must have one shape, or a single element; got {label} of shape {x.shape} beside "
                f"{shape}. Expand it first, as with torch.broadcast_tensors(...), and make it contiguous."
            )
    owner = next(x for x in given if x.shape == shape)
    for x, label in zip(given, NAMES, strict=False):
        if type(x.like).__module__.partition(".")[0] != type(owner.like).__module__.partition(".")[0]:
            raise TypeError(
                f"operands must be arrays of one library; got {type(owner.like).__name__} and, as {label}, "
                f"{type(x.like).__name__}."
            )
    steps = tuple(int(x.shape == shape) for x in given)
    return Operands(tuple(x.words for x in given), steps, formats, owner, all(x.fmt is not None for x in given))


def _format(x: GpuArray, wanted: Any, label: str) -> Format:
    """The format of an operand."""
    found = None if wanted is None else find_format(wanted)
    if x.fmt is None and found is None:
        raise ValueError(f"{label} holds integers, and no format says what they mean; pass fmt, as in fmt='e4m3'.")
    if x.fmt is not None and found not in (None, x.fmt):
        raise ValueError(f"{label} holds {x.fmt}; got fmt={wanted!r} for it. Leave fmt out, or convert first.")
    fmt = x.fmt or found
    assert fmt is not None
    if x.words.dtype.itemsize != fmt.storage.itemsize:
        raise ValueError(f"{label} must hold codes of {fmt} as {fmt.storage}; got {x.words.dtype}.")
    return fmt


def _result(given: Operands, fmt: Format, out: Any) -> tuple[Any, Any]:
    """(array to return, its words)."""
    dtype = DTYPES.get(fmt) if given.typed else None
    return result_like(given.owner, given.owner.shape, dtype or fmt.storage, out)


def _with_flags(wanted: Any, given: Operands, result: Any, run: Callable[[Any], None]) -> Any:
    """The result, and its flags where they are wanted; run(flags) computes both."""
    if not isinstance(wanted, (bool, np.bool_)) and wanted != "any":
        raise unknown("flags", wanted, ("False", "True", "any"))
    if not wanted:
        run(cuda.device_array(0, np.uint8))
        return result
    each, raised = result_like(given.owner, given.owner.shape, np.dtype(np.uint8))
    run(raised)
    if wanted == "any":
        return result, Flags(int(np.bitwise_or.reduce(raised.copy_to_host(), initial=0)))
    return result, each


def _evaluate(name: str, values: tuple[Any, ...], keywords: dict[str, Any], out_fmt: Any = None) -> Any:
    """The result of an operation that rounds."""
    words = complete(name, keywords)
    given = _operands(name, values, words["fmt"])
    what = rounded_operation(name, given.formats, words, out_fmt)
    result, codes = _result(given, what.result.fmt, words["out"])
    return _with_flags(words["flags"], given, result, lambda flags: _run(what, given, codes, flags))


def _run(what: Operation, given: Operands, codes: Any, flags: Any) -> None:
    """Launch an operation that rounds."""
    fmt, rounding, overflow, subnormals, seed, random_bits = what.result
    plan = pack_plan(fmt, rounding, overflow, subnormals, random_bits, what.tininess)
    layouts = [uploaded(unpack_layout(operand, what.input_subnormals)) for operand in given.formats]
    missing = 3 - len(given.words)
    operands = given.words + (given.words[0],) * missing
    steps, layouts = given.steps + (0,) * missing, layouts + layouts[:1] * missing
    key = 0 if seed is None else seed
    launch(
        _rounding_kernel(what.name, int(rounding)), given.owner.like, given.owner.size, *operands, *steps, codes, flags,
        *layouts, uploaded(plan.layout), u64(plan.rules), u64(key & 0xFFFFFFFF), u64(key >> 32),
    )  # fmt: skip


def _compare(name: str, a: Any, b: Any, fmt: Formats, input_subnormals: str, flags: Any, out: Any) -> Any:
    """The result of a comparison."""
    given = _operands(name, (a, b), fmt)
    operation(name, given.formats, given.formats[0], input_subnormals=input_subnormals)
    result, booleans = result_like(given.owner, given.owner.shape, np.dtype(np.uint8), out)
    layouts = [uploaded(unpack_layout(operand, input_subnormals)) for operand in given.formats]

    def run(raised: Any) -> None:
        kernel = _comparison_kernel(name)
        launch(
            kernel, given.owner.like, given.owner.size, *given.words, *given.steps, booleans, raised, *layouts
        )  # fmt: skip

    return _with_flags(flags, given, result, run)


def _next(downward: int, a: Any, fmt: Formats, overflow: str, flags: Any, out: Any) -> Any:
    """The neighbour of every element."""
    name = "next_down" if downward else "next_up"
    given = _operands(name, (a,), fmt)
    what = operation(name, given.formats, given.formats[0], overflow=overflow)
    result, codes = _result(given, given.formats[0], out)
    plan = pack_plan(*what.result[:4], what.result.random_bits, what.tininess)
    layout = uploaded(unpack_layout(given.formats[0], "keep"))

    def run(raised: Any) -> None:
        kernel = _neighbour_kernel(downward)
        launch(kernel, given.owner.like, given.owner.size, *given.words, codes, raised, layout, uploaded(plan.layout))

    return _with_flags(flags, given, result, run)


# ---- the public functions


def add(a: Any, b: Any, **keywords: Any) -> Any:
    """a + b on the GPU, rounded once: the bits and flags of `fpsim.add`.

    Args:
      a, b: arrays of a float dtype on the GPU, or unsigned codes with `fmt`, of one shape or with a single element.
      keywords: those of `fpsim.add`. Stochastic results are the same as on the CPU.

    Returns:
      Array of the operands' kind and shape; with `flags`, a tuple of it and them.

    Raises:
      GpuError: no GPU, or no room on it.
      ValueError, TypeError: as `fpsim.add`.

    Source: docs/arithmetic.md, docs/gpu.md.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     x = torch.tensor([0x38, 0x7E], dtype=torch.uint8).cuda()
      ...     print(fp.gpu.add(x, x, fmt="e4m3"))
    """
    return _evaluate("add", (a, b), keywords)


def subtract(a: Any, b: Any, **keywords: Any) -> Any:
    """a - b on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("subtract", (a, b), keywords)


def multiply(a: Any, b: Any, **keywords: Any) -> Any:
    """a * b on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("multiply", (a, b), keywords)


def divide(a: Any, b: Any, **keywords: Any) -> Any:
    """a / b on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("divide", (a, b), keywords)


def remainder(a: Any, b: Any, **keywords: Any) -> Any:
    """The remainder of IEEE 754 on the GPU; arguments as for `add`."""
    return _evaluate("remainder", (a, b), keywords)


def minimum(a: Any, b: Any, **keywords: Any) -> Any:
    """The smaller of two values on the GPU, NaN if one is; arguments as for `add`."""
    return _evaluate("minimum", (a, b), keywords)


def maximum(a: Any, b: Any, **keywords: Any) -> Any:
    """The larger of two values on the GPU, NaN if one is; arguments as for `add`."""
    return _evaluate("maximum", (a, b), keywords)


def minimum_number(a: Any, b: Any, **keywords: Any) -> Any:
    """The smaller of two values on the GPU, where a NaN gives way to a number; arguments as for `add`."""
    return _evaluate("minimum_number", (a, b), keywords)


def maximum_number(a: Any, b: Any, **keywords: Any) -> Any:
    """The larger of two values on the GPU, where a NaN gives way to a number; arguments as for `add`."""
    return _evaluate("maximum_number", (a, b), keywords)


def fma(a: Any, b: Any, c: Any, **keywords: Any) -> Any:
    """a * b + c on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("fma", (a, b, c), keywords)


def sqrt(a: Any, **keywords: Any) -> Any:
    """The square root on the GPU, rounded once; arguments as for `add`."""
    return _evaluate("sqrt", (a,), keywords)


def round_to_integral(a: Any, **keywords: Any) -> Any:
    """The nearest integral value on the GPU; arguments as for `add`."""
    return _evaluate("round_to_integral", (a,), keywords)


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
