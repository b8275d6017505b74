"""bitsandbytes' layouts: NF4 with a scale per flat block (perhaps quantised itself), and INT8 with a scale per row.

bitsandbytes 0.50.2 on a CPU writes the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.analysis.tensors.layouts.bitsandbytes import BLOCK, NF4, dynamic_table
from fpsim.analysis.tensors.writing.means import torch_mean
from fpsim.analysis.tensors.writing.scales import block_amax
from fpsim.analysis.tensors.writing.weights import LayoutOptions, Stored, WeightToWrite, WrittenWeight
from fpsim.arrays import Array

F32, U8, I8 = np.dtype(np.float32), np.dtype(np.uint8), np.dtype(np.int8)
NESTED_BLOCK = 256  # number of scales that share a scale
BINS = 65535  # steps from -1 to 1, to which a scale is rounded before its code is looked up
SMALLEST = np.float32(1e-38)  # the smallest divisor
ONE, HALF = np.float32(1), np.float32(0.5)
STATE = "weight.quant_state.bitsandbytes__nf4"


def nf4(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in bitsandbytes' NF4, with a scale per 64 elements of the flat matrix, across rows.

    A code is the index of the one of NF4's 16 values that is nearest to w * (1 / absmax), absmax being the largest
    magnitude in the block; of two that are equally near, the lower one. In a shorter last block, w / absmax is used.

    Source: bitsandbytes 0.50.2, which writes the same bytes.
    """
    text = _state(weight)
    tensors = {**_codes_and_table(weight, text), "weight.absmax": (F32, (_count(weight),))}

    def pieces() -> Iterator[tuple[str, Array]]:
        for codes, scales in _blocks(weight):
            yield "weight", codes
            yield "weight.absmax", scales
        yield "weight.quant_map", np.array(NF4, np.float32)
        yield STATE, text

    return WrittenWeight(tensors, pieces)


