"""Check of an integer kernel against the sums of an integer unit; it names the fault that explains wrong results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.display.wording import plural
from fpsim.errors import shown
from fpsim.formats.integer_format import IntegerFormat
from fpsim.matrix_units.catalogue import any_unit, integer_units
from fpsim.matrix_units.integer_unit import INTEGER_ELEMENTS, IntegerElement, IntegerUnit
from fpsim.products.matmul import matmul
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.products.black_box import CalledKernel, array_of
from fpsim.testing.products.changes import KernelChange, with_last
from fpsim.testing.products.observing import ComparedLayouts, Observation, in_layouts, observe
from fpsim.testing.products.promise import KernelInputs
from fpsim.testing.products.report import KernelReport, ProductCoverage
from fpsim.testing.products.shapes import checked_shapes
from fpsim.testing.quantizers.report import explained_by

SHAPES = (
    (16, 16, 64), (17, 9, 65), (70, 33, 257), (1, 1, 1), (1, 1, 3), (2, 3, 4), (5, 4, 7), (16, 32, 130), (3, 2, 1000),
    (24, 8, 48), (192, 320, 64), (258, 258, 33), (1030, 66, 16), (5, 1030, 8),
)  # fmt: skip
KINDS = ("uniform", "ends", "runs", "small")  # how operands are drawn
LONGEST = 300_000  # largest K for a sum that leaves the range of 32 bits
LAST = 300  # random terms at the end of a long sum
TOGETHER = 1 << 18  # sums of groups of products that are computed at a time
TAILS = (2, 4, 8, 16, 32, 64, 128)  # block sizes of K; a kernel may forget the incomplete last block


def unit_of_integers(accumulate: Any) -> IntegerUnit | None:
    """Return the integer unit that `accumulate` is or names; None for anything else."""
    if not isinstance(accumulate, (str, IntegerUnit)):
        return None
    try:
        unit = any_unit("accumulate", accumulate)
    except ValueError:
        return None
    return unit if isinstance(unit, IntegerUnit) else None


def check_integer_kernel(
    fn: Callable[..., Any], unit: IntegerUnit, operands: tuple[Any, Any], shapes: Sequence[tuple[int, int, int]] | None,
    takes: str | None, seed: int,
) -> KernelReport:  # fmt: skip
    """Return the report on a kernel that promises the sums of an integer unit.

    Args:
      fn: the kernel, a function of two arrays or tensors.
      unit: the promised unit.
      operands: dtypes or formats of a and b, as the caller gave them.
      shapes: (M, N, K) of the calls; None for those in SHAPES, and two with so many terms that sums exceed 32 bits.
      takes: type of the arrays that fn accepts, as for `CalledKernel`.
      seed: seed of the operands.

    Raises:
      TypeError, ValueError: the unit does not take the operands, or fn is not a function.
    """
    tensors = [str(spec).startswith("torch.") for spec in operands]
    for name, spec, element in zip("ab", operands, (unit.a, unit.b), strict=True):
        _refuse_operand(spec, element, unit, name)
    kernel = IntegerKernel(fn, unit, takes, any(tensors))
    inputs = _inputs(unit, None if shapes is None else checked_shapes(shapes), seed)
    seen: list[Observation] = []
    try:
        observe(kernel, IntegerPromise(unit), inputs, seen)
        layouts = in_layouts(kernel, sorted(seen, key=lambda observation: -observation.got.size))
    except FunctionMisbehaved as refusal:
        layouts = ComparedLayouts(broken=(refusal.sentence,))
    promised = f"{unit.name}, {unit.a.name} by {unit.b.name} to {unit.d.name}"
    return KernelReport(kernel.name, promised, broken=layouts.broken, **_compared(seen, layouts, unit))


class IntegerPromise(NamedTuple):
    """The promise of a kernel to return the sums of an integer unit."""

    unit: IntegerUnit

    def bits(self, x: KernelInputs) -> Array:
        """Return the promised integers, (M, N), for the inputs x."""
        return np.asarray(matmul(x.a, x.b, accumulate=self.unit))


class IntegerKernel(CalledKernel):
    """A kernel under test that returns integers; fn, takes, tensors: as for `CalledKernel`; unit: the promised unit."""

    def __init__(self, fn: Callable[..., Any], unit: IntegerUnit, takes: str | None, tensors: bool) -> None:
        super().__init__(fn, takes, tensors)
        self.unit = unit

    def _codes(self, got: Any, x: KernelInputs) -> Array:
        """Return a copy of the results `got` for the inputs x; raise FunctionMisbehaved if their dtype is wrong."""
        array = array_of(got, x)
        if array.dtype != self.unit.d.dtype:
            raise FunctionMisbehaved("dtype", f"fn must return {self.unit.d.dtype}; got {array.dtype} for {x}.")
        return array.astype(self.unit.d.dtype, order="C")


def _compared(seen: list[Observation], layouts: ComparedLayouts, unit: IntegerUnit) -> dict[str, Any]:
    """Return the `KernelReport` fields on the results of a kernel that promises the sums of an integer unit.

    seen: the results for all inputs. layouts: the results for other memory layouts.
    """
    wrong = [observation for observation in seen if observation.count]
    mismatches = sum(observation.count for observation in wrong)
    fields: dict[str, Any] = {
        "mismatches": mismatches, "of": sum(observation.got.size for observation in seen), "inputs": len(seen),
        "notes": layouts.notes,
        "covered": ProductCoverage(
            tuple(dict.fromkeys(observation.x.shape for observation in seen)),
            tuple(dict.fromkeys(observation.x.name for observation in seen)),
            tuple(dict.fromkeys((str(unit.a.dtype), str(unit.b.dtype)))), layouts=layouts.taken,
        ),
    }  # fmt: skip
    if layouts.broken and not wrong:
        return fields
    left = {  # fault -> number of results that differ from those with the fault
        fault.words: sum(int(np.count_nonzero(fault.apply(each.x.a, each.x.b) != each.got)) for each in seen)
        for fault in _variants(unit)
    }
    if not wrong:
        rivals = tuple(clause for clause, misses in left.items() if misses == 0)
        return fields | {"rivals": rivals, "excluded": len(left) - len(rivals)}
    far = [np.abs(observation.got.astype(np.int64) - observation.want) for observation in wrong]
    fields["max_ulp"] = float(max(int(distances.max()) for distances in far))
    shown = min(wrong, key=lambda observation: observation.x.shape[2])
    row, column = (int(j) for j in np.argwhere(shown.differ)[0])
    got, want = int(shown.got[row, column]), int(shown.want[row, column])
    said = f"the first wrong element is ({row}, {column}) of {shown.x}: got {got}, want {want}"
    fields["notes"] = (said, *layouts.notes)
    causes = [clause for clause, misses in left.items() if misses == 0]
    if causes:
        text = explained_by((causes[0],))
        sentence = f"{text[0].upper()}{text[1:]}."
        return fields | {"explanation": sentence, "causes": (causes[0],), "others": tuple(causes[1:])}
    nearest = min(left, key=lambda clause: left[clause])
    text = f"None of the {plural(len(left), 'variant')} that were tried explains them."
    if left[nearest] < mismatches / 2:
        text = f"{text[:-1]} all. The nearest: it {nearest}, which leaves {left[nearest]:,} different results."
    return fields | {"explanation": text, "unexplained": min(mismatches, left[nearest])}


# ---- inputs


def _inputs(
    unit: IntegerUnit, shapes: Sequence[tuple[int, int, int]] | None, seed: int
) -> Iterator[KernelInputs]:  # fmt: skip
    """Yield operands of several kinds (see `_drawn`) for products of each shape (M, N, K).

    unit: the integer unit, for the ranges of operands. shapes: None for those in SHAPES, with further operands
    whose sums exceed 32 bits. seed: seed of the random numbers.
    """
    rng = np.random.default_rng([seed, unit.terms])
    for i, shape in enumerate(SHAPES if shapes is None else shapes):
        for kind in KINDS if i < 4 or shapes is not None else (KINDS[i % 4], "uniform"):
            yield _drawn(unit, shape, kind, rng)
    largest = max(abs(x) for x in (unit.a.lowest, unit.a.highest)) * max(abs(unit.b.lowest), abs(unit.b.highest))
    k = -(-(3 << 31) // (2 * largest))
    if shapes is None and k <= LONGEST:
        yield _drawn(unit, (1, 2, k + 5), "runs", rng)
        yield _drawn(unit, (2, 3, k + 5), "far", rng)


def _drawn(unit: IntegerUnit, shape: tuple[int, int, int], kind: str, rng: np.random.Generator) -> KernelInputs:
    """Return random operands of a shape (M, N, K) and a kind, within the ranges of the unit's elements.

    "uniform": any integers. "small": integers from -3 to 3. "ends": the smallest or the largest integer, at random.
    "runs": b has the largest integer everywhere; a row of a has the largest one up to a random term of the second half,
    and the smallest one after it. "far": the last 300 terms, or half of K if that is less, are "ends"; in all others,
    a and b have the largest integer. Sums thus leave the accumulator's range and return often.
    """
    m, n, k = shape
    sides: list[Array] = []
    for element, size in ((unit.a, (m, k)), (unit.b, (n, k))):
        ends = np.array([element.lowest, element.highest])
        if kind == "uniform":
            x = rng.integers(element.lowest, element.highest, size, endpoint=True)
        elif kind == "small":
            x = rng.integers(max(element.lowest, -3), 4, size)
        elif kind == "ends":
            x = ends[rng.integers(0, 2, size)]
        else:
            far = kind == "far"
            seam = k - min(k // 2, LAST) if far else rng.integers(k // 2, k + 1, (size[0], 1)) if not sides else k
            then = ends[rng.integers(0, 2, size)] if far else ends[0]
            x = np.where(np.arange(k) < seam, ends[1], then) * np.ones((size[0], 1), np.int64)
        sides.append(x.astype(element.dtype))
    return KernelInputs(kind, "", sides[0], np.ascontiguousarray(sides[1].T))


def _refuse_operand(spec: Any, element: IntegerElement, unit: IntegerUnit, name: str) -> None:
    """Raise a ValueError unless `spec`, a dtype or format, is that of `element`, the unit's operand called `name`."""
    word = str(spec.name if isinstance(spec, (IntegerFormat, IntegerElement)) else spec)
    word = spec.__name__ if isinstance(spec, type) else word.removeprefix("torch.").lower()
    fmt = element.fmt
    if word not in (element.name, str(element.dtype), "" if fmt is None else fmt.name.lower()):
        raise ValueError(f"{unit.name} takes {element.name} ({element.dtype}) as {name}; got {shown(spec)}.")


