"""oneDNN's blocks of K with AMX, by caches: torch.mm's products under carried-out tile instructions, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.schedules.libraries.amx_blocks import Caches, amx_blocks, amx_row_blocks
from tests.kit.torch_mm import Array, MmCase, digest, operands, shapes

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
    with np.load(Path(__file__).parents[1] / "data" / "onednn_amx.npz") as arrays:
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
    assert isinstance(chosen.schedule, fp.schedules.Schedule)
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
        blocks = amx_blocks(*shape, False, usual)
        assert blocks is not None
        assert blocks[:2] == (terms, 32), shape


def test_smaller_caches_cut_k_more_often() -> None:
    def lengths(l1: int, l2: int) -> tuple[int, ...]:
        schedule = fp.schedules.onednn("amx", l1=l1, l2=l2).at(100, 120, 4000).schedule
        assert isinstance(schedule, fp.schedules.Schedule)
        return schedule.slicing.lengths

    assert len(lengths(64 << 10, 4 << 20)) < len(lengths(*CACHES[0])) <= len(lengths(*CACHES[2]))
    assert amx_row_blocks(300, 4000, False, Caches(*CACHES[2])) < 4000


def test_a_product_whose_segments_have_two_lengths_of_instructions_is_declined() -> None:
    text = fp.schedules.onednn("amx", layout="nt", l1=32 << 10, l2=1 << 20).declines(37, 89, 2908)
    assert text.endswith("segments whose instructions have other lengths than the last one's are no schedule.")
