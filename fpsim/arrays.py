"""Validates inputs: values and codes become arrays of integer words, or raise an error that says what to do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from numbers import Real
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fpsim.errors import shown
from fpsim.formats.named import DTYPES, Format, find_by_name

Array = npt.NDArray[Any]
EXACT_INTEGERS = 2**53  # up to here float64 holds every integer
FORMAT_OF = {dtype: fmt for fmt, dtype in DTYPES.items()}


@cache
def _unsigned(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The unsigned integers of a dtype's size and byte order."""
    return np.dtype(f"u{dtype.itemsize}").newbyteorder(dtype.byteorder)


def words(array: Array) -> Array:
    """The same memory as unsigned integers."""
    return array if array.dtype.kind == "u" else array.view(_unsigned(array.dtype))


def distinct(integers: Array) -> Array:
    """The different elements, ascending, as np.unique finds them, whose table of integers takes five times as long."""
    ordered = np.sort(integers, axis=None)
    return np.concatenate([ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]]])


@cache
def format_of(dtype: np.dtype[Any]) -> Format | None:
    """The format that a dtype of either byte order stores, or None."""
    return FORMAT_OF.get(dtype) or FORMAT_OF.get(dtype.newbyteorder("="))


def as_array(x: Any, name: str = "x") -> Array:
    """x as an array of NumPy, without a copy where it lies in the CPU's memory; torch's small floats included.

    Raises:
      TypeError: a tensor that is no plain array of elements, or requires a gradient.
      ValueError: lists that have no shape in common.
    """
    if type(x) is np.ndarray:
        return x
    if is_torch(x):
        return from_torch(x, name)
    try:
        return np.asarray(x)
    except (ValueError, TypeError, OverflowError, RuntimeError):  # NumPy's sentences name neither the argument nor it
        raise ValueError(
            f"{name} must be an array, a number or nested lists of one shape; got {shown(x)}. Pass a NumPy array."
        ) from None


def refuse_masked(x: object, name: str) -> None:
    """A TypeError for a masked array, whose mask would be lost."""
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be masked; got a masked array. Fill the gaps first: {name}.filled(value).")


def float_array(x: npt.ArrayLike, name: str = "x") -> tuple[Array, Format]:
    """x as an array of floats, and the format that its dtype stores.

    Integers of Python, alone or in lists, are values, as floats beside them are; arrays of integers may be codes.

    Raises:
      TypeError: x is an array of integers, or holds objects or floats of another kind.
      ValueError: an integer of Python that float64 does not hold.
    """
    if type(x) is np.ndarray and x.dtype in FORMAT_OF:  # the most common input, without the checks that others need
        return x, FORMAT_OF[x.dtype]
    refuse_masked(x, name)
    array = as_array(x, name)
    if isinstance(x, (int, list, tuple)) and (array.dtype in (np.int64, np.uint64) or array.dtype == np.float64):
        return _as_floats(x, array, name), FORMAT_OF[np.dtype(np.float64)]
    fmt = format_of(array.dtype)
    if fmt is not None:
        return array, fmt
    expected = f"{name} must be an array of float16, bfloat16, float32, float64 or an ml_dtypes float"
    remedy = f"{name}.astype(np.float64)" if isinstance(x, np.ndarray) else f"np.asarray({name}, dtype=np.float64)"
    if array.dtype.kind in "iub" or is_small_integer(array.dtype):
        raise TypeError(
            f"{expected}; got {array.dtype}. Convert values with {remedy}, or round integers of any size with "
            "fpsim.from_int; to read integers as codes use fpsim.decode."
        )
    came = what_came(x, array, name)
    if array.dtype.kind == "f":  # a longer one
        came = f"{came} Convert with {remedy} if float64 holds it."
    raise TypeError(f"{expected}; {came}")


