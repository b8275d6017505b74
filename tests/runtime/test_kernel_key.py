"""The keys of kernels: an edit is never overlooked, and compiles again nothing but what it is part of."""

from __future__ import annotations

import enum
import os
import re
import shutil
import types
from collections import namedtuple
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

import fpsim as fp
from fpsim.runtime import kernel_key
from fpsim.runtime.compile import KERNELS, kernel, scalar
from tests.kit import keys
from tests.kit.processes import ROOT, Bare, python
from tests.runtime.functions import function

TOWARD_ZERO = "return zero  # toward zero"
# of the same length and with the same captured names, so that nothing but the text tells them apart
AWAY = "return word(rest != zero)".ljust(len(TOWARD_ZERO), "#")
ENCODE = "import numpy as np, fpsim as fp; print(fp.encode(np.float32([1.99]), fp.E4M3, rounding='RTZ').tolist())"
TRUNCATED, EDITED = "[63]", "[64]"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with a copy of the package, whose sources may be edited."""
    shutil.copytree(ROOT / "fpsim", tmp_path / "fpsim")  # bytecode too: Python compiles only what is edited
    return tmp_path


def edit(copied: Path, old: str, new: str) -> None:
    file = copied / "fpsim" / "core" / "rounding.py"
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} is no line of core/rounding.py any more; name another one here"
    file.write_text(text.replace(old, new))


# Whatever numba turns into its own representation on the way to a kernel, and every global value that it reads there,
# has to be part of the key of some kernel: here what remembers it, and what tells what no key covers.
LOOKED_AT = """
    import numba, numpy as np, fpsim as fp
    from numba.core import bytecode

    looked_at, original = {}, bytecode.FunctionIdentity.from_function.__func__
    def recording(cls, function):
        if function.__module__.startswith("fpsim"):
            looked_at[id(function)] = function
        return original(cls, function)
    bytecode.FunctionIdentity.from_function = classmethod(recording)
"""
MISSED = """
    from fpsim.runtime.compile import KERNELS
    from fpsim.runtime.kernel_key import functions_of

    covered = {id(one) for kernel in KERNELS for one in functions_of(kernel)}
    print("missed", sorted({f"{f.__module__}.{f.__qualname__}" for i, f in looked_at.items() if i not in covered}))
    print("rooms", *sorted({f.__module__.split(".")[1] for f in looked_at.values()}))
"""
# What a cast gives, and what a process compiles, name by name, that uses it and an operation that rounds nothing.
COMPILED = f"""
    {LOOKED_AT}
    from numba.core import event
    with event.install_recorder("numba:compile") as recorder:
        fp.classify(np.arange(3, dtype=np.uint8), fmt="e4m3")
        {ENCODE}
    print(*sorted({{each.data["dispatcher"].py_func.__module__ for _, each in recorder.buffer}}))
    {MISSED}
"""
# The same cast in a process that outlives an edit: it may use the old text or the new, and leave nothing stale behind.
OUTLIVES = f"""
    import fpsim
    from pathlib import Path
    file = Path(fpsim.__file__).parent / "core" / "rounding.py"
    text = file.read_text()
    file.write_text(text.replace({TOWARD_ZERO!r}, {AWAY.replace("!=", "> ")!r}))
    {ENCODE}
    file.write_text(text)
"""


def test_an_edit_compiles_again_what_it_is_part_of_and_nothing_else(copied: Path, bare: Bare) -> None:
    """An edited helper never meets an old kernel, nor does its restored self."""

    def run(script: str) -> str:
        return bare.python(script, copied, FPSIM_CACHE_DIR=str(copied / "cache"))

    def used() -> tuple[str, set[str], str]:
        """The codes, the modules of what was compiled, and the rooms of that, which keys cover."""
        codes, modules, missed, rooms = run(COMPILED).splitlines()
        assert missed == "missed []"
        return codes, set(modules.split()), rooms

    run(OUTLIVES)
    codes, compiled, rooms = used()
    assert codes == TRUNCATED
    assert "fpsim.arithmetic.kernels.exact" in compiled
    assert {"arithmetic", "core"} <= set(rooms.split())
    file = copied / "fpsim" / "core" / "rounding.py"
    text = file.read_text()
    with_words = re.sub(r'(:\n +""")', r"\1Words that no kernel is made of. ", text)
    assert with_words != text
    file.write_text("\n\n" + with_words)
    neighbour = copied / "fpsim" / "core" / "neighbour.py"
    neighbour.write_text(neighbour.read_text() + "\nUNUSED = 1\n")
    (copied / "fpsim" / "analysis" / "new.py").write_text("x = 1\n")
    nothing = TRUNCATED, set[str](), "rooms"
    assert used() == nothing, "words, numbers of lines, unused constants and files are part of no kernel"
    edit(copied, TOWARD_ZERO, AWAY)
    codes, compiled, rooms = used()
    assert codes == EDITED
    assert "fpsim.casts.loops" in compiled
    assert "fpsim.arithmetic.kernels.exact" not in compiled
    assert rooms == "rooms casts core runtime"
    edit(copied, AWAY, TOWARD_ZERO)
    assert used() == nothing


