"""Checks a quantizer against the exact cast, and names what it does instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from fpsim.arrays import FORMAT_OF, Array, distinct, words
from fpsim.casts.cast import decode, encode
from fpsim.errors import shown
from fpsim.formats.cast_options import CastOptions, FormatLike, cast_options
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.element import element_format
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.formats.rounding import Rounding
from fpsim.scaling.scaled import Scaled
from fpsim.scaling.scaling import Scaling
from fpsim.testing.boundary_points import further_points, points
from fpsim.testing.quantizers.arrangement import PROBED, arrangement_of, arrangements, uniform_grid
from fpsim.testing.quantizers.black_box import CalledQuantizer, QuantizerMisbehaved, narrowed
from fpsim.testing.quantizers.family import plain_models
from fpsim.testing.quantizers.model import QuantizerModel, model_of
from fpsim.testing.quantizers.properties import (
    beyond,
    chosen,
    classes,
    holds_results,
    independence,
    order_and_symmetry,
    wide_inputs,
)
from fpsim.testing.quantizers.regions import kinds_of, smallest, where
from fpsim.testing.quantizers.report import (
    Broken,
    QuantizerIdentity,
    QuantizerReport,
    broken_at,
    shown_input,
    shown_result,
)
from fpsim.testing.quantizers.rounder import SplitInputs, Words, taken_apart, words_of
from fpsim.testing.quantizers.search import FoundModel, KnownModels, ModelSearch

if TYPE_CHECKING:
    from fpsim.testing.quantizers.given_scales.identity import IntegerIdentity
    from fpsim.testing.quantizers.scales.identity import ScalingIdentity

LIBRARIES = ("ml_dtypes", "torch", "torch<2.12")  # overflow of libraries that round float64 to float32 first
SEEDED = (257, 4099)  # shape of the large matrix whose stochastic results are compared
FEW = 4  # results that may be wrong entries of a table
WORTH = 0.5  # share of the differences that a diagnosis has to explain to be given beside those that it does not


def check_quantizer(
    fn: Callable[..., Any],
    fmt: Any,
    *,
    rounding: str | Rounding = "nearest_even",
    overflow: str | None = None,
    subnormals: str = "keep",
    scaling: Scaling | str | None = None,
    scale: Any = None,
    zero_point: Any = None,
    block: tuple[int, int] | None = None,
    source: Any = None,
    seed: int | None = None,
    raises: bool = True,
) -> QuantizerReport:
    """Check that a function rounds to a format, bit for bit, and say in one sentence what it does where it does not.

    It is called with `points(fmt)` and further inputs, in several orders, shapes, layouts and dtypes.

    Args:
      fn: a function of one array, of float32 (float64 where float32 cannot hold the format, or is it), that returns an
        array of its shape: values in any float dtype that holds them, an array of the format's own dtype, or codes as
        integers. It is given NumPy arrays; where it raises on these and torch is loaded, CPU tensors. JAX's functions
        take NumPy arrays. Warnings of NumPy's arithmetic are silenced.
      fmt: the format, by name, dtype or object.
      rounding, overflow, subnormals: what it should do, as in `fpsim.encode`; `**fp.policy("torch")` for a library's.
        The default of overflow is "nonfinite", with a scaling that of the scaling.
      scaling: an `fp.Scaling`: fn then takes a matrix and returns an `fp.Scaled`, (codes, scales), or float32 values.
      scale: a positive number, or (n, 1) or (n,) of them for the rows or columns of matrices: fn then returns
        saturate(round(x / scale) + zero_point) as codes, which may be packed two per byte, or values, with quotients
        in float32. It is called as fn(x), fn(x, scale) or fn(x, scale, zero_point), as many as it needs.
        Without scale and scaling an integer format is cast to: saturate(round(x)).
      zero_point: integers of the shape of scale; None also allows a symmetric range, such as -127 to 127.
      block: rows and columns of a tile of a matrix, for scales (m, n) of its tiles; with ONNX's axis=1 and
        block_size=32 it is (1, 32), with axis=0 (32, 1).
      source: the dtype of the inputs, that are rounded once: float32, float64 or integers. None: float32 (float64 where
        float32 cannot hold the format), and float64 too where fn takes it, except with the overflow of ml_dtypes or
        torch, which round float64 to float32 first; that is then a note. With a scale: float16, bfloat16, float32 or
        an integer dtype.
      seed: of rounding="stochastic", whose results are compared bit for bit with `fpsim.encode`'s; without it, use
        `check_stochastic`.
      raises: False returns the report where a property is broken.

    Returns:
      A report: `.ok`, `.held`, `.broken` (property, input, both codes, a line to paste), `.diagnosis`, `.causes`,
      `.excluded`, `.rivals` and `.covered` (shapes, layouts, dtypes and magnitudes of the inputs). NaNs equal each
      other, whatever their sign and payload.

    Raises:
      AssertionError: a property does not hold, with the report as its text.
      ValueError: an unknown format or word, or stochastic rounding without a seed.
      TypeError: fn cannot be called.

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
    report: QuantizerReport
    element = element_format(fmt) if scaling is None else None
    if scale is not None or isinstance(element, IntegerFormat):
        from fpsim.testing.quantizers.given_scales.check import check_given_scale

        if scaling is not None:
            raise ValueError(
                "check_quantizer takes scaling= or scale=, not both. Use scale= for a scale that is given."
            )
        cast = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals, "seed": seed}
        report = check_given_scale(fn, element_format(fmt), scale, zero_point, block, source, cast)
    elif block is not None:
        raise ValueError(f"block needs scale=; got block={shown(block)} alone. A scaling has its own block.")
    elif scaling is not None:
        from fpsim.testing.quantizers.scales.check import check_scaled

        report = check_scaled(fn, fmt, scaling, rounding, overflow, subnormals, seed)
    else:
        if not isinstance(element, Format):
            raise ValueError(f"a quantizer to {element} needs a scaling; pass scaling=, such as fp.scalings.ROW.")
        if zero_point is not None:
            raise ValueError("zero_point needs scale=; got a zero_point alone.")
        options = cast_options(fmt, rounding, "nonfinite" if overflow is None else overflow, subnormals, seed)
        dtype = None if source is None else _source_dtype(source, options.fmt)
        if dtype is not None and dtype.kind in "iu":
            from fpsim.testing.quantizers.integer_sources import check_integers

            report = check_integers(fn, options, dtype)
        else:
            report = _checked(fn, options, dtype)
    if raises and not report.ok:
        raise AssertionError(str(report))
    return report


