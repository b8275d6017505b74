"""The promise of a kernel: operands, arithmetic, epilogue and result format, and the bits that follow from these."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypedDict

import numpy as np

from fpsim.arrays import Array, words
from fpsim.casts.cast import decode, encode
from fpsim.errors import require_integer, require_kind, require_word, shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import DTYPES, Format
from fpsim.formats.keywords import with_keywords
from fpsim.formats.named import FP32, FP64, TF32, format_argument
from fpsim.matrix_units.catalogue import named_unit
from fpsim.matrix_units.matrix_unit import ELEMENTS, Element, MatrixUnit, Rule
from fpsim.probe.model import Model
from fpsim.probe.operands import ProbedOperand, operand_of
from fpsim.products.backend import output_overflow
from fpsim.products.cpu import Cpu
from fpsim.products.epilogue import Finish, finished
from fpsim.products.matmul import matmul
from fpsim.runtime.general_loops import general_loops
from fpsim.schedules.libraries.cutlass import cutlass_2xacc
from fpsim.schedules.schedule import FLAT, Chain, Epilogue, Schedule
from fpsim.schedules.written import no_schedule
from fpsim.sums.accumulators import Accumulator

SCALES = ("", "tensor", "row", "1x128", "128x128", "block")
BLOCK = 128  # terms, rows and columns that share a scale of "1x128" and "128x128"
NARROW_MERGES = ("output", "in_place")


class Adding(NamedTuple):
    """The arithmetic that sums products: a matrix unit or an accumulator, with or without a schedule.

    Attributes:
      how: the unit or accumulator.
      schedule: the schedule, or None to add all terms in one chain of instructions, or by the accumulator alone.
      words: name in reports, or "" for a name made of the other attributes.
      codes: whether the unit decodes the operands' codes as its own format, whatever their format is.
    """

    how: MatrixUnit | Accumulator
    schedule: Schedule | None = None
    words: str = ""
    codes: bool = False

    @property
    def name(self) -> str:
        """Name of the unit and schedule, or of the accumulator, in reports."""
        if self.words:
            return self.words
        if isinstance(self.how, Accumulator):
            return repr(self.how) if self.schedule is None else f"{self.how!r} by {self.schedule}"
        if self.schedule is None or self.schedule == FLAT:
            return f"{self.how.name} in one chain"
        return f"{self.how.name} by {self.schedule}"

    @property
    def own_format(self) -> Format:
        """Format of the sums before scales, bias and cast."""
        if isinstance(self.how, Accumulator):
            return self.how.result_format if self.schedule is None else FP32
        return self.how.d.fmt if self.schedule in (None, FLAT) else FP32


@dataclass(frozen=True, eq=False)
class KernelInputs:
    """Operands of one product, chosen to show one property of a kernel.

    Attributes:
      name: name of the kind of inputs, such as "cancelling".
      shows: the property that the results for these inputs show, as text.
      a, b: operands, (M, K) and (K, N), in the dtype of their format, or as codes if it has no dtype.
      scale_a, scale_b, bias: further arguments of the kernel; None for those that are not promised.
    """

    name: str
    shows: str
    a: Array = field(repr=False)
    b: Array = field(repr=False)
    scale_a: Array | None = field(default=None, repr=False)
    scale_b: Array | None = field(default=None, repr=False)
    bias: Array | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of the product, (M, N, K)."""
        return self.a.shape[0], self.b.shape[1], self.a.shape[1]

    @property
    def extras(self) -> list[Array]:
        """Arguments of the kernel after a and b: the promised ones of scale_a, scale_b and bias, in this order."""
        return [x for x in (self.scale_a, self.scale_b, self.bias) if x is not None]

    def __str__(self) -> str:
        m, n, k = self.shape
        return f"{self.name} {m} x {n} x {k}"


