"""Arrays of any shape, layout and size: the same bits as element by element."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from numpy.lib.stride_tricks import as_strided

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.layouts import read_only, unaligned
from tests.kit.samples import float32_patterns
from tests.kit.sweeps import in_turn
from tests.oracles import casts

Array = npt.NDArray[Any]


# The same elements in other places of memory.
LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": np.ascontiguousarray,
    "fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "every second row": lambda x: np.repeat(x, 2, axis=0)[::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "foreign byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": unaligned,
    "read-only": read_only,
    "inner axes swapped": lambda x: np.ascontiguousarray(np.swapaxes(x, 1, 2)).swapaxes(1, 2),
}


layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def sample(dtype: npt.DTypeLike = np.float32) -> Array:
    return (np.random.default_rng(0).standard_normal((5, 7, 11)) * 100).astype(dtype)


# ---- shapes and layouts


@layouts
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_layout_encodes_as_a_contiguous_array(layout: Callable[[Array], Array], dtype: type) -> None:
    x = sample(dtype)
    want = casts.encode_all(x.astype(np.float64).reshape(-1), fp.E4M3).reshape(x.shape)
    assert_bits_equal(fp.encode(layout(x), fp.E4M3), want)
    assert_bits_equal(fp.quantize(layout(x), fp.E4M3), fp.decode(want, fp.E4M3, np.promote_types(dtype, np.float32)))


@layouts
def test_every_layout_decodes_as_a_contiguous_array(layout: Callable[[Array], Array]) -> None:
    codes = np.arange(5 * 7 * 11, dtype=np.uint16).reshape(5, 7, 11) * 170
    want = casts.values(fp.FP16)[codes].astype(np.float32)
    assert_bits_equal(fp.decode(layout(codes), fp.FP16), want)


@layouts
def test_every_layout_can_be_filled(layout: Callable[[Array], Array]) -> None:
    x = sample()
    out = layout(np.zeros(x.shape, np.uint8))
    if not out.flags.writeable:
        return
    assert fp.encode(x, fp.E4M3, out=out) is out
    assert_bits_equal(out, fp.encode(x, fp.E4M3))


def test_gaps_between_the_elements_of_out_stay_as_they_are() -> None:
    space = np.full((4, 6), 99, np.uint8)
    fp.encode(np.ones((4, 3), np.float32), fp.E4M3, out=space[:, ::2])
    assert (space[:, ::2] == 0x38).all()
    assert (space[:, 1::2] == 99).all()


def test_a_broadcast_view_encodes_as_its_copy() -> None:
    x = np.broadcast_to(sample()[0, 0], (3, 4, 11))
    assert_bits_equal(fp.encode(x, fp.E4M3), fp.encode(x.copy(), fp.E4M3))
    x = as_strided(np.array([1.5], np.float32), (1000,), (0,))
    assert (fp.encode(x, fp.E4M3) == 0x3C).all()


@in_turn("shape", [(0,), (3, 0), (0, 4, 5), (2, 0, 3)])
def test_an_array_without_elements_keeps_its_shape(shape: tuple[int, ...]) -> None:
    x = np.empty(shape, np.float32)
    for array, dtype in (
        (fp.encode(x, fp.E4M3), np.uint8),
        (fp.encode(x.T, fp.FP16), np.uint16),
        (fp.encode(x, fp.E4M3, rounding="stochastic", seed=0), np.uint8),
        (fp.decode(x.astype(np.uint8), fp.E4M3), np.float32),
        (fp.quantize(x.astype(np.float64), fp.E4M3), np.float64),
        (fp.cast(x, fp.E4M3), ml_dtypes.float8_e4m3fn),
    ):
        assert array.size == 0
        assert array.dtype == dtype
        assert array.shape in (shape, shape[::-1])


def test_a_single_number_gives_an_array_without_dimensions() -> None:
    for x in (1.0, np.float32(1), np.array(1.0), np.array(1.0, np.float16), ml_dtypes.bfloat16(1)):
        codes = fp.encode(x, fp.E4M3)
        assert codes.shape == ()
        assert int(codes) == 0x38
        assert float(fp.quantize(x, fp.E4M3)) == float(fp.decode(codes, fp.E4M3)) == 1
    out = np.zeros((), np.uint8)
    assert fp.encode(2.0, fp.E4M3, out=out) is out
    assert int(out) == 0x40


def test_lists_of_floats_are_arrays_too() -> None:
    assert fp.encode([[1.0, 2.0], [3.0, 4.0]], fp.E4M3).tolist() == [[0x38, 0x40], [0x44, 0x48]]
    assert fp.decode([[0x38], [0x40]], fp.E4M3).tolist() == [[1], [2]]
    assert fp.encode([], fp.E4M3).shape == fp.decode([], fp.E4M3).shape == (0,)


def test_integers_of_python_are_values() -> None:
    for x in (3, [1, -2, 500], ((1, 2), (3, 448)), [1, 0.5], [-(2**63), 2**62], [2**63], [2**60, 0.5], [2**53 + 2]):
        want = np.asarray(x, dtype=np.float64)
        for fmt in (fp.E4M3, fp.E5M2, fp.FP64):
            assert_bits_equal(fp.encode(x, fmt), fp.encode(want, fmt))
        assert_bits_equal(fp.quantize(x, fp.BF16), fp.quantize(want, fp.BF16))
        assert_bits_equal(fp.encode_scaled(x, fp.E4M3), fp.encode_scaled(want, fp.E4M3))


@in_turn("x", [2**53 + 1, [2**63 - 1], [1, -(2**53) - 1], [2**64 - 1], [0.5, 2**53 + 1], [[2**62 + 1]]])
def test_integers_that_float64_rounds_are_refused(x: Any) -> None:
    with pytest.raises(ValueError, match=r"x must hold integers that float64 holds; got -?\d+, .* Use fpsim\.from_int"):
        fp.encode(x, fp.E8M0)


def test_from_int_rounds_the_largest_integers_once() -> None:
    assert fp.from_int([2**63 - 1], fp.E8M0, rounding="toward_zero") == 127 + 62  # as float64 it would be 2^63
    assert fp.from_int([2**63 - 1], fp.E8M0) == 127 + 63


def test_the_input_stays_as_it_is() -> None:
    x = float32_patterns(1, 1000)
    before = x.tobytes()
    fp.encode(x, fp.E4M3)
    fp.quantize(x, fp.E8M0)
    assert x.tobytes() == before


@in_turn("fmt, dtype", [(fp.E2M1, np.uint8), (fp.E4M3, np.uint8), (fp.FP16, np.uint16),
                                            (fp.TF32, np.uint32), (fp.FP32, np.uint32), (fp.FP64, np.uint64),
                                            (fp.format("p3109_k9p4se"), np.uint16)])  # fmt: skip
def test_codes_come_in_the_narrowest_unsigned_dtype(fmt: fp.Format, dtype: type) -> None:
    assert fp.encode(np.ones(3), fmt).dtype == fmt.storage == dtype


# ---- what is not an array of floats


@in_turn(
    "x, advice",
    [
        (
            np.array([1], np.int32),
            r"got int32\. Convert values with x\.astype\(np\.float64\), or round integers of any size with fpsim\."
            r"from_int; to read integers as codes use",
        ),
        ([np.uint8(1)], r"got uint8\. Convert values"),
        ([True], r"got bool\. Convert values"),
        (np.array([1], np.uint8), r"got uint8.*fpsim\.decode"),
        (np.array([True], np.bool_), "got bool"),
        (np.ones(1, ml_dtypes.int4), "got int4.*fpsim.decode"),
        (np.array([1.0, None], object), r"got objects, such as None\. Replace those that are no numbers"),
        (np.array([1], np.complex64), "got complex64"),
        (np.array([1], np.longdouble), r"got .*Convert with x\.astype\(np\.float64\)"),
        (["1.0"], "got texts"),
        (None, "got None"),
        (np.array(["2020"], "M8[Y]"), "got datetime64"),
    ],
)
@in_turn("function", [fp.encode, fp.quantize, fp.cast])
def test_what_is_no_array_of_floats_is_refused_with_what_to_do(
    function: Callable[..., Array], x: npt.ArrayLike, advice: str
) -> None:
    with pytest.raises(TypeError, match=rf"x must be an array of float16, bfloat16, float32.*{advice}"):
        function(x, fp.E4M3)


# ---- out=


@in_turn(
    "out, reason",
    [
        (np.zeros(4, np.uint16), r"out must have dtype uint8; got uint16\. Leave it out to get a new array\."),
        (np.zeros(4, np.int8), "out must have dtype uint8; got int8"),
        (np.zeros(4, ml_dtypes.float8_e4m3fn), "out must have dtype uint8; got float8_e4m3fn"),
        (np.zeros(5, np.uint8), r"out must have the input's shape \(4,\); got \(5,\)"),
        (np.zeros((1, 4), np.uint8), r"out must have the input's shape \(4,\); got \(1, 4\)"),
        (np.zeros((), np.uint8), r"out must have the input's shape \(4,\); got \(\)"),
        ([0, 0, 0, 0], r"out must be a NumPy array of uint8 and shape \(4,\); got list"),
        (np.broadcast_to(np.uint8(0), 4), "out must be writeable"),
    ],
)
def test_an_out_that_does_not_fit_is_refused(out: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        fp.encode(np.ones(4, np.float32), fp.E4M3, out=out)


def test_an_out_in_a_foreign_byte_order_is_refused() -> None:
    with pytest.raises(ValueError, match="out must have dtype uint16"):
        fp.encode(np.ones(4, np.float32), fp.FP16, out=np.empty(4, np.dtype(np.uint16).newbyteorder()))


def test_out_has_the_dtype_of_the_result_of_each_function() -> None:
    x = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="out must have dtype float32; got float64"):
        fp.decode(np.zeros(4, np.uint8), fp.E4M3, out=np.empty(4))
    with pytest.raises(ValueError, match="out must have dtype float32; got float64"):
        fp.quantize(x, fp.E4M3, out=np.empty(4))
    with pytest.raises(ValueError, match="out must have dtype float8_e4m3fn; got uint8"):
        fp.cast(x, fp.E4M3, out=np.empty(4, np.uint8))
    out = np.empty(4, np.float64)
    assert fp.decode(np.full(4, 0x38, np.uint8), fp.E4M3, np.float64, out) is out
    assert out.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("where", [slice(0, 8), slice(4, 12), slice(31, 39)])
def test_an_out_that_shares_memory_with_the_input_is_refused(where: slice) -> None:
    space = np.zeros(64, np.uint8)
    with pytest.raises(ValueError, match="out must not share memory with the input"):
        fp.encode(space[:32].view(np.float32), fp.E4M3, out=space[where])
    with pytest.raises(ValueError, match="out must not share memory with the input"):
        fp.quantize(space[:32].view(np.float32), fp.E4M3, out=space[:32].view(np.float32))
    with pytest.raises(ValueError, match="out must not share memory with the input"):
        fp.decode(space[:8], fp.E4M3, out=space[:32].view(np.float32))


def test_an_out_that_lies_between_the_elements_of_the_input_is_filled() -> None:
    space = np.ones((100, 2), np.float32)
    fp.quantize(space[:, 0], fp.E4M3, out=space[:, 1])
    assert_bits_equal(space[:, 1], space[:, 0])


def test_a_memory_map_can_be_filled(tmp_path: Path) -> None:
    x = sample()
    out = np.memmap(tmp_path / "codes", np.uint8, "w+", shape=x.shape)
    fp.encode(x, fp.E4M3, out=out)
    out.flush()
    assert_bits_equal(np.fromfile(tmp_path / "codes", np.uint8).reshape(x.shape), fp.encode(x, fp.E4M3))
