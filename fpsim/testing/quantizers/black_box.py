"""Calls of a quantizer under test: the array type that it accepts, its results as float64, the rules that it broke."""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.encoded_array import EncodedArray
from fpsim.arrays import Array, as_array, format_of, is_torch, to_torch, without_gradient, words
from fpsim.casts.cast import decode
from fpsim.errors import shown
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP64
from fpsim.testing.black_box import FunctionMisbehaved, error_in_words, name_of, require_function
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.rounder import Made, Words, words_of

PATIENCE = 60.0  # seconds of processor time that all calls of a check may take
TOO_SLOW = 1.0  # seconds for a few values
CALLS = 40  # approximate number of calls of a check with all inputs


def parameters_of(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a function; [] if Python cannot read its signature, as for some built-in functions."""
    try:
        return list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return []


def attempted(
    call: Callable[..., Made], *arguments: Any, refusals: tuple[str, ...] = ("runs",), **keywords: Any
) -> tuple[Made | None, str]:
    """Return (call(*arguments, **keywords), ""), or (None, sentence on the reason) if a quantizer refuses the call.

    The quantizer refuses if `call` raises FunctionMisbehaved with a `rule` in `refusals`; "runs" is the rule of
    quantizers that raise. Other exceptions are not caught.
    """
    try:
        return call(*arguments, **keywords), ""
    except FunctionMisbehaved as refusal:
        if refusal.rule not in refusals:
            raise
        return None, refusal.sentence


class Result(NamedTuple):
    """Results of one call, and the name of the dtype that was returned.

    words: values as bit patterns of float64, flat, one pattern for all NaNs. codes: whether fn returned codes.
    """

    words: Words
    codes: bool
    dtype: str


class CalledQuantizer:
    """A quantizer under test, whose results `call` returns as float64 bit patterns.

    fn: the quantizer, a function of an array. fmt: the format to which it claims to round.
    """

    def __init__(self, fn: Callable[..., Any], fmt: Format) -> None:
        require_function(fn)
        self.fn, self.fmt = fn, fmt
        self.takes = "numpy"
        self.seconds = 0.0
        self.covered = CoverageRecord()
        self.returned: Any = None  # what fn returned in the last call
        self.name = name_of(fn)

    def settle(self, x: Array) -> None:
        """Set `takes` to the kind of array that fn accepts, "numpy" or "torch", and measure whether fn is fast enough.

        x: the inputs of the check; fn is called with a few of their values.

        Raises:
          FunctionMisbehaved: fn accepts neither kind, or a check would need minutes.
        """
        few = x[np.isfinite(x)][:: max(x.size // 16, 1)][:16].copy()
        try:
            self.call(few)
        except FunctionMisbehaved as refusal:
            if refusal.rule != "runs" or "torch" not in sys.modules:
                raise
            self.takes = "torch"
            try:
                self.call(few)
            except FunctionMisbehaved as other:
                if other.rule != "runs":
                    raise
                self.takes = "numpy"
                raise FunctionMisbehaved("runs", f"{refusal.sentence} {other.sentence}", refusal.inputs) from None
        # the first call may compile something, and a call may take time that does not grow with the values
        for size in (few.size, 64, 64, 1024, 1024):
            inputs = np.resize(few, size)
            self.seconds = 0.0
            self.call(inputs)
            if self.seconds * x.size / size * CALLS <= PATIENCE:
                return
            if self.seconds > TOO_SLOW:
                break
        raise FunctionMisbehaved(
            "fast enough",
            f"fn took {self.seconds:.2g} s for {size} values, and is called about {CALLS} times with {x.size:,}; "
            "make it take whole arrays.",
            few,
        )

    def call(self, x: Array, layout: str = "", *, new_values: bool = True) -> Result:
        """Return the results of fn for an array, flat, in C order of the array.

        layout: name of the memory layout of x in the report; "" for C order. new_values: whether the report's ranges of
        values are to include those of x.

        Raises:
          FunctionMisbehaved: fn raises, writes into its input, or returns neither values nor codes of x's shape.
        """
        argument, noun = (x, "an array") if self.takes == "numpy" else (to_torch(x), "a torch tensor")
        described = f"{noun} of {x.dtype} and shape {x.shape}"
        before = x.tobytes()
        start = time.process_time()
        try:
            with np.errstate(all="ignore"):
                got = self.fn(argument)
        except Exception as error:
            raise FunctionMisbehaved("runs", f"fn raised {error_in_words(error)} on {described}.", x) from error
        self.seconds += time.process_time() - start
        if x.tobytes() != before:  # also through a tensor, which shares its memory
            x_before = np.frombuffer(before, x.dtype).reshape(x.shape)
            raise FunctionMisbehaved("leaves its input alone", f"fn writes into its input, {described}.", x_before)
        self.returned = got
        result = read(got, x, self.fmt)
        self.covered.note(x, layout, values=new_values)
        return result


def read(got: Any, x: Array, fmt: Format) -> Result:
    """Return the results `got` of a quantizer for the inputs x as bit patterns of float64.

    got: an array or tensor of values in any float dtype or of codes, or an EncodedArray. fmt: the format to which the
    quantizer claims to round.

    Raises:
      FunctionMisbehaved: the result has another shape or device, or neither values nor codes of the format.
    """
    if isinstance(got, EncodedArray):
        if got.fmt != fmt:
            raise FunctionMisbehaved(
                "returns", f"fn must return values or codes of {fmt}; got an EncodedArray of {got.fmt}.", x
            )
        got = got.codes
    require_cpu(got, x)
    array = result_array(got, x)
    require_shape(array, x)
    codes = _codes(array, fmt)
    if codes is None:
        known = format_of(array.dtype)
        if known is None:
            raise FunctionMisbehaved("dtype", f"fn must return floats, or codes of {fmt}; got {array.dtype}.", x)
        values = array.ravel().astype(np.float64) if known == FP64 else decode(array.ravel(), known, np.float64)
        return Result(words_of(values), False, array.dtype.name)
    if codes.size and int(codes.max()) >= 1 << fmt.bits:
        place = int(np.argmax(codes >= 1 << fmt.bits))
        raise FunctionMisbehaved(
            "codes", f"fn must return codes of {fmt}, below {1 << fmt.bits:#x}; got {int(codes[place]):#x} for "
            f"{pasted(x.ravel()[place])}.", x.ravel()[place : place + 1],
        )  # fmt: skip
    return Result(words_of(np.asarray(decode(codes, fmt, np.float64))), True, array.dtype.name)


def result_array(got: Any, x: Array, wanted: str = "an array of values or codes") -> Array:
    """Return the result of a quantizer for the input x as an array.

    got: the result: an array, tensor, number or nested list. wanted: what the quantizer must return, for the error.

    Raises:
      FunctionMisbehaved: the result is something else, such as None or a generator, or is a masked array.
    """
    said = f"fn must return {wanted}; got {'a masked array' if np.ma.isMaskedArray(got) else shown(got)}."
    try:
        array = np.asarray(as_array(without_gradient(got), "the result"))
    except (TypeError, ValueError) as error:
        raise FunctionMisbehaved("returns", said, x) from error
    if array.dtype == object and not array.ndim:
        raise FunctionMisbehaved("returns", said, x)
    return array


def require_cpu(got: Any, x: Array) -> None:
    """Raise FunctionMisbehaved if the result `got` for the input x is a tensor that is not on the CPU."""
    if is_torch(got) and got.device.type != "cpu":
        raise FunctionMisbehaved(
            "device", f"fn must return a tensor on the CPU, as its input is; got one on {got.device}.", x
        )


def require_shape(got: Array, x: Array) -> None:
    """Raise FunctionMisbehaved unless the result `got` has the shape of the input x."""
    if got.shape != x.shape:
        raise FunctionMisbehaved("shape", f"fn must return the shape of its input, {x.shape}; got {got.shape}.", x)


def is_integer_dtype(dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype holds integers; int4 and uint4 of ml_dtypes count."""
    return dtype.kind in "iu" or dtype.name in ("int4", "uint4")


def _codes(array: Array, fmt: Format) -> Array | None:
    """Return results as flat codes if their dtype is an integer dtype or the format's own, else None.

    array: the results. Integers as wide as a code are read as bit patterns; other negative ones become 2**62, which is
    no code.
    """
    if array.dtype.kind in "iu":
        flat = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).ravel()
        if array.dtype.itemsize == fmt.storage.itemsize:
            return flat.view(fmt.storage)
        return np.where(flat < 0, 1 << 62, flat.astype(np.uint64)).astype(np.uint64)
    is_own = fmt.dtype is not None and array.dtype == fmt.dtype and fmt.bits <= 16
    return words(np.ascontiguousarray(array).ravel()) if is_own else None


def narrowed(call: Callable[[Array], object], x: Array) -> Array:
    """Return a part of x, found by repeated halving, for which `call` still raises FunctionMisbehaved."""

    def fails(part: Array) -> bool:
        try:
            call(part)
        except FunctionMisbehaved:
            return True
        return False

    while x.size > 1:
        half = x.size // 2
        if fails(x[:half].copy()):
            x = x[:half].copy()
        elif fails(x[half:].copy()):
            x = x[half:].copy()
        else:
            break
    return x
