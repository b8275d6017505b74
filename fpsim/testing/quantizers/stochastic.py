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
from fpsim.casts.cast import encode
from fpsim.errors import require_word
from fpsim.formats.cast_options import FormatLike
from fpsim.formats.float_format import Format
from fpsim.formats.named import FP32
from fpsim.formats.named import format as find_format
from fpsim.testing.coverage import InputCoverage
from fpsim.testing.quantizers.black_box import CalledQuantizer, QuantizerMisbehaved
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.report import Broken, broken_at
from fpsim.testing.quantizers.rounder import taken_apart, words_of
from fpsim.testing.quantizers.shares import Shares, causes_of, random_bits

FALSE_ALARM = 1e-6  # of a whole check of a right function
POWER = 0.99  # with which the bias that a report states is seen
FRACTIONS = (1 / 64, *(k / 16 for k in range(1, 16)), 63 / 64)
REPEATS, CALLS = 2048, 32  # of each fraction: elements of a call, calls
FROM_CALL_TO_CALL = "uses random numbers that depend on each other from call to call"
LADDER = 1 << 13  # elements of a call for each fraction of one bit
OF_LAGS = 8192  # elements of a call that asks for independence
LAGS = (1, 2, 3, 4, 7, 8, 16, 32, 64, 128)  # elements after which equal numbers are named
SHAPES = ((OF_LAGS,), (64, OF_LAGS // 64), (OF_LAGS // 64, 64), (4, 32, OF_LAGS // 128), (2, OF_LAGS // 2))
OVERLAP = 256  # elements that a part of an array and the same part shifted have in common at least
SEED_BITS = 63  # of seeds; more are negative numbers to many libraries
SEEDED = 256  # elements that tell the draws of two seeds apart: they agree by chance once in 2**256 times
IN_BINADES = (0.25, 0.5, 0.75)  # fractions of a unit in each binade
AVERAGED = (1, 4, 16, 64)
ENOUGH = 64  # elements of an array whose mean squared error says something
OF_RECIPE = 4096  # calls on an array of the caller's
WORD_BITS = 32
PLAIN_CAUSES = {
    "neighbours": "gives results that are neither neighbour of their input",
    "mean": "is biased",
    "averaging": "gains less from averaging than independent results do",
}  # of properties that nothing more exact explains
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
      detects_in_binades: the same for the means that are taken in every binade, with fewer draws.
      false_alarm: the probability at most that a right function is called wrong.
      covered: shapes, dtypes and magnitudes of the inputs that were rounded.
      notes: what is no fault, but good to know.
      causes: what it does otherwise, as clauses after "it"; empty where all holds, or nothing known explains it.
      random_bits: how many bits of the dropped fraction decide, which is how many random bits it compares; None with x.
      more_bits: whether it may be more: with seeds, fractions below 2**-13 are too rare to be told.
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
    detects_in_binades: float = 0.0
    covered: InputCoverage = field(default_factory=InputCoverage)
    notes: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    random_bits: int | None = None
    more_bits: bool = False

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
            if self.detects_in_binades:
                how = f"{how}, and of {self.detects_in_binades:.2g} in every binade"
            how = f"{how}, and give a false alarm with at most {self.false_alarm:.0e}"
        does = "rounds" if self.ok else "does not round"
        lines = [f"{self.name} {does} stochastically to {self.fmt}; checked {how}."]
        if self.causes:
            lines.append(f"It {'; it '.join(self.causes)}.")
        if self.random_bits is not None:
            lines.append(f"  random bits that decide: {'at least ' if self.more_bits else ''}{self.random_bits}")
        lines += [f"  {line}" for one in self.broken for line in str(one).splitlines()]
        if self.bits:
            shown_bits = ", ".join(f"{bits:.2f}" for bits in self.bits)
            lines.append(f"  mean of {', '.join(map(str, AVERAGED[: len(self.bits)]))} calls: {shown_bits} bits")
        lines.append(f"  held: {', '.join(self.held) or 'nothing'}")
        lines += [f"  covered: {self.covered}"] if self.covered.calls else []
        lines += [f"  note: {note}" for note in self.notes]
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
      ('exact values', 'neighbours', 'mean', 'elements', 'calls', 'seeds', 'repeats', 'averaging')
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
    plain = [PLAIN_CAUSES[name] for name in broken if name in PLAIN_CAUSES][:1] if not found.causes else []
    report = StochasticReport(
        box.name, target_fmt, tuple(name for name in held if name not in broken), tuple(broken.values()), driven,
        found.means, found.bits, found.detects, FALSE_ALARM, found.detects_in_binades, box.covered.coverage,
        tuple(found.notes), (*found.causes, *plain) if broken else (), found.random_bits, found.more_bits,
    )  # fmt: skip
    if raises and not report.ok:
        raise AssertionError(str(report))
    return report


@dataclass
class StochasticFindings:
    """The measurements of a check: means by fraction, bits that averaging gains, biases that are seen, and causes."""

    means: dict[float, float]
    bits: tuple[float, ...]
    detects: float
    detects_in_binades: float = 0.0
    notes: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    random_bits: int | None = None
    more_bits: bool = False


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
        return self.box.call(x.copy(), new_values=number == 0).words.view(np.float64)

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
    """Pairs of neighbours, smaller magnitude first: subnormal, normal, odd and even, the largest two, both signs."""
    one = 1.0 if fmt.smallest_normal <= 1 <= fmt.max / 4 else fmt.smallest_normal
    unit = float(fmt.ulp(one))
    found = [(one, one + unit), (one + unit, one + 2 * unit)] if fmt.mantissa_bits else [(one, 2 * one)]
    if fmt.subnormals:
        low = fmt.smallest_subnormal
        found += [(0.0, low), (fmt.smallest_normal, fmt.smallest_normal + float(fmt.ulp(fmt.smallest_normal)))]
    found += [(float(fmt.value_of(fmt.max_code - 1)), fmt.max)]
    if fmt.signed:
        found += [(-found[0][0], -found[0][1]), (-found[-1][0], -found[-1][1])]
    return list(dict.fromkeys(found))


def _binades(fmt: Format) -> list[tuple[float, float]]:
    """Return pairs of neighbours, smaller magnitude first: one in each binade of each sign, the middle one."""
    half = 1 << fmt.mantissa_bits >> 1
    starts = range(0, fmt.max_code, 1 << fmt.mantissa_bits)
    codes = [min(start + half, fmt.max_code - 1) for start in starts]
    positive = [(float(fmt.value_of(code)), float(fmt.value_of(code + 1))) for code in codes]
    return positive + [(-low, -high) for low, high in positive if fmt.signed]


def _cast(source: RandomSource, fmt: Format, found: StochasticFindings) -> Iterator[tuple[str, Broken | None]]:
    if not FP32.holds(fmt) or fmt.bits > 16:
        raise ValueError(f"check_stochastic takes formats of up to 16 bits that float32 holds; got {fmt}.")
    moves = _exact(source, fmt)
    yield "exact values", moves
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
    biased = _means(source, chosen, away, fraction, detects)
    yield "mean", biased
    yield from _every_binade(source, fmt, found)
    shares = _shares(away, fraction, chosen, low, fmt)
    if biased is not None or neighbours is not None:
        found.causes += causes_of(shares, _fitting(source.driven))
    if moves is not None:
        found.causes.append("moves values of the format")
    found.random_bits, found.more_bits = _random_bits(source, cells, fmt)
    half = np.full(OF_LAGS, cells[0][0] + (cells[0][1] - cells[0][0]) / 2, np.float32)
    draws = [np.abs(source(half, number)) > abs(cells[0][0]) for number in range(8)]
    fixed = all((bits == draws[0][0]).all() for bits in draws)  # as a share of 0 or 1 would be
    dependence: list[str] = []
    for name, failed in (("elements", _elements(source, half, draws)), ("calls", _calls(source, half, draws))):
        if failed is not None and not (fixed and found.causes):
            causes = _dependence(name, draws)
            # elements that depend on each other make calls look as if they did
            dependence += [] if dependence and causes == [FROM_CALL_TO_CALL] else causes
        yield name, failed
    found.causes += dependence
    for shape in SHAPES[1:]:
        shaped = [np.abs(source(half.reshape(shape), 8 + number)) > abs(cells[0][0]) for number in range(2)]
        yield "elements", _elements(source, half.reshape(shape), shaped)
    if source.driven == "seed":
        yield "seeds", _seeds(source, half[:SEEDED], found)
    if source.driven != "own":
        again = [source(half[:256], 3) for _ in range(2)]
        same = bool((again[0].view(np.uint64) == again[1].view(np.uint64)).all())
        why = "the same randomness gives other results the second time"
        if not same:
            found.causes.append(f"draws random numbers beside those of its {source.driven}")
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


def _every_binade(source: RandomSource, fmt: Format, found: StochasticFindings) -> Iterator[tuple[str, Broken | None]]:
    """Yield whether means hold in each binade: of a quarter, a half and three quarters of a unit."""
    cells = np.array(_binades(fmt))
    low, high = (np.repeat(cells[:, end], len(IN_BINADES)) for end in (0, 1))
    fraction = np.tile(IN_BINADES, len(cells))
    x = (low + fraction * (high - low)).astype(np.float32)
    kept = x.astype(np.float64) == low + fraction * (high - low)
    x, low, high, fraction = x[kept], low[kept], high[kept], fraction[kept]
    if source.driven in ("bits", "uniform"):
        away, stray = _counted(source, x, low, high)
        wrong = away != fraction
    else:
        away, stray = _drawn(source, x, low, high, calls=1)
        wrong = _unlikely(np.round(away * REPEATS), REPEATS, fraction, x.size)
        found.detects_in_binades = _detectable(REPEATS, x.size)
    yield "neighbours", stray
    broken = None
    if wrong.any():
        worst = int(np.argmax(np.where(wrong, np.abs(away - fraction), 0)))
        one = broken_at("mean", x[[worst]], np.uint64(0), np.uint64(0), source.box.fmt, source.box.name)
        ends = np.abs(low[wrong])
        where = f"binades from {ends.min():.6g} to {ends.max():.6g}" if ends.min() < ends.max() else f"{ends.min():.6g}"
        why = f"it goes away from zero {away[worst]:.6g} of the time, not {fraction[worst]:.6g}; wrong are {where}"
        broken = Broken(
            "mean", why, input_bits=one.input_bits, input=one.input, got=f"{away[worst]:.6g}",
            want=f"{fraction[worst]:.6g}", count=int(wrong.sum()), of=x.size,
        )  # fmt: skip
    yield "mean", broken


def _drawn(
    source: RandomSource, x: Array, low: Values, high: Values, calls: int = CALLS
) -> tuple[Values, Broken | None]:
    """The share of each element that goes away, over many draws."""
    away = np.zeros(x.size)
    bad: Broken | None = None
    for number in range(calls):
        got = source(np.repeat(x, REPEATS), number).reshape(x.size, REPEATS)
        bad = bad or _stray(source, x, got, low, high)
        away += (got == high[:, None]).sum(1)
    return away / (REPEATS * calls), bad


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
    one = broken_at("mean", x[[worst]], np.uint64(0), np.uint64(0), source.box.fmt, source.box.name)
    return Broken(
        "mean",
        f"it goes away from zero {away[worst]:.6g} of the time {how}, not {fraction[worst]:.6g}",
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


def _shares(away: Values, fraction: Values, x: Array, low: Values, fmt: Format) -> Shares:
    subnormal = np.abs(low) < fmt.smallest_normal
    odd = (encode(low, fmt) & 1).astype(np.bool_)
    return Shares(away, fraction, np.signbit(x), subnormal, odd)


def _fitting(driven: str) -> Callable[[Shares, Values], bool]:
    """Return the test of whether measured shares may be given ones."""
    if driven in ("bits", "uniform"):
        return lambda shares, share: bool((shares.away == share).all())
    draws = REPEATS * CALLS

    def fits(shares: Shares, share: Values) -> bool:
        counts = np.round(shares.away * draws)
        return not _unlikely(counts, draws, np.clip(share, 0, 1), max(share.size, 1)).any()

    return fits


def _random_bits(source: RandomSource, cells: list[tuple[float, float]], fmt: Format) -> tuple[int, bool]:
    """Return how many random bits decide, and whether it may be more, from fractions of one bit each."""
    low, high = cells[0]
    places = np.arange(1, FP32.mantissa_bits - fmt.mantissa_bits + 1)
    if source.driven in ("bits", "uniform"):
        bits, more = random_bits(places, _of_one_bit(source, low, high, places), int(places[-1]))
        subnormal = next(((zero, smallest) for zero, smallest in cells if zero == 0), None)
        if more and subnormal is not None:  # whose fractions have more bits
            places = np.arange(1, min(WORD_BITS, 149 + int(math.log2(subnormal[1]))) + 1)
            further, beyond = random_bits(places, _of_one_bit(source, *subnormal, places), int(places[-1]))
            if further > bits:
                bits, more = further, beyond and further < WORD_BITS
        return bits, more
    draws = LADDER * CALLS
    x = (low + (high - low) * 2.0**-places).astype(np.float32)
    count = np.zeros(places.size)
    for number in range(CALLS):
        got = source(np.repeat(x, LADDER), 5000 + number).reshape(x.size, LADDER)
        count += (got == high).sum(1)
    told = int(np.log2(draws / -math.log(_level(places.size) / 2)))  # beyond, none at all would be no wonder
    return random_bits(places, _unlikely(count, draws, 2.0**-places, places.size), told)


def _of_one_bit(source: RandomSource, low: float, high: float, places: Any) -> Any:
    """Return for which places j the share of 2**-j of a unit is another."""
    x = (low + (high - low) * 2.0**-places).astype(np.float32)
    away, _ = _counted(source, x, np.full(x.shape, low), np.full(x.shape, high))
    return away != 2.0**-places


def _dependence(name: str, draws: list[Any]) -> list[str]:
    """Return which random numbers are used again, as clauses after "it"."""
    alike = all(bits.all() or not bits.any() for bits in draws)
    if name == "elements":
        if alike:
            return ["uses one random number for all elements of a call"]
        for lag in LAGS:
            if all((bits[lag:] == bits[:-lag]).all() for bits in draws):
                return [f"uses the same random numbers again after {lag} elements"]
        for group in reversed(LAGS):
            groups = [bits[: bits.size // group * group].reshape(-1, group) for bits in draws]
            if all((bits == bits[:, :1]).all() for bits in groups):
                return [f"uses one random number for each {group} elements"]
        return ["uses random numbers that depend on each other from element to element"]
    first = draws[0]
    if all((first == bits).all() for bits in draws[1:]):
        return ["uses the same random numbers in every call"]
    for later, bits in enumerate(draws[1:], 1):
        if (first == bits).all() and not alike:
            return [f"uses the random numbers of a call again in the {'next one' if later == 1 else f'{later}th next'}"]
    return [] if alike else [FROM_CALL_TO_CALL]


def _elements(source: RandomSource, x: Array, draws: list[Any]) -> Broken | None:
    """Return what breaks where two elements of an array draw alike, at any distance."""
    for number, bits in enumerate(draws):
        same, of = _agreements(bits, bits)
        lag = _most_alike(same, of, 1, len(SHAPES) * len(draws))
        if lag is not None:
            times = f"{same[lag]:,} of {of[lag]:,} times in call {number}"
            alike = "an element and that of the row before" if lag == x.shape[-1] else f"elements {lag} apart"
            why = f"{alike} went the same way {times}; want half"
            of_shape = f"an array of shape {x.shape} of {x.flat[0]!r}"
            return Broken(
                "elements", why, input=f"{source.box.name} on {of_shape}", got="equal draws", want="independent ones",
                count=int(same[lag]), of=int(of[lag]),
            )  # fmt: skip
    return None


def _agreements(first: Any, second: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return, for each shift, how often first[i + shift] equals second[i], and of how many pairs."""
    size = first.size
    signs = [np.where(draws, 1.0, -1.0) for draws in (first, second)]
    spectra = [np.fft.rfft(draws, 2 * size) for draws in signs]
    products = np.rint(np.fft.irfft(spectra[0] * np.conj(spectra[1]), 2 * size)[:size]).astype(np.int64)  # integers
    of = size - np.arange(size)
    return (of + products) // 2, of


def _most_alike(same: Any, of: Any, first: int, tests: int) -> int | None:
    """Return the shift, from `first` on, with the most unlikely agreement, None where chance allows all of them.

    same, of: agreements and pairs of each shift; tests: how many such searches a check makes.
    """
    same, of = same[first : same.size - OVERLAP], of[first : of.size - OVERLAP]
    deviations = np.abs(2 * same - of) / np.sqrt(of)
    shift = int(np.argmax(deviations))
    return first + shift if _unlikely(same[shift], of[shift], 0.5, tests * same.size) else None


def _calls(source: RandomSource, x: Array, draws: list[Any]) -> Broken | None:
    """Return what breaks where two calls draw alike, also where one is the other shifted by any distance."""
    pairs = [(first, first + 1) for first in range(len(draws) - 1)] + [(0, 2), (0, 4)]
    for pair in pairs:
        for first, second in (pair, pair[::-1]):
            same, of = _agreements(draws[first], draws[second])
            shift = _most_alike(same, of, 0, 2 * len(pairs))
            if shift is not None:
                apart = f", shifted by {shift}" if shift else ""
                times = f"{same[shift]:,} of {of[shift]:,} times"
                why = f"calls {first} and {second} went the same way {times}{apart}; want about half"
                return Broken("calls", why, count=int(same[shift]), of=int(of[shift]))
    return None


def _seeds(source: RandomSource, x: Array, found: StochasticFindings) -> Broken | None:
    """Return what breaks where two seeds that differ give the same draws, as seeds that are cut do."""
    seen: dict[bytes, int] = {}
    for seed in (0, 1, *(near for bit in range(1, SEED_BITS) for near in (1 << bit, (1 << bit) + 1))):
        try:
            draws = source(x, seed).tobytes()
        except QuantizerMisbehaved as refusal:
            if refusal.property != "runs" or seed < 1 << 16:
                raise
            found.notes.append(f"it refuses seeds from {seed:,} on: {refusal.sentence}")
            return None
        other = seen.setdefault(draws, seed)
        if other != seed:
            text = f"seeds {other:,} and {seed:,} give the same draws"
            if max(other, seed) >> 32:
                found.notes.append(f"{text}: of a seed no more than 32 bits count")
                return None
            bits = max(other, seed).bit_length() - 1
            return Broken("seeds", f"{text}: bit {bits} of a seed does not count", got="equal draws", want="others")
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
