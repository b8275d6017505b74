"""Formats: the facts of each, the tables that others publish, and what is refused."""

from __future__ import annotations

import pickle
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings

import fpsim as fp
from fpsim.formats.named import ALIASES, DTYPES, NAMED, names, p3109
from fpsim.testing import assert_bits_equal
from tests.kit.processes import python
from tests.kit.published import p3109_tables
from tests.kit.samples import NARROW, P3109, STRANGE, formats, p3109_names
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
    sets.pop(STRANGE[2])  # all its values are subnormal, so it has fewer bits than its facts promise
    for wide, of_wide in sets.items():
        for narrow, of_narrow in sets.items():
            assert wide.holds(narrow) is (of_narrow <= of_wide), (wide, narrow)


def test_float32_holds_exactly_the_formats_whose_values_survive_it() -> None:
    for fmt in [*NARROW, *P3109, *STRANGE]:
        values = casts.values(fmt)
        with np.errstate(all="ignore"):
            survives = bool(np.all((values.astype(np.float32) == values) | np.isnan(values)))
        assert fp.FP32.holds(fmt) is survives, fmt


# ---- finding them


def test_every_alias_finds_its_format_in_any_spelling() -> None:
    for alias, fmt in ALIASES.items():
        for spelling in (alias, alias.upper(), f" {alias} "):
            assert fp.format(spelling) is fmt


@in_turn(
    "name, fmt",
    [
        ("e4m3", fp.E4M3),
        ("float8_e4m3fn", fp.E4M3),
        ("Float8-E5M2", fp.E5M2),
        ("float8_e4m3", fp.E4M3_IEEE),
        ("float8_e4m3fnuz", fp.E4M3FNUZ),
        ("torch.float8_e5m2fnuz", fp.E5M2FNUZ),
        ("float8_e8m0fnu", fp.E8M0),
        ("float4_e2m1fn", fp.E2M1),
        ("binary16", fp.FP16),
        ("half", fp.FP16),
        ("bfloat16", fp.BF16),
        ("binary64", fp.FP64),
        ("tf32", fp.TF32),
        ("P3109_K8P4SF", fp.format("p3109_k8p4sf")),
        ("binary8p3se", fp.format("p3109_k8p3se")),
    ],
)
def test_names_of_other_libraries_are_understood(name: str, fmt: fp.Format) -> None:
    assert fp.format(name) is fmt


@every_dtype
def test_a_dtype_names_its_format(fmt: fp.Format) -> None:
    assert fmt.dtype is not None
    for spec in (fmt.dtype, fmt.dtype.type, fmt.dtype.newbyteorder(), fmt.dtype.name, fmt, fmt.name):
        assert fp.format(spec) is fmt


@in_turn(
    "name, fmt",
    [
        ("float8_e4m3fn", fp.E4M3),
        ("float8_e5m2", fp.E5M2),
        ("float8_e4m3fnuz", fp.E4M3FNUZ),
        ("float8_e5m2fnuz", fp.E5M2FNUZ),
        ("float8_e8m0fnu", fp.E8M0),
        ("float4_e2m1fn_x2", fp.E2M1),
        ("float16", fp.FP16),
        ("bfloat16", fp.BF16),
        ("float32", fp.FP32),
        ("float64", fp.FP64),
    ],
)
def test_a_torch_dtype_names_its_format(name: str, fmt: fp.Format) -> None:
    torch = pytest.importorskip("torch", reason="these are torch's dtypes")
    assert fp.format(getattr(torch, name)) is fmt


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ("e4m3fm", "Did you mean 'E4M3'"),
        ("bfloat17", "Did you mean 'BF16'"),
        ("float8_e5m3", "such as E5M2, .* Did you mean 'E5M2'"),
        ("fp8", "such as E4M3, E5M2, .* Did you mean 'E4M3' or 'E5M2'"),
        ("", "got ''"),
        (np.int16, "got"),
        (np.longdouble, "got"),
        (None, "got None"),
        (7, "got 7"),
    ],
)
def test_an_unknown_format_is_refused_with_the_valid_ones(spec: Any, hint: str) -> None:
    with pytest.raises(
        ValueError, match=rf"format must be one of the {len(fp.formats.names())} that fp.formats.names\(\) .*{hint}"
    ):
        fp.format(spec)