@dataclass(frozen=True, eq=False)
class Promise:
    """The promise of a kernel: validated formats, arithmetic, scales and bias from which its result bits follow.

    Attributes:
      a, b: formats of the operands, and how they are passed.
      adding: the arithmetic of sums: a unit with a schedule, an accumulator, or a model made by `fpsim.probe`.
      out: the format of results.
      scale_a, scale_b: layouts of the scales: "tensor", "row", "1x128", "128x128" or "block"; "" without scales.
      bias: whether the kernel adds a bias.
      wording: text of the arguments with which the caller described the arithmetic.
    """

    a: ProbedOperand
    b: ProbedOperand
    adding: Adding | Model
    out: Format
    scale_a: str = ""
    scale_b: str = ""
    bias: bool = False
    wording: str = ""

    @property
    def in_words(self) -> str:
        """Description of the arithmetic, with the formats of operands and results."""
        a, b = (operand.element or str(operand.fmt) for operand in (self.a, self.b))
        return f"{self.wording}, {a} by {b} to {self.out}"

    @property
    def along_k(self) -> bool:
        """True if operands have several scales along K, so that scales cannot multiply whole sums."""
        return any(scale in ("1x128", "128x128", "block") for scale in (self.scale_a, self.scale_b))

    @property
    def scaled(self) -> bool:
        """True if a or b has scales."""
        return bool(self.scale_a or self.scale_b)

    @property
    def unit(self) -> MatrixUnit | None:
        """The matrix unit that the kernel promises, or None for accumulators and probed models."""
        how = self.adding.how if isinstance(self.adding, Adding) else None
        return how if isinstance(how, MatrixUnit) else None

    @property
    def chain(self) -> MatrixUnit | None:
        """The promised matrix unit; for an accumulator with a schedule, a unit that adds one term a step.

        None for accumulators without a schedule and for probed models.
        """
        adding = self.adding
        if isinstance(adding, Model) or isinstance(adding.how, MatrixUnit) or adding.schedule is None:
            return self.unit
        left, right = (Element(str(operand.fmt), operand.fmt, operand.fmt) for operand in (self.a, self.b))
        bits = min(adding.how.result_format.mantissa_bits, FP32.mantissa_bits)
        unit = MatrixUnit("fused_multiply_add", "", left, right, ELEMENTS["f32"], Rule.EXACT, 1, evidence="hardware")
        return replace(unit, name=repr(adding.how), result_bits=bits)

    def bits(self, x: KernelInputs) -> Array:
        """Return the promised results as unsigned integers, (M, N): codes of the result format `self.out`.

        Every NaN has the format's canonical NaN code. x: the operands, with any scales and bias.
        """
        if isinstance(self.adding, Model):
            result = self.adding.matmul(x.a, x.b)
            return canonical(words(np.ascontiguousarray(result)), self.out)
        return codes_of(product(self, x, self.adding, self.out), self.out)


class KernelKeywords(TypedDict, total=False):
    """The keywords that `check_kernel` and `discriminating_inputs` share; `check_kernel` describes them."""

    schedule: Schedule | None
    promote: int | None
    shapes: Sequence[tuple[int, int, int]] | None
    out_fmt: FormatLike | None
    scale_a: str | None
    scale_b: str | None
    bias: bool
    seed: int


DEFAULTS: KernelKeywords = {
    "schedule": None, "promote": None, "shapes": None, "out_fmt": None, "scale_a": None, "scale_b": None, "bias": False,
    "seed": 0,
}  # fmt: skip
with_kernel_keywords = with_keywords(KernelKeywords, DEFAULTS, last=True)