# ---- variants


def _variants(unit: IntegerUnit) -> Iterator[KernelChange]:
    """Yield the faults to try of kernels that claim the sums of an integer unit.

    They are: wrapping or saturating after another number of terms or in fewer bits, also of a few products, operands of
    another signedness, sums in float32, terms of K that are left out at its end, and transposed and negated results.
    unit: the promised unit.
    """
    dtype = unit.d.dtype
    same = [other for other in integer_units() if (other.a, other.b, other.d) == (unit.a, unit.b, unit.d)]
    steps = sorted({other.terms for other in same if other.saturates})
    if unit.saturates:
        yield KernelChange("wraps instead of saturating", partial(matmul, accumulate=replace(unit, saturates=False)))
    for terms in steps:
        if not unit.saturates or terms != unit.terms:
            clause = f"saturates after every {plural(terms, 'term')}"
            yield KernelChange(clause, partial(matmul, accumulate=replace(unit, saturates=True, terms=terms)))
    for name in "ab":
        element = getattr(unit, name)
        other = INTEGER_ELEMENTS[f"{'u' if element.signed else 's'}{element.bits}"]
        clause = f"reads {name} as {other.name} instead of {element.name}"
        yield KernelChange(clause, _with_sign(unit, name, other))
    yield KernelChange(
        "adds in float32", lambda a, b: _saturated(_exact(a, b).astype(np.float32).astype(np.float64), dtype)
    )
    largest = max(abs(x) for x in (unit.a.lowest, unit.a.highest)) * max(abs(unit.b.lowest), abs(unit.b.highest))
    if unit.pair is None and 2 * largest > np.iinfo(np.int16).max:
        yield KernelChange("saturates sums of two products in int16", lambda a, b: _pairs(a, b, dtype))
        for name in "ab":
            if getattr(unit, name).name == "s8":
                clause = f"adds 128 to {name} first, and saturates sums of two products in int16"
                yield KernelChange(clause, partial(_shifted_pairs, name, dtype))
    elif unit.pair is not None:
        yield KernelChange("adds all products exactly", partial(matmul, accumulate=replace(unit, pair=None)))
    for count, apart in ((2, 1), (2, 4), (2, 8), (2, 16), (4, 1), (8, 1), (16, 1), (32, 1)):
        if count * largest > np.iinfo(np.int16).max:
            clause = f"wraps sums of {count} products in int16" + (f", of terms {apart} apart" if apart > 1 else "")
            yield KernelChange(clause, partial(_wrapped_groups, count, apart, dtype))
    for narrow in (np.dtype(np.int16), np.dtype(np.int8)):
        wrapped = with_last(lambda a, b, to: _exact(a, b).astype(to).astype(dtype), narrow)
        yield KernelChange(f"wraps sums in {narrow}", wrapped)
        saturated = with_last(lambda a, b, to: _saturated(_exact(a, b), to).astype(dtype), narrow)
        yield KernelChange(f"saturates sums in {narrow}", saturated)
    for block in TAILS:
        clause = f"leaves out the terms of K after the last whole {block}"
        yield KernelChange(clause, partial(_without_tail, block, unit))
    yield KernelChange("leaves out the last term of K", lambda a, b: matmul(a[:, :-1], b[:-1], accumulate=unit))
    yield KernelChange("exchanges rows and columns of square results", partial(_square_transposed, unit))
    yield KernelChange("gives the negative", lambda a, b: (-_exact(a, b)).astype(dtype))


