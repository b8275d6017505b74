"""A child makes its first call whatever another thread of its parent imported or compiled when it was forked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.processes import python

FORKED = """
    import faulthandler, os, threading, time, warnings
    import numpy as np
    import fpsim as fp

    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks of processes with threads
    x = np.float32([0.1, 4.25, 300, -500])

    def first_calls():
        if os.environ["FIRST"] == "product":  # which first asks LLVM for the processor's features, for some time
            half = x.astype(np.float16)[None]
            fp.matmul(half, half.T, accumulate=fp.Sequential("bf16"))
        for rounding in ("nearest_even", "stochastic"):
            fp.encode(x, "e4m3", rounding=rounding, seed=1)

    thread = threading.Thread(target=first_calls)
    thread.start()
    time.sleep(float(os.environ["DELAY"]))
    if (child := os.fork()) == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        print(fp.encode(x, "e5m2").tolist(), fp.decode(np.uint8([0x38]), "e4m3"), flush=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    thread.join()
    print(fp.encode(x, "e5m2").tolist())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize(
    ("first", "delay"),
    [
        ("product", "0"), ("cast", "0.1"),
        *(pytest.param("cast", delay, marks=pytest.mark.slow) for delay in ("0", "0.8")),
    ],
)  # fmt: skip
def test_a_child_that_was_forked_during_a_first_call_makes_its_own(first: str, delay: str, tmp_path: Path) -> None:
    """Found by a user: the child waited for ever for numba's lock, which a thread had that it did not have."""
    # code that LLVM hardly optimises compiles under the same locks
    lines = python(FORKED, FIRST=first, DELAY=delay, FPSIM_CACHE_DIR=str(tmp_path), NUMBA_OPT="1").splitlines()
    assert lines == ["[46, 68, 93, 224] [1.]", "[46, 68, 93, 224]"]
