"""Products of quantised layers on a GPU: emulated by its kernels, or multiplied by its tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, quantize
from fpsim.formats.named import BF16, Format
from fpsim.lazy import public
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.backend import output_overflow
from fpsim.scaling.scaled import Scaled

LIBRARIES = ("cuBLAS", "PyTorch")  # libraries whose products torch computes


def on_gpu(a: Any, b: Any, keywords: dict[str, Any]) -> Array:
    """Call `fp.gpu.matmul` for operands in the host's memory, and return its result as a NumPy array.

    a, b: (M, K) and (K, N) NumPy arrays or `fp.Scaled`. keywords: the keyword arguments of `fp.gpu.matmul`.

    Raises:
      fpsim.gpu.GpuError: there is no GPU.
    """
    public("fpsim.gpu.device.device").require_device()
    from numba import cuda

    gpu = public().gpu

    def there(x: Any) -> Any:
        return gpu.Scaled.from_cpu(x) if isinstance(x, Scaled) else cuda.to_device(np.ascontiguousarray(x))

    return np.asarray(gpu.matmul(there(a), there(b), **keywords).copy_to_host())


def on_hardware(a: Any, b: Any, keywords: dict[str, Any]) -> Array:
    """Multiply two operands on this machine's tensor cores, and return a NumPy array as `fpsim.matmul` does.

    With a schedule of cuBLAS or PyTorch, torch multiplies; with any other schedule or none, the GPU's instructions run
    in the schedule's order (`fpsim.gpu.hardware.chain_matmul`). a, b: (M, K) and (K, N) NumPy arrays or `fp.Scaled`.
    keywords: the keyword arguments of `fpsim.matmul`.

    Raises:
      fpsim.gpu.GpuError: there is no GPU, or its tensor cores do not multiply these operands.
      ValueError: the unit is another chip's, or torch and cuBLASLt cannot multiply these operands.
    """
    hardware, unit, schedule = public().gpu.hardware, keywords["accumulate"], keywords["schedule"]
    if schedule is None or schedule.library not in LIBRARIES:
        return np.asarray(hardware.chain_matmul(a, b, **keywords))
    kind = {"f16": "fp16", "bf16": "bf16"}.get(unit.a.name)
    if kind is not None and not isinstance(a, Scaled) and not isinstance(b, Scaled):
        product = np.asarray(hardware.matmul(a, b, kind, out="fp32")).view(np.float32)
        return finished(product, keywords["bias"], keywords["out_fmt"])
    recipe, scales = _hardware_recipe(a, b, unit)
    rows = recipe == "row"
    if rows and (keywords["out_fmt"] != BF16 or keywords["bias"] is not None):
        raise ValueError(
            "torch multiplies with scales per row in BF16 without bias alone; got "
            f"{keywords['out_fmt'] or 'float32'}. Take backend='gpu', or leave the schedule out."
        )
    codes = [x.codes if isinstance(x, Scaled) else x for x in (a, b)]
    words = np.asarray(hardware.scaled_mm(
        *codes, (unit.a.name, unit.b.name), *scales, recipe=recipe, out="bf16" if rows else "fp32",
        fast_accum=schedule.fast_accum,
    ))  # fmt: skip
    return decode(words, BF16) if rows else finished(words.view(np.float32), keywords["bias"], keywords["out_fmt"])


def finished(product: Array, bias: Array | None, out_fmt: Format | None) -> Array:
    """Return a product (M, N) plus the bias, rounded to nearest even to the values of a format.

    bias: (N,) float32, or None. out_fmt: the format, into which values overflow as in `fp.matmul`; None to leave the
    sum unrounded.
    """
    total = product if bias is None else product + bias
    return total if out_fmt is None else quantize(total, out_fmt, overflow=output_overflow(out_fmt))


def _hardware_recipe(a: Any, b: Any, unit: MatrixUnit) -> tuple[str, tuple[Any, Any]]:
    """Return (recipe name of `fp.gpu.hardware.scaled_mm` for two operands' scales, (scales of a, scales of b)).

    a, b: `fp.Scaled` arrays, or codes without scales, for which the scale is 1. unit: the matrix unit.

    Raises:
      ValueError: torch has no product for this unit and these scales.
    """
    words: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {
        ((-1, -1), (-1, -1)): "tensor", ((1, -1), (-1, 1)): "row", ((1, 128), (128, 128)): "1x128_128x128",
        ((1, 128), (128, 1)): "1x128_1x128", ((128, 128), (128, 1)): "128x128_1x128",
    }  # fmt: skip
    scalings = [x.scaling if isinstance(x, Scaled) else None for x in (a, b)]
    blocks = tuple((-1, -1) if scaling is None else scaling.block for scaling in scalings)
    recipe = words.get((blocks[0], blocks[1]))
    if recipe is None or unit.scale is not None or unit.a.fmt.bits != 8:
        raise ValueError(
            "backend='hardware' multiplies 16-bit formats, and FP8 with scales per tensor, row, 1x128 and 128x128; got "
            f"{unit.name} with {scalings[0]!r} and {scalings[1]!r}. Take backend='emulated'."
        )
    no_scale = np.float32(1)  # for codes without scales
    return recipe, (a.scales if isinstance(a, Scaled) else no_scale, b.scales if isinstance(b, Scaled) else no_scale)
