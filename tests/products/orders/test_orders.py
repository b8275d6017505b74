"""Products, sums and dot products in any order have the bits of the order, added node by node."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.products.orders.code_sums import accumulator_of
from fpsim.products.orders.table import table_of
from fpsim.products.request import Request, refuse_conflicts
from fpsim.schedules import Tree, tree
from fpsim.schedules.plan import Span
from fpsim.schedules.trees.nodes import Arithmetic, Gathered, Node, Round, Steps, Sum
from fpsim.sums.accumulators import Accumulator
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.oracles.orders import product_sum, read_row, term_sum
from tests.oracles.sums import Rule
from tests.oracles.trees import evaluate
from tests.products.orders.orders_of import any_order, backwards, chain, chain_of_pairs, moved, shuffled
from tests.schedules.tree_cases import RUN

Array = npt.NDArray[Any]
f32 = np.float32
s = fp.schedules

ACCUMULATORS: list[Accumulator | None] = [
    None, fp.Sequential(fp.FP32), fp.FusedMultiplyAdd(fp.FP32), fp.Sequential(fp.FP64), fp.FusedMultiplyAdd(fp.FP64),
    fp.Pairwise(fp.BF16), fp.Sequential(fp.FP16), fp.FusedMultiplyAdd(fp.BF16), fp.Pairwise(fp.E4M3),
    fp.Sequential(fp.FP16, rounding="down"), fp.FusedMultiplyAdd(fp.FP32, rounding="up"),
    fp.Sequential(fp.E5M2, overflow="saturate", subnormals="flush"),
]  # fmt: skip


def rule_of(how: Accumulator | None) -> Rule:
    """Return an accumulator for the oracle."""
    how = how or fp.Pairwise(fp.FP32)
    words = {"rounding": how.rounding.name.lower(), "overflow": how.overflow, "subnormals": how.subnormals}
    return Rule(type(how).__name__, how.fmt, words)


def codes(shape: tuple[int, ...], fmt: fp.Format, seed: int) -> Array:
    """Return codes of numbers over many binades, with any code in one of ten places."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 12, shape)
    some = rng.integers(0, 1 << fmt.bits, shape).astype(fmt.storage)
    return np.where(rng.random(shape) < 0.1, some, fp.encode(x.astype(f32), fmt))


def by_oracle(how: Accumulator | None, order: Any, a: Array, b: Array, fmt: fp.Format) -> Array:
    """Return the product of a and b, each element by the oracle, as codes."""
    rule = rule_of(how)
    rows, columns = [read_row(fmt, row) for row in a], [read_row(fmt, column) for column in b.T]
    sums = [[product_sum(rule, order, x, y) for y in columns] for x in rows]
    return np.array(sums, rule.fmt.storage)


def as_codes(x: Any, fmt: fp.Format) -> Array:
    """Return an array as codes."""
    return np.asarray(x).view(fmt.storage)


@in_turn("how", ACCUMULATORS)
@given(order=any_order(), seed=st.integers(0, 99))
@example(order=((0, 2), ((1, 3), 4)), seed=1)
@example(order=((1, 0), (2, (4, 3))), seed=2)
@settings(max_examples=4)
def test_any_order_has_the_bits_of_its_additions(how: Accumulator | None, order: Any, seed: int) -> None:
    k = tree(order).k
    fmt = (fp.E5M2, fp.BF16, fp.E4M3)[seed % 3]
    a, b = codes((2, k), fmt, seed), codes((k, 3), fmt, seed + 1)
    kept = rule_of(how).fmt
    want = by_oracle(how, order, a, b, fmt)
    assert_bits_equal(as_codes(fp.matmul(a, b, schedule=order, accumulate=how, fmt=fmt), kept), want, fmt=kept)
    made = tree(order, accumulate=how)
    assert_bits_equal(as_codes(fp.matmul(a, b, schedule=made, fmt=fmt), kept), want, fmt=kept)
    dots = fp.dot(a[:, None], np.ascontiguousarray(b.T), accumulate=made, fmt=fmt)
    assert_bits_equal(as_codes(dots, kept), want, fmt=kept)
    sums = [term_sum(rule_of(how), order, read_row(fmt, row)) for row in a]
    got = fp.sum(a, accumulate=made, fmt=fmt, axis=1)
    assert_bits_equal(as_codes(got, kept), np.array(sums, kept.storage), fmt=kept)


