"""fp.testing.check_kernel of kernels of integers: right ones pass, and faults are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.kit.sweeps import case

Kernel = Callable[[Any, Any], Any]
WIDE, NARROW = np.int64, np.int32
LOW = -(2**31)


def by(name: str) -> Kernel:
    """Return a kernel that is a unit."""
    return lambda a, b: fp.matmul(a, b, accumulate=name)


@pytest.mark.parametrize(
    ("unit", "a", "b"),
    [
        ("hopper_s8_s32", "int8", "int8"),
        ("x86_vnni_u8xs8_s32_sat", np.uint8, fp.INT8),
        ("ampere_s4xu4_s32", "s4", "u4"),
        ("arm_u8_u32", "u8", np.dtype(np.uint8)),
    ],
)
def test_a_unit_passes(unit: str, a: Any, b: Any) -> None:
    report = fp.testing.check_kernel(by(unit), a=a, b=b, accumulate=unit)
    assert report.ok
    assert report.of > 3000
    assert report.excluded >= 12
    assert f"has the bits of {unit}" in str(report)


def test_torch_passes_where_it_takes_the_shapes() -> None:
    torch = pytest.importorskip("torch")
    shapes = [(17, 16, 64), (32, 24, 200), (40, 16, 8)]
    report = fp.testing.check_kernel(
        torch._int_mm, a=torch.int8, accumulate="x86_amx_s8_s32", shapes=shapes, raises=False
    )
    assert report.ok, str(report)


def exact(a: Any, b: Any) -> Any:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(WIDE)  # below 2**53


def in_float32(a: Any, b: Any) -> Any:
    return np.clip(exact(a, b).astype(np.float32).astype(float), LOW, -LOW - 1).astype(NARROW)


def pairs(a: Any, b: Any) -> Any:
    """Return sums of pairs that saturate in int16, as AVX2 adds without VNNI."""
    odd = a.shape[1] % 2
    products = np.pad(a, ((0, 0), (0, odd))).astype(WIDE)[:, :, None] * np.pad(b, ((0, odd), (0, 0)))[None]
    return np.clip(products[:, ::2] + products[:, 1::2], -32768, 32767).sum(axis=1).astype(NARROW)


def shifted(a: Any, b: Any) -> Any:
    """Return sums of signed operands by saturating pairs of unsigned by signed (oneDNN 476)."""
    return (pairs(a.astype(WIDE) + 128, b) - 128 * b.astype(WIDE).sum(0)).astype(NARROW)


def eight_apart(a: Any, b: Any) -> Any:
    """Return sums of pairs of products, 8 terms of K apart, that wrap in int16 (onnxruntime 31573)."""
    rest = -a.shape[1] % 16
    of_a = np.pad(a, ((0, 0), (0, rest))).astype(WIDE).reshape(len(a), -1, 2, 8)
    of_b = np.pad(b, ((0, rest), (0, 0))).astype(WIDE).reshape(-1, 2, 8, b.shape[1])
    sums = [np.einsum("mci,cin->min", of_a[:, block], of_b[block]) for block in range(of_a.shape[1])]
    return sum(part.astype(np.int16).sum(1, dtype=NARROW) for part in sums)


S8, U8S8, SAT = "hopper_s8_s32", "x86_vnni_u8xs8_s32", "x86_vnni_u8xs8_s32_sat"
FAULTS: tuple[tuple[str, Kernel, str], ...] = (
    (U8S8, by(SAT), "saturates after every 4 terms"),
    (SAT, by(U8S8), "wraps instead of saturating"),
    (SAT, by("hopper_u8xs8_s32_sat"), "saturates after every 32 terms"),
    (U8S8, pairs, "saturates sums of two products in int16"),
    (S8, shifted, "adds 128 to a first, and saturates sums of two products in int16"),
    (S8, eight_apart, "wraps sums of 2 products in int16, of terms 8 apart"),
    (S8, lambda a, b: by("hopper_u8xs8_s32")(a.view(np.uint8), b), "reads a as u8 instead of s8"),
    (U8S8, lambda a, b: by("hopper_u8_s32")(a, b.view(np.uint8)), "reads b as u8 instead of s8"),
    (
        S8,
        lambda a, b: np.clip(exact(a, b).astype(np.float32).astype(float), LOW, -LOW - 1).astype(NARROW),
        "adds in float32",
    ),
    (S8, lambda a, b: exact(a, b).astype(np.int16).astype(NARROW), "wraps sums in int16"),
    (S8, lambda a, b: np.clip(exact(a, b), -128, 127).astype(NARROW), "saturates sums in int8"),
    (S8, lambda a, b: by(S8)(a[:, : a.shape[1] // 16 * 16], b[: a.shape[1] // 16 * 16]), "after the last whole 16"),
    (S8, lambda a, b: by(S8)(a[:, :-1], b[:-1]), "leaves out the last term of K"),
    (S8, lambda a, b: by(S8)(a, b).T if len(a) == b.shape[1] else by(S8)(a, b), "exchanges rows and columns"),
)
MEMORY = np.zeros(1 << 17, NARROW)


def into_one_memory(a: Any, b: Any) -> Any:
    result = exact(a, b)
    MEMORY[: result.size] = result.ravel()
    return MEMORY[: result.size].reshape(result.shape)


def test_faults_are_named() -> None:
    for unit, kernel, clause in FAULTS:
        with case(clause):
            of = fp.unit(unit)
            report = fp.testing.check_kernel(kernel, a=of.a.dtype, b=of.b.dtype, accumulate=unit, raises=False)
            assert not report.ok
            assert clause in report.causes[0], str(report)
            assert clause in str(report)
            assert "the first wrong element is" in str(report)


def test_columns_beyond_128_are_visited() -> None:
    def kernel(a: Any, b: Any) -> Any:
        results = exact(a, b)
        results[:, 128:] = 0
        return results

    report = fp.testing.check_kernel(kernel, a="int8", accumulate="hopper_s8_s32", raises=False)
    assert not report.ok


def test_what_no_variant_explains_is_said() -> None:
    report = fp.testing.check_kernel(
        lambda a, b: (exact(a, b) * 3 + 1).astype(NARROW), a="int8", accumulate=S8, raises=False
    )
    assert "that were tried explains them" in report.explanation
    assert report.unexplained
    with pytest.raises(AssertionError, match="does not have the bits of hopper_s8_s32"):
        fp.testing.check_kernel(lambda a, b: exact(a, b).astype(np.int16).astype(NARROW), a="int8", accumulate=S8)


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        (lambda a, b: exact(a, b), "fn must return int32; got int64"),
        (lambda a, b: by(S8)(a, b)[:, :0], "fn must return the shape"),
        (lambda a, b: a.fill(1) or by(S8)(a, b), "fn writes into a"),
        (lambda a, b: 1 / 0, "fn raised ZeroDivisionError"),
        (lambda a, b: None, "fn must return an array; got None"),
        (into_one_memory, "fn returns an array whose memory a later call overwrites"),
        (lambda a, b: np.random.default_rng().integers(0, 99, (len(a), b.shape[1]), NARROW), "at the second call"),
    ],
)
def test_broken_rules_are_said(kernel: Kernel, sentence: str) -> None:
    report = fp.testing.check_kernel(kernel, a="int8", accumulate=S8, shapes=[(4, 5, 6)], raises=False)
    assert not report.ok
    assert sentence in str(report)


def test_a_kernel_that_ignores_strides_is_found() -> None:
    def by_memory(a: Any, b: Any) -> Any:
        return by(S8)(np.ascontiguousarray(a.ravel(order="K").reshape(a.shape)), b)

    report = fp.testing.check_kernel(by_memory, a="int8", accumulate=S8, raises=False)
    assert (report.ok, report.mismatches) == (False, 0)
    assert "a transposed in memory, than in C order" in report.broken[0]
    assert "b transposed" in fp.testing.check_kernel(by(S8), a="int8", accumulate=S8).covered.layouts


def test_the_type_of_arrays_that_a_kernel_takes_is_found() -> None:
    torch = pytest.importorskip("torch")

    def kernel(a: Any, b: Any) -> Any:
        return (a.double() @ b.double()).to(torch.int64).to(torch.int32)

    assert fp.testing.check_kernel(kernel, a="int8", accumulate=S8).ok


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"a": "e4m3"}, r"takes s8 \(int8\) as a; got 'e4m3'"),
        ({"a": "int8", "b": "uint8"}, r"takes s8 \(int8\) as b; got 'uint8'"),
        ({"a": "int8", "promote": 128}, "promote is for units of floats; got 128 with hopper_s8_s32"),
        ({"a": "int8", "bias": True}, "bias is for units of floats"),
        ({"a": "int8", "shapes": []}, "shapes must be triples"),
        ({"a": "int8", "shapes": [(1, 2)]}, "shapes must be triples"),
        ({"a": "int8", "shapes": 5}, "shapes must be triples"),
        ({"a": "int8", "takes": "cupy"}, "takes must be one of numpy, torch, cuda, jax"),
        ({"fn": 3, "a": "int8"}, "fn must be a function of two matrices"),
    ],
)
def test_bad_input_says_what_was_wanted(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fp.testing.check_kernel(**{"fn": by(S8), "accumulate": S8, **keywords})
