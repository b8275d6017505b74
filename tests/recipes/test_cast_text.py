"""Casts as text: they are refused as an array would be, without one."""

from __future__ import annotations

from typing import Any

import numpy as np

import fpsim as fp
from fpsim.recipes.cast_text import spec_text
from fpsim.scaling import recipes as scalings
from fpsim.scaling.scaling import Scaling
from tests.kit.processes import python
from tests.kit.sweeps import in_turn

FORMATS: list[Any] = [
    fp.E4M3, fp.E5M2, fp.E2M1, fp.BF16, fp.FP16, fp.FP32, fp.E8M0, fp.INT8, fp.INT4, fp.UINT8, fp.LogFMT(8), fp.NF4,
    fp.HIF8, fp.HIF4, fp.IF4, fp.Format("tiny", 2, 1, bias=200),
]  # fmt: skip
SCALINGS = [value for value in vars(scalings).values() if isinstance(value, Scaling)]
OPTIONS: list[dict[str, Any]] = [
    {}, {"rounding": "toward_zero"}, {"rounding": "stochastic"}, {"overflow": "saturate"}, {"subnormals": "flush"},
]  # fmt: skip


def refusal(call: Any) -> str:
    """Return the message of the error that a call raises; "" if it raises none."""
    try:
        call()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


@in_turn("fmt", FORMATS)
def test_a_cast_is_refused_as_an_empty_array_is(fmt: Any) -> None:
    for scaling in (*SCALINGS, fp.scalings.MX.replace(block=(2, 2, 32)), fp.scalings.TENSOR.replace(symmetric=False)):
        for options in OPTIONS:
            drawn = {"seed": 0, **options}
            want = refusal(lambda: fp.encode_scaled(np.empty((0, 0), np.float32), fmt, scaling, **drawn))  # noqa: B023
            words = {"rounding": "nearest_even", "overflow": None, "subnormals": "keep", **options}
            got = refusal(lambda: spec_text(fmt, scaling, **words, random_bits=32))  # noqa: B023
            assert got == want, (fmt, scaling, options)


def test_recipes_load_without_numba() -> None:
    use = "fp.recipes.find('deepseek-v3'), fp.recipes.NVFP4.linear_of('up', 'dgrad', 0, 1)"
    assert python(f"import sys, fpsim as fp; {use}; print('numba' in sys.modules)").strip() == "False"