def test_sums_and_dots_without_an_accumulator_are_in_float32() -> None:
    x = np.random.default_rng(0).standard_normal((7, 40)).astype(f32)
    order = shuffled(40, 1)
    assert_bits_equal(fp.sum(x, accumulate=order, axis=1), fp.sum(x, accumulate=tree(order), axis=1))
    assert_bits_equal(fp.dot(x, x, accumulate=order), np.diag(fp.matmul(x, x.T, schedule=order)))
    assert fp.sum(np.array([1, 2, 3], f32), accumulate=((0, 1), 2)) == 6
    assert_bits_equal(fp.sum(x[0], accumulate=order), fp.sum(x[:1], accumulate=order, axis=1)[0])


@in_turn("shape", [(1, 40, 1), (3, 40, 130), (200, 40, 3), (40, 40, 260), (17, 40, 1)])
def test_products_of_all_shapes_have_the_same_bits(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = codes((m, k), fp.BF16, 1), codes((k, n), fp.BF16, 2)
    for how in (None, fp.FusedMultiplyAdd(fp.FP32)):
        order = shuffled(k, 3)
        got = fp.matmul(a, b, schedule=order, accumulate=how, fmt=fp.BF16)
        rows = np.repeat(a, n, axis=0), np.tile(b.T, (m, 1))
        want = evaluate(tree(order, accumulate=how), *rows, fmt=fp.BF16).view(f32).reshape(m, n)
        assert_bits_equal(got, want)
        assert_bits_equal(fp.dot(*rows, accumulate=tree(order, accumulate=how), fmt=fp.BF16), want.reshape(-1))


# ---- trees of schedules, units and accumulators


@in_turn("schedule, unit", RUN)
@pytest.mark.filterwarnings("ignore:cuBLAS takes nvjet")
def test_the_tree_of_a_schedule_has_its_bits(schedule: s.Schedule, unit: str) -> None:
    how = fp.unit(unit)
    for k in (1, 129, 641):
        a, b = codes((3, k), how.a.fmt, k), codes((k, 4), how.b.fmt, k + 1)
        for out in (None, "bf16"):
            want = fp.matmul(a, b, accumulate=unit, schedule=schedule, strict=False, out_fmt=out)
            order = tree(schedule, k, n=4, accumulate=unit, out_fmt=out)
            assert_bits_equal(fp.matmul(a, b, accumulate=unit, schedule=order), want)


def test_block_scales_multiply_the_partial_sums_of_a_tree() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 256)).astype(f32), rng.standard_normal((256, 8)).astype(f32)
    a = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128)
    b = fp.encode_scaled(y, fp.E4M3, fp.scalings.BLOCK_128X128)
    for schedule in (s.deepgemm(), s.cutlass_blockwise()):
        want = fp.matmul(a, b, accumulate="hopper_e4m3_f32", schedule=schedule)
        assert_bits_equal(fp.matmul(a, b, accumulate="hopper_e4m3_f32", schedule=tree(schedule, 256)), want)


def test_epilogues_follow_the_sums_of_a_tree() -> None:
    a, b = codes((4, 64), fp.FP16, 1), codes((64, 8), fp.FP16, 2)
    c, bias = np.ones((4, 8), f32), np.arange(8, dtype=f32)
    order = tree(s.FLAT, 64, accumulate="hopper_f16_f32")
    words: dict[str, Any] = {"accumulate": "hopper_f16_f32", "alpha": 0.5, "beta": 2.0, "bias": bias, "out_fmt": "bf16"}
    assert_bits_equal(fp.matmul(a, b, c, schedule=order, **words), fp.matmul(a, b, c, **words))
    plain = fp.matmul(a, b, accumulate="hopper_f16_f32", schedule=order)
    assert_bits_equal(fp.matmul(a, b, c, accumulate="hopper_f16_f32", schedule=order, beta=0.0), plain)


UNIT = "hopper_e4m3_f32"


