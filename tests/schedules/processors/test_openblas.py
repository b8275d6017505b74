"""OpenBLAS's float32 products, as NumPy calls them: what `a @ b` gave, bit for bit, and the orders written out."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import MmCase, digest, hashed, operands

Array = npt.NDArray[Any]
NUMBER = 120
LAYOUTS = ("nn", "nt", "tn")
ROWS: list[Any] = [(layout, threads) for layout in LAYOUTS for threads in (1, 2)]
loose: Any = fp


def case(number: int) -> MmCase:
    """Return the shape of a recorded product: small and large ones, and few rows and columns with a long K."""
    x, y, z = (float(v) / 2.0**64 for v in hashed(15_000 + number, 3))
    kind = number % 4
    if kind == 0:
        sizes = 2 + int(x * 70), 2 + int(y * 70), int(2 ** (8 * z))
    elif kind == 1:
        sizes = 2 + int(x * 30), 2 + int(y * 30), int(2 ** (5 + 6 * z))
    elif kind == 2:
        sizes = 30 + int(x * 120), 30 + int(y * 120), int(2 ** (6 + 5 * z))
    else:
        sizes = 2 + int(x * 34), 2 + int(y * 34), int(2 ** (9 + 6 * z))
    return MmCase(*sizes, "fp32")


def values(number: int) -> tuple[Array, Array]:
    """Return float32 operands of a recorded product, in C order, whose exact products are 0 or small."""
    a, b = operands(case(number), 10 * number)
    return a.view(np.float32), b.view(np.float32)


def by_numpy(number: int, layout: str) -> Array:
    """Return the bits of NumPy's product of operands in a layout."""
    a, b = values(number)
    left = np.ascontiguousarray(a.T).T if layout == "tn" else a
    right = np.ascontiguousarray(b.T).T if layout == "nt" else b
    product: Array = (left @ right).view(np.uint32)
    return product


@cache
def recorded() -> dict[str, Array]:
    """Return what NumPy gave on an Intel Xeon (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "openblas.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def wrong(layout: str, threads: int, numbers: range) -> list[MmCase]:
    """Return the cases of these numbers whose predicted bits are not the recorded ones."""
    library = loose.schedules.openblas(threads, layout=layout)
    want = recorded()[f"{layout} {threads}"]
    return [
        case(i) for i in numbers if digest(fp.matmul(*values(i), schedule=library).view(np.uint32)) != want[i]
    ]  # fmt: skip


@in_turn("layout, threads", ROWS)
def test_products_are_predicted_bit_for_bit(layout: str, threads: int) -> None:
    assert wrong(layout, threads, range(ROWS.index((layout, threads)), NUMBER, 6)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "threads"), ROWS)
def test_all_products_are_predicted(layout: str, threads: int) -> None:
    assert wrong(layout, threads, range(NUMBER)) == []
    info = pytest.importorskip("threadpoolctl").threadpool_info()
    libraries = [row for row in info if row["internal_api"] == "openblas" and "numpy" in row["filepath"]]
    if not libraries or libraries[0]["architecture"] != "SkylakeX" or not libraries[0]["version"].startswith("0.3.31"):
        pytest.skip("the rules are those of OpenBLAS 0.3.31 for SkylakeX, and another BLAS is here")
    from threadpoolctl import threadpool_limits

    if libraries[0]["num_threads"] < threads:
        pytest.skip("this machine gives NumPy one thread")
    with threadpool_limits(threads):
        here = [digest(by_numpy(i, layout)) for i in range(NUMBER)]
    assert here == recorded()[f"{layout} {threads}"].tolist()


# ---- the orders, written out


def lanes(a: Array, b: Array) -> list[Array]:
    """Return the 16 float32 sums of each result to which terms are added in turn by fused multiply-adds."""
    sums = [np.zeros((len(a), b.shape[1]), np.float32) for _ in range(16)]
    for k in range(a.shape[1]):
        sums[k % 16] = fp.fma(*np.broadcast_arrays(a[:, k, None], b[k, None], sums[k % 16]))
    return sums


def test_lanes_are_joined_by_neighbours_or_by_halves() -> None:
    a, b = (x.view(np.float32) for x in operands(MmCase(7, 22, 50, "fp32"), 3))
    got = fp.matmul(a, b, schedule=fp.schedules.openblas())
    chain = fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd("fp32"))
    assert_bits_equal(got[:, :16], chain[:, :16])
    sums = lanes(a, b)
    neighbours = sums
    while len(neighbours) > 1:
        neighbours = [x + y for x, y in zip(neighbours[::2], neighbours[1::2], strict=True)]
    halves = sums
    while len(halves) > 1:
        half = len(halves) // 2
        halves = [x + y for x, y in zip(halves[:half], halves[half:], strict=True)]
    assert_bits_equal(got[:, 16:20], neighbours[0][:, 16:20])
    assert_bits_equal(got[:4, 20:], neighbours[0][:4, 20:])
    assert_bits_equal(got[4:, 20:], halves[0][4:, 20:])
    assert not np.array_equal(halves[0], neighbours[0])


def test_kernels_depend_on_size_layout_and_threads() -> None:
    def kernel(*shape: int, threads: int = 1, layout: str = "nn") -> tuple[str, str]:
        chosen = loose.schedules.openblas(threads, layout=layout).at(*shape, "fp32")
        return chosen.kernel, str(chosen.schedule)

    assert kernel(20, 25, 40) == ("sgemm", "segments(40)")  # nine columns beyond 16
    assert kernel(20, 24, 31) == ("sgemm", "segments(31)")  # too few terms for lanes
    assert kernel(20, 24, 40)[0] == "sgemm_small_kernel"
    assert kernel(200, 200, 40, layout="nt") == ("sgemm", "segments(40)")  # the result is too large
    assert kernel(30, 40, 40, layout="nt")[0] == "sgemm_small_kernel"
    assert kernel(30, 40, 40, layout="tn") == ("sgemm", "segments(40)")
    assert kernel(100, 100, 500)[1] == "segments(256, 244)"
    assert kernel(100, 100, 500, threads=2)[1] == "segments(250, 250)"
    assert kernel(16, 31, 4000, threads=2)[1] == kernel(16, 31, 4000)[1]  # too few rows and columns for two threads
    assert kernel(17, 31, 4001, threads=2)[1] != kernel(17, 31, 4001)[1]
