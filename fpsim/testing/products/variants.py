"""Variants of a promise, and the bits that kernels with these variants would return."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32, FP64
from fpsim.probe.model import Model
from fpsim.testing.products.changes import KernelChange
from fpsim.testing.products.promise import (
    NARROW_MERGES,
    Adding,
    KernelInputs,
    Promise,
    cast,
    codes_of,
    finish,
    operand_values,
    product,
    values_of,
)
from fpsim.testing.products.sums import Addition, Dequantised, JoinedParts, PartialSums, dequantised_sums, raw_sums

KEPT = 4000  # number of arrays before the cast that are cached


class Variant(NamedTuple):
    """Changes of the arithmetic that a kernel promises, at most one of each kind; None leaves it as promised.

    Attributes:
      operands: the operands that change, "a", "b" or "ab", and the change.
      terms: change of which terms of K are added, and in which order.
      addition: the arithmetic that sums products instead of the promised one.
      scales: change of scales or bias.
      epilogue: change of the order of scales, bias and cast.
      results: change of the cast or of finished results.
    """

    operands: tuple[str, KernelChange] | None = None
    terms: KernelChange | None = None
    addition: Addition | None = None
    scales: KernelChange | None = None
    epilogue: KernelChange | None = None
    results: KernelChange | None = None

    @property
    def size(self) -> int:
        """Number of changes of the promised arithmetic."""
        return sum(change is not None for change in self)

    @property
    def clauses(self) -> tuple[str, ...]:
        """The changes as clauses without subject, such as "doubles a"."""
        clauses = [] if self.operands is None else [self.operands[1].words]
        clauses += [] if self.terms is None else [self.terms.words]
        clauses += [] if self.addition is None else [f"adds as {self.addition.name}"]
        clauses += [change.words for change in (self.scales, self.epilogue, self.results) if change is not None]
        return tuple(clauses)

    def __str__(self) -> str:
        return "; it ".join(self.clauses)


PROMISED = Variant()


class Emulator:
    """Emulator of kernels that keep a promise except for a `Variant` of it, such as another order of additions.

    A promise is the arithmetic that a kernel under test claims: operands, sums, scales, bias and cast. Intermediate
    results that several variants share, such as sums, are cached.
    """

    def __init__(self, promise: Promise) -> None:
        self.promise = promise
        self._operands: dict[tuple[object, ...], KernelInputs] = {}
        self._before: dict[tuple[int, Variant], tuple[Array, Format]] = {}
        self._partial = PartialSums(promise)

    def bits(self, variant: Variant, x: KernelInputs) -> Array:
        """Return the results of a variant for inputs x as codes, with the same code for every NaN.

        Raises:
          ValueError, TypeError: the variant cannot be computed for x, for example because it adds terms of K
            twice, which scales that vary along K do not allow.
        """
        promise = self.promise
        if variant.epilogue is not None:
            inputs, addition = self._inputs_of(variant, x)
            codes = variant.epilogue.apply(promise, inputs, self._raw(inputs, addition))
            if variant.results is not None:
                codes = variant.results.apply(values_of(codes, promise.out), promise.out)
            return codes_of(codes, promise.out)
        if variant.results is None:
            inputs, addition = self._inputs_of(variant, x)
            if isinstance(addition, Model):
                return promise.bits(inputs)
            if isinstance(addition, Adding):
                return codes_of(product(promise, inputs, addition, promise.out), promise.out)
        values, source = self._values(variant._replace(results=None), x)
        if variant.results is None:
            return codes_of(cast(values, source, promise.out), promise.out)
        return codes_of(variant.results.apply(values.astype(np.float64), promise.out), promise.out)

    def _values(self, variant: Variant, x: KernelInputs) -> tuple[Array, Format]:
        """Return (results (M, N) of a variant for inputs x before the cast, as floats; format that represents them)."""
        key = (id(x), variant)
        if key not in self._before:
            if len(self._before) >= KEPT:
                self._before.clear()
            inputs, addition = self._inputs_of(variant, x)
            self._before[key] = self._uncast(inputs, addition)
        return self._before[key]

    def _inputs_of(self, variant: Variant, x: KernelInputs) -> tuple[KernelInputs, Addition | Model]:
        """Return (x with a variant's changes of operands, terms and scales; the arithmetic by which the variant sums).

        The arithmetic is the promised one unless the variant changes it.
        """
        changes = (variant.operands and variant.operands[1], variant.terms)
        key = id(x), *("" if change is None else change.words for change in changes)
        if key not in self._operands:
            self._operands[key] = self._changed(variant, x)
        inputs = self._operands[key]
        if variant.scales is not None:
            inputs = variant.scales.apply(inputs)
        return inputs, self.promise.adding if variant.addition is None else variant.addition

    def _changed(self, variant: Variant, x: KernelInputs) -> KernelInputs:
        """Return x with a variant's changes of operands and terms.

        Raises:
          ValueError: the number of terms changes, although scales vary along K or a probed model fixes it.
        """
        promise, a, b = self.promise, x.a, x.b
        if variant.operands is not None:
            sides, change = variant.operands
            if "a" in sides:
                a = promise.a.passed(change.apply(operand_values(a, promise.a), promise.a))
            if "b" in sides:
                b = promise.b.passed(change.apply(operand_values(b, promise.b), promise.b))
        if variant.terms is not None:
            of_a, of_b = variant.terms.apply(x.shape[2])
            if of_a.size != x.shape[2] and (promise.along_k or isinstance(promise.adding, Model)):
                raise ValueError("K is fixed.")
            a, b = _taken(a, of_a, of_b, 1), _taken(b, of_b, of_a, 0)
        return replace(x, a=a, b=b)

    def changes_nothing(self, variant: Variant, some: Iterable[KernelInputs]) -> bool:
        """Return whether a variant's only change cannot change anything, so that no input could exclude it.

        Such changes are of scales or bias, if they leave all inputs in `some` as they are (an example is rounding
        scales to BF16 that are BF16 values). With block scales, such changes are also of terms if they do not change
        whole blocks, or cannot be computed. If scales vary along K, changes of scales count as changes.
        """
        promise = self.promise
        if variant == Variant(terms=variant.terms) and variant.terms is not None:
            if promise.scale_a != "block":
                return False
            orders = [(terms, k) for k in {x.shape[2] for x in some} for terms in variant.terms.apply(k)]
            return all(terms.size != k or np.array_equal(terms, np.arange(k)) for terms, k in orders)
        if variant != Variant(scales=variant.scales) or promise.along_k:
            return False
        try:
            changed = ((x, self._inputs_of(variant, x)[0]) for x in some)
            arrays = (zip((x.a, x.b, *x.extras), (y.a, y.b, *y.extras), strict=True) for x, y in changed)
            return all(p.shape == q.shape and p.tobytes() == q.tobytes() for pairs in arrays for p, q in pairs)
        except ValueError:
            return False

    def differing(self, variant: Variant, x: KernelInputs, got: Array) -> Array:
        """Return a bool mask of the results `got` (codes) that differ from a variant's.

        The mask is all True if the variant cannot be computed for x (see `bits`).
        """
        try:
            result = self.bits(variant, x)
        except (ValueError, TypeError):
            return np.ones(got.shape, bool)
        return np.asarray(result != got) if result.shape == got.shape else np.ones(got.shape, bool)

    def _raw(self, x: KernelInputs, addition: Addition | Model) -> Array:
        """Return the float32 sums (M, N) of the product of x by `addition`, before scales, bias and cast."""
        if isinstance(addition, Adding):
            return raw_sums(self.promise, x, addition)
        if isinstance(addition, Model):
            return np.asarray(addition.matmul(x.a, x.b), np.float32)
        with np.errstate(all="ignore"):
            return self._sums_of(x, addition).astype(np.float32)

    def _uncast(self, x: KernelInputs, addition: Addition | Model) -> tuple[Array, Format]:
        """Return (results before the cast, their format) of the product of x by the arithmetic `addition`.

        The results (M, N) are values of that format, or codes if it has no dtype.
        """
        promise = self.promise
        if isinstance(addition, Model):
            return np.asarray(addition.matmul(x.a, x.b)), promise.out
        if isinstance(addition, (JoinedParts, Dequantised)):
            sums = self._sums_of(x, addition)
            if not (promise.scaled or promise.bias):
                return sums, FP64
            with np.errstate(all="ignore"):
                done = replace(x, scale_a=None, scale_b=None) if isinstance(addition, Dequantised) else x
                return finish(done, sums.astype(np.float32)), FP32
        schedule = addition.schedule
        if schedule is not None and (
            schedule.slicing.merge in NARROW_MERGES or schedule.epilogue.source == "after_cast"
        ):
            result = product(promise, x, addition, promise.out)
            return values_of(codes_of(result, promise.out), promise.out), FP64
        result = product(promise, x, addition, None)
        own_format = FP32 if promise.scaled or promise.bias else addition.own_format
        return values_of(codes_of(result, own_format), own_format), FP64

    def _sums_of(self, x: KernelInputs, addition: JoinedParts | Dequantised) -> Array:
        """Return the sums (M, N) of the product of x by `addition`, which has no schedule, as floats without bias.

        Scales are applied only by `Dequantised`, which multiplies the operands by them.
        """
        if isinstance(addition, Dequantised):
            return dequantised_sums(self.promise, x, addition)
        return self._partial.joined(x, addition)


def _taken(x: Array, terms: Array, others: Array, axis: int) -> Array:
    """Return the operand `x` with the elements along `axis`, that of K, in the order `terms`.

    terms: indices along K in this operand. others: indices in the other one. An element is 0 where either is -1.
    """
    taken = np.take(x, np.maximum(terms, 0), axis)
    gone = (terms < 0) | (others < 0)
    if gone.any():
        where = gone[None, :] if axis else gone[:, None]
        taken = np.where(where, x.dtype.type(0), taken)
    return np.ascontiguousarray(taken)
