"""An array on the GPU in a small format with a scale per tile."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from fpsim.core.layouts import decode_plan
from fpsim.formats.element import Element, element_format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.gpu.device.array import dtype_name, gpu_array, result_like
from fpsim.gpu.device.device import require_device
from fpsim.gpu.device.gpu_array import GpuArray
from fpsim.gpu.device.launch import launch, uploaded
from fpsim.gpu.device.transfer import host_array, sent
from fpsim.gpu.scaling import tile_kernels as kernels
from fpsim.gpu.scaling.patches import block_threads, patches_of
from fpsim.scaling.report import ScaleReport
from fpsim.scaling.scaled import ARRAYS
from fpsim.scaling.scaled import Scaled as CpuScaled
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.tiling import tiling

NOTHING = np.zeros(1, np.uint8)  # stands for an array that a kernel does not use


@dataclass(frozen=True, eq=False, repr=False)
class Scaled:
    """Codes on the GPU with a decode scale per tile: value = code * scale. `fpsim.gpu.encode_scaled` makes them.

    A class of its own beside fpsim.Scaled: that one holds NumPy arrays, which it checks, indexes and saves, while these
    stay where they are, and the counts of the report do so until somebody reads them. Attributes and methods that both
    have mean the same; `cpu()` and `from_cpu` lead from one to the other without rounding anything.

    Attributes:
      codes: of x's kind and shape; unsigned codes of a float format, int8 or uint8 numbers of an integer format.
      scales: float32, one per tile, of the codes' number of axes; the product of both levels where there are two.
      fmt: the element format.
      scaling: the recipe.
      scale_codes: the scales in their own format, where that is not FP32 (of the first level, where there are two).
      tensor_scale: the float32 scale of the second level as an array of one element, or None.
      zero_points: per tile, of integers with a zero point.
      counts: what `report` counts, int64, still on the GPU; None where nothing was counted.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     import torch
      ...     q = fp.gpu.encode_scaled(torch.tensor([[1.0, -2.0, 3.0, 448.0]]).cuda(), fp.E4M3, fp.scalings.ROW)
      ...     print(q, q.scales, q.decode())
    """

    codes: Any
    scales: Any
    fmt: Element
    scaling: Scaling
    scale_codes: Any = None
    tensor_scale: Any = None
    zero_points: Any = None
    counts: Any = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fmt", element_format(self.fmt))
        if isinstance(self.fmt, LogFMT):
            refuse_logarithms(self.fmt)
        if not isinstance(self.scaling, Scaling):
            raise TypeError(f"scaling must be an fp.Scaling; got {type(self.scaling).__name__}.")
        if dtype_name(self.codes) != self.fmt.storage.name:
            raise TypeError(f"codes of {self.fmt} must be {self.fmt.storage}; got {self.codes.dtype}.")
        if dtype_name(self.scales) != "float32":
            raise TypeError(f"scales must be float32; got {self.scales.dtype}.")
        grid = tiling(self.shape, self.scaling.block).grid
        for name in ("scales", "scale_codes", "zero_points"):
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != grid:
                raise ValueError(
                    f"{name} must have one element per tile, shape {grid} for codes of shape {self.shape} and block "
                    f"{self.scaling.block}; got {tuple(array.shape)}."
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return tuple(int(length) for length in self.codes.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that the numbers take when packed: codes, scales and zero points at their formats' bits."""
        size, tiles = int(np.prod(self.shape)), int(np.prod(self.scales.shape))
        bits = size * self.fmt.bits + tiles * self.scaling.scale_format.bits
        if self.zero_points is not None:
            bits += tiles * self.fmt.bits
        return -(-bits // 8) + (4 if self.tensor_scale is not None else 0)

    @cached_property
    def report(self) -> ScaleReport:
        """Counts of tiles that are special or whose scale was clamped; the first look waits for the GPU."""
        tiles = int(np.prod(self.scales.shape))
        if self.counts is None:
            return ScaleReport(tiles=tiles)
        return ScaleReport(tiles, *(int(count) for count in host_array(self.counts)))

    def decode(self, dtype: npt.DTypeLike = np.float32, out: Any = None) -> Any:
        """The values: code * scale, rounded once to float32; exact in float64.

        Args:
          dtype: np.float32 or np.float64.
          out: array of that dtype, of the codes' kind and shape, to fill.

        Returns:
          Array of the codes' kind and shape. The work is queued on the current stream.

        Raises:
          ValueError: another dtype, or an `out` that does not fit.
        """
        real = np.dtype(dtype)
        if real not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"dtype must be np.float32 or np.float64; got {dtype!r}.")
        codes = gpu_array(self.codes, "codes")
        result, values = result_like(codes, codes.shape, real, out)
        _decode(self, codes, values, 8 * real.itemsize)
        return result

    def transpose(self) -> Scaled:
        """The transposed matrix, tiles and all; nothing is rounded.

        Its tiles are the same numbers: 1x128 becomes 128x1. `requantize` gives it other tiles.

        Raises:
          ValueError: the array is not a matrix.
        """
        if len(self.shape) != 2:
            raise ValueError(f"only a matrix can be transposed; got shape {self.shape}. Reshape before encoding.")
        scaling = self.scaling.transposed()
        flipped = {name: _transposed(getattr(self, name)) for name in ARRAYS if getattr(self, name) is not None}
        return dataclasses.replace(self, scaling=scaling, **flipped)

    @property
    def T(self) -> Scaled:
        """`transpose()`."""
        return self.transpose()

    def requantize(self, scaling: Scaling, fmt: Any = None, **cast: Any) -> Scaled:
        """Decode to float32 and encode again with another scaling, as DeepSeek-V3 turns 1x128 tiles into 128x1.

        Args:
          scaling: of the result.
          fmt: element format of the result, by default this one's.
          cast: keywords of `fpsim.gpu.encode_scaled`.
        """
        from fpsim.gpu.scaling.encode import encode_scaled

        return encode_scaled(self.decode(), self.fmt if fmt is None else fmt, scaling, **cast)

    def cpu(self) -> CpuScaled:
        """The same as an fpsim.Scaled, in the memory of the CPU."""
        arrays = {name: host_array(getattr(self, name)) for name in ARRAYS if getattr(self, name) is not None}
        tensor = None if self.tensor_scale is None else np.float32(host_array(self.tensor_scale)[0])
        return CpuScaled(fmt=self.fmt, scaling=self.scaling, tensor_scale=tensor, report=self.report, **arrays)

    @staticmethod
    def from_cpu(scaled: CpuScaled, like: Any = None) -> Scaled:
        """An fpsim.Scaled on the GPU.

        Args:
          scaled: what `fpsim.encode_scaled` made, or `load` read.
          like: an array on the GPU whose kind and device the arrays get; None for arrays of numba.

        Raises:
          GpuError: no GPU, or no room on it.
          TypeError: not an fpsim.Scaled, or `like` does not lie on the GPU.
          ValueError: its elements are LogFMT.

        Example:
          >>> import fpsim as fp
          >>> q = fp.encode_scaled(np.ones((2, 128), np.float32), fp.E4M3, fp.scalings.TILE_1X128)
          >>> if fp.gpu.available():
          ...     import torch
          ...     print(fp.gpu.Scaled.from_cpu(q, like=torch.empty(0, device="cuda")).T.cpu())
        """
        require_device()
        if not isinstance(scaled, CpuScaled):
            raise TypeError(f"scaled must be an fpsim.Scaled; got {_kind(scaled)}.")
        from numba import cuda

        owner = gpu_array(cuda.device_array(1, np.uint8) if like is None else like, "like")

        def put(array: Any) -> Any:
            if array is None:
                return None
            made, words = result_like(owner, array.shape, array.dtype)
            sent(owner.like, array, words)
            return made

        names = ("zero_tiles", "nan_tiles", "infinite_tiles", "clamped_low", "clamped_high")
        counts = np.array([getattr(scaled.report, name) for name in names], np.int64)
        tensor = None if scaled.tensor_scale is None else np.array([scaled.tensor_scale], np.float32)
        arrays = {name: put(getattr(scaled, name)) for name in ARRAYS}
        return Scaled(fmt=scaled.fmt, scaling=scaled.scaling, tensor_scale=put(tensor), counts=put(counts), **arrays)

    def __repr__(self) -> str:
        tiles = int(np.prod(self.scales.shape))
        plural = "" if tiles == 1 else "s"
        return (
            f"<Scaled {self.shape} on the GPU in {self.fmt.name}, {self.scaling!r}: {tiles} tile{plural}, "
            f"{self.nbytes} bytes>"
        )


