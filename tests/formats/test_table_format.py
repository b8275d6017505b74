"""Formats given by a table: their rows, facts and refusals."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.formats.as_json import element_fields, element_from
from fpsim.formats.element import element_format
from fpsim.testing import assert_bits_equal
from tests.oracles.tables import hif8_value

SPECIAL = fp.TableFormat("special", (0.0, 1.0, 2.0, math.inf, -0.0, -1.0, -3.0, math.nan), ties="toward_zero")


def test_all_codes_of_hif8_have_the_values_of_the_paper() -> None:
    assert_bits_equal(np.array(fp.HIF8.values), np.array([hif8_value(code) for code in range(256)]))
    assert (fp.HIF8.max, fp.HIF8.min, fp.HIF8.smallest, fp.HIF8.nan_code) == (2.0**15, -(2.0**15), 2.0**-22, 0x80)
    assert not fp.HIF8.negative_zero
    assert (fp.HIF8.infinity_code(False), fp.HIF8.infinity_code(True)) == (0x6F, 0xEF)


def test_nf4_and_fp4_of_bitsandbytes_have_its_tables() -> None:
    assert fp.NF4.value_of(7) == 0
    assert np.array_equal(np.float32(fp.NF4.table()), fp.NF4.table())
    assert [fp.NF4.value_of(code) for code in (0, 1, 8, 15)] == [-1, -0.6961928009986877, 0.07958029955625534, 1]
    twelfths = np.round(np.array(fp.BNB_FP4.values[:8]) * 12, 5)
    assert twelfths.tolist() == [0, 0.0625, 8, 12, 4, 6, 2, 3]
    assert fp.BNB_FP4.negative_zero
    assert fp.BNB_FP4.value_of(11) == -1


def test_tables_are_found_by_name() -> None:
    for name, fmt in {"nf4": fp.NF4, "HiFloat8": fp.HIF8, "hif8": fp.HIF8, "bnb-fp4": fp.BNB_FP4}.items():
        assert element_format(name) is fmt
        assert element_format(fmt) is fmt


def test_a_table_survives_pickling_and_json() -> None:
    for fmt in (fp.NF4, fp.HIF8, SPECIAL):
        again = pickle.loads(pickle.dumps(fmt))
        assert again == fmt == element_from(element_fields(fmt))
        assert {fmt: 1}[again] == 1
    assert fp.TableFormat("HIF8", fp.HIF8.values) != fp.HIF8


def test_repr_says_what_a_table_holds() -> None:
    assert repr(SPECIAL) == (
        "<special: 3 bits, 6 finite values from -3 to 2, smallest 1; ties toward zero; Inf, NaN, -0; user>"
    )
    assert "253 finite values from -32768 to 32768" in repr(fp.HIF8)


def test_finfo_has_the_limits_that_mean_something() -> None:
    info = fp.finfo(fp.HIF8)
    assert (info.bits, info.eps, info.epsneg, info.max, info.tiny) == (8, 0.125, 0.0625, 2.0**15, 2.0**-22)
    assert math.isnan(fp.finfo(fp.NF4).eps)
    assert fp.finfo(fp.NF4).epsneg == 1 - 0.7229568362236023


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: fp.TableFormat("", (0.0, 1.0)), "name must be a text that is not empty"),
    (lambda: fp.TableFormat("t", (0.0, 1.0, 2.0)), "t: values must be 4 to 65536 numbers, a power of two of them"),
    (lambda: fp.TableFormat("t", "0123"), "t: values must be 4 to 65536 numbers"),  # type: ignore[arg-type]
    (lambda: fp.TableFormat("t", np.ma.masked_array([0.0, 1, 2, 3], [0, 0, 0, 1])), "t: values must be 4 to 65536"),  # type: ignore[arg-type]
    (lambda: fp.TableFormat("t", (0.0, 1.0, 2.0, 1.0)), "t: each value has one code; got 1.0 twice"),
    (lambda: fp.TableFormat("t", (math.inf, -math.inf, math.nan, 1.0)), "t: there must be two finite values"),
    (lambda: fp.TableFormat("t", (0.0, 1.0, 2.0, 3.0), ties="up"), "ties must be one of away, toward_zero, down, even"),
    (lambda: fp.TableFormat("t", (0.0, 1.0, 2.0, 3.0), source=None), "t: source must be a text of one line; got None"),  # type: ignore[arg-type]
    (lambda: fp.TableFormat("t", (0.0, 1.0, 2.0, 3.0), beyond=4.0), "t: beyond must be a number above the largest"),
    (lambda: fp.TableFormat("t", (0.0, 1.0, 2.0, math.inf), beyond=2.0), "t: beyond must be a number above"),
    (lambda: fp.TableFormat("t", (0.0, 1.0, 2.0, math.inf), beyond=10**400), "t: beyond must be a number above"),
    (lambda: fp.TableFormat("t", (0.0, -0.0, math.inf, math.nan)), "t: there must be two finite values at least, one"),
    (lambda: fp.encode(1.0, "hif4"), r"HIF4 has its values by tile; use fp.encode_scaled\(x, 'hif4', fp.scalings.HIF4"),
    (lambda: fp.decode(np.array([1], np.uint8), fp.IF4), "IF4 has its values by tile; use fp.encode_scaled"),
    (lambda: fp.NF4.value_of(16), "a code of NF4 lies in 0 .. 0xf; got 16"),
    (lambda: fp.format("nf4"), "this takes a format of exponent and mantissa; got NF4, which is a table of values"),
    (
        lambda: fp.add(np.array([1], np.uint8), np.array([1], np.uint8), fmt=fp.HIF8),
        "this takes a format of exponent and mantissa; got",
    ),
    (lambda: fp.policy_diff("torch", "ieee", fp.HIF8), "this takes a format of exponent and mantissa; got HIF8"),
    (lambda: fp.testing.check_quantizer(abs, "nf4"), "this takes a format of exponent and mantissa; got NF4"),
    (lambda: fp.OnlineScaling("nf4"), "OnlineScaling needs elements that a scale alone places; got NF4"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_what_is_no_table_or_takes_none_is_refused_in_a_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
