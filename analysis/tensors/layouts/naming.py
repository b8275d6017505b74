"""Names of the layouts of recognised weights, such as "compressed-tensors:nvfp4".

The functions take the stored tensors of a weight, and the weight that they represent.
"""

from __future__ import annotations

from fpsim.analysis.tensors.layouts.bitsandbytes import is_nf4
from fpsim.analysis.tensors.layouts.parts import WeightParts
from fpsim.analysis.tensors.layouts.unpacking import swizzled_shape
from fpsim.analysis.tensors.tensor import Tensor

PLAIN = "plain"  # the layout of tensors that are not quantised


def deepseek(parts: WeightParts, weight: Tensor) -> str:
    """Return the layout's name for DeepSeek's weights: "deepseek_fp8", "deepseek_fp8:ue8m0" (E8M0 scales) or
    "deepseek_fp4".
    """
    if weight.dtype == "MXFP4":
        return "deepseek_fp4"
    return "deepseek_fp8:ue8m0" if parts.beside["scale"].dtype == "float8_e8m0fnu" else "deepseek_fp8"


def packed_integers(parts: WeightParts, weight: Tensor) -> str:
    """Return the layout's name for compressed-tensors' packed integers, such as "compressed-tensors:int4_asym"."""
    bits = weight.dtype.partition(" ")[0].lower()
    return f"compressed-tensors:{bits}{'_asym' if 'zero_point' in parts.beside else ''}"


def gptq_or_awq(parts: WeightParts, weight: Tensor) -> str:
    """Return the layout's name for a weight of integers packed by GPTQ or AWQ: "gptq", "gptq_v2" or "awq"."""
    if "(AWQ)" in weight.dtype:
        return "awq"
    return "gptq_v2" if weight.dtype.endswith("v2)") else "gptq"


def fp4(parts: WeightParts, weight: Tensor, library: str) -> str:
    """Return the layout's name for a weight of E2M1 codes, such as "modelopt:nvfp4".

    library: the library that wrote it.
    """
    scale = parts.beside["scale"]
    kind, block = ("nvfp4", 16) if scale.dtype == "float8_e4m3fn" else ("mxfp4", 32)
    return f"{library}:{kind}{_swizzled(scale, weight, block)}"


def _swizzled(scale: Tensor, weight: Tensor, block: int) -> str:
    """Return "_swizzled", an ending of layout names, if scales are stored in tiles of 128 x 4; else "".

    scale: the tensor of scales. weight: the weight. block: number of codes of a row that share a scale.
    """
    shape = weight.shape
    return "_swizzled" if len(shape) == 2 and scale.shape == swizzled_shape(shape[0], shape[1] // block) else ""


def torchao(parts: WeightParts, weight: Tensor) -> str:
    """Return the layout's name for torchao's one-byte codes, such as "torchao:fp8"."""
    if weight.dtype.startswith("MX"):
        return f"torchao:mxfp8{_swizzled(parts.beside['scale'], weight, 32)}"
    return "torchao:int8" if parts.codes.dtype in ("int8", "uint8") else "torchao:fp8"


def bitsandbytes(parts: WeightParts, weight: Tensor) -> str:
    """Return the layout's name for a bitsandbytes weight, such as "bitsandbytes:nf4_double" or "bitsandbytes:int8"."""
    if parts.codes.dtype == "int8" and "state" not in parts.beside:
        return "bitsandbytes:int8"
    kind = "nf4" if is_nf4(parts) else "fp4"
    return f"bitsandbytes:{kind}{'_double' if 'nested_scale' in parts.beside else ''}"


def hqq(parts: WeightParts, weight: Tensor) -> str:
    """Return the layout's name for an HQQ weight, such as "hqq:int4"."""
    return f"hqq:{weight.dtype.partition(' ')[0].lower()}"


def one_byte(parts: WeightParts, weight: Tensor) -> str:
    """Return the layout's name for FP8 or INT8 codes with a tensor named `weight_scale`, as compressed-tensors and
    ModelOpt write them.

    The configuration names the library. Without one, the shape of the scales decides: ModelOpt stores () for a tensor's
    scale and (N,) for rows' scales, compressed-tensors (1,) and (N, 1).
    """
    shape = parts.beside["scale"].shape
    method = str(parts.settings.get("quant_method", ""))
    modelopt = method == "modelopt" if method else shape in ((), weight.shape[:1]) or len(shape) == 4
    library = "modelopt" if modelopt else "compressed-tensors"
    if weight.dtype.startswith("MX"):
        return f"{library}:mxfp8" if method else "mxfp8"
    if parts.codes.dtype in ("int8", "uint8"):
        return f"{library}:int8"
    if "with one scale" in weight.dtype:
        return f"{library}:fp8{'' if modelopt else '_tensor'}"
    return f"{library}:fp8_{'channel' if 'row scales' in weight.dtype else 'block'}"
