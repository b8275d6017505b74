"""Broken kernels, each with the promise that it breaks. Written with `fpsim.matmul` and NumPy alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import cast, quantize
from fpsim.formats.named import BF16, FP16, FP32
from fpsim.products.matmul import matmul
from fpsim.schedules.libraries.cublas import cublas
from fpsim.sums.accumulators import FusedMultiplyAdd, Sequential

Kernel = Callable[..., Array]
EXTRAS = ("scale_a", "scale_b", "bias")
OPERANDS = ("a", "b")


@dataclass(frozen=True)
class KernelMutant:
    """A broken kernel: its name, what is wrong with it, the promise that it breaks, and how it is made.

    Attributes:
      name, wrong: in words.
      promise: keywords of `fpsim.testing.check_kernel`.

    Example:
      >>> import fpsim as fp
      >>> broken = fp.testing.mutants.KERNELS["not_promoted"]
      >>> broken.wrong
      'leaves the promotion of partial sums out'
      >>> fp.testing.check_kernel(broken.make(), **broken.promise, raises=False).causes
      ('adds as hopper_e4m3_f32 in one chain',)
      >>> fp.testing.check_kernel(broken.right(), **broken.promise).ok
      True
    """

    name: str
    wrong: str
    promise: dict[str, Any] = field(repr=False)
    factory: Callable[[Kernel], Kernel] = field(repr=False)

    def right(self) -> Kernel:
        """The kernel that it should be."""
        made = kernel_of(**self.promise)
        made.__name__ = f"right_{self.name}"
        return made

    def make(self) -> Kernel:
        """The broken kernel."""
        made = self.factory(kernel_of(**self.promise))
        made.__name__ = self.name
        return made


def kernel_of(**promise: Any) -> Kernel:
    """A kernel with the bits of a promise, as `check_kernel` takes it."""
    names = [name for name in EXTRAS if promise.get(name)]
    how = {name: value for name, value in promise.items() if name not in (*EXTRAS, *OPERANDS)}

    def kernel(a: Array, b: Array, *extras: Array) -> Array:
        given: dict[str, Any] = how | dict(zip(names, extras, strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # which kernels a library would take for a shape
            return np.asarray(matmul(a, b, **given, strict=False))

    return kernel


def _otherwise(**changes: Any) -> Callable[[Kernel], Kernel]:
    """A kernel with another promise, whose result is cast to float32 where it has another dtype."""

    def factory(_: Kernel) -> Kernel:
        made = kernel_of(**changes)

        def kernel(*arrays: Array) -> Array:
            found = made(*arrays)
            return found if changes.get("out_format") else found.astype(np.float32)

        return kernel

    return factory


def _with_operands(change: Callable[[Array, Array], tuple[Array, Array]]) -> Callable[[Kernel], Kernel]:
    def factory(right: Kernel) -> Kernel:
        def kernel(a: Array, b: Array, *extras: Array) -> Array:
            a, b = change(a, b)
            return right(np.ascontiguousarray(a), np.ascontiguousarray(b), *extras)

        return kernel

    return factory


def _whole_steps(a: Array, b: Array) -> tuple[Array, Array]:
    kept = a.shape[1] // 32 * 32
    return a[:, :kept], b[:kept]


def _backwards(a: Array, b: Array) -> tuple[Array, Array]:
    return a[:, ::-1], b[::-1]


def _flushed(a: Array, b: Array) -> tuple[Array, Array]:
    smallest = a.dtype.type(FP16.smallest_normal)
    x, y = (np.where(np.abs(each) < smallest, np.copysign(each.dtype.type(0), each), each) for each in (a, b))
    return x, y


def _again(a: Array, b: Array) -> tuple[Array, Array]:
    """A last tile that is moved back to fit, and so reads terms for a second time."""
    whole, k = a.shape[1] // 64 * 64, a.shape[1]
    terms = np.arange(k) if whole in (0, k) else np.concatenate([np.arange(whole), np.arange(k - 64, k)])
    return a[:, terms], b[terms]


def _scale_strides(right: Kernel) -> Kernel:
    def kernel(a: Array, b: Array, scale_a: Array, scale_b: Array) -> Array:
        return right(a, b, scale_a, np.ascontiguousarray(scale_b.ravel().reshape(scale_b.shape[::-1]).T))

    return kernel


def _bias_first(_: Kernel) -> Kernel:
    def kernel(a: Array, b: Array, scale_a: Array, scale_b: Array, bias: Array) -> Array:
        sums = matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)
        return cast((sums + bias) * (scale_a * scale_b), BF16)

    return kernel


def _truncated(_: Kernel) -> Kernel:
    def kernel(a: Array, b: Array) -> Array:
        return cast(matmul(a, b, accumulate="hopper_bf16_f32"), BF16, rounding="toward_zero")

    return kernel


def _half_sums(right: Kernel) -> Kernel:
    """A kernel whose sums go through FP16 every 128 terms."""

    def kernel(a: Array, b: Array) -> Array:
        total = np.zeros((a.shape[0], b.shape[1]), np.float32)
        for start in range(0, a.shape[1], 128):
            part = matmul(a[:, start : start + 128], b[start : start + 128], accumulate="hopper_e4m3_f32")
            total = quantize(total.astype(np.float64) + part, FP16).astype(np.float32)
        return total

    return kernel


FP8 = {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "promote": 128}
TO_BF16 = {"a": "bf16", "accumulate": "hopper_bf16_f32", "out_format": "bf16"}
FLOAT32 = {"a": "fp32", "accumulate": FusedMultiplyAdd(FP32)}
HALF = {"a": "fp16", "accumulate": "hopper_f16_f32"}

_ROWS = (
    ("drops_tail", "drops the terms beyond a multiple of 32", FP8, _with_operands(_whole_steps)),
    ("not_promoted", "leaves the promotion of partial sums out", FP8, _otherwise(accumulate="hopper_e4m3_f32")),
    ("promotes_often", "promotes every 64 terms", FP8, _otherwise(accumulate="hopper_e4m3_f32", promote=64)),
    ("half_total", "keeps the total of partial sums in FP16", FP8, _half_sums),
    ("half_accumulator", "adds in FP16", HALF, _otherwise(accumulate="hopper_f16_f16")),
    ("split", "splits K in two", TO_BF16, _otherwise(
        accumulate="hopper_bf16_f32", out_format="bf16", schedule=cublas("sm_90", split_k=2))),
    ("scale_strides", "reads the scales of b with the strides of their transpose",
     {**FP8, "promote": None, "scale_a": "1x128", "scale_b": "128x128"}, _scale_strides),
    ("bias_first", "adds the bias before the scales",
     {**FP8, "scale_a": "row", "scale_b": "row", "bias": True, "out_format": "bf16"}, _bias_first),
    ("truncates", "truncates the result", TO_BF16, _truncated),
    ("backwards", "adds K from the last term to the first", FP8, _with_operands(_backwards)),
    ("rounds_products", "rounds products before it adds them", FLOAT32, _otherwise(accumulate=Sequential(FP32))),
    ("flushes", "takes subnormal operands as zeros", HALF, _with_operands(_flushed)),
    ("reads_again", "reads terms of the last tile twice", FP8, _with_operands(_again)),
)  # fmt: skip

KERNELS: MappingProxyType[str, KernelMutant] = MappingProxyType({row[0]: KernelMutant(*row) for row in _ROWS})
