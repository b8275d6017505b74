"""Arrays for notebooks: codes and a format, with Python's operators, each result rounded once."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic.comparison import equal, less, less_equal
from fpsim.arithmetic.conversion import convert, from_int, from_long_integers
from fpsim.arithmetic.functions import (
    absolute,
    add,
    divide,
    fma,
    multiply,
    negative,
    remainder,
    round_to_integral,
    sqrt,
    subtract,
)
from fpsim.arithmetic.operands import broadcast_shape
from fpsim.arithmetic.rounding_context import rounding_keywords
from fpsim.arithmetic.shown_values import shown_values
from fpsim.arrays import Array, as_array, code_array, exact_numbers, number_array
from fpsim.casts.cast import decode, encode
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.named import FP32, FP64, Format
from fpsim.formats.named import format as find_format

MOST_FACTORS = 10_000  # of a power: each one is a rounded multiplication


def _operators(operation: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the methods of an operator, for (self, other) and reflected: `operation`, such as `add`, rounded once.

    The methods return NotImplemented for an operand of another type.
    """

    def method(self: EncodedArray, other: Any) -> Any:
        return _rounded(operation, self, self._operand(other)) if isinstance(other, OPERANDS) else NotImplemented

    def reflected(self: EncodedArray, other: Any) -> Any:
        return _rounded(operation, self._operand(other), self) if isinstance(other, OPERANDS) else NotImplemented

    return method, reflected


