"""Which functions become machine code, and how kernels from the disk and new ones share that of a loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from fpsim.runtime import compile as compile_module
from fpsim.runtime import kernel_files
from tests.kit.processes import Bare


def halve(xs: Any) -> None:
    if xs.size > 3:
        raise ValueError("at most three numbers")
    for i in range(xs.size):
        xs[i] /= 2


def halve_any(xs: Any) -> None:
    for i in range(xs.size):
        xs[i] /= 2


def calling(function: Any, times: int) -> Callable[..., Any]:
    """A loop that calls a function on its array so many times."""

    def call(xs: Any) -> None:
        for _ in range(times):
            function(xs)

    return call


def pointer(dispatcher: Any) -> int:
    """Where the machine code of a function begins that was compiled for one kind of arguments; zero without any."""
    (compiled,) = dispatcher.overloads.values()
    found: int = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_func_name)
    return found


@pytest.fixture(autouse=True)
def _compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels do not come from the disk, nor go to the table of those that do."""
    monkeypatch.setattr(kernel_files, "base_folder", lambda: None)
    monkeypatch.setattr(compile_module, "KERNELS", [])


@pytest.mark.parametrize(("make", "machine"), [(compile_module.scalar, False), (compile_module.inner_loop, True)])
def test_only_kernels_and_loops_become_machine_code(make: Any, machine: bool) -> None:
    part = make(halve)
    whole: Any = compile_module.kernel(calling(part, 1))
    xs = np.array([1.0, 3.0])
    whole(xs)
    assert xs.tolist() == [0.5, 1.5]
    assert bool(pointer(part)) == machine
    assert pointer(whole)
    part.compile("none(float32[::1])")  # alone it may be compiled too


def test_kernels_share_the_machine_code_of_a_loop() -> None:
    loop: Any = compile_module.inner_loop(halve)
    kernels: list[Any] = [compile_module.kernel(calling(loop, times)) for times in (1, 2)]
    for kernel, want in zip(kernels, ([4.0, 8.0], [2.0, 4.0]), strict=True):
        xs = np.array([8.0, 16.0])
        kernel(xs)
        assert xs.tolist() == want
        (compiled,) = kernel.overloads.values()
        (called,) = loop.overloads.values()
        assert list(compiled.library.called) == [called.library]
        assert compiled.library._final_module.get_function(called.fndesc.llvm_func_name).is_declaration
        with pytest.raises(ValueError, match=r"^at most three numbers$"):
            kernel(np.zeros(4))
        assert called.fndesc.llvm_func_name in kernel.inspect_asm(kernel.signatures[0])


def test_kernels_know_the_loops_that_their_parts_and_kernels_call() -> None:
    loop: Any = compile_module.inner_loop(halve)
    part: Any = compile_module.scalar(calling(loop, 1))
    first: Any = compile_module.kernel(calling(part, 1))
    second: Any = compile_module.kernel(calling(first, 2))
    xs = np.array([8.0])
    second(xs)
    assert xs.tolist() == [2.0]
    (of_loop,), (of_first,), (of_second,) = (each.overloads.values() for each in (loop, first, second))
    assert list(of_second.library.called) == [of_loop.library, of_first.library]


@pytest.mark.parametrize("function", [halve, halve_any])
def test_a_function_of_numbas_may_call_loops_and_is_not_kept(function: Callable[..., Any]) -> None:
    """Another process would find its machine code and not that of the loop."""
    loop: Any = compile_module.inner_loop(function)
    for called in (loop, compile_module.scalar(calling(loop, 1)), compile_module.kernel(calling(loop, 1))):
        theirs: Any = numba.njit(calling(called, 2))
        xs = np.array([8.0])
        theirs(xs)
        assert xs.tolist() == [2.0]
        (compiled,) = theirs.overloads.values()
        assert compiled.library.has_dynamic_globals


@pytest.mark.parametrize(("function", "counts"), [(halve, True), (halve_any, False)])
def test_no_references_are_counted_for_loops_that_never_raise(function: Callable[..., Any], counts: bool) -> None:
    """Found in a benchmark: sums of products of BF16 took two and a half times as long, with a count for each block."""
    loop: Any = compile_module.inner_loop(function)
    part: Any = compile_module.scalar(calling(loop, 1))

    def in_blocks(xs: Any) -> None:
        for start in range(0, xs.size, 3):
            block = xs[start : start + 3]
            if block[0] > 0:
                part(block)
                loop(block)
            block[0] += 1

    kernel: Any = compile_module.kernel(in_blocks)
    xs = np.array([4.0, -8.0, 4.0, -4.0, 4.0])
    kernel(xs)
    assert xs.tolist() == [2.0, -2.0, 1.0, -3.0, 4.0]
    (compiled,) = kernel.overloads.values()
    (of_loop,) = loop.overloads.values()
    alone = compiled.library.get_asm_str().replace(of_loop.library.get_asm_str(), "")
    whole = alone.partition("_ZN7cpython")[0]  # without the entrance from Python
    assert of_loop.fndesc.llvm_func_name in whole
    assert ("NRT_incref" in whole) == counts
    assert pointer(loop)


