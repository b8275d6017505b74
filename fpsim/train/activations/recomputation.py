"""Recomputation: activations that are computed again in the backward pass, by whole blocks or by slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fpsim.errors import require_integer, require_word, shown
from fpsim.recipes.optimizer_recipe import require_number
from fpsim.reload import reloadable
from fpsim.torch.operators import Tensor, torch
from fpsim.torch.replay import ProductReplay, cut_whole
from fpsim.torch.trace import hidden

BY = ("layer", "m", "n", "k")
Function: Any = torch.autograd.Function


@reloadable
@dataclass(frozen=True)
class Recompute:
    """The activations of a transformer that the backward pass computes again instead of keeping them.

    By "layer", whole blocks: their input alone is kept. By slices, the largest tensor of a block, which SwiGLU keeps:
    the result of `mlp.gate_up` is computed again from the layer's input, slice by slice, and each slice is used up
    before the next one. Slices of "m" (tokens) and "n" (features) have the bits of the whole product, since operands
    are quantised whole and each element is summed as before. Slices of "k" (terms of each sum) are added in float32,
    one after another: other sums, other bits, and a whole result at the end.

    Args:
      share: the share of the blocks, 0 to 1, rounded up to whole blocks; they are the first ones.
      by: "layer", "m", "n" or "k".
      slices: number of slices, for "m", "n" and "k".

    Raises:
      TypeError, ValueError: a field has another type or value than those above.

    Example:
      >>> from fpsim.train import Recompute
      >>> Recompute(0.5).blocks(3), Recompute(1.0, "m", slices=4).keeps_bits, Recompute(1.0, "k", slices=4).keeps_bits
      (2, True, False)
    """

    share: float = 1.0
    by: str = "layer"
    slices: int = 1

    def __post_init__(self) -> None:
        require_number("share", self.share, highest=1.0)
        require_word("by", self.by, BY)
        require_integer("slices", self.slices, 1)
        object.__setattr__(self, "share", float(self.share))
        object.__setattr__(self, "slices", int(self.slices))
        if self.by == "layer" and self.slices != 1:
            raise ValueError(
                f"slices are for by='m', 'n' or 'k'; got {self.slices} with by='layer'. Leave them out, or choose one."
            )

    @property
    def keeps_bits(self) -> bool:
        """True if training has the same bits as without recomputation."""
        return self.by != "k" or not self.share or self.slices == 1

    def blocks(self, layers: int) -> int:
        """Return the number of blocks that are computed again, out of `layers` blocks, rounded up."""
        return whole_blocks(self.share, layers)


def whole_blocks(share: float, layers: int) -> int:
    """Return the number of blocks in a share of `layers` blocks, rounded up."""
    return math.ceil(round(share * layers, 9))  # 1 - 0.9 of 10 blocks is one block


NOTHING = Recompute(0.0)


def recompute_of(value: Any) -> Recompute:
    """Return a Recompute unchanged, or one of whole blocks for a number, the share of blocks.

    Raises:
      TypeError: value is neither a Recompute nor a number.

    Example:
      >>> from fpsim.train.activations.recomputation import recompute_of
      >>> recompute_of(0.25)
      Recompute(share=0.25, by='layer', slices=1)
    """
    if isinstance(value, Recompute):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"recompute must be a share of the blocks, or an fp.train.Recompute; got {shown(value)}.")
    require_number("recompute", value, highest=1.0)
    return Recompute(float(value))


# ---- whole blocks


def recompute_block(block: Any) -> None:
    """Make a module keep only its input for the backward pass, and compute the rest again there.

    Its layers draw the same random numbers and use the same delayed scales in both runs, since counts of steps and
    scales move in the second one alone, where gradients are on. Products of the second run are shown to no watcher.
    """
    inner = block.forward

    def forward(x: Tensor) -> Tensor:
        result: Tensor = _Recomputed.apply(x, inner) if torch.is_grad_enabled() else inner(x)
        return result

    block.forward = forward


class _Recomputed(Function):  # type: ignore[misc]
    """A torch function that keeps only its input, and runs once more in the backward pass to get its gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None]:
        (kept,) = ctx.saved_tensors
        x = kept.detach().requires_grad_()
        with torch.enable_grad(), hidden():
            y = ctx.run(x)
        torch.autograd.backward(y, dy)
        return x.grad, None


# ---- slices of the product in front of SwiGLU


