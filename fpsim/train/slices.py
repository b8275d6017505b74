"""Results of linear layers that the backward pass computes again in slices, and the operations that read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fpsim.torch.operators import Tensor, torch
from fpsim.torch.replay import ProductReplay, cut_whole
from fpsim.torch.trace import hidden
from fpsim.train.activations import Stash, Storing
from fpsim.train.operations.operations import Operations
from fpsim.train.operations.trace import reported
from fpsim.train.settings import Recompute

Function: Any = torch.autograd.Function


class SlicedResult:
    """The result of a linear layer, which is not kept but computed again in slices.

    Args:
      replay: the layer's forward product.
      shape: the shape of the result, (..., features).
      recompute: the kind and number of slices.
      factor: what the result is multiplied by after the product.
    """

    def __init__(self, replay: ProductReplay, shape: Any, recompute: Recompute, factor: float = 1.0) -> None:
        self.replay, self.shape, self.recompute, self.factor = replay, tuple(shape), recompute, factor

    def whole(self) -> Tensor:
        """Compute the result, slice by slice."""
        rows, columns = math.prod(self.shape[:-1]), self.shape[-1]
        by, slices = self.recompute.by, self.recompute.slices
        every_row, every_column = slice(0, rows), slice(0, columns)
        if by == "k":
            result = self.replay.over_terms(slices)
        elif by == "m":
            parts = cut_evenly(rows, slices, self.replay.row_tile)
            result = torch.cat([self.replay.part(part, every_column) for part in parts])
        else:
            parts = cut_evenly(columns, slices, self.replay.column_tile)
            result = torch.cat([self.replay.part(every_row, part) for part in parts], -1)
        self.replay.forget()
        return self._times(result).reshape(self.shape)

    def parts(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield, for each slice of SwiGLU's input, its rows and columns, and the values of gate and up there."""
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


class SlicedSum(NamedTuple):
    """A sum of a residual and the result of a layer, keep * residual + share * result, which is computed again.

    Attributes:
      residual: the residual, which is kept.
      result: the layer's result.
      keep, share: the factors; 1 without unit scaling.
    """

    residual: Tensor
    result: SlicedResult
    keep: float = 1.0
    share: float = 1.0

    def of(self, residual: Tensor) -> Tensor:
        """Compute the sum of the residual and the branch."""
        result = self.result.whole()
        return residual + result if self.keep == 1.0 else residual * self.keep + result * self.share


def read_again(x: Tensor, then: Callable[[Tensor], Tensor], again: SlicedResult | SlicedSum | None) -> Tensor:
    """Return then(x), of which nothing is kept for the backward pass: it computes x and then(x) again.

    Args:
      x: the result of a layer, or its sum with a residual.
      then: the operation that reads it; its layers draw the same random numbers in both runs.
      again: what computes x again; None keeps what `then` keeps.
    """
    if again is None or not torch.is_grad_enabled():
        return then(x)
    if isinstance(again, SlicedResult):
        result: Tensor = _ReadAgain.apply(x, None, lambda _: again.whole(), then)
    else:
        result = _ReadAgain.apply(x, again.residual.detach(), again.of, then)
    return result


class _ReadAgain(Function):  # type: ignore[misc]
    """A torch function of a tensor that it doesn't keep: the backward pass computes tensor and result again."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kept: Tensor | None, again: Callable[[Any], Tensor], then: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.again, ctx.then = again, then
        ctx.save_for_backward(kept)
        return then(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, None, None, None]:
        (kept,) = ctx.saved_tensors
        x = ctx.again(kept).detach().requires_grad_()
        with torch.enable_grad(), hidden():
            y = ctx.then(x)
        torch.autograd.backward(y, dy)
        return x.grad, None, None, None


def cut_evenly(length: int, slices: int, tile: int = 1) -> list[slice]:
    """Divide a length into slices that consist of whole tiles, or that are each within one tile.

    Raises:
      ValueError: there are fewer elements than slices, or slices would cross the edge of a tile.

    Example:
      >>> from fpsim.train.slices import cut_evenly
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


def sliced_result(owner: Any, name: str, x: Tensor) -> SlicedResult | None:
    """Return an object that recomputes a layer's result in slices; call this before the layer, which counts a step.

    Args:
      owner: the module of the layer; `owner.sliced` says whether and how its results are computed again.
      name: the layer's name in it.
      x: the layer's input, (..., features).
    """
    recompute = owner.sliced.get(name)
    if recompute is None or not torch.is_grad_enabled():
        return None
    outer = getattr(owner, name)
    layer = getattr(outer, "linear", outer)
    factor = 1.0 if layer is outer else 1 / math.sqrt(layer.in_features)
    return SlicedResult(ProductReplay(layer, x), (*x.shape[:-1], layer.out_features), recompute, factor)


def sum_again(branch: Any, residual: Tensor, factors: tuple[float, float] = (1.0, 1.0)) -> SlicedSum | None:
    """Return a recomputation of the sum of a residual and a branch; None if the branch's last layer is not sliced.

    factors: those of the residual and of the branch.
    """
    again, branch.again = branch.again, None
    return None if again is None else SlicedSum(residual, again, *factors)


class SwiGLU(Storing):
    """The function silu(gate) * up of both halves of the last axis; it keeps only its input for the backward pass.

    Where `again` is passed, nothing waits: it computes the input once more, slice by slice.
    """

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations
        self.stash: Stash | None = None

    def store(self, stash: Stash) -> None:
        """Keep `stash(x)` of its input for the backward pass."""
        self.stash = stash

    def forward(self, x: Tensor, again: SlicedResult | None = None) -> Tensor:
        product: Tensor = _SwiGLU.apply(x, self.stash, again, self.operations)
        return product


@reported
class _SwiGLU(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, stash: Stash | None, again: SlicedResult | None, operations: Operations) -> Tensor:
        ctx.again, ctx.operations = again, operations
        if again is None:
            ctx.save_for_backward(x if stash is None else stash(x))
        return operations.swiglu(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None, None]:
        if ctx.again is None:
            return ctx.operations.swiglu_slopes(dy, ctx.saved_tensors[0]), None, None, None
        hidden = dy.shape[-1]
        rows = dy.reshape(-1, hidden)
        dx = torch.empty(rows.shape[0], 2 * hidden, dtype=dy.dtype)
        for part, columns, gate, up in ctx.again.parts():
            slopes = ctx.operations.swiglu_slopes(rows[part, columns], torch.cat((gate, up), -1))
            of_gate, of_up = slopes.chunk(2, -1)
            dx[part, columns] = of_gate
            dx[part, hidden + columns.start : hidden + columns.stop] = of_up
        return dx.reshape(*dy.shape[:-1], 2 * hidden), None, None, None
