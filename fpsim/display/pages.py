"""Pages: HTML files that need no other files, from templates that all share one stylesheet and one frame."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Sequence
from importlib import metadata, resources
from typing import Any, NamedTuple

from fpsim.display.optional import load
from fpsim.display.wording import printable

FRAME = "fpsim.display"  # the package whose folder `templates` has what every page shares


class TableCell(NamedTuple):
    """A number in a table: the text that people read, and the value that the column is sorted and filtered by."""

    text: str
    value: float


class TableRow(NamedTuple):
    """A row of a table: text, numbers and marks."""

    cells: Sequence[str | TableCell]
    marked: bool = False
    inside: Sequence[str] = ()  # what the first cell unfolds to


class Picture(NamedTuple):
    """A figure on a page: its title, and the SVG as markup."""

    title: str
    svg: Any


def render(package: str, template: str, **values: Any) -> str:
    """Return a page as text.

    Text among the values is untrusted: it is escaped, and characters that steer a terminal or reverse the direction of
    text are replaced. Markup of figures comes as `markup`.

    Args:
      package: the package whose folder has the template.
      template: a file that extends "base.html.jinja", and imports `table` from "table.html.jinja".
      values: what the template reads.
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
    """Return the versions of Python and of the packages that are installed, for the foot of a page.

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
    """Mark trusted HTML or SVG, which templates then insert without escaping it."""
    return load("markupsafe", "a page").Markup(text)
