"""The loops that run revealed trees give the bits of the specification, which goes node by node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.arrays import Array
from fpsim.formats.float_format import DTYPES
from fpsim.matrix_units.matrix_unit import ELEMENTS
from fpsim.matrix_units.matrix_unit import Rule as UnitRule
from fpsim.probe.candidates import AdderCandidate, order_of
from fpsim.probe.operands import operand_of
from fpsim.probe.order import Order
from fpsim.probe.own_unit import own_unit
from fpsim.probe.programs.program import MODES, Program, _holds_products
from fpsim.probe.programs.rules import FLUSHES, AdditionRule
from fpsim.probe.programs.specification import _integers
from fpsim.schedules.schedule import FLAT
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn, sweep
from tests.probe.planted import random_tree

SPECIALS = [0.0, -0.0, np.inf, -np.inf, np.nan, 6e4, 3e38, -3e38]
KINDS = ("normal", "wide", "small", "special", "powers")


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: Any) -> Array:
    """Values of a dtype as float64."""
    x = rng.standard_normal(shape)
    if kind == "wide":
        x = np.ldexp(x, rng.integers(-20, 20, shape))
    elif kind == "small":
        x = np.ldexp(x, rng.integers(-30, -14, shape) * (4 if dtype == np.float32 else 1))
    elif kind == "special":
        x = np.where(rng.random(shape) < 0.3, rng.choice(SPECIALS, shape), x)
    elif kind == "powers":
        x = np.ldexp(rng.choice([-1.0, 0.0, 1.0], shape), rng.integers(-12, 12, shape))
    with np.errstate(over="ignore"):
        return np.asarray(x, dtype).astype(np.float64)


def random_program(rng: np.random.Generator, operands: int) -> Program:
    """A tree and a rule that the loop over nodes takes."""
    n = int(rng.integers(2, 24))
    order = Order.of(random_tree(rng, range(n), int(rng.integers(2, 7))))
    fmt = (fp.FP32, fp.BF16, fp.FP16, fp.TF32)[rng.integers(4)]
    rule = AdditionRule(
        fmt, str(rng.choice(list(MODES))), flushes=tuple(name for name in FLUSHES if rng.random() < 0.4),
        least_inputs=(2.0**-14, 0.0)[:operands] if rng.random() < 0.3 else (),
        zeros=str(rng.choice(["kept", "added", "begin"])), overflow=str(rng.choice(["nonfinite", "saturate"])),
    )  # fmt: skip
    if rng.random() < 0.5:
        low = (-14, -126) if operands == 2 and rng.random() < 0.5 else None
        bits = int(rng.integers(3, fmt.mantissa_bits + 1)) if rng.random() < 0.5 else None
        alignment = str(rng.choice(["truncate", "floor", "nearest"]))
        rule = replace(
            rule, alignment=alignment, fraction_bits=int(rng.integers(5, 32)), result_bits=bits, operand_exponents=low
        )
    elif operands == 2 and rng.random() < 0.3:
        rule = replace(rule, product=fp.FP16)
    exact = frozenset(k for k in range(n) if rng.random() < 0.5) if operands == 2 else frozenset()
    return Program(order, rule, fmt, n, exact)


def specified(program: Program, *values: Array) -> Array:
    """What the specification gives for rows, as codes."""
    with np.errstate(all="ignore"):
        return program._encoded(program._by_nodes(program._read(values)))


@sweep("seeds", (0,), range(10))
def test_the_loop_over_nodes_gives_the_bits_of_the_specification(seeds: Any) -> None:
    ran = 0
    for seed in seeds:
        rng = np.random.default_rng([31, seed])
        for _ in range(60):
            operands = int(rng.integers(1, 3))
            program = random_program(rng, operands)
            if program.is_fast:
                continue
            assert program.has_nodes
            dtype, kind = (np.float32, np.float16)[rng.integers(2)], str(rng.choice(KINDS))
            rows = [drawn(rng, kind, (70, program.n), dtype) for _ in range(operands)]
            want = specified(program, *rows)
            assert_bits_equal(program.run(*rows), want, fmt=program.out)
            if operands == 2:
                a, b = rows[0][:7], rows[1][:10]
                pairs = np.repeat(a, 10, axis=0), np.tile(b, (7, 1))
                assert_bits_equal(
                    program.run_product(a, b.T), specified(program, *pairs).reshape(7, 10), fmt=program.out
                )
            ran += 1
    assert ran > 30


@in_turn("x, y, fmt, held", [
    ([1.0, -1.5], [0.0, 3.0], fp.FP16, True), ([1.0 + 2.0**-6], [1.0 - 2.0**-5], fp.FP16, False),
    ([1.0 + 2.0**-5], [1.0 - 2.0**-5], fp.FP16, True), ([256.0], [512.0], fp.FP16, False),
    ([2.0**-7], [2.0**-7], fp.FP16, False), ([2.0**-7, 1.0], [2.0**-6], fp.FP16, True),
    ([np.inf], [1.0], fp.FP32, False), ([1.0, np.nan], [1.0], fp.FP32, False),
])  # fmt: skip
def test_products_that_a_format_holds_need_no_rounding(
    x: list[float], y: list[float], fmt: fp.Format, held: bool
) -> None:
    assert _holds_products(np.array(x), np.array(y), fmt) is held


@in_turn("fmt", [fp.FP32, fp.FP64, fp.FP16, fp.BF16])
@in_turn("kind", KINDS)
@in_turn("flushes, zeros", [
    ((), "begin"), (("products", "sums", "starts"), "added"), (("sums", "starts"), "kept"), (("products",), "added"),
    (("sums",), "added"), (("results",), "kept"),
])  # fmt: skip
def test_products_of_matrices_have_the_bits_of_their_rows(
    fmt: fp.Format, kind: str, flushes: tuple[str, ...], zeros: str
) -> None:
    rng = np.random.default_rng(3)
    n = 23
    for deep in (False, True):
        tree: Any = 0
        for k in range(1, n):
            tree = (k, tree)
        order = Order.of(tree if deep else random_tree(rng, range(n), 2))
        exact = frozenset() if fmt in (fp.FP16, fp.BF16) else frozenset({2, 3, 5, 22})
        some = () if fmt in (fp.FP64, fp.FP16) else flushes  # which the specification flushes
        program = Program(order, AdditionRule(fmt, flushes=some, zeros=zeros), fmt, n, exact)
        if not program.is_fast:  # two unrounded products meet
            program = replace(program, exact=frozenset())
        assert program.is_fast
        a, b = drawn(rng, kind, (11, n), np.float16), drawn(rng, kind, (n, 300), np.float16)
        some_rows = specified(program, np.repeat(a[:2], 9, axis=0), np.tile(b[:, :9].T, (2, 1))).reshape(2, 9)
        assert_bits_equal(program.run_product(a[:2], b[:, :9]).view(DTYPES[fmt]), some_rows.view(DTYPES[fmt]))
        rows = program.run(np.repeat(a, 300, axis=0), np.tile(b.T, (11, 1)))
        dtype = DTYPES[fmt]
        got, want = (codes.view(dtype) for codes in (program.run_product(a, b), rows.reshape(11, 300)))
        assert_bits_equal(got, want)  # of floats, for a NaN has the sign of whichever comes first


@pytest.mark.parametrize("terms", [4, 8, 16, 32])
@pytest.mark.parametrize(("fraction_bits", "result_bits"), [(13, 13), (25, 23)])
def test_a_unit_of_its_own_has_the_bits_of_the_program(terms: int, fraction_bits: int, result_bits: int) -> None:
    rng = np.random.default_rng(terms)
    f16, n = ELEMENTS["f16"], 70
    unit = fp.MatrixUnit(
        "mine", "mine", f16, f16, ELEMENTS["f32"], UnitRule.FUSED, terms, fraction_bits, -900, result_bits
    )
    order = order_of(AdderCandidate(unit, FLAT, fp.FP32).tree(n, 1))
    assert order is not None
    kept = None if result_bits == 23 else result_bits
    rule = AdditionRule(fp.FP32, "toward_zero", "truncate", fraction_bits, kept, operand_exponents=(-14, -14))
    program = Program(order, rule, fp.FP32, n, frozenset(range(n)))
    adder = own_unit(program, [operand_of("f16", "a")] * 2)
    assert adder is not None
    for kind in KINDS:
        a, b = drawn(rng, kind, (20, n), np.float16), drawn(rng, kind, (n, 20), np.float16)
        got = adder.matmul(a.astype(np.float16), b.astype(np.float16))
        assert_bits_equal(got, program.run_product(a, b).view(np.float32))


def test_numbers_next_to_half_of_the_last_bit_are_rounded_down() -> None:
    unit = fp.FP16.smallest_subnormal
    x = np.array([0.5 - 2.0**-54, 0.5, 1.5 - 2.0**-52, -0.5 + 2.0**-54]) * unit
    program = Program(Order.of((0, 1)), AdditionRule(fp.FP16, "nearest_away", zeros="kept"), fp.FP16, 2)
    want = fp.encode(x, fp.FP16, rounding="nearest_away")
    assert_bits_equal(program.run(np.stack([x, np.full(4, -0.0)], axis=1)), want)
    assert_bits_equal(_integers(x / unit, "nearest_away"), fp.decode(want, fp.FP16, np.float64) / unit)
