"""Checks a kernel against a promised arithmetic, bit for bit, and names what it does instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fpsim.deprecation import renamed_arguments
from fpsim.probe.black_box import BlackBox
from fpsim.probe.probing import model_of
from fpsim.schedules.schedule import Schedule
from fpsim.schedules.trees.tree import Tree
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.products import envelope as envelopes
from fpsim.testing.products.black_box import CalledKernel, KernelMisbehaved, two_results
from fpsim.testing.products.inputs import BEYOND, inputs_for
from fpsim.testing.products.layouts import LAYOUTS, OperandLayout
from fpsim.testing.products.promise import Adding, KernelInputs, Promise, promise_of, values_of
from fpsim.testing.products.report import KernelReport, ProductCoverage, distance, mismatch
from fpsim.testing.products.search import FoundVariant, Observation, VariantSearch, tree_of
from fpsim.testing.products.terms import Fewest, fewest_of, meeting
from fpsim.testing.products.variants import PROMISED, Variant

Shape = tuple[int, int, int]
WORTH = 0.5  # share of the differences that an explanation has to remove to be told
PROBING = 20.0  # seconds that the probe of a kernel may take where nothing explains it
TOGETHER = 16  # rows and columns from which a shape is probed in few calls
PROBED = 3  # shapes that are tried, where the probe of one takes longer


@renamed_arguments(out_format="out_fmt")
def check_kernel(
    fn: Callable[..., Any],
    *,
    a: Any,
    b: Any = None,
    accumulate: Any,
    schedule: Schedule | None = None,
    promote: int | None = None,
    shapes: Sequence[Shape] | None = None,
    out_fmt: Any = None,
    scale_a: str | None = None,
    scale_b: str | None = None,
    bias: bool = False,
    envelope: bool = False,
    certificate: bool = True,
    takes: str | None = None,
    seed: int = 0,
    raises: bool = True,
) -> KernelReport:
    """Check that a kernel has the bits of a unit, schedule or accumulator, and say what it does where it has not.

    It is called with `discriminating_inputs`: sums that cancel, seams of blocks, ties, tails of K, subnormals and
    specials, in shapes around every boundary of the schedule. A kernel that keeps its promise gets a certificate: which
    other additions, orders, roundings and usual faults these inputs exclude, and which they do not.

    Args:
      fn: fn(a, b), or fn(a, b, scale_a, scale_b, bias) with those of them that are asked for, in this order: a
        function of NumPy or JAX arrays or torch tensors, or one that launches a Triton or CUDA kernel. Returns (M, N)
        in the promised dtype, or its codes.
      a, b: formats, dtypes of NumPy or torch (tensors come then), or elements of units; b None is a's.
      accumulate: a unit or its name, an accumulator, or a model of `fpsim.probe.matmul`.
      schedule, promote, out_fmt: as of `fpsim.matmul`.
      shapes: (M, N, K) to call it with; None for shapes around the boundaries of the schedule, such as K of 1, of one
        step more or less, and M and N of 1 to 1,030.
      scale_a, scale_b: "tensor", "row" (one per row of a, or column of b), "1x128", "128x128", or "block" for units
        that take scale codes; shapes as of `fpsim.matmul`.
      bias: whether it takes one, (N,) float32.
      envelope: ask for no bits, but for results within an error bound of the accumulation, which is derived from it.
      certificate: False leaves out what a right kernel's inputs exclude, which takes most of the time of a check.
      takes: "numpy", "torch", "cuda" (tensors on the GPU) or "jax"; None tries them in this order.
      seed: of the inputs.
      raises: False returns the report where the kernel is wrong.

    Returns:
      A report: `.ok`, `.mismatches`, `.first`, `.max_ulp`, `.explanation`, `.causes`, `.terms` (the fewest terms of K
      that show the difference), `.trees`, `.excluded`, `.rivals` and `.covered` (shapes, kinds of inputs, dtypes,
      memory layouts and magnitudes). NaNs equal each other.

    Raises:
      AssertionError: the kernel is wrong, with the report as its text.
      TypeError, ValueError: arguments that mean nothing, or do not fit each other.

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
    promise = promise_of(a, b, accumulate, schedule, promote, out_fmt, scale_a, scale_b, bias)
    if envelope:
        envelopes.refuse_envelope(promise)
    inputs = inputs_for(promise, shapes, seed)
    kernel = CalledKernel(fn, promise, takes)
    report = _in_envelope(kernel, promise, inputs) if envelope else _checked(kernel, promise, inputs, certificate)
    if raises and not report.ok:
        raise AssertionError(str(report))
    return report


