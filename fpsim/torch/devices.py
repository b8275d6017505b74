"""Products of quantised layers on a GPU: emulated there, or by its tensor cores."""

from __future__ import annotations

from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode
from fpsim.formats.named import BF16
from fpsim.lazy import public
from fpsim.matrix_units.chips import find
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.scaled import Scaled
from fpsim.schedules.schedule import Chain
from fpsim.torch.plan import Adds


def on_gpu(a: Any, b: Any, keywords: dict[str, Any]) -> Array:
    """Call `fp.gpu.matmul` with operands from the host's memory, and return its result there.

    Raises:
      fpsim.gpu.GpuError: there is no GPU.
    """
    public("fpsim.gpu.device.device").require_device()
    from numba import cuda

    gpu = public().gpu

    def there(x: Any) -> Any:
        return gpu.Scaled.from_cpu(x) if isinstance(x, Scaled) else cuda.to_device(np.ascontiguousarray(x))

    return np.asarray(gpu.matmul(there(a), there(b), **keywords).copy_to_host())


def on_hardware(a: Any, b: Any, adds: Adds) -> Array:
    """Multiply two operands on this machine's tensor cores, in the order that the product names; return float32.

    Products without a schedule and those of cuBLAS are torch's, which has FP8 with scales per row in BF16 alone; where
    float32 is asked for, and for TF32, a Triton loop chains the instructions. DeepGEMM's and CUTLASS's orders of block
    scales are Triton loops.

    Raises:
      fpsim.gpu.GpuError: there is no GPU, or one without such tensor cores.
      ValueError: the GPU has other units, or nothing on it adds in this order.
    """
    hardware, unit, schedule = public().gpu.hardware, adds.unit, adds.schedule
    assert unit is not None
    _require_unit(unit)
    codes = [x.codes if isinstance(x, Scaled) else x for x in (a, b)]
    if unit.a.name == "tf32":
        return _by_loop(codes, ("tf32", "tf32"), adds)
    kind = {"f16": "fp16", "bf16": "bf16"}.get(unit.a.name)
    if kind is not None and not isinstance(a, Scaled) and not isinstance(b, Scaled):
        _require_order(adds, ("cuBLAS",), promote=(None,))
        return np.asarray(hardware.matmul(a, b, kind, out="fp32")).view(np.float32)
    recipe, scales = _hardware_recipe(a, b, unit)
    pair = unit.a.name, unit.b.name
    if "128" in recipe and schedule is not None and schedule.library in ("DeepGEMM", "CUTLASS"):
        return _by_scaled_loop(a, b, pair, adds)
    if recipe == "row" and adds.out_fmt != BF16:
        sums, factors = _by_loop(codes, pair, adds), np.multiply(*scales, dtype=np.float32)
        return np.asarray(sums * factors + np.float32(0), np.float32)
    _require_order(adds, ("PyTorch",) if recipe == "row" else ("cuBLAS",), promote=(None, 128))
    fast = adds.promote is None and (schedule is None or schedule.fast_accum)
    words = hardware.scaled_mm(
        *codes, pair, *scales, recipe=recipe, out="fp32" if recipe != "row" else "bf16", fast_accum=fast
    )
    product = np.asarray(words)
    return product.view(np.float32) if product.dtype == np.uint32 else decode(product, "bf16")


def _require_unit(unit: MatrixUnit) -> None:
    """Raise a ValueError unless the GPU of this machine has a matrix unit."""
    device = public("fpsim.gpu.device.device")
    device.require_device()
    capability = ".".join(map(str, device.capability()))
    named = find(capability)
    if named is None or named.chip.arch != unit.arch:
        raise ValueError(
            f"backend='hardware' needs a GPU with {unit.name}; this one, of compute capability {capability}, has "
            f"{'units that are not known' if named is None else f'those of {named.chip.arch}'}. Take backend='gpu'."
        )


def _require_order(adds: Adds, libraries: tuple[str, ...], promote: tuple[int | None, ...]) -> None:
    """Raise a ValueError unless a product names no schedule or one of these libraries, and one of these promotions."""
    named, schedule = adds.unit, adds.schedule
    if (schedule is not None and schedule.library not in libraries) or adds.promote not in promote:
        order = f"promote={adds.promote}" if schedule is None else schedule
        raise ValueError(
            f"backend='hardware' has no product of {named.name if named else ''} that adds as {order} and gives "
            f"{adds.out_fmt or 'float32'}. Take backend='gpu'."
        )


def _by_loop(codes: list[Any], pair: tuple[str, str], adds: Adds) -> Array:
    """Multiply codes by one chain of matrix instructions, in a Triton loop over padded blocks."""
    _require_order(adds, (), promote=(None,))
    a, b = (np.asarray(x) for x in codes)
    block_k = 32 if pair[0] == "tf32" else 128
    m, n = a.shape[0], b.shape[1]
    a, b = _padded(a, 64, block_k), _padded(b, block_k, 64)
    words = public().gpu.hardware.dot(a, b, None, pair, block_k=block_k)
    return np.asarray(words).view(np.float32)[:m, :n]


def _by_scaled_loop(a: Scaled, b: Scaled, pair: tuple[str, str], adds: Adds) -> Array:
    """Multiply operands with scales per 128 terms by the loop of DeepGEMM or CUTLASS."""
    schedule = adds.schedule
    order = schedule.epilogue.scale_order
    if order not in ("product", "a_first") or schedule.sums != Chain(128):
        _require_order(adds, (), promote=())
    m, n = a.codes.shape[0], b.codes.shape[1]
    of_a = np.repeat(a.scales, a.scaling.block[0], axis=0)[:m] if a.scaling.block[0] > 1 else a.scales
    of_b = np.repeat(b.scales, b.scaling.block[1], axis=1)[:, :n] if b.scaling.block[1] > 1 else b.scales
    words = public().gpu.hardware.scaled_dot(
        _padded(a.codes, 64, 128), _padded(b.codes, 128, 64), pair, _padded(of_a, 64, 1), _padded(of_b, 1, 64),
        a_first=order == "a_first", fused=schedule.fuses_scales,
    )  # fmt: skip
    return np.asarray(words).view(np.float32)[:m, :n]


def _padded(x: Array, rows: int, columns: int) -> Array:
    """Return a matrix with zeros behind it, of multiples of so many rows and columns."""
    room = [(0, -size % block) for size, block in zip(x.shape, (rows, columns), strict=True)]
    return np.pad(x, room) if any(after for _, after in room) else x


def _hardware_recipe(a: Any, b: Any, unit: MatrixUnit) -> tuple[str, tuple[Any, Any]]:
    """Return the name of the recipe by which `fp.gpu.hardware.scaled_mm` multiplies two operands, and their scales."""
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
    no_scale = np.float32(1)  # of codes without scales
    return recipe, (a.scales if isinstance(a, Scaled) else no_scale, b.scales if isinstance(b, Scaled) else no_scale)
