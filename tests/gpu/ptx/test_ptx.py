"""The kernels of fpsim.gpu compile to PTX for sm_90 without a GPU, and calculate with integers where they say so."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.gpu.ptx.ptx_kernels import FLOATS, IN_REGISTERS, MODULES
from tests.kit.processes import ROOT

FLOAT_ARITHMETIC = re.compile(r"\b(add|sub|mul|fma|mad|div|rcp|sqrt|rsqrt|ex2|lg2|sin|cos)(\.[a-z]+)*\.f(16|32|64)\b")
MISSING = "numba-cuda is not installed: pip install -e '.[dev]' does so on Linux"


def test_floating_point_arithmetic_is_recognised() -> None:
    for line in ("add.rn.f32 %f1, %f2, %f3;", "fma.rn.ftz.f64 %fd1, %fd2, %fd3, %fd4;", "sqrt.approx.f32 %f1, %f2;"):
        assert FLOAT_ARITHMETIC.search(line)
    for line in ("add.s64 %rd1, %rd2, %rd3;", "mad.lo.s32 %r1, %r2, %r3, %r4;", "mov.f32 %f1, %f2;"):
        assert not FLOAT_ARITHMETIC.search(line)


@pytest.mark.ptx
@pytest.mark.skipif(not find_spec("numba_cuda"), reason=MISSING)
@pytest.mark.parametrize("module", MODULES)
def test_kernels_compile_for_hopper_and_calculate_as_they_say(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.ptx.ptx_kernels", module],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    kernels = json.loads(done.stdout)
    assert kernels
    for name, ptx in kernels.items():
        assert ".target sm_90" in ptx
        assert ".ftz" not in ptx, name
        used = {found[0] for found in FLOAT_ARITHMETIC.finditer(ptx)}
        assert bool(used) == (module in FLOATS), (name, used)
        assert all(re.fullmatch(FLOATS[module], each) for each in used), (name, used)
        assert module not in IN_REGISTERS or ".local" not in ptx, name


SMALL_GRID = """
import warnings
warnings.simplefilter("error")
from fpsim.gpu import encode  # noqa: F401
from fpsim.gpu.casts.kernels import outside_kernel
from fpsim.gpu.device.launch import _configured
from numba.cuda import dispatcher
dispatcher._LaunchConfiguration.__call__ = lambda self, *_: None
dispatcher.driver._to_core_stream = lambda stream: stream
_configured(outside_kernel(), 1, 32)()
try:
    outside_kernel()[2, 32]
except Warning as reason:
    print(type(reason).__name__)
"""


@pytest.mark.skipif(not find_spec("numba_cuda"), reason=MISSING)
def test_small_arrays_bring_no_warning_about_idle_multiprocessors() -> None:
    done = subprocess.run([sys.executable, "-c", SMALL_GRID], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "NumbaPerformanceWarning\n"), done.stderr[-2000:]
