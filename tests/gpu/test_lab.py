"""What validations are made of: input sets, and models as words that make schedules."""

from __future__ import annotations

import numpy as np
import pytest

import fpsim as fp
from fpsim.gpu.experiments.product_cases import random_start
from fpsim.gpu.lab.model import LibraryModel, ProductProblem, built, predict
from fpsim.testing import operands as inputs
from tests.kit.sweeps import in_turn


@pytest.mark.parametrize("words", ["open('x')", "cublas", "FLAT()", "cublas(__import__('os'))", "1 + 1", "cublas(",
                                  "-" * 50_000 + "1"])  # fmt: skip
def test_models_name_schedules_only(words: str) -> None:
    with pytest.raises(ValueError, match="must be FLAT or a call"):
        built(LibraryModel(words))


def test_models_change_schedules() -> None:
    found = built(LibraryModel("FLAT", slices=3, grain=32, scale_order="b_first", fused_bias=True))
    assert (found.slicing.count, found.slicing.grain, found.epilogue.scale_order) == (3, 32, "b_first")
    assert str(LibraryModel("FLAT", slices=3, grain=32)) == "FLAT with slices 3, grain 32"


def test_fp8_by_fp16_instructions_keeps_its_values() -> None:
    a, b = inputs.product_operands("wide", (16, 16, 256), ("e4m3", "e4m3"))
    problem = ProductProblem("", "hopper_e4m3_f32", a, b)
    wanted = fp.matmul(fp.decode(a, fp.E4M3).astype(np.float16), fp.decode(b, fp.E4M3).astype(np.float16),
                       accumulate="hopper_f16_f32")  # fmt: skip
    assert np.array_equal(predict(problem, LibraryModel("FLAT", "hopper_f16_f32")), wanted.view(np.uint32))
    reordered = predict(problem, LibraryModel("FLAT", "hopper_f16_f32", k_order="pairs"))
    assert (reordered != wanted.view(np.uint32)).any()


@in_turn("name", inputs.OPERAND_SETS)
@in_turn("pair", [("e4m3", "e5m2"), ("fp16", "fp16"), ("bf16", "bf16"), ("tf32", "tf32")])
def test_input_sets_are_functions_of_their_seed(name: str, pair: tuple[str, str]) -> None:
    shape = (8, 16, 64)
    a, b = inputs.product_operands(name, shape, pair, 3)
    again, _ = inputs.product_operands(name, shape, pair, 3)
    other, _ = inputs.product_operands(name, shape, pair, 4)
    assert a.shape == (8, 64)
    assert b.shape == (64, 16)
    assert np.array_equal(a, again)
    assert not np.array_equal(a, other)
    fmt = inputs.FORMATS[pair[0]]
    assert a.dtype == fmt.storage
    values = fp.decode(a, fmt, np.float64)
    if pair[0] == "tf32":
        assert not (a & 0x1FFF).any()
    if name != "special":
        assert np.isfinite(values).all()
    if name == "subnormal":
        assert (np.abs(values) < 2 * float(fp.finfo(fmt).smallest_normal)).all()
    if name == "positive":
        assert (values >= 0).all()


def test_special_inputs_hold_infinities_and_nans() -> None:
    a, _ = inputs.product_operands("special", (64, 16, 512), ("fp16", "fp16"))
    values = fp.decode(a, fp.FP16)
    assert np.isnan(values).any()
    assert np.isposinf(values).any()


@pytest.mark.parametrize("name", ["normal", "wide", "large", "special"])
def test_accumulators_start_at_floats(name: str) -> None:
    c = random_start(name, 4, 6)
    assert c is not None
    assert c.shape == (4, 6)
    assert c.dtype == np.float32
    assert random_start("zero", 4, 6) is None


def test_unknown_inputs_are_refused() -> None:
    with pytest.raises(ValueError, match="input set must be one of"):
        inputs.product_operands("gaussian", (1, 1, 1), ("e4m3", "e4m3"))
    with pytest.raises(ValueError, match="input set must be one of"):
        inputs.product_operands([], (1, 1, 1), ("e4m3", "e4m3"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pair must be the formats of a and b, such as .*; got 'e4m3'\."):
        inputs.product_operands("normal", (1, 1, 1), "e4m3")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"pair must be one of e4m3, e5m2, .*; got 'e4m2'\. Did you mean 'e4m3'\?"):
        inputs.product_operands("normal", (1, 1, 1), ("e4m3", "e4m2"))
    with pytest.raises(ValueError, match=r"shape must be \(M, N, K\); got 4\."):
        inputs.product_operands("normal", 4, ("e4m3", "e4m3"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start must be one of"):
        random_start("gaussian", 1, 1)
