"""Collectives against plain simulations: one rank at a time, messages in lists, additions of one slice each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.systems.collectives.rounding import CAST, SEND, step_seed

C = fp.analysis.collectives
Array = Any
FORMATS = ["bf16", "fp16", "e5m2", "e4m3", "fp32"]


def draws(ranks: int, n: int, fmt: str = "bf16", seed: int = 0) -> Array:
    """Return contributions that the format holds, in its dtype."""
    scale = 1.0 if fmt not in ("e4m3", "e5m2") else 0.5
    return fp.cast(np.random.default_rng(seed).standard_normal((ranks, n)) * scale, fmt)


def hop(a: Array, b: Array, accumulate: str | None = None) -> Array:
    """Add two arrays of a dtype as one rank does: in the accumulation format, then rounded to the dtype."""
    if accumulate is None:
        return fp.add(a, b)
    return fp.convert(fp.add(a, b, out_fmt=accumulate), fp.format(a.dtype))


def simulated_ring(x: Array, first: int = 0, accumulate: str | None = None) -> Array:
    """Return what each rank holds after reduce-scatter and all-gather, by messages between neighbours."""
    ranks, n = x.shape
    edges = [len(part) for part in np.array_split(np.arange(n), ranks)]
    starts = np.cumsum([0, *edges])
    held = [[x[r, starts[c] : starts[c + 1]].copy() for c in range(ranks)] for r in range(ranks)]
    for step in range(ranks - 1):
        # rank r sends chunk r - first - step to its neighbour, which adds its own
        sent = [(r - first - step) % ranks for r in range(ranks)]
        messages = [held[r][sent[r]].copy() for r in range(ranks)]
        for r in range(ranks):
            to, chunk = (r + 1) % ranks, sent[r]
            held[to][chunk] = hop(messages[r], held[to][chunk], accumulate)
    for step in range(ranks - 1):
        sent = [(r - first - (ranks - 1) - step) % ranks for r in range(ranks)]
        messages = [held[r][sent[r]].copy() for r in range(ranks)]
        for r in range(ranks):
            held[(r + 1) % ranks][sent[r]] = messages[r]
    return np.stack([np.concatenate(chunks) for chunks in held])


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
            found = terms[0]
            for term in terms[1:]:
                found = hop(found, term, accumulate)
            return found
        wide = fp.convert(terms[0], accumulate)
        for term in terms[1:]:
            wide = fp.add(wide, fp.convert(term, accumulate))
        return fp.convert(wide, fp.format(x.dtype))

    second = (lambda i: (i - 1) % ranks) if ranks % 2 else (lambda i: ranks - 1 - i)
    half = -(-n // 2)
    both = [total(0, lambda i: i, slice(0, half)), total(0, second, slice(half, n))]
    return np.stack([np.concatenate(both)] * ranks)


# ---- bits


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize(("ranks", "n"), [(1, 3), (2, 5), (5, 3), (7, 64), (8, 64)])
def test_a_ring_gives_the_bits_of_messages_between_neighbours(fmt: str, ranks: int, n: int) -> None:
    x = draws(ranks, n, fmt)
    fp.testing.assert_bits_equal(C.all_reduce(x, fmt), simulated_ring(x))


@pytest.mark.parametrize("first", [1, 3, 9])
@pytest.mark.parametrize("accumulate", [None, "fp32", "fp16"])
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


@pytest.mark.parametrize("accumulate", [None, "fp32"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 8, 13])
def test_a_tree_gives_the_bits_of_messages_to_ranks_below(ranks: int, accumulate: str | None) -> None:
    x = draws(ranks, 40)
    fp.testing.assert_bits_equal(
        C.all_reduce(x, "bf16", algorithm="tree", accumulate=accumulate), simulated_binomial(x, accumulate)
    )


@pytest.mark.parametrize("accumulate", [None, "fp32"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 6, 8, 13, 16])
def test_double_binary_trees_add_children_where_nccl_has_them(ranks: int, accumulate: str | None) -> None:
    x = draws(ranks, 41, "e5m2")
    got = C.all_reduce(x, "e5m2", algorithm=C.ReductionTree("double_binary"), accumulate=accumulate)
    fp.testing.assert_bits_equal(got, simulated_double_tree(x, accumulate))


@pytest.mark.parametrize("accumulate", [None, "fp32"])
@pytest.mark.parametrize("ranks", [1, 2, 8, 16])
def test_recursive_halving_gives_the_bits_of_exchanged_halves(ranks: int, accumulate: str | None) -> None:
    x = draws(ranks, 64)
    got = C.all_reduce(x, "bf16", algorithm="recursive_halving", accumulate=accumulate)
    fp.testing.assert_bits_equal(got, simulated_halving(x, accumulate))


def test_folding_adds_neighbours_before_halves_are_exchanged() -> None:
    x = draws(6, 32)
    folded = np.stack([fp.add(x[0], x[1]), fp.add(x[2], x[3]), x[4], x[5]])
    got = C.all_reduce(x, "bf16", algorithm=C.RecursiveHalving(fold=True))
    fp.testing.assert_bits_equal(got[0], simulated_halving(folded)[0])


@pytest.mark.parametrize(("rows", "columns"), [(2, 4), (3, 5), (4, 1), (1, 4)])
def test_two_levels_give_the_bits_of_rings_in_rows_and_columns(rows: int, columns: int) -> None:
    x = draws(rows * columns, 61)
    want = simulated_grid(x, rows, columns)
    fp.testing.assert_bits_equal(C.all_reduce(x, "bf16", algorithm=C.TwoLevel(columns)), want)
    fp.testing.assert_bits_equal(C.grid_all_reduce(x, "bf16", (rows, columns)), want)


@pytest.mark.parametrize("inside", ["ring", "tree", "recursive_halving", "direct"])
@pytest.mark.parametrize("between", ["ring", "tree", "recursive_halving", "direct"])
def test_two_levels_follow_their_own_order(inside: str, between: str) -> None:
    x, algorithm = draws(16, 37), C.TwoLevel(4, inside, between)
    got = C.all_reduce(x, "bf16", algorithm=algorithm)[0]
    for element in (0, 9, 10, 20, 36):
        fp.testing.assert_bits_equal(got[element : element + 1], followed(algorithm.order(element, 37, 16), x, element))


def followed(order: Any, x: Array, element: int) -> Array:
    """Return one element's sum in an order of ranks."""
    if isinstance(order, int):
        return x[order, element : element + 1]
    terms = [followed(operand, x, element) for operand in order]
    if type(order).__name__ == "ExactSum":
        return fp.sum(np.concatenate(terms), accumulate=fp.Exact("bf16")).reshape(1)
    total = terms[0]
    for term in terms[1:]:
        total = fp.add(total, term)
    return total