def nf4_double(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in bitsandbytes' NF4 with quantised scales ("double quantisation").

    Scales minus their mean are divided by the largest magnitude of 256 neighbours, and stored as codes of an 8-bit
    table. The mean is that of torch on one thread of a processor with AVX2, in float32. bitsandbytes on a GPU, or on
    several threads for more than 32,768 scales, adds in another order, so that the last bits of the mean may differ,
    and with them codes of scales near the middle of two entries.

    Source: bitsandbytes 0.50.2 on a CPU.
    """
    mean = torch_mean(np.concatenate([_largest(values) for values in _flat(weight)]))
    nested = {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": float(mean)}
    text, table = _state(weight, **nested), dynamic_table()
    tensors: Stored = {
        **_codes_and_table(weight, text), "weight.absmax": (U8, (_count(weight),)),
        "weight.nested_absmax": (F32, (-(-_count(weight) // NESTED_BLOCK),)), "weight.nested_quant_map": (F32, (256,)),
    }  # fmt: skip

    def pieces() -> Iterator[tuple[str, Array]]:
        bands = []
        for codes, scales in _blocks(weight):
            yield "weight", codes
            bands.append(scales)
        differences = np.concatenate(bands) - mean
        padded = np.pad(differences, (0, -differences.size % NESTED_BLOCK)).reshape(-1, NESTED_BLOCK)
        largest = block_amax(padded, NESTED_BLOCK)[:, 0]
        yield "weight.absmax", _dynamic_codes(padded, largest, table).reshape(-1)[: differences.size]
        yield "weight.nested_absmax", largest
        yield "weight.nested_quant_map", table
        yield "weight.quant_map", np.array(NF4, np.float32)
        yield STATE, text

    return WrittenWeight(tensors, pieces)


def int8(weight: WeightToWrite, options: LayoutOptions) -> WrittenWeight:
    """Encode a weight in bitsandbytes' INT8, with codes RNE(w * (1 / SCB * 127)); SCB is a row's amax in float16.

    Source: bitsandbytes 0.50.2, which writes the same bytes.
    """
    n, _ = weight.shape
    tensors: Stored = {"weight": (I8, weight.shape), "SCB": (F32, (n,)), "weight_format": (U8, ())}

    def pieces() -> Iterator[tuple[str, Array]]:
        for band in weight.bands(1):
            with np.errstate(over="ignore"):  # larger weights become Inf, which the export refuses when it reads them
                rounded = band.astype(np.float16).astype(np.float32)
            largest = block_amax(rounded, rounded.shape[1])
            factors = ONE / np.where(largest > 0, largest, ONE) * np.float32(127)
            with np.errstate(invalid="ignore"):
                yield "weight", np.rint(rounded * factors).astype(np.int8)
            yield "SCB", largest
        yield "weight_format", np.zeros((), np.uint8)  # rows in their order

    return WrittenWeight(tensors, pieces)


def _state(weight: WeightToWrite, **nested: Any) -> Array:
    """Return the quantisation state that bitsandbytes stores with a weight, as uint8: the bytes of its JSON.

    nested: further fields of the JSON, name -> value, which describe quantised scales ("double quantisation").
    """
    state = {"quant_type": "nf4", "blocksize": BLOCK, "dtype": weight.dtype, "shape": list(weight.shape), **nested}
    return np.frombuffer(json.dumps(state).encode(), np.uint8)


def _codes_and_table(weight: WeightToWrite, text: Array) -> Stored:
    """Return dtypes and shapes of the tensors that store NF4, without scales: end of the name -> (dtype, shape).

    They are the codes of `weight`, two in a byte; the table of 16 values; and `text`, the quantisation state as bytes.
    """
    size = math.prod(weight.shape)
    return {"weight": (U8, (-(-size // 2), 1)), "weight.quant_map": (F32, (16,)), STATE: (U8, text.shape)}


def _count(weight: WeightToWrite) -> int:
    """Return the number of blocks of 64 values of a weight; the last may be shorter."""
    return -(-math.prod(weight.shape) // BLOCK)


def _flat(weight: WeightToWrite) -> Iterator[Array]:
    """Yield the values of a weight as flat float32 arrays of whole blocks; the last block may be shorter."""
    held = np.empty(0, np.float32)
    for band in weight.bands(1):
        held = np.concatenate([held, band.reshape(-1)]) if held.size else band.reshape(-1)
        whole = held.size // BLOCK * BLOCK
        if whole:
            yield held[:whole]
        held = held[whole:].copy()
    if held.size:
        yield held


def _largest(values: Array) -> Array:
    """Return the largest magnitude of each block of 64 flat values; that of a shorter last block is at least 1e-38."""
    short = values.size % BLOCK
    padded = np.pad(values, (0, BLOCK - short)) if short else values
    largest = block_amax(padded.reshape(1, -1), BLOCK)[0]
    if short:
        largest[-1] = np.maximum(largest[-1], SMALLEST)
    return np.asarray(largest)


def _blocks(weight: WeightToWrite) -> Iterator[tuple[Array, Array]]:
    """Yield (NF4 codes, two in a byte, the first in the high bits; float32 scale of each block) for parts of a weight.

    The parts are successive; all but the last consist of whole blocks of 64 values.
    """
    table = np.array(NF4, np.float32)
    middles = (table[1:] + table[:-1]) / np.float32(2)
    for values in _flat(weight):
        largest = _largest(values)
        divisors = np.maximum(largest, SMALLEST)
        whole = values.size // BLOCK
        ratios = (values[: whole * BLOCK].reshape(whole, BLOCK) * (ONE / divisors[:whole, None])).reshape(-1)
        if values.size % BLOCK:  # bitsandbytes divides only in a short block
            rest = np.pad(values[whole * BLOCK :] / divisors[-1], (0, -values.size % BLOCK))
            ratios = np.concatenate([ratios, rest])
        codes = np.zeros(ratios.size, np.uint8)
        for start in range(0, ratios.size, CHUNK):  # a chunk stays in the cache; comparing is faster than searching
            part = slice(start, start + CHUNK)
            for middle in middles:
                codes[part] += ratios[part] > middle
        pairs = (codes[::2] << np.uint8(4)) | codes[1::2]
        yield pairs[: -(-values.size // 2)], largest


def _dynamic_codes(scales: Array, largest: Array, table: Array) -> Array:
    """Return uint8 codes of scales, (rows, 256): indices into `table`, 256 sorted values from -1 to 1.

    Scales are divided by the largest magnitude of their row, `largest`, (rows,). Each quotient is rounded to one of
    65,536 equally spaced numbers from -1 to 1; its code is the index of the nearest value in `table`. Rows of zeros
    have the code 0.
    """
    steps = np.float32(-1) + np.float32(2) * np.arange(BINS + 1, dtype=np.float32) / np.float32(BINS)
    codes = np.searchsorted(HALF * (table[:-1] + table[1:]), steps).astype(np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):  # 1 / largest may be Inf
        quotients = (np.clip(scales * (ONE / np.where(largest > 0, largest, ONE))[:, None], -ONE, ONE) + ONE) * HALF
    places = (np.where(np.isnan(quotients), np.float32(0), quotients) * np.float32(BINS) + HALF).astype(np.uint16)
    return np.where(largest[:, None] > 0, codes[places], np.uint8(0))
