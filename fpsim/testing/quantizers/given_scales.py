"""Checks quantizers whose scale is given, as ONNX's QuantizeLinear: code = saturate(round(x / scale) + zero point)."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from fpsim.arrays import Array, as_array, format_of, is_torch, without_gradient
from fpsim.casts.cast import decode, encode, quantize
from fpsim.errors import shown
from fpsim.formats.element import Element
from fpsim.formats.float_format import Format, dtype_of
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, FP16
from fpsim.formats.rounding import rounding_mode
from fpsim.testing.boundary_points import points
from fpsim.testing.coverage import CoverageRecord
from fpsim.testing.pasted import pasted
from fpsim.testing.quantizers.black_box import QuantizerMisbehaved, name_of, read
from fpsim.testing.quantizers.properties import LAYOUTS
from fpsim.testing.quantizers.report import Broken, QuantizerReport
from fpsim.testing.quantizers.rounder import RULES, rule_words
from fpsim.testing.quantizers.scales.results import is_packed, unpacked

Values = Any  # float64
LARGE = (1 << 20) + 1033  # elements
SOURCES = (np.float32, np.float16, ml_dtypes.bfloat16, *(np.dtype(f"{kind}{bits}").type for kind in ("int", "uint")
           for bits in (8, 16, 32, 64)))  # fmt: skip


class GivenScale(NamedTuple):
    """What a quantizer with a given scale does; all but the first four are what a right one does by default.

    Attributes:
      fmt: the element format.
      scale, zero_point: per tensor, or along an axis of a matrix.
      rounding: a rule of `rounder.RULES`.
      cast: overflow and subnormals of a float format.
      quotient: "float32", "reciprocal" (x * (1 / scale)), "float64", or a format that quotients are rounded to.
      lowest: the smallest integer.
      before: whether the zero point is added before rounding.
      wraps: whether integers wrap around instead of saturating.
    """

    fmt: Format | IntegerFormat
    scale: Array
    zero_point: Array
    rounding: str
    cast: dict[str, Any]
    quotient: Any = "float32"
    lowest: int = 0
    before: bool = False
    wraps: bool = False

    def codes(self, x: Array) -> Values:
        """Return integers, or values of a float format, as float64."""
        with np.errstate(all="ignore"):
            quotient = self._quotient(x)
            if isinstance(self.fmt, Format):
                rounded = encode(quotient.astype(np.float32), self.fmt, rounding=self.rounding, **self.cast)
                return np.asarray(decode(rounded, self.fmt, np.float64))
            offset = self.zero_point.astype(np.float64)
            moved = quotient.astype(np.float64)
            if self.before:
                moved = (quotient.astype(np.float32) + offset.astype(np.float32)).astype(np.float64)
            magnitude = np.abs(np.clip(moved, -(2.0**31), 2.0**31))
            whole = np.floor(magnitude)
            away = RULES[self.rounding](whole % 2 == 1, magnitude - whole, np.signbit(moved))
            integers = np.copysign(whole + away, moved) + (0 if self.before else offset)
            if self.wraps:
                return (integers - self.fmt.lowest) % (1 << self.fmt.bits) + self.fmt.lowest
            return np.clip(integers, self.lowest, self.fmt.highest)

    def _quotient(self, x: Array) -> Array:
        single = x.astype(np.float32)
        if self.quotient == "reciprocal":
            return np.asarray(single * (np.float32(1) / self.scale))
        if self.quotient == "float64":
            return np.asarray(x.astype(np.float64) / self.scale.astype(np.float64))
        divided = np.asarray(single / self.scale)
        return divided if self.quotient == "float32" else np.asarray(quantize(divided, self.quotient))


def check_given_scale(
    fn: Callable[..., Any], fmt: Element, scale: Any, zero_point: Any, source: Any, cast: dict[str, Any]
) -> QuantizerReport:
    """Return the report of `check_quantizer` with a scale.

    Raises:
      ValueError, TypeError: what cannot be asked.
    """
    promise = _promise(fmt, scale, zero_point, cast)
    dtype = np.dtype(np.float32) if source is None else dtype_of(source)
    if dtype is None or np.dtype(dtype).type not in SOURCES:
        raise ValueError(f"source must be float16, bfloat16, float32 or an integer dtype; got {shown(source)}.")
    promised = {"scale": scale, "zero_point": zero_point, "source": np.dtype(dtype).name} | cast
    promised = {name: value for name, value in promised.items() if value is not None}
    box = GivenScaleCall(fn, promise)
    x = _inputs(promise, np.dtype(dtype))
    broken: dict[str, Broken] = {}
    held: dict[str, None] = {}
    fields: dict[str, Any] = {}
    notes: list[str] = []
    try:
        got = box.call(x)
        promise, note = _saturating(promise, zero_point, x, got, box)
        notes += [note] if note else []
        want = box.wanted(promise, x)
        differ = _different(got, want)
        fields = {"differ": int(differ.sum()), "of": differ.size}
        _noted("codes", box, x, got, want, held, broken, "")
        _noted("calls", box, x, box.call(x), got, held, broken, "the second call gives another result")
        for name, other in _arrays(promise, x, () if box.tensors else tuple(LAYOUTS)):
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
        if differ.any():
            fields |= _cause(promise, box, x, got)
    except QuantizerMisbehaved as refusal:
        broken[refusal.property] = Broken(refusal.property, refusal.sentence)
    return QuantizerReport(
        name_of(fn), fmt, promised, tuple(name for name in held if name not in broken), tuple(broken.values()),
        notes=tuple(notes), covered=box.covered.coverage, **fields,
    )  # fmt: skip


def _promise(fmt: Element, scale: Any, zero_point: Any, cast: dict[str, Any]) -> GivenScale:
    if not isinstance(fmt, (Format, IntegerFormat)):
        raise ValueError(f"scale= needs an integer or float format; got {fmt}.")
    scales = np.asarray(as_array(scale, "scale"))
    if scales.dtype.kind not in "fiu" and format_of(scales.dtype) is None:
        raise TypeError(f"scale must be a positive number or an array of them; got {shown(scale)}.")
    scales = scales.astype(np.float32)
    if not (np.isfinite(scales) & (scales > 0)).all() or not scales.size or scales.ndim > 2:
        raise ValueError(
            f"scale must be positive and finite, one number, or (n, 1) or (n,) of a matrix; got {shown(scale)}."
        )
    scales = scales.reshape(()) if scales.size == 1 else scales
    zero_points = np.asarray(0 if zero_point is None else as_array(zero_point, "zero_point")).astype(np.float64)
    zero_points = zero_points.reshape(()) if zero_points.size == 1 else zero_points
    if isinstance(fmt, Format) and zero_points.any():
        raise ValueError(f"zero_point must be 0 for {fmt}, a float format; got {shown(zero_point)}. Leave it out.")
    if isinstance(fmt, IntegerFormat):
        inside = (zero_points >= fmt.lowest) & (zero_points <= fmt.highest) & (zero_points == np.rint(zero_points))
        if not inside.all():
            wanted = f"integers of {fmt}, {fmt.lowest} .. {fmt.highest}"
            raise ValueError(f"zero_point must be {wanted}; got {shown(zero_point)}.")
    if zero_points.ndim and zero_points.shape != scales.shape:
        raise ValueError(f"zero_point must have the shape of scale, {scales.shape}; got {zero_points.shape}.")
    rounding = rounding_mode(cast["rounding"]).name.lower()
    if rounding not in RULES:
        raise ValueError(f"scale= needs a deterministic rounding; got {cast['rounding']!r}.")
    overflow = cast["overflow"] or "saturate_finite"
    kept = {"overflow": overflow, "subnormals": cast["subnormals"]}
    lowest = fmt.lowest if isinstance(fmt, IntegerFormat) else 0
    return GivenScale(fmt, scales, zero_points, rounding, kept, lowest=lowest)


class GivenScaleCall:
    """Calls fn(x), fn(x, scale) or fn(x, scale, zero_point), as many as it needs, and reads codes or values."""

    def __init__(self, fn: Callable[..., Any], promise: GivenScale) -> None:
        if not callable(fn):
            raise TypeError(f"fn must be a function of an array that returns values or codes; got {shown(fn)}.")
        self.fn, self.promise = fn, promise
        self.covered = CoverageRecord()
        self.returns_values = False
        self.tensors = False
        try:
            parameters = list(inspect.signature(fn).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        needed = sum(one.kind in positional and one.default is one.empty for one in parameters)
        self.more = max(min(needed - 1, 2), 0)

    def call(self, x: Array, layout: str = "") -> Values:
        """Return integers or values of a result as float64.

        Raises:
          QuantizerMisbehaved: fn raises, writes into its input, or returns no result.
        """
        promise = self.promise
        of_points = promise.fmt.storage if isinstance(promise.fmt, IntegerFormat) else np.dtype(np.float32)
        extras = [promise.scale, np.broadcast_to(promise.zero_point.astype(of_points), promise.scale.shape).copy()]
        before = x.tobytes()
        try:
            got = self._run(x, extras[: self.more])
        except Exception as error:
            if "torch" not in sys.modules or self.tensors or x.dtype.name == "bfloat16":
                raise QuantizerMisbehaved(
                    "runs",
                    f"fn raised {type(error).__name__}: {error} on an array of {x.dtype} and shape {x.shape}.",
                    x,
                ) from error
            self.tensors = True
            return self.call(x, layout)
        if x.tobytes() != before:
            raise QuantizerMisbehaved("leaves its input alone", f"fn writes into its input of shape {x.shape}.", x)
        values = self._read(got, x)
        self.covered.note(x, layout)
        return values

    def _run(self, x: Array, extras: list[Array]) -> Any:
        with np.errstate(all="ignore"):
            if not self.tensors:
                return self.fn(x, *extras)
            torch = sys.modules["torch"]
            return self.fn(*(torch.from_numpy(np.ascontiguousarray(one)) for one in (x, *extras)))

    def _read(self, got: Any, x: Array) -> Values:
        fmt = self.promise.fmt
        if is_torch(got) and str(got.dtype) == "torch.float4_e2m1fn_x2":
            got = got.view(sys.modules["torch"].uint8)
        try:
            array = np.asarray(as_array(without_gradient(got), "the result"))
        except (TypeError, ValueError) as error:
            raise QuantizerMisbehaved("returns", f"fn must return codes or values; got {shown(got)}.", x) from error
        if is_packed(array, x.shape, fmt):
            array = unpacked(array, x.shape, fmt, high_first=False)
        if array.shape != x.shape:
            raise QuantizerMisbehaved(
                "shape", f"fn must return the shape of its input, {x.shape}; got {array.shape}.", x
            )
        integers = array.dtype.kind in "iu" or array.dtype.name in ("int4", "uint4")
        known = format_of(array.dtype)
        self.returns_values = not integers and (isinstance(fmt, IntegerFormat) or known != fmt)
        if self.returns_values:
            if known is None:
                raise QuantizerMisbehaved("dtype", f"fn must return codes of {fmt} or values; got {array.dtype}.", x)
            return array.astype(np.float64) + self._no_sign_of_zeros
        if isinstance(fmt, Format):
            return read(array, x, fmt).words.view(np.float64).reshape(x.shape)
        return array.astype(np.float64) + self._no_sign_of_zeros

    @property
    def _no_sign_of_zeros(self) -> float:
        """The summand that makes -0 +0 where codes are integers, which have one zero, and changes nothing elsewhere."""
        return 0.0 if isinstance(self.promise.fmt, IntegerFormat) else -0.0

    def wanted(self, promise: GivenScale, x: Array) -> Values:
        """Return what a promise gives, as codes or as the values that came back."""
        codes = promise.codes(x) + self._no_sign_of_zeros
        if not self.returns_values:
            return codes
        with np.errstate(all="ignore"):
            offset = promise.zero_point if isinstance(promise.fmt, IntegerFormat) else 0.0
            values = ((codes - offset).astype(np.float32) * promise.scale).astype(np.float64)
            return values + self._no_sign_of_zeros


def _inputs(promise: GivenScale, dtype: np.dtype[Any]) -> Array:
    """Return multiples of the scale at and next to ties and ends of the range, in the source's dtype."""
    rng = np.random.default_rng(0)
    fmt = promise.fmt
    if isinstance(fmt, IntegerFormat):
        ends = fmt.highest - fmt.lowest + 4
        levels = np.arange(-2 * ends, 2 * ends + 1) / 2
    else:
        finite = points(fmt).astype(np.float64)
        levels = finite[np.isfinite(finite)]
        levels = levels if levels.size <= 4096 else rng.choice(levels, 4096, replace=False)
    scales = np.atleast_1d(promise.scale).astype(np.float64)
    with np.errstate(all="ignore"):
        column = np.concatenate([levels, rng.uniform(levels.min(), levels.max(), 512)])
        if promise.scale.ndim:
            x = column[None, :] * scales if promise.scale.shape[0] > 1 and promise.scale.ndim == 2 else (
                column[:, None] * scales
            )  # fmt: skip
        else:
            x = column * scales
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            low, high = max(info.min, -(1 << 24)), min(info.max, 1 << 24)
            near = np.rint(x)[..., None] + np.array([-1, 0, 1])
            moved = near.reshape(*x.shape[:-1], -1) if promise.scale.ndim != 1 else np.moveaxis(near, -1, 0).reshape(
                -1, x.shape[-1]
            )  # fmt: skip
            return np.asarray(np.clip(moved, low, high).astype(dtype))
        single = x.astype(dtype)
        around = [single, *(_next(single, step) for step in (-2, -1, 1, 2))]
        axis = 1 if promise.scale.ndim == 2 and promise.scale.shape[0] > 1 else 0
        special = np.array([0.0, -0.0, 1e30, -1e30, np.inf, -np.inf, 1e-45, -1e-40]).astype(dtype)
        if single.ndim == 2:
            lines = single.shape[1 - axis]
            special = np.repeat(special[None, :], lines, 0) if axis else np.repeat(special[:, None], lines, 1)
        return np.concatenate([*around, special], axis)


