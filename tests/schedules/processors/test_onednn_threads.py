"""oneDNN's products without AMX, and torch's rows of FP16, on one thread and more: what torch.mm gave, bit for bit."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import FORMATS, NEEDED, TORCH, Array, MmCase, digest, hashed, operands, torch_products

NUMBER = 72
LAYOUTS = ("nn", "nt", "tn")
KINDS = (("avx512", "bf16"), ("avx512_fp16", "fp16"))
ROWS: list[Any] = [(isa, fmt, threads) for isa, fmt in KINDS for threads in (1, 2)]
loose: Any = fp


def case(number: int, fmt: str) -> tuple[str, MmCase]:
    """Return the layout and shape of a recorded product: vectors, 2 and 3 rows, and up to 40 rows."""
    x, y, z = (float(v) / 2.0**64 for v in hashed(4000 + number, 3))
    size, k = 2 + int(x * 90), int(2 ** (4 + 7 * z))
    odd = 5 + 2 * int(y * 18)
    m, n = ((1, size), (size, 1), (2, size), (3, size), (odd, size), (odd + number % 2, size))[number % 6]
    return LAYOUTS[number // 6 % 3], MmCase(m, n, max(k, 4097 // (m * n) + 1), fmt)


@cache
def recorded() -> dict[str, Array]:
    """Return what torch.mm gave on an Intel Emerald Rapids (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "onednn_threads.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def predicted(isa: str, threads: int, number: int, fmt: str) -> Array | None:
    """Return the codes that fpsim predicts for a recorded product, or None for a shape that it declines."""
    layout, shape = case(number, fmt)
    library = loose.schedules.torch_mm(isa, threads, layout=layout)
    if library.declines(*shape):
        return None
    result: Array = fp.matmul(*operands(shape, 10 * number), schedule=library, fmt=FORMATS[fmt])
    return result.view(np.uint16)


@in_turn("isa, fmt, threads", ROWS)
def test_products_are_predicted_bit_for_bit(isa: str, fmt: str, threads: int) -> None:
    for number in range(ROWS.index((isa, fmt, threads)), NUMBER, 4):
        got = predicted(isa, threads, number, fmt)
        assert got is not None
        assert digest(got) == recorded()[f"{isa} {fmt} {threads}"][number], (threads, case(number, fmt))


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "fmt", "threads"), ROWS)
def test_all_products_are_predicted(isa: Any, fmt: str, threads: int) -> None:
    from llvmlite import binding

    numbers = range(NUMBER)
    results = [predicted(isa, threads, number, fmt) for number in numbers]
    assert all(got is not None for got in results)
    assert [digest(got) for got in results if got is not None] == recorded()[f"{isa} {fmt} {threads}"].tolist()
    if not binding.get_host_cpu_features().get(NEEDED[isa], False):
        pytest.skip(f"this processor has no {NEEDED[isa]}")
    cases = [case(number, fmt) for number in numbers]
    data = [(shape, *operands(shape, 10 * number)) for number, (_, shape) in zip(numbers, cases, strict=True)]
    here = torch_products(data, isa, threads, [layout for layout, _ in cases])
    if here is None:
        pytest.skip(f"the rules are those of torch {TORCH}, and another version is here")
    for got, want, shape in zip(results, here, cases, strict=True):
        assert got is not None
        assert np.array_equal(got, want), shape


def test_the_middle_row_of_an_odd_number_is_a_thread_of_its_own() -> None:
    orders = fp.schedules.onednn("avx512", 2).at(7, 40, 100).schedule
    assert isinstance(orders, fp.schedules.Regions)
    assert [orders.order_at(row, 0).lengths[0] for row in range(7)] == [100, 100, 100, 8, 100, 100, 100]
    pairs = fp.schedules.onednn("avx512", 2, layout="nt").at(3, 40, 100).schedule
    assert isinstance(pairs, fp.schedules.Regions)
    assert {pairs.order_at(row, 0).lanes for row in range(3)} == {"pairs_dealt"}


