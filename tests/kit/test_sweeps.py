"""Cases in turn: a test gets all of them, and a failure names its own."""

from __future__ import annotations

import inspect

import pytest

from tests.kit.sweeps import in_turn

CASES = [(1, "one"), (2, "two"), (3, "three")]


def test_a_test_gets_every_case_and_keeps_its_other_parameters() -> None:
    seen: list[object] = []

    @in_turn("number, word", CASES)
    def test(number: int, word: str, fixture: str) -> None:
        seen.append((number, word, fixture))

    assert list(inspect.signature(test).parameters) == ["fixture"]
    test(fixture="given")
    assert seen == [(*each, "given") for each in CASES]


def test_a_failure_names_its_case() -> None:
    @in_turn("number, word", CASES)
    def test(number: int, word: str) -> None:
        assert number != 2

    with pytest.raises(AssertionError) as caught:
        test()
    assert caught.value.__notes__ == ["in the case 2, two"]


@pytest.mark.parametrize(("skipped", "error"), [(1, pytest.skip.Exception), (2, AssertionError)])
def test_only_the_first_case_may_skip_them_all(skipped: int, error: type[BaseException]) -> None:
    @in_turn("number, word", CASES)
    def test(number: int, word: str) -> None:
        if number == skipped:
            pytest.skip("without what is needed")

    with pytest.raises(error, match="without what is needed"):
        test()
