"""Stacks of matrix products that broadcast as in `numpy.matmul`; small ones share one call of a loop. Loads numba."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from fpsim.arithmetic.operands import Formats
from fpsim.arrays import Array, as_array, overlaps, words
from fpsim.errors import require_kind
from fpsim.formats.named import DTYPES
from fpsim.lazy import deferred
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.cpu import Cpu
from fpsim.products.operand import accumulator_codes
from fpsim.products.pipeline import multiplied
from fpsim.products.plain import plain_product
from fpsim.products.request import Request, is_order, no_accumulate, refuse_unit_options
from fpsim.products.stacks.options import arrays_of
from fpsim.scaling.scaled import Scaled
from fpsim.sums.accumulators import Accumulator
from fpsim.sums.product import accumulator_product

short_stacks, orders = deferred("fpsim.products.stacks.short"), deferred("fpsim.products.orders.orders")
chains = deferred("fpsim.products.stacks.chains")  # imports numba

CPU = Cpu()
SCALES = "scale_a", "scale_b"
MATRICES = {"a": "(..., M, K)", "b": "(..., K, N)"}


def stacked(
    a: Any, b: Any, c: Any, accumulate: Any, request: Request, fmt: Formats, out: Any
) -> Array:  # fmt: skip
    """Return the products of two stacks of matrices, (..., M, N), each computed as by `fpsim.matmul`.

    a, b, c, accumulate, fmt, out: as for `fpsim.matmul`. request: a record of its other keyword arguments.

    Raises:
      ValueError, TypeError: as for `fpsim.matmul`, or leading axes that do not broadcast.
    """
    require_kind("strict", request.strict, (bool, np.bool_), "True or False")
    ordered = request.schedule is not None and is_order(request.schedule)
    kinds = (str, MatrixUnit, IntegerUnit, Accumulator)
    if not isinstance(accumulate, kinds) and not (ordered and accumulate is None):
        raise no_accumulate(accumulate, {"a": a, "b": b, "c": c})
    a, b = (x if isinstance(x, Scaled) else as_array(x, name) for x, name in ((a, "a"), (b, "b")))
    shape = stack_shape(a, b)
    arrays: dict[str, Any] = {name: _scales(getattr(request, name), shape, name) for name in SCALES}
    request = request._replace(**arrays)
    if isinstance(out, np.ndarray):
        c, *others = (_apart(x, out) for x in (c, request.bias, request.scale_a, request.scale_b))
        request = request._replace(**dict(zip(("bias", "scale_a", "scale_b"), others, strict=True)))
    if c is None and _is_plain(request):
        result: Array | None = short_stacks().short_stack(a, b, accumulate, fmt, request.promote)
        if result is None and request.promote is None:
            result = chains().chain_stack(a, b, accumulate, fmt)
        if result is not None and out is None:
            return result
        if result is not None:
            target: Array = CPU.result(out, result.shape, result.dtype, a, b)[0]
            target[...] = result
            return target
    if isinstance(accumulate, Accumulator) and request.schedule is None:
        refuse_unit_options(request)
        return _by_accumulator((a, b, c), shape, accumulate, fmt, out)
    if 0 in shape:  # a product of zeros tells the dtype, and refuses what every product would
        left, right = _arrays(a)[0], _arrays(b)[0]
        z = None if c is None else _zeros(_fitting(as_array(c, "c"), (*shape, left.shape[-2], right.shape[-1])))
        scales = {name: getattr(request, name) for name in SCALES}
        stacks = {name: _zeros(x) for name, x in scales.items() if x is not None and x.ndim > 2}
        single = _one((_zeros(a), _zeros(b), z), accumulate, request._replace(**stacks), fmt, None)
        return CPU.result(out, (*shape, *single.shape), single.dtype, left, right)[0]
    return _one_by_one((a, b, c), shape, accumulate, request, fmt, out)


def _scales(x: Any, shape: tuple[int, ...], name: str) -> Array | None:
    """Return the argument scale_a or scale_b, called `name`, as an array; None for None.

    Raises:
      ValueError: it has more than two axes, and those before the last two don't broadcast to `shape`, the stack's.
    """
    if x is None:
        return None
    array = as_array(x, name)
    sizes = zip(array.shape[-3::-1], shape[::-1], strict=False)
    if array.ndim > len(shape) + 2 or any(size not in (1, whole) for size, whole in sizes):
        raise ValueError(f"{name} must have the leading axes {shape} of the stack, or two axes; got {array.shape}.")
    return array


def _apart(x: Any, out: Array) -> Any:
    """Return x, or a copy if x shares memory with `out`, so that a product of the stack could overwrite it unread.

    An x at the same address and with the same strides as `out` is not copied: each product reads its part of x before
    it writes there. None and Scaled operands are returned unchanged.
    """
    if x is None or isinstance(x, Scaled):
        return x
    array = as_array(x, "an operand")
    same = (array.ctypes.data, array.strides) == (out.ctypes.data, out.strides)
    return array.copy() if not same and overlaps(array, out) else x


def _zeros(x: Any) -> Any:
    """Return a matrix of zeros with the shape and dtype of each matrix of a stack x.

    x: an array, or a Scaled array, for which the result is Scaled with zeros for all codes and scales.
    """
    if not isinstance(x, Scaled):
        return np.zeros(x.shape[-2:], x.dtype)
    return dataclasses.replace(x, **{name: _zeros(array) for name, array in arrays_of(x).items()})


def stack_shape(a: Any, b: Any) -> tuple[int, ...]:
    """Return the broadcast leading axes of two stacks of matrices a (..., M, K) and b (..., K, N).

    Raises:
      ValueError: an operand has fewer than two axes, K differs, or leading axes do not broadcast.
    """
    for x, name in ((a, "a"), (b, "b")):
        if len(x.shape) < 2:
            raise ValueError(f"{name} must have two axes or more, {MATRICES[name]}; got shape {tuple(x.shape)}.")
    of_a, of_b = tuple(a.shape), tuple(b.shape)
    if of_a[-1] != of_b[-2]:
        raise ValueError(
            f"a (..., M, K) and b (..., K, N) must agree in K; got {of_a} and {of_b}. Transpose the last axes of b if "
            "its rows are columns."
        )
    try:
        return np.broadcast_shapes(of_a[:-2], of_b[:-2])
    except ValueError:
        raise ValueError(
            f"the axes of a and b before their last two must broadcast, as in numpy.matmul; got {of_a} and {of_b}."
        ) from None


def _by_accumulator(
    operands: tuple[Any, Any, Any], shape: tuple[int, ...], accumulator: Accumulator, fmt: Formats, out: Any
) -> Array:
    """Return the stack of products by a generic accumulator, in `out` or a new array of shape (*shape, M, N).

    operands: the stacks (a, b, c); c is None for +0. shape: the broadcast leading axes. fmt: as for
    `fpsim.matmul`. With stochastic rounding, random bits depend on the number of an output in the whole stack, in C
    order.
    """
    a, b, c = operands
    (left, right), formats = accumulator_codes(a, b, fmt, CPU)
    kept = accumulator.result_format
    whole = (*shape, left.shape[-2], right.shape[-1])
    start = None if c is None else _fitting(CPU.codes(c, kept, "c")[0], whole)
    result, target = CPU.result(out, whole, np.dtype(DTYPES.get(kept, kept.storage)), left, right)
    codes, (m, n) = words(target), whole[-2:]
    for number, at in enumerate(np.ndindex(shape)):
        x, y = _matrix(left, shape, at), _matrix(right, shape, at)
        z = None if start is None else _matrix(start, shape, at)
        codes[at] = accumulator_product(x, y, z, accumulator, formats=formats, first=number * m * n)
    return result


def _one_by_one(
    operands: tuple[Any, Any, Any], shape: tuple[int, ...], accumulate: Any, request: Request, fmt: Formats, out: Any
) -> Array:  # fmt: skip
    """Return the products of a nonempty stack, computed one after the other, in `out` or a new array.

    operands: the stacks (a, b, c); c is None for +0. shape: the broadcast leading axes. accumulate, fmt, out: as for
    `fpsim.matmul`. request: a record of its other keyword arguments.
    """
    a, b, c = operands
    c = c if c is None or isinstance(c, Scaled) else _fitting(as_array(c, "c"), (*shape, a.shape[-2], b.shape[-1]))
    result: Array | None = None
    is_plain = _is_plain(request)
    for at in np.ndindex(shape):
        x, y = _matrix(a, shape, at), _matrix(b, shape, at)
        z = None if c is None else _matrix(c, shape, at)
        target = None if result is None else result[at]
        product = None
        if z is None and is_plain:
            product = plain_product(x, y, accumulate, fmt, request.promote, target)
        if product is None:
            scales = {name: getattr(request, name) for name in SCALES}
            cut = {name: _matrix(s, shape, at) for name, s in scales.items() if s is not None and s.ndim > 2}
            product = _one((x, y, z), accumulate, request._replace(**cut), fmt, target)
        if result is None:
            result = CPU.result(out, (*shape, *product.shape), product.dtype, *_arrays(a), *_arrays(b))[0]
            result[at] = product
    assert result is not None
    return result


def _one(operands: tuple[Any, Any, Any], accumulate: Any, request: Request, fmt: Formats, out: Any) -> Any:
    """Return a single product of a stack as `fpsim.matmul` does, (M, N), in `out` or a new array.

    operands: the matrices (a, b, c); c is None for +0. accumulate, fmt, out: as for `fpsim.matmul`. request: a record
    of its other keyword arguments.
    """
    if request.schedule is not None and is_order(request.schedule):
        return orders().ordered_product(*operands, accumulate, request, fmt, out)
    return multiplied(*operands, accumulate, request, fmt, out, CPU)


def _is_plain(request: Request) -> bool:
    """Return whether all keyword arguments of `fpsim.matmul` in `request`, except `promote`, have default values."""
    others = request._replace(promote=None)
    return request.strict is True and all(value is None for value in others[:-1])


def _matrix(x: Any, shape: tuple[int, ...], at: tuple[int, ...]) -> Any:
    """Return one matrix of a stack x, an array or a Scaled array, as a view, (rows, columns).

    shape: the broadcast leading axes of all operands. at: the matrix's index in them.
    """
    if not isinstance(x, Scaled):
        return np.broadcast_to(x, (*shape, *x.shape[-2:]))[at]
    parts = {name: _matrix(array, shape, at) for name, array in arrays_of(x).items()}
    return dataclasses.replace(x, **parts)


def _arrays(x: Any) -> list[Array]:
    """List the arrays of an operand x: if x is a Scaled array, its codes, scales and zero points; else only x."""
    return list(arrays_of(x).values()) if isinstance(x, Scaled) else [x]


def _fitting(c: Array, shape: tuple[int, ...]) -> Array:
    """Return c unchanged if it has the shape `shape` of the result.

    Raises:
      ValueError: c has another shape.
    """
    if c.shape != shape:
        raise ValueError(f"c must have the result's shape {shape}; got {c.shape}.")
    return c
