"""choices: asks cuBLASLt's heuristic which kernels it takes for the shapes of layers, and stores them in a table."""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.files import INTERRUPTED, path_of, require_folder, whole_file
from fpsim.gpu.device.device import GpuError
from fpsim.gpu.lab.lab import REAL, about_of
from fpsim.schedules.libraries.cublas_choice import Fields
from fpsim.schedules.libraries.cublas_table import NOT_ASKED, TOKENS, CublasCall, CublasTable, calls, packed, sides

NO_ALGORITHM = "no algorithm"  # part of the errors of `lt_fields` for products that cuBLASLt does not support
NONE = (-1,) * len(Fields._fields)  # in place of the fields of a product that cuBLASLt does not support


def kernels_of(
    hardware: Any, call: CublasCall, tokens: Sequence[int] = TOKENS, pairs: Sequence[tuple[int, int]] | None = None
) -> npt.NDArray[np.int32]:
    """Return the algorithms that cuBLASLt's heuristic selects for products of one kind and of many shapes.

    Args:
      hardware: a module or object with a function `lt_fields` like that of `fpsim.gpu.hardware`, or a module's name.
      call: formats, layout and accumulation of the products, and which of M and K counts tokens.
      tokens: values of the size, M or K, that counts tokens.
      pairs: values of the other two sizes, (N, K) or (M, N); None for all pairs of `sides()`.

    Returns:
      int32 (tokens, pairs, 9): the 9 integers of each algorithm's configuration, `Fields`; all -1 where cuBLASLt has no
      algorithm.

    Raises:
      GpuError: cuBLASLt has no algorithm for any of the products, or a call fails for another reason.
    """
    if isinstance(hardware, str):  # other processes are given the name
        hardware = importlib.import_module(hardware)
    options = {"out": call.out, "layout": call.layout, "fast_accum": call.fast_accum}
    rows = []
    for count in tokens:
        for first, second in sides() if pairs is None else pairs:
            shape = (count, first, second) if call.tokens == "m" else (first, second, count)
            try:
                rows.append(tuple(hardware.lt_fields(*shape, (call.a, call.b), **options)))
            except (GpuError, ValueError) as reason:
                if isinstance(reason, GpuError) and NO_ALGORITHM not in str(reason):
                    raise  # a table with holes would say that cuBLASLt does not support these products
                failed = reason
                rows.append(NONE)
    answers = np.array(rows, np.int32).reshape(len(tokens), -1, len(NONE))
    if (answers < 0).all():
        raise GpuError(f"cuBLASLt answers for no shape of {call}: {failed}")
    return answers


def choices(hardware: str = REAL, processes: int | None = None) -> CublasTable:
    """Return a table of the kernels that cuBLASLt's heuristic selects on this machine's GPU.

    The products have the shapes of transformer layers, which fpsim/schedules/libraries/cublas_table.py lists. hardware:
    name of a module with functions `about` and `lt_fields` like those of `fpsim.gpu.hardware`. processes: number of
    processes that ask at the same time; None for one per core. One process takes about 13 minutes. Raises a GpuError if
    there is no GPU.
    """
    about = about_of(importlib.import_module(hardware))
    kinds = calls()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(processes or os.cpu_count() or 1, len(kinds)), context) as pool:
        answers = np.stack(list(pool.map(kernels_of, [hardware] * len(kinds), kinds)))
    said = f"{about['gpu']} ({about.get('multiprocessors', '?')} multiprocessors) on {about['date'][:10]}"
    return packed(answers, f"{said}, cuBLASLt {about.get('cublaslt', 'unknown')}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command `python -m fpsim.gpu choices`, and return its exit code.

    The code is 0 if a table was written, 2 without a GPU or a writable folder, and 130 after Ctrl-C. arguments: the
    words after `choices` on the command line; None for sys.argv[1:].
    """
    parser = argparse.ArgumentParser(prog="python -m fpsim.gpu choices", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", "-o", required=True, help="the file, .npz")
    parser.add_argument("--processes", type=int, help="how many ask at the same time; one per core without it")
    parser.add_argument("--hardware", default=REAL, metavar="MODULE", help="ask this module's functions")
    options = parser.parse_args(arguments)
    try:
        require_folder(path_of(options.out).parent)
        table = choices(options.hardware, options.processes)
    except (GpuError, ValueError) as reason:
        print(reason, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("Interrupted; no table was written.", file=sys.stderr)
        return INTERRUPTED
    with whole_file(Path(options.out)) as file:
        np.savez_compressed(file, about=np.array(table.about), kernels=table.kernels, numbers=table.numbers)
    known = table.numbers[table.numbers != NOT_ASKED]
    print(f"{known.size} products of {table.about} in {options.out}, by {np.unique(known).size} kernels")
    return 0
