"""Fixtures that several tests of this folder take."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli_cases import Command, Done


@pytest.fixture
def fpsim(capfd: pytest.CaptureFixture[str]) -> Command:
    """`fpsim` with arguments in this process, which would show what leaves it."""

    def run(*arguments: str | Path) -> Done:
        from fpsim.cli.main import main

        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments)])
        assert isinstance(end.value.code, int)
        return Done(end.value.code, *capfd.readouterr())

    return run
