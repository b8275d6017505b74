"""What torchrun runs in each process of a test: gradients of a small model, and trainings, to a file per rank."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import fpsim as fp
from fpsim.files import write_whole
from fpsim.sums.accumulators import Accumulator
from fpsim.train.ranks import Ranks
from tests.train.processes.shared_training import AGAIN, trained

# name -> format, accumulator, MiB of a bucket
WAYS: dict[str, tuple[fp.Format | None, Accumulator | None, float]] = {
    "float32": (None, None, 25),
    "small": (None, None, 0.001),
    "bf16": (fp.BF16, None, 0.004),
    "e5m2": (fp.E5M2, None, 25),
    "sums": (fp.FP16, fp.Sequential(fp.BF16), 0.002),
}
MICRO = 2  # micro-batches of each rank, in the last way


def model() -> torch.nn.Module:
    """A model of three sizes of parameters."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))


def loss(found: torch.nn.Module, number: int) -> torch.Tensor:
    """Of micro-batch `number`."""
    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(number))
    result: torch.Tensor = found(inputs).square().sum()
    return result


def gradients(found: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: x.grad.clone() for name, x in found.named_parameters() if x.grad is not None}


def main(folder: Path, recipes: list[str]) -> None:
    """Write the gradients of every way, and what two steps of training by each recipe leave."""
    found: dict[str, Any] = {}
    with Ranks.from_environment() as ranks:
        for way, (fmt, accumulate, bucket) in WAYS.items():
            replica = model()
            shared = ranks.data_parallel(replica, fmt, accumulate, bucket=bucket)
            for _ in range(2):  # torch orders its buckets anew after the first
                replica.zero_grad()
                loss(shared, ranks.rank).backward()  # type: ignore[no-untyped-call]
            found |= {f"{way}/{name}": x.numpy() for name, x in gradients(replica).items()}
        replica = model()
        shared = ranks.data_parallel(replica, fp.BF16, count=ranks.world * MICRO)
        assert isinstance(shared, torch.nn.parallel.DistributedDataParallel)
        with shared.no_sync():
            loss(shared, ranks.rank * MICRO).backward()  # type: ignore[no-untyped-call]
        loss(shared, ranks.rank * MICRO + 1).backward()  # type: ignore[no-untyped-call]
        found |= {f"micro/{name}": x.numpy() for name, x in gradients(replica).items()}
        amax = np.array([ranks.rank, -ranks.rank, np.nan if ranks.rank else 1], np.float32)
        largest = ranks.all_reduce_max({"amax": amax, "empty": amax[:0], "one": np.array(ranks.rank)})
        for recipe in recipes:
            left = trained(recipe, ranks, micro_batches=1, recompute=1.0 if recipe == AGAIN else 0.0)
            found |= {f"{recipe}/{name}": x for name, x in left.items()}
        np.savez(folder / f"{ranks.rank}.npz", **(found | largest))


def wait(folder: Path) -> None:
    """Reduce for ever."""
    with Ranks.from_environment() as ranks:
        while True:
            ranks.all_reduce_max({"x": np.zeros(10)})
            write_whole(folder / f"{ranks.rank}.ready", str(os.getpid()))
            time.sleep(0.01)


if __name__ == "__main__":
    if sys.argv[2:] == ["wait"]:
        wait(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
