"""Check of stochastic rounding: exact values, means, independence of draws, and precision gained by averaging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.casts.cast import encode
from fpsim.errors import shown
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.testing.black_box import FunctionMisbehaved
from fpsim.testing.quantizers.black_box import CalledQuantizer
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.report import Broken, Findings, broken_at
from fpsim.testing.quantizers.rounder import taken_apart, words_of
from fpsim.testing.quantizers.stochastic.averaging import gain_of_averaging, recipe_means
from fpsim.testing.quantizers.stochastic.chance import FALSE_ALARM, detectable_bias
from fpsim.testing.quantizers.stochastic.dependence import (
    FROM_CALL_TO_CALL,
    LONG,
    OF_LAGS,
    SEEDED,
    SHAPES,
    dependence_causes,
    dependent_calls,
    dependent_elements,
    seeds_alike,
)
from fpsim.testing.quantizers.stochastic.draws import CALLS, REPEATS, cells_of, inputs_between, shares_away
from fpsim.testing.quantizers.stochastic.means import biased_mean, deciding_bits, means_in_binades, wrong_shares
from fpsim.testing.quantizers.stochastic.report import StochasticMeasurements, StochasticReport
from fpsim.testing.quantizers.stochastic.shares import Shares, causes_of
from fpsim.testing.quantizers.stochastic.source import RandomSource

FRACTIONS = (1 / 64, *(k / 16 for k in range(1, 16)), 63 / 64)
PLAIN_CAUSES = {
    "neighbours": "gives results that are neither neighbour of their input",
    "mean": "is biased",
    "averaging": "gains less from averaging than independent results do",
}  # causes named if a property is broken and no known fault explains it


def check_stochastic(
    fn: Callable[..., Any],
    fmt: FormatLike,
    *,
    x: npt.ArrayLike | None = None,
    random: str | None = None,
    raises: bool = True,
) -> StochasticReport:
    """Check that a function rounds stochastically: unbiased, to neighbours only, with independent draws.

    Args:
      fn: a function of a float32 array, as for `check_quantizer`. The check passes random numbers as a parameter called
        seed or key, rng or generator, bits or words (uint32, one per element), or u, uniform or noise (float32 in [0,
        1), one per element); fn without such a parameter must be random by itself.
      fmt: the format of its results.
      x: for a recipe with scales, an array: the means of the results of 4,096 calls with x must equal x, and no other
        inputs are checked. None for a cast, which is called with inputs between neighbouring values of the format.
      random: kind of fn's second parameter, if its name does not tell: "seed", "generator", "bits" or "uniform"; or
        "own" if fn is random by itself.
      raises: whether to raise an AssertionError if a property is broken, instead of returning the report.

    Returns:
      A `StochasticReport`, with `.ok`, `.held`, `.broken`, `.causes`, `.bits`, `.detects` (the bias that is detected
      with a probability of 99 %) and `.false_alarm`.

    Raises:
      AssertionError: a property does not hold, with the report as its text.
      ValueError: the format or `random` is unknown; x is empty, or has an Inf or a NaN; or, without x, the format has
        more than 16 bits or values that float32 cannot represent.
      TypeError: fn cannot be called.

    Example:
      >>> import fpsim as fp
      >>> def rounds(x, seed):
      ...     return fp.quantize(x, "e4m3", rounding="stochastic", seed=seed)
      >>> fp.testing.check_stochastic(rounds, "e4m3").held
      ('exact values', 'neighbours', 'mean', 'elements', 'calls', 'seeds', 'repeats', 'averaging')
    """
    __tracebackhide__ = True
    target_fmt = find_format(fmt)
    box = CalledQuantizer(fn, target_fmt)
    source = RandomSource(fn, box, random)
    findings = Findings()
    measured = StochasticMeasurements()
    try:
        properties = (
            _cast(source, target_fmt, measured) if x is None
            else recipe_means(source, _finite(x), measured)
        )  # fmt: skip
        for name, broken in properties:
            findings.record(name, broken)
    except FunctionMisbehaved as refusal:
        findings.refuse(refusal)
    causes = measured.causes or [PLAIN_CAUSES[name] for name in findings.broken if name in PLAIN_CAUSES][:1]
    fields = vars(measured) | {"notes": tuple(measured.notes), "causes": tuple(causes) if findings.broken else ()}
    report = StochasticReport(
        box.name, target_fmt, findings.names_held, tuple(findings.broken.values()), source.driven,
        false_alarm=FALSE_ALARM, covered=box.covered.coverage, **fields,
    )  # fmt: skip
    if raises and not report.ok:
        raise AssertionError(str(report))
    return report


def _finite(x: npt.ArrayLike) -> Array:
    """Return the argument x of `check_stochastic` as float32; raise a ValueError if it is empty or not finite."""
    array = np.array(x, np.float32)
    if not array.size or not np.isfinite(array).all():
        raise ValueError(f"x must be an array of one or more finite floats; got {shown(x)}.")
    return array


def _cast(source: RandomSource, fmt: Format, measured: StochasticMeasurements) -> Iterator[tuple[str, Broken | None]]:
    """Yield the properties of a cast, each with the result that breaks it, or None if it holds; fill `measured`.

    "exact values": values of the format are not changed. "neighbours": each result is one of the two values of the
    format next to its input. "mean": the share of results rounded away from zero is the input's fraction of the
    spacing. "elements", "calls", "seeds": elements of a call, two calls, and calls with two seeds do not depend on each
    other. "repeats": equal random numbers give equal results. "averaging": means of more calls are more precise. A name
    may be yielded more than once.

    Args:
      source: the cast under test; source(x, n) calls it for x with the random numbers (or seed) of number n.
      fmt: the format of its results.
      measured: receives the shares of results rounded away from zero, the detectable bias, the correct bits of means,
        the number of random bits, and the causes of broken properties.

    Raises:
      ValueError: the format has more than 16 bits, or values that float32 cannot represent.
    """
    if not FP32.holds(fmt) or fmt.bits > 16:
        raise ValueError(f"check_stochastic takes formats of up to 16 bits that float32 holds; got {fmt}.")
    moves = _exact(source, fmt)
    yield "exact values", moves
    cells = cells_of(fmt)
    x, low, high, fraction = inputs_between(cells, FRACTIONS)
    away, neighbours = shares_away(source, x, low, high)
    if not source.takes_words:
        measured.detects = detectable_bias(REPEATS * CALLS, x.size)
    measured.means = {f: float(away[fraction == f].mean()) for f in FRACTIONS if (fraction == f).any()}
    yield "neighbours", neighbours
    biased = biased_mean(source, x, away, fraction)
    yield "mean", biased
    yield from means_in_binades(source, fmt, measured)
    if biased is not None or neighbours is not None:
        odd = (encode(low, fmt) & 1).astype(np.bool_)
        shares = Shares(away, fraction, np.signbit(x), np.abs(low) < fmt.smallest_normal, odd)
        measured.causes += causes_of(shares, lambda part, share: not wrong_shares(source, part.away, share).any())
    if moves is not None:
        measured.causes.append("moves values of the format")
    measured.random_bits, measured.more_bits = deciding_bits(source, cells, fmt)
    yield from _dependence(source, cells[0], measured)
    spread = np.random.default_rng(5).uniform(1, 2, 4096) * cells[0][0]
    measured.bits, failed = gain_of_averaging(source, spread.astype(np.float32))
    yield "averaging", failed


def _dependence(
    source: RandomSource, cell: tuple[float, float], measured: StochasticMeasurements
) -> Iterator[tuple[str, Broken | None]]:
    """Yield "elements", "calls", "seeds" and "repeats", each with the result that breaks it, or None if it holds.

    "elements" and "calls": two elements of one call, and of two calls, must be rounded in the same direction in half of
    the cases, within chance. "seeds" (only if fn takes seeds): two seeds must not give equal results. "repeats" (if fn
    takes any random numbers): the same numbers must give the same results again.

    source: the quantizer. cell: two neighbouring values of the format; the inputs are halfway between them. measured:
    the record of the check. To its list `causes`, clauses are added that say what the quantizer does wrong if
    "elements", "calls" or "repeats" is broken, such as "draws random numbers other than those of its seed".
    """
    half = np.full(OF_LAGS, cell[0] + (cell[1] - cell[0]) / 2, np.float32)
    draws = [np.abs(source(half, number)) > abs(cell[0]) for number in range(8)]
    fixed = all((bits == draws[0][0]).all() for bits in draws)  # as if the share were 0 or 1
    dependence: list[str] = []
    for name, failed in (("elements", dependent_elements(source, half, draws)), ("calls", dependent_calls(draws))):
        if failed is not None and not (fixed and measured.causes):
            causes = dependence_causes(name, draws)
            # dependent elements make calls look dependent too
            dependence += [] if dependence and causes == [FROM_CALL_TO_CALL] else causes
        yield name, failed
    measured.causes += dependence
    for shape in SHAPES[1:]:
        shaped = [np.abs(source(half.reshape(shape), 8 + number)) > abs(cell[0]) for number in range(2)]
        broken = dependent_elements(source, half.reshape(shape), shaped)
        row = shape[-1]
        if (
            broken is not None
            and not (dependence or fixed)
            and all((bits[row:] == bits[:-row]).all() for bits in shaped)
        ):
            dependence = ["uses the same random numbers in each row"]
            measured.causes += dependence
        yield "elements", broken
    long = np.full(LONG, half[0])
    broken = dependent_elements(source, long, [np.abs(source(long, 8)) > abs(cell[0])])
    if broken is not None and not (dependence or fixed):
        measured.causes.append("uses the same random numbers again within a long array")
    yield "elements", broken
    if source.driven == "seed":
        yield "seeds", seeds_alike(source, half[:SEEDED], measured)
    if source.driven != "own":
        again = [source(half[:256], 3) for _ in range(2)]
        broken = None
        if (again[0].view(np.uint64) != again[1].view(np.uint64)).any():
            measured.causes.append(f"draws random numbers other than those of its {source.driven}")
            broken = Broken("repeats", "the same random numbers give other results the second time")
        yield "repeats", broken


def _exact(source: RandomSource, fmt: Format) -> Broken | None:
    """Return the broken property "exact values" if the quantizer changes a finite value of the format, else None.

    source: the quantizer, which is called with several seeds, and also with extreme random bits (such as all 0 and all
    1) if it takes random bits. fmt: the format of the results.
    """
    values = fmt.table()
    x = np.asarray(values[np.isfinite(values)], np.float32)
    want = words_of(QuantizerModel(fmt).values(taken_apart(x)))
    extremes: list[Array | None] = [None] * 4
    if source.takes_words:
        extremes += [np.full(x.shape, word, np.uint32) for word in (0, 1 << 31, (1 << 32) - 1)]
    for number, words in enumerate(extremes):
        got = words_of(source(x, number, words))
        if (got != want).any():
            at = int(np.argmax(got != want))
            return broken_at(
                "exact values", x[[at]], got[at], want[at], fmt, source.box.name, count=int((got != want).sum()),
                of=x.size, why="a value of the format moves",
            )  # fmt: skip
    return None