KERNELS = """
    import os
    import numpy as np
    from fpsim.runtime.compile import inner_loop, kernel

    def halve(xs):
        if xs.size > 3:
            raise ValueError("at most three numbers")
        for i in range(xs.size):
            xs[i] /= 2

    halve = inner_loop(halve)

    def once(xs):
        halve(xs)

    def twice(xs):
        once(xs)
        halve(xs)

    once, twice = kernel(once), kernel(twice)
    for name in os.environ["ORDER"].split():
        loop = {"once": once, "twice": twice}[name]
        xs = np.array([8.0, 16.0])
        loop(xs)
        try:
            loop(np.zeros(4))
            said = "nothing"
        except ValueError as error:
            said = error
        print(name, xs.tolist(), said, sum(loop.stats.cache_hits.values()))
    print(len(halve.overloads))
"""


@pytest.mark.parametrize("raises", [True, False])
def test_kernels_from_the_disk_bring_their_loops(raises: bool, tmp_path: Path, bare: Bare) -> None:
    said = "at most three numbers" if raises else "nothing"
    words = {"once": f"once [4.0, 8.0] {said}", "twice": f"twice [2.0, 4.0] {said}"}
    script = KERNELS if raises else KERNELS.replace('raise ValueError("at most three numbers")', "pass")

    def run(order: str) -> list[str]:
        return bare.python(script, ORDER=order, FPSIM_CACHE_DIR=str(tmp_path)).splitlines()

    assert run("twice once") == [f"{words['twice']} 0", f"{words['once']} 0", "1"]
    for order in ("once twice", "twice once"):  # either brings what both have
        assert run(order) == [*(f"{words[name]} 1" for name in order.split()), "0"]
    (file,) = tmp_path.rglob("*once-*.kernel")
    file.unlink()
    assert run("twice once") == [f"{words['twice']} 1", f"{words['once']} 0", "1"], "compiled beside what was loaded"
    (file,) = tmp_path.rglob("*twice-*.kernel")
    file.unlink()
    assert run("once twice") == [f"{words['once']} 1", f"{words['twice']} 0", "1"], "with what was loaded inside"
    assert run("twice") == [f"{words['twice']} 1", "0"], "what was loaded is part of the new file"


EDITED = """
    import sys, types
    import numpy as np

    SOURCE = '''
    from fpsim.runtime.compile import inner_loop, kernel, scalar

    @MAKE
    def part(xs):
        for i in range(xs.size):
            xs[i] *= FACTOR

    @kernel
    def whole(xs):
        part(xs)
    '''
    for factor in ("2.0", "9.0"):
        module = sys.modules["edited"] = types.ModuleType("edited")
        exec(SOURCE.replace("FACTOR", factor), vars(module))
        xs = np.ones(3)
        module.whole(xs)
        print(xs.tolist(), sum(module.whole.stats.cache_hits.values()))
"""


@pytest.mark.parametrize("make", ["inner_loop", "scalar"])
def test_a_function_edited_in_a_process_does_not_meet_its_code_from_the_disk(
    make: str, tmp_path: Path, bare: Bare
) -> None:
    """Found in a review: both had one name, and the first one of that name was called."""
    script = EDITED.replace("MAKE", make)
    assert bare.python(script, FPSIM_CACHE_DIR=str(tmp_path)).splitlines() == ["[2.0, 2.0, 2.0] 0", "[9.0, 9.0, 9.0] 0"]
    assert bare.python(script, FPSIM_CACHE_DIR=str(tmp_path)).splitlines() == ["[2.0, 2.0, 2.0] 1", "[9.0, 9.0, 9.0] 0"]


TABLES = """
    import os
    import numpy as np
    from fpsim.runtime.compile import inner_loop, kernel

    def made(value):
        table = np.zeros(2001)  # which numpy abbreviates
        table[1000] = value

        def fill(xs):
            for i in range(xs.size):
                xs[i] = table[1000]

        part = inner_loop(fill)

        def whole(xs):
            part(xs)

        return kernel(whole)

    for value in map(float, os.environ["VALUES"].split()):
        loop, xs = made(value), np.zeros(1)
        loop(xs)
        print(xs[0], sum(loop.stats.cache_hits.values()))
"""


def test_loops_that_captured_long_arrays_keep_apart(tmp_path: Path, bare: Bare) -> None:
    assert bare.python(TABLES, VALUES="1", FPSIM_CACHE_DIR=str(tmp_path)) == "1.0 0"
    both = bare.python(TABLES, VALUES="1 9", FPSIM_CACHE_DIR=str(tmp_path))
    assert both.splitlines() == ["1.0 1", "9.0 0"]


def test_loops_may_use_functions_that_numba_defines_beside_them() -> None:
    @compile_module.inner_loop
    def remainders(xs: Any) -> None:
        for i in range(xs.size):
            xs[i] = xs[i] % 3.0

    kernel: Any = compile_module.kernel(calling(remainders, 1))
    xs = np.arange(6.0)
    kernel(xs)
    assert xs.tolist() == [0.0, 1.0, 2.0, 0.0, 1.0, 2.0]
    loop: Any = remainders
    assert loop.inspect_llvm()
    assert loop.inspect_cfg()
