"""The rounding mode of a block of code, for the arrays of `fpsim.array`: `with fp.rounding("toward_zero"):`."""

from __future__ import annotations

from contextvars import ContextVar
from types import TracebackType
from typing import Any, NamedTuple

from fpsim.formats.cast_options import cast_options
from fpsim.formats.named import FP32
from fpsim.formats.rounding import Rounding


class _Block(NamedTuple):
    """An active `with` block of `rounding`, linked to the block that encloses it.

    Attributes:
      owner: its `rounding` object.
      spent: number of seeds that operations in it have used.
      outer: the enclosing block, or None.
    """

    owner: rounding
    spent: int
    outer: _Block | None


# Never changed in place, so that a task or thread that runs in a copied context counts on by itself.
_BLOCK: ContextVar[_Block | None] = ContextVar("fpsim_rounding", default=None)


class rounding:
    """A `with` block in which arrays of `fpsim.array` are rounded in this mode; functions keep their own `rounding=`.

    The mode holds in the current context only: other threads and asyncio tasks are not affected, a task that starts
    inside the block inherits it, and the previous mode returns when the block ends, by an exception too. Blocks
    nest. One object serves any number of blocks, and each begins anew.

    In the stochastic mode each operation that rounds uses the next seed: the n-th, from 0, uses (seed + n) % 2**64. The
    conversion of values to a format counts as one, `x + 0.1` thus as two, and each multiplication of a power and each
    product and sum of `@` as one; operations that are always exact (signs, comparisons, indexing) count as none. So
    results of a block do not share random numbers, and a rerun repeats them. Two blocks, or two tasks that start inside
    one, share random numbers where their seeds overlap: give them seeds that are far apart.

    Args:
      mode: any name that `rounding=` of `fpsim.encode` accepts.
      seed: the seed of the stochastic mode, which needs one: 0 to 2**64 - 1.
      random_bits: how many random bits the stochastic mode compares with the dropped fraction, 1 to 32.

    Raises:
      ValueError: at once, for an unknown mode, a stochastic one without a seed, or a number out of range.
      RuntimeError: blocks end in another order than that of nesting, as generators can make them do.

    Example:
      >>> import fpsim as fp
      >>> x = fp.array([1, 2, 3], fp.E4M3)
      >>> with fp.rounding("up"):
      ...     x / 3
      fp.array([0.34375, 0.6875, 1], E4M3)
      >>> for _ in range(2):
      ...     with fp.rounding("stochastic", seed=2):
      ...         fp.array([0.3] * 5, fp.E4M3), fp.array([0.3] * 5, fp.E4M3)
      (fp.array([0.3125, 0.3125, 0.3125, 0.28125, 0.28125], E4M3),
       fp.array([0.3125, 0.28125, 0.3125, 0.3125, 0.28125], E4M3))
      (fp.array([0.3125, 0.3125, 0.3125, 0.28125, 0.28125], E4M3),
       fp.array([0.3125, 0.28125, 0.3125, 0.3125, 0.28125], E4M3))
    """

    def __init__(self, mode: str | Rounding, *, seed: int | None = None, random_bits: int = 32) -> None:
        self._options = cast_options(
            FP32, mode, seed=seed, random_bits=random_bits
        )  # the same checks and error messages

    def __enter__(self) -> None:
        _BLOCK.set(_Block(self, 0, _BLOCK.get()))

    def __exit__(
        self, kind: type[BaseException] | None, reason: BaseException | None, trace: TracebackType | None
    ) -> None:
        block = _BLOCK.get()
        _BLOCK.set(_without(block, self))
        if block is None or block.owner is not self:
            raise RuntimeError(
                "rounding blocks must end in the reverse order of their beginnings; got one that is not the innermost. "
                "Begin and end a block between two yields of a generator."
            )


def _without(block: _Block | None, owner: rounding) -> _Block | None:
    """Return the stack of active blocks without the innermost one that `owner` began; None if no block is left.

    block: the innermost active block, which refers to the enclosing ones, or None. A stack without a block of `owner`
    is returned unchanged.
    """
    if block is None or block.owner is owner:
        return block and block.outer
    return block._replace(outer=_without(block.outer, owner))


def rounding_keywords() -> dict[str, Any]:
    """Return the keywords `rounding`, and if stochastic `seed` and `random_bits`, for the next operation.

    They are those of the innermost `with fpsim.rounding` block of the current context; outside of any block the mode is
    nearest even. Each call in a stochastic block uses up one seed.
    """
    block = _BLOCK.get()
    if block is None:
        return {"rounding": Rounding.NEAREST_EVEN}
    options = block.owner._options
    if options.rounding is not Rounding.STOCHASTIC:
        return {"rounding": options.rounding}
    assert options.seed is not None
    _BLOCK.set(block._replace(spent=block.spent + 1))
    seed = (options.seed + block.spent) % 2**64
    return {"rounding": options.rounding, "seed": seed, "random_bits": options.random_bits}
