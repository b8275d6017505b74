"""Runs of integer kernels over several arrays at once, which may be broadcast and have any memory layout."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fpsim.runtime.pipeline import PIECE, Array, blocks, wrapping
from fpsim.runtime.threads import over_spans

# (sources, targets, flat index of the start), all arrays contiguous, 1-d and of one length
Run = Callable[[tuple[Array, ...], tuple[Array, ...], int], None]


def run_elementwise(
    run: Run, sources: tuple[Array, ...], targets: tuple[Array, ...], shape: tuple[int, ...], whole: bool = True
) -> None:
    """Compute arrays element by element from others: call `run` on pieces of `sources` to fill pieces of `targets`.

    run: function (sources, targets, first) of two tuples of contiguous 1-D pieces of equal size, one per array, and the
    flat index of their first element. shape: that of the targets, to which the sources broadcast. whole: True if a
    thread may process its part of the arrays in one call, False for pieces of at most PIECE (2**17) elements. An
    exception of `run` is raised to the caller.
    """
    if targets[0].size <= PIECE:
        plain_sources, plain_targets = _plain(sources, shape), _plain(targets, shape)
        if plain_sources is not None and plain_targets is not None:
            with wrapping():
                run(plain_sources, plain_targets, 0)
            return
    flat_sources = [_flat(source, shape) for source in sources]
    flat_targets = [_flat(target, shape) for target in targets]
    if any(array is None for array in (*flat_sources, *flat_targets)):
        with wrapping():
            _run_strided(run, sources, targets, shape)
        return
    size = int(np.prod(shape, dtype=np.int64))
    whole = whole and all(source.size == size for source in flat_sources if source is not None)

    def work(start: int, stop: int) -> None:
        step = max(stop - start, 1) if whole else PIECE
        constants = [
            np.full(min(PIECE, stop - start), source) if source is not None and source.size != size else None
            for source in flat_sources
        ]
        with wrapping():
            for begin in range(start, stop, step):
                end = min(begin + step, stop)
                pieces = tuple(
                    source[begin:end] if constant is None else constant[: end - begin]  # type: ignore[index]
                    for source, constant in zip(flat_sources, constants, strict=True)
                )
                run(pieces, tuple(target[begin:end] for target in flat_targets), begin)  # type: ignore[index]

    over_spans(size, work)


def _plain(arrays: tuple[Array, ...], shape: tuple[int, ...]) -> tuple[Array, ...] | None:
    """Return arrays as 1-D views if all have `shape`, C order, aligned elements and native byte order, else None."""
    flat = []
    one_axis = len(shape) == 1
    for array in arrays:
        flags = array.flags
        if array.shape != shape or not (flags.c_contiguous and flags.aligned and array.dtype.isnative):
            return None
        flat.append(array if one_axis else array.reshape(-1))
    return tuple(flat)


def _flat(array: Array, shape: tuple[int, ...]) -> Array | None:
    """Return an array as a 1-D view, of size 1 if it has one element; None if a view is not possible.

    It is possible if the array is aligned and of native byte order and, with more than one element, has `shape` and is
    C-contiguous.
    """
    if not (array.dtype.isnative and array.flags.aligned):
        return None
    if array.size == 1:
        return array.reshape(1)
    return array.reshape(-1) if array.shape == shape and array.flags.c_contiguous else None


def _run_strided(run: Run, sources: tuple[Array, ...], targets: tuple[Array, ...], shape: tuple[int, ...]) -> None:
    """Call `run` on copied pieces of arrays that are broadcast along an axis, have gaps, or a foreign byte order.

    run, sources, targets, shape: as for `run_elementwise`.
    """
    full_sources = [np.broadcast_to(source, shape) for source in sources]
    first = 0
    for index in blocks(shape):
        pieces = tuple(
            np.ascontiguousarray(source[index], source.dtype.newbyteorder("=")).reshape(-1) for source in full_sources
        )
        results = tuple(np.empty(pieces[0].size, target.dtype.newbyteorder("=")) for target in targets)
        run(pieces, results, first)
        for target, result in zip(targets, results, strict=True):
            target[index] = result.reshape(target[index].shape)
        first += pieces[0].size
