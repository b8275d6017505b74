"""HQQ's layout: codes of 1 to 8 bits, with a float scale and a float zero point for each group of a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fpsim.analysis.tensors.layouts.hqq import PACKINGS
from fpsim.analysis.tensors.writing.scales import block_extremes
from fpsim.analysis.tensors.writing.weights import LayoutOptions, Stored, WeightToWrite, WrittenWeight
from fpsim.arrays import Array

I32, I64, U8 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8)
GROUP = 64  # the default number of codes of a group
NARROWEST = np.float32(1e-4)  # groups whose max - min is at most this have the scale 1
STEEPEST = np.float32(2e4)  # the largest inverse of a scale
PACKING = {bits: name for name, bits in PACKINGS.items()}


def hqq(weight: WeightToWrite, options: LayoutOptions, bits: int) -> WrittenWeight:
    """Encode a weight in HQQ's layout: codes of `bits` bits for groups of a row (axis 1), without HQQ's search for
    better zero points.

    1 / s = 1 / (max - min) * (2^bits - 1), at most 20,000, and 1 for max - min <= 1e-4; zero = -min / s (rounded if
    `bits` is 4); code = RNE(w / s + zero). Scales and zero points are stored in the model's dtype. A byte has codes of
    groups far apart: those of the first groups are in the highest bits.

    options: the group size.

    Source: hqq 0.2.8.post1 with optimize=False, which writes the same bytes.
    """
    (n, k), group = weight.shape, options.group_size or GROUP
    groups, per_byte = n * k // group, 8 // bits
    settings = _settings(weight, bits, group)
    tensors: Stored = {
        "W_q": (U8, (groups // per_byte, group)), "scale": (weight.scale_dtype, (groups, 1)),
        "zero": (weight.scale_dtype, (groups, 1)), "shape": (I64, (2,)),
        **{name: (value.dtype, value.shape) for name, value in settings.items()},
    }  # fmt: skip

    def pieces() -> Iterator[tuple[str, Array]]:
        packed = np.zeros((groups // per_byte, group), np.uint8)
        first = 0
        for band in weight.bands(1):
            codes, scales, zeros = _coded(band.reshape(-1, group), bits)
            yield "scale", scales.astype(weight.scale_dtype)
            with np.errstate(over="ignore"):  # becomes Inf in float16, which the export refuses when it reads it
                yield "zero", zeros.astype(weight.scale_dtype)
            _pack(packed, codes, first, bits)
            first += len(codes)
        yield "W_q", packed
        yield "shape", np.array([n, k], np.int64)
        yield from settings.items()

    return WrittenWeight(tensors, pieces)


def _coded(groups: Array, bits: int) -> tuple[Array, Array, Array]:
    """Return (uint8 codes of `bits` bits, scales, zero points) of groups of values, (groups, group size).

    A value is about (code - zero point) * scale. Scales and zero points are float32, (groups, 1).
    """
    levels, one = np.float32((1 << bits) - 1), np.float32(1)
    low, high = block_extremes(groups, groups.shape[1])
    low = low + np.float32(0)  # of zeros 0, not -0
    spread = high - low
    inverse = np.where(spread <= NARROWEST, one, one / np.maximum(spread, NARROWEST) * levels)
    inverse = np.minimum(inverse, STEEPEST)
    zeros = -low * inverse
    zeros = np.rint(zeros) if bits == 4 else zeros
    codes = np.clip(np.rint(groups * inverse + zeros), 0, levels).astype(np.uint8)
    return codes, one / inverse, zeros


def _pack(packed: Array, codes: Array, first: int, bits: int) -> None:
    """Pack the codes of consecutive groups into the byte array `packed`, (rows, group size) uint8, in place.

    The codes of group g are stored in row g % rows, shifted left by 8 - bits * (g // rows + 1) bits, so that the
    first groups have the highest bits. `codes`: (groups, group size), each of `bits` bits. `first`: the number g of
    the first row of `codes`, counted in the whole weight.
    """
    height = len(packed)
    while len(codes):
        part, row = divmod(first, height)
        count = min(height - row, len(codes))
        packed[row : row + count] |= codes[:count] << np.uint8(8 - bits * (part + 1))
        codes, first = codes[count:], first + count


def _settings(weight: WeightToWrite, bits: int, group: int) -> dict[str, Array]:
    """Return the settings that HQQ stores as tensors, name -> array: numbers, flags, and texts as bytes.

    weight: the weight to be written. bits: bits of a code. `group`: number of values of a group.
    """
    numbers = {"axis": 1, "group_size": group, "nbits": bits}
    flags = {
        "channel_wise": True, "encoded_state_dict": True, "offload_meta": False, "optimize": False,
        "quant_scale": False, "quant_zero": False, "round_zero": bits == 4, "stores_quant_config": True,
        "view_as_float": False,
    }  # fmt: skip
    texts = {"compute_dtype": f"torch.{weight.dtype}", "packing": PACKING[bits], "unpack_view_dtype": "torch.uint8"}
    return {
        **{name: np.array(value, np.int32) for name, value in numbers.items()},
        **{name: np.array(value, np.uint8) for name, value in flags.items()},
        **{name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()},
    }
