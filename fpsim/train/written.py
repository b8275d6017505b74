"""Recipes as TOML, both ways, and what is different between two."""

from __future__ import annotations

import dataclasses
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from fpsim.analysis.measures.scales.policies import POLICIES, LossScalingPolicy, loss_scaling_policy
from fpsim.display.optional import load
from fpsim.errors import shown, unknown
from fpsim.files import path_of, write_whole
from fpsim.formats.as_json import element_facts, element_from
from fpsim.formats.element import element_format
from fpsim.formats.rounding import Rounding
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.scaling.recipes import ROWS as SCALINGS
from fpsim.scaling.scaling import Scaling, scaling_facts, scaling_from
from fpsim.schedules.schedule import Schedule
from fpsim.schedules.written import MAKERS, parsed
from fpsim.sums.accumulators import Accumulator
from fpsim.torch.recipe import Delayed, LinearRecipe, Product
from fpsim.torch.rows import RECIPES
from fpsim.train.optimizer_recipe import OptimizerRecipe
from fpsim.train.recipe import Controller, Numerics, Override, Recipe, Stored

NONE = "none"  # TOML has no word for nothing
CLASSES = (Recipe, Override, Controller, Stored, Numerics, OptimizerRecipe, LinearRecipe, Product, Delayed,
           LossScalingPolicy)  # fmt: skip
FORMATS = (
    "input_fmt", "weight_fmt", "grad_fmt", "stash_fmt", "out_fmt", "fmt", "softmax", "norm", "loss", "reduction",
    "first_moment", "second_moment", "weights",
)  # fmt: skip
SCALED = (
    "input_scaling", "weight_scaling", "grad_scaling", "input_scaling_backward", "weight_scaling_backward",
    "grad_scaling_backward", "stash_scaling", "scaling",
)  # fmt: skip


def write(recipe: Recipe, path: Any = None) -> str:
    """A recipe as TOML."""
    toml = load("tomli_w", "writing a recipe")
    text = str(toml.dumps(plain(recipe)))
    if path is not None:
        write_whole(path_of(path), text)
    return text


def read(source: Any) -> Recipe:
    """The recipe of a file, or of a text that has a line break."""
    if isinstance(source, str) and "\n" in source:
        text, where = source, "the text"
    else:
        file = Path(path_of(source))
        text, where = file.read_text(encoding="utf-8"), str(file)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as reason:
        raise ValueError(f"a recipe must be TOML; got {where}, which is not: {reason}.") from None
    return recipe_from(table)


def recipe_from(table: dict[str, Any]) -> Recipe:
    """The recipe of a table of plain values.

    Raises:
      ValueError: a field that there is none of, or a value that it cannot have.
    """
    found: Recipe = _converter().structure(table, Recipe)
    return found


def plain(value: Any) -> dict[str, Any]:
    """A recipe as plain values: only the fields that differ from their defaults."""
    found: dict[str, Any] = _converter().unstructure(value)
    return found


def differences(recipe: Recipe, other: Recipe) -> list[str]:
    """What is different from another recipe, one line for each field; names and sources aside."""
    mine, theirs = (_flat(dataclasses.replace(each, name="", source="")) for each in (recipe, other))
    lines = []
    for key in dict.fromkeys([*mine, *theirs]):
        first, second = mine.get(key), theirs.get(key)
        if first != second:
            lines.append(f"{key}: {_word(first)} instead of {_word(second)}")
    return lines


