"""A process of `fpsim train` in which one rank kills itself once, in the middle of a step; torchrun starts it too."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import numpy as np

from fpsim.cli.main import main
from fpsim.train.ranks import Ranks

CALL = 30  # of what ranks send each other: some three of a step


def kill_once(mark: Path, rank: int) -> None:
    """Make a rank end by SIGKILL where it sends something the thirtieth time, unless it has left its mark before."""
    gathered, calls = Ranks.gathered, 0

    def killed(self: Ranks, array: np.ndarray) -> list[np.ndarray]:
        nonlocal calls
        calls += 1
        if self.rank == rank and calls == CALL and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return gathered(self, array)

    Ranks.gathered = killed  # type: ignore[method-assign]


def train(arguments: list[str]) -> None:
    """Run `fpsim train`; the rank of LOST_RANK kills itself once, and leaves LOST_MARK."""
    kill_once(Path(os.environ["LOST_MARK"]), int(os.environ["LOST_RANK"]))
    main(["train", *arguments])


if __name__ == "__main__":
    train(sys.argv[1:])
