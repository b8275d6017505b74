"""One matrix product of a quantised layer: codes or values, multiplied by a unit, an accumulator or torch."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array
from fpsim.casts.cast import decode, encode
from fpsim.formats.named import FP32, Format
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.recipes.cast_text import spec_from
from fpsim.recipes.this_cpu import isa_here
from fpsim.scaling.scaled import Scaled, encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import matrix_block
from fpsim.schedules.schedule import Slicing
from fpsim.schedules.shaped import ShapedSchedule, is_regions
from fpsim.torch.devices import finished, on_gpu, on_hardware
from fpsim.torch.operators import Tensor, array_of, dtype_of, tensor_of, torch
from fpsim.torch.plan import OperandCast, ProductPlan, adds_of


class CastOperand(NamedTuple):
    """An operand of a product, before and after its cast.

    Attributes:
      source: the floats before the cast, (rows, columns).
      encoded: the result of the cast: a `fp.Scaled`, codes of `fmt`, or `source` itself if nothing is cast.
      fmt: the format of codes; None for a `fp.Scaled`, or without a cast.
    """

    source: Array
    encoded: Any
    fmt: Format | None

    @property
    def transposed(self) -> CastOperand:
        """Transpose of the operand, (columns, rows)."""
        turned = self.encoded.transpose() if isinstance(self.encoded, Scaled) else self.encoded.T
        return CastOperand(self.source.T, turned, self.fmt)

    @property
    def values(self) -> Array:
        """Values of the operand after its cast: float64 for a float64 `source` without scales, else float32."""
        if isinstance(self.encoded, Scaled):
            return self.encoded.decode()
        if self.fmt is None:
            return self.source if self.source.dtype == np.float64 else self.source.astype(np.float32, copy=False)
        return decode(self.encoded, self.fmt, np.float64 if self.source.dtype == np.float64 else np.float32)


def operand(x: Tensor, cast: OperandCast, step: Tensor | None) -> CastOperand:
    """Return a tensor (rows, columns) as an operand, before and after its cast.

    cast: format, scaling and rounding as text, and the key of random draws. step: count of forward passes, which is
    added to that key to seed stochastic rounding; None without it.
    """
    source = array_of(x)
    if not cast.spec:
        return CastOperand(source, source, None)
    how = spec_from(cast.spec)
    seed = None if step is None or cast.key < 0 else (int(step.item()) + cast.key) & 0xFFFFFFFFFFFFFFFF
    keywords = how.keywords(seed)
    if how.scaling is None:
        assert isinstance(how.element, Format)
        return CastOperand(source, encode(source, how.element, **keywords), how.element)
    return CastOperand(source, encode_scaled(source, how.element, _for_matrices(how.scaling), **keywords), None)


@lru_cache(maxsize=256)
def _for_matrices(scaling: Scaling) -> Scaling:
    """Return a scaling whose block has a size along both axes of a matrix, as the code of products requires."""
    return scaling if len(scaling.block) == 2 else scaling.replace(block=matrix_block(scaling.block))


# ---- products


def multiply(
    a: CastOperand, b: CastOperand, turned: str, how: ProductPlan, bias: Tensor | None, backend: str
) -> Tensor:
    """Return the product (M, N) of two operands as a float32 tensor; float64 if torch multiplies float64 values.

    Args:
      a, b: the operands.
      turned: "b" for a @ b^T + bias, "a" for a^T @ b, "" for a @ b.
      how: the arithmetic of the product.
      bias: (N,), added to the sums in float32 before they are rounded to the result's format; or None.
      backend: where to multiply, as for `QuantLinear`.
    """
    if how.is_torch:
        return _by_torch(a, b, turned, how, bias)
    if backend == "cpu" and not how.is_float32:
        return _by_this_cpu(a, b, turned, how, bias)
    a, b = a.transposed if turned == "a" else a, b.transposed if turned == "b" else b
    how = resolved(how, a, b, bias is not None)
    adds = adds_of(how)
    vector = None if bias is None else array_of(bias).astype(np.float32)
    if adds.unit is None:
        codes = matmul(
            a.values.astype(np.float32, copy=False), b.values.astype(np.float32, copy=False),
            accumulate=adds.accumulator, schedule=adds.schedule,
        )  # fmt: skip
        return tensor_of(finished(as_float(codes, adds.accumulator.result_format), vector, adds.out_fmt))
    left, right = _codes(a, adds.unit, "a"), _codes(b, adds.unit, "b")
    keywords: dict[str, Any] = {
        "accumulate": adds.unit, "schedule": adds.schedule, "promote": adds.promote, "bias": vector,
        "out_fmt": adds.out_fmt,
    }  # fmt: skip
    if backend in ("gpu", "hardware"):
        there = on_gpu if backend == "gpu" else on_hardware
        return tensor_of(as_float(there(left, right, keywords), adds.out_fmt or FP32))
    if adds.out_fmt is None or (adds.schedule is not None and adds.schedule.slicing != Slicing()):
        return tensor_of(as_float(matmul(left, right, **keywords), adds.out_fmt or FP32))
    # with one slice of K the result is rounded once, so its float32 sums can be rounded here without codes in between
    sums = as_float(matmul(left, right, **{**keywords, "out_fmt": None}), FP32)
    return tensor_of(finished(sums, None, adds.out_fmt))


def resolved(how: ProductPlan, a: CastOperand, b: CastOperand, has_bias: bool = False) -> ProductPlan:
    """Return the arithmetic `how` with the unit and schedule that a library uses for these operands.

    If the schedule of `how` is a library that chooses a kernel by shape, such as `fp.schedules.torch_mm("avx2")`, the
    result has that kernel's unit, accumulator and schedule. Any other `how` is returned unchanged. a, b: the operands,
    (..., M, K) and (..., K, N). has_bias: whether the library also adds a bias.

    Raises:
      ValueError: the library's order of additions, or of adding a bias, is not known for the shape, or layers cannot
        compute it.
    """
    library = adds_of(how).schedule
    if not isinstance(library, ShapedSchedule):
        return how
    (m, k), n = a.source.shape[-2:], b.source.shape[-1]
    chosen = library.at(m, n, k, a.fmt or FP32)
    if has_bias and chosen.bias != "last":
        raise ValueError(f"layers don't add a bias as {library} does by {chosen.kernel}, of {m} x {n} x {k}.")
    if is_regions(chosen.schedule):
        raise ValueError(f"{library} adds {m} x {n} x {k} in lanes or regions that layers do not have. Use fp.matmul.")
    unit = chosen.accumulate if isinstance(chosen.accumulate, str) else ""
    return how._replace(
        unit=unit, accumulator="" if unit else repr(chosen.accumulate), schedule=repr(chosen.schedule), promote=0
    )


def _by_torch(a: CastOperand, b: CastOperand, turned: str, how: ProductPlan, bias: Tensor | None) -> Tensor:
    """Return the product of the operands' values plus bias by torch, rounded to the result's format.

    a, b: the operands. turned: the operand to transpose, "a", "b" or "". how: the arithmetic, of which only the
    result's format is used. bias: (N,), which is added if `turned` is "b", or None.
    """
    left, right = tensor_of(a.values), tensor_of(b.values)
    right = right.to(left.dtype)
    with torch.autocast("cpu", enabled=False):
        if turned == "b":
            product = torch.nn.functional.linear(left, right, None if bias is None else bias.to(left.dtype))
        else:
            product = (left.t() if turned == "a" else left) @ right
    return tensor_of(finished(array_of(product), None, adds_of(how).out_fmt))


def _by_this_cpu(a: CastOperand, b: CastOperand, turned: str, how: ProductPlan, bias: Tensor | None) -> Tensor:
    """Return the float32 product of BF16 or FP16 operands by torch.mm on this processor.

    a, b: the operands, codes without scales. turned: the operand to transpose, "a", "b" or "". how: the arithmetic,
    with a schedule for this processor. bias: must be None.

    Raises:
      ValueError: the schedule is not `torch_mm(...)` for this processor, the result's format is not the operands', or
        there is a bias.
    """
    adds = adds_of(how)
    library, fmt, dtype = adds.schedule, a.fmt, None if a.fmt is None else dtype_of(a.fmt)
    told = isinstance(library, ShapedSchedule) and library.name.startswith("torch_mm(")
    if not told or dtype is None or adds.out_fmt != fmt or bias is not None:
        raise ValueError(
            "backend='cpu' runs products that torch.mm computes on this processor, of BF16 or FP16 without bias, "
            f"rounded to the same format; got {how.unit or how.accumulator} with schedule {library}. Place the recipe "
            "on 'this CPU' first, or take backend='emulated'."
        )
    here = isa_here()
    if f"'{here}'" not in library.name:
        raise ValueError(
            f"backend='cpu' needs a processor whose torch.mm is {library}; this one's uses {here}. Take "
            "backend='emulated'."
        )
    left, right = (torch.from_numpy(x.encoded.view(np.int16)).view(dtype) for x in (a, b))
    with torch.autocast("cpu", enabled=False):
        product = (left.t() if turned == "a" else left) @ (right.t() if turned == "b" else right)
    return product.float()


def as_float(product: Array, fmt: Format) -> Array:
    """Return a result of `matmul`, floats or codes of `fmt`, as float32."""
    if product.dtype in (np.float32, np.float64):
        return product.astype(np.float32, copy=False)
    return decode(product, fmt) if product.dtype.kind == "u" else product.astype(np.float32)


def _codes(x: CastOperand, unit: MatrixUnit, side: str) -> Any:
    """Return an operand as the unit reads it: codes, a `fp.Scaled` with whole blocks, or float32 values for TF32.

    x: the operand. side: "a" or "b", which operand it is.
    """
    element = unit.a if side == "a" else unit.b
    if x.fmt is not None and x.fmt != element.carrier:
        return x.values.astype(np.float32, copy=False)  # TF32: units read bit patterns of float32
    if not isinstance(x.encoded, Scaled) or unit.scale is None:
        return x.encoded
    along = 1 if side == "a" else 0
    return _whole_blocks(_one_dimensional(x.encoded, along), along, unit.block)


def _one_dimensional(x: Scaled, along: int) -> Scaled:
    """Return the operand x with its scales repeated, so that no two vectors along K share a scale.

    along: the axis of K, 0 or 1. (128, 256) codes with tiles of 128 x 128 and K on axis 1 get (128, 2) scales.
    """
    across = 1 - along
    tall = x.scaling.block[across]
    if tall == 1:
        return x
    tall = x.codes.shape[across] if tall == -1 else tall

    def spread(scales: Array) -> Array:
        return np.ascontiguousarray(np.repeat(scales, tall, axis=across).take(range(x.codes.shape[across]), across))

    block = (1, x.scaling.block[1]) if along == 1 else (x.scaling.block[0], 1)
    codes = None if x.scale_codes is None else spread(x.scale_codes)
    return dataclasses.replace(x, scales=spread(x.scales), scale_codes=codes, scaling=x.scaling.replace(block=block))


def _whole_blocks(x: Scaled, along: int, block: int) -> Scaled:
    """Return the operand x padded with zero codes along axis `along`, K, to a multiple of `block`.

    The scales are not changed.
    """
    missing = -x.codes.shape[along] % block
    if not missing:
        return x
    room = [(0, 0), (0, 0)]
    room[along] = (0, missing)
    return dataclasses.replace(x, codes=np.pad(x.codes, room))
