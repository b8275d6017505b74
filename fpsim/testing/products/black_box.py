"""Calls a kernel of anybody's: finds out which arrays it takes, reads what it returns, and says what it did wrong."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fpsim.arithmetic.encoded_array import EncodedArray
from fpsim.arrays import Array, as_array, is_torch, to_torch, without_gradient, words
from fpsim.errors import require_word, shown
from fpsim.formats.float_format import DTYPES
from fpsim.testing.products.layouts import OperandLayout
from fpsim.testing.products.promise import KernelInputs, Promise, canonical

TAKES = ("numpy", "torch", "cuda", "jax")
PATIENCE = 300.0  # seconds that all calls of a check may take
CALLS = 120  # about how many these are


class KernelMisbehaved(Exception):
    """A kernel that broke a rule of the game, not one of arithmetic: the rule, and a sentence with the inputs."""

    def __init__(self, rule: str, sentence: str) -> None:
        super().__init__(sentence)
        self.rule, self.sentence = rule, sentence


class CalledKernel:
    """A function of two matrices, and of scales and bias where it has them; `call` gives codes of its results.

    Args:
      fn: the function.
      promise: what it promises.
      takes: a word of TAKES; None to find out.
    """

    def __init__(self, fn: Callable[..., Any], promise: Promise, takes: str | None) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function of two matrices, such as torch.mm; got {shown(fn)}.")
        if takes is not None:
            require_word("takes", takes, TAKES)
        self.fn, self.promise = fn, promise
        named = getattr(fn, "__name__", None) or type(fn).__name__
        self.name = "fn" if named == "<lambda>" else str(named)
        tensors = promise.a.tensors or promise.b.tensors
        self.takes = takes or ("torch" if tensors else "")
        self.calls = 0

    def settle(self, x: KernelInputs) -> Array:
        """Results for the first inputs, after finding out which arrays it takes and whether it is fast enough.

        Raises:
          KernelMisbehaved: it takes none, gives other bits at the second call, or would take minutes.
        """
        first = self._first(x)
        started = time.perf_counter()
        again = self.call(x)
        seconds = time.perf_counter() - started
        if (first != again).any():
            raise KernelMisbehaved(
                "deterministic", f"fn gives other bits at the second call for {x}: {two_results(first, again)}."
            )
        if seconds * CALLS > PATIENCE:
            raise KernelMisbehaved(
                "fast enough",
                f"fn took {seconds:.2g} s for {x}, and a check calls it about {CALLS} times; pass shapes= that are "
                "smaller.",
            )
        return first

    def _first(self, x: KernelInputs) -> Array:
        if self.takes:
            return self.call(x)
        words_ = ["numpy", *(["torch"] if "torch" in sys.modules else []), *(["cuda"] if _has_cuda() else [])]
        words_ += ["jax"] if "jax" in sys.modules else []
        said = []
        for word in words_:
            self.takes = word
            try:
                return self.call(x)
            except KernelMisbehaved as refusal:
                if refusal.rule != "runs":
                    raise
                said.append(refusal.sentence)
        self.takes = words_[0]
        raise KernelMisbehaved("runs", " ".join(dict.fromkeys(said)))

    def as_numpy(self, *arrays: Array) -> Any:
        """Return the results of fn for NumPy arrays, passed as it takes them."""
        got = self.fn(*(self._passed(np.ascontiguousarray(each)) for each in arrays))
        return got.cpu() if is_torch(got) else got

    def call(self, x: KernelInputs, layout: OperandLayout | None = None) -> Array:
        """Return what fn gives, as codes, every NaN the same.

        layout: of a and b in memory; None for C order.

        Raises:
          KernelMisbehaved: it raises, writes into its operands, or returns what is no result.
        """
        operands = [x.a.copy(), x.b.copy(), *(each.copy() for each in x.extras)]
        passed = [self._passed(each) for each in operands]
        if layout is not None:
            passed[:2] = layout.of_a(passed[0]), layout.of_b(passed[1])
        before = [self._bytes(each) for each in passed]
        self.calls += 1
        try:
            with np.errstate(all="ignore"):
                got = self.fn(*passed)
        except Exception as error:
            text = " ".join(str(error).split())
            text = text if len(text) <= 160 else f"{text[:157]}..."
            raise KernelMisbehaved(
                "runs", f"fn raised {type(error).__name__}({text!r}) for {self._kinds(x, layout)}."
            ) from error
        names = ["a", "b", *(name for name in ("scale_a", "scale_b", "bias") if getattr(x, name) is not None)]
        for name, each, was in zip(names, passed, before, strict=True):
            if self._bytes(each) != was:
                raise KernelMisbehaved(
                    "leaves its operands alone", f"fn writes into {name} for {self._kinds(x, layout)}."
                )
        return self._read(got, passed[0], x)

    def _bytes(self, x: Any) -> bytes:
        if is_torch(x):
            import torch

            x = x.detach().cpu().contiguous().view(torch.uint8).numpy()
        return np.asarray(x).tobytes()

    def _passed(self, x: Array) -> Any:
        if self.takes == "numpy":
            return x
        if self.takes == "jax":
            import jax.numpy as jnp

            return jnp.asarray(x)
        tensor = to_torch(np.ascontiguousarray(x))
        return tensor.cuda() if self.takes == "cuda" else tensor

    def _kinds(self, x: KernelInputs, layout: OperandLayout | None = None) -> str:
        kind = {"numpy": "arrays", "torch": "torch tensors", "cuda": "CUDA tensors", "jax": "JAX arrays"}[self.takes]
        pairs = " and ".join(f"{each.dtype} {each.shape}" for each in (x.a, x.b))
        return f"{x} ({kind}, {pairs}{f', {layout.name}' if layout else ''})"

    def _read(self, got: Any, a: Any, x: KernelInputs) -> Array:
        out = self.promise.out
        m, n, _ = x.shape
        if got is None:
            raise KernelMisbehaved("returns", f"fn must return an array; got None for {x}.")
        if isinstance(got, EncodedArray):
            if got.fmt != out:
                raise KernelMisbehaved("dtype", f"fn must return {out}; got an EncodedArray of {got.fmt} for {x}.")
            got = got.codes
        if is_torch(got) and is_torch(a) and got.device != a.device:
            raise KernelMisbehaved(
                "device", f"fn must return a tensor on {a.device}, where its operands are; got {got.device} for {x}."
            )
        try:
            array = as_array(without_gradient(got.cpu() if is_torch(got) else got), "what fn returns")
        except (TypeError, ValueError) as error:
            raise KernelMisbehaved("returns", f"fn must return an array; got {shown(got)} for {x}.") from error
        if array.shape != (m, n):
            raise KernelMisbehaved("shape", f"fn must return the shape {(m, n)}; got {array.shape} for {x}.")
        wanted = DTYPES.get(out)
        width = out.storage.itemsize
        if array.dtype.kind in "iu" and array.dtype.itemsize == width:
            codes = np.ascontiguousarray(array).view(out.storage)
            if codes.size and int(codes.max()) >= 1 << out.bits:
                raise KernelMisbehaved(
                    "dtype", f"fn must return codes of {out}, below {1 << out.bits:#x}; got larger for {x}."
                )
            return canonical(codes, out)
        if wanted is None or array.dtype != wanted:
            raise KernelMisbehaved(
                "dtype",
                f"fn must return {wanted or f'codes of {out}'}, as {out} is promised; got {array.dtype} for {x}. Pass "
                "out_fmt= if that is right.",
            )
        return canonical(words(np.ascontiguousarray(array)), out)


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and importlib.util.find_spec("torch") is not None and bool(torch.cuda.is_available())


def two_results(first: Array, again: Array) -> str:
    where = tuple(int(i) for i in np.argwhere(first != again)[0])
    digits = 2 * first.dtype.itemsize
    return (
        f"{int((first != again).sum()):,} of {first.size:,} elements, first {where}: 0x{int(first[where]):0{digits}X}, "
        f"then 0x{int(again[where]):0{digits}X}"
    )
