"""Checks quantizers whose scale is given, as ONNX's QuantizeLinear, and casts to integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from fpsim.arrays import Array
from fpsim.errors import shown
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.element import Element
from fpsim.formats.integer_format import IntegerFormat
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.black_box import QuantizerMisbehaved, name_of
from fpsim.testing.quantizers.given_scales.calls import GivenScaleCall
from fpsim.testing.quantizers.given_scales.causes import cause_of, differing, fields_of, sentence
from fpsim.testing.quantizers.given_scales.inputs import LARGE, further_arrays, inputs_of
from fpsim.testing.quantizers.given_scales.promise import GivenScale, Values, given_scale
from fpsim.testing.quantizers.given_scales.search import scales_of
from fpsim.testing.quantizers.properties import LAYOUTS
from fpsim.testing.quantizers.report import Broken, QuantizerReport

SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16, *(np.dtype(f"{kind}{bits}").type for kind in ("int", "uint")
           for bits in (8, 16, 32, 64)))  # fmt: skip


def check_given_scale(
    fn: Callable[..., Any], fmt: Element, scale: Any, zero_point: Any, block: Any, source: Any, cast: dict[str, Any]
) -> QuantizerReport:
    """Return the report of `check_quantizer` with a scale, or of a cast to integers, whose scale is 1.

    Raises:
      ValueError, TypeError: what cannot be asked.
    """
    block = None if block is None else _tile(block)
    promise = given_scale(fmt, 1.0 if scale is None else scale, zero_point, cast, block)
    dtype = np.dtype(np.float32) if source is None else dtype_of(source)
    if dtype is None or np.dtype(dtype).type not in SOURCES:
        raise ValueError(f"source must be float16, bfloat16, float32 or an integer dtype; got {shown(source)}.")
    promised = {"scale": scale, "zero_point": zero_point, "block": block, "source": np.dtype(dtype).name} | cast
    promised = {name: value for name, value in promised.items() if value is not None}
    box = GivenScaleCall(fn, promise)
    x = inputs_of(promise, np.dtype(dtype))
    broken: dict[str, Broken] = {}
    held: dict[str, None] = {}
    fields: dict[str, Any] = {}
    notes: list[str] = []
    try:
        got = box.call(x)
        promise, note = _saturating(promise, zero_point, x, got, box)
        notes += [note] if note else []
        want = box.wanted(promise, x)
        differ = differing(got, want)
        fields = {"differ": int(differ.sum()), "of": differ.size}
        _noted("codes", box, x, got, want, held, broken, "")
        _noted("calls", box, x, box.call(x), got, held, broken, "the second call gives another result")
        for name, other in further_arrays(promise, x, () if box.tensors else tuple(LAYOUTS)):
            layout = "" if name == "large" else name
            try:
                result = box.call(other, layout)
            except QuantizerMisbehaved as refusal:
                if refusal.property != "runs":
                    raise
                notes.append(f"it refuses {name} arrays: {refusal.sentence}")
                continue
            if not differ.any():
                kind = "size" if name == "large" else "layout"
                _noted(kind, box, other, result, box.wanted(promise, other), held, broken, f"an array that is {name}")
        if promise.block is not None:
            notes += _of_a_large_matrix(box, promise, x, held, broken) if not differ.any() else []
        if differ.any():
            fields |= fields_of(promise, box, x, got)
            if scale is None and not fields.get("causes"):
                fields |= _hidden_scale(box, promise)
    except QuantizerMisbehaved as refusal:
        broken[refusal.property] = Broken(refusal.property, refusal.sentence)
    return QuantizerReport(
        name_of(fn), fmt, promised, tuple(name for name in held if name not in broken), tuple(broken.values()),
        notes=tuple(notes), covered=box.covered.coverage, **fields,
    )  # fmt: skip


def _tile(block: Any) -> tuple[int, int]:
    """Return the rows and columns of a tile.

    Raises:
      ValueError: these are no two positive integers.
    """
    numbers = block if isinstance(block, (tuple, list)) else ()
    whole = [isinstance(size, (int, np.integer)) and not isinstance(size, bool) and size > 0 for size in numbers]
    if len(whole) != 2 or not all(whole):
        raise ValueError(f"block must be rows and columns of a tile, such as (1, 32); got {shown(block)}.")
    return int(numbers[0]), int(numbers[1])


def _of_a_large_matrix(
    small: GivenScaleCall, promise: GivenScale, x: Array, held: dict[str, None], broken: dict[str, Broken]
) -> list[str]:
    """Compare a large matrix, of which fn takes the scales; return a note where it takes none."""
    assert promise.matrix is not None
    rows, columns = promise.matrix
    across = max(1, -(-1030 // columns))
    times = (-(-LARGE // (rows * columns * across)), across)
    tiled: dict[str, Any] = {"scale": np.tile(promise.scale, times)}
    tiled |= {"zero_point": np.tile(promise.zero_point, times)} if promise.zero_point.ndim else {}
    large = promise._replace(**tiled)
    box = GivenScaleCall(small.fn, large)
    box.covered = small.covered
    if not box.more:
        return [f"its scales fix the shape of a matrix, {promise.matrix}, so that no larger one was compared"]
    below = [x[(row % (len(x) // rows)) * rows :][:rows] for row in range(times[0])]
    values = np.tile(np.concatenate(below), (1, across))
    try:
        got = box.call(values)
    except QuantizerMisbehaved as refusal:
        if refusal.property != "runs":
            raise
        return [f"it refuses a matrix of shape {values.shape}: {refusal.sentence}"]
    _noted("size", box, values, got, box.wanted(large, values), held, broken, f"a matrix of shape {values.shape}")
    return []


def _hidden_scale(box: GivenScaleCall, promise: GivenScale) -> dict[str, Any]:
    """Return the fields of a report that say which scale other than 1 explains all results; empty where none does."""
    for model in scales_of(box):
        x = inputs_of(model, np.dtype(np.float32))
        got = box.call(x)
        words: tuple[str, ...] = (f"divides by {float(model.scale):g}: pass scale=",)
        if model.zero_point != promise.zero_point:
            words += (f"adds the zero point {int(model.zero_point)}: pass zero_point=",)
        if not differing(got, box.wanted(model, x)).any():
            return {"causes": words, "diagnosis": sentence(words), "unexplained": 0}
        cause, _ = cause_of(model, box, x, got)
        if cause is not None:
            words += cause.clauses
            return {"causes": words, "diagnosis": sentence(words), "unexplained": 0}
    return {}


def _saturating(
    promise: GivenScale, zero_point: Any, x: Array, got: Values, box: GivenScaleCall
) -> tuple[GivenScale, str]:
    """Return the promise with the lowest integer that came, where it is a convention, and a note about it."""
    fmt = promise.fmt
    if not isinstance(fmt, IntegerFormat) or not fmt.signed or zero_point is not None:
        return promise, ""
    symmetric = promise._replace(lowest=-fmt.highest)
    fewer = differing(got, box.wanted(symmetric, x)).sum() < differing(got, box.wanted(promise, x)).sum()
    return (symmetric, f"it saturates at {-fmt.highest}, not at {fmt.lowest}") if fewer else (promise, "")


def _noted(
    name: str, box: GivenScaleCall, x: Array, got: Values, want: Values, held: dict[str, None],
    broken: dict[str, Broken], why: str,
) -> None:  # fmt: skip
    differ = np.flatnonzero(differing(got, want))
    if not differ.size:
        held.setdefault(name, None)
        return
    at = int(differ[0])
    one = x.ravel()[at]
    bits = None if x.dtype.kind in "iu" else int(x.ravel()[[at]].view(f"u{x.itemsize}")[0])
    text = f"{why + ', ' if why else ''}first at index {at:,}"
    broken.setdefault(
        name,
        Broken(
            name, text, input_bits=bits, input=f"x = {float(one)!r}, {pasted(one)}", got=f"{got.ravel()[at]:g}",
            want=f"{want.ravel()[at]:g}", count=differ.size, of=got.size,
        ),
    )  # fmt: skip
