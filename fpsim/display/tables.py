"""Tables as lines of text and as HTML."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence


def aligned(rows: Sequence[Sequence[str]], texts: int) -> list[str]:
    """Return rows as lines of columns, the first `texts` columns left-aligned and the others right-aligned.

    Example:
      >>> from fpsim.display.tables import aligned
      >>> aligned([("layer", "bits"), ("up", "8")], texts=1)
      ['layer  bits', 'up        8']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        lines.append("  ".join(x.ljust(w) if i < texts else x.rjust(w) for i, (x, w) in cells).rstrip())
    return lines


def html_pairs(rows: Mapping[str, str]) -> str:
    """Return names and values as an HTML table, one row per name.

    Example:
      >>> from fpsim.display.tables import html_pairs
      >>> html_pairs({"zeros": "3"})
      "<table><tr><th style='text-align:left'>zeros</th><td>3</td></tr></table>"
    """
    cells = (
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>"
        for name, value in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"


def html_paragraphs(lines: Iterable[str]) -> str:
    """Return lines of text as HTML paragraphs, with special characters escaped.

    Example:
      >>> from fpsim.display.tables import html_paragraphs
      >>> html_paragraphs(["a < b", "c"])
      '<p>a &lt; b</p><p>c</p>'
    """
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def html_table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as HTML, with floats in three significant digits and texts escaped.

    heads: titles of the columns. rows: the cells of each row.

    Example:
      >>> from fpsim.display.tables import html_table
      >>> html_table(["layer", "error"], [["a<b", 0.02468]])
      '<table><tr><th>layer</th><th>error</th></tr><tr><td>a&lt;b</td><td>0.0247</td></tr></table>'
    """

    def row(cells: Iterable[object], tag: str) -> str:
        texts = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells)
        return f"<tr>{''.join(f'<{tag}>{html.escape(text)}</{tag}>' for text in texts)}</tr>"

    return f"<table>{row(heads, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"
