"""check_quantizer: results that depend on more than values, and functions that break the rules."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fpsim as fp
from fpsim.testing.quantizers import black_box
from fpsim.testing.quantizers.black_box import CalledQuantizer, read
from tests.kit.sweeps import in_turn

Array = Any


E4M3 = ml_dtypes.float8_e4m3fn


def report(fn: Callable[..., Any], fmt: Any = "e4m3", **keywords: Any) -> fp.testing.QuantizerReport:
    return fp.testing.check_quantizer(fn, fmt, raises=False, **keywords)


# ---- causes


def through_fp16(x: Array) -> Array:
    return x.astype(np.float16).astype(E4M3)


# ---- anything but the value


def test_results_that_change_from_call_to_call_are_found() -> None:
    seeds = itertools.count()
    checked = report(lambda x: fp.quantize(x, "e4m3", rounding="stochastic", seed=next(seeds)))
    assert "it is not deterministic" in checked.diagnosis
    assert "as in stochastic rounding" in checked.diagnosis
    assert "calls" in {one.property for one in checked.broken}


def test_a_pasted_layout_shows_the_fault() -> None:
    mutant = fp.testing.mutants.QUANTIZERS["memory_order"].make("e4m3")
    (broken,) = report(mutant).broken
    assert broken.property == "layout"
    x = np.array([[1, 2], [3, 4], [6, 8], [0.5, 1.5]], np.float32)
    assert (eval(broken.paste, {"np": np, "memory_order": mutant}) != x).any()


def beyond(first: int, axis: int | None = None) -> Callable[[Array], Array]:
    """Return a quantizer to E4M3 that turns signs from an index on, of elements or along an axis."""

    def quantizer(x: Array) -> Array:
        codes = np.array(fp.encode(x, "e4m3"), order="C")
        if axis is None:
            codes.reshape(-1)[first:] ^= 0x80
        elif codes.ndim == 2:
            np.moveaxis(codes, axis, 0)[first:] ^= 0x80
        return codes

    return quantizer


@pytest.mark.usefixtures("of_a_million")
@pytest.mark.parametrize(
    ("first", "axis"), [(4096, None), (1 << 14, None), (1 << 16, None), (1 << 20, None), (1 << 16, 0), (1 << 16, 1)]
)
def test_what_is_wrong_beyond_an_index_is_found(first: int, axis: int | None) -> None:
    checked = report(beyond(first, axis))
    (broken,) = checked.broken
    assert broken.property == "size"
    index = {None: first, 0: 3 * first, 1: first}[axis]
    assert f"is wrong from index {index:,} on" in broken.why
    assert eval(broken.paste, {"np": np, "quantizer": beyond(first, axis)}) == broken.got_code
    assert checked.covered.sizes[1] > 1 << 20
    assert report(beyond(1 << 40, axis)).ok


@pytest.mark.usefixtures("of_a_million")
@pytest.mark.parametrize("first", [4096, 1 << 16, 1 << 20])
def test_what_is_wrong_beyond_an_index_in_seeded_rounding_is_found(first: int) -> None:
    def quantizer(x: Array) -> Array:
        codes = fp.encode(x, "e4m3", rounding="stochastic", seed=7)
        codes.reshape(-1)[first:] ^= 0x80
        return codes

    (broken,) = report(quantizer, rounding="stochastic", seed=7).broken
    assert broken.property == "size"


REVERSED: dict[str, tuple[Callable[[Array], bool], Callable[[Array], Array]]] = {
    "vector reversed": (lambda x: x.ndim == 1 and x.strides[0] < 0, lambda x: x[::-1]),
    "rows reversed": (lambda x: x.ndim == 2 and x.strides[0] < 0 < x.strides[1], lambda x: x[::-1]),
    "columns reversed": (lambda x: x.ndim == 2 and x.strides[1] < 0 < x.strides[0], lambda x: x[:, ::-1]),
    "both axes reversed": (lambda x: x.ndim == 2 and max(x.strides) < 0, lambda x: x[::-1, ::-1]),
    "Fortran order reversed": (
        lambda x: x.ndim == 2 and 0 > x.strides[0] > x.strides[1], lambda x: x[::-1, ::-1]
    ),
    "axes permuted": (lambda x: x.ndim == 3 and not x.flags.c_contiguous, lambda x: x.swapaxes(0, 1)),
}  # fmt: skip


@in_turn("layout", REVERSED)
def test_a_layout_that_is_read_wrong_is_named(layout: str) -> None:
    is_concerned, read = REVERSED[layout]

    def quantizer(x: Array) -> Array:
        return fp.encode(read(x) if is_concerned(x) else x, "e4m3")

    (broken,) = report(quantizer).broken
    assert broken.property == "layout"
    assert f"the layout '{layout}'" in broken.why
    right = report(lambda x: fp.encode(x, "e4m3"))
    assert right.ok
    assert layout in right.covered.layouts
    wrong = eval(broken.paste, {"np": np, "quantizer": quantizer})
    assert (wrong.ravel() != fp.encode(np.array([1, 2, 3, 4, 6, 8, 0.5, 1.5]), "e4m3")).any()


@pytest.mark.usefixtures("of_a_million")
def test_a_pass_says_what_it_covers() -> None:
    checked = report(lambda x: fp.encode(x, "e4m3"))
    covered = checked.covered
    assert covered.sizes == (0, (1 << 20) + 1033)
    assert {len(shape) for shape in covered.shapes} == {0, 1, 2, 3}
    assert covered.dtypes == ("float32", "float64", "float16", "bfloat16")
    assert (covered.smallest, covered.largest) == (2.0**-1074, np.finfo(np.float64).max)
    assert covered.specials == ("zeros", "infinities", "NaNs")
    assert f"covered: {covered}" in str(checked)
    assert "arrays of 0 to 1,049,609 elements" in str(covered)
    narrow = report(lambda x: x.astype(E4M3) if x.dtype == np.float32 else 1 / 0)
    assert narrow.covered.dtypes == ("float32",)


@in_turn("value", [0.0, 1.0, np.nan])
def test_a_constant_quantizer_is_a_fault(value: float) -> None:
    checked = report(lambda x: np.full_like(x, value), "e4m3", source="float32")
    assert not checked.ok
    assert value or "gives +0" in checked.causes


def test_a_square_matrix_that_comes_back_transposed_is_found() -> None:
    def quantizer(x: Array) -> Array:
        codes = fp.encode(x, "e4m3")
        return codes.T if codes.ndim == 2 and codes.shape[0] == codes.shape[1] else codes

    (broken,) = report(quantizer).broken
    assert broken.property == "batch"
    assert broken.why == "shape (2, 2) gives the right results in the order of the transposed matrix"


def test_a_wrong_number_without_axes_is_found() -> None:
    (broken,) = report(lambda x: fp.encode(x, "e4m3") if x.ndim else np.uint8(0x38)).broken
    assert (broken.property, broken.why) == (
        "batch",
        "shape () gives other results than the same values in a larger one",
    )


def test_a_function_that_takes_no_empty_array_passes_with_a_note() -> None:
    checked = report(lambda x: fp.encode(x, "e4m3") if x.size else x.max())
    assert checked.ok
    assert any(note.startswith("it refuses shape (0,): fn raised ValueError") for note in checked.notes)


def test_a_dtype_of_its_own_rule_is_found() -> None:
    def by_dtype(x: Array) -> Array:
        return fp.quantize(x, "e4m3", rounding="toward_zero" if x.dtype == np.float16 else "nearest_even")

    (broken,) = report(by_dtype).broken
    assert broken.property == "dtype"
    assert broken.why == "as float16 the same values give other results"


def test_a_function_of_the_bits_of_float32_passes_with_a_note() -> None:
    def to_bf16(x: Array) -> Array:
        bits = x.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.asarray(np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded), np.uint16)

    checked = report(to_bf16, "bf16")
    assert checked.ok, checked
    assert any(note.startswith("it takes no float64: fn must return the shape") for note in checked.notes)
    assert checked.covered.dtypes == ("float32",)


# ---- functions that break the rules


def one(kind: str, found: fp.testing.QuantizerReport) -> str:
    (broken,) = found.broken
    assert broken.property == kind
    return broken.why


def test_a_function_that_raises_is_shown_with_the_input() -> None:
    def raises(x: Array) -> Array:
        if np.isnan(x).any():
            raise RuntimeError("no NaN, please")
        return fp.quantize(x, "e4m3")

    checked = report(raises)
    assert "fn raised RuntimeError('no NaN, please') on an array of float32" in one("runs", checked)
    assert checked.broken[0].paste == "raises(np.array([0x7F800001], np.uint32).view(np.float32))"


def test_a_function_of_vectors_alone_passes_with_a_note() -> None:
    def of_vectors(x: Array) -> Array:
        if x.ndim != 1:
            raise TypeError("vectors only")
        return fp.quantize(x, "e4m3")

    checked = report(of_vectors)
    assert checked.ok, checked
    assert any("it refuses shape (8, 377): fn raised TypeError('vectors only')" in note for note in checked.notes)


def test_an_axis_that_ascontiguousarray_adds_is_a_note() -> None:
    checked = report(lambda x: fp.quantize(np.ascontiguousarray(x), "e4m3"))
    assert checked.ok, checked
    assert "it refuses shape (): fn must return the shape of its input, (); got (1,)." in checked.notes


@pytest.mark.usefixtures("of_a_million")
@pytest.mark.parametrize("axes", [1, 2])
def test_a_path_for_multiples_of_64_is_visited(axes: int) -> None:
    def quantizer(x: Array) -> Array:
        values = fp.quantize(x, "e4m3")
        if x.ndim == axes and x.shape[-1] >= 128 and not x.shape[-1] % 64:
            values[..., 64:128] = fp.quantize(x[..., 64:128], "e4m3", rounding="toward_zero")
        return values

    checked = report(quantizer)
    assert {broken.property for broken in checked.broken} <= {"size", "batch"}
    assert not checked.ok


def test_another_shape_is_said() -> None:
    assert one("shape", report(lambda x: fp.quantize(x, "e4m3")[:-1])) == (
        "fn must return the shape of its input, (16,); got (15,)."
    )


def test_another_kind_of_result_is_said() -> None:
    assert one("dtype", report(lambda x: x > 0)) == "fn must return floats, or codes of E4M3; got bool."
    assert one("returns", report(lambda x: [[1], [1, 2]])).startswith("fn must return")


@in_turn("returned", ["None", "a generator", "a masked array"])
def test_what_is_no_array_is_said(returned: str) -> None:
    make: dict[str, Callable[[Array], Any]] = {
        "None": lambda x: None, "a generator": lambda x: (value for value in x),
        "a masked array": lambda x: np.ma.array(fp.quantize(x, "e4m3")),
    }  # fmt: skip
    said = f"fn must return an array of values or codes; got {'<generator' if 'gen' in returned else returned}"
    assert one("returns", report(make[returned])).startswith(said)


def test_codes_beyond_the_format_are_said() -> None:
    why = one("codes", report(lambda x: fp.encode(x, "e2m1") + np.uint8(0x20), "e2m1"))
    assert why.startswith("fn must return codes of E2M1, below 0x10; got 0x2")


def test_writing_into_the_input_is_shown_with_the_input() -> None:
    why = one("leaves its input alone", report(fp.testing.mutants.QUANTIZERS["writes"].make("e4m3")))
    assert why.endswith("The smallest input that shows it: x = inf (inf, 0x7F800000).")


def test_a_function_that_needs_minutes_is_refused_before_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "TOO_SLOW", 0.1)  # seconds; the usual one would have 1,024 values tried

    def slow(x: Array) -> Array:
        end = time.process_time() + 0.002 * x.size
        while time.process_time() < end:
            pass
        return fp.quantize(x, "e4m3")

    assert "make it take whole arrays" in one("fast enough", report(slow))


def test_a_price_of_each_call_is_not_taken_for_one_of_each_value() -> None:
    def dispatched(x: Array) -> Array:
        stop = time.process_time() + 4e-4
        while time.process_time() < stop:
            pass
        return x.astype(np.float16)

    CalledQuantizer(dispatched, fp.FP16).settle(
        np.ones(400_000, np.float32)
    )  # 64 values at this price would take minutes


def test_a_result_that_the_next_call_overwrites_is_a_fault() -> None:
    held: dict[tuple[int, ...], Array] = {}

    def again(x: Array) -> Array:
        values = np.asarray(fp.quantize(x, "e4m3"), np.float32)
        held.setdefault(x.shape, np.empty_like(values))[...] = values
        return held[x.shape]

    assert "overwrites the memory of the array that fn returned" in one("calls", report(again))


def test_a_result_that_depends_on_its_neighbours_is_said_before_what_one_array_shows() -> None:
    def lanes(x: Array) -> Array:
        values = np.array(fp.quantize(x, "e4m3"), np.float32)
        whole = x.size // 16 * 16
        nan = np.isnan(np.asarray(x).ravel()[:whole].reshape(-1, 16)).any(1)
        values.ravel()[:whole].reshape(-1, 16)[nan] = np.nan
        return values

    diagnosis = report(lanes).diagnosis
    assert diagnosis.startswith("results depend on more than the value: position, batch, size. In one array, ")


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="fn must be a function of an array"):
        fp.testing.check_quantizer(3, "e4m3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rounding must be one of"):
        fp.testing.check_quantizer(through_fp16, "e4m3", rounding="nearest")
    with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
        fp.testing.check_quantizer(through_fp16, "e4m3", rounding="stochastic")


@pytest.mark.parametrize("dtype", [np.uint64, np.int64, ">u8"])
def test_codes_of_64_bits_are_read_with_their_sign(dtype: Any) -> None:
    x = np.array([-1.5, 2.5, -0.0, -np.inf])
    got = read(fp.encode(x, "fp64").view(np.uint64).astype(dtype), x, fp.FP64)
    assert got.codes
    assert got.words.tolist() == x.view(np.uint64).tolist()