def test_names_lists_the_formats_that_the_package_exports() -> None:
    assert names() == list(NAMED)
    assert all(getattr(fp, name) is fp.format(name) for name in names())


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'E9M9'"):
        _ = fp.E9M9


# ---- formats of one's own


@in_turn(
    "facts, reason",
    [
        ({"exponent_bits": 0, "mantissa_bits": 3}, "exponent_bits must be at least 1"),
        ({"exponent_bits": -1, "mantissa_bits": 3}, "exponent_bits must be an integer >= 0; got -1"),
        ({"exponent_bits": 4, "mantissa_bits": 1.5}, r"mantissa_bits must be an integer >= 0; got 1\.5"),
        ({"exponent_bits": 1 << 40, "mantissa_bits": 3}, "exponent_bits must be at most 16; got 1099511627776"),
        ({"exponent_bits": True, "mantissa_bits": 3}, "exponent_bits must be an integer >= 0; got True"),
        ({"exponent_bits": 4, "mantissa_bits": 3, "bias": 1.5}, r"bias must be an integer; got 1\.5"),
        ({"exponent_bits": 4, "mantissa_bits": 3, "nan": "quiet"}, "nan must be one of ieee, top, .*got 'quiet'"),
        ({"exponent_bits": 8, "mantissa_bits": 8}, "a format has up to 16 bits; got 17"),
        ({"exponent_bits": 8, "mantissa_bits": 23}, "a format has up to 16 bits; got 32"),
        ({"exponent_bits": 4, "mantissa_bits": 3, "infinities": False}, "nan='ieee' keeps a code for Inf"),
        ({"exponent_bits": 4, "mantissa_bits": 0}, "nan='ieee' needs a mantissa bit"),
        ({"exponent_bits": 4, "mantissa_bits": 3, "nan": "negative_zero", "signed": False}, "needs a sign bit"),
        ({"exponent_bits": 4, "mantissa_bits": 3, "signed": False, "negative_zero": True}, "needs a sign bit"),
        ({"exponent_bits": 4, "mantissa_bits": 3, "negative_zero": False}, "without -0 its code must be NaN"),
        ({"exponent_bits": 1, "mantissa_bits": 0, "nan": "top"}, "leave no finite value besides zero"),
        ({"exponent_bits": 5, "mantissa_bits": 10, "bias": 1066}, "beyond float64"),
        ({"exponent_bits": 5, "mantissa_bits": 10, "bias": -1100}, "beyond float64"),
        ({"exponent_bits": 12, "mantissa_bits": 3}, r"its values reach from 2\*\*-\d+ to 2\*\*2047, beyond float64"),
    ],
)
def test_contradictory_facts_are_refused_with_the_reason(facts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"mine: .*{reason}"):
        fp.Format("mine", **facts)


@settings(max_examples=50, deadline=None)
@given(formats())
def test_a_user_defined_format_has_the_facts_of_its_values(fmt: fp.Format) -> None:
    values = casts.values(fmt)
    finite = values[np.isfinite(values)]
    assert_bits_equal(fmt.table(), values)
    assert (fmt.max, fmt.min, fmt.smallest_subnormal) == (finite.max(), finite.min(), finite[finite > 0].min())
    assert fmt.storage == (np.uint8 if fmt.bits <= 8 else np.uint16)
    assert fmt.dtype is None
    assert fp.format(fmt) is fmt


