"""Codes, values and inputs: what is drawn is valid, reaches every class of the boundary points, and shrinks well."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fpsim as fp
from fpsim.testing import strategies
from tests.kit.sweeps import case, in_turn, sweep

FORMATS = [fp.E4M3, fp.E5M2, fp.E2M1, fp.BF16, fp.FP16, fp.E4M3FNUZ, fp.E8M0, fp.format("p3109_k5p3uf")]
WIDE = [fp.TF32, fp.FP32]


TOGETHER = 20  # what Hypothesis does for an example takes longer than to draw one of these numbers


def drawn(strategy: st.SearchStrategy[Any], count: int, together: int = TOGETHER) -> list[Any]:
    """So many numbers, the same in every run; an example holds several, or a single one that is seldom the same."""
    found: list[Any] = []
    several = st.lists(strategy, min_size=together, max_size=together)

    @settings(
        max_examples=count // together, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy if together == 1 else several)
    def collect(x: Any) -> None:
        found.extend([x] if together == 1 else x)

    collect()
    return found


def shrunk(strategy: st.SearchStrategy[Any], wanted: Callable[[Any], Any]) -> Any:
    return find(strategy, lambda x: bool(wanted(x)), settings=settings(max_examples=3000, database=None))


def are_values(values: list[float], fmt: fp.Format) -> bool:
    x = np.array(values)
    numbers = x[~np.isnan(x)]
    if fmt.bits > 16:
        return bool((fp.quantize(numbers, fmt) == numbers).all())
    held = fp.decode(np.arange(1 << fmt.bits).astype(fmt.storage), fmt, np.float64)
    all_held = np.isin(numbers.view(np.uint64), held.view(np.uint64)).all()
    return bool(all_held) and (fmt.has_nan or numbers.size == x.size)


@in_turn("fmt", FORMATS + WIDE)
def test_every_code_and_value_is_one_of_the_format(fmt: fp.Format) -> None:
    assert all(0 <= code < 1 << fmt.bits for code in drawn(strategies.codes(fmt), 100))
    values = drawn(strategies.values(fmt), 100)
    assert are_values(values, fmt)
    assert len(set(values)) > min(5, 1 << fmt.bits - 2)


SMALL = [fmt for fmt in FORMATS if fmt.bits <= 8]


@sweep("fmts", SMALL[2:], SMALL)  # without E4M3 and E5M2: the whole of E5M2 is drawn as elements below
def test_small_formats_are_drawn_whole(fmts: list[fp.Format]) -> None:
    for fmt in fmts:
        many = 9 << fmt.bits
        with case(fmt):
            assert len(set(drawn(strategies.codes(fmt), many, together=1))) == 1 << fmt.bits
            values = drawn(strategies.values(fmt), many, together=1)
            patterns = {np.float64(x).tobytes() for x in values if not math.isnan(x)}
            assert len(patterns) == np.unique(fmt.table()[~np.isnan(fmt.table())].view(np.uint64)).size


def test_negative_zeros_are_drawn_often() -> None:
    for strategy in (strategies.values("e4m3"), strategies.values("bf16"), strategies.inputs("e4m3")):
        zeros = [x for x in drawn(strategy, 1000) if x == 0 and math.copysign(1, x) < 0]
        assert len(zeros) >= 40


def test_specials_are_left_out_on_request() -> None:
    for fmt in (fp.E5M2, fp.FP32):
        assert all(map(math.isfinite, drawn(strategies.values(fmt, allow_nan=False, allow_infinity=False), 300)))
    assert any(map(math.isnan, drawn(strategies.values("e4m3"), 1000)))


@in_turn("fmt", FORMATS + WIDE)
def test_ties_lie_halfway_between_neighbours(fmt: fp.Format) -> None:
    x = np.array(drawn(strategies.ties(fmt), 100))
    low, high = (fp.quantize(x, fmt, rounding=side) for side in ("down", "up"))
    assert ((low < x) & (x < high)).all()
    assert (x - low == high - x).all()


def test_ties_around_one_have_neighbours_on_both_sides() -> None:
    found = set(drawn(strategies.ties("e2m1", around=1), 500))
    for offset in (np.inf, -np.inf):
        assert float(np.nextafter(np.float32(2.5), np.float32(offset))) in found
    assert 2.5 in found


# ---- every class of the boundary points


def classes(x: np.ndarray[Any, np.dtype[np.float32]], fmt: fp.Format) -> set[tuple[str, ...]]:
    """Return the class of each input for a cast: its sign, its region, and what it is next to."""
    with np.errstate(all="ignore"):
        wide = np.abs(x.astype(np.float64))
        values = np.unique(np.abs(fmt.table()[np.isfinite(fmt.table())]))
        values = np.append(values, values[-1] + fmt.ulp(fmt.max))
        middles = values[:-1] + np.diff(values) / 2
        middles = np.append(middles, fmt.smallest_subnormal / 2)
        next_to = [np.nextafter(np.abs(x), np.float32(side)).astype(np.float64) for side in (np.inf, 0)]
    places = np.select(
        [np.isnan(wide) & (x.view(np.uint32) & 0x3FFFFF > 0), np.isnan(wide), np.isinf(wide), wide == 0,
         wide < 2.0**-126, wide < fmt.smallest_subnormal / 2, wide < fmt.smallest_normal, wide <= fmt.max],
        ["payload", "NaN", "Inf", "zero", "source's subnormal", "far below", "subnormal", "normal"], "too large",
    )  # fmt: skip
    relations = np.select(
        [~np.isfinite(wide), np.isin(wide, values), np.isin(wide, middles),
         np.isin(next_to[0], middles) | np.isin(next_to[1], middles),
         np.isin(next_to[0], values) | np.isin(next_to[1], values)],
        ["", "value", "tie", "next to a tie", "next to a value"], "between",
    )  # fmt: skip
    signs = np.where(np.signbit(x), "-", "+")
    return set(zip(signs.tolist(), places.tolist(), relations.tolist(), strict=True))


@sweep("fmts", [fp.E4M3, fp.FP16], [fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16])
def test_inputs_reach_every_class_of_the_points(fmts: list[fp.Format]) -> None:
    for fmt in fmts:
        wanted = classes(fp.testing.points(fmt), fmt)
        assert len(wanted) >= 24
        got = np.array(drawn(strategies.inputs(fmt), 400, together=1), np.float32)
        with case(fmt):
            assert wanted - classes(got, fmt) == set()


def test_the_strategies_together_reach_every_class_of_the_points() -> None:
    wanted = classes(fp.testing.points("e5m2"), fp.E5M2)
    parts = [strategies.values("e5m2"), strategies.ties("e5m2", around=1), strategies.near_overflow("e5m2"),
             strategies.subnormal_seam("e5m2")]  # fmt: skip
    x = np.concatenate([np.array(drawn(part, 400), np.float32) for part in parts])
    bits = np.array(drawn(strategies.float32_bits(), 1000), np.uint32).view(np.float32)
    assert wanted - classes(np.concatenate([x, bits]), fp.E5M2) == set()


def test_plain_floats_miss_half_of_them() -> None:
    """What the strategies are for."""
    wanted = classes(fp.testing.points("e4m3"), fp.E4M3)
    found = classes(np.array(drawn(st.floats(width=32), 800), np.float32), fp.E4M3)  # twice as many as of inputs()
    assert len(wanted - found) > len(wanted) / 2


@in_turn("fmt", [fp.E4M3, fp.E5M2, fp.FP32, fp.BF16])
def test_near_overflow_lies_on_both_sides(fmt: fp.Format) -> None:
    x = np.abs(drawn(strategies.near_overflow(fmt), 300))
    edge = fmt.max + fmt.ulp(fmt.max) / 2
    assert {bool(each) for each in x > fmt.max} == {True, False}
    for wanted in (fmt.max, edge, math.inf):
        assert wanted in x
    assert {np.sign(each - edge) for each in x if abs(each / edge - 1) < 2.0**-20} == {-1, 0, 1}


@in_turn("fmt", [fp.E4M3, fp.E5M2, fp.FP32, fp.BF16])
def test_the_subnormal_seam_has_both_its_ends(fmt: fp.Format) -> None:
    x = np.abs(drawn(strategies.subnormal_seam(fmt), 400))
    assert x.max() < 2 * fmt.smallest_normal
    for wanted in (fmt.smallest_normal, fmt.smallest_subnormal, fmt.smallest_subnormal / 2, 0.0):
        assert wanted in x
    half = fmt.smallest_subnormal / 2
    assert {np.sign(each - half) for each in x if abs(each / half - 1) < 0.01} == {-1, 0, 1}


def test_patterns_of_float32_hold_every_kind() -> None:
    bits = np.array(drawn(strategies.float32_bits(), 1000), np.uint32)
    x = bits.view(np.float32)
    magnitude = bits & 0x7FFFFFFF
    assert (np.signbit(x) & (magnitude == 0)).any()
    assert ((magnitude > 0) & (magnitude < 0x800000)).sum() > 100
    assert np.unique(bits[np.isnan(x)]).size > 20
    assert ((magnitude > 0x7F800000) & (magnitude < 0x7FC00000)).any()  # signalling


# ---- shrinking


def test_results_shrink_to_what_reads_easily() -> None:
    """An integer where one will do, and near the bound; which one is Hypothesis's choice, and changes with it."""
    assert shrunk(strategies.values("e4m3"), lambda x: x > 5) in (5.5, 6.0, 7.0, 8.0)
    fraction = shrunk(strategies.values("e4m3"), lambda x: x != int(x) if np.isfinite(x) else False)
    assert abs(fraction) <= 1.5
    assert fraction.as_integer_ratio()[1] <= 8
    large = shrunk(strategies.values("bf16"), lambda x: x < -100)
    assert large == int(large)
    assert -256 <= large < -100
    assert 0x3C00 < shrunk(strategies.codes("fp16"), lambda code: code > 0x3C00) <= 0x3C10
    assert shrunk(strategies.ties("e5m2"), lambda x: x > 9) in (11.0, 13.0, 15.0, 18.0)
    assert 61440.0 <= shrunk(strategies.near_overflow("e5m2"), lambda x: x >= 61440) <= 2.0**17
    assert shrunk(strategies.float32_bits(), lambda bits: np.isnan(np.uint32(bits).view(np.float32))) >= 0x7F800001
    assert shrunk(strategies.formats(), lambda fmt: fmt.bits == 8) is fp.E4M3