@overload
def identify_quantizer(fn: Callable[..., Any], fmt: IntegerFormat) -> IntegerIdentity | ScalingIdentity: ...
@overload
def identify_quantizer(fn: Callable[..., Any], fmt: FormatLike) -> QuantizerIdentity: ...
def identify_quantizer(fn: Callable[..., Any], fmt: Any) -> QuantizerIdentity | IntegerIdentity | ScalingIdentity:
    """Identify what a quantizer does: the policy that gives its results, or the nearest with what it does otherwise.

    Args:
      fn: as for `check_quantizer`.
      fmt: the format that its results are in; a float or an integer format.

    Returns:
      A record: `.rounding`, `.overflow`, `.subnormals`, `.faults`, `.intermediate`, `.exact`, `.rivals`. Of an integer
      format `.scale` and `.zero_point` are what results tell. Of a function that returns (codes, scales) or (codes,
      scales, zero points) it is that of `identify_scaling`, on matrices with ties.

    Raises:
      ValueError: an unknown format, or a function that raises, returns no results, or is not deterministic.
      TypeError: fn cannot be called.

    Example:
      >>> import fpsim as fp
      >>> from functools import partial
      >>> quantizer = partial(fp.quantize, fmt="e5m2", rounding="toward_zero", overflow="saturate")
      >>> found = fp.testing.identify_quantizer(quantizer, "e5m2")
      >>> found.rounding, found.overflow, found.is_policy
      ('toward_zero', 'saturate', True)
      >>> halves = lambda x: np.clip(np.rint(x / np.float32(0.1)) + 3, -128, 127).astype(np.int8)
      >>> found = fp.testing.identify_quantizer(halves, "int8")
      >>> round(found.scale, 6), found.zero_point, found.rounding, found.is_policy
      (0.1, 3, 'nearest_even', True)
    """
    element = element_format(fmt)
    if isinstance(element, IntegerFormat):
        return _identified_integers(fn, element)
    target_fmt = find_format(element)
    box = CalledQuantizer(fn, target_fmt)
    x, apart, known = _inputs_of(target_fmt)
    try:
        box.settle(x)
        result = box.call(x.copy())
        again = box.call(x.copy())
    except QuantizerMisbehaved as refusal:
        raise ValueError(refusal.sentence) from refusal
    if (result.words != again.words).any():
        at = int(np.argmax(result.words != again.words))
        raise ValueError(f"fn is not deterministic: {shown_input(x[at])} gave two results. Use check_stochastic.")
    search = ModelSearch(apart, result.words, FORMAT_OF[x.dtype], result.codes, known)
    plain = plain_models(target_fmt, _source_normal(x))
    start = min(plain, key=search.count)
    found = search.explain(start)
    more: str | None = None
    if found.differ:
        more, search, start, found = _placed(search, plain, start, found)
        more = more or uniform_grid(box)
    return _identity(search, plain, start, found, () if more is None else (more,))


