"""Progress of long work: a bar on a terminal, lines of text elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fpsim.display.wording import short

Progress = Callable[[float, str], None]
LINES_EVERY = 10.0  # seconds between lines
BESIDE = 15  # columns of text that the percentage and the clock need


@contextmanager
def bar(title: str = "", *, lines: bool = False, quiet: bool = False) -> Iterator[Progress]:
    """Return a context whose value is a function (share done, 0 to 1; activity) that shows both on stderr.

    On a terminal, the function draws a bar (if rich is installed), which is erased at the end. Elsewhere it prints a
    line every 10 seconds if `lines` is true, else nothing.

    Args:
      title: text before every activity.
      lines: print lines if stderr is not a terminal.
      quiet: show nothing at all.

    Example:
      >>> from fpsim.display.progress import bar
      >>> with bar("sweep") as progress:
      ...     progress(0.5, "1 of 2")
    """
    terminal = sys.stderr.isatty()
    if terminal and not quiet and importlib.util.find_spec("rich") is not None:
        with _drawn(title) as progress:
            yield progress
    elif lines and not terminal and not quiet:
        yield _Lines(title)
    else:
        yield lambda share, activity: None


class _Lines:
    """Function (share done, activity) that prints progress on stderr, at most once in 10 seconds."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._began = self._printed = time.monotonic()

    def __call__(self, share: float, activity: str) -> None:
        now = time.monotonic()
        if now - self._printed < LINES_EVERY:
            return
        self._printed = now
        minutes, seconds = divmod(int(now - self._began), 60)
        text = short(f"{self._title}: {activity}" if self._title else activity, 100)
        print(f"{100 * share:3.0f} % after {minutes}:{seconds:02d}, {text}", file=sys.stderr, flush=True)


@contextmanager
def _drawn(title: str) -> Iterator[Progress]:
    """Return a context whose value is a function (share done, activity) that draws a bar on stderr, erased at the end.

    title: the text before every activity; "" for none.
    """
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    width = 20 if console.width >= 100 else 10  # so that the text of a training step fits into 80 columns
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(width), TaskProgressColumn(), TimeElapsedColumn()
    )  # fmt: skip
    with Bars(*columns, console=console, transient=True) as bars:
        task = bars.add_task(title or "starting", total=1.0)

        def show(share: float, activity: str) -> None:
            text = f"{title}: {activity}" if title else activity
            bars.update(task, completed=share, description=short(text, max(console.width - width - BESIDE, 20)))

        yield show
        bars.update(task, completed=1.0, refresh=True)
