"""Random numbers of a run: against Philox's words by hand."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from fpsim.train.draws import indices, normal_numbers


def test_normal_numbers_are_sums_of_twelve_integers_of_philox() -> None:
    words = np.random.Philox(key=[5, 4], counter=[0, 0, 0, 9]).random_raw(6 * 70).tolist()
    want = []
    for i in range(70):
        halves = [half for word in words[6 * i : 6 * i + 6] for half in (word % 2**32, word // 2**32)]
        want.append(float(Fraction(sum(halves) - 6 * 2**32, 2**32)))
    got = normal_numbers(5, 9, (10, 7))
    assert got.shape == (10, 7)
    assert got.reshape(-1).tolist() == want
    many = normal_numbers(0, 0, (40000,))
    assert np.abs(many).max() < 6
    # means of 40,000 such numbers, of their squares and fourth powers: within 5 of their standard deviations
    for power, mean, deviation in ((1, 0, 1), (2, 1, 2**0.5), (4, 2.9, 9)):
        assert abs((many**power).mean() - mean) < 5 * deviation / 200


def test_every_place_to_train_at_is_drawn_and_none_behind_it() -> None:
    drawn = indices(0, 0, 0, 4000, 200)
    assert set(drawn.tolist()) == set(range(200))
