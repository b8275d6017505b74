"""Comparisons of fp.gpu's casts, arithmetic and products with the CPU's bits, and of torch's and PTX's casts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fpsim import schedules
from fpsim.casts.cast import encode
from fpsim.formats.named import BF16, E2M1, E4M3, E5M2, FP16, FP32, Format
from fpsim.gpu.hardware.tensors import parts_of
from fpsim.gpu.lab.judge import as_words
from fpsim.gpu.lab.lab import Lab, titled, unit_name
from fpsim.gpu.lab.model import Words
from fpsim.gpu.lab.report import ValidationRow, WordDifference, difference
from fpsim.lazy import public
from fpsim.matrix_units.catalogue import float_unit as find_unit
from fpsim.products.matmul import matmul
from fpsim.schedules import Schedule
from fpsim.schedules.schedule import Chain
from fpsim.testing.operands import product_operands

TARGETS: tuple[Format, ...] = (E4M3, E5M2, E2M1, FP16, BF16)
MODES: tuple[dict[str, Any], ...] = (
    {}, {"rounding": "toward_zero"}, {"rounding": "up"}, {"rounding": "odd"}, {"overflow": "saturate"},
    {"rounding": "stochastic", "seed": 7}, {"subnormals": "flush"},
)  # fmt: skip
OVERFLOWS = ("torch", "torch<2.12", "nonfinite", "saturate", "saturate_finite")  # policies that torch's casts may have
PTX_OVERFLOW = {"e4m3": "saturate", "e5m2": "saturate", "fp16": "nonfinite", "bf16": "nonfinite"}
NAMES = {"e4m3": E4M3, "e5m2": E5M2, "fp16": FP16, "bf16": BF16}


class Check(NamedTuple):
    """A comparison to run: names for the report, and a function that computes it.

    Attributes:
      part: the validation's part.
      name: the compared call.
      inputs: name of the inputs.
      run: function without arguments that compares, and returns the report row.
    """

    part: str
    name: str
    inputs: str
    run: Callable[[], ValidationRow]


def sources(lab: Lab) -> dict[str, npt.NDArray[Any]]:
    """Return {name: inputs of casts}: every float16, every bfloat16, and many float32 values.

    The float32 values, about 2**22 or, if lab.small, 2**12, are random bit patterns, ties and limits of narrow formats,
    and special values. lab: a validation's settings.
    """
    size = 1 << (12 if lab.small else 22)
    rng = np.random.default_rng([lab.seed, 32])
    patterns = rng.integers(0, 1 << 32, size // 2, np.uint32).view(np.float32)
    with np.errstate(over="ignore"):
        near = (rng.standard_normal(size // 4) * 2.0 ** rng.integers(-26, 20, size // 4)).astype(np.float32)
    ties = (rng.integers(0, 1 << 10, size // 4) * 2.0 ** rng.integers(-22, 10, size // 4)).astype(np.float32)
    limits = np.array([448, 464, 465, 480, 57344, 61440, 65504, 65520, np.inf, np.nan, 0, 2**-9, 2**-10, 2**-17], "f")
    edges = np.concatenate([limits, np.nextafter(limits, np.float32(np.inf)), np.nextafter(limits, np.float32(0))])
    every = np.arange(1 << 16, dtype=np.uint16)
    return {
        "all float16": every.view(np.float16), "all bfloat16": every.view(ml_dtypes.bfloat16),
        f"{size} float32": np.concatenate([edges, -edges, patterns, near, ties]).astype(np.float32),
    }  # fmt: skip


def casts(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of casts by PTX, torch and fp.gpu with fpsim's casts.

    PTX's casts of all 2**32 float32 values come first; they are left out if lab.small. lab: a validation's settings.
    """
    for kind in () if lab.small else NAMES:
        yield Check("casts", f"PTX cvt.rn and fp.gpu.encode, {kind}", "all 2**32 float32", partial(_sweep, lab, kind))
    label, x = list(sources(lab).items())[-1]
    for kind in NAMES:
        overflow = PTX_OVERFLOW[kind]
        best = partial(_best, lab, "ptx_cast", x, kind, (overflow, *OVERFLOWS), (overflow,))
        yield Check("casts", f"PTX cvt.rn to {kind}", label, best)
    for label, x in sources(lab).items():
        for kind in NAMES:
            best = partial(_best, lab, "torch_cast", x, kind, OVERFLOWS, OVERFLOWS[:2])
            yield Check("casts", f"torch's cast to {kind}", label, best)
    for label, x in sources(lab).items():
        for fmt in TARGETS:
            for options in MODES:
                run = partial(twin_row, lab, "encode", (x,), "integer", fmt=fmt, **options)
                yield Check("casts", titled(f"fp.gpu.encode {fmt}", options), label, run)
            run = partial(twin_row, lab, "quantize", (x,), fmt=fmt)
            yield Check("casts", f"fp.gpu.quantize {fmt}", label, run)