def test_they_print_in_hexadecimal() -> None:
    assert repr(shrunk(strategies.values("e4m3"), lambda x: x == 6)) == "float.fromhex('0x1.8p+2')"
    assert repr(shrunk(strategies.codes("e4m3"), lambda code: code == 9)) == "0x09"
    assert repr(shrunk(strategies.float32_bits(), lambda bits: bits == 0)) == "0x00000000"
    for x in drawn(strategies.inputs("e4m3"), 300):
        back = eval(repr(x))
        assert np.float64(back).tobytes() == np.float64(x).tobytes() or math.isnan(x)


# ---- elements of dtypes


DTYPES = [
    getattr(ml_dtypes, name) for name in dir(ml_dtypes)
    if isinstance(getattr(ml_dtypes, name), type) and name not in ("finfo", "iinfo")
]  # fmt: skip


def test_every_dtype_of_ml_dtypes_has_elements() -> None:
    assert len(DTYPES) >= 18
    for dtype in DTYPES:
        got = drawn(hnp.arrays(dtype, 3, elements=strategies.from_dtype(dtype), fill=st.nothing()), 60)
        assert all(x.dtype == dtype and x.shape == (3,) for x in got)
        codes = np.unique(np.concatenate(got).view(f"u{np.dtype(dtype).itemsize}"))
        assert codes.size >= min(1 << np.dtype(dtype).itemsize * 8, 2 if "int" in str(np.dtype(dtype)) else 10)


