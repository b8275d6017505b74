"""Trees of additions: equal where they must be, true to what matmul computes, and told in sentences and pictures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.schedules import Comparison, Schedule, tree
from fpsim.schedules.trees.nodes import Extent, Steps, Sum, add_steps, extent
from fpsim.sums.accumulators import Accumulator
from tests.kit.processes import python
from tests.kit.sweeps import in_turn, sweep
from tests.oracles.trees import evaluate

# shapes here are not those that a library would choose a kernel for
pytestmark = pytest.mark.filterwarnings("ignore:cuBLAS takes nvjet")

s = fp.schedules
Array = npt.NDArray[Any]
E4M3, F16, BF16 = "hopper_e4m3_f32", "hopper_f16_f32", "hopper_bf16_f32"
PICTURED: list[tuple[Schedule, int, int, dict[str, Any]]] = [
    (s.FLAT, 1, 64, {}), (s.FLAT, 8, 1, {}), (s.cutlass_2xacc(128), 8, 512, {}),
    (s.cublas(split_k=4), 8, 1024, {"accumulate": E4M3}), (s.cublas(split_k=9), 8, 11528, {}),
    (s.cublas(family="cutlass", stages=13, split_k=2, merge=0), 9, 300, {"out_fmt": "fp16"}),
    (s.cublas(family="gemv", option=10), 64, 1024, {}), (s.cublas(family="gemm_sn"), 8, 600, {}),
    (s.cublas(family="dot", split_k=4), 1, 2048, {}), (s.cublas("sm_89", split_k=4, merge="pairwise"), 8, 1024, {}),
    (s.deepgemm(), 8, 1000, {"out_fmt": "bf16"}), (s.cutlass_2xacc(128), 8, 1 << 17, {}),
]  # fmt: skip
RUN: list[tuple[Schedule, str]] = [
    (s.FLAT, E4M3), (s.FLAT, "ampere_f16_f16"), (s.FLAT, "hopper_mma_e4m3_f32"), (s.cutlass_2xacc(128), E4M3),
    (s.cublas(split_k=4), E4M3), (s.cublas(split_k=3), BF16), (s.cublas(fast_accum=True), E4M3),
    (s.cublas(family="cutlass", stages=13, split_k=3), BF16),
    (s.cublas(family="cutlass", stages=0, split_k=3, merge=0), F16),
    (s.cublas(family="cutlass", split_k=3, merge=4), F16), (s.triton(96, 64), E4M3), (s.torch_rowwise(), E4M3),
    (s.cublas("sm_89", split_k=5, merge="pairwise"), "ada_e4m3_f32"), (s.cublas("sm_89", split_k=4), "ada_e4m3_f32"),
    (s.cublas(family="gemv", option=10), F16), (s.cublas(family="gemv", option=36, split_k=2), BF16),
    (s.cublas(family="gemv", option=11), BF16), (s.cublas(family="gemv", option=5), F16),
    (s.cublas(family="gemm_sn", option=1), BF16), (s.cublas(family="magma"), F16),
    (s.cublas(family="dot", split_k=3), BF16), (s.cublas(family="dot", split_k=131), F16),
]  # fmt: skip
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
            found = tree(schedule, k, n=n, accumulate=of, out_fmt=out_fmt)
            wanted = evaluate(found, np.repeat(a, n, 0), np.tile(b, (2, 1)), unit=of)
            got = fp.matmul(a, b.T, accumulate=of, schedule=schedule, out_fmt=out_fmt, strict=False)
            assert same(got.astype(np.float32).reshape(-1), values(wanted)), (k, n)


def test_no_terms_are_plus_zero() -> None:
    everything: list[Any] = [
        *(schedule for schedule, _ in RUN),
        s.deepgemm(),
        fp.Pairwise("fp16"),
        fp.Exact("bf16"),
        E4M3,
    ]
    for how in everything:
        found = tree(how, 0)
        assert found == tree(fp.Sequential(found.fmt), 0)
        assert evaluate(found, np.zeros((1, 0), np.uint8), np.zeros((1, 0), np.uint8), unit=E4M3)[0] == 0


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


def schedules_of() -> Iterator[Schedule]:
    """Many schedules for 16-bit operands."""
    yield s.FLAT
    for count in (1, 2, 3, 7):
        yield s.cublas(split_k=count)
        yield s.cublas(split_k=count, tail_loss=False)
        yield s.cublas(family="dot", split_k=count)
        for merge in (0, 2, 4):
            yield s.cublas(family="cutlass", stages=7, split_k=count, merge=merge)
    for option in (6, 10, 11, 35, 36, 41, 5):
        yield s.cublas(family="gemv", option=option)
    yield from (s.cublas(family="gemm_sn"), s.cublas(family="gemm_sn", option=1), s.cublas(family="magma"))
    yield from (s.cutlass_2xacc(32), s.cutlass_2xacc(64), s.triton(64, 32))


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
    found = tree(s.cublas(split_k=9), 11528)
    assert found.lost == ((11520, 11528),)
    assert extent(found.root) == (0, 11520, 11520)
    assert tree(s.cublas(split_k=9, tail_loss=False), 11528).lost == ()
    rng = np.random.default_rng(3)
    a = rng.standard_normal((1, 11528)).astype(np.float16)
    b = rng.standard_normal((11528, 8)).astype(np.float16)
    without = b.copy()
    without[11520:] = 0
    x, y = (fp.matmul(a, each, accumulate=F16, schedule=s.cublas(split_k=9)) for each in (b, without))
    assert same(x, y)


# ---- comparisons


def test_a_comparison_names_the_first_difference() -> None:
    found = s.compare(s.cutlass_2xacc(128), s.FLAT, 1024)
    assert found == Comparison(
        False,
        "terms 128..255: cutlass_2xacc(128) adds them up from +0 for a sum of their own, FLAT adds them to the running "
        "sum.", Extent(128, 256, 128), "partial sum",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("x", "y", "k", "level", "words"),
    [(s.deepgemm(), s.cutlass_2xacc(128), 512, "scale", "terms 0..127: deepgemm('1d2d') multiplies their sum by its"),
     (s.cublas(), s.cublas(family="cutlass", stages=13), 300, "instruction", "terms 32..47: "),
     (s.cublas(split_k=9), s.cublas(split_k=9, tail_loss=False), 11528, "partial sum", "terms 1280..2559: "),
     ("hopper_e4m3_f32", "blackwell_e4m3_f32", 64, "instruction", "keeps 13 fraction bits, black"),
     (fp.Sequential("fp16"), fp.Sequential("bf16"), 64, "partial sum", "adds in FP16, Sequential(BF16) in BF16"),
     (fp.Sequential("fp16"), fp.FusedMultiplyAdd("fp16"), 64, "instruction", "rounds every product first"),
     (fp.Sequential("fp16"), fp.Chunked("fp16", 16), 64, "partial sum", "terms 16..31: "),
     (fp.Pairwise("fp16"), fp.Pairwise("fp16", rounding="odd"), 9, "instruction", "rounds nearest even"),
     (fp.Exact("fp16"), fp.Exact("fp16", rounding="up"), 9, "instruction", "rounds nearest even")],
)  # fmt: skip
def test_a_comparison_names_level_and_terms(x: Any, y: Any, k: int, level: str, words: str) -> None:
    found = s.compare(x, y, k)
    assert not found.equal
    assert found.level == level
    assert words in found.sentence
    assert str(found) == found.sentence


def test_every_comparison_is_a_sentence() -> None:
    accumulators = (fp.Pairwise("fp16"), fp.Exact("fp32"), fp.Chunked("fp16", 16))
    everything: list[Any] = [*schedules_of(), *(each for each, _ in RUN), *accumulators, "ada_f16_f16"]
    for i, x in enumerate(everything):
        for y in (s.FLAT, s.cublas(family="dot", split_k=2), fp.Pairwise("fp16"), everything[i - 1]):
            found = s.compare(x, y, 130, n=1, out_fmt="bf16", accumulate=F16)
            assert found.sentence.endswith(".")
            assert "None" not in found.sentence


def test_depth_does_not_grow_with_the_number_of_slices() -> None:
    many = s.cublas(family="cutlass", stages=13, split_k=3000, merge=0)
    assert tree(many, 24000, out_fmt="fp16") == tree(many, 24000, out_fmt="fp16")
    assert tree(many, 24000, out_fmt="fp16").depth < 6
    assert hash(tree(s.FLAT, 10**6)) == hash(tree(s.FLAT, 10**6))
    assert s.compare(s.FLAT, s.cutlass_2xacc(128), 10**6).terms == (128, 256, 128)


@pytest.mark.parametrize(
    ("how", "k", "keywords", "message"),
    [(s.FLAT, -1, {}, "k must be"), (s.FLAT, True, {}, "k must be"), (3, 8, {}, "how must be"),
     (s.FLAT, 8, {"scaled": True}, "has no place for scales"),
     ("hopper", 8, {}, r"how must be one of the \d+ that .* Schedules are passed as objects, such as fp"),
     ("turing", 8, {}, r"got 'turing'\. Did you mean 'turing_f16_f32'"),
     ("deepgem", 8, {}, r"how must be a schedule, .*; got 'deepgem'\. Did you mean fp\.schedules\.deepgemm")],
)  # fmt: skip
def test_bad_arguments_are_refused(how: Any, k: Any, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        tree(how, k, **keywords)


# ---- words and pictures


def test_an_explanation_tells_slices_and_lost_terms() -> None:
    text = str(s.explain(s.cublas(split_k=9), 1, 8, 11528))
    assert "K is cut into 9 slices: terms 0..1279, 1280..2559, ..., 10240..11519." in text
    assert "The last 8 terms, 11520..11527, are lost" in text
    assert "one chain from +0: 80 instructions" in text
    assert "bitequiv" in text


@pytest.mark.parametrize(
    ("schedule", "shape", "keywords", "words"),
    [(s.cublas(family="cutlass", stages=13, split_k=2, merge=0), (7, 9, 300), {"out_fmt": "fp16"},
      "the running sum is rounded to the output, FP16"),
     (s.cublas(family="cutlass", stages=13), (7, 9, 300), {}, "The 44 terms by which K exceeds a multiple of 64"),
     (s.cublas(family="gemv", option=10), (1, 8, 1024), {}, "32 lanes share an output and take 4 terms in turn"),
     (s.cublas(family="dot", split_k=4), (1, 1, 2048), {}, "keeps 2 chains"),
     (s.deepgemm(), (8, 8, 512), {}, "joins a float32 total that starts at +0 as fma(scale_a * scale_b, p, total)"),
     (s.cublas(), (8, 9, 64), {}, "Note: cuBLAS takes nvjet where"),
     (s.cublas(), (8, 8, 65), {"accumulate": E4M3}, "Refused by the library: cuBLAS takes FP8 only where"),
     (s.cublas("sm_89", split_k=4, merge="pairwise"), (8, 8, 1024), {}, "The sum starts at the last slice")],
)  # fmt: skip
def test_an_explanation_names_what_matters(
    schedule: Schedule, shape: tuple[int, int, int], keywords: dict[str, Any], words: str
) -> None:
    found = s.explain(schedule, *shape, **keywords)
    assert words in found.text
    assert found.tree.k == shape[2]
    assert words.split("(")[0] in found._repr_html_()


@pytest.mark.parametrize(("schedule", "n", "k", "keywords"), PICTURED, ids=lambda x: str(x))
def test_pictures_draw(schedule: Schedule, n: int, k: int, keywords: dict[str, Any]) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    explanation = s.explain(schedule, 1, n, k, **keywords)
    axes = explanation.plot()
    axes.figure.set_dpi(20)  # few pixels to fill
    axes.figure.canvas.draw()
    ticks = [each.get_text() for each in axes.get_xticklabels()]
    assert ("lost" in " ".join(ticks)) == bool(explanation.tree.lost)
    assert len(axes.patches) < 200
    pyplot.close(axes.figure)


def test_a_picture_is_drawn_on_axes_that_are_given() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, mine = pyplot.subplots(figsize=(6, 3))
    assert s.explain(s.cutlass_2xacc(128), 1, 8, 512).plot(ax=mine) is mine
    assert mine.patches
    pyplot.close(figure)


def test_explaining_loads_neither_matplotlib_nor_numba() -> None:
    loaded = python(
        "import sys, fpsim as fp; s = fp.schedules; str(s.explain(s.cublas(split_k=9), 1, 8, 11528)); "
        "s.depends_on_batch(s.FLAT, k=64); print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ).split()
    assert not {"matplotlib", "numba"} & set(loaded)


# ---- batches


def test_a_fixed_schedule_does_not_depend_on_the_batch() -> None:
    for schedule in (s.FLAT, s.cublas(split_k=4), s.cublas(family="gemv", option=10)):
        found = s.depends_on_batch(schedule, k=512)
        assert (found.on_m, found.on_n, len(found.groups)) == (False, False, 1)
        assert "The schedule is fixed here" in str(found)


def test_dot_depends_on_whether_n_is_1() -> None:
    found = s.depends_on_batch(s.cublas(family="dot"), k=512)
    assert (found.on_m, found.on_n) == (False, True)
    assert "two chains per thread where N = 1" in found.text


@pytest.mark.parametrize(
    ("schedule", "unit", "wanted"),
    [(s.FLAT, None, None), (s.cublas(), None, None), (s.cublas(split_k=4), F16, 65), (s.cublas(split_k=4), E4M3, 513),
     (s.cublas(split_k=9, tail_loss=False), F16, 65), (s.cublas("sm_89", split_k=4), None, 65),
     (s.cublas(family="cutlass", stages=13, split_k=2), None, 9), (s.cublas(family="dot", split_k=2), None, 129),
     (s.cublas(family="gemv", option=6, split_k=2), None, 2)],
    ids=str,
)  # fmt: skip
def test_split_k_begins_to_matter_where_a_tree_changes(schedule: Schedule, unit: str | None, wanted: Any) -> None:
    assert s.depends_on_batch(schedule, k=4096, m=1, n=4096, accumulate=unit).split_matters_from == wanted


def test_a_heuristic_shows_where_rows_change() -> None:
    def choose(m: int, n: int, k: int) -> Schedule:
        return s.cublas(split_k=4 if m <= 64 and k >= 128 else 1)

    found = s.depends_on_batch(choose, k=256, n=(512, 4096))
    assert found.on_m
    assert not found.on_n
    assert [(group.m[0], group.m[-1], repr(group.schedule)) for group in found.groups] == [
        (1, 64, "cublas('sm_90', split_k=4)"), (128, 4096, "cublas('sm_90')"),
    ]  # fmt: skip
    assert found.split_matters_from == 128
    assert not s.depends_on_batch(choose, k=64, n=4096).on_m
    with pytest.raises(TypeError, match="must give a schedule"):
        s.depends_on_batch(lambda m, n, k: None, k=8)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="m must be"):
        s.depends_on_batch(s.FLAT, k=8, m=0)


# ---- sizes


@in_turn(
    "how",
    [
        s.cutlass_2xacc(128), s.deepgemm(), s.triton(128, 64), s.cublas(family="dot"), s.cublas(family="magma"),
        s.cublas(family="gemv", option=10), s.cublas(family="gemm_sn"), s.cublas("sm_89", split_k=4),
        fp.Chunked("fp32"),
    ],
)  # fmt: skip
@in_turn("k", [1 << 40, 1 << 63])
def test_trees_that_nobody_waits_for_are_refused(how: Any, k: int) -> None:
    with pytest.raises(ValueError, match=r"a tree must have at most 1048576 parts; got .* with k=\d+, which has about"):
        tree(how, k)
    if not isinstance(how, fp.Chunked):
        with pytest.raises(ValueError, match="a tree must have at most 1048576 parts"):
            s.explain(how, 4, 4, k)


def test_trees_of_few_parts_take_any_k() -> None:
    for how in (s.FLAT, s.cublas(split_k=9), "hopper_e4m3_f32", fp.Sequential("bf16"), fp.Pairwise("bf16")):
        assert tree(how, 1 << 63).k == 1 << 63
    with pytest.raises(ValueError, match=r"k must be at most 2\*\*63; got 2\*\*16609 or more"):
        tree(s.FLAT, 10**5000)


def test_slices_beyond_a_grid_are_refused() -> None:
    for family, arch in (("dot", "sm_90"), ("xmma", "sm_89"), ("nvjet", "sm_90")):
        with pytest.raises(ValueError, match=r"split_k must be at most 65535; got 2\*\*40 or more"):
            s.cublas(arch, family=family, split_k=1 << 40)
    with pytest.raises(ValueError, match=r"interval must be at most 2147483647; got 2\*\*31 or more"):
        s.cutlass_2xacc(1 << 31)
    with pytest.raises(ValueError, match="a tree must have at most 1048576 parts"):
        tree(s.cublas(family="dot", split_k=65535), 64)
    assert tree(s.cublas("sm_89", split_k=65535, merge="pairwise"), 64).k == 64


def test_functions_are_asked_for_so_many_terms_at_most() -> None:
    with pytest.raises(ValueError, match="k must be at most 1048576 for a function"):
        s.depends_on_batch(lambda m, n, k: s.FLAT, k=1 << 40)