def promise_of(
    a: Any, b: Any, accumulate: Any, schedule: Schedule | None = None, promote: int | None = None,
    out_fmt: Any = None, scale_a: str | None = None, scale_b: str | None = None, bias: bool = False,
) -> Promise:  # fmt: skip
    """Return the validated arithmetic that a kernel promises, for the arguments of `check_kernel` (see there).

    a, b: formats of the operands; b None for that of a. accumulate: a unit or its name, an accumulator, or a probed
    model. out_fmt: the format of results; None for that of the sums. Other arguments that are None promise nothing.

    Raises:
      TypeError, ValueError: an argument is unknown, or the unit does not accept these operands or scales.
    """
    require_kind("bias", bias, bool, "True or False")
    if promote is not None:
        require_integer("promote", promote, 1)
    left, right = operand_of(a, "a"), operand_of(a if b is None else b, "b")
    how_said = accumulate if isinstance(accumulate, str) else repr(accumulate)
    said = [accumulate.name if isinstance(accumulate, MatrixUnit) else how_said]
    said += [f"schedule={schedule}"] if schedule is not None else []
    said += [f"promote={promote}"] if promote is not None else []
    for name, word in (("scale_a", scale_a), ("scale_b", scale_b)):
        if word is not None:
            require_word(name, word, SCALES[1:])
    scales = [scale_a or "", scale_b or ""]
    if isinstance(accumulate, Model):
        more = schedule is not None or promote is not None or any(scales) or bias
        return _of_model(accumulate, left, right, more, out_fmt)
    if not isinstance(accumulate, (str, MatrixUnit, Accumulator)):
        raise TypeError(
            "accumulate must be a matrix unit, its name, an accumulator such as fp.Sequential(fp.FP32), or a model of "
            f"fp.probe.matmul; got {shown(accumulate)}."
        )
    if schedule is not None and not isinstance(schedule, Schedule):
        raise no_schedule(schedule)
    how = accumulate if isinstance(accumulate, Accumulator) else named_unit("accumulate", accumulate)
    if isinstance(how, Accumulator):
        for name, value in (("promote", promote), ("scales", any(scales) or None)):
            if value is not None:
                raise ValueError(f"{name} is for matrix units; got accumulate={how!r}. Leave it out.")
        if bias:
            raise ValueError(f"bias is for matrix units; got accumulate={how!r}. Add it in a function around fn.")
        adding = Adding(how, schedule)
        own_format = adding.own_format
    else:
        for name, element, side in (("a", how.a, left), ("b", how.b, right)):
            if not takes(element, side):
                raise ValueError(f"{how.name} takes {element.name} as {name}; got {side.fmt}. Take another unit.")
        if schedule is not None and promote is not None:
            raise ValueError(f"promote is part of the schedule, {schedule}; got both. Leave promote out.")
        if (how.scale is not None) != ("block" in scales):
            wanted = "scale_a='block' and scale_b='block'" if how.scale else "no 'block' scales"
            raise ValueError(f"{how.name} wants {wanted}; got scale_a={scale_a!r} and scale_b={scale_b!r}.")
        if any(word in ("1x128", "128x128") for word in scales):
            schedule = _block_scaled(promote) if schedule is None else schedule
            if not schedule.block_scaled:
                raise ValueError(f"schedule must apply scales that change along K; got {schedule}. Take deepgemm().")
        elif promote is not None:
            schedule = cutlass_2xacc(promote)
        adding = Adding(how, schedule)
        own_format = FP32 if any(scales) or bias else adding.own_format
    out = own_format if out_fmt is None else format_argument("out_fmt", out_fmt)
    said += [f"{name}={word!r}" for name, word in zip(("scale_a", "scale_b"), scales, strict=True) if word]
    said += ["bias=True"] if bias else []
    return Promise(left, right, adding, out, scales[0], scales[1], bias, ", ".join(said))


def _block_scaled(promote: int | None) -> Schedule:
    """Return the schedule that multiplies partial sums by scales, and adds them to a float32 total.

    promote: number of terms of a partial sum; None for the 128 that share a scale, which it must divide.
    """
    interval = BLOCK if promote is None else promote
    if BLOCK % interval:
        raise ValueError(f"promote must divide the {BLOCK} terms of K that share a scale; got {interval}.")
    return Schedule(f"promote={interval}", sums=Chain(interval), epilogue=Epilogue(), block_scaled=True)


def _of_model(model: Model, a: ProbedOperand, b: ProbedOperand, more: bool, out_fmt: Any) -> Promise:
    """Return the promise of a kernel whose arithmetic is `model`, a probed matrix product of floats.

    a, b: the formats of the operands. more: whether a schedule, a promotion, scales or a bias are promised, which the
    model excludes. out_fmt: the format of results, which must be the model's; None for that.

    Raises:
      ValueError: `model` is not a usable model of a matrix product of floats, or `more` or `out_fmt` contradicts it.
    """
    if model.operands[0].integer:
        raise ValueError(
            f"accumulate must be a model of floats; got {model!r}. Compare results with its matmul instead."
        )
    if more:
        raise ValueError("a model of fp.probe has its order; got schedule, promote, scales or bias. Leave them out.")
    if model.kind != "matmul" or not model.found:
        raise ValueError(f"accumulate must be a model of fp.probe.matmul that runs; got {model!r}.")
    out = model.out if out_fmt is None else format_argument("out_fmt", out_fmt)
    if out != model.out:
        raise ValueError(f"out_fmt must be {model.out}, which the model gives; got {out}.")
    return Promise(a, b, model, out, wording=repr(model))


def takes(element: Any, operand: ProbedOperand) -> bool:
    """Return whether a unit with operands of type `element` accepts `operand`; float32 operands may be FP32 or TF32."""
    if operand.element:
        return bool(element.name == operand.element) or bool(element.fmt == operand.fmt)
    if operand.fmt in (FP32, TF32):
        return bool(element.carrier == FP32)
    return bool(element.fmt == operand.fmt)


# ---- products


