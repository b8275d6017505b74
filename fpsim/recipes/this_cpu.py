"""Linear recipes whose products are computed as by torch.mm on the processor of this machine."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version

from fpsim.errors import shown
from fpsim.formats.named import BF16, FP16
from fpsim.lazy import deferred
from fpsim.recipes.linear_recipe import SCALINGS, LinearRecipe, Product
from fpsim.schedules.shaped import CHAIN, ISAS, Isa, Layout, ShapedSchedule

THIS_CPU = "this CPU"
TORCH = "2.13.0"  # the version for which fp.schedules.torch_mm was measured
NAMES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")  # variables of oneDNN; the first one that is not empty counts
# Instructions -> the features that they need, as LLVM calls them.
FEATURES: dict[Isa, tuple[str, ...]] = {
    "amx_fp16": ("amx-tile", "amx-fp16"), "amx": ("amx-tile", "amx-bf16"), "avx512_fp16": ("avx512fp16",),
    "avx512_bf16": ("avx512bf16",), "avx512_vnni": ("avx512vnni",),
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512dq"), "avx2_vnni": ("avxvnni",), "avx2": ("avx2", "fma"),
}  # fmt: skip
# Value of these variables -> the most capable instruction set that it allows; others allow less than AVX2.
LIMITS: dict[str, Isa] = {
    "DEFAULT": "amx_fp16", "ALL": "amx_fp16", "AVX10_1_512_AMX_FP16": "amx_fp16", "AVX10_1_512_AMX": "amx",
    "AVX512_CORE_AMX_FP16": "amx_fp16", "AVX512_CORE_AMX": "amx", "AVX10_1_512": "avx512_fp16",
    "AVX512_CORE_FP16": "avx512_fp16", "AVX512_CORE_BF16": "avx512_bf16", "AVX512_CORE_VNNI": "avx512_vnni",
    "AVX512_CORE": "avx512", "AVX2_VNNI_2": "avx2_vnni", "AVX2_VNNI": "avx2_vnni", "AVX2": "avx2",
}  # fmt: skip
# Memory layouts of the operands of a layer's products, y = x w^T, dx = dy w, dw = dy^T x.
LAYOUTS: dict[str, Layout] = {"fprop": "nt", "dgrad": "nn", "wgrad": "tn"}

hosts = deferred("fpsim.runtime.host")


def isa_here() -> Isa:
    """Return the most capable instruction set, such as "avx512", that oneDNN uses on this processor.

    The environment variable ONEDNN_MAX_CPU_ISA, or its older name DNNL_MAX_CPU_ISA, limits it.

    Raises:
      ValueError: the processor is not x86-64 or has no AVX2, or it is not known how torch multiplies under the
        variable's value.
    """
    features = hosts().host_features()
    name, word = next(((name, word) for name in NAMES if (word := os.environ.get(name))), (NAMES[0], "DEFAULT"))
    if word.upper() not in LIMITS:
        raise ValueError(
            f"how torch multiplies under {name}={shown(word)} is not known, only under {', '.join(LIMITS)}. Unset it."
        )
    allowed = ISAS[ISAS.index(LIMITS[word.upper()]) :]  # ISAS lists the most capable first
    here = next((isa for isa in allowed if all(name in features for name in FEATURES[isa])), None)
    if here is None:
        raise ValueError(
            "how torch multiplies on this CPU is not known, only on x86-64 processors with AVX2. Name a chip instead."
        )
    return here


def by_torch_mm(recipe: LinearRecipe, name: str, library: ShapedSchedule) -> Product:
    """Return the product `name` of a linear recipe, changed to follow the schedule of a library on a processor.

    Sums are float32, and the result has the operands' format unless the recipe names another. A product of two uncast
    operands is returned unchanged: torch itself multiplies these here.

    Args:
      recipe: the linear recipe.
      name: the product, "fprop", "dgrad" or "wgrad".
      library: the library's schedules by shape, such as `fp.schedules.torch_mm("avx2")`.

    Raises:
      ValueError: the operands are not both BF16, or both FP16, without scales.

    Example:
      >>> from fpsim.recipes.this_cpu import by_torch_mm
      >>> by_torch_mm(fp.torch.RECIPES["BF16"], "fprop", fp.schedules.torch_mm("avx512_bf16", layout="nt"))
      Product(FusedMultiplyAdd(FP32), schedule=torch_mm('avx512_bf16', layout='nt'), out_fmt=BF16)
    """
    product: Product = getattr(recipe, name)
    fmts = recipe.operands(name)
    if fmts == (None, None):
        return product
    scaled = recipe.delayed is not None or any(getattr(recipe, field) not in (None, "same") for field in SCALINGS)
    if fmts not in ((BF16, BF16), (FP16, FP16)) or scaled:
        words = " x ".join("float32" if fmt is None else str(fmt) for fmt in fmts)
        raise ValueError(
            f"torch.mm on a CPU multiplies BF16 and FP16 without scales; got {name} of {words}. Take recipe='BF16'."
        )
    return product.replace(accumulate=CHAIN, schedule=library, promote=None, out_fmt=product.out_fmt or fmts[0])


def notes_of(isa: Isa) -> tuple[str, ...]:
    """Return sentences on where the rules of torch.mm for `isa`, an instruction set such as "avx512", were measured.

    The first one names the version of torch and the processors. If another version of torch is installed here, a second
    sentence says that it may add in another order.
    """
    notes = [
        f"Added as by torch {TORCH} with one thread and the instructions of {isa}, by rules measured on Intel Xeons "
        "(docs/cpu.md)"
    ]
    try:
        here = version("torch").partition("+")[0]
    except PackageNotFoundError:
        here = TORCH
    return (*notes, *([f"torch {here} is installed here, which may add otherwise"] if here != TORCH else []))
