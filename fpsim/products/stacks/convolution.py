"""conv2d: convolutions of images as products of their patches and the filters."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array, as_array
from fpsim.errors import is_integer, shown
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.integer_unit import IntegerUnit
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.products.matmul import matmul
from fpsim.products.stacks.options import ProductOptions, in_dtype
from fpsim.scaling.scaled import Scaled
from fpsim.sums.accumulators import Accumulator

Pair = int | tuple[int, int]
MOST_ZEROS = 1 << 20  # of padding
AT_ONCE = 1 << 22  # elements of patches that are held at a time, unless those of one image are more


def conv2d(
    x: npt.ArrayLike, weight: npt.ArrayLike, *, accumulate: str | MatrixUnit | IntegerUnit | Accumulator | None = None,
    stride: Pair = 1, padding: Pair | str = 0, dilation: Pair = 1, groups: int = 1,
    bias: npt.ArrayLike | None = None, **options: Unpack[ProductOptions],
) -> npt.NDArray[Any]:  # fmt: skip
    """Return the 2-D convolution of images with filters, computed as a matrix product with the bits of `fp.matmul`.

    The terms of an output are ordered by channel, then row, then column of the filter, as in
    `torch.nn.functional.unfold` and `weight.reshape(O, -1)`. The patches are operand a of the product, the filters b.
    Pixels outside an image are +0, and their products are terms like any other.

    Args:
      x: (N, C, H, W) codes or floats, of any dtype that `fp.matmul` accepts as a.
      weight: (O, C / groups, R, S) codes or floats, of any dtype that `fp.matmul` accepts as b.
      accumulate: a unit, its name, or an accumulator.
      stride, dilation: distance between neighbouring patches, and between neighbouring elements of a patch, in pixels:
        a number, or (for rows, for columns).
      padding: number of zeros before and after rows and columns: a number, or (for rows, for columns). "same": as
        many as give the output H rows and W columns; if their number is odd, one more after than before; the stride
        must be 1. "valid": none.
      groups: parts into which the channels and outputs are divided; filters see the channels of their part alone.
      bias: (O,), as for `fp.matmul`.
      options: schedule, promote, scale_order, alpha, out_fmt, strict and fmt, as for `fp.matmul`.

    Returns:
      (N, O, P, Q) array of the dtype that `fp.matmul` returns, for P x Q patches of an image.

    Raises:
      ValueError: shapes that do not fit, a filter that is larger than the padded image, or what `fp.matmul` refuses.
      TypeError: an operand is Scaled, or a number is not an integer.

    Source: torch.nn.functional.conv2d and unfold.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> x, weight = np.ones((1, 2, 4, 4), np.float16), np.ones((3, 2, 3, 3), np.float16)
      >>> fp.conv2d(x, weight, accumulate="hopper_f16_f32", padding=1)[0, 0].tolist()
      [[8.0, 12.0, 12.0, 8.0], [12.0, 18.0, 18.0, 12.0], [12.0, 18.0, 18.0, 12.0], [8.0, 12.0, 12.0, 8.0]]
    """
    images, filters = _image(x, "x", "(N, C, H, W)"), _image(weight, "weight", "(O, C / groups, R, S)")
    _refuse_groups(images.shape, filters.shape, groups)
    (count, channels), outputs = images.shape[:2], filters.shape[0]
    part, kept = channels // groups, outputs // groups
    biases = None if bias is None else as_array(bias, "bias").reshape(-1)
    if biases is not None and biases.shape != (outputs,):
        raise ValueError(f"bias must have one number for each of the {outputs} outputs; got {biases.size}.")
    results = []
    for group in range(groups):
        b = filters[group * kept : (group + 1) * kept].reshape(kept, math.prod(filters.shape[1:])).T
        seen = images[:, group * part : (group + 1) * part]
        of_group = None if biases is None else biases[group * kept : (group + 1) * kept]
        step = _images_at_once(seen, b, accumulate, options)
        rows = [
            patches(seen[i : i + step], filters.shape[2:], stride=stride, padding=padding, dilation=dilation)
            for i in range(0, max(count, 1), step)
        ]
        products = [
            matmul(some.reshape(math.prod(some.shape[:3]), len(b)), b, accumulate=accumulate, bias=of_group, **options)
            for some in rows
        ]
        whole = products[0] if len(products) == 1 else np.concatenate(products)
        results.append(whole.reshape(count, *rows[0].shape[1:3], kept))
    channels_last = results[0] if groups == 1 else np.concatenate(results, axis=-1)
    return np.ascontiguousarray(np.moveaxis(channels_last, -1, 1))


def patches(
    x: npt.ArrayLike, size: Pair, *, stride: Pair = 1, padding: Pair | str = 0, dilation: Pair = 1
) -> npt.NDArray[Any]:
    """Return the patches of images that a convolution multiplies by its filters, one patch along the last axis.

    Args:
      x: (N, C, H, W) array of any dtype. If x holds codes, code 0 of their format must be zero, as padding is 0.
      size: rows and columns of a patch.
      stride, padding, dilation: as for `fp.conv2d`.

    Returns:
      (N, P, Q, C * R * S) array of x's dtype, for P x Q patches of R x S elements, ordered by channel, then row, then
      column. `torch.nn.functional.unfold` returns the same patches as columns.

    Raises:
      ValueError, TypeError: as for `fp.conv2d`.

    Example:
      >>> import numpy as np, fpsim as fp
      >>> fp.patches(np.arange(9).reshape(1, 1, 3, 3), 2)[0, 0].tolist()
      [[0, 1, 3, 4], [1, 2, 4, 5]]
    """
    images = _image(x, "x", "(N, C, H, W)")
    (rows, columns), (down, right), (by_row, by_column) = (
        _pair(value, name, 1) for value, name in ((size, "size"), (stride, "stride"), (dilation, "dilation"))
    )
    reach = by_row * (rows - 1) + 1, by_column * (columns - 1) + 1
    zeros = _zeros(padding, reach, (down, right))
    tall, wide = (n + before + after for n, (before, after) in zip(images.shape[2:], zeros, strict=True))
    if tall < reach[0] or wide < reach[1]:
        raise ValueError(
            f"a patch must fit the padded image of {tall} x {wide}; it reaches over {reach[0]} x {reach[1]}. Pad more."
        )
    padded = np.zeros((*images.shape[:2], tall, wide), images.dtype)
    padded[:, :, zeros[0][0] : tall - zeros[0][1], zeros[1][0] : wide - zeros[1][1]] = images
    windows = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(2, 3))
    picked = windows[:, :, ::down, ::right, ::by_row, ::by_column]  # (N, C, P, Q, R, S)
    n, _, p, q = picked.shape[:4]
    return np.moveaxis(picked, 1, 3).reshape(n, p, q, images.shape[1] * rows * columns)


def _image(x: Any, name: str, axes: str) -> Array:
    """Return operand x as an array with four axes. name, axes: the operand's name and axes as errors print them.

    Raises:
      ValueError, TypeError: the operand has another number of axes, or is a Scaled array.
    """
    if isinstance(x, Scaled):
        raise TypeError(f"{name} must be codes or floats, as patches share tiles; got a Scaled array. Decode it first.")
    array = as_array(in_dtype(x), name)
    if array.ndim != 4:
        raise ValueError(f"{name} must have four axes, {axes}; got shape {array.shape}.")
    return array


def _refuse_groups(x: tuple[int, ...], weight: tuple[int, ...], groups: int) -> None:
    """Raise an error unless `groups` divides the numbers of channels and of outputs; x, weight: the operands' shapes.

    Raises:
      ValueError, TypeError: groups is not a divisor or not an integer, or weight has another number of channels.
    """
    if not is_integer(groups):
        raise TypeError(f"groups must be an integer; got {shown(groups)}.")
    if groups < 1 or x[1] % groups or weight[0] % groups or not weight[0]:
        raise ValueError(
            f"groups must divide the {x[1]} channels of x and the {weight[0]} outputs of weight; got {shown(groups)}."
        )
    if weight[1] * groups != x[1]:
        raise ValueError(
            f"weight must have {x[1] // groups} channels, those of x divided by groups={groups}; got {weight[1]}."
        )


def _pair(value: Any, name: str, lowest: int) -> tuple[int, int]:
    """Return (number for rows, number for columns) from one integer, which holds for both, or from a pair of integers.

    value: the integer or pair. name: the argument that errors name. lowest: the smallest allowed number.

    Raises:
      ValueError, TypeError: a number is below `lowest`, or not an integer.
    """
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    if len(pair) != 2 or not all(is_integer(number) for number in pair):
        raise TypeError(f"{name} must be an integer, or one for rows and one for columns; got {shown(value)}.")
    if min(pair) < lowest:
        raise ValueError(f"{name} must be at least {lowest}; got {shown(value)}.")
    return int(pair[0]), int(pair[1])


def _zeros(padding: Any, reach: tuple[int, int], stride: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the numbers of zeros that pad an image, [(above, below), (left, right)].

    padding, stride: as in `conv2d`. reach: rows and columns that a patch spans in the image.

    Raises:
      ValueError, TypeError: the padding is neither numbers, nor "same" or "valid".
    """
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"padding must be a number, two numbers, 'same' or 'valid'; got {shown(padding)}.")
        if padding == "same" and stride != (1, 1):
            raise ValueError(f"padding='same' is for a stride of 1; got {stride}. Pass numbers.")
        missing = [size - 1 if padding == "same" else 0 for size in reach]
        return [(zeros // 2, zeros - zeros // 2) for zeros in missing]
    numbers = _pair(padding, "padding", 0)
    if max(numbers) > MOST_ZEROS:
        raise ValueError(f"padding must be at most {MOST_ZEROS:,}; got {shown(padding)}.")
    return [(zeros, zeros) for zeros in numbers]


def _images_at_once(x: Array, b: Array, accumulate: Any, options: ProductOptions) -> int:
    """Return how many images to process per matrix product: as many as have about AT_ONCE (2^22) elements of patches.

    It is the number of all images, N, with stochastic rounding or a schedule: there, bits may depend on the number of
    rows of a product. x: (N, C, H, W) images. b: the filters, (terms, outputs). accumulate, options: as in `conv2d`.
    """
    stochastic = isinstance(accumulate, Accumulator) and accumulate.rounding is Rounding.STOCHASTIC
    if stochastic or options.get("schedule") is not None:
        return max(len(x), 1)
    return max(AT_ONCE // max(int(b.shape[0] * x.shape[2] * x.shape[3]), 1), 1)
