"""The scenarios of a gradient probe: small losses, outlier channels, uneven tokens, aligned gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fpsim.torch.operators import Tensor, torch

OUTLIER = 256.0  # times as large as other channels
EVERY = 32  # channels to an outlier
SPREAD = 6.0  # standard deviation of log2 of the tokens' weights
ALIGNED = 4.0  # times as large as the gate was


class Scenario(NamedTuple):
    """A change to a model and its batch, the same for float32 and for every recipe.

    Attributes:
      description: the change as text.
      loss_factor: the loss is multiplied by it, and gradients are divided by it.
      change: what is done to the model's weights, in place; None for nothing.
      uneven: whether the losses of tokens have different weights.
    """

    description: str
    loss_factor: float = 1.0
    change: Callable[[Any], None] | None = None
    uneven: bool = False


@torch.no_grad()
def outlier_channels(model: Any) -> None:
    """Multiply one channel in 32 of each norm's result by 256, and divide its weights in the next layer by it.

    All factors are powers of two, so the function stays the same, bit for bit in float32 but for underflow.

    Example:
      >>> from fpsim.train.comparisons.scenarios import outlier_channels
      >>> from fpsim.train.model import Config, Transformer
      >>> model = Transformer(Config(vocabulary=96), seed=0)
      >>> outlier_channels(model)
      >>> model.blocks[0].norm1.weight[:2].tolist()
      [256.0, 1.0]
    """
    for block in model.blocks:
        for norm, layer in ((block.norm1, block.attn.qkv), (block.norm2, block.mlp.gate_up)):
            norm.weight[::EVERY] *= OUTLIER
            getattr(layer, "linear", layer).weight[:, ::EVERY] /= OUTLIER


@torch.no_grad()
def aligned_gates(model: Any) -> None:
    """Give the gate of each SwiGLU the weights of its other half, 4 times as large: its products grow as squares.

    Source: Fishman et al., arXiv:2409.12517: what grows over a long training, and makes FP8 diverge.
    """
    for block in model.blocks:
        weight = getattr(block.mlp.gate_up, "linear", block.mlp.gate_up).weight
        half = weight.shape[0] // 2
        weight[:half] = ALIGNED * weight[half:]


def token_weights(tokens: int, seed: int) -> Tensor:
    """Return 2**(6 N) for each token, float32, N standard normal: an imbalance as between frequent and rare tokens."""
    generator = torch.Generator().manual_seed(seed)
    weights: Tensor = torch.exp2(SPREAD * torch.randn(tokens, generator=generator))
    return weights


SCENARIOS = {
    "plain": Scenario("the batch as it is"),
    "loss_2^-12": Scenario("the loss multiplied by 2**-12, gradients divided by it", loss_factor=2.0**-12),
    "loss_2^12": Scenario("the loss multiplied by 2**12, gradients divided by it", loss_factor=2.0**12),
    "outliers": Scenario("one channel in 32 is 256 times as large", change=outlier_channels),
    "token_weights": Scenario("tokens weigh 2**(6 N), N normal", uneven=True),
    "aligned_gates": Scenario("both halves of each SwiGLU are aligned, one 4 times as large", change=aligned_gates),
}
