"""Products and casts computed by the GPU itself through PyTorch, cuBLASLt, Triton and PTX, for comparison with fpsim.

Operands are codes or floats; results are bit patterns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.gpu.hardware.cublaslt import lt_fields as lt_fields
    from fpsim.gpu.hardware.cublaslt import lt_matmul as lt_matmul
    from fpsim.gpu.hardware.instructions import dot as dot
    from fpsim.gpu.hardware.instructions import ptx_cast as ptx_cast
    from fpsim.gpu.hardware.instructions import scaled_dot as scaled_dot
    from fpsim.gpu.hardware.instructions import sweep as sweep
    from fpsim.gpu.hardware.instructions import torch_cast as torch_cast
    from fpsim.gpu.hardware.instructions import twin as twin
    from fpsim.gpu.hardware.products import about as about
    from fpsim.gpu.hardware.products import matmul as matmul
    from fpsim.gpu.hardware.products import scaled_mm as scaled_mm
    from fpsim.gpu.hardware.tensor_cores import chain_matmul as chain_matmul
    from fpsim.gpu.hardware.timing import measure as measure
    from fpsim.gpu.hardware.timing import room as room

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "cublaslt": ["lt_fields", "lt_matmul"],
        "instructions": ["dot", "ptx_cast", "scaled_dot", "sweep", "torch_cast", "twin"],
        "products": ["about", "matmul", "scaled_mm"],
        "tensor_cores": ["chain_matmul"],
        "timing": ["measure", "room"],
    },
)