@pytest.mark.parametrize("rounding", ["nearest_even", "toward_zero", "up", "down", "odd"])
@pytest.mark.parametrize("fmt", FORMATS)
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


@pytest.mark.parametrize("rounding", ["toward_zero", "up", "down", "nearest_away", "odd"])
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


# ---- published figures


def test_the_error_of_a_bf16_ring_grows_as_the_square_root_of_the_ranks() -> None:
    # Megatron-LM issue 6199: N(0, 1), 8 32 128 512 ranks: ring .0037 .0070 .0135 .0265, one-shot float32 .0016
    found = C.growth("bf16", (8, 32, 128, 512), size=8192)
    ring, tree, one_shot = found.errors
    assert np.allclose(ring, [0.0037, 0.0070, 0.0135, 0.0265], rtol=0.05)
    assert np.allclose(one_shot, 0.0016, atol=0.0001)
    assert np.allclose([tree[0], tree[-1]], [0.0031, 0.0054], rtol=0.05)
    assert found.exponents["ring"] == pytest.approx(0.5, abs=0.04)
    # each level of a tree adds one rounding of equal size: 3 and 9 levels
    assert tree[-1] / tree[0] == pytest.approx(math.sqrt(9 / 3), rel=0.05)


def test_two_steps_on_a_grid_are_no_all_reduce() -> None:
    draw = np.random.default_rng(0)
    x = fp.quantize(draw.standard_normal((128, 1600)) / 2 + draw.standard_normal(1600), "bf16")
    exact = x.astype(np.float64).sum(0)

    def error(scheme: str) -> float:
        held = C.grid_all_reduce(x, "bf16", (16, 8), scheme=scheme).astype(np.float64)
        return float(np.linalg.norm(held - exact) / np.linalg.norm(exact) / math.sqrt(128))

    assert error("three_steps") < 0.005
    assert error("rows_only") == pytest.approx(1 - 1 / 16, abs=0.01)  # one row of sixteen: 0.94
    assert error("two_steps") > 0.9
    held = C.grid_all_reduce(x[:4], "bf16", (2, 2), scheme="two_steps")
    sums = [simulated_ring(fp.cast(x[i : i + 2], "bf16"))[0] for i in (0, 2)]
    fp.testing.assert_bits_equal(held[1], np.concatenate([sums[0][800:], sums[1][800:]]))
    fp.testing.assert_bits_equal(held[2], np.concatenate([sums[0][:800], sums[1][:800]]))


def test_256_and_many_ones_depend_on_where_256_stands() -> None:
    x = np.ones((300, 1), np.float32)
    x[0] = 256
    assert C.all_reduce(x, "bf16")[0, 0] == 256
    found = C.report(x, "bf16", ["ring", "direct"], permutations=4)
    assert found.rows[0].order_changed == 1
    assert found.rows[1].order_changed == 0
    assert found.rows[1].exact_share == 1


