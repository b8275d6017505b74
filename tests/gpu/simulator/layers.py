"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: quantised layers with backend="gpu".

Results go to the file that is named; `tests.gpu.test_device` compares them with those of the CPU.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import numpy.typing as npt

import fpsim as fp

Array = npt.NDArray[Any]
# recipe: tokens, inputs, outputs; block scales of 128 want as many inputs
EVERY = {
    "BF16": (4, 32, 8), "FP16": (4, 32, 8), "FP8_TENSOR": (4, 32, 8), "DEEPSEEK_V3": (2, 128, 4), "MXFP8": (32, 32, 32),
    "NVFP4": (16, 32, 16),
}  # fmt: skip
# the same with fewer tokens and outputs, which leave MXFP8 no gradients
SOME = {name: (2, *sizes[1:]) for name, sizes in EVERY.items()} | {"MXFP8": (2, 32, 4), "NVFP4": (16, 16, 16)}


def results(name: str, sizes: tuple[int, int, int], backend: str) -> dict[str, Array]:
    """y of a layer with a bias, and both gradients where all three products fit."""
    torch: Any = importlib.import_module("torch")
    tokens, inputs, outputs = sizes
    rng = np.random.default_rng([tokens, inputs])

    def draw(*shape: int) -> Any:
        return torch.from_numpy(np.asarray(rng.standard_normal(shape), np.float32))

    layer: Any = fp.torch.QuantLinear(inputs, outputs, recipe=fp.torch.RECIPES[name], name=name, backend=backend)
    with torch.no_grad():
        layer.weight.copy_(draw(outputs, inputs))
        layer.bias.copy_(draw(outputs))
    x = draw(tokens, inputs).requires_grad_()
    y = layer(x)
    found = {"y": y}
    if name != "DEEPSEEK_V3" and (name != "MXFP8" or tokens == 32):
        found["dx"], found["dw"] = torch.autograd.grad(y, (x, layer.weight), draw(tokens, outputs))
    return {f"{name} {key}": value.detach().numpy() for key, value in found.items()}


def simulated(every: bool) -> dict[str, Array]:
    """Every result, by name."""
    cases = EVERY if every else SOME
    return {key: value for name in cases for key, value in results(name, cases[name], "gpu").items()}


def main(file: str, every: str) -> None:
    """Write some or every result to a file."""
    np.savez(file, **simulated(every == "every"))  # type: ignore[arg-type]
