"""Old names of arguments work, warn, and are refused beside the new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.budget.report import Budget
from fpsim.analysis.studies.budget.row import BudgetRow, Squares
from fpsim.analysis.studies.diagnosis.budget_text import from_text, to_text
from fpsim.deprecation import renamed_arguments


@renamed_arguments(out_format="out_fmt")
def product(a: int, *, out_fmt: str | None = None) -> tuple[int, str | None]:
    return a, out_fmt


def test_an_old_name_gives_the_same_result_with_a_warning_that_points_to_the_caller() -> None:
    with pytest.warns(DeprecationWarning, match=r"out_format= is now called out_fmt=") as warned:
        assert product(1, out_format="bf16") == (1, "bf16")  # type: ignore[call-arg]
    assert warned[0].filename == __file__


def test_both_names_are_refused() -> None:
    with pytest.raises(TypeError, match="out_fmt and its old name out_format must not both be given"):
        product(1, out_format="bf16", out_fmt="fp16")  # type: ignore[call-arg]


def test_the_new_name_does_not_warn(recwarn: pytest.WarningsRecorder) -> None:
    assert product(1, out_fmt="bf16") == (1, "bf16")
    assert not recwarn.list


X = np.full((16, 64), 0x38, np.uint8)
PROMISE: dict[str, Any] = {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "shapes": [(4, 4, 40)]}
SPLIT = fp.schedules.cublas("sm_90", split_k=2)
MUTANT = fp.testing.mutants.KERNELS["not_promoted"]


def kernel(a: Any, b: Any) -> Any:
    return fp.matmul(a, b, accumulate="hopper_e4m3_f32", out_fmt="bf16")


RENAMED: dict[str, Callable[..., Any]] = {
    "matmul": lambda **fmt: fp.matmul(X, X.T, accumulate="hopper_e4m3_f32", **fmt).tolist(),
    "tree": lambda **fmt: fp.schedules.tree(SPLIT, 300, **fmt),
    "explain": lambda **fmt: str(fp.schedules.explain(SPLIT, 16, 16, 300, **fmt)),
    "compare": lambda **fmt: str(fp.schedules.compare(SPLIT, fp.schedules.FLAT, 300, **fmt)),
    "check_kernel": lambda **fmt: fp.testing.check_kernel(kernel, **PROMISE, certificate=False, **fmt).ok,
    "discriminating_inputs": lambda **fmt: [str(x) for x in fp.testing.discriminating_inputs(**PROMISE, **fmt)],
    "ScheduledProduct": lambda **fmt: fp.analysis.ScheduledProduct(np.ones((64, 8), np.float32), **fmt).out_fmt,
    "mutants": lambda **fmt: MUTANT.breaks({"a": "e4m3", "accumulate": "hopper_e4m3_f32", **fmt}),
}


@pytest.mark.parametrize("name", RENAMED)
def test_out_format_is_the_old_name_of_out_fmt(name: str) -> None:
    want = RENAMED[name](out_fmt="bf16")
    with pytest.warns(DeprecationWarning, match=r"out_format= is now called out_fmt=") as warned:
        assert RENAMED[name](out_format="bf16") == want
    assert warned[0].filename == __file__
    if name != "mutants":
        with pytest.raises(TypeError, match="out_fmt and its old name out_format must not both be given"):
            RENAMED[name](out_fmt="bf16", out_format="bf16")


def test_the_old_name_of_a_field_warns_where_it_is_read() -> None:
    product = fp.analysis.ScheduledProduct(None, "hopper_bf16_f32", out_fmt="fp16")
    with pytest.warns(DeprecationWarning, match=r"ScheduledProduct.out_format is now called") as warned:
        assert product.out_format == "fp16"
    assert warned[0].filename == __file__


def test_a_saved_budget_is_read_by_the_old_name_too() -> None:
    squares = Squares(*[1.0] * len(Squares._fields))
    names = ("input", "weight"), ("E4M3", "E4M3"), "hopper_e4m3_f32", "FLAT", "BF16"
    budget = Budget((BudgetRow("layer", "fprop", (1, 1, 1), 1, *names, squares),), "FP8", "H100", "model", (0,), ())
    text = to_text(budget)
    assert from_text(text) == from_text(text.replace('"out_fmt"', '"out_format"')) == budget
    assert '"out_fmt"' in text
