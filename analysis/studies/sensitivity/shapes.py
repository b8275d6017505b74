"""The matrix products of a layer: a linear layer's own, or the products of a convolution's patches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
from fpsim.torch.linear import QuantLinear
from fpsim.torch.plan import plan_from

Tensor = torch.Tensor
Part = tuple[Tensor, Tensor, Tensor | None]  # rows (tokens, K), matrix (outputs, K) and bias of one product
CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


class LinearProducts:
    """The converter between the tensors of a linear layer and the matrices of its matrix product.

    The methods' x, weight and bias are the layer's own operands; dy is the gradient of its output.

    Attributes:
      groups: number of matrix products, each of rows (M, K) by the transpose of a weight matrix (N, K): 1 for a linear
        layer, and one for each group of channels for a convolution.
    """

    groups = 1

    def read(self, x: Tensor) -> Tensor:
        """Return the layer's input x, padded if the layer is a convolution that pads with other values than zeros.

        The other methods expect an input padded in this way.
        """
        return x

    def exact(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the layer's output for the input x and the weight, computed by torch's own function; the bias, or
        None, is added."""
        return functional.linear(x, weight, bias)

    def parts(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Part]:
        """Return (rows (M, K), weight matrix (N, K), bias or None) of the layer's matrix product for each group.

        `x`, `weight`, `bias`: the layer's operands; the bias may be None."""
        return [(x.reshape(-1, x.shape[-1]), weight, bias)]

    def gradients(self, dy: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
        """Return the gradient (M, N) of each matrix product's result.

        `dy`: the gradient of the layer's output. `x`, `weight`: the layer's input and weight."""
        return [dy.reshape(-1, dy.shape[-1])]

    def output(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        """Return the layer's output, made from the result (M, N) of each matrix product in `rows`.

        `x`, `weight`: the layer's input and weight."""
        return rows[0].reshape(*x.shape[:-1], weight.shape[0])

    def input_gradient(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the layer's input.

        `x`, `weight`: the layer's input and weight. `rows`: for each matrix product, the gradient of its left operand,
        (M, K).
        """
        return rows[0].reshape(x.shape)

    def weight_gradient(self, matrices: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        """Return the gradient of the layer's weight.

        `x`, `weight`: the layer's input and weight. `matrices`: for each matrix product, the gradient of its weight
        matrix, (N, K).
        """
        return matrices[0]


class PatchProducts(LinearProducts):
    """The converter between the tensors of a convolution and the matrices of its matrix products of patches.

    Args:
      layer: a torch.nn.Conv1d, Conv2d or Conv3d.
    """

    def __init__(self, layer: Any) -> None:
        self._layer = layer
        self._settings = settings_of_layer(layer)
        self.groups = int(layer.groups)

    def _of(self, x: Tensor, weight: Tensor) -> Convolution:
        """Return the convolution of x by `weight`, both in torch's shapes, with the layer's stride, padding, dilation
        and groups."""
        return with_settings(x, weight, self._settings)

    def read(self, x: Tensor) -> Tensor:
        return padded(self._layer, x)

    def exact(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        layer = self._layer
        func = list(DIMENSIONS)[len(layer.kernel_size) - 1]
        padding = layer.padding if layer.padding_mode == "zeros" else 0
        return func(x, weight, bias, layer.stride, padding, layer.dilation, layer.groups)

    def parts(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> list[Part]:
        return matrices(self._of(x, weight)._replace(bias=bias))

    def gradients(self, dy: Tensor, x: Tensor, weight: Tensor) -> list[Tensor]:
        return gradient_rows(dy, self._of(x, weight))

    def output(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return folded(rows, self._of(x, weight))

    def input_gradient(self, rows: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return gathered(rows, self._of(x, weight))

    def weight_gradient(self, matrices: list[Tensor], x: Tensor, weight: Tensor) -> Tensor:
        return weights_of(matrices, self._of(x, weight))


def products_of(layer: Any) -> LinearProducts:
    """Return the converter between the tensors of a layer and the matrices of its matrix products.

    `layer`: a torch.nn.Conv1d, Conv2d, Conv3d or a linear layer.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.shapes import products_of
      >>> layer, x = torch.nn.Conv1d(2, 4, 3), torch.ones(1, 2, 8)
      >>> [(rows.shape, matrix.shape) for rows, matrix, _ in products_of(layer).parts(x, layer.weight, None)]
      [(torch.Size([6, 6]), torch.Size([4, 6]))]
    """
    return PatchProducts(layer) if type(layer) in CONVOLUTIONS else LinearProducts()


def multiplies(layer: Any) -> bool:
    """Return whether a torch.nn.Module computes matrix products that can follow recipes.

    These modules do: Linear, Conv1d to Conv3d unless depthwise, and a QuantLinear without casts, all of float weights;
    their subclasses don't.
    """
    if type(layer) in CONVOLUTIONS:
        return layer.weight.is_floating_point() and not is_depthwise(layer.weight, layer.groups)
    return (type(layer) is torch.nn.Linear and layer.weight.is_floating_point()) or adds_float32(layer)


def adds_float32(layer: Any) -> bool:
    """Return whether a layer is an fp.torch.QuantLinear without casts, which adds float32 terms one after another."""
    return type(layer) is QuantLinear and plan_from(layer.plan).is_float32


def why_not(layer: Any) -> str:
    """Return why a layer with weights cannot follow recipes; "" if it can, or if the module is no such layer."""
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
        return "the products inside of torch.nn.MultiheadAttention stay exact"
    return "" if multiplies(layer) else _why_not_this_kind(layer)


def _why_not_this_kind(layer: Any) -> str:
    """Return why a linear layer or convolution cannot follow recipes: quantised already, parametrized, or a subclass.

    Return "" for all other modules. `layer`: a module for which `multiplies` is False.
    """
    if not isinstance(layer, (torch.nn.Linear, *CONVOLUTIONS)) or type(layer) is NonDynamicallyQuantizableLinear:
        return ""  # the latter is part of an attention, which has its own reason
    if isinstance(layer, QuantLinear):
        return "a quantised layer follows a recipe already, and errors are measured against float32"
    if type(layer) in (torch.nn.Linear, *CONVOLUTIONS):
        return "layers of complex numbers stay exact"
    if parametrize.is_parametrized(layer):
        return "a weight made by a parametrization stays exact, until remove_parametrizations makes it a parameter"
    return "a subclass of torch's layer may multiply in another way"


def groups_of(model: Any, layers: Iterable[str]) -> dict[str, int]:
    """Return layer -> number of groups, for those of the named layers of a torch.nn.Module that are convolutions."""
    modules = {name: model.get_submodule(name) for name in layers}
    return {name: int(layer.groups) for name, layer in modules.items() if type(layer) in CONVOLUTIONS}


def terms_of(model: Any, layers: Iterable[str]) -> dict[str, int]:
    """Return layer -> number of terms of each sum of its forward product, for the named layers of a torch.nn.Module."""
    weights = {name: model.get_submodule(name).weight for name in layers}
    return {name: weight[0].numel() for name, weight in weights.items() if len(weight)}