def test_a_format_with_the_facts_of_a_built_in_one_equals_it() -> None:
    mine = fp.Format("E4M3", exponent_bits=4, mantissa_bits=3, infinities=False, nan="top", source=fp.E4M3.source)
    assert mine == fp.E4M3
    assert hash(mine) == hash(fp.E4M3)
    assert mine.dtype == fp.E4M3.dtype
    assert fp.Format("E4M3", exponent_bits=4, mantissa_bits=3) != fp.E4M3


@in_turn("fmt", [*NAMED.values(), *P3109, *STRANGE])
def test_a_format_survives_pickling(fmt: fp.Format) -> None:
    copy = pickle.loads(pickle.dumps(fmt))
    assert copy == fmt
    assert hash(copy) == hash(fmt)
    assert {fmt: 1}[copy] == 1


def test_a_format_pickled_in_another_process_is_found_in_a_dictionary() -> None:
    script = "import pickle, sys, fpsim as fp; hash(fp.E4M3); sys.stdout.write(pickle.dumps(fp.E4M3).hex())"
    copy = pickle.loads(bytes.fromhex(python(script, PYTHONHASHSEED="12345")))
    assert copy == fp.E4M3
    assert {fp.E4M3: 1}.get(copy) == 1


def test_formats_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        fp.E4M3.bias = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("fmt", "words"),
    [
        (fp.E4M3, ["8 bits = 1 sign + 4 exponent (bias 7) + 3 mantissa", "max 448", "no Inf", "NaN 0x7f", "OCP OFP8"]),
        (fp.E5M2FNUZ, ["bias 16", "NaN 0x80", "no -0"]),
        (fp.E8M0, ["8 bits = 8 exponent (bias 127) + 0 mantissa", "no zero", "NaN 0xff"]),
        (fp.E2M1, ["max 6", "no NaN", "subnormal 2**-1"]),
        (fp.FP16, ["max 65504", "subnormal 2**-24", "Inf, NaN as in IEEE 754, -0"]),
    ],
)
def test_repr_teaches_the_format(fmt: fp.Format, words: list[str]) -> None:
    for word in words:
        assert word in repr(fmt)
    assert str(fmt) == fmt.name


def test_numpy_integers_make_the_same_format_and_read_the_same_codes() -> None:
    facts: dict[str, Any] = {"exponent_bits": np.int64(4), "mantissa_bits": np.uint8(3), "bias": np.int16(7)}
    made = fp.Format("x", **facts)
    assert made == fp.Format("x", 4, 3)
    assert made.max == 240.0
    assert [fp.E4M3.value_of(code) for code in np.array([0x38, 0x7E], np.uint8)] == [1.0, 448.0]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"signed": "no"}, "signed must be True or False; got 'no'"),
        ({"infinities": 2}, "infinities must be True or False; got 2"),
        ({"name": ""}, "name must be a text that is not empty"),
        ({"name": None}, "name must be a text that is not empty"),
        ({"exponent_bits": 5, "bias": 1074, "signed": False, "infinities": False, "nan": "top", "subnormals": False},
         "beyond float64"),
        ({"name": "FP32", "exponent_bits": 8, "mantissa_bits": 23, "bias": 100}, "up to 16 bits"),
        ({"name": "TF32", "exponent_bits": 8, "mantissa_bits": 10, "signed": False}, "up to 16 bits"),
        ({"subnormals": False}, "a format without zero must be unsigned"),
    ],
)  # fmt: skip
def test_facts_that_make_no_format_are_refused(facts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fp.Format(**{"name": "x", "exponent_bits": 4, "mantissa_bits": 3, **facts})


def test_a_p3109_name_that_is_none_is_no_attribute() -> None:
    assert not hasattr(fp, "p3109_k99p1se")
    assert fp.p3109_k8p4se is fp.format("p3109_k8p4se")


@pytest.mark.parametrize(("name", "hint"), [("fp8", "'E4M3' or 'E5M2'"), ("float6", "'E2M3' or 'E3M2'")])
def test_a_name_for_several_formats_says_which(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean {hint}"):
        fp.format(name)
