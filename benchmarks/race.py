"""Races: contestants do equal work in turns, so that other work on the machine disturbs all alike."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from threadpoolctl import threadpool_limits

Work = Callable[[], object]
TURNS = 15
MIN_TURNS = 3
SECONDS = 1.2  # a race of slow contestants ends after about this time, with at least MIN_TURNS turns


@dataclass(frozen=True)
class RaceResult:
    """The times of a race.

    medians, fastest: contestant -> seconds of its median and its fastest turn. spreads: contestant -> spread of its
    times relative to their median. turns: number of turns of each contestant.
    """

    medians: dict[str, float]
    fastest: dict[str, float]
    spreads: dict[str, float]
    turns: int


def race(contestants: dict[str, Work], *, turns: int = TURNS, seconds: float = SECONDS) -> RaceResult:
    """Run every contestant once to warm up, then all of them in turns; return their seconds."""
    for work in contestants.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    gc.collect()
    began = time.perf_counter()
    done = 0
    while done < turns and (done < MIN_TURNS or time.perf_counter() - began < seconds):
        for name, work in contestants.items():
            start = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - start)
        done += 1
    return RaceResult(
        {name: statistics.median(taken) for name, taken in times.items()},
        {name: min(taken) for name, taken in times.items()},
        {name: spread(taken) for name, taken in times.items()},
        done,
    )


def spread(taken: list[float]) -> float:
    """Return the width of the middle half of the times (of all, if fewer than four) as a share of their median."""
    if len(taken) < 4:
        return (max(taken) - min(taken)) / statistics.median(taken)
    low, middle, high = statistics.quantiles(taken, n=4)
    return (high - low) / middle


def again(work: Work, times: int) -> Work:
    """Return a function that calls `work` `times` times, for work that is too short to be timed."""

    def several() -> None:
        for _ in range(times):
            work()

    return several


@contextmanager
def one_core() -> Iterator[None]:
    """Pin every thread of this process to one core inside the block, if the system can.

    Threads that libraries started at import, such as those of NumPy's OpenBLAS, would use other cores otherwise.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    _pin({max(before)})
    try:
        with threadpool_limits(1):  # threads that share a core would wait for each other
            yield
    finally:
        _pin(before)


def _pin(cores: set[int]) -> None:
    """Let every thread of this process run on these cores only."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended by now
            os.sched_setaffinity(int(thread), cores)
