"""HTML pages that need no other files, from templates that share one stylesheet and one frame."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Sequence
from importlib import metadata, resources
from typing import Any, NamedTuple

from fpsim.display.optional import load
from fpsim.display.wording import printable

FRAME = "fpsim.display"  # the package whose folder `templates` contains what all pages share


class TableCell(NamedTuple):
    """A number in a table: its text, and the value by which the column is sorted and filtered."""

    text: str
    value: float


class TableRow(NamedTuple):
    """A row of an HTML table.

    Attributes:
      cells: texts and numbers.
      marked: whether the row is highlighted.
      inside: lines of text in the first cell that are hidden until the reader opens them.
    """

    cells: Sequence[str | TableCell]
    marked: bool = False
    inside: Sequence[str] = ()


class Picture(NamedTuple):
    """A figure on a page: its title, and its SVG as `markup` returns it."""

    title: str
    svg: Any


def render(package: str, template: str, **values: Any) -> str:
    """Return an HTML page made from a template.

    Texts among the values are untrusted: they are escaped, and characters that control a terminal or reverse the
    direction of text are replaced. Trusted SVG or HTML is passed as the result of `markup`.

    Args:
      package: the package that contains the template.
      template: name of the template file, which extends "base.html.jinja" and may import `table` from
        "table.html.jinja".
      values: variables of the template.
    Raises:
      ImportError: jinja2 is not installed.

    Example:
      >>> from fpsim.display.pages import TableRow, render
      >>> text = render("fpsim.display.templates", "base.html.jinja", title="<b>")
      >>> "<title>&lt;b&gt;</title>" in text
      True
    """
    jinja2 = load("jinja2", "a page")

    def source(name: str) -> str | None:
        for file in (resources.files(package) / name, resources.files(FRAME) / "templates" / name):
            if file.is_file():
                return file.read_text(encoding="utf-8")
        return None

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # markup is a type of its own
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    shared = {name: markup(source(name) or "") for name in ("page.css", "page.js")}
    page = environment.get_template(template).render(css=shared["page.css"], js=shared["page.js"], **values)
    return str(page)


def versions(*names: str) -> str:
    """Return the versions of Python and of those of the packages `names` that are installed, as text.

    Example:
      >>> from fpsim.display.pages import versions
      >>> versions("no-such-package").startswith("Python 3.")
      True
    """
    lines = [f"Python {platform.python_version()}"]
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            lines.append(f"{name} {metadata.version(name)}")
    return ", ".join(lines)


def markup(text: str) -> Any:
    """Return `text`, trusted HTML or SVG, marked so that templates insert it without escaping."""
    return load("markupsafe", "a page").Markup(text)
