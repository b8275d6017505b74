"""Calls with CUDA simulated and the core as plain Python, which numba decides when it is imported.

A process does so once, and forks itself for each call: importing numba and the package takes a second. Tables that the
CPU makes for the GPU come from the compiled functions, as where there is a GPU; in plain Python each takes a second.
"""

from __future__ import annotations

import atexit
import base64
import functools
import importlib
import json
import os
import pickle
import select
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300  # that a call may take
IMPORTED = [
    "numba.cuda", "fpsim", "fpsim.gpu.products.matmul", "fpsim.gpu.scaling.scaled", "fpsim.gpu.sums.accumulate",
    "tests.gpu.simulator.cases", "tests.gpu.simulator.threads",
]  # fmt: skip


class Done(NamedTuple):
    """The exit code and output of a call."""

    code: int
    out: str
    errors: str


def call(function: str, *words: str) -> Done:
    """Call `module:function` with text arguments in a process that simulates each CUDA thread."""
    with TemporaryDirectory() as folder:
        request = json.dumps([function, list(words), folder])
        if hasattr(os, "fork"):
            code = _ask(request)
        else:
            code = subprocess.run(_command(request), cwd=ROOT, env=_environment(), timeout=SECONDS).returncode
        out, errors = ((Path(folder) / name).read_text() for name in ("out", "errors"))
    return Done(code, out, errors)


def _command(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.kit.simulated", *words]


def _environment() -> dict[str, str]:
    return {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "NUMBA_DISABLE_JIT": "1"}


@functools.cache
def _process() -> subprocess.Popen[str]:
    """Return the process that forks itself for each call; it ends with this one."""
    process = subprocess.Popen(
        _command(), cwd=ROOT, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.communicate)
    assert process.stdin is not None
    process.stdin.write(base64.b64encode(zlib.compress(pickle.dumps(_tables()))).decode() + "\n")
    return process


def _tables() -> dict[tuple[Any, Any], Any]:
    """Return the results of `codes_table` for formats with many codes."""
    import fpsim as fp

    table: Any = importlib.import_module("fpsim.gpu.casts.cast").codes_table
    return {(fmt, wide): table(fmt, wide) for fmt, wide in ((fp.FP16, fp.FP32), (fp.BF16, fp.FP32))}


def _give(tables: dict[tuple[Any, Any], Any]) -> None:
    """Let this process and its forks use the given tables, and compute others."""
    casts: Any = importlib.import_module("fpsim.gpu.casts.cast")
    make = casts.codes_table

    def found(fmt: Any, wide: Any) -> Any:
        return tables[fmt, wide] if (fmt, wide) in tables else make(fmt, wide)

    casts.codes_table = found


def _ask(request: str) -> int:
    """Return the exit code of a fork."""
    process = _process()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(request + "\n")
    process.stdin.flush()
    answered, _, _ = select.select([process.stdout], [], [], SECONDS)
    if not answered:
        process.kill()
        _process.cache_clear()
        raise TimeoutError(f"{request} must end in {SECONDS} s")
    return int(process.stdout.readline())


def _run(request: str) -> None:
    """Run the call of a line in this fork, and write its output."""
    function, words, folder = json.loads(request)
    for number, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    # words wrap around and floats become Inf and NaN on purpose, which NumPy reports in every thread that was not told;
    # nothing else may be reported
    warnings.simplefilter("error")
    for event in ("overflow", "divide by zero", "invalid value"):
        warnings.filterwarnings("ignore", f"{event} encountered", RuntimeWarning)
    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)(*words)


def _serve() -> None:
    """Fork for each line of input, and write the exit code of the fork."""
    for name in IMPORTED:
        importlib.import_module(name)
    prepare: Any = importlib.import_module("tests.gpu.simulator.threads").prepare
    prepare()
    _give(pickle.loads(zlib.decompress(base64.b64decode(sys.stdin.readline()))))
    for request in sys.stdin:
        fork = os.fork()
        if not fork:
            import traceback

            code = 1
            try:
                _run(request)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(fork, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        importlib.import_module("tests.gpu.simulator.threads").prepare()
        _run(sys.argv[1])
    else:
        _serve()
