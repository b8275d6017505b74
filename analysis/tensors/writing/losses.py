"""Errors of written weights: the values that a reader gets from the file, compared with the original ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from fpsim.analysis.tensors.checkpoint import CheckpointTensors
from fpsim.analysis.tensors.operand import pieces_of
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.writing.report import ExportedWeight
from fpsim.analysis.tensors.writing.weights import BAND, WeightToWrite
from fpsim.arrays import Array


def losses(checkpoint: CheckpointTensors, weights: Mapping[str, WeightToWrite]) -> Iterator[ExportedWeight]:
    """Yield the error of each weight as a reader gets it from the written checkpoint.

    Raises:
      ValueError: a value that the file holds is not finite.
      AssertionError: the file does not hold a weight of the expected shape, which is a bug of fpsim.
    """
    for name, weight in weights.items():
        assert name in checkpoint, f"{name} cannot be read again: {checkpoint.notes}"
        one = checkpoint.tensor(name)
        signal = noise = largest = 0.0
        for wanted, got in _pairs(one, weight):
            assert len(wanted) == len(got)
            with np.errstate(invalid="ignore"):
                difference = got.astype(np.float32) - wanted
            signal += _square(wanted)
            noise += _square(difference)
            largest = max(largest, float(np.max(np.abs(difference)))) if difference.size else largest
        if not math.isfinite(noise):
            top = max(float(np.max(np.abs(band))) for band in weight.bands(1))
            raise ValueError(
                f"{name} holds values of up to {top:.3g}, which {checkpoint.layouts[name]} cannot hold: some read back "
                "as Inf or NaN. Scale the weight down, or pass keep= with its name to leave it unquantised."
            )
        yield ExportedWeight(name, weight.shape, one.stored_bits, signal, noise, largest)


def _pairs(one: Tensor, weight: WeightToWrite) -> Iterator[tuple[Array, Array]]:
    """Yield (original, read) values of a weight as flat arrays, piece by piece, in the same order."""
    n, k = weight.shape[-2:]
    if one.shape == weight.shape and not (one.exchanged and len(one.shape) == 2):
        flat = (band.reshape(-1) for band in weight.bands(1))
        yield from zip(pieces_of(flat, BAND), one.chunks(BAND), strict=True)
        return
    assert one.shape == (k, n), f"{one.name} is read in the shape {one.shape}"
    turned, start = np.empty((k, n), np.float16), 0  # products of these layouts are exact in float16
    read = turned.reshape(-1)
    for piece in one.chunks():
        read[start : start + piece.size] = piece
        start += piece.size
    row = 0
    for band in weight.bands(1):
        yield band.reshape(-1), np.ascontiguousarray(turned[:, row : row + len(band)].T).reshape(-1)
        row += len(band)


def _square(values: Array) -> float:
    """Return the sum of the squares of float32 values, in float64."""
    rows = values.reshape(-1, 4096) if values.size % 4096 == 0 else values.reshape(1, -1)
    return float(np.sum(np.einsum("ij,ij->i", rows, rows, dtype=np.float64)))
