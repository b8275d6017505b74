"""The models that are trained: a small transformer on characters, and a perceptron on vectors of 128 numbers.

`fpsim.torch.quantize_linears` makes linear layers follow a recipe; all else is an operation of `operations/`. Lines
under `if self.unit` are for unit scaling, whose functions are at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.errors import require_integer, require_word
from fpsim.recipes.training_recipe import Recipe
from fpsim.torch.operators import Tensor, tensor_of, torch
from fpsim.train.activations import Storing
from fpsim.train.data import WEIGHTS, random_words
from fpsim.train.operations.operations import TORCH, Operations
from fpsim.train.settings import HEAD, Recompute, Settings
from fpsim.train.slices import SlicedResult, SlicedSum, SwiGLU, read_again, sliced_result, sum_again

nn: Any = torch.nn
Function: Any = torch.autograd.Function
DEVIATION = 0.02  # of GPT-2's weights
SILU = 0.35577551981  # mean of silu(x)^2 over normal x: the variance of silu(x) * y


@dataclass(frozen=True)
class Config:
    """The shape of a transformer.

    Args:
      vocabulary: number of different tokens.
      context: largest number of tokens in a sequence.
      width, heads, layers: features of a token, attention heads, and blocks.
      hidden: features of SwiGLU's result.
      parametrisation: "standard", or "unit" for unit scaling, where every tensor has variance 1 at the start.

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
    """RMS normalisation of x (..., width) over the last axis: x / sqrt(mean(x * x) + 1e-6) * weight."""

    def __init__(self, width: int, operations: Operations) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.operations = operations

    def forward(self, x: Tensor) -> Tensor:
        return self.operations.rms_norm(x, self.weight)


class Core(Storing):
    """Causal attention, softmax(factor * q k^T) v, on tensors (batch, head, position, head width)."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations

    def forward(self, q: Tensor, k: Tensor, v: Tensor, factor: float) -> Tensor:
        return self.operations.attention(q, k, v, factor)


class Attention(nn.Module):  # type: ignore[misc]
    """Multi-head attention on (batch, length, width): a layer for q, k and v, causal attention, an output layer."""

    def __init__(self, config: Config, operations: Operations) -> None:
        super().__init__()
        self.heads, self.unit = config.heads, config.parametrisation == "unit"
        self.qkv = linear(config.width, 3 * config.width, self.unit)
        self.core = Core(operations)
        self.proj = linear(config.width, config.width, self.unit)
        self.sliced: dict[str, Recompute] = {}  # layers whose results are computed again
        self.again: SlicedResult | None = None  # what computes the last result again

    def forward(self, x: Tensor) -> Tensor:
        again = sliced_result(self, "qkv", x)
        mixed = read_again(self.qkv(x), self.mix, again)  # (batch, length, width)
        self.again = sliced_result(self, "proj", mixed)
        projected: Tensor = self.proj(mixed)
        return projected

    def mix(self, qkv: Tensor) -> Tensor:
        """Return attention's result (batch, length, width); qkv: queries, keys, values (batch, length, 3 * width)."""
        batch, length, features = qkv.shape
        width = features // 3
        head_width = width // self.heads
        parts = qkv.view(batch, length, 3, self.heads, head_width)
        q, k, v = parts.permute(2, 0, 3, 1, 4)  # (batch, head, length, head width) each
        mixed = self.core(q, k, v, 1 / math.sqrt(head_width))  # as v
        if self.unit:
            mixed = mixed * unmixed(length)
        result: Tensor = mixed.transpose(1, 2).reshape(batch, length, width)
        return result