def steps(k: int, terms: int = 32) -> Any:
    """Return the order of one chain of instructions."""
    order: Any = tuple(range(terms))
    for first in range(terms, k, terms):
        order = (order, *range(first, min(first + terms, k)))
    return order


def test_tuples_of_a_unit_are_its_instructions() -> None:
    a, b = codes((3, 256), fp.E4M3, 1), codes((256, 5), fp.E4M3, 2)
    assert_bits_equal(fp.matmul(a, b, accumulate=UNIT, schedule=steps(256)), fp.matmul(a, b, accumulate=UNIT))
    halves = steps(128), moved(steps(128), 128)
    assert_bits_equal(fp.matmul(a, b, accumulate=UNIT, schedule=halves), fp.matmul(a, b, accumulate=UNIT, promote=128))
    assert tree(halves, accumulate=UNIT) == tree(s.cutlass_2xacc(128), 256)


@in_turn("unit", [UNIT, "hopper_f16_f16", "cdna2_bf16_f32", "x86_amx_bf16_f32", "ampere_tf32_f32"])
def test_odd_instructions_have_the_bits_of_dot_add(unit: str) -> None:
    how = fp.unit(unit)
    terms = [3, 1, 0, 2, 5, 4][: max(how.terms, 2)]
    first: Any = tuple(terms) if how.terms > 1 else (terms[0], terms[1])
    order: Any = ((first, *[k + 10 for k in terms[: how.terms]]), (*[k + 20 for k in terms[: max(how.terms, 2)]],))
    used = sorted(_terms(order))
    order = _renamed(order, {k: i for i, k in enumerate(used)})
    k = len(used)
    a, b = codes((4, k), how.a.carrier, 1), codes((4, k), how.b.carrier, 2)
    got = np.diag(fp.matmul(a, np.ascontiguousarray(b.T), accumulate=unit, schedule=order))
    assert_bits_equal(got, evaluate(tree(order, accumulate=unit), a, b, unit=unit).view(f32))


def test_chains_of_single_terms_are_those_of_their_unit() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 3, 9))
    words: dict[str, Any] = {"accumulate": "ampere_f64_f64"}
    assert_bits_equal(fp.matmul(a, b.T, schedule=chain(9), **words), fp.matmul(a, b.T, **words))
    halves = [fp.matmul(a[:, part], b[:, part].T, **words) for part in (slice(0, 3), slice(3, 9))]
    order = chain(3), moved(chain(6), 3)
    assert_bits_equal(fp.matmul(a, b.T, schedule=order, **words), halves[0] + halves[1])
    with pytest.raises(ValueError, match="an order of additions of ampere_f64_f64 has no place for c"):
        fp.matmul(a, b.T, np.ones((3, 3)), schedule=order, **words)


def _terms(order: Any) -> set[int]:
    return {order} if isinstance(order, int) else set[int]().union(*map(_terms, order))


def _renamed(order: Any, names: dict[int, int]) -> Any:
    return names[order] if isinstance(order, int) else tuple(_renamed(part, names) for part in order)


def test_the_tree_that_a_probe_reveals_runs() -> None:
    model = fp.probe.dot(lambda x, y: np.float32((x[0] * y[0] + x[3] * y[3]) + (x[1] * y[1] + x[2] * y[2])), 4)
    a, b = (np.random.default_rng(seed).standard_normal((6, 4)).astype(f32) for seed in (1, 2))
    assert isinstance(model.tree, tuple)
    assert_bits_equal(fp.dot(a, b, accumulate=model.tree), model.dot(a, b))
    assert_bits_equal(fp.matmul(a, b.T, schedule=model.tree), model.matmul(a, b.T))


