"""Biases as torch's kernels on x86 add them: what torch.addmm gave, bit for bit, and the orders written out."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import FORMATS, NEEDED, TORCH, Array, MmCase, digest, hashed, operands, torch_products

NUMBER = 60
LAYOUTS = ("nn", "nt", "tn")
ROWS: list[Any] = [
    (isa, fmt, threads)
    for isa, fmt in (("avx512_bf16", "fp32"), ("avx512_bf16", "bf16"), ("avx512", "bf16"), ("avx2", "fp16"))
    for threads in (1, 2)
]
loose: Any = fp


def case(number: int, fmt: str) -> tuple[str, MmCase]:
    """Return the layout and shape of a recorded product: matrices, few rows, and vectors, some of one term."""
    x, y, z = (float(v) / 2.0**64 for v in hashed(11_000 + number, 3))
    m, n, k = 2 + int(x * 90), 2 + int(y * 90), int(2 ** (11 * z))
    m = 2 + int(x * 14) if number % 5 == 1 else m
    m, n = (1, n) if number % 10 == 3 else (m, 1) if number % 10 == 8 else (m, n)
    return LAYOUTS[number % 3], MmCase(m, n, k, fmt)


def bias_of(shape: MmCase, number: int) -> Array:
    """Return a bias (N,) in the format of the operands, small numbers of both signs."""
    x = hashed(12_000 + number, shape.n).astype(np.float64) / 2.0**63 - 1
    values: Array = fp.cast((x * 2.0 ** (number % 9 - 6)).astype(np.float32), FORMATS[shape.fmt])
    return values


@cache
def recorded() -> dict[str, Array]:
    """Return what torch.addmm gave on an Intel Xeon (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "torch_biases.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def predicted(isa: str, threads: int, number: int, fmt: str) -> Array | None:
    """Return the codes that fpsim predicts for a recorded product, or None for a shape or a bias that it declines."""
    layout, shape = case(number, fmt)
    library = loose.schedules.torch_mm(isa, threads, mkl_isa="avx512", layout=layout)
    if library.declines(*shape) or not library.at(*shape).adds_bias:
        return None
    bias = bias_of(shape, number)
    result: Array = fp.matmul(*operands(shape, 10 * number), schedule=library, fmt=FORMATS[fmt], bias=bias)
    return result.view(f"u{result.dtype.itemsize}")


def compare_with_recorded(isa: str, fmt: str, threads: int, numbers: range) -> tuple[int, list[Any]]:
    """Return the number of cases that are declined, and those whose predicted bits are not torch.addmm's."""
    declined, wrong = 0, []
    for number in numbers:
        got = predicted(isa, threads, number, fmt)
        declined += got is None
        if got is not None and digest(got) != recorded()[f"{isa} {fmt} {threads}"][number]:
            wrong.append(case(number, fmt))
    return declined, wrong


@in_turn("isa, fmt, threads", ROWS)
def test_products_with_a_bias_are_predicted_bit_for_bit(isa: str, fmt: str, threads: int) -> None:
    first = ROWS.index((isa, fmt, threads)) % 4
    assert compare_with_recorded(isa, fmt, threads, range(first, NUMBER, 4))[1] == []


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "fmt", "threads"), ROWS)
def test_all_products_with_a_bias_are_predicted(isa: Any, fmt: str, threads: int) -> None:
    from llvmlite import binding

    declined, wrong = compare_with_recorded(isa, fmt, threads, range(NUMBER))
    assert wrong == []
    assert declined <= (8 if fmt == "fp32" else 0)  # sums of a vector of float32 whose results are neighbours
    if not binding.get_host_cpu_features().get(NEEDED[isa], False):
        pytest.skip(f"this processor has no {NEEDED[isa]}")
    if fmt == "fp32" and not binding.get_host_cpu_features().get("avx512f", False):
        pytest.skip("the rules of MKL are those of AVX-512")
    cases = [case(number, fmt) for number in range(NUMBER)]
    data = [(shape, *operands(shape, 10 * number)) for number, (_, shape) in enumerate(cases)]
    biases = [bias_of(shape, number) for number, (_, shape) in enumerate(cases)]
    here = torch_products(data, isa, threads, [layout for layout, _ in cases], biases)
    if here is None:
        pytest.skip(f"the rules are those of torch {TORCH}, and another version is here")
    assert [digest(x) for x in here] == recorded()[f"{isa} {fmt} {threads}"].tolist()


