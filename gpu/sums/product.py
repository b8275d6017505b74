"""The product of two matrices on the GPU by a generic accumulator."""

from __future__ import annotations

from typing import Any

from fpsim.formats.named import Format
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import scratch
from fpsim.gpu.sums.accumulate import Problem, fill_sums
from fpsim.sums.accumulators import Accumulator


def accumulator_product(
    a: GpuArray, b: GpuArray, c: GpuArray | None, accumulator: Accumulator, formats: tuple[Format, Format], out: Any
) -> None:
    """a @ b + c, every output as the accumulator adds it: the bits of `fpsim.accumulator_product`.

    Args:
      a, b: (M, K) and (K, N) codes of `formats`.
      c: (M, N) codes of the accumulator's result format, or None.
      formats: of a and b.
      out: takes the codes of the result format in a row; it may be c's words.

    Raises:
      ValueError: FP64 operands that the accumulator does not take.
      GpuError: no room on the GPU.
    """
    shape = a.shape[0], b.shape[1]
    words = out.reshape(*shape)
    start = scratch((0, 0), words.dtype) if c is None else c.words.reshape(*shape)
    problem = Problem(a.words.reshape(*a.shape), b.words.reshape(*b.shape), start, formats)
    fill_sums(accumulator, problem, words, a.like)
