"""Results of linear layers that the backward pass computes again in slices, and functions that take such results."""

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
    """The result of a linear layer that is not stored for the backward pass, but computed again in slices.

    Args:
      replay: the layer's forward product, which can be repeated.
      shape: the shape of the result, (..., features).
      recompute: the axis ("m", "n" or "k") and number of slices.
      factor: the number that multiplies the result after the product (unit scaling).
    """

    def __init__(self, replay: ProductReplay, shape: Any, recompute: Recompute, factor: float = 1.0) -> None:
        self.replay, self.shape, self.recompute, self.factor = replay, tuple(shape), recompute, factor

    def whole(self) -> Tensor:
        """Return the whole result, computed slice by slice; afterwards release the quantised operands."""
        if self.recompute.by == "k":
            result = self.replay.over_terms(self.recompute.slices)
        else:
            blocks = [self.replay.part(rows, columns) for rows, columns in self._blocks(self.shape[-1])]
            result = torch.cat(blocks, 0 if self.recompute.by == "m" else -1)
        self.replay.forget()
        return self._times(result).reshape(self.shape)

    def parts(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield (rows, columns, gate, up) for each slice of SwiGLU's input; rows and columns index SwiGLU's result.

        gate, up: the halves of the slice. Slices of "k" are added first, so that the whole input is one piece. The
        operands are released after the last slice.
        """
        width = self.shape[-1] // 2
        for rows, columns in self._blocks(width):
            if self.recompute.by == "k":
                gate, up = self._times(self.replay.over_terms(self.recompute.slices)).chunk(2, -1)
            elif self.recompute.by == "m":
                gate, up = self._times(self.replay.part(rows, slice(0, 2 * width))).chunk(2, -1)
            else:
                gate = self._times(self.replay.part(rows, columns))
                up = self._times(self.replay.part(rows, slice(width + columns.start, width + columns.stop)))
            yield rows, columns, gate, up
        self.replay.forget()

    def _blocks(self, width: int) -> list[tuple[slice, slice]]:
        """Return (rows, columns) of each slice of the result's first `width` columns; one pair if K is sliced."""
        length, slices = math.prod(self.shape[:-1]), self.recompute.slices
        rows, columns = [slice(0, length)], [slice(0, width)]
        if self.recompute.by == "m":
            rows = cut_evenly(length, slices, self.replay.row_tile)
        elif self.recompute.by == "n":
            columns = cut_evenly(width, slices, self.replay.column_tile)
        return [(some_rows, some_columns) for some_rows in rows for some_columns in columns]

    def _times(self, x: Tensor) -> Tensor:
        """Return x times the factor of unit scaling; x itself if that is 1."""
        return x if self.factor == 1.0 else x * self.factor


class SlicedSum(NamedTuple):
    """The sum keep * residual + share * result of a residual and a layer; only the residual is stored.

    Attributes:
      residual: the residual.
      result: the layer's result, which is computed again in slices.
      keep, share: the factors; 1 without unit scaling.
    """

    residual: Tensor
    result: SlicedResult
    keep: float = 1.0
    share: float = 1.0

    def of(self, residual: Tensor) -> Tensor:
        """Return keep * residual + share * result for `residual`, with the layer's result computed again in slices."""
        result = self.result.whole()
        return residual + result if self.keep == 1.0 else residual * self.keep + result * self.share


def read_again(x: Tensor, then: Callable[[Tensor], Tensor], again: SlicedResult | SlicedSum | None) -> Tensor:
    """Return then(x) without storing x or intermediate results; the backward pass computes x and then(x) again.

    Args:
      x: the result of a layer, or its sum with a residual.
      then: the operation that reads x; its layers draw the same random numbers in both runs.
      again: recomputes x; None to call `then` alone, so that it stores what its backward pass needs.
    """
    if again is None or not torch.is_grad_enabled():
        return then(x)
    if isinstance(again, SlicedResult):
        result: Tensor = _ReadAgain.apply(x, None, lambda _: again.whole(), then)
    else:
        result = _ReadAgain.apply(x, again.residual.detach(), again.of, then)
    return result


class _ReadAgain(Function):  # type: ignore[misc]
    """The torch function y = then(x) that saves neither x nor the intermediate results of `then`.

    Its backward pass computes x again as again(kept), calls `then` again, and differentiates that. kept: a tensor that
    is saved for `again` (the residual of a `SlicedSum`), or None.
    """

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
    """Divide the indices 0 to length - 1 into `slices` slices, each of whole tiles or each within one tile.

    tile: the number of neighbouring elements that share a scale.

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
    """Return an object that recomputes a layer's result in slices; None if the layer isn't sliced or gradients are off.

    Call this before the layer, whose forward pass advances its counter of random draws.

    Args:
      owner: the module that contains the layer; `owner.sliced` is {layer: how its result is recomputed}.
      name: the layer's name in `owner`.
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
    """Return an object that recomputes a residual plus a branch; None if the branch's last layer is not sliced.

    branch: a module after its forward pass, which has set `branch.again` to the `SlicedResult` of its last layer, or
    to None; this function resets it to None. factors: the numbers that multiply the residual and the branch.
    """
    again, branch.again = branch.again, None
    return None if again is None else SlicedSum(residual, again, *factors)


class SwiGLU(Storing):
    """The module silu(gate) * up, where gate and up are the halves of the input's last axis.

    It saves only its input for the backward pass, or nothing if `again` is passed to `forward`, which recomputes the
    input slice by slice.
    """

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations
        self.stash: Stash | None = None

    def store(self, stash: Stash) -> None:
        """Make the module save `stash(x)` instead of its input x for the backward pass.

        stash: a function from a tensor to a tensor of its shape and dtype.
        """
        self.stash = stash

    def forward(self, x: Tensor, again: SlicedResult | None = None) -> Tensor:
        """Return silu(gate) * up; again: recomputes x in slices in the backward pass, None to save x."""
        product: Tensor = _SwiGLU.apply(x, self.stash, again, self.operations)
        return product


@reported
class _SwiGLU(Function):  # type: ignore[misc]
    """A torch function: SwiGLU, silu(gate) * up, for an input x (..., 2 n) whose halves are gate and up.

    For the backward pass it saves nothing if `again` recomputes x slice by slice; else stash(x), or x itself if `stash`
    is None.
    """

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
