"""Diagnosis of a quantizer: the policy and the faults that explain its results for many inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fpsim.arrays import distinct
from fpsim.display.wording import listed
from fpsim.formats.float_format import Format
from fpsim.testing.quantizers.model import QuantizerModel
from fpsim.testing.quantizers.regions import where
from fpsim.testing.quantizers.report import certificate, explained, explained_by, shown_result
from fpsim.testing.quantizers.rounder import SplitInputs, Words
from fpsim.testing.quantizers.search import FoundModel, ModelSearch

FEW = 4  # most results that are explained as wrong entries of a table
WORTH = 0.5  # share of the differences that a diagnosis must explain to be reported


def diagnosed(
    search: ModelSearch, right: QuantizerModel, want: Words, fmt: Format, elsewhere: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Return the `QuantizerReport` fields that explain why results differ from those of the model `right`.

    Args:
      search: a search over the quantizer's results.
      right: the model of the promised cast.
      want: the right results, as bit patterns of float64.
      fmt: the format of the results.
      elsewhere: function that returns whether a fault that no model describes explains the results. It is called if no
        single fault of a model does; two or three faults together are then tried only if it returns False.
    """
    match = search.explain(right, elsewhere)
    differ = search.got != want
    count = int(differ.sum())
    faults = tuple(fault.words for fault in match.faults)
    fields: dict[str, Any] = {"excluded": match.excluded, "rivals": match.rivals, "unexplained": match.differ}
    if not count:
        return fields
    if match.differ == 0:
        return {**fields, "causes": faults, "diagnosis": f"{explained_by(faults)}. {_others(match)}".rstrip()}
    entries = _entries(search.got, want, fmt)
    if entries:
        text = f"after rounding it {'; it '.join(entries)}"
        return {**fields, **explained(*entries), "diagnosis": text}
    if match.differ <= (1 - WORTH) * count:
        left = search.differing(match.model)
        text = (
            f"none of the {match.tried:,} causes that were tried explains all. The nearest: it {'; it '.join(faults)}, "
            f"which leaves {match.differ:,} different results. {where(search.inputs, left, fmt, search.got)}"
        )
        return {**fields, "diagnosis": text}
    places = where(search.inputs, differ, fmt, search.got)
    text = f"none of the {match.tried:,} causes that were tried explains them. {places}"
    return {**fields, "unexplained": count, "diagnosis": text}


def _entries(got: Words, want: Words, fmt: Format) -> tuple[str, ...]:
    """Return clauses on values that a quantizer always replaces by one other value, as a wrong entry of a table would.

    Return () if more than FEW different values are replaced, or one of them by several values. got, want: the results
    and the right ones, as bit patterns of float64. fmt: their format.
    """
    changed = distinct(want[got != want])
    if changed.size > FEW:
        return ()
    clauses = []
    for right in changed:
        wrong = distinct(got[want == right])
        if wrong.size > 1:
            return ()
        clauses.append(f"gives {shown_result(wrong[0], fmt)} for {shown_result(right, fmt)}, always")
    return tuple(clauses)


def _others(match: FoundModel) -> str:
    """Return a sentence on the other causes that also explain all results, and on the number of causes that do not.

    match: the result of a search for a model of the quantizer.
    """
    if not match.rivals:
        return certificate(match.excluded, ())
    return f"As well explained by: {listed(match.rivals, 3, '; ')}. {match.excluded:,} others are excluded."


def changing(apart: SplitInputs, differ: Any, fmt: Format, got: Words) -> str:
    """Return sentences on the inputs whose results change from call to call, and on whether rounding looks stochastic.

    apart: the inputs, split into signs and magnitudes. differ: bool mask of those whose results change. fmt: the format
    of the results. got: results of one call, as bit patterns of float64.
    """
    text = where(apart, differ, fmt, got)
    if text.endswith("neighbours of its input.") and "values of the format" not in text:
        return f"Values of the format stay, and others go to either neighbour, as in stochastic rounding. {text}"
    return text
