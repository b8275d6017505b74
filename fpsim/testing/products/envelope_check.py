"""Check of a kernel that promises no bits: whether its results are within a bound of the exact sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.products import envelope as envelopes
from fpsim.testing.products.black_box import CalledKernel
from fpsim.testing.products.observing import ComparedLayouts, Observation, coverage_of, in_layouts, where
from fpsim.testing.products.promise import KernelInputs, Promise, values_of
from fpsim.testing.products.report import KernelReport, distance, mismatch
from fpsim.testing.products.search import VariantSearch
from fpsim.testing.products.variants import PROMISED


def check_envelope(kernel: CalledKernel, promise: Promise, inputs: Iterable[KernelInputs]) -> KernelReport:
    """Return the report on a kernel whose results must be within the error bound of a promise."""
    fields: dict[str, Any] = {"derivation": envelopes.derivation(promise)}
    outside = unbounded = 0
    share, worst, ulps = 0.0, None, 0.0
    broken: tuple[str, ...] = ()
    seen: list[Observation] = []
    layouts = ComparedLayouts()
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
                share = max(share, float(np.nanmax(used)))
            if far.any():
                ulps = max(ulps, float(distance(codes, want, promise.out)[far].max()))
                if worst is None or x.shape[2] < worst.inputs.shape[2]:
                    row, column = (int(i) for i in np.argwhere(far)[0])
                    worst = mismatch(promise, x, codes, want, (row, column))
        layouts = in_layouts(kernel, seen, promise)
        broken = layouts.broken
    except FunctionMisbehaved as refusal:
        broken = (refusal.sentence,)
    notes = layouts.notes
    if unbounded:
        notes = f"{unbounded:,} elements have no bound: their sums may leave the range, or lose terms", *notes
    total = sum(observation.got.size for observation in seen)
    fields |= {"mismatches": outside, "of": total, "inputs": len(seen), "first": worst, "max_ulp": ulps, "share": share}
    if outside:
        fields |= _explained_outside(promise, seen)
    fields["covered"] = replace(coverage_of(observation.x for observation in seen), layouts=layouts.taken)
    return KernelReport(kernel.name, promise.in_words, broken=broken, notes=notes, **fields)


def _explained_outside(promise: Promise, seen: list[Observation]) -> dict[str, Any]:
    """Return the `KernelReport` fields that explain results outside the bounds: flushed subnormals, or a variant."""
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
