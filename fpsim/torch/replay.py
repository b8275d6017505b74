"""The forward product of a quantised layer, computed again in parts: the same operands, draws and scales."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

from fpsim.scaling.scaled import Scaled
from fpsim.scaling.tiling import tile_sizes
from fpsim.torch.delayed import INPUT, WEIGHT, quantized
from fpsim.torch.devices import finished
from fpsim.torch.linear import QuantLinear
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.torch.plan import ProductPlan, adds_of, plan_from
from fpsim.torch.products import CastOperand, multiply, resolved


class ProductReplay:
    """The operands of a layer's forward product, ready to be multiplied again in parts.

    Operands are quantised whole, with the layer's step counter and delayed scales at the time when this object was
    created, so that stochastic rounding draws the same numbers. The weight must not change before the last part.

    Args:
      layer: a `QuantLinear`, before its forward pass.
      x: the layer's input, (..., features), which is not copied.

    Example:
      >>> import torch
      >>> from fpsim.torch.replay import ProductReplay
      >>> layer, x = fp.torch.QuantLinear(256, 128, bias=False, recipe=fp.torch.DEEPSEEK_V3), torch.randn(8, 256)
      >>> replay = ProductReplay(layer, x)
      >>> torch.equal(replay.part(slice(2, 5), slice(0, 128)), layer(x)[2:5])
      True
    """

    def __init__(self, layer: QuantLinear, x: Tensor) -> None:
        self._layer, self._rows = layer, x.detach().reshape(-1, layer.in_features)
        self._plan = plan_from(layer.plan)
        self._dtype = x.dtype
        self._step = None if layer.steps is None else layer.steps.clone()
        self._state = None if layer.scales is None else layer.scales.clone()
        self._cast: tuple[CastOperand, CastOperand] | None = None

    @property
    def row_tile(self) -> int:
        """Number of rows of x that share a scale."""
        return _tile(self._operands()[0], 0)

    @property
    def column_tile(self) -> int:
        """Number of result features (columns of the result) whose weights share a scale."""
        return _tile(self._operands()[1], 0)

    def part(self, rows: slice, columns: slice) -> Tensor:
        """Return a block of the layer's result, in the dtype of x.

        rows, columns: slices of the result with start and stop. The block must begin at a multiple of `row_tile` rows
        and of `column_tile` columns, or be within one tile.

        Raises:
          ValueError: the part begins within a tile and extends beyond it.
        """
        a, b = self._operands()
        bias = self._layer.bias
        product = multiply(
            cut(a, 0, rows), cut(b, 0, columns), "b", self._how(),
            None if bias is None else bias.detach()[columns], self._plan.backend,
        )  # fmt: skip
        return product.to(self._dtype)

    def over_terms(self, slices: int) -> Tensor:
        """Return the whole result as a float32 sum of products over slices of K, rounded at the end, in the dtype of x.

        Slices consist of whole tiles that share a scale. The bits differ from those of the layer.

        Raises:
          ValueError: K has fewer tiles than slices.
        """
        a, b = self._operands()
        how = self._how()
        total = torch.zeros(())
        for i, terms in enumerate(cut_whole(a.source.shape[1], slices, max(_tile(a, 1), _tile(b, 1)))):
            left, right = cut(a, 1, terms), cut(b, 1, terms)
            partial = multiply(left, right, "b", how._replace(out_fmt=""), None, self._plan.backend)
            total = total + partial if i else partial
        if self._layer.bias is not None:
            total = total + self._layer.bias.detach().float()
        return tensor_of(finished(array_of(total), None, adds_of(how).out_fmt)).to(self._dtype)

    def _how(self) -> ProductPlan:
        """Return the arithmetic of the whole product, which the parts also use.

        A library might choose another kernel for the shape of a part.
        """
        a, b = self._operands()
        return resolved(self._plan.of("fprop"), a, b.transposed, self._layer.bias is not None)

    def forget(self) -> None:
        """Release the quantised operands; the next call quantises them again."""
        self._cast = None

    @torch.no_grad()
    def _operands(self) -> tuple[CastOperand, CastOperand]:
        """Return the quantised input and weight, computed on the first call and cached."""
        if self._cast is None:
            plan, state = self._plan, self._state
            row = (None, None) if state is None else (state[INPUT], state[WEIGHT])
            left, _ = quantized(self._rows, plan.input, self._step, plan, row[0])
            right, _ = quantized(self._layer.weight, plan.weight, self._step, plan, row[1])
            self._cast = left, right
        return self._cast


def cut_whole(length: int, slices: int, tile: int) -> list[slice]:
    """Divide the indices 0 to length - 1 into `slices` slices of nearly equal size, which consist of whole tiles.

    tile: number of elements of a tile; the last one may be shorter.

    Raises:
      ValueError: there are fewer tiles than slices.

    Example:
      >>> from fpsim.torch.replay import cut_whole
      >>> cut_whole(512, 3, 128)
      [slice(0, 128, None), slice(128, 256, None), slice(256, 512, None)]
    """
    tiles = -(-length // tile)
    if slices > tiles:
        raise ValueError(
            f"slices must be at most {tiles}, the tiles of {tile} that share a scale along {length} elements; got "
            f"{slices}."
        )
    edges = [min(length, i * tiles // slices * tile) for i in range(slices + 1)]
    return [slice(*pair) for pair in pairwise(edges)]


def _tile(operand: CastOperand, axis: int) -> int:
    """Return the number of elements along an axis that share a scale; 1 without scales, or if all share one."""
    if not isinstance(operand.encoded, Scaled):
        return 1
    size = tile_sizes(operand.encoded.shape, operand.encoded.scaling.block)[axis]
    return 1 if operand.encoded.scaling.block[axis] == -1 else size


def cut(operand: CastOperand, axis: int, part: slice) -> CastOperand:
    """Return some rows (axis 0) or columns (axis 1) of an operand, with the scales that the whole operand has.

    part: a slice with start and stop.

    Raises:
      ValueError: the part begins within a tile of elements that share a scale, and extends beyond it.
    """
    index: list[slice] = [slice(None), slice(None)]
    index[axis] = part
    source = operand.source[tuple(index)]
    encoded = operand.encoded
    if not isinstance(encoded, Scaled):
        return CastOperand(source, encoded[tuple(index)], operand.fmt)
    size = tile_sizes(encoded.shape, encoded.scaling.block)[axis]
    first, last = part.start // size, -(-part.stop // size)
    if part.start % size and last - first > 1:
        raise ValueError(f"a part must begin at a multiple of {size} elements, which share a scale; got {part.start}.")
    tiles: list[slice] = [slice(None), slice(None)]
    tiles[axis] = slice(first, last)
    blocks = encoded.blocks[tuple(tiles)]
    within: list[slice] = [slice(None), slice(None)]
    within[axis] = slice(part.start - first * size, part.stop - first * size)
    return CastOperand(source, dataclasses.replace(blocks, codes=blocks.codes[tuple(within)]), None)
