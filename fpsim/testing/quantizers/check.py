"""Check of a quantizer against the exact cast; it names what a wrong one does instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.arrays import FORMAT_OF, Array
from fpsim.errors import shown
from fpsim.formats.cast_options import CastOptions, FormatLike, cast_options
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.element import ElementLike, coded_element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.keywords import check_keywords, with_keywords
from fpsim.formats.rounding import Rounding
from fpsim.scaling.scaling import Scaling
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.boundary_points import further_points, points
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.arrangement import PROBED, arrangement_of, uniform_grid
from fpsim.testing.quantizers.black_box import CalledQuantizer, narrowed
from fpsim.testing.quantizers.diagnosis import changing, diagnosed
from fpsim.testing.quantizers.inputs import inputs_of, right_words, rounded_words, smallest_normal_of, source_dtype
from fpsim.testing.quantizers.model import model_of
from fpsim.testing.quantizers.properties import (
    broken_size,
    chosen,
    holds_results,
    independence,
    order_and_symmetry,
    right_values,
)
from fpsim.testing.quantizers.regions import smallest, where
from fpsim.testing.quantizers.report import (
    Broken,
    Findings,
    QuantizerReport,
    broken_at,
    explained,
    input_fields,
    keywords_of,
)
from fpsim.testing.quantizers.rounder import SplitInputs, Words, taken_apart
from fpsim.testing.quantizers.search import KnownModels, ModelSearch

LIBRARIES = ("ml_dtypes", "torch", "torch<2.12")  # overflow policies of libraries that round float64 to float32 first
SEEDED = (257, 4099)  # shape of the large matrix whose stochastic results are compared
PLACES = ("position", "batch")  # those of DEPENDENCES that say that results depend on an element's place
DEPENDENCES = ("calls", "position", "batch", "size", "layout", "dtype")  # what results must not depend on


class PromisedCast(TypedDict, total=False):
    """Keywords of the cast that `check_quantizer` expects of a quantizer; `check_quantizer` describes them."""

    rounding: str | Rounding
    overflow: str | None
    subnormals: str
    seed: int | None


DEFAULTS: PromisedCast = {"rounding": "nearest_even", "overflow": None, "subnormals": "keep", "seed": None}


@with_keywords(PromisedCast, DEFAULTS)
def check_quantizer(
    fn: Callable[..., Any],
    fmt: ElementLike,
    *,
    scaling: Scaling | str | None = None,
    scale: npt.ArrayLike | None = None,
    zero_point: npt.ArrayLike | None = None,
    block: tuple[int, int] | None = None,
    source: FormatLike | None = None,
    raises: bool = True,
    **keywords: Unpack[PromisedCast],
) -> QuantizerReport:
    """Check that a function rounds to a format, bit for bit; if not, say in one sentence what it does instead.

    The function is called with `points(fmt)` and further inputs, in several orders, shapes, layouts and dtypes.

    Args:
      fn: a function of one array, of float32 (of float64 if the format is FP32 or has values that float32 cannot
        represent), that returns an array of the same shape: values in any float dtype that holds them, an array of the
        format's own dtype, or codes as integers. It is called with NumPy arrays; if it raises on these and torch is
        loaded, with CPU tensors. JAX's functions accept NumPy arrays. Warnings of NumPy's arithmetic are silenced.
      fmt: the format, by name, dtype or object.
      rounding, overflow, subnormals: the promised cast, as in `fpsim.encode`; torch's is `**fp.policy("torch")`.
        The default of overflow is "nonfinite"; with `scaling` it is the scaling's, with `scale` "saturate_finite".
      scaling: an `fp.Scaling` or its name; fn then receives a matrix and returns an `fp.Scaled`, (codes, scales), or
        float32 values. None for a plain cast, or with a scale.
      scale: a positive number, or an array of them, (n, 1) for the rows or (n,) for the columns of matrices. fn then
        returns saturate(round(x / scale) + zero_point) as codes, which may be packed two per byte, or as values,
        (code - zero_point) * scale. Quotients and values are in float32; values may then be rounded to another dtype.
        It is called as fn(x), fn(x, scale) or fn(x, scale, zero_point), with as many arguments as it needs. An integer
        format without scale and scaling means the cast saturate(round(x)).
      zero_point: an integer, or integers of the shape of scale; 0 for float formats. None means 0, and also allows a
        symmetric range, such as -127 to 127.
      block: rows and columns of a tile of a matrix, for scales (m, n) of its tiles; with ONNX's axis=1 and
        block_size=32 it is (1, 32), with axis=0 (32, 1).
      source: the dtype of the inputs, which fn must round only once: float32, float64 or integers; with a scale,
        float16, bfloat16, float32 or integers; with `scaling` float32 alone. None means float32 (float64 if float32
        cannot represent the format's values), and in addition float64 if fn accepts it. With the overflow policies of
        ml_dtypes and torch, which round float64 to float32 first, this double rounding is only a note.
      seed: the seed of rounding="stochastic", whose results are compared bit for bit with `fpsim.encode`'s; for
        functions that take no seed, use `check_stochastic`.
      raises: whether to raise an AssertionError if a property is broken, instead of returning the report.

    Returns:
      A `QuantizerReport`, with `.ok`, `.held`, `.broken` (property, input, both codes, a line to paste), `.diagnosis`,
      `.causes`, `.excluded`, `.rivals` and `.covered` (shapes, layouts, dtypes and magnitudes of the inputs). NaNs
      equal each other, whatever their sign and payload.

    Raises:
      AssertionError: a property does not hold, with the report as its text.
      ValueError: an unknown format, an unknown value of another argument, or stochastic rounding without a seed.
      TypeError: fn cannot be called, or an argument is unknown or has a wrong type.

    Example:
      >>> import fpsim as fp, ml_dtypes
      >>> from operator import methodcaller
      >>> to_e4m3 = methodcaller("astype", ml_dtypes.float8_e4m3fn)
      >>> fp.testing.check_quantizer(to_e4m3, "e4m3", source="float32").ok
      True
      >>> wrong = fp.testing.mutants.QUANTIZERS["through_fp16"].make("e4m3")
      >>> report = fp.testing.check_quantizer(wrong, "e4m3", raises=False)
      >>> report.causes, report.unexplained
      (('rounds to FP16 first',), 0)
    """
    __tracebackhide__ = True
    check_keywords(check_quantizer, keywords, DEFAULTS)
    report: QuantizerReport
    cast: dict[str, Any] = {**DEFAULTS, **keywords}
    element = coded_element(fmt) if scaling is None else None
    if scale is not None or isinstance(element, IntegerFormat):
        from fpsim.testing.quantizers.given_scales.check import check_given_scale

        if scaling is not None:
            raise ValueError(
                "check_quantizer takes scaling= or scale=, not both. Use scale= for a scale that is given."
            )
        report = check_given_scale(fn, coded_element(fmt), scale, zero_point, block, source, cast)
    elif block is not None:
        raise ValueError(f"block needs scale=; got block={shown(block)} alone. A scaling has its own block.")
    elif zero_point is not None:
        raise ValueError("zero_point needs scale=; got a zero_point alone.")
    elif scaling is not None:
        if source is not None and dtype_of(source) != np.float32:
            raise ValueError(f"source must be float32 or None with scaling=; got {shown(source)}.")
        from fpsim.testing.quantizers.scales.check import check_scaled

        report = check_scaled(fn, fmt, scaling, **cast)
    else:
        if not isinstance(element, Format):
            raise ValueError(f"a quantizer to {element} needs a scaling; pass scaling=, such as fp.scalings.ROW.")
        overflow = "nonfinite" if cast["overflow"] is None else cast["overflow"]
        options = cast_options(element, cast["rounding"], overflow, cast["subnormals"], cast["seed"])
        dtype = None if source is None else source_dtype(source, options.fmt)
        if dtype is not None and dtype.kind in "iu":
            from fpsim.testing.quantizers.integer_sources import check_integers

            report = check_integers(fn, options, dtype)
        else:
            report = _check_cast(fn, options, dtype)
    if raises and not report.ok:
        raise AssertionError(str(report))
    return report


def _check_cast(fn: Callable[..., Any], options: CastOptions, source: Any = None) -> QuantizerReport:
    """Return the report on the quantizer fn, which claims to be the cast `options` of floats.

    source: dtype of the inputs; None for float64 if the format is FP32 or has values that float32 cannot represent,
    else for float32.
    """
    fmt, promised = options.fmt, keywords_of(options)
    box = CalledQuantizer(fn, fmt)
    x, apart, known = inputs_of(fmt, source)
    want = right_words(options, source)
    try:
        box.settle(x)
        result = box.call(x.copy())
        again = box.call(x.copy()).words
    except FunctionMisbehaved as refusal:
        return QuantizerReport(box.name, fmt, promised, (), (_refused(box, refusal),))
    got = result.words
    differ = got != want
    repeats = bool((got == again).all())
    findings = Findings()
    findings.record("leaves its input alone")
    for name, broken in right_values(box, x, apart, got, want):
        findings.record(name, broken)
    if repeats:
        _check_properties(findings, box, options, x, apart, got, want)
    fields: dict[str, Any] = {"differ": int(differ.sum()), "of": x.size}
    stochastic = options.rounding is Rounding.STOCHASTIC
    if repeats and not differ.any() and not stochastic and x.dtype == np.float32:
        fields |= _check_float64(findings, box, options, source is None and options.overflow not in LIBRARIES)
    if not repeats:
        at = int(np.argmax(got != again))
        findings.broken["calls"] = broken_at(
            "calls", x[[at]], again[at], got[at], fmt, box.name, count=int((got != again).sum()), of=x.size,
            why="fn is not deterministic: the same call gives another result the second time",
        )  # fmt: skip
        fields["diagnosis"] = f"it is not deterministic. {changing(apart, got != again, fmt, got)}"
    elif stochastic:
        fields["diagnosis"] = where(apart, differ, fmt, got) if differ.any() else ""
    elif differ.any() and (cause := arrangement_of(got, want)) is not None:
        fields |= explained(cause)
    else:
        search = ModelSearch(apart, got, FORMAT_OF[x.dtype], result.codes, known)
        grid_of_box = cache(lambda: uniform_grid(box))

        def is_uniform() -> bool:
            return fmt.exponent_bits > 2 and grid_of_box() is not None  # one bit less makes others uniform, a fault

        fields = diagnosed(search, model_of(options, smallest_normal_of(x)), want, fmt, is_uniform) | fields
        grid = grid_of_box() if differ.any() and not fields.get("causes") else None
        if grid is not None:
            text = f"it {grid}, as {PROBED:,} further inputs of each of two sizes show."
            fields |= {**explained(grid), "diagnosis": text}
    dependences = [name for name in DEPENDENCES if name in findings.broken]
    names = f"results depend on more than the value: {', '.join(dependences)}"
    if dependences and not fields["differ"] and "diagnosis" not in fields:
        fields["diagnosis"] = f"in one array all are right, but {names}"
    elif repeats and any(name in PLACES for name in dependences):  # no cause explains the results in other arrays
        fields["diagnosis"] = f"{names}. In one array, {fields['diagnosis']}"
    return findings.report(box.name, fmt, promised, box.covered, **fields)


def _check_properties(
    findings: Findings, box: CalledQuantizer, options: CastOptions, x: Array, apart: SplitInputs, got: Words,
    want: Words,
) -> None:  # fmt: skip
    """Record in `findings` whether results are monotone, symmetric, idempotent and functions of the input alone.

    Monotone: a larger input never has a smaller result. Symmetric: the result for -x is that for x, negated.
    Idempotent: quantizing a result again does not change it. Results must not depend on earlier calls, on an element's
    index, or on the array's shape, size, memory layout or dtype. For stochastic rounding only the results of a large
    array are compared with the right ones.

    box: the quantizer. options: the promised cast. x: the inputs, floats. apart: x split into signs and magnitudes.
    got, want: the results for x and the right ones, as uint64 bit patterns of float64.
    """
    try:
        if options.rounding is Rounding.STOCHASTIC:
            values = np.resize(chosen(x), SEEDED)
            large, right = box.call(values, new_values=False).words, rounded_words(values, options).ravel()
            findings.record("size", broken_size(box, values, large, right))
            return
        model = model_of(options, smallest_normal_of(x))
        for name, broken in order_and_symmetry(box, x, apart, got, want, model):
            findings.record(name, broken)
        for name, broken, note in independence(box, x):
            if note:
                findings.note(note)
            if broken is not None or not note:
                findings.record(name, broken)
    except FunctionMisbehaved as refusal:
        findings.record(refusal.rule, _refused(box, refusal))


def _check_float64(findings: Findings, box: CalledQuantizer, options: CastOptions, once: bool) -> dict[str, Any]:
    """Check float64 inputs, if fn accepts them; return the `QuantizerReport` fields on their rounding.

    Args:
      findings: the findings of the check, to which properties and notes are added.
      box: the function, whose results for all float32 inputs are right.
      options: the promised cast.
      once: whether float64 must be rounded once; else it may be rounded to float32 first.
    """
    fmt = options.fmt
    x = chosen(np.concatenate([points(fmt, np.float64), further_points(fmt, np.float64)]), 1)
    try:
        result = box.call(x.copy())
    except FunctionMisbehaved as refusal:
        if refusal.rule not in ("runs", "shape"):
            findings.record(refusal.rule, _refused(box, refusal))
        return {}
    if not holds_results(fmt, result):
        return {}
    apart = taken_apart(x)
    right = model_of(options, smallest_normal_of(x))
    want = right.run(apart)
    differ = result.words != want
    if not differ.any():
        return {}
    with np.errstate(all="ignore"):
        narrow = x.astype(np.float32)
    if not once and (result.words == model_of(options).run(taken_apart(narrow))).all():
        changed = int(differ.sum())
        findings.note(f"float64 is rounded to float32 first, which changes {changed:,} of {x.size:,} results")
        return {}
    at = smallest(apart, differ)
    broken = broken_at(
        "dtype", x[[at]], result.words[at], want[at], fmt, box.name, count=int(differ.sum()), of=x.size,
        why="float64 inputs are not rounded once",
    )  # fmt: skip
    findings.record("dtype", broken)
    search = ModelSearch(apart, result.words, FORMAT_OF[x.dtype], result.codes, KnownModels(apart))
    fields = diagnosed(search, right, want, fmt)
    text = f"float32 inputs are rounded right; of float64 inputs, {differ.sum():,} are not, and {fields['diagnosis']}"
    fields["diagnosis"] = text
    return {name: fields[name] for name in ("diagnosis", "causes", "unexplained") if name in fields}


def _refused(box: CalledQuantizer, refusal: FunctionMisbehaved) -> Broken:
    """Return the broken property for a rule that a function broke, such as "dtype", with an input that shows it.

    If the function raised or wrote into its input, the input is cut by halving to a part that still shows it, such as a
    single value. box: the function. refusal: the exception that names the rule and the input.
    """
    x = refusal.inputs
    if x is None or not x.size:
        return Broken(refusal.rule, refusal.sentence)
    if refusal.rule in ("runs", "leaves its input alone") and x.size > 1:
        x = narrowed(box.call, x.ravel())
    if x.size > 1:
        return Broken(refusal.rule, refusal.sentence, paste=f"{box.name}({pasted(np.zeros_like(x))})")
    fields = input_fields(x.ravel())
    why = f"{refusal.sentence} The smallest input that shows it: {fields['input']}."
    return Broken(refusal.rule, why, fields["input_bits"], paste=f"{box.name}({pasted(x.ravel())})")
