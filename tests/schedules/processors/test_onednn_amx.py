"""oneDNN's segments of K with AMX, by shape, layout, caches and threads: what torch.mm gave, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.schedules.libraries.amx.blocks import AmxProduct, Caches, amx_blocks
from fpsim.testing import assert_bits_equal
from tests.kit.torch_mm import NEEDED, TORCH, Array, MmCase, digest, hashed, operands, shapes, torch_products

loose: Any = fp
CACHES = ((48 << 10, 2 << 20), (32 << 10, 1 << 20), (32 << 10, 256 << 10))  # L1 and L2
NUMBER = 240
SHAPES = [
    (1 if i % 10 == 3 else m, 1 if i % 10 == 7 else n, k) for i, (m, n, k) in enumerate(shapes(NUMBER, seed=9))
]  # fmt: skip


def library(number: int) -> fp.schedules.ShapedSchedule:
    """Return the schedules with the settings of a recorded product: layouts and caches take turns."""
    l1, l2 = CACHES[number // 2 % 3]
    made: fp.schedules.ShapedSchedule = loose.schedules.torch_mm(
        "amx", l1=l1, l2=l2, layout="nt" if number % 2 else "nn"
    )
    return made


def codes(number: int) -> tuple[Array, Array]:
    """Return BF16 codes of the operands of a recorded product, which cancel."""
    return operands(MmCase(*SHAPES[number], "bf16"), 10 * number)


@cache
def recorded() -> Array:
    """Return what torch.mm gave (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "onednn_amx.npz") as arrays:
        digests: Array = arrays["torch.mm"]
    return digests


def compare_with_recorded(numbers: range) -> tuple[list[int], list[int]]:
    """Return the numbers of products that are declined, and of those whose predicted bits are not torch.mm's."""
    declined, wrong = [], []
    for i in numbers:
        if library(i).declines(*SHAPES[i]):
            declined.append(i)
        elif digest(fp.matmul(*codes(i), schedule=library(i), fmt="bf16").view(np.uint16)) != recorded()[i]:
            wrong.append(i)
    return declined, wrong


def segments_of(number: int) -> int:
    """Return the number of segments of K of a recorded product, 0 without AMX."""
    chosen = library(number).at(*SHAPES[number])
    if chosen.kernel != "brg_matmul:amx":
        return 0
    if isinstance(chosen.schedule, fp.schedules.Regions):
        return len(chosen.schedule.order_at(0, 0).lengths)
    return len(chosen.schedule.slicing.lengths)


def test_blocks_of_k_by_caches_are_predicted_bit_for_bit() -> None:
    small = [i for i in range(NUMBER) if np.prod(SHAPES[i]) < 2_000_000]
    for i in small[::6]:
        assert compare_with_recorded(range(i, i + 1))[1] == []


@pytest.mark.slow
def test_of_240_products_with_amx_none_is_wrong_and_few_are_declined() -> None:
    declined, wrong = compare_with_recorded(range(NUMBER))
    assert wrong == []
    assert len(declined) <= 1
    kept = [i for i in range(NUMBER) if i not in declined]
    assert sum(segments_of(i) > 1 for i in kept) > 20


def test_blocks_are_those_met_on_a_processor_with_amx() -> None:
    usual = Caches(*CACHES[0])
    for shape, terms in (((72, 93, 1413), 480), ((41, 60, 2047), 416), ((46, 50, 7081), 2368)):
        blocks = amx_blocks(AmxProduct(*shape, False, False, 1, usual))
        assert blocks is not None
        assert blocks.lengths[0] == terms, shape


def test_smaller_caches_cut_k_more_often() -> None:
    def lengths(l1: int, l2: int) -> tuple[int, ...]:
        schedule = fp.schedules.onednn("amx", l1=l1, l2=l2).at(100, 120, 4000).schedule
        assert isinstance(schedule, fp.schedules.Schedule)
        return schedule.slicing.lengths

    assert len(lengths(64 << 10, 4 << 20)) < len(lengths(*CACHES[0])) <= len(lengths(*CACHES[2]))
    row = amx_blocks(AmxProduct(1, 300, 4000, False, False, 1, Caches(*CACHES[2])))
    assert row is not None
    assert len(row.lengths) > 1


def test_segments_of_instructions_of_two_lengths_are_regions() -> None:
    library = fp.schedules.onednn("amx", layout="nt", l1=32 << 10, l2=1 << 20)
    chosen = library.at(37, 89, 2908)
    assert isinstance(chosen.schedule, fp.schedules.Regions)
    order = chosen.schedule.order_at(0, 0)
    assert len({order.instruction_terms(length) for length in order.lengths}) == 2
    a, b = operands(MmCase(37, 89, 2908, "bf16"), 5)
    assert_bits_equal(fp.matmul(a, b, schedule=library, fmt="bf16"), by_hand(a, b, order))


# ---- on a processor with AMX: transposed operands, and threads that share a product

THREADS = (1, 2, 3, 8)
LAYOUTS = ("nn", "nt", "tn")
SHARED = 240


