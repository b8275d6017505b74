"""Broken kernels, written with `fpsim.matmul` and NumPy, for a given promise (keywords of `check_kernel`)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from fpsim.arrays import Array, as_array, is_torch, to_torch
from fpsim.casts.cast import cast, quantize
from fpsim.deprecation import warn_renamed
from fpsim.errors import shown
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP16, FP32
from fpsim.matrix_units.catalogue import float_units as units
from fpsim.probe.model import Model
from fpsim.products.matmul import matmul
from fpsim.schedules.libraries.cublas import cublas
from fpsim.sums.accumulators import FusedMultiplyAdd, Sequential
from fpsim.testing.products.inputs import inputs_for
from fpsim.testing.products.promise import KernelInputs, Promise, codes_of, promise_of
from fpsim.testing.products.term_changes import last_again

Kernel = Callable[..., Any]  # of NumPy arrays, or also of other arrays and tensors
CheckKernelKeywords = Mapping[str, Any]
EXTRAS = ("scale_a", "scale_b", "bias")
OPERANDS = ("a", "b")
WHOLE_SUM = ("tensor", "row")  # layouts of scales that do not vary along K
TAIL, TILE = 32, 64  # terms


@dataclass(frozen=True)
class KernelMutant:
    """A broken kernel: its name, what is wrong with it, a promise that it breaks, and a factory.

    Attributes:
      name: the mutant's name in `KERNELS`.
      wrong: what the kernel does wrong, as a clause without subject ("adds in FP16").
      promise: keywords of `fpsim.testing.check_kernel` that describe a correct kernel; the broken one violates them.
      factory: function that returns the broken kernel for a promise, or None if such a kernel cannot have the fault.

    Example:
      >>> import fpsim as fp
      >>> broken = fp.testing.mutants.KERNELS["not_promoted"]
      >>> broken.wrong
      'leaves the promotion of partial sums out'
      >>> fp.testing.check_kernel(broken.make(), **broken.promise, raises=False).causes
      ('adds as hopper_e4m3_f32 in one chain',)
      >>> fp.testing.check_kernel(broken.right(), **broken.promise, certificate=False).ok
      True
      >>> mine = {"a": "bf16", "accumulate": "hopper_bf16_f32"}
      >>> broken.breaks(mine), fp.testing.mutants.KERNELS["backwards"].breaks(mine)
      (False, True)
    """

    name: str
    wrong: str
    promise: dict[str, Any] = field(repr=False)
    factory: Callable[[CheckKernelKeywords], Kernel | None] = field(repr=False)

    def right(self, promise: CheckKernelKeywords | None = None) -> Kernel:
        """Return a correct kernel, a function of a, b and the promised scales and bias.

        It takes NumPy and JAX arrays and torch tensors, and returns tensors for tensors. promise: keywords of
        `check_kernel` that describe its arithmetic; None for those of the attribute `promise`.
        """
        kernel = kernel_of(**(self.promise if promise is None else with_new_names(promise)))
        return _of_any_arrays(kernel, f"right_{self.name}")

    def make(self, promise: CheckKernelKeywords | None = None) -> Kernel:
        """Return the broken kernel, a function of a, b and the promised scales and bias.

        It takes NumPy and JAX arrays and torch tensors, and returns tensors for tensors. promise: keywords of
        `check_kernel` that describe the correct arithmetic; None for those of the attribute `promise`.

        Raises:
          ValueError: a kernel with that promise cannot have the fault.
        """
        kernel = self.factory(self.promise if promise is None else with_new_names(promise))
        if kernel is None:
            raise ValueError(f"{self.name} is no fault of a kernel of {promise}. Ask breaks(promise) before.")
        return _of_any_arrays(kernel, self.name)

    def breaks(self, promise: CheckKernelKeywords) -> bool:
        """Return whether the fault changes the results of a kernel with `promise` for one of `discriminating_inputs`.

        promise: keywords of `check_kernel` that describe the correct arithmetic.

        Raises:
          TypeError, ValueError: `check_kernel` does not accept the promise.
        """
        promise = with_new_names(promise)
        checked = checked_promise(promise)
        kernel = self.factory(promise)
        return kernel is not None and any(_differs(kernel, checked, x) for x in inputs_for(checked, None, 0))


def with_new_names(promise: Any) -> Any:
    """Return keywords of `check_kernel`, with the deprecated name `out_format` replaced by its new name `out_fmt`.

    promise: a mapping of the keywords. A replacement issues a DeprecationWarning. If `promise` is no mapping, has no
    `out_format`, or has `out_fmt` too, it is returned unchanged.
    """
    if not isinstance(promise, Mapping) or "out_format" not in promise or "out_fmt" in promise:
        return promise
    warn_renamed("out_format=", "out_fmt=", stacklevel=3)
    return {"out_fmt" if name == "out_format" else name: value for name, value in promise.items()}


def checked_promise(promise: object) -> Promise:
    """Return the validated `Promise` of a kernel's formats and arithmetic, from keywords of `check_kernel`.

    promise: a mapping of keyword -> value, such as {"a": "bf16", "accumulate": "hopper_bf16_f32"}.

    Raises:
      TypeError: the argument is not a mapping.
      ValueError: a keyword is unknown or missing, or `accumulate` is a model that `fp.probe` returned.
    """
    known = ("a", "b", "accumulate", "schedule", "promote", "out_fmt", *EXTRAS)
    if not isinstance(promise, Mapping):
        raise TypeError(
            f"a kernel's promise must be a mapping of keywords of check_kernel, such as {{'a': 'bf16', 'accumulate': "
            f"'hopper_bf16_f32'}}; got {shown(promise)}."
        )
    wrong = [name for name in promise if name not in known]
    missing = [name for name in ("a", "accumulate") if name not in promise]
    if wrong or missing:
        said = f"got {', '.join(map(repr, wrong))}" if wrong else f"{missing[0]!r} is missing"
        raise ValueError(f"a kernel's promise takes {', '.join(known)}, of which a and accumulate are needed; {said}.")
    if isinstance(promise["accumulate"], Model):
        raise ValueError("a kernel's promise must name a unit or an accumulator; got a model of fp.probe.")
    return promise_of(**{"b": None, **promise})


def _differs(kernel: Kernel, promise: Promise, x: KernelInputs) -> bool:
    """Return whether a kernel's result for the inputs x differs in any bit from the one that `promise` determines.

    Return False if the kernel raises a ValueError or TypeError.
    """
    try:
        with np.errstate(all="ignore"):
            result = kernel(x.a.copy(), x.b.copy(), *(extra.copy() for extra in x.extras))
    except (ValueError, TypeError):
        return False  # the kernel has no such product; other inputs decide
    return bool((codes_of(result, promise.out) != promise.bits(x)).any())


def kernel_of(**promise: Any) -> Kernel:
    """Return a correct kernel, a function of NumPy arrays a, b and the promised scales and bias.

    promise: keywords of `check_kernel`.
    """
    names = [name for name in EXTRAS if promise.get(name)]
    how = {name: value for name, value in promise.items() if name not in (*EXTRAS, *OPERANDS)}

    def kernel(a: Array, b: Array, *extras: Array) -> Any:
        settings: dict[str, Any] = how | dict(zip(names, extras, strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # matmul warns of the kernels that a library would choose
            return np.asarray(matmul(a, b, **settings, strict=False))

    return kernel


def _of_any_arrays(kernel: Kernel, name: str) -> Kernel:
    """Return a kernel with the name `name` that calls `kernel`, but also takes JAX arrays and torch tensors.

    `kernel` itself takes NumPy arrays only. The new kernel returns a tensor if it is called with tensors.
    """

    def any_arrays(*operands: Any) -> Any:
        arrays = [as_array(x.detach().cpu() if is_torch(x) else np.asarray(x)) for x in operands]
        result = np.ascontiguousarray(kernel(*arrays))
        if not operands or not is_torch(operands[0]):
            return result
        return to_torch(result).to(operands[0].device)

    any_arrays.__name__ = name
    return any_arrays


# ---- faults: functions that return a broken kernel for a promise, or None if such a kernel cannot have the fault


def _follows(
    changes: Callable[[CheckKernelKeywords], dict[str, Any] | None],
) -> Callable[[CheckKernelKeywords], Kernel | None]:
    """Return a function from a promise (keywords of `check_kernel`) to a kernel that breaks some of its keywords.

    The kernel computes with the promise updated by `changes(promise)`, a dict, but its results have the promised
    format. If `changes(promise)` is None, the function returns None instead of a kernel.
    """

    def factory(promise: CheckKernelKeywords) -> Kernel | None:
        changed = changes(promise)
        if changed is None:
            return None
        out, follower = checked_promise(promise).out, kernel_of(**{**promise, **changed})

        def kernel(*arrays: Array) -> Array:
            result = follower(*arrays)
            return np.asarray(result if promise.get("out_fmt") else cast(result, out))

        return kernel

    return factory


def _promoting_every(interval: int | None) -> Callable[[CheckKernelKeywords], Kernel | None]:
    """Return a factory of kernels that add a partial sum to a float32 total after every `interval` terms.

    With `interval` None, the kernels add all terms without such a total. The factory takes a promise (keywords of
    `check_kernel`). It returns None for promises without a total, or with scales that vary along K.
    """
    return _follows(lambda p: {"promote": interval} if p.get("promote") and _scales_whole_sums(p) else None)


def _with_half_accumulator(promise: CheckKernelKeywords) -> dict[str, Any] | None:
    """Return {"accumulate": name}: the name of the promised unit with "_f16" instead of "_f32", or None.

    None means that no unit has that name, or that none is promised.
    """
    unit = checked_promise(promise).unit
    narrow = "" if unit is None else unit.name.removesuffix("_f32") + "_f16"
    return {"accumulate": narrow} if narrow in [candidate.name for candidate in units()] else None


def _with_terms(order: Callable[[Array], Array]) -> Callable[[CheckKernelKeywords], Kernel | None]:
    """Return a factory of kernels that add only the terms of K in `order(indices of K)`, in that order.

    The factory takes a promise, keywords of `check_kernel`; it returns None if scales of the promise vary along K.
    """

    def factory(promise: CheckKernelKeywords) -> Kernel | None:
        if not _scales_whole_sums(promise):
            return None
        right = kernel_of(**promise)

        def kernel(a: Array, b: Array, *extras: Array) -> Any:
            terms = order(np.arange(a.shape[1]))
            return right(np.ascontiguousarray(a[:, terms]), np.ascontiguousarray(b[terms]), *extras)

        return kernel

    return factory


def _scales_whole_sums(promise: CheckKernelKeywords) -> bool:
    """Return whether all scales in a promise multiply whole sums, because none varies along K."""
    return all(promise.get(name) in (None, *WHOLE_SUM) for name in ("scale_a", "scale_b"))


def _flushes(promise: CheckKernelKeywords) -> Kernel | None:
    """Return a kernel that keeps a promise, except that it treats subnormal operands as zeros.

    Return None if operands have block scales. The kernel raises a ValueError for operands passed as codes.
    """
    checked = checked_promise(promise)
    if checked.scale_a == "block":
        return None
    right, fmts = kernel_of(**promise), (checked.a.fmt, checked.b.fmt)

    def flushed(x: Array, fmt: Format) -> Array:
        smallest = x.dtype.type(fmt.smallest_normal)
        return np.where(np.abs(x) < smallest, np.copysign(x.dtype.type(0), x), x)

    def kernel(a: Array, b: Array, *extras: Array) -> Any:
        if a.dtype.kind in "iu" or b.dtype.kind in "iu":
            raise ValueError("operands in codes are not flushed here")
        return right(flushed(a, fmts[0]), flushed(b, fmts[1]), *extras)

    return kernel


def _half_total(promise: CheckKernelKeywords) -> Kernel | None:
    """Return a kernel that keeps a promise, except that it rounds the total of partial sums to FP16 at each addition.

    Return None for promises without promotion of partial sums, with scales or bias, or with results other than float32.
    """
    interval, out = promise.get("promote"), checked_promise(promise).out
    if not interval or out != FP32 or any(promise.get(name) for name in EXTRAS):
        return None
    partial = kernel_of(accumulate=promise["accumulate"])

    def kernel(a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for start in range(0, a.shape[1], interval):
            part = partial(a[:, start : start + interval], b[start : start + interval])
            total = quantize(total.astype(np.float64) + part, FP16).astype(np.float32)
        return total

    return kernel


def _scale_strides(promise: CheckKernelKeywords) -> Kernel | None:
    """Return a kernel that keeps a promise, except that it reads the scales of b with the strides of their transpose.

    Return None unless a and b have scales. The kernel raises a ValueError for scales of b that are not a matrix.
    """
    if not promise.get("scale_a") or not promise.get("scale_b"):
        return None
    right = kernel_of(**promise)

    def kernel(a: Array, b: Array, scale_a: Array, scale_b: Array, *bias: Array) -> Any:
        if scale_b.ndim != 2:
            raise ValueError("one scale has no strides")
        turned = np.ascontiguousarray(scale_b.ravel().reshape(scale_b.shape[::-1]).T)
        return right(a, b, scale_a, turned, *bias)

    return kernel


def _bias_first(promise: CheckKernelKeywords) -> Kernel | None:
    """Return a kernel that keeps a promise, except that it adds the bias before it multiplies by the scales.

    Return None unless the promise has a bias, and scales that do not vary along K.
    """
    scales = [name for name in EXTRAS[:2] if promise.get(name)]
    if not promise.get("bias") or not scales or not _scales_whole_sums(promise):
        return None
    out = checked_promise(promise).out
    sums_of = kernel_of(**{**promise, "scale_a": None, "scale_b": None, "bias": None, "out_fmt": None})

    def kernel(a: Array, b: Array, *extras: Array) -> Any:
        *factors, bias = extras
        return cast((sums_of(a, b) + bias) * np.prod(np.broadcast_arrays(*factors), axis=0, dtype=np.float32), out)

    return kernel


def _truncates(promise: CheckKernelKeywords) -> Kernel | None:
    """Return a kernel that keeps a promise, except that it rounds results toward zero.

    Return None if no format of the results is promised.
    """
    if not promise.get("out_fmt"):
        return None
    out, sums_of = checked_promise(promise).out, kernel_of(**{**promise, "out_fmt": None})

    def kernel(*arrays: Array) -> Array:
        return cast(sums_of(*arrays), out, rounding="toward_zero")

    return kernel


FP8 = {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "promote": 128}
TO_BF16 = {"a": "bf16", "accumulate": "hopper_bf16_f32", "out_fmt": "bf16"}
FLOAT32 = {"a": "fp32", "accumulate": FusedMultiplyAdd(FP32)}
HALF = {"a": "fp16", "accumulate": "hopper_f16_f32"}

_ROWS = (
    ("drops_tail", "drops the terms beyond a multiple of 32", FP8,
     _with_terms(lambda terms: terms[: terms.size // TAIL * TAIL])),
    ("not_promoted", "leaves the promotion of partial sums out", FP8, _promoting_every(None)),
    ("promotes_often", "promotes every 64 terms", FP8, _promoting_every(TILE)),
    ("half_total", "keeps the total of partial sums in FP16", FP8, _half_total),
    ("half_accumulator", "adds in FP16", HALF, _follows(_with_half_accumulator)),
    ("split", "splits K in two", TO_BF16, _follows(
        lambda p: None if any(p.get(name) for name in ("promote", "schedule", *EXTRAS))
        or checked_promise(p).unit is None else {"schedule": cublas("sm_90", split_k=2)})),
    ("scale_strides", "reads the scales of b with the strides of their transpose",
     {**FP8, "promote": None, "scale_a": "1x128", "scale_b": "128x128"}, _scale_strides),
    ("bias_first", "adds the bias before the scales",
     {**FP8, "scale_a": "row", "scale_b": "row", "bias": True, "out_fmt": "bf16"}, _bias_first),
    ("truncates", "truncates the result", TO_BF16, _truncates),
    ("backwards", "adds K from the last term to the first", FP8, _with_terms(lambda terms: terms[::-1])),
    ("rounds_products", "rounds products before it adds them", FLOAT32, _follows(
        lambda p: {"accumulate": Sequential(p["accumulate"].fmt)}
        if isinstance(p["accumulate"], FusedMultiplyAdd) else None)),
    ("flushes", "takes subnormal operands as zeros", HALF, _flushes),
    ("reads_again", "reads terms of the last tile twice", FP8, _with_terms(lambda terms: last_again(terms, TILE))),
)  # fmt: skip

KERNELS: MappingProxyType[str, KernelMutant] = MappingProxyType({row[0]: KernelMutant(*row) for row in _ROWS})
