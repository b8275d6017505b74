"""fp.matmul_integer and fp.qlinear_matmul: the integers of onnx's reference evaluator and of onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.processor import IS_SUPPORTED, STATES, processor_state

Array = npt.NDArray[Any]
f32 = np.float32

SHAPES: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (
    ((4, 3), (3, 2)), ((1, 70), (70, 1)), ((17, 130), (130, 66)), ((3, 0), (0, 2)), ((0, 3), (3, 2)),
    ((2, 4, 3), (2, 3, 5)), ((2, 1, 4, 3), (3, 3, 5)), ((2, 4, 3), (3, 5)),
    ((3,), (3, 5)), ((4, 3), (3,)), ((3,), (3,)),
)  # fmt: skip
PAIRS = ((np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.uint8), (np.int8, np.int8))


def reference(operator: str, version: int, names: str, arrays: dict[str, Any]) -> Any:
    """Return the result of an operator by onnx's reference evaluator."""
    helper = pytest.importorskip("onnx").helper
    from onnx.reference import ReferenceEvaluator

    results: Any = ReferenceEvaluator(model(helper, operator, version, names, arrays)).run(None, arrays)
    return results[0]


def model(helper: Any, operator: str, version: int, names: str, arrays: dict[str, Any], out: Any = None) -> Any:
    """Return a model of one operator whose inputs are arrays."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in arrays.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(out or np.int32))
    result = helper.make_tensor_value_info("y", kind, None)
    node = helper.make_node(operator, [name if name in arrays else "" for name in names.split()], ["y"])
    graph = helper.make_graph([node], "g", inputs, [result])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10)


def any_integers(rng: np.random.Generator, dtype: Any, shape: tuple[int, ...]) -> Array:
    """Draw integers of the whole range of a dtype."""
    ends = np.iinfo(dtype)
    return rng.integers(ends.min, ends.max, shape, dtype, endpoint=True)


def points(rng: np.random.Generator, x: Array, axis: int, kind: str) -> Array:
    """Draw zero points: one, or one for each row (axis -1) or column (axis -2), with an axis of length 1."""
    if kind == "one" or x.ndim == 1:
        return any_integers(rng, x.dtype, ())
    shape = list(x.shape)
    shape[axis] = 1
    return any_integers(rng, x.dtype, tuple(shape))


@pytest.mark.parametrize("dtypes", PAIRS, ids=lambda pair: f"{pair[0].__name__} {pair[1].__name__}")
def test_matmul_integer_is_onnxs(dtypes: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(1)
    for of_a, of_b in SHAPES:
        arrays = {"a": any_integers(rng, dtypes[0], of_a), "b": any_integers(rng, dtypes[1], of_b)}
        for kind in ("none", "one", "each"):
            if kind != "none":
                arrays["p"], arrays["q"] = points(rng, arrays["a"], -1, kind), points(rng, arrays["b"], -2, kind)
            want = reference("MatMulInteger", 10, "a b p q", arrays)
            got = fp.matmul_integer(*arrays.values())
            assert got.dtype == np.int32
            assert_bits_equal(np.asarray(got), np.asarray(want, np.int32))


def test_a_vector_of_zero_points_is_one_per_row_or_column() -> None:
    # the operator's text; the reference evaluator subtracts a vector from the columns of a instead
    rng = np.random.default_rng(2)
    a, b = any_integers(rng, np.uint8, (4, 3)), any_integers(rng, np.int8, (3, 5))
    p, q = any_integers(rng, np.uint8, (4,)), any_integers(rng, np.int8, (5,))
    want = (a.astype(int) - p[:, None]) @ (b.astype(int) - q)
    assert fp.matmul_integer(a, b, p, q).tolist() == want.tolist()
    assert (
        fp.matmul_integer(a, b, a_zero_point=p[:1], b_zero_point=q).tolist()
        == ((a.astype(int) - int(p[0])) @ (b.astype(int) - q)).tolist()
    )


def test_long_sums_wrap_as_onnxs_do() -> None:
    a, b = np.zeros((1, 70_000), np.uint8), np.full((70_000, 1), 127, np.int8)
    arrays = {"a": a, "b": b, "p": np.array(255, np.uint8), "q": np.array(-128, np.int8)}
    want = reference("MatMulInteger", 10, "a b p q", arrays)
    assert_bits_equal(fp.matmul_integer(a, b, 255, -128), np.asarray(want))
    assert int(want[0, 0]) != -255 * 255 * 70_000


QLINEAR = "a s p b t q u r"


def quantised(rng: np.random.Generator, of_a: Any, of_b: Any, dtypes: tuple[Any, Any], kind: str) -> dict[str, Any]:
    """Draw the inputs of QLinearMatMul in their order, with results of which many are ties or saturate."""
    a, b = any_integers(rng, dtypes[0], of_a), any_integers(rng, dtypes[1], of_b)
    p, q = points(rng, a, -1, kind), points(rng, b, -2, kind)
    steps = np.array([0.5, 0.25, 2.0**-9, 0.0123], f32)
    s, t = rng.choice(steps, p.shape).astype(f32), rng.choice(steps, q.shape).astype(f32)
    u, r = np.array(rng.choice([0.5, 8, 100]), f32), any_integers(rng, dtypes[0], ())
    named = {"a": a, "s": s, "p": p, "b": b, "t": t, "q": q, "u": u, "r": r}
    return {name: np.asarray(x) for name, x in named.items()}


@pytest.mark.parametrize("dtypes", PAIRS, ids=lambda pair: f"{pair[0].__name__} {pair[1].__name__}")
def test_qlinear_matmul_is_onnxs(dtypes: tuple[Any, Any]) -> None:
    rng = np.random.default_rng(3)
    for of_a, of_b in SHAPES:
        for kind in ("one", "each") if min(len(of_a), len(of_b)) > 1 else ("one",):
            arrays = quantised(rng, of_a, of_b, dtypes, kind)
            want = reference("QLinearMatMul", 21, QLINEAR, arrays)
            got = fp.qlinear_matmul(*arrays.values())
            assert got.dtype == dtypes[0]
            assert_bits_equal(np.asarray(got), np.asarray(want))


def test_qlinear_matmul_of_half_scales_is_onnxs() -> None:
    rng = np.random.default_rng(4)
    arrays = quantised(rng, (5, 30), (30, 6), (np.uint8, np.int8), "each")
    halves = {name: x.astype(np.float16) if x.dtype == f32 else x for name, x in arrays.items()}
    assert_bits_equal(fp.qlinear_matmul(*halves.values()), reference("QLinearMatMul", 21, QLINEAR, halves))


@pytest.mark.parametrize("dtypes", PAIRS[:2], ids=lambda pair: f"{pair[0].__name__} {pair[1].__name__}")
def test_qlinear_matmul_is_onnxruntimes(dtypes: tuple[Any, Any]) -> None:
    helper, runtime = pytest.importorskip("onnx").helper, pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(5)
    for of_a, of_b in (((4, 3), (3, 2)), ((17, 130), (130, 66)), ((2, 4, 3), (3, 5))):
        arrays = quantised(rng, of_a, of_b, dtypes, "one")
        one = model(helper, "QLinearMatMul", 10, QLINEAR, arrays, dtypes[0])
        session = runtime.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])
        want = session.run(None, arrays)[0]
        assert_bits_equal(fp.qlinear_matmul(*arrays.values(), library="onnxruntime"), want)


def test_both_libraries_differ_in_ties_with_odd_zero_points() -> None:
    one = np.ones((1, 1), np.uint8)
    inputs = (one, f32(0.5), np.uint8(0), one, f32(1), np.uint8(0), f32(1), np.uint8(1))
    assert fp.qlinear_matmul(*inputs) == 2  # 0.5 + 1 is rounded to even
    assert fp.qlinear_matmul(*inputs, library="onnxruntime") == 1  # 0.5 is, and 1 is added


def test_without_a_zero_point_results_have_the_dtype_of_a() -> None:
    a, b = np.array([[-100, 4]], np.int8), np.array([[100], [3]], np.int8)
    assert fp.qlinear_matmul(a, 0.5, None, b, 0.5, None, 1.0).tolist() == [[-128]]
    assert fp.qlinear_matmul(a, 0.5, None, b, 0.5, None, 1.0).dtype == np.int8
    rows = fp.qlinear_matmul(a, [0.5], None, b, [0.5], None, [8.0], np.array([200], np.uint8))
    assert rows.tolist() == [[max(round((-10000 + 12) / 32) + 200, 0)]]
    assert rows.dtype == np.uint8


WRONG: Any = "torch"
A, B = np.ones((2, 3), np.uint8), np.ones((3, 4), np.int8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fp.matmul_integer(A, B[:2]), "must be operands of np.matmul; got"),
        (lambda: fp.matmul_integer(np.ones((2, 2, 3), np.uint8), np.ones((3, 3, 4), np.int8)), "operands of np.matmul"),
        (lambda: fp.matmul_integer(A, np.int8(1)), "operands of np.matmul"),
        (lambda: fp.matmul_integer(A.astype(f32), B), "a must be an array of int8 or uint8; got float32"),
        (lambda: fp.matmul_integer(A, B.astype(np.int32)), "b must be an array of int8 or uint8; got int32"),
        (lambda: fp.matmul_integer(A, B, 256), r"a_zero_point must lie in 0 .. 255, the range of uint8; got 256"),
        (lambda: fp.matmul_integer(A, B, -1), r"a_zero_point must lie in 0 .. 255, the range of uint8; got -1"),
        (
            lambda: fp.matmul_integer(A, B, None, 128),
            r"b_zero_point must lie in -128 .. 127, the range of int8; got 128",
        ),
        (lambda: fp.matmul_integer(A, B, 0.5), "a_zero_point must hold integers of uint8; got float64"),
        (lambda: fp.matmul_integer(A, B, np.zeros(3, np.uint8)), r"a_zero_point must be one number, .*\(2,\)"),
        (
            lambda: fp.matmul_integer(A, B, None, np.zeros((4, 1), np.int8)),
            r"b_zero_point must be one number, .*\(4,\)",
        ),
        (
            lambda: fp.matmul_integer(A[None], B, np.zeros((3, 2, 1), np.uint8)),
            r"a_zero_point must be one number, .*got \(3, 2, 1\) for \(1, 2, 3\)",
        ),
        (
            lambda: fp.qlinear_matmul(A[None], 1.0, None, B, 1.0, None, np.ones((3, 2, 1), f32)),
            r"y_scale must be one number, .*got \(3, 2, 1\) for \(1, 2, 4\)",
        ),
        (lambda: fp.qlinear_matmul(A, 1.0, None, B, 1.0, None, 1.0, library=WRONG), "library must be one of onnx"),
        (lambda: fp.qlinear_matmul(A, np.float64(1), None, B, 1.0, None, 1.0), "a_scale must be float32 or float16"),
        (
            lambda: fp.qlinear_matmul(A, 1.0, None, B, np.ones(3, f32), None, 1.0),
            r"b_scale must be one number, .*\(4,\)",
        ),
        (
            lambda: fp.qlinear_matmul(A, 1.0, None, B, 1.0, None, 1.0, 7),
            "y_zero_point must be an array of int8 or uint8",
        ),
    ],
)
def test_bad_input_says_what_was_wanted(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_scales_of_the_result_may_differ_along_the_axes_of_b() -> None:
    b = np.stack([B, 2 * B])
    y_scale, y_zero = np.array([1, 2], f32).reshape(2, 1, 1), np.array([3, 4], np.uint8).reshape(2, 1, 1)
    got = fp.qlinear_matmul(A, 1.0, None, b, 1.0, None, y_scale, y_zero)
    assert got.tolist() == [[[6] * 4] * 2, [[7] * 4] * 2]


@pytest.mark.skipif(not IS_SUPPORTED, reason="sets the state of x86 processors")
@pytest.mark.parametrize("state", STATES)
def test_the_state_of_the_processor_changes_nothing(state: str) -> None:
    a, b = np.ones((1, 3), np.int8), np.ones((3, 1), np.int8)
    tiny, less = f32(1e-40), f32(1e-41)
    for library in ("onnx", "onnxruntime"):
        with processor_state(STATES[state]):
            got = fp.qlinear_matmul(a, tiny, None, b, f32(1), None, less, library=library)
        assert got.tolist() == [[30]]
