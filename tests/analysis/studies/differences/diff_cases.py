"""Models that tests of fp.analysis.diff share."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch = pytest.importorskip("torch")
from fpsim.analysis.studies.differences.arithmetics import arithmetic  # noqa: E402
from fpsim.analysis.studies.differences.running import run  # noqa: E402
from fpsim.divergence.divergence import Divergence  # noqa: E402
from tests.analysis.studies.differences.models import mean_square  # noqa: E402

ft: Any = fp.torch


FP8, BF16 = ft.RECIPES["FP8_TENSOR"], ft.RECIPES["BF16"]


def diff(*args: Any, **keywords: Any) -> Any:
    return fp.analysis.diff(*args, **keywords)


def found_by(*args: Any, **keywords: Any) -> Any:
    divergence = diff(*args, **keywords)
    assert isinstance(divergence, Divergence)
    assert isinstance(divergence, fp.analysis.ModelDivergence)
    assert divergence.step is None
    return divergence


def inputs_of(model: Any, layer: str, batch: Any, recipe: Any = FP8) -> Any:
    """Return the inputs of a linear layer of a model whose layers are quantised and not watched."""
    twin = copy.deepcopy(model)
    ft.quantize_linears(twin, recipe)
    seen: list[Any] = []
    twin.get_submodule(layer).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        twin(batch)
    return seen[0].numpy()


def by_hand(x: Any, weight: Any, bias: Any, **how: Any) -> Any:
    """Compute a product in FP8 by `fp.matmul`, with a scale for each operand."""
    a, b = (fp.encode_scaled(operand, fp.E4M3, fp.scalings.TENSOR) for operand in (x, weight))
    vector = None if bias is None else bias.detach().numpy()
    return fp.matmul(a, b.transpose(), bias=vector, out_fmt="bf16", strict=False, **how).astype(np.float32)


def watched(model: Any, batch: Any, spec: Any, **keywords: Any) -> tuple[list[Any], Any]:
    """Return the products of a run, and its output."""
    products: list[Any] = []
    outcome = run(model, batch, arithmetic("first", spec, **keywords), mean_square, products.append)
    return products, outcome.output
