"""Scalar core: the function of one matrix instruction for each rule, all with the same arguments. Integers only."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from fpsim.core.sums.term import NO_SPECIAL
from fpsim.core.units.amd import even_odd_step, exact_step, flushed_step, separate_step
from fpsim.core.units.arm import fused_pair_step, odd_pair_step
from fpsim.core.units.nvidia import fused_step, grouped_step, scaled_step, two_pass_step
from fpsim.core.units.x86 import reversed_chain_step, two_chains_step
from fpsim.matrix_units.matrix_unit import Rule
from fpsim.runtime.compile import scalar

i64 = np.int64


Step = Callable[..., Any]


@cache
def steps_by_rule() -> dict[Rule, Step]:
    """Return a cached dictionary that maps each `Rule` to the compiled function of an instruction with that rule.

    Each function is `(a, b, scale_a, scale_b, start, c, digits, f, u) -> code`, where c and code are uint64 codes of
    the accumulator before and after. a, b: 1-D arrays of codes, a row of A and a column of B. scale_a, scale_b: 1-D
    arrays of codes of their scales, one per block of u.block terms. start: index of the instruction's first product,
    int64. digits: int64 scratch array for exact sums, overwritten. f: a Layouts (formats of a, b, scales, c and the
    result). u: a UnitLayout (the instruction's constants, such as its number of terms and the fraction bits it keeps).
    """

    @scalar
    def _fused(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return fused_step(a, b, start, i64(2), c, i64(0), NO_SPECIAL, f, u)

    @scalar
    def _scaled(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return scaled_step(a, b, p, q, start, c, f, u)

    @scalar
    def _grouped(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return grouped_step(a, b, p, q, start, c, f, u)

    @scalar
    def _two_passes(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return two_pass_step(a, b, start, c, f, u)

    @scalar
    def _exact(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return exact_step(a, b, start, c, digits, f, u)

    @scalar
    def _flushed(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return flushed_step(a, b, start, c, digits, f, u)

    @scalar
    def _separate(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return separate_step(a, b, start, c, f, u)

    @scalar
    def _even_odd(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return even_odd_step(a, b, start, c, f, u)

    @scalar
    def _reversed(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return reversed_chain_step(a, b, start, c, f, u)

    @scalar
    def _two_chains(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return two_chains_step(a, b, start, c, f, u)

    @scalar
    def _odd_pair(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return odd_pair_step(a, b, start, c, f, u)

    @scalar
    def _fused_pair(a: Any, b: Any, p: Any, q: Any, start: Any, c: Any, digits: Any, f: Any, u: Any) -> Any:
        return fused_pair_step(a, b, start, c, f, u)

    return {
        Rule.FUSED: _fused, Rule.SCALED: _scaled, Rule.GROUPED: _grouped, Rule.TWO_PASSES: _two_passes,
        Rule.EXACT: _exact, Rule.FLUSHED_TREE: _flushed, Rule.SEPARATE: _separate, Rule.EVEN_ODD: _even_odd,
        Rule.REVERSED_CHAIN: _reversed, Rule.TWO_CHAINS: _two_chains,
        Rule.ODD_PAIR: _odd_pair, Rule.FUSED_PAIR: _fused_pair,
    }  # fmt: skip
