"""Importing fpsim is cheap: what is heavy loads when it is first used."""

from __future__ import annotations

from functools import cache

from tests.kit.processes import python

HEAVY = ("numba", "llvmlite", "torch", "matplotlib", "pandas", "scipy", "mpmath", "dask", "typer", "rich", "hypothesis")
TIME = "import time; start = time.process_time(); import fpsim; print(time.process_time() - start)"


LOOKS = ("fp.format('e4m3')", "repr(fp.E4M3.table())", "fp.policy('torch')", "fp.finfo('bf16')")
CAST = "fp.encode(1.0, fp.E4M3)"
TORCH = "exec('import torch')"
GRADIENT = "fp.torch.fake_quantize(torch.ones(4, requires_grad=True), 'e4m3', fp.scalings.ROW).sum().backward()"
USES = ("None", *LOOKS, CAST, TORCH, GRADIENT)  # each loads what those before it did not need
LOADED = f"""
import sys, fpsim as fp
for use in {USES}:
    eval(use)
    print(*sorted(sys.modules))
"""


@cache
def loaded_after() -> dict[str, set[str]]:
    """Use -> every module that a process has loaded then, in which those before it came first."""
    lines = python(LOADED).splitlines()
    return {use: set(line.split()) for use, line in zip(USES, lines, strict=True)}


def test_importing_and_looking_at_formats_load_nothing_heavy() -> None:
    for use in ("None", *LOOKS):
        loaded = loaded_after()[use]
        assert "fpsim" in loaded
        assert not set(HEAVY) & {name.partition(".")[0] for name in loaded}, use


def test_a_cast_loads_neither_cuda_nor_torch() -> None:
    loaded = loaded_after()[CAST]
    assert "numba" in loaded
    assert not {"numba.cuda", "torch", "matplotlib", "pandas"} & loaded


def test_operators_of_torch_and_their_gradients_run_without_its_compiler() -> None:
    loaded = loaded_after()[GRADIENT]
    assert "fpsim.torch.operators" in loaded
    assert "torch._dynamo" not in loaded


def test_import_takes_at_most_three_tenths_of_a_second() -> None:
    python(TIME)  # warms the file system's cache
    # of the processor's time, the fastest of up to five: what other processes take from this one is not the import's
    assert any(float(python(TIME)) <= 0.3 for _ in range(5))


INTERRUPTED = """
import os, signal, sys, fpsim as fp
signal.signal(signal.SIGINT, signal.default_int_handler)
sent = []
def interrupt(event, words):
    if event == "import" and words[0] == "numba.core.typing.templates" and not sent:
        sent.append(words)
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
try:
    fp.encode(1.0, "e4m3")
except KeyboardInterrupt:
    print("interrupted")
print(fp.encode(1.0, "e4m3"))
"""


def test_ctrl_c_during_the_first_call_leaves_numba_whole() -> None:
    """Python does not repair a package whose import was interrupted: every later call would fail."""
    assert python(INTERRUPTED).split() == ["interrupted", "56"]
