"""Compilation: only kernels become machine code, and an interrupt waits until one is whole."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from fpsim.runtime import compile as compile_module


def test_only_kernels_become_machine_code() -> None:
    def half(x: Any) -> Any:
        return x / 2

    half_of: Any = compile_module.inner_loop(half)

    def halve(xs: Any) -> None:
        for i in range(xs.size):
            xs[i] = half_of(xs[i])

    halves: Any = compile_module.kernel(halve)
    xs = np.array([1.0, 3.0])
    halves(xs)
    assert xs.tolist() == [0.5, 1.5]
    half_of.compile("float64(float64)")  # a kernel from the disk did not need it
    (part,), (whole,) = half_of.overloads.values(), halves.overloads.values()
    assert not part.library.get_pointer_to_function(part.fndesc.llvm_func_name)
    assert whole.library.get_pointer_to_function(whole.fndesc.llvm_func_name)


def test_an_interrupt_waits_until_a_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in the middle would leave LLVM locked for all other threads."""
    compiled: list[str] = []

    def compile_interrupted(self: Any, signature: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        compiled.append("whole")

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest's shell may ignore it
    try:
        monkeypatch.setattr(compile_module.Kernel.__base__, "compile", compile_interrupted)
        with pytest.raises(KeyboardInterrupt):
            compile_module.kernel(abs_loop)(np.ones(1))
        assert compiled == ["whole"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with compile_module.interrupts_wait():
            pass
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)


def abs_loop(x: Any) -> None:
    for i in range(x.size):
        x[i] = abs(x[i])
