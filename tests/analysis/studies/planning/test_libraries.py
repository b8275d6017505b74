"""Settings of libraries: torchao's are made by the installed torchao, what cannot be expressed is said."""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import fpsim as fp
from fpsim.analysis.studies.planning.libraries import settings_of
from fpsim.analysis.studies.planning.product_kinds import kind_of
from tests.kit.sweeps import in_turn

torch: Any = pytest.importorskip("torch")
RECIPES = dict(fp.torch.RECIPES) | {
    "ROWS": fp.torch.LinearRecipe("e4m3", "e4m3", "e4m3", fp.scalings.ROW, fp.scalings.ROW, fp.scalings.ROW),
    "ROWS_POW2": fp.torch.LinearRecipe(
        "e4m3", "e4m3", "e4m3", fp.scalings.ROW_POW2, fp.scalings.ROW_POW2, fp.scalings.ROW_POW2
    ),
    "MX_FLOOR": fp.torch.LinearRecipe("e4m3", "e4m3", "e4m3", fp.scalings.MX, fp.scalings.MX, fp.scalings.MX),
    "INT8": fp.torch.LinearRecipe("int8", "int8", None, fp.scalings.ROW, fp.scalings.ROW),
}


class Row(NamedTuple):
    layer: str
    product: str
    recipe: str


def said(**products: str) -> tuple[Any, Any]:
    """Return the settings of both libraries for a layer."""
    rows = [Row("layer", product, name) for product, name in products.items()]
    return settings_of(rows, RECIPES, lambda layers, name: f"{name} loses.")  # type: ignore[return-value]


def all_in(name: str) -> Mapping[str, str]:
    return dict.fromkeys(("fprop", "dgrad", "wgrad"), name)


EXPRESSED = [
    all_in("FP8_TENSOR"), all_in("TE_HYBRID"), all_in("ROWS"), all_in("ROWS_POW2"), all_in("DEEPSEEK_V3"),
    all_in("MXFP8"), all_in("MX_FLOOR"), all_in("NVFP4"), {"fprop": "FP8_TENSOR", "wgrad": "FP8_TENSOR"},
    {"fprop": "FP8_TENSOR", "dgrad": "FP8_TENSOR", "wgrad": "BF16"},
    {"fprop": "FP32", "dgrad": "TE_HYBRID", "wgrad": "TE_HYBRID"},
    {"fprop": "ROWS", "dgrad": "BF16", "wgrad": "BF16"}, {"fprop": "MXFP8", "dgrad": "MXFP8", "wgrad": "BF16"},
    {"fprop": "MXFP8"}, {"fprop": "TE_HYBRID"},
]  # fmt: skip


@in_turn("products", EXPRESSED)
def test_the_settings_of_torchao_are_there(products: Mapping[str, str]) -> None:
    how = said(**products)[0].how
    match = re.fullmatch(r"\w+\(model, (?:config=)?(.*\)), (?:filter_fn|module_filter_fn=\.{3})\), of (\S+)", how)
    assert match is not None
    call, module = match.groups()
    name = call.partition("(")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torchao")
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        if module.endswith("blockwise_fp8_training.linear"):  # it needs triton to be imported
            assert f"class {name}(" in Path(spec.origin).read_text()
            return
        config = eval(call, vars(importlib.import_module(module)) | {"torch": torch})
    assert type(config).__name__ == name


def test_an_operand_with_two_formats_is_not_expressed() -> None:
    setting = said(fprop="BF16", dgrad="FP8_TENSOR", wgrad="TE_HYBRID")[0]  # gradients in E4M3 and in E5M2
    assert setting.how == ""


def test_float8_linear_keeps_products_in_high_precision() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        float8 = pytest.importorskip("torchao.float8")
    how = said(fprop="FP8_TENSOR", dgrad="BF16", wgrad="BF16")[0].how
    config = eval(
        how[how.index("Float8LinearConfig") : how.index(", module_filter_fn")], vars(float8) | {"torch": torch}
    )
    off = float8.ScalingType.DISABLED
    disabled = {name for name in vars(config) if name.startswith("cast") and getattr(config, name).scaling_type is off}
    assert disabled == {
        "cast_config_grad_output", "cast_config_grad_output_for_grad_weight", "cast_config_input_for_grad_weight",
        "cast_config_weight_for_grad_input",
    }  # fmt: skip
    assert config.gemm_config_output.use_fast_accum is False  # the recipe promotes


def test_transformer_engine_has_its_recipes_in_words() -> None:
    def how(**products: str) -> str:
        return str(said(**products)[1].how)

    current = "Float8CurrentScaling(fp8_format=Format.HYBRID)"
    assert how(**all_in("TE_HYBRID")) == f"te.autocast(recipe={current}) around the layers"
    assert "fp8_gemm_fprop=MMParams(use_split_accumulator=True)" in how(**all_in("FP8_TENSOR"))
    assert "DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=1024, amax_compute_algo='max', margin=0)" in how(
        **all_in("TE_DELAYED")
    )
    assert "Float8BlockScaling()" in how(**all_in("DEEPSEEK_V3"))
    assert "MXFP8BlockScaling()" in how(**all_in("MXFP8"))
    assert "NVFP4BlockScaling()" in how(**all_in("NVFP4"))
    assert "MXFP8BlockScaling(backward_override='high_precision')" in how(fprop="MXFP8", dgrad="BF16", wgrad="BF16")


@pytest.mark.parametrize(
    "products",
    [
        all_in("INT8"), all_in("FP8_RAW"), {"fprop": "NVFP4", "dgrad": "MXFP8", "wgrad": "MXFP8"},
        {"fprop": "MXFP8", "dgrad": "BF16", "wgrad": "MXFP8"},
    ],
)  # fmt: skip
def test_what_cannot_be_expressed_says_what_is_lost(products: Mapping[str, str]) -> None:
    for setting in said(**products):
        assert setting.how == ""
        assert "The library cannot combine fprop in" in setting.differs
        assert setting.differs.endswith("loses.")
        assert "no setting" in str(setting)


def test_sixteen_bits_are_left_to_torch() -> None:
    assert [setting.how for setting in said(**all_in("BF16"))] == 2 * [
        "leave the layers out, under torch.autocast('cuda', torch.bfloat16)"
    ]
    assert said(**all_in("FP32"))[0].how == "leave the layers out"


def test_kinds_are_told_by_what_a_product_reads() -> None:
    for name, product, kind in (("ROWS", "dgrad", "rows"), ("MX_FLOOR", "fprop", "mxfp8"), ("INT8", "fprop", "other")):
        assert kind_of(RECIPES[name], product) == kind
