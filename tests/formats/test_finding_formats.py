"""Formats are found by name and dtype, and users define formats."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import fpsim as fp
from fpsim.formats.named import ALIASES, DTYPES, NAMED, names
from fpsim.testing import assert_bits_equal
from tests.kit.processes import python
from tests.kit.samples import P3109, STRANGE, formats
from tests.kit.sweeps import in_turn
from tests.oracles import casts

every_dtype = in_turn("fmt", DTYPES)


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
        ({"bias": 10**5000}, r"its values reach from 2\*\*an integer of 16610 bits"),
        ({"source": 5}, "source must be a text of one line; got 5"),
        ({"source": "a\nb"}, "source must be a text of one line"),
    ],
)  # fmt: skip
def test_facts_that_make_no_format_are_refused(facts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fp.Format(**{"name": "x", "exponent_bits": 4, "mantissa_bits": 3, **facts})


def test_p3109_formats_of_huge_numbers_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="format must be one of"):
        fp.format(f"p3109_k{'9' * 5000}p3se")
    with pytest.raises(ValueError, match=r"got an integer of 16610 bits\. Values come before their format"):
        fp.format(10**5000)
    with pytest.raises(ValueError, match="precision must be at most 16; got an integer of 16610 bits"):
        fp.formats.p3109(8, 10**5000)


def test_a_p3109_name_that_is_none_is_no_attribute() -> None:
    assert not hasattr(fp, "p3109_k99p1se")
    assert fp.p3109_k8p4se is fp.format("p3109_k8p4se")


@pytest.mark.parametrize(("name", "hint"), [("fp8", "'E4M3' or 'E5M2'"), ("float6", "'E2M3' or 'E3M2'")])
def test_a_name_for_several_formats_says_which(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"Did you mean {hint}"):
        fp.format(name)


def test_errors_name_the_argument_that_is_no_format() -> None:
    codes = np.array([0x38], np.uint8)
    calls: dict[str, Callable[[], object]] = {
        "out_fmt": lambda: fp.add(codes, codes, fmt="e4m3", out_fmt="e4m4"),
        "intermediate": lambda: fp.softmax(np.ones(4, np.float32), intermediate="e4m4"),
        "outer": lambda: fp.Chunked("fp16", outer="e4m4"),
        "scale_format": lambda: fp.Scaling(scale_format="e4m4"),  # type: ignore[arg-type]
        "input_fmt": lambda: fp.torch.LinearRecipe(input_fmt="e4m4"),
        "dtype": lambda: fp.probe.sum(np.sum, 8, "e4m4"),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"^{name} must be one of the .* got 'e4m4'. Did you mean"):
            call()
    with pytest.raises(ValueError, match=r"^out_fmt must be a float format; got 'int8', whose values need scales"):
        fp.add(codes, codes, fmt="e4m3", out_fmt="int8")
