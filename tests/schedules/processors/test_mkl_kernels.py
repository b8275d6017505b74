"""MKL's kernels for vectors, few rows and large products on one thread and two: what torch.mm gave, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import TORCH, Array, MmCase, digest, hashed, operands, torch_products

s = fp.schedules
NUMBER = 120
LAYOUTS = ("nn", "nt", "tn")
loose: Any = fp


def case(number: int) -> tuple[str, MmCase]:
    """Return the layout and shape of a recorded product, of ten kinds in turn."""
    x, y, z = (float(v) / 2.0**64 for v in hashed(3000 + number, 3))
    k, layout, kind = int(2 ** (3 + 9 * z)), LAYOUTS[number // 10 % 3], number % 10
    wide, few = 1 + int(x * 300), 2 + int(y * 14)
    sizes = [
        (1, wide, k), (wide, 1, k), (1, 1 + int(x * 39), k), (1 + int(x * 39), 1, k), (few, 2 + int(x * 120), k),
        (few, 2 + int(x * 10), 2 + int(y * 29)), (190 + int(x * 9), 190 + int(y * 9), 769 + int(z * 200)),
        (2 + int(y * 60), 370 + int(x * 20), 769 + int(z * 300)),
        (375 + int(x * 9), 2 + int(y * 60), 769 + int(z * 300)),
        (17 + int(x * 150), 17 + int(y * 150), 700 + int(z * 900)),
    ][kind]  # fmt: skip
    return ("nt" if kind in (4, 5) else layout), MmCase(*sizes, "fp32")


@cache
def recorded(threads: int) -> Array:
    """Return what torch.mm gave on an Intel Emerald Rapids (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "mkl.npz") as arrays:
        digests: Array = arrays[f"kernels_{threads}"]
    return digests


def compare(threads: int, numbers: range) -> int:
    """Compare predictions with the recording, and return how many shapes were declined."""
    declined = 0
    for number in numbers:
        layout, shape = case(number)
        library = loose.schedules.mkl(threads, layout=layout)
        if library.declines(*shape):
            declined += 1
            continue
        a, b = (x.view(np.float32) for x in operands(shape, 10 * number))
        assert digest(fp.matmul(a, b, schedule=library)) == recorded(threads)[number], (threads, layout, shape)
    return declined


@in_turn("threads", (1, 2))
def test_kernels_of_mkl_are_predicted_bit_for_bit(threads: int) -> None:
    assert compare(threads, range(threads, NUMBER, 3)) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_of_all_recorded_kernels_few_are_declined(threads: int) -> None:
    assert compare(threads, range(NUMBER)) <= 6


def is_measured_processor() -> bool:
    """Return whether this is a processor of the kind whose products were recorded (family 6, model 207)."""
    path = Path("/proc/cpuinfo")
    text = path.read_text() if path.exists() else ""
    return "GenuineIntel" in text and "\nmodel\t\t: 207\n" in text


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_kernels_of_this_machine_are_predicted(threads: int) -> None:
    if not is_measured_processor():
        pytest.skip("the rules were measured on another processor")
    cases = [case(number) for number in range(NUMBER)]
    data = [(shape, *operands(shape, 10 * number)) for number, (_, shape) in enumerate(cases)]
    results = torch_products(data, "avx512", threads, [layout for layout, _ in cases])
    if results is None:
        pytest.skip(f"the rules are those of torch {TORCH}, and another version is here")
    for (layout, _), (shape, a, b), want in zip(cases, data, results, strict=True):
        library = loose.schedules.mkl(threads, layout=layout)
        if not library.declines(*shape):
            got = fp.matmul(a.view(np.float32), b.view(np.float32), schedule=library)
            assert_bits_equal(got.view(np.uint32), want)


@in_turn(
    "threads, layout, shape, order",
    [
        (1, "nn", (191, 400, 1200), (384, 384, 216, 216)),
        (1, "nn", (192, 192, 1200), (384, 384, 384, 48)),
        (1, "tn", (400, 191, 1200), (384, 384, 216, 216)),
        (1, "nt", (20, 192, 1200), (384, 384, 384, 48)),
        (2, "nn", (10, 19, 1000), (384, 308, 308)),  # 190,000 multiply-adds
        (2, "nn", (300, 300, 1200), (384, 384, 384, 48)),
        (2, "nn", (24, 400, 1500), (384, 384, 366, 366)),
        (2, "tn", (3460, 25, 865), (384, 384, 97)),
    ],
)
def test_k_is_cut_by_the_size_of_the_product(
    threads: int, layout: Any, shape: tuple[int, int, int], order: tuple[int, ...]
) -> None:
    schedule: Any = loose.schedules.mkl(threads, layout=layout).at(*shape, "fp32").schedule
    assert schedule.slicing.lengths == order


@in_turn(
    "layout, shape",
    [
        ("nn", (100, 300, 1200)), ("nn", (24, 378, 1500)), ("nn", (24, 756, 1500)), ("nn", (24, 512, 1500)),
        ("nn", (24, 400, 1536)), ("nn", (16, 512, 6400)), ("tn", (400, 24, 1500)), ("nn", (400, 32, 1536)),
        ("nn", (400, 57, 1500)),
    ],
)  # fmt: skip
def test_two_threads_take_a_half_of_k_each(layout: Any, shape: tuple[int, int, int]) -> None:
    schedule: Any = loose.schedules.mkl(2, layout=layout).at(*shape, "fp32").schedule
    assert sum(schedule.order_at(0, 0).lengths[: schedule.order_at(0, 0).parts[0]]) == -(-shape[2] // 2)


@in_turn(
    "threads, layout, shape, lanes",
    [
        (1, "nt", (15, 40, 360), ["quarters"]),
        (1, "nt", (10, 3, 31), ["dealt"]),
        (2, "nt", (8, 512, 600), ["quarters"]),
        (1, "nn", (1, 35, 50), ["eights", "chain"]),
        (2, "nn", (1, 35, 256), ["eights", "chain"]),
        (1, "nt", (1, 7, 50), ["first_apart", "first_added_pairs", "first_added"]),
        (1, "nn", (1, 1, 50), ["chain"]),
    ],
)
def test_vectors_and_few_rows_have_lanes(threads: int, layout: Any, shape: Any, lanes: list[str]) -> None:
    schedule: Any = loose.schedules.mkl(threads, layout=layout).at(*shape, "fp32").schedule
    assert [region.order.lanes for region in schedule.regions] == lanes
    halves = threads == 2 and 1 in shape
    assert all(region.order.parts == ((1, 1) if halves else ()) for region in schedule.regions)


def test_two_threads_share_the_results_of_long_vectors() -> None:
    schedule: Any = loose.schedules.mkl(2, layout="nt").at(1, 101, 699, "fp32").schedule
    lanes = [schedule.order_at(0, column).lanes for column in (47, 48, 49, 50, 51, 98, 99, 100)]
    tail = ["first_added_pairs", "first_added", "first_added_pairs"]
    assert lanes == ["first_apart", *tail, "first_apart", "first_apart", *tail[:2]]
