"""oneDNN's products of INT8 without VNNI: what torch._int_mm gave, and an oracle of pairs that saturate."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import NEEDED, TORCH, Array, MmCase, digest, hashed, torch_products

NUMBER = 96
LAYOUTS = ("nn", "nt", "tn")
ROWS: list[Any] = [(isa, threads) for isa in ("avx512", "avx2") for threads in (1, 2)]
ENDS = np.array([-128, 127, -127, 126], np.int8)
loose: Any = fp


def case(number: int) -> tuple[str, MmCase]:
    """Return the layout and shape of a recorded product: vectors, single results and matrices."""
    x, y, z = (float(v) / 2.0**64 for v in hashed(7000 + number, 3))
    m, n = 2 + int(x * 14), 2 + int(y * 14)
    m, n = ((1, n), (m, 1), (1, 1), (m, n), (m, n), (m, n), (40 * m, 2), (2, 40 * n))[number % 8]
    longest = 1900 if number % 3 else 780
    return LAYOUTS[number // 8 % 3], MmCase(m, n, 1 + int(z * longest) if number % 5 else 1 + int(z * 9), "int8")


def operands(number: int) -> tuple[Array, Array]:
    """Return int8 operands of a recorded product: any bytes, or the ends of the range, whose pairs all saturate."""
    _, (m, n, k, _) = case(number)
    words = hashed(10 * number, m * k), hashed(10 * number + 1, k * n)
    a, b = (ENDS[x & np.uint64(3)] if number // 24 % 2 else (x >> np.uint64(56)).astype(np.uint8) for x in words)
    return a.view(np.int8).reshape(m, k), b.view(np.int8).reshape(k, n)


def pair_sums(a: Array, b: Array, lengths: list[int], side: str) -> Array:
    """Return a @ b in int32 as VPMADDUBSW adds it: 128 is added to one operand, and pairs of products are clipped."""
    if side == "b":
        flipped: Array = pair_sums(b.T, a.T, lengths, "a").T
        return flipped
    left, right = a.astype(np.int32) + 128, b.astype(np.int32)
    total, start = -128 * right.sum(axis=0) + np.zeros((len(a), 1), np.int64), 0
    for length in lengths:
        first, second = (slice(start + i, start + length, 2) for i in (0, 1))
        pairs = left[:, first, None] * right[first]
        pairs[:, : length // 2] += left[:, second, None] * right[second]
        total += np.clip(pairs, -(2**15), 2**15 - 1).sum(axis=1)
        start += length
    sums: Array = total.astype(np.int32)
    return sums


def segments_of(k: int, isa: str) -> list[int]:
    """Return the segments of K of oneDNN's product of matrices, from its source (gemm_driver.cpp)."""
    whole, block = {"avx512": (384, 768), "avx2": (256, 384)}[isa]
    size = k if k <= whole else (k + 1) // 2 if k < 2 * block else block
    return [min(size, k - start) for start in range(0, k, size)]


@cache
def recorded() -> dict[str, Array]:
    """Return what torch._int_mm gave on an Intel Emerald Rapids (tests/data/README.md)."""
    with np.load(Path(__file__).parents[2] / "data" / "onednn_int8.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


def predicted(isa: str, threads: int, number: int) -> Array:
    layout, _ = case(number)
    result: Array = fp.matmul(*operands(number), schedule=loose.schedules.torch_mm(isa, threads, layout=layout))
    assert result.dtype == np.int32
    return result


@in_turn("isa, threads", ROWS)
def test_products_are_predicted_bit_for_bit(isa: str, threads: int) -> None:
    for number in range(ROWS.index((isa, threads)), NUMBER, 3):
        assert digest(predicted(isa, threads, number)) == recorded()[f"{isa} {threads}"][number], case(number)


@in_turn("isa", ["avx512", "avx2"])
def test_the_recorded_products_tell_rules_apart(isa: str) -> None:
    rows = recorded()[f"{isa} 1"]
    unlike = dict.fromkeys(("exact", "uncut", "side", "vectors"), 0)
    for number in range(NUMBER):
        layout, (m, n, k, _) = case(number)
        a, b = operands(number)
        column, row = n == 1 and (layout != "tn" or m == 1), m == 1 < n and layout == "nt"
        is_vector = isa == "avx512" and (column or row)
        side = "b" if is_vector and column else "a"
        lengths = [k] if is_vector else segments_of(k, isa)
        assert digest(pair_sums(a, b, lengths, side)) == rows[number], case(number)
        others = {
            "exact": (a.astype(np.int64) @ b).astype(np.int32), "uncut": pair_sums(a, b, [k], side),
            "side": pair_sums(a, b, lengths, "ab".replace(side, "")),
            "vectors": pair_sums(a, b, segments_of(k, isa), "a"),
        }  # fmt: skip
        for name, other in others.items():
            unlike[name] += digest(other) != rows[number]
    assert unlike["exact"] >= 20
    assert unlike["side"] >= 20
    assert unlike["uncut"] >= 4
    assert unlike["vectors"] >= 10 if isa == "avx512" else unlike["vectors"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "threads"), ROWS)
