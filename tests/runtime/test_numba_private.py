"""Without one of numba's private names, or with a numba that was not tried, everything works and says so once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from numba.core.registry import cpu_target

from fpsim.runtime import numba_private
from fpsim.runtime.target import target, target_machine
from tests.kit.processes import ROOT, Bare

# Calls of several rooms, with a numba that has no module, object or attribute of some name, or is another version.
CALLS = """
    import importlib, os, types, warnings
    import numpy as np, numba
    from fpsim.runtime import numba_private

    kind, gone = os.environ["GONE"].split()

    def find(thing, name):
        if name == gone:
            raise AttributeError(f"{thing} has no attribute {name!r}")
        return getattr(thing, name)

    def find_module(name):
        if name == gone:
            raise ImportError(f"no module named {name!r}")
        return importlib.import_module(name)

    if kind == "version":
        numba.__version__ = gone
    elif kind == "module":
        numba_private.importlib = types.SimpleNamespace(import_module=find_module)
    else:  # numba itself keeps the name
        numba_private.getattr = find
    import fpsim as fp

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        x = np.float32([[0.1, 4.25], [300, -500]])
        print(fp.decode(np.uint8([[1, 2], [3, 254]]), "e4m3").tolist())
        if "MORE" in os.environ:
            print(fp.encode(x, "e4m3").tolist())
            print(fp.less(x.astype(np.float16), x.astype(np.float16)).tolist())
    for one in said:
        print(one.category.__name__, one.message)
"""
GONE = [
    *(f"object {name}" for _, name, _ in numba_private.PLACES.values()),
    *(f"attribute {name}" for *_, names in numba_private.PLACES.values() for name in names),
    "attribute _cache", "module numba.core.caching", "version 0.70.0", "version 1.0",
]  # fmt: skip


@pytest.fixture(scope="module")
def results(bare: Bare, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The lines that the calls print with all private names, and no warning."""
    folder = tmp_path_factory.mktemp("kept")
    lines = bare.python(CALLS, GONE="version 0.68.1", FPSIM_CACHE_DIR=str(folder), MORE="").splitlines()
    assert len(lines) == 3
    assert list(folder.rglob("*.kernel"))
    return lines


# one of each kind and the last one: each takes a process, which compiles
SOME = {GONE[0], "attribute _unique_ids", "attribute _cache", "module numba.core.caching", GONE[-1]}


@pytest.mark.parametrize("gone", [pytest.param(gone, marks=[] if gone in SOME else pytest.mark.slow) for gone in GONE])
def test_everything_works_without_a_private_name(gone: str, results: list[str], tmp_path: Path, bare: Bare) -> None:
    more: dict[str, Any] = {"MORE": ""} if gone == GONE[-1] else {}  # compiling takes seconds in each process
    *lines, warning = bare.python(CALLS, GONE=gone, FPSIM_CACHE_DIR=str(tmp_path), **more).splitlines()
    assert lines == results[: len(lines)]
    assert len(lines) == (3 if more else 1)
    assert re.match("RuntimeWarning fpsim keeps no compiled kernels on disk and compiles them anew", warning)
    assert gone.split()[1] in warning
    assert "Install numba>=0.61,<0.70 to have them kept." in warning
    assert not list(tmp_path.rglob("*.kernel"))


def test_numba_before_the_first_untried_version_is_what_the_package_takes() -> None:
    bound = ".".join(map(str, numba_private.UNTRIED))
    assert f'"numba>=0.61,<{bound}"' in (ROOT / "pyproject.toml").read_text()


def test_no_other_file_reaches_into_numba_or_llvmlite() -> None:
    inside = re.compile(r"numba\.(core|np)|binding\.ffi|\._(engine|tm|library_class|final_module)\b|set_env")
    files = [path for room in ("fpsim", "analysis", "gpu") for path in (ROOT / room).rglob("*.py")]
    assert len(files) > 300
    reaching = sorted(str(path.relative_to(ROOT)) for path in files if inside.search(path.read_text()))
    assert reaching == ["fpsim/runtime/numba_private.py"]


def test_the_target_is_the_processor_that_numba_compiles_for() -> None:
    codegen = cpu_target.target_context.codegen()
    assert target() == codegen.magic_tuple()
    assert target_machine().triple == codegen._tm.triple


def test_functions_of_two_processes_never_have_one_number(bare: Bare) -> None:
    script = """
        import os
        from fpsim.runtime import numba_private

        print(next(numba_private._numbers()), flush=True)
        numba_private.names()
        if (child := os.fork()) == 0:
            print(next(numba_private._numbers()), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
    """
    numbers = [int(line) for _ in range(2) for line in bare.python(script).splitlines()]
    assert len(numbers) == 4
    assert len({number // numba_private.SPACING for number in numbers}) == 4
