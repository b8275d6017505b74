"""Checks of a checkpoint's quantisation settings by themselves: fields whose values have a type that readers refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.errors import shown

Check = tuple[Callable[[Any], bool], str]  # test of a value that was read from JSON, and the values that pass it


def _is_count(value: Any) -> bool:
    """Return whether a value read from JSON is an integer >= 1 (true is not)."""
    return type(value) is int and value >= 1


TEXT: Check = (lambda value: isinstance(value, str), "a text")
FLAG: Check = (lambda value: isinstance(value, bool), "true or false")
COUNT: Check = (_is_count, "an integer >= 1")
GROUP: Check = (
    lambda value: _is_count(value) or (type(value) is int and value == -1), "an integer >= 1, or -1 for whole columns",
)  # fmt: skip
PAIR: Check = (
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_count, value)),
    "a list of two integers >= 1, rows and columns",
)
TEXTS: Check = (
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of texts",
)  # fmt: skip
FIELDS: dict[str, Check] = {
    **dict.fromkeys(("quant_method", "quant_algo", "checkpoint_format", "fmt", "format", "scale_fmt"), TEXT),
    "bits": COUNT, "group_size": GROUP, **dict.fromkeys(("sym", "desc_act", "zero_point"), FLAG),
    "weight_block_size": PAIR, **dict.fromkeys(("ignore", "exclude_modules"), TEXTS),
}  # fmt: skip
SCHEME_FIELDS: dict[str, Check] = {
    "num_bits": COUNT, "group_size": GROUP, "symmetric": FLAG, "type": TEXT, "strategy": TEXT, "block_structure": PAIR,
}  # fmt: skip


def configuration_findings(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each quantisation setting of a checkpoint whose value is not of a type that readers accept.

    settings: field -> value. Fields that are null count as absent; fields that fpsim does not know are not checked.
    """
    if settings.get("quant_method") == "hqq":
        return  # its settings are nested, and checked with each weight
    yield from _wrong(settings, FIELDS, "")
    groups = settings.get("config_groups")
    if groups is None:
        return
    if not isinstance(groups, Mapping) or not all(isinstance(group, Mapping) for group in groups.values()):
        text = f"the configuration's config_groups must be an object of objects, a scheme each; got {shown(groups)}."
        yield Finding("", "config_groups", text)
        return
    if not groups:
        yield Finding("", "config_groups", "the configuration's config_groups name no scheme; readers need one.")
    for name, group in groups.items():
        weights = group.get("weights")
        if isinstance(weights, Mapping):
            yield from _wrong(weights, SCHEME_FIELDS, f" of the weights of {name}")


def disagreement_findings(by_file: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield a finding for each quantisation setting that has different values in two configurations of a checkpoint.

    by_file: name of a configuration's file -> its settings, field -> value. Lists of modules may differ, and fields may
    be missing in one of them.
    """
    for (first, mine), (second, others) in combinations(by_file.items(), 2):
        for field, (_, wanted) in FIELDS.items():
            values = mine.get(field), others.get(field)
            if None not in values and values[0] != values[1] and wanted != TEXTS[1]:
                text = f"{first} says {field} {shown(values[0])}, and {second} says {shown(values[1])}."
                yield Finding("", f"{field} in two files", text)


def _wrong(settings: Mapping[str, Any], fields: Mapping[str, Check], owner: str) -> Iterator[Finding]:
    """Yield a finding for each field of `settings`, field -> value, whose value fails its check.

    fields: field -> (check, accepted values as text). owner: text after the field's name in messages, such as " of the
    weights of group_0".
    """
    for field, (fits, wanted) in fields.items():
        value = settings.get(field)
        if value is not None and not fits(value):
            text = f"the configuration's {field}{owner} must be {wanted}; got {shown(value)}."
            yield Finding("", f"{field}{owner} of another type", text)


def only_scheme(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the one scheme (an entry of "config_groups") in quantisation settings; {} if there is none or several."""
    groups = settings.get("config_groups")
    schemes = [group for group in groups.values() if isinstance(group, Mapping)] if isinstance(groups, Mapping) else []
    return schemes[0] if len(schemes) == 1 else {}
