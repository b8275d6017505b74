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


def _of_codes(step: Step) -> Step:
    """Return a function with the arguments described in `steps_by_rule` that calls `step(a, b, start, c, f, u)`."""
    return scalar(lambda a, b, p, q, start, c, digits, f, u: step(a, b, start, c, f, u))


def _with_scales(step: Step) -> Step:
    """Return a function as described in `steps_by_rule` that calls `step(a, b, scale_a, scale_b, start, c, f, u)`."""
    return scalar(lambda a, b, p, q, start, c, digits, f, u: step(a, b, p, q, start, c, f, u))


def _with_digits(step: Step) -> Step:
    """Return a function as described in `steps_by_rule` that calls `step(a, b, start, c, digits, f, u)`."""
    return scalar(lambda a, b, p, q, start, c, digits, f, u: step(a, b, start, c, digits, f, u))


@cache
def steps_by_rule() -> dict[Rule, Step]:
    """Return a cached dictionary that maps each `Rule` to the compiled function of an instruction with that rule.

    Each function is `(a, b, scale_a, scale_b, start, c, digits, f, u) -> code`, where c and code are uint64 codes of
    the accumulator before and after. a, b: 1-D arrays of codes, a row of A and a column of B. scale_a, scale_b: 1-D
    arrays of codes of their scales, one per block of u.block terms. start: index of the instruction's first product,
    int64. digits: int64 scratch array for exact sums, overwritten. f: a Layouts (formats of a, b, scales, c and the
    result). u: a UnitLayout (the instruction's constants, such as its number of terms and the fraction bits it keeps).
    """

    fused = scalar(lambda a, b, start, c, f, u: fused_step(a, b, start, i64(2), c, i64(0), NO_SPECIAL, f, u))
    return {
        Rule.FUSED: _of_codes(fused),
        Rule.SCALED: _with_scales(scaled_step),
        Rule.GROUPED: _with_scales(grouped_step),
        Rule.TWO_PASSES: _of_codes(two_pass_step),
        Rule.EXACT: _with_digits(exact_step),
        Rule.FLUSHED_TREE: _with_digits(flushed_step),
        Rule.SEPARATE: _of_codes(separate_step),
        Rule.EVEN_ODD: _of_codes(even_odd_step),
        Rule.REVERSED_CHAIN: _of_codes(reversed_chain_step),
        Rule.TWO_CHAINS: _of_codes(two_chains_step),
        Rule.ODD_PAIR: _of_codes(odd_pair_step),
        Rule.FUSED_PAIR: _of_codes(fused_pair_step),
    }
