"""record: stores products of a GPU in a small file, with which machines without a GPU can compare the emulator."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fpsim.errors import require_minutes, require_word
from fpsim.files import INTERRUPTED, path_of, require_folder
from fpsim.gpu.device.device import GpuError
from fpsim.gpu.experiments.product_cases import PRODUCTS
from fpsim.gpu.lab.judge import judged, said_of
from fpsim.gpu.lab.lab import REAL, Lab, about_of, laboratory
from fpsim.gpu.lab.recording import Entry, replay, store


def record(
    path: str | Path, *, hardware: Any = None, parts: Sequence[str] | None = None, minutes: float = 5, seed: int = 0,
) -> list[str]:  # fmt: skip
    """Run small products on the GPU of this machine, and store them in a file.

    Args:
      path: the .npz file to write.
      hardware: an object or module with the functions of `fpsim.gpu.hardware`; None for the GPU.
      parts: one or more of "blockwise", "tensorwise", "rowwise", "halves", "cublaslt", "units"; None for all.
      minutes: time limit.
      seed: seed of the inputs.

    Returns:
      A sentence for each product that was left out: calls that failed, and products that did not fit into 2 MB.

    Raises:
      GpuError: there is no GPU.
      ValueError: a part is unknown, `minutes` is negative, or the folder of the path cannot be written to.

    Example:
      >>> import fpsim as fp
      >>> if fp.gpu.available():
      ...     fp.gpu.record("h200.npz", parts=["units"], minutes=1)
    """
    require_minutes(minutes)
    silicon = importlib.import_module(REAL) if hardware is None else hardware
    about = about_of(silicon)
    chosen = list(PRODUCTS if parts is None else dict.fromkeys(parts))
    for part in chosen:
        require_word("part", part, tuple(PRODUCTS))
    require_folder(path_of(path).parent)
    lab = laboratory(silicon, about, seed, small=True)
    end = time.monotonic() + 60 * minutes
    left_out: list[str] = []
    entries: list[Entry] = []
    try:
        for part in chosen:
            _record_part(part, lab, end, entries, left_out)
    except KeyboardInterrupt:
        if entries:
            store(Path(path), entries, about, [*left_out, "interrupted"])
        raise
    return left_out + store(Path(path), entries, about, left_out)


def _record_part(part: str, lab: Lab, end: float, entries: list[Entry], left_out: list[str]) -> None:
    """Run the products of one part of a recording until the time `end` of time.monotonic(); append them to `entries`.

    part: name of the part, such as "blockwise". lab: settings of the hardware and the inputs. left_out: receives a
    sentence for each product that is left out.
    """
    try:
        for case in PRODUCTS[part](lab):
            if time.monotonic() > end:
                left_out.append(f"{part}: no time was left.")
                break
            rows, best, outputs = judged(case, end)
            for row, problem, output in zip(rows, case.problems, outputs, strict=True):
                name = f"{part}: {case.name}, {problem.name}"
                if output is None or best is None:
                    left_out.append(f"{name}: {row.error}")
                else:
                    entries.append(Entry(name, problem, output, best, row.differing))
    except Exception as reason:
        left_out.append(f"{part}: {said_of(reason)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `python -m fpsim.gpu record`, and return its exit code.

    The code is 0 if a file was written, 2 without a GPU or a writable folder, and 130 after Ctrl-C. arguments: the
    words after `record` on the command line; None for sys.argv[1:].
    """
    parser = argparse.ArgumentParser(prog="python -m fpsim.gpu record", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", "-o", required=True, help="the file, .npz")
    parser.add_argument("--parts", nargs="+", choices=list(PRODUCTS), metavar="PART", help=", ".join(PRODUCTS))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    parser.add_argument("--hardware", default=REAL, metavar="MODULE", help="record this module's functions")
    options = parser.parse_args(arguments)
    try:
        silicon = importlib.import_module(options.hardware)
        left_out = record(
            options.out, hardware=silicon, parts=options.parts, minutes=options.minutes, seed=options.seed
        )
    except (GpuError, ValueError) as reason:
        print(reason, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"Interrupted; the products recorded so far, if any, are in {options.out}.", file=sys.stderr)
        return INTERRUPTED
    done = replay(options.out)
    for sentence in left_out:
        print(f"left out: {sentence}")
    for entry in done:
        if entry.differing:
            print(f"differs: {entry.name}: {entry.differing} elements, first at {entry.first}")
    print(f"{len(done)} products in {options.out}, {Path(options.out).stat().st_size} bytes; "
          f"{sum(not entry.differing for entry in done)} equal in every bit")  # fmt: skip
    return 0
