"""Cases in turn: a test gets all of them, and a failure names its own."""

from __future__ import annotations

import inspect
import itertools

import pytest

from tests.kit.sweeps import each_once, in_turn

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


@pytest.mark.parametrize("turns", [1, 2])
def test_each_value_is_taken_in_a_short_run_and_every_combination_in_a_long_one(turns: int) -> None:
    axes = ("abcd", "xy", range(3))
    combinations = each_once("a, b, c", *axes, turns=turns).args[1]
    assert {each.values for each in combinations} == set(itertools.product(*axes))
    short = [each.values for each in combinations if not each.marks]
    assert len(short) == 4 * turns
    for place, axis in enumerate(axes):
        counts = [sum(values[place] == value for values in short) for value in axis]
        assert min(counts) >= turns, axis
