"""`fp.analysis.processes`: trains by torch on several processes, and compares the bits with those of one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory

from fpsim.analysis.systems.processes.backends import chosen_backend
from fpsim.analysis.systems.processes.report import ProcessesReport, ProcessRow
from fpsim.errors import install, require_integer, require_word, shown
from fpsim.lazy import public
from fpsim.recipes.optimizer_recipe import require_number

WAYS = ("ddp", "zero1", "fsdp2", "fsdp2_bf16")
MOST_RANKS = 16
GRACE = 40  # seconds for torchrun to stop its processes, which it kills after 30


def processes(
    ways: Sequence[str] | str = WAYS,
    *,
    ranks: Sequence[int] | int = (2, 4),
    backend: str | None = None,
    seconds: float = 300,
) -> ProcessesReport:
    """Take a training step on several processes by DDP, ZeRO and FSDP2, and compare the bits with those of one process.

    The model is a small multilayer perceptron, and every process trains on a different micro-batch.

    Args:
      ways: ways of training, one name or several: "ddp" (DistributedDataParallel), "zero1" (ZeroRedundancyOptimizer),
        "fsdp2" (fully_shard) and "fsdp2_bf16" (fully_shard that sends gradients in BF16).
      ranks: numbers of processes, 2 to 16, which torchrun starts on this machine.
      backend: "nccl" on GPUs, one for each process; "gloo" on the CPU; None for nccl if every process has a GPU, else
        gloo.
      seconds: time limit for each number of processes.

    Returns:
      A ProcessesReport. Gradients are compared with the mean of the ranks' gradients in one process, added in float32
      in the order of the ranks and divided once; the row's `reason` names the order of additions that reproduces their
      bits. Weights are compared with one process's step of AdamW with the same gradients.

    Raises:
      TypeError: ways are not names, or ranks not integers.
      ValueError: an unknown way or backend, a number of ranks out of range, or nccl without a GPU for each process.
      ImportError: torch is not installed.
      RuntimeError: the processes failed (the message quotes their first error) or took longer than `seconds`.

    Source: docs/processes.md.

    Example:
      >>> import fpsim as fp
      >>> report = fp.analysis.processes(["ddp"], ranks=2)
      >>> [(row.tensor, row.differing) for row in report.rows]
      [('gradients', 0), ('weights', 0)]
    """
    names = (ways,) if isinstance(ways, str) else ways
    if not isinstance(names, (list, tuple)) or not names:
        raise TypeError(f"ways must be one or more of {', '.join(WAYS)}; got {shown(ways)}.")
    for way in names:
        require_word("way", way, WAYS)
    numbers = tuple(ranks) if isinstance(ranks, (list, tuple, range)) else (ranks,)
    if not numbers:
        raise ValueError("ranks must name a number of processes, such as 2 or (2, 4); got none.")
    for number in numbers:
        require_integer("ranks", number, 2)
        if number > MOST_RANKS:
            raise ValueError(f"ranks must be 2 to {MOST_RANKS} processes of this machine; got {number}.")
    require_number("seconds", seconds, positive=True)
    if find_spec("torch") is None:
        raise ImportError(f"processes need torch, which is not installed: {install('torch')}")
    chosen = {number: chosen_backend(backend, number) for number in numbers}
    rows: list[ProcessRow] = []
    for number in numbers:
        report = _run(list(names), number, chosen[number], seconds)
        rows += report.rows
    return ProcessesReport(tuple(rows), report.backend, report.torch)


def _run(ways: list[str], ranks: int, backend: str, seconds: float) -> ProcessesReport:
    """Train on `ranks` processes that torchrun starts, and return the report that rank 0 wrote.

    Raises RuntimeError if the processes fail or take longer than `seconds`. ways: names of the ways of training, such
    as "ddp". backend: "gloo" or "nccl".
    """
    root = str(Path(public().__file__).resolve().parent.parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))}
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m",
                   "fpsim.analysis.systems.processes.ways", "--ways", *ways, "--backend", backend, "--out",
                   str(file)]  # fmt: skip
        with subprocess.Popen(command, env=environment, stdout=PIPE, stderr=PIPE, text=True) as launched:
            try:
                _, errors = launched.communicate(timeout=seconds)
            except BaseException as problem:  # also Ctrl-C
                _stop(launched)
                if isinstance(problem, subprocess.TimeoutExpired):
                    raise RuntimeError(
                        f"{ranks} processes took longer than {seconds:g} s. Pass more seconds=."
                    ) from None
                raise
        if launched.returncode or not file.exists():
            lines = [line for line in errors.splitlines() if "Error" in line] or errors.splitlines() or ["?"]
            raise RuntimeError(f"{ranks} processes failed: {lines[0].strip()[:300]}")
        fields = json.loads(file.read_text(encoding="utf-8"))
    return ProcessesReport(tuple(ProcessRow(**row) for row in fields["rows"]), fields["backend"], fields["torch"])


def _stop(launched: subprocess.Popen[str]) -> None:
    """Stop torchrun, the process `launched`, and the processes that it has started.

    torchrun stops them if it is asked to end (SIGTERM); if it were killed, they would run on.
    """
    launched.terminate()
    try:
        launched.communicate(timeout=GRACE)
    except subprocess.TimeoutExpired:
        launched.kill()