class SlicedHidden:
    """The result of the layer before SwiGLU, which is not kept but computed again in slices.

    Args:
      replay: the layer's forward product.
      shape: the shape of the result, (..., 2 * hidden).
      recompute: the kind and number of slices.
      factor: what the result is multiplied by after the product.
    """

    def __init__(self, replay: ProductReplay, shape: Any, recompute: Recompute, factor: float = 1.0) -> None:
        self.replay, self.shape, self.recompute, self.factor = replay, tuple(shape), recompute, factor

    def parts(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield, for each slice, the rows and columns of gate and up, and the values of both, (rows, columns)."""
        rows, width = math.prod(self.shape[:-1]), self.shape[-1] // 2
        by, slices = self.recompute.by, self.recompute.slices
        every_row, every_column = slice(0, rows), slice(0, width)
        if by == "k":
            gate, up = self._times(self.replay.over_terms(slices)).chunk(2, -1)
            yield every_row, every_column, gate, up
        elif by == "m":
            for part in cut_evenly(rows, slices, self.replay.row_tile):
                gate, up = self._times(self.replay.part(part, slice(0, 2 * width))).chunk(2, -1)
                yield part, every_column, gate, up
        else:
            for part in cut_evenly(width, slices, self.replay.column_tile):
                gate = self._times(self.replay.part(every_row, part))
                up = self._times(self.replay.part(every_row, slice(width + part.start, width + part.stop)))
                yield every_row, part, gate, up
        self.replay.forget()

    def _times(self, x: Tensor) -> Tensor:
        return x if self.factor == 1.0 else x * self.factor


def cut_evenly(length: int, slices: int, tile: int = 1) -> list[slice]:
    """Divide a length into slices that consist of whole tiles, or that are each within one tile.

    Raises:
      ValueError: there are fewer elements than slices, or slices would cross the edge of a tile.

    Example:
      >>> from fpsim.train.activations.recomputation import cut_evenly
      >>> cut_evenly(128, 4, 128)[1]
      slice(32, 64, None)
    """
    tiles = -(-length // tile)
    if slices <= tiles:
        return cut_whole(length, slices, tile)
    per_tile = -(-slices // tiles)  # slices of a tile
    if slices % tiles or tile % per_tile or length % tile:
        raise ValueError(
            f"slices must be at most {tiles}, the tiles of {tile} that share a scale along {length} elements, or "
            f"divide each of them evenly; got {slices}."
        )
    size = tile // per_tile
    return [slice(i * size, (i + 1) * size) for i in range(slices)]


# ---- a model


def apply_recompute(model: Any, recompute: Recompute) -> None:
    """Make the first blocks of a transformer compute activations again, as `recompute` says.

    Raises:
      ValueError: a model without blocks.
    """
    if not recompute.share:
        return
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        raise ValueError(
            f"recompute is for the transformer, whose blocks are computed again; got it for a {type(model).__name__}. "
            "Leave it out."
        )
    for index in range(recompute.blocks(len(blocks))):
        if recompute.by == "layer":
            recompute_block(blocks[index])
            continue
        blocks[index].mlp.recompute = recompute


def sliced_hidden(gate_up: Any, x: Tensor, recompute: Recompute) -> SlicedHidden:
    """Return an object that recomputes a layer's result in slices; call this before the layer, which counts a step.

    Args:
      gate_up: the layer, or a `UnitLinear` around it.
      x: its input, (..., features).
    """
    layer = getattr(gate_up, "linear", gate_up)
    factor = 1.0 if layer is gate_up else layer.in_features**-0.5
    return SlicedHidden(ProductReplay(layer, x), (*x.shape[:-1], layer.out_features), recompute, factor)


# ---- what it costs


def forward_multiplications(config: Any, tokens: int, blocks: int) -> int:
    """Return the number of multiplications of linear layers and attention in the forward pass of some blocks.

    Args:
      config: shape of the transformer.
      tokens: the number of tokens of a micro-batch, in sequences of the context (or one shorter sequence).
      blocks: the number of blocks.
    """
    linear = 4 * config.width**2 + 3 * config.width * config.hidden  # qkv, proj, gate_up, down
    return int(blocks * tokens * (linear + 2 * config.width * min(tokens, config.context)))  # scores and mixing


def recomputed_multiplications(config: Any, tokens: int, recompute: Recompute) -> int:
    """Return the number of multiplications that recomputation adds to the backward pass of a micro-batch.

    Example:
      >>> from fpsim.train import Recompute
      >>> from fpsim.train.model import Config
      >>> from fpsim.train.activations.recomputation import forward_multiplications, recomputed_multiplications
      >>> config = Config(vocabulary=96)
      >>> recomputed_multiplications(config, 512, Recompute(1.0)) == forward_multiplications(config, 512, 2)
      True
      >>> recomputed_multiplications(config, 512, Recompute(0.5, "m", slices=4)) == 512 * 128 * 512
      True
    """
    blocks = recompute.blocks(config.layers)
    if recompute.by == "layer":
        return forward_multiplications(config, tokens, blocks)
    return int(blocks * tokens * config.width * 2 * config.hidden)
