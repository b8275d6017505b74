"""Eigen's products: what Eigen gave on a processor, bit for bit, orders written out, and regions of a result."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.schedules.plan import Span
from fpsim.schedules.regions import Lane
from fpsim.schedules.written import parsed
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import Array, MmCase, digest, operands, shapes

s = fp.schedules
loose: Any = fp
BUILDS = [("avx512", "3.4"), ("avx2", "3.4"), ("avx512", "5.0"), ("avx2", "5.0")]
SHAPES = shapes(200, seed=42)
CACHES = ((48 << 10, 2 << 20, 260 << 20), (32 << 10, 256 << 10, 2 << 20), (32 << 10, 512 << 10, 0))


def library(isa: str, version: str, number: int) -> fp.schedules.ShapedSchedule:
    """Return the schedules with the settings of a recorded product: threads, storage order and caches take turns."""
    l1, l2, l3 = CACHES[number % 3]
    major = "row" if number % 2 else "column"
    made: fp.schedules.ShapedSchedule = loose.schedules.eigen(
        isa, 1 + number // 2 % 3, version=version, major=major, l1=l1, l2=l2, l3=l3
    )
    return made


def floats(number: int) -> tuple[Array, Array]:
    """Return operands of a recorded product, which cancel."""
    a, b = operands(MmCase(*SHAPES[number], "fp32"), 10 * number)
    return a.view(np.float32), b.view(np.float32)


@cache
def recorded() -> dict[str, Array]:
    """Return what Eigen gave on an Intel Emerald Rapids (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "eigen.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def compare_with_recorded(isa: str, version: str, numbers: range) -> tuple[int, list[int]]:
    """Return how many products are declined, and the numbers of those whose predicted bits are not Eigen's."""
    declined, wrong = 0, []
    for i in numbers:
        if library(isa, version, i).declines(*SHAPES[i], "fp32"):
            declined += 1
        elif digest(fp.matmul(*floats(i), schedule=library(isa, version, i))) != recorded()[f"{isa} {version}"][i]:
            wrong.append(i)
    return declined, wrong


@in_turn("isa, version", BUILDS)
def test_products_of_eigen_are_predicted_bit_for_bit(isa: str, version: str) -> None:
    for i in range(0, 48, 3):
        if np.prod(SHAPES[i]) < 1_000_000:
            assert compare_with_recorded(isa, version, range(i, i + 1))[1] == []


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "version"), BUILDS)
def test_of_200_shapes_of_eigen_none_is_wrong_or_declined(isa: str, version: str) -> None:
    declined, wrong = compare_with_recorded(isa, version, range(200))
    assert wrong == []
    assert declined == 0  # no shape has one row or column, or is tiny


def test_versions_and_instructions_of_eigen_give_other_bits() -> None:
    rows = [recorded()[f"{isa} {version}"] for isa, version in BUILDS]
    assert np.array_equal(rows[1], rows[3])  # AVX2: the same kernels in both versions
    for other in rows[1:3]:
        assert np.count_nonzero(rows[0] != other) > 100


def test_storage_order_and_caches_decide_the_order() -> None:
    def order(row: int, column: int, **settings: Any) -> fp.schedules.SegmentLanes:
        schedule = loose.schedules.eigen("avx2", **settings).at(37, 6, 500, "fp32").schedule
        made: fp.schedules.SegmentLanes = schedule.order_at(row, column)
        return made

    assert order(0, 0) == s.SegmentLanes((256, 244), "chain")  # of at most (49152 - 384) / 112 = 435
    assert order(36, 0).lanes == "vectors"
    assert order(36, 4).lanes == "chain"  # columns beyond a multiple of 4
    assert order(33, 0).lanes == "even_odd"
    assert [order(*at, major="row").lanes for at in ((0, 0), (0, 5), (36, 0))] == ["even_odd", "vectors", "chain"]
    assert order(0, 0, l1=1 << 20).lengths == (500,)


# ---- orders, written out


def dots(a: Array, b: Array, terms: list[int], start: Array | float = 0.0) -> Array:
    """Return a chain of fp.fma over terms of rows a and b (R, K)."""
    total = np.broadcast_to(np.float32(start), (len(a),))
    for k in terms:
        total = fp.fma(a[:, k], b[:, k], np.ascontiguousarray(total))
    return total


