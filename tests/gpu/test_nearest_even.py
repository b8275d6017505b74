"""The GPU's encoders by float32 give the codes of the core. Here they are compiled for the CPU, which is faster."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.arithmetic import routes
from fpsim.arithmetic.operation import operation
from fpsim.casts.loops import constants_of
from fpsim.core.encode import EncodeLayout, encode_bits_32
from fpsim.core.layouts import EncodePlan, encode_plan
from fpsim.formats.rounding import Rounding
from fpsim.gpu.core import float_arithmetic
from fpsim.gpu.core.nearest_even import nearest_encoder, serves
from fpsim.runtime.compile import kernel
from tests.kit.hard_columns import hard_columns
from tests.kit.sweeps import in_turn, sweep

POLICIES = (("nonfinite", "keep"), ("saturate", "flush"), ("saturate_finite", "keep"))
FORMATS = [fmt for fmt in fp.formats.NAMED.values() if fmt not in (fp.FP32, fp.FP64, fp.E8M0)]


def plan(fmt: fp.Format, overflow: str = "nonfinite", subnormals: str = "keep") -> EncodePlan:
    return encode_plan(fmt, 32, Rounding.NEAREST_EVEN, overflow, subnormals, 32)


def differing(found: EncodePlan) -> Any:
    """Return the loop `bits -> how many codes differ from the core's`."""
    encode, kind = nearest_encoder(found.frozen, found.kind), found.kind
    f, none, mode = constants_of(EncodeLayout, np.uint32, found.frozen), np.uint32(0), int(Rounding.NEAREST_EVEN)

    @numba.njit  # type: ignore[untyped-decorator]
    def count(first: Any, size: int, step: Any) -> int:
        differ = 0
        for i in range(size):
            bits = np.uint32(first + np.uint32(i) * step)
            differ += encode(bits) != encode_bits_32(bits, none, f, mode, kind)
        return differ

    return count


def encoding(found: EncodePlan) -> Any:
    """Return the loop `(bits, codes)` of the GPU's encoder, compiled for the CPU."""
    encode = nearest_encoder(found.frozen, found.kind)

    def loop(bits: Any, codes: Any) -> None:
        for i in range(bits.size):
            codes[i] = encode(bits[i])

    return kernel(loop)


