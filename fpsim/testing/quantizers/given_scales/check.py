"""Check of quantizers whose scale is given, such as ONNX's QuantizeLinear, and of casts to integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.element import Element
from fpsim.formats.integer_format import IntegerFormat
from fpsim.testing.black_box import FunctionMisbehaved, name_of
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.black_box import attempted
from fpsim.testing.quantizers.given_scales.calls import GivenScaleCall
from fpsim.testing.quantizers.given_scales.causes import cause_of, differing, fields_of
from fpsim.testing.quantizers.given_scales.inputs import LARGE, further_arrays, inputs_of
from fpsim.testing.quantizers.given_scales.promise import GivenScale, Values, given_scale
from fpsim.testing.quantizers.given_scales.search import scales_of
from fpsim.testing.quantizers.report import Broken, Findings, QuantizerReport, explained

SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16, *(np.dtype(f"{kind}{bits}").type for kind in ("int", "uint")
           for bits in (8, 16, 32, 64)))  # fmt: skip


def check_given_scale(
    fn: Callable[..., Any], fmt: Element, scale: Any, zero_point: Any, block: Any, source: Any, cast: dict[str, Any]
) -> QuantizerReport:
    """Return the report of `check_quantizer` with a scale, or on a cast to integers (scale None).

    Args:
      fn: the quantizer.
      fmt: the format of its results.
      scale: a positive number or an array of them; None for 1.
      zero_point: an integer or an array of them; None for 0.
      block: rows and columns of a tile, or None.
      source: the dtype of the inputs; None for float32.
      cast: rounding, overflow, subnormals and seed.

    Raises:
      ValueError, TypeError: an argument is not accepted, or arguments do not fit each other.
    """
    block = None if block is None else _tile(block)
    promise = given_scale(fmt, 1.0 if scale is None else scale, zero_point, cast, block)
    dtype = np.dtype(np.float32) if source is None else dtype_of(source)
    if dtype is None or np.dtype(dtype).type not in SOURCES:
        raise ValueError(f"source must be float16, bfloat16, float32 or an integer dtype; got {shown(source)}.")
    promised = {"scale": scale, "zero_point": zero_point, "block": block, "source": np.dtype(dtype).name} | cast
    promised = {name: value for name, value in promised.items() if value is not None}
    check = GivenScaleCheck(GivenScaleCall(fn, promise), promise, Findings(), {})
    try:
        check.compare_all(inputs_of(promise, np.dtype(dtype)), zero_point, scale is None)
    except FunctionMisbehaved as refusal:
        check.findings.refuse(refusal)
    return check.findings.report(name_of(fn), fmt, promised, check.box.covered, **check.fields)


class GivenScaleCheck(NamedTuple):
    """Check of a quantizer with a given scale, on several arrays.

    Attributes:
      box: the quantizer.
      promise: the model of the promised arithmetic.
      findings: the record of properties that hold, and of broken ones.
      fields: further fields of the report.
    """

    box: GivenScaleCall
    promise: GivenScale
    findings: Findings
    fields: dict[str, Any]

    def compare_all(self, x: Array, zero_point: Any, is_cast: bool) -> None:
        """Compare the results for x, for a large array and for other layouts with the promise.

        Broken properties are recorded in `findings`, causes are stored in `fields`.

        Args:
          x: the inputs.
          zero_point: the caller's argument; None also allows a symmetric range.
          is_cast: whether no scale was given; then a scale other than 1 is a possible cause.

        Raises:
          FunctionMisbehaved: the function raises, or returns neither codes nor values.
        """
        got = self.box.call(x)
        promise, note = _saturating(self.promise, zero_point, x, got, self.box)
        for remark in filter(None, (note, self.box.confused(promise, x))):
            self.findings.note(remark)
        check = self._replace(promise=promise)
        want = self.box.wanted(promise, x)
        differ = differing(got, want)
        self.fields.update(differ=int(differ.sum()), of=differ.size)
        self.findings.record("codes", _broken("codes", x, got, want))
        again = self.box.call(x)
        self.findings.record("calls", _broken("calls", x, again, got, "the second call gives another result, "))
        check.compare_further(x, compares=not differ.any())
        if promise.block is not None and not differ.any():
            check.compare_large_matrix(x)
        if differ.any():
            self.fields.update(fields_of(promise, self.box, x, got))
            if is_cast and not self.fields.get("causes"):
                self.fields.update(_hidden_scale(self.box, promise))

    def compare_further(self, x: Array, compares: bool) -> None:
        """Call fn with a large array of values of x, and with x in other memory layouts, and record broken properties.

        compares: True compares the results with the promise's; False only calls fn, to note the arrays that it refuses.
        """
        for name, array in further_arrays(self.promise, x):
            if self.box.tensors and min(array.strides) < 0:
                continue  # tensors have no negative strides
            got, refusal = attempted(self.box.call, array, "" if name in ("large", "square") else name)
            if got is None:
                self.findings.note(f"it refuses {name} arrays: {refusal}")
            elif compares:
                kind = {"large": "size", "square": "batch"}.get(name, "layout")
                want = self.box.wanted(self.promise, array)
                self.findings.record(kind, _broken(kind, array, got, want, f"an array that is {name}, "))

    def compare_large_matrix(self, x: Array) -> None:
        """Compare fn's results for a large matrix with those of `promise`; record the property "size" in `findings`.

        The matrix repeats x, and its scales and zero points repeat those of `promise`. The property holds if all
        results are right; otherwise the first wrong one is recorded. If fn takes no scales as an argument, or refuses
        the matrix, only a note is added to `findings`. x: the inputs, 2-D, matrices of the shape `promise.matrix` one
        below the other.
        """
        promise = self.promise
        assert promise.matrix is not None
        rows, columns = promise.matrix
        across = max(1, -(-1030 // columns))
        times = (-(-LARGE // (rows * columns * across)), across)
        tiled: dict[str, Any] = {"scale": np.tile(promise.scale, times)}
        tiled |= {"zero_point": np.tile(promise.zero_point, times)} if promise.zero_point.ndim else {}
        large = promise._replace(**tiled)
        box = GivenScaleCall(self.box.fn, large)
        box.covered = self.box.covered
        if not box.more:
            note = f"its scales fix the shape of a matrix, {promise.matrix}, so that no larger one was compared"
            self.findings.note(note)
            return
        below = [x[(row % (len(x) // rows)) * rows :][:rows] for row in range(times[0])]
        values = np.tile(np.concatenate(below), (1, across))
        got, refusal = attempted(box.call, values)
        if got is None:
            self.findings.note(f"it refuses a matrix of shape {values.shape}: {refusal}")
            return
        why = f"a matrix of shape {values.shape}, "
        self.findings.record("size", _broken("size", values, got, box.wanted(large, values), why))


def _tile(block: Any) -> tuple[int, int]:
    """Return the rows and columns of a tile from the argument `block`.

    Raises:
      ValueError: the argument is not a pair of positive integers.
    """
    numbers = block if isinstance(block, (tuple, list)) else ()
    whole = [isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size > 0 for size in numbers]
    if len(whole) != 2 or not all(whole):
        raise ValueError(f"block must be rows and columns of a tile, such as (1, 32); got {shown(block)}.")
    return int(numbers[0]), int(numbers[1])


def _hidden_scale(box: GivenScaleCall, promise: GivenScale) -> dict[str, Any]:
    """Return the `QuantizerReport` fields on a scale other than 1 that explains all results of a cast; else {}.

    box: the function under test. promise: the model of the promised cast.
    """
    for model in scales_of(box):
        x = inputs_of(model, np.dtype(np.float32))
        got = box.call(x)
        words: tuple[str, ...] = (f"divides by {float(model.scale):g}: pass scale=",)
        if model.zero_point != promise.zero_point:
            words += (f"adds the zero point {int(model.zero_point)}: pass zero_point=",)
        if not differing(got, box.wanted(model, x)).any():
            return explained(*words)
        clauses, _, _ = cause_of(model, box, x, got)
        if clauses:
            return explained(*words, *clauses)
    return {}


def _saturating(
    promise: GivenScale, zero_point: Any, x: Array, got: Values, box: GivenScaleCall
) -> tuple[GivenScale, str]:
    """Return (promise, note), where the promise may have a symmetric range such as -127 to 127.

    The range is replaced if fewer results differ with it, in signed integer formats, and only if `zero_point`, the
    caller's argument, is None. The note says that it was replaced; else it is "". x, got: the inputs and the results
    (float64) of the quantizer `box`.
    """
    fmt = promise.fmt
    if not isinstance(fmt, IntegerFormat) or not fmt.signed or zero_point is not None:
        return promise, ""
    symmetric = promise._replace(lowest=-fmt.highest)
    fewer = differing(got, box.wanted(symmetric, x)).sum() < differing(got, box.wanted(promise, x)).sum()
    return (symmetric, f"it saturates at {-fmt.highest}, not at {fmt.lowest}") if fewer else (promise, "")


def _broken(name: str, x: Array, got: Values, want: Values, why: str = "") -> Broken | None:
    """Return the broken property `name` if the results `got` for x differ from the right ones `want`, else None.

    got, want: float64 codes or values. why: text before "first at index ..." in the property's sentence.
    """
    differ = np.flatnonzero(differing(got, want))
    if not differ.size:
        return None
    at = int(differ[0])
    value = x.ravel()[at]
    return Broken(
        name, f"{why}first at index {at:,}", input=f"x = {float(value)!r}, {pasted(value)}", got=f"{got.ravel()[at]:g}",
        input_bits=None if x.dtype.kind in "iu" else int(x.ravel()[[at]].view(f"u{x.itemsize}")[0]),
        want=f"{want.ravel()[at]:g}", count=differ.size, of=got.size,
    )  # fmt: skip
