"""Compilation: what Python may call, and that an interrupt waits until a kernel is whole."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.extending import overload

from fpsim.interrupts import DEFERRED, interrupts_wait
from fpsim.runtime import compile as compile_module
from fpsim.runtime import kernel_files
from tests.kit.processes import Bare


@pytest.fixture
def _compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels do not come from the disk."""
    monkeypatch.setattr(kernel_files, "base_folder", lambda: None)


@pytest.mark.usefixtures("_compiled_anew")
def test_a_function_of_numba_that_kernels_call_is_called_from_python_too() -> None:
    triple: Any = numba.njit(lambda x: 3 * x)

    def triple_all(xs: Any) -> None:
        for i in range(xs.size):
            xs[i] = triple(xs[i])

    loop: Any = compile_module.kernel(triple_all)
    xs = np.array([1.0, 2.0])
    loop(xs)
    assert xs.tolist() == [3.0, 6.0]
    assert list(triple.overloads) == [(numba.float64,)]  # compiled within the kernel
    assert triple(5.0) == 15.0


def checked(n: int) -> int:
    """n, which may be at most three."""
    raise NotImplementedError


@overload(checked)  # type: ignore[untyped-decorator]
def _checked(n: Any) -> Any:
    """As numba defines its own functions, those above all that word an error when it occurs."""

    def check(n: Any) -> Any:  # numba wants the words of the function around
        if n > 3:
            raise ValueError("at most three, got", n)
        return n

    return check


@pytest.mark.usefixtures("_compiled_anew")
def test_what_kernels_took_from_numba_serves_other_functions() -> None:
    """numba compiles its own functions once a process, and kernels take their intermediate code alone."""

    def lay_out(xs: Any, n: int) -> None:
        space = np.zeros((2, checked(n)), np.int16)
        for i in range(n):
            space[1, i] = xs[n - 1 - i]
        for i in range(n):
            xs[i] = space[1, i]

    part: Any = compile_module.inner_loop(lay_out)

    def lay_out_by_part(xs: Any, n: int) -> None:
        part(xs, n)

    xs = np.array([1, 2, 3], np.int16)
    makers: list[Any] = [compile_module.kernel, compile_module.kernel, numba.njit]
    for make, function in zip(makers, (lay_out_by_part, lay_out, lay_out), strict=True):
        before, compiled = xs.tolist(), make(function)
        compiled(xs, 3)
        assert xs.tolist() == before[::-1]
        with pytest.raises(ValueError, match=r"^\('at most three, got', 4\)$"):
            compiled(xs, 4)


def test_python_runs_helpers_as_they_are() -> None:
    """They have no machine code that Python could call: numba's own call of one would end the process."""
    for make in (compile_module.scalar, compile_module.inner_loop, compile_module.reordered_sums):
        helper: Any = make(lambda x: x * 2)
        helper.compile((numba.int64,))
        assert helper(3) == 6
        assert helper("text") == "texttext"


@pytest.mark.parametrize("number", DEFERRED)
def test_an_interrupt_waits_until_a_kernel_is_compiled(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the middle would leave LLVM locked for all other threads, and numba's registries half read."""
    compiled: list[str] = []

    def compile_interrupted(self: Any, signature: Any) -> None:
        os.kill(os.getpid(), number)
        time.sleep(0.05)
        compiled.append("whole")

    handler = signal.signal(number, signal.default_int_handler)  # pytest's shell may ignore it
    try:
        monkeypatch.setattr(compile_module.Kernel.__base__, "compile", compile_interrupted)
        with pytest.raises(KeyboardInterrupt):
            compile_module.kernel(abs_loop)(np.ones(1))
        assert compiled == ["whole"]
        assert signal.getsignal(number) is signal.default_int_handler
        with interrupts_wait():
            pass
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, handler)


def abs_loop(x: Any) -> None:
    for i in range(x.size):
        x[i] = abs(x[i])


ON_A_TERMINAL = """
    import sys
    from fpsim.runtime import compile as compile_module

    compile_module.PATIENCE = float(PATIENCE)
    sys.stderr = sys.stdout
    sys.stdout.isatty = lambda: IS_TERMINAL
    import numpy as np, fpsim as fp

    fp.decode(np.uint8([1, 2]), "e4m3")
    fp.decode(np.uint16([1, 2]), "fp16")
"""


@pytest.mark.parametrize(
    ("patience", "is_terminal", "said"), [(0.1, True, True), (0.1, False, False), (60, True, False)]
)
def test_a_terminal_is_told_once_that_kernels_are_compiled(
    patience: float, is_terminal: bool, said: bool, tmp_path: Path, bare: Bare
) -> None:
    script = ON_A_TERMINAL.replace("PATIENCE)", f"{patience})").replace("IS_TERMINAL", str(is_terminal))
    lines = bare.python(script, FPSIM_CACHE_DIR=str(tmp_path))
    assert lines == (compile_module.SENTENCE.strip() if said else "")