def patterns() -> npt.NDArray[np.uint32]:
    """Every sign, exponent and leading mantissa bits, with values, midpoints and their neighbours below."""
    low = np.array([0, 1, 0x7F, 0x80, 0xFFF, 0x1000, 0x1001, 0x3FFF, 0x4000, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    upper = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)
    return np.asarray((upper[:, None] | low).reshape(-1))


@in_turn("fmt", FORMATS)
@sweep("count", 1, len(POLICIES))
def test_codes_are_those_of_the_core(fmt: fp.Format, count: int) -> None:
    x, first = patterns().view(np.float32), FORMATS.index(fmt)
    for overflow, subnormals in (POLICIES[i % len(POLICIES)] for i in range(first, first + count)):
        chosen = plan(fmt, overflow, subnormals)
        assert serves(chosen.frozen, 32, chosen.kind, int(Rounding.NEAREST_EVEN))
        want = fp.encode(x, fmt, overflow=overflow, subnormals=subnormals)
        codes = np.empty(x.size, np.uint32)
        encoding(chosen)(patterns(), codes)
        different = np.flatnonzero(codes != want)
        assert not different.size, f"{patterns()[different[0]]:#x}, and {different.size} in all"


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_all_codes_are_those_of_the_core(fmt: fp.Format) -> None:
    assert differing(plan(fmt))(np.uint32(0), 1 << 32, np.uint32(1)) == 0


def test_what_it_cannot_do_is_left_to_the_core() -> None:
    assert not serves(plan(fp.FP32).frozen, 32, plan(fp.FP32).kind, int(Rounding.NEAREST_EVEN)), "nothing is dropped"
    assert not serves(plan(fp.E8M0).frozen, 32, plan(fp.E8M0).kind, int(Rounding.NEAREST_EVEN)), "unsigned"
    assert not serves(plan(fp.E4M3).frozen, 32, plan(fp.E4M3).kind, int(Rounding.UP))
    assert not serves(plan(fp.E4M3).frozen, 64, plan(fp.E4M3).kind, int(Rounding.NEAREST_EVEN))


# ---- arithmetic

FLOAT_CASES = [
    (fmt, name) for fmt in float_arithmetic.FORMATS for name in float_arithmetic.OPERANDS
    if float_arithmetic.serves(fmt, name)
]  # fmt: skip
NAMES = [f"{name}-{fmt.name}" for fmt, name in FLOAT_CASES]


@cache
def loop_of(fmt: fp.Format, name: str) -> Any:
    """Return the loop `(a, b, c, codes)` over the GPU's function, compiled for the CPU."""
    function, none = float_arithmetic.float_function(fmt, name), np.zeros(1, fmt.storage)

    def loop(a: Any, b: Any, c: Any, codes: Any) -> None:
        for i in range(codes.size):
            codes[i] = function(np.uint32(a[i]), np.uint32(b[i]), np.uint32(c[i]), none)

    return kernel(loop)


def assert_as_the_core(fmt: fp.Format, name: str, columns: list[npt.NDArray[Any]]) -> None:
    described = operation(name, (fmt,) * len(columns), fmt)
    want = np.empty(columns[0].size, fmt.storage)
    routes.by_core(described)(tuple(columns), (want,), 0)
    codes = np.empty_like(want)
    loop_of(fmt, name)(*(columns + columns[:1] * (3 - len(columns))), codes)
    different = np.flatnonzero(codes != want)
    first = [hex(column[different[0]]) for column in columns] if different.size else []
    assert not different.size, f"{name} of {first}, and {different.size} in all"


def assert_all_pairs_as_the_core(fmt: fp.Format, name: str, third: Iterable[int]) -> None:
    """Compare all pairs of a format of 8 bits with the core, with some third operands."""
    low = np.arange(1 << 16)
    pairs = [(low >> 8).astype(np.uint8), (low & 255).astype(np.uint8)]
    for code in third:
        assert_as_the_core(fmt, name, [*pairs, np.full(1 << 16, code, np.uint8)])


# Every third code of a format of 8 bits, so that each of its low bits and exponents is there, and what is special.
SOME_CODES = sorted({*range(0, 256, 3), 1, 0x7B, 0x7C, 0x7D, 0x7E, 0x7F, 0x80, 0x81, 0xFC, 0xFE, 0xFF})


@pytest.mark.parametrize(("fmt", "name"), FLOAT_CASES, ids=NAMES)
def test_float32_gives_the_cores_codes(fmt: fp.Format, name: str) -> None:
    columns = hard_columns(name, (fmt,) * float_arithmetic.OPERANDS[name], fmt, 5000, seed=4)
    assert_as_the_core(fmt, name, [column.astype(fmt.storage) for column in columns])
    if fmt == fp.FP32:
        return
    if fmt.bits == 8:
        assert_all_pairs_as_the_core(fmt, name, SOME_CODES)
        return
    codes, orders = np.arange(1 << 16).astype(np.uint16), np.random.default_rng(5)
    for _ in range(1 if name == "sqrt" else 4):
        columns = [codes, orders.permutation(codes), orders.permutation(codes)][: float_arithmetic.OPERANDS[name]]
        assert_as_the_core(fmt, name, columns)


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "name"), [case for case in FLOAT_CASES if case[0].bits == 8])
def test_float32_gives_the_cores_codes_of_all_triples(fmt: fp.Format, name: str) -> None:
    assert_all_pairs_as_the_core(fmt, name, range(1 << 8))


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "name"), [case for case in FLOAT_CASES if case[0] != fp.FP32 and case[1] != "fma"])
def test_float32_gives_the_cores_codes_of_all_pairs(fmt: fp.Format, name: str) -> None:
    codes = np.arange(1 << 16).astype(np.uint16)
    for turn in range(1 << 16):
        assert_as_the_core(fmt, name, [codes, np.roll(codes, turn)][: float_arithmetic.OPERANDS[name]])
        if name == "sqrt":
            return