def shared_case(number: int) -> tuple[str, int, MmCase]:
    """Return the layout, the number of threads and the shape of a product that threads share."""
    x = hashed(7000 + number, 4).astype(np.float64) / 2.0**64
    k = int(2 ** (3 + 9.5 * x[2]) if number % 3 else 2 ** (10 + 2.5 * x[2]))  # threads share a long K of few results
    k = 1 << k.bit_length() if number % 5 == 0 else k
    m, n = (2 + int(v * v * 250) if number % 3 else 33 + int(v * 90) for v in x[:2])
    m, n = (1, n) if number % 11 == 3 else (m, 1) if number % 11 == 7 else (m, n)
    return LAYOUTS[number // 4 % 3], THREADS[number % 4], MmCase(m, n, max(k, 4097 // (m * n) + 1), "bf16")


def shared_library(number: int, isa: str = "amx") -> fp.schedules.ShapedSchedule:
    layout, threads, _ = shared_case(number)
    made: fp.schedules.ShapedSchedule = loose.schedules.torch_mm(isa, threads, layout=layout)
    return made


def by_hand(a: Array, b: Array, order: fp.schedules.SegmentLanes) -> Array:
    """Return a @ b as codes in BF16, each segment by instructions from +0, the sums of a part and the parts in turn."""
    total: Any = None
    lengths, start = iter(order.lengths), 0
    rows, columns = np.repeat(a, b.shape[1], axis=0), np.tile(b.T, (len(a), 1))
    for count in order.parts or (len(order.lengths),):
        part: Any = None
        for _ in range(count):
            length = next(lengths)
            step, sums = order.instruction_terms(length) or 32, None
            for k in range(start, start + length, step):
                terms = slice(k, min(k + step, start + length))
                sums = fp.dot_add(rows[:, terms], columns[:, terms], sums, "x86_amx_bf16_f32")
            assert sums is not None
            start, values = start + length, sums.view(np.float32)
            part = values if part is None else part + values
        total = part if total is None else total + part
    codes: Array = fp.cast(total.reshape(len(a), -1), fp.BF16)
    return codes


@cache
def shared_recorded(name: str = "shared") -> Array:
    """Return what torch.mm gave on a processor with AMX (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "onednn_amx.npz") as arrays:
        digests: Array = arrays[name]
    return digests


def shared_wrong(numbers: list[int]) -> list[tuple[str, int, MmCase]]:
    """Return the cases of these numbers whose predicted bits are not torch.mm's."""
    return [
        shared_case(i)
        for i in numbers
        if digest(
            fp.matmul(*operands(shared_case(i)[2], 10 * i), schedule=shared_library(i), fmt="bf16").view(np.uint16)
        )
        != shared_recorded()[i]
    ]


def test_products_that_threads_share_are_predicted_bit_for_bit() -> None:
    small = [i for i in range(SHARED) if np.prod(shared_case(i)[2][:3]) < 1_000_000]
    assert shared_wrong(small[::3]) == []


@pytest.mark.slow
def test_all_products_that_threads_share_are_predicted() -> None:
    assert shared_wrong(list(range(SHARED))) == []
    shares = [shared_library(i).at(*shared_case(i)[2]).schedule for i in range(SHARED)]
    assert sum(isinstance(how, fp.schedules.Regions) and bool(how.order_at(0, 0).parts) for how in shares) > 15


@pytest.mark.slow
@pytest.mark.parametrize("threads", THREADS)
def test_products_with_amx_on_this_machine_are_predicted(threads: int) -> None:
    from llvmlite import binding

    if not binding.get_host_cpu_features().get(NEEDED["amx"], False):
        pytest.skip("this processor has no AMX")
    numbers = [i for i in range(SHARED) if shared_case(i)[1] == threads]
    cases = [(shared_case(i)[2], *operands(shared_case(i)[2], 10 * i)) for i in numbers]
    results = torch_products(cases, "amx", threads, [shared_case(i)[0] for i in numbers])
    if results is None:
        pytest.skip(f"the rules are those of torch {TORCH}, and another version is here")
    assert [digest(result) for result in results] == [shared_recorded()[i] for i in numbers]


def half_wrong(numbers: list[int]) -> list[MmCase]:
    """Return the cases of these numbers whose predicted bits of FP16 with AMX are not torch.mm's."""
    wrong = []
    for i in numbers:
        case = shared_case(i)[2]._replace(fmt="fp16")
        got = fp.matmul(*operands(case, 10 * i), schedule=shared_library(i, "amx_fp16"), fmt="fp16")
        if digest(got.view(np.uint16)) != shared_recorded("shared FP16")[i]:
            wrong.append(case)
    return wrong


def test_fp16_with_amx_has_the_blocks_of_bf16() -> None:
    small = [i for i in range(SHARED) if np.prod(shared_case(i)[2][:3]) < 1_000_000]
    assert half_wrong(small[1::8]) == []


@pytest.mark.slow
def test_all_products_of_fp16_with_amx_are_predicted() -> None:
    assert half_wrong(list(range(SHARED))) == []


def test_operands_of_one_term_have_no_layout() -> None:
    assert fp.schedules.onednn("amx", layout="tn").at(10, 456, 1).kernel == "brg_matmul"


def test_long_rows_of_a_transposed_b_are_computed_without_amx() -> None:
    library = fp.schedules.onednn("amx", layout="nt")
    kernels = [library.at(29, 21, k).kernel for k in (2**15 - 1, 2**15)]
    assert kernels == ["brg_matmul:amx", "brg_matmul"]


def test_a_bias_is_added_before_the_cast() -> None:
    a, b = operands(MmCase(64, 64, 4096, "bf16"), 3)
    bias = np.linspace(-1, 1, 64, dtype=np.float32)
    for threads in (1, 2):  # two threads share K
        library = fp.schedules.torch_mm("amx", threads)
        sums = fp.matmul(a, b, schedule=library, fmt="bf16", out_fmt="fp32")
        want = fp.cast(sums + bias, fp.BF16)
        assert_bits_equal(fp.matmul(a, b, schedule=library, fmt="bf16", bias=bias), want)
