"""An array in a small format with a scale per tile."""

from __future__ import annotations

import dataclasses
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, output
from fpsim.formats.as_json import element_facts, element_from
from fpsim.formats.element import Element, element_format
from fpsim.formats.log_format import LogFMT
from fpsim.scaling.report import ScaleReport
from fpsim.scaling.scaling import Scaling, scaling_facts, scaling_from
from fpsim.scaling.tiling import tile_sizes, tiling


@dataclass(frozen=True, eq=False, repr=False)
class Scaled:
    """Codes with a decode scale per tile: value = code * scale. `fpsim.encode_scaled` makes them.

    Attributes:
      codes: of x's shape; unsigned codes of a float format, int8 or uint8 numbers of an integer format.
      scales: float32, one per tile, of the codes' number of axes; the product of both levels where there are two.
      fmt: the element format.
      scaling: the recipe.
      scale_codes: the scales in their own format, where that is not FP32 (of the first level, where there are two).
      tensor_scale: the float32 scale of the second level, or None.
      zero_points: per tile, of integers with a zero point; of LogFMT the log2 of the lowest level.
      report: counts of tiles that are special or whose scale was clamped.

    Example:
      >>> import fpsim as fp
      >>> q = fp.encode_scaled(np.float32([[1, -2, 3, 448]]), fp.E4M3, fp.scalings.ROW)
      >>> q
      <Scaled (1, 4) in E4M3, fp.scalings.ROW: 1 tile, 8 bytes>
      >>> q.scales, q.decode()
      (array([[1.]], dtype=float32), array([[  1.,  -2.,   3., 448.]], dtype=float32))
    """

    codes: Array
    scales: Array
    fmt: Element
    scaling: Scaling
    scale_codes: Array | None = None
    tensor_scale: np.float32 | None = None
    zero_points: Array | None = None
    report: ScaleReport = dataclasses.field(default_factory=ScaleReport)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fmt", element_format(self.fmt))
        if not isinstance(self.scaling, Scaling):
            raise TypeError(f"scaling must be an fp.Scaling; got {type(self.scaling).__name__}.")
        codes, scales = np.asarray(self.codes), np.asarray(self.scales)
        object.__setattr__(self, "codes", codes)
        object.__setattr__(self, "scales", scales)
        if codes.dtype != self.fmt.storage:
            raise TypeError(f"codes of {self.fmt} must be {self.fmt.storage}; got {codes.dtype}.")
        if scales.dtype != np.float32:
            raise TypeError(f"scales must be float32; got {scales.dtype}. Use scales.astype(np.float32).")
        grid = tiling(codes.shape, self.scaling.block).grid
        for name in ("scales", "scale_codes", "zero_points"):
            array = getattr(self, name)
            if array is not None and array.shape != grid:
                raise ValueError(
                    f"{name} must have one element per tile, shape {grid} for codes of shape {codes.shape} and block "
                    f"{self.scaling.block}; got {array.shape}."
                )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return self.codes.shape

    @property
    def nbytes(self) -> int:
        """Bytes that the numbers take when packed: codes, scales and zero points at their formats' bits."""
        scale_bits = 2 * 32 if isinstance(self.fmt, LogFMT) else self.scaling.scale_format.bits
        bits = self.codes.size * self.fmt.bits + self.scales.size * scale_bits
        if self.zero_points is not None and not isinstance(self.fmt, LogFMT):
            bits += self.zero_points.size * self.fmt.bits
        return -(-bits // 8) + (4 if self.tensor_scale is not None else 0)

    def decode(self, dtype: npt.DTypeLike = np.float32, out: Array | None = None) -> Array:
        """The values: code * scale, rounded once to float32; exact in float64.

        Args:
          dtype: np.float32 or np.float64.
          out: array of that dtype and of the codes' shape to fill.

        Raises:
          ValueError: another dtype, or an `out` that does not fit.
        """
        from fpsim.scaling.decode import decode_scaled

        target_dtype = np.dtype(dtype)
        if target_dtype not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"dtype must be np.float32 or np.float64; got {dtype!r}.")
        target = output(out, self.shape, target_dtype, self.codes)
        decode_scaled(self, target)
        return target

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a Scaled array has to be decoded, which makes a copy; got copy=False.")
        values = self.decode()
        return values if dtype is None else values.astype(dtype, copy=False)

    def transpose(self) -> Scaled:
        """The transposed matrix, tiles and all; nothing is rounded.

        Its tiles are the same numbers: 1x128 becomes 128x1. `requantize` gives it other tiles.

        Raises:
          ValueError: the array is not a matrix.

        Example:
          >>> import fpsim as fp
          >>> q = fp.encode_scaled(np.ones((3, 256), np.float32), "e4m3", fp.scalings.TILE_1X128)
          >>> q.transpose().scaling.block, q.T.scales.shape
          ((128, 1), (2, 3))
        """
        if self.codes.ndim != 2:
            raise ValueError(f"only a matrix can be transposed; got shape {self.shape}. Reshape before encoding.")

        def flip(array: Array | None) -> Array | None:
            return None if array is None else np.ascontiguousarray(array.T)

        return dataclasses.replace(
            self,
            codes=np.ascontiguousarray(self.codes.T),
            scales=np.ascontiguousarray(self.scales.T),
            scaling=self.scaling.transposed(),
            scale_codes=flip(self.scale_codes),
            zero_points=flip(self.zero_points),
        )

    @property
    def T(self) -> Scaled:
        """`transpose()`."""
        return self.transpose()

    def requantize(self, scaling: Scaling, fmt: Any = None, **cast: Any) -> Scaled:
        """Decode to float32 and encode again with another scaling, as DeepSeek-V3 turns 1x128 tiles into 128x1.

        Args:
          scaling: of the result.
          fmt: element format of the result, by default this one's.
          cast: keywords of `fpsim.encode_scaled`.

        Example:
          >>> import fpsim as fp
          >>> x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
          >>> rows = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128_POW2)
          >>> columns = rows.requantize(fp.scalings.TILE_128X1_POW2)
          >>> bool(np.mean(columns.decode() != rows.decode()) < 0.01)
          True
        """
        from fpsim.scaling.encode import encode_scaled

        return encode_scaled(self.decode(), self.fmt if fmt is None else fmt, scaling, **cast)

    @property
    def blocks(self) -> Blocks:
        """Parts by tiles: `q.blocks[2:4, 0]` holds tile rows 2 and 3 of the first tile column."""
        return Blocks(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to a .npz or .safetensors file, every bit; the file is complete or absent.

        Raises:
          ValueError: another ending.
          ImportError: safetensors is not installed.
        """
        from fpsim.scaling.file import save

        arrays = {name: getattr(self, name) for name in ARRAYS if getattr(self, name) is not None}
        if self.tensor_scale is not None:
            arrays["tensor_scale"] = np.asarray(self.tensor_scale, np.float32)
        header = {
            "fmt": element_facts(self.fmt),
            "scaling": scaling_facts(self.scaling),
            "report": self.report.to_dict(),
        }
        save(path, arrays, header)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Scaled:
        """Read what `save` wrote.

        Raises:
          FileNotFoundError: no such file.
          ValueError: the file is damaged, or not one of these.
          ImportError: safetensors is not installed.

        Example:
          >>> import fpsim as fp, tempfile, pathlib
          >>> q = fp.encode_scaled(np.arange(6, dtype=np.float32), "int8", fp.scalings.TENSOR)
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     q.save(pathlib.Path(folder) / "q.npz")
          ...     fp.Scaled.load(pathlib.Path(folder) / "q.npz")
          <Scaled (6,) in INT8, fp.scalings.TENSOR: 1 tile, 10 bytes>
        """
        from fpsim.scaling.file import load

        arrays, header = load(path)
        try:
            tensor = arrays.pop("tensor_scale", None)
            return Scaled(
                fmt=element_from(header["fmt"]),
                scaling=scaling_from(header["scaling"]),
                report=ScaleReport(**header["report"]),
                tensor_scale=None if tensor is None else np.float32(tensor),
                **arrays,
            )
        except (KeyError, TypeError, ValueError) as reason:
            raise ValueError(
                f"{os.fspath(path)} must hold what Scaled.save wrote; it lacks or contradicts something: {reason}"
            ) from reason

    def __repr__(self) -> str:
        tiles = self.scales.size
        plural = "" if tiles == 1 else "s"
        return f"<Scaled {self.shape} in {self.fmt.name}, {self.scaling!r}: {tiles} tile{plural}, {self.nbytes} bytes>"


ARRAYS = ("codes", "scales", "scale_codes", "zero_points")


class Blocks:
    """Indexes a Scaled array in units of tiles."""

    def __init__(self, whole: Scaled) -> None:
        self._whole = whole

    def __getitem__(self, index: Any) -> Scaled:
        """The tiles that basic indices name, as an array of the same number of axes.

        Raises:
          IndexError: an index that is no integer or slice of step 1, too many of them, or one out of range.
        """
        whole = self._whole
        grid = whole.scales.shape
        indices = index if isinstance(index, tuple) else (index,)
        if Ellipsis in indices:
            at = indices.index(Ellipsis)
            indices = (
                *indices[:at], *[slice(None)] * (len(grid) - len(indices) + 1), *indices[at + 1 :],
            )  # fmt: skip
        if len(indices) > len(grid):
            raise IndexError(f"an array of {len(grid)} axes takes up to as many indices; got {len(indices)}.")
        tiles, elements = [], []
        sizes = tile_sizes(whole.shape, whole.scaling.block)
        for axis, (count, size) in enumerate(zip(grid, sizes, strict=True)):
            part = _tile_slice(indices[axis] if axis < len(indices) else slice(None), count, axis)
            tiles.append(part)
            elements.append(slice(part.start * size, part.stop * size))

        def of(array: Array | None) -> Array | None:
            return None if array is None else array[tuple(tiles)]

        return dataclasses.replace(
            whole,
            codes=whole.codes[tuple(elements)],
            scales=whole.scales[tuple(tiles)],
            scale_codes=of(whole.scale_codes),
            zero_points=of(whole.zero_points),
            report=ScaleReport(tiles=math.prod(part.stop - part.start for part in tiles)),
        )


def _tile_slice(index: Any, count: int, axis: int) -> slice:
    if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
        if not -count <= index < count:
            raise IndexError(f"tile {index} is out of range: axis {axis} has {count} tiles.")
        start = int(index) % count
        return slice(start, start + 1)
    if isinstance(index, slice) and index.step in (None, 1):
        start, stop, _ = index.indices(count)
        return slice(start, max(start, stop))
    raise IndexError(f"blocks take integers and slices of step 1; got {index!r}.")
