"""Valid calls with random arguments; each compares itself with an oracle, and returns how many calls it made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.arithmetic.operation import ELEMENTARY
from fpsim.formats.policies import OVERFLOWS
from fpsim.matrix_units.catalogue import float_units, integer_units
from fpsim.scaling.recipes import ANY_ELEMENT
from tests.arithmetic.checks import check, subnormals_of
from tests.arithmetic.elementary.test_functions import check as check_elementary
from tests.instructions.test_dot_add import check as check_rows
from tests.kit import operands, units
from tests.kit.integers import KINDS as INTEGER_KINDS
from tests.kit.integers import drawn as drawn_integers
from tests.kit.samples import NARROW, P3109, STRANGE
from tests.oracles import arithmetic as ao
from tests.oracles import casts
from tests.oracles import scaling as scaled
from tests.oracles.integers import product as integer_product
from tests.oracles.units.rows import KINDS, random_rows
from tests.sums.checks import check_product, drawn

Array = npt.NDArray[Any]
Rng = np.random.Generator
Choice = TypeVar("Choice")

FORMATS = [*NARROW, *P3109, *STRANGE]
ARITHMETIC = [fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16, fp.BF16, fp.TF32, fp.FP32, fp.E4M3FNUZ, fp.E8M0, *P3109[:4]]
OPERATIONS = {"add": 2, "subtract": 2, "multiply": 2, "divide": 2, "fma": 3, "sqrt": 1, "remainder": 2}
ELEMENTS: list[Any] = [fp.E4M3, fp.E5M2, fp.E2M1, fp.E3M2, fp.FP16, fp.BF16, fp.INT8, fp.INT4]
SUMMED = [fp.E4M3, fp.E5M2, fp.FP16, fp.BF16, fp.FP32]


def one_of(rng: Rng, choices: Sequence[Choice]) -> Choice:
    """One of several."""
    return choices[int(rng.integers(len(choices)))]


def some_floats(rng: Rng, shape: tuple[int, ...]) -> Array:
    """Floats of any bits, or of some size with a few specials."""
    dtype = one_of(rng, [np.float16, np.float32, np.float64])
    if rng.random() < 0.5:
        return rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8).view(dtype)[..., 0]
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-12, 13, shape)
    specials = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan], shape)
    with np.errstate(over="ignore"):
        return np.asarray(np.where(rng.random(shape) < 0.1, specials, x), dtype)


def cast(rng: Rng) -> int:
    """encode, and decode of what it gives."""
    fmt, rounding, overflow = one_of(rng, FORMATS), one_of(rng, casts.MODES), one_of(rng, list(OVERFLOWS))
    subnormals = one_of(rng, ["keep", "flush"])
    x = some_floats(rng, (int(rng.integers(1, 40)),))
    try:
        got = fp.encode(x, fmt, rounding=rounding, overflow=overflow, subnormals=subnormals)
    except ValueError as refused:
        if "overflow" not in str(refused):
            raise
        return 1  # a policy that the format has no word for
    words = (rounding, overflow, subnormals)
    want = [casts.encode(float(value), fmt, *words) for value in x]
    for value, code, expected in zip(x, got, want, strict=True):
        bits = hex(int(value.view(f"u{value.itemsize}")))
        assert int(code) == expected, f"encode({bits} of {x.dtype}, {fmt}, {words}) gives {code:#x}, not {expected:#x}"
    values = fp.decode(got, fmt, np.float64)
    for code, value in zip(got, values, strict=True):
        expected_value = casts.value(fmt, int(code))
        same = float(value) == expected_value or (np.isnan(value) and np.isnan(expected_value))
        assert same, f"decode({code:#x}, {fmt}) gives {value}, not {expected_value}"
    return 2


def arithmetic(rng: Rng) -> int:
    """Compare an operation and its flags with the oracle."""
    name = one_of(rng, list(OPERATIONS))
    fmts = tuple(one_of(rng, ARITHMETIC) for _ in range(OPERATIONS[name]))
    if rng.random() < 0.5:
        fmts = fmts[:1] * len(fmts)
    mixed = len(set(fmts)) > 1
    out = one_of(rng, ARITHMETIC) if mixed or rng.random() < 0.3 else None
    result = out or fmts[0]
    columns = operands.tuples(fmts, 24, seed=int(rng.integers(1 << 30)))
    words = {"subnormals": one_of(rng, subnormals_of(result)), "input_subnormals": one_of(rng, ["keep", "flush"])}
    check(name, columns, fmts, out, flags=True, roundings=(one_of(rng, casts.MODES),), **words)
    return 1


def elementary(rng: Rng) -> int:
    """Compare an elementary function and its flags with the oracle."""
    name, fmt = one_of(rng, ELEMENTARY), one_of(rng, [fmt for fmt in ARITHMETIC if fmt != fp.TF32])
    short = fmt != fp.FP32
    out = one_of(rng, ARITHMETIC) if short and rng.random() < 0.5 else None
    words = {"rounding": one_of(rng, casts.MODES) if short else "nearest_even", "tininess": one_of(rng, ao.TININESS)}
    codes = rng.integers(0, 1 << fmt.bits, 24).astype(fmt.storage)
    check_elementary(name, codes, fmt, out, **words)
    return 1


def scaled_cast(rng: Rng) -> int:
    """encode_scaled by a preset."""
    name, fmt = one_of(rng, list(ANY_ELEMENT)), one_of(rng, ELEMENTS)
    recipe = getattr(fp.scalings, name)
    if fmt in (fp.INT8, fp.INT4) and "EVEN" in name:  # integers have no mantissa
        return 0
    shape = tuple(int(n) for n in rng.integers(1, (6, 200)))
    with np.errstate(all="ignore"):
        x = some_floats(rng, shape).astype(one_of(rng, [np.float32, np.float64]))
    rounding = one_of(rng, casts.MODES)
    got, want = fp.encode_scaled(x, fmt, recipe, rounding=rounding), scaled.encode(x, fmt, recipe, rounding=rounding)
    for part in ("scales", "codes"):
        try:
            fp.testing.assert_bits_equal(getattr(got, part), getattr(want, part))
        except AssertionError as differ:
            where = f"encode_scaled of {x.dtype} {shape} to {fmt} by {name}, {rounding}: {part}"
            raise AssertionError(f"{where}: {differ}") from None
    return 1


def instruction(rng: Rng) -> int:
    """dot_add by any unit."""
    unit = one_of(rng, list(float_units()))
    terms = (unit.block or 1) * int(rng.integers(1, 2 * unit.terms // (unit.block or 1) + 1))
    check_rows(random_rows(unit, one_of(rng, KINDS), 3, terms, int(rng.integers(1 << 30))), unit)
    return 1


def accumulated(rng: Rng) -> int:
    """Compare a matrix product by an accumulator with the oracle."""
    fmt, rounding = one_of(rng, SUMMED), one_of(rng, [*casts.MODES, "stochastic"])
    words: dict[str, Any] = {
        "rounding": rounding,
        "seed": int(rng.integers(1 << 62)) if rounding == "stochastic" else None,
    }
    makers: list[Callable[[], Any]] = [
        lambda: fp.Sequential(fmt, **words), lambda: fp.FusedMultiplyAdd(fmt, **words),
        lambda: fp.Pairwise(fmt, **words), lambda: fp.Exact(fmt, **words),
        lambda: fp.Chunked(fmt, chunk=int(rng.integers(1, 9)), outer=one_of(rng, SUMMED), **words),
    ]  # fmt: skip
    how = one_of(rng, makers)()
    m, k, n = (int(size) for size in rng.integers(1, (4, 20, 4)))
    formats = one_of(rng, SUMMED), one_of(rng, SUMMED)
    a, b = drawn(formats[0], (m, k), rng), drawn(formats[1], (k, n), rng)
    c = drawn(how.result_format, (m, n), rng) if rng.random() < 0.5 else None
    check_product(how, a, b, c, formats)
    return 1


def chained(rng: Rng) -> int:
    """matmul by a unit is a chain of instructions for each element."""
    unit = one_of(rng, [unit for unit in float_units() if not unit.scale])
    m, n, k = (int(size) for size in rng.integers(1, (4, 4, 3 * unit.terms + 1)))
    kind = one_of(rng, KINDS)
    rows, columns = (random_rows(unit, kind, count, k, int(rng.integers(1 << 30))) for count in (m, n))
    got = fp.matmul(rows.a, columns.b.T, accumulate=unit)
    pairs = np.repeat(rows.a, n, axis=0), np.tile(columns.b, (m, 1))
    want = fp.dot_add(*pairs, None, unit).reshape(m, n)
    same = got.view(want.dtype) == want
    assert same.all(), f"matmul by {unit.name}, {m} x {n} x {k}, {kind.__name__}: {int((~same).sum())} elements differ"
    return 2


def integers(rng: Rng) -> int:
    """Compare steps and products of any unit of integers, with steps of any length, with Python's integers."""
    unit = one_of(rng, list(integer_units()))
    unit = replace(unit, terms=2 * int(rng.integers(1, 35)) - (unit.pair is None)) if rng.random() < 0.5 else unit
    m, k, n = (int(size) for size in rng.integers(1, (5, 150, 80)))
    kind = one_of(rng, INTEGER_KINDS)
    a, b = drawn_integers(unit.a, (m, k), kind, rng), drawn_integers(unit.b, (n, k), kind, rng)
    near = rng.integers(0, 300000, (m, n))
    c = (unit.d.highest - near if rng.random() < 0.5 else unit.d.lowest + near).astype(unit.d.dtype)
    want = integer_product(a, b.T, c, unit.terms, unit.d.dtype, unit.saturates, unit.pair and unit.pair.dtype)
    got = fp.matmul(a, b.T, c, accumulate=unit)
    assert (got == want).all(), f"{unit!r}, {m} x {n} x {k}: {int((got != want).sum())} sums of matmul differ"
    steps = fp.dot_add(np.broadcast_to(a[0], b.shape), b, c[0], unit)
    assert (steps == want[0]).all(), (
        f"{unit!r}, {n} rows of {k}: {int((steps != want[0]).sum())} sums of dot_add differ"
    )
    return 2


