"""CPU loops over the specification of matrix units: a row of codes per sum, one compilation per rule."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fpsim.core.encode import encode_fields
from fpsim.core.jit import kernel, scalar, shared
from fpsim.core.number import unpack_fields
from fpsim.core.term import NO_SPECIAL
from fpsim.core.unit_step import Layouts, UnitLayout, fused_step, grouped_step, scaled_step, two_pass_step
from fpsim.core.unit_step_amd import even_odd_step, exact_step, flushed_step, separate_step
from fpsim.matrix_unit import Rule

i64, u64 = np.int64, np.uint64


@scalar
def _fused(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, origin: Any, f: Any, u: Any) -> Any:
    return _fused_step(a, b, start, i64(2), c, i64(0), NO_SPECIAL, f, u)


@scalar
def _scaled(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, origin: Any, f: Any, u: Any) -> Any:
    return _scaled_step(a, b, p, q, start, c, f, u)


@scalar
def _grouped(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, origin: Any, f: Any, u: Any) -> Any:
    return _grouped_step(a, b, p, q, start, c, f, u)


@scalar
def _two_passes(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, origin: Any, f: Any, u: Any) -> Any:
    return _two_pass_step(a, b, start, c, f, u)


@scalar
def _exact(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, origin: Any, f: Any, u: Any) -> Any:
    return _exact_step(a, b, start, c, digits, origin, f, u)


@scalar
def _flushed(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, origin: Any, f: Any, u: Any) -> Any:
    return _flushed_step(a, b, start, c, digits, f, u)


@scalar
def _separate(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, origin: Any, f: Any, u: Any) -> Any:
    return _separate_step(a, b, start, c, f, u)


@scalar
def _even_odd(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, origin: Any, f: Any, u: Any) -> Any:
    return _even_odd_step(a, b, start, c, f, u)


_fused_step, _scaled_step, _grouped_step = shared(fused_step), shared(scaled_step), shared(grouped_step)
_two_pass_step, _exact_step, _flushed_step = shared(two_pass_step), shared(exact_step), shared(flushed_step)
_separate_step, _even_odd_step = shared(separate_step), shared(even_odd_step)

STEPS = {
    Rule.FUSED: _fused, Rule.SCALED: _scaled, Rule.GROUPED: _grouped, Rule.TWO_PASSES: _two_passes,
    Rule.EXACT: _exact, Rule.FLUSHED_TREE: _flushed, Rule.SEPARATE: _separate, Rule.EVEN_ODD: _even_odd,
}  # fmt: skip


@cache
def dot_add_kernel(rule: Rule) -> Any:
    """The loop `(a, b, c, scale_a, scale_b, out, fa, fb, fc, fs, fr, facts, step, digits, origin)` of a rule.

    a, b, scale_a, scale_b: 64-bit words, a row per sum; step: terms from one step to the next.
    """
    one_step = STEPS[rule]

    def dot_add(
        a: Any, b: Any, c: Any, scale_a: Any, scale_b: Any, out: Any,
        fa: Any, fb: Any, fc: Any, fs: Any, fr: Any, facts: Any, step: Any, digits: Any, origin: Any,
    ) -> None:  # fmt: skip
        f = Layouts(unpack_fields(fa), unpack_fields(fb), unpack_fields(fc), unpack_fields(fs), encode_fields(fr))
        u = UnitLayout(facts[0], facts[1], facts[2], facts[3], facts[4], facts[5], facts[6], facts[7], facts[8])
        for row in range(a.shape[0]):
            total = u64(c[row])
            for start in range(0, a.shape[1], step):
                total = one_step(a[row], b[row], scale_a[row], scale_b[row], i64(start), total, digits, origin, f, u)
            out[row] = total

    return kernel(dot_add)