def what_came(x: object, array: Array, name: str) -> str:
    """Return the end of a refusal of an argument that holds no real numbers: what came, and what to do instead.

    Args:
      x: the argument.
      array: the same, as NumPy reads it.
      name: what the message calls it.

    Example:
      >>> from fpsim.arrays import what_came
      >>> what_came(None, np.asarray(None), "x"), what_came(1j, np.asarray(1j), "x")
      ('got None.', 'got complex128. Pass x.real and x.imag, one after the other.')
    """
    kind = array.dtype.kind
    if isinstance(x, Mapping):  # np.load gives one for .npz
        names = [shown(key) for key in list(x)[:1]]
        return f"got {type(x).__name__} of several. Pass one of its arrays, such as {name}[{''.join(names)}]."
    if kind == "c":
        return f"got {array.dtype}. Pass {name}.real and {name}.imag, one after the other."
    if isinstance(x, Format) or (isinstance(x, str) and find_by_name(x) is not None):
        return f"got {shown(x)}, a format. Values come before the format, as in fpsim.encode(x, 'e4m3')."
    if kind in "US":
        came = "texts" if array.ndim else shown(x)
        return f"got {came}. If that is a number, convert it with np.asarray({name}, dtype=np.float64)."
    if array.dtype.type is np.void and array.dtype.names is None:
        return (
            f"got {array.dtype}, bytes without a meaning, as np.load returns arrays of ml_dtypes' floats. View them as "
            f"what was saved, such as {name}.view(ml_dtypes.{'bfloat16' if array.itemsize == 2 else 'float8_e4m3fn'})."
        )
    if kind == "O" and not array.ndim and x is not None and not isinstance(x, Real):
        return f"got {shown(x)}. Pass an array, a number or a list of numbers."
    if kind != "O" or x is None:
        return f"got {array.dtype if hasattr(x, 'dtype') else shown(x)}."
    odd = [value for value in array.flat if not isinstance(value, Real)]
    if odd:
        return f"got objects, such as {shown(odd[0])}. Replace those that are no numbers."
    return f"got objects. Convert with np.asarray({name}, dtype=np.float64) if float64 holds them."


def _as_floats(x: Any, array: Array, name: str) -> Array:
    """float64 of numbers of Python, each of them exact."""
    floats = array.astype(np.float64, copy=False)
    if (np.abs(floats) >= EXACT_INTEGERS).any():
        for value, rounded in zip(np.asarray(x, dtype=object).flat, floats.flat, strict=True):
            if isinstance(value, (int, np.integer)) and value != int(rounded):
                raise ValueError(
                    f"{name} must hold integers that float64 holds; got {value}, which it rounds to {rounded:.17g}. "
                    "Use fpsim.from_int, which rounds integers once."
                )
    return floats


def is_torch(x: object) -> bool:
    """Whether x is a torch tensor, a parameter too, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def without_gradient(x: Any) -> Any:
    """What measurements and comparisons read, which give no array back: a tensor without its gradient."""
    return x.detach() if is_torch(x) else x


def from_torch(tensor: Any, name: str = "x") -> Array:
    """A torch tensor's elements as an array, without a copy where the tensor lies in the CPU's memory.

    Raises:
      TypeError: the tensor requires a gradient, or has no elements in memory that NumPy could see.
    """
    if tensor.requires_grad:
        raise TypeError(
            f"{name} must not require a gradient, which NumPy arrays lose; got a torch tensor that does. Use fp.torch, "
            f"whose fake_quantize has one, or {name}.detach()."
        )
    if tensor.is_meta:
        raise TypeError(f"{name} must have elements; got a torch tensor on the meta device. Make it on the CPU.")
    if tensor.layout is not sys.modules["torch"].strided:
        raise TypeError(f"{name} must be a dense tensor; got one of layout {tensor.layout}. Use {name}.to_dense().")
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    fmt = _format_of_torch(str(tensor.dtype))
    if fmt is None or (fmt.bits >= 16 and fmt.name != "BF16"):
        try:
            return np.asarray(tensor.numpy())  # torch and NumPy share these
        except TypeError:
            raise TypeError(
                f"{name} must have elements that NumPy or ml_dtypes knows; got {tensor.dtype}. View it as torch.uint8."
            ) from None
    integers = tensor.view(getattr(sys.modules["torch"], f"uint{8 * DTYPES[fmt].itemsize}"))
    return np.asarray(integers.numpy()).view(DTYPES[fmt])


@cache
def _format_of_torch(dtype: str) -> Format | None:
    """The format of a torch dtype such as "torch.float8_e5m2" that NumPy or ml_dtypes has, or None."""
    return next((fmt for fmt, known in DTYPES.items() if dtype == f"torch.{known.name}"), None)


def is_small_integer(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is one of ml_dtypes' integers of up to 4 bits."""
    return dtype in {np.dtype(getattr(ml_dtypes, f"{sign}int{bits}")) for sign in ("", "u") for bits in (1, 2, 4)}