class EncodedArray:
    """An array of values of one format, stored as codes. `fpsim.array` creates one.

    `+ - * / ** @`, `sqrt`, `fma`, `remainder` and `round` compute as the functions of these names in `fpsim`: on exact
    values, rounded once to the format, with overflow to Inf or NaN and subnormals kept. The mode is nearest_even,
    or that of `with fp.rounding(...):`.

    - Both operands have one format; `astype` converts. A number, list or NumPy array as operand is first rounded to
      this format, in the same mode: `x + 0.1` is `x + fp.array(0.1, x.fmt)`.
    - `x ** n` with an integer n is n - 1 multiplications from the left, each rounded; `x ** 0` is 1, `x ** -n` is
      `1 / x ** n`, and `x ** 0.5` is the square root.
    - `a @ b` has the shapes of `numpy.matmul` and rounds each product and each sum: total = a[0] * b[0], then
      total = total + a[k] * b[k] with k ascending.
    - Comparisons are exact, also with a number, which is not rounded: NaN differs from everything and -0 equals 0.
    - Indexing follows NumPy, slices share memory with the array, and a single element is an array of shape ().
      `x[i] = value` rounds the value to the format.
    - NumPy and plotting functions read `np.asarray(x)`, the values as float32 (float64 if the format needs it).
    """

    __slots__ = ("_codes", "_fmt")
    __array_ufunc__ = None  # numpy_array + x calls x.__radd__

    def __init__(self, codes: Array, fmt: Format) -> None:
        """Wrap codes of the format's storage dtype unchecked, without a copy; TypeError for another dtype."""
        self._codes, self._fmt = as_array(codes, "codes"), fmt
        if not isinstance(fmt, Format) or self._codes.dtype != fmt.storage:
            raise TypeError(
                f"EncodedArray takes codes as a format stores them; got {self._codes.dtype} and {shown(fmt)}. "
                "fpsim.array rounds values into a format, EncodedArray.from_codes checks codes."
            )

    @classmethod
    def from_codes(cls, codes: npt.ArrayLike, fmt: FormatLike) -> EncodedArray:
        """Return an array with these codes, copied.

        Args:
          codes: unsigned integers of any shape, or another array that `fpsim.decode` reads.
          fmt: the format, by name, dtype or object.

        Raises:
          ValueError: a code is not a code of the format.
          TypeError: codes are not integers.

        Example:
          >>> import fpsim as fp
          >>> fp.EncodedArray.from_codes(np.uint8([0x38, 0x80, 0x7F]), "e4m3")
          fp.array([1, -0.0, nan], E4M3)
        """
        stored_fmt = find_format(fmt)
        return cls(np.array(code_array(codes, stored_fmt), dtype=stored_fmt.storage), stored_fmt)

    # ---- attributes

    @property
    def fmt(self) -> Format:
        """Format of the elements."""
        return self._fmt

    @property
    def codes(self) -> Array:
        """The codes, as a read-only view: unsigned integers of the format's storage dtype."""
        view = self._codes.view()
        view.flags.writeable = False
        return view

    @property
    def values(self) -> Array:
        """The exact values, as a new float32 array, or float64 where float32 does not hold the format."""
        return decode(self._codes, self._fmt, np.float32 if FP32.holds(self._fmt) else np.float64)

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes of the array."""
        return self._codes.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._codes.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._codes.size

    @property
    def T(self) -> EncodedArray:
        """The array with its axes in reverse order, a view of the same memory."""
        return EncodedArray(self._codes.T, self._fmt)

    def reshape(self, *shape: int | Sequence[int]) -> EncodedArray:
        """Return the elements in another shape, a view if possible, as `numpy.ndarray.reshape` does."""
        return EncodedArray(self._codes.reshape(*shape), self._fmt)  # type: ignore[arg-type]

    def ravel(self) -> EncodedArray:
        """Return the elements along one axis in C order, a view if possible."""
        return EncodedArray(self._codes.ravel(), self._fmt)

    def copy(self) -> EncodedArray:
        """Return a copy of the array in new memory."""
        return EncodedArray(self._codes.copy(), self._fmt)

    __copy__ = copy

    def astype(self, fmt: FormatLike) -> EncodedArray:
        """Return a new array of these values rounded to the format `fmt`, in the mode of `with fpsim.rounding`."""
        return array(self, fmt)

    def tolist(self) -> Any:
        """Return the values as nested lists of Python floats."""
        return self.values.tolist()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the values of an encoded array are computed; got copy=False. Leave copy out.")
        return self.values.astype(dtype, copy=False) if dtype is not None else self.values

    def __len__(self) -> int:
        if not self.ndim:
            raise TypeError("len() needs an array with an axis; got one of shape (). Its value is float(x).")
        return len(self._codes)

    def __iter__(self) -> Iterator[EncodedArray]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: object) -> bool:
        return bool(np.any(self == value))

    def __getitem__(self, index: Any) -> EncodedArray:
        return EncodedArray(self._codes[index], self._fmt)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._codes[index] = array(value, self._fmt)._codes

    def _item(self, target: str) -> float:
        """Return the value of the only element; TypeError, which names the function `target`, for another size."""
        if self.size != 1:
            raise TypeError(
                f"{target}() takes an array of one element; got shape {self.shape}. Index it, such as x[0]."
            )
        return float(self.values.item())

    def __float__(self) -> float:
        return self._item("float")

    def __int__(self) -> int:
        return int(self._item("int"))

    def __bool__(self) -> bool:
        return bool(self._item("bool"))

    def __repr__(self) -> str:
        shown = shown_values(self.values, f", {self._fmt})")
        shape = f", shape={self.shape}" if "..." in shown or (not self.size and self.ndim > 1) else ""
        return f"fp.array({shown}, {self._fmt}{shape})"

    # ---- operators

    __add__, __radd__ = _operators(add)
    __sub__, __rsub__ = _operators(subtract)
    __mul__, __rmul__ = _operators(multiply)
    __truediv__, __rtruediv__ = _operators(divide)

    def __matmul__(self, other: Any) -> Any:
        return _matmul(self, self._operand(other)) if isinstance(other, OPERANDS) else NotImplemented

    def __rmatmul__(self, other: Any) -> Any:
        return _matmul(self._operand(other), self) if isinstance(other, OPERANDS) else NotImplemented

    def __neg__(self) -> EncodedArray:
        return EncodedArray(negative(self._codes, fmt=self._fmt), self._fmt)

    def __pos__(self) -> EncodedArray:
        return self.copy()

    def __abs__(self) -> EncodedArray:
        return EncodedArray(absolute(self._codes, fmt=self._fmt), self._fmt)

    def __pow__(self, exponent: Any) -> EncodedArray:
        if isinstance(exponent, (float, np.floating)) and exponent == 0.5:
            return self.sqrt()
        try:
            n = operator.index(exponent)
        except TypeError:
            raise TypeError(f"** takes an integer exponent, or 0.5 for the root; got {shown(exponent)}.") from None
        if n < 0:
            return _rounded(divide, array(1, self._fmt), self**-n)
        if n == 0:
            return EncodedArray(np.full(self.shape, array(1, self._fmt).codes), self._fmt)
        if n > MOST_FACTORS:
            raise ValueError(f"** multiplies step by step, up to {MOST_FACTORS:,} factors; got {n:,}.")
        return functools.reduce(operator.mul, [self] * (n - 1), self.copy())

    def sqrt(self) -> EncodedArray:
        """Return the elementwise square root, rounded once to the array's format, as `fpsim.sqrt` does."""
        return _rounded(sqrt, self)

    def round(self) -> EncodedArray:
        """Return each element rounded to an integer in the current rounding mode, as `fpsim.round_to_integral` does."""
        return _rounded(round_to_integral, self)

    def remainder(self, other: EncodedArray | npt.ArrayLike) -> EncodedArray:
        """Return self - n * other, where n is the integer nearest to self / other, ties to even."""
        return _rounded(remainder, self, self._operand(other))

    def fma(self, factor: EncodedArray | npt.ArrayLike, term: EncodedArray | npt.ArrayLike) -> EncodedArray:
        """Return self * factor + term, rounded once to the array's format, as `fpsim.fma` does.

        Example:
          >>> import fpsim as fp
          >>> x = fp.array(1.125, fp.E4M3)
          >>> x * x - 1.25, x.fma(x, -1.25)
          (fp.array(0, E4M3), fp.array(0.015625, E4M3))
        """
        return _rounded(fma, self, self._operand(factor), self._operand(term))

    def __eq__(self, other: object) -> Any:
        return self._compare(equal, operator.eq, other)

    def __ne__(self, other: object) -> Any:
        same = self._compare(equal, operator.eq, other)
        return same if same is NotImplemented else np.logical_not(same)

    def __lt__(self, other: Any) -> Any:
        return self._compare(less, operator.lt, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(less_equal, operator.le, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(less, operator.gt, other, swapped=True)

    def __ge__(self, other: Any) -> Any:
        return self._compare(less_equal, operator.ge, other, swapped=True)

    # ---- helpers of the operators

    def _operand(self, other: Any) -> EncodedArray:
        """Return `other`, an array of this format, or numbers rounded to this format; TypeError for another format."""
        if not isinstance(other, EncodedArray):
            return array(other, self._fmt)
        if other._fmt != self._fmt:
            raise TypeError(
                f"operands must have one format; got {self._fmt} and {other._fmt}. "
                f"Convert one of them, such as y.astype({self._fmt.name!r})."
            )
        return other

    def _compare(
        self, codes_compare: Callable[..., Any], compare: Callable[..., Any], other: object, swapped: bool = False
    ) -> Any:
        """Compare this array with `other`, an array or numbers; return bools, or NotImplemented for other types.

        codes_compare: function (codes, codes, fmt=) that compares two arrays of the same format; `swapped` exchanges
        its operands. compare: function (float64 values of this array, numbers) for numbers, which are not rounded.
        """
        if isinstance(other, EncodedArray):
            a, b = self._codes, self._operand(other)._codes
            return np.asarray(codes_compare(*((b, a) if swapped else (a, b)), fmt=self._fmt))[()]
        if isinstance(other, OPERANDS):
            with np.errstate(invalid="ignore"):  # NumPy warns where NaN meets a Python integer
                return compare(decode(self._codes, self._fmt, np.float64), exact_numbers(number_array(other)))
        return NotImplemented


OPERANDS = (EncodedArray, int, float, list, tuple, np.ndarray, np.generic)  # operands of operators


def array(values: EncodedArray | npt.ArrayLike, fmt: FormatLike) -> EncodedArray:
    """Round values to a format, each once, and return them as an array with operators.

    Args:
      values: floats as `fpsim.encode` accepts them (a Python float, nested lists, a NumPy, ml_dtypes or torch array),
        integers of any size, or an encoded array; each value is rounded once, in the mode of `fpsim.rounding`.
      fmt: the format, by name, dtype or object.

    Returns:
      An EncodedArray of the values' shape, in new memory.

    Raises:
      ValueError: unknown format, or an integer that NumPy would round on the way.
      TypeError: values are not numbers.

    Example:
      >>> import fpsim as fp
      >>> x = fp.array([1, 0.3, 500], fp.E4M3)
      >>> x
      fp.array([1, 0.3125, nan], E4M3)
      >>> x[:2] * 3 + 0.1
      fp.array([3, 1], E4M3)
      >>> x.astype("e5m2") < 1
      array([False,  True, False])
    """
    target = find_format(fmt)
    if isinstance(values, EncodedArray):
        if values.fmt == target:
            return values.copy()
        return EncodedArray(convert(values.codes, target, fmt=values.fmt, **rounding_keywords()), target)
    source = number_array(values)
    if source.dtype.kind in "iu":
        return EncodedArray(from_int(source, target, **rounding_keywords()), target)
    if source.dtype.kind == "O":
        if target == FP64:
            raise ValueError("FP64 takes integers of up to 64 bits; got larger ones. Convert them with float().")
        return EncodedArray(from_long_integers(source, target, rounding_keywords()), target)
    return EncodedArray(encode(source, target, **rounding_keywords()), target)


def _rounded(operation: Callable[..., Any], *operands: EncodedArray) -> EncodedArray:
    """Return operation(*operands), rounded to their common format in the mode of `with fpsim.rounding`."""
    fmt = operands[0].fmt
    return EncodedArray(operation(*(operand._codes for operand in operands), fmt=fmt, **rounding_keywords()), fmt)


def _matmul(a: EncodedArray, b: EncodedArray) -> EncodedArray:
    """Return a @ b, with each product and each sum rounded, in ascending order of k; ValueError for unfit shapes."""
    if not (a.ndim and b.ndim):
        raise ValueError(f"@ takes arrays with axes; got shapes {a.shape} and {b.shape}. Multiply scalars with *.")
    left = a[None, :] if a.ndim == 1 else a  # (..., m, k)
    right = b[:, None] if b.ndim == 1 else b  # (..., k, n)
    if left.shape[-1] != right.shape[-2]:
        raise ValueError(
            f"@ sums over the last axis of a and the last but one of b, which must be equally long; "
            f"got shapes {a.shape} and {b.shape}."
        )
    if left.shape[-1]:
        total: EncodedArray = left[..., :, 0, None] * right[..., 0, None, :]  # (..., m, n)
        for k in range(1, left.shape[-1]):
            total = total + left[..., :, k, None] * right[..., k, None, :]
    else:
        batch = broadcast_shape("@", (left.shape[:-2], right.shape[:-2]), whole=(a.shape, b.shape))
        zeros = np.full((*batch, left.shape[-2], right.shape[-1]), array(0, a.fmt).codes)
        total = EncodedArray(zeros, a.fmt)
    total = total[..., 0, :] if a.ndim == 1 else total  # (..., n)
    return total[..., 0] if b.ndim == 1 else total
