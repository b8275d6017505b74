"""Known faults of quantizers as data: the parameters of a model that each changes, and its clause in reports."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from fpsim.display.wording import plural
from fpsim.formats.cast_options import cast_options
from fpsim.formats.float_format import Format
from fpsim.formats.named import BF16, E4M3, E5M2, FP16, FP32, NAMED, TF32
from fpsim.formats.policies import OVERFLOWS, overflow_outcome
from fpsim.formats.rounding import NAMES
from fpsim.testing.quantizers.model import QuantizerModel, model_of
from fpsim.testing.quantizers.rounder import RULES, FractionGrid, grid_of, magnitude_of, rule_words
from fpsim.testing.quantizers.steps import Carry, CarryFault, Outcome, Subnormals, Through

FIRST = (FP16, BF16, TF32, FP32, E5M2, E4M3)  # formats to which faulty casts round first
FARTHEST = -1200  # smallest exponent of a grid with unbounded exponents; below all of float64's

SUBNORMAL_WORDS: dict[Subnormals, str] = {
    "keep": "keeps subnormal results",
    "flush": "turns subnormal results into zeros",
    "flush_before": "turns values below the smallest normal one into zeros before it rounds",
    "flush_positive": "turns positive subnormal results into zeros and keeps negative ones",
    "nearest_normal": "has no subnormals: values below the smallest normal one go to that or to zero",
    "never_zero": "gives the smallest value for values that round to zero",
    "half": "gives subnormals at half their size",
    "double": "gives subnormals at twice their size",
    "ordinary_binade": "reads the exponent field 0 as an ordinary binade, without subnormals",
    "smallest_normal": "gives the smallest normal value for everything below it",
}
OUTCOME_WORDS: dict[Outcome, str] = {
    "infinity": "Inf", "nan": "NaN", "max": "the largest value", "zero": "zero",
    "opposite_zero": "a zero of the other sign",
    "positive_max": "the largest positive value", "positive_zero": "+0", "wrap": "a code without its high bits",
    "wrap_into_sign": "a code that runs over into the sign", "lowest": "the lowest value", "magnitude": "the magnitude",
    "unlimited": "values beyond the largest one", "top_code": "the value that the top code would have",
    "smallest_normal": "the smallest normal value", "positive_infinity": "+Inf",
    "bits": "the number that its bits would be", "cut_bits": "Inf, where its first bits are none,",
}  # fmt: skip
EDGE_WORDS = {
    "exact": "takes every value above the largest one as too large, also those that round to it",
    "tie_too": "takes the tie after the largest value as too large",
    "past_tie": "rounds the tie after the largest value to that",
    "binade": "takes values as too large only from the next power of two on",
    "not_down": "gives the largest value for values that round down to the code after it",
    "top_binade": "takes values as too large already from the format's largest power of two on",
    "rounded_top_binade": "takes results as too large already from the format's largest power of two on",
    "top_carry": "takes values that round up to the format's largest power of two as too large",
}
UNROUNDED = "does not round at all"
ZERO_WORDS = {
    "positive": "loses the sign of zeros",
    "positive_input": "gives +0 for -0",
    "positive_rounded": "loses the sign of values that round to zero",
}
NO_NEGATIVE_ZERO_WORDS = {
    "nan_rounded": "gives the code of -0, which is NaN, for negative values that round to zero",
    "nan_negative": "gives the code of -0, which is NaN, for -0 and for negative values that round to zero",
}
CARRY_WORDS: dict[CarryFault, str] = {
    "lost": "loses the carry of the mantissa into the exponent",
    "first_bit": "sets the first mantissa bit where the mantissa carries into the exponent",
    "stays": "keeps the mantissa all ones where it should carry into the exponent",
}


@dataclass(frozen=True)
class Deviation:
    """A fault of a quantizer.

    Attributes:
      words: what the quantizer does, as a clause ("drops the sign").
      changes: pairs (parameter of the model, value).
      rare: whether it affects so few inputs that reports do not name it as a rival, such as a first rounding to FP16
        that saturates.
    """

    words: str
    changes: tuple[tuple[str, Any], ...]
    rare: bool = False

    def apply(self, model: QuantizerModel) -> QuantizerModel:
        """Return a copy of `model` in which the parameters have the values that the fault gives them."""
        return model.replace(**dict(self.changes))

    def slots(self) -> frozenset[str]:
        """Return the names of the parameters that the fault changes."""
        return frozenset(name for name, _ in self.changes)


def deviation(words: str, **changes: Any) -> Deviation:
    """Return the fault that `words` ("drops the sign") describes.

    changes: fields of `QuantizerModel`, with the values that the fault gives them.
    """
    return Deviation(words, tuple(changes.items()))


@lru_cache(maxsize=64)
def deviations(model: QuantizerModel, source: Format, codes: bool) -> tuple[Deviation, ...]:
    """Return every single fault to try for a quantizer, the usual ones first.

    Args:
      model: the model to which a fault is added, usually that of the promised cast.
      source: the format of the inputs.
      codes: whether the quantizer returns codes; True adds the faults of returning codes of another format.
    """
    faults = [
        *_policies(model), *_roundings(model), *_first(model, source), *_limits(model), *_overflows(model),
        *_subnormals_and_carries(model), *_zeros_and_signs(model), *_shifts(model), *_formats(model, codes),
    ]  # fmt: skip
    if not codes and not model.fmt.holds(source):
        faults += _unrounded(model, source)
    return tuple(fault for fault in faults if fault.apply(model) != model)


def _unrounded(model: QuantizerModel, source: Format) -> Iterator[Deviation]:
    """Yield the faults of not rounding at all, of rounding to another format only, and of rounding only the mantissa.

    In the last case, the exponents stay those of the input. model: the model of the promised cast. source: the format
    of the inputs.
    """
    yield deviation(UNROUNDED, unrounded=True)
    for fmt in (FP16, BF16, TF32, FP32):
        if not fmt.holds(source) and not model.fmt.holds(fmt):
            through = Through(fmt.name, grid_of(fmt), max_code=fmt.max_code)
            yield deviation(
                f"gives values of {fmt}, which it does not round to {model.fmt}", unrounded=True, through=through
            )
    widths = [model.fmt.mantissa_bits + more for more in (0, 1, -1, 2, -2) if model.fmt.mantissa_bits + more >= 0]
    for bits, rule in itertools.product(widths, ("toward_zero", "nearest_away", "nearest_even")):
        name = f"{bits + 1} significand bits"
        through = Through(name, FractionGrid(bits, source.min_exponent), rule)  # as masks of the source's bits do
        words = _through_words(name, rule, False, False).removesuffix(" first")
        yield deviation(f"{words}, with the exponents of its input", unrounded=True, through=through)


def plain_models(fmt: Format, source_normal: float) -> dict[QuantizerModel, dict[str, Any]]:
    """Return the model of every deterministic policy of `fpsim.encode`, with the keywords of the policy.

    Of policies with the same model, the first is kept. source_normal: smallest normal value of the inputs' dtype.
    """
    policies: dict[QuantizerModel, dict[str, Any]] = {}
    for rounding, overflow, subnormals in itertools.product(NAMES, OVERFLOWS, ("keep", "flush")):
        if rounding != "stochastic":
            words: dict[str, Any] = {"rounding": rounding, "overflow": overflow, "subnormals": subnormals}
            policies.setdefault(model_of(cast_options(fmt, **words), source_normal), words)
    return policies


def _roundings(model: QuantizerModel) -> Iterator[Deviation]:
    """Yield the faults of another rounding rule: for all values, negative values, or subnormal inputs or results.

    model: the model of the promised cast, which has the right rule.
    """
    for rule in RULES:
        yield deviation(rule_words(rule, model.rounding), rounding=rule)
    for rule in RULES:
        if rule != model.rounding:
            words = rule_words(rule, model.rounding)
            yield deviation(f"{words} where the result is subnormal", subnormal_rule=rule)
            yield deviation(f"{words} for negative values", negative_rule=rule)
            if model.fmt.smallest_subnormal < 2 * model.source_normal:
                yield deviation(f"{words} where the input is subnormal", source_rule=rule)


def _first(model: QuantizerModel, source: Format) -> Iterator[Deviation]:
    """Yield the faults of quantizers that first round their inputs to another format, or to fewer significand bits.

    model: the model of the promised cast. source: the format of the inputs. Formats that can represent all values of
    `source` are left out, since rounding to them changes nothing.
    """
    for fmt in FIRST:
        if fmt == model.fmt or (fmt.mantissa_bits >= source.mantissa_bits and fmt.max >= source.max):
            continue
        for rule in ("nearest_even", "toward_zero", "nearest_away"):
            for saturates, flushes in ((False, False), (True, False), (False, True), (True, True)):
                words = _through_words(fmt.name, rule, saturates, flushes)
                through = Through(fmt.name, grid_of(fmt), rule, fmt.max_code, saturates, flushes)
                yield Deviation(words, (("through", through),), rare=saturates or flushes)
    for bits in range(max(1, model.fmt.mantissa_bits), source.mantissa_bits):
        for rule in ("nearest_even", "toward_zero", "nearest_away"):  # odd is right, with two bits more
            name = f"{bits + 1} significand bits"
            yield deviation(
                _through_words(name, rule, False, False), through=Through(name, FractionGrid(bits, FARTHEST), rule)
            )


def _limits(model: QuantizerModel) -> Iterator[Deviation]:
    """Yield faults in inputs before the rounding: subnormals become 0, or inputs are clipped or multiplied by 2**n.

    model: the model of the promised cast; its format's largest value is one of the limits to which inputs are clipped.
    """
    yield deviation("takes subnormals of the input for zeros", source_subnormals="flush")
    for limit in sorted({model.fmt.max, *(fmt.max for fmt in NAMED.values() if fmt.bits <= 16)}):
        yield deviation(f"limits the input to +-{limit:g} first", clamp=limit)
    for power in (-1, 1, -2, 2, -3, 3, -4, 4, -7, 7, -8, 8):
        yield deviation(f"multiplies by 2**{power}: its exponent bias is off by {abs(power)}", scale=power)


def _through_words(name: str, rule: str, saturates: bool, flushes: bool) -> str:
    """Return the clause ("rounds to FP16 first, which saturates") on a first rounding to the format or grid `name`.

    rule: "nearest_even", "toward_zero" or "nearest_away". saturates, flushes: whether that rounding saturates, and
    whether it turns subnormals into zeros.
    """
    how = {"nearest_even": "rounds", "toward_zero": "truncates", "nearest_away": "rounds (ties away)"}
    words = f"{how[rule]} to {name} first"
    extra = ["which saturates"] * saturates + ["which flushes subnormals"] * flushes
    return ", ".join([words, " and ".join(extra)]) if extra else words


def _policies(model: QuantizerModel) -> Iterator[Deviation]:
    """Yield the faults of following another overflow policy than the promised one.

    The policies tried are "nonfinite", "saturate" and "saturate_finite" of `fpsim.encode`. Each determines the results
    of values that are too large, of Inf, of NaN, and of negative values in an unsigned format; of policies with equal
    results only the first is used. model: the model of the promised cast.
    """
    fmt, seen = model.fmt, set()
    for word in OVERFLOWS:
        outcome = overflow_outcome(word, fmt)
        other = model_of(cast_options(fmt, overflow=word), model.source_normal)
        if outcome not in seen and word in ("nonfinite", "saturate", "saturate_finite"):
            seen.add(outcome)
            yield deviation(
                f"overflows as overflow={word!r} does", finite=other.finite, infinite=other.infinite, nan=other.nan,
                below=other.below,
            )  # fmt: skip


def _overflows(model: QuantizerModel) -> Iterator[Deviation]:
    """Yield faults in the results of values that are too large, of Inf, NaN, and negative values in unsigned formats.

    Also yield faults in two limits: the largest value that is returned, and the magnitude from which values are too
    large. model: the model of the promised cast.
    """
    fmt = model.fmt
    for word in get_args(Outcome):
        for slot, inputs in (("finite", "finite values that are too large"), ("infinite", "Inf"), ("nan", "NaN")):
            if _possible(word, slot, fmt):
                yield deviation(f"gives {OUTCOME_WORDS[word]} for {inputs}", **{slot: word})
        if word in ("zero", "positive_zero", "max", "positive_max", "lowest"):
            yield deviation(
                f"gives {OUTCOME_WORDS[word]} for everything that is too large, Inf and NaN too", finite=word,
                infinite=word, nan=word,
            )  # fmt: skip
        if _possible(word, "infinite", fmt) and _possible(word, "finite", fmt):
            yield deviation(
                f"gives {OUTCOME_WORDS[word]} for everything that is too large, Inf too", finite=word, infinite=word
            )
    if fmt.bits <= 16:
        words = "reads the bits of NaN as a number, and lets codes run over"
        yield deviation(f"{words} into the sign", nan="bits", finite="wrap_into_sign")
        yield deviation(words, nan="bits", finite="wrap")
    signless: tuple[Outcome, ...] = () if fmt.signed else ("nan", "lowest", "magnitude")
    for word in signless:
        yield deviation(f"gives {OUTCOME_WORDS[word]} for negative values", below=word)
    if fmt.max_code > 1:
        below = magnitude_of(fmt.max_code - 1, grid_of(fmt))
        yield deviation(f"never gives its top code: {below:g} takes the place of {fmt.max:g}", unreached=True)
    ieee = (((1 << fmt.exponent_bits) - 1) << fmt.mantissa_bits) - 1  # largest value of an IEEE format of these widths
    tops = (ieee - fmt.max_code, fmt.top_magnitude - fmt.max_code)
    for step in (1, 2, -1, -2, 1 << fmt.mantissa_bits, -(1 << fmt.mantissa_bits), *tops):
        if 0 < fmt.max_code + step <= fmt.top_magnitude + 1:
            largest = magnitude_of(fmt.max_code + step, grid_of(fmt))
            yield deviation(f"takes {largest:g} for the largest value, not {fmt.max:g}", top=step)
    usual: tuple[Outcome, ...] = ("infinity", "nan", "max")
    for edge, words in EDGE_WORDS.items():
        yield deviation(words, edge=edge)
        for word in usual:
            if edge != "not_down" and word != model.finite:
                yield deviation(f"{words}, and gives {OUTCOME_WORDS[word]} for them", edge=edge, finite=word)
    yield deviation("gives Inf or NaN for too large values also where the mode rounds toward zero", inward=False)
    yield deviation("loses the sign of values that are too large", overflow_sign="drop")


def _possible(word: str, slot: str, fmt: Format) -> bool:
    """Return whether the outcome `word`, a key of OUTCOME_WORDS, can be a result for a class of inputs.

    slot: the class: "finite" (finite values that are too large), "infinite" or "nan". fmt: the format of the results.
    """
    if word in ("wrap", "wrap_into_sign", "unlimited", "top_code"):
        return slot == "finite" and (fmt.bits <= 16 or word in ("unlimited", "top_code"))
    return word != "magnitude" and (word not in ("bits", "cut_bits") or slot == "nan")


def _subnormals_and_carries(model: QuantizerModel) -> Iterator[Deviation]:
    """Yield faults in subnormal results, and lost or wrong carries from the mantissa into the exponent.

    model: the model of the promised cast, whose format determines which of these faults are possible.
    """
    for word, words in SUBNORMAL_WORDS.items() if model.fmt.subnormals else ():
        yield deviation(words, subnormals=word)
    if not model.fmt.mantissa_bits:
        return
    places = {
        (True, True): "", (True, False): " among normal values", (False, True): " below the smallest normal value",
    }  # fmt: skip
    faults = itertools.product(CARRY_WORDS.items(), places.items(), (True, False))
    for (how, words), (affected, where), beyond in faults:
        if affected == (False, True) and not (model.fmt.subnormals and beyond):
            continue
        kept = "" if beyond else ", but for what is too large"
        yield deviation(f"{words}{where}{kept}", carry=Carry(how, *affected, beyond))


def _zeros_and_signs(model: QuantizerModel) -> Iterator[Deviation]:
    """Yield faults in the signs of zeros, and in the signs of all values.

    model: the model of the promised cast, whose format determines which of these faults are possible.
    """
    if model.fmt.negative_zero:
        for word, words in ZERO_WORDS.items():
            yield deviation(words, zeros=word)
    elif model.fmt.signed and model.fmt.has_nan:
        for word, words in NO_NEGATIVE_ZERO_WORDS.items():
            yield deviation(words, zeros=word)
    if model.fmt.signed:
        yield deviation("drops the sign", sign="drop")
        yield deviation("turns the sign around", sign="flip")


def _shifts(model: QuantizerModel) -> Iterator[Deviation]:
    """Yield the faults of adding a fixed number to every code, and of dropping low mantissa bits after rounding.

    model: the model of the promised cast.
    """
    for shift in (1, -1, 2, -2, 1 << model.fmt.mantissa_bits, -(1 << model.fmt.mantissa_bits)):
        by = f"{abs(shift)} code{'s' if abs(shift) > 1 else ''} {'above' if shift > 0 else 'below'}"
        yield deviation(f"gives {by} the right one", code_shift=shift)
    for bits in range(1, min(model.fmt.mantissa_bits, 3) + 1):
        yield deviation(f"drops {plural(bits, 'low bit')} of the mantissa after rounding", dropped_bits=bits)


def _formats(model: QuantizerModel, codes: bool) -> Iterator[Deviation]:
    """Yield the faults of rounding to another format than promised, and of returning codes of another format.

    The other formats are named ones of similar width, and copies of the promised one with a wrong bias or wrong widths.
    model: the model of the promised cast. codes: whether the quantizer returns codes, not values.
    """
    fmt = model.fmt
    others = [
        other for other in NAMED.values() if other != fmt and abs(other.bits - fmt.bits) <= 2 and other.bits <= 19
    ]
    for other in (*others, *_changed_formats(fmt)):
        specials = model_of(cast_options(other, overflow="nonfinite"), model.source_normal)
        full = {"finite": "max", "infinite": "max", "nan": specials.nan}
        words = {"finite": specials.finite, "infinite": specials.infinite, "nan": specials.nan, "below": specials.below}
        yield deviation(f"rounds to {other}, not {fmt}", fmt=other, **words)
        yield deviation(
            f"rounds to {other}, not {fmt}, and saturates", fmt=other, finite="max", infinite="max", nan=specials.nan
        )
        if codes and fmt.bits <= 16 and other.bits <= 16:
            yield deviation(f"gives codes of {other}, not {fmt}", fmt=other, read_as=fmt, **words)
            yield deviation(f"gives codes of {other}, not {fmt}, and saturates", fmt=other, read_as=fmt, **full)


_CHANGES = {
    "a bias 1 larger": {"bias": 1},
    "a bias 1 smaller": {"bias": -1},
    "one mantissa bit less": {"mantissa_bits": -1},
    "two mantissa bits less": {"mantissa_bits": -2},
    "one mantissa bit more": {"mantissa_bits": 1},
    "one exponent bit less": {"exponent_bits": -1},
    "one exponent bit more": {"exponent_bits": 1},
    "an exponent bit less and a mantissa bit more": {"exponent_bits": -1, "mantissa_bits": 1},
    "an exponent bit more and a mantissa bit less": {"exponent_bits": 1, "mantissa_bits": -1},
}


@lru_cache(maxsize=64)
def _changed_formats(fmt: Format) -> tuple[Format, ...]:
    """Return copies of `fmt`, each with one of the changes in _CHANGES; () for formats of more than 16 bits."""
    formats = []
    for words, steps in _CHANGES.items() if fmt.bits <= 16 else ():
        fields = {name: getattr(fmt, name) + steps.get(name, 0) for name in ("exponent_bits", "mantissa_bits", "bias")}
        if "exponent_bits" in steps:  # the bias follows
            fields["bias"] += 2 ** (fields["exponent_bits"] - 1) - 2 ** (fmt.exponent_bits - 1)
        with suppress(ValueError, OverflowError):  # no such format
            formats.append(Format(
                f"{fmt} with {words}", **fields, signed=fmt.signed, infinities=fmt.infinities, nan=fmt.nan,
                negative_zero=fmt.negative_zero, subnormals=fmt.subnormals, ties_to_even_code=fmt.ties_to_even_code,
                source="changed",
            ))  # fmt: skip
    return tuple(formats)


def sentence(faults: tuple[Deviation, ...]) -> str:
    """Return the text on all faults together, such as "drops the sign; and it rounds up"; "" without faults."""
    *first, last = [fault.words for fault in faults] or [""]
    return f"{'; it '.join(first)}; and it {last}" if first else last
