"""Recipes written to TOML and read from it, and the differences between two recipes."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

from fpsim.display.optional import load
from fpsim.errors import require_word, shown, unknown
from fpsim.files import path_of, write_whole
from fpsim.formats.as_json import element_fields, element_from
from fpsim.formats.element import element_format
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.recipes.linear import LINEAR
from fpsim.recipes.linear_recipe import SCALINGS as SCALING_FIELDS
from fpsim.recipes.linear_recipe import Delayed, LinearRecipe, Product
from fpsim.recipes.loss_scaling import POLICIES, LossScalingPolicy, loss_scaling_policy
from fpsim.recipes.optimizer_recipe import OptimizerRecipe
from fpsim.recipes.parts import Controller, Numerics, Override, Stored
from fpsim.scaling.recipes import ROWS as SCALINGS
from fpsim.scaling.scaling import Scaling, scaling_fields, scaling_from
from fpsim.schedules.schedule import Schedule
from fpsim.schedules.written import parsed
from fpsim.sums.accumulators import Accumulator

Made = TypeVar("Made")
NONE = "none"  # TOML has no word for nothing
CLASSES = (Override, Controller, Stored, Numerics, OptimizerRecipe, LinearRecipe, Product, Delayed,
           LossScalingPolicy)  # fmt: skip
FORMATS = (
    "input_fmt", "weight_fmt", "grad_fmt", "stash_fmt", "out_fmt", "fmt", "softmax", "norm", "loss", "reduction",
    "gradients", "first_moment", "second_moment", "weights",
)  # fmt: skip
TEXTS = ("name", "source", "layers", "modules", "faulty")  # where "none" is a text like any other
SCALED = (*SCALING_FIELDS, "scaling")


def write(recipe: Any, path: Any = None) -> str:
    """Return a training recipe, a Recipe, as TOML text, and write it to the file `path` unless that is None."""
    toml = load("tomli_w", "writing a recipe")
    text = str(toml.dumps(plain(recipe)))
    if path is not None:
        write_whole(path_of(path), text)
    return text


def read(source: Any) -> dict[str, Any]:
    """Return the content of `source` as nested dicts: the path of a TOML file, or a str of TOML with a line break.

    Raises:
      ValueError: it is not TOML in UTF-8.
    """
    if isinstance(source, str) and "\n" in source:
        text, where = source, "the text"
    else:
        file = Path(path_of(source))
        try:
            text, where = file.read_text(encoding="utf-8"), str(file)
        except UnicodeDecodeError as reason:
            raise ValueError(f"a recipe must be TOML in UTF-8; got {file}, which is not: {reason}.") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as reason:
        raise ValueError(f"a recipe must be TOML; got {where}, which is not: {reason}.") from None
    except RecursionError:
        raise ValueError(f"a recipe must be TOML with a few levels; got {where}, which nests too deeply.") from None


def structured(table: Any, cls: type[Made]) -> Made:
    """Return an object of the dataclass `cls` for a dict of its fields.

    table: {name of a field: its value as str, number, bool, list or dict}.

    Raises:
      TypeError, ValueError: a key is not a field's name, a field is missing or cannot have its value.
    """
    fields: dict[str, Any] = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if not isinstance(table, Mapping):
        raise ValueError(f"a table with fields of {cls.__name__} is needed; got {shown(table)}.")
    for name in table:
        if name not in fields:
            raise unknown(f"field of {cls.__name__}", name, list(fields))
    needed = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    missing = [name for name in needed if name not in table]
    if missing:
        raise ValueError(f"{cls.__name__} needs {' and '.join(missing)}; got {shown(table)}.")
    readers = {name: READERS.get(f"{cls.__name__}.{name}") or READERS.get(name, _or_none) for name in table}
    return cls(**{name: readers[name](value) for name, value in table.items()})


def plain(value: Any) -> dict[str, Any]:
    """Return the fields of `value`, a dataclass object, that differ from their defaults, as a dict for TOML or JSON.

    Its values are str, numbers, bools, and lists and dicts of these. A linear recipe is written without its name.
    """
    return {
        field.name: WRITERS.get(field.name, _leaf)(held)
        for field in dataclasses.fields(value)
        if (held := getattr(value, field.name)) != field.default
        and not (field.name == "name" and isinstance(value, LinearRecipe))
    }


def differences(one: Any, other: Any) -> list[str]:
    """List the fields in which recipe `one` differs from `other`, as texts: "loss_factor: 0.5 instead of 1.0"."""
    return [f"{path}: {_word(first)} instead of {_word(second)}" for path, first, second in _fields(one, other, "")]


def _unlike(first: Any, second: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, first value, second value) for each difference between two values, within nested fields too.

    path: the dotted name of the values' field.
    """
    if first == second:
        return
    are_named = all(isinstance(x, LossScalingPolicy) and POLICIES.get(x.name) == x for x in (first, second))
    rows = isinstance(first, tuple) and isinstance(second, tuple) and len(first) == len(second)
    if rows and all(isinstance(item, CLASSES) for item in (*first, *second)):
        for index, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _unlike(one, other, f"{path}[{index}]")
    elif type(first) is type(second) and isinstance(first, CLASSES) and not are_named:
        yield from _fields(first, second, f"{path}.")
    else:
        yield path, first, second