def _kind(x: Any) -> str:
    """The type of x: of the two that are called Scaled, which."""
    return "an fpsim.gpu.Scaled" if isinstance(x, Scaled) else type(x).__name__


def refuse_logarithms(fmt: LogFMT) -> NoReturn:
    """A ValueError for LogFMT."""
    raise ValueError(
        f"{fmt} is not on the GPU, whose log2 and exp2 differ from the CPU's in their last bit. Use the functions of "
        "fpsim itself."
    )


def _decode(scaled: Scaled, codes: GpuArray, values: Any, width: int) -> None:
    """Fill in the words of the values, float32 or float64."""
    tiles, fmt = tiling(scaled.shape, scaled.scaling.block), scaled.fmt
    patches = patches_of(tiles, block_threads(), cut=True)
    scales = gpu_array(scaled.scales, "scales").words
    size = int(patches.count) * block_threads()
    places = uploaded(patches.layout)
    if isinstance(fmt, IntegerFormat):
        zeros, affine = uploaded(NOTHING), scaled.zero_points is not None
        if affine:
            zeros = gpu_array(scaled.zero_points, "zero_points").words
        kernel = kernels.integers_kernel(width, affine)
        launch(kernel, codes.like, size, codes.words, values, places, scales, zeros, fmt.highest)
        return
    assert not isinstance(fmt, LogFMT)
    plan = decode_plan(fmt, width) or decode_plan(fmt, 64)
    if plan is None:
        raise ValueError(f"values of {fmt} must be float64's normal numbers to be decoded; decode them on the CPU.")
    word: Any = np.uint32 if plan.width == 32 else np.uint64
    kernel = kernels.values_kernel(plan.width, width)
    launch(
        kernel, codes.like, size, codes.words, values, places, scales, uploaded(plan.layout), word(fmt.sign_bit)
    )  # fmt: skip


def _transposed(array: Any) -> Any:
    """A matrix of the GPU the other way around."""
    given = gpu_array(array, "array")
    rows, columns = given.shape
    result, words = result_like(given, (columns, rows), np.dtype(dtype_name(array)))
    launch(kernels.transpose_kernel(), given.like, given.size, given.words, words, rows, columns)
    return result
