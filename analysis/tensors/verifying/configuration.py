"""Checks of a checkpoint's quantisation settings by themselves: fields whose values have another type than readers
accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.errors import shown


def _is_count(value: Any) -> bool:
    """Return whether a value read from JSON is an integer >= 1 (true is not)."""
    return type(value) is int and value >= 1


def _is_group(value: Any) -> bool:
    """Return whether a value read from JSON is a group size: an integer >= 1, or -1 for whole columns."""
    return _is_count(value) or (type(value) is int and value == -1)


def _is_flag(value: Any) -> bool:
    """Return whether a value read from JSON is true or false."""
    return isinstance(value, bool)


def _is_text(value: Any) -> bool:
    """Return whether a value read from JSON is a string."""
    return isinstance(value, str)


def _is_pair(value: Any) -> bool:
    """Return whether a value read from JSON is a list of two integers >= 1, the rows and columns of a block."""
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


def _is_list(value: Any) -> bool:
    """Return whether a value read from JSON is a list of strings."""
    return isinstance(value, list) and all(map(_is_text, value))


# field -> (the check of its value, the values that readers accept)
FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "quant_method": (_is_text, "a text"),
    "quant_algo": (_is_text, "a text"),
    "checkpoint_format": (_is_text, "a text"),
    "fmt": (_is_text, "a text"),
    "format": (_is_text, "a text"),
    "scale_fmt": (_is_text, "a text"),
    "bits": (_is_count, "an integer >= 1"),
    "group_size": (_is_group, "an integer >= 1, or -1 for whole columns"),
    "sym": (_is_flag, "true or false"),
    "desc_act": (_is_flag, "true or false"),
    "zero_point": (_is_flag, "true or false"),
    "weight_block_size": (_is_pair, "a list of two integers >= 1, rows and columns"),
    "ignore": (_is_list, "a list of texts"),
    "exclude_modules": (_is_list, "a list of texts"),
}
SCHEME_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "num_bits": (_is_count, "an integer >= 1"),
    "group_size": (_is_group, "an integer >= 1, or -1 for whole columns"),
    "symmetric": (_is_flag, "true or false"),
    "type": (_is_text, "a text"),
    "strategy": (_is_text, "a text"),
    "block_structure": (_is_pair, "a list of two integers >= 1, rows and columns"),
}


def configuration_findings(settings: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each field of a checkpoint's quantisation settings whose value has another type than readers
    accept.

    Fields that are null count as absent. Fields that fpsim does not know are not checked.
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


def _wrong(
    settings: Mapping[str, Any], fields: Mapping[str, tuple[Callable[[Any], bool], str]], owner: str
) -> Iterator[Finding]:
    """Yield a finding for each field whose value fails its check.

    settings: field -> value. fields: field -> (check, accepted values as text). `owner`: end of the field's name in
    messages, such as " of the weights of group_0".
    """
    for field, (fits, wanted) in fields.items():
        value = settings.get(field)
        if value is not None and not fits(value):
            text = f"the configuration's {field}{owner} must be {wanted}; got {shown(value)}."
            yield Finding("", f"{field}{owner} of another type", text)
