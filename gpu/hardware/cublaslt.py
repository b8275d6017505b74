"""Calls of cuBLASLt through ctypes: a product by the algorithm that its heuristic selects, and that algorithm's fields.

Fields are the integers of an algorithm's configuration, such as its tile. Descriptors, attributes and their values are
from cublasLt.h (CUDA 12 and 13).
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

from fpsim.errors import require_integer
from fpsim.gpu.device.device import FP8_CAPABILITY, GpuError, require_capability
from fpsim.gpu.hardware import tensors
from fpsim.gpu.hardware.failures import in_one_sentence
from fpsim.gpu.hardware.tensors import FP8, Pair, Words, known, tensor, torch_module
from fpsim.schedules.libraries.cublas_choice import LAYOUTS, Fields

COMPUTE_32F = 68  # CUBLAS_COMPUTE_32F
TYPES = {"fp32": 0, "fp16": 2, "bf16": 14, "e4m3": 28, "e5m2": 29}  # cudaDataType_t
TRANSPOSED = 1  # CUBLAS_OP_T
DESC_TRANSA, DESC_TRANSB, DESC_A_SCALE, DESC_B_SCALE, DESC_FAST_ACCUM = 3, 4, 17, 18, 25  # CUBLASLT_MATMUL_DESC_...
MAX_WORKSPACE, REDUCTION_MASK = 1, 3  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, ..._REDUCTION_SCHEME_MASK
# CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; INPLACE and OUTPUT_TYPE as well, the default: both add in the result's format
IN_FLOAT32, ANY_REDUCTION = 2, 1 | 2 | 4
WORKSPACE = 32 << 20  # bytes; bitequiv/cublas_match measured the heuristic with this size
ALIGNED = 16  # bytes


class _Result(ctypes.Structure):
    """The C structure cublasLtMatmulHeuristicResult_t, cuBLASLt's answer: an algorithm and facts on it.

    The facts are its workspace, its status, and its number of waves (1.0: its blocks of threads fill the GPU once).
    """

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
    tried = [*_paths_in_torch(), "libcublasLt.so.13", "libcublasLt.so.12", ctypes.util.find_library("cublasLt")]
    for name in filter(None, tried):
        try:
            return _typed(ctypes.CDLL(name))
        except OSError:
            continue
    raise GpuError(
        "cuBLASLt was not found: libcublasLt.so.13 or .12 comes with CUDA builds of torch, and with nvidia-cublas."
    )


def _paths_in_torch() -> Iterator[str]:
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
def _descriptor(kind: str, *arguments: Any) -> Iterator[Any]:
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


class LtCall(NamedTuple):
    """A product of cuBLASLt, as its descriptors state it.

    cuBLASLt stores matrices column after column. For row-major matrices the call therefore computes the transposed
    product: cuBLASLt's first operand is b, its second a.

    Attributes:
      shape: (M, N, K).
      pair: formats of a and b, such as ("fp16", "fp16") or ("e4m3", "e5m2").
      out: format of the result.
      layout: "nn", both operands row-major; "nt", both contiguous along K; "tn", a along M and b along N.
      fast_accum: value of CUBLASLT_MATMUL_DESC_FAST_ACCUM.
      reduced: whether the sums of slices of K may be rounded to the result's format before they are added.
      workspace: bytes of workspace that the algorithm may use.
    """

    shape: tuple[int, int, int]
    pair: Pair
    out: str
    layout: str
    fast_accum: bool
    reduced: bool
    workspace: int

    @property
    def is_fp8(self) -> bool:
        """True if both operands are in FP8."""
        return set(self.pair) <= set(FP8)


def _supported(call: LtCall) -> LtCall:
    """Check that cuBLASLt supports a call, and return it, with its layout changed to "nt" if the operands are FP8.

    Raises:
      ValueError: cuBLASLt does not support it.
      TypeError: a size is not an integer.
    """
    for kind, name in zip(call.pair, ("a's format", "b's format"), strict=True):
        known(kind, (*FP8, "fp16", "bf16"), name)
    known(call.out, ("fp16", "bf16", "fp32"), "out")
    known(call.layout, LAYOUTS, "layout")
    for name, size in zip("mnk", call.shape, strict=True):
        require_integer(name, size, 1)
    require_integer("workspace", call.workspace, 0)
    if (not call.is_fp8 and call.pair[0] != call.pair[1]) or call.pair == ("e5m2", "e5m2"):
        raise ValueError(
            f"cuBLASLt multiplies FP16 by FP16, BF16 by BF16, and FP8 except E5M2 by E5M2; got {call.pair}."
        )
    if call.is_fp8 and any(size % ALIGNED for size in call.shape[1:]):
        m, n, k = call.shape
        raise ValueError(f"FP8 in cuBLASLt requires N and K to be multiples of 16; got {m} x {n} x {k}. Pad.")
    require_capability(FP8_CAPABILITY if call.is_fp8 else (8, 0), f"cuBLASLt's product of {call.pair[0]}")
    return call._replace(layout="nt") if call.is_fp8 else call


@in_one_sentence
def lt_matmul(
    a: Any, b: Any, pair: Pair = ("fp16", "fp16"), *, out: str = "fp16", scale_a: float = 1.0, scale_b: float = 1.0,
    fast_accum: bool = False, workspace: int = WORKSPACE, layout: str = "nn",
) -> tuple[Words, Fields]:  # fmt: skip
    """Multiply matrices by cublasLtMatmul with the first algorithm of its heuristic.

    Args:
      a, b: (M, K) and (K, N): codes as unsigned integers of the format's width, or arrays of the format's own dtype,
        such as float16 or float8_e4m3fn, of NumPy or torch.
      pair: formats of a and b: ("fp16", "fp16"), ("bf16", "bf16"), ("e4m3", "e4m3"), ("e4m3", "e5m2") or ("e5m2",
        "e4m3").
      out: format of the result: "fp16", "bf16" or "fp32".
      scale_a, scale_b: decode scales of FP8 operands; ignored for others.
      fast_accum: value of CUBLASLT_MATMUL_DESC_FAST_ACCUM for FP8.
      workspace: bytes of workspace that the algorithm may use, on which the heuristic's selection depends.
      layout: layout of FP16 and BF16 operands in memory, as in `lt_fields`. FP8 is always "nt".

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
    shape = tensors.shapes_of(a, b)
    call = _supported(LtCall(shape, pair, out, layout, fast_accum, True, workspace))
    torch = torch_module()
    first = (tensors.column_major if call.layout == "nt" else tensor)(b, pair[1])
    second = (tensors.column_major if call.layout == "tn" else tensor)(a, pair[0])
    dtype = getattr(torch, {"fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}[out])
    result = torch.empty(shape[:2], dtype=dtype, device=first.device)
    scales = (tensors.floats([scale_b]), tensors.floats([scale_a]))
    with _heuristic(call, scales) as (best, operation, layouts):
        of_first, of_second, of_d = layouts
        room = torch.empty(max(workspace, 1), dtype=torch.uint8, device="cuda")
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        _call("cublasLtMatmul", _handle(), operation, ctypes.byref(one), first.data_ptr(), of_first,
              second.data_ptr(), of_second, ctypes.byref(zero), result.data_ptr(), of_d, result.data_ptr(), of_d,
              ctypes.byref(best.algo), room.data_ptr(), workspace, torch.cuda.current_stream().cuda_stream)  # fmt: skip
        torch.cuda.synchronize()
        return tensors.words(result), _fields(best)


@in_one_sentence
def lt_fields(
    m: int, n: int, k: int, pair: Pair = ("fp16", "fp16"), *, out: str = "fp16", layout: str = "nn",
    fast_accum: bool = False, reduced: bool = True, workspace: int = WORKSPACE,
) -> Fields:  # fmt: skip
    """Return the configuration of the algorithm that cuBLASLt's heuristic selects for a product, without running it.

    Args:
      m, n, k: the product's shape: a is (m, k), b is (k, n).
      pair, out: formats of a and b, and of the result, as for `lt_matmul`.
      layout: layout of FP16 and BF16 operands in memory: "nn", both row-major; "nt", b transposed (both contiguous
        along K), as in `x @ weight.t()`; "tn", a transposed, as in `grad.t() @ x`. FP8 is always "nt".
      fast_accum: value of CUBLASLT_MATMUL_DESC_FAST_ACCUM for FP8.
      reduced: whether the sums of slices of K may be rounded to the result's format before they are added: torch's
        default, which allow_bf16_reduced_precision_reduction and allow_fp16_reduced_precision_reduction change.
      workspace: bytes of workspace that the algorithm may use; torch has 32 MiB on Hopper.

    Returns:
      Fields, which `fpsim.schedules.cublas_choice(fields=)` converts to a schedule.

    Raises:
      GpuError: no GPU, no cuBLASLt, or no algorithm for this product.
      ValueError: an unknown format or layout, a negative size, or a shape that cuBLASLt does not support.
      TypeError: a size that is no integer.

    Source: cuBLAS manual, cublasLtMatmulAlgoGetHeuristic.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     print(fp.gpu.hardware.lt_fields(4096, 4096, 4096, ("bf16", "bf16"), out="bf16", layout="nt"))
    """
    call = _supported(LtCall((m, n, k), pair, out, layout, fast_accum, reduced, workspace))
    with _heuristic(call, _unit_scales() if call.is_fp8 else None) as (best, *_):
        return _fields(best)


@cache
def _unit_scales() -> tuple[Any, Any]:
    """Return two scales of 1, one-element float32 tensors on the GPU, for products that are not run; cached."""
    return tensors.floats([1.0]), tensors.floats([1.0])


@contextmanager
def _heuristic(call: LtCall, scales: tuple[Any, Any] | None) -> Iterator[tuple[_Result, Any, list[Any]]]:
    """Ask cuBLASLt's heuristic for its first algorithm for a product, in a `with` block.

    It yields (the answer, the descriptor of the operation, [layout of b, layout of a, layout of the result]), and
    destroys these descriptors at the end of the block. call: the product. scales: one-element float32 tensors on the
    GPU (scale of b, scale of a) for FP8; other formats ignore them.
    """
    m, n, k = call.shape
    with ExitStack() as made:
        enter = made.enter_context
        operation = enter(_descriptor("MatmulDesc", COMPUTE_32F, TYPES["fp32"]))
        for attribute, transposed in ((DESC_TRANSA, call.layout == "nt"), (DESC_TRANSB, call.layout == "tn")):
            if transposed:
                _set("MatmulDesc", operation, attribute, ctypes.c_int32(TRANSPOSED))
        if call.is_fp8 and scales is not None:
            for attribute, scale in zip((DESC_A_SCALE, DESC_B_SCALE), scales, strict=True):
                _set("MatmulDesc", operation, attribute, ctypes.c_void_p(scale.data_ptr()))
            _set("MatmulDesc", operation, DESC_FAST_ACCUM, ctypes.c_int8(int(call.fast_accum)))
        of_a, of_b, of_d = TYPES[call.pair[0]], TYPES[call.pair[1]], TYPES[call.out]
        # (type, rows, columns, leading dimension) of b, a and the result
        described = (
            (of_b, k, n, k) if call.layout == "nt" else (of_b, n, k, n),
            (of_a, m, k, m) if call.layout == "tn" else (of_a, k, m, k), (of_d, n, m, n),
        )  # fmt: skip
        layouts = [enter(_descriptor("MatrixLayout", *layout)) for layout in described]
        preference = enter(_descriptor("MatmulPreference"))
        _set("MatmulPreference", preference, MAX_WORKSPACE, ctypes.c_uint64(call.workspace))
        mask = ANY_REDUCTION if call.reduced else IN_FLOAT32
        _set("MatmulPreference", preference, REDUCTION_MASK, ctypes.c_uint32(mask))
        best, count = _Result(), ctypes.c_int()
        of_first, of_second, of_result = layouts
        _call("cublasLtMatmulAlgoGetHeuristic", _handle(), operation, of_first, of_second, of_result, of_result,
              preference, 1, ctypes.byref(best), ctypes.byref(count))  # fmt: skip
        if count.value < 1 or best.state:
            raise GpuError(f"cuBLASLt's heuristic knows no algorithm for these operands (state {best.state}).")
        yield best, operation, layouts


def _fields(best: _Result) -> Fields:
    """Return the configuration of the algorithm that a heuristic has selected: id, tile, stages, split-K and others.

    Its fields are cuBLASLt's attributes CUBLASLT_ALGO_CONFIG_*, as integers; 0 for one that the algorithm does not
    have. best: the heuristic's answer.
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
