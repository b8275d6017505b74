"""The schedules of cuBLAS in plain NumPy: slices of K, tiles, lanes and their joins."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

import fpsim as fp
from tests.oracles.schedules import (
    Array,
    Job,
    Span,
    add,
    cast,
    ceiling,
    cublas_end,
    cut,
    dots,
    f32,
    fma,
    forward,
    over,
    rounded,
    scaled,
    source_first,
    with_bias,
    zeros,
)

# ---- cuBLAS: slices of K


def nvjet_slices(k: int, slices: int, block: int, tail_loss: bool = True) -> list[Span]:
    """Whole blocks; cuBLAS's own count leaves out what lies past the last slice."""
    if tail_loss:
        chunk = max(ceiling(k // slices, block), 1) * block
    else:
        chunk = max(ceiling(ceiling(k, block), slices), 1) * block
    return [(j * chunk, min((j + 1) * chunk, k)) for j in range(slices) if j * chunk < k]


def nvjet(job: Job, split_k: int = 1, fast_accum: bool = False, tail_loss: bool = True) -> Array:
    """Return a chain for each slice; FP8 on Hopper in blocks of 128, added in order, the first unchanged."""
    two_levels = job.is_fp8 and job.unit.arch == "hopper" and not fast_accum

    def of_slice(span: Span) -> Array:
        if not two_levels:
            return dots(job, over(span))
        return forward([dots(job, over(block)) for block in cut(*span, 128)])

    spans = nvjet_slices(job.k, split_k, 128 if job.is_fp8 else 64, tail_loss)
    return cublas_end(job, forward([of_slice(span) for span in spans]), rows_in_turn=job.unit.arch == "hopper")


def residue_first(job: Job, span: Span, block_k: int, step: int) -> Array:
    """Return the accumulator after 0, step, 2 * step, .., residue, residue + step, .. terms of a slice."""
    start, stop = span
    residue = start + (stop - start) % block_k
    total = None
    for piece in [*cut(start, residue, step), *cut(residue, stop, step)]:
        total = dots(job, over(piece), total)
    assert total is not None
    return total


def cutlass_slices(k: int, slices: int) -> list[Span]:
    """Grains of 64 terms where they divide K, else of 8."""
    grain = 64 if k % 64 == 0 else 8
    return cut(0, k, ceiling(ceiling(k, grain), slices) * grain)


def cutlass(job: Job, split_k: int = 1, merge: int = 2, block_k: int = 32, step: int = 16) -> Array:
    """Kernels for operands without alignment; merge: the REDUCTION_SCHEME."""
    fmt = job.out_fmt
    parts = [residue_first(job, span, block_k, step) for span in cutlass_slices(job.k, split_k)]
    if merge == 2 or len(parts) == 1:
        return cast(with_bias(job, source_first(job, forward(parts))), fmt)
    if merge == 4:
        return cast(with_bias(job, source_first(job, forward([rounded(part, fmt) for part in parts]))), fmt)
    total = rounded(source_first(job, parts[0]), fmt)
    for part in parts[1:]:
        total = rounded(scaled(job, part, total), fmt)
    return cast(with_bias(job, total), fmt)


def dealt(k: int, slices: int) -> list[Array]:
    """Return the terms of every slice: tiles of 64 go to the slices in turn."""
    terms = np.arange(k)
    return [terms[terms // 64 % slices == s] for s in range(slices)]


def from_both_ends(parts: Sequence[Array]) -> Array:
    """Return the last part plus every part of the first half, to which its partner in the second half was added."""
    count = len(parts)
    half = ceiling(count, 2)
    slots = [add(parts[i], parts[i + half]) if i + half < count - 1 else parts[i] for i in range(half)]
    return reduce(add, slots if count > 1 else [], parts[-1])


def xmma(job: Job, split_k: int = 1, merge: str = "serial", fast_accum: bool = False) -> Array:
    """FP8 on Ada: a slice adds the terms of its tiles, with a promotion every 128 of them."""

    def of_slice(terms: Array) -> Array:
        if fast_accum:
            return dots(job, terms)
        parts = [dots(job, terms[over(span)]) for span in cut(0, terms.size, 128)]
        return reduce(add, parts, zeros(job))

    parts = [of_slice(terms) if terms.size else zeros(job) for terms in dealt(job.k, split_k)]
    return cublas_end(job, from_both_ends(parts) if merge == "pairwise" else forward(parts))


# ---- cuBLAS without tensor cores: a lane is a chain of fp.fma from +0


def lane_sums(job: Job, lanes: Sequence[Sequence[int]], stop: int | None = None) -> Array:
    """Return the chain from +0 of every lane over its terms, (lanes, M, N); terms from `stop` on do not exist."""
    a, b = fp.decode(job.a, job.unit.a.fmt), fp.decode(job.b, job.unit.b.fmt)
    terms_of = [[k for k in lane if k < (job.k if stop is None else stop)] for lane in lanes]
    total = np.zeros((len(terms_of), *job.shape), f32)
    for i in range(max(map(len, terms_of))):
        busy = [lane for lane, terms in enumerate(terms_of) if i < len(terms)]
        terms = [terms_of[lane][i] for lane in busy]
        total[busy] = fma(a.T[terms][:, :, None], b[terms][:, None, :], total[busy])
    return total


def runs(start: int, stop: int, size: int) -> list[range]:
    """Contiguous terms of a number of lanes."""
    return [range(*span) for span in cut(start, stop, size)]


def gemm_sn(job: Job, option: int = 0) -> Array:
    """Threads with contiguous terms, in sub-blocks; everything joins from 0."""
    threads, block = {0: (2, 256), 1: (4, 128)}[option]
    total = zeros(job)
    for thread in runs(0, job.k, ceiling(job.k, threads)):
        total = add(total, reduce(add, lane_sums(job, runs(thread.start, thread.stop, block)), zeros(job)))
    return cublas_end(job, total)


def magma(job: Job) -> Array:
    """One thread, one chain."""
    return cublas_end(job, lane_sums(job, [range(job.k)])[0])


def butterfly(lanes: Array, last: int = 1) -> Array:
    """Lane l takes lane l + W / 2, then l + W / 4, and so on, until `last` are left."""
    while len(lanes) > last:
        lanes = add(lanes[: len(lanes) // 2], lanes[len(lanes) // 2 :])
    return lanes


def gemv(job: Job, row: tuple[int, int, int, bool], split_k: int = 1) -> Array:
    """row: terms of a run (negative: up to that many), lanes, tiles of a chunk or 0, whether lanes join by butterfly.

    Lanes take runs in turn; chunks of tiles have chains of their own. Every slice takes runs as long as the first,
    which is the longest.
    """
    run, width, chunk, tree = row
    size = ceiling(job.k, split_k)
    run = run if run > 0 else min(-run, ceiling(size, width))

    def of_slice(start: int, stop: int) -> Array:
        def of_tiles(tiles: range) -> Array:
            places = [range(start + tile * run * width, start + (tile + 1) * run * width) for tile in tiles]
            of_lanes = [[k for place in places for k in place[lane * run : (lane + 1) * run]] for lane in range(width)]
            return lane_sums(job, of_lanes, stop)

        tiles = ceiling(stop - start, run * width)
        lanes = forward([of_tiles(range(*chunks)) for chunks in cut(0, tiles, chunk or tiles)])
        return butterfly(lanes)[0] if tree else forward(list(lanes))

    return cublas_end(job, forward([of_slice(*span) for span in cut(0, job.k, size)]))


def gemv_slices(job: Job) -> Array:
    """CUSTOM_OPTION 5: 32 lanes with contiguous terms, in chunks of 16."""
    lanes = runs(0, job.k, ceiling(job.k, 32))
    return cublas_end(job, forward([forward(list(lane_sums(job, runs(x.start, x.stop, 16)))) for x in lanes]))


def dot(job: Job, split_k: int = 1) -> Array:
    """dot_kernel, whose blocks of 128 threads take tiles in turn, and reduce_1Block_kernel."""
    chains = 2 if job.shape[1] == 1 else 1
    tiles = ceiling(job.k, 128 * chains)

    def of_block(block: int) -> Array:
        """p: threads join by butterfly."""
        places = [[tile * chains * 128 + s for tile in range(block, tiles, split_k)] for s in range(chains)]
        sums = [lane_sums(job, [[k + t * chains for k in place] for t in range(128)]) for place in places]
        joined: Array = butterfly(reduce(add, sums, np.zeros_like(sums[0])))[0]
        return joined

    p = [of_block(block) for block in range(split_k)] + [zeros(job)] * (-split_k % 128)
    q = butterfly(forward([np.stack(p[i : i + 128]) for i in range(0, len(p), 128)]), 32)
    return cublas_end(job, forward([forward(list(q[j::4])) for j in range(4)]))
