"""Models compute the bits of what they were made of: NumPy's, torch's and others' sums and products of this machine."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.probe.candidates import AdderCandidate
from fpsim.probe.model import Model
from fpsim.schedules.schedule import FLAT
from fpsim.schedules.trees.tree import tree, unit_of
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import case, in_turn, sweep

FRESH = 5


def normal(seed: int, *shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng([77, seed]).standard_normal(shape).astype(dtype)


@in_turn("dtype", [np.float16, np.float32, np.float64])
@in_turn("n", [1, 7, 130, 1000])
def test_numpys_sum_is_predicted(dtype: Any, n: int) -> None:
    model = fp.probe.sum(np.sum, n, dtype)
    x = normal(0, 40, n, dtype=dtype)
    assert_bits_equal(model.sum(x), np.array([np.sum(row) for row in x]))


@in_turn("dtype", [np.float16, np.float32, np.float64])
@in_turn("n", [33, 300])
def test_numpys_dot_is_predicted(dtype: Any, n: int) -> None:
    model = fp.probe.dot(np.dot, n, dtype)
    a, b = normal(0, 40, n, dtype=dtype), normal(1, 40, n, dtype=dtype)
    assert_bits_equal(model.dot(a, b), np.array([np.dot(x, y) for x, y in zip(a, b, strict=True)]))


def predicts(model: Model, fn: Callable[..., Any], make: Callable[[int, tuple[int, int]], Any]) -> None:
    """A product of matrices as the model says it."""
    assert model.found, model.unknown
    for seed in range(FRESH):
        a, b = make(2 * seed, (16, model.n)), make(2 * seed + 1, (model.n, 16))
        assert_bits_equal(model.matmul(a, b), np.asarray(fn(a, b).float()).astype(model.out.dtype))


@sweep("lengths", (33, 600), (1, 2, 16, 100, 300, 600, 1100))
def test_torchs_products_are_predicted_per_length(lengths: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    predicted = 0
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for k in lengths:
            with case(dtype, k):
                model = fp.probe.matmul(torch.mm, k, a=dtype)
                if not model.found:  # a BLAS may add in a way that nobody has modelled, and the probe says so
                    assert model.unknown
                    continue
                predicted += 1
                predicts(model, torch.mm, lambda seed, shape, to=dtype: torch.from_numpy(normal(seed, *shape)).to(to))  # type: ignore[misc]
    assert predicted > 1.5 * len(lengths), "most products have a model on every processor that was met"


def test_a_function_of_tensors_gets_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def added(a: Any, b: Any) -> Any:
        assert type(a) is torch.Tensor
        return a[:, :1] * b[:1] + a[:, 1:] * b[1:]

    found, as_tensors = fp.probe.matmul(added, 2), fp.probe.matmul(added, 2, a=torch.float32)
    assert found.tree == as_tensors.tree == (0, 1)
    assert re.match(r"A product of matrices of 2 terms, seen in \d+ calls with tensors: ", found.explain())
    found.save(tmp_path / "model.json")
    assert fp.probe.load(tmp_path / "model.json").explain() == found.explain()
    assert "tensors" not in fp.probe.sum(np.sum, 4).explain()


@pytest.mark.parametrize("out", ["bf16", "fp16"])
def test_results_of_a_narrow_format_that_are_passed_in_float32_are_recognised(out: str, tmp_path: Path) -> None:
    """Found beside a GPU: functions of BF16 pass float32, for NumPy has no BF16, and had no model."""
    operand = {"bf16": "bf16", "fp16": "f16"}[out]

    def product(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate=f"hopper_{operand}_f32", out_fmt=out).astype(np.float32)

    model = fp.probe.matmul(product, 96, a=out, rows=4, columns=5)
    assert model.unit == f"hopper_{operand}_f32"
    assert "passed in float32" in model.explain()
    a, b = fp.testing.product_operands("wide", (6, 7, 96), (out, out), seed=3)
    assert_bits_equal(model.matmul(a, b), product(a.view(fp.format(out).dtype), b.view(fp.format(out).dtype)))
    model.save(tmp_path / "model.json")
    loaded = fp.probe.load(tmp_path / "model.json")
    assert loaded.explain() == model.explain()
    assert_bits_equal(loaded.matmul(a, b), model.matmul(a, b))


def test_results_that_are_narrow_for_some_operands_alone_have_no_model() -> None:
    def product(a: Any, b: Any) -> Any:
        sums = fp.matmul(a, b, accumulate="hopper_bf16_f32", out_fmt="bf16").astype(np.float32)
        return np.where(a[:, :1] == 0, sums * np.float32(1 + 2**-20), sums) - np.float32(0)

    assert not fp.probe.matmul(lambda a, b: np.flip(product(a, b)), 32, a="bf16", rows=4, columns=4).found


def test_torchs_sums_are_predicted() -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for n in (50, 700):
            with case(dtype, n):
                model = fp.probe.sum(torch.sum, n, dtype)
                x = torch.from_numpy(normal(0, 20, n)).to(dtype)
                want = np.array([float(torch.sum(row)) for row in x])
                assert_bits_equal(model.sum(x), want.astype(model.out.dtype))


def test_jaxs_products_are_predicted() -> None:
    jnp = pytest.importorskip("jax.numpy")
    for k in (64, 300):
        model = fp.probe.matmul(lambda a, b: np.asarray(jnp.dot(a, b)), k, a="float32", rows=64)
        assert model.found
        a, b = normal(0, 64, k), normal(1, k, 16)
        assert_bits_equal(model.matmul(a, b), np.asarray(jnp.dot(a, b)))


def test_onnxruntimes_products_are_predicted(tmp_path: Path) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    value, node = onnx.helper.make_tensor_value_info, onnx.helper.make_node("MatMul", ["a", "b"], ["y"])
    shapes = {"a": (16, 64), "b": (64, 16), "y": (16, 16)}
    infos = {name: value(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = onnx.helper.make_graph([node], "product", [infos["a"], infos["b"]], [infos["y"]])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    session = runtime.InferenceSession(made.SerializeToString())

    def fn(a: Any, b: Any) -> Any:
        return session.run(None, {"a": a, "b": b})[0]

    model = fp.probe.matmul(fn, 64)
    a, b = normal(0, 16, 64), normal(1, 64, 16)
    assert_bits_equal(model.matmul(a, b), fn(a, b))


def test_a_model_of_a_unit_runs_as_matmul_does() -> None:
    def fn(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)

    model = fp.probe.matmul(fn, 256, a="e4m3")
    a, b = (fp.cast(normal(i, *shape), "e4m3") for i, shape in enumerate(((70, 256), (256, 50))))
    assert_bits_equal(model.matmul(a, b), fn(a, b))
    assert_bits_equal(model.matmul(fp.encode(a, "e4m3"), fp.encode(b, "e4m3")), fn(a, b))
    assert_bits_equal(model.dot(a[:3], b[:, :3].T), np.diagonal(fn(a[:3], b[:, :3])))


def test_dots_of_many_rows_are_those_of_each() -> None:
    rows = {row: unit_of(row) for row in fp.schedules.ROWS if unit_of(row).a.name == "f16"}
    alone = [row for row, unit in rows.items() if tree(row, 600, n=1, accumulate=unit) != tree(row, 600)]
    assert alone  # a product of one column is added otherwise there
    for row in [*alone[:2], fp.schedules.cutlass_2xacc(128), FLAT]:
        with case(row):
            how = AdderCandidate(fp.unit("hopper_f16_f32"), row, fp.FP32)
            a, b = normal(0, 70, 600, dtype=np.float16), normal(1, 70, 600, dtype=np.float16)
            want = [how.matmul(x[None], y[:, None])[0, 0] for x, y in zip(a, b, strict=True)]
            assert_bits_equal(how.dot(a, b), np.array(want))


def test_products_by_the_model_of_a_dot_are_those_of_each_column() -> None:
    """With one column, cuBLAS's dot has two chains in each thread, and otherwise one."""

    def fn(a: Any, b: Any) -> Any:
        how = fp.schedules.cublas(family="dot")
        return fp.matmul(a[None], b[:, None], accumulate="hopper_f16_f32", schedule=how, strict=False)[0, 0]

    model = fp.probe.dot(fn, 300, np.float16)
    assert model.schedule == fp.schedules.cublas(family="dot")
    a, b = normal(0, 3, 300, dtype=np.float16), normal(1, 4, 300, dtype=np.float16).T
    assert_bits_equal(model.matmul(a, b), np.array([[fn(x, y) for y in b.T] for x in a]))
    assert model.matmul(a, b[:, :0]).shape == (3, 0)