def _word(value: Any) -> str:
    return NONE if value is None else str(value)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Every field, those of default values and of named rows too, by its path."""
    if isinstance(value, CLASSES):
        fields = [field for field in dataclasses.fields(value) if field.name not in ("name", "source", "faulty")]
        found: dict[str, Any] = {}
        for field in fields:
            found |= _flat(getattr(value, field.name), f"{prefix}.{field.name}" if prefix else field.name)
        return found
    if isinstance(value, tuple) and any(isinstance(item, CLASSES) for item in value):
        parts = [_flat(item, f"{prefix}[{index}]") for index, item in enumerate(value)]
        return {key: item for part in parts for key, item in part.items()}
    return {prefix: _leaf(value)}


# ---- single values


def _leaf(value: Any) -> Any:
    """A value as TOML holds it."""
    if value is None:
        return NONE
    if isinstance(value, Scaling):
        return value.name if SCALINGS.get(value.name) == value else scaling_facts(value)
    if isinstance(value, MatrixUnit):
        return value.name
    if isinstance(value, (Schedule, Accumulator)):
        return repr(value)
    if isinstance(value, Rounding):
        return value.name.lower()
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tuple):
        return [_leaf(item) for item in value]
    if isinstance(value, CLASSES):
        return _converter().unstructure(value)
    return element_facts(element_format(value))


def _format_from(word: Any, _: Any) -> Any:
    if word == NONE:
        return None
    return element_from(word) if isinstance(word, dict) else element_format(word)


def _scaling_from(word: Any, _: Any) -> Any:
    if word == NONE or word == "same":
        return None if word == NONE else word
    if isinstance(word, dict):
        return scaling_from(word)
    if word not in SCALINGS:
        raise unknown("scaling", word, list(SCALINGS))
    return SCALINGS[word]


def _text_from(word: Any, _: Any) -> Any:
    """A schedule or accumulator as it is written, or a word."""
    if word == NONE:
        return None
    return parsed(word) if isinstance(word, str) and word.partition("(")[0] in (*MAKERS, "FLAT") else word


def _or_none(word: Any, _: Any) -> Any:
    return None if word == NONE else word


def _policy_from(word: Any, _: Any) -> Any:
    return loss_scaling_policy(word) if isinstance(word, str) else _converter().structure(word, LossScalingPolicy)


def _policy_words(policy: Any) -> Any:
    return policy.name if POLICIES.get(policy.name) == policy else _converter().unstructure(policy)


def _linear_from(word: Any, _: Any) -> Any:
    return word if isinstance(word, str) else _converter().structure(word, LinearRecipe)


def _linear_words(linear: Any) -> Any:
    row = next((name for name, each in RECIPES.items() if each == linear), None)
    return row if row is not None else _converter().unstructure(linear)


def _linears_from(words: Any, kind: Any) -> Any:
    return tuple(_linear_from(word, kind) for word in words)


def _many(cls: type) -> Any:
    """What reads a list of tables."""
    return lambda words, _: tuple(_converter().structure(word, cls) for word in words)


def _one(cls: type) -> Any:
    """What reads a table, or nothing."""
    return lambda word, _: None if word == NONE else _converter().structure(word, cls)


READERS: dict[str, Any] = {
    **dict.fromkeys(FORMATS, _format_from), **dict.fromkeys(SCALED, _scaling_from),
    **dict.fromkeys(("accumulate", "schedule", "sums"), _text_from),
    "linear": _linear_from, "levels": _linears_from, "loss_scaling": _policy_from,
    "overrides": _many(Override), "stored": _many(Stored), "controller": _one(Controller), "numerics": _one(Numerics),
    "optimizer": _one(OptimizerRecipe), "delayed": _one(Delayed),
    "fprop": _one(Product), "dgrad": _one(Product), "wgrad": _one(Product),
}  # fmt: skip
WRITERS: dict[str, Any] = {
    "linear": _linear_words, "loss_scaling": _policy_words,
    "levels": lambda levels: [_linear_words(each) for each in levels],
}  # fmt: skip


@cache
def _converter() -> Any:
    """cattrs, with a reader and a writer for every field."""
    cattrs = load("cattrs", "recipes in TOML")
    converter = cattrs.Converter()
    for cls in CLASSES:
        converter.register_structure_hook(cls, _structure(cls))
        converter.register_unstructure_hook(cls, _unstructure(cls))
    return converter


def _structure(cls: type) -> Any:
    """A table of plain values -> an object of a class; a field that there is none of is refused."""
    names = [field.name for field in dataclasses.fields(cls)]

    def structure(table: Any, kind: Any) -> Any:
        if not isinstance(table, dict):
            raise ValueError(f"a table with fields of {cls.__name__} is needed; got {shown(table)}.")
        for name in table:
            if name not in names:
                raise unknown(f"field of {cls.__name__}", name, names)
        values = {name: READERS.get(name, _or_none)(word, kind) for name, word in table.items()}
        return cls(**values)

    return structure


def _unstructure(cls: type) -> Any:
    """An object of a class -> its fields that differ from their defaults, as plain values."""

    def unstructure(value: Any) -> dict[str, Any]:
        found = {}
        for field in dataclasses.fields(cls):
            held = getattr(value, field.name)
            if held != field.default and not (field.name == "name" and cls is LinearRecipe):
                found[field.name] = WRITERS.get(field.name, _leaf)(held)
        return found

    return unstructure
