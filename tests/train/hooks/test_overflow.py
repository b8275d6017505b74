"""The first Inf or NaN of a step, by name."""

import math

import pytest

import fpsim as fp

torch = pytest.importorskip("torch")
from fpsim.train.hooks.overflow import Overflows  # noqa: E402


def test_the_first_overflow_is_named() -> None:
    torch.manual_seed(0)
    recipe = fp.torch.LinearRecipe(grad_fmt="fp16")
    module = fp.torch.QuantLinear(32, 32, bias=False, recipe=recipe, name="up", backend="float32")
    head = torch.nn.Linear(32, 4, bias=False)
    model = {"up": module, "head": head}
    with Overflows(model) as overflows:
        (head(module(torch.ones(32, 32))).sum() * 1e30).backward()
    assert overflows.first == "up, wgrad: 1024 of 1024 values of its result are Inf or NaN"
    with Overflows(model) as overflows, torch.no_grad():
        head.weight[1] = math.nan
        head(module(torch.ones(32, 32)))
    assert overflows.first == "head, forwards: 32 of 128 values of its result are Inf or NaN"
    with Overflows(model) as overflows:
        module(torch.ones(2, 32))
    assert overflows.first == ""
    assert not module._forward_hooks
