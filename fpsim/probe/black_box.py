"""A callable as a black box: how terms reach it, and what is asked of its answers."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, as_array, format_of, to_torch
from fpsim.casts.cast import decode, encode
from fpsim.errors import require_integer, require_word, shown
from fpsim.formats.float_format import DTYPES
from fpsim.formats.named import E8M0, FP32, FP64, TF32, Format
from fpsim.formats.named import format as find_format
from fpsim.matrix_units.matrix_unit import ELEMENTS, SCALES, Element

Function = Callable[..., Any]
LONGEST = 600.0  # seconds that probing may take by the first call's time
REPEATS = 3  # calls on the same operands, which must give the same bits
ONE = {"ue8m0": 127, "ue4m3": 0x38}  # the codes of 1
INTEGERS = tuple(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))
LAYOUTS = ("nn", "nt", "tn", "tt")  # of a and b, in BLAS's letters: n is row-major, t is the transpose of that
TF32_BITS = np.uint32(0xFFFFE000)  # of a float32, those that TF32 has


class ProbedOperand(NamedTuple):
    """An operand: the format of its values, and how they are passed."""

    fmt: Format  # of floats; FP64 for integers, whose arrays are made elsewhere
    element: str = ""  # its name in units, where it was given so
    tensors: bool = False  # of torch
    integer: str = ""  # the dtype of integers, such as "int8"

    @property
    def exponents(self) -> tuple[int, int]:
        """The exponents of the smallest value and of the largest power of two."""
        return int(np.log2(self.fmt.smallest_subnormal or self.fmt.smallest_normal)), int(np.frexp(self.fmt.max)[1]) - 1

    def passed(self, values: Array) -> Array:
        """float64 values, which the format holds, as the array that a callable gets."""
        if self.integer:
            return np.asarray(values).astype(self.integer)
        if self.fmt == TF32:
            return np.asarray(values, np.float32)
        dtype = DTYPES.get(self.fmt)
        if dtype is not None and dtype.kind == "f":
            return np.asarray(values, dtype)
        codes = encode(np.asarray(values, np.float64), self.fmt)
        return codes if dtype is None else codes.view(dtype)

    def drawn(self, values: Array) -> Array:
        """float64 values rounded to the format, finite ones beyond its range to its largest; Inf stays."""
        if self.integer:
            return np.clip(np.rint(values), 0 if self.integer.startswith("u") else -8, 7)
        if self.fmt == TF32:
            with np.errstate(over="ignore"):
                bits = np.asarray(values, np.float32).view(np.uint32) & TF32_BITS
            return bits.view(np.float32).astype(np.float64)
        if self.fmt.bits > 32:
            return np.asarray(values, np.float64)
        return decode(
            encode(np.asarray(values, np.float64), self.fmt, overflow="saturate_finite"), self.fmt, np.float64
        )

    def values(self, codes: Array) -> Array:
        """float64 values of codes."""
        return decode(codes, FP32 if self.fmt == TF32 else self.fmt, np.float64)


def operand_of(spec: Any, name: str, integers: bool = False) -> ProbedOperand:
    """The operand that a format, a dtype of NumPy or torch, or an element of a unit names; `integers`: theirs too.

    Raises:
      ValueError: nothing has that name, or it has no zero to add.

    Example:
      >>> from fpsim.probe.black_box import operand_of
      >>> operand_of("bf16", "a").fmt.name, operand_of("bf8", "a").fmt.name, operand_of(np.float16, "a").fmt.name
      ('BF16', 'E5M2FNUZ', 'FP16')
    """
    integer = integer_dtype(spec) if integers else ""
    if integer:
        return ProbedOperand(FP64, tensors=str(spec).startswith("torch."), integer=integer)
    if isinstance(spec, Element):
        return ProbedOperand(spec.fmt, spec.name)
    if isinstance(spec, str) and spec.lower() in ELEMENTS:
        element = ELEMENTS[spec.lower()]
        return ProbedOperand(element.fmt, element.name)
    fmt = find_format(spec)
    if not fmt.has_zero or fmt == E8M0:
        raise ValueError(f"{name} must be a format with a zero, such as 'bf16'; got {shown(spec)}.")
    return ProbedOperand(fmt, tensors=str(spec).startswith("torch."))


def integer_dtype(spec: Any) -> str:
    """Return the name of an integer dtype of NumPy or torch; "" for everything else, bool too.

    Example:
      >>> from fpsim.probe.black_box import integer_dtype
      >>> integer_dtype(np.uint8), integer_dtype("int32"), integer_dtype("e4m3"), integer_dtype(bool)
      ('uint8', 'int32', '', '')
    """
    named = isinstance(spec, (str, type, np.dtype)) or str(spec).startswith("torch.")
    name = str(spec).removeprefix("torch.") if not isinstance(spec, type) else spec.__name__
    return name if named and name in INTEGERS else ""


def _laid_out(matrix: Array, transposed: bool) -> Array:
    """Return a copy that begins at a cache line, row-major or the transpose of that, with the strides of a new array.

    np.ascontiguousarray keeps the strides of a matrix of one row or column, and some libraries choose kernels by them.
    """
    source = matrix.T if transposed else matrix
    raw = np.empty(source.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    held = raw[start : start + source.nbytes].view(source.dtype).reshape(source.shape)
    held[...] = source
    return held.T if transposed else held


def _has_tensors(operand: ProbedOperand) -> bool:
    """Return whether torch is loaded, without which nothing takes tensors, and has a dtype for an operand."""
    dtype = DTYPES.get(operand.fmt)
    name = operand.integer or ("" if dtype is None else dtype.name)
    return bool(name) and "torch" in sys.modules and hasattr(sys.modules["torch"], name)


class RaisedError(ValueError):
    """The callable raised an error for what it was given."""

    def __init__(self, operands: str, reason: Exception) -> None:
        said = f"{type(reason).__name__}: {' '.join(str(reason).split()[:20])}"
        super().__init__(f"fn must add {operands}; it raised {said}.")
        self.operands, self.said = operands, said


class BlackBox:
    """A callable that adds terms, or products of two operands, and what was seen of it.

    Args:
      fn: the callable.
      kind: "sum": fn(x) of n terms; "dot": fn(a, b); "matmul": fn(a, b) of (m, n) by (n, columns).
      n: terms.
      operands: one, or two.
      shape: rows and columns of a product of matrices.
      scale, block: the element of block scales, and the terms that share one: fn(a, b, scale_a, scale_b) then.
      layout: how the matrices of a product lie in memory, one of LAYOUTS.
      longest: seconds that probing may take by the first call's time; None for LONGEST.
    """

    def __init__(
        self, fn: Function, kind: str, n: int, operands: tuple[ProbedOperand, ...], shape: tuple[int, int] = (1, 1),
        scale: str = "", block: int = 0, layout: str = "nn",
        longest: float | None = None,
    ) -> None:  # fmt: skip
        if not callable(fn):
            raise TypeError(f"fn must be a function that adds, such as np.sum; got {shown(fn)}.")
        require_integer("k" if kind == "matmul" else "n", n, 1)
        for name, size in zip(("rows", "columns"), shape, strict=True):
            require_integer(name, size, 1)
        if scale and (block < 1 or n % block):
            raise ValueError(f"block must be the terms that share a scale, which divide k; got {block} for k = {n}.")
        self.fn, self.kind, self.n, self.operands = fn, kind, int(n), operands
        self.shape = (int(shape[0]), int(shape[1]))
        require_word("layout", layout, LAYOUTS)
        self.scale, self.block, self.layout = scale, block, layout
        self.calls, self.longest = 0, LONGEST if longest is None else longest
        self.fmt: Format = FP32  # of the result
        self.dtype: np.dtype[Any] | None = None  # of the result, from the first call on
        self._buffers = [self._aligned(operand) for operand in operands]
        self._check()

    @property
    def at_once(self) -> int:
        """Sums of one call, of which each has operands of its own."""
        return min(self.shape)

    def _aligned(self, operand: ProbedOperand) -> Array:
        """Memory for a line of an operand that begins at a cache line, so that no result depends on where it lies."""
        dtype = operand.passed(np.zeros(1)).dtype
        raw = np.zeros(self.n * dtype.itemsize + 64, np.uint8)
        start = -raw.ctypes.data % 64
        return raw[start : start + self.n * dtype.itemsize].view(dtype)

    # ---- calls

    def call(self, *arrays: Array, scales: tuple[Array, ...] | None = None) -> Array:
        """Call the callable with operands as it takes them; block scales are 1 where they are not given."""
        if self.kind == "matmul":
            held = tuple(_laid_out(x, letter == "t") for x, letter in zip(arrays, self.layout, strict=True))
        else:
            held = arrays
        passed = [self._as_given(x, operand) for x, operand in zip(held, self.operands, strict=True)]
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
        """Block scales of both operands, with the codes that a function gives for a shape; none where it has none."""
        if not self.scale:
            return ()
        (m, columns), blocks = self.shape, self.n // self.block
        dtype = DTYPES[SCALES[self.scale]]
        return tuple(codes(shape).astype(np.uint8).view(dtype) for shape in ((m, blocks), (blocks, columns)))

    def _as_given(self, array: Array, operand: ProbedOperand) -> Any:
        if not operand.tensors:
            return array
        return to_torch(array if operand.integer else array.view(DTYPES[operand.fmt]))

    def _checked(self, result: Any) -> Array:
        """The result as an array of the shape that is wanted."""
        if self.kind != "matmul" and self.dtype is not None and self.dtype.isnative and type(result) is self.dtype.type:
            return np.asarray(result)  # one number as before: of thousands of calls, nearly all
        array = as_array(result, "what fn returns")
        wanted = self.shape if self.kind == "matmul" else ()
        if array.size != math.prod(wanted) or (self.kind == "matmul" and array.shape != wanted):
            raise ValueError(
                f"fn must return {'one number' if not wanted else f'an array of shape {wanted}'}; got shape "
                f"{array.shape}. {'Return the whole product' if wanted else 'Probe a function of one sum'}."
            )
        of_integers = bool(self.operands[0].integer)
        if of_integers and array.dtype.kind not in "iu":
            raise TypeError(f"fn must return integers, as it takes them; got {array.dtype}. Leave scales out of fn.")
        if not of_integers and format_of(array.dtype) is None:
            raise TypeError(f"fn must return floats, such as float32; got {array.dtype}. Decode its codes in fn.")
        self.dtype = self.dtype or array.dtype
        if array.dtype != self.dtype:
            raise ValueError(f"fn must return one dtype; got {array.dtype} after {self.dtype}. Cast what it returns.")
        return array.reshape(wanted)

    def results(self, *rows: Array) -> Array:
        """The sums of rows (R, n) of the operands' own arrays, (R,) in the result's dtype."""
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
        """The sums of (R, n) terms that are zero or powers of two, as float64."""
        return self.of(*self.split(terms))

    def of(self, *values: Array) -> Array:
        """The sums of rows of float64 values of each operand, which its format holds, as float64."""
        passed = [operand.passed(x) for operand, x in zip(self.operands, values, strict=True)]
        with np.errstate(all="ignore"):
            return self.results(*passed).astype(np.float64)

    def split(self, terms: Array) -> tuple[Array, ...]:
        """Terms as values of the operands: of two, the second one is a power of two."""
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
        """Exponents of the smallest and the largest term."""
        lows, highs = zip(*(operand.exponents for operand in self.operands), strict=True)
        return sum(lows), sum(highs)

    # ---- what is asked of it

    def _check(self) -> None:
        """Check that it gives the same bits for the same operands, leaves them as they are, and is fast enough."""
        rng = np.random.default_rng(0)
        shapes = self._shapes()
        arrays = []
        for operand, shape in zip(self.operands, shapes, strict=True):
            arrays.append(operand.passed(operand.drawn(rng.standard_normal(shape))))
        before = [x.copy() for x in arrays]
        started = time.perf_counter()
        first = self._first(arrays)
        self.fmt = format_of(first.dtype) or FP64
        for x, was in zip(arrays, before, strict=True):
            self._refuse_written(x, was.tobytes())
        started = time.perf_counter()
        for _ in range(REPEATS):
            again = self.call(*arrays)
            if again.tobytes() != first.tobytes():
                where = int(np.flatnonzero(again.reshape(-1) != first.reshape(-1))[:1].sum())
                raise ValueError(
                    f"fn must give the same bits for the same operands; it gave {again.reshape(-1)[where]!r} after "
                    f"{first.reshape(-1)[where]!r}. Fix its seed, its threads or its order."
                )
        seconds = (time.perf_counter() - started) / REPEATS
        expected = 2 * self.n * max(np.log2(self.n), 1) / self.at_once * seconds
        if expected > self.longest:
            raise ValueError(
                f"fn must be fast enough to be asked some {int(expected / seconds)} times; a call takes "
                f"{seconds:.2g} s, so that it would take about {expected / 60:.0f} minutes. Probe fewer terms."
            )

    def _first(self, arrays: list[Array]) -> Array:
        """Call the callable with its first operands: arrays, or tensors of torch where it raises for arrays."""
        try:
            return self.call(*arrays)
        except RaisedError as refused:
            before = self.operands
            self.operands = tuple(each._replace(tensors=each.tensors or _has_tensors(each)) for each in before)
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
        if operand.tobytes() != before:
            raise ValueError("fn must leave its operands as they are; it wrote into one. Let it work on a copy.")

    def _shapes(self) -> list[tuple[int, ...]]:
        if self.kind != "matmul":
            return [(self.n,)] * len(self.operands)
        return [(self.shape[0], self.n), (self.n, self.shape[1])]

    def whole(self, *values: Array, scales: tuple[Array, ...] | None = None) -> Array:
        """Call the callable with float64 values of whole operands."""
        passed = [operand.passed(x) for operand, x in zip(self.operands, values, strict=True)]
        return self.call(*passed, scales=scales)
