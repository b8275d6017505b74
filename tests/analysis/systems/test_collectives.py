"""Collectives against plain simulations: one rank at a time, messages in lists, additions of one slice each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.systems.collectives import algorithms
from fpsim.analysis.systems.collectives.rounding import CAST, SEND, step_seed
from tests.analysis.systems.collective_cases import draws, followed, hop, simulated_ring
from tests.kit.sweeps import in_turn

C = fp.analysis.collectives


Array = Any


FORMATS = ["bf16", "fp16", "e5m2", "e4m3", "fp32"]


def simulated_binomial(x: Array, accumulate: str | None = None) -> Array:
    """Return what each rank holds: at distances 1, 2, 4, ... ranks send to those below them, then rank 0 broadcasts."""
    held, distance = list(x.copy()), 1
    while distance < len(held):
        for r in range(0, len(held) - distance, 2 * distance):
            held[r] = hop(held[r], held[r + distance], accumulate)
        distance *= 2
    return np.stack([held[0]] * len(held))


def simulated_halving(x: Array, accumulate: str | None = None) -> Array:
    """Return what each rank holds after exchanges of halves of the buffer, and the all-gather that mirrors them."""
    ranks, n = x.shape
    held, spans = [row.copy() for row in x], [(0, n)] * ranks
    distance = ranks // 2
    while distance:
        before = [row.copy() for row in held]
        for r in range(ranks):
            start, stop = spans[r]
            middle = (start + stop) // 2
            mine = slice(start, middle) if not r & distance else slice(middle, stop)
            held[r][mine] = hop(before[r][mine], before[r ^ distance][mine], accumulate)
            spans[r] = (mine.start, mine.stop)
        distance //= 2
    result = np.empty(n, x.dtype)
    for r in range(ranks):
        result[slice(*spans[r])] = held[r][slice(*spans[r])]
    return np.stack([result] * ranks)


def simulated_grid(x: Array, rows: int, columns: int) -> Array:
    """Return what each rank holds: rings in rows scatter, rings in columns reduce shards, rows gather."""
    n = x.shape[1]
    edges = np.cumsum([0, *(len(part) for part in np.array_split(np.arange(n), columns))])
    of_rows = [simulated_ring(x[i * columns : (i + 1) * columns])[0] for i in range(rows)]
    result = np.empty(n, x.dtype)
    for j in range(columns):
        shard = slice(edges[j], edges[j + 1])
        result[shard] = simulated_ring(np.stack([row[shard] for row in of_rows]))[0]
    return np.stack([result] * len(x))


def simulated_double_tree(x: Array, accumulate: str | None = None) -> Array:
    """Return what ranks hold after NCCL's two binary trees, from its rule for parents, one tree for each half."""
    ranks, n = x.shape

    def parent(position: int) -> int:
        bit = 1
        while not position & bit:
            bit *= 2
        up = (position ^ bit) | (bit * 2)
        return up if up < ranks else position ^ bit

    def total(position: int, place: Any, part: slice) -> Array:
        children = sorted(p for p in range(1, ranks) if parent(p) == position)
        terms = [x[place(position), part], *(total(child, place, part) for child in children)]
        if accumulate is None or len(terms) < 3:
            report = terms[0]
            for term in terms[1:]:
                report = hop(report, term, accumulate)
            return report
        wide = fp.convert(terms[0], accumulate)
        for term in terms[1:]:
            wide = fp.add(wide, fp.convert(term, accumulate))
        return fp.convert(wide, fp.format(x.dtype))

    second = (lambda i: (i - 1) % ranks) if ranks % 2 else (lambda i: ranks - 1 - i)
    half = -(-n // 2)
    both = [total(0, lambda i: i, slice(0, half)), total(0, second, slice(half, n))]
    return np.stack([np.concatenate(both)] * ranks)


# ---- bits


@in_turn("fmt", FORMATS)
@in_turn("ranks, n", [(1, 3), (2, 5), (5, 3), (7, 64), (8, 64)])
def test_a_ring_gives_the_bits_of_messages_between_neighbours(fmt: str, ranks: int, n: int) -> None:
    x = draws(ranks, n, fmt)
    fp.testing.assert_bits_equal(C.all_reduce(x, fmt), simulated_ring(x))


@in_turn("first", [1, 3, 9])
@in_turn("accumulate", [None, "fp32", "fp16"])
def test_a_ring_begins_where_first_says_and_adds_in_the_accumulation_format(first: int, accumulate: str | None) -> None:
    x = draws(6, 50, "e4m3")
    got = C.all_reduce(x, "e4m3", algorithm=C.Ring(first=first), accumulate=accumulate)
    fp.testing.assert_bits_equal(got, simulated_ring(x, first, accumulate))


def test_channels_turns_and_rings_are_rings_of_parts_of_the_buffer() -> None:
    x, rings = draws(4, 101), ((2, 0, 3, 1), (3, 2, 1, 0))
    got = C.all_reduce(x, "bf16", algorithm=C.Ring(channels=2, rings=rings))
    for channel, part in zip(rings, (slice(0, 51), slice(51, 101)), strict=True):
        want = simulated_ring(x[list(channel)][:, part])[0]
        fp.testing.assert_bits_equal(got[0, part], want)
    got = C.all_reduce(x, "bf16", algorithm=C.Ring(chunk=10))[0]
    for start in (0, 40):
        fp.testing.assert_bits_equal(got[start : start + 40], simulated_ring(x[:, start : start + 40])[0])
    last = x[:, 80:]  # 21 elements in chunks of 10: two whole ones, one of 1, one of none
    want = [last[c % 4, s].copy() for c, s in enumerate((slice(0, 10), slice(10, 20), slice(20, 21)))]
    for c, s in enumerate((slice(0, 10), slice(10, 20), slice(20, 21))):
        for step in range(1, 4):
            want[c] = fp.add(want[c], last[(c + step) % 4, s])
    fp.testing.assert_bits_equal(got[80:], np.concatenate(want))


@in_turn("accumulate", [None, "fp32"])
@in_turn("ranks", [1, 2, 3, 6, 8, 13])
def test_a_tree_gives_the_bits_of_messages_to_ranks_below(ranks: int, accumulate: str | None) -> None:
    x = draws(ranks, 40)
    fp.testing.assert_bits_equal(
        C.all_reduce(x, "bf16", algorithm="tree", accumulate=accumulate), simulated_binomial(x, accumulate)
    )


@in_turn("accumulate", [None, "fp32"])
@in_turn("ranks", [1, 2, 3, 6, 8, 13, 16])
def test_double_binary_trees_add_children_where_nccl_has_them(ranks: int, accumulate: str | None) -> None:
    x = draws(ranks, 41, "e5m2")
    got = C.all_reduce(x, "e5m2", algorithm=C.ReductionTree("double_binary"), accumulate=accumulate)
    fp.testing.assert_bits_equal(got, simulated_double_tree(x, accumulate))


@in_turn("accumulate", [None, "fp32"])
@in_turn("ranks", [1, 2, 8, 16])
def test_recursive_halving_gives_the_bits_of_exchanged_halves(ranks: int, accumulate: str | None) -> None:
    x = draws(ranks, 64)
    got = C.all_reduce(x, "bf16", algorithm="recursive_halving", accumulate=accumulate)
    fp.testing.assert_bits_equal(got, simulated_halving(x, accumulate))


def test_folding_adds_neighbours_before_halves_are_exchanged() -> None:
    x = draws(6, 32)
    folded = np.stack([fp.add(x[0], x[1]), fp.add(x[2], x[3]), x[4], x[5]])
    got = C.all_reduce(x, "bf16", algorithm=C.RecursiveHalving(fold=True))
    fp.testing.assert_bits_equal(got[0], simulated_halving(folded)[0])


@in_turn("rows, columns", [(2, 4), (3, 5), (4, 1), (1, 4)])
def test_two_levels_give_the_bits_of_rings_in_rows_and_columns(rows: int, columns: int) -> None:
    x = draws(rows * columns, 61)
    want = simulated_grid(x, rows, columns)
    fp.testing.assert_bits_equal(C.all_reduce(x, "bf16", algorithm=C.TwoLevel(columns)), want)
    fp.testing.assert_bits_equal(C.grid_all_reduce(x, "bf16", (rows, columns)), want)


@pytest.mark.parametrize("element", [-1, 8])
def test_an_element_outside_of_the_buffer_has_no_order(element: int) -> None:
    double = algorithms.ReductionTree("double_binary")
    for algorithm in (*algorithms.FLAT.values(), double, algorithms.TwoLevel(ranks_per_node=2)):
        with pytest.raises(IndexError, match=f"element {element} is outside 0 .. 8"):
            algorithm.order(element, 8, 4)


@in_turn("inside", ["ring", "tree", "recursive_halving", "direct"])
@in_turn("between", ["ring", "tree", "recursive_halving", "direct"])
def test_two_levels_follow_their_own_order(inside: str, between: str) -> None:
    x, algorithm = draws(16, 37), C.TwoLevel(4, inside, between)
    got = C.all_reduce(x, "bf16", algorithm=algorithm)[0]
    for element in (0, 9, 10, 20, 36):
        fp.testing.assert_bits_equal(got[element : element + 1], followed(algorithm.order(element, 37, 16), x, element))


@in_turn("rounding", ["nearest_even", "toward_zero", "up", "down", "odd"])
@in_turn("fmt", FORMATS)
def test_direct_is_the_exact_sum_rounded_once(fmt: str, rounding: str) -> None:
    x = np.concatenate([draws(9, 200, fmt), fp.cast(np.zeros((9, 1)), fmt), fp.cast(np.full((9, 1), -0.0), fmt)], 1)
    want = fp.sum(np.ascontiguousarray(x.T), accumulate=fp.Exact(fmt, rounding=rounding), axis=1)
    fp.testing.assert_bits_equal(C.all_reduce(x, fmt, algorithm="direct", rounding=rounding)[0], want)


def test_direct_is_exact_where_two_float64_numbers_are_not() -> None:
    x = np.array([[2.0**120], [2.0**50], [2.0**-60], [-(2.0**120)], [-(2.0**50)], [2.0**-61]], np.float32)
    x = np.concatenate([x, x[::-1], np.full((6, 1), 3.0, np.float32)], axis=1)
    got = C.all_reduce(x, "fp32", algorithm="direct")[0]
    assert got.tolist() == [2.0**-60 + 2.0**-61, 2.0**-60 + 2.0**-61, 18.0]


def test_direct_in_a_format_adds_in_ascending_order_of_ranks() -> None:
    x = draws(40, 30)
    for accumulate in ("fp32", "fp16", "bf16"):
        total = fp.convert(x[0], accumulate)
        for row in x[1:]:
            total = fp.add(total, fp.convert(row, accumulate) if accumulate != "fp16" else fp.convert(row, "fp16"))
        want = fp.convert(total, "bf16")
        got = C.all_reduce(x, "bf16", algorithm="direct", accumulate=accumulate)[0]
        if accumulate != "fp16":  # which does not hold every BF16 value
            fp.testing.assert_bits_equal(got, want)


def test_infinities_and_nan_that_come_in_go_through() -> None:
    x = np.array([[np.inf, np.nan, -0.0, 1], [1, 1, -0.0, 1], [1, 1, -0.0, 1], [-np.inf, 1, -0.0, 1]], np.float32)
    for algorithm in ("ring", "tree", "recursive_halving", "two_level", "direct", C.ReductionTree("double_binary")):
        for accumulate in (None, "fp32"):
            got = C.all_reduce(x, "bf16", algorithm=algorithm, accumulate=accumulate)[2]
            assert np.isnan(got[:2].astype(np.float32)).all()
            assert got[2:].view(np.uint16).tolist() == [0x8000, 0x4080], (algorithm, accumulate)


# ---- rounding, means, sources


def test_contributions_are_rounded_to_the_format_first() -> None:
    x = np.random.default_rng(1).standard_normal((5, 33))
    for algorithm in ("ring", "tree", "direct"):
        fp.testing.assert_bits_equal(
            C.all_reduce(x, "bf16", algorithm=algorithm), C.all_reduce(fp.cast(x, "bf16"), "bf16", algorithm=algorithm)
        )


@in_turn("rounding", ["toward_zero", "up", "down", "nearest_away", "odd"])
def test_every_addition_rounds_in_the_mode(rounding: str) -> None:
    x = draws(4, 21)
    total = [x[c, part] for c, part in enumerate(np.array_split(np.arange(21), 4))]
    for c, part in enumerate(np.array_split(np.arange(21), 4)):
        for step in range(1, 4):
            total[c] = fp.add(total[c], x[(c + step) % 4, part], rounding=rounding)
    fp.testing.assert_bits_equal(C.all_reduce(x, "bf16", rounding=rounding)[0], np.concatenate(total))


def test_random_bits_are_those_of_rank_and_element() -> None:
    x = np.random.default_rng(2).standard_normal((4, 22)).astype(np.float32)
    rows = [fp.encode(x[r], "bf16", rounding="SR", seed=step_seed(5, r, CAST)) for r in range(4)]
    chunk = np.repeat(np.arange(4), [6, 6, 5, 5])
    total = np.choose(chunk, rows)
    for step in range(1, 4):
        for rank in range(4):  # whole buffers, of which the chunks that this rank joins at this step count
            sums = fp.add(total, rows[rank], fmt="bf16", rounding="SR", seed=step_seed(5, rank))
            total = np.where((chunk + step) % 4 == rank, sums, total)
    got = C.all_reduce(x, "bf16", rounding="SR", seed=5)
    fp.testing.assert_bits_equal(got[0], total.view(ml_dtypes.bfloat16))
    wide = C.all_reduce(x, "bf16", rounding="SR", seed=5, accumulate="fp32", algorithm="tree")[3]
    parts = []
    for a, b in ((0, 1), (2, 3)):
        sums = fp.add(rows[a], rows[b], fmt="bf16", out_fmt="fp32")
        parts.append(fp.convert(sums, "bf16", fmt="fp32", rounding="SR", seed=step_seed(5, b, SEND)))
    sums = fp.add(*parts, fmt="bf16", out_fmt="fp32")
    want = fp.convert(sums, "bf16", fmt="fp32", rounding="SR", seed=step_seed(5, 2, SEND))
    fp.testing.assert_bits_equal(wide, want.view(ml_dtypes.bfloat16))


@pytest.mark.parametrize("algorithm", ["ring", "tree", "direct", "two_level"])
def test_stochastic_sums_are_unbiased_where_nearest_ones_stagnate(algorithm: str) -> None:
    x = np.ones((1024, 64), np.float32)
    sums = C.all_reduce(x, "bf16", algorithm=algorithm, rounding="SR", seed=0)[0].astype(float)
    assert abs(sums.mean() / 1024 - 1) < 0.03
    if algorithm == "ring":
        assert (C.all_reduce(x, "bf16")[0].astype(float) == 256).all()


def test_a_mean_multiplies_or_divides_before_or_divides_after() -> None:
    x = draws(6, 20)
    factor = fp.cast(np.array([1 / 6], np.float64), "bf16")
    six = fp.cast(np.array([6], np.float32), "bf16")
    by = {
        "multiply_before": simulated_ring(fp.multiply(x, factor)),
        "divide_before": simulated_ring(fp.divide(x, six)),
        "divide_after": fp.divide(simulated_ring(x), six),
    }
    for average, want in by.items():
        fp.testing.assert_bits_equal(C.all_reduce(x, "bf16", average=average), want)
    assert len({want.tobytes() for want in by.values()}) == 3


def test_functions_sequences_iterators_and_tensors_give_the_bits_of_an_array() -> None:
    torch = pytest.importorskip("torch")
    x = draws(16, 30)

    def rows() -> Iterator[Array]:
        buffer = np.empty(30, x.dtype)
        for row in x:
            buffer[:] = row
            yield buffer

    for algorithm in ("ring", "tree", "recursive_halving", "two_level", "direct"):
        want = C.all_reduce(x, "bf16", algorithm=algorithm)
        for source, ranks in ((x.__getitem__, 16), (list(x), None), (rows(), None), (rows(), 16)):
            fp.testing.assert_bits_equal(C.all_reduce(source, "bf16", algorithm=algorithm, ranks=ranks), want)
        tensor = torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
        fp.testing.assert_bits_equal(C.all_reduce(tensor, "bf16", algorithm=algorithm), want)


@pytest.mark.parametrize("algorithm", ["ring", C.ReductionTree("double_binary"), "two_level", "direct"])
def test_functions_may_fill_one_array_again_and_again(algorithm: Any) -> None:
    x = draws(16, 30).astype(np.float32)
    buffer = np.empty(30, np.float32)

    def row(rank: int) -> Array:
        buffer[:] = x[rank]
        return buffer

    for accumulate in (None, "fp32"):
        settings: dict[str, Any] = {"algorithm": algorithm, "accumulate": accumulate}
        want = C.all_reduce(x, "fp32", **settings)
        fp.testing.assert_bits_equal(C.all_reduce(row, "fp32", ranks=16, **settings), want)


def test_contributions_may_be_tensors_with_gradients() -> None:
    torch = pytest.importorskip("torch")
    x = draws(4, 8).astype(np.float32)
    rows = [torch.tensor(row, requires_grad=True) for row in x]
    for source, ranks in ((rows, None), (iter(rows), None), (rows.__getitem__, 4)):
        fp.testing.assert_bits_equal(C.all_reduce(source, "bf16", ranks=ranks), C.all_reduce(x, "bf16"))


def test_rings_may_hold_integers_of_numpy() -> None:
    x = np.full((4, 2), 3e4, np.float32)
    rings = np.array([[2, 0, 3, 1]])
    assert C.Ring(rings=rings) == C.Ring(rings=((2, 0, 3, 1),))  # type: ignore[arg-type]
    with pytest.raises(C.CollectiveOverflowError, match="when rank 3's contribution"):
        C.all_reduce(x, "fp16", algorithm=C.Ring(rings=rings))  # type: ignore[arg-type]
    inside = C.TwoLevel(2, C.Ring(rings=(np.array([1, 0]),)))  # type: ignore[arg-type]
    want = C.all_reduce(x, "fp32", algorithm=C.TwoLevel(2, C.Ring(rings=((1, 0),))))
    fp.testing.assert_bits_equal(C.all_reduce(x, "fp32", algorithm=inside), want)


def test_a_long_iterator_goes_to_a_temporary_file(monkeypatch: pytest.MonkeyPatch) -> None:
    from fpsim.analysis.systems.collectives import contributions

    monkeypatch.setattr(contributions, "IN_MEMORY", 100)
    x = draws(9, 17)
    fp.testing.assert_bits_equal(C.all_reduce(iter(x), "bf16"), C.all_reduce(x, "bf16"))


def test_a_function_is_called_twice_a_rank_for_rings_and_nodes() -> None:
    x, calls = draws(16, 30), []

    def row(rank: int) -> Array:
        calls.append(rank)
        return x[rank]

    C.all_reduce(row, "bf16", ranks=16, overflow="nonfinite")
    assert len(calls) <= 34
    calls.clear()
    C.all_reduce(row, "bf16", ranks=16, algorithm="two_level", overflow="nonfinite")
    assert len(calls) <= 34
    calls.clear()
    C.all_reduce(row, "bf16", ranks=16, algorithm="tree", overflow="nonfinite")
    assert len(calls) <= 18


def test_the_result_is_a_view_of_one_buffer() -> None:
    got = C.all_reduce(draws(1000, 8), "bf16")
    assert got.shape == (1000, 8)
    assert got.strides[0] == 0
    assert not got.flags.writeable
    assert C.all_reduce(draws(2, 3), fp.Format("mine", 4, 5)).dtype == np.uint16
