"""The help of every command: all its words are shown, defaults included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")


def commands() -> Iterator[tuple[list[str], Any]]:
    """The words of every command, and its click command."""
    import typer.main

    from fpsim.cli.commands import app

    waiting: list[tuple[list[str], Any]] = [([], typer.main.get_command(app))]
    while waiting:
        words, found = waiting.pop()
        yield words, found
        waiting += [([*words, name], below) for name, below in getattr(found, "commands", {}).items()]


def shown(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The help that a terminal of 80 columns shows, without its frame."""
    from fpsim.cli.main import main

    capfd.readouterr()
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    lines = capfd.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    return " ".join(" ".join(line.strip("│ ") for line in lines).split())


def test_the_help_shows_every_word_of_its_options(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words, found in commands():
        text = set(shown(words, capfd).split())
        for parameter in found.params:
            if getattr(parameter, "hidden", False):  # an old name
                continue
            missing = set((getattr(parameter, "help", None) or "").split()) - text
            assert not missing, (words, parameter.name, missing)


@pytest.mark.parametrize(
    ("words", "default"),
    [
        ("study", "those of the 14 candidates"),
        ("study", "nearest_even toward_zero stochastic"),
        ("train", "8, or 128 vectors of the perceptron"),
        ("train", "BF16, else FP32, else the first recipe"),
        ("diagnose", "BF16 and the FP8 recipes that the chip has"),
        ("probe", "the same as a"),
        ("check", "nonfinite"),
    ],
)
def test_defaults_that_depend_on_other_options_are_shown(
    words: str, default: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = shown([words], capfd).split("[default: ")
    assert any(part.replace("-", "").startswith(f"({default})") for part in text), text


def test_the_roundings_that_the_help_of_study_names_are_its_defaults(capfd: pytest.CaptureFixture[str]) -> None:
    from fpsim.analysis.studies.study import ROUNDINGS

    assert " ".join(ROUNDINGS) in shown(["study"], capfd)
