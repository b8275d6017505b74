"""The GPU as a backend of matrix products: reads operands, adds products, and writes results."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.formats.cast_options import cast_options
from fpsim.formats.named import FP32, FP64, Format
from fpsim.gpu.arithmetic.operands import code_operand
from fpsim.gpu.casts.cast import encode, fill_codes, fill_values, widened_codes
from fpsim.gpu.device.array import gpu_array, result_like
from fpsim.gpu.device.copies import apart, refuse_overlap
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import launch, scratch
from fpsim.gpu.device.transfer import host_array
from fpsim.gpu.products.float_matrix import nan_code_kernel
from fpsim.gpu.products.gpu_product import GpuProduct
from fpsim.gpu.products.integer_matrix import IntegerMatrices
from fpsim.gpu.products.lane_product import lane_product
from fpsim.gpu.products.operands import block_scales, on_host, operand
from fpsim.gpu.products.unit_product import add_product
from fpsim.gpu.scaling.scaled import Scaled
from fpsim.gpu.sums.accumulate import GpuSumProblem, fill_sums
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit
from fpsim.products.backend import Shape, output_overflow
from fpsim.scaling.scaled import Scaled as CpuScaled
from fpsim.scaling.scaling import Scaling
from fpsim.schedules.plan import Span
from fpsim.schedules.schedule import Lanes
from fpsim.sums.accumulators import Accumulator


class ScaledOperand(NamedTuple):
    """An operand of class fpsim.gpu.Scaled as the pipeline of products reads it.

    Attributes:
      codes: matrix of codes on the GPU.
      scales: float32 decode scales on the CPU, one per tile.
      fmt, scaling: format of the elements, and recipe of the scales.
      scale_codes: codes of the scales on the GPU; None if scales have no codes.
      tensor_scale: second-level scale; None without a second level.
      zero_points: zero points on the CPU, one per tile; None if elements have none.
      source: the fpsim.gpu.Scaled or fpsim.Scaled itself.
    """

    codes: Any
    scales: npt.NDArray[np.float32]
    fmt: Any
    scaling: Scaling
    scale_codes: Any
    tensor_scale: np.float32 | None
    zero_points: npt.NDArray[Any] | None
    source: Scaled | CpuScaled


def codes_of(x: Any, name: str) -> GpuArray:
    """Return x, or its codes if x is an fpsim.gpu.Scaled, as a GpuArray; name: the argument that errors name.

    Raises a TypeError if x is not on the GPU.
    """
    if isinstance(x, CpuScaled):
        raise TypeError(f"{name} must lie on the GPU; got an fpsim.Scaled. fp.gpu.Scaled.from_cpu({name}) sends it.")
    return gpu_array(x.codes if isinstance(x, Scaled) else x, name)


class Gpu(IntegerMatrices):
    """The GPU as a backend of matrix products; `Backend` in fpsim/products/backend.py describes the methods.

    Float matrices are bit patterns in GPU memory: uint32, or uint64 for units with FP64 sums.

    Args:
      owner: an operand of the product, whose library the results have, and on whose stream they are computed.
    """

    merges_slices = False
    number = 0  # of the product in a stack
    floats = staticmethod(on_host)
    block_scales = staticmethod(block_scales)

    def __init__(self, owner: GpuArray) -> None:
        super().__init__(owner.like)
        self.owner = owner

    def operand(self, x: Any, element: Element, unit: MatrixUnit, name: str) -> Any:
        return operand(x, element, unit, name).matrix

    def codes(self, x: Any, fmt: Format | None, name: str) -> tuple[Any, Format]:
        codes, of_codes = code_operand(x, fmt, name)
        return codes.matrix, of_codes

    def scaled(self, x: Any, name: str) -> ScaledOperand | None:
        if not isinstance(x, (Scaled, CpuScaled)):
            return None
        codes = codes_of(x, name)
        tensor = None if x.tensor_scale is None else np.float32(host_array(x.tensor_scale).reshape(-1)[0])
        points = None if x.zero_points is None else host_array(x.zero_points)
        return ScaledOperand(codes.matrix, host_array(x.scales), x.fmt, x.scaling, x.scale_codes, tensor, points, x)

    def decoded(self, x: ScaledOperand, fmt: Format) -> Any:
        return gpu_array(encode(x.source.decode(np.float64), fmt), "codes").matrix

    def product(self, unit: MatrixUnit, a: Any, b: Any, scale_a: Any, scale_b: Any) -> GpuProduct:
        return GpuProduct(unit, a, b, scale_a, scale_b, np.arange(a.shape[1], dtype=np.int32))

    def result(self, out: Any, shape: Shape, dtype: np.dtype[Any], a: Any, *others: Any) -> tuple[Any, Any]:
        result, words = result_like(self.owner, shape, dtype, out)
        if out is not None:  # float32 scales were copied from the GPU
            there = [x for x in others if not isinstance(x, np.ndarray)]
            refuse_overlap(words, a, *there, noun="a, b or their scales")
        return result, words.reshape(*shape)

    def full(self, shape: Shape, value: float, dtype: np.dtype[Any], out: Any = None) -> Any:
        word = np.asarray(value, dtype).view(f"u{dtype.itemsize}")[()]
        return self.filled(shape, word, out)

    def start(self, c: Any, unit: MatrixUnit, shape: Shape, out: Any = None) -> Any:
        codes = operand(c, unit.d, unit, "c")
        return self.copied(self._widened(codes, unit.d.fmt, shape), out)

    def source(self, c: Any, unit: MatrixUnit, shape: Shape) -> Any:
        codes = gpu_array(c, "c")
        fmt = codes.fmt
        if fmt is None or fmt in (unit.d.fmt, FP64):
            codes, fmt = operand(c, unit.d, unit, "c"), unit.d.fmt
        return self._widened(codes, fmt, shape)

    def _widened(self, codes: GpuArray, fmt: Format, shape: Shape) -> Any:
        """Return codes of the format `fmt` as a matrix of float32 bits of their values; FP64 codes are unchanged.

        Raises:
          ValueError: the codes do not have the shape `shape`.
        """
        if codes.shape != shape:
            raise ValueError(f"c must have the result's shape {shape}; got {codes.shape}.")
        words = codes.words if fmt in (FP32, FP64) else widened_codes(codes, fmt, FP32).words
        return words.reshape(*shape)

    def rounded(self, x: Any, fmt: Format) -> Any:
        if fmt == FP32:
            return x
        flat = self._flat(x)
        codes, result = scratch(flat.size, fmt.storage), self.copied(x)
        fill_codes(flat, codes, cast_options(fmt, overflow=output_overflow(fmt)))
        fill_values(flat, codes, self._flat(result).words, fmt, FP32)
        return result

    def add_product(self, total: Any, product: GpuProduct) -> None:
        add_product(total, product, self)

    def lane_product(self, product: GpuProduct, lanes: Lanes, run: int, terms: Span) -> Any:
        return lane_product(product, lanes, run, terms, self)

    def deliver(self, total: Any, fmt: Format, nan: int | None, overflow: str, target: Any) -> None:
        words = target.reshape(math.prod(target.shape))  # the target may be total itself, if nothing is rounded
        if fmt in (FP32, FP64) and total.dtype.itemsize == target.dtype.itemsize:
            if total is not target:
                self.copied(total, target)
            if nan is not None:
                self.with_one_nan(words, fmt.max_code + 1, fmt.sign_bit, nan)
            return
        fill_codes(self._flat(total), words, cast_options(fmt, overflow=overflow))
        if nan is not None:
            size = words.size
            launch(nan_code_kernel(), self.like, size, total.reshape(size), words, words.dtype.type(nan))

    def accumulate(
        self, accumulator: Accumulator, a: Any, b: Any, c: Any, formats: tuple[Format, Format], target: Any
    ) -> None:
        size = math.prod(target.shape)
        start = scratch((0, 0), target.dtype)
        if c is not None:  # the target may be c's memory
            start = apart(c.reshape(size), target.reshape(size), self.like).reshape(*target.shape)
        fill_sums(accumulator, GpuSumProblem(a, b, start, formats, first=self.number * size), target, self.like)