def _square_transposed(unit: IntegerUnit, a: Array, b: Array) -> Array:
    """Return the product a @ b by an integer unit, transposed if it is square."""
    result = matmul(a, b, accumulate=unit)
    return result.T if result.shape[0] == result.shape[1] else result


def _with_sign(unit: IntegerUnit, name: str, element: IntegerElement) -> Callable[[Array, Array], Array]:
    """Return a function (a, b) -> product that reads the bits of one operand, "a" or "b", as another integer type.

    name: the operand. element: the type as which its bits are read. unit: the unit that multiplies.
    """
    changed = replace(unit, a=element) if name == "a" else replace(unit, b=element)

    def results(a: Array, b: Array) -> Array:
        x = a if name == "a" else b
        x = integers_from(x.astype(np.int64) & ((1 << element.bits) - 1), element)
        return matmul(x, b, accumulate=changed) if name == "a" else matmul(a, x, accumulate=changed)

    return results


def integers_from(codes: Array, element: IntegerElement) -> Array:
    """Return the signed or unsigned integers that codes in two's complement stand for, in the element's dtype."""
    numbers = codes.astype(np.int64)
    return np.asarray((numbers - ((numbers > element.highest).astype(np.int64) << element.bits)).astype(element.dtype))


def _exact(a: Array, b: Array) -> Array:
    """Return the exact product a @ b of integers as int64."""
    high, low = b.astype(np.int64) >> 4, b.astype(np.int64) & 15
    parts = [a.astype(np.float64) @ part.astype(np.float64) for part in (high, low)]  # exact in float64, and fast
    return np.asarray(parts[0].astype(np.int64) * 16 + parts[1].astype(np.int64))