def code_array(codes: npt.ArrayLike, fmt: Format, name: str = "codes") -> Array:
    """Codes of a format as unsigned integers of its storage width, or wider, in range.

    Raises:
      TypeError: neither integers nor an array of the format's own dtype.
      ValueError: a code lies outside the format.
    """
    refuse_masked(codes, name)
    array = as_array(codes, name)
    if array.size == 0 and not hasattr(codes, "dtype"):
        return np.zeros(array.shape, fmt.storage)  # [] has no dtype of its own
    stored_fmt = format_of(array.dtype)
    if hasattr(codes, "codes") and hasattr(codes, "decode"):
        raise TypeError(
            f"{name} must be codes of {fmt}; got {type(codes).__name__}, which has a format of its own. Its .decode() "
            "returns the values."
        )
    if stored_fmt is not None:
        if stored_fmt == fmt:
            return words(array)
        raise TypeError(
            f"{name} must be codes of {fmt}; got an array of {array.dtype}, which stores {stored_fmt}. "
            f"Pass fmt={stored_fmt} to decode it, or its values to fpsim.encode."
        )
    if array.dtype.kind not in "iu":
        raise TypeError(
            f"{name} must be unsigned integers (codes of {fmt} in {fmt.storage}); {what_came(codes, array, name)} "
            "fpsim.encode turns values into codes."
        )
    if array.size and (array.dtype.kind == "i" or fmt.bits < 8 * array.dtype.itemsize):
        _refuse_codes_outside(array, fmt, name)
    return array


def _refuse_codes_outside(array: Array, fmt: Format, name: str) -> None:
    lowest, highest = int(array.min()), int(array.max())
    if lowest < 0 or highest >= 1 << fmt.bits:
        bad = lowest if lowest < 0 else highest
        raise ValueError(
            f"{name} must lie in 0 .. {(1 << fmt.bits) - 1:#x}, the codes of {fmt}; got {bad:#x}. "
            "Mask or shift packed codes apart first."
        )


def output(
    out: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any], source: Array, whose: str = "the input's"
) -> Array:
    """The array to fill: `out` if it fits, or a new one.

    Raises:
      ValueError: out has another dtype or shape, cannot be written, or shares memory with the input.
    """
    if out is None:
        return np.empty(shape, dtype)
    if not isinstance(out, np.ndarray):
        raise ValueError(f"out must be a NumPy array of {dtype} and shape {shape}; got {type(out).__name__}.")
    if out.dtype != dtype:
        raise ValueError(f"out must have dtype {dtype}; got {out.dtype}. Leave it out to get a new array.")
    if out.shape != shape:
        raise ValueError(f"out must have {whose} shape {shape}; got {out.shape}.")
    if not out.flags.writeable:
        raise ValueError("out must be writeable; got a read-only array. Pass a copy.")
    refuse_shared_elements(out)
    refuse_shared_memory(out, source)
    return out


def refuse_shared_memory(out: Array, *read: Array | None) -> None:
    """A ValueError where an array to fill overlaps what is read, or the other way around."""
    if any(array is not None and overlaps(array, out) for array in read):
        raise ValueError("out must not share memory with the input; got overlapping arrays. Pass a separate array.")


def refuse_shared_elements(out: Array, name: str = "out") -> None:
    """A ValueError for an array whose elements share bytes, as broadcast ones do; a doubtful case counts as one."""
    if out.flags.c_contiguous or out.flags.f_contiguous:
        return
    reach = out.itemsize  # bytes from the first to the last one of what the shorter strides span
    for stride, length in sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True) if n > 1):
        if stride < reach:
            raise ValueError(
                f"{name} must have bytes of its own for every element; got shape {out.shape} in strides {out.strides}, "
                "as of a broadcast array. Pass a copy."
            )
        reach += stride * (length - 1)


def overlaps(a: Array, b: Array) -> bool:
    """Whether two arrays share an element; a doubtful case counts as one."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return bool(np.shares_memory(a, b, max_work=10_000))  # type: ignore[arg-type]  # any count will do
    except np.exceptions.TooHardError:
        return True
