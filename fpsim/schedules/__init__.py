"""Schedules for `fp.matmul`: the orders in which libraries add a matrix product, as data, and their trees.

Example:
  >>> import fpsim as fp
  >>> fp.schedules.cublas("sm_90", split_k=9)
  cublas('sm_90', split_k=9)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fpsim.lazy import attach, face
from fpsim.schedules.catalogue import ROWS
from fpsim.schedules.libraries.cublas import cublas
from fpsim.schedules.libraries.cublas_choice import cublas_choice
from fpsim.schedules.libraries.cutlass import cutlass_2xacc, cutlass_blockwise
from fpsim.schedules.libraries.deepgemm import deepgemm
from fpsim.schedules.libraries.mkl import mkl
from fpsim.schedules.libraries.onednn import onednn
from fpsim.schedules.libraries.openblas import openblas
from fpsim.schedules.libraries.segments import rounds, segments
from fpsim.schedules.libraries.torch_cpu import torch_mm, torch_native
from fpsim.schedules.libraries.torch_rowwise import torch_rowwise
from fpsim.schedules.libraries.triton import triton
from fpsim.schedules.schedule import FLAT, Chain, Epilogue, Lanes, Schedule, Slicing
from fpsim.schedules.shaped import ChosenSchedule, DeclinedShape, ShapedSchedule

if TYPE_CHECKING:  # trees are a seventh of the package's import time, and load on first use, as regions do
    from fpsim.schedules.libraries.eigen import eigen
    from fpsim.schedules.regions import Regions, ResultRegion, SegmentLanes
    from fpsim.schedules.trees.array_sums import SUM_ROWS, SumOrder, jax_sum, numpy_sum, torch_sum
    from fpsim.schedules.trees.batch import BatchReport, depends_on_batch
    from fpsim.schedules.trees.difference import Comparison
    from fpsim.schedules.trees.explain import Explanation, explain
    from fpsim.schedules.trees.tree import Tree, compare, tree

__all__ = [
    "FLAT", "ROWS", "SUM_ROWS", "BatchReport", "Chain", "ChosenSchedule", "Comparison", "DeclinedShape", "Epilogue",
    "Explanation", "Lanes", "Regions", "ResultRegion", "Schedule", "SegmentLanes", "ShapedSchedule", "Slicing",
    "SumOrder", "Tree", "compare", "cublas", "cublas_choice", "cutlass_2xacc", "cutlass_blockwise", "deepgemm",
    "depends_on_batch", "eigen", "explain", "jax_sum", "mkl", "numpy_sum", "onednn", "openblas", "rounds",
    "segments", "torch_mm", "torch_native", "torch_rowwise", "torch_sum", "tree", "triton",
]  # fmt: skip

_no_name, __dir__ = face(__name__, __all__)
_on_first_use, _, LAZY = attach(
    __name__,
    {
        "libraries.eigen": ["eigen"], "regions": ["Regions", "ResultRegion", "SegmentLanes"],
        "trees.array_sums": ["SUM_ROWS", "SumOrder", "jax_sum", "numpy_sum", "torch_sum"],
        "trees.batch": ["BatchReport", "depends_on_batch"], "trees.difference": ["Comparison"],
        "trees.explain": ["Explanation", "explain"], "trees.tree": ["Tree", "compare", "tree"],
    },
)  # fmt: skip


def __getattr__(name: str) -> Any:
    return _on_first_use(name) if name in LAZY else _no_name(name)