def test_trees_of_accumulators_run_in_their_loops() -> None:
    for how in (fp.Sequential(fp.FP16), fp.FusedMultiplyAdd(fp.FP32), fp.Pairwise(fp.BF16, rounding="up"),
                fp.Chunked(fp.FP16, chunk=8, outer=fp.FP32), fp.Chunked(fp.BF16, chunk=7)):  # fmt: skip
        a, b = codes((3, 61), fp.BF16, 1), codes((61, 5), fp.BF16, 2)
        assert accumulator_of(tree(how, 61).root) == how
        want = fp.matmul(a, b, accumulate=how, fmt=fp.BF16)
        assert_bits_equal(fp.matmul(a, b, schedule=tree(how, 61), fmt=fp.BF16), want)
        rounded_once = fp.matmul(a, b, schedule=tree(how, 61, out_fmt="e5m2"), fmt=fp.BF16)
        values = want.astype(f32)
        assert_bits_equal(rounded_once, fp.cast(values, fp.E5M2, overflow="saturate"))
    exact = fp.Exact(fp.FP32)
    want = fp.matmul(a, b, accumulate=exact, fmt=fp.BF16)
    assert_bits_equal(fp.matmul(a, b, schedule=tree(exact, 61), fmt=fp.BF16), want)
    assert_bits_equal(fp.matmul(a[:, :0], b[:0], schedule=tree(exact, 0), fmt=fp.BF16), np.zeros((3, 5), f32))


# ---- long orders


@in_turn("make", [chain, backwards, chain_of_pairs, lambda k: shuffled(k, 0)])
def test_long_orders_become_plans_in_a_moment(make: Callable[[int], Any]) -> None:
    k = 10_000
    order = make(k)
    table_of(tree(shuffled(16, 0), accumulate=fp.FusedMultiplyAdd(fp.FP32)).root)  # which imports what plans need
    began = time.process_time()
    made = tree(order, accumulate=fp.FusedMultiplyAdd(fp.FP32))
    assert accumulator_of(made.root) is not None or table_of(made.root) is not None
    assert time.process_time() - began < 2  # a tenth of that on an idle core; minutes if time grew as k * k
    assert made.k == k


def test_runs_of_terms_become_rows_of_a_table() -> None:
    lanes = tuple(chain_of(range(lane, 64, 4)) for lane in range(4))
    order = ((lanes[0], lanes[2]), (lanes[1], lanes[3]))
    table = table_of(tree(order, accumulate=fp.FusedMultiplyAdd(fp.FP32)).root)
    assert table is not None
    assert len(table.rows) == 4 + 4 + 3  # a start and a run for each lane, and three additions
    assert table.sums == 3


def chain_of(terms: range) -> Any:
    """Return the order of one chain of some terms."""
    first, *rest = terms
    order: Any = first
    for term in rest:
        order = (order, term)
    return order


# ---- the trees of schedules without matrix units

LANES = [
    s.cublas("sm_90", family="gemv", option=5), s.cublas("sm_90", family="gemv", option=12),
    s.cublas("sm_90", family="gemv", option=83), s.cublas("sm_90", family="magma"),
    s.cublas("sm_90", family="gemm_sn", option=1), s.cublas("sm_90", family="dot"),
]  # fmt: skip


@in_turn("schedule", LANES)
def test_trees_of_lanes_have_the_same_bits_in_the_loops_of_lanes(schedule: fp.schedules.Schedule) -> None:
    for m, k, n in ((1, 300, 40), (1, 777, 1), (1, 5, 3)):
        a, b = codes((m, k), fp.FP16, k), codes((k, n), fp.FP16, k + 1)
        order = tree(schedule, k, n=n, accumulate="hopper_f16_f32", out_fmt="bf16")
        assert order.lane_order is not None
        added = replace(order, lane_order=None)
        for words in ({"accumulate": "hopper_f16_f32"}, {"fmt": fp.FP16}):
            got = fp.matmul(a, b, schedule=order, **words)
            assert_bits_equal(got, fp.matmul(a, b, schedule=added, **words))
        want = fp.matmul(a, b, schedule=schedule, accumulate="hopper_f16_f32", out_fmt="bf16")
        assert_bits_equal(fp.matmul(a, b, schedule=order, accumulate="hopper_f16_f32"), want)