def _observed(kernel: CalledKernel, promise: Promise, inputs: Iterable[KernelInputs], seen: list[Observation]) -> None:
    """Call a kernel with all inputs, and with the first ones again at the end.

    Raises:
      KernelMisbehaved: it broke a rule.
    """
    for x in inputs:
        got = kernel.call(x) if seen else kernel.settle(x)
        seen.append(Observation(x, got, promise.bits(x)))
    again = kernel.call(seen[0].x)
    if (again != seen[0].got).any():
        raise KernelMisbehaved("calls", f"fn gives other bits for {seen[0].x} after calls with other operands.")


class ComparedLayouts(NamedTuple):
    """Layouts of operands whose results are right, notes on those that a kernel refuses, and what else is wrong."""

    taken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


def _in_layouts(kernel: CalledKernel, seen: list[Observation], bounded: Promise | None = None) -> ComparedLayouts:
    """Compare the results for operands in other memory layouts, of two products.

    bounded: the promise of an envelope, in which results have to lie; None asks for the bits of operands in C order.
    """
    if kernel.takes == "jax":
        return ComparedLayouts(notes=("JAX's arrays have one memory layout",))
    oblong = (each for each in seen if 1 < each.x.shape[0] != each.x.shape[1] > 1 and max(each.x.shape[:2]) <= BEYOND)
    compared = list({id(each): each for each in (seen[0], next(oblong, seen[0]))}.values())
    taken: list[str] = []
    refused: dict[str, list[str]] = {}
    broken: tuple[str, ...] = ()
    for layout in LAYOUTS:
        if broken or (not layout.torch and kernel.takes != "numpy"):
            continue
        try:
            for each in compared:
                _compare_layout(each, kernel.call(each.x, layout), layout, bounded)
            taken.append(layout.name)
        except KernelMisbehaved as refusal:
            if refusal.rule == "runs":
                refused.setdefault(refusal.sentence, []).append(layout.name)
            else:
                broken = (refusal.sentence,)
    notes = tuple(f"it refuses operands {', '.join(names)}: {said}" for said, names in refused.items())
    return ComparedLayouts(tuple(taken), notes, broken)


def _compare_layout(each: Observation, got: Any, layout: OperandLayout, bounded: Promise | None) -> None:
    """Compare results with those for the same operands in C order.

    Raises:
      KernelMisbehaved: they differ, or lie outside the envelope.
    """
    if bounded is None and (got != each.got).any():
        said = f"{each.x}, {layout.name} in memory, than in C order: {two_results(each.got, got)}"
        raise KernelMisbehaved("layout", f"fn gives other bits for {said}.")
    if bounded is None or each.count:
        return
    if envelopes.outside(values_of(got, bounded.out), envelopes.envelope_of(bounded, each.x)).any():
        said = f"{each.x}, {layout.name} in memory, where those in C order lie within"
        raise KernelMisbehaved("layout", f"fn leaves the envelope for {said}.")


