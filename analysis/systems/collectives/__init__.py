"""Collectives as arithmetic: the sums that an all-reduce computes over ranks, with every rounding.

docs/collectives.md describes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fpsim.lazy import attach

if TYPE_CHECKING:
    from fpsim.analysis.systems.collectives.algorithms import Direct as Direct
    from fpsim.analysis.systems.collectives.algorithms import RecursiveHalving as RecursiveHalving
    from fpsim.analysis.systems.collectives.algorithms import ReductionTree as ReductionTree
    from fpsim.analysis.systems.collectives.algorithms import Ring as Ring
    from fpsim.analysis.systems.collectives.algorithms import TwoLevel as TwoLevel
    from fpsim.analysis.systems.collectives.grid import grid_all_reduce as grid_all_reduce
    from fpsim.analysis.systems.collectives.overflow import CollectiveOverflowError as CollectiveOverflowError
    from fpsim.analysis.systems.collectives.reduction import all_reduce as all_reduce
    from fpsim.analysis.systems.collectives.results import CollectiveGrowth as CollectiveGrowth
    from fpsim.analysis.systems.collectives.results import CollectiveReport as CollectiveReport
    from fpsim.analysis.systems.collectives.results import CollectiveRow as CollectiveRow
    from fpsim.analysis.systems.collectives.survey import growth as growth
    from fpsim.analysis.systems.collectives.survey import report as report

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "algorithms": ["Direct", "RecursiveHalving", "Ring", "ReductionTree", "TwoLevel"],
        "grid": ["grid_all_reduce"],
        "overflow": ["CollectiveOverflowError"],
        "reduction": ["all_reduce"],
        "results": ["CollectiveGrowth", "CollectiveReport", "CollectiveRow"],
        "survey": ["growth", "report"],
    },
)