# Kernels of every room. Those that other tests compile are held against their keys one by one (tests/kit/keys.py).
SEEN = f"""
    {LOOKED_AT}
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    fp.encode(x, "e4m3"); fp.encode(x, "e5m2", rounding="stochastic", seed=1); fp.quantize(x, "fp16")
    c = fp.cast(x, "e4m3")
    fp.decode(fp.encode(x, "e4m3"), "e4m3")
    fp.add(c, c, flags=True); fp.multiply(x.astype(np.float16), x.astype(np.float16)); fp.less(c, c)
    fp.encode_scaled(x, "e4m3", fp.scalings.TILE_1X128).decode(); fp.OnlineScaling("e4m3").quantize(x)
    fp.sum(x, accumulate=fp.Chunked("bf16")); fp.sum(x, accumulate=fp.Exact("fp32"))
    fp.dot_add(c[:, :32], c[:, :32], None, "hopper_e4m3_f32")
    fp.encode_scaled(x, "uint4", fp.Scaling(block=(1, 16), symmetric=False))
    fp.matmul(c, c.T, accumulate="hopper_e4m3_f32", promote=32)
    fp.analysis.error(x, "e4m3"); fp.analysis.range(x)
    fp.probe.sum(lambda x: (x[0] + x[2]) + (x[1] + x[3]), 4).sum(x[0, :4])
    from fpsim.core.layouts import encode_plan
    from fpsim.testing.conformance.loops import drawn_kernel
    plan = encode_plan(fp.E4M3, 32, fp.Rounding.STOCHASTIC, "saturate", "keep", 32)
    word, mode = np.zeros(1, np.uint32), np.int64(fp.Rounding.STOCHASTIC)
    drawn_kernel(32)(word, word, word.copy(), plan.layout, mode, np.int64(plan.kind))
    {MISSED}
"""
ROOMS = "analysis arithmetic casts core instructions probe products runtime scaling sums testing"


@pytest.mark.slow
def test_every_function_that_numba_compiles_into_a_kernel_is_part_of_its_key(tmp_path: Path) -> None:
    found = python(SEEN, FPSIM_CACHE_DIR=str(tmp_path), NUMBA_OPT="0")
    assert found.splitlines() == ["missed []", f"rooms {ROOMS}"]


def test_a_function_that_no_key_covers_fails_the_test_that_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    helper = scalar(function("def f(x):\n    return x + 1\n", __name__="fpsim.made_up.helper"))
    whole = kernel(function("def f(x):\n    return helper(x)\n", __name__="fpsim.made_up.whole", helper=helper))
    monkeypatch.setattr(keys, "functions_of", lambda compiled: [compiled.py_func])
    with keys.keys_are_checked(), pytest.raises(AssertionError, match=r"lacks .*helper.*: an edit of these"):
        whole(1)


class Pair(NamedTuple):
    """A record that kernels take."""

    a: int
    b: int


class Kind(enum.Enum):
    """A mode that kernels know by name."""

    ONE = 1
    TWO = 2


