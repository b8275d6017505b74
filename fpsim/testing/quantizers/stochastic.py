"""Checks stochastic rounding: means, exact values, independence, and what averaging gains."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arrays import Array
from fpsim.errors import require_word
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.testing.quantizers.black_box import CalledQuantizer, QuantizerMisbehaved
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.report import Broken, broken_at
from fpsim.testing.quantizers.rounder import taken_apart, words_of

FALSE_ALARM = 1e-6  # of a whole check of a right function
POWER = 0.99  # with which the bias that a report states is seen
FRACTIONS = (1 / 64, *(k / 16 for k in range(1, 16)), 63 / 64)
REPEATS, CALLS = 2048, 32  # of each fraction: elements of a call, calls
OF_LAGS = 8192  # elements of a call that asks for independence
LAGS = (1, 2, 3, 4, 7, 8, 16, 32, 64, 128)
AVERAGED = (1, 4, 16, 64)
ENOUGH = 64  # elements of an array whose mean squared error says something
OF_RECIPE = 4096  # calls on an array of the caller's
WORD_BITS = 32
DRIVEN = {
    "seed": ("seed", "key"),
    "generator": ("rng", "generator"),
    "bits": ("bits", "words", "random_words"),
    "uniform": ("u", "uniform", "noise", "rand"),
}
Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class StochasticReport:
    """What `check_stochastic` found.

    Attributes:
      ok: whether all properties hold.
      held, broken: their names, and those that do not hold.
      driven: where the randomness came from: "bits", "uniform", "seed", "generator" or "own".
      means: for each fraction of a unit the share that went away from zero, over all cells.
      bits: -1/2 log2 of the relative squared error of the mean of 1, 4, 16 and 64 calls.
      detects: the smallest bias, in units, that is seen with probability 99 %; 0 where means are exact.
      false_alarm: the probability at most that a right function is called wrong.
    """

    name: str
    fmt: Format
    held: tuple[str, ...]
    broken: tuple[Broken, ...]
    driven: str
    means: dict[float, float] = field(repr=False)
    bits: tuple[float, ...]
    detects: float
    false_alarm: float

    @property
    def ok(self) -> bool:
        """Whether all properties hold."""
        return not self.broken

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        how = "exactly, by its random bits"
        if self.driven not in ("bits", "uniform"):
            how = f"by tests that see a bias of {self.detects:.2g} units with {POWER:.0%}"
            how = f"{how}, and give a false alarm with at most {self.false_alarm:.0e}"
        does = "rounds" if self.ok else "does not round"
        lines = [f"{self.name} {does} stochastically to {self.fmt}; checked {how}."]
        lines += [f"  {line}" for one in self.broken for line in str(one).splitlines()]
        if self.bits:
            shown_bits = ", ".join(f"{bits:.2f}" for bits in self.bits)
            lines.append(f"  mean of {', '.join(map(str, AVERAGED[: len(self.bits)]))} calls: {shown_bits} bits")
        lines.append(f"  held: {', '.join(self.held) or 'nothing'}")
        return "\n".join(lines)


def check_stochastic(
    fn: Callable[..., Any],
    fmt: FormatLike,
    *,
    x: Any = None,
    random: str | None = None,
    raises: bool = True,
) -> StochasticReport:
    """Check that a function rounds stochastically: unbiased, to neighbours only, with independent draws.

    Args:
      fn: a function of a float32 array, as for `check_quantizer`. Where it has a parameter seed or key, rng or
        generator, bits or words (uint32, one per element) or u, uniform or noise (float32 in [0, 1), one per element),
        that drives it; else each call draws for itself.
      fmt: the format of its results.
      x: an array for a recipe with scales, which moves exact values too: then means of `fn(x)` are compared with x,
        over 4,096 calls, and what averaging gains.
      random: "seed", "generator", "bits", "uniform" or "own", where the parameter's name does not tell.
      raises: False returns the report where a property is broken.

    Returns:
      A report: `.ok`, `.held`, `.broken`, `.bits`, `.detects` (the bias that is seen with 99 %) and `.false_alarm`.

    Raises:
      AssertionError: a property does not hold, with the report as its text.
      ValueError: an unknown format or word.
      TypeError: fn cannot be called.

    Example:
      >>> import fpsim as fp
      >>> def rounds(x, seed):
      ...     return fp.quantize(x, "e4m3", rounding="stochastic", seed=seed)
      >>> fp.testing.check_stochastic(rounds, "e4m3").held
      ('exact values', 'neighbours', 'mean', 'elements', 'calls', 'repeats', 'averaging')
    """
    __tracebackhide__ = True
    target_fmt = find_format(fmt)
    box = CalledQuantizer(fn, target_fmt)
    driven = _driven(fn) if random is None else random
    require_word("random", driven, (*DRIVEN, "own"))
    source = RandomSource(fn, box, driven)
    held: dict[str, None] = {}
    broken: dict[str, Broken] = {}
    found = StochasticFindings({}, (), 0.0)
    try:
        if x is None:
            for name, failed in _cast(source, target_fmt, found):
                _note(name, failed, held, broken)
        else:
            array = np.array(x, np.float32)
            for name, failed in _recipe(source, array, found):
                _note(name, failed, held, broken)
    except QuantizerMisbehaved as refusal:
        broken[refusal.property] = Broken(refusal.property, refusal.sentence)
    report = StochasticReport(
        box.name, target_fmt, tuple(name for name in held if name not in broken), tuple(broken.values()), driven,
        found.means, found.bits, found.detects, FALSE_ALARM,
    )  # fmt: skip
    if raises and not report.ok:
        raise AssertionError(str(report))
    return report


@dataclass
class StochasticFindings:
    """What a check measures: means by fraction, bits that averaging gains, and the bias that is seen."""

    means: dict[float, float]
    bits: tuple[float, ...]
    detects: float


def _note(name: str, failed: Broken | None, held: dict[str, None], broken: dict[str, Broken]) -> None:
    if failed is None:
        held.setdefault(name, None)
    else:
        broken.setdefault(name, failed)


def _driven(fn: Callable[..., Any]) -> str:
    """What drives a function, by the names of its parameters."""
    try:
        parameters = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        return "own"
    for how, names in DRIVEN.items():
        if any(name in names for name in parameters):
            return how
    return "own"


class RandomSource:
    """A function, called with randomness number so-and-so."""

    def __init__(self, fn: Callable[..., Any], box: CalledQuantizer, driven: str) -> None:
        self.fn, self.box, self.driven = fn, box, driven
        try:
            named = list(inspect.signature(fn).parameters)
        except (TypeError, ValueError):
            named = []
        self.parameter = next((name for name in named if name in DRIVEN.get(driven, ())), None)
        if driven != "own" and self.parameter is None and len(named) > 1:
            self.parameter = named[1]
        self._settled = False

    def __call__(self, x: Array, number: int = 0, words: Array | None = None) -> Values:
        """Results, flat; `words` are random bits for a function that takes them."""
        self.box.fn = lambda inputs: self._driven_call(inputs, number, words)
        if not self._settled:
            self.box.settle(x if x.size >= 16 else np.resize(x, 16)) if words is None else self.box.call(x.copy())
            self._settled = True
        return self.box.call(x.copy()).words.view(np.float64)

    def _driven_call(self, inputs: Any, number: int, words: Array | None) -> Any:
        if self.driven == "own":
            return self.fn(inputs)
        value: Any = number
        if self.driven == "generator":
            value = self._generator(number)
        elif self.driven in ("bits", "uniform"):
            shape = tuple(inputs.shape)
            if words is None or words.shape != shape:
                words = np.random.default_rng(number).integers(0, 1 << WORD_BITS, shape, dtype=np.uint32)
            value = (
                words if self.driven == "bits" else (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
            )
            if self.box.takes == "torch":
                value = sys.modules["torch"].from_numpy(value.view(np.int32) if self.driven == "bits" else value)
        return self.fn(inputs, value) if self.parameter is None else self.fn(inputs, **{self.parameter: value})

    def _generator(self, number: int) -> Any:
        if self.box.takes == "torch":
            return sys.modules["torch"].Generator().manual_seed(number)
        return np.random.default_rng(number)


# ---- a cast


def _cells(fmt: Format) -> list[tuple[float, float]]:
    """Pairs of neighbours, smaller magnitude first: subnormal, normal, odd and even, both signs."""
    one = 1.0 if fmt.smallest_normal <= 1 <= fmt.max / 4 else fmt.smallest_normal
    unit = float(fmt.ulp(one))
    found = [(one, one + unit), (one + unit, one + 2 * unit)] if fmt.mantissa_bits else [(one, 2 * one)]
    if fmt.subnormals:
        low = fmt.smallest_subnormal
        found += [(0.0, low), (fmt.smallest_normal, fmt.smallest_normal + float(fmt.ulp(fmt.smallest_normal)))]
    if fmt.signed:
        found += [(-found[0][0], -found[0][1])]
    return found


def _cast(source: RandomSource, fmt: Format, found: StochasticFindings) -> Iterator[tuple[str, Broken | None]]:
    if not FP32.holds(fmt) or fmt.bits > 16:
        raise ValueError(f"check_stochastic takes formats of up to 16 bits that float32 holds; got {fmt}.")
    yield "exact values", _exact(source, fmt)
    cells = _cells(fmt)
    x = np.array([[low + f * (high - low) for f in FRACTIONS] for low, high in cells])
    narrow = x.astype(np.float32)
    kept = narrow.astype(np.float64) == x  # a fraction that float32 holds
    lows, highs = (np.array([cell[end] for cell in cells])[:, None] + 0 * x for end in (0, 1))
    fractions = np.array([FRACTIONS] * len(cells))
    chosen = narrow[kept]
    low, high, fraction = lows[kept], highs[kept], fractions[kept]
    if source.driven in ("bits", "uniform"):
        away, neighbours = _counted(source, chosen, low, high)
        detects = 0.0
    else:
        away, neighbours = _drawn(source, chosen, low, high)
        detects = _detectable(REPEATS * CALLS, chosen.size)
    found.detects = detects
    found.means = {f: float(away[fraction == f].mean()) for f in FRACTIONS if (fraction == f).any()}
    yield "neighbours", neighbours
    yield "mean", _means(source, chosen, away, fraction, detects)
    half = np.full(OF_LAGS, cells[0][0] + (cells[0][1] - cells[0][0]) / 2, np.float32)
    draws = [np.abs(source(half, number)) > abs(cells[0][0]) for number in range(8)]
    yield "elements", _elements(source, half, draws)
    yield "calls", _calls(source, half, draws)
    if source.driven != "own":
        again = [source(half[:256], 3) for _ in range(2)]
        same = bool((again[0].view(np.uint64) == again[1].view(np.uint64)).all())
        why = "the same randomness gives other results the second time"
        yield "repeats", None if same else Broken("repeats", why)
    spread = np.random.default_rng(5).uniform(1, 2, 4096) * cells[0][0]
    bits, failed = _averaging(source, spread.astype(np.float32))
    found.bits = bits
    yield "averaging", failed


def _exact(source: RandomSource, fmt: Format) -> Broken | None:
    """Values of the format stay, whatever is drawn."""
    values = fmt.table()
    x = np.asarray(values[np.isfinite(values)], np.float32)
    want = words_of(QuantizerModel(fmt).values(taken_apart(x)))
    extremes: list[Array | None] = [None] * 4
    if source.driven in ("bits", "uniform"):
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


def _drawn(source: RandomSource, x: Array, low: Values, high: Values) -> tuple[Values, Broken | None]:
    """The share of each element that goes away, over many draws."""
    away = np.zeros(x.size)
    bad: Broken | None = None
    for number in range(CALLS):
        got = source(np.repeat(x, REPEATS), number).reshape(x.size, REPEATS)
        bad = bad or _stray(source, x, got, low, high)
        away += (got == high[:, None]).sum(1)
    return away / (REPEATS * CALLS), bad


def _stray(source: RandomSource, x: Array, got: Values, low: Values, high: Values) -> Broken | None:
    stray = (got != low[:, None]) & (got != high[:, None])
    if not stray.any():
        return None
    at, draw = (int(i) for i in np.argwhere(stray)[0])
    return broken_at(
        "neighbours", x[[at]], words_of(got[at])[draw], words_of(low)[at], source.box.fmt, source.box.name,
        count=int(stray.sum()), of=stray.size, why="a result is neither neighbour of its input (want: one of them)",
    )  # fmt: skip


def _counted(source: RandomSource, x: Array, low: Values, high: Values) -> tuple[Values, Broken | None]:
    """The share of all random words with which each element goes away, found by halving."""
    bits = WORD_BITS if source.driven == "bits" else 24
    shift = WORD_BITS - bits

    bad: Broken | None = None

    def goes(words: Any) -> Any:
        nonlocal bad
        got = source(x, 0, (np.asarray(words, np.uint64) << np.uint64(shift)).astype(np.uint32))
        bad = bad or _stray(source, x, got[:, None], low, high)
        return got == high

    last = (1 << bits) - 1
    at_zero, at_last = goes(np.zeros(x.size)), goes(np.full(x.size, last))
    start, end = np.zeros(x.size, np.int64), np.full(x.size, last, np.int64)
    for _ in range(bits):
        middle = (start + end) // 2
        same = goes(middle) == at_zero
        start, end = (
            np.where(same & (end - start > 1), middle, start),
            np.where(same, end, np.maximum(middle, start + 1)),
        )
    first_part = end.astype(np.float64)  # words that do as word 0 does
    share = np.where(at_zero, first_part, 2.0**bits - first_part) / 2.0**bits
    share = np.where(at_zero == at_last, at_zero.astype(np.float64), share)
    grid = np.linspace(0, last, 129).astype(np.int64)  # a threshold, or something else?
    systematic = np.mean([goes(np.full(x.size, word)) for word in grid], axis=0)
    return np.where(np.abs(systematic - share) > 2 / grid.size, systematic, share), bad


def _detectable(draws: int, tests: int) -> float:
    """The smallest bias of a share that is seen with POWER."""
    from scipy.special import ndtri

    return float(-(ndtri(_level(tests) / 2) + ndtri(1 - POWER)) * math.sqrt(0.25 / draws))


def _level(tests: int) -> float:
    """The false alarm of one of so many tests, of about 8 kinds."""
    return FALSE_ALARM / (8 * tests)


def _unlikely(count: Any, of: int, share: Any, tests: int) -> Any:
    """Whether counts of independent draws are farther from their mean than chance allows."""
    from scipy.special import bdtr, bdtrc

    count, share = np.asarray(count, np.float64), np.asarray(share, np.float64)
    below, above = bdtr(count, of, share), bdtrc(count - 1, of, share)
    above = np.where(count == 0, 1.0, above)
    return np.minimum(below, above) < _level(tests) / 2


def _means(source: RandomSource, x: Array, away: Values, fraction: Values, detects: float) -> Broken | None:
    if source.driven in ("bits", "uniform"):
        wrong = away != fraction
        how = "over all random words"
    else:
        draws = REPEATS * CALLS
        wrong = _unlikely(np.round(away * draws), draws, fraction, x.size)
        how = f"of {draws:,} draws"
    if not wrong.any():
        return None if detects == 0 else _all_means(away, fraction)
    worst = int(np.argmax(np.where(wrong, np.abs(away - fraction), 0)))
    few = _random_bits(away, fraction) if source.driven in ("bits", "uniform") else ""
    one = broken_at("mean", x[[worst]], np.uint64(0), np.uint64(0), source.box.fmt, source.box.name)
    return Broken(
        "mean",
        f"it goes away from zero {away[worst]:.6g} of the time {how}, not {fraction[worst]:.6g}{few}",
        input_bits=one.input_bits, input=one.input, got=f"{away[worst]:.6g}", want=f"{fraction[worst]:.6g}",
        count=int(wrong.sum()), of=x.size,
    )  # fmt: skip


def _all_means(away: Values, fraction: Values) -> Broken | None:
    """Whether all shares together are too large or too small, which a small bias everywhere shows first."""
    from scipy.special import ndtri

    spread = math.sqrt(float((fraction * (1 - fraction)).sum()) / (REPEATS * CALLS))
    off = float((away - fraction).sum())
    if abs(off) <= -float(ndtri(_level(1) / 2)) * spread:
        return None
    why = f"over all fractions it goes away from zero {off / away.size:+.2g} more often than it should"
    return Broken("mean", f"{why}, {abs(off) / spread:.0f} standard deviations")


def _random_bits(away: Values, fraction: Values) -> str:
    """Whether the shares are the fractions cut or rounded to a few bits."""
    for bits in range(1, 7):
        scale = 2.0**bits
        if (away == np.floor(fraction * scale) / scale).all():
            return f": it compares {bits} random bits"
    return ""


def _elements(source: RandomSource, x: Array, draws: list[Any]) -> Broken | None:
    """Whether neighbours in an array draw for themselves."""
    for lag in LAGS:
        for number, bits in enumerate(draws):
            same = int((bits[lag:] == bits[:-lag]).sum())
            of = bits.size - lag
            if _unlikely(same, of, 0.5, len(LAGS) * len(draws)):
                why = f"elements {lag} apart went the same way {same:,} of {of:,} times in call {number}; want half"
                return Broken(
                    "elements", why, input=f"{source.box.name} on {x.size:,} times {x[0]!r}", count=same, of=of
                )
    return None


def _calls(source: RandomSource, x: Array, draws: list[Any]) -> Broken | None:
    """Whether calls draw anew, also where one is the other shifted."""
    pairs = [(first, first + 1) for first in range(len(draws) - 1)] + [(0, 2), (0, 4)]
    for first, second in pairs:
        for shift in (0, 1, -1, 4, -4):
            same = int((draws[first] == np.roll(draws[second], shift)).sum())
            if _unlikely(same, x.size, 0.5, 5 * len(pairs)):
                apart = f", shifted by {shift}" if shift else ""
                why = (
                    f"calls {first} and {second} went the same way {same:,} of {x.size:,} times{apart}; want about half"
                )
                return Broken("calls", why, count=same, of=x.size)
    return None


# ---- averaging, and recipes


def _averaging(source: RandomSource, x: Array) -> tuple[tuple[float, ...], Broken | None]:
    """Bits of the mean of 1, 4, 16 and 64 calls; each four-fold is worth one."""
    exact = x.astype(np.float64).ravel()
    total = np.zeros(exact.size)
    bits, done = [], 0
    for count in AVERAGED:
        while done < count:
            total += source(x, 1000 + done)
            done += 1
        error = total / count - exact
        bits.append(-0.5 * math.log2(max(float((error**2).mean() / (exact**2).mean()), 1e-300)))
    gains = np.diff(bits)
    spread = 6 * math.sqrt(2 / exact.size) / (2 * math.log(2)) * 2  # of half a log2 of a mean of squares, both ends
    if (gains < 1 - spread).any():
        worst = int(np.argmin(gains))
        why = (
            f"the mean of {AVERAGED[worst + 1]} calls gains {gains[worst]:.2f} bits on that of {AVERAGED[worst]}; "
            f"independent unbiased results gain 1 (at least {1 - spread:.2f})"
        )
        return tuple(bits), Broken("averaging", why)
    return tuple(bits), None


def _recipe(source: RandomSource, x: Array, found: StochasticFindings) -> Iterator[tuple[str, Broken | None]]:
    """The means of a recipe's results, element by element."""
    from scipy.special import ndtri

    exact = x.astype(np.float64).ravel()
    total, squares = np.zeros(exact.size), np.zeros(exact.size)
    for number in range(OF_RECIPE):
        got = source(x, number)
        total += got
        squares += (got - exact) ** 2
    mean = total / OF_RECIPE
    deviation = np.sqrt(np.maximum(squares / OF_RECIPE - (mean - exact) ** 2, 0) / OF_RECIPE)
    threshold = float(-ndtri(_level(max(exact.size, 1)) / 2)) * 1.1  # a little for distributions with tails
    wrong = np.abs(mean - exact) > np.maximum(threshold * deviation, 1e-6 * np.abs(exact))
    found.detects = float(deviation.max() * (threshold + 2.33))
    broken = None
    if wrong.any():
        worst = int(np.argmax(np.where(wrong, np.abs(mean - exact), 0)))
        place = tuple(int(i) for i in np.unravel_index(worst, x.shape))
        off = abs(mean[worst] - exact[worst]) / max(deviation[worst], 1e-300)
        why = (
            f"the mean of {OF_RECIPE:,} calls is {mean[worst]:.6g} +- {deviation[worst]:.1g} for element {place}, "
            f"which is {float(exact[worst])!r}: {off:.0f} standard errors off"
        )
        one = broken_at("mean", x.ravel()[[worst]], np.uint64(0), np.uint64(0), source.box.fmt, source.box.name)
        broken = Broken(
            "mean", why, input_bits=one.input_bits, input=one.input, got=f"{mean[worst]:.6g}",
            want=f"{exact[worst]:.6g}", count=int(wrong.sum()), of=exact.size,
        )  # fmt: skip
    yield "mean", broken
    if exact.size >= ENOUGH:
        found.bits, failed = _averaging(source, x)
        yield "averaging", failed
