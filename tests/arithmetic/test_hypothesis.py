"""Arithmetic on operands that hypothesis builds: sums that nearly cancel, results next to ties and to subnormals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from tests.arithmetic.checks import columns_of, compare_with, keywords, options_of, random_words, subnormals_of
from tests.kit import operands
from tests.kit.operands import Codes
from tests.kit.samples import formats
from tests.oracles import arithmetic as ao
from tests.oracles import casts

HARD = pytest.mark.parametrize("fmt", [fp.FP16, fp.BF16, fp.FP32], ids=str)
SEEDS = st.integers(0, 2**64 - 1)


@st.composite
def words(draw: st.DrawFn, fmt: fp.Format) -> dict[str, Any]:
    """Any words of a call."""
    rounding = draw(st.sampled_from([*casts.MODES, "stochastic"]))
    chosen: dict[str, Any] = {
        "rounding": rounding,
        "overflow": draw(st.sampled_from(casts.OVERFLOWS)),
        "subnormals": draw(st.sampled_from(subnormals_of(fmt))),
        "input_subnormals": draw(st.sampled_from(subnormals_of(fmt))),
        "tininess": draw(st.sampled_from(ao.TININESS)),
    }
    if rounding == "stochastic":
        chosen |= {"seed": draw(SEEDS), "random_bits": draw(st.integers(1, 32))}
    return chosen


def check_rows(
    operation: str, rows: Sequence[Codes], fmts: tuple[fp.Format, ...], out: fp.Format | None, chosen: dict[str, Any]
) -> None:
    """Compare a few elements, with their flags."""
    named = keywords(fmts, out, chosen)
    options, target = options_of(named), out or fmts[0]
    dice = random_words(chosen["seed"], len(rows)) if "seed" in chosen else [0] * len(rows)
    results = [
        ao.compute(operation, row, fmts, target, options._replace(word=word))
        for row, word in zip(rows, dice, strict=True)
    ]
    columns = [np.array(column, fmt.storage) for column, fmt in zip(zip(*rows, strict=True), fmts, strict=True)]
    compare_with(operation, columns, named, *columns_of(results, target.storage))


@HARD
@settings(max_examples=20)
@given(data=st.data())
def test_a_fused_multiply_add_rounds_once_where_it_is_hard(fmt: fp.Format, data: st.DataObject) -> None:
    rows = data.draw(st.lists(operands.hard_triples(fmt), min_size=1, max_size=6))
    check_rows("fma", rows, (fmt,) * 3, None, data.draw(words(fmt)))


@HARD
@settings(max_examples=20)
@given(data=st.data())
def test_a_remainder_is_exact_where_it_is_hard(fmt: fp.Format, data: st.DataObject) -> None:
    rows = data.draw(st.lists(operands.hard_pairs(fmt), min_size=1, max_size=6))
    check_rows("remainder", rows, (fmt,) * 2, None, data.draw(words(fmt)))


@HARD
@settings(max_examples=25)
@given(data=st.data())
def test_the_four_operations_round_once_where_it_is_hard(fmt: fp.Format, data: st.DataObject) -> None:
    rows = data.draw(st.lists(operands.hard_pairs(fmt), min_size=1, max_size=6))
    operation = data.draw(st.sampled_from(ao.BINARY[:4]))
    check_rows(operation, rows, (fmt,) * 2, None, data.draw(words(fmt)))


@HARD
@settings(max_examples=15)
@given(data=st.data())
def test_the_square_root_of_a_square_and_of_its_neighbours_rounds_once(fmt: fp.Format, data: st.DataObject) -> None:
    rows = []
    for _ in range(data.draw(st.integers(1, 5))):
        root = operands.exact_value(fmt, data.draw(operands.finite_codes(fmt)))
        rows.append((operands.near(fmt, root**2, data.draw(operands.few_ulps())),))
    check_rows("sqrt", rows, (fmt,), None, data.draw(words(fmt)))


@settings(max_examples=60)
@given(data=st.data())
def test_any_formats_round_any_operands_into_any_format(data: st.DataObject) -> None:
    known = st.sampled_from([fp.E4M3, fp.E5M2, fp.E2M1, fp.E8M0, fp.FP16, fp.BF16, fp.FP32, fp.E4M3FNUZ])
    draw_format = (formats() | known).filter(lambda fmt: fmt.max >= fmt.smallest_normal)
    operation = data.draw(st.sampled_from([*ao.BINARY, *ao.EXTREMA, "fma", "sqrt"]))
    count = {"fma": 3, "sqrt": 1}.get(operation, 2)
    first, out = data.draw(draw_format), data.draw(draw_format)
    fmts = (
        (first, data.draw(draw_format), data.draw(draw_format))[:count]
        if data.draw(st.booleans())
        else (first,) * count
    )
    row = st.tuples(*[operands.any_codes(fmt) | operands.finite_codes(fmt) for fmt in fmts])
    rows = data.draw(st.lists(row, min_size=1, max_size=4))
    check_rows(operation, rows, fmts, out, data.draw(words(out)) | {"input_subnormals": data.draw(flushes(fmts))})


def flushes(fmts: Sequence[fp.Format]) -> st.SearchStrategy[str]:
    """Treatments of subnormal operands."""
    return st.sampled_from(casts.SUBNORMALS if all(len(subnormals_of(fmt)) == 2 for fmt in fmts) else ("keep",))


@settings(max_examples=40)
@given(data=st.data())
def test_a_sum_of_products_in_wider_operands_rounds_once_into_a_narrow_format(data: st.DataObject) -> None:
    fmt = data.draw(st.sampled_from([fp.FP32, fp.BF16, fp.FP16]))
    out = data.draw(st.sampled_from([fp.E4M3, fp.E5M2, fp.E2M1, fp.E8M0, fp.FP16, fp.BF16]))
    a, b = data.draw(operands.finite_codes(fmt)), data.draw(operands.finite_codes(fmt))
    product = operands.exact_value(fmt, a) * operands.exact_value(fmt, b)
    middle = operands.exact_value(out, data.draw(operands.finite_codes(out))) + operands.tiny_unit(out) / 2
    rows = [(a, b, operands.near(fmt, middle - product, ulps)) for ulps in (-1, 0, 1)]
    check_rows("fma", rows, (fmt,) * 3, out, data.draw(words(out)))