def _checked(kernel: CalledKernel, promise: Promise, inputs: Iterable[KernelInputs], certify: bool) -> KernelReport:
    promised = _in_words(promise)
    seen: list[Observation] = []
    broken: tuple[str, ...] = ()
    layouts = ComparedLayouts()
    try:
        _observed(kernel, promise, inputs, seen)
        layouts = _in_layouts(kernel, seen)
        broken = layouts.broken
    except KernelMisbehaved as refusal:
        broken = (refusal.sentence,)
    fields: dict[str, Any] = {"of": sum(each.got.size for each in seen), "inputs": len(seen), "broken": broken}
    fields["covered"] = replace(_covered(each.x for each in seen), layouts=layouts.taken)
    fields["notes"] = layouts.notes
    wrong = [each for each in seen if each.count]
    if not wrong:
        if not broken and certify:
            telling = [each for each in seen if max(each.x.shape[:2]) <= BEYOND] or seen  # more rows tell no more
            excluded, same, rivals = VariantSearch(promise, telling).certificate()
            fields |= {"excluded": excluded, "same": _names(same), "rivals": _names(rivals)}
        return KernelReport(kernel.name, promised, **fields)
    fields["mismatches"] = sum(each.count for each in wrong)
    fields["max_ulp"] = max(float(distance(each.got, each.want, promise.out).max()) for each in wrong)
    if broken and "deterministic" in broken[0]:
        return KernelReport(kernel.name, promised, **fields)
    fields["where"] = where(seen)
    search = VariantSearch(promise, seen)
    found = search.explain()
    fields |= _explained(found, seen, search, fields["where"])
    fields["notes"] = (*fields["notes"], *layouts.notes)
    shown_by = min(wrong, key=lambda each: (each.x.name in ("special", "large", "zeros"), each.x.shape[2], -each.count))
    element = tuple(int(i) for i in np.argwhere(shown_by.differ)[0])
    first = mismatch(promise, shown_by.x, shown_by.got, shown_by.want, (element[0], element[1]))
    fields["first"] = first
    variant: Variant | None = fields.get("variant")
    fewest = fewest_of(kernel, promise, [(shown_by.x, first.element), *_short(wrong)])
    if fewest is not None:
        fields |= _of_terms(fewest, promise, variant)
    if fields["unexplained"] and not broken:
        fields |= _probed(kernel, promise, fields["explanation"], wrong)
    return KernelReport(kernel.name, promised, **fields)


def _covered(inputs: Iterable[KernelInputs]) -> ProductCoverage:
    """Return the shapes, kinds, dtypes and magnitudes of inputs."""
    record = CoverageRecord()
    shapes: dict[Shape, None] = {}
    kinds: dict[str, None] = {}
    for x in inputs:
        shapes.setdefault(x.shape)
        kinds.setdefault(x.name)
        record.note(x.a)
        record.note(x.b)
    of = record.coverage
    return ProductCoverage(tuple(shapes), tuple(kinds), of.dtypes, of.smallest, of.largest, of.specials)


def _in_words(promise: Promise) -> str:
    a, b = (operand.element or str(operand.fmt) for operand in (promise.a, promise.b))
    return f"{promise.wording}, {a} by {b} to {promise.out}"


def _names(variants: Iterable[Variant]) -> tuple[str, ...]:
    return tuple(str(each) for each in variants)


def _explained(found: FoundVariant, seen: list[Observation], search: VariantSearch, limited: str) -> dict[str, Any]:
    total = sum(each.count for each in seen)
    notes = () if found.finished else ("the search for an explanation was stopped; more time may find one",)
    if found.variant == PROMISED or found.differ > (1 - WORTH) * total:
        text = f"None of {found.tried:,} variants explains them; they lie {limited}." if limited else (
            f"None of {found.tried:,} variants explains them.")  # fmt: skip
        return {"explanation": text, "unexplained": total, "notes": notes}
    clauses = "; it ".join(found.variant.clauses)
    fields = {"variant": found.variant, "unexplained": found.differ, "others": _names(found.others), "notes": notes}
    if found.differ:
        text = (
            f"No variant that was tried ({found.tried:,}) explains all. Nearest: it {clauses} ({found.differ:,} differ "
            "from that)."
        )
        return {**fields, "explanation": text}
    whole = "one cause" if len(found.variant.clauses) == 1 else f"{len(found.variant.clauses)} causes together"
    only = f", {limited}" if found.conditional and limited else ", there alone" if found.conditional else ""
    text = f"All have {whole}: it {clauses}{only} (0 differ from that)."
    excluded = max(found.tried - 1 - len(found.others), 0)
    return {**fields, "explanation": text, "causes": found.variant.clauses, "excluded": excluded}


