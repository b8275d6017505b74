"""Inputs of every library (NumPy, ml_dtypes, torch, JAX, cupy and array-likes), read as arrays or bit patterns."""

from __future__ import annotations

from fpsim.arrays.inputs import as_array, code_array, describe_refused, float_array, refuse_masked
from fpsim.arrays.libraries import (
    exports_gpu_memory,
    has_cuda_interface,
    is_cupy,
    is_numba,
    is_torch,
    library_of,
    lies_on_gpu,
)
from fpsim.arrays.memory import is_plain, output, overlaps, refuse_shared_elements, refuse_shared_memory
from fpsim.arrays.numbers import exact_numbers, number_array, sticky_float
from fpsim.arrays.tensors import (
    TORCH_INTEGERS,
    format_of_tensor,
    from_torch,
    integers_of,
    packed_as_bytes,
    refuse_sparse,
    to_torch,
    without_gradient,
)
from fpsim.arrays.words import (
    EXACT_INTEGERS,
    FORMAT_OF,
    Array,
    differing,
    distinct,
    format_of,
    is_small_integer,
    same_bits,
    words,
)

__all__ = [
    "EXACT_INTEGERS", "FORMAT_OF", "TORCH_INTEGERS", "Array", "as_array", "code_array", "describe_refused",
    "differing", "distinct", "exact_numbers", "exports_gpu_memory", "float_array", "format_of", "format_of_tensor",
    "from_torch", "has_cuda_interface", "integers_of", "is_cupy", "is_numba", "is_plain", "is_small_integer",
    "is_torch", "library_of", "lies_on_gpu", "number_array", "output", "overlaps", "packed_as_bytes", "refuse_masked",
    "refuse_shared_elements", "refuse_shared_memory", "refuse_sparse", "same_bits", "sticky_float", "to_torch",
    "without_gradient", "words",
]  # fmt: skip
