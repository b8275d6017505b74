"""Calls of cuBLASLt through ctypes: a product by the algorithm that the heuristic selects, and its fields.

Descriptors, attributes and their values are from cublasLt.h (CUDA 12 and 13).
"""

from __future__ import annotations

import ctypes
import ctypes.util
import glob
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

from fpsim.gpu.device.device import FP8_CAPABILITY, GpuError, require_capability
from fpsim.gpu.hardware import tensors
from fpsim.gpu.hardware.failures import in_one_sentence
from fpsim.gpu.hardware.tensors import FP8, Pair, Words, known, tensor, torch_module
from fpsim.schedules.libraries.cublas_choice import Fields

COMPUTE_32F = 68  # CUBLAS_COMPUTE_32F
TYPES = {"fp32": 0, "fp16": 2, "bf16": 14, "e4m3": 28, "e5m2": 29}  # cudaDataType_t
TRANSPOSED = 1  # CUBLAS_OP_T
ROW = 1  # CUBLASLT_ORDER_ROW
LAYOUT_ORDER = 1  # CUBLASLT_MATRIX_LAYOUT_ORDER
DESC_TRANSA, DESC_A_SCALE, DESC_B_SCALE, DESC_FAST_ACCUM = 3, 17, 18, 25  # CUBLASLT_MATMUL_DESC_...
MAX_WORKSPACE = 1  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
WORKSPACE = 32 << 20  # bytes; bitequiv/cublas_match measured the heuristic with this size
ALIGNED = 16  # bytes
LAYOUTS = ("nn", "tn")  # both operands row-major; both contiguous along K


