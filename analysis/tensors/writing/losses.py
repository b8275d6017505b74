"""Errors of written weights: the values that a reader decodes from the file, compared with the original ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from fpsim.analysis.tensors.checkpoint import CheckpointTensors
from fpsim.analysis.tensors.chunks import CHUNK
from fpsim.analysis.tensors.operand import pieces_of
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.writing.loops import add_errors, transpose
from fpsim.analysis.tensors.writing.misfits import keep_advice, misfit
from fpsim.analysis.tensors.writing.report import ExportedWeight
from fpsim.analysis.tensors.writing.weights import WeightToWrite, largest_of
from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.runtime.threads import over_tasks

STRIP = 32  # rows that are transposed at once


def losses(
    checkpoint: CheckpointTensors, weights: Mapping[str, WeightToWrite], keep: Sequence[str]
) -> list[ExportedWeight]:
    """Return the error of each weight as decoded from the written checkpoint; several weights are measured at once.

    weights: name -> the original weight. keep: the export's argument `keep`, patterns of the tensors that are left
    unquantised; error messages repeat it.

    Raises:
      ValueError: a decoded value is not finite.
      AssertionError: the file lacks a weight of the expected shape, which is a bug of fpsim.
    """
    names = list(weights)
    rows: dict[str, ExportedWeight] = {}

    def measure(i: int) -> None:
        rows[names[i]] = _loss(checkpoint, weights[names[i]], partial(keep_advice, [names[i]], names, keep))

    over_tasks(len(names), measure)
    return [rows[name] for name in names]


def _loss(checkpoint: CheckpointTensors, weight: WeightToWrite, advice: Callable[[], str]) -> ExportedWeight:
    """Return the error of a weight as decoded from the written checkpoint.

    advice: advice() is the argument of the export that leaves the weight unquantised, for error messages.

    Raises:
      ValueError: a decoded value is not finite.
      AssertionError: the file lacks the weight or some of its values, which is a bug of fpsim.
    """
    name = weight.name
    assert name in checkpoint, f"{name} cannot be read again: {checkpoint.notes}"
    one = checkpoint.tensor(name)
    sums = np.zeros(3)
    for wanted, read in _pairs(one, weight):
        assert len(wanted) == len(read)
        add_errors(np.ascontiguousarray(wanted), np.ascontiguousarray(read, np.float32), sums)
    signal, noise, largest = sums.tolist()
    if not math.isfinite(noise):
        top = max(map(largest_of, weight.bands(1)))
        raise ValueError(misfit(name, checkpoint.layouts[name], top, advice()))
    return ExportedWeight(name, weight.shape, one.stored_bits, signal, noise, largest)


def _pairs(one: Tensor, weight: WeightToWrite) -> Iterator[tuple[Array, Array]]:
    """Yield (original, decoded) values of a weight as flat float32 arrays of equal size, piece by piece, in the same
    order.

    one: the weight as read from the written file. weight: the original.
    """
    n, k = weight.shape[-2:]
    if one.shape == weight.shape and not (one.exchanged and len(one.shape) == 2):
        flat = (band.reshape(-1) for band in weight.bands(1))
        yield from zip(pieces_of(flat, CHUNK), one.chunks(CHUNK), strict=True)
        return
    assert one.shape == (k, n), f"{one.name} is read in the shape {one.shape}"
    exchanged, start = np.empty((k, n), np.uint16), 0  # products of these layouts are exact in float16
    codes = exchanged.reshape(-1)
    for piece in one.chunks():
        encode(piece, "fp16", out=codes[start : start + piece.size])
        start += piece.size
    row = 0
    for band in weight.bands(1):
        for first in range(0, len(band), STRIP):
            strip = band[first : first + STRIP]
            turned = np.empty(strip.shape, np.uint16)
            transpose(exchanged[:, row : row + len(strip)], turned)
            yield strip.reshape(-1), decode(turned.reshape(-1), "fp16", np.float32)
            row += len(strip)
