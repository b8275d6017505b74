"""Causes of wrong results of quantizers with a given scale."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.named import BF16, FP16
from fpsim.testing.quantizers.given_scales.calls import GivenScaleCall
from fpsim.testing.quantizers.given_scales.promise import WIDE, GivenScale, Values
from fpsim.testing.quantizers.report import explained
from fpsim.testing.quantizers.rounder import RULES, rule_words

FLOAT_RULES = ("nearest_away", "toward_zero", "up", "down")
WRAPS: dict[str, dict[str, Any]] = {
    "wraps around where it should saturate": {"wraps": "both"},
    "wraps around where it should saturate, from integers of 32 bits that saturate": {
        "wraps": "both",
        "wide": WIDE - 1,
    },
    "wraps around above its range": {"wraps": "above"},
    "wraps around below its range": {"wraps": "below"},
}
MANY = 1 << 16  # inputs that causes are tried on; those that reproduce their results are tried on all inputs


def differing(got: Values, want: Values) -> Any:
    """Return a bool mask of the results that differ between the float64 arrays `got` and `want`.

    NaN equals NaN, and -0.0 differs from 0.0.
    """
    same_sign = np.signbit(got) == np.signbit(want)
    return ~(((got == want) & same_sign) | (np.isnan(got) & np.isnan(want)))


def changes_of(promise: GivenScale) -> dict[str, dict[str, Any]]:
    """Return the known faults as {clause ("drops the sign"): {field of the model `promise`: its wrong value}}.

    They are wrong quotients, roundings, tiles, overflows, ends of the range, signs and zero points.
    """
    named: dict[str, dict[str, Any]] = {
        "multiplies by the reciprocal of the scale": {"quotient": "reciprocal"},
        "divides in float64": {"quotient": "float64"},
        "rounds quotients to FP16 first": {"quotient": FP16},
        "rounds quotients to BF16 first": {"quotient": BF16},
        "multiplies by the scale where it should divide": {"quotient": "product"},
    }
    rules = RULES if isinstance(promise.fmt, IntegerFormat) else FLOAT_RULES
    named |= {rule_words(rule, str(promise.rounding)): {"rounding": rule} for rule in rules if rule != promise.rounding}
    named |= _of_tiles(promise)
    if not isinstance(promise.fmt, IntegerFormat):
        overflows = ("saturate", "saturate_finite", "nonfinite")
        return named | {
            f"overflows as overflow={word!r} does": {"cast": {**promise.cast, "overflow": word}} for word in overflows
        }
    fmt, points = promise.fmt, promise.zero_point
    named |= WRAPS
    named |= {
        f"never gives its top code: {fmt.highest - 1} takes the place of {fmt.highest}": {"highest": fmt.highest - 1},
        "drops the sign": {"sign": "drop"},
        "turns the sign around": {"sign": "flip"},
    }
    if points.any():
        named |= {
            "adds the zero point before it rounds": {"before": True},
            "adds the zero point to x * (1 / scale) by a fused multiply-add, before it rounds": {
                "before": True,
                "quotient": "fused",
            },
            "leaves out the zero point": {"zero_point": 0 * points},
            "subtracts the zero point": {"zero_point": -points},
        }
    named |= {f"has zero points that are off by {step:+d}": {"zero_point": points + step} for step in (1, -1)}
    if fmt.signed:
        named |= {
            f"saturates at {-fmt.highest}": {"lowest": -fmt.highest},
            "gives 0 for negative values": {"lowest": 0},
        }
    return named


def _of_tiles(promise: GivenScale) -> dict[str, dict[str, Any]]:
    """Return the faults of taking another tile's scale or zero point; {} without tiles.

    The dict maps a clause ("takes scales of the tile before in its row") to changed fields of the model `promise`.
    """
    if promise.block is None or promise.scale.size == 1:
        return {}
    points = bool(promise.zero_point.ndim)
    groups = {"scales": ("scale", "zero_point") if points else ("scale",)}
    if points:
        groups |= {"scales alone": ("scale",), "zero points": ("zero_point",)}
    changes: dict[str, dict[str, Any]] = {}
    for (noun, names), (axis, along) in itertools.product(groups.items(), ((1, "row"), (0, "column"))):
        count = promise.scale.shape[axis]
        if count == 1:
            continue
        tiles = np.arange(count)
        places = {
            f"takes {noun} of the tile before in its {along}": np.roll(tiles, 1),
            f"takes {noun} of the tile after in its {along}": np.roll(tiles, -1),
            f"takes {noun} of the first tile for a whole {along}": 0 * tiles,
            f"takes {noun} of the last tile for a whole {along}": 0 * tiles + count - 1,
        }
        for words, numbers in places.items():
            changes[words] = {name: getattr(promise, name).take(numbers, axis) for name in names}
        if promise.block[axis] > 1 and noun == "scales":
            turns = {name: getattr(promise, name).take(np.arange(count * promise.block[axis]) % count, axis)
                     for name in names}  # fmt: skip
            lines = (promise.block[0], 1) if axis else (1, promise.block[1])
            changes[f"takes turns with the scales of a {along}, element by element"] = turns | {"block": lines}
    return changes


def _of_integers(x: Array) -> dict[str, dict[str, Any]]:
    """Return the faults of losing high bits of integer inputs, as `changes_of` does; {} if x has floats."""
    widths = [bits for bits in (8, 16, 32) if x.dtype.kind in "iu" and bits < 8 * x.itemsize]
    return {f"keeps {bits} bits of the input": {"input_bits": bits} for bits in widths}


def cause_of(
    promise: GivenScale, box: GivenScaleCall, x: Array, got: Values
) -> tuple[tuple[str, ...], GivenScale, int]:
    """Return (clauses on faults that explain the results `got` for x, model with them, number of others tried).

    There are one or two clauses ("drops the sign"); () if none explain the results, with `promise` as the model.
    promise: the model of the promised arithmetic. box: the quantizer.
    """
    variants = changes_of(promise) | _of_integers(x)
    if box.returns_values:
        variants["returns codes as floats, without multiplying them by the scale"] = {"decoded": False}
    few, few_got = x, got
    if promise.matrix is not None and x.size > MANY:
        rows = max(MANY // x.shape[1] // promise.matrix[0], 1) * promise.matrix[0]
        few, few_got = x[:rows], got[:rows]
    excluded = 0
    for count in (1, 2):
        for clauses in itertools.combinations(variants, count):
            changes: dict[str, Any] = functools.reduce(lambda all_, clause: all_ | variants[clause], clauses, {})
            if len(changes) < sum(len(variants[clause]) for clause in clauses):
                continue  # both change the same
            model = promise._replace(**changes)
            if not differing(few_got, box.wanted(model, few)).any() and (
                few is x or not differing(got, box.wanted(model, x)).any()
            ):
                return clauses, model, excluded
            excluded += 1
    return (), promise, excluded


def fields_of(promise: GivenScale, box: GivenScaleCall, x: Array, got: Values) -> dict[str, Any]:
    """Return the `QuantizerReport` fields that name the cause of wrong results `got` for x.

    promise: the model of the promised arithmetic. box: the quantizer. got: its results, float64 codes or values.
    """
    clauses, _, excluded = cause_of(promise, box, x, got)
    if clauses:
        return {**explained(*clauses), "excluded": excluded}
    differ = int(differing(got, box.wanted(promise, x)).sum())
    text = f"none of the {excluded:,} causes and pairs of causes that were tried explains them"
    return {"diagnosis": text, "unexplained": differ, "excluded": excluded}