@in_turn("out", [np.float32, np.float16])
def test_products_of_float64_may_give_narrower_results(out: Any) -> None:
    """Accumulators in the results' format cannot add such products."""
    model = fp.probe.dot(lambda a, b: out(np.cumsum(a * b)[-1]), 6, np.float64)
    assert (model.accumulator, model.out.dtype) == (fp.FP64, np.dtype(out))
    assert fp.probe.matmul(lambda a, b: (a @ b).astype(out), 6, a=np.float64).found


def test_a_chain_in_another_order_is_not_said_to_go_from_the_last_term() -> None:
    model = fp.probe.sum(lambda x: (((x[0] + x[1]) + x[4]) + x[3]) + x[2], 5)
    assert str(model).endswith("One chain adds its terms one step after the other, in another order than theirs.")


def test_a_model_of_a_product_runs_as_dot_and_sum() -> None:
    model = fp.probe.matmul(np.matmul, 24, rows=4, columns=4)
    a, b = normal(0, 4, 24), normal(1, 24, 4)
    assert_bits_equal(model.dot(a[0], b[:, 0]), (a @ b)[0, 0])
    assert_bits_equal(model.sum(a), (a @ np.ones((24, 4), np.float32))[:, 0])


@in_turn("which", ["tree", "unit", "mixed", "accumulator"])
def test_a_model_comes_back_from_its_file(which: str, tmp_path: Path) -> None:
    def product(a: Any, b: Any) -> Any:
        return fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)

    def mixed(x: Any) -> Any:
        return np.float32(np.float64(x[:5].cumsum()[-1]) + np.float64(x[5:].cumsum()[-1]))

    made = {
        "tree": lambda: fp.probe.dot(np.dot, 40), "unit": lambda: fp.probe.matmul(product, 256, a="e4m3"),
        "mixed": lambda: fp.probe.sum(mixed, 10),
        "accumulator": lambda: fp.probe.sum(lambda x: fp.sum(x, accumulate=fp.Pairwise("fp32")), 20),
    }  # fmt: skip
    model = made[which]()
    model.save(tmp_path / "model.json")
    again = fp.probe.load(tmp_path / "model.json")
    assert again.explain() == model.explain()
    assert (again.tree, again.names, again.traits) == (model.tree, model.names, model.traits)
    if which == "unit":
        a = fp.cast(normal(0, 8, 256), "e4m3")
        assert_bits_equal(again.matmul(a, a.T), product(a, a.T))
    elif which == "tree":
        a = normal(0, 8, 40)
        assert_bits_equal(again.dot(a, a[::-1]), model.dot(a, a[::-1]))
    else:
        x = normal(0, 8, model.n)
        assert_bits_equal(again.sum(x), model.sum(x))


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    model = '{"what": "fpsim model of a sum", "order": 5}'
    for text in ("", "{}", '{"what": "fpsim model of a sum"}', "[1]", model, "[" * 100_000):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(ValueError, match=r"must be a model that Model\.save wrote"):
            fp.probe.load(tmp_path / "x.json")