class _Result(ctypes.Structure):
    """The C structure cublasLtMatmulHeuristicResult_t: an algorithm, its workspace, and its estimated waves."""

    _fields_ = [
        ("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    ]  # fmt: skip


@cache
def library() -> Any:
    """Return the loaded library libcublasLt, from torch's environment or else from the system; cached.

    Raises:
      GpuError: the library is not found.
    """
    tried = [*_packaged(), "libcublasLt.so.13", "libcublasLt.so.12", ctypes.util.find_library("cublasLt")]
    for name in filter(None, tried):
        try:
            return _typed(ctypes.CDLL(name))
        except OSError:
            continue
    raise GpuError(
        "cuBLASLt was not found: libcublasLt.so.13 or .12 comes with CUDA builds of torch, and with nvidia-cublas."
    )


def _packaged() -> Iterator[str]:
    """Yield the paths of libcublasLt in torch's environment, those of torch's CUDA version first."""
    try:
        torch = torch_module()
    except GpuError:
        return
    root = os.path.dirname(os.path.dirname(str(torch.__file__)))
    files = [file for pattern in ("nvidia/cu*/lib", "nvidia/cublas/lib", "torch/lib")
             for file in glob.glob(os.path.join(root, pattern, "libcublasLt.so.*"))]  # fmt: skip
    major = str(torch.version.cuda or "").partition(".")[0]
    yield from sorted(files, key=lambda file: not file.endswith(f".so.{major}"))


def _typed(loaded: Any) -> Any:
    """Return the ctypes library `loaded` after setting argument and result types of the functions called here."""
    pointer, size, integer = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    types: dict[str, list[Any]] = {
        "cublasLtCreate": [pointer], "cublasLtMatmulDescCreate": [pointer, integer, integer],
        "cublasLtMatmulDescDestroy": [pointer], "cublasLtMatrixLayoutDestroy": [pointer],
        "cublasLtMatmulPreferenceDestroy": [pointer], "cublasLtMatmulPreferenceCreate": [pointer],
        "cublasLtMatrixLayoutCreate": [pointer, integer, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64],
        "cublasLtMatmulDescSetAttribute": [pointer, integer, pointer, size],
        "cublasLtMatrixLayoutSetAttribute": [pointer, integer, pointer, size],
        "cublasLtMatmulPreferenceSetAttribute": [pointer, integer, pointer, size],
        "cublasLtMatmulAlgoGetHeuristic": [pointer] * 7 + [integer, pointer, pointer],
        "cublasLtMatmulAlgoConfigGetAttribute": [pointer, integer, pointer, size, pointer],
        "cublasLtMatmul": [pointer] * 14 + [size, pointer],
    }  # fmt: skip
    for name, arguments in types.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, integer
    loaded.cublasLtGetVersion.restype = size
    return loaded


def version() -> str:
    """Return the version of cuBLASLt, such as "13.1.1"."""
    number = int(library().cublasLtGetVersion())
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"


def _call(name: str, *arguments: Any) -> None:
    """Call the function `name` of cuBLASLt with `arguments`; raise a GpuError with name and status if it fails."""
    status = getattr(library(), name)(*arguments)
    if status:
        why = {7: " (invalid value)", 15: " (not supported: no algorithm for these operands)"}.get(status, "")
        raise GpuError(f"{name} of cuBLASLt returned status {status}{why}.")


@cache
def _handle() -> Any:
    """Return the handle of cuBLASLt, a ctypes pointer, created at the first call and cached."""
    handle = ctypes.c_void_p()
    _call("cublasLtCreate", ctypes.byref(handle))
    return handle


@contextmanager
def _made(kind: str, *arguments: Any) -> Iterator[Any]:
    """Create a descriptor of cuBLASLt, a ctypes pointer, for a `with` block, and destroy it afterwards.

    kind: its type, such as "MatmulDesc". arguments: the arguments of its Create function after the pointer.
    """
    descriptor = ctypes.c_void_p()
    _call(f"cublasLt{kind}Create", ctypes.byref(descriptor), *arguments)
    try:
        yield descriptor
    finally:
        _call(f"cublasLt{kind}Destroy", descriptor)


def _set(kind: str, where: Any, attribute: int, value: Any) -> None:
    """Set an attribute of a cuBLASLt descriptor to a ctypes value.

    kind: type of the descriptor, such as "MatmulDesc". where: the descriptor. attribute: number of the attribute in
    cublasLt.h.
    """
    _call(f"cublasLt{kind}SetAttribute", where, attribute, ctypes.byref(value), ctypes.sizeof(value))


class Sides(NamedTuple):
    """The operands and the result of a product as cuBLASLt's descriptors state them.

    a, b, d: (tensor, cudaDataType_t, rows, columns, leading dimension) of each. order: cublasLtOrder_t of all: ROW, or
    0 for column-major. transposed: TRANSPOSED if a is transposed, else 0.
    """

    a: tuple[Any, int, int, int, int]
    b: tuple[Any, int, int, int, int]
    d: tuple[Any, int, int, int, int]
    order: int
    transposed: int


@in_one_sentence
def lt_matmul(
    a: Any, b: Any, pair: Pair = ("fp16", "fp16"), *, out: str = "fp16", scale_a: float = 1.0, scale_b: float = 1.0,
    fast_accum: bool = False, workspace: int = WORKSPACE, layout: str = "nn",
) -> tuple[Words, Fields]:  # fmt: skip
    """Multiply matrices by cublasLtMatmul with the first algorithm of its heuristic.

    Args:
      a, b: (M, K) and (K, N) codes, or floats of the formats' dtypes.
      pair: formats of a and b: ("fp16", "fp16"), ("bf16", "bf16"), or two of "e4m3" and "e5m2" other than ("e5m2",
        "e5m2").
      out: format of the result: "fp16", "bf16" or "fp32".
      scale_a, scale_b: decode scales of FP8 operands; ignored for others.
      fast_accum: value of CUBLASLT_MATMUL_DESC_FAST_ACCUM for FP8.
      workspace: bytes of workspace that the algorithm may use, on which the heuristic's selection depends.
      layout: layout of FP16 and BF16 operands: "nn", both row-major; "tn", both contiguous along K. FP8 is always "tn".

    Returns:
      ((M, N) bit patterns of the result as unsigned NumPy integers, Fields). Fields are the configuration of the
      algorithm as integers: id, tile, stages, split-K and others.

    Raises:
      GpuError: no GPU, no cuBLASLt, or a call that failed.
      ValueError: an unknown format or layout, or operands that cuBLASLt does not support.

    Source: cuBLAS manual, cublasLtMatmul; docs/schedules.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> if fp.gpu.available():
      ...     d, fields = fp.gpu.hardware.lt_matmul(np.ones((16, 64), np.float16), np.ones((64, 16), np.float16))
    """
    for kind, name in zip(pair, ("a's format", "b's format"), strict=True):
        known(kind, (*FP8, "fp16", "bf16"), name)
    known(out, ("fp16", "bf16", "fp32"), "out")
    known(layout, LAYOUTS, "layout")
    fp8 = set(pair) <= set(FP8)
    m, n, k = tensors.shapes_of(a, b)
    if (not fp8 and pair[0] != pair[1]) or pair == ("e5m2", "e5m2"):
        raise ValueError(f"cuBLASLt multiplies FP16 by FP16, BF16 by BF16, and FP8 except E5M2 by E5M2; got {pair}.")
    if fp8 and (m % ALIGNED or n % ALIGNED or k % ALIGNED):
        raise ValueError(f"FP8 in cuBLASLt requires M, N and K to be multiples of 16; got {m} x {n} x {k}. Pad.")
    require_capability(FP8_CAPABILITY if fp8 else (8, 0), f"cuBLASLt's product of {pair[0]}")
    torch, left = torch_module(), tensor(a, pair[0])
    result = torch.empty((m, n), dtype=getattr(torch, {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[out]),
                         device=left.device)  # fmt: skip
    of_d = TYPES[out]
    if fp8 or layout == "tn":  # column-major: the transposed product, b first, both contiguous along K
        sides = Sides((tensors.column_major(b, pair[1]), TYPES[pair[1]], k, n, k), (left, TYPES[pair[0]], k, m, k),
                      (result, of_d, n, m, n), 0, TRANSPOSED)  # fmt: skip
    else:
        sides = Sides((left, TYPES[pair[0]], m, k, k), (tensor(b, pair[1]), TYPES[pair[1]], k, n, n),
                      (result, of_d, m, n, n), ROW, 0)  # fmt: skip
    scales = (tensors.floats([scale_b]), tensors.floats([scale_a])) if fp8 else None
    fields = _run(sides, scales, fast_accum, workspace)
    return tensors.words(result), fields


def _run(sides: Sides, scales: tuple[Any, Any] | None, fast_accum: bool, workspace: int) -> Fields:
    """Run the first algorithm of cuBLASLt's heuristic on torch's stream, wait, and return the algorithm's fields.

    sides: the operands and the result; the product is written into the tensor of `sides.d`. scales: for FP8,
    one-element float32 tensors (scale of sides.a, scale of sides.b); None for other formats. fast_accum: value of
    CUBLASLT_MATMUL_DESC_FAST_ACCUM. workspace: bytes of workspace that the algorithm may use.
    """
    torch = torch_module()
    with ExitStack() as made:
        enter = made.enter_context
        operation = enter(_made("MatmulDesc", COMPUTE_32F, TYPES["fp32"]))
        if sides.transposed:
            _set("MatmulDesc", operation, DESC_TRANSA, ctypes.c_int32(TRANSPOSED))
        if scales is not None:
            for attribute, scale in zip((DESC_A_SCALE, DESC_B_SCALE), scales, strict=True):
                _set("MatmulDesc", operation, attribute, ctypes.c_void_p(scale.data_ptr()))
            _set("MatmulDesc", operation, DESC_FAST_ACCUM, ctypes.c_int8(int(fast_accum)))
        layouts = []
        for _, *layout in (sides.a, sides.b, sides.d):
            layouts.append(enter(_made("MatrixLayout", *layout)))
            _set("MatrixLayout", layouts[-1], LAYOUT_ORDER, ctypes.c_int32(sides.order))
        preference = enter(_made("MatmulPreference"))
        _set("MatmulPreference", preference, MAX_WORKSPACE, ctypes.c_uint64(workspace))
        best, count = _Result(), ctypes.c_int()
        of_a, of_b, of_d = layouts
        _call("cublasLtMatmulAlgoGetHeuristic", _handle(), operation, of_a, of_b, of_d, of_d, preference, 1,
              ctypes.byref(best), ctypes.byref(count))  # fmt: skip
        if count.value < 1 or best.state:
            raise GpuError(f"cuBLASLt's heuristic knows no algorithm for these operands (state {best.state}).")
        room = torch.empty(max(workspace, 1), dtype=torch.uint8, device="cuda")
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        (a, *_), (b, *_), (d, *_) = sides.a, sides.b, sides.d
        _call("cublasLtMatmul", _handle(), operation, ctypes.byref(one), a.data_ptr(), of_a, b.data_ptr(), of_b,
              ctypes.byref(zero), d.data_ptr(), of_d, d.data_ptr(), of_d, ctypes.byref(best.algo), room.data_ptr(),
              workspace, torch.cuda.current_stream().cuda_stream)  # fmt: skip
        torch.cuda.synchronize()
        return _fields(best)


def _fields(best: _Result) -> Fields:
    """Return the configuration of the algorithm that a heuristic has selected: id, tile, stages, split-K and others.

    They are cuBLASLt's attributes CUBLASLT_ALGO_CONFIG_*, as integers; 0 for one that the algorithm does not have.
    """
    values = []
    for attribute in range(len(Fields._fields)):
        value, written = ctypes.c_uint32(), ctypes.c_size_t()
        size = 4 if attribute < 7 else 2  # INNER_SHAPE_ID and CLUSTER_SHAPE_ID have two bytes
        status = library().cublasLtMatmulAlgoConfigGetAttribute(
            ctypes.byref(best.algo), attribute, ctypes.byref(value), size, ctypes.byref(written)
        )
        values.append(0 if status else value.value)
    return Fields(*values)
