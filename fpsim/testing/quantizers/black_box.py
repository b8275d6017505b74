"""Calls a quantizer of anybody's: finds out what it takes, reads what it returns, and says what it did wrong."""

from __future__ import annotations

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
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.rounder import Words, words_of

PATIENCE = 60.0  # seconds of processor time that all calls of a check may take
TOO_SLOW = 1.0  # seconds for a few values
CALLS = 40  # about how many calls on all inputs that is


class QuantizerMisbehaved(Exception):
    """A quantizer that broke a rule of the game, not one of rounding: the property, a sentence, and the inputs."""

    def __init__(self, held_not: str, sentence: str, inputs: Array | None = None) -> None:
        super().__init__(sentence)
        self.property, self.sentence, self.inputs = held_not, sentence, inputs


class Result(NamedTuple):
    """The results of a call: patterns of float64, flat, and whether they were codes."""

    words: Words
    codes: bool
    dtype: str


class CalledQuantizer:
    """A quantizer to one format; `call` gives its results as patterns of float64, every NaN the same."""

    def __init__(self, fn: Callable[..., Any], fmt: Format) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function of an array that returns values or codes; got {shown(fn)}.")
        self.fn, self.fmt = fn, fmt
        self.takes = "numpy"
        self.seconds = 0.0
        self.calls = 0
        self.covered = CoverageRecord()
        self.name = name_of(fn)

    def settle(self, x: Array) -> None:
        """Find out whether fn takes NumPy arrays or torch tensors, and whether it is fast enough for so many inputs.

        Raises:
          QuantizerMisbehaved: it takes neither, or would need minutes.
        """
        few = x[np.isfinite(x)][:: max(x.size // 16, 1)][:16].copy()
        try:
            self.call(few)
        except QuantizerMisbehaved as refusal:
            if refusal.property != "runs" or "torch" not in sys.modules:
                raise
            self.takes = "torch"
            try:
                self.call(few)
            except QuantizerMisbehaved as other:
                if other.property != "runs":
                    raise
                self.takes = "numpy"
                raise QuantizerMisbehaved("runs", f"{refusal.sentence} {other.sentence}", refusal.inputs) from None
        # the first call may compile something, and a call may have a price of its own, which more values share
        for size in (few.size, 64, 64, 1024, 1024):
            inputs = np.resize(few, size)
            self.seconds = 0.0
            self.call(inputs)
            if self.seconds * x.size / size * CALLS <= PATIENCE:
                return
            if self.seconds > TOO_SLOW:
                break
        raise QuantizerMisbehaved(
            "fast enough",
            f"fn took {self.seconds:.2g} s for {size} values, and a check asks for {x.size:,} about {CALLS} times; "
            "make it take whole arrays.",
            few,
        )

    def call(self, x: Array, layout: str = "", *, new_values: bool = True) -> Result:
        """Return what fn gives for an array, flat, in C order.

        Args:
          x: the array.
          layout: the name of its memory layout, for the report; "" for C order.
          new_values: whether earlier calls had other values than these.

        Raises:
          QuantizerMisbehaved: it raises, writes into its input, or returns what is no result for it.
        """
        argument = self._as_taken(x)
        before = x.tobytes()
        start = time.process_time()
        self.calls += 1
        try:
            with np.errstate(all="ignore"):
                got = self.fn(argument)
        except Exception as error:
            raise QuantizerMisbehaved("runs", f"fn raised {_said(error)} on {self._kind(x)}.", x) from error
        self.seconds += time.process_time() - start
        if x.tobytes() != before:  # a tensor shares its memory
            x_before = np.frombuffer(before, x.dtype).reshape(x.shape)
            raise QuantizerMisbehaved("leaves its input alone", f"fn writes into its input, {self._kind(x)}.", x_before)
        result = read(got, x, self.fmt)
        self.covered.note(x, layout, values=new_values)
        return result

    def _as_taken(self, x: Array) -> Any:
        if self.takes == "numpy":
            return x
        return to_torch(x)

    def _kind(self, x: Array) -> str:
        noun = "an array of" if self.takes == "numpy" else "a torch tensor of"
        return f"{noun} {x.dtype} and shape {x.shape}"


def name_of(fn: Callable[..., Any]) -> str:
    """Return the name of a function in reports."""
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return "fn" if name == "<lambda>" else str(name)


def _said(error: Exception) -> str:
    text = " ".join(str(error).split())
    text = text if len(text) <= 120 else f"{text[:117]}..."
    return f"{type(error).__name__}({text!r})"


def read(got: Any, x: Array, fmt: Format) -> Result:
    """The results for x as patterns of float64.

    Raises:
      QuantizerMisbehaved: another shape, a device, or no values or codes of the format.
    """
    if isinstance(got, EncodedArray):
        if got.fmt != fmt:
            raise QuantizerMisbehaved(
                "returns", f"fn must return values or codes of {fmt}; got an EncodedArray of {got.fmt}.", x
            )
        got = got.codes
    if is_torch(got) and got.device.type != "cpu":
        raise QuantizerMisbehaved(
            "device", f"fn must return what it was given, on the CPU; got a tensor on {got.device}.", x
        )
    try:
        array = as_array(without_gradient(got), "the result")
    except (TypeError, ValueError) as error:
        raise QuantizerMisbehaved(
            "returns", f"fn must return an array of values or codes; got {shown(got)}.", x
        ) from error
    if array.shape != x.shape:
        raise QuantizerMisbehaved("shape", f"fn must return the shape of its input, {x.shape}; got {array.shape}.", x)
    codes = _codes(array, fmt)
    if codes is None:
        known = format_of(array.dtype)
        if known is None:
            raise QuantizerMisbehaved("dtype", f"fn must return floats, or codes of {fmt}; got {array.dtype}.", x)
        values = array.ravel().astype(np.float64) if known == FP64 else decode(array.ravel(), known, np.float64)
        return Result(words_of(values), False, array.dtype.name)
    if codes.size and int(codes.max()) >= 1 << fmt.bits:
        place = int(np.argmax(codes >= 1 << fmt.bits))
        raise QuantizerMisbehaved(
            "codes", f"fn must return codes of {fmt}, below {1 << fmt.bits:#x}; got {int(codes[place]):#x} for "
            f"{pasted(x.ravel()[place])}.", x.ravel()[place : place + 1],
        )  # fmt: skip
    return Result(words_of(np.asarray(decode(codes, fmt, np.float64))), True, array.dtype.name)


def _codes(array: Array, fmt: Format) -> Array | None:
    """The codes in an array of integers, or of the format's own dtype; None for values."""
    if array.dtype.kind in "iu":
        flat = np.ascontiguousarray(array).ravel()
        wide = flat.astype(np.int64)
        if array.dtype.kind == "i" and array.dtype.itemsize == fmt.storage.itemsize:
            return flat.view(fmt.storage)
        return np.where(wide < 0, 1 << 62, wide).astype(np.uint64)
    is_own = fmt.dtype is not None and array.dtype == fmt.dtype and fmt.bits <= 16
    return words(np.ascontiguousarray(array).ravel()) if is_own else None


def narrowed(call: Callable[[Array], object], x: Array) -> Array:
    """A smallest part of x on which a call still raises QuantizerMisbehaved."""

    def fails(part: Array) -> bool:
        try:
            call(part)
        except QuantizerMisbehaved:
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