def even_odd(a: Array, b: Array, terms: list[int]) -> Array:
    turns = len(terms) - len(terms) % 8
    joined = dots(a, b, terms[:turns:2]) + dots(a, b, terms[1:turns:2])
    return dots(a, b, terms[turns:], joined)


def vectors(a: Array, b: Array, terms: list[int], width: int) -> Array:
    turns, whole = len(terms) - len(terms) % (4 * width), len(terms) - len(terms) % width
    lanes = []
    for lane in range(width):
        v = [dots(a, b, terms[i * width + lane : turns : 4 * width]) for i in range(4)]
        lanes.append(dots(a, b, terms[turns + lane : whole : width], (v[0] + v[1]) + (v[2] + v[3])))
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    return dots(a, b, terms[whole:], lanes[0])


def joined_by_halves(lanes: list[Array]) -> Array:
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    return lanes[0]


def first_apart(a: Array, b: Array, terms: list[int], width: int) -> Array:
    total, terms = a[:, terms[0]] * b[:, terms[0]], terms[1:]
    whole = len(terms) - len(terms) % width
    for part in (terms[:whole], terms[whole:]):
        lanes = [dots(a, b, part[lane::width], total if lane == 0 else 0.0) for lane in range(width)]
        total = joined_by_halves(lanes)
    return total


