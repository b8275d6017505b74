"""Products by PyTorch on the GPU's tensor cores, for comparison with fpsim, and facts on the GPU.

Rules of layout and alignment are those of torch and cuBLASLt (docs/gpu.md).
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fpsim.gpu.device.device import FP8_CAPABILITY, GpuError, require_capability, require_device
from fpsim.gpu.hardware.cublaslt import version
from fpsim.gpu.hardware.failures import in_one_sentence
from fpsim.gpu.hardware.tensors import (
    DTYPES,
    FP8,
    Pair,
    Words,
    column_major,
    floats,
    known,
    shapes_of,
    tensor,
    torch_module,
    words,
)
from fpsim.matrix_units.chips import capability_of
from fpsim.schedules.libraries.cublas_choice import LAYOUTS

HOPPER = capability_of("hopper")
BLOCK = 128  # terms, rows or columns that share a scale
RECIPES = {
    "tensor": ("TensorWise", "TensorWise"), "row": ("RowWise", "RowWise"),
    "1x128_128x128": ("BlockWise1x128", "BlockWise128x128"), "1x128_1x128": ("BlockWise1x128", "BlockWise1x128"),
    "128x128_1x128": ("BlockWise128x128", "BlockWise1x128"),
}  # fmt: skip


def about() -> dict[str, str]:
    """Return facts for records, name -> text: the GPU, its driver, and versions of CUDA, cuBLASLt, torch and Triton.

    A driver, cuBLASLt or Triton whose version cannot be read has the text "unknown (name of the exception)".
    """
    require_device()
    torch = torch_module()
    facts = {
        "gpu": str(torch.cuda.get_device_name()),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "multiprocessors": str(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count),
        "torch": str(torch.__version__), "cuda": str(torch.version.cuda),
    }  # fmt: skip
    asks: dict[str, Callable[[], Any]] = {
        "driver": _driver, "cublaslt": version, "triton": lambda: importlib.import_module("triton").__version__,
    }  # fmt: skip
    for name, ask in asks.items():
        try:
            facts[name] = str(ask())
        except Exception as reason:
            facts[name] = f"unknown ({type(reason).__name__})"
    return facts


def _driver() -> str:
    """Return the version of the GPU's driver, as nvidia-smi prints it."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()[0]


@in_one_sentence
def scaled_mm(
    a: Any, b: Any, pair: Pair = ("e4m3", "e4m3"), scale_a: Any = 1.0, scale_b: Any = 1.0, *, recipe: str = "tensor",
    out: str = "bf16", fast_accum: bool = False, bias: Any = None,
) -> Words:  # fmt: skip
    """Multiply FP8 operands with scales by `torch._scaled_mm`, or by `torch.nn.functional.scaled_mm` for block scales.

    Args:
      a, b: (M, K) and (K, N) codes, uint8.
      pair: formats of a and b, "e4m3" or "e5m2" each.
      scale_a, scale_b: decode scales, float32: for "tensor" a number each; for "row" (M, 1) and (1, N); for blocks
        (M, K / 128) or (M / 128, K / 128) of a, (K / 128, N) or (K / 128, N / 128) of b, as for `fpsim.matmul`.
      recipe: the elements that share a scale: "tensor", "row", or block shapes of a and b: "1x128_128x128",
        "1x128_1x128" or "128x128_1x128".
      out: format of the result: "bf16", "fp16" or "fp32".
      fast_accum: torch's use_fast_accum.
      bias: (N,) values of the format `out`, which must then be "bf16" or "fp16"; None for no bias.

    Returns:
      (M, N) bit patterns of the result, as unsigned NumPy integers.

    Raises:
      GpuError: there is no GPU, it cannot multiply with these scales, or torch is too old for them.
      ValueError: torch or cuBLASLt does not support the operands; the message states the rule.

    Source: torch, aten/src/ATen/native/cuda/ScaledBlas.cpp; docs/gpu.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> if fp.gpu.available():
      ...     ones = np.full((16, 16), 0x38, np.uint8)
      ...     print(fp.gpu.hardware.scaled_mm(ones, ones, out="fp32").view(np.float32)[0, 0])
    """
    _refuse(a, b, pair, recipe, out, fast_accum, bias)
    require_capability(HOPPER if "128" in recipe else FP8_CAPABILITY, f"the FP8 product with {recipe} scales")
    torch = torch_module()
    left, right = tensor(a, pair[0]), column_major(b, pair[1])
    dtype = getattr(torch, DTYPES[out])
    added = None if bias is None else tensor(bias, out)
    if "128" not in recipe:
        shapes = ((), ()) if recipe == "tensor" else ((left.shape[0], 1), (1, right.shape[1]))
        first, second = (floats(s).reshape(shape) for s, shape in zip((scale_a, scale_b), shapes, strict=True))
        product = torch._scaled_mm(
            left, right, scale_a=first, scale_b=second, bias=added, out_dtype=dtype, use_fast_accum=fast_accum
        )
        return words(product)
    functional = importlib.import_module("torch.nn.functional")
    if not hasattr(functional, "scaled_mm"):
        raise GpuError(
            f"scales per block need torch.nn.functional.scaled_mm, which came with torch 2.10; this is torch "
            f"{torch.__version__}. Recipes 'tensor' and 'row' work with it."
        )
    types = [getattr(functional.ScalingType, name) for name in RECIPES[recipe]]
    first, second = _block_scales(floats(scale_a), types[0].name), _block_scales(floats(scale_b).t(), types[1].name)
    product = functional.scaled_mm(
        left, right, first, types[0], second, types[1], bias=added, output_dtype=dtype, use_fast_accum=False
    )
    return words(product)


