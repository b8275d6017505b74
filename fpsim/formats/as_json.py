"""Conversion of formats and element formats to values that JSON can hold, and back."""

from __future__ import annotations

import dataclasses
from typing import Any

from fpsim.formats.element import Element
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import NAMED
from fpsim.formats.table_format import TABLES, TableFormat


def format_fields(fmt: Format) -> Any:
    """Return a format as a value for JSON: the name of a built-in format, else a dict of its fields.

    Example:
      >>> import fpsim as fp
      >>> from fpsim.formats.as_json import format_fields, format_from
      >>> mine = fp.Format("mine", 3, 2)
      >>> format_fields(fp.E4M3), format_from(format_fields(mine)) == mine
      ('E4M3', True)
    """
    if NAMED.get(fmt.name) == fmt:
        return fmt.name
    return {field.name: getattr(fmt, field.name) for field in dataclasses.fields(fmt)}


def format_from(fields: Any) -> Format:
    """Return the format that `fields` describes: the name of a built-in format, or a dict of the fields of `Format`.

    These are the values that `format_fields` returns.

    Raises:
      KeyError: no built-in format has that name.
    """
    return NAMED[fields] if isinstance(fields, str) else Format(**fields)


def element_fields(fmt: Element) -> Any:
    """Return a float, integer, LogFMT or table format as a value for JSON, which `element_from` reads back.

    A float format becomes what `format_fields` returns: its name or a dict of its fields. The other formats become a
    dict with one key: {"integer": fields}, {"logfmt": bits}, or {"table": name}, with the fields in place of the name
    if the table is not built in.
    """
    if isinstance(fmt, Format):
        return format_fields(fmt)
    if isinstance(fmt, TableFormat):
        if TABLES.get(fmt.name) == fmt:
            return {"table": fmt.name}
        return {"table": {**dataclasses.asdict(fmt), "values": [value.hex() for value in fmt.values]}}  # Inf, NaN too
    return {"integer": dataclasses.asdict(fmt)} if isinstance(fmt, IntegerFormat) else {"logfmt": fmt.bits}


def element_from(fields: Any) -> Element:
    """Return the float, integer, LogFMT or table format that `fields`, a value from `element_fields`, describes.

    `fields` is the name of a built-in float format, a dict of the fields of `Format`, or a dict with one of the keys
    "integer", "logfmt" and "table".
    """
    if isinstance(fields, dict) and "integer" in fields:
        return IntegerFormat(**fields["integer"])
    if isinstance(fields, dict) and "table" in fields:
        table = fields["table"]
        if isinstance(table, str):
            return TABLES[table]
        return TableFormat(**{**table, "values": tuple(float.fromhex(text) for text in table["values"])})
    if isinstance(fields, dict) and "logfmt" in fields:
        return LogFMT(fields["logfmt"])
    return format_from(fields)