def _identified_integers(fn: Callable[..., Any], fmt: IntegerFormat) -> IntegerIdentity | ScalingIdentity:
    """Return what a quantizer to integers does, whether its scale is fixed or it returns one."""
    from fpsim.testing.quantizers.given_scales.identity import identify_integers
    from fpsim.testing.quantizers.scales.identity import identity_on, telling_matrices

    if not callable(fn):
        raise TypeError(f"fn must be a function of an array that returns values or codes; got {shown(fn)}.")
    try:
        with np.errstate(all="ignore"):
            result = fn(np.zeros((2, 2), np.float32))
    except Exception:  # what it wants instead, such as tensors, is found out below
        result = None
    try:
        if isinstance(result, (tuple, list, Scaled)):
            return identity_on(fn, fmt, telling_matrices(fmt), {})
        return identify_integers(fn, fmt)
    except QuantizerMisbehaved as refusal:
        raise ValueError(refusal.sentence) from refusal


def _placed(
    search: ModelSearch, plain: dict[QuantizerModel, dict[str, Any]], start: QuantizerModel, found: FoundModel
) -> tuple[str | None, ModelSearch, QuantizerModel, FoundModel]:
    """Return the order of results that makes a policy of them, in words, with that policy; else None and the rest."""
    for cause, places in arrangements(search.got.size):
        undone = search.rearranged(places)
        for model in plain:
            if undone.gives_all(model):
                return cause, undone, model, undone.explain(model)
    return None, search, start, found


def _identity(
    search: ModelSearch, plain: dict[QuantizerModel, dict[str, Any]], start: QuantizerModel, found: FoundModel,
    more: tuple[str, ...],
) -> QuantizerIdentity:  # fmt: skip
    """Return the record of a model; `more` are faults that no model of single values has."""
    faults = list(found.faults)
    whole = found.model if isinstance(found.model, QuantizerModel) else None
    for fault in found.faults if whole is not None else ():  # one that makes another policy of a policy is none
        if fault.apply(start) in plain:
            start = fault.apply(start)
            faults.remove(fault)
    keywords = plain[start]
    does = {} if whole is None or found.differ else {"rounding": whole.rounding}
    through = found.model.through
    differ = search.differing(found.model)
    return QuantizerIdentity(
        fmt=start.fmt, **{**keywords, **does}, keywords=dict(keywords),
        faults=(*more, *(fault.words for fault in faults)), intermediate=None if through is None else through.name,
        exact=found.differ == 0, differ=found.differ, of=differ.size, model=found.model, tried=found.tried,
        excluded=found.excluded, rivals=found.rivals,
        where=where(search.inputs, differ, start.fmt, search.got) if found.differ else "",
    )  # fmt: skip


