"""What holds for scaled quantisation of any array: it repeats, scales, permutes and transposes as it should."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.oracles import casts
from tests.oracles.tiling import tiles
from tests.scaling.checks import assert_same_encoding, check, preset
from tests.scaling.data import between
from tests.scaling.test_presets import ROWS

Array = npt.NDArray[Any]
FORMATS = [fp.E4M3, fp.E5M2, fp.E2M1, fp.E2M3, fp.INT8, fp.INT4]
FLOATS = [fmt for fmt in FORMATS if fmt not in (fp.INT8, fp.INT4)]
POWERS_OF_TWO = [
    name
    for name in ROWS
    if preset(name).scale_format == fp.E8M0 and name not in ("MX_NEAREST", "TORCHAO_ROW", "TRAINIUM_MX")
]  # a scale rounded down saturates, and the next one is smaller again; a doubled one may grow again
BLOCKS = [(1, 16), (2, 16), (-1, 16), (128, 16)]  # of one width: loops are compiled for it

names = st.sampled_from([*ROWS])
element_formats = st.sampled_from(FORMATS)


@st.composite
def matrices(draw: st.DrawFn, low: float = -20, high: float = 20, rows: int = 9, columns: int = 70) -> Array:
    """Gaussian numbers times powers of two."""
    shape = (draw(st.integers(1, rows)), draw(st.integers(1, columns)))
    first = draw(st.floats(low, high))
    return between(first, draw(st.floats(first, high)), shape, draw(st.integers(0, 2**32 - 1)))


@st.composite
def spoilt_matrices(draw: st.DrawFn) -> Array:
    """The same with zeros, specials, subnormals and ordinary numbers anywhere."""
    x = draw(matrices(-140, 128) | matrices())
    for _ in range(draw(st.integers(0, 6))):
        place = draw(st.integers(0, x.shape[0] - 1)), draw(st.integers(0, x.shape[1] - 1))
        x[place] = draw(st.floats(width=32) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, np.nan, 448.0, 2.0**-149]))
    return x


@st.composite
def scalings(draw: st.DrawFn) -> Any:
    """Any scaling, integers with zero points aside."""
    two_levels = draw(st.booleans())
    fields: dict[str, Any] = {
        "block": draw(st.sampled_from(BLOCKS)),
        "quotient": draw(st.sampled_from(["amax/max", "1/(max/amax)"] + ["amax*(1/max)"] * (not two_levels))),
        "division": draw(st.sampled_from(["divide", "multiply"])),
        "nan": draw(st.sampled_from(["tile", "element"])),
        "zero_scale": draw(st.sampled_from(["one", "smallest"])),
        "overflow": draw(st.sampled_from(casts.OVERFLOWS)),
        "tensor_scale": two_levels,
    }
    encode_scale = fields["quotient"] == "1/(max/amax)"
    if two_levels:
        fields["scale_format"] = draw(st.sampled_from([fp.E4M3, fp.E5M2]))
        return fp.Scaling(**fields)
    fields["infinity"] = draw(st.sampled_from(["skip", "propagate", "one"]))
    fields["amax_floor"] = draw(st.sampled_from([0.0, 1e-12, 0.5]))
    fields["scale_format"] = draw(st.sampled_from([fp.FP32, fp.E8M0] + [fp.BF16, fp.E4M3] * (not encode_scale)))
    if not encode_scale:
        fields["scale_rule"] = draw(st.sampled_from(["amax", "floor", "ceil", "rceil", "nearest"]))
    if fields["scale_format"] == fp.FP32:
        fields["scale_rule"] = "amax"  # FP32 has no other rounding than to nearest even
    elif fields.get("scale_rule", "amax") == "amax":
        fields["scale_rounding"] = draw(st.sampled_from([None, "up", "down", "nearest_even"]))
    return fp.Scaling(**fields)


@settings(max_examples=150)
@given(spoilt_matrices(), scalings(), element_formats)
def test_any_scaling_of_any_matrix_is_that_of_the_oracle(x: Array, how: Any, fmt: Any) -> None:
    check(x, fmt, how)


@given(matrices(-120, 100), st.sampled_from(POWERS_OF_TWO), st.sampled_from(FLOATS))
def test_quantising_again_with_powers_of_two_changes_nothing(x: Array, name: str, fmt: Any) -> None:
    once = fp.quantize_scaled(x, fmt, preset(name))
    assert_bits_equal(fp.quantize_scaled(once, fmt, preset(name)), once)


@given(matrices(0, 8), names, element_formats, st.integers(0, 40))
def test_a_power_of_two_goes_into_the_scales(x: Array, name: str, fmt: Any, exponent: int) -> None:
    if fmt in (fp.INT8, fp.INT4) and "EVEN" in name:
        return
    x[x == 0] = 1
    x[np.abs(x) < 0.01] = 0.01  # above every floor
    power = np.float32(2.0**exponent)
    q, larger = (fp.encode_scaled(data, fmt, preset(name)) for data in (x, x * power))
    assert_bits_equal(larger.codes, q.codes)
    assert_bits_equal(larger.scales, q.scales * power)


@given(spoilt_matrices(), names, st.randoms(use_true_random=False))
def test_rows_of_tiles_can_change_places(x: Array, name: str, random: Any) -> None:
    how = preset(name)
    order = list(range(x.shape[0]))
    if how.block[0] == 1:
        random.shuffle(order)
    q, moved = (fp.encode_scaled(data, fp.E4M3, how) for data in (x, x[order]))
    assert_bits_equal(moved.codes, q.codes[order])
    assert_bits_equal(moved.scales, q.scales[order] if how.block[0] == 1 else q.scales)


@given(
    st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from(["TILE_1X128", "MX", "NVFP4", "TE_NVFP4", "TE_MX"])
)
def test_columns_of_tiles_can_change_places(rows: int, seed: int, name: str) -> None:
    how = preset(name)
    width, count = how.block[1], 5
    x = between(-20, 20, (rows, width * count), seed)
    order = np.random.default_rng(seed).permutation(count)
    columns = (order[:, None] * width + np.arange(width)).reshape(-1)
    q, moved = (fp.encode_scaled(data, fp.E2M1, how) for data in (x, x[:, columns]))
    assert_bits_equal(moved.codes, q.codes[:, columns])
    assert_bits_equal(moved.scales, q.scales[:, order])


@given(spoilt_matrices(), names, element_formats)
def test_transposing_an_encoding_transposes_its_values(x: Array, name: str, fmt: Any) -> None:
    if fmt in (fp.INT8, fp.INT4) and "EVEN" in name:
        return
    q = fp.encode_scaled(x, fmt, preset(name))
    other = q.transpose()
    assert_bits_equal(other.decode(), q.decode().T)
    rows, columns = preset(name).block
    assert_same_encoding(other, fp.encode_scaled(x.T, fmt, preset(name).replace(block=(columns, rows))))


@given(matrices(-6, 6, 9, 300), names, st.data())
def test_a_nan_stays_in_its_tile(x: Array, name: str, data: st.DataObject) -> None:
    how = preset(name)
    place = data.draw(st.integers(0, x.shape[0] - 1)), data.draw(st.integers(0, x.shape[1] - 1))
    x[place] = 0  # so that the array's amax is another one's
    spoilt = x.copy()
    spoilt[place] = np.nan
    q, with_nan = (fp.encode_scaled(values, fp.E4M3, how) for values in (x, spoilt))
    tile = tuple(i // b for i, b in zip(place, tiles.tile_sizes(x.shape, how.block), strict=True))
    elsewhere = np.ones(q.scales.shape, np.bool_)
    elsewhere[tile] = False
    assert_bits_equal(with_nan.scales[elsewhere], q.scales[elsewhere])
    outside = tiles.repeated(elsewhere, x.shape, tiles.tile_sizes(x.shape, how.block))
    assert_bits_equal(with_nan.codes[outside], q.codes[outside])
    is_nan = np.isnan(with_nan.decode())
    assert bool(is_nan[~outside].all()) if how.nan == "tile" else is_nan.sum() == 1
    assert is_nan[place]
    assert not is_nan[outside].any()