def test_trees_are_drawn() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    from matplotlib import pyplot

    for model in (
        fp.probe.sum(np.sum, 300), fp.probe.sum(lambda x: x[0] + x[1], 2),
        fp.probe.matmul(lambda a, b: fp.matmul(a, b, accumulate="volta_f16_f32"), 16, a="f16"),
    ):  # fmt: skip
        ax = model.plot()
        assert f"{model.n} terms" in ax.get_title(loc="left")
        ax.figure.set_dpi(20)  # few pixels to fill
        ax.figure.canvas.draw()
        pyplot.close("all")


def test_a_model_refuses_what_it_was_not_made_of() -> None:
    model = fp.probe.sum(np.sum, 12)
    with pytest.raises(ValueError, match=r"x must have 12 terms, the number that was probed; got shape \(13,\)"):
        model.sum(np.ones(13, np.float32))
    with pytest.raises(ValueError, match="x must hold FP32, which was probed; got int64"):
        model.sum([1] * 12)  # not taken for codes
    with pytest.raises(ValueError, match="x must hold FP32, which was probed; got float64"):
        model.sum(np.ones(12))
    with pytest.raises(ValueError, match="this is the model of a sum"):
        model.dot(np.ones(12, np.float32), np.ones(12, np.float32))
    product = fp.probe.matmul(np.matmul, 12, rows=2, columns=2)
    with pytest.raises(ValueError, match=r"b must be a matrix \(12, N\); got shape \(12,\)"):
        product.matmul(np.ones((2, 12), np.float32), np.ones(12, np.float32))


@in_turn("fmt", [fp.format("p3109_k8p4sf"), fp.Format("Wide", exponent_bits=10, mantissa_bits=5)])
def test_operands_of_a_format_without_a_dtype_are_probed_as_codes(fmt: fp.Format, tmp_path: Path) -> None:
    how = fp.Sequential("fp32")
    terms = fp.encode(normal(0, 3, 12), fmt)
    of_sum = fp.probe.sum(lambda x: fp.sum(x, accumulate=how, fmt=fmt), 12, dtype=fmt)
    assert "Sequential(FP32)" in of_sum.names
    assert_bits_equal(of_sum.sum(terms), fp.sum(terms, accumulate=how, axis=-1, fmt=fmt))
    of_dot = fp.probe.dot(lambda a, b: fp.dot(a, b, accumulate=how, fmt=fmt), 12, dtype=fmt)
    assert "Sequential(FP32)" in of_dot.names
    assert_bits_equal(of_dot.dot(terms, terms), fp.dot(terms, terms, accumulate=how, fmt=fmt))
    of_product = fp.probe.matmul(lambda a, b: fp.matmul(a, b, accumulate=how, fmt=fmt), 12, a=fmt)
    assert "Sequential(FP32)" in of_product.names
    assert_bits_equal(of_product.matmul(terms, terms.T), fp.matmul(terms, terms.T, accumulate=how, fmt=fmt))
    if fmt.name == "Wide":
        with pytest.raises(ValueError, match=r"a saved model names its formats; got Wide, which fp\.format does not"):
            of_product.save(tmp_path / "model.json")
    else:
        of_product.save(tmp_path / "model.json")
        assert fp.probe.load(tmp_path / "model.json").names == of_product.names


def test_the_short_name_of_a_sum_is_the_library_order_that_it_has(tmp_path: Path) -> None:
    model = fp.probe.sum(np.sum, 9)
    assert repr(model) == "Model(sum of 9 terms: the order of fp.schedules.numpy_sum())"
    model.save(tmp_path / "model.json")
    assert repr(fp.probe.load(tmp_path / "model.json")) == repr(model)