class MLP(nn.Module):  # type: ignore[misc]
    """A linear layer to gate and up, SwiGLU, and a linear layer back: (batch, length, width) to the same shape."""

    def __init__(self, config: Config, operations: Operations) -> None:
        super().__init__()
        self.unit = config.parametrisation == "unit"
        self.gate_up = linear(config.width, 2 * config.hidden, self.unit)
        self.act = SwiGLU(operations)
        self.down = linear(config.hidden, config.width, self.unit)
        self.sliced: dict[str, Recompute] = {}  # layers whose results are computed again
        self.again: SlicedResult | None = None  # what computes the last result again

    def forward(self, x: Tensor) -> Tensor:
        again = sliced_result(self, "gate_up", x)
        hidden = self.act(self.gate_up(x), again)  # (batch, length, hidden)
        hidden = hidden * (1 / math.sqrt(SILU)) if self.unit else hidden
        self.again = sliced_result(self, "down", hidden)
        result: Tensor = self.down(hidden)
        return result


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block: attention and then an MLP, each after a norm and added to the residual."""

    def __init__(self, config: Config, operations: Operations, index: int = 0) -> None:
        super().__init__()
        self.unit, self.index = config.parametrisation == "unit", index
        self.norm1 = RMSNorm(config.width, operations)
        self.attn = Attention(config, operations)
        self.norm2 = RMSNorm(config.width, operations)
        self.mlp = MLP(config, operations)
        self.again: SlicedSum | None = None  # what computes the last result again

    def forward(self, x: Tensor, again: SlicedSum | None = None) -> Tensor:
        """Return the block's result for x (batch, length, width), of the same shape.

        again: recomputes x in the backward pass for the norm that reads it; None if x is stored.
        """
        if self.unit:
            number = 2 * self.index + 1
            y = add_branch(x, lambda x: self.attn(read_again(x, self.norm1, again)), number, math.sqrt(3))
            middle = sum_again(self.attn, x, weights_of_sum(number))
            z = add_branch(y, lambda y: self.mlp(read_again(y, self.norm2, middle)), number + 1, math.sqrt(2))
            self.again = sum_again(self.mlp, y, weights_of_sum(number + 1))
            return z
        y = x + self.attn(read_again(x, self.norm1, again))
        middle = sum_again(self.attn, x)
        result: Tensor = y + self.mlp(read_again(y, self.norm2, middle))
        self.again = sum_again(self.mlp, y)
        return result


class Transformer(nn.Module):  # type: ignore[misc]
    """A transformer from tokens, int64 (batch, length), to logits of the next token (batch, length, vocabulary)."""

    def __init__(self, config: Config, seed: int, operations: Operations = TORCH) -> None:
        super().__init__()
        self.config, self.operations = config, operations
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList([Block(config, operations, index) for index in range(config.layers)])
        self.norm = RMSNorm(config.width, operations)
        self.unit = config.parametrisation == "unit"
        self.head = linear(config.width, config.vocabulary, self.unit)
        self.sliced: dict[str, Recompute] = {}  # layers whose results are computed again
        self.again: SlicedResult | None = None  # what computes the last result again
        initialise(self, seed, unit=self.unit)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.operations.embed(codes, self.tokens.weight, self.positions.weight)  # (batch, length, width)
        if self.unit:
            x = x * math.sqrt(0.5)
        again = None
        for block in self.blocks:
            x = block(x) if again is None else block(x, again)
            again, block.again = block.again, None
        x = read_again(x, self.norm, again)
        self.again = sliced_result(self, "head", x)
        logits: Tensor = self.head(x)  # (batch, length, vocabulary)
        if self.unit:  # the mean cross entropy has gradients of a variance of about 1 / vocabulary / tokens^2
            logits = scaled(logits, 1.0, codes.numel() * math.sqrt(self.config.vocabulary))
        return logits


class Perceptron(nn.Module):  # type: ignore[misc]
    """A perceptron that maps vectors (batch, 128) to logits (batch, 10) through two hidden layers of 256 units."""

    def __init__(self, seed: int, operations: Operations = TORCH) -> None:
        super().__init__()
        self.operations = operations
        self.first = nn.Linear(128, 256, bias=False)
        self.second = nn.Linear(256, 256, bias=False)
        self.head = nn.Linear(256, 10, bias=False)
        self.sliced: dict[str, Recompute] = {}  # layers whose results are computed again
        self.again: SlicedResult | None = None  # what computes the last result again
        initialise(self, seed)

    def forward(self, x: Tensor) -> Tensor:
        again = sliced_result(self, "first", x)
        return read_again(self.first(x), self.from_first, again)

    def from_first(self, first: Tensor) -> Tensor:
        """Return the logits that follow from the first layer's result, (batch, 256)."""
        x = self.operations.relu(first)
        again = sliced_result(self, "second", x)
        return read_again(self.second(x), self.from_second, again)

    def from_second(self, second: Tensor) -> Tensor:
        """Return the logits that follow from the second layer's result, (batch, 256)."""
        x = self.operations.relu(second)
        self.again = sliced_result(self, "head", x)
        logits: Tensor = self.head(x)
        return logits


def initialise(model: Any, seed: int, *, unit: bool = False) -> None:
    """Set the weights of a model's linear layers and embeddings to nearly normal random numbers, in place.

    Weights are `normal_numbers(seed, number of the layer)` times a standard deviation, in float32. It is 1 under unit
    scaling (`unit`), and sqrt(2 / inputs) in a perceptron (He et al.). In a transformer it is GPT-2's: 0.02, or 0.02 /
    sqrt(number of residual connections) for layers whose result is added to a residual (openai/gpt-2; nanoGPT).
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


def normal_numbers(seed: int, number: int, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Return nearly normal float64 numbers of mean 0 and deviation 1 that depend only on the arguments.

    Each is (the sum of 12 random 32-bit integers - 6 * 2**32) * 2**-32, exactly, so it is between -6 and 6. The
    integers are the low and high halves of six 64-bit numbers of NumPy's Philox generator.

    Args:
      seed: an integer in 0 .. 2**64 - 1.
      number: the index of the array among all that are drawn from this seed.
      shape: the shape of the result.

    Example:
      >>> from fpsim.train.model import normal_numbers
      >>> numbers = normal_numbers(0, 0, (10000,))
      >>> round(float(numbers.mean()), 2), round(float(numbers.std()), 2)
      (-0.01, 1.0)
    """
    count = int(np.prod(shape))
    halves = random_words(seed, WEIGHTS, number, 0).random_raw(6 * count).view(np.uint32).reshape(count, 12)
    total = np.einsum("ij->i", halves, dtype=np.int64, casting="unsafe") - 6 * 2**32  # a fifth of the time of sum(1)
    numbers: npt.NDArray[np.float64] = (total * 2.0**-32).reshape(shape)
    return numbers


