"""Check of a kernel against a promised arithmetic, bit by bit; it names what a wrong kernel does instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Unpack

import numpy as np

from fpsim.deprecation import renamed_arguments
from fpsim.display.wording import plural
from fpsim.errors import require_integer, require_kind
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.keywords import given_keywords
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.probe.black_box import BlackBox
from fpsim.probe.model import Model
from fpsim.probe.operands import ProbedCall
from fpsim.probe.probing import model_of
from fpsim.schedules.trees.tree import Tree
from fpsim.sums.accumulators import Accumulator
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.products import envelope as envelopes
from fpsim.testing.products.black_box import CalledKernel, FloatKernel
from fpsim.testing.products.inputs import BEYOND, inputs_for
from fpsim.testing.products.integers import check_integer_kernel, unit_of_integers
from fpsim.testing.products.observing import ComparedLayouts, Observation, coverage_of, in_layouts, observe, where
from fpsim.testing.products.promise import (
    DEFAULTS,
    Adding,
    KernelInputs,
    KernelKeywords,
    Promise,
    promise_of,
    values_of,
    with_kernel_keywords,
)
from fpsim.testing.products.report import KernelReport, distance, mismatch
from fpsim.testing.products.search import FoundVariant, VariantSearch, tree_of
from fpsim.testing.products.terms import Fewest, fewest_of, meeting
from fpsim.testing.products.variants import PROMISED, Variant
from fpsim.testing.quantizers.report import explained_by

WORTH = 0.5  # share of the differences that an explanation must remove to be reported
PROBING = 20.0  # seconds that the probe of an unexplained kernel may take
TOGETHER = 16  # rows and columns from which a shape is probed in few calls
PROBED = 3  # number of shapes tried if the probe of a shape takes longer


@renamed_arguments(out_format="out_fmt")
@with_kernel_keywords
def check_kernel(
    fn: Callable[..., Any],
    *,
    a: FormatLike,
    b: FormatLike | None = None,
    accumulate: MatrixUnit | IntegerUnit | Accumulator | Model | str,
    envelope: bool = False,
    certificate: bool = True,
    takes: str | None = None,
    raises: bool = True,
    **keywords: Unpack[KernelKeywords],
) -> KernelReport:
    """Check that a kernel returns the bits of a unit, schedule or accumulator; if not, name what it does instead.

    The kernel is called with `discriminating_inputs`: sums whose large terms cancel, also across the boundaries of
    partial sums, ties, subnormals, Inf and NaN, in shapes around every boundary of the schedule. The report on a
    correct kernel says which other additions, orders, roundings and usual faults these inputs exclude, and which give
    the same results as the promised arithmetic.

    Args:
      fn: a function of NumPy or JAX arrays or torch tensors, which may launch a Triton or CUDA kernel. It is called as
        fn(a, b), followed by those of scale_a, scale_b and bias that are promised, and returns (M, N) results in the
        promised dtype, or their codes.
      a, b: formats of the operands, NumPy or torch dtypes (fn then receives tensors), or names of units' elements,
        which for integer units are "int8", "uint8", "s4" and others; b=None is the same as a.
      accumulate: a unit or its name, an accumulator, or a model of `fpsim.probe.matmul`.
      schedule, promote, out_fmt: as for `fpsim.matmul`; for a CPU library, such as `fp.schedules.mkl()`, pass
        `.schedule` and `.accumulate` of its `.at(m, n, k, fmt)`, with shapes=[(m, n, k)].
      shapes: (M, N, K) of the calls; None for shapes around the boundaries of the schedule, such as K of 1 and of one
        more or less than a step, with M and N of 1 to 1,030.
      scale_a, scale_b: "tensor", "row" (one per row of a, or column of b), "1x128", "128x128", or "block" for units
        that take scale codes; shapes as for `fpsim.matmul`.
      bias: whether fn takes a bias, (N,) float32.
      envelope: check results against an error bound of the accumulation instead of comparing bits.
      certificate: whether to list what the inputs exclude for a correct kernel, which takes most of a check's time.
      takes: type of the arrays passed to fn: "numpy", "torch", "cuda" (tensors on the GPU) or "jax"; None tries them in
        this order.
      seed: the seed of the inputs.
      raises: whether to raise an AssertionError if the kernel is wrong, instead of returning the report.

    Returns:
      A `KernelReport`, with `.ok`, `.mismatches`, `.first`, `.max_ulp`, `.explanation`, `.causes`, `.terms` (the fewest
      terms of K that show the difference), `.trees`, `.excluded`, `.rivals` and `.covered` (shapes, kinds of inputs,
      dtypes, memory layouts and magnitudes). NaNs equal each other.

    Raises:
      AssertionError: the kernel is wrong, with the report as its text.
      TypeError, ValueError: unknown arguments, or arguments that do not fit each other.

    Source: docs/testing-kernels.md.

    Example:
      >>> import fpsim as fp
      >>> def kernel(a, b):
      ...     return fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=64)
      >>> promise = {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "shapes": [(8, 8, 300)]}
      >>> fp.testing.check_kernel(kernel, **promise, promote=64, certificate=False).ok
      True
      >>> report = fp.testing.check_kernel(kernel, **promise, promote=128, raises=False)
      >>> report.ok, report.causes
      (False, ('adds as hopper_e4m3_f32 by cutlass_2xacc(64)',))
    """
    __tracebackhide__ = True
    promised = given_keywords(check_kernel, keywords, DEFAULTS)
    shapes, seed = promised.pop("shapes", None), promised.pop("seed", 0)
    require_integer("seed", seed, 0)
    for name, flag in (("envelope", envelope), ("certificate", certificate), ("raises", raises)):
        require_kind(name, flag, bool, "True or False")
    integers = unit_of_integers(accumulate)
    if integers is not None:
        for name, value in {**promised, **({"envelope": envelope} if envelope else {})}.items():
            raise ValueError(f"{name} is for units of floats; got {value!r} with {integers.name}. Leave it out.")
        report = check_integer_kernel(fn, integers, (a, a if b is None else b), shapes, takes, seed)
    else:
        promise = promise_of(a, b, accumulate, **promised)
        if envelope:
            envelopes.refuse_envelope(promise)
        inputs = inputs_for(promise, shapes, seed)
        kernel = FloatKernel(fn, promise, takes)
        if envelope:
            report = _check_envelope(kernel, promise, inputs)
        else:
            report = _check_bits(kernel, promise, inputs, certificate)
    if raises and not report.ok:
        raise AssertionError(str(report))
    return report


def _check_bits(kernel: CalledKernel, promise: Promise, inputs: Iterable[KernelInputs], certify: bool) -> KernelReport:
    """Return the report on a kernel that claims exact bits.

    promise: the arithmetic that it claims. inputs: the operands to call it with. certify: whether to list, for a
    correct kernel, the variants of that arithmetic that the inputs exclude.
    """
    seen: list[Observation] = []
    try:
        observe(kernel, promise, inputs, seen)
        layouts = in_layouts(kernel, seen)
    except FunctionMisbehaved as refusal:
        layouts = ComparedLayouts(broken=(refusal.sentence,))
    broken = layouts.broken
    wrong = [observation for observation in seen if observation.count]
    fields: dict[str, Any] = {
        "of": sum(observation.got.size for observation in seen), "inputs": len(seen), "broken": broken,
        "mismatches": sum(observation.count for observation in wrong), "notes": layouts.notes,
        "covered": coverage_of(seen, layouts),
    }  # fmt: skip
    if not wrong:
        if not broken and certify:
            # larger products exclude no further variants
            telling = [observation for observation in seen if max(observation.x.shape[:2]) <= BEYOND] or seen
            excluded, same, rivals = VariantSearch(promise, telling).certificate()
            fields |= {"excluded": excluded, "same": tuple(map(str, same)), "rivals": tuple(map(str, rivals))}
        return KernelReport(kernel.name, promise.in_words, **fields)
    fields["max_ulp"] = max(float(distance(bad.got, bad.want, promise.out).max()) for bad in wrong)
    if not (broken and "deterministic" in broken[0]):
        fields |= _diagnosis(kernel, promise, seen)
        fields["notes"] += layouts.notes
        if fields["unexplained"] and not broken:
            fields |= _probed(kernel, promise, fields["explanation"], wrong)
    return KernelReport(kernel.name, promise.in_words, **fields)


def _diagnosis(kernel: CalledKernel, promise: Promise, seen: list[Observation]) -> dict[str, Any]:
    """Return `KernelReport` fields on a wrong kernel: where and why it is wrong, and the fewest terms that show it.

    promise: the arithmetic that the kernel claims. seen: the results for all inputs; wrong ones are among them.
    """
    places = where(seen)
    fields = {"where": places, **_explained(VariantSearch(promise, seen).explain(), seen, places)}
    wrong = [observation for observation in seen if observation.count]
    shown = min(wrong, key=lambda each: (each.x.name in ("special", "large", "zeros"), each.x.shape[2], -each.count))
    row, column = (int(i) for i in np.argwhere(shown.differ)[0])
    fields["first"] = mismatch(promise, shown.x, shown.got, shown.want, (row, column))
    fewest = fewest_of(kernel, promise, [(shown.x, (row, column)), *_short(wrong)])
    return fields if fewest is None else fields | _of_terms(fewest, promise, fields.get("variant"))


def _explained(match: FoundVariant, seen: list[Observation], places: str) -> dict[str, Any]:
    """Return the `KernelReport` fields that explain wrong results by `match`, the variant that a search found.

    A variant is a set of changes of the promised arithmetic. seen: the results for all inputs. places: phrase on which
    results are wrong, or "".
    """
    total = sum(observation.count for observation in seen)
    notes = () if match.finished else ("the search for an explanation was stopped; more time may find one",)
    if match.variant == PROMISED or match.differ > (1 - WORTH) * total:
        limited = f" Results are wrong {places}." if places else ""
        text = f"None of the {match.tried:,} variants that were tried explains them.{limited}"
        return {"explanation": text, "unexplained": total, "notes": notes}
    clauses = match.variant.clauses
    others = tuple(map(str, match.others))
    fields = {"variant": match.variant, "unexplained": match.differ, "others": others, "notes": notes}
    if match.differ:
        tried = f"None of the {match.tried:,} variants that were tried explains all"
        left = f"which leaves {match.differ:,} different results"
        return {**fields, "explanation": f"{tried}. The nearest: it {'; it '.join(clauses)}, {left}."}
    only = f", {places}" if match.conditional and places else ", for these inputs alone" if match.conditional else ""
    excluded = max(match.tried - 1 - len(match.others), 0)
    text = f"{explained_by(clauses)}{only}."
    return {**fields, "explanation": f"{text[0].upper()}{text[1:]}", "causes": clauses, "excluded": excluded}


def _short(wrong: list[Observation]) -> list[tuple[KernelInputs, tuple[int, int]]]:
    """Return up to two wrong elements of each product, as (inputs, (row, column)), for a search for few terms.

    Products of the kinds "masks", "normal" and "ties of the result" come first, because few of their terms usually show
    the difference; then those of small K.
    """
    order = ("masks", "normal", "ties of the result")
    elements = []
    for observation in sorted(wrong, key=lambda each: (each.x.name not in order, each.x.shape[2])):
        places = np.argwhere(observation.differ)
        some = places[:: max(len(places) // 2, 1)][:2]
        elements += [(observation.x, (int(row), int(column))) for row, column in some]
    return elements


def _of_terms(fewest: Fewest, promise: Promise, variant: Variant | None) -> dict[str, Any]:
    """Return the `KernelReport` fields terms, terms_shown, smallest, trees and meet.

    `trees` and `meet` are pairs: the first item is on the promised sum, the second on the sum by `variant`. fewest: the
    fewest terms that show a difference. promise: the arithmetic that the kernel claims. variant: the changes of that
    arithmetic that explain the results; None if nothing explains them.
    """
    terms = fewest.terms
    digits = -(-promise.out.bits // 4)
    alone = "" if fewest.minimal else " (fewer may do; there was no time to try)"
    codes = f"got 0x{fewest.got:0{digits}X}, want 0x{fewest.want:0{digits}X}"
    show = f"{plural(len(terms), 'term')} of K {'show' if len(terms) != 1 else 'shows'} it"
    head = f"{show} ({fewest.x}, element {fewest.element}, all other terms zero){alone}: {codes}"
    if not terms:
        head = f"It is wrong also with all terms of {fewest.x}, element {fewest.element}, zero{alone}: {codes}"
    lines = [head, *(f"  {term}" for term in terms[:6])]
    lines += [f"  and {len(terms) - 6} more"] if len(terms) > 6 else []
    lines += [f"  {line}" for line in fewest.paste.splitlines()] if 0 < len(terms) <= 6 else []
    fields: dict[str, Any] = {"terms": terms, "terms_shown": "\n".join(lines), "smallest": fewest.x}
    places = tuple(term.k for term in terms)
    n, k = fewest.x.shape[1:]
    trees = (_tree(promise, promise.adding, k, n), _tree(promise, variant.addition if variant else None, k, n))
    meet = tuple("" if tree is None or not places else _meeting(tree, places) for tree in trees)
    return {**fields, "trees": trees, "meet": meet}


def _meeting(tree: Tree, places: tuple[int, ...]) -> str:
    """Return a clause such as "terms 3, 40 meet in the step that ...", on the first sum that contains all `places`.

    tree: the tree in which a sum adds its terms. places: indices of terms of K.
    """
    if len(places) == 1:
        return f"term {places[0]} is added {meeting(tree, places)}"
    more = ", ..." if len(places) > 4 else ""
    return f"terms {', '.join(map(str, places[:4]))}{more} meet {meeting(tree, places)}"


def _tree(promise: Promise, adding: Any, k: int, n: int) -> Tree | None:
    """Return the tree in which `adding` sums the k terms of an element, or None if it has no tree.

    promise: the arithmetic that the kernel claims, of which the result format is used. adding: an `Adding` (unit with
    schedule, or accumulator); anything else has no tree. n: columns of the product, which some libraries' order uses.
    """
    if not isinstance(adding, Adding) or adding.codes:
        return None
    try:
        return tree_of(promise, adding, k, n)
    except ValueError:
        return None


def _probed(kernel: CalledKernel, promise: Promise, explanation: str, wrong: list[Observation]) -> dict[str, Any]:
    """Return `KernelReport` fields from a probe of a wrong kernel that no variant explains; {} if no probe is possible.

    The probe calls the kernel to find its arithmetic, in the shape with the longest K that it can finish in time.
    promise: the arithmetic that the kernel claims. explanation: the text to extend. wrong: the results with
    differences.
    """
    if promise.scaled or promise.bias or kernel.takes not in ("numpy", "torch"):
        return {}
    operands = (promise.a, promise.b)
    shapes = {observation.x.shape for observation in wrong}
    longest_last = sorted(shapes, key=lambda shape: (min(*shape[:2], TOGETHER), shape[2]))
    for m, n, k in longest_last[::-1][:PROBED]:
        try:
            model = model_of(BlackBox(kernel.as_numpy, ProbedCall("matmul", k, operands, (m, n)), PROBING))
        except (ValueError, TypeError):
            continue
        if not model.found:
            return {"model": model}
        said = " ".join(str(model).splitlines()[:4])
        return {"model": model, "explanation": f"{explanation} A probe of {k} terms, {m} x {n}, says: {said}"}
    return {}


def _check_envelope(kernel: CalledKernel, promise: Promise, inputs: Iterable[KernelInputs]) -> KernelReport:
    """Return the report on a kernel whose results must be within the error bound of its promise.

    promise: the arithmetic that it claims. inputs: the operands to call it with.
    """
    fields: dict[str, Any] = {"derivation": envelopes.derivation(promise)}
    outside = unbounded = 0
    share, worst, ulps = math.nan, None, 0.0
    seen: list[Observation] = []
    try:
        for x in inputs:
            codes = kernel.call(x) if seen else kernel.settle(x)
            of = envelopes.envelope_of(promise, x)
            got = values_of(codes, promise.out)
            far = envelopes.outside(got, of)
            used = envelopes.shares(got, of)
            outside += int(far.sum())
            unbounded += int((np.isnan(of.bound) & (of.special == 0)).sum())
            want = promise.bits(x)
            seen.append(Observation(x, codes, np.where(far, want, codes)))
            if not np.isnan(used).all():
                share = float(np.fmax(share, np.nanmax(used)))
            if far.any():
                ulps = max(ulps, float(distance(codes, want, promise.out)[far].max()))
                if worst is None or x.shape[2] < worst.inputs.shape[2]:
                    row, column = (int(i) for i in np.argwhere(far)[0])
                    worst = mismatch(promise, x, codes, want, (row, column))
        kernel.require_kept(seen[0].x, seen[0].got)
        layouts = in_layouts(kernel, seen, promise)
    except FunctionMisbehaved as refusal:
        layouts = ComparedLayouts(broken=(refusal.sentence,))
    notes = layouts.notes
    if unbounded:
        notes = f"{unbounded:,} elements have no bound: their sums may leave the range, or lose terms", *notes
    total = sum(observation.got.size for observation in seen)
    fields |= {"mismatches": outside, "of": total, "inputs": len(seen), "first": worst, "max_ulp": ulps, "share": share}
    if outside:
        fields |= _explained_outside(promise, seen)
    fields["covered"] = coverage_of(seen, layouts)
    return KernelReport(kernel.name, promise.in_words, broken=layouts.broken, notes=notes, **fields)


def _explained_outside(promise: Promise, seen: list[Observation]) -> dict[str, Any]:
    """Return the `KernelReport` fields that explain the results outside the bounds.

    The explanation is a flush of subnormals, or else a variant of the promised arithmetic, or else a phrase on where
    these results are. promise: the arithmetic that the kernel claims. seen: the results for all inputs.
    """
    for flush in envelopes.FLUSHES:
        if all(envelopes.within(promise, call.x, values_of(call.got, promise.out), flush) for call in seen):
            text = f"It {flush.words}: all results are in the envelope of a product that does so."
            return {"causes": (flush.words,), "explanation": text, "where": where(seen)}
    search = VariantSearch(promise, [observation for observation in seen if observation.count])
    match = search.explain()
    if match.variant == PROMISED or match.differ:
        return {"where": where(seen), "explanation": where(seen)}
    clauses = match.variant.clauses
    text = f"It {'; it '.join(clauses)} (0 differ from that)."
    return {"variant": match.variant, "causes": clauses, "explanation": text}