def test_elements_reach_every_code_and_shrink_to_zero() -> None:
    got = drawn(strategies.from_dtype(ml_dtypes.float8_e5m2), 9 * 256, together=1)
    assert np.unique(np.array(got).view(np.uint8)).size == 256
    assert float(shrunk(strategies.from_dtype(ml_dtypes.bfloat16), lambda x: True)) == 0.0
    assert 9 < float(shrunk(strategies.from_dtype(ml_dtypes.float8_e4m3fn), lambda x: x > 9)) <= 16
    assert int(shrunk(strategies.from_dtype(ml_dtypes.int4), lambda x: int(x) < -2)) in range(-8, -2)


def test_numpys_own_dtypes_go_to_hypothesis() -> None:
    assert all(isinstance(x, np.float64) for x in drawn(strategies.from_dtype(np.float64), 20))
    assert all(isinstance(x, np.int16) for x in drawn(strategies.from_dtype("int16"), 20))


def test_arrays_hold_values_in_the_dtype_asked_for() -> None:
    for x in drawn(strategies.arrays("e4m3", (2, 3)), 50):
        assert (x.dtype, x.shape) == (np.float32, (2, 3))
        fp.testing.assert_bits_equal(fp.quantize(x, "e4m3"), x)
    arrays = drawn(strategies.arrays("e4m3", 4, dtype=ml_dtypes.float8_e4m3fn), 20)
    assert {x.dtype for x in arrays} == {np.dtype(ml_dtypes.float8_e4m3fn)}
    shapes = {x.shape for x in drawn(strategies.arrays("e4m3", hnp.array_shapes(max_dims=2)), 50)}
    assert len(shapes) > 5


# ---- refusals


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: strategies.codes("e4m4"), "Did you mean 'E4M3'"),
        (lambda: strategies.values("fp8"), "format"),
        (lambda: strategies.ties("fp64"), "Use a format of up to 32 bits"),
        (lambda: strategies.ties("fp32", dtype="float32"), "dtype must hold the midpoints of FP32"),
        (lambda: strategies.ties("e4m3", dtype="int8"), "dtype must be float32 or float64"),
        (lambda: strategies.ties("e4m3", around=-1), "around must be an integer >= 0"),
        (lambda: strategies.arrays("bf16", 3, dtype=np.float16), "dtype must be a float dtype that holds BF16"),
        (lambda: strategies.formats(2), "max_bits must be an integer >= 3"),
    ],
)
def test_what_cannot_be_drawn_is_refused_when_asked_for(call: Callable[[], object], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as refusal:
        call()
    assert str(refusal.value).count("\n") == 0