def _sweep(lab: Lab, kind: str) -> ValidationRow:
    """Compare PTX's conversion to a format with fp.gpu.encode for every float32; return the report row.

    lab: settings of the validation. kind: the name of the format, "e4m3", "e5m2", "fp16" or "bf16".
    """
    compared, differing, first = lab.hardware.sweep(kind)
    return row_of_difference(WordDifference(compared, differing, 0, first))


def twin_row(
    lab: Lab, name: str, operands: Sequence[Any], kind: str | None = None, **options: Any
) -> ValidationRow:  # fmt: skip
    """Compare all results of a function of fp.gpu with those of the same function on the CPU; return the report row.

    lab: settings of the validation. name: the function, such as "dot". operands, options: its arguments and keyword
    arguments. kind: format of the results in the report; None means float32 for 32-bit results and integers for others.
    """
    want = arrays_of(getattr(public(), name)(*operands, **options))
    got = lab.hardware.twin(name, *operands, **options)
    results = got if isinstance(got, tuple) else (got,)
    if len(results) != len(want):
        raise ValueError(f"the GPU gave {len(results)} arrays, and the CPU {len(want)}.")
    formats = [kind or ("fp32" if words.dtype.itemsize == 4 else "integer") for words in want]
    differences = [difference(*arrays) for arrays in zip(results, want, formats, strict=True)]
    places = [f"array {i}, " if len(want) > 1 else "" for i in range(len(want))]
    first = next((place + d.first for place, d in zip(places, differences, strict=True) if d.differing), "")
    compared, differing, other_nans = (sum(numbers) for numbers in zip(*(d[:3] for d in differences), strict=True))
    return row_of_difference(WordDifference(compared, differing, other_nans, first))


def arrays_of(result: Any) -> tuple[Words, ...]:
    """Return the results of a function as arrays of bit patterns.

    result: an array, a tuple of arrays, or a scaled array, which gives its codes, scales, scale codes, zero points and
    tensor scale, as far as they exist, and its decoded values.
    """
    return tuple(np.atleast_1d(as_words(np.asarray(part))) for part in parts_of(result))


def _best(
    lab: Lab, function: str, x: Any, kind: str, overflows: tuple[str, ...], expected: tuple[str, ...]
) -> ValidationRow:
    """Compare the hardware's cast of x with fp.encode under each overflow mode, and return the row of the closest one.

    lab: a validation's settings. function: name of the hardware's cast, "torch_cast" or "ptx_cast". kind: name of the
    format, in NAMES. overflows: the overflow modes to try. expected: those of them that the hardware is predicted to
    use.
    """
    got = getattr(lab.hardware, function)(x, kind)
    tried = [
        (overflow, difference(got, encode(x, NAMES[kind], overflow=overflow), kind))
        for overflow in dict.fromkeys(overflows)
    ]
    best = min(tried, key=lambda entry: entry[1].differing)
    rivals = sum(not d.differing for _, d in tried) - 1 if not best[1].differing else 0
    return row_of_difference(best[1], f"overflow {best[0]!r}", rivals, best[0] in expected)


