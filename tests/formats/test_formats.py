"""Formats: the facts of each, the tables that others publish, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.formats.as_json import format_fields, format_from
from fpsim.formats.named import DTYPES, p3109
from fpsim.testing import assert_bits_equal
from tests.kit.published import p3109_tables
from tests.kit.samples import NARROW, P3109, STRANGE, p3109_names
from tests.kit.sweeps import in_turn
from tests.oracles import casts

Array = npt.NDArray[Any]


every_dtype = in_turn("fmt", DTYPES)


# ---- published tables


def test_the_p3109_tables_are_those_that_the_working_group_publishes() -> None:
    published = p3109_tables()
    assert len(published) == sum(2 * (2 * k - 1) for k in range(3, 11))
    for name, values in published.items():
        assert_bits_equal(fp.format(name).table(), values)


@in_turn("name", p3109_names(within_float64=True))
def test_a_p3109_name_says_what_the_format_is(name: str) -> None:
    fmt = fp.format(name)
    bits, precision = (int(part) for part in name[7:-2].split("p"))
    assert (fmt.name, fmt.bits, fmt.precision) == (name, bits, precision)
    assert (fmt.signed, fmt.has_infinity, fmt.has_nan) == (name[-2] == "s", name[-1] == "e", True)
    assert getattr(fp, name) is fmt
    assert p3109(bits, precision, signed=fmt.signed, extended=fmt.has_infinity) is fmt


@in_turn("name", p3109_names(within_float64=False))
def test_a_p3109_format_beyond_float64_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name}: its values reach from 2\*\*-\d+ to 2\*\*\d+, beyond float64"):
        fp.format(name)


@pytest.mark.parametrize("name", ["p3109_k2p1se", "p3109_k17p4se", "p3109_k8p8se", "p3109_k8p9ue", "p3109_k8p0se"])
def test_a_p3109_name_outside_the_standard_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"no format {name}: P3109 formats have 3 to 16 bits"):
        fp.format(name)


@in_turn("fmt", [fmt for fmt in NARROW if fmt.dtype is not None])
def test_the_table_holds_what_ml_dtypes_and_numpy_decode(fmt: fp.Format) -> None:
    codes = np.arange(1 << fmt.bits).astype(fmt.storage)
    assert fmt.dtype is not None
    with np.errstate(invalid="ignore"):  # signalling NaN
        assert_bits_equal(fmt.table(), codes.view(fmt.dtype).astype(np.float64))


@in_turn("fmt", [*NARROW, *P3109, *STRANGE])
def test_the_table_holds_the_values_of_the_oracle(fmt: fp.Format) -> None:
    assert_bits_equal(fmt.table(), casts.values(fmt))


@in_turn("fmt", [*NARROW, *P3109, *STRANGE, fp.Format("deep", 5, 4, bias=1060), fp.Format("tiny", 4, 3, bias=1030)])
def test_the_table_has_the_bits_of_every_single_value(fmt: fp.Format) -> None:
    codes = sorted({*range(min(1 << fmt.bits, 512)), *range(0, 1 << fmt.bits, 37), (1 << fmt.bits) - 1})
    want = np.array([fmt.value_of(code) for code in codes])
    assert (fmt.table()[codes].view(np.uint64) == want.view(np.uint64)).all()  # signs of NaN too


def test_a_table_cannot_be_written_to() -> None:
    with pytest.raises(ValueError, match="read-only"):
        fp.E4M3.table()[0] = 1


@pytest.mark.parametrize("fmt", [fp.FP32, fp.TF32, fp.FP64], ids=str)
def test_a_format_of_more_than_16_bits_has_no_table(fmt: fp.Format) -> None:
    with pytest.raises(ValueError, match=f"a table lists formats of up to 16 bits; {fmt} has {fmt.bits}"):
        fmt.table()


# ---- facts


def witness(fmt: fp.Format) -> Any:
    """ml_dtypes.finfo or numpy.finfo of the format's dtype."""
    assert fmt.dtype is not None
    return np.finfo(fmt.dtype) if fmt in (fp.FP16, fp.FP32, fp.FP64) else ml_dtypes.finfo(fmt.dtype)  # type: ignore[no-untyped-call]


@every_dtype
@in_turn("fact", ["bits", "max", "min", "eps", "smallest_normal", "smallest_subnormal", "dtype"])
def test_facts_are_those_of_finfo(fmt: fp.Format, fact: str) -> None:
    want = getattr(witness(fmt), fact)
    assert getattr(fmt, fact) == (want if fact == "dtype" else float(want))


FINFO = (
    "bits", "max", "min", "eps", "epsneg", "smallest_normal", "smallest_subnormal", "tiny", "nmant", "nexp", "iexp",
    "machep", "negep", "minexp", "maxexp",
)  # fmt: skip


@every_dtype
@in_turn("fact", FINFO)
def test_finfo_has_the_numbers_of_numpy_and_ml_dtypes(fmt: fp.Format, fact: str) -> None:
    assert getattr(fp.finfo(fmt), fact) == float(getattr(witness(fmt), fact))


