"""Words, arrays to be scaled, and operands of units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.formats.policies import OVERFLOWS
from fpsim.matrix_units.catalogue import float_units
from fpsim.testing import strategies
from fpsim.testing.strategies.arrays import TILES
from fpsim.testing.strategies.products import _cancel, _codes
from tests.kit.processes import python
from tests.kit.sweeps import in_turn
from tests.testing.strategies.test_numbers import drawn, shrunk


def test_words_are_what_casts_take() -> None:
    roundings = set(drawn(strategies.roundings(), 200))
    assert roundings == {mode.name.lower() for mode in fp.Rounding} - {"stochastic"}
    assert "stochastic" in drawn(strategies.roundings(stochastic=True), 200)
    policies = drawn(strategies.policies(), 500)
    assert {words["overflow"] for words in policies} == set(OVERFLOWS)
    for words in policies[:100]:
        fp.encode(np.array([0.3, 1e9]), "e5m2", **words)
    assert {words["rounding"] for words in drawn(strategies.policies(stochastic=False), 300)} == roundings


def test_formats_are_of_the_width_asked_for_and_held_by_float32() -> None:
    got = drawn(strategies.formats(), 600)
    assert len({fmt.name for fmt in got}) > 60
    assert all(fmt.bits <= 16 and fp.FP32.holds(fmt) for fmt in got)
    assert {fmt.bits for fmt in drawn(strategies.formats(4), 100)} <= {3, 4}
    assert "FP32" in {fmt.name for fmt in drawn(strategies.formats(32), 500)}


SCALINGS = [fp.scalings.MX, fp.scalings.TILE_1X128, fp.scalings.BLOCK_128X128, fp.scalings.TENSOR, fp.scalings.NVFP4]


@in_turn("scaling", SCALINGS)
def test_arrays_to_scale_can_be_scaled(scaling: fp.Scaling) -> None:
    for x in drawn(strategies.scaled_arrays(scaling, specials=False), 20):
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        decoded = fp.encode_scaled(x, "e2m1" if scaling is fp.scalings.NVFP4 else "e4m3", scaling).decode()
        assert decoded.shape == x.shape


def test_arrays_to_scale_hold_every_kind_of_tile() -> None:
    tiles = []
    for x in drawn(strategies.scaled_arrays(fp.scalings.MX, ragged=False), 600):
        tiles += list(x.reshape(-1, 32))
    whole = np.array(tiles)
    with np.errstate(invalid="ignore"):
        amax = np.abs(np.where(np.isfinite(whole), whole, 0)).max(axis=1)
        constant = (whole == whole[:, :1]).all(axis=1)
    assert np.isinf(whole).all(axis=1).any()
    assert (np.isinf(whole).sum(axis=1) == 1).any()
    assert np.isnan(whole).any()
    assert ((whole == 0).all(axis=1) & ~np.signbit(whole[:, 0])).any()
    assert ((whole == 0).all(axis=1) & np.signbit(whole[:, 0])).any()
    assert (constant & (amax > 0)).any()
    mantissas = np.frexp(amax)[0]
    assert ((mantissas == 0.5) & ~constant).any()
    assert {0.5 * (1 + 2.0**-23), 1 - 2.0**-24} <= set(mantissas.tolist())
    edges = np.abs(whole[:, [0, -1]]).max(axis=1)
    assert ((edges >= 64) & (edges == amax) & ~constant).any()
    assert ((amax > 0) & (amax < 2.0**-126)).any()


def test_arrays_to_scale_shrink_to_small_ones() -> None:
    for scaling in (fp.scalings.MX, fp.scalings.BLOCK_128X128):
        x = shrunk(strategies.scaled_arrays(scaling), lambda x: True)
        assert x.tolist() == [[1]]
    whole = shrunk(strategies.scaled_arrays(fp.scalings.MX, ragged=False), lambda x: True)
    assert whole.shape == (1, 32)
    assert (whole == 1).all()
    with_inf = shrunk(strategies.scaled_arrays(fp.scalings.MX), lambda x: np.isinf(x).any())
    assert with_inf.shape[1] <= 33  # a tile, and at most one element of the next
    assert with_inf.shape[0] <= 2
    assert len(TILES) >= 12


def test_operands_fit_their_unit_whatever_it_takes() -> None:
    names = ("hopper_e4m3_f32", "ampere_tf32_f32", "cdna3_fp8xbf8_f32", "cdna3_xf32_f32", "blackwell_nvfp4_f32",
             "blackwell_mxfp8_e4m3_f32", "hopper_f16_f16", "blackwell_mxfp4_block16_f32")  # fmt: skip
    for name in names:
        for a, b in drawn(strategies.products(name, 2, 3, 64), 12, together=1):
            assert a.shape == (2, 64)
            assert b.shape == (64, 3)
            assert fp.matmul(a, b, accumulate=name).shape == (2, 3)


def test_every_unit_has_operands() -> None:
    for unit in float_units():
        a, b = drawn(strategies.products(unit, 1, 1, 64), 1, together=1)[0]
        assert a.shape + b.shape == (1, 64, 64, 1)


def test_operands_cancel_and_reach_any_code() -> None:
    # Hypothesis draws some constants of the modules that are loaded, so that examples differ from run to run
    pairs = drawn(strategies.products("hopper_e4m3_f32", 1, 1, 64), 500, together=1)
    values = [(fp.decode(a, "e4m3")[0], fp.decode(b, "e4m3")[:, 0]) for a, b in pairs]
    with np.errstate(invalid="ignore"):
        sums = [(float((x * y).sum()), float(np.abs(x * y).max())) for x, y in values]
    assert sum(largest > 1000 and abs(total) < largest / 100 for total, largest in sums) >= 4
    codes = np.unique(np.concatenate([np.append(a, b) for a, b in pairs]))
    assert codes.size >= 250


def test_whole_and_cut_tiles_are_drawn_alike_often() -> None:
    widths = np.array([x.shape[1] % 32 for x in drawn(strategies.scaled_arrays(fp.scalings.MX), 300)])
    assert 60 < (widths == 0).sum() < 240


def test_operands_shrink_to_ones_beside_what_matters() -> None:
    a, b = shrunk(
        strategies.products("hopper_e4m3_f32", 1, 1, 32),
        lambda pair: np.isnan(fp.decode(pair[0], "e4m3")).any() or np.isnan(fp.decode(pair[1], "e4m3")).any(),
    )
    together = np.append(a, b)
    assert np.count_nonzero(together != 0x38) <= 3
    assert np.isin([0x7F, 0xFF], together).any()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: strategies.scaled_arrays("MXFP8"), "scaling must be one of"),
        (lambda: strategies.products("hopper_e4m3", 1, 1, 1), "unit"),
        (lambda: strategies.products("hopper_e4m3_f32", 0, 1, 1), "m must be an integer >= 1"),
        (lambda: strategies.products("blackwell_nvfp4_f32", 1, 1, 24), "k must be a multiple of the 16 terms"),
    ],
)
def test_what_cannot_be_drawn_is_refused_when_asked_for(call: Callable[[], object], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        call()


def test_only_strategies_load_hypothesis_and_say_what_to_install() -> None:
    script = (
        "import sys, fpsim as fp; fp.testing.points; print('hypothesis' in sys.modules)\n"
        "sys.modules['hypothesis'] = None\n"
        "try:\n    fp.testing.strategies\nexcept ImportError as e:\n    print(e)\n"
        "del sys.modules['hypothesis']; fp.testing.strategies.codes; print('hypothesis' in sys.modules)"
    )
    before, absent, after = python(script).splitlines()
    assert absent.startswith("fp.testing.strategies needs hypothesis, which is not installed: ")
    assert (before, after) == ("False", "True")


@in_turn("name", ["cdna3_fp8_f32", "cdna3_bf8xfp8_f32", "hopper_e4m3_f32"])
def test_terms_that_cancel_have_no_nan(name: str) -> None:
    unit = fp.unit(name)
    for seed in range(5):
        a = _codes("cancelling", np.random.default_rng(seed), (4, 64), unit.a)
        b = _codes("cancelling", np.random.default_rng(seed + 5), (64, 4), unit.b)
        _cancel(np.random.default_rng(seed), a, b, unit.a)
        sums = fp.matmul(a, b, accumulate=fp.Exact("fp64"), fmt=(unit.a.fmt, unit.b.fmt))
        assert not sums.any()  # NaN is true


@in_turn(
    "words, message",
    [({"tiles": 0}, "tiles must be an integer >= 1; got 0"), ({"ragged": 3}, "ragged must be True or False; got 3"),
     ({"specials": "no"}, "specials must be True or False; got 'no'")],
)  # fmt: skip
def test_arrays_to_scale_refuse_other_arguments(words: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        strategies.scaled_arrays("MX", **words)


@pytest.mark.parametrize("name", fp.testing.OPERAND_SETS)
def test_random_operands_may_be_empty_and_depend_on_sizes_and_names_alone(name: str) -> None:
    a, b = fp.testing.product_operands(name, (2, 3, 0), ("e4m3", "bf16"))
    assert (a.shape, b.shape) == ((2, 0), (0, 3))
    one = fp.testing.product_operands(name, (2, 3, 4), ("e4m3", "bf16"))
    other = fp.testing.product_operands(name, [np.int64(2), 3, 4], ["e4m3", "bf16"])  # type: ignore[arg-type]
    for first, second in zip(one, other, strict=True):
        fp.testing.assert_bits_equal(first, second)
