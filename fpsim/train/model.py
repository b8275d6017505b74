"""The models that are trained: a small transformer on characters, and a perceptron on vectors of 128 numbers.

Layers are torch's own until `fpsim.torch.quantize_linears` makes their products those of a recipe. All else that a
model computes is an operation of `operations/`. Lines under `if self.unit` are those of unit scaling
(`unit_scaling.py`). Every length that a matrix product sums over is a multiple of 128, the blocks of the FP8 recipes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fpsim.errors import require_integer, require_word
from fpsim.recipes.training_recipe import Recipe
from fpsim.torch.operators import Tensor, tensor_of, torch
from fpsim.train.activations.recomputation import Recompute, sliced_hidden
from fpsim.train.activations.storing import Storing
from fpsim.train.activations.swiglu import SwiGLU
from fpsim.train.draws import normal_numbers
from fpsim.train.operations.operations import TORCH, Operations
from fpsim.train.settings import HEAD, Settings
from fpsim.train.unit_scaling import SILU, add_branch, linear, scaled, unmixed

nn: Any = torch.nn
DEVIATION = 0.02  # of GPT-2's weights


@dataclass(frozen=True)
class Config:
    """The shape of a transformer.

    Args:
      vocabulary: symbols.
      context: tokens that a prediction sees.
      width, heads, layers: the model's width, attention heads and blocks; hidden: the width of its SwiGLU.
      parametrisation: "standard", or "unit": every tensor has variance 1 at the start, weights included.

    Example:
      >>> from fpsim.train.model import Config, Transformer
      >>> model = Transformer(Config(vocabulary=96), seed=0)
      >>> linear = [layer for name, layer in model.named_modules() if type(layer) is torch.nn.Linear and name != "head"]
      >>> len(linear), sum(layer.weight.numel() for layer in linear)
      (8, 327680)
    """

    vocabulary: int
    context: int = 64
    width: int = 128
    heads: int = 4
    layers: int = 2
    hidden: int = 256
    parametrisation: str = "standard"

    def __post_init__(self) -> None:
        for name in ("vocabulary", "context", "width", "heads", "layers", "hidden"):
            require_integer(name, getattr(self, name), 1)
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads; got {self.width} and {self.heads}.")
        require_word("parametrisation", self.parametrisation, ("standard", "unit"))


class RMSNorm(Storing):
    """A norm: x / rms(x) * weight over the last axis."""

    def __init__(self, width: int, operations: Operations) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.operations = operations

    def forward(self, x: Tensor) -> Tensor:
        return self.operations.rms_norm(x, self.weight)


class Core(Storing):
    """Causal attention over heads, softmax(q k^T / sqrt(d)) v, of (batch, head, position, width / heads)."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations

    def forward(self, q: Tensor, k: Tensor, v: Tensor, factor: float) -> Tensor:
        return self.operations.attention(q, k, v, factor)


