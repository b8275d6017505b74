"""One process of the soak: `python -m tests.soak.process SEED CALLS` prints the calls that it made and their digests.

Between calls it collects garbage, reloads modules, compiles functions as users do, and calls from threads, forked
children and, rarely, a pool of spawned ones.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import multiprocessing
import os
import random
import signal
import sys
import threading
import warnings

import numba

from tests.soak.calls import CALLS, digest

LIMIT = 100  # seconds after which a process that hangs prints the stacks of its threads and ends


def say(name: str) -> None:
    """Print a call and its digest as one line, whole beside those of other threads."""
    os.write(1, f"{digest(name)} {name}\n".encode())


def in_threads(names: list[str]) -> None:
    threads = [threading.Thread(target=say, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_fork(name: str, beside: str) -> None:
    """Fork while a thread makes another call."""
    thread = threading.Thread(target=say, args=(beside,))
    thread.start()
    if (child := os.fork()) == 0:
        signal.alarm(LIMIT)  # the parent's watchdog is a thread, which a child has not
        failed = 1
        try:
            say(name)
            failed = 0
        finally:
            os._exit(failed)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    thread.join()
    if code:
        raise RuntimeError(f"a forked child that called {name} beside {beside} ended with {code}")


def in_a_pool(name: str) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        os.write(1, f"{pool.apply(digest, (name,))} {name}\n".encode())


def reload_one(draw: random.Random) -> None:
    """Reload a module of fpsim."""
    names = sorted(name for name in sys.modules if name.startswith("fpsim.") and ".gpu" not in name)
    importlib.reload(sys.modules[draw.choice(names)])


def own_functions(draw: random.Random) -> None:
    """Compile a function as users do, which takes numbers of numba's and functions that kernels use too."""
    factor = draw.randrange(1 << 30)
    between = numba.njit(lambda x: min(x, factor) + max(x, 3))
    assert between(2) == 5


def main(seed: int, count: int) -> None:
    """Make some calls in an order that the seed decides."""
    faulthandler.dump_traceback_later(2 * LIMIT, exit=True)
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks of processes with threads
    draw, names = random.Random(seed), list(CALLS)
    for _ in range(count):
        step = draw.random()
        if step < 0.55:
            say(draw.choice(names))
        elif step < 0.70:
            in_threads(draw.sample(names, 3))
        elif step < 0.80:
            in_a_fork(*draw.sample(names, 2))
        elif step < 0.82 and "SOAK_FILE_BYTES" not in os.environ:  # a pool's own locks are files
            in_a_pool(draw.choice(names))
        elif step < 0.88:
            gc.collect()
        elif step < 0.94:
            reload_one(draw)
        else:
            own_functions(draw)
    os.write(1, b"end\n")


if __name__ == "__main__":
    if size := os.environ.get("SOAK_FILE_BYTES"):
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size), int(size)))  # as on a disk that is full
    main(int(sys.argv[1]), int(sys.argv[2]))
