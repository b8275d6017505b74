"""Runs products on the hardware, and finds the model of the library that predicts the same bits."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fpsim.gpu.lab.model import LibraryModel, ProductProblem, Words, predict
from fpsim.gpu.lab.report import ValidationRow, WordDifference, difference

Models = Callable[[Any], Sequence[LibraryModel]]  # what a library reports -> models, the expected one first


class ProductCase(NamedTuple):
    """Products of one shape that a library computes by one algorithm.

    Attributes:
      part, name: the validation's part, and the name of the case.
      problems: the products, one for each set of inputs.
      call: function of a product that runs it on the hardware, and returns (its bits, what the library reports on its
        algorithm, or None).
      models: function of the library's report on its algorithm that returns the models to try, the expected one first.
      exhaustive: True to try all models and count those that fit; False to stop at the first.
    """

    part: str
    name: str
    problems: tuple[ProductProblem, ...]
    call: Callable[[ProductProblem], tuple[Words, Any]]
    models: Models
    exhaustive: bool = True


class Judgement(NamedTuple):
    """The result of running a `ProductCase`, and of comparing its products with models of the library.

    Attributes:
      rows: a report row for each product.
      best: the model that fits best; None if no model could be computed.
      outputs: the hardware's result of each product; None where the call failed.
    """

    rows: list[ValidationRow]
    best: LibraryModel | None
    outputs: list[Words | None]


def judged(case: ProductCase, deadline: float = float("inf")) -> Judgement:
    """Run the products of a case on the hardware, compare them with models, and return the result.

    case: the products, and the models to try. deadline: a time of time.monotonic(); after it, trying models ends as
    soon as one fits or four were tried.
    """
    outputs: list[Words | None] = []
    errors: list[str] = []
    known: Any = None
    for problem in case.problems:
        try:
            result, said = case.call(problem)
            outputs.append(result)
            errors.append("")
            known = known if said is None else said
        except Exception as reason:
            outputs.append(None)
            errors.append(said_of(reason))
    done = [(p, o) for p, o in zip(case.problems, outputs, strict=True) if o is not None]
    try:
        tried = _tried(case, known, done, deadline) if done else []
        why = "" if tried or not done else "no model was tried"
    except Exception as reason:
        tried, why = [], said_of(reason)
    best = min(tried, key=lambda entry: sum(d.differing for d in entry[1])) if tried else None
    note = "" if known is None else str(known)
    rows, place = [], 0
    for problem, output, error in zip(case.problems, outputs, errors, strict=True):
        row = ValidationRow(case.part, case.name, problem.name, error=error or why, note=note)
        if output is not None and best is not None:
            fits = sum(1 for _, entry in tried if not entry[place].differing) if not best[1][place].differing else 0
            same = sum(1 for _, entry in tried if not any(d.differing for d in entry))
            rivals = max(min(same, fits) - 1, 0)
            of = best[1][place]
            nans = f"; {of.other_nans} NaNs with other payloads" if of.other_nans else ""
            row = replace(
                row, **of._asdict(), model=str(best[0]), rivals=rivals, others=len(tried) - 1, error="",
                expected=_family(best[0]) == _family(case.models(known)[0]), note=f"{note}{nans}".removeprefix("; "),
            )  # fmt: skip
        place += output is not None
        rows.append(row)
    return Judgement(rows, None if best is None else best[0], outputs)


Tried = tuple[LibraryModel, list[WordDifference]]


def _tried(case: ProductCase, known: Any, done: list[tuple[ProductProblem, Words]], deadline: float) -> list[Tried]:
    """Return pairs (model, differences of its result from the hardware's for each product), in the order of trying.

    Models that raise an error are left out; if all do, the first error is raised. case: the products, and the models to
    try. known: what the library reported on its algorithm. done: pairs (product, output of the hardware). deadline: a
    time of time.monotonic(); after it, trying ends as soon as one model fits or four were tried.
    """
    tried: list[Tried] = []
    failure: Exception | None = None
    for model in case.models(known):
        fits = any(not any(d.differing for d in differences) for _, differences in tried)
        if fits and not case.exhaustive:
            break
        if tried and time.monotonic() > deadline and (fits or len(tried) > 3):
            break
        try:
            tried.append((model, [difference(output, predict(p, model), p.out) for p, output in done]))
        except Exception as reason:
            failure = failure or reason
    if not tried and failure is not None:
        raise failure
    return tried


def _family(model: LibraryModel) -> LibraryModel:
    """Return a model without the arguments split_k and merge of its schedule, which the library's heuristic chooses."""
    return model._replace(schedule=re.sub(r", (split_k|merge)=\d+", "", model.schedule))


def said_of(reason: BaseException) -> str:
    """Return an exception as one line of text: its type and up to 400 characters of its message."""
    text = " ".join(str(reason).split())
    return f"{type(reason).__name__}: {text[:400]}" if text else type(reason).__name__


def as_words(x: Any) -> Words:
    """Return an array's elements as unsigned integers of the same bits."""
    array = np.ascontiguousarray(x)
    return array.view(f"u{array.dtype.itemsize}")