def _saturated(sums: Array, dtype: np.dtype[Any]) -> Array:
    """Return `sums`, whole numbers as int64 or float64, as integers of a dtype, limited to its range."""
    ends = np.iinfo(dtype)
    return np.clip(sums, ends.min, ends.max).astype(dtype)


def _pairs(a: Array, b: Array, dtype: np.dtype[Any]) -> Array:
    """Return a @ b as `dtype`, added as the instructions VPMADDUBSW and VPMADDWD do.

    The sum of each two neighbouring products saturates in int16; these sums are then added exactly.
    """
    ends, odd = np.iinfo(np.int16), a.shape[1] % 2
    left, right = np.pad(a.astype(np.int64), ((0, 0), (0, odd))), np.pad(b.astype(np.int64), ((0, odd), (0, 0)))
    products = left[:, :, None] * right[None]  # (M, K, N)
    sums = np.clip(products[:, ::2] + products[:, 1::2], ends.min, ends.max)
    return np.asarray(sums.sum(axis=1), dtype)


def _shifted_pairs(name: str, dtype: np.dtype[Any], a: Array, b: Array) -> Array:
    """Return a @ b as `_pairs` does, with 128 added to one signed operand, and its part of the result subtracted again.

    So do libraries where VPMADDUBSW takes unsigned by signed integers. name: the operand, "a" or "b".
    """
    a, b = a.astype(np.int64), b.astype(np.int64)
    added = 128 * (b.sum(0)[None] if name == "a" else a.sum(1)[:, None])
    pairs = _pairs(a + 128, b, np.dtype(np.int64)) if name == "a" else _pairs(a, b + 128, np.dtype(np.int64))
    return np.asarray((pairs - added).astype(dtype))


def _wrapped_groups(count: int, apart: int, dtype: np.dtype[Any], a: Array, b: Array) -> Array:
    """Return a @ b as `dtype`, where sums of `count` products wrap around in int16 before they are added exactly.

    The terms of such a sum are `apart` terms of K from each other.
    """
    rest = -a.shape[1] % (count * apart)
    left = np.pad(a.astype(np.int64), ((0, 0), (0, rest))).reshape(a.shape[0], -1, count, apart)
    right = np.pad(b.astype(np.int64), ((0, rest), (0, 0))).reshape(-1, count, apart, b.shape[1])
    sums = np.zeros((a.shape[0], b.shape[1]), np.int64)
    few = max(1, TOGETHER // (sums.size * apart))  # groups at a time, to limit memory
    for start in range(0, len(right), few):
        groups = np.einsum("mgca,gcan->mgan", left[:, start : start + few], right[start : start + few])
        sums += groups.astype(np.int16).sum((1, 2), dtype=np.int64)
    return sums.astype(dtype)


def _without_tail(block: int, unit: IntegerUnit, a: Array, b: Array) -> Array:
    """Return the product a @ b by an integer unit, without the terms after the last whole block of `block` terms."""
    whole = a.shape[1] // block * block
    return matmul(a[:, :whole], b[:whole], accumulate=unit)
