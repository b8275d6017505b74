"""Progress on stderr: lines where there is no terminal, a bar that ends at 100 % where there is one."""

from __future__ import annotations

import io
import re
import sys

import pytest

from fpsim.display import progress as shown


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the module reads, in a list of one."""
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_a_line_is_printed_every_10_seconds_without_a_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with shown.bar(lines=True) as progress:
        for second in range(75):
            progress(second / 100, f"step {second}")
            clock[0] += 1
    assert capsys.readouterr().err.splitlines() == [
        f"{second:3d} % after {second // 60}:{second % 60:02d}, step {second}" for second in range(10, 75, 10)
    ]


def test_a_library_call_prints_nothing_without_a_terminal(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    for options in ({}, {"lines": True, "quiet": True}):
        with shown.bar("sweep", **options) as progress:
            clock[0] += 100
            progress(0.5, "half")
    assert capsys.readouterr() == ("", "")


def drawn(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> list[int]:
    """The percentages that a bar showed on a terminal."""
    pytest.importorskip("rich")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    try:
        with shown.bar() as progress:
            progress(0.5, "[red]half of the steps of a recipe with a name that is longer than the terminal is wide")
            if fails:
                raise ValueError
    except ValueError:
        pass
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())
    assert max(len(line) for line in re.split(r"[\r\n]", text)) <= 80
    return [int(number) for number in re.findall(r"(\d+)%", text)]


def test_a_bar_ends_at_100_percent_where_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn(monkeypatch, fails=False)[-1] == 100
    assert 100 not in drawn(monkeypatch, fails=True)
