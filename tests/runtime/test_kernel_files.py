"""The files of kernels: damaged ones are not believed, old ones go, those of several processes keep apart."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from fpsim.runtime import compile as compile_module
from fpsim.runtime import kernel_files
from tests.kit.processes import Bare, printed
from tests.runtime.functions import function

WITHOUT = """
    import os, pathlib
    import numpy as np, fpsim as fp
    from fpsim.runtime.kernel_files import base_folder
    print(base_folder().exists(), fp.decode(np.uint8([0x38]), fp.E4M3).tolist())

    def home() -> None:
        raise RuntimeError("Could not determine home directory.")
    pathlib.Path.home = home
    for name in ("FPSIM_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    base_folder.cache_clear()
    print(base_folder(), fp.decode(np.uint16([0x3C00]), fp.FP16).tolist())
"""


def test_a_cache_folder_that_cannot_be_made_or_named_is_done_without(tmp_path: Path, bare: Bare) -> None:
    obstacle = tmp_path / "file"
    obstacle.touch()
    assert bare.python(WITHOUT, FPSIM_CACHE_DIR=str(obstacle)).splitlines() == ["False [1.0]", "None [1.0]"]
    assert obstacle.read_bytes() == b""


def increase() -> Callable[..., Any]:
    """A loop that compiles in no time, as a module of the package would define it; its kernels are not known yet."""
    return function("def f(x):\n    for i in range(x.size):\n        x[i] += 1\n", __name__="fpsim.increase")


def from_disk() -> int:
    """Use three kernels of the loop: how many of them came from the disk."""
    loop: Any = compile_module.kernel(increase())
    for dtype in (np.int32, np.float32, np.float64):
        x = np.ones(2, dtype)
        loop(x)
        assert x.tolist() == [2, 2]
    return sum(loop.stats.cache_hits.values())


def kernels(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kernel"))


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three kernels, and nothing else, which this process takes for its cache."""
    monkeypatch.setattr(compile_module, "KERNELS", [])
    monkeypatch.setattr(kernel_files, "base_folder", lambda: tmp_path)
    old = tmp_path / "f-0.kernel"
    old.touch()
    os.utime(old, (0, 0))
    assert from_disk() == 0
    assert len(kernels(tmp_path)) == 3
    assert not old.exists(), "whoever keeps a kernel forgets old ones"
    return tmp_path


def test_old_kernels_are_forgotten_and_nothing_else_is_touched(tmp_path: Path) -> None:
    base = tmp_path / "fpsim-kernels"
    old, strange, other = base / ("0" * 20), base / ("1" * 20), tmp_path / "fpsim" / ".git"
    for folder in (old, strange, other, base / "mine"):
        folder.mkdir(parents=True)
        (folder / ("kernel.nbi" if folder == old else "notes.txt")).write_text("x")
    for name in ("f-1.kernel", "f-2.draft", "notes.md", "f-3.kernel"):
        (base / name).write_text("x")
    for path in (old, strange, other, base / "mine", base / "f-1.kernel", base / "f-2.draft", base / "notes.md"):
        os.utime(path, (0, 0))
    kernel_files.tidy.__wrapped__(base)
    assert not old.exists()
    assert not (base / "f-1.kernel").exists()
    assert not (base / "f-2.draft").exists()
    assert (base / "notes.md").exists()
    assert (base / "f-3.kernel").exists()
    assert all((folder / "notes.txt").exists() for folder in (strange, other, base / "mine"))


def test_the_least_used_kernels_go_where_all_take_too_much_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_files, "KEEP_BYTES", 250)
    now = time.time()
    for i in range(5):
        path = tmp_path / f"f-{i}.kernel"
        path.write_bytes(bytes(100))
        os.utime(path, (now - i, now - i))
    kernel_files.tidy.__wrapped__(tmp_path)
    assert [path.name for path in kernels(tmp_path)] == ["f-0.kernel", "f-1.kernel"]


def test_a_relative_cache_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = kernel_files.base_folder.__wrapped__
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, place in (("kept", tmp_path), ("~/kept", tmp_path / "home"), (str(tmp_path / "kept"), tmp_path)):
        monkeypatch.setenv("FPSIM_CACHE_DIR", name)
        assert folder() == place / "kept" / "fpsim-kernels"


def test_old_files_that_may_only_be_read_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.kernel"
    kernel_files.write_whole(path, b"code")
    os.utime(path, (0, 0))

    def refuse(path: Path) -> None:
        raise PermissionError(f"{path} belongs to another user")

    monkeypatch.setattr(os, "utime", refuse)
    assert kernel_files.read_whole(path) == b"code"


