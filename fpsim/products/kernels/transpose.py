"""A transposition of squares of matrices in vector registers, for numba kernels."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

SIDE = 8  # of a square of floats: a row is one register of most processors

if numba.config.DISABLE_JIT:

    @cache
    def transposer(side: int, squares: int = 1) -> Any:
        """Return the function (source, i, j, target, row, column) -> None that transposes a part of a matrix, in NumPy.

        The part of `source` has `side` rows and side * squares columns: target[row + s, column + t] is set to
        source[i + t, j + s] for t < side and s < side * squares.
        """

        def transpose(source: Any, i: int, j: int, target: Any, row: int, column: int) -> None:
            length = side * squares
            target[row : row + length, column : column + side] = source[i : i + side, j : j + length].T

        return transpose

else:

    def _rows(context: Any, builder: Any, kind: Any, place: Any, count: int) -> Iterator[Any]:
        """Yield the LLVM address of element (first + n, column) of a numba array for n = 0 .. count - 1.

        context, builder: numba's target context and LLVM builder. kind: numba's type of the array. place: LLVM values
        of (array, first row, column).
        """
        array, first, column = place
        byte, element = ir.IntType(8).as_pointer(), context.get_data_type(kind.dtype).as_pointer()
        made = context.make_array(kind)(context, builder, array)
        step = builder.extract_value(made.strides, 0)
        start = builder.bitcast(builder.gep(made.data, [column]), byte)
        for n in range(count):
            line = builder.mul(step, builder.add(first, ir.Constant(step.type, n)))
            yield builder.bitcast(builder.gep(start, [line]), element)

    def _picked(places: Any) -> Any:
        """Return the integers `places` as a constant LLVM vector of int32, the index argument of shufflevector."""
        chosen = [ir.Constant(ir.IntType(32), n) for n in places]
        return ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)

    @cache
    def transposer(side: int, squares: int = 1) -> Any:
        """Return the intrinsic (source, i, j, target, row, column) -> None that transposes a part of a matrix.

        The part of `source` has `side` rows and side * squares columns, `squares` squares next to one another:
        target[row + s, column + t] is set to source[i + t, j + s] for t < side and s < side * squares. side: a power of
        two. The elements of a row of either array must be adjacent in memory.
        """
        length = side * squares

        def in_turn(first: int) -> Any:
            """Return the indices by which shufflevector interleaves halves of two rows x and y, an LLVM constant.

            In each block of `side` columns they take side / 2 elements of x and of y, in turn, from column `first` of
            the block on. first: 0 or side / 2. With side 4 and first 2: x[2], y[2], x[3], y[3], x[6], y[6], ...
            """
            return _picked(n // side * side + first + n % side // 2 + length * (n % 2) for n in range(length))

        def transpose(_typing: Any, source: Any, i: Any, j: Any, target: Any, row: Any, column: Any) -> Any:
            signature = types.void(source, types.intp, types.intp, target, types.intp, types.intp)
            align, half = source.dtype.bitwidth // 8, side // 2

            def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
                element = context.get_data_type(sig.args[0].dtype)
                long, short = (ir.VectorType(element, size).as_pointer() for size in (length, side))
                starts = _rows(context, builder, sig.args[0], args[:3], side)
                rows = [builder.load(builder.bitcast(start, long), align=align) for start in starts]
                for _ in range(side.bit_length() - 1):  # a perfect shuffle rotates the bits of the places
                    pairs = zip(rows[:half], rows[half:], strict=True)
                    rows = [builder.shuffle_vector(*pair, in_turn(first)) for pair in pairs for first in (0, half)]
                for n, start in enumerate(_rows(context, builder, sig.args[3], args[3:], length)):
                    whole, first = rows[n % side], n // side * side
                    part = builder.shuffle_vector(whole, whole, _picked(range(first, first + side)))
                    builder.store(part, builder.bitcast(start, short), align=align)
                return context.get_dummy_value()

            return signature, build

        return intrinsic(transpose)


transpose_square = transposer(SIDE)
