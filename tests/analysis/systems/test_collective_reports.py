"""Collectives: published errors, reports, and inputs that are refused."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.systems.collectives.exact import Sums
from tests.analysis.systems.collective_cases import draws, followed, simulated_ring
from tests.kit.sweeps import in_turn

C = fp.analysis.collectives


# ---- published figures


def test_the_error_of_a_bf16_ring_grows_as_the_square_root_of_the_ranks() -> None:
    # Megatron-LM issue 6199: N(0, 1), 8 32 128 512 ranks: ring .0037 .0070 .0135 .0265, one-shot float32 .0016
    report = C.growth("bf16", (8, 32, 128, 512), size=8192)
    ring, tree, one_shot = report.errors
    assert np.allclose(ring, [0.0037, 0.0070, 0.0135, 0.0265], rtol=0.05)
    assert np.allclose(one_shot, 0.0016, atol=0.0001)
    assert np.allclose([tree[0], tree[-1]], [0.0031, 0.0054], rtol=0.05)
    assert report.exponents["ring"] == pytest.approx(0.5, abs=0.04)
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
    report = C.report(x, "bf16", ["ring", "direct"], permutations=4)
    assert report.rows[0].order_changed == 1
    assert report.rows[1].order_changed == 0
    assert report.rows[1].exact_share == 1


# ---- reports


def test_a_report_counts_bits_and_errors() -> None:
    x = draws(32, 500)
    report = C.report(x, "bf16", permutations=2)
    names = [row.algorithm for row in report.rows]
    assert names == ["ring", "tree", "recursive_halving", "two_level", "direct in FP32", "direct"]
    ring, tree = (C.all_reduce(x, "bf16", algorithm=name)[0] for name in ("ring", "tree"))
    assert report.differing[0][1] == (ring.view(np.uint16) != tree.view(np.uint16)).mean()
    exact = x.astype(np.float64).sum(0)
    error = ring.astype(np.float64) - exact
    assert report.rows[0].relative_error == pytest.approx(np.linalg.norm(error) / np.linalg.norm(exact), rel=1e-12)
    shards = [np.linalg.norm(error[p]) / np.linalg.norm(exact[p]) for p in np.array_split(np.arange(500), 32)]
    assert report.rows[0].worst_rank == int(np.argmax(shards))
    assert report.best.algorithm.startswith("direct")
    assert report.worst.algorithm == "ring"
    odd = C.report(draws(12, 10), "bf16", permutations=0)
    assert [row.algorithm for row in odd.rows] == ["ring", "tree", "direct in FP32", "direct"]
    assert math.isnan(odd.rows[0].order_changed)


def test_reports_come_back_from_files_and_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib").use("Agg")
    checked = C.report(draws(4, 50), "bf16", permutations=1)
    checked.save(tmp_path / "r.json")
    assert C.CollectiveReport.load(tmp_path / "r.json") == checked
    assert len(checked.to_frame()) == 6
    assert len(checked.to_frame(by="pair")) == 15
    grown = C.growth("bf16", (2, 4), size=64)
    grown.save(tmp_path / "g.json")
    assert C.CollectiveGrowth.load(tmp_path / "g.json") == grown
    assert len(grown.to_frame()) == 6
    for report in (checked, grown):
        report.plot()
        assert "table" in report._repr_html_()
    with pytest.raises(ValueError, match=r"r\.json: wanted a report on the growth"):
        C.CollectiveGrowth.load(tmp_path / "r.json")
    with pytest.raises(ValueError, match=r"must end in \.json"):
        checked.save(tmp_path / "r.txt")


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


@in_turn(
    "call, message",
    [
        (lambda: C.all_reduce(np.ones((6, 4)), "bf16", algorithm="recursive_halving"), "power of two .*; got 6"),
        (lambda: C.all_reduce(np.ones((12, 4)), "bf16", algorithm="two_level"), "12 ranks, not a multiple of 8"),
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
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", accumulate=fp.Exact("fp32")), "accumulate must be a format"),  # type: ignore[arg-type]
        (lambda: C.all_reduce(np.ones((4, 2)), "e8m0"), "a format with a sign and a zero"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", rounding="SR"), "needs a seed"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", algorithm=C.Ring(rings=((0, 1, 2, 2),))), "0 .. 3 once"),
        (lambda: C.Ring(channels=2, rings=((0, 1),)), "permutation of the ranks for each of 2 channels"),
        (lambda: C.grid_all_reduce(np.ones((4, 2)), "bf16", (3, 2)), "4 entries, one for each rank; got 3 x 2 = 6"),
        (lambda: C.grid_all_reduce(np.ones((4, 2)), "bf16", (4, 0)), "two integers >= 1"),
        (lambda: C.report(np.ones((6, 4)), "bf16", ["recursive_halving"]), "power of two"),
        (lambda: C.report(np.ones((6, 4)), "bf16", []), "must name one or more"),
        (lambda: C.report(np.ones((6, 4)), "bf16", permutations=10**9), r"in 0 \.\. 1,000,000; got 1000000000"),
        (lambda: C.all_reduce(np.ones((4, 2)), "bf16", overflow="rais"), "raise, nonfinite.*Did you mean 'raise'"),
        (lambda: C.growth("bf16", ()), "one or more numbers of ranks"),
        (lambda: C.growth("bf16", (2,), []), "algorithms must name one or more"),
        (
            lambda: C.all_reduce(np.ones((4, 2)), "bf16", accumulate="e8m0"),
            "accumulate must be .* sign and a zero; got E8M0",
        ),
        (lambda: C.growth("bf16", (2,), size=10**30), r"size must be at most 2\*\*31 elements; got 10+"),
    ],
)
def test_what_cannot_be_reduced_is_refused_in_a_sentence(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_one_or_any_several_algorithms_and_numbers_of_ranks_are_compared() -> None:
    iterator: Any = iter(["ring", "tree"])
    assert [row.algorithm for row in C.report(np.ones((4, 2)), "bf16", iterator).rows] == ["ring", "tree"]
    numbers: Any = np.array([4, 2])
    assert C.growth("bf16", numbers, "ring", size=8) == C.growth("bf16", (2, 4), ["ring"], size=8)


def test_integers_are_no_contributions() -> None:
    with pytest.raises(TypeError, match="array of float16"):
        C.all_reduce(np.ones((4, 2), np.uint8), "e4m3")
    with pytest.raises(TypeError, match="Pass its values"):
        C.all_reduce({0: np.ones(2), 1: np.ones(2)}, "bf16")


def test_sums_without_a_relative_error_are_said_to_be() -> None:
    for x in (np.zeros((4, 5)), np.full((64, 5), 448.0)):
        report = C.report(x, "e4m3", ["ring", "tree"])
        assert "no relative error is defined" in str(report)
        assert math.isnan(report.best.relative_error)


def test_a_report_on_one_algorithm_and_rank_compares_nothing() -> None:
    report = C.report(np.array([[1.01, 2]], np.float32), "e4m3", ["ring"], permutations=0)
    assert str(report) == "2 E4M3 elements of 1 rank: ring has a relative error of 0.0045."
    both = C.report(np.array([[1.01, 2]], np.float32), "e4m3", ["ring", "tree"], permutations=0)
    assert str(both) == "2 E4M3 elements of 1 rank: all 2 algorithms have a relative error of 0.0045."
    assert "ring (0.002 at 2)" in str(C.growth("bf16", ranks=2, size=4))  # type: ignore[arg-type]


def test_thousands_of_ranks_are_reduced_in_little_memory() -> None:
    pool = draws(1, 1512)[0]
    for algorithm in ("ring", "tree", "two_level", "direct"):
        got = C.all_reduce(lambda r: pool[r // 10 : r // 10 + 512], "bf16", algorithm=algorithm, ranks=3000)
        assert got.shape == (3000, 512)
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


@pytest.mark.parametrize(("fmt", "is_named"), [("fp16", True), ("bf16", False), ("fp32", False)])
def test_an_overflow_advises_a_format_of_more_range_only(fmt: str, is_named: bool) -> None:
    with pytest.raises(C.CollectiveOverflowError, match="Scale contributions down") as caught:
        C.all_reduce(np.full((4, 2), fp.format(fmt).max), fmt)
    assert ("such as BF16" in str(caught.value)) == is_named


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("rounding", "value", "sum_of_it"),
    [
        ("toward_zero", 7.5, 6), ("up", -7.5, -6), ("down", 7.5, 6), ("odd", 7.5, 6), ("nearest_even", 6.5, 6),
        ("toward_zero", 8.0, None), ("up", 6.5, None), ("down", -6.5, None), ("nearest_even", 7.0, None),
        ("nearest_even", np.nan, 6),
    ],
)  # fmt: skip
def test_contributions_overflow_where_their_rounding_does(rounding: str, value: float, sum_of_it: int | None) -> None:
    x = np.array([[value], [0]], np.float32)
    if sum_of_it is None:
        with pytest.raises(C.CollectiveOverflowError, match="is out of its range"):
            C.all_reduce(x, "e2m1", rounding=rounding)
    else:
        assert float(C.all_reduce(x, "e2m1", rounding=rounding)[0, 0]) == sum_of_it


def test_infinite_contributions_are_no_overflow_of_a_format_without_inf() -> None:
    assert C.all_reduce(np.array([[np.inf, 1], [1, 1]], np.float32), "e2m1")[0].astype(float).tolist() == [6, 2]


def test_errors_are_relative_to_contributions_of_any_dtype_and_size() -> None:
    tiny = np.array([1e-9, 1e-9])
    for parts in ([np.array([1, 1], np.float32), tiny], [tiny, np.array([1, 1], np.float32)]):
        (row,) = C.report(parts, "fp32", ["ring"]).rows
        assert row.relative_error == pytest.approx(1e-9 / (1 + 1e-9), rel=1e-12)
    (row,) = C.report(np.full((3, 4), 1e-200), "fp32", ["ring"]).rows
    assert (row.relative_error, row.worst_rank_error) == (1, 1)


def test_formats_with_more_range_than_float32_are_added() -> None:
    fmt = fp.Format("wide", exponent_bits=10, mantissa_bits=5)
    x = np.array([[2.0**300, 3.0], [2.0**300, 4.0]])
    for algorithm in ("ring", "direct"):
        sums = C.all_reduce(x, fmt, algorithm=algorithm)[0]
        assert fp.decode(sums, fmt, np.float64).tolist() == [2.0**301, 7.0]
    assert [row.relative_error for row in C.report(x, fmt).rows] == [0] * 6


def test_algorithms_with_numbers_of_numpy_have_plain_names() -> None:
    number: Any = np.int64(2)
    (row,) = C.report(np.ones((2, 4), np.float32), "bf16", [C.Ring(chunk=number)]).rows
    assert row.algorithm == "ring(chunk=2)"


@pytest.mark.parametrize("algorithm", ["ring", "tree", "two_level", "direct", C.ReductionTree("double_binary")])
def test_errors_of_stochastic_overflows_name_the_addition(algorithm: Any) -> None:
    x = np.zeros((8, 64), np.float32)
    x[0], x[1] = 40000, 25520  # 65520, halfway between FP16's largest value and the next power of two
    for seed in range(3):
        with pytest.raises(C.CollectiveOverflowError, match=r"contribution \(25520\)|one rank rounded the sum"):
            C.all_reduce(x, "fp16", algorithm=algorithm, rounding="stochastic", seed=seed)


@pytest.mark.filterwarnings("error")
def test_rows_that_hold_no_terms_are_not_converted() -> None:
    sums = Sums(3)
    sums._rows.view(np.uint32)[...] = 0x7F800001  # signalling NaNs, as fresh memory may hold them
    sums.next_row()[...] = [1, 2, 3]
    sums.widen()
    sums.next_row()[...] = [0.5, 2.0**-40, 0]
    sums.flush()
    assert (sums.high + sums.low).tolist() == [1.5, 2 + 2.0**-40, 3]


@pytest.mark.parametrize("average", ["divide_after", "divide_before", "multiply_before"])
def test_means_in_fp64_and_their_errors_are_exact(average: str) -> None:
    x = np.random.default_rng(0).standard_normal((3, 20))
    means = C.all_reduce(x, "fp64", algorithm="direct", average=average)[0]
    exact = [sum(map(Fraction, column.tolist())) / 3 for column in x.T]
    squares = sum((Fraction(float(mean)) - want) ** 2 for mean, want in zip(means, exact, strict=True))
    report = C.report(x, "fp64", ["direct"], average=average)
    want = math.sqrt(squares / sum(want**2 for want in exact))
    assert math.isclose(report.rows[0].relative_error, want, rel_tol=1e-9)
    with pytest.raises(ValueError, match="average in FP64 is rounded to nearest even; got rounding='up'"):
        C.all_reduce(x, "fp64", average=average, rounding="up")
