"""Trees of schedules: comparisons, explanations, pictures, batches and limits of size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.schedules import Comparison, Schedule, tree
from fpsim.schedules.trees import boxes
from fpsim.schedules.trees.boxes import model_of
from fpsim.schedules.trees.nodes import Extent
from tests.kit.processes import python
from tests.kit.sweeps import in_turn
from tests.schedules.tree_cases import RUN, schedules_of

# shapes here are not those that a library would choose a kernel for
pytestmark = pytest.mark.filterwarnings("ignore:cuBLAS takes nvjet")


s = fp.schedules


E4M3, F16, BF16 = "hopper_e4m3_f32", "hopper_f16_f32", "hopper_bf16_f32"


PICTURED: list[tuple[Schedule, int, int, dict[str, Any]]] = [
    (s.FLAT, 1, 64, {}), (s.FLAT, 8, 1, {}), (s.cutlass_2xacc(128), 8, 512, {}),
    (s.cublas(split_k=4), 8, 1024, {"accumulate": E4M3}), (s.cublas(split_k=9), 8, 11528, {}),
    (s.cublas(family="cutlass", stages=13, split_k=2, merge=0), 9, 300, {"out_fmt": "fp16"}),
    (s.cublas(family="gemv", option=10), 64, 1024, {}), (s.cublas(family="gemm_sn"), 8, 600, {}),
    (s.cublas(family="dot", split_k=4), 1, 2048, {}), (s.cublas("sm_89", split_k=4, merge="pairwise"), 8, 1024, {}),
    (s.deepgemm(), 8, 1000, {"out_fmt": "bf16"}), (s.cutlass_2xacc(128), 8, 1 << 17, {}),
]  # fmt: skip


# ---- comparisons


def test_a_comparison_names_the_first_difference() -> None:
    comparison = s.compare(s.cutlass_2xacc(128), s.FLAT, 1024)
    assert comparison == Comparison(
        False,
        "terms 128..255: cutlass_2xacc(128) adds them up from +0 for a sum of their own, FLAT adds them to the running "
        "sum.", Extent(128, 256, 128), "partial sum",
    )  # fmt: skip


@in_turn(
    "x, y, k, level, words",
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
    comparison = s.compare(x, y, k)
    assert not comparison.equal
    assert comparison.level == level
    assert words in comparison.sentence
    assert str(comparison) == comparison.sentence


def test_orders_by_hand_and_of_segments_are_compared() -> None:
    chain = fp.Sequential("bf16")
    assert s.compare((((0, 1), 2), 3), chain, 4).equal  # the order takes the accumulator of the other
    assert str(s.compare(chain, ((0, 2), 1), 3)) == "term 1: Sequential(BF16) adds 1 next, ((0, 2), 1) 2."
    assert s.compare((0, 1, 2), E4M3, 3).equal
    assert s.compare(s.SegmentLanes((64, 36)), s.SegmentLanes((64, 36)), 100).equal
    assert "their sum" not in str(s.compare(s.SegmentLanes((64, 36)), fp.FusedMultiplyAdd("fp32"), 100))
    with pytest.raises(TypeError, match=r"schedule must be that of one shape here; got eigen\('avx512'\)"):
        s.compare(s.eigen(), s.FLAT, 3)  # type: ignore[arg-type]


def test_equal_runs_of_any_length_are_compared_at_once() -> None:
    half = 1 << 61
    comparison = s.compare(s.FLAT, s.cublas(split_k=2, tail_loss=False), 2 * half)
    assert comparison.terms == (half, 2 * half, half)


def test_every_comparison_is_a_sentence() -> None:
    accumulators = (fp.Pairwise("fp16"), fp.Exact("fp32"), fp.Chunked("fp16", 16))
    everything: list[Any] = [*schedules_of(), *(each for each, _ in RUN), *accumulators, "ada_f16_f16"]
    for i, x in enumerate(everything):
        for y in (s.FLAT, s.cublas(family="dot", split_k=2), fp.Pairwise("fp16"), everything[i - 1]):
            comparison = s.compare(x, y, 130, n=1, out_fmt="bf16", accumulate=F16)
            assert comparison.sentence.endswith(".")
            assert "None" not in comparison.sentence


def test_depth_does_not_grow_with_the_number_of_slices() -> None:
    many = s.cublas(family="cutlass", stages=13, split_k=3000, merge=0)
    assert tree(many, 24000, out_fmt="fp16") == tree(many, 24000, out_fmt="fp16")
    assert tree(many, 24000, out_fmt="fp16").depth < 6
    assert hash(tree(s.FLAT, 10**6)) == hash(tree(s.FLAT, 10**6))
    assert s.compare(s.FLAT, s.cutlass_2xacc(128), 10**6).terms == (128, 256, 128)


@in_turn(
    "how, k, keywords, message",
    [(s.FLAT, -1, {}, "k must be"), (s.FLAT, True, {}, "k must be"), (3, 8, {}, "how must be"),
     (s.FLAT, 8, {"scaled": True}, "takes no scales"),
     (F16, 8, {"accumulate": E4M3}, "accumulate is for schedules and orders by hand; got it for 'hopper_f16_f32'"),
     (fp.Exact("fp32"), 8, {"accumulate": E4M3}, "accumulate is for schedules"),
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


@in_turn(
    "schedule, shape, keywords, words",
    [(s.cublas(family="cutlass", stages=13, split_k=2, merge=0), (7, 9, 300), {"out_fmt": "fp16"},
      "the running sum is rounded to the output, FP16"),
     (s.cublas(family="cutlass", stages=13), (7, 9, 300), {}, "The 44 terms by which K exceeds a multiple of 64"),
     (s.cublas(family="cutlass", stages=13), (7, 9, 65), {},
      "The 1 term by which K exceeds a multiple of 64 comes first, in an instruction of its own, which is not full."),
     (s.segments(60, 40, odd_first=True), (7, 9, 100), {}, "over k, the second term of each pair before the first."),
     (s.segments(60, 40, odd_first=True), (7, 9, 100), {}, "K is cut into 2 slices: terms 0..59, 60..99."),
     (s.segments(100), (7, 9, 100), {}, "Source: not stated (inferred)."),
     (s.cublas(family="gemv", option=10), (1, 8, 1024), {}, "32 lanes share an output and take 4 terms in turn"),
     (s.cublas(family="dot", split_k=4), (1, 1, 2048), {}, "keeps 2 chains"),
     (s.deepgemm(), (8, 8, 512), {}, "joins a float32 total that starts at +0 as fma(scale_a * scale_b, p, total)"),
     (s.cublas(), (8, 9, 64), {}, "Note: cuBLAS takes nvjet for row-major"),
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


def test_boxes_name_the_levels_of_a_butterfly() -> None:
    def text(width: int) -> str:
        root, _ = model_of(tree(s.SegmentLanes((200,), "dealt", width), 200))
        return next(box.text for box in root.all() if "butterfly" in box.text)

    assert [text(width).partition(": ")[2] for width in (2, 4, 8, 16)] == ["1", "2, 1", "4, 2, 1", "8, 4, …, 1"]


@pytest.mark.filterwarnings("error")
def test_steps_of_many_spans_have_short_texts() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    for schedule, ticks in ((s.rounds(4), ("16 of 0..60", "16 of 64..124")),
                            (s.segments(300, odd_first=True), ("0..15", "16..31"))):  # fmt: skip
        axes = s.explain(schedule, 4, 4, 300, accumulate=F16).plot()
        axes.figure.set_dpi(20)
        axes.figure.canvas.draw()  # with long texts, matplotlib warned that they left no room
        assert tuple(label.get_text() for label in axes.get_xticklabels()[:2]) == ticks
        pyplot.close(axes.figure)


def test_only_boxes_that_may_be_drawn_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made, make = [0], boxes.Box

    def counted(*arguments: Any, **options: Any) -> boxes.Box:
        made[0] += 1
        return make(*arguments, **options)

    monkeypatch.setattr(boxes, "Box", counted)
    for how in (s.FLAT, s.cutlass_2xacc(128), s.cublas(family="gemm_sn")):
        model_of(tree(how, 1 << 20))
    assert made[0] < 20_000  # the trees have 8,192 to 32,768 sums or additions


def test_explaining_loads_neither_matplotlib_nor_numba() -> None:
    loaded = python(
        "import sys, fpsim as fp; s = fp.schedules; str(s.explain(s.cublas(split_k=9), 1, 8, 11528)); "
        "s.depends_on_batch(s.FLAT, k=64); print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ).split()
    assert not {"matplotlib", "numba"} & set(loaded)


# ---- batches


def test_a_fixed_schedule_does_not_depend_on_the_batch() -> None:
    for schedule in (s.FLAT, s.cublas(split_k=4), s.cublas(family="gemv", option=10)):
        report = s.depends_on_batch(schedule, k=512)
        assert (report.on_m, report.on_n, len(report.groups)) == (False, False, 1)
        assert "The schedule is fixed here" in str(report)


def test_dot_depends_on_whether_n_is_1() -> None:
    report = s.depends_on_batch(s.cublas(family="dot"), k=512)
    assert (report.on_m, report.on_n) == (False, True)
    assert "two chains per thread where N = 1" in report.text


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


def test_listed_slices_matter_for_their_own_k() -> None:
    rows: Any = np.int64(4)
    assert s.depends_on_batch(s.segments(100, 100), k=200, m=rows).split_matters_from == 200
    assert s.depends_on_batch(s.segments(200), k=200).split_matters_from is None
    cpu: Any = s.onednn("avx512_bf16")
    report = s.depends_on_batch(
        lambda m, n, k: cpu.at(m, n, k).schedule, k=1100, m=[2, 4], n=[2, 8], accumulate="x86_avx512_bf16_f32"
    )
    assert (report.on_m, report.split_matters_from) == (False, 513)


def test_a_heuristic_shows_where_rows_change() -> None:
    def choose(m: int, n: int, k: int) -> Schedule:
        return s.cublas(split_k=4 if m <= 64 and k >= 128 else 1)

    report = s.depends_on_batch(choose, k=256, n=(512, 4096))
    assert report.on_m
    assert not report.on_n
    assert [(group.m[0], group.m[-1], repr(group.schedule)) for group in report.groups] == [
        (1, 64, "cublas('sm_90', split_k=4)"), (128, 4096, "cublas('sm_90')"),
    ]  # fmt: skip
    assert report.split_matters_from == 128
    assert not s.depends_on_batch(choose, k=64, n=4096).on_m
    with pytest.raises(TypeError, match="must return a schedule"):
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
