"""A matrix product without matrix units on the GPU: each output's partial sums (lanes), and how they are joined."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
from numba import cuda

from fpsim.core import exact_arithmetic
from fpsim.core.encode import encode_fields
from fpsim.core.layouts import unpack_layout
from fpsim.core.number import unpack, unpack_fields
from fpsim.core.pack import NO_FLAG, pack
from fpsim.core.rounding import NEAREST_EVEN
from fpsim.gpu.device.launch import gpu_kernel, launch, scratch, uploaded
from fpsim.gpu.products.float_matrix import OF_FLOAT, TO_FLOAT, FloatMatrices
from fpsim.gpu.products.gpu_product import GpuProduct
from fpsim.gpu.products.unit_product import taken
from fpsim.products.kernels.lane_rows import BLOCKS, FORWARD, LAST, THREADS, WARP, LaneFacts
from fpsim.products.lane_product import lane_facts
from fpsim.schedules.plan import Span
from fpsim.schedules.schedule import Lanes

f32, i64, u32, u64 = np.float32, np.int64, np.uint32, np.uint64

# The numbers of a schedule, in the order in which the kernel reads them
LANES, RUN, CHUNK, CHUNKS, GROUPS, TILE, START, STOP = range(8)


@cache
def lane_sums_kernel() -> Any:
    """Return the GPU kernel (a, b, out, numbers, first, of_a, of_b, of_float, to_float) -> None that sums by lanes.

    A lane is a partial sum of one output: fused multiply-adds from +0. a: (M, K), b: (K, N) codes. out: (groups, lanes,
    M * N) float32 bits, which receives the sum of every lane of every group for every output.

    numbers: integers (lanes, run, chunk, chunks, groups, tile, start, stop). Terms start .. stop - 1 form tiles of
    `tile` terms; tile t belongs to group t modulo groups. Within a tile, runs of `run` terms go to lanes 0, 1, ...,
    lanes - 1, 0, 1 and so on. After every `chunk` terms (0: never) a lane's sum is added to its total and starts again
    at +0; a lane with fewer than `chunks` such sums adds +0 for each missing one. first: float32 bits at which a lane's
    total starts. of_a, of_b, of_float: UnpackLayouts, as integers. to_float: the EncodeLayout of float32.
    """

    def sums(
        a: Any, b: Any, out: Any, numbers: Any, first: Any, of_a: Any, of_b: Any, of_float: Any, to_float: Any
    ) -> None:
        fa, fb, f, to = unpack_fields(of_a), unpack_fields(of_b), unpack_fields(of_float), encode_fields(to_float)
        lanes, run, chunk, tile = numbers[LANES], numbers[RUN], numbers[CHUNK], numbers[TILE]
        outputs, columns = out.shape[2], b.shape[1]
        for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
            output, lane, group = i % outputs, (i // outputs) % lanes, i // (outputs * lanes)
            m, n = output // columns, output % columns
            chain, total = u64(0), u64(first)
            terms, closed = i64(0), i64(0)
            for k0 in range(numbers[START] + group * tile, numbers[STOP], numbers[GROUPS] * tile):
                k1 = min(k0 + tile, numbers[STOP])
                for turn in range(k0 + lane * run, k1, lanes * run):
                    for k in range(turn, min(turn + run, k1)):
                        if chunk > 0 and terms == chunk:
                            exact, _ = exact_arithmetic.add(unpack(total, f), unpack(chain, f), NEAREST_EVEN)
                            total, _ = pack(exact, NO_FLAG, u64(0), to, NEAREST_EVEN, u64(0))
                            chain, terms, closed = u64(0), i64(0), closed + i64(1)
                        x, y = unpack(u64(a[m, k]), fa), unpack(u64(b[k, n]), fb)
                        exact, _ = exact_arithmetic.fma(x, y, unpack(chain, f), NEAREST_EVEN)
                        chain, _ = pack(exact, NO_FLAG, u64(0), to, NEAREST_EVEN, u64(0))
                        terms += i64(1)
            while chunk > 0 and (terms > 0 or closed < numbers[CHUNKS]):
                exact, _ = exact_arithmetic.add(unpack(total, f), unpack(chain, f), NEAREST_EVEN)
                total, _ = pack(exact, NO_FLAG, u64(0), to, NEAREST_EVEN, u64(0))
                chain, terms, closed = u64(0), i64(0), closed + i64(1)
            out[group, lane, output] = total if chunk > 0 else chain

    return gpu_kernel(sums)


def lane_product(product: GpuProduct, lanes: Lanes, run: int, terms: Span, backend: FloatMatrices) -> Any:
    """Return a[:, terms] @ b[terms] as (M, N) float32 bits, added in a schedule's lanes.

    product: codes of a and b. lanes: which lane (partial sum of an output) adds which terms, and in which order the
    lanes are added. run: number of consecutive terms that go to a lane before the next lane's turn. terms: (start, end)
    of the terms along K that are added. backend: the GPU, which adds the sums of lanes.
    """
    shape = product.a.shape[0], product.b.shape[1]
    outputs = math.prod(shape)
    if terms.terms == 0 or outputs == 0:
        return backend.filled(shape, u32(0))
    facts = lane_facts(lanes, run, terms.terms, shape[1])
    groups = min(facts.groups, -(-terms.terms // facts.tile))  # those that have terms
    sums = scratch((groups, facts.lanes, outputs), u32)
    numbers = np.array([facts.lanes, facts.run, facts.chunk, facts.chunks, facts.groups, facts.tile, *terms], i64)
    layouts = [unpack_layout(element.carrier, "keep") for element in (product.unit.a, product.unit.b)]
    launch(
        lane_sums_kernel(), backend.like, groups * facts.lanes * outputs, product.a, product.b, sums, uploaded(numbers),
        f32(facts.chunks_start).view(u32), *map(uploaded, layouts), uploaded(OF_FLOAT), uploaded(TO_FLOAT),
    )  # fmt: skip
    totals = backend.filled((max(facts.groups, THREADS) if facts.merge == BLOCKS else 1, outputs),
                       f32(facts.lanes_start).view(u32))  # fmt: skip
    for g in range(groups):
        _join_lanes(sums[g], facts, totals[g : g + 1], backend)
    if facts.merge == BLOCKS:
        _join_groups(totals, facts.groups, backend)
    return totals[0].reshape(*shape)


def _join_lanes(sums: Any, facts: LaneFacts, total: Any, backend: FloatMatrices) -> None:
    """Add the sums of a group's lanes (partial sums) to the group's total, in place, in the order of facts.merge.

    FORWARD adds one lane after the other; BUTTERFLY adds the second half of the lanes to the first until one is left;
    BLOCKS first adds up adjacent lanes until THREADS are left, and then does as BUTTERFLY. sums: (lanes, outputs)
    float32 bits, overwritten. facts: number of lanes and order of additions. total: (1, outputs). backend: the GPU,
    which adds.
    """
    count = facts.lanes
    if facts.merge == BLOCKS and count > THREADS:  # a thread of dot_kernel adds its chains to +0
        chains = count // THREADS
        of_chains = [np.arange(chain, count, chains, dtype=np.int32) for chain in range(chains)]
        sums, *others = (taken(sums, lanes, True, backend) for lanes in of_chains)
        for other in others:
            backend.add(sums, other, out=sums)
        count = THREADS
    if facts.merge != FORWARD:
        count = _halve(sums, count, 1, backend)
    for lane in range(count):
        backend.add(total, sums[lane : lane + 1], out=total)


def _halve(sums: Any, count: int, left: int, backend: FloatMatrices) -> int:
    """Add the second half of the first `count` rows of `sums` to the first half, and so on until `left` rows are left.

    Return the number of rows left, which is count if count <= left. sums: float32 bits, changed in place. count: a
    power of two. backend: the GPU, which adds.
    """
    half = count // 2
    while half >= left:
        backend.add(sums[:half], sums[half : 2 * half], out=sums[:half])
        count, half = half, half // 2
    return count


def _join_groups(groups: Any, count: int, backend: FloatMatrices) -> None:
    """Add the sums of `count` groups, rows of `groups`, into its first row, as cuBLAS's reduce_1Block_kernel does.

    Row g >= 128 is added to row g % 128. Then the second half of the 128 rows is added to the first, until 32 are left.
    Then row g of 4 .. 31 is added to row g % 4, and rows 1 .. 3 to row 0. groups: (at least 128, outputs) float32 bits,
    overwritten; rows from `count` on are zeros. backend: the GPU, which adds.
    """
    for start in range(THREADS, count, THREADS):
        stop = min(start + THREADS, count)
        backend.add(groups[: stop - start], groups[start:stop], out=groups[: stop - start])
    _halve(groups, THREADS, WARP, backend)
    for start in range(LAST, WARP, LAST):
        backend.add(groups[:LAST], groups[start : start + LAST], out=groups[:LAST])
    for g in range(1, LAST):
        backend.add(groups[:1], groups[g : g + 1], out=groups[:1])
