"""split_matmul: float32 products from products of narrow parts such as BF16, in the order of a recipe."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, float_array
from fpsim.casts.cast import cast
from fpsim.errors import shown, unknown
from fpsim.formats.named import FP32
from fpsim.lazy import deferred
from fpsim.products.matmul import matmul
from fpsim.splits.rows import ROWS
from fpsim.splits.split import Group, Split

processor = deferred("fpsim.runtime.processor")  # imports numba


def split_parts(x: npt.ArrayLike, split: str | Split) -> list[npt.NDArray[Any]]:
    """Split float32 numbers into parts in a narrow format, such as BF16, as a recipe does.

    Args:
      x: array of a float dtype whose values float32 can represent.
      split: the recipe: a Split, such as `fp.splits.OOTOMO_FP16X2`, or the name of one in `fp.splits`.

    Returns:
      List of the parts, the leading one first: arrays of x's shape, in the dtype of the split's format. x is about the
      sum of part[i] * 2**(-i * shift), where `shift` is a field of the split.

    Raises:
      TypeError, ValueError: x is not an array of such floats, or the split is unknown.

    Source: docs/splits.md.

    Example:
      >>> import fpsim as fp
      >>> high, low = fp.split_parts(np.float32([1 + 2.0**-20]), "OOTOMO_FP16X2")
      >>> float(high[0]) + float(low[0]) * 2.0**-11
      1.0000009536743164
    """
    how = _split_of(split)
    rest, parts = _as_float32(x, "x"), []
    with processor().ieee_arithmetic(), np.errstate(all="ignore"):
        for _ in range(how.parts):
            part = cast(rest, how.fmt, rounding=how.rounding, overflow=how.overflow)
            parts.append(part)
            rest = (rest - part.astype(np.float32)) * np.float32(2.0**how.shift)
    return parts


def split_matmul(
    a: npt.ArrayLike, b: npt.ArrayLike, c: npt.ArrayLike | None = None, *, split: str | Split = "CUTLASS_BF16X9"
) -> npt.NDArray[np.float32]:
    """Return a @ b + c in float32, computed from products of narrow parts, such as BF16, as a recipe does.

    Args:
      a, b: (M, K) and (K, N), of float dtypes whose values float32 can represent.
      c: (M, N) of such a dtype, added at the end, rounded to nearest even; None to add nothing.
      split: the recipe: a Split, such as `fp.splits.OOTOMO_FP16X2`, or the name of one in `fp.splits`.

    Returns:
      float32 (M, N).

    Raises:
      TypeError, ValueError: operands that are not such arrays, shapes that do not match, or an unknown split.

    Source: docs/splits.md.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(np.float32)
      >>> exact = a.astype(np.float64) @ b
      >>> def error(x):
      ...     return float(np.linalg.norm(x - exact) / np.linalg.norm(exact))
      >>> error(fp.split_matmul(a, b)) < 2e-7 < 1e-3 < error(fp.matmul(
      ...     fp.cast(a, "bf16"), fp.cast(b, "bf16"), accumulate="blackwell_bf16_f32"))
      True
    """
    how = _split_of(split)
    left, right = _as_float32(a, "a"), _as_float32(b, "b")
    if left.ndim != 2 or right.ndim != 2 or left.shape[1] != right.shape[0]:
        raise ValueError(f"a must be (M, K) and b (K, N); got shapes {left.shape} and {right.shape}.")
    shape = left.shape[0], right.shape[1]
    last = None if c is None else _as_float32(c, "c")
    if last is not None and last.shape != shape:
        raise ValueError(f"c must be of shape {shape}, as the product; got shape {last.shape}.")
    of_a, of_b = (_padded(split_parts(x, how), how.terms, axis) for x, axis in ((left, 1), (right, 0)))
    totals = [_total(group, of_a, of_b, how, shape) for group in how.groups]
    with processor().ieee_arithmetic(), np.errstate(all="ignore"):
        scaled = [
            total if not group.log2_scale else total * np.float32(2.0**group.log2_scale)
            for group, total in zip(how.groups, totals, strict=True)
        ]
        return reduce(np.add, scaled if last is None else [*scaled, last])


def _split_of(split: Any) -> Split:
    """Return the split that a name stands for, or a Split unchanged; raise a ValueError for an unknown one."""
    if isinstance(split, Split):
        return split
    if isinstance(split, str) and split.upper() in ROWS:
        return ROWS[split.upper()]
    raise unknown("split", split, list(ROWS), others="an fp.splits.Split")


def _as_float32(x: npt.ArrayLike, name: str) -> Array:
    """Return x, an array of floats, as float32; raise a ValueError with x's `name` if this changes a value."""
    array, fmt = float_array(x, name)
    if not FP32.holds(fmt):
        with np.errstate(over="ignore"):
            narrow = array.astype(np.float32)
        if not np.array_equal(narrow, array, equal_nan=True):
            raise ValueError(
                f"{name} must hold float32 values; got {shown(x)}. Round it first: {name}.astype(np.float32)."
            )
        return narrow
    return array.astype(np.float32, copy=False)


def _padded(parts: list[Array], terms: int, axis: int) -> list[Array]:
    """Return matrices with +0 appended along `axis`, that of K, up to a multiple of `terms`.

    parts: parts of one operand, matrices of equal shape; they are returned unchanged if their K is a multiple already.
    """
    missing = -parts[0].shape[axis] % terms
    width = [(0, missing if i == axis else 0) for i in range(2)]
    return [np.pad(part, width) for part in parts] if missing else parts


def _total(group: Group, of_a: list[Array], of_b: list[Array], split: Split, shape: tuple[int, int]) -> Array:
    """Return the float32 total (M, N) of a group of products of parts, without the group's power of two.

    of_a, of_b: parts of a (M, K) and of b (K, N), the leading ones first, as `split_parts` returns them. split: the
    recipe. shape: (M, N).
    """
    k, terms = of_a[0].shape[1], split.terms
    if group.interval is None:
        return _chain(group.bands[0], of_a, of_b, split, slice(0, k), None)
    total = np.zeros(shape, np.float32)
    with np.errstate(all="ignore"):
        for start in range(0, k, group.interval * terms):
            part = slice(start, min(start + group.interval * terms, k))
            sums: Any = None
            for band in group.bands:
                with processor().ieee_arithmetic():
                    begun: Any = None if sums is None else sums * np.float32(2.0**-split.shift)
                sums = _chain(band, of_a, of_b, split, part, begun)
            with processor().ieee_arithmetic():
                total = total + sums
    return total


def _chain(
    band: tuple[tuple[int, int], ...], of_a: list[Array], of_b: list[Array], split: Split, part: slice, c: Array | None
) -> Array:
    """Return c plus the products of some pairs of parts over a slice of K, added in one chain of instructions.

    The result is (M, N) float32. band: pairs (index of a part of a, index of a part of b) of products of equal weight.
    For each step of K, the chain has one instruction per pair, in this order. of_a, of_b: parts of a (M, K) and of b
    (K, N), as `split_parts` returns them. split: the recipe. part: the slice of K. c: float32 (M, N), or None for +0.
    """
    (m, n), terms = (len(of_a[0]), of_b[0].shape[1]), split.terms
    steps = (part.stop - part.start) // terms
    left = np.stack([of_a[i][:, part].reshape(m, steps, terms) for i, _ in band], axis=2)
    right = np.stack([of_b[j][part].reshape(steps, terms, n) for _, j in band], axis=1)
    k = steps * terms * len(band)
    return np.asarray(matmul(left.reshape(m, k), right.reshape(k, n), c, accumulate=split.accumulate))
