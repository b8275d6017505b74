"""A callable as a black box: its operands, its calls, and the checks of its results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.arrays import Array, as_array, format_of, to_torch
from fpsim.errors import require_integer, require_word, shown
from fpsim.formats.float_format import DTYPES
from fpsim.formats.named import FP32, FP64, Format
from fpsim.matrix_units.matrix_unit import SCALES
from fpsim.probe.operands import ProbedCall, has_tensors

Function = Callable[..., Any]
MOST_TERMS = 1 << 20  # of more terms, the calls that a probe makes would take hours
LONGEST = 600.0  # seconds that probing may take, estimated from the time of the first calls
REPEATS = 3  # calls with the same operands, which must give the same bits
ONE = {"ue8m0": 127, "ue4m3": 0x38}  # the codes of 1
LAYOUTS = ("nn", "nt", "tn", "tt")  # memory layouts of a and b: n is row-major, t its transpose, as in BLAS


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return a new, uninitialised row-major array that begins at a cache line."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _laid_out(matrix: Array, transposed: bool) -> Array:
    """Return a copy of a matrix that begins at a cache line, row-major, or column-major if `transposed`.

    Its strides are those of a new array. (np.ascontiguousarray keeps the strides of a matrix of one row or column, by
    which some libraries choose kernels.)
    """
    source = matrix.T if transposed else matrix
    copy = _empty(source.shape, source.dtype)
    copy[...] = source
    return copy.T if transposed else copy


class RaisedError(ValueError):
    """Raised when a black box (the probed function) raised an exception for the operands of a probe.

    Args:
      operands: the operands, as text.
      reason: the black box's exception.
    """

    def __init__(self, operands: str, reason: Exception) -> None:
        said = f"{type(reason).__name__}: {' '.join(str(reason).split()[:20])}"
        super().__init__(f"fn must add {operands}; it raised {said}.")
        self.operands, self.said = operands, said


class BlackBox:
    """A function that adds terms, or products of two operands, with checked calls that are counted.

    Args:
      fn: the function.
      call: kind of sum, number of terms, operands and shapes of the function's calls.
      longest: limit, in seconds, of the time that probing is estimated to take, from the time of the first calls; None
        for 600.

    Attributes:
      kind, n, operands, shape: kind of sum, number of terms, operands, and rows and columns of a matrix product; they
        are fields of `call`.
      scale, block: format of the block scales that are passed to fn too, such as "ue8m0", and number of terms that
        share one; "" and 0 if fn takes no scales.
      layout: memory layouts of a and b in a matrix product, such as "nt": "n" is row-major, "t" a transposed view of a
        row-major array.
      longest: the limit in seconds, as above; a longer estimate raises a ValueError.
      fmt, dtype: format and dtype of the function's results.
      calls: number of calls so far.

    Raises:
      ValueError, TypeError: fn is not callable, a size is not positive, the block does not divide n, or fn fails the
        checks of its first calls.
    """

    def __init__(self, fn: Function, call: ProbedCall, longest: float | None = None) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function that adds, such as np.sum; got {shown(fn)}.")
        length = "k" if call.kind == "matmul" else "n"
        require_integer(length, call.n, 1)
        if call.n > MOST_TERMS:
            raise ValueError(
                f"{length} must be at most 2**20, since a probe makes as many calls or more; got {shown(call.n)}. "
                "Probe fewer terms."
            )
        for name, size in zip(("rows", "columns"), call.shape, strict=True):
            require_integer(name, size, 1)
        if call.scale and (call.block < 1 or call.n % call.block):
            raise ValueError(
                f"block must be the terms that share a scale, which divide k; got {call.block} for k = {call.n}."
            )
        require_word("layout", call.layout, LAYOUTS)
        self.fn, self.kind, self.n, self.operands = fn, call.kind, int(call.n), call.operands
        self.shape = (int(call.shape[0]), int(call.shape[1]))
        self.scale, self.block, self.layout = call.scale, call.block, call.layout
        self.calls, self.longest = 0, LONGEST if longest is None else longest
        self.fmt: Format = FP32  # format of the result, set by the first call
        self.dtype: np.dtype[Any] | None = None  # dtype of the result, set by the first call
        # arrays of a sum's or dot product's calls, which begin at a cache line: calls differ in their values alone
        self._buffers = [_empty((self.n,), operand.passed(np.zeros(1)).dtype) for operand in call.operands]
        self._check()

    @property
    def arguments(self) -> ProbedCall:
        """Form of the calls (kind, sizes, operands); `operands` say whether arrays or torch tensors are passed."""
        return ProbedCall(self.kind, self.n, self.operands, self.shape, self.scale, self.block, self.layout)

    @property
    def at_once(self) -> int:
        """Number of independent sums in one call: the smaller of rows and columns for a matrix product, else 1."""
        return min(self.shape)

    # ---- calls

    def call(self, *arrays: Array, scales: tuple[Array, ...] | None = None) -> Array:
        """Call the function once, count the call, and return its result, of shape () or (m, columns) for "matmul".

        Args:
          arrays: the operands, in the dtypes in which they are passed: (n,) each, or (m, n) and (n, columns) for
            "matmul".
          scales: codes of both operands' block scales; None for scales of 1.

        Raises:
          RaisedError: the function raised an exception.
          ValueError: the function wrote into the operands of a "matmul", or its result has another shape, or another
            dtype than before.
          TypeError: the results are not floats (not integers, for integer operands).
        """
        held = arrays
        if self.kind == "matmul":
            held = tuple(_laid_out(x, letter == "t") for x, letter in zip(arrays, self.layout, strict=True))
        passed: list[Any] = [
            to_torch(x if operand.integer else x.view(DTYPES[operand.fmt])) if operand.tensors else x
            for x, operand in zip(held, self.operands, strict=True)
        ]
        if self.scale:
            passed += list(scales or self.scales(lambda shape: np.full(shape, ONE[self.scale])))
        self.calls += 1
        try:
            with np.errstate(all="ignore"):
                result = self.fn(*passed)
        except Exception as reason:
            raise RaisedError(" and ".join(f"{x.dtype} of shape {tuple(x.shape)}" for x in passed), reason) from reason
        if self.kind == "matmul":
            for x, before in zip(held, arrays, strict=True):
                self._refuse_written(x, before.tobytes())
        return self._checked(result)

    def scales(self, codes: Callable[[tuple[int, ...]], Array]) -> tuple[Array, ...]:
        """Return block scales of both operands, in the dtype of their codes; () if the function takes none.

        codes: a function that returns the scales' codes for a shape: (m, n / block), then (n / block, columns).
        """
        if not self.scale:
            return ()
        (m, columns), blocks = self.shape, self.n // self.block
        dtype = DTYPES[SCALES[self.scale]]
        return tuple(codes(shape).astype(np.uint8).view(dtype) for shape in ((m, blocks), (blocks, columns)))

    def _checked(self, result: Any) -> Array:
        """Return the result of a call as an array of shape (), or (m, columns) for "matmul".

        Raises:
          ValueError: the result has another shape, or another dtype than earlier results.
          TypeError: the result does not hold floats (integers, for integer operands).
        """
        if self.kind != "matmul" and self.dtype is not None and self.dtype.isnative and type(result) is self.dtype.type:
            return np.asarray(result)  # a shortcut for nearly all calls: a number of the known dtype
        array = as_array(result, "what fn returns")
        wanted = self.shape if self.kind == "matmul" else ()
        if array.size != math.prod(wanted) or (self.kind == "matmul" and array.shape != wanted):
            raise ValueError(
                f"fn must return {'one number' if not wanted else f'an array of shape {wanted}'}; got shape "
                f"{array.shape}. {'Return the whole product' if wanted else 'Probe a function of one sum'}."
            )
        of_integers = bool(self.operands[0].integer)
        if of_integers and array.dtype.kind not in "iu":
            raise TypeError(
                f"fn must return integers, because it takes integers; got {array.dtype}. Leave scales out of fn."
            )
        if not of_integers and format_of(array.dtype) is None:
            kind = shown(result) if array.dtype == object else array.dtype
            raise TypeError(f"fn must return floats, such as float32; got {kind}. Decode its codes in fn.")
        self.dtype = self.dtype or array.dtype
        if array.dtype != self.dtype:
            raise ValueError(f"fn must return one dtype; got {array.dtype} after {self.dtype}. Cast its results.")
        return array.reshape(wanted).copy()  # the next call may write into the same memory

    def results(self, *rows: Array) -> Array:
        """Return the sums (R,), in the result's dtype, of the rows of one or two operands.

        rows: an array (R, n) for each operand, in the dtype in which it is passed. In a matrix product, rows r of both
        operands are multiplied, and their sum is read from the diagonal of the product. Errors are those of `call`, and
        a ValueError if the function wrote into an operand.
        """
        count = rows[0].shape[0]
        out = []
        if self.kind != "matmul":
            for r in range(count):
                for buffer, row in zip(self._buffers, rows, strict=True):
                    buffer[:] = row[r]
                out.append(self.call(*self._buffers))
                for buffer, row in zip(self._buffers, rows, strict=True):
                    self._refuse_written(buffer, row[r].tobytes())
            return np.array(out)
        m, columns = self.shape
        for start in range(0, count, self.at_once):
            part = slice(start, min(start + self.at_once, count))
            size = part.stop - start
            a, b = (np.zeros((length, self.n), row.dtype) for length, row in zip((m, columns), rows, strict=True))
            a[:size], b[:size] = rows[0][part], rows[1][part]
            out.append(np.diagonal(self.call(a, b.T))[:size])
        return np.concatenate(out)

    def values(self, terms: Array) -> Array:
        """Return the float64 sums (R,) of terms (R, n), each of which is zero or a power of two of either sign.

        A function of two operands gets factors whose products are the terms.
        """
        return self.of(*self.split(terms))

    def of(self, *values: Array) -> Array:
        """Return the float64 sums (R,) of rows (R, n) of each operand.

        values: an array for each operand, of float64 values that the operand's format represents.
        """
        passed = [operand.passed(x) for operand, x in zip(self.operands, values, strict=True)]
        with np.errstate(all="ignore"):
            return self.results(*passed).astype(np.float64)

    def split(self, terms: Array) -> tuple[Array, ...]:
        """Return one array for each operand, such that their products are the given terms.

        terms: float64 zeros or powers of two of either sign, of any shape; the arrays have that shape. With one
        operand, the terms are returned unchanged.
        """
        if len(self.operands) == 1:
            return (terms,)
        (low_a, high_a), (low_b, high_b) = (operand.exponents for operand in self.operands)
        mantissas, exponents = np.frexp(terms)
        exponents -= 1
        first = np.clip(exponents - exponents // 2, low_a, high_a)
        second = np.clip(exponents - first, low_b, high_b)
        zero = terms == 0
        b = np.where(zero, 1.0, np.ldexp(1.0, second))
        return np.where(zero, terms, np.ldexp(2 * mantissas, exponents - second)), b

    @property
    def exponents(self) -> tuple[int, int]:
        """Exponents of the smallest and the largest power of two that a term can be."""
        lows, highs = zip(*(operand.exponents for operand in self.operands), strict=True)
        return sum(lows), sum(highs)

    # ---- checks

    def _check(self) -> None:
        """Call the function a few times, and store the format of its results in `fmt`.

        Raises:
          ValueError: the function is too slow, writes into operands, or returns other bits for the same operands.
        """
        rng = np.random.default_rng(0)
        (m, columns), n = self.shape, self.n
        shapes = [(m, n), (n, columns)] if self.kind == "matmul" else [(n,)] * len(self.operands)
        arrays = [
            operand.passed(operand.drawn(rng.standard_normal(shape)))
            for operand, shape in zip(self.operands, shapes, strict=True)
        ]
        before = [x.copy() for x in arrays]
        first = self._first(arrays)
        self.fmt = format_of(first.dtype) or FP64
        for x, was in zip(arrays, before, strict=True):
            self._refuse_written(x, was.tobytes())
        started = time.perf_counter()
        for _ in range(REPEATS):
            again = self.call(*arrays)
            if again.tobytes() != first.tobytes():
                new, old = again.reshape(-1), first.reshape(-1)
                where = int(np.argmax(new.view(f"u{new.itemsize}") != old.view(f"u{old.itemsize}")))
                raise ValueError(
                    f"fn must return the same bits for the same operands; it returned {new[where]!r} after "
                    f"{old[where]!r}. Fix its seed, its threads or its order."
                )
        seconds = (time.perf_counter() - started) / REPEATS
        expected = 2 * self.n * max(np.log2(self.n), 1) / self.at_once * seconds
        if expected > self.longest:
            raise ValueError(
                f"fn must be fast enough for about {int(expected / seconds)} calls; a call takes "
                f"{seconds:.2g} s, so that it would take about {expected / 60:.0f} minutes. Probe fewer terms."
            )

    def _first(self, arrays: list[Array]) -> Array:
        """Call the function for the first time, with an array for each operand, and return its result.

        If it raises for arrays but not for torch tensors, `operands` is changed so that later calls pass tensors.
        """
        try:
            return self.call(*arrays)
        except RaisedError as refused:
            before = self.operands
            self.operands = tuple(x._replace(tensors=x.tensors or has_tensors(x)) for x in before)
            if self.operands == before:
                raise
            try:
                return self.call(*arrays)
            except RaisedError as again:
                self.operands = before
                if again.said == refused.said:
                    raise refused from None
                said = f"{refused.said} and {again.said}"
                raise ValueError(
                    f"fn must add {refused.operands}, as arrays or as tensors; it raised {said}."
                ) from again

    def _refuse_written(self, operand: Array, before: bytes) -> None:
        """Raise a ValueError if an operand's bytes differ from those before the call."""
        if operand.tobytes() != before:
            raise ValueError("fn must not change its operands; it wrote into one. Let it work on a copy.")

    def whole(self, *values: Array, scales: tuple[Array, ...] | None = None) -> Array:
        """Return the function's result for float64 values of whole operands, such as (m, n) and (n, columns).

        scales: block scales of both operands; None means scales of 1.
        """
        passed = [operand.passed(x) for operand, x in zip(self.operands, values, strict=True)]
        return self.call(*passed, scales=scales)
