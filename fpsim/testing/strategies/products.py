"""Hypothesis strategies of operands of matrix units, whose products show how the units add."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from fpsim.arrays import Array
from fpsim.casts.cast import encode
from fpsim.errors import require_integer
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.matrix_units.matrix_unit import Element, MatrixUnit
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.scaling import Scaling

DATA = ("ones", "cancelling", "wide", "any codes")
SPAN = 12  # binades below and above 1 of wide operands
EDITS = 6  # most elements that are drawn one by one, so that examples shrink to ones and a few of these


def products(unit: str | MatrixUnit, m: int, n: int, k: int) -> st.SearchStrategy[tuple[Any, Any]]:
    """Return a strategy of operands (a, b) for `fp.matmul(a, b, accumulate=unit)`.

    The codes of a pair are of one kind: ones; wide (values of both signs in 24 binades around 1); cancelling (wide, but
    half of the terms are the negatives of the others); or any codes. Parts of the arrays are then replaced by ones, and
    a few elements by any codes.

    Args:
      unit: a unit or its name (`fp.units()`).
      m, n, k: rows of a, columns of b, and terms of a sum; for block-scaled units, k is a multiple of the block.

    Returns:
      A strategy of pairs of arrays, (m, k) and (k, n): codes in the dtypes of the unit's operands, or `fp.Scaled` for
      block-scaled units. Failing examples shrink toward ones with as few other elements as possible.

    Raises:
      ValueError: the unit is unknown, a size is below 1, or k is not a multiple of the block.
      TypeError: a size is not an integer.

    Example:
      >>> from hypothesis import find
      >>> import fpsim as fp
      >>> unit = fp.testing.strategies.products("hopper_e4m3_f32", 1, 1, 4)
      >>> a, b = find(unit, lambda pair: fp.matmul(*pair, accumulate="hopper_e4m3_f32")[0, 0] == 3)
      >>> a, b.ravel()
      (array([[56, 56, 56, 56]], dtype=uint8), array([ 0, 56, 56, 56], dtype=uint8))
    """
    matrix_unit = find_unit(unit)
    for name, size in (("m", m), ("n", n), ("k", k)):
        require_integer(name, size, 1)
    if matrix_unit.scale is not None and k % matrix_unit.block:
        raise ValueError(
            f"k must be a multiple of the {matrix_unit.block} terms of a block of {matrix_unit.name}; got {k}."
        )
    return _pair(matrix_unit, m, n, k)


@st.composite
def _pair(draw: st.DrawFn, unit: MatrixUnit, m: int, n: int, k: int) -> tuple[Any, Any]:
    """Draw the operands a, (m, k), and b, (k, n), of a product: codes, or `fp.Scaled` for a block-scaled unit.

    All codes are of one kind, drawn from DATA: "ones", "cancelling", "wide" or "any codes" (see `products`). Some parts
    of the arrays are then replaced by ones, and a few codes by any others. draw: Hypothesis's function.
    """
    kind = draw(st.sampled_from(DATA))
    rng = np.random.default_rng(draw(st.integers(0, 999)) if kind != "ones" else 0)
    a, b = _codes(kind, rng, (m, k), unit.a), _codes(kind, rng, (k, n), unit.b)
    if kind == "cancelling":
        _cancel(rng, a, b, unit.a)
    for codes, element in ((a, unit.a), (b, unit.b)) if kind != "ones" else ():
        _keep_part(codes, element, draw(st.integers(0, 3 * codes.size)), draw(st.integers(0, 3 * codes.size)))
    for _ in range(draw(st.integers(0, EDITS))):
        codes, element = draw(st.sampled_from([(b, unit.b), (a, unit.a)]))
        place = draw(st.integers(0, codes.size - 1))
        codes.flat[place] = _carried(draw(st.integers(0, (1 << element.fmt.bits) - 1)), element)
    if unit.scale is None:
        return a, b
    return _scaled(draw, a, unit, unit.a), _scaled(draw, b.T, unit, unit.b).transpose()


def _codes(kind: str, rng: np.random.Generator, shape: tuple[int, int], element: Element) -> Array:
    """Return random codes of one operand, (rows, columns) = `shape`, in the dtype of the unit's element type `element`.

    kind: "any codes", "ones", or "cancelling" or "wide", which both mean values of both signs in 24 binades around 1.
    """
    if kind == "any codes":
        codes = rng.integers(0, 1 << element.fmt.bits, shape, dtype=np.uint64)
    elif kind == "ones":
        codes = np.full(shape, _one(element), np.uint64)
    else:
        x = rng.choice([-1.0, 1.0], shape) * rng.uniform(1, 2, shape) * 2.0 ** rng.integers(-SPAN, SPAN, shape)
        codes = encode(x, element.fmt, overflow="saturate").astype(np.uint64)
    return np.asarray(_carried(codes, element)).astype(element.dtype)


def _one(element: Element) -> int:
    """Return the code of 1 in `element.fmt`."""
    return int(encode(np.float64(1), element.fmt))


def _keep_part(codes: Array, element: Element, last: int, first: int) -> None:
    """Replace codes by the code of 1, in place, except those that are among the last `last` and also the first `first`.

    Of 10 codes in C order, last=7 and first=5 keep those at indices 3 and 4. element: the element type of the codes.
    """
    kept = np.zeros(codes.size, np.bool_)
    kept[max(codes.size - last, 0) : first] = True
    codes[~kept.reshape(codes.shape)] = _carried(_one(element), element)


def _carried(code: Any, element: Element) -> Any:
    """Return codes of `element.fmt` as codes of `element.carrier`, the format in which a unit stores its operand.

    code: an integer or a uint64 array. For example, TF32 is stored in the upper bits of float32.
    """
    shift = element.carrier.bits - element.fmt.bits  # TF32's codes are the upper bits of float32's
    return code << (np.uint64(shift) if isinstance(code, np.ndarray) else shift)


def _cancel(rng: np.random.Generator, a: Array, b: Array, element: Element) -> None:
    """Make a random half of the terms of K the negatives of the other half, in place, so that the terms cancel.

    For each pair of terms, b's codes are copied, and a's codes are copied with the sign bit flipped. In formats in
    which the sign bit alone means NaN instead of -0, zeros of a stay zeros. a, b: codes, (m, K) and (K, n). element:
    the element type of a.
    """
    order = rng.permutation(a.shape[1])
    half = order.size // 2
    first, sign = a[:, order[:half]], a.dtype.type(element.carrier.sign_bit)
    a[:, order[half : 2 * half]] = first ^ sign if element.carrier.negative_zero else np.where(first, first ^ sign, 0)
    b[order[half : 2 * half]] = b[order[:half]]


def _scaled(draw: st.DrawFn, codes: Array, unit: MatrixUnit, element: Element) -> Scaled:
    """Return codes (rows, k) as a Scaled array whose blocks along k have powers of two, random or all 1, as scales.

    draw: Hypothesis's function. unit, element: the block-scaled unit, and the type of the operand with these codes.
    """
    scale_format = unit.scale_format
    assert scale_format is not None
    grid = codes.shape[0], codes.shape[1] // unit.block
    powers = np.zeros(grid)
    if draw(st.booleans()):
        powers = np.random.default_rng(draw(st.integers(0, 999))).integers(-6, 7, grid).astype(np.float64)
    scales = (2.0**powers).astype(np.float32)
    scaling = Scaling(block=(1, unit.block), scale_format=scale_format)
    return Scaled(np.ascontiguousarray(codes), scales, element.fmt, scaling, encode(scales, scale_format))