# ---- the orders, written out


def chain(a: Array, b: Array, start: Array) -> Array:
    """Return a chain of fp.fma over columns of a and rows of b, float32, from `start` on."""
    total = start
    for k in range(a.shape[1]):
        total = fp.fma(*np.broadcast_arrays(a[:, k, None], b[k, None], total))
    return total


def test_segments_are_added_to_the_bias() -> None:
    a, b = (x.view(np.float32) for x in operands(MmCase(5, 6, 1000, "fp32"), 3))
    bias = np.linspace(-1, 1, 6, dtype=np.float32)
    library = fp.schedules.torch_mm("avx512_bf16")
    chosen = library.at(5, 6, 1000, "fp32")
    assert (chosen.bias, str(chosen.schedule)) == ("first", "segments(384, 308, 308)")
    want, first = np.tile(bias, (5, 1)), 0
    for length in (384, 308, 308):
        terms = slice(first, first + length)
        want, first = want + chain(a[:, terms], b[terms], np.zeros((5, 6), np.float32)), first + length
    assert_bits_equal(fp.matmul(a, b, schedule=library, bias=bias), want)
    out = np.empty_like(want)
    assert fp.matmul(a, b, schedule=library, bias=bias, out=out) is out
    assert_bits_equal(out, want)
    assert not np.array_equal(want, fp.matmul(a, b, schedule=library) + bias)


def test_the_first_of_two_threads_starts_at_the_bias() -> None:
    a, b = (x.view(np.float32) for x in operands(MmCase(60, 61, 900, "fp32"), 3))
    bias = np.linspace(-1, 1, 61, dtype=np.float32)
    library = fp.schedules.torch_mm("avx512_bf16", 2)
    how = library.at(60, 61, 900, "fp32").schedule
    assert isinstance(how, fp.schedules.Regions)
    order = how.order_at(0, 0)
    assert order.parts == (2, 2)
    sums, first = [], 0
    for length in order.lengths:
        terms = slice(first, first + length)
        sums.append(chain(a[:, terms], b[terms], np.zeros((60, 61), np.float32)))
        first += length
    want = ((bias + sums[0]) + sums[1]) + (sums[2] + sums[3])
    assert_bits_equal(fp.matmul(a, b, schedule=library, bias=bias), want)


def test_chains_of_torchs_own_loop_start_at_the_bias_if_a_is_transposed() -> None:
    a, b = operands(MmCase(5, 6, 70, "bf16"), 3)
    bias = fp.cast(np.linspace(-1, 1, 6, dtype=np.float32), fp.BF16)
    library = fp.schedules.torch_native(layout="tn")
    assert library.at(5, 6, 70).bias == "start"
    values = [fp.decode(x, fp.BF16) for x in (a, b)]
    want = chain(values[0], values[1], np.tile(fp.decode(bias, fp.BF16), (5, 1)))
    assert_bits_equal(fp.matmul(a, b, schedule=library, fmt="bf16", bias=bias), fp.cast(want, fp.BF16))
    assert_bits_equal(fp.matmul(a, b, schedule=library, fmt="bf16", bias=bias, out_fmt="fp32"), want)


def test_a_bias_of_another_shape_is_refused() -> None:
    a, b = (x.view(np.float32) for x in operands(MmCase(5, 6, 1000, "fp32"), 3))
    with pytest.raises(ValueError, match=r"bias must have one number per column, shape \(6,\); got \(5,\)"):
        fp.matmul(a, b, schedule=fp.schedules.torch_mm(), bias=np.zeros(5, np.float32))
