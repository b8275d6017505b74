"""Hypothesis strategies of arrays of values, of matrices to be scaled, and of elements of every dtype of ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fpsim.arrays import FORMAT_OF, Array
from fpsim.errors import require_integer, require_kind, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.scaling.recipes import scaling_of
from fpsim.scaling.scaling import Scaling
from fpsim.testing.strategies.numbers import TABLE_BITS, codes_by_value, values

Tile = Callable[[np.random.Generator, int, int], npt.NDArray[np.float32]]
Shape = int | tuple[int, ...] | st.SearchStrategy[tuple[int, ...]]
INTEGERS = ("int1", "int2", "int4", "uint1", "uint2", "uint4")
PARTS = {"complex32": np.dtype(np.float16), "bcomplex32": np.dtype(ml_dtypes.bfloat16)}
WHOLE = 8  # size of a tile along an axis that it spans


def arrays(fmt: FormatLike, shape: Shape, *, dtype: npt.DTypeLike | None = None) -> st.SearchStrategy[Array]:
    """Return a strategy of arrays of a format's values; failing examples shrink toward zeros.

    Args:
      fmt: the format, by name, dtype or object.
      shape: a shape, a length, or a strategy of shapes such as `hypothesis.extra.numpy.array_shapes()`.
      dtype: dtype of the arrays: the format's own, or a float dtype that can represent its values. None for float32, or
        float64 if float32 cannot.

    Raises:
      ValueError: the format is unknown, or the dtype cannot represent its values.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> find(fp.testing.strategies.arrays("e4m3", (2, 2)), lambda x: (x > 16).any() and (x < 0).any())
      array([[ 0.,  0.],
             [-1., 18.]], dtype=float32)
    """
    target_fmt = find_format(fmt)
    if dtype is None:
        array_dtype = np.dtype(np.float32 if FP32.holds(target_fmt) else np.float64)
    else:
        known = dtype_of(dtype)
        holder = None if known is None else FORMAT_OF.get(np.dtype(known))
        if known is None or holder is None or not holder.holds(target_fmt):
            raise ValueError(f"dtype must be a float dtype that holds {target_fmt.name}; got {shown(dtype)}.")
        array_dtype = np.dtype(known)
    elements: st.SearchStrategy[Any] = values(target_fmt).map(lambda x: array_dtype.type(x))
    return hnp.arrays(array_dtype, shape, elements=elements)


def from_dtype(dtype: npt.DTypeLike) -> st.SearchStrategy[Any]:
    """Return a strategy of all elements of a dtype, as `hypothesis.extra.numpy.from_dtype` does for NumPy dtypes.

    Args:
      dtype: any ml_dtypes dtype: floats, small integers, complex pairs; for others Hypothesis's function is called.

    Returns:
      A strategy of scalars of the dtype, for `hypothesis.extra.numpy.arrays(dtype, shape, elements=...)`.

    Raises:
      TypeError: the argument is not a dtype.

    Example:
      >>> from hypothesis import find
      >>> import ml_dtypes, fpsim as fp
      >>> find(fp.testing.strategies.from_dtype(ml_dtypes.bfloat16), lambda x: float(x) > 300)
      302
    """
    known = np.dtype(dtype_of(dtype) or dtype)
    if known.name in PARTS:
        part = PARTS[known.name]
        return st.tuples(from_dtype(part), from_dtype(part)).map(lambda pair: np.array(pair, part).view(known)[0])
    if known.name in INTEGERS:
        info = ml_dtypes.iinfo(known)  # type: ignore[no-untyped-call]
        positive = st.integers(0, int(info.max))
        every = positive | st.integers(int(info.min), -1) if info.min < 0 else positive
        return every.map(known.type)
    fmt = FORMAT_OF.get(known)
    if fmt is None or fmt.bits > TABLE_BITS:
        return hnp.from_dtype(known)
    ordered = codes_by_value(fmt)
    return st.integers(0, ordered.size - 1).map(lambda place: ordered[place : place + 1].view(known)[0])


# ---- arrays to be scaled


def _normal(rng: np.random.Generator, m: int, n: int) -> npt.NDArray[np.float32]:
    """Return a tile (m, n) of values of N(0, 1)."""
    return rng.standard_normal((m, n)).astype(np.float32)


def _amax(scale: Callable[[np.random.Generator], float]) -> Tile:
    """Return a function of (rng, m, n) that makes float32 tiles (m, n) whose largest magnitude depends on `scale`.

    The largest magnitude is a random power of two times `scale(rng)`. All other elements are at most 0.9 times that
    power of two.
    """

    def make(rng: np.random.Generator, m: int, n: int) -> npt.NDArray[np.float32]:
        tile = rng.uniform(-0.9, 0.9, (m, n))
        tile.flat[rng.integers(m * n)] = rng.choice([-1, 1]) * scale(rng)
        return (tile * 2.0 ** int(rng.integers(-30, 30))).astype(np.float32)

    return make


def _at_edge(rng: np.random.Generator, m: int, n: int) -> npt.NDArray[np.float32]:
    """Return a tile (m, n) of values of N(0, 1) with an outlier, 2**6 to 2**19, in one of its four corners.

    In a matrix the outlier is next to other tiles, whose scales it must not affect.
    """
    tile = _normal(rng, m, n)
    tile[rng.choice([0, m - 1]), rng.choice([0, n - 1])] = 2.0 ** int(rng.integers(6, 20))
    return tile


def _with(special: float) -> Tile:
    """Return a function of (rng, m, n) that makes float32 tiles (m, n) of N(0, 1) with one element `special`."""

    def make(rng: np.random.Generator, m: int, n: int) -> npt.NDArray[np.float32]:
        tile = _normal(rng, m, n)
        tile.flat[rng.integers(m * n)] = special
        return tile

    return make


TILES: dict[str, Tile] = {
    "ones": lambda rng, m, n: np.ones((m, n), np.float32),
    "zeros": lambda rng, m, n: np.zeros((m, n), np.float32),
    "constant": lambda rng, m, n: np.full((m, n), rng.choice([1, -1, 3, 448, 2.0**-20, 1e30]), np.float32),
    "normal": _normal,
    "amax is a power of two": _amax(lambda rng: 1.0),
    "amax next to a power of two": _amax(lambda rng: float(rng.choice([1 + 2.0**-23, 1 - 2.0**-24]))),
    "outlier at the edge": _at_edge,
    "negative zeros": lambda rng, m, n: np.full((m, n), -0.0, np.float32),
    "subnormals": lambda rng, m, n: (rng.integers(-9, 10, (m, n)) * 2.0**-149).astype(np.float32),
    "one Inf": _with(np.inf),
    "only Inf": lambda rng, m, n: np.full((m, n), np.inf, np.float32),
    "one NaN": _with(np.nan),
}
SPECIAL = ("one Inf", "only Inf", "one NaN")


def scaled_arrays(
    scaling: Scaling | str, *, tiles: int = 3, ragged: bool = True, specials: bool = True
) -> st.SearchStrategy[npt.NDArray[np.float32]]:
    """Return a strategy of float32 matrices to be scaled, with tiles of ones, zeros, subnormals, outliers, Inf and NaN.

    Args:
      scaling: an `fp.Scaling` with a block of two axes, such as `fp.scalings.MX`, or its name.
      tiles: the largest number of tiles along each axis.
      ragged: whether the last tile along an axis may be smaller.
      specials: whether tiles may contain Inf and NaN.

    Returns:
      A strategy of float32 matrices whose tiles are of the kinds in `TILES`. Failing examples shrink toward a single
      element 1, or without `ragged` toward one tile of ones.

    Raises:
      TypeError: scaling is neither a Scaling nor a name, tiles is not an integer, or another argument is not a bool.
      ValueError: the name is unknown, the block does not have two axes, or tiles is below 1.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> x = find(fp.testing.strategies.scaled_arrays(fp.scalings.MX), lambda x: not x[0].all())
      >>> x.shape, x.any()
      ((1, 1), np.False_)
    """
    scaling = scaling_of(scaling)
    if len(scaling.block) != 2:
        raise ValueError(f"scaling must have a block of two axes, such as (1, 32); got {scaling.block}.")
    require_integer("tiles", tiles, 1)
    require_kind("ragged", ragged, bool, "True or False")
    require_kind("specials", specials, bool, "True or False")
    kinds = [kind for kind in TILES if specials or kind not in SPECIAL]
    return _scaled_array(scaling.block, kinds, tiles, ragged)


@st.composite
def _scaled_array(
    draw: st.DrawFn, block: tuple[int, int], kinds: list[str], tiles: int, ragged: bool
) -> npt.NDArray[np.float32]:
    """Draw a matrix of up to `tiles` tiles along each axis, each of a kind drawn from `kinds`.

    block: rows and columns of a tile; -1 for a single tile along the axis. kinds: keys of TILES, such as "zeros".
    ragged: whether the last tile along an axis may be smaller.
    """
    height, width = (WHOLE if size == -1 else size for size in block)
    counts = [draw(st.integers(1, 1 if size == -1 else tiles)) for size in block]
    drawn = [[(draw(st.sampled_from(kinds)), draw(st.integers(0, 99))) for _ in range(counts[1])]
             for _ in range(counts[0])]  # fmt: skip
    rows = [[TILES[kind](np.random.default_rng(seed), height, width) for kind, seed in row] for row in drawn]
    x = np.block(rows).astype(np.float32)
    if ragged:
        last = [min(draw(st.integers(1, 2 * size)), size) for size in (height, width)]  # half of them are whole
        x = x[: x.shape[0] - height + last[0], : x.shape[1] - width + last[1]]
    return np.ascontiguousarray(x)