def test_a_tree_is_added_as_its_nodes_say_where_lanes_may_differ() -> None:
    order = tree(LANES[0], 300, n=7, accumulate="hopper_f16_f32")
    other = replace(order, root=tree(fp.FusedMultiplyAdd(fp.FP32), 300).root)
    a, b = codes((1, 300), fp.FP16, 3), codes((300, 7), fp.FP16, 4)
    chained = fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd(fp.FP32), fmt=fp.FP16)
    assert_bits_equal(fp.matmul(a, b, schedule=other, fmt=fp.FP16), chained)
    wide = [codes(shape, fp.FP32, 5) for shape in ((1, 300), (300, 7))]  # whose products may round to -0
    dot = tree(LANES[-1], 300, n=1, accumulate="hopper_f16_f32")  # with two chains a thread
    for one, (x, y), fmt in ((order, wide, fp.FP32), (dot, (a, b), fp.FP16)):
        got = fp.matmul(x, y, schedule=one, fmt=fmt)
        assert_bits_equal(got, fp.matmul(x, y, schedule=replace(one, lane_order=None), fmt=fmt))


def test_the_order_of_an_array_library_adds_the_products_of_a_unit() -> None:
    a, b = codes((2, 40), fp.FP16, 5), codes((40, 3), fp.FP16, 6)
    order = s.numpy_sum()
    got = fp.matmul(a, b, schedule=order, accumulate="hopper_f16_f32")
    assert_bits_equal(got, fp.matmul(a, b, schedule=order, fmt=fp.FP16))


# ---- trees that are refused

A, B = np.ones((2, 4), f32), np.ones((4, 3), f32)
FLOAT32 = Arithmetic("ieee", fp.FP32)


def product(order: Any, accumulate: Any = None, **words: Any) -> Array:
    """Return a product of four terms that is right but for what a case changes."""
    return fp.matmul(A, B, accumulate=accumulate, schedule=order, **words)


GOOD = ((0, 1), (2, 3))
CASES: list[tuple[Callable[[], Any], str]] = [
    (lambda: product(((0, 1), 2)), r"an order of 4 terms must have every term once; 3 are .* term 3 is missing"),
    (lambda: product(((0, 1), (1, 2))), r"an order must have every term once; term 1 is repeated"),
    (lambda: product(((0, 1), (2, 4))), r"an order of 4 terms has the terms 0 \.\. 3; got 4"),
    (lambda: product(((0, 1), (2, -1))), r"terms are counted from 0; got -1"),
    (lambda: product(()), r"an order is a term or a tuple of two or more orders, such as .*; got \(\)"),
    (lambda: product(((0, 1), (2, "3"))), r"a tuple of two or more orders.*got '3'"),
    (lambda: product(((0, 1), (2, True))), r"a tuple of two or more orders.*got True"),
    (lambda: product(((0, 1), (2,), 3)), r"a tuple of two or more orders.*got \(2,\)"),
    (lambda: product((0, 1, 2, 3)), r"Pairwise\(FP32\) adds two numbers at a time; got a tuple of 4\. Nest it"),
    (lambda: product(GOOD, fp.Exact(fp.FP32)), r"Exact\(FP32\) has an order of its own"),
    (lambda: product(GOOD, fp.Chunked(fp.FP32)), r"Chunked\(FP32, chunk=64\) has an order of its own"),
    (lambda: product(GOOD, fp.Sequential(fp.BF16, rounding="stochastic", seed=0)), r"numbers its random words"),
    (lambda: product(tree(GOOD), fp.Sequential(fp.FP32)), r"a tree includes its arithmetic; got accumulate="),
    (lambda: product(tree(((0, 1), 2))), r"schedule adds 3 terms; got K = 4"),
    (lambda: product(tree(UNIT, 4)), r"the tree has instructions of a matrix unit .*Pass accumulate= the unit"),
    (lambda: product(GOOD, promote=32), r"promote is part of the order of additions in schedule"),
    (lambda: product(GOOD, scale_order="a_first"), r"scale_order is part of the order"),
    (lambda: product(GOOD, alpha=2.0), r"alpha is for matrix units"),
    (lambda: product(GOOD, c=np.ones((2, 3), f32)), r"an order of additions has no place for c"),
    (lambda: product(GOOD, 3), r"accumulate must be a matrix unit, its name, or an accumulator; got 3"),
    (lambda: product(GOOD, UNIT, fmt="e4m3"), r"fmt is for accumulators"),
    (lambda: refuse_conflicts(Request(GOOD)), r"an order of additions runs on the CPU; got one for a product on a GPU"),
    (lambda: product(GOOD, "hopper_s8_s32"), r"an order of additions is for floats; hopper_s8_s32 adds integers"),
    (lambda: product(GOOD, strict=1), r"strict must be True or False"),
    (lambda: fp.matmul(A[:, :0], B[:0], schedule=GOOD), r"an order of additions has one term or more; got .* K = 0"),
    (lambda: fp.matmul(A, B[:3], schedule=GOOD), r"must agree in K"),
    (lambda: fp.matmul(A.astype("f8"), B.astype("f8"), schedule=GOOD), r"products of FP64 are added by"),
    (lambda: fp.sum(np.ones(5, f32), accumulate=GOOD), r"an order of 5 terms must have every term once"),
    (lambda: fp.dot(A, A[:, :3], accumulate=GOOD), r"needs operands"),
    (lambda: fp.sum(np.ones(4, f32), accumulate=tree(UNIT, 4)), r"the tree has instructions of a matrix unit"),
    (lambda: product(tree(fp.Pairwise("fp16", rounding="stochastic", seed=3), 4)), "a tree has no random numbers; got"),
    (lambda: tree(GOOD, -1), r"k must be a number of terms"),
    (lambda: tree(GOOD, scaled=True), r"an order has no place for block scales"),
    (lambda: tree(s.FLAT, 8, accumulate=fp.Sequential("fp32")), r"accumulate must be a matrix unit or its name"),
    (lambda: tree(tuple(range(33)), accumulate=UNIT), r"adds up to 32 products; got a tuple of 33 terms"),
    (lambda: tree(((0, 1), (2, 3), 4), accumulate=UNIT), r"got a tuple of 2 sums and 1 terms"),
]  # fmt: skip