def narrowing(a: Array, b: Array, terms: list[int], width: int) -> Array:
    wide = len(terms) - len(terms) % width
    narrow = len(terms) - len(terms) % (width // 4)
    total = np.zeros(len(a), np.float32)
    for part, lanes in ((terms[:wide], width), (terms[wide:narrow], width // 8)):
        total = total + joined_by_halves([dots(a, b, part[lane::lanes]) for lane in range(lanes)])
    return dots(a, b, terms[narrow:], total)


def dealt(a: Array, b: Array, terms: list[int], width: int, vectors: int = 1) -> list[Array]:
    whole = 0 if vectors == 1 else len(terms) - len(terms) % (vectors * width)
    lanes = []
    for lane in range(width):
        runs = [dots(a, b, terms[lane + i * width : whole : vectors * width]) for i in range(vectors)]
        lanes.append(dots(a, b, terms[whole + lane :: width], sum(runs[1:], runs[0])))
    return lanes


def quarters(a: Array, b: Array, terms: list[int], width: int) -> Array:
    lanes = dealt(a, b, terms, width)
    fours: list[Array] = [sum(lanes[i + 4 :: 4], lanes[i]) for i in range(4)]
    total: Array = (fours[0] + fours[1]) + (fours[2] + fours[3])
    return total


def turned(terms: list[int]) -> list[int]:
    return [k for i in range(0, len(terms), 2) for k in terms[i : i + 2][::-1]]


def pairs_dealt(a: Array, b: Array, terms: list[int], width: int) -> Array:
    lanes = []
    for lane in range(width):
        mine = [k for i in range(2 * lane, len(terms), 2 * width) for k in turned(terms[i : i + 2])]
        lanes.append(dots(a, b, mine))
    sums = [lanes[i] + lanes[i + width // 2] for i in range(width // 2)]
    while len(sums) > 1:
        sums = [x + y for x, y in zip(sums[::2], sums[1::2], strict=True)]
    return sums[0]


def eights(a: Array, b: Array, terms: list[int]) -> Array:
    total, whole = np.zeros(len(a), np.float32), len(terms) - len(terms) % 8
    for i in range(0, whole, 8):
        t = terms[i : i + 8]
        pairs = [dots(a, b, [t[y]], a[:, t[x]] * b[:, t[x]]) for x, y in ((7, 5), (2, 0), (3, 1))]
        total = (dots(a, b, [t[6], t[4]], total) + pairs[0]) + (pairs[1] + pairs[2])
    return dots(a, b, terms[whole:], total)


@in_turn(
    "lanes, width, lengths",
    [
        ("chain", 1, (9, 4)), ("even_odd", 1, (24,)), ("even_odd", 1, (21, 7)), ("vectors", 4, (39, 3)),
        ("vectors", 2, (8, 11)), ("vectors", 1, (9,)), ("first_apart", 4, (23,)), ("narrowing", 16, (43, 6)),
        ("dealt", 8, (21, 3)), ("quarters", 16, (39, 5)), ("first_added", 4, (23, 1)),
        ("first_added_pairs", 4, (31, 5)), ("eights", 1, (19, 16)),
        ("odd_first", 1, (9, 6)), ("pairs_dealt", 4, (19, 7)),
    ],
)  # fmt: skip
def test_segments_in_lanes_are_added_as_written_out(lanes: Lane, width: int, lengths: tuple[int, ...]) -> None:
    k = sum(lengths)
    a, b = (x.view(np.float32) for x in operands(MmCase(6, 6, k, "fp32"), 5))
    rows, columns = np.repeat(a, 6, axis=0), np.tile(b.T, (6, 1))
    written: dict[str, Callable[[list[int]], Array]] = {
        "chain": lambda terms: dots(rows, columns, terms), "even_odd": lambda terms: even_odd(rows, columns, terms),
        "vectors": lambda terms: vectors(rows, columns, terms, width),
        "first_apart": lambda terms: first_apart(rows, columns, terms, width),
        "narrowing": lambda terms: narrowing(rows, columns, terms, width),
        "dealt": lambda terms: joined_by_halves(dealt(rows, columns, terms, width)),
        "quarters": lambda terms: quarters(rows, columns, terms, width),
        "first_added": lambda terms: (
            rows[:, terms[0]] * columns[:, terms[0]] + joined_by_halves(dealt(rows, columns, terms[1:], width))
        ),
        "first_added_pairs": lambda terms: (
            rows[:, terms[0]] * columns[:, terms[0]] + joined_by_halves(dealt(rows, columns, terms[1:], width, 2))
        ),
        "eights": lambda terms: eights(rows, columns, terms),
        "odd_first": lambda terms: dots(rows, columns, turned(terms)),
        "pairs_dealt": lambda terms: pairs_dealt(rows, columns, terms, width),
    }  # fmt: skip
    want, start = np.zeros(36, np.float32), 0
    for length in lengths:
        want = want + written[lanes](list(range(start, start := start + length)))
    order = s.SegmentLanes(lengths, lanes, width)
    got = fp.matmul(a, b, schedule=s.tree(order, k))
    assert_bits_equal(got, want.reshape(6, 6))
    one = s.ResultRegion((Span(0, 6),), (Span(0, 6),), order)
    assert_bits_equal(fp.matmul(a, b, schedule=s.Regions(6, 6, k, (one,))), got)


def test_a_sum_of_eigen_is_never_minus_zero() -> None:
    a, b = np.full((20, 40), -1e-30, np.float32), np.full((40, 20), 1e-30, np.float32)
    assert_bits_equal(fp.matmul(a, b, schedule=s.eigen()), np.zeros((20, 20), np.float32))


# ---- fp.matmul


def test_regions_take_out_a_result_format_and_no_other_arguments() -> None:
    a, b = floats(7)
    how = library("avx2", "3.4", 7)
    got = fp.matmul(a, b, schedule=how)
    out = np.empty_like(got)
    assert fp.matmul(a, b, schedule=how, out=out) is out
    assert_bits_equal(out, got)
    assert_bits_equal(fp.matmul(a, b, schedule=how, out_fmt="bf16"), fp.cast(got, fp.BF16))
    for name, value, words in (
        ("accumulate", fp.Sequential(fp.FP32), "accumulate is chosen by eigen("), ("alpha", 2.0, "alpha is not known"),
        ("bias", np.zeros(got.shape[1], np.float32), "how eigen('avx2'"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as refused:
            loose.matmul(a, b, schedule=how, **{name: value})
        assert words in str(refused.value)


X = np.ones((20, 30), np.float32)
ONE = s.ResultRegion((Span(0, 20),), (Span(0, 20),), s.SegmentLanes((30,)))
LOOSE: Any = ONE
PLAIN = s.Regions(20, 20, 30, (ONE,))


@in_turn(
    "call, words",
    [
        (lambda: fp.matmul(X, X.T, schedule=PLAIN, accumulate=fp.Sequential(fp.FP32)), "includes its arithmetic"),
        (lambda: fp.matmul(X, X.T, X @ X.T, schedule=PLAIN), "regions have no place for c. Add it to the result."),
        (lambda: fp.matmul(X, X.T, schedule=PLAIN, alpha=2.0), "alpha is for matrix units"),
        (lambda: fp.matmul(X[:9], X.T, schedule=PLAIN), "is for one shape; got operands of 9 x 20 x 30."),
        (lambda: fp.matmul(X, X, schedule=PLAIN), "(20, 30)"),
        (lambda: s.Regions(20, 21, 30, (ONE,)), "every element must be in one region; (0, 20) is in 0."),
        (lambda: s.Regions(20, 20, 30, (ONE, ONE)), "every element must be in one region; (0, 0) is in 2."),
        (lambda: s.Regions(20, 19, 30, (ONE,)), "regions must lie in the result of 20 x 19"),
        (lambda: s.Regions(20, 20, 31, (ONE,)), "is for K = 30; got a product of K = 31."),
        (lambda: s.Regions(20, 20, 30, (LOOSE._replace(order=5),)), "order of a region must be an fp.schedules.Segm"),
        (lambda: s.Regions(20, 20, 30, (LOOSE._replace(rows=((0, 20),)),)), "of a region must be tuples of Span; got"),
        (lambda: s.Lanes(128, merge="blocks"), "got merge='blocks' and blocks=0."),
        (lambda: s.Lanes(128, blocks=1), "got merge='forward' and blocks=1."),
        (lambda: s.Lanes(6, merge="butterfly"), "count must be a power of two for the merge 'butterfly'; got 6."),
        (lambda: s.Lanes(64, merge="blocks", blocks=2), "count must be 128 for the merge 'blocks'; got 64."),
        (lambda: s.tree(s.SegmentLanes((1 << 30,), "odd_first"), 1 << 30), "about 1073741825. Take a smaller k."),
        (lambda: s.tree(s.segments(1 << 22, odd_first=True), 1 << 22), "which has about 2097153. Take a smaller k."),
        (lambda: PLAIN.order_at(0, 20), "element (0, 20) is outside the result of 20 x 20."),
        (lambda: s.SegmentLanes(()), "lengths must have the terms of a segment or more; got none."),
        (lambda: s.SegmentLanes((3,), "vectors", 3), "width must be a power of two for the lanes 'vectors'"),
        (lambda: s.SegmentLanes((3,), "narrowing", 4), "width must be 8 or more for the lanes 'narrowing'; got 4."),
        (lambda: s.SegmentLanes((3,), "chain", 2), "and 1 for others; got 2 for 'chain'."),
        (lambda: loose.schedules.SegmentLanes((3,), "pairs"), "lanes must be one of chain, even_odd, vectors"),
        (lambda: s.tree(s.SegmentLanes((3,)), 4), "adds 3 terms; got k=4."),
        (lambda: loose.schedules.tree(PLAIN, 30), "Pass its .order_at(row, column) to fp.schedules.tree."),
        (lambda: loose.schedules.eigen("sse"), "isa must be one of avx512, avx2; got 'sse'"),
        (lambda: loose.schedules.eigen(version="4"), "version must be one of 3.4, 5.0; got '4'"),
        (lambda: loose.schedules.eigen(major="c"), "major must be one of column, row; got 'c'"),
        (lambda: loose.schedules.eigen(l3=-1), "l3 must be an integer >= 0; got -1"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_in_a_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError)) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@in_turn(
    "made, shape, missing",
    [
        (s.eigen(), (9, 9, 9, "bf16"), "products of float32 are known"),
        (s.eigen(), (1, 90, 90, "fp32"), "how gemv adds one row or one column is not known"),
        (s.eigen(), (6, 6, 7, "fp32"), "how Eigen adds products of M + N + K < 20 is not known"),
        (s.eigen(threads=2, l2=200 << 10), (90, 90, 90, "fp32"), "need an L2 larger than 4 times L1"),
    ],
)
def test_a_shape_without_a_proven_rule_is_declined_in_a_sentence(
    made: fp.schedules.ShapedSchedule, shape: Any, missing: str
) -> None:
    assert made.declines(*shape).endswith(f"{missing}.")


def test_names_say_what_was_passed() -> None:
    assert str(s.eigen()) == "eigen('avx512')"
    full = s.eigen("avx2", 2, version="5.0", major="row", l1=32 << 10, l2=1 << 20, l3=0)
    assert str(full) == "eigen('avx2', threads=2, version='5.0', major='row', l1=32768, l2=1048576, l3=0)"
    assert parsed(str(full)) == full
    assert str(full.at(30, 30, 3000, "fp32").schedule) == "Regions(30 x 30 x 3000, 3 orders)"
    assert len(str(s.SegmentLanes((8,) * 50))) < 60
