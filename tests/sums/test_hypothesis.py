"""Accumulators on operands that hypothesis builds: any formats, any words, edge cases of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.sums.accumulators import Accumulator, Chunked, Exact, FusedMultiplyAdd, Pairwise, Sequential
from tests.arithmetic.checks import subnormals_of
from tests.kit import operands
from tests.kit.samples import formats
from tests.oracles import casts
from tests.sums.checks import check_product

KNOWN = st.sampled_from([fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16, fp.BF16, fp.FP32, fp.TF32, fp.E4M3FNUZ])


@st.composite
def accumulators(draw: st.DrawFn) -> Accumulator:
    """Any accumulator."""
    with_zero = (formats() | KNOWN).filter(lambda fmt: fmt.has_zero and fmt.max >= fmt.smallest_normal)
    fmt, rounding = draw(with_zero), draw(st.sampled_from([*casts.MODES, "stochastic"]))
    words: dict[str, Any] = {
        "rounding": rounding,
        "seed": draw(st.integers(0, 2**64 - 1)),
        "overflow": draw(st.sampled_from(casts.OVERFLOWS)),
        "subnormals": draw(st.sampled_from(subnormals_of(fmt))),
        "random_bits": draw(st.integers(1, 32)),
    }
    kind = draw(st.sampled_from([Sequential, FusedMultiplyAdd, Pairwise, Chunked, Exact]))
    if kind is not Chunked:
        found: Accumulator = kind(fmt, **words)
        return found
    outer = draw(st.none() | with_zero)
    words["subnormals"] = "keep"
    return Chunked(fmt, draw(st.integers(1, 5)), outer, **words)


def matrix(data: st.DataObject, fmt: fp.Format, shape: tuple[int, int]) -> Any:
    """Codes of a shape."""
    count = shape[0] * shape[1]
    codes = st.lists(operands.any_codes(fmt) | operands.finite_codes(fmt), min_size=count, max_size=count)
    return np.array(data.draw(codes), fmt.storage).reshape(shape)


@settings(max_examples=60)
@given(data=st.data())
def test_any_accumulator_adds_any_products_as_the_oracle_does(data: st.DataObject) -> None:
    accumulator = data.draw(accumulators())
    formats_of = data.draw(st.tuples(formats() | KNOWN, formats() | KNOWN))
    m, n, k = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(0, 7)))
    a, b = matrix(data, formats_of[0], (m, k)), matrix(data, formats_of[1], (k, n))
    c = matrix(data, accumulator.result_format, (m, n)) if data.draw(st.booleans()) else None
    check_product(accumulator, a, b, c, formats_of)


@settings(max_examples=75)
@given(data=st.data())
def test_sums_that_nearly_cancel_round_as_the_oracle_does(data: st.DataObject) -> None:
    fmt = data.draw(st.sampled_from([fp.FP16, fp.BF16, fp.FP32]))
    kind = data.draw(st.sampled_from([Sequential, FusedMultiplyAdd, Exact]))
    triple = data.draw(operands.hard_triples(fmt))
    more = data.draw(st.lists(operands.finite_codes(fmt), min_size=2, max_size=2))
    a, b = np.array([[triple[0], more[0]]], fmt.storage), np.array([[triple[1]], [more[1]]], fmt.storage)
    check_product(kind(fmt), a, b, np.array([[triple[2]]], fmt.storage), (fmt, fmt))
