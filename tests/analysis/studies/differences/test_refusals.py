"""Tests of the sentences with which `fp.analysis.diff` refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

import fpsim as fp

torch = pytest.importorskip("torch")

from tests.analysis.studies.differences.models import Uncopied, mean_square, mlp, rows  # noqa: E402
from tests.kit.sweeps import in_turn  # noqa: E402

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown word": ({"second": "H10"}, r"second must be one of torch, .*; got 'H10'. Did you mean 'H100'\?"),
    "an unknown unit": ({"second": "hopper_e4m3_f31"}, "Did you mean 'hopper_e4m3_f32'"),
    "an unknown library": ({"second": "H100 cuBLASS"}, "Did you mean 'H100 cuBLAS'"),
    "an unknown schedule": ({"second": "cublas('sm_10')"}, "sm_10"),
    "no arithmetic": ({"second": 7}, "second must be one of .*; got 7"),
    "no patterns": ({"second": {}}, "second must map shell patterns of layers to arithmetics; got {}"),
    "a pattern of no layer": ({"second": {"5*": "H100"}}, r"'5\*' must match a layer .* none of 3. Near it: '4'"),
    "an unknown recipe": ({"recipe": "DEEPSEEK_V4"}, "recipe must be one of .*; got 'DEEPSEEK_V4'. Did you mean"),
    "no recipe": ({"recipe": 3}, "recipe must be an fp.torch.LinearRecipe"),
    "a recipe without units": ({"recipe": "FP32"}, "a chip needs a recipe with products on matrix units; got recipe"),
    "a chip without the unit": ({"second": "A100"}, "layer '0': fprop on A100 needs a matrix unit .*recipe='BF16'"),
    "a unit for other operands": (
        {"second": "hopper_f16_f32", "recipe": "BF16"}, "layer '0': the unit of fprop must take the recipe's operands",
    ),
    "what cuBLAS refuses": (
        {"model": torch.nn.Sequential(torch.nn.Linear(24, 16)), "batch": torch.ones(32, 24), "first": "H100 cuBLAS"},
        "layer '0': cuBLAS takes FP8 only where N and K",
    ),
    "what DeepGEMM refuses": (
        {"second": "deepgemm('1d2d')", "recipe": "BF16"},
        r"takes FP8 .*; got hopper_bf16_f32\. Take another schedule, or a recipe= whose operands this one takes\.$",
    ),
    "a batch of another width": ({"batch": rows(4, 8)}, r"batch must be .*; got a tensor of float32, shape \(4, 8\)"),
    "too many arguments": ({"batch": (rows(), rows())}, "batch must be an input of the model; got .* raises: .*arg"),
    "an empty batch": ({"batch": rows(0)}, "batch must lead to products of numbers; got one .* empty or NaN"),
    "a batch of NaN": ({"batch": rows() * math.nan}, "batch must lead to products of numbers"),
    "an unknown keyword": ({"batch": {"rows": rows()}}, "batch must be an input of the model; got rows: a tensor"),
    "integers": ({"batch": rows().int()}, "layer '0' must multiply floats; got torch.int32 by torch.float32"),
    "no loss": ({"loss": 3}, r"loss must be a function of \(model, batch\) that returns the loss, .*; got 3"),
    "a loss of many": ({"loss": lambda model, x: model(x)}, "loss must return a tensor of one float"),
    "a loss of no weight": ({"loss": lambda model, x: (model(x) * 0).detach().sum()}, "loss must depend on weights"),
    "no logits": ({"logits": "all"}, "logits must be None, True, False or a function of the output; got 'all'"),
    "logits of integers": ({"logits": lambda y: y.argmax(-1)}, "logits must be a tensor of floats with two or more"),
    "no model": ({"model": "mlp"}, "model must be a torch.nn.Module; got 'mlp'"),
    "a model without products": ({"model": torch.nn.ReLU()}, "model must have a linear, convolution"),
    "no product that runs": (
        {"model": torch.nn.Bilinear(256, 256, 2), "batch": (rows(), rows())}, "must have a linear layer or a conv",
    ),
    "a model on meta": ({"model": torch.nn.Linear(256, 2, device="meta")}, "must have weights to be compared; got"),
    "a batch on meta": ({"batch": rows().to("meta")}, "model and batch must be on the CPU; got 'batch' on meta"),
    "a compiled model": ({"model": "compiled"}, "first must be 'torch' for a compiled"),
    "a model in one copy": ({"model": Uncopied(torch.nn.Linear(256, 2))}, "model must be one that copy.deepcopy"),
}  # fmt: skip


@in_turn("case", list(CASES))
def test_what_cannot_be_compared_is_refused_in_a_sentence(case: str) -> None:
    changes, wanted = CASES[case]
    arguments = {"model": mlp(), "batch": rows(), "first": "H100", "second": "B200", **changes}
    if arguments["model"] == "compiled":  # here, as torch then loads its compiler
        arguments["model"] = torch.compile(mlp(), backend="eager")
    rest = {name: arguments[name] for name in ("recipe", "loss", "logits") if name in arguments}
    with pytest.raises((ValueError, TypeError), match=wanted) as raised:
        fp.analysis.diff(*(arguments[name] for name in ("model", "batch", "first", "second")), **rest)
    assert "\n" not in str(raised.value)


def test_a_model_whose_copy_would_be_itself_is_refused() -> None:
    inner = mlp()
    outer = torch.nn.Sequential(inner)
    outer.forward = lambda x: inner(x)
    with pytest.raises(ValueError, match=r"must be one that copy.deepcopy copies whole"):
        fp.analysis.diff(outer, rows(), "H100", "B200", loss=mean_square)
    assert all(p.grad is None for p in inner.parameters())


def test_a_gpu_that_is_not_there_is_named() -> None:
    if fp.gpu.available():
        pytest.skip("a GPU is here")
    with pytest.raises(fp.gpu.GpuError, match="needs an NVIDIA GPU"):
        fp.analysis.diff(mlp(), rows(), "emulated", "gpu")


def test_a_refused_run_leaves_no_trace() -> None:
    from fpsim.torch.trace import is_watched

    model = mlp()
    with pytest.raises(ValueError, match="batch must be"):
        fp.analysis.diff(model, rows(4, 8), "H100", "B200", loss=mean_square)
    assert not is_watched()
    assert not any(module._forward_hooks for module in model.modules())