def loss_of(model: Any, inputs: Tensor, targets: Tensor, operations: Operations) -> Tensor:
    """Return the mean cross entropy of a model's logits for a batch, in nats, as a tensor of shape ().

    inputs, targets: as `Data.batch` returns them, but as tensors. operations: the object that computes cross entropies.
    """
    logits = model(inputs)
    again, model.again = model.again, None
    flat = targets.reshape(-1)
    return read_again(logits, lambda x: operations.cross_entropy(x.reshape(-1, x.shape[-1]), flat), again)


def pair_loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Return the mean cross entropy of a batch (inputs, targets) by a model, for `fp.analysis.diagnose`, in nats."""
    return loss_of(model, *batch, model.operations)


def made_model(recipe: Recipe, settings: Settings, data: Any) -> Any:
    """Return a new model as the settings describe it, initialised for the recipe's parametrisation.

    data: the data set; a transformer has a token for each character of its vocabulary.

    Raises:
      ValueError: the recipe asks for unit scaling of a perceptron.
    """
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


# ---- unit scaling: every tensor has variance 1 at the start, gradients too (Blake et al., arXiv:2303.11257)


class _Factors(Function):  # type: ignore[misc]
    """A torch function of x that returns x * forwards, and multiplies the gradient by `backwards` instead."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forwards: float, backwards: float) -> Tensor:
        ctx.backwards = backwards
        return x * forwards

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return dy * ctx.backwards, None, None


def scaled(x: Tensor, forwards: float, backwards: float) -> Tensor:
    """Return x * forwards, with gradients that the backward pass multiplies by `backwards` instead."""
    result: Tensor = _Factors.apply(x, forwards, backwards)
    return result


class UnitLinear(nn.Module):  # type: ignore[misc]
    """A linear layer under unit scaling: its result is divided by sqrt(inputs), its input gradient by sqrt(outputs).

    Weights have variance 1. Weight gradients are not scaled, because AdamW's updates do not depend on their size.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inputs, outputs = self.linear.in_features, self.linear.out_features
        forwards, backwards = 1 / math.sqrt(inputs), 1 / math.sqrt(outputs)
        return scaled(self.linear(scaled(x, 1.0, backwards)), forwards, 1.0)


def linear(inputs: int, outputs: int, unit: bool) -> Any:
    """Return a linear layer without bias, under unit scaling if `unit`; inputs, outputs: numbers of features."""
    return UnitLinear(inputs, outputs) if unit else nn.Linear(inputs, outputs, bias=False)


def unmixed(length: int) -> float:
    """Return the factor that gives causal attention's result the variance of the values, before training.

    For scores of variance 1 over t tokens, softmax shares p have a sum of p^2 of about e / (t + e - 1). The factor is 1
    / sqrt of the mean of this sum over t = 1 to `length`, the tokens of a sequence.
    """
    return 1 / math.sqrt(sum(math.e / (t + math.e - 1) for t in range(1, length + 1)) / length)


def add_branch(x: Tensor, branch: Callable[[Tensor], Tensor], number: int, owed: float) -> Tensor:
    """Return (sqrt(n) x + branch(x)) / sqrt(n + 1), so that all residual branches have the same weight.

    Backwards, the gradient enters the branch unscaled, with variance 1. Where it leaves, it is multiplied by owed /
    sqrt(n + 1), which makes it the true gradient. Then the gradient of x is multiplied by a constant that gives it
    variance 1 again; all lower layers' gradients change by this one factor.

    Args:
      x: the residual.
      branch: a function of x.
      number: n, the number of the branch in the model, from 1.
      owed: product of sqrt(outputs / inputs) over the branch's layers. `UnitLinear` divides gradients by sqrt(outputs),
        but true gradients would be divided by sqrt(inputs), so the branch owes this factor.
    """
    keep, share = weights_of_sum(number)
    back = share * owed
    x = scaled(x, 1.0, 1 / math.sqrt(keep * keep + back * back))
    return x * keep + scaled(branch(scaled(x, 1.0, back)), share, 1.0)


def weights_of_sum(number: int) -> tuple[float, float]:
    """Return the factors of the residual and of the n-th branch in their sum: sqrt(n / (n + 1)), sqrt(1 / (n + 1)).

    number: n, the number of the branch in the model, from 1.
    """
    return math.sqrt(number / (number + 1)), math.sqrt(1 / (number + 1))