def test_finfo_measures_from_1_where_1_is_subnormal() -> None:
    info = fp.finfo(fp.Format("coarse", 3, 4, bias=-1))  # subnormals in steps of 2**-2
    assert (info.eps, info.epsneg, info.machep, info.negep, info.precision) == (0.25, 0.25, -2, -2, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_finfo_counts_decimal_digits_as_numpy_does(dtype: type) -> None:
    assert fp.finfo(dtype).precision == np.finfo(dtype).precision
    assert np.dtype(dtype).type(fp.finfo(dtype).resolution) == np.finfo(dtype).resolution


@in_turn("fmt", [*NARROW, *P3109, *STRANGE])
def test_facts_are_those_of_the_values(fmt: fp.Format) -> None:
    values = casts.values(fmt)
    finite = values[np.isfinite(values)]
    assert fmt.max == finite.max()
    assert fmt.min == finite.min()
    assert fmt.smallest_subnormal == finite[finite > 0].min()
    assert fmt.has_infinity == np.isinf(values).any()
    assert fmt.has_nan == np.isnan(values).any()
    assert fmt.has_zero == (finite == 0).any()
    assert fmt.negative_zero == ((finite == 0) & np.signbit(finite)).any()
    assert fmt.bits == casts.width(fmt)
    assert [fmt.value_of(code) for code in (0, 1, fmt.max_code)] == [*values[:2], values[fmt.max_code]]


@pytest.mark.parametrize("code", [-1, 256])
def test_the_value_of_a_code_outside_the_format_is_refused(code: int) -> None:
    with pytest.raises(ValueError, match=r"a code of E4M3 lies in 0 \.\. 0xff; got"):
        fp.E4M3.value_of(code)


@pytest.mark.parametrize("fmt", [fp.E4M3, fp.E5M2, fp.E8M0, fp.E2M1, fp.format("p3109_k8p3se")], ids=str)
def test_ulp_is_the_distance_to_the_next_value(fmt: fp.Format) -> None:
    values = np.sort(casts.values(fmt)[: fmt.max_code + 1])
    assert_bits_equal(fmt.ulp(values[:-1])[1:], np.diff(values)[1:])
    assert_bits_equal(fmt.ulp(-values[1:-1] * (1 + 2.0**-30)), np.diff(values)[1:])


def test_ulp_beyond_the_ends_is_that_of_the_last_binade() -> None:
    assert fp.E4M3.ulp(1e30) == 32
    assert fp.E4M3.ulp(0.0) == fp.E4M3.ulp(2.0**-30) == 2.0**-9
    assert np.isnan(fp.E4M3.ulp([np.inf, -np.inf, np.nan])).all()
    assert fp.E4M3.ulp(np.ones((2, 3), np.float32)).shape == (2, 3)


@pytest.mark.parametrize(
    "x",
    [
        None, "1.5", [1.0, None], 10**400, 1j, np.datetime64(0, "s"), np.zeros(2, [("a", "f4")]),
        np.ma.masked_array([1.0, 2.0], [False, True]),
    ],
)  # fmt: skip
def test_ulp_of_what_is_no_number_is_refused(x: Any) -> None:
    with pytest.raises(TypeError, match="x must be a number or an array of real numbers; got"):
        fp.E4M3.ulp(x)


@in_turn(
    "wide, narrow, holds",
    [
        (fp.FP32, fp.BF16, True),
        (fp.FP16, fp.BF16, False),
        (fp.FP16, fp.E4M3, True),
        (fp.FP16, fp.E8M0, False),
        (fp.E5M2, fp.E4M3, False),
        (fp.E4M3, fp.E2M1, True),
        (fp.E4M3, fp.E5M2, False),
        (fp.E4M3FNUZ, fp.E2M1, False),  # which has -0
        (fp.E2M1, fp.E2M1, True),
        (fp.E2M3, fp.E4M3, False),
        (fp.BF16, fp.FP32, False),
    ],
)
def test_a_format_holds_another_when_its_values_include_the_other_ones(
    wide: fp.Format, narrow: fp.Format, holds: bool
) -> None:
    assert wide.holds(narrow) is holds


def test_holds_compares_sets_of_values() -> None:
    sets = {fmt: {str(v) for v in casts.values(fmt).tolist()} for fmt in [*NARROW, *P3109, *STRANGE] if fmt.bits <= 8}
    # values of a few codes are powers of two, although the format has mantissa bits
    few = [fp.Format(f"few {bits}", 1, bits, infinities=False, nan="top", bias=bits - 5) for bits in (1, 2, 3)]
    sets |= {fmt: {str(v) for v in casts.values(fmt).tolist()} for fmt in [*few, fp.Format("few", 1, 1, bias=0)]}
    for wide, of_wide in sets.items():
        for narrow, of_narrow in sets.items():
            assert wide.holds(narrow) is (of_narrow <= of_wide), (wide, narrow)


def test_float32_holds_exactly_the_formats_whose_values_survive_it() -> None:
    for fmt in [*NARROW, *P3109, *STRANGE]:
        values = casts.values(fmt)
        with np.errstate(all="ignore"):
            survives = bool(np.all((values.astype(np.float32) == values) | np.isnan(values)))
        assert fp.FP32.holds(fmt) is survives, fmt


def test_truth_values_of_numpy_become_python_ones_for_files() -> None:
    fields: Any = dict.fromkeys(("signed", "infinities", "subnormals", "ties_to_even_code", "negative_zero"), np.True_)
    fmt = fp.Format("mine", 3, 2, **fields)
    assert format_from(json.loads(json.dumps(format_fields(fmt)))) == fmt
