"""Calls of a kernel under test: which array type it accepts, its results as codes, and the rules that it broke."""

from __future__ import annotations

import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.arithmetic.encoded_array import EncodedArray
from fpsim.arrays import Array, as_array, is_torch, to_torch, without_gradient, words
from fpsim.errors import require_word, shown
from fpsim.formats.float_format import DTYPES
from fpsim.testing.black_box import FunctionMisbehaved, error_in_words, name_of
from fpsim.testing.pasted import hexadecimal
from fpsim.testing.products.layouts import OperandLayout
from fpsim.testing.products.promise import KernelInputs, Promise, canonical

TAKES = ("numpy", "torch", "cuda", "jax")
PATIENCE = 300.0  # seconds that all calls of a check may take
CALLS = 120  # approximate number of calls of a check


class CalledKernel(ABC):
    """A kernel under test; `call` returns its results as codes, which subclasses read from what the function returns.

    Args:
      fn: the kernel, a function of a, b and the promised scales and bias.
      takes: type of the arrays that fn accepts: "numpy", "torch", "cuda" or "jax". None: the types are tried in this
        order.
      tensors: whether operands were promised in torch dtypes; then None means "torch".
    """

    def __init__(self, fn: Callable[..., Any], takes: str | None, tensors: bool = False) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function of two matrices, such as torch.mm; got {shown(fn)}.")
        if takes is not None:
            require_word("takes", takes, TAKES)
        self.fn = fn
        self.name = name_of(fn)
        self.returned: Any = None  # what fn returned in the first call
        self.takes = takes or ("torch" if tensors else "")

    def settle(self, x: KernelInputs) -> Array:
        """Call the kernel `fn` twice, find out which array type it accepts, and return its results for x as codes.

        x: the operands, and the promised scales and bias.

        Raises:
          FunctionMisbehaved: fn accepts no type of arrays, returns other bits at the second call, or is so slow that a
            check would take minutes.
        """
        first = self._first(x)
        started = time.perf_counter()
        again = self.call(x)
        seconds = time.perf_counter() - started
        if (first != again).any():
            raise FunctionMisbehaved(
                "deterministic", f"fn gives other bits at the second call for {x}: {two_results(first, again)}."
            )
        if seconds * CALLS > PATIENCE:
            raise FunctionMisbehaved(
                "fast enough",
                f"fn took {seconds:.2g} s for {x}, and a check calls it about {CALLS} times; pass shapes= that are "
                "smaller.",
            )
        return first

    def _first(self, x: KernelInputs) -> Array:
        """Call the kernel `fn` for x, find out which array type it accepts, and return its results as codes.

        If `takes` is "", the types are tried in turn, and `takes` is set to the first that fn accepts. x: the operands,
        and the promised scales and bias.

        Raises:
          FunctionMisbehaved: fn accepts no array type, or accepts one but breaks a rule, for example writes into an
            operand.
        """
        if self.takes:
            return self.call(x)
        libraries = ["numpy"]
        if torch := sys.modules.get("torch"):
            libraries += ["torch", "cuda"] if torch.cuda.is_available() else ["torch"]
        libraries += ["jax"] if "jax" in sys.modules else []
        said = []
        for library in libraries:
            self.takes = library
            try:
                return self.call(x)
            except FunctionMisbehaved as refusal:
                if refusal.rule != "runs":
                    raise
                said.append(refusal.sentence)
        self.takes = libraries[0]
        more = "If it takes other shapes alone, pass them as shapes=[(M, N, K), ...]."
        raise FunctionMisbehaved("runs", " ".join([*dict.fromkeys(said), more]))

    def as_numpy(self, *arrays: Array) -> Any:
        """Call the kernel `fn` with arrays converted to the type that it accepts, and return its result unchecked.

        If the result is a tensor on a GPU, it is moved to the CPU; any other result is returned unchanged.
        """
        got = self.fn(*(self._passed(np.ascontiguousarray(array)) for array in arrays))
        return got.cpu() if is_torch(got) else got

    def call(self, x: KernelInputs, layout: OperandLayout | None = None) -> Array:
        """Return the results of the kernel `fn` for x as codes of the promised format, with one code for all NaNs.

        x: the operands, and the promised scales and bias. layout: memory layout of a and b; None for C order. The
        result has the shape (M, N).

        Raises:
          FunctionMisbehaved: fn raises, writes into its operands, or returns no array of the promised shape and format.
        """
        operands = [x.a.copy(), x.b.copy(), *(operand.copy() for operand in x.extras)]
        passed = [self._passed(operand) for operand in operands]
        if layout is not None:
            passed[:2] = layout.of_a(passed[0]), layout.of_b(passed[1])
        before = [self._bytes(operand) for operand in passed]
        try:
            with np.errstate(all="ignore"):
                got = self.fn(*passed)
        except Exception as error:
            said = f"fn raised {error_in_words(error, 160)} for {self._kinds(x, layout)}."
            raise FunctionMisbehaved("runs", said) from error
        names = ["a", "b", *(name for name in ("scale_a", "scale_b", "bias") if getattr(x, name) is not None)]
        for name, operand, was in zip(names, passed, before, strict=True):
            if self._bytes(operand) != was:
                said = f"fn writes into {name} for {self._kinds(x, layout)}."
                raise FunctionMisbehaved("leaves its operands alone", said)
        codes = self._read(got, passed[0], x)
        if self.returned is None:
            self.returned = got
        return codes

    def require_kept(self, x: KernelInputs, codes: Array) -> None:
        """Raise FunctionMisbehaved if the array that the function returned in its first call no longer holds `codes`.

        x: the inputs of the first call. codes: the results that the array had when it was returned.
        """
        if (self._read(self.returned, self.returned, x) != codes).any():
            raise FunctionMisbehaved(
                "calls", f"fn returns an array whose memory a later call overwrites, first seen for {x}."
            )

    def _bytes(self, x: Any) -> bytes:
        """Return the elements of x, an array or torch tensor, as bytes in C order."""
        if is_torch(x):
            import torch

            x = x.detach().cpu().contiguous().view(torch.uint8).numpy()
        return np.asarray(x).tobytes()

    def _passed(self, x: Array) -> Any:
        """Return a NumPy array converted to the type of arrays that the kernel `fn` accepts."""
        if self.takes == "numpy":
            return x
        if self.takes == "jax":
            import jax.numpy as jnp

            return jnp.asarray(x)
        tensor = to_torch(np.ascontiguousarray(x))
        return tensor.cuda() if self.takes == "cuda" else tensor

    def _kinds(self, x: KernelInputs, layout: OperandLayout | None = None) -> str:
        """Return the inputs of a call, their dtypes, shapes and layout (None for C order), as text for an error."""
        kind = {"numpy": "arrays", "torch": "torch tensors", "cuda": "CUDA tensors", "jax": "JAX arrays"}[self.takes]
        pairs = " and ".join(f"{operand.dtype} {operand.shape}" for operand in (x.a, x.b))
        return f"{x} ({kind}, {pairs}{f', {layout.name}' if layout else ''})"

    def _read(self, got: Any, a: Any, x: KernelInputs) -> Array:
        """Return the results `got` as codes of the promised format, with one code for all NaNs.

        a: the first operand as passed to the kernel; `got` must be on the same device. x: the inputs of the call, for
        the promised shape (M, N) and for error messages.

        Raises:
          FunctionMisbehaved: the type, dtype, shape or device is not as promised.
        """
        if got is None:
            raise FunctionMisbehaved("returns", f"fn must return an array; got None for {x}.")
        if is_torch(got) and is_torch(a) and got.device != a.device:
            raise FunctionMisbehaved(
                "device", f"fn must return a tensor on {a.device}, where its operands are; got {got.device} for {x}."
            )
        return self._codes(got, x)

    @abstractmethod
    def _codes(self, got: Any, x: KernelInputs) -> Array:
        """Return the results `got` for the inputs x as codes, in memory of their own.

        Raises:
          FunctionMisbehaved: `got` is no array of the promised shape and dtype.
        """


