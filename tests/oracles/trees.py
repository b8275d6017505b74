"""A tree of additions, evaluated operation by operation with fp.dot_add, fp.fma, fp.add, fp.multiply and fp.encode."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.plan import Span
from fpsim.schedules.trees.nodes import Arithmetic, StackOperation, extent
from fpsim.schedules.trees.tree import Tree

Array = npt.NDArray[Any]
f32 = np.float32


def evaluate(
    tree: Tree, a: Array, b: Array, *, unit: MatrixUnit | str | None = None, fmt: fp.Format | None = None,
    scale_a: Array | None = None, scale_b: Array | None = None, block: int = 128,
) -> Array:  # fmt: skip
    """Return the sums of a tree for rows of operands.

    Args:
      tree: the tree.
      a, b: (K,) or (rows, K) codes.
      unit: whose steps the tree has, for "fused" and the like; its elements say what the codes mean.
      fmt: the format of the codes, where there is no unit.
      scale_a, scale_b: (ceil(K / block),) float32 scales of blocks of K.

    Returns:
      uint32 bits of float32 sums, of shape () or (rows,); values of shorter formats as float32.
    """
    left, right = np.atleast_2d(a), np.atleast_2d(b)
    machine = _Machine(left, right, fp.unit(unit) if unit is not None else None, fmt)
    machine.scales = (scale_a, scale_b, block)
    for operation in tree.operations():
        getattr(machine, operation.kind)(operation)
    (top,) = machine.stack
    bits = top.view(np.uint32) if top.dtype == f32 else top
    return bits[0] if np.ndim(a) == 1 else bits


class _Machine:
    """A stack of running sums; each is (rows,) float32, whatever its format."""

    def __init__(self, a: Array, b: Array, unit: MatrixUnit | None, fmt: fp.Format | None) -> None:
        self.a, self.b, self.unit = a, b, unit
        form = fmt or fp.FP32
        self.formats = (form, form) if unit is None else (unit.a.carrier, unit.b.carrier)
        self.stack: list[Array] = []
        self.scales: Any = None
        self.scaled: tuple[Array, Array] | None = None  # a partial sum as a product that is not rounded yet

    def operands(self, spans: tuple[Span, ...]) -> tuple[Array, Array]:
        """Return the codes of terms."""
        terms = np.concatenate([np.arange(*span) for span in spans])
        return self.a[:, terms], self.b[:, terms]

    def begin(self, operation: StackOperation) -> None:
        """Push +0."""
        self.stack.append(np.zeros(self.a.shape[0], f32))

    def step(self, operation: StackOperation) -> None:
        """Add products to the top."""
        how = operation.how
        assert isinstance(how, Arithmetic)
        if how.rule == "ieee":
            self.stack[-1] = self._products(self.stack[-1], operation, how)
        elif how.rule == "once":
            rows = zip(*self._values(operation), strict=True)
            self.stack[-1] = np.array([fp.dot(p, q, accumulate=fp.Exact(how.fmt)) for p, q in rows]).astype(f32)
        else:
            assert self.unit is not None
            start = fp.encode(self.stack[-1], self.unit.d.fmt)
            result = fp.dot_add(*self.operands(operation.spans), start, self.unit)
            self.stack[-1] = fp.decode(result, self.unit.d.fmt).astype(f32)

    def _values(self, operation: StackOperation) -> list[Array]:
        """Return the operands of products as float32 numbers."""
        codes = self.operands(operation.spans)
        return [fp.decode(x, fmt) for x, fmt in zip(codes, self.formats, strict=True)]

    def _products(self, top: Array, operation: StackOperation, how: Arithmetic) -> Array:
        """Return the top and one product."""
        if operation.product is not None:
            return self._add(top, self._product(operation), how)
        x, y = (_words(values[:, 0]) for values in self._values(operation))
        sums = fp.fma(x, y, _words(top), fmt=fp.FP32, out_fmt=how.fmt, **_policy(how))
        return np.asarray(fp.decode(sums, how.fmt), f32)

    def _product(self, operation: StackOperation) -> Array:
        """Return one product, rounded."""
        how = operation.product
        assert how is not None
        x, y = (_words(values[:, 0]) for values in self._values(operation))
        result = fp.multiply(x, y, fmt=fp.FP32, out_fmt=how.fmt, **_policy(how))
        return np.asarray(fp.decode(result, how.fmt), f32)

    def push(self, operation: StackOperation) -> None:
        """Push one product."""
        self.stack.append(self._product(operation))

    def _add(self, x: Array, y: Array, how: Arithmetic) -> Array:
        codes = fp.add(_words(x), _words(y), fmt=fp.FP32, out_fmt=how.fmt, **_policy(how))
        return np.asarray(_then(fp.decode(codes, how.fmt).astype(f32), how), f32)

    def join(self, operation: StackOperation) -> None:
        """Add the top to the next, by one fused multiply-add where it meets scales."""
        how = operation.how
        assert isinstance(how, Arithmetic)
        top = self.stack.pop()
        if self.scaled is None:
            self.stack[-1] = self._add(self.stack[-1], top, how)
            return
        x, y = self.scaled
        self.stack[-1] = fp.decode(fp.fma(_words(x), _words(y), _words(self.stack[-1]), fmt=fp.FP32), fp.FP32)
        self.scaled = None

    def scale(self, operation: StackOperation) -> None:
        """Return the top as a product of two numbers, the first of which is rounded."""
        of_a, of_b, block = self.scales
        index = extent(operation.node).start // block
        p, s, t = self.stack[-1], np.full_like(self.stack[-1], of_a[index]), np.full_like(self.stack[-1], of_b[index])
        orders = {"product": (s, t, p), "a_first": (p, s, t), "b_first": (p, t, s), "cublas": (p, s, t)}
        x, y, z = orders[str(operation.how)]
        self.scaled = (fp.decode(fp.multiply(_words(x), _words(y), fmt=fp.FP32), fp.FP32), z)

    def round(self, operation: StackOperation) -> None:
        """Round the top."""
        self.stack[-1] = _rounded(self.stack[-1], operation.how)

    def pairwise(self, operation: StackOperation) -> None:
        """Replace numbers by their sum, neighbours first."""
        values = self._popped(operation.numbers)
        assert isinstance(operation.how, Arithmetic)
        while len(values) > 1:
            odd = values[len(values) // 2 * 2 :]
            pairs = zip(values[::2], values[1::2], strict=False)
            values = [self._add(x, y, operation.how) for x, y in pairs] + odd
        self.stack.append(values[0])

    def butterfly(self, operation: StackOperation) -> None:
        """Replace numbers by their sum, the far half first."""
        values = self._popped(operation.numbers)
        assert isinstance(operation.how, Arithmetic)
        half = 1 << max(len(values) - 1, 0).bit_length() >> 1
        while half:
            for i in range(half):
                if i + half < len(values):
                    values[i] = self._add(values[i], values[i + half], operation.how)
            values = values[:half]
            half //= 2
        self.stack.append(values[0])

    def _popped(self, count: int) -> list[Array]:
        values = self.stack[-count:]
        del self.stack[-count:]
        return values


def _words(x: Array) -> Array:
    """float32 numbers as codes."""
    return np.ascontiguousarray(x, f32).view(np.uint32)


def _policy(how: Arithmetic) -> dict[str, Any]:
    return {"rounding": how.rounding, "overflow": how.overflow, "subnormals": how.subnormals}


def _then(x: Array, how: Arithmetic) -> Array:
    return x if how.then is None else _rounded(x, how.then)


def _rounded(x: Array, fmt: Any) -> Array:
    codes = fp.encode(x, fmt, overflow="saturate" if fmt.bits <= 8 else "nonfinite")
    return np.asarray(fp.decode(codes, fmt), f32)