# ---- reports


def test_a_report_counts_bits_and_errors() -> None:
    x = draws(32, 500)
    found = C.report(x, "bf16", permutations=2)
    names = [row.algorithm for row in found.rows]
    assert names == ["ring", "tree", "recursive_halving", "two_level", "direct in FP32", "direct"]
    ring, tree = (C.all_reduce(x, "bf16", algorithm=name)[0] for name in ("ring", "tree"))
    assert found.differing[0][1] == (ring.view(np.uint16) != tree.view(np.uint16)).mean()
    exact = x.astype(np.float64).sum(0)
    error = ring.astype(np.float64) - exact
    assert found.rows[0].relative_error == pytest.approx(np.linalg.norm(error) / np.linalg.norm(exact), rel=1e-12)
    shards = [np.linalg.norm(error[p]) / np.linalg.norm(exact[p]) for p in np.array_split(np.arange(500), 32)]
    assert found.rows[0].worst_rank == int(np.argmax(shards))
    assert found.best.algorithm.startswith("direct")
    assert found.worst.algorithm == "ring"
    odd = C.report(draws(12, 10), "bf16", permutations=0)
    assert [row.algorithm for row in odd.rows] == ["ring", "tree", "direct in FP32", "direct"]
    assert math.isnan(odd.rows[0].order_changed)


def test_reports_come_back_from_files_and_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    found = C.report(draws(4, 50), "bf16", permutations=1)
    found.save(tmp_path / "r.json")
    assert C.CollectiveReport.load(tmp_path / "r.json") == found
    assert len(found.to_frame()) == 6
    assert len(found.to_frame(by="pair")) == 15
    grown = C.growth("bf16", (2, 4), size=64)
    grown.save(tmp_path / "g.json")
    assert C.CollectiveGrowth.load(tmp_path / "g.json") == grown
    assert len(grown.to_frame()) == 6
    for report in (found, grown):
        report.plot()
        assert "table" in report._repr_html_()
    with pytest.raises(ValueError, match=r"r\.json: wanted a report on the growth"):
        C.CollectiveGrowth.load(tmp_path / "r.json")
    with pytest.raises(ValueError, match=r"must end in \.json"):
        found.save(tmp_path / "r.txt")


# ---- bad input


def test_an_overflow_is_refused_with_the_place_where_it_happened() -> None:
    x = np.ones((6, 12), np.float32)
    x[:, 7] = [3e4, 1, 1, 3e4, 1, 3e4]
    with pytest.raises(
        C.CollectiveOverflowError, match=r"element 7 overflowed FP16 when rank 0's contribution \(30000\)"
    ):
        C.all_reduce(x, "fp16")
    with pytest.raises(
        ValueError, match=r"the sum of 2 ranks from rank 4 on \(30000\) was added to the sum of 4 ranks \(60000\)"
    ):
        C.all_reduce(x, "fp16", algorithm="tree")
    with pytest.raises(OverflowError, match=r"when one rank rounded the sum of 6 \(90003\)"):
        C.all_reduce(x, "fp16", algorithm="direct")
    with pytest.raises(OverflowError, match=r"rank 3's contribution 1e\+06 is out of its range"):
        C.all_reduce(np.where(np.arange(6)[:, None] == 3, 1e6, x), "fp16", algorithm="tree")
    with pytest.raises(OverflowError, match="12 of 12 elements overflow"):
        C.all_reduce(np.full((8, 12), 448.0), "e4m3")
    assert np.isinf(C.all_reduce(x, "fp16", overflow="nonfinite")[0, 7])
    assert C.all_reduce(x, "fp16", overflow="saturate")[0, 7] == 65504
    assert C.all_reduce(x, "fp16", average="multiply_before")[0, 7] == pytest.approx(15000, rel=0.01)