class Attention(nn.Module):  # type: ignore[misc]
    """Queries, keys and values from one layer, then attention, then a projection."""

    def __init__(self, config: Config, operations: Operations) -> None:
        super().__init__()
        self.heads, self.unit = config.heads, config.parametrisation == "unit"
        self.qkv = linear(config.width, 3 * config.width, self.unit)
        self.core = Core(operations)
        self.proj = linear(config.width, config.width, self.unit)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        head_width = width // self.heads
        qkv = self.qkv(x).view(batch, length, 3, self.heads, head_width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (batch, head, length, head width) each
        mixed = self.core(q, k, v, 1 / math.sqrt(head_width))  # as v
        if self.unit:
            mixed = mixed * unmixed(length)
        projected: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


class MLP(nn.Module):  # type: ignore[misc]
    """SwiGLU between two layers."""

    def __init__(self, config: Config, operations: Operations) -> None:
        super().__init__()
        self.unit = config.parametrisation == "unit"
        self.gate_up = linear(config.width, 2 * config.hidden, self.unit)
        self.act = SwiGLU(operations)
        self.down = linear(config.hidden, config.width, self.unit)
        self.recompute: Recompute | None = None  # slices of gate_up that are computed again

    def forward(self, x: Tensor) -> Tensor:
        again = None
        if self.recompute is not None and torch.is_grad_enabled():
            again = sliced_hidden(self.gate_up, x, self.recompute)
        hidden = self.act(self.gate_up(x), again)  # (batch, length, hidden)
        result: Tensor = self.down(hidden * (1 / math.sqrt(SILU)) if self.unit else hidden)
        return result


class Block(nn.Module):  # type: ignore[misc]
    """Attention and SwiGLU, each after a norm and added to its residual."""

    def __init__(self, config: Config, operations: Operations, index: int = 0) -> None:
        super().__init__()
        self.unit, self.index = config.parametrisation == "unit", index
        self.norm1 = RMSNorm(config.width, operations)
        self.attn = Attention(config, operations)
        self.norm2 = RMSNorm(config.width, operations)
        self.mlp = MLP(config, operations)

    def forward(self, x: Tensor) -> Tensor:
        if not self.unit:
            x = x + self.attn(self.norm1(x))
            y: Tensor = x + self.mlp(self.norm2(x))
            return y
        x = add_branch(x, lambda x: self.attn(self.norm1(x)), 2 * self.index + 1, math.sqrt(3))
        return add_branch(x, lambda x: self.mlp(self.norm2(x)), 2 * self.index + 2, math.sqrt(2))


class Transformer(nn.Module):  # type: ignore[misc]
    """A transformer that maps characters to logits of the next character."""

    def __init__(self, config: Config, seed: int, operations: Operations = TORCH) -> None:
        super().__init__()
        self.config, self.operations = config, operations
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList([Block(config, operations, index) for index in range(config.layers)])
        self.norm = RMSNorm(config.width, operations)
        self.unit = config.parametrisation == "unit"
        self.head = linear(config.width, config.vocabulary, self.unit)
        initialise(self, seed, unit=self.unit)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.operations.embed(codes, self.tokens.weight, self.positions.weight)  # (batch, length, width)
        if self.unit:
            x = x * math.sqrt(0.5)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))  # (batch, length, vocabulary)
        if self.unit:  # the mean cross entropy has gradients of a variance of about 1 / vocabulary / tokens^2
            logits = scaled(logits, 1.0, codes.numel() * math.sqrt(self.config.vocabulary))
        return logits


class Perceptron(nn.Module):  # type: ignore[misc]
    """A model from vectors of 128 numbers to logits of 10 classes, through two layers of 256."""

    def __init__(self, seed: int, operations: Operations = TORCH) -> None:
        super().__init__()
        self.operations = operations
        self.first = nn.Linear(128, 256, bias=False)
        self.second = nn.Linear(256, 256, bias=False)
        self.head = nn.Linear(256, 10, bias=False)
        initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        relu = self.operations.relu
        logits: Tensor = self.head(relu(self.second(relu(self.first(x)))))
        return logits


def initialise(model: Any, seed: int, *, unit: bool = False) -> None:
    """Draw nearly normal weights: GPT-2's (a perceptron's by He et al.), or of deviation 1 for unit scaling.

    They are `fpsim.train.draws.normal_numbers` of the layers in the model's order, times the deviation, in float32.
    GPT-2's deviation is 0.02, and 0.02 / sqrt(residuals) for a layer whose result a residual connection adds
    (openai/gpt-2; nanoGPT, model.py).
    """
    residuals = sum(isinstance(module, (Attention, MLP)) for module in model.modules())
    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, (nn.Linear, nn.Embedding))]
    for number, (name, module) in enumerate(layers):
        deviation = DEVIATION
        if unit:
            deviation = 1.0
        elif name.rpartition(".")[2] in ("proj", "down"):
            deviation /= math.sqrt(residuals)
        elif isinstance(model, Perceptron):
            deviation = math.sqrt(2 / module.in_features)  # He et al., arXiv:1502.01852
        with torch.no_grad():
            module.weight.copy_(tensor_of(normal_numbers(seed, number, tuple(module.weight.shape)) * deviation))


def loss_of(model: Any, inputs: Tensor, targets: Tensor, operations: Operations) -> Tensor:
    """Return the mean cross entropy of a batch, in nats."""
    logits = model(inputs)
    return operations.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def pair_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy for a batch (inputs, targets); a loss that `fp.analysis.diagnose` can call."""
    return loss_of(model, *batch, model.operations)


def made_model(recipe: Recipe, settings: Settings, data: Any) -> Any:
    """Return a new model as the settings describe it, with the recipe's parametrisation."""
    operations = Operations(recipe.numerics, settings.specified)
    if settings.model == "perceptron":
        if recipe.parametrisation != "standard":
            raise ValueError(
                f"the perceptron has the standard parametrisation only; got {recipe.parametrisation!r} in recipe "
                f"{recipe.name!r}. Train the transformer."
            )
        return Perceptron(settings.seed, operations)
    width = settings.width
    config = Config(
        len(data.vocabulary), settings.context, width, heads=width // HEAD, hidden=2 * width,
        parametrisation=recipe.parametrisation,
    )  # fmt: skip
    return Transformer(config, settings.seed, operations)