def _fields(first: Any, second: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield (path, first value, second value) for each difference between two objects of one dataclass.

    path: the prefix of the fields' names.
    """
    for field in dataclasses.fields(first):
        if field.compare:
            yield from _unlike(getattr(first, field.name), getattr(second, field.name), f"{path}{field.name}")


def _word(value: Any) -> str:
    """Return a field's value as the text that `differences` shows."""
    if isinstance(value, LossScalingPolicy):
        return str(_policy_words(value))
    if isinstance(value, LinearRecipe):
        return str(_linear_words(value))
    return str(_leaf(value))


# ---- single values


def _leaf(value: Any) -> Any:
    """Return a field's value, which may be a tuple, in the form in which TOML stores it.

    Formats, scalings, units, schedules and other objects become names, texts or tables; None becomes "none".
    """
    if value is None:
        return NONE
    if isinstance(value, Scaling):
        return value.name if SCALINGS.get(value.name) == value else scaling_fields(value)
    if isinstance(value, MatrixUnit):
        return value.name
    if isinstance(value, (Schedule, Accumulator)):
        return repr(value)
    if isinstance(value, Rounding):
        return value.name.lower()
    if isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, tuple):
        return [_leaf(item) for item in value]
    if isinstance(value, CLASSES):
        return plain(value)
    return element_fields(element_format(value))


def _format_from(word: Any) -> Any:
    """Return the format for `word`, a value of a TOML file: a name, or a dict of its fields; None for "none"."""
    if word == NONE:
        return None
    if not isinstance(word, dict):
        return element_format(word)
    try:
        return element_from(word)
    except (TypeError, KeyError):
        raise ValueError(
            "a format must be a name, or a table of what fp.Format, fp.LogFMT or an integer format is made from; got "
            f"{shown(word)}."
        ) from None


def _scaling_from(word: Any) -> Any:
    """Return the scaling for `word`, a value of a TOML file: a name, or a dict of its fields.

    "same" is returned unchanged, and None for "none".
    """
    if word == NONE or word == "same":
        return None if word == NONE else word
    if isinstance(word, dict):
        return scaling_from(word)
    require_word("scaling", word, list(SCALINGS), listing="docs/scaling.md")
    return SCALINGS[word]


def _parsed_from(word: Any) -> Any:
    """Return the schedule or accumulator that `word`, such as "Exact(FP16)", names in a TOML file; None for "none"."""
    return parsed(word) if isinstance(word, str) and word != NONE else _or_none(word)


def _or_none(word: Any) -> Any:
    """Return `word`, a value of a TOML file, unchanged; only for "none" return None."""
    return None if word == NONE else word


def _policy_words(policy: Any) -> Any:
    """Return a loss-scaling policy for TOML: its name if POLICIES has an equal policy of that name, else a dict."""
    return policy.name if POLICIES.get(policy.name) == policy else plain(policy)


def _linear_from(word: Any) -> Any:
    """Return the linear recipe for `word`, a dict of a TOML file; return a name unchanged, to be looked up later."""
    return word if isinstance(word, str) else structured(word, LinearRecipe)


def _linear_words(linear: Any) -> Any:
    """Return a linear recipe for TOML: the name of an equal recipe in LINEAR, or else its fields as a dict."""
    name = next((name for name, row in LINEAR.items() if row == linear), None)
    return name if name is not None else _leaf(linear)


def _many(cls: type) -> Any:
    """Return a function that reads a list of tables in TOML as a tuple of objects of the class `cls`."""

    def read_list(words: Any) -> Any:
        if not isinstance(words, list):
            raise ValueError(f"a list of tables with fields of {cls.__name__} is needed; got {shown(words)}.")
        return tuple(structured(word, cls) for word in words)

    return read_list


def _one(cls: type) -> Any:
    """Return a function that reads a table in TOML as an object of the class `cls`, and "none" as None."""
    return lambda word: None if word == NONE else structured(word, cls)


READERS: dict[str, Any] = {
    **dict.fromkeys(FORMATS, _format_from), **dict.fromkeys(SCALED, _scaling_from),
    **dict.fromkeys((*TEXTS, "Override.products"), lambda word: word),
    # the name of a unit or chip has no parentheses
    "accumulate": lambda word: parsed(word) if isinstance(word, str) and "(" in word else _or_none(word),
    "sums": _parsed_from, "products": _parsed_from,
    "attention": lambda word: None if word == NONE else _linear_from(word),
    "Product.schedule": _parsed_from,  # the optimizer's schedule is a name
    "linear": _linear_from,
    "levels": lambda words: tuple(map(_linear_from, words)) if isinstance(words, list) else words,
    "loss_scaling": lambda word: (
        loss_scaling_policy(word) if isinstance(word, str) else structured(word, LossScalingPolicy)
    ),
    "overrides": _many(Override), "stored": _many(Stored), "controller": _one(Controller), "numerics": _one(Numerics),
    "optimizer": _one(OptimizerRecipe), "delayed": _one(Delayed),
    "fprop": _one(Product), "dgrad": _one(Product), "wgrad": _one(Product),
}  # fmt: skip
WRITERS: dict[str, Any] = {
    "linear": _linear_words, "attention": lambda linear: NONE if linear is None else _linear_words(linear),
    "loss_scaling": _policy_words,
    "levels": lambda levels: [_linear_words(level) for level in levels],
}  # fmt: skip
