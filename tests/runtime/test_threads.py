"""Work over the processor's cores: spans cover everything once, also where workers divide their work again."""

from __future__ import annotations

from functools import partial
from threading import Lock

import pytest

from fpsim.runtime.threads import SMALLEST, over_spans


def test_workers_may_divide_their_work_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", "3")
    found, lock = [0] * 6, Lock()

    def outer(start: int, stop: int) -> None:
        for part in range(start, stop):
            over_spans(2, partial(inner, part), 1, weight=SMALLEST)

    def inner(part: int, start: int, stop: int) -> None:
        with lock:
            found[part] += stop - start

    for _ in range(20):
        over_spans(6, outer, 1, weight=SMALLEST)
    assert found == [40] * 6
