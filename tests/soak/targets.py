"""A sample of every family of kernels, and training, give one result on every processor and every version of numba.

`make test-targets` compiles the calls of tests/soak/calls.py for other processors, with no instruction that this one
lacks; `make test-numba` with the oldest and the newest numba that the package takes. The digests are those of
tests/data/soak.json, on every machine, and those of three steps of training of tests/data/training_digests.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from llvmlite import binding

from tests.soak.__main__ import AT_A_TIME, DIGESTS, ROOT

PROCESSORS = ("generic", "haswell")  # `make soak` and `make test-numba` compile for this one, mostly with AVX-512
RECORD = """
import json, numba
from fpsim.runtime.compile import KERNELS
from tests.soak.calls import CALLS, digest
digests = {name: digest(name) for name in CALLS}
compiled = sum(sum(kernel.stats.cache_misses.values()) for kernel in KERNELS)
print(json.dumps({"numba": numba.__version__, "digests": digests, "compiled": compiled}))
"""
TRAIN = """
from tests.train.recorded_digests import FIRST, first_digest, recorded
got, want = first_digest("DEEPSEEK_V3"), recorded()[f"after {FIRST} steps"]["DEEPSEEK_V3"]
assert got == want, f"training has the digest {got}, not {want}"
"""


def compiled_for(processor: str) -> dict[str, str]:
    """Return the variables by which numba compiles for a processor, without what this one cannot run."""
    if not processor:
        return {}
    lacking = ",".join(f"-{name}" for name, has in binding.get_host_cpu_features().items() if not has)
    return {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": "" if processor == "generic" else lacking}


def wrong(python: str, variables: dict[str, str]) -> str:
    """Make all calls in two processes, the first with an empty cache; return what is wrong, "" for nothing.

    This interpreter also trains, for which others may lack torch.
    """
    want = json.loads(DIGESTS.read_text())
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FPSIM_CACHE_DIR": folder, **variables}
        for turn in ("compiled", "from the disk"):
            command = [python, "-W", "error", "-c", RECORD]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
            if done.returncode:
                return f"exit code {done.returncode}: {done.stderr.strip()[-1500:]}"
            got = json.loads(done.stdout)
            different = [name for name in want if got["digests"].get(name) != want[name]]
            if different:
                return f"numba {got['numba']}, {turn}: other results of {', '.join(different)}"
            if (got["compiled"] > 0) != (turn == "compiled"):
                return f"numba {got['numba']}, {turn}: {got['compiled']} kernels were compiled"
        if python == sys.executable:
            command = [python, "-W", "error", "-c", TRAIN]
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
            if done.returncode:
                return f"training: {done.stderr.strip()[-1500:]}"
    return ""


def main(words: list[str] | None = None) -> int:
    """Run the command; return 1 where a result differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.targets", description=__doc__)
    parser.add_argument("--python", nargs="+", default=[], help="interpreters with other versions of numba")
    options = parser.parse_args(words)
    if options.python:
        runs = {python: (python, dict[str, str]()) for python in options.python}
    else:
        x86 = platform.machine() in ("x86_64", "AMD64")
        names = PROCESSORS if x86 else ("",)  # "" is this one
        runs = {name or "native": (sys.executable, compiled_for(name)) for name in names}
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        results = dict(zip(runs, pool.map(lambda run: wrong(*run), runs.values()), strict=True))
    for name, problem in results.items():
        print(f"{name}: {problem or 'the same results'}", flush=True)
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