def product(promise: Promise, x: KernelInputs, adding: Adding, out: Format | None) -> Array:
    """Return the product of x by the arithmetic `adding`, as `fpsim.matmul` computes it, with the promised epilogue.

    promise: the kernel's claim, for scales and bias. out: the format of the result; None for that of the sums. The
    result is an array (M, N) of that format's dtype, or of codes if it has no dtype.
    """
    how = adding.how
    a, b = (words(np.ascontiguousarray(operand)) if adding.codes else operand for operand in (x.a, x.b))
    with warnings.catch_warnings(), np.errstate(all="ignore"), general_loops():
        warnings.simplefilter("ignore")  # which kernels a library would take for a shape
        if isinstance(how, Accumulator):
            fmts = None if a.dtype.kind not in "iu" and b.dtype.kind not in "iu" else (promise.a.fmt, promise.b.fmt)
            if adding.schedule is not None:
                more: Any = {"schedule": adding.schedule, "out_fmt": None if out == FP32 else out, "strict": False}
                return np.asarray(matmul(a, b, accumulate=how, fmt=fmts, **more))
            result = np.asarray(matmul(a, b, accumulate=how, fmt=fmts))
            if promise.scaled or promise.bias:
                result = finish(x, float32_values(result, how.result_format))
                return result if out is None else cast(result, FP32, out)
            return result if out is None else cast(result, how.result_format, out)
        plain = adding.own_format == out and not (promise.scaled or promise.bias)
        return np.asarray(
            matmul(
                a, b, accumulate=how, schedule=adding.schedule, scale_a=x.scale_a, scale_b=x.scale_b, bias=x.bias,
                out_fmt=None if out is None or plain else out, strict=False,
            )
        )  # fmt: skip


def float32_values(results: Array, fmt: Format) -> Array:
    """Return `results`, an array of values or of codes of `fmt`, as float32 values."""
    values = decode(results, fmt, np.float64) if results.dtype.kind in "iu" else results
    with np.errstate(all="ignore"):
        return np.ascontiguousarray(values.astype(np.float32))


def finish(x: KernelInputs, sums: Array, order: str = "product", fused: bool = False) -> Array:
    """Multiply float32 sums (M, N) by the scales of the inputs x, add the bias of x, and return float32 results.

    order: "product" multiplies by scale_a * scale_b, "a_first" by scale_a and then by scale_b, "b_first" the other way
    round. fused: whether the bias is added by a fused multiply-add with the last scale.
    """
    of = Finish(x.scale_a, x.scale_b, order, bias=x.bias)
    with np.errstate(all="ignore"):
        return np.asarray(finished(sums.copy(), Epilogue(fused_bias=fused), of, Cpu()), np.float32)


def cast(
    values_in: Array, source: Format, out: Format, rounding: str = "nearest_even", overflow: str | None = None,
    subnormals: str = "keep",
) -> Array:  # fmt: skip
    """Return `values_in`, float values or codes of `source`, as codes of `out`.

    rounding, overflow, subnormals: as for `fpsim.encode`; overflow=None means what `fpsim.matmul` does with results,
    "saturate" in formats of up to 8 bits and "nonfinite" in others.
    """
    overflow = output_overflow(out) if overflow is None else overflow
    values = decode(values_in, source, np.float64) if values_in.dtype.kind in "iu" else values_in.astype(np.float64)
    if out == FP64:
        return values.view(np.uint64)
    return encode(values, out, rounding=rounding, overflow=overflow, subnormals=subnormals)


def codes_of(results: Array, fmt: Format) -> Array:
    """Return `results`, an array of values in the dtype of `fmt` or of codes, as codes with one code for all NaNs."""
    results = np.ascontiguousarray(results)
    return canonical(results if results.dtype.kind in "iu" else words(results), fmt)


def canonical(codes: Array, fmt: Format) -> Array:
    """Return codes of `fmt` with every NaN replaced by the canonical NaN of the format."""
    if fmt.nan_code is None:
        return codes
    nan = np.isnan(values_of(codes, fmt))
    return np.where(nan, codes.dtype.type(fmt.nan_code), codes) if nan.any() else codes


def values_of(codes: Array, fmt: Format) -> Array:
    """Return the values of codes of `fmt` as float64."""
    dtype = DTYPES.get(fmt)
    with np.errstate(all="ignore"):
        if dtype is not None and dtype.kind == "f" and dtype.itemsize == codes.dtype.itemsize:
            return np.asarray(codes.view(dtype).astype(np.float64))
        return np.asarray(decode(codes, fmt, np.float64))


def operand_values(x: Array, operand: ProbedOperand) -> Array:
    """Return the float64 values of `x`, an array of values or of codes in the format of `operand`."""
    if x.dtype.kind in "iu":
        return operand.values(x)
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(np.float64))
