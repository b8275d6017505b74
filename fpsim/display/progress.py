"""Progress of work that takes a while: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fpsim.display.wording import short

Progress = Callable[[float, str], None]
LINES_EVERY = 10.0  # seconds
BESIDE = 15  # columns that a bar's percentage and its clock take


@contextmanager
def bar(title: str = "", *, lines: bool = False, quiet: bool = False) -> Iterator[Progress]:
    """Yield a function of (share done, activity) that shows both on stderr.

    On a terminal it draws a bar, which ends at 100 % and is then erased; that needs rich. Elsewhere it prints a line
    every 10 seconds if `lines` asks for them, otherwise nothing.

    Args:
      title: text before every activity.
      lines: whether lines are printed where there is no terminal.
      quiet: whether nothing is shown at all.

    Example:
      >>> from fpsim.display.progress import bar
      >>> with bar("sweep") as progress:
      ...     progress(0.5, "1 of 2")
    """
    if quiet:
        yield lambda share, activity: None
    elif not sys.stderr.isatty():
        yield _Lines(title) if lines else lambda share, activity: None
    elif importlib.util.find_spec("rich") is None:
        yield lambda share, activity: None
    else:
        with _drawn(title) as progress:
            yield progress


class _Lines:
    """Progress on stderr, printed at most once in 10 seconds."""

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
    """Draw a bar, and complete it where the work ends without an error."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    width = 20 if console.width >= 100 else 10  # so that 80 columns hold what a training step says
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
