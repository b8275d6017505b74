"""bitsandbytes' NF4: the code of the nearest entry of a table, with one scale per flat block."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.analysis.tensors.layouts.bitsandbytes import BLOCK, NF4
from fpsim.analysis.tensors.writing.weights import LayoutOptions, Stored, WeightToWrite, WrittenWeight
from fpsim.arrays import Array

F32, U8 = np.dtype(np.float32), np.dtype(np.uint8)


def nf4(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Return bitsandbytes' NF4 with a scale per 64 elements of the flat matrix, whose blocks may cross rows.

    A code is the index of the entry nearest to w / absmax; of two that are equally near, the lower one.

    Source: bitsandbytes 0.50.2, which writes the same bytes.
    """
    size = math.prod(weight.shape)
    state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": weight.dtype, "shape": list(weight.shape)}
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors: Stored = {
        "weight": (U8, (-(-size // 2), 1)), "weight.absmax": (F32, (-(-size // BLOCK),)),
        "weight.quant_map": (F32, (16,)), "weight.quant_state.bitsandbytes__nf4": (U8, text.shape),
    }  # fmt: skip
    table = np.array(NF4, np.float32)
    middles = ((table[1:].astype(np.float64) + table[:-1]) / 2).astype(np.float32)

    def pieces() -> Iterator[tuple[str, Array]]:
        held = np.empty(0, np.float32)
        for band in weight.bands(1):
            held = np.concatenate([held, band.reshape(-1)]) if held.size else band.reshape(-1)
            whole = held.size // BLOCK * BLOCK
            yield from _coded(held[:whole], middles)
            held = held[whole:].copy()
        yield from _coded(held, middles)
        yield "weight.quant_map", table
        yield "weight.quant_state.bitsandbytes__nf4", text

    return WrittenWeight(tensors, pieces)


def _coded(values: Array, middles: Array) -> Iterator[tuple[str, Array]]:
    """Yield the codes and scales of successive flat blocks; the last block may be shorter."""
    if not values.size:
        return
    padded = np.pad(values, (0, -values.size % BLOCK)) if values.size % BLOCK else values
    blocks = padded.reshape(-1, BLOCK)
    largest = np.maximum(blocks.max(-1), -blocks.min(-1)) + np.float32(0)  # of zeros 0, not -0
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(largest[:, None] > 0, blocks / largest[:, None], np.float32(0))
    flat, codes = ratios.reshape(-1), np.zeros(ratios.size, np.uint8)
    for start in range(0, flat.size, CHUNK):  # a chunk stays in the cache; 15 comparisons are faster than a search
        part = slice(start, start + CHUNK)
        for middle in middles:
            codes[part] += flat[part] > middle
    pairs = (codes[::2] << np.uint8(4)) | codes[1::2]
    yield "weight", pairs[: -(-values.size // 2)]
    yield "weight.absmax", largest