def row_of_difference(of: WordDifference, model: str = "", rivals: int = 0, expected: bool = True) -> ValidationRow:
    """Return a report row for a difference; the row's part, name and inputs are "", for the caller to fill in.

    of: the difference between the hardware's and the emulator's bits. model: the model that was compared, or "".
    rivals: the number of other models with the same bits. expected: whether the model is the predicted one.
    """
    note = f"{of.other_nans} NaNs with other payloads" if of.other_nans else ""
    return ValidationRow(
        "", "", "", of.compared, of.differing, of.other_nans, of.first, model, max(rivals, 0), expected,
        note=note,
    )  # fmt: skip


OPERATIONS = {
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "remainder": 2, "minimum": 2, "maximum": 2, "fma": 3,
    "sqrt": 1, "round_to_integral": 1, "next_up": 1, "next_down": 1,
}  # fmt: skip


def arithmetic(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of fp.gpu's operations on codes, and flags, with the CPU's; lab: a validation's settings."""
    for fmt in (E4M3, E5M2, FP16, BF16, FP32):
        for name, count in OPERATIONS.items():
            modes: tuple[dict[str, Any], ...] = ({},)
            if name in ("add", "multiply", "fma", "divide") and fmt in (E4M3, FP16):
                modes = ({}, {"rounding": "toward_zero"}, {"rounding": "stochastic", "seed": 11})
            for options in modes:
                label, codes = codes_of(lab, fmt, count)
                yield Check("arithmetic", titled(f"fp.gpu.{name} {fmt}", options), label,
                            partial(_operation, lab, name, fmt, codes, options))  # fmt: skip


UNITS = ("hopper_e4m3_f32", "hopper_e5m2xe4m3_f32", "hopper_f16_f32", "hopper_bf16_f32", "hopper_mma_e4m3_f32",
         "blackwell_e4m3_f32", "ada_e4m3_f32", "volta_f16_f32", "cdna3_fp8_f32", "cdna3_f16_f32")  # fmt: skip

FP8, HALF = ("e4m3", "e4m3"), ("fp16", "fp16")
SCHEDULED: tuple[tuple[tuple[str, str], Schedule, dict[str, Any]], ...] = (
    (FP8, schedules.cublas("sm_90", split_k=4), {"alpha": 0.7, "out_fmt": "bf16"}),
    (FP8, schedules.cublas("sm_90", split_k=3, fast_accum=True), {}),
    (FP8, schedules.triton(128, max_num_imprecise_acc=96), {}),
    (HALF, schedules.cublas("sm_90", family="cutlass", split_k=2), {}),
    (HALF, schedules.cublas("sm_90", family="gemv", option=5), {}),
)  # fmt: skip

CHAINED: tuple[tuple[tuple[str, str], Schedule, dict[str, Any]], ...] = (
    (FP8, schedules.FLAT, {}), (FP8, schedules.cutlass_2xacc(64), {}),
    (HALF, schedules.cublas("sm_90", family="cutlass", stages=7), {"out_fmt": "fp16", "alpha": 0.7}),
)  # fmt: skip


def matmuls(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of fp.gpu.matmul and of chained tensor-core instructions with the CPU's fp.matmul.

    They cover matrix units that add by different rules (matrix_units/rule.py), promotions and schedules. lab: the
    settings of the validation.
    """
    shape = (16, 16, 256) if lab.small else (96, 80, 1024)
    for name in UNITS:
        unit = find_unit(name)
        kinds = [{"f16": "fp16", "fp8": "e4m3"}.get(element.name, element.name) for element in (unit.a, unit.b)]
        for label in ("normal", "wide", "special"):
            codes = product_operands(label, shape, (kinds[0], kinds[1]), lab.seed)
            for promote in (None, 128):
                call = f"fp.gpu.matmul {name}" + (f" promote {promote}" if promote else "")
                run = partial(twin_row, lab, "matmul", codes, "fp32", accumulate=name, promote=promote)
                yield Check("matmuls", call, label, run)
    for pair, schedule, more in SCHEDULED:
        codes = product_operands("wide", shape, pair, lab.seed)
        name = unit_name("hopper", pair)
        options = {"accumulate": name, "schedule": schedule, "strict": False, **more}
        run = partial(twin_row, lab, "matmul", codes, more.get("out_fmt", "fp32"), **options)
        yield Check("matmuls", f"fp.gpu.matmul {name} {schedule}", "wide", run)
    for number, (pair, schedule, more) in enumerate((*SCHEDULED, *CHAINED)):
        if not isinstance(schedule.sums, Chain) or lab.chip != "hopper":
            continue
        m, n, k = shape
        codes = product_operands("normal", (m - 7, n - 3, k - 20), pair, lab.seed + number)
        bias = np.random.default_rng([lab.seed, 9]).standard_normal(n - 3).astype(np.float32)
        options = {"accumulate": unit_name("hopper", pair), "schedule": schedule, "strict": False, "bias": bias, **more}
        run = partial(_chain_matmul, lab, more.get("out_fmt", "fp32"), codes, **options)
        yield Check("matmuls", titled(f"tensor cores by {schedule}", more), "normal, with a bias", run)


def _chain_matmul(lab: Lab, kind: str, codes: tuple[Words, Words], **options: Any) -> ValidationRow:
    """Compare fp.gpu.hardware.chain_matmul of two matrices with fp.matmul; return the report row.

    lab: a validation's settings. kind: format of the result. codes: the two matrices. options: keyword arguments of
    both functions.
    """
    want = as_words(matmul(*codes, **options))
    got = as_words(np.asarray(lab.hardware.chain_matmul(*codes, **options)))
    return row_of_difference(difference(got, want, kind))


def codes_of(lab: Lab, fmt: Format, count: int) -> tuple[str, tuple[Words, ...]]:
    """Return (label, `count` arrays of codes of the format `fmt`) as operands of an operation with `count` operands.

    For one operand of up to 16 bits, the array has every code; for two operands of 8 bits, the arrays have every pair
    of codes. Otherwise each array has 2**20 random codes, or 2**12 if lab.small. label: text, such as "all codes".
    """
    if count == 1 and fmt.bits <= 16:
        return "all codes", (np.arange(1 << fmt.bits).astype(fmt.storage),)
    if count == 2 and fmt.bits == 8:
        pairs = np.arange(1 << 16)
        return "all pairs", ((pairs >> 8).astype(fmt.storage), (pairs & 255).astype(fmt.storage))
    rng = np.random.default_rng([lab.seed, fmt.bits, count])
    size = 1 << (12 if lab.small else 20)
    codes = tuple(rng.integers(0, 1 << fmt.bits, size, np.uint64).astype(fmt.storage) for _ in range(count))
    return f"{size} random codes", codes


def _operation(lab: Lab, name: str, fmt: Format, codes: tuple[Words, ...], options: dict[str, Any]) -> ValidationRow:
    """Compare an operation of fp.gpu and its flags with the CPU's, bit by bit; return the report row.

    lab: settings of the validation. name: the function, such as "add". fmt: format of the operands `codes`. options:
    keyword arguments.
    """
    want, raised = getattr(public(), name)(*codes, fmt=fmt, flags=True, **options)
    got, flags = lab.hardware.twin(name, *codes, fmt=fmt, flags=True, **options)
    of_results = difference(got, as_words(want), "integer")
    of_flags = difference(as_words(flags), as_words(np.asarray(raised)), "integer")
    if not of_results.differing and of_flags.differing:
        return row_of_difference(of_flags._replace(first=f"flags {of_flags.first}"))
    return row_of_difference(of_results)


CHECKS = {"matmuls": matmuls, "casts": casts, "arithmetic": arithmetic}
