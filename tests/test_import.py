"""Importing fpsim is cheap: what is heavy loads when it is first used."""

from __future__ import annotations

from tests.kit.processes import python

HEAVY = ("numba", "llvmlite", "torch", "matplotlib", "pandas", "scipy", "dask", "typer", "rich", "hypothesis")
TIME = "import time; start = time.process_time(); import fpsim; print(time.process_time() - start)"


LOOKS = ("fp.format('e4m3')", "repr(fp.E4M3.table())", "fp.policy('torch')", "fp.finfo('bf16')")
LOADED = f"""
import sys, fpsim as fp
for use in ("None", *{LOOKS}):
    eval(use)
    print(*sorted({{name.partition('.')[0] for name in sys.modules}}))
"""


def test_importing_and_looking_at_formats_load_nothing_heavy() -> None:
    lines = python(LOADED).splitlines()
    for use, loaded in zip(("import fpsim", *LOOKS), lines, strict=True):
        assert "fpsim" in loaded.split()
        assert not set(HEAVY) & set(loaded.split()), use


def test_a_cast_loads_neither_cuda_nor_torch() -> None:
    loaded = python("import sys, fpsim as fp; fp.encode(1.0, fp.E4M3); print(*sorted(sys.modules))").split()
    assert "numba" in loaded
    assert not {"numba.cuda", "torch", "matplotlib", "pandas"} & set(loaded)


def test_operators_of_torch_and_their_gradients_run_without_its_compiler() -> None:
    run = "fp.torch.fake_quantize(torch.ones(4, requires_grad=True), 'e4m3', fp.scalings.ROW).sum().backward()"
    loaded = python(f"import sys, torch, fpsim as fp; {run}; print(*sorted(sys.modules))").split()
    assert "fpsim.torch.operators" in loaded
    assert "torch._dynamo" not in loaded


def test_import_takes_at_most_three_tenths_of_a_second() -> None:
    python(TIME)  # warms the file system's cache
    # of the processor's time, the fastest of up to five: what other processes take from this one is not the import's
    assert any(float(python(TIME)) <= 0.3 for _ in range(5))