def inputs_for(fmt: Format, source: Any = None) -> Array:
    """Return the inputs of a check of a format, each pattern once; source: their dtype, None for the usual one."""
    dtype: Any = source or (np.float32 if FP32.holds(fmt) and fmt != FP32 else np.float64)
    both = np.concatenate([points(fmt, dtype), further_points(fmt, dtype)])
    bits = both.view(f"u{both.itemsize}")
    first = words(np.array([np.inf, -np.inf], dtype)) + 1  # NaNs that cut bits make Inf, and arithmetic warns of
    return distinct(np.concatenate([bits, first.astype(bits.dtype)])).view(dtype)


def _source_dtype(source: Any, fmt: Format) -> np.dtype[Any]:
    """Return the dtype of inputs that a caller names.

    Raises:
      ValueError: it is neither float32, float64 nor integers, or does not hold the format.
    """
    dtype = dtype_of(source)
    if dtype is not None and np.dtype(dtype).kind in "iu" and np.dtype(dtype).itemsize <= 8 and fmt.bits <= 32:
        return np.dtype(dtype)
    if dtype is None or dtype not in (np.float32, np.float64):
        raise ValueError(f"source must be float32 or float64, or an integer dtype; got {shown(source)}.")
    if not FORMAT_OF[np.dtype(dtype)].holds(fmt):
        raise ValueError(f"source must hold {fmt}, which float32 does not; got {shown(source)}. Use float64.")
    return np.dtype(dtype)


def _source_normal(x: Array) -> float:
    return float(FORMAT_OF[x.dtype].smallest_normal)


def _right(x: Array, options: CastOptions) -> Words:
    codes = encode(
        x, options.fmt, rounding=options.rounding, overflow=options.overflow, subnormals=options.subnormals,
        seed=options.seed,
    )  # fmt: skip
    return words_of(decode(codes, options.fmt, np.float64))


@functools.lru_cache(maxsize=8)
def _inputs_of(fmt: Format, source: Any = None) -> tuple[Array, SplitInputs, KnownModels]:
    """Inputs, the same taken apart, and what is known of models with them."""
    x = inputs_for(fmt) if source is None else inputs_for(fmt, source)
    apart = taken_apart(x)
    return x, apart, KnownModels(apart)


@functools.lru_cache(maxsize=8)
def _right_of(options: CastOptions, source: Any = None) -> Words:
    """The right results of a format's inputs."""
    return _right(_inputs_of(options.fmt, source)[0], options)


