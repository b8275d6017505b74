"""Recordings of small linear models, and of the transformer that fp.train trains."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch: Any = pytest.importorskip("torch")
nn = torch.nn

INT8 = dict.fromkeys(("input_fmt", "weight_fmt", "grad_fmt"), "int8") | dict.fromkeys(
    ("input_scaling", "weight_scaling", "grad_scaling"), fp.scalings.TENSOR
)


def linears(*widths: int, seed: int = 0) -> Any:
    """Linear layers one after the other, without biases, weights normal and as large as their inputs ask for."""
    generator = torch.Generator().manual_seed(seed)
    layers = []
    for inputs, outputs in pairwise(widths):
        layers.append(nn.Linear(inputs, outputs, bias=False))
        with torch.no_grad():
            layers[-1].weight.normal_(0.0, inputs**-0.5, generator=generator)
    return nn.Sequential(*layers)


def recorded(model: Any, *batches: Any, gradients: Any = None, **options: Any) -> fp.analysis.Recording:
    """Make a recording of a step for each batch, with normal gradients of the output or given ones."""
    with fp.analysis.record(model, **{"keep": len(batches), "formats": (), **options}) as r:
        for i, x in enumerate(batches):
            model.zero_grad()
            y = model(x)
            if gradients is None:
                y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(100 + i)))
            else:
                y.backward(gradients[i])
            r.step()
    return r


def one_layer(x: Any, weight: Any, gradient: Any = None, **options: Any) -> fp.analysis.Recording:
    """Make the recording of a linear layer of given operands, arrays or tensors."""
    x, weight = torch.as_tensor(x), torch.as_tensor(weight)
    model = nn.Sequential(nn.Linear(weight.shape[1], weight.shape[0], bias=False))
    with torch.no_grad():
        model[0].weight = nn.Parameter(weight.clone())
    return recorded(model, x, gradients=None if gradient is None else [torch.as_tensor(gradient)], **options)


def normal(*shape: int, seed: int = 0) -> Any:
    """Draw normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def transformer(steps: int, change: Any = None, recipe: Any = None, seed: int = 0) -> fp.analysis.Recording:
    """Return the built-in transformer after some steps of float32, changed and quantised, and a batch of 1,024 tokens.

    The batch is that of `fp.train.probe`.

    The batch is that of `fp.train.gradient_probe`.
    """
    from fpsim.train import Settings, Trainer, recipes
    from fpsim.train.comparisons.gradient_probe import SCENARIOS, _batch, _trained

    trainer = Trainer(recipes.FP32, Settings(steps=max(steps, 1), seed=seed, batch=16, context=64, arithmetic="torch"))
    model = trainer.model
    model.load_state_dict(_trained(recipes.FP32, steps, seed, None))
    if change is not None:
        change(model)
    if recipe is not None:
        fp.torch.quantize_linears(model, recipe)
    batch = _batch(trainer, steps, SCENARIOS["plain"])
    with fp.analysis.record(model, keep=1, formats=()) as r:
        logits = model(batch.inputs)
        nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        r.step()
    return r
