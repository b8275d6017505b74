"""Converts formats and element formats to values that JSON can hold, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import NAMED


def format_facts(fmt: Format) -> Any:
    """A format: its name where it is a named one, else its fields.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.formats.as_json import format_facts, format_from
      >>> mine = fp.Format("mine", 3, 2)
      >>> format_facts(fp.E4M3), format_from(format_facts(mine)) == mine
      ('E4M3', True)
    """
    if NAMED.get(fmt.name) == fmt:
        return fmt.name
    return {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt)}


def format_from(facts: Any) -> Format:
    """What `format_facts` described."""
    return NAMED[facts] if isinstance(facts, str) else Format(**facts)


def element_facts(fmt: Element) -> Any:
    """An element format."""
    if isinstance(fmt, Format):
        return format_facts(fmt)
    return {"integer": dataclasses.asdict(fmt)} if isinstance(fmt, IntegerFormat) else {"logfmt": fmt.bits}


def element_from(facts: Any) -> Element:
    """What `element_facts` described."""
    if isinstance(facts, dict) and "integer" in facts:
        return IntegerFormat(**facts["integer"])
    if isinstance(facts, dict) and "logfmt" in facts:
        return LogFMT(facts["logfmt"])
    return format_from(facts)
