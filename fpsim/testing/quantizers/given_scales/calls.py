"""Calls of a quantizer whose scale is given, with as many arguments as it needs; its results are codes or values."""

from __future__ import annotations

import sys
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import numpy as np

from fpsim.arrays import Array, format_of, packed_as_bytes, to_torch
from fpsim.casts.cast import quantize
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import FP32, FP64
from fpsim.testing.black_box import FunctionMisbehaved, error_in_words, require_function
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.quantizers.black_box import is_integer_dtype, parameters_of, read, require_shape, result_array
from fpsim.testing.quantizers.given_scales.promise import GivenScale, Values
from fpsim.testing.quantizers.scales.results import is_packed, unpacked

FINDS_ITS_OWN = (
    "Pass scaling= for a function that finds its scales: fp.Scaling(block=(-1, -1), symmetric=False) for ONNX's "
    "DynamicQuantizeLinear."
)


class GivenScaleCall:
    """A quantizer whose scale is given; it is called as fn(x), fn(x, scale) or fn(x, scale, zero_point).

    Args:
      fn: the quantizer; it receives as many arguments as it has positional parameters without default, one to three.
      promise: the promised scale, zero point and format.
    """

    def __init__(self, fn: Callable[..., Any], promise: GivenScale) -> None:
        require_function(fn)
        self.fn, self.promise = fn, promise
        self.covered = CoverageRecord()
        self.returns_values = False
        self.value_fmt: Format = FP32  # of the values that fn returns
        self.tensors = False
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        needed = sum(p.kind in positional and p.default is Parameter.empty for p in parameters_of(fn))
        self.more = max(min(needed - 1, 2), 0)

    def call(self, x: Array, layout: str = "") -> Values:
        """Return the integers or values that fn returns for x, as float64, in the shape of x.

        With a scale for each tile of a matrix, x may be several such matrices stacked along the rows, with each of
        which fn is called. layout: name of the memory layout in the report, "" for C order.

        Raises:
          FunctionMisbehaved: fn raises, writes into its input, or returns neither codes nor values of x's shape.
        """
        matrix = self.promise.matrix
        if matrix is not None and x.shape != matrix:
            return np.concatenate([self.call(x[row : row + matrix[0]], layout) for row in range(0, len(x), matrix[0])])
        promise = self.promise
        of_points = promise.fmt.storage if isinstance(promise.fmt, IntegerFormat) else np.dtype(np.float32)
        points = np.broadcast_to(promise.zero_point.astype(of_points), promise.scale.shape)
        extras = [promise.scale.copy(), points.copy()]
        before = x.tobytes()
        try:
            arguments: list[Any] = [x, *extras[: self.more]]
            if self.tensors:
                arguments = [to_torch(array) for array in arguments]
            with np.errstate(all="ignore"):
                got = self.fn(*arguments)
        except Exception as error:
            if "torch" not in sys.modules or self.tensors or min(x.strides, default=0) < 0:
                said = f"fn raised {error_in_words(error)} on an array of {x.dtype} and shape {x.shape}."
                raise FunctionMisbehaved("runs", said, x) from error
            self.tensors = True
            return self.call(x, layout)
        if x.tobytes() != before:
            raise FunctionMisbehaved("leaves its input alone", f"fn writes into its input of shape {x.shape}.", x)
        for name, extra, right in zip(("scale", "zero_point"), extras, (promise.scale, points), strict=True):
            if extra.tobytes() != right.tobytes():
                raise FunctionMisbehaved("leaves its input alone", f"fn writes into its {name}.", x)
        values = self._read(got, x)
        self.covered.note(x, layout)
        return values

    def _read(self, got: Any, x: Array) -> Values:
        """Return the codes or values `got` that fn returned for x, as float64 of x's shape.

        Codes of 4 bits may be packed two per byte. The attribute `returns_values` is set to whether they are values.

        Raises:
          FunctionMisbehaved: `got` is neither codes nor values, or has another shape than x.
        """
        fmt = self.promise.fmt
        if isinstance(got, (tuple, list)) and len(got) in (2, 3) and all(hasattr(part, "dtype") for part in got):
            raise FunctionMisbehaved(
                "returns", f"fn must return codes or values; got {len(got)} arrays. {FINDS_ITS_OWN}", x
            )
        got = packed_as_bytes(got)
        array = result_array(got, x, "codes or values")
        if is_packed(array, x.shape, fmt):
            array = unpacked(array, x.shape, fmt, high_first=False)
        require_shape(array, x)
        known = format_of(array.dtype)
        self.returns_values = not is_integer_dtype(array.dtype) and (isinstance(fmt, IntegerFormat) or known != fmt)
        if self.returns_values:
            if known is None:
                raise FunctionMisbehaved("dtype", f"fn must return codes of {fmt} or values; got {array.dtype}.", x)
            self.value_fmt = known
            with np.errstate(over="ignore"):
                single = array.astype(np.float32) if known == FP64 else array
            return single.astype(np.float64) + self._no_sign_of_zeros
        if isinstance(fmt, Format):
            return read(array, x, fmt).words.view(np.float64).reshape(x.shape)
        return array.astype(np.float64) + self._no_sign_of_zeros

    @property
    def _no_sign_of_zeros(self) -> float:
        """Number that, added to results, turns -0 into +0 for integer formats and changes nothing for float formats."""
        return 0.0 if isinstance(self.promise.fmt, IntegerFormat) else -0.0

    def wanted(self, promise: GivenScale, x: Array) -> Values:
        """Return the right results for x as float64: codes, or values if the function returned values.

        Values are in float32, or rounded to the format of the function's values if that is narrower. promise: the model
        of the right arithmetic.
        """
        codes = promise.codes(x) + self._no_sign_of_zeros
        if not self.returns_values:
            return codes
        values = promise.values(codes)
        if not self.value_fmt.holds(FP32):
            values = np.asarray(quantize(values, self.value_fmt), np.float64)
        return values + self._no_sign_of_zeros

    def confused(self, promise: GivenScale, x: Array) -> str:
        """Return a sentence on codes whose values are equal in the dtype that the function returns; "" if none are.

        promise: the model of the right arithmetic. x: the inputs, which have all codes as results.
        """
        if not self.returns_values or self.value_fmt.holds(FP32):
            return ""
        scales = np.broadcast_to(promise.spread(promise.scale, x.shape), x.shape)
        parts = np.stack([part.ravel() for part in (scales, promise.codes(x), self.wanted(promise, x))])
        parts = parts[:, np.isfinite(parts).all(0)]
        codes, values = (np.unique(parts[[0, row]], axis=1).shape[1] for row in (1, 2))
        text = f"{codes:,} codes have only {values:,} values in {self.value_fmt}, the format of the returned values"
        return text if values < codes else ""
