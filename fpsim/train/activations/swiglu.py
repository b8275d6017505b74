"""SwiGLU, whose input is the largest activation of a block: kept as it is or in a format, or computed again."""

from __future__ import annotations

from typing import Any

from fpsim.torch.operators import Tensor, torch
from fpsim.train.activations.recomputation import SlicedHidden
from fpsim.train.activations.storing import Stash, Storing
from fpsim.train.operations.operations import Operations
from fpsim.train.operations.trace import reported

Function: Any = torch.autograd.Function


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

    def forward(self, x: Tensor, again: SlicedHidden | None = None) -> Tensor:
        product: Tensor = _SwiGLU.apply(x, self.stash, again, self.operations)
        return product


@reported
class _SwiGLU(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, stash: Stash | None, again: SlicedHidden | None, operations: Operations) -> Tensor:
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
