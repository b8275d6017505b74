"""A bar in the terminal for work that takes a while."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[float, str], None]


@contextmanager
def bar(title: str) -> Iterator[Progress]:
    """A function of (share done, what is going on) that draws a bar; it does nothing without rich or a terminal.

    Example:
      >>> from fpsim.display.progress import bar
      >>> with bar("sweep") as progress:
      ...     progress(0.5, "1 of 2")
    """
    if importlib.util.find_spec("rich") is None or not sys.stderr.isatty():
        yield lambda share, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        task = bars.add_task(title, total=1.0)
        yield lambda share, text: bars.update(task, completed=share, description=f"{title}: {text}")