def test_all_products_are_predicted(isa: Any, threads: int) -> None:
    from llvmlite import binding

    numbers = range(NUMBER)
    results = [predicted(isa, threads, number) for number in numbers]
    assert [digest(got) for got in results] == recorded()[f"{isa} {threads}"].tolist()
    if not binding.get_host_cpu_features().get(NEEDED[isa], False):
        pytest.skip(f"this processor has no {NEEDED[isa]}")
    data = [(case(number)[1], *operands(number)) for number in numbers]
    here = torch_products(data, isa, threads, [case(number)[0] for number in numbers])
    if here is None:
        pytest.skip(f"the rules are those of torch {TORCH}, and another version is here")
    for number, got, want in zip(numbers, results, here, strict=True):
        assert np.array_equal(got.view(np.uint32), want), case(number)


def test_sums_wrap_at_the_end() -> None:
    a, b = np.full((2, 140_000), 127, np.int8), np.full((140_000, 2), -128, np.int8)
    got = fp.matmul(a, b, schedule=fp.schedules.onednn("avx2"))
    want = (70_000 * -(2**15) + 128 * 128 * 140_000 + 2**31) % 2**32 - 2**31  # pairs of 255 * -128 saturate
    assert_bits_equal(got, np.full((2, 2), want, np.int32))


def test_results_go_to_out_and_to_formats() -> None:
    a, b = operands(11)
    for library in (fp.schedules.onednn("avx2"), fp.schedules.onednn("amx")):
        a.flags.writeable = b.flags.writeable = False
        sums = fp.matmul(a, b, schedule=library)
        out = np.zeros_like(sums)
        assert fp.matmul(a, b, schedule=library, out=out) is out
        assert_bits_equal(out, sums)
        assert_bits_equal(fp.matmul(a, b, schedule=library, out_fmt="fp32"), sums.astype(np.float32))
        assert_bits_equal(fp.matmul(np.asfortranarray(a), b.T.copy().T, schedule=library), sums)
        with pytest.raises(ValueError, match="out must have"):
            fp.matmul(a, b, schedule=library, out=np.zeros((1, 1), np.int32))


def test_threads_that_may_share_k_are_declined() -> None:
    library = fp.schedules.onednn("avx2", 3)
    text = library.declines(128, 9, 3072, "int8")
    assert text.startswith("onednn('avx2', threads=3) has no proven rule for 128 x 9 x 3072 in INT8 (nn): ")
    assert text.endswith(": how 3 threads share K is not known in this case.")
    with pytest.raises(fp.schedules.DeclinedShape):
        fp.matmul(np.zeros((128, 3072), np.int8), np.zeros((3072, 9), np.int8), schedule=library)
    assert not fp.schedules.onednn("avx2", 2).declines(128, 9, 3072, "int8")
    assert not library.declines(129, 9, 3072, "int8") + library.declines(128, 9, 3071, "int8")


def test_kernels_and_segments_depend_on_shape_layout_and_instructions() -> None:
    def facts(isa: str, *shape: int, **words: Any) -> tuple[str, str, str]:
        chosen = loose.schedules.onednn(isa, **words).at(*shape, "int8")
        return chosen.kernel, str(chosen.schedule), chosen.shifted

    matrices, vectors = "gemm_s8s8s32", "gemv_s8s8s32"
    assert facts("avx512", 4, 5, 384) == (matrices, "segments(384)", "a")
    assert facts("avx512", 4, 5, 386) == (matrices, "segments(193, 193)", "a")
    assert facts("avx512", 4, 5, 1537) == (matrices, "segments(768, 768, 1)", "a")
    assert facts("avx2", 4, 5, 257) == (matrices, "segments(129, 128)", "a")
    assert facts("avx2", 4, 5, 768) == (matrices, "segments(384, 384)", "a")
    assert facts("avx512", 4, 1, 386) == (vectors, "segments(386)", "b")
    assert facts("avx512", 4, 1, 386, layout="tn") == (matrices, "segments(193, 193)", "a")
    assert facts("avx512", 1, 5, 386, layout="nt") == (vectors, "segments(386)", "a")
    assert facts("avx512", 1, 1, 386, layout="tn") == (vectors, "segments(386)", "b")
    assert facts("avx2", 4, 1, 386) == (matrices, "segments(193, 193)", "a")
    assert facts("amx", 4, 1, 386) == ("_int_mm", "FLAT", "")
    assert facts("avx512", 129, 9, 3072, threads=4)[0] == matrices
    assert facts("avx512", 128, 1, 3072, threads=4)[0] == vectors