@in_turn("call, words", CASES)
def test_bad_orders_get_one_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()


E4M3_CODES = np.zeros((2, 64), np.uint8)


def test_a_tree_belongs_to_its_unit() -> None:
    with pytest.raises(ValueError, match="the tree has other instructions than blackwell_e4m3_f32"):
        fp.matmul(E4M3_CODES, E4M3_CODES.T, accumulate="blackwell_e4m3_f32", schedule=tree(UNIT, 64))
    x = fp.encode_scaled(np.ones((2, 256), f32), fp.E4M3, fp.scalings.TILE_1X128)
    with pytest.raises(ValueError, match=r"the tree has no place for scales that change along K"):
        fp.matmul(x, x.transpose(), accumulate=UNIT, schedule=tree(UNIT, 256))


def test_sums_of_a_unit_that_lie_too_deep_are_refused() -> None:
    order: Any = (0, 1)
    for k in range(2, 1002, 4):
        order = ((order, (k, k + 1)), k + 2, k + 3)
    with pytest.raises(ValueError, match="an order must have at most 200 sums inside one another"):
        tree(order, accumulate=UNIT)


def test_trees_written_as_nodes_run_too() -> None:
    half = Arithmetic("ieee", fp.FP16)
    a, b = codes((3, 6), fp.BF16, 1), codes((6, 4), fp.BF16, 2)
    gathered = Sum(Arithmetic("once", fp.FP32), "zero", "chain", (Gathered((Span(0, 2), Span(4, 6))),))
    inner = Sum(half, "zero", "chain", (Steps(0, 1, 3, 1),), half)
    nodes: list[Node] = [
        Sum(FLOAT32, "first", "butterfly", (Steps(0, 1, 5, 1), gathered), half),
        Sum(FLOAT32, "zero", "chain", (inner, Steps(3, 1, 3, 1)), half),
        Round(fp.E5M2, Sum(half, "first", "pairwise", (gathered, Steps(0, 1, 6, 1)), half)),
    ]  # fmt: skip
    for root in nodes:
        made = Tree(6, root)
        got = fp.matmul(a, b, schedule=made, fmt=fp.BF16)
        want = evaluate(made, np.repeat(a, 4, 0), np.tile(b.T, (3, 1)), fmt=fp.BF16).view(f32).reshape(3, 4)
        assert_bits_equal(got.astype(f32), want)
