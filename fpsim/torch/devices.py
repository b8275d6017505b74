"""Products of quantised layers on a GPU: emulated there, or by its tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode
from fpsim.lazy import public
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.scaled import Scaled
from fpsim.torch.operators import array_of, torch
from fpsim.torch.plan import Adds


def on_gpu(a: Any, b: Any, keywords: dict[str, Any]) -> Array:
    """`fp.gpu.matmul`, from and to the host's memory."""
    gpu = public().gpu

    def there(x: Any) -> Any:
        if not isinstance(x, Scaled):
            return torch.from_numpy(np.ascontiguousarray(x)).cuda()
        parts = {name: getattr(x, name) for name in ("codes", "scales", "scale_codes")}
        moved = {name: None if part is None else there(part) for name, part in parts.items()}
        return gpu.Scaled(fmt=x.fmt, scaling=x.scaling, tensor_scale=x.tensor_scale, **moved)

    if keywords["bias"] is not None:
        keywords = {**keywords, "bias": there(keywords["bias"])}
    found = gpu.matmul(there(a), there(b), **keywords).cpu()
    return array_of(found) if found.is_floating_point() else found.numpy()


def on_hardware(a: Any, b: Any, adds: Adds) -> Array:
    """The product by the tensor cores of this machine's GPU, float32."""
    hardware, unit = public().gpu.hardware, adds.unit
    assert unit is not None
    if not isinstance(a, Scaled) and not isinstance(b, Scaled):
        kind = {"f16": "fp16", "bf16": "bf16"}.get(unit.a.name)
        if kind is not None:
            return np.asarray(hardware.matmul(a, b, kind, out="fp32")).view(np.float32)
        recipe, scales = "tensor", (np.float32(1), np.float32(1))
        codes = a, b
    else:
        recipe, scales, codes = *_hardware_recipe(a, b, unit), (a.codes, b.codes)
    fast = adds.promote is None and adds.schedule is None
    words = hardware.scaled_mm(
        *codes, (unit.a.name, unit.b.name), *scales, recipe=recipe, out="fp32" if recipe != "row" else "bf16",
        fast_accum=fast,
    )  # fmt: skip
    found = np.asarray(words)
    return found.view(np.float32) if found.dtype == np.uint32 else decode(found, "bf16")


def _hardware_recipe(a: Scaled, b: Scaled, unit: MatrixUnit) -> tuple[str, tuple[Any, Any]]:
    """The word of `fp.gpu.hardware.scaled_mm` for two operands, and their scales."""
    words: dict[tuple[tuple[int, ...], tuple[int, ...]], str] = {
        ((-1, -1), (-1, -1)): "tensor", ((1, -1), (-1, 1)): "row", ((1, 128), (128, 128)): "1x128_128x128",
        ((1, 128), (128, 1)): "1x128_1x128", ((128, 128), (128, 1)): "128x128_1x128",
    }  # fmt: skip
    recipe = words.get((a.scaling.block, b.scaling.block))
    if recipe is None or unit.scale is not None:
        raise ValueError(
            "backend='hardware' multiplies 16-bit formats, and FP8 with scales per tensor, row, 1x128 and 128x128; got "
            f"{unit.name} with {a.scaling!r} and {b.scaling!r}. Take backend='emulated'."
        )
    return recipe, (a.scales, b.scales)