def own_unit(rng: Rng) -> int:
    """Products by a unit that stands in no table: chains of instructions, which are the oracle's."""
    unit = units.random_unit(rng)
    p = units.random_case(unit, rng)
    try:
        units.check_case(p, unit, rng)
    except AssertionError as differ:
        fields = f"{unit.rule.name}, floor {unit.floor_exponent}, block {unit.block}, {unit.a.name} x {unit.b.name}"
        raise AssertionError(f"{unit!r} ({fields}), {p.a.shape} @ {p.b.shape}: {differ}") from None
    return 2


def measured(rng: Rng) -> int:
    """Compare the metrics of a cast, with and without scales, with their definitions."""
    shape = tuple(int(n) for n in rng.integers(1, (4, 6, 120)))[int(rng.integers(3)) :]
    with np.errstate(all="ignore"):
        x = some_floats(rng, shape)
        x = np.where(np.abs(x) < 1e100, x, x.dtype.type(1)) if x.dtype == np.float64 else x  # squares stay in range
    options: dict[str, Any] = {"rounding": one_of(rng, casts.MODES)}
    fmt: Any
    if rng.random() < 0.5:
        fmt, recipe = one_of(rng, ELEMENTS), getattr(fp.scalings, one_of(rng, list(ANY_ELEMENT)))
        if fmt in (fp.INT8, fp.INT4) and "EVEN" in recipe.name:
            return 0
        result = fp.quantize_scaled(x, fmt, recipe, **options)
        words: dict[str, Any] = {"scaling": recipe}
    else:
        fmt, options["overflow"] = one_of(rng, NARROW), one_of(rng, ["nonfinite", "saturate"])
        result, words = fp.quantize(x, fmt, **options), {}
    call = f"error of {x.dtype} {shape} in {fmt.name}, {words or 'no scale'}, {options}"
    report = fp.analysis.error(x, fmt, **words, **options)
    with np.errstate(all="ignore"):
        exact, got = x.astype(np.float64), np.asarray(result).astype(np.float64)
        judged = np.isfinite(exact) & np.isfinite(got)
        error, kept = (got - exact)[judged], exact[judged]
        same = np.count_nonzero(error == 0) + np.count_nonzero(np.isinf(exact) & (got == exact))
        relative = np.abs(error[kept != 0]) / np.abs(kept[kept != 0])
    want = {
        "exact_rate": same / x.size, "nan_rate": np.mean(np.isnan(exact)),
        "underflow_rate": np.mean((exact != 0) & (got == 0)),
        "overflow_rate": np.mean(np.isfinite(exact) & ~np.isfinite(got)),
        "mse": math.fsum((error * error).tolist()) / error.size if error.size else math.nan,
        "max_relative": relative.max() if relative.size else math.nan,
    }  # fmt: skip
    for name, value in want.items():
        figure = getattr(report, name)
        close = math.isclose(figure, value, rel_tol=1e-14) or (math.isnan(figure) and math.isnan(value))
        assert close, f"{call}: {name} is {figure}, not {value}"
    return 1


DRAWS: dict[str, Callable[[Rng], int]] = {
    "cast": cast, "arithmetic": arithmetic, "elementary": elementary, "scaled cast": scaled_cast,
    "instruction": instruction, "accumulated": accumulated, "chained": chained, "integers": integers,
    "own unit": own_unit, "measured": measured,
}  # fmt: skip