# ---- threads that share K: products of a transposed a, and vectors

SHARERS = (2, 3, 8)
SHARED_KINDS = (("avx512_bf16", "bf16"), ("avx512_fp16", "fp16"))
SHARED: list[Any] = [(isa, fmt, threads) for isa, fmt in SHARED_KINDS for threads in SHARERS]
SHARED_NUMBER = 24


def shared_case(number: int, fmt: str) -> tuple[str, MmCase]:
    """Return the layout and shape of a recorded product: up to three blocks of 64 columns, and a long K."""
    x, y, z = (float(v) / 2.0**64 for v in hashed(9000 + number, 3))
    m, n = 2 + int(x * 120), 1 + int(y * 64 * (1 + number % 3))
    k = 1 << 10 + number % 4 if number % 8 < 6 else 2048 + int(z * 3000)
    m, n = (1, n) if number % 6 == 4 else (m, 1) if number % 6 == 5 else (m, n)
    return "tn" if 1 not in (m, n) else LAYOUTS[number % 3], MmCase(m, n, max(k, 4097 // (m * n) + 1), fmt)


def shared_prediction(isa: str, threads: int, number: int, fmt: str) -> Array:
    """Return the codes that fpsim predicts for a recorded product that threads may share."""
    layout, shape = shared_case(number, fmt)
    library = loose.schedules.torch_mm(isa, threads, layout=layout)
    result: Array = fp.matmul(*operands(shape, 10 * number), schedule=library, fmt=FORMATS[fmt])
    return result.view(np.uint16)


@in_turn("isa, fmt, threads", SHARED)
def test_products_whose_k_threads_share_are_predicted(isa: str, fmt: str, threads: int) -> None:
    for number in range(SHARED.index((isa, fmt, threads)) % 4, SHARED_NUMBER, 4):
        want = recorded()[f"shared {isa} {fmt} {threads}"][number]
        assert digest(shared_prediction(isa, threads, number, fmt)) == want, (threads, shared_case(number, fmt))


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "fmt", "threads"), SHARED)
def test_all_products_whose_k_threads_share_are_predicted(isa: Any, fmt: str, threads: int) -> None:
    from llvmlite import binding

    want = recorded()[f"shared {isa} {fmt} {threads}"].tolist()
    numbers = range(SHARED_NUMBER)
    assert [digest(shared_prediction(isa, threads, number, fmt)) for number in numbers] == want
    if not binding.get_host_cpu_features().get(NEEDED[isa], False):
        pytest.skip(f"this processor has no {NEEDED[isa]}")
    cases = [shared_case(number, fmt) for number in numbers]
    data = [(shape, *operands(shape, 10 * number)) for number, (_, shape) in zip(numbers, cases, strict=True)]
    here = torch_products(data, isa, threads, [layout for layout, _ in cases])
    if here is None:
        pytest.skip(f"the rules are those of torch {TORCH}, and another version is here")
    assert [digest(x) for x in here] == want


def test_threads_share_k_only_if_columns_are_few_and_a_is_transposed() -> None:
    def parts(threads: int, fmt: str, *shape: int, layout: str = "tn") -> tuple[int, ...]:
        isa = "avx512_fp16" if fmt == "fp16" else "avx512_bf16"
        how = loose.schedules.onednn(isa, threads, layout=layout).at(*shape, fmt).schedule
        return how.order_at(0, 0).parts if isinstance(how, fp.schedules.Regions) else ()

    assert parts(2, "bf16", 40, 64, 4096) == (4, 4)
    assert parts(2, "bf16", 40, 65, 4096) == parts(2, "bf16", 40, 64, 4096, layout="nn") == ()
    assert parts(2, "bf16", 40, 64, 4095) == parts(2, "bf16", 40, 64, 1024) == ()  # no power of two; too few terms
    assert parts(2, "fp16", 40, 64, 5000) == (5, 5)
    assert parts(1, "fp16", 40, 64, 5000) == ()
    assert parts(2, "bf16", 1, 64, 4096, layout="nn") == (4, 4)