def test_a_key_follows_code_constants_captured_values_and_callees() -> None:
    source = "def f(x):\n    return h(x) + C\n"
    helper = function("def f(x):\n    return x + 1\n")
    key = kernel_key.key_of(function(source, h=helper, C=2))
    same = [
        function(source, h=function("def f(x):\n    return x + 1\n"), C=2),
        function(f"# words\n\n{source}", h=helper, C=2, unused=3),
        function('def f(x):\n    """Words."""\n    return h(x) + C\n', h=helper, C=2),
    ]
    others = [
        function(source.replace("+", "-"), h=helper, C=2),
        function(source, h=helper, C=3),
        function(source, h=helper, C=2.0),
        function(source, h=helper, C=np.uint32(2)),
        function(source, h=helper, C=np.array([2])),
        function(source, h=function("def f(x):\n    return x + 2\n"), C=2),
        function(source, h=function("def f(x, y=1):\n    return x + 1\n"), C=2),
        function(source, h=numba.njit(helper), C=2),
        function(source, h=numba.njit(inline="always")(helper), C=2),
    ]
    assert [kernel_key.key_of(each) for each in same] == [key] * len(same)
    keys = [kernel_key.key_of(each) for each in others]
    assert len({key, *keys}) == len(others) + 1


@pytest.mark.parametrize(
    ("source", "names", "others"),
    [
        ("def f(x):\n    return m.C", {"m": {"C": 1, "D": 1}}, [{"m": {"C": 2, "D": 1}}]),
        ("def f(x):\n    return K.ONE", {"K": Kind}, [{"K": enum.Enum("Kind", {"ONE": 2})}]),
        ("def f(x):\n    return P(x, x)", {"P": Pair}, [{"P": namedtuple("Pair", "b a")}]),
        ("def f(x):\n    return C[0]", {"C": ((1, 2), [3])}, [{"C": ((1, 2), [4])}, {"C": Pair(1, 2)}]),
        ("def f(x):\n    return C[0]", {"C": np.arange(3)}, [{"C": np.arange(3.0)}, {"C": np.arange(1, 4)}]),
        ("def f(x):\n    return C", {"C": 0.0}, [{"C": -0.0}, {"C": False}, {"C": np.float32(0)}, {"C": None}]),
    ],
)
def test_a_key_tells_values_apart(source: str, names: dict[str, Any], others: list[dict[str, Any]]) -> None:
    def with_module(found: dict[str, Any]) -> dict[str, Any]:
        if "m" not in found:
            return found
        module = types.ModuleType("fpsim.made_up_module")
        vars(module).update(found["m"])
        return {"m": module}

    keys = [kernel_key.key_of(function(source, **with_module(each))) for each in (names, *others)]
    assert len(set(keys)) == len(keys)


def test_a_function_and_one_that_calls_it_in_a_circle_have_keys() -> None:
    names: dict[str, Any] = {"__name__": "fpsim.made_up"}
    exec("def f(n):\n    return g(n - 1) if n else 0\ndef g(n):\n    return f(n) + 1\n", names)
    first = kernel_key.key_of(names["f"])
    exec("def g(n):\n    return f(n) + 2\n", names)
    assert kernel_key.key_of(names["f"]) != first


def test_a_key_follows_the_options_of_the_kernel_itself() -> None:
    """Found in a review: options of callees were part of the key, and those of the kernel were not."""
    plain = function("def f(x):\n    return x + 1\n", __name__="fpsim.options")
    options: list[dict[str, Any]] = [{}, {"nogil": True}, {"error_model": "numpy"}, {"fastmath": True}]
    keys = [kernel_key.key_of(numba.njit(**each)(plain)) for each in options]
    assert len({kernel_key.key_of(plain), *keys}) == len(options) + 1


def test_what_cannot_be_described_has_no_key() -> None:
    with pytest.raises(kernel_key.UnknownPart, match="no key is known for <object object"):
        kernel_key.key_of(function("def f(x):\n    return C", C=object()))
    with pytest.raises(kernel_key.UnknownPart, match=r"f imports fpsim\.core when it runs"):
        kernel_key.key_of(function("def f(x):\n    from fpsim.core import pack\n    return pack"))


def test_other_packages_are_told_by_their_names_alone() -> None:
    """Found in a run of all tests: a walk that led into another package met its settings, and gave no key."""
    kernel_key.key_of(function("def f(x):\n    return os.environ.get(shutil.copy)", os=os, shutil=shutil))


def test_no_kernel_is_without_a_key() -> None:
    fp.encode(1.0, fp.E4M3)
    assert KERNELS
    for each in KERNELS:  # all that the tests of this worker have made until now
        kernel_key.key_of(each)
