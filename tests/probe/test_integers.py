"""Sums of integers: exact ones, those that wrap or saturate, at the end or on the way, are told and run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.matrix_units.catalogue import INTEGER_ROWS
from fpsim.probe.integers.model import IntegerModel
from fpsim.probe.integers.rules import IntegerRule
from tests.kit.sweeps import case, in_turn

i16, i32, i64 = np.int16, np.int32, np.int64


def clipped(x: Any, dtype: Any) -> Any:
    ends = np.iinfo(dtype)
    return np.clip(x, ends.min, ends.max)


def product(
    out: Any, group: int = 0, saturates: bool = False, inner: Any = None, backwards: bool = False
) -> Callable[[Any, Any], Any]:
    """Sums of `group` products, which saturate in `inner`, added up in `out`, where each sum of them may saturate."""

    def fn(a: Any, b: Any) -> Any:
        a, b = a.astype(i64), b.astype(i64)
        size = group or a.shape[1]
        total = np.zeros((a.shape[0], b.shape[1]), i64)
        starts = range(0, a.shape[1], size)
        for start in reversed(starts) if backwards else starts:
            part = a[:, start : start + size] @ b[start : start + size]
            total = total + (part if inner is None else clipped(part, inner))
            total = clipped(total, out) if saturates else total
        return total.astype(out)

    return fn


def drawn(dtype: Any, *shape: int) -> Any:
    rng = np.random.default_rng(shape)
    return rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype, endpoint=True)


@in_turn("a, b", [(np.int8, np.int8), (np.uint8, np.int8), (np.int8, np.uint8), (np.uint8, np.uint8)])
def test_an_exact_product_of_bytes_is_told_with_what_it_cannot_show(a: Any, b: Any) -> None:
    model = fp.probe.matmul(product(i32), 64, a=a, b=b)
    names = np.dtype(a).name, np.dtype(b).name
    assert (model.found, model.names, model.saturates) == (True, ("exact sums in int32",), None)
    assert (tuple(each.integer for each in model.operands), model.tree) == (names, None)
    assert model.unknown == ("the result of sums beyond int32, which 64 terms do not reach",)
    x, y = drawn(a, 40, 64), drawn(b, 64, 30)
    assert np.array_equal(model.matmul(x, y), product(i32)(x, y))
    assert model.matmul(x, y).dtype == i32
    assert np.array_equal(model.dot(x[:5], y.T[:5]), np.diagonal(product(i32)(x[:5], y[:, :5])))


KERNELS: dict[str, tuple[Any, Any, Callable[[Any, Any], Any]]] = {
    "exact sums that wrap in int32 at the end": (i16, i16, product(i32)),
    "exact sums that saturate in int32 at the end": (i16, i16, product(i32, saturates=True)),
    "sums that saturate in int32 after every 4 terms": (i16, i16, product(i32, 4, saturates=True)),
    "sums that saturate in int32 after every term, from the last to the first": (
        i16, i16, product(i32, 1, saturates=True, backwards=True)),
    "exact sums that wrap in int16 at the end": (np.int8, np.int8, product(i16)),
    "sums that saturate in int16 after every 2 terms": (np.uint8, np.int8, product(i16, 2, saturates=True)),
    "sums of 2 terms that saturate in int16, added up in int32": (
        np.uint8, np.int8, product(i32, 2, inner=i16)),
    "products that saturate in int16, added up in int32": (
        np.uint8, np.uint8, product(i32, 1, inner=i16)),
    "exact sums that wrap in int64 at the end": (i32, i32, lambda a, b: a.astype(i64) @ b.astype(i64)),
    "exact sums that wrap in uint8 at the end": (np.uint8, np.uint8, np.matmul),
}  # fmt: skip


@in_turn("name", KERNELS)
def test_sums_that_wrap_or_saturate_are_told(name: str) -> None:
    a, b, fn = KERNELS[name]
    model = fp.probe.matmul(fn, 20, a=a, b=b, rows=8, columns=8)
    assert model.names == (name,)
    assert model.unknown == () or name.startswith(("sums of 2", "products"))
    assert model.saturates in (None, "saturate in int" in name.split("added")[-1])
    for seed in range(3):
        x, y = drawn(a, 30 + seed, 20), drawn(b, 20, 30 + seed)
        assert np.array_equal(model.matmul(x, y), fn(x, y))


def test_sums_and_dots_of_integers_are_probed() -> None:
    model = fp.probe.sum(lambda x: np.sum(x, dtype=np.int8), 30, np.int8)
    assert model.names == ("exact sums that wrap in int8 at the end",)
    x = drawn(np.int8, 50, 30)
    assert np.array_equal(model.sum(x), [np.sum(row, dtype=np.int8) for row in x])
    dot = fp.probe.dot(lambda a, b: i32(a.astype(i32) @ b.astype(i32)), 30, a="uint8", b="int8")
    assert dot.names == ("exact sums in int32",)
    with pytest.raises(ValueError, match="this is the model of a sum"):
        model.dot(x, x)


def test_integers_that_are_no_exact_sums_are_declined() -> None:
    def rounded(a: Any, b: Any) -> Any:
        return (a.astype(np.float16) @ b.astype(np.float16)).astype(i32)

    def with_zero_point(a: Any, b: Any) -> Any:
        return (a.astype(i32) - 3) @ b.astype(i32)

    for fn in (rounded, with_zero_point, lambda a, b: np.maximum(product(i32)(a, b), 0)):
        with case(fn), np.errstate(all="ignore"):
            model = fp.probe.matmul(fn, 40, a=np.uint8, b=np.int8)
            assert (model.found, model.names) == (False, ())
            assert "nothing that fits" in str(model)
            with pytest.raises(ValueError, match="this model does not run: the arithmetic"):
                model.matmul(drawn(np.uint8, 2, 40), drawn(np.int8, 40, 2))


def test_what_is_no_box_of_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="a and b must both be integers, or both be floats"):
        fp.probe.matmul(np.matmul, 8, a=np.int8, b=np.float32)
    with pytest.raises(TypeError, match="fn must return integers, because it takes integers; got float32"):
        fp.probe.matmul(lambda a, b: (a @ b) * np.float32(0.5), 8, a=np.int8)
    with pytest.raises(ValueError, match="a must hold int8, which was probed; got int16"):
        fp.probe.matmul(product(i32), 8, a=np.int8).matmul(drawn(i16, 2, 8), drawn(np.int8, 8, 2))


def test_checks_of_kernels_take_no_integers() -> None:
    with pytest.raises(ValueError, match="a must be a float format; got 'int8'"):
        fp.testing.check_kernel(np.matmul, a="int8", accumulate=fp.Sequential("fp32"))
    model = fp.probe.matmul(product(i32), 8, a=np.int8)
    with pytest.raises(ValueError, match="accumulate must be a model of floats; got IntegerModel"):
        fp.testing.check_kernel(np.matmul, a="fp16", accumulate=model)


def test_a_model_of_integers_comes_back_from_its_file(tmp_path: Path) -> None:
    model = fp.probe.matmul(product(i32, 2, inner=i16), 16, a=np.uint8, b=np.int8)
    model.save(tmp_path / "model.json")
    again = fp.probe.load(tmp_path / "model.json")
    assert (again.explain(), again.names) == (model.explain(), model.names)
    x, y = drawn(np.uint8, 9, 16), drawn(np.int8, 16, 9)
    assert np.array_equal(again.matmul(x, y), model.matmul(x, y))


def test_lengths_of_integers_are_swept() -> None:
    models = fp.probe.sweep(product(i16), [4, 9], a=np.int8)
    assert [models[k].names for k in models] == [("exact sums that wrap in int16 at the end",)] * 2
    assert "exact sums that wrap in int16" in models.explain()


def test_tensors_of_integers_are_passed() -> None:
    torch = pytest.importorskip("torch")

    def fn(a: Any, b: Any) -> Any:
        assert (a.dtype, b.dtype) == (torch.uint8, torch.int8)
        return torch.from_numpy(product(i32)(a.numpy(), b.numpy()))

    assert fp.probe.matmul(fn, 12, a=torch.uint8, b=torch.int8).names == ("exact sums in int32",)


@pytest.mark.parametrize("name", ["x86_vnni_u8xs8_s32_sat", "hopper_s8_s32", "arm_u8_u32"])
def test_units_of_integers_are_named(name: str) -> None:
    unit = INTEGER_ROWS[name]

    def multiply(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate=unit)

    model = fp.probe.matmul(multiply, 40, a=unit.a.dtype, b=unit.b.dtype)
    assert name in model.units  # no sum of 40 products leaves the range, where others would differ
    assert model.unit == model.units[0]
    assert f"It has the bits of {model.unit}" in str(model)
    assert {(INTEGER_ROWS[other].a, INTEGER_ROWS[other].b) for other in model.units} == {(unit.a, unit.b)}


def test_units_that_saturate_are_told_by_their_steps() -> None:
    call = fp.probe.matmul(lambda a, b: a.astype(i32) @ b.astype(i32), 40, a=np.uint8, b=np.int8).call
    of_32 = {f"{arch}_u8xs8_s32_sat" for arch in ("ampere", "ada", "hopper", "blackwell")}
    for group, want in ((4, {"x86_vnni_u8xs8_s32_sat"}), (32, of_32), (2, set()), (0, set())):
        rule = IntegerRule("int32", group, saturates=True)
        assert set(IntegerModel(call, "int32", rules=(rule,), reachable=True).units) == want
    wraps = IntegerModel(call, "int32", rules=(IntegerRule("int32"),), reachable=True)
    assert {"x86_amx_u8xs8_s32", "hopper_u8xs8_s32"} <= set(wraps.units)
    assert not [name for name in wraps.units if name.endswith("_sat")]


def test_single_sums_of_long_integers_are_computed() -> None:
    of_sum = fp.probe.sum(np.sum, 8, dtype=i64)
    assert of_sum.sum(np.arange(8)) == of_sum.sum(np.arange(8).astype(">i8")) == 28
    assert of_sum.sum(np.full(8, 2**62)) == 0  # 2^65 modulo 2^64
    of_dot = fp.probe.dot(lambda a, b: np.sum(a.astype(i64) * b), 8, dtype=i32)
    x = np.arange(8, dtype=i32)
    assert (of_dot.dot(x, x), of_dot.dot(x, x).dtype) == (140, i64)