def test_an_overflow_is_found_in_formats_without_infinity_and_nan() -> None:
    x = np.ones((8, 5), np.float32)
    assert (fp.decode(C.all_reduce(x[:6], "e2m1", algorithm="tree"), "e2m1") == 6).all()
    x[2, 3] = 4
    with pytest.raises(OverflowError, match="element 3 overflowed E2M1 when"):
        C.all_reduce(x[:6], "e2m1", algorithm="tree")
    with pytest.raises(OverflowError, match="out of its range"):
        C.all_reduce(np.array([[9.0]], np.float32), "e2m1")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: C.all_reduce(np.ones((6, 4)), "bf16", algorithm="recursive_halving"),
            "power of two .*; got 6",
        ),
        (lambda: C.all_reduce(np.ones((12, 4)), "bf16", algorithm="two_level"), "12 ranks, which is no multiple of 8"),
        (lambda: C.all_reduce(np.ones((12, 4)), "bf16", algorithm=C.TwoLevel(5)), r"TwoLevel\(ranks_per_node=6\)"),
        (lambda: C.all_reduce(np.ones(4), "bf16"), r"shape \(ranks, n\)"),
        (lambda: C.all_reduce(np.ones((0, 4)), "bf16"), "1 to 1,048,576 ranks; got 0"),
        (lambda: C.all_reduce(np.ones((4, 0)), "bf16"), "one or more elements"),
        (lambda: C.all_reduce([np.ones(3), np.ones(4)], "bf16"), "one size; got 3 elements for rank 0 and 4"),
        (lambda: C.all_reduce(iter([np.ones(3), np.ones(4)]), "bf16"), "one shape and dtype"),
        (lambda: C.all_reduce(iter([]), "bf16"), "one or more elements"),
        (lambda: C.all_reduce(lambda r: np.ones(3), "bf16"), "ranks must be the number of contributions"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", ranks=5), "a row for each of 5 ranks; got 4"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", algorithm="rings"), "Did you mean 'ring'"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", average="mean"), "average must be one of multiply_before"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", accumulate=fp.Exact("fp32")), "accumulate must be a format"),
        (lambda: C.all_reduce(np.ones((4, 2)), "e8m0"), "a format with a sign and a zero"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", rounding="SR"), "needs a seed"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", algorithm=C.Ring(rings=((0, 1, 2, 2),))), "0 .. 3 once"),
        (lambda: C.Ring(channels=2, rings=((0, 1),)), "permutation of the ranks for each of 2 channels"),
        (lambda: C.grid_all_reduce(np.ones((4, 2)), "bf16", (3, 2)), "a place for each of 4 ranks; got 3 x 2 = 6"),
        (lambda: C.grid_all_reduce(np.ones((4, 2)), "bf16", (4, 0)), "two integers >= 1"),
        (lambda: C.report(np.ones((6, 4)), "bf16", ["recursive_halving"]), "power of two"),
        (lambda: C.report(np.ones((6, 4)), "bf16", []), "must name one or more"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", overflow="rais"), "raise, nonfinite.*Did you mean 'raise'"),
        (lambda: C.growth("bf16", ()), "one or more numbers of ranks"),
    ],
)
def test_what_cannot_be_reduced_is_refused_in_a_sentence(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_are_no_contributions() -> None:
    with pytest.raises(TypeError, match="array of float16"):
        C.all_reduce(np.ones((4, 2), np.uint8), "e4m3")
    with pytest.raises(TypeError, match="Pass its values"):
        C.all_reduce({0: np.ones(2), 1: np.ones(2)}, "bf16")


def test_sums_without_a_relative_error_are_said_to_be() -> None:
    for x in (np.zeros((4, 5)), np.full((64, 5), 448.0)):
        found = C.report(x, "e4m3", ["ring", "tree"])
        assert "no relative error is defined" in str(found)
        assert math.isnan(found.best.relative_error)


def test_thousands_of_ranks_are_reduced_in_little_memory() -> None:
    pool = draws(1, 1512)[0]
    for algorithm in ("ring", "tree", "two_level", "direct"):
        got = C.all_reduce(lambda r: pool[r // 10 : r // 10 + 512], "bf16", algorithm=algorithm, ranks=10000)
        assert got.shape == (10000, 512)
        assert got.base is not None
        assert got.base.nbytes <= 512 * 2


def random_algorithm(source: Any, ranks: int) -> Any:
    """Return an algorithm of one level with settings drawn at random."""
    name = source.choice(["ring", "tree", "double", "halving", "direct"])
    if name != "ring":
        return {"tree": C.ReductionTree(), "double": C.ReductionTree("double_binary"), "direct": C.Direct(),
                "halving": C.RecursiveHalving(fold=True)}[name]  # fmt: skip
    channels = int(source.integers(1, 4))
    rings = tuple(tuple(source.permutation(ranks).tolist()) for _ in range(channels))
    return C.Ring(channels, source.choice([None, 1, 2, 5]), int(source.integers(5)), source.choice([0, 1]) * rings)


def test_every_setting_adds_in_the_order_that_it_states() -> None:
    source = np.random.default_rng(0)
    for case in range(150):
        node, nodes, n = (int(x) for x in source.integers(1, [5, 6, 30]))
        ranks, fmt = node * nodes, "bf16"
        flat = random_algorithm(source, ranks)
        levels = C.TwoLevel(node, random_algorithm(source, node), random_algorithm(source, nodes))
        algorithm = levels if source.random() < 0.4 else flat
        x = draws(ranks, n, fmt, case)
        got = C.all_reduce(x, fmt, algorithm=algorithm)[0]
        want = np.concatenate([followed(algorithm.order(element, n, ranks), x, element) for element in range(n)])
        fp.testing.assert_bits_equal(got, want)