def _short(wrong: list[Observation]) -> list[tuple[KernelInputs, tuple[int, int]]]:
    """Elements of other inputs that few terms may show."""
    chosen = sorted(
        wrong, key=lambda each: (each.x.name not in ("masks", "normal", "ties of the result"), each.x.shape[2])
    )
    found = []
    for each in chosen:
        places = np.argwhere(each.differ)
        found += [(each.x, (int(row), int(column))) for row, column in places[:: max(len(places) // 2, 1)][:2]]
    return found


def _of_terms(fewest: Fewest, promise: Promise, variant: Variant | None) -> dict[str, Any]:
    terms = fewest.terms
    digits = -(-promise.out.bits // 4)
    said = "terms of K show" if len(terms) != 1 else "term of K shows"
    alone = "" if fewest.minimal else " (fewer may do; the time was over)"
    codes = f"got 0x{fewest.got:0{digits}X}, want 0x{fewest.want:0{digits}X}"
    head = f"{len(terms)} {said} it ({fewest.x}, element {fewest.element}, all other terms zero){alone}: {codes}"
    if not terms:
        head = f"It shows with all terms of {fewest.x}, element {fewest.element}, zero{alone}: {codes}"
    lines = [head, *(f"  {each}" for each in terms[:6])]
    lines += [f"  and {len(terms) - 6} more"] if len(terms) > 6 else []
    lines += [f"  {line}" for line in fewest.paste.splitlines()] if 0 < len(terms) <= 6 else []
    fields: dict[str, Any] = {"terms": terms, "terms_shown": "\n".join(lines), "smallest": fewest.x}
    places = tuple(each.k for each in terms)
    n, k = fewest.x.shape[1:]
    trees = (_tree(promise, promise.adding, k, n), _tree(promise, variant.addition if variant else None, k, n))
    meet = tuple("" if each is None or not places else _meeting(each, places) for each in trees)
    return {**fields, "trees": trees, "meet": meet}


def _meeting(tree: Tree, places: tuple[int, ...]) -> str:
    met = "stands" if len(places) == 1 else "meet"
    who = f"term {places[0]}" if len(places) == 1 else f"terms {', '.join(map(str, places[:4]))}" + (
        ", ..." if len(places) > 4 else "")  # fmt: skip
    return f"{who} {met} {meeting(tree, places)}"


def _tree(promise: Promise, adding: Any, k: int, n: int) -> Tree | None:
    if not isinstance(adding, Adding) or adding.codes:
        return None
    try:
        return tree_of(promise, adding, k, n)
    except ValueError:
        return None


def _probed(kernel: CalledKernel, promise: Promise, explanation: str, wrong: list[Observation]) -> dict[str, Any]:
    """Return the fields of a probe of a shape in which a kernel is wrong, the longest K first; empty without one."""
    if promise.scaled or promise.bias or kernel.takes not in ("numpy", "torch"):
        return {}
    operands = (promise.a, promise.b)
    shapes = sorted({each.x.shape for each in wrong}, key=lambda shape: (min(*shape[:2], TOGETHER), shape[2]))
    for m, n, k in shapes[::-1][:PROBED]:
        try:
            model = model_of(BlackBox(kernel.as_numpy, "matmul", k, operands, (m, n), longest=PROBING))
        except (ValueError, TypeError):
            continue
        if not model.found:
            return {"model": model}
        said = " ".join(str(model).splitlines()[:4])
        return {"model": model, "explanation": f"{explanation} A probe of {k} terms, {m} x {n}, says: {said}"}
    return {}


# ---- where differences lie


def where(seen: list[Observation]) -> str:
    """To which inputs or elements the differences are limited, in words; "" for to none."""
    bad, good = [each for each in seen if each.count], [each for each in seen if not each.count]
    words = []
    kinds = list(dict.fromkeys(each.x.name for each in bad))
    these = [each for each in seen if each.x.name in kinds]
    if len(kinds) <= 3 and len(kinds) < len({each.x.name for each in seen}) and len(bad) >= len(these) / 2:
        words.append(f"only with {' and '.join(repr(kind) for kind in kinds)} inputs")
    alike = [each for each in good if each.x.name in kinds]
    sizes = (_of_sizes(bad, alike, place, name) for place, name in ((0, "M"), (1, "N"), (2, "K")))
    words += [text for text in sizes if text][:1]
    rows, columns = _lines(bad, 0), _lines(bad, 1)
    words += [text for text in (rows, columns) if text]
    return "; ".join(words)


def _of_sizes(bad: list[Observation], good: list[Observation], place: int, name: str) -> str:
    """Return what sizes of wrong products have in common that no right one has."""
    sizes, others = ({each.x.shape[place] for each in some} for some in (bad, good))
    if not others - sizes:
        return ""
    if len(sizes) == 1:
        return f"only where {name} is {next(iter(sizes))}"
    if min(sizes) > max(others):
        return f"only where {name} is above {max(others)}"
    if max(sizes) < min(others):
        return f"only where {name} is below {min(others)}"
    for grain in (128, 64, 32, 16, 8, 4, 2):
        if all(size % grain for size in sizes) and all(size % grain == 0 for size in others):
            return f"only where {name} is no multiple of {grain}"
    return ""


def _lines(bad: list[Observation], axis: int) -> str:
    """Return which rows or columns are wrong."""
    name = ("row", "column")[axis]
    lines = [np.flatnonzero(each.differ.any(axis=1 - axis)) for each in bad]
    sizes = [each.got.shape[axis] for each in bad]
    if all(size == 1 for size in sizes):
        return ""
    if all(found.size == 1 and found[0] == size - 1 for found, size in zip(lines, sizes, strict=True)):
        return f"only in the last {name}"
    if all(found.size == 1 and found[0] == 0 for found in lines):
        return f"only in the first {name}"
    if all(found.size == 1 and found[0] == lines[0][0] for found in lines):
        return f"only in {name} {lines[0][0]}"
    for grain in (1024, 512, 256):
        if min(sizes) > grain and all((found >= grain).all() for found in lines):
            return f"only in {name}s from {grain} on"
    for grain in (128, 64, 32, 16, 8, 4):
        whole = [size // grain * grain for size in sizes]
        if all(whole) and all((found >= start).all() for found, start in zip(lines, whole, strict=True)):
            return f"only in {name}s beyond a multiple of {grain}"
        if min(sizes) > grain and all((found >= grain).all() for found in lines):
            return f"only in {name}s from {grain} on"
    return ""


# ---- kernels that promise no bits


def _in_envelope(kernel: CalledKernel, promise: Promise, inputs: Iterable[KernelInputs]) -> KernelReport:
    fields: dict[str, Any] = {"derivation": envelopes.derivation(promise)}
    total = outside = unbounded = calls = 0
    share, worst, ulps = 0.0, None, 0.0
    broken: tuple[str, ...] = ()
    seen: list[Observation] = []
    layouts = ComparedLayouts()
    try:
        for x in inputs:
            codes = kernel.call(x) if calls else kernel.settle(x)
            calls += 1
            of = envelopes.envelope_of(promise, x)
            got = values_of(codes, promise.out)
            far = envelopes.outside(got, of)
            used = envelopes.shares(got, of)
            total, outside = total + far.size, outside + int(far.sum())
            unbounded += int((np.isnan(of.bound) & (of.special == 0)).sum())
            want = promise.bits(x)
            seen.append(Observation(x, codes, np.where(far, want, codes)))
            if not np.isnan(used).all():
                share = max(share, float(np.nanmax(used)))
            if far.any():
                ulps = max(ulps, float(distance(codes, want, promise.out)[far].max()))
                element = tuple(int(i) for i in np.argwhere(far)[0])
                if worst is None or x.shape[2] < worst.inputs.shape[2]:
                    worst = mismatch(promise, x, codes, want, (element[0], element[1]))
        layouts = _in_layouts(kernel, seen, promise)
        broken = layouts.broken
    except KernelMisbehaved as refusal:
        broken = (refusal.sentence,)
    notes = (
        [f"{unbounded:,} elements have no bound: their sums may leave the range, or lose terms"] if unbounded else []
    )
    fields |= {"mismatches": outside, "of": total, "inputs": calls, "first": worst, "max_ulp": ulps, "share": share}
    if outside:
        fields |= _explained_outside(promise, seen)
    fields["covered"] = replace(_covered(each.x for each in seen), layouts=layouts.taken)
    return KernelReport(kernel.name, _in_words(promise), broken=broken, notes=(*notes, *layouts.notes), **fields)


def _explained_outside(promise: Promise, seen: list[Observation]) -> dict[str, Any]:
    """Return the flush whose envelope has all results, or else the variant that gives those outside."""
    for flush in envelopes.FLUSHES:
        if all(envelopes.within(promise, each.x, values_of(each.got, promise.out), flush) for each in seen):
            text = f"It {flush.words}: all results are in the envelope of a product that does so."
            return {"causes": (flush.words,), "explanation": text, "where": where(seen)}
    search = VariantSearch(promise, [each for each in seen if each.count])
    found = search.explain()
    if found.variant == PROMISED or found.differ:
        return {"where": where(seen), "explanation": where(seen)}
    clauses = found.variant.clauses
    return {
        "variant": found.variant,
        "causes": clauses,
        "explanation": f"It {'; it '.join(clauses)} (0 differ from that).",
    }
