"""The fuzzer finds what is planted, repeats it by its number, and finds nothing in a short run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from tests.fuzz import __main__ as fuzzer
from tests.fuzz import junk
from tests.fuzz.valid import DRAWS


def test_a_short_run_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzzer.main(["--minutes", "0.01", "--seed", "1"]) == 0
    assert "0 findings, seed 1" in capsys.readouterr().out


def test_a_planted_bit_is_found_and_repeated_by_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = fp.encode

    def wrong(x: Any, fmt: Any, **words: Any) -> Any:
        codes = plain(x, fmt, **words)
        return codes ^ codes.dtype.type(words.get("rounding") == "up")

    monkeypatch.setattr(fp, "encode", wrong)
    found = next(each for each in (fuzzer.draw(0, number) for number in range(900, 3000)) if "encode(" in each.error)
    assert "gives 0x" in found.error
    assert fuzzer.draw(0, found.number) == found
    assert fuzzer.main(["--only", str(found.number)]) == 1
    assert found.error in capsys.readouterr().out


@pytest.mark.parametrize("kind", DRAWS)
def test_every_kind_of_call_is_drawn_and_checked(kind: str) -> None:
    assert sum(DRAWS[kind](np.random.default_rng([7, i])) for i in range(3)) > 0


def raises(error: Exception) -> Any:
    """Fail."""

    def function(*_: Any) -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError("x"), "KeyError"),
        (ValueError("two\nlines"), "several lines"),
        (ValueError("x" * 601), "601 characters"),
        (TypeError("f() takes 1 positional argument but 2 were given"), "words of a library"),
        (RuntimeWarning("overflow encountered"), "RuntimeWarning"),
    ],
)
def test_what_is_no_sentence_is_a_finding(error: Exception, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        junk.judge(raises(error), [1], {}, "a call")
    junk.judge(raises(ValueError("x must be small; got 1.")), [1], {}, "a call")


def test_a_call_that_does_not_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(junk, "SECONDS", 0.1)

    def endless() -> None:
        while True:
            pass

    with pytest.raises(AssertionError, match=r"took more than 0\.1 s"):
        junk.judge(endless, [], {}, "a call")
