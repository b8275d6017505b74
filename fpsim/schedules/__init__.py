"""How libraries add up the products of a matrix product: schedules for `fp.matmul`.

Example:
  >>> import fpsim as fp
  >>> fp.schedules.cublas("sm_90", split_k=9)
  cublas('sm_90', split_k=9)
"""

from __future__ import annotations

from fpsim.schedules.cublas import cublas
from fpsim.schedules.libraries import FLAT, cutlass_2xacc, cutlass_blockwise, deepgemm, torch_rowwise, triton
from fpsim.schedules.rows import ROWS
from fpsim.schedules.schedule import Chain, Epilogue, Lanes, Schedule, Slicing

__all__ = [
    "FLAT", "ROWS", "Chain", "Epilogue", "Lanes", "Schedule", "Slicing", "cublas", "cutlass_2xacc", "cutlass_blockwise",
    "deepgemm", "torch_rowwise", "triton",
]  # fmt: skip
