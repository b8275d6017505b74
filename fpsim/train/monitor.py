"""What products lose in training: underflow, saturation and SQNR of every operand as it was multiplied."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from fpsim.formats.float_format import Format
from fpsim.scaling.scaled import Scaled
from fpsim.torch.products import Operand
from fpsim.torch.trace import ProductCall

OPERANDS = {"fprop": ("input", "weight"), "dgrad": ("output_gradient", "weight"), "wgrad": ("output_gradient", "input")}


class Figures(NamedTuple):
    """What a cast did to an operand.

    Attributes:
      underflow: share of its non-zero values that became zero.
      saturation: share of its values that became the format's largest, or beyond.
      sqnr_db: signal over noise in dB; infinite without noise, NaN without a signal or with Inf or NaN.
    """

    underflow: float
    saturation: float
    sqnr_db: float


EXACT = Figures(0.0, 0.0, math.inf)


def figures(operand: Operand) -> Figures:
    """The figures of an operand of a product.

    Example:
      >>> from fpsim.torch.products import Operand
      >>> from fpsim.train.monitor import figures
      >>> x = np.float32([[1.0, 0.0, 448.0, 2.0**-20]])
      >>> figures(Operand(x, fp.encode(x, fp.E4M3), fp.E4M3))[:2]
      (0.3333333333333333, 0.25)
    """
    if operand.fmt is None and not isinstance(operand.encoded, Scaled):
        return EXACT
    source = operand.source.astype(np.float64)
    with np.errstate(all="ignore"):
        values = operand.values.astype(np.float64)
        noise, signal = float(np.square(values - source).sum()), float(np.square(source).sum())
        ratio = signal / noise if noise else math.inf
    count = np.count_nonzero(source)
    lost = np.count_nonzero((values == 0) & (source != 0))
    usable = math.isfinite(signal) and math.isfinite(noise) and signal > 0
    sqnr = (10 * math.log10(ratio) if math.isfinite(ratio) else math.inf) if usable else math.nan
    return Figures(lost / count if count else 0.0, _saturated(operand), sqnr)


def _saturated(operand: Operand) -> float:
    """The share of codes at the format's largest magnitude, infinities and NaN included."""
    fmt: Any = operand.encoded.fmt if isinstance(operand.encoded, Scaled) else operand.fmt
    codes = operand.encoded.codes if isinstance(operand.encoded, Scaled) else operand.encoded
    if not isinstance(fmt, Format) or not codes.size:
        return 0.0
    return float(np.count_nonzero((codes & fmt.top_magnitude) >= fmt.max_code)) / codes.size


def rows(call: ProductCall, step: int) -> list[dict[str, Any]]:
    """A row for each operand of a product."""
    return [
        {"step": step, "layer": call.layer, "product": call.product, "operand": name, **figures(each)._asdict()}
        for name, each in zip(OPERANDS[call.product], (call.a, call.b), strict=True)
    ]


def first_overflow(calls: list[ProductCall]) -> str:
    """The first product, in the order of computing, with an Inf or NaN, in words; "" for none."""
    for call in calls:
        arrays = (call.a.source, call.b.source, call.result)
        for name, array in zip((*OPERANDS[call.product], "result"), arrays, strict=True):
            wrong = np.count_nonzero(~np.isfinite(array))
            if wrong:
                return f"{call.layer}, {call.product}: {wrong} of {array.size} values of its {name} are Inf or NaN"
    return ""
