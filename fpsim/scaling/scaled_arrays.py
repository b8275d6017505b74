"""Codes with one scale per tile, in memory of the CPU or of a GPU: what encoding fills, and a base class of results."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from fpsim.errors import shown
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.element import Element, element_format
from fpsim.formats.log_format import LogFMT
from fpsim.formats.table_format import HIF4, TwoTableFormat
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.scaling.storage import tile_bits
from fpsim.scaling.tiling import tile_sizes, tiling

ARRAYS = ("codes", "scales", "scale_codes", "zero_points")  # all but the first with one element per tile
INTEGERS: list[Any] = [np.int8, np.uint8, np.int16, np.int32, np.int64]  # dtypes of zero points of integers
ArrayT = TypeVar("ArrayT")


class EncodedTargets(NamedTuple):
    """Arrays that encoding fills, and the format and recipe of the result.

    codes: array of the encoded array's shape. scales: float32, one per tile (block of elements with one scale). fmt:
    the element format. scaling: the recipe of tiles and scales. scale_codes: the codes of the scales in their format,
    or None. zero_points: one per tile, or None; LogFMT and HiF4 store other numbers in it, as `fpsim.Scaled` describes.
    """

    codes: Any
    scales: Any
    fmt: Element
    scaling: Scaling
    scale_codes: Any
    zero_points: Any


@dataclass(frozen=True, eq=False, repr=False)
class ScaledArrays(ABC, Generic[ArrayT]):
    """Base class of `fpsim.Scaled` (NumPy) and `fpsim.gpu.Scaled`: codes with one decode scale per tile.

    A tile is a block of elements. codes: array of codes. scales: float32, one per tile, with as many axes. fmt: the
    element format. scaling: the recipe of tiles and scales. scale_codes: the codes of the scales in their format, or
    None. tensor_scale: the float32 scale of the whole array, a factor of all scales, or None. zero_points: one per
    tile, or None. `fpsim.Scaled` describes them in full.
    """

    codes: ArrayT
    scales: ArrayT
    fmt: Element
    scaling: Scaling
    scale_codes: ArrayT | None = None
    tensor_scale: Any = None
    zero_points: ArrayT | None = None

    _place: ClassVar[str] = ""  # machine that holds the arrays, for `repr`

    def __post_init__(self) -> None:
        object.__setattr__(self, "fmt", element_format(self.fmt))
        if not isinstance(self.scaling, Scaling):
            raise TypeError(f"scaling must be an fp.Scaling; got {type(self.scaling).__name__}.")
        codes: Any = self.codes
        scales: Any = self.scales
        if not self._has_dtype(codes, self.fmt.storage):
            raise TypeError(f"codes of {self.fmt} must be {self.fmt.storage}; got {codes.dtype}.")
        if not self._has_dtype(scales, np.dtype(np.float32)):
            raise TypeError(f"scales must be float32; got {scales.dtype}. Convert them first.")
        grid = tiling(self.shape, self.scaling.block).grid
        stored: Any = self.scale_codes
        if stored is not None and not self._has_dtype(stored, self.scaling.scale_format.storage):
            storage = self.scaling.scale_format.storage
            raise TypeError(f"scale_codes in {self.scaling.scale_format} must be {storage}; got {stored.dtype}.")
        needed = "scale_codes" if isinstance(self.fmt, TwoTableFormat) else "zero_points"
        if (isinstance(self.fmt, (LogFMT, TwoTableFormat)) or self.fmt == HIF4) and getattr(self, needed) is None:
            raise ValueError(f"{needed} must be an array for codes of {self.fmt}, whose values depend on it; got None.")
        zeros: Any = self.zero_points
        kinds: list[Any] = (
            [np.float32] if isinstance(self.fmt, LogFMT) else [np.uint32] if self.fmt == HIF4 else INTEGERS
        )
        if zeros is not None and not any(self._has_dtype(zeros, np.dtype(kind)) for kind in kinds):
            wanted = "integers" if kinds is INTEGERS else np.dtype(kinds[0]).name
            raise TypeError(f"zero_points of {self.fmt} must be {wanted}; got {zeros.dtype}.")
        for name in ARRAYS[1:]:
            array = getattr(self, name)
            if array is not None and tuple(array.shape) != grid:
                raise ValueError(
                    f"{name} must have one element per tile, shape {grid} for codes of shape {self.shape} and block "
                    f"{self.scaling.block}; got {tuple(array.shape)}."
                )

    def _computed(self, other: Any = None) -> Any:
        """Refuse an arithmetic operation or comparison with a TypeError; all operators of this class are this method.

        If `other`, the second operand, is a NumPy array, return NotImplemented: NumPy then converts this object to its
        values.
        """
        if isinstance(other, np.ndarray):
            return NotImplemented
        raise TypeError(
            f"{type(self).__name__} holds codes and scales, and has no arithmetic. Its .decode() returns the values: "
            "compute with these, and encode the result again. fpsim.matmul multiplies the codes themselves."
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _computed
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _computed
    __lt__ = __le__ = __gt__ = __ge__ = _computed
    __neg__ = __pos__ = __abs__ = __float__ = __int__ = _computed

    def _arrays(self) -> dict[str, Any]:
        """Return those of codes, scales, scale_codes and zero_points that are not None, as a dict by name."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in arrays.items() if array is not None}

    def _per_tile(self) -> dict[str, Any]:
        """Return those of scales, scale_codes and zero_points that are not None, as a dict by name."""
        return {name: array for name, array in self._arrays().items() if name != "codes"}

    @staticmethod
    @abstractmethod
    def _has_dtype(array: Any, dtype: np.dtype[Any]) -> bool:
        """Return whether `array`, of NumPy or of a GPU library, has the NumPy dtype `dtype`."""

    @abstractmethod
    def _decoded(self, dtype: np.dtype[Any], out: Any) -> ArrayT:
        """Return the values as `dtype`, float32 or float64, in `out`, or in a new array if that is None."""

    @abstractmethod
    def _encoded(self, values: ArrayT, fmt: Any, scaling: Scaling, cast: dict[str, Any]) -> Self:
        """Return the codes and scales of float32 values as a new object of this class.

        fmt: element format, by name, dtype or object. scaling: the recipe of tiles and scales. cast: further keywords
        of `fpsim.encode_scaled`.
        """

    @abstractmethod
    def _flipped(self, array: ArrayT) -> ArrayT:
        """Return the transpose of a 2-D array in C order."""

    @abstractmethod
    def _with(self, arrays: dict[str, Any], tiles: int) -> Self:
        """Return a copy of this object in which `arrays` (by name, such as "codes") replace those of the same names.

        tiles: the number of tiles, which the copy's report states; its other counts, such as that of zero tiles, are 0.
        """

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the codes."""
        codes: Any = self.codes
        return tuple(int(length) for length in codes.shape)

    @property
    def _tile_count(self) -> int:
        """Number of tiles (blocks of elements with one scale)."""
        scales: Any = self.scales
        return math.prod(int(length) for length in scales.shape)

    @property
    def scale_bits(self) -> int:
        """Bits of the scales when packed, zero points and the second-level scale included."""
        return self._tile_count * tile_bits(self.fmt, self.scaling) + (32 if self.tensor_scale is not None else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points when each is packed at its format's number of bits."""
        return -(-(math.prod(self.shape) * self.fmt.bits + self.scale_bits) // 8)

    def decode(self, dtype: npt.DTypeLike = np.float32, out: ArrayT | None = None) -> ArrayT:
        """Return the values: code * scale, rounded once to float32; exact in float64.

        Args:
          dtype: np.float32 or np.float64.
          out: array of that dtype and of the codes' shape to fill, from the library that holds the codes.

        Returns:
          Array of the codes' shape and library; `out` if it was passed. On the GPU the work is queued on the current
          stream.

        Raises:
          ValueError: the dtype is another one, or `out` does not fit.
        """
        real = dtype_of(dtype)
        if real is None or real not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise ValueError(f"dtype must be np.float32 or np.float64; got {shown(dtype)}.")
        return self._decoded(real, out)

    def transpose(self) -> Self:
        """Return the transposed matrix with transposed tiles; nothing is rounded.

        Each tile keeps its elements: 1x128 becomes 128x1. `requantize` encodes with other tiles.

        Raises:
          ValueError: the array is not a matrix.

        Example:
          >>> import fpsim as fp
          >>> q = fp.encode_scaled(np.ones((3, 256), np.float32), "e4m3", fp.scalings.TILE_1X128)
          >>> q.transpose().scaling.block, q.T.scales.shape
          ((128, 1), (2, 3))
        """
        if len(self.shape) != 2:
            raise ValueError(f"only a matrix can be transposed; got shape {self.shape}. Reshape before encoding.")
        flipped: dict[str, Any] = {name: self._flipped(array) for name, array in self._arrays().items()}
        return dataclasses.replace(self, scaling=self.scaling.transposed(), **flipped)

    @property
    def T(self) -> Self:
        """The transposed matrix, as `transpose()` returns it."""
        return self.transpose()

    def requantize(self, scaling: Scaling | str, fmt: Any = None, **cast: Any) -> Self:
        """Decode to float32 and encode again with another scaling, as DeepSeek-V3 turns 1x128 tiles into 128x1.

        Args:
          scaling: the scaling of the result.
          fmt: element format of the result, by name, dtype or object; None for this object's format.
          cast: keywords of `encode_scaled`.

        Example:
          >>> import fpsim as fp
          >>> x = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
          >>> rows = fp.encode_scaled(x, fp.E4M3, fp.scalings.TILE_1X128_POW2)
          >>> columns = rows.requantize(fp.scalings.TILE_128X1_POW2)
          >>> bool(np.mean(columns.decode() != rows.decode()) < 0.01)
          True
        """
        return self._encoded(self.decode(), self.fmt if fmt is None else fmt, scaling_of(scaling), cast)

    @property
    def blocks(self) -> Blocks[Self]:
        """The array indexed by tiles: `q.blocks[2:4, 0]` holds tile rows 2 and 3 of the first tile column."""
        return Blocks(self)

    def __repr__(self) -> str:
        plural = "" if self._tile_count == 1 else "s"
        return (
            f"<Scaled {self.shape}{self._place} in {self.fmt.name}, {self.scaling!r}: {self._tile_count} tile{plural}, "
            f"{self.nbytes} bytes>"
        )


S = TypeVar("S", bound=ScaledArrays[Any])


class Blocks(Generic[S]):
    """A Scaled array, `whole`, as a grid of tiles: indices count tiles, not elements."""

    def __init__(self, whole: S) -> None:
        self._whole = whole

    def __getitem__(self, index: Any) -> S:
        """Return the selected tiles as a Scaled array with the same number of axes.

        index: integers and slices that count tiles along each axis, and at most one Ellipsis.

        Raises:
          IndexError: an index is neither an integer nor a slice of step 1, is out of range, or there are too many.
        """
        whole = self._whole
        grid = tuple(int(count) for count in whole.scales.shape)
        indices = index if isinstance(index, tuple) else (index,)
        dots = [at for at, one in enumerate(indices) if one is Ellipsis]
        if dots:
            at = dots[0]
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
        arrays = {name: array[tuple(tiles)] for name, array in whole._per_tile().items()}
        arrays["codes"] = whole.codes[tuple(elements)]
        return whole._with(arrays, math.prod(part.stop - part.start for part in tiles))


def _tile_slice(index: Any, count: int, axis: int) -> slice:
    """Return an index along one axis of the grid of tiles as a slice with start and stop.

    count: the number of tiles along that axis. axis: its number, for the error.

    Raises:
      IndexError: the index is neither an integer nor a slice of step 1, or is out of range.
    """
    if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
        if not -count <= index < count:
            raise IndexError(f"tile {index} is out of range: axis {axis} has {count} tiles.")
        start = int(index) % count
        return slice(start, start + 1)
    if isinstance(index, slice) and index.step in (None, 1):
        start, stop, _ = index.indices(count)
        return slice(start, max(start, stop))
    raise IndexError(f"blocks take integers and slices of step 1; got {shown(index)}.")