class FloatKernel(CalledKernel):
    """A kernel under test whose results are floats; fn, takes: as for `CalledKernel`; promise: its arithmetic."""

    def __init__(self, fn: Callable[..., Any], promise: Promise, takes: str | None) -> None:
        super().__init__(fn, takes, promise.a.tensors or promise.b.tensors)
        self.promise = promise

    def _codes(self, got: Any, x: KernelInputs) -> Array:
        """Return the results `got` for the inputs x as codes of the promised format, with one code for all NaNs."""
        out = self.promise.out
        if isinstance(got, EncodedArray):
            if got.fmt != out:
                raise FunctionMisbehaved("dtype", f"fn must return {out}; got an EncodedArray of {got.fmt} for {x}.")
            got = got.codes
        array = array_of(got, x)
        wanted = DTYPES.get(out)
        width = out.storage.itemsize
        if array.dtype.kind in "iu" and array.dtype.itemsize == width:
            native = array.dtype.newbyteorder("=")
            codes = array.astype(native, order="C").view(out.storage)  # the next call may write into the same memory
            if codes.size and int(codes.max()) >= 1 << out.bits:
                said = f"fn must return codes of {out}, below {1 << out.bits:#x}; got larger for {x}."
                raise FunctionMisbehaved("dtype", said)
            return canonical(codes, out)
        if wanted is None or array.dtype != wanted:
            raise FunctionMisbehaved(
                "dtype",
                f"fn must return {wanted or f'codes of {out}'}, as {out} is promised; got {array.dtype} for {x}. Pass "
                "out_fmt= if that is right.",
            )
        return canonical(words(array.copy(order="C")), out)


def array_of(got: Any, x: KernelInputs) -> Array:
    """Return `got`, the value that a kernel returned for the inputs x, as a NumPy array.

    Raises:
      FunctionMisbehaved: it is no array of the shape (M, N).
    """
    try:
        array = as_array(without_gradient(got.cpu() if is_torch(got) else got), "what fn returns")
    except (TypeError, ValueError) as error:
        raise FunctionMisbehaved("returns", f"fn must return an array; got {shown(got)} for {x}.") from error
    if array.dtype == object and not array.ndim:
        raise FunctionMisbehaved("returns", f"fn must return an array; got {shown(got)} for {x}.")
    if array.shape != x.shape[:2]:
        raise FunctionMisbehaved("shape", f"fn must return the shape {x.shape[:2]}; got {array.shape} for {x}.")
    return array


def two_results(first: Array, again: Array) -> str:
    """Return text on the difference of two arrays of codes that should be equal: how many differ, and the first.

    first, again: the results of the first and of a later call with the same inputs.
    """
    where = tuple(int(i) for i in np.argwhere(first != again)[0])
    count = f"{int((first != again).sum()):,} of {first.size:,} elements"
    shown = [hexadecimal(x[where]) if x.dtype.kind == "u" else str(x[where]) for x in (first, again)]
    return f"{count}, first {where}: {shown[0]}, then {shown[1]}"