def _checked(fn: Callable[..., Any], options: CastOptions, source: Any = None) -> QuantizerReport:
    fmt = options.fmt
    box = CalledQuantizer(fn, fmt)
    x, apart, known = _inputs_of(options.fmt, source)
    want = _right_of(options, source)
    words = {"rounding": options.rounding.name.lower(), "overflow": options.overflow, "subnormals": options.subnormals}
    try:
        box.settle(x)
        result = box.call(x.copy())
        twice = box.call(x.copy()).words
    except QuantizerMisbehaved as refusal:
        return QuantizerReport(box.name, fmt, words, (), (_refused(box, refusal),))
    got = result.words
    held: dict[str, None] = {"leaves its input alone": None}
    broken: dict[str, Broken] = {}
    notes: dict[str, None] = {}
    differ = got != want
    kinds = kinds_of(apart, fmt)
    for name, members in classes(apart, fmt, kinds):
        here = differ & members
        if here.any():
            at = smallest(apart, here)
            many = {"count": int(here.sum()), "of": int(members.sum())}
            broken[name] = broken_at(name, x[[at]], got[at], want[at], fmt, box.name, **many)
        elif members.any():
            held[name] = None
    same = bool((got == twice).all())
    try:
        if same and options.rounding is not Rounding.STOCHASTIC:
            right = model_of(options, _source_normal(x))
            for name, found in order_and_symmetry(box, x, apart, got, want, right):
                _note(name, found, held, broken)
            for name, found, note in independence(box, x):
                notes.update({note: None} if note else {})
                if found is not None or not note:
                    _note(name, found, held, broken)
        elif same:
            _note("size", _seeded_size(box, x, options), held, broken)
    except QuantizerMisbehaved as refusal:
        broken.setdefault(refusal.property, _refused(box, refusal))
    fields: dict[str, Any] = {"differ": int(differ.sum()), "of": x.size}
    if same and not differ.any() and options.rounding is not Rounding.STOCHASTIC and x.dtype == np.float32:
        once = source is None and options.overflow not in LIBRARIES
        fields |= _of_float64(box, options, once, broken, notes)
    if not same:
        at = int(np.argmax(got != twice))
        broken["calls"] = broken_at(
            "calls", x[[at]], twice[at], got[at], fmt, box.name, count=int((got != twice).sum()), of=x.size,
            why="fn is not deterministic: the same call gives another result the second time",
        )  # fmt: skip
        fields["diagnosis"] = f"it is not deterministic. {_changing(apart, got != twice, fmt, got)}"
    elif options.rounding is Rounding.STOCHASTIC:
        fields["diagnosis"] = "" if not differ.any() else f"{where(apart, differ, fmt, got)}"
    elif differ.any() and (cause := arrangement_of(got, want)) is not None:
        text = f"all have one cause: it {cause} (0 differ from that)."
        fields |= {"causes": (cause,), "diagnosis": text}
    else:
        search = ModelSearch(apart, got, FORMAT_OF[x.dtype], result.codes, known)
        fields = _diagnosis(search.explain(model_of(options, _source_normal(x))), search, want, fmt) | fields
        grid = uniform_grid(box) if differ.any() and not fields.get("causes") else None
        if grid is not None:
            text = f"it {grid}, as {PROBED:,} further inputs of each of two sizes show."
            fields |= {"causes": (grid,), "unexplained": 0, "diagnosis": text}
    more = [name for name in ("calls", "position", "batch", "size", "layout", "dtype") if name in broken]
    if more and not fields["differ"] and "diagnosis" not in fields:
        fields["diagnosis"] = (
            f"as one array all are right, and results depend on more than the value: {', '.join(more)}"
        )
    order = tuple(name for name in held if name not in broken)
    return QuantizerReport(
        box.name, fmt, words, order, tuple(broken.values()), notes=tuple(notes), covered=box.covered.coverage, **fields
    )  # fmt: skip


def _of_float64(
    box: CalledQuantizer, options: CastOptions, once: bool, broken: dict[str, Broken], notes: dict[str, None]
) -> dict[str, Any]:
    """Return fields of a report about float64 inputs, where the function takes these, and note what they break.

    Args:
      box, options: the function, right for all float32 inputs, and what it should do.
      once: whether float64 has to be rounded once; else it may be rounded to float32 first.
      broken, notes: of the report, which are added to.
    """
    fmt = options.fmt
    x = wide_inputs(fmt)
    try:
        result = box.call(x.copy())
    except QuantizerMisbehaved as refusal:
        if refusal.property != "runs":
            broken.setdefault(refusal.property, _refused(box, refusal))
        return {}
    if not holds_results(fmt, result):
        return {}
    apart = taken_apart(x)
    right = model_of(options, _source_normal(x))
    want = right.run(apart)
    differ = result.words != want
    if not differ.any():
        return {}
    with np.errstate(all="ignore"):
        narrow = x.astype(np.float32)
    through = model_of(options).run(taken_apart(narrow))
    if not once and (result.words == through).all():
        moved = int(((narrow.astype(np.float64) != x) & apart.finite).sum())
        notes[f"float64 is rounded to float32 first, which moves {moved:,} of {x.size:,} points"] = None
        return {}
    at = smallest(apart, differ)
    one = broken_at(
        "dtype", x[[at]], result.words[at], want[at], fmt, box.name, count=int(differ.sum()), of=x.size,
        why="float64 inputs are not rounded once",
    )  # fmt: skip
    broken.setdefault("dtype", one)
    search = ModelSearch(apart, result.words, FORMAT_OF[x.dtype], result.codes, KnownModels(apart))
    fields = _diagnosis(search.explain(right), search, want, fmt)
    fields["diagnosis"] = f"float32 inputs are rounded right; of float64 inputs {fields['diagnosis']}"
    return {name: fields[name] for name in ("diagnosis", "causes", "unexplained") if name in fields}