def test_no_flipped_bit_is_believed(tmp_path: Path) -> None:
    path, content = tmp_path / "f.kernel", np.random.default_rng(0).bytes(50)
    kernel_files.write_whole(path, content)
    assert kernel_files.read_whole(path) == content
    stored = path.read_bytes()
    for i in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[i // 8] ^= 1 << i % 8
        path.write_bytes(damaged)
        assert kernel_files.read_whole(path) is None, i
    for length in range(len(stored)):
        path.write_bytes(stored[:length])
        assert kernel_files.read_whole(path) is None, length
    assert kernel_files.read_whole(tmp_path / "none.kernel") is None
    assert [each.name for each in tmp_path.iterdir()] == ["f.kernel"]


def test_damaged_kernels_are_compiled_anew(kept: Path) -> None:
    assert from_disk() == 3
    flipped, emptied, no_pickle = files = kernels(kept)
    whole = flipped.read_bytes()
    flipped.write_bytes(whole[:-1000] + bytes([whole[-1000] ^ 4]) + whole[-999:])
    emptied.write_bytes(b"")
    kernel_files.write_whole(no_pickle, b"no pickle")  # a whole file of something else
    assert from_disk() == 0
    for file in files:
        content = kernel_files.read_whole(file)
        assert content is not None, "it was written again"
        assert pickle.loads(content)
    assert from_disk() == 3


@pytest.mark.parametrize("switch", kernel_files.SWITCHES)
def test_kernels_of_other_switches_keep_apart(switch: str, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def file() -> Path:
        loop: Any = compile_module.kernel(increase())
        path: Path = loop._cache.path((numba.float32[::1],))
        return path

    assert file() in kernels(kept)
    kernel_files.compiler.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(numba.config, switch, "another")
        assert file() not in kernels(kept)
    kernel_files.compiler.cache_clear()


VARIANTS = """
    import os
    import numpy as np
    import fpsim as fp

    x = np.float32([1.0625, -1.0625, 1.03, -1.03, 300])
    for rounding in os.environ["ORDER"].split():  # both have loops of their own
        print(rounding, fp.encode(x, fp.E4M3, rounding=rounding).tolist())
"""


def test_variants_of_a_loop_from_several_processes_keep_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bare: Bare
) -> None:
    """Found when tests ran in another order than the day before: machine code from the cache met new code under one
    name, and one variant of a loop called the parts of another."""
    monkeypatch.setenv("ORDER", "up down")
    want = {line.split()[0]: line for line in printed(VARIANTS).splitlines()}
    assert len({line.partition(" ")[2] for line in want.values()}) == 2, "or nothing would tell them apart"
    for order in ("up", "down up"):
        got = bare.python(VARIANTS, ORDER=order, FPSIM_CACHE_DIR=str(tmp_path)).splitlines()
        assert got == [want[name] for name in order.split()], order


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
    for hits in (0, 1):
        got = bare.python(script, FPSIM_CACHE_DIR=str(tmp_path)).splitlines()
        assert got == [f"[2.0, 2.0, 2.0] {hits}", f"[9.0, 9.0, 9.0] {hits}"]


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


SHARED = """
    import os
    import numpy as np
    from fpsim.runtime.compile import inner_loop, kernel

    def halve(xs):
        if xs.size > 3:
            raise ValueError("at most three numbers", xs.size)
        for i in range(xs.size):
            xs[i] /= 2

    halve = inner_loop(halve)

    def once(xs):
        halve(xs)

    def twice(xs):
        halve(xs)
        halve(xs)

    once, twice = kernel(once), kernel(twice)
    for name in os.environ["ORDER"].split():
        loop = {"once": once, "twice": twice}[name]
        xs = np.array([8.0, 16.0])
        loop(xs)
        try:
            loop(np.zeros(4))
        except ValueError as error:
            print(name, xs.tolist(), error, sum(loop.stats.cache_hits.values()))
"""


def test_every_kernel_from_the_disk_stands_alone(tmp_path: Path, bare: Bare) -> None:
    """Kernels that call one loop have no need of each other's files, and word its errors alike."""
    words = {"once": "once [4.0, 8.0]", "twice": "twice [2.0, 4.0]"}

    def check(order: str, *hits: int) -> None:
        said = "('at most three numbers', 4)"
        want = [f"{words[name]} {said} {hit}" for name, hit in zip(order.split(), hits, strict=True)]
        assert bare.python(SHARED, ORDER=order, FPSIM_CACHE_DIR=str(tmp_path)).splitlines() == want

    check("twice", 0)
    check("once twice", 0, 1)
    check("once twice", 1, 1)
    check("twice once", 1, 1)
    (file,) = tmp_path.rglob("*once-*.kernel")
    file.unlink()
    check("twice once", 1, 0)
    check("once", 1)
