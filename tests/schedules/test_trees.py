"""Trees of additions: equal where they must be, true to what matmul computes, and told in sentences and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.schedules import Schedule, tree
from fpsim.schedules.trees.nodes import Steps, Sum, add_steps, extent
from fpsim.sums.accumulators import Accumulator
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.oracles.trees import evaluate
from tests.schedules.tree_cases import RUN, schedules_of

# shapes here are not those that a library would choose a kernel for
pytestmark = pytest.mark.filterwarnings("ignore:cuBLAS takes nvjet")


s = fp.schedules


Array = npt.NDArray[Any]


E4M3, F16, BF16 = "hopper_e4m3_f32", "hopper_f16_f32", "hopper_bf16_f32"


LENGTHS = (1, 7, 33, 65, 127, 128, 129, 300, 641)


def codes(fmt: fp.Format, shape: tuple[int, ...], seed: int) -> Array:
    """Normal numbers over many binades, with zeros of both signs; in BF16 so small that products underflow."""
    rng = np.random.default_rng(seed)
    spread = 60 if fmt == fp.BF16 else 8
    x = rng.standard_normal(shape) * 2.0 ** (
        rng.integers(-spread, 8, shape) - (40 if fmt == fp.BF16 and seed % 2 else 0)
    )
    x[rng.random(shape) < 0.1] = -0.0
    return fp.encode(x.astype(np.float32), fmt, overflow="saturate")


def same(x: Array, y: Array) -> bool:
    """Whether float32 numbers have equal bits, NaNs being equal."""
    fp.testing.assert_bits_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))
    return True


def values(found: Array) -> Array:
    """Bits as float32 numbers."""
    return np.asarray(found, np.uint32).view(np.float32)


# ---- equal trees


@pytest.mark.parametrize("k", [1, 31, 32, 100, 128])
def test_two_levels_within_one_block_are_one_chain(k: int) -> None:
    assert tree(s.cutlass_2xacc(128), k) == tree(s.FLAT, k) == tree(s.cublas(), k, accumulate=E4M3)


def test_what_cannot_matter_does_not_show() -> None:
    assert tree("hopper_f16_f32", 300) == tree("blackwell_f16_f32", 300)
    assert tree(s.deepgemm(), 1000, scaled=False) == tree(s.cutlass_2xacc(128), 1000) == tree(s.torch_rowwise(), 1000)
    assert tree(s.cublas(), 1000, accumulate=E4M3) == tree(s.cutlass_2xacc(128), 1000)
    on_blackwell = tree(s.cublas("sm_100"), 1024, accumulate="blackwell_e4m3_f32")
    assert on_blackwell == tree(s.FLAT, 1024, accumulate="blackwell_e4m3_f32")
    assert tree(s.cublas(family="magma"), 77) == tree(fp.FusedMultiplyAdd("fp32"), 77) == tree("cdna1_f32_f32", 77)
    assert tree(s.triton(128), 999) == tree(s.FLAT, 999) == tree(s.cublas(fast_accum=True), 999, accumulate=E4M3)
    assert tree(s.cublas(split_k=9), 64) == tree(s.cublas(), 64)
    assert tree(s.cublas(family="dot", split_k=9), 100) == tree(s.cublas(family="dot"), 100)
    assert tree(s.cublas(family="cutlass", stages=13), 640) == tree(s.cublas(), 640)


def test_roundings_to_the_output_show_only_where_it_is_shorter() -> None:
    merges = [s.cublas(family="cutlass", stages=13, split_k=2, merge=merge) for merge in (0, 2, 4)]
    assert len({tree(each, 300) for each in merges}) == 1
    assert len({tree(each, 300, out_fmt="fp16") for each in merges}) == 3
    assert tree(s.FLAT, 64, out_fmt="bf16").fmt == fp.BF16


def test_a_minus_zero_that_may_come_is_not_normalised_away() -> None:
    lanes = s.cublas(family="gemm_sn")  # its totals start at +0
    assert isinstance(tree(lanes, 600, accumulate=BF16).root, Sum)
    assert tree(lanes, 600, accumulate=BF16) != tree(lanes, 600, accumulate=F16)


def test_equal_sequences_of_steps_have_one_form() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        wanted = [int(rng.integers(0, 4)) for _ in range(rng.integers(1, 12))]
        one_by_one: list[Any] = []
        for start in wanted:
            add_steps(one_by_one, Steps(start, 1, 1, 0))
        in_runs: list[Any] = []
        i = 0
        while i < len(wanted):
            j = i + 1
            while j < len(wanted) and wanted[j] - wanted[j - 1] == wanted[min(i + 1, len(wanted) - 1)] - wanted[i]:
                j += 1
            j = int(rng.integers(i + 1, j + 1))
            stride = wanted[i + 1] - wanted[i] if j > i + 1 else 0
            add_steps(in_runs, Steps(wanted[i], 1, j - i, stride))
            i = j
        assert in_runs == one_by_one


# ---- trees and bits


@in_turn("schedule, unit", RUN)
@in_turn("out_fmt", [None, "fp16"])
@sweep("whole", False, True)
def test_the_tree_is_what_matmul_computes(schedule: Schedule, unit: str, out_fmt: str | None, whole: bool) -> None:
    of, step = fp.unit(unit), 1 if out_fmt is None else 3
    lengths = LENGTHS[:: step if schedule.slicing.count < 100 else 4]
    if not whole:  # every second one, odd ones with half of the schedules
        lengths = lengths[len(str(schedule)) % 2 :: 2]
    for i, k in enumerate(lengths):
        for n in (1, 2) if whole else (1 + i % 2,):
            a, b = codes(of.a.fmt, (2, k), k), codes(of.b.fmt, (n, k), k + 2)
            how = tree(schedule, k, n=n, accumulate=of, out_fmt=out_fmt)
            wanted = evaluate(how, np.repeat(a, n, 0), np.tile(b, (2, 1)), unit=of)
            got = fp.matmul(a, b.T, accumulate=of, schedule=schedule, out_fmt=out_fmt, strict=False)
            assert same(got.astype(np.float32).reshape(-1), values(wanted)), (k, n)


def test_trees_of_float32_products_are_cut_by_the_width_of_float32() -> None:
    how, k = fp.schedules.cublas(family="cutlass_fp32", split_k=3), 100  # 100 terms: slices of 36 float32, 40 of FP16
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(shape, np.float32) for shape in ((4, k), (k, 8)))
    want = fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd("fp32"), schedule=how)
    assert np.array_equal(fp.matmul(a, b, schedule=tree(how, k)), want)
    text = str(fp.schedules.explain(how, 4, 8, k))
    assert "terms 0..35, 36..71, 72..99." in text
    assert "Refused" not in text
    tf32 = fp.schedules.cublas(family="cutlass_tf32", split_k=3)
    for pair in ((how, tf32), (tf32, how)):
        assert fp.schedules.compare(*pair, k).sentence.startswith("terms 0..35: ")


@in_turn("k", [65, 200, 320, 449])
def test_slices_without_terms_count_where_merges_pair_them(k: int) -> None:
    """Tiles of 64 terms go to eight slices in turn, and the order of the merge depends on the number of slices."""
    unit, schedule = fp.unit("ada_e4m3_f32"), s.cublas("sm_89", split_k=8, merge="pairwise")
    a, b = codes(fp.E4M3, (64, k), 1), codes(fp.E4M3, (64, k), 2)
    whole = fp.matmul(a, b.T, accumulate=unit, schedule=schedule, strict=False)
    assert same(values(evaluate(tree(schedule, k, accumulate=unit), a, b, unit=unit)), whole.diagonal())


@in_turn("merge", ["output", "in_place"])
def test_rounded_slices_of_multiply_adds_have_their_own_terms(merge: Any) -> None:
    """The first slice was the sum of all of K."""
    a, b = np.arange(1, 60, dtype=np.float32)[np.newaxis], np.ones((59, 2), np.float32)
    schedule, unit = Schedule("own", slicing=s.Slicing(2, merge=merge)), "cdna1_f32_f32"
    want = fp.matmul(a, b, accumulate=unit, schedule=schedule, out_fmt="bf16")
    by_tree = tree(schedule, 59, accumulate=unit, out_fmt="bf16")
    assert_bits_equal(fp.matmul(a, b, accumulate=unit, schedule=by_tree), want)
    assert abs(float(want[0, 0]) - a.sum()) < 8


@in_turn(
    "sums, unit, tiny",
    [(s.Chain(), "cdna1_f32_f32", 2.0**-100), (s.Chain(4, first_as_is=True), "arm_bf16_f32", 2.0**-20)],
)  # fmt: skip
def test_slices_without_terms_are_plus_zero(sums: Any, unit: str, tiny: float) -> None:
    """Three of four slices of 2 terms are empty; the sum of the other is rounded to -0, and -0 + +0 is +0."""
    fmt = fp.unit(unit).a.fmt
    a, b = (fp.cast(np.full(shape, x), fmt) for shape, x in (((1, 2), tiny), ((2, 3), -(2.0**-100))))
    schedule = Schedule("own", sums=sums, slicing=s.Slicing(4, 1, "rounds", merge="output"))
    got = fp.matmul(a, b, accumulate=unit, schedule=schedule, out_fmt="e4m3")
    assert not np.signbit(got.astype(np.float32)).any()
    by_tree = tree(schedule, 2, accumulate=unit, out_fmt="e4m3")
    assert_bits_equal(fp.matmul(a, b, accumulate=unit, schedule=by_tree), got)


def test_lanes_of_slices_that_are_dealt_out_are_refused() -> None:
    """Only the first run of each slice was added."""
    with pytest.raises(ValueError, match="lanes add slices of consecutive terms"):
        Schedule("own", sums=s.Lanes(2), slicing=s.Slicing(3, 4, "interleaved"))
    assert Schedule("own", sums=s.Lanes(2), slicing=s.Slicing(1, 4, "interleaved")).slicing.count == 1


def test_a_butterfly_of_lanes_starts_at_its_lanes() -> None:
    a, b = np.full((1, 8), 2.0**-100, np.float32), np.full((8, 2), -(2.0**-100), np.float32)  # products are -0
    lanes = [s.Lanes(4, merge="butterfly", lanes_from_zero=from_zero) for from_zero in (False, True)]
    plain, from_zero = (Schedule("own", sums=of, operands="fp32") for of in lanes)
    assert tree(plain, 8) == tree(from_zero, 8)
    got = fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd("fp32"), schedule=from_zero)
    assert np.signbit(got).all()


def test_no_terms_are_plus_zero() -> None:
    everything: list[Any] = [
        *(schedule for schedule, _ in RUN),
        s.deepgemm(),
        fp.Pairwise("fp16"),
        fp.Exact("bf16"),
        E4M3,
    ]
    for how in everything:
        root = tree(how, 0)
        assert root == tree(fp.Sequential(root.fmt), 0)
        assert evaluate(root, np.zeros((1, 0), np.uint8), np.zeros((1, 0), np.uint8), unit=E4M3)[0] == 0


@pytest.mark.parametrize("order", ["product", "a_first", "b_first"])
def test_scales_meet_partial_sums_as_in_the_tree(order: Any) -> None:
    a, b = codes(fp.E4M3, (3, 384), 0), codes(fp.E4M3, (3, 384), 1)
    rng = np.random.default_rng(2)
    p, q = rng.uniform(0.5, 2, (2, 3)).astype(np.float32)
    schedule = s.cutlass_blockwise(order)
    wanted = evaluate(tree(schedule, 384), a, b, unit=E4M3, scale_a=p, scale_b=q)
    got = fp.matmul(
        a, b.T, accumulate=E4M3, schedule=schedule, scale_a=np.tile(p, (3, 1)), scale_b=np.tile(q[:, None], (1, 3))
    )  # fmt: skip
    assert same(np.diag(got), values(wanted))


@pytest.mark.parametrize(
    "accumulator",
    [fp.Sequential("fp16"), fp.Sequential("bf16", rounding="toward_zero"), fp.FusedMultiplyAdd("fp32"),
     fp.Pairwise("fp16"), fp.Chunked("bf16", chunk=8, outer="fp32"), fp.Chunked("fp16", chunk=64), fp.Exact("fp16")],
    ids=repr,
)  # fmt: skip
def test_accumulators_add_as_their_trees_do(accumulator: Accumulator) -> None:
    for k in (1, 2, 7, 33, 64):
        a, b = (fp.encode(fp.decode(codes(fp.E4M3, (4, k), seed), fp.E4M3), fp.FP16) for seed in (k, k + 1))
        wanted = evaluate(tree(accumulator, k), a, b, fmt=fp.FP16)
        got = [
            fp.dot(x.view(np.float16), y.view(np.float16), accumulate=accumulator) for x, y in zip(a, b, strict=True)
        ]
        assert same(np.array(got).astype(np.float32), values(wanted))


@pytest.mark.parametrize("unit", [F16, BF16])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 31, 33, 64, 65, 100, 130])
def test_equal_trees_give_equal_bits(unit: str, k: int) -> None:
    of = fp.unit(unit)
    data = [(codes(of.a.fmt, (8, k), seed), codes(of.b.fmt, (8, k), seed)[::-1].T) for seed in range(4)]
    seen: dict[Any, tuple[Schedule, list[Array]]] = {}
    for schedule in schedules_of():
        bits = [fp.matmul(a, b, accumulate=of, schedule=schedule, strict=False) for a, b in data]
        first = seen.setdefault(tree(schedule, k, n=8, accumulate=of), (schedule, bits))
        assert all(same(x, y) for x, y in zip(bits, first[1], strict=True)), (schedule, first[0])
    chain = fp.FusedMultiplyAdd("fp32")
    formats = (of.a.fmt, of.b.fmt)
    assert all(
        same(fp.matmul(a, b, accumulate=chain, fmt=formats), bits)
        for (a, b), bits in zip(data, seen[tree(chain, k)][1], strict=True)
    )
    assert k < 3 or len(seen) > 3


@pytest.mark.parametrize("fmt", [fp.FP16, fp.E4M3, fp.E2M1, fp.E4M3FNUZ], ids=str)
def test_one_chunk_adds_as_a_sequence_does(fmt: fp.Format) -> None:
    whole, chunk = fp.Sequential(fmt), fp.Chunked(fmt, 64)
    a, b = codes(fp.FP16, (50, 33), 1), codes(fp.FP16, (33, 50), 2)
    assert tree(whole, 33) == tree(chunk, 33)
    x, y = (fp.matmul(a, b, accumulate=each, fmt=fp.FP16) for each in (whole, chunk))
    assert (x.view(fmt.storage) == y.view(fmt.storage)).all()
    assert tree(fp.Sequential(fmt, subnormals="flush"), 33) != tree(fp.Chunked(fmt, 64, subnormals="flush"), 33)


@pytest.mark.parametrize(
    ("x", "y", "k"),
    [(s.FLAT, s.cutlass_2xacc(128), 256), (s.cublas(), s.cublas(split_k=2), 256),
     (s.cublas(), s.cublas(family="cutlass", stages=13), 84), (s.cublas(family="magma"), s.cublas(), 32),
     (s.cublas(family="gemv", option=10), s.cublas(family="gemv", option=36), 256),
     (s.cutlass_2xacc(64), s.cutlass_2xacc(128), 256)],
    ids=str,
)  # fmt: skip
def test_trees_that_differ_give_other_bits_somewhere(x: Schedule, y: Schedule, k: int) -> None:
    unit = fp.unit(E4M3 if "cutlass_2xacc" in f"{x} {y}" else F16)
    a, b = codes(unit.a.fmt, (64, k), 1), codes(unit.b.fmt, (64, k), 2)
    one, other = (evaluate(tree(each, k, accumulate=unit), a, b, unit=unit) for each in (x, y))
    assert not s.compare(x, y, k, accumulate=unit).equal
    assert (one != other).any()


def test_lost_terms_do_not_matter() -> None:
    how = tree(s.cublas(split_k=9), 11528)
    assert how.lost == ((11520, 11528),)
    assert extent(how.root) == (0, 11520, 11520)
    assert tree(s.cublas(split_k=9, tail_loss=False), 11528).lost == ()
    rng = np.random.default_rng(3)
    a = rng.standard_normal((1, 11528)).astype(np.float16)
    b = rng.standard_normal((11528, 8)).astype(np.float16)
    without = b.copy()
    without[11520:] = 0
    x, y = (fp.matmul(a, each, accumulate=F16, schedule=s.cublas(split_k=9)) for each in (b, without))
    assert same(x, y)


@pytest.mark.parametrize("unit", ["x86_amx_bf16_f32", "x86_avx512_bf16_f32", "cdna1_f32_f32"])
def test_the_terms_of_a_tuple_are_added_in_their_order_by_a_unit(unit: str) -> None:
    """They were sorted, which units that chain terms, or add even and odd ones apart, show."""
    how = fp.unit(unit)
    a, b = (fp.encode(np.random.default_rng(seed).standard_normal((100, 4)), how.a.carrier) for seed in (1, 2))
    orders: dict[int, Any] = {1: ((3, 1), (2, 0)), 2: ((3, 1), 2, 0)}
    order = orders.get(how.terms, (3, 1, 2, 0))
    if how.terms == 1:  # two chains, whose sums are added
        parts = [fp.dot_add(a[:, list(pair)], b[:, list(pair)], None, how).view(np.float32) for pair in order]
        want = parts[0] + parts[1]
    else:
        want = fp.dot_add(a[:, [3, 1, 2, 0]], b[:, [3, 1, 2, 0]], None, how).view(np.float32)
    got = [
        fp.matmul(x[np.newaxis], y[:, np.newaxis], accumulate=how, schedule=order)[0, 0]
        for x, y in zip(a, b, strict=True)
    ]
    assert_bits_equal(np.array(got, np.float32), want)


def test_an_instruction_in_fp16_does_not_start_at_a_float32_sum() -> None:
    with pytest.raises(
        ValueError, match="adds products to a sum in FP16; got the sum of two, which are added in float32"
    ):
        tree(((0, 1), (2, 3)), accumulate="ampere_f16_f16") and tree((((0, 1), (2, 3)), 4), accumulate="ampere_f16_f16")