def _seeded_size(box: CalledQuantizer, x: Array, options: CastOptions) -> Broken | None:
    """Return what breaks where stochastic rounding of a large matrix differs from `fpsim.encode` with the same seed."""
    values = np.resize(chosen(x), SEEDED)
    got, want = box.call(values, new_values=False).words, _right(values, options).ravel()
    return beyond(box, values, got, want)


def _note(name: str, found: Broken | None, held: dict[str, None], broken: dict[str, Broken]) -> None:
    if found is None:
        held.setdefault(name, None)
    else:
        broken.setdefault(name, found)


def _refused(box: CalledQuantizer, refusal: QuantizerMisbehaved) -> Broken:
    """A property that a misbehaved function breaks, with the smallest input that shows it."""
    x = refusal.inputs
    if x is None or not x.size:
        return Broken(refusal.property, refusal.sentence)
    if refusal.property in ("runs", "leaves its input alone") and x.size > 1:
        x = narrowed(box.call, x.ravel())
    if x.size > 1:
        return Broken(refusal.property, refusal.sentence, paste=f"{box.name}(np.zeros({x.shape}, np.{x.dtype.name}))")
    shown_at = broken_at(refusal.property, x.ravel(), np.uint64(0), np.uint64(0), box.fmt, box.name)
    return Broken(
        refusal.property, f"{refusal.sentence} The smallest input that shows it: {shown_at.input}.",
        input_bits=shown_at.input_bits, paste=shown_at.paste,
    )  # fmt: skip


def _changing(apart: SplitInputs, differ: Any, fmt: Format, got: Words) -> str:
    """Return in words where results change from call to call, and whether that looks like stochastic rounding."""
    text = where(apart, differ, fmt, got)
    if text.endswith("neighbours of its input.") and "values of the format" not in text:
        return f"Values of the format stay, and others go to either neighbour, as in stochastic rounding. {text}"
    return text


def _diagnosis(found: FoundModel, search: ModelSearch, want: Words, fmt: Format) -> dict[str, Any]:
    differ = search.got != want
    count = int(differ.sum())
    faults = tuple(fault.words for fault in found.faults)
    fields: dict[str, Any] = {"excluded": found.excluded, "rivals": found.rivals, "unexplained": found.differ}
    if not count:
        return fields
    if found.differ == 0:
        causes = "all have one cause" if len(faults) == 1 else f"{len(faults)} causes together explain all"
        text = f"{causes}: it {'; it '.join(faults)} (0 differ from that). {_others(found)}".rstrip()
        return {**fields, "causes": faults, "diagnosis": text}
    entries = _entries(search.got, want, fmt)
    if entries:
        text = f"after rounding it {'; it '.join(entries)}"
        return {**fields, "causes": entries, "unexplained": 0, "diagnosis": text}
    left = search.differing(found.model)
    if found.differ <= (1 - WORTH) * count:
        text = (
            f"no cause that was tried ({found.tried:,}) explains all. Nearest: it {'; it '.join(faults)} "
            f"({found.differ:,} differ from that). {where(search.inputs, left, fmt, search.got)}"
        )
        return {**fields, "diagnosis": text}
    text = f"no cause that was tried ({found.tried:,}) explains them. {where(search.inputs, differ, fmt, search.got)}"
    return {**fields, "unexplained": count, "diagnosis": text}


def _entries(got: Words, want: Words, fmt: Format) -> tuple[str, ...]:
    """Return clauses on a few right results that always become others, as a wrong entry of a table makes them."""
    changed = distinct(want[got != want])
    if changed.size > FEW:
        return ()
    results = [distinct(got[want == one]) for one in changed]
    if any(one.size > 1 for one in results):
        return ()
    pairs = zip(changed, results, strict=True)
    return tuple(f"gives {shown_result(one[0], fmt)} for {shown_result(right, fmt)}, always" for right, one in pairs)


def _others(found: FoundModel) -> str:
    """Other causes that explain as much."""
    if not found.rivals:
        return f"Each of {found.excluded:,} other policies and faults differs on at least one of these points."
    named = "; ".join(found.rivals[:3])
    more = f" and {len(found.rivals) - 3} more" if len(found.rivals) > 3 else ""
    return f"So would, on these points: {named}{more}; {found.excluded:,} others are excluded."
