"""grouped_matmul: rows in groups of any sizes, each group times its own matrix, as in a mixture of experts."""

from __future__ import annotations

import dataclasses
from itertools import accumulate, pairwise
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array
from fpsim.errors import shown
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.products.stacks.options import ProductOptions, arrays_of, in_dtype
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.tiling import tile_sizes
from fpsim.sums.accumulators import Accumulator


def grouped_matmul(
    a: npt.ArrayLike | Scaled, b: npt.ArrayLike | Scaled, group_sizes: npt.ArrayLike, *,
    accumulate: str | MatrixUnit | IntegerUnit | Accumulator | None = None, scale_a: npt.ArrayLike | None = None,
    scale_b: npt.ArrayLike | None = None, bias: npt.ArrayLike | None = None, **options: Unpack[ProductOptions],
) -> npt.NDArray[Any]:  # fmt: skip
    """Return the products of consecutive groups of rows of a, each with its own matrix of b, as one matrix.

    Rows of group g are bit for bit `fp.matmul(rows, b[g], ...)`. These are DeepGEMM's grouped products with contiguous
    groups (m_grouped_..._contiguous), without its alignment of groups.

    Args:
      a: (M, K) rows, one group after the other: codes, floats or Scaled, as `fp.matmul` accepts them. Tiles of a Scaled
        array must have one row, or all rows.
      b: (G, K, N), a matrix for each group.
      group_sizes: (G,) integers, the number of rows of each group, 0 or more; their sum is M.
      accumulate: a unit, its name, or an accumulator that is not stochastic.
      scale_a, scale_b: scales as for `fp.matmul`: scale_a one number, (1, K / block) or with a row for each row of a;
        scale_b with a matrix for each group (three axes), or shared.
      bias: (N,), as for `fp.matmul`, for all groups.
      options: schedule, promote, scale_order, alpha, out_fmt, strict and fmt, as for `fp.matmul`, for all groups.

    Returns:
      (M, N) array, of the dtype that `fp.matmul` returns.

    Raises:
      ValueError: sizes whose sum is not the number of rows of a, or that are not one for each matrix of b; Scaled
        tiles (blocks that share a scale) of several rows; a stochastic accumulator; what `fp.matmul` does not accept.
      TypeError: a size is not an integer.

    Source: DeepGEMM, README ("Grouped GEMMs (contiguous layout)").

    Example:
      >>> import numpy as np, fpsim as fp
      >>> a, b = np.ones((5, 4), np.float16), np.float16([np.ones((4, 2)), 2 * np.ones((4, 2))])
      >>> fp.grouped_matmul(a, b, [3, 2], accumulate="hopper_f16_f32").tolist()
      [[4.0, 4.0], [4.0, 4.0], [4.0, 4.0], [8.0, 8.0], [8.0, 8.0]]
    """
    left, right = (x if isinstance(x, Scaled) else as_array(in_dtype(x), name) for x, name in ((a, "a"), (b, "b")))
    if len(left.shape) != 2:
        raise ValueError(f"a must have two axes, (M, K); got shape {tuple(left.shape)}.")
    if len(right.shape) != 3:
        raise ValueError(f"b must have three axes, (groups, K, N); got shape {tuple(right.shape)}.")
    if isinstance(accumulate, Accumulator) and accumulate.seed is not None:
        raise ValueError(f"groups would draw the same random words; got {accumulate}. Multiply them with other seeds.")
    bounds = _bounds(group_sizes, left.shape[0], right.shape[0])
    of_a, of_b = (None if x is None else as_array(x, "scales") for x in (scale_a, scale_b))
    has_rows = of_a is not None and of_a.ndim > 1 and of_a.shape[0] == left.shape[0] > 1  # others are shared
    result: Array | None = None
    for g, (start, stop) in enumerate(pairwise(bounds)):
        if start == stop and (result is not None or g + 1 < right.shape[0]):
            continue  # a result tells the dtype, so that one product is computed even if there are no rows
        part = matmul(
            _rows(left, start, stop), _matrix(right, g), accumulate=accumulate,
            scale_a=of_a[start:stop] if of_a is not None and has_rows else of_a,
            scale_b=of_b[g] if of_b is not None and of_b.ndim == 3 else of_b, bias=bias, **options,
        )  # fmt: skip
        if result is None:
            result = np.empty((left.shape[0], part.shape[1]), part.dtype)
        result[start:stop] = part
    if result is None:
        raise ValueError("b must have a matrix for one group or more; got none.")
    return result


def _bounds(group_sizes: npt.ArrayLike, rows: int, groups: int) -> list[int]:
    """Return the first row of each group and the end of the last group, groups + 1 numbers.

    group_sizes: as for `grouped_matmul`. rows: number of rows of a. groups: number of matrices of b.

    Raises:
      ValueError, TypeError: the sizes are not nonnegative integers, one per group, that add up to `rows`.
    """
    sizes = as_array(group_sizes, "group_sizes")
    if sizes.dtype.kind not in "iu" and sizes.size:
        raise TypeError(f"group_sizes must be integers, the rows of each group; got {sizes.dtype}.")
    if sizes.shape != (groups,):
        raise ValueError(
            f"group_sizes must have one number for each of the {groups} matrices of b; got shape {sizes.shape}."
        )
    numbers = [int(size) for size in sizes]
    if any(size < 0 for size in numbers):
        raise ValueError(f"group_sizes must be 0 or more; got {shown(min(numbers))}.")
    if sum(numbers) != rows:
        raise ValueError(f"group_sizes must add up to the {rows} rows of a; got {sum(numbers)} rows.")
    return [0, *accumulate(numbers)]


def _rows(x: Any, start: int, stop: int) -> Any:
    """Return rows start .. stop - 1 of a matrix x, an array or Scaled; a Scaled result has the scales of these rows.

    Raises:
      ValueError: a scale is shared by several rows, but not by all.
    """
    if not isinstance(x, Scaled):
        return x[start:stop]
    tall = tile_sizes(x.shape, x.scaling.block)[0]
    if tall > 1 and x.scales.shape[0] > 1:
        raise ValueError(
            f"a Scaled a must have tiles of one row, or of all rows, for groups; got tiles of {tall} rows. Encode it "
            "with fp.scalings.TILE_1X128, for instance."
        )
    parts = arrays_of(x).items()
    cut = {name: array[start:stop] if name == "codes" or tall == 1 else array for name, array in parts}
    return dataclasses.replace(x, **cut)


def _matrix(x: Any, g: int) -> Any:
    """Return matrix number g of a stack x, an array or Scaled, with its scales."""
    if not isinstance(x, Scaled):
        return x[g]
    parts = arrays_of(x).items()
    return dataclasses.replace(x, **{name: array[g if len(array) > 1 else 0] for name, array in parts})