def _block_scales(scales: Any, kind: str) -> Any:
    """Return float32 scales as a tensor in the memory layout that torch requires for a scaling type.

    scales: tensor (rows or blocks of 128 rows, K / 128). kind: "BlockWise1x128" stores the same shape column after
    column. "BlockWise128x128" returns the transpose, with K / 128 padded by zeros to a multiple of 4, stored along K;
    without the padding torch reads wrong scales (pytorch issue 166752).
    """
    if kind == "BlockWise1x128":
        # the stride of an axis of one element is arbitrary, but torch accepts only the usual one
        return scales.t().contiguous().as_strided(scales.shape, (1, scales.shape[0]))
    torch = torch_module()
    blocks, terms = scales.shape
    padded = torch.zeros((blocks, -(-terms // 4) * 4), dtype=torch.float32, device=scales.device)
    padded[:, :terms] = scales
    return padded.t()


def _refuse(a: Any, b: Any, pair: Pair, recipe: str, out: str, fast_accum: bool, bias: Any) -> None:
    """Raise ValueError for arguments of `scaled_mm` that torch does not support.

    a, b: (M, K) and (K, N) FP8 codes. pair: their formats. recipe: which elements share a scale, as in `scaled_mm`,
    such as "tensor". out: format of the result. fast_accum: whether sums are to be accumulated fast. bias: (N,) values,
    or None.
    """
    for kind, name in zip(pair, ("a's format", "b's format"), strict=True):
        known(kind, FP8, name)
    known(recipe, tuple(RECIPES), "recipe")
    known(out, ("bf16", "fp16", "fp32"), "out")
    m, n, k = shapes_of(a, b)
    if pair == ("e5m2", "e5m2"):
        raise ValueError("torch does not multiply E5M2 by E5M2 on CUDA. Encode one operand in E4M3.")
    if k % 16 or n % 16:
        raise ValueError(f"torch's FP8 products require K and N to be multiples of 16; got K = {k}, N = {n}. Pad.")
    if bias is not None and out == "fp32":
        raise ValueError("torch takes a bias for bf16 and fp16 results only, of the same dtype; got out='fp32'.")
    if "128" not in recipe:
        return
    of_a, of_b = recipe.split("_")
    if fast_accum:
        raise ValueError("block scales have no fast accumulation in torch. Leave fast_accum out.")
    if k % BLOCK or (of_a == "128x128" and m % BLOCK) or (of_b == "128x128" and n % BLOCK) or m % 4:
        raise ValueError(
            f"block scales require K and the sides with 128x128 blocks to be multiples of 128, and M of 4; got "
            f"{m} x {n} x {k} with {recipe}. Pad."
        )


@in_one_sentence
def matmul(
    a: Any, b: Any, kind: str = "fp16", *, out: str | None = None, layout: str = "nn", reduced: bool = False
) -> Words:
    """Multiply by `torch.mm` on tensor cores, with float32 sums.

    Args:
      a, b: (M, K) and (K, N): uint16 codes, or arrays of the format's own dtype; float32 for "tf32".
      kind: format of a and b, "fp16", "bf16" or "tf32".
      out: format of the result: `kind` or "fp32"; None for `kind`, and "fp32" for "tf32".
      layout: layout of the operands: "nn", both row-major; "nt", b transposed (both contiguous along K), as in
        `x @ weight.t()`; "tn", a transposed, as in `grad.t() @ x`.
      reduced: True lets cuBLAS add slices of K in reduced precision, as torch does by default; False adds them in
        float32.

    Returns:
      (M, N) bit patterns of the result, as unsigned NumPy integers.

    Raises:
      GpuError: there is no GPU, or it has no tensor cores for the format.
      ValueError: an unknown format or layout, or shapes that do not fit.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> if fp.gpu.available():
      ...     print(fp.gpu.hardware.matmul(np.ones((16, 16), np.float16), np.ones((16, 16), np.float16))[0, 0])
    """
    known(kind, ("fp16", "bf16", "tf32"), "kind")
    result = out or ("fp32" if kind == "tf32" else kind)
    choices = ("fp32",) if kind == "tf32" else (kind, "fp32")
    if result not in choices:
        raise ValueError(f"out must be {' or '.join(map(repr, choices))} for torch.mm of {kind}; got {out!r}.")
    known(layout, LAYOUTS, "layout")
    shapes_of(a, b)
    require_capability((8, 0), f"a product of {kind} on tensor cores")
    torch = torch_module()
    left = (column_major if layout == "tn" else tensor)(a, kind)
    right = (column_major if layout == "nt" else tensor)(b, kind)
    with _settings(torch, reduced):
        if result == kind or kind == "tf32":
            return words(torch.mm(left, right))
        return words(torch.mm(left, right, out_dtype=torch.float32))


REDUCTIONS = tuple(f"allow_{kind}_reduced_precision_reduction" for kind in ("fp16", "bf16"))


@contextmanager
def _settings(torch: Any, reduced: bool) -> Iterator[None]:
    """Set torch.backends.cuda.matmul for a `with` block, and restore its settings afterwards, also after a failure.

    TF32 is allowed, FP16 accumulation is not, and reductions have reduced precision if `reduced`. A reduction has two
    settings: whether its precision may be reduced, and whether K may be split at all; setting the first resets the
    second to True. TF32 is set by its newer name, fp32_precision, if torch has it, because setting the older one,
    allow_tf32, changes both.
    """
    settings = torch.backends.cuda.matmul
    tf32 = ("fp32_precision", "tf32") if hasattr(settings, "fp32_precision") else ("allow_tf32", True)
    before: dict[str, Any] = {tf32[0]: getattr(settings, tf32[0])}
    for name in REDUCTIONS:
        if hasattr(settings, name):
            split = f"{name}_split_k"
            known = hasattr(settings, split)
            before[name] = (getattr(settings, name), getattr(settings, split)) if known else getattr(settings, name)
    if hasattr(settings, "allow_fp16_accumulation"):
        before["allow_fp16_accumulation"] = settings.allow_fp16_accumulation
    try:
        for name in before:
            setattr(settings, name, tf32[1] if name == tf32[0] else reduced and name in REDUCTIONS)
        yield
    finally:
        for name, value in before.items():
            setattr(settings, name, value)
