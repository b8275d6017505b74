"""Libraries on processors: segments of K, lanes in rounds, and what torch.mm gave on a processor, bit for bit."""

from __future__ import annotations

import pickle
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import fpsim as fp
from fpsim.schedules.shaped import ISAS, Isa, Layout
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import (
    FORMATS,
    LIMITS,
    NEEDED,
    TORCH,
    Array,
    MmCase,
    digest,
    operands,
    predicted,
    shapes,
    torch_products,
)
from tests.oracles.trees import evaluate

s = fp.schedules
CHAIN = fp.FusedMultiplyAdd("fp32")
loose: Any = fp


# ---- orders, written out


def chain(a: Array, b: Array, terms: list[int], start: Array | None = None) -> Array:
    """Return a chain of fp.fma over columns of a and rows of b, float32, in the order of `terms`."""
    total = np.zeros((len(a), b.shape[1]), np.float32) if start is None else start
    for k in terms:
        total = fp.fma(*np.broadcast_arrays(a[:, k, None], b[k, None], total))
    return total


def added(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def cancelling(m: int, n: int, k: int, fmt: str = "fp32") -> tuple[Array, Array]:
    """Return float32 values of operands that cancel."""
    a, b = operands(MmCase(m, n, k, fmt), 7)
    return fp.decode(a, FORMATS[fmt]), fp.decode(b, FORMATS[fmt])


@pytest.mark.parametrize("lengths", [(40,), (16, 24), (7, 1, 15, 17), (20, 20)])
@pytest.mark.parametrize("odd_first", [False, True])
def test_segments_are_chains_added_from_left_to_right(lengths: tuple[int, ...], odd_first: bool) -> None:
    a, b = cancelling(5, 6, 40)
    parts, start = [], 0
    for length in lengths:
        terms = list(range(start, start := start + length))
        if odd_first:
            terms = [k for i in range(0, length, 2) for k in terms[i : i + 2][::-1]]
        parts.append(chain(a, b, terms))
    schedule = s.segments(*lengths, odd_first=odd_first)
    got = fp.matmul(a, b, accumulate=CHAIN, schedule=schedule)
    assert_bits_equal(got, added(parts))
    other = fp.matmul(a, b, accumulate=CHAIN, schedule=s.segments(13, 27))
    assert not np.array_equal(got, other)
    tree = s.tree(schedule, 40, accumulate="cdna1_f32_f32")
    rows, columns = np.repeat(a, 6, axis=0), np.tile(b.T, (5, 1))
    assert_bits_equal(evaluate(tree, rows, columns, unit="cdna1_f32_f32").reshape(5, 6), got.view(np.uint32))


@pytest.mark.parametrize(("lanes", "k"), [(1, 9), (4, 3), (4, 40), (4, 43), (3, 44)])
def test_rounds_give_the_last_terms_to_the_first_lane(lanes: int, k: int) -> None:
    a, b = cancelling(5, 6, k)
    whole = k - k % lanes
    parts = [chain(a, b, [*range(i, whole, lanes), *(range(whole, k) if i == 0 else ())]) for i in range(lanes)]
    got = fp.matmul(a, b, accumulate=CHAIN, schedule=s.rounds(lanes))
    assert_bits_equal(got, added(parts))
    tree = s.tree(s.rounds(lanes), k, accumulate="cdna1_f32_f32")
    rows, columns = np.repeat(a, 6, axis=0), np.tile(b.T, (5, 1))
    assert_bits_equal(evaluate(tree, rows, columns, unit="cdna1_f32_f32").reshape(5, 6), got.view(np.uint32))


@pytest.mark.parametrize(("k", "step"), [(52, 26), (66, 22), (40, 20), (70, 32)])
def test_instructions_of_amx_may_have_fewer_terms(k: int, step: int) -> None:
    unit = "x86_amx_bf16_f32"
    a, b = operands(MmCase(5, 6, k, "bf16"), 3)
    rows, columns = np.repeat(a, 6, axis=0), np.tile(b.T, (5, 1))
    want: Any = None
    for start in range(0, k, step):
        want = fp.dot_add(rows[:, start : start + step], columns[:, start : start + step], want, unit)
    got = fp.matmul(a, b, accumulate=unit, schedule=s.segments(k, step=0 if step == 32 else step))
    assert_bits_equal(got.view(np.uint32), want.reshape(5, 6))


# ---- what torch.mm gave


@cache
def recorded() -> dict[str, Array]:
    """Return what torch.mm gave on an Intel Emerald Rapids (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "torch_cpu.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


SHAPES = shapes(400)
ROWS: list[tuple[Isa, str]] = [(isa, fmt) for isa in LIMITS for fmt in FORMATS]


def compare_with_recorded(isa: Isa, fmt: str, numbers: range) -> tuple[int, list[MmCase]]:
    """Return how many shapes are declined, and those whose predicted bits are not those of torch.mm."""
    declined, wrong = 0, []
    for i in numbers:
        case = MmCase(*SHAPES[i], fmt)
        got = predicted(case, *operands(case, 10 * i), isa)
        if got is None:
            declined += 1
        elif digest(got) != recorded()[f"{isa} {fmt}"][i]:
            wrong.append(case)
    return declined, wrong


@in_turn("isa, fmt", ROWS)
def test_torch_mm_is_predicted_bit_for_bit(isa: Isa, fmt: str) -> None:
    small = [i for i, (m, n, k) in enumerate(SHAPES) if m * n * k < 400_000]
    first = ROWS.index((isa, fmt))
    for i in small[first :: 3 * len(ROWS)]:
        assert compare_with_recorded(isa, fmt, range(i, i + 1))[1] == []


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "fmt"), ROWS)
def test_of_400_shapes_none_is_wrong_and_few_are_declined(isa: Isa, fmt: str) -> None:
    declined, wrong = compare_with_recorded(isa, fmt, range(400))
    assert wrong == []
    assert declined <= 20


@pytest.mark.slow
@pytest.mark.parametrize("isa", LIMITS)
def test_torch_mm_of_this_machine_is_predicted(isa: Isa) -> None:
    from llvmlite import binding

    if not binding.get_host_cpu_features().get(NEEDED[isa], False):
        pytest.skip(f"this processor has no {NEEDED[isa]}")
    for fmt in FORMATS:
        cases = [(case, *operands(case, 10 * i)) for i, case in enumerate(MmCase(*shape, fmt) for shape in SHAPES)]
        results = torch_products(cases, isa)
        if results is None:
            pytest.skip(f"the rules are those of torch {TORCH}, and another version is here")
        wrong, declined = [], 0
        for (case, a, b), want in zip(cases, results, strict=True):
            got = predicted(case, a, b, isa)
            declined += got is None
            if got is not None and not np.array_equal(got, want):
                wrong.append(case)
        assert wrong == [], f"{isa} {fmt}: met other bits on this machine"
        assert declined <= 20


AMX = [(4, 600, 8), (8, 4096, 8), (33, 129, 20), (2, 1000, 64), (16, 333, 3)]


@in_turn("isa", ["amx", *LIMITS])
def test_products_of_a_processor_with_amx_are_predicted(isa: Isa) -> None:
    for i, (m, k, n) in enumerate(AMX):
        a, b, want = (recorded()[f"amx {i} {name}"] for name in ("a", "b", isa))
        got = predicted(MmCase(m, n, k, "bf16"), a, b, isa)
        assert got is not None
        assert_bits_equal(got, want)


def test_amx_gives_other_bits_than_avx512_where_terms_cancel() -> None:
    assert not np.array_equal(recorded()["amx 1 amx"], recorded()["amx 1 avx512_bf16"])


# ---- which shapes, and what is declined


def test_each_library_takes_its_shapes() -> None:
    mm, loop = s.torch_mm, "torch's own loop"
    for library, shape, kernel in (
        (mm("avx512_bf16"), (16, 16, 16, "bf16"), loop), (mm("avx512_bf16"), (16, 17, 16, "bf16"), "brg_matmul"),
        (mm("avx512_bf16"), (40, 50, 60, "fp16"), loop), (mm("avx512_fp16"), (40, 50, 60, "fp16"), "brg_matmul"),
        (mm("avx512"), (40, 50, 60, "bf16"), "gemm:jit:bf16"), (mm("avx2"), (90, 90, 90, "bf16"), loop),
        (mm("amx"), (33, 20, 66, "bf16"), "brg_matmul:amx"), (mm("amx"), (1, 600, 63, "bf16"), "brg_matmul"),
        (mm("amx"), (40, 50, 60, "fp16"), "brg_matmul"), (mm("avx512"), (40, 50, 60, "fp32"), "sgemm"),
        (mm("amx_fp16"), (40, 50, 60, "fp16"), "brg_matmul:amx"), (mm("amx_fp16"), (1, 600, 63), "brg_matmul"),
        (mm("amx_fp16"), (1, 600, 63, "fp16"), "brg_matmul:amx"), (mm("avx512_vnni"), (40, 50, 60), "gemm:jit:bf16"),
        (mm("avx2_vnni"), (90, 90, 90, "bf16"), loop), (mm("avx512_vnni"), (40, 50, 60, "int8"), "_int_mm"),
    ):  # fmt: skip
        assert library.at(*shape).kernel == kernel, (library, shape)
        schedule = library.at(*shape).schedule
        assert isinstance(schedule, s.Schedule)
        assert schedule.evidence == "hardware"


def test_segments_depend_on_shape_layout_and_instructions() -> None:
    def lengths(library: fp.schedules.ShapedSchedule, *shape: Any) -> tuple[int, ...]:
        schedule = library.at(*shape).schedule
        assert isinstance(schedule, s.Schedule)
        return schedule.slicing.lengths

    bf16 = s.onednn("avx512_bf16")
    assert lengths(bf16, 40, 50, 1024) == (512, 512)
    assert lengths(bf16, 40, 50, 2049) == (1024, 1024, 1)
    assert lengths(bf16, 1, 50, 1100) == (512, 512, 76)
    assert lengths(s.onednn("avx512_bf16", layout="tn"), 40, 50, 1100) == (512, 512, 76)
    assert lengths(s.onednn("avx512"), 40, 50, 1001) == (501, 500)
    assert lengths(s.onednn("avx512"), 1, 50, 20) == (8, 8, 4)
    assert lengths(s.torch_native(layout="tn"), 40, 50, 900) == (900,)
    for layout, m, n in (("tn", 1, 50), ("nt", 40, 1), ("nn", 40, 50)):  # a vector is not transposed
        assert str(loose.schedules.torch_native(layout=layout).at(m, n, 900).schedule) == "rounds(4)"
    assert lengths(s.mkl(), 40, 50, 1535, "fp32") == (384, 384, 384, 383)


def test_products_without_terms_or_elements_are_zeros_of_the_usual_format() -> None:
    mm = s.torch_mm("avx512_fp16")
    for dtype, result in ((np.float32, np.float32), (np.float16, np.float16), (np.int8, np.int32)):
        for m, k, n in ((0, 4, 3), (2, 0, 3), (2, 4, 0)):
            got = fp.matmul(np.ones((m, k), dtype), np.ones((k, n), dtype), schedule=mm)
            assert_bits_equal(got, np.zeros((m, n), result))
    none = np.zeros((2, 0), np.float16)
    biased = fp.matmul(none, none.T, schedule=mm, bias=np.array([1, 2], np.float16), out_fmt="fp32")
    assert_bits_equal(biased, np.array([[1, 2], [1, 2]], np.float32))


def test_names_say_what_was_passed() -> None:
    assert str(s.onednn("amx", 2, l1=32 << 10, l2=1 << 20, layout="nt")) == (
        "onednn('amx', threads=2, l1=32768, l2=1048576, layout='nt')"
    )
    libraries = s.torch_mm("avx2", layout="tn"), s.torch_native(), s.mkl(2), s.mkl(layout="nt")
    names = ["torch_mm('avx2', layout='tn')", "torch_native()", "mkl(threads=2)", "mkl(layout='nt')"]
    assert [str(library) for library in libraries] == names
    assert str(s.torch_mm("avx2", 2, mkl_isa="avx512")) == "torch_mm('avx2', threads=2, mkl_isa='avx512')"
    assert str(s.openblas(2, layout="tn")) == "openblas(threads=2, layout='tn')"
    assert str(s.mkl(isa="avx2")) == "mkl(isa='avx2')"
    assert s.onednn("amx") == s.onednn("amx") != s.onednn("avx512")
    assert str(s.segments(26, 26, step=26, odd_first=True)) == "segments(26, 26, step=26, odd_first=True)"


# ---- fp.matmul


def test_matmul_takes_arrays_codes_and_out() -> None:
    library = s.torch_mm("avx512_bf16")
    a, b = operands(MmCase(20, 30, 600, "bf16"), 1)
    got = fp.matmul(a, b, schedule=library, fmt="bf16")
    assert str(got.dtype) == "bfloat16"
    values = [fp.cast(fp.decode(x, fp.BF16), fp.BF16) for x in (a, b)]
    assert_bits_equal(fp.matmul(*values, schedule=library), got)
    out = np.empty_like(got)
    assert fp.matmul(*values, schedule=library, out=out) is out
    assert_bits_equal(out, got)
    sums = fp.matmul(*values, schedule=library, out_fmt="fp32")
    assert sums.dtype == np.float32
    assert_bits_equal(fp.cast(sums, fp.BF16), got)
    floats = [fp.decode(x, fp.BF16) for x in (a, b)]
    assert fp.matmul(*floats, schedule=library).dtype == np.float32


def test_products_of_int8_are_exact_with_vnni() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-128, 128, (9, 300)).astype(np.int8), rng.integers(-128, 128, (300, 7)).astype(np.int8)
    got = fp.matmul(a, b, schedule=s.torch_mm("avx512_fp16"))
    assert got.dtype == np.int32
    assert np.array_equal(got, a.astype(np.int64) @ b.astype(np.int64))
    assert s.torch_mm("amx").at(9, 7, 300, np.dtype("int8")).kernel == "_int_mm"
    with pytest.raises(ValueError, match="accumulate is chosen by"):
        fp.matmul(a, b, schedule=s.torch_mm(), accumulate="x86_amx_s8_s32")


@pytest.mark.slow
def test_int_mm_of_this_machine_is_exact_with_vnni() -> None:
    from llvmlite import binding

    torch = pytest.importorskip("torch")
    if not binding.get_host_cpu_features().get("avx512vnni", False):
        pytest.skip("this processor has no avx512vnni")
    library = s.torch_mm("avx512_bf16")
    for i, (m, n, k) in enumerate(SHAPES):
        rng = np.random.default_rng(i)
        a, b = rng.integers(-128, 128, (m, k)).astype(np.int8), rng.integers(-128, 128, (k, n)).astype(np.int8)
        want = torch._int_mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()
        assert np.array_equal(fp.matmul(a, b, schedule=library), want), (m, n, k)


def test_libraries_are_pickled() -> None:
    library = s.torch_mm("avx512", layout="nt")
    again = pickle.loads(pickle.dumps(library))
    assert again == library
    assert again.at(40, 50, 60).schedule == library.at(40, 50, 60).schedule


def test_layouts_and_instructions_are_listed() -> None:
    assert set(get_args(Layout)) == {"nn", "nt", "tn"}
    assert set(LIMITS) == set(ISAS) - {"amx_fp16", "amx", "avx512_vnni", "avx2_vnni"}
