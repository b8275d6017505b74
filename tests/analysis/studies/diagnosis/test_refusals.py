"""Tests that a model which cannot be diagnosed is refused in one sentence, before the long work."""

from __future__ import annotations

from typing import Any

import pytest

import fpsim as fp
from tests.analysis.studies.diagnosis.models import healthy, nn, quiet, squared, torch


def refused(error: type[Exception], match: str, *, of: Any = None, **changes: Any) -> None:
    model, batches = healthy()
    arguments = {"model": model if of is None else of, "batches": batches, "loss": squared} | changes
    first = [arguments.pop(name) for name in ("model", "batches", "loss")]
    with pytest.raises(error, match=match) as raised:
        fp.analysis.diagnose(*first, progress=quiet, **arguments)
    assert "\n" not in str(raised.value)


def test_models() -> None:
    refused(TypeError, r"model must be a torch.nn.Module; got 3", of=3)
    refused(ValueError, r"model must have a torch.nn.Linear, .* got Sequential with none", of=nn.Sequential(nn.ReLU()))
    with torch.device("meta"):
        refused(
            ValueError,
            r"model must have weights to be measured; got '0.weight' on the meta device",
            of=nn.Sequential(nn.Linear(8, 8)),
        )


def test_losses_and_batches() -> None:
    refused(TypeError, r"loss must be a function of \(model, batch\)", loss="mse")
    refused(TypeError, r"for batches\[0\] got .* which is not a tensor", loss=lambda m, b: squared(m, b).item())
    refused(ValueError, r"for batches\[0\] got a tensor of shape \(128, 128\). Return its mean", loss=lambda m, b: m(b))
    refused(ValueError, r"for batches\[0\] got one without", loss=lambda m, b: squared(m, b).detach())
    refused(TypeError, r"batches must be a list", batches=torch.ones(2, 128))
    refused(ValueError, r"batches must hold one batch or more", batches=[])
    refused(ValueError, r"batches must fit the model and .*; batches\[0\] raises", batches=[torch.ones(2, 3)])


def test_arguments_in_another_order() -> None:
    model, batches = healthy()
    orders = [
        ((model, squared, batches), "Sequential, function, list"),
        ((batches, model, nn.MSELoss()), "list, Sequential, MSELoss"),
        ((squared, batches, model), "function, list, Sequential"),
    ]
    for arguments, said in orders:
        sentence = rf"arguments must be \(model, batches, loss\), in this order; got {said}\. Swap them"
        with pytest.raises(TypeError, match=sentence):
            fp.analysis.diagnose(*arguments, progress=quiet)
        with pytest.raises(TypeError, match=sentence):
            fp.analysis.sensitivity(*arguments, recipes="MXFP8", progress=quiet)


def test_words_and_numbers() -> None:
    refused(ValueError, r"layers must match a linear layer .*Near it: '4', '2', '0'", layers="blocks.*")
    refused(ValueError, r"recipe must be one of .* got 'FP9'", recipes=["FP9"])
    refused(ValueError, r"on must be one of .* got 'H10'. Did you mean 'H100'", on="H10")
    refused(
        ValueError, r"recipes must be ones that the hardware can run; got FP8_TENSOR: .*ampere has none", on="A100",
        recipes="FP8_TENSOR",
    )  # fmt: skip
    for name in ("limit", "bits"):
        refused(TypeError, rf"{name} must be a number; got 'x'", **{name: "x"})
        refused(ValueError, rf"{name} must be a positive number; got 0", **{name: 0})
        refused(ValueError, rf"{name} must be a positive number; got nan", **{name: float("nan")})
    refused(TypeError, r"out must be a text or a pathlib.Path; got 3", out=3)
    refused(TypeError, r"seed must be an integer", seed="x")
