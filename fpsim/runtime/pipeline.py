"""Runs of integer kernels over arrays of any shape: in one call if their memory is contiguous, else piece by piece.

A cast is one stage (float32 -> codes) or a few (float16 -> float32 -> codes -> float32). Several stages process pieces
that stay in the L2 cache, so that no temporary array is as large as the input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.lazy import deferred
from fpsim.runtime.threads import over_spans

numba = deferred("numba")

Array = npt.NDArray[Any]
PIECE = 1 << 17  # elements
AS_IT_IS = nullcontext()


class Stage(NamedTuple):
    """One kernel of a pipeline: run(source, target, first) fills `target`; dtype: dtype of the target.

    source, target: contiguous 1-D arrays of one size; first: flat index of their first element in the whole array.
    """

    run: Callable[[Array, Array, int], None]
    dtype: np.dtype[Any]  # of the target


def run_stages(stages: tuple[Stage, ...], source: Array, target: Array, first: int = 0) -> None:
    """Fill `target`, of the source's shape, by running the stages in sequence, each on the previous one's result.

    stages: the kernels, as Stage. source, target: arrays of any memory layout. first: flat index of the source's first
    element in the whole array, on which random numbers depend.
    """
    flags, native = target.flags, source.dtype.isnative and target.dtype.isnative
    if not (native and flags.aligned and flags.c_contiguous and source.flags.c_contiguous):
        with wrapping():
            _run_strided(stages, source, target, first)
        return
    flat_source, flat_target = (source, target) if source.ndim == 1 else (source.reshape(-1), target.reshape(-1))
    if flat_source.size <= PIECE:
        with wrapping():
            if len(stages) == 1:
                stages[0].run(flat_source, flat_target, first)
            else:
                _run_piece(stages, _buffers(stages, flat_source.size), flat_source, flat_target, first)
        return

    def work(start: int, stop: int) -> None:
        with wrapping():
            if len(stages) == 1:
                stages[0].run(flat_source[start:stop], flat_target[start:stop], first + start)
                return
            buffers = _buffers(stages, min(PIECE, stop - start))
            for begin in range(start, stop, PIECE):
                end = min(begin + PIECE, stop)
                _run_piece(stages, buffers, flat_source[begin:end], flat_target[begin:end], first + begin)

    over_spans(flat_source.size, work)


def wrapping() -> AbstractContextManager[Any]:
    """Return a context that silences NumPy's floating-point and overflow warnings if kernels run as plain Python.

    They do if numba's compiler is disabled. Kernels rely on integers that wrap around.
    """
    return np.errstate(all="ignore") if numba().config.DISABLE_JIT else AS_IT_IS


def _run_strided(stages: tuple[Stage, ...], source: Array, target: Array, first: int) -> None:
    """Fill `target` from `source` by the stages, a block at a time; both may have gaps or a foreign byte order.

    stages: as for `run_stages`. first: flat index of the source's first element in the whole array.
    """
    buffers = _buffers(stages, min(PIECE, source.size))
    result = np.empty(min(PIECE, source.size), stages[-1].dtype)
    for index in blocks(source.shape):
        block = source[index]
        piece = np.ascontiguousarray(block, block.dtype.newbyteorder("=")).reshape(-1)
        _run_piece(stages, buffers, piece, result[: piece.size], first)
        target[index] = result[: piece.size].reshape(block.shape)
        first += piece.size


def _buffers(stages: tuple[Stage, ...], size: int) -> list[Array]:
    """Return 1-D scratch arrays of `size` elements for the results of all stages but the last."""
    return [np.empty(size, stage.dtype) for stage in stages[:-1]]


def _run_piece(stages: tuple[Stage, ...], buffers: list[Array], source: Array, target: Array, first: int) -> None:
    """Run the stages in sequence on one piece, `source`, and write the last one's result to `target`; both are 1-D.

    buffers: scratch for the results of the other stages, as `_buffers` returns it, at least as long as the piece.
    first: flat index of the piece's first element in the whole array.
    """
    for stage, buffer in zip(stages, buffers, strict=False):
        stage.run(source, buffer[: source.size], first)
        source = buffer[: source.size]
    stages[-1].run(source, target, first)


def blocks(shape: tuple[int, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield indices of blocks of up to PIECE (2**17) elements that cover an array of `shape` in C order.

    An index is a tuple of integers, slices and `...`. An array without elements has no blocks.
    """
    size = int(np.prod(shape, dtype=np.int64))
    if size == 0:
        return
    if size <= PIECE:
        yield (...,)
        return
    row = size // shape[0]
    if row <= PIECE:
        step = PIECE // row
        for start in range(0, shape[0], step):
            yield (slice(start, start + step),)
        return
    for i in range(shape[0]):
        for rest in blocks(shape[1:]):
            yield (i, *rest)
