"""The products of a layer as those of matrices: a linear layer's own, and those of a convolution's patches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils import parametrize

from fpsim.analysis.models.patches import (
    DIMENSIONS,
    Convolution,
    folded,
    gathered,
    gradient_rows,
    is_depthwise,
    matrices,
    padded,
    settings_of_layer,
    weights_of,
    with_settings,
)  # fmt: skip

Tensor = torch.Tensor
Part = tuple[Tensor, Tensor, Tensor | None]  # rows (tokens, K), a matrix (outputs, K) and its bias
CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


class Shape(Protocol):
    """How the operands of a layer become those of matrix products, and results what the layer gives."""

    groups: int

    def read(self, x: Tensor) -> Tensor:
        """What the layer's function reads of its input."""

    def exact(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output as torch computes it."""

    def parts(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Part]:
        """The operands of each product."""

    def gradients(self, dy: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
        """The gradient of each product's rows."""

    def output(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        """The output of what the products gave."""

    def input_gradient(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the input of those of the rows."""

    def weight_gradient(self, found: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        """The gradient of the weight of those of the matrices."""


class Linear:
    """One product of the rows of x."""

    groups = 1

    def read(self, x: Tensor) -> Tensor:
        return x

    def exact(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(x, weight, bias)

    def parts(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Part]:
        return [(x.reshape(-1, x.shape[-1]), weight, bias)]

    def gradients(self, dy: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
        return [dy.reshape(-1, dy.shape[-1])]

    def output(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return rows[0].reshape(*x.shape[:-1], weight.shape[0])

    def input_gradient(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return rows[0].reshape(x.shape)

    def weight_gradient(self, found: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return found[0]


class PatchProducts:
    """One product of the patches of each group.

    Args:
      layer: a torch.nn.Conv1d, Conv2d or Conv3d.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._settings = settings_of_layer(layer)
        self.groups = int(layer.groups)

    def _of(self, x: Tensor, weight: Tensor) -> Convolution:
        return with_settings(x, weight, self._settings)

    def read(self, x: Tensor) -> Tensor:
        return padded(self._layer, x)

    def exact(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer = self._layer
        func = list(DIMENSIONS)[len(layer.kernel_size) - 1]
        padding = layer.padding if layer.padding_mode == "zeros" else 0
        found: Tensor = func(x, weight, bias, layer.stride, padding, layer.dilation, layer.groups)
        return found

    def parts(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Part]:
        return matrices(self._of(x, weight)._replace(bias=bias))

    def gradients(self, dy: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
        return gradient_rows(dy, self._of(x, weight))

    def output(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return folded(rows, self._of(x, weight))

    def input_gradient(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return gathered(rows, self._of(x, weight))

    def weight_gradient(self, found: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return weights_of(found, self._of(x, weight))


def shape_of(layer: Any) -> Shape:
    """How a layer multiplies.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.shapes import shape_of
      >>> layer, x = torch.nn.Conv1d(2, 4, 3), torch.ones(1, 2, 8)
      >>> [(rows.shape, matrix.shape) for rows, matrix, _ in shape_of(layer).parts(x, layer.weight, None)]
      [(torch.Size([6, 6]), torch.Size([4, 6]))]
    """
    return PatchProducts(layer) if type(layer) in CONVOLUTIONS else Linear()


def sizes(parts: Sequence[Part], gradients: Sequence[Tensor]) -> tuple[int, int, int]:
    """How many values the products read: of rows, matrices and gradients of rows."""
    x, weight = sum(part[0].numel() for part in parts), sum(part[1].numel() for part in parts)
    return x, weight, sum(each.numel() for each in gradients)


def multiplies(layer: Any) -> bool:
    """Whether a layer's products are those of matrices that follow recipes."""
    if type(layer) in CONVOLUTIONS:
        return not is_depthwise(layer.weight, layer.groups)
    return type(layer) is torch.nn.Linear


def why_not(layer: Any) -> str:
    """Why a layer with weights stays exact; "" for other modules, and where it does not."""
    if isinstance(layer, (torch.nn.Embedding, torch.nn.EmbeddingBag)):
        return "an embedding looks rows up and multiplies nothing"
    if isinstance(layer, torch.nn.modules.conv._ConvTransposeNd):
        return "transposed convolutions stay exact"
    if type(layer) in CONVOLUTIONS and is_depthwise(layer.weight, layer.groups):
        return "a depthwise convolution multiplies no matrices"
    if isinstance(layer, (torch.nn.modules.rnn.RNNBase, torch.nn.modules.rnn.RNNCellBase)):
        return "recurrent layers stay exact"
    if isinstance(layer, torch.nn.Bilinear):
        return "bilinear layers stay exact"
    if isinstance(layer, torch.nn.MultiheadAttention):
        return "what torch.nn.MultiheadAttention multiplies inside stays exact"
    return "" if multiplies(layer) else _why_not_this_kind(layer)


def _why_not_this_kind(layer: Any) -> str:
    """Why a layer that is more than torch's linear layer or convolution stays exact; "" for other modules."""
    if not isinstance(layer, (torch.nn.Linear, *CONVOLUTIONS)) or type(layer) is NonDynamicallyQuantizableLinear:
        return ""  # the last is part of an attention, which says so
    if parametrize.is_parametrized(layer):
        return "what a parametrization makes of other tensors stays exact, until remove_parametrizations keeps it"
    return "a subclass of torch's layer may multiply otherwise"


def groups_of(model: Any, layers: Iterable[str]) -> dict[str, int]:
    """The groups of each of these layers that is a convolution."""
    found = {name: model.get_submodule(name) for name in layers}
    return {name: int(layer.groups) for name, layer in found.items() if type(layer) in CONVOLUTIONS}
