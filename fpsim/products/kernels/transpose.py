"""Squares of float32 matrices, transposed in the processor's registers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numba
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

SIDE = 8  # a row of a square is one register of most processors

if numba.config.DISABLE_JIT:

    def transpose_square(source: Any, i: int, j: int, target: Any, row: int, column: int) -> None:
        """target[row + s, column + t] = source[i + t, j + s] for s, t < SIDE."""
        target[row : row + SIDE, column : column + SIDE] = source[i : i + SIDE, j : j + SIDE].T

else:

    def _rows(context: Any, builder: Any, kind: Any, array: Any, first: Any, column: Any) -> Iterator[Any]:
        """The addresses of SIDE rows of a square."""
        byte, vector = ir.IntType(8).as_pointer(), ir.VectorType(ir.FloatType(), SIDE).as_pointer()
        made = context.make_array(kind)(context, builder, array)
        step = builder.extract_value(made.strides, 0)
        start = builder.bitcast(builder.gep(made.data, [column]), byte)
        for n in range(SIDE):
            line = builder.mul(step, builder.add(first, ir.Constant(step.type, n)))
            yield builder.bitcast(builder.gep(start, [line]), vector)

    @intrinsic  # type: ignore[untyped-decorator]
    def transpose_square(_typing: Any, source: Any, i: Any, j: Any, target: Any, row: Any, column: Any) -> Any:
        """target[row + s, column + t] = source[i + t, j + s] for s, t < SIDE; rows of both in one piece."""
        signature = types.void(source, types.intp, types.intp, target, types.intp, types.intp)

        def mask(first: int) -> Any:
            """Elements of two rows in turn, from `first` of each on."""
            word = ir.IntType(32)
            picked = [first + n // 2 + SIDE * (n % 2) for n in range(SIDE)]
            return ir.Constant(ir.VectorType(word, SIDE), [ir.Constant(word, n) for n in picked])

        def build(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            rows = [builder.load(row, align=4) for row in _rows(context, builder, sig.args[0], *args[:3])]
            half = SIDE // 2
            for _ in range(SIDE.bit_length() - 1):  # a perfect shuffle of all elements rotates the bits of their places
                pairs = zip(rows[:half], rows[half:], strict=True)
                rows = [builder.shuffle_vector(*pair, mask(first)) for pair in pairs for first in (0, half)]
            for value, row in zip(rows, _rows(context, builder, sig.args[3], *args[3:]), strict=True):
                builder.store(value, row, align=4)
            return context.get_dummy_value()

        return signature, build
