"""Element formats of scaled quantisation: floats, integers, LogFMT and tables, found by name, dtype or object."""

from __future__ import annotations

import re
from typing import Any

from fpsim.formats.cast_options import FormatLike
from fpsim.formats.dtypes import dtype_of
from fpsim.formats.float_format import Format
from fpsim.formats.integer_format import DTYPES, INTEGERS, IntegerFormat
from fpsim.formats.log_format import LogFMT
from fpsim.formats.named import format as find_format
from fpsim.formats.named import is_torch
from fpsim.formats.table_format import TableFormat, refuse_table, table_format

Element = Format | IntegerFormat | LogFMT | TableFormat
ElementLike = FormatLike | IntegerFormat | LogFMT  # types that `element_format` accepts


def coded_element(spec: Any) -> Format | IntegerFormat | LogFMT:
    """Return the element format (float, integer or LogFMT, but no table) for `spec`, a name, dtype or object.

    Raises:
      ValueError: no element format has that name, or it is a table format.
    """
    element = element_format(spec)
    if isinstance(element, TableFormat):
        refuse_table(element)
    return element


def element_format(spec: Any) -> Element:
    """Return the float, integer, LogFMT or table format for a name, dtype or object; ValueError if there is none.

    Example:
      >>> from fpsim.formats.element import element_format
      >>> [element_format(spec).name for spec in ("int8", np.dtype("uint8"), "e4m3", "logfmt-8")]
      ['INT8', 'UINT8', 'E4M3', 'LogFMT-8']
    """
    if isinstance(spec, (Format, IntegerFormat, LogFMT, TableFormat)):
        return spec
    if isinstance(spec, str):
        name = spec.strip().upper()
        table = table_format(spec)
        if name in INTEGERS or table is not None:
            return INTEGERS[name] if table is None else table
        match = re.fullmatch(r"LOGFMT[-_ ]?(\d+)(?:BIT)?", name)
        if match:
            return LogFMT(int(match[1]))
    elif is_torch(spec):
        name = str(spec).removeprefix("torch.").upper()
        if name in INTEGERS:
            return INTEGERS[name]
    elif spec is not None:
        dtype = dtype_of(spec)
        if dtype is not None and dtype in DTYPES:
            return DTYPES[dtype]
    return find_format(spec)


def element_argument(name: str, spec: Any) -> Element:
    """Return the float, integer, LogFMT or table format that a caller passed as an argument, by name, dtype or object.

    name: name of the argument, for the error. spec: its value.

    Raises:
      ValueError: nothing has that name; the message begins with `name`.
    """
    try:
        return element_format(spec)
    except ValueError as refusal:
        raise ValueError(re.sub(r"^format\b", name, str(refusal))) from None
