"""Comparison of a quantizer's results with the right ones: elements, scales of both levels, zero points."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.cast import decode
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.scaling.scaled import encode_scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.report import Broken, Findings, shown_result
from fpsim.testing.quantizers.rounder import Words
from fpsim.testing.quantizers.scales.differences import elements_of, values_of_scaled
from fpsim.testing.quantizers.scales.results import ReturnedParts, in_tiles, same_scales


class RightParts(NamedTuple):
    """The right results for a matrix.

    Attributes:
      fmt: the element format.
      codes: value of each code, without scale, as bit patterns of float64, flat.
      values: value of each code times its scale, as bit patterns of float64, flat.
      scales: float32 scale of each tile, the product of both levels.
      block_scales: float32 scale of each tile, without the scale of the second level.
      tensor_scale: scale of the second level, or None.
      zero_points: zero point of each tile, or None.
    """

    fmt: Element
    codes: Words
    values: Words
    scales: Array
    block_scales: Array
    tensor_scale: np.float32 | None
    zero_points: Array | None

    @staticmethod
    def of(x: Array, fmt: Element, scaling: Scaling, cast: dict[str, Any]) -> RightParts:
        """Return the right results for a matrix, from `fpsim.encode_scaled`; cast: keywords of the cast of elements."""
        q = encode_scaled(x, fmt, scaling, **cast)
        blocks = q.scales
        if q.tensor_scale is not None and q.scale_codes is not None:
            blocks = np.asarray(decode(q.scale_codes, scaling.scale_format), np.float32)
        zero_points = q.zero_points if isinstance(fmt, IntegerFormat) else None  # LogFMT keeps its lowest levels there
        return RightParts(
            fmt, elements_of(q, fmt), values_of_scaled(q), q.scales, blocks, q.tensor_scale, zero_points
        )  # fmt: skip

    def repeated(self, shape: tuple[int, ...], times: tuple[int, int], grid: tuple[int, ...]) -> RightParts:
        """Return the right results for a larger matrix that consists of copies of the matrix of these results.

        shape: shape of one copy. times: number of copies along both axes. grid: (rows of tiles, columns of tiles) of
        the larger matrix.
        """
        tiles = tuple(new // old for new, old in zip(grid, self.scales.shape, strict=True))
        codes, values = (np.tile(part.reshape(shape), times).ravel() for part in (self.codes, self.values))
        zero_points = None if self.zero_points is None else np.tile(self.zero_points, tiles)
        return self._replace(
            codes=codes, values=values, scales=np.tile(self.scales, tiles),
            block_scales=np.tile(self.block_scales, tiles), zero_points=zero_points,
        )  # fmt: skip


class ScaledComparison(NamedTuple):
    """Comparison of a quantizer's result for one matrix with the right one.

    Attributes:
      case: name of the matrix in reports.
      x: the matrix.
      parts: the function's result.
      right: the right result.
      findings: the record to which properties are added.
    """

    case: str
    x: Array
    parts: ReturnedParts
    right: RightParts
    findings: Findings

    def differences(self) -> tuple[int, int]:
        """Record which of "codes", "scales", "axis" and "zero points" are right, or "values" if those were returned.

        Return (number of wrong elements, scales and zero points, number of all of these).
        """
        parts, right = self.parts, self.right
        if parts.scales is None:
            return self._elements("values", right.values)
        counts = [self._elements("codes", right.codes)]
        scales = (parts.scales, right.scales)
        if parts.block_scales is not None:
            scales = (parts.block_scales, right.block_scales)
        counts.append(self._tiles("scales", *scales))
        if parts.tensor_scale is not None and right.tensor_scale is not None:
            of_tensor = (np.full((1, 1), scale, np.float32) for scale in (parts.tensor_scale, right.tensor_scale))
            counts.append(self._tiles("tensor scale", *of_tensor))
        if right.zero_points is not None:
            if parts.zero_points is None:
                why = "fn must return (codes, scales, zero points)"
                self.findings.record("zero points", Broken("zero points", why))
                counts.append((right.zero_points.size, right.zero_points.size))
            else:
                points = (part.astype(np.float32) for part in (parts.zero_points, right.zero_points))
                counts.append(self._tiles("zero points", *points))
        return sum(wrong for wrong, _ in counts), sum(of for _, of in counts)

    def _tiles(self, name: str, got: Array, want: Array) -> tuple[int, int]:
        """Record whether scales or zero points of tiles are right, and along the right axis.

        name: "scales", "tensor scale" or "zero points". got, want: the returned and the right numbers, float32.

        Returns:
          (number of wrong scales or zero points, number of all).
        """
        of_tiles = in_tiles(got, want.shape)
        if of_tiles is None:
            turned = ": they are along the other axis" if want.shape[::-1] == got.shape else ""
            why = f"{name} have shape {got.shape}, want {want.shape}{turned}"
            self.findings.record("axis", Broken("axis", why))
            return want.size, want.size
        self.findings.record("axis")
        same = same_scales(np.ascontiguousarray(of_tiles), want)
        wrong = int((~same).sum())
        if not wrong:
            self.findings.record(name)
            return 0, want.size
        tile = tuple(int(i) for i in np.argwhere(~same)[0])
        numbers = [float(of_tiles[tile]), float(want[tile])]
        shown = [f"{n:g}" if name == "zero points" else f"{n.hex()} ({n!r})" for n in numbers]
        broken = Broken(
            name, f"with {self.case}, that of tile {tile}", got=shown[0], want=shown[1], count=wrong, of=same.size,
            input=f"tile {tile} of a matrix of shape {self.x.shape}",
        )  # fmt: skip
        self.findings.record(name, broken)
        return wrong, want.size

    def _elements(self, name: str, want: Words) -> tuple[int, int]:
        """Record whether elements, called `name` ("values" or "codes"), equal the right ones, `want`.

        Return (number of wrong elements, number of all elements).
        """
        x, got = self.x, self.parts.elements
        differ = got != want
        if not differ.any():
            self.findings.record(name)
            return 0, x.size
        at = int(np.argmax(differ))
        row, column = (int(i) for i in np.unravel_index(at, x.shape))
        if name == "codes" and isinstance(self.right.fmt, Format):
            shown = [shown_result(word, self.right.fmt) for word in (got[at], want[at])]
        elif name == "codes":
            shown = [f"{float(word.view(np.float64)):g}" for word in (got[at], want[at])]
        else:
            shown = [repr(float(word.view(np.float64))) for word in (got[at], want[at])]
        broken = Broken(
            name, f"with {self.case}, the element at {(row, column)}", input_bits=int(words(x.ravel())[at]),
            input=f"x[{row}, {column}] = {pasted(x.ravel()[at])}", got=shown[0], want=shown[1],
            count=int(differ.sum()), of=x.size,
        )  # fmt: skip
        self.findings.record(name, broken)
        return int(differ.sum()), x.size


def same_parts(first: ReturnedParts, second: ReturnedParts) -> bool:
    """Return whether two results have the same elements, scales, tensor scale and zero points, bit for bit.

    NaNs in elements and scales are equal to each other; scales of tiles must also have the same shape.
    """
    one, other = (np.array([parts.tensor_scale], np.float32) for parts in (first, second))  # None becomes NaN
    if (first.elements != second.elements).any() or not np.array_equal(one, other, equal_nan=True):
        return False
    points = [np.zeros(0) if parts.zero_points is None else parts.zero_points for parts in (first, second)]
    if not np.array_equal(points[0], points[1]):
        return False
    if first.scales is None or second.scales is None:
        return first.scales is second.scales
    return first.scales.shape == second.scales.shape and bool(same_scales(first.scales, second.scales).all())