def _next(x: Array, steps: int) -> Array:
    """Return floats so many places away from zero."""
    word = x.view(f"i{x.dtype.itemsize}")
    return np.where(x == 0, x, (word + word.dtype.type(steps)).view(x.dtype))


def _arrays(promise: GivenScale, x: Array, names: tuple[str, ...]) -> Iterator[tuple[str, Array]]:
    """Yield a large array, and the inputs in layouts of some names."""
    layouts = {name: LAYOUTS[name] for name in names}
    rng = np.random.default_rng(1)
    if not promise.scale.ndim:
        yield "large", x[rng.integers(0, x.size, LARGE)]
        few = x[: x.size // 8 * 8]
        for name, layout in layouts.items():
            yield name, layout.make(few.reshape({1: (-1,), 2: (4, -1), 3: (2, 2, -1)}[layout.axes]))
        return
    along = 1 if promise.scale.ndim == 2 and promise.scale.shape[0] > 1 else 0
    count = -(-LARGE // x.shape[1 - along])
    yield "large", x.take(rng.integers(0, x.shape[along], count), along)
    for name, layout in layouts.items():
        if layout.axes == 2:
            yield name, layout.make(x)


def _saturating(
    promise: GivenScale, zero_point: Any, x: Array, got: Values, box: GivenScaleCall
) -> tuple[GivenScale, str]:
    """Return the promise with the lowest integer that came, where it is a convention, and a note about it."""
    fmt = promise.fmt
    if not isinstance(fmt, IntegerFormat) or not fmt.signed or zero_point is not None:
        return promise, ""
    symmetric = promise._replace(lowest=-fmt.highest)
    fewer = _different(got, box.wanted(symmetric, x)).sum() < _different(got, box.wanted(promise, x)).sum()
    return (symmetric, f"it saturates at {-fmt.highest}, not at {fmt.lowest}") if fewer else (promise, "")


def _different(got: Values, want: Values) -> Any:
    same_sign = np.signbit(got) == np.signbit(want)
    return ~(((got == want) & same_sign) | (np.isnan(got) & np.isnan(want)))


def _noted(
    name: str, box: GivenScaleCall, x: Array, got: Values, want: Values, held: dict[str, None],
    broken: dict[str, Broken], why: str,
) -> None:  # fmt: skip
    differ = np.flatnonzero(_different(got, want))
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


def _variants(promise: GivenScale) -> dict[str, dict[str, Any]]:
    """Return the changes that known faults are, by clauses after "it"."""
    named: dict[str, dict[str, Any]] = {
        "multiplies by the reciprocal of the scale": {"quotient": "reciprocal"},
        "divides in float64": {"quotient": "float64"},
        "rounds quotients to FP16 first": {"quotient": FP16},
        "rounds quotients to BF16 first": {"quotient": BF16},
    }
    rules = RULES if isinstance(promise.fmt, IntegerFormat) else ("nearest_away", "toward_zero", "up", "down")
    named |= {rule_words(rule, str(promise.rounding)): {"rounding": rule} for rule in rules if rule != promise.rounding}
    if not isinstance(promise.fmt, IntegerFormat):
        overflows = ("saturate", "saturate_finite", "nonfinite")
        return named | {
            f"overflows as overflow={word!r} does": {"cast": {**promise.cast, "overflow": word}} for word in overflows
        }
    fmt, points_ = promise.fmt, promise.zero_point
    named |= {
        "wraps around where it should saturate": {"wraps": True},
        "adds the zero point before it rounds": {"before": True},
        "has zero points that are off by +1": {"zero_point": points_ + 1},
        "has zero points that are off by -1": {"zero_point": points_ - 1},
        "leaves out the zero point": {"zero_point": 0 * points_},
        "subtracts the zero point": {"zero_point": -points_},
        f"saturates at {-fmt.highest}": {"lowest": -fmt.highest},
    }
    return named


def _cause(promise: GivenScale, box: GivenScaleCall, x: Array, got: Values) -> dict[str, Any]:
    """Return the one or two faults that give all results."""
    variants = _variants(promise)
    excluded = 0
    for count in (1, 2):
        for clauses in itertools.combinations(variants, count):
            changes: dict[str, Any] = functools.reduce(lambda all_, clause: all_ | variants[clause], clauses, {})
            if len(changes) < count:
                continue
            if not _different(got, box.wanted(promise._replace(**changes), x)).any():
                whole = "all have one cause" if count == 1 else "2 causes together explain all"
                text = f"{whole}: it {'; it '.join(clauses)} (0 differ from that)"
                return {"causes": clauses, "diagnosis": text, "excluded": excluded}
            excluded += 1
    differ = int(_different(got, box.wanted(promise, x)).sum())
    return {"diagnosis": f"no cause that was tried ({math.comb(len(variants), 2):,} pairs) explains them",
            "unexplained": differ, "excluded": excluded}  # fmt: skip
