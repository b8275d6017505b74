"""Compilation: plain Python gives the same bits, a second process compiles nothing, an edit is never overlooked."""

from __future__ import annotations

import enum
import os
import pickle
import re
import shutil
import signal
import textwrap
import time
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

import fpsim as fp
from fpsim.runtime import compile as compile_module
from fpsim.runtime import kernel_files, kernel_key
from fpsim.runtime.compile import KERNELS
from tests.arithmetic.sample import lines
from tests.kit.processes import ROOT, Bare, printed, python

DIGESTS = """
    import hashlib
    import numpy as np
    import fpsim as fp
    from fpsim.formats.policies import OVERFLOWS
    from fpsim.formats.rounding import NAMES

    narrow = np.random.default_rng(0).integers(0, 1 << 32, 16, dtype=np.uint32).view(np.float32)
    wide = np.random.default_rng(1).integers(0, 1 << 64, 8, dtype=np.uint64).view(np.float64)
    near = np.array([1, 1.0625, 1.1875, -464, 465, -2.0**-10, 3 * 2.0**-10, 0, -0.0, np.inf, -np.inf, np.nan, 3e-39])
    mine = [fp.Format("deep", 5, 10, bias=1060), fp.Format("powers", 5, 0, infinities=False, nan="top")]
    p3109 = [fp.format(f"p3109_{name}") for name in ("k8p1se", "k8p4sf", "k8p3ue", "k12p5se")]
    for number, fmt in enumerate([*(fp.format(name) for name in fp.formats.names()), *p3109, *mine]):
        for i, x in enumerate((narrow, wide, near, near.astype(np.float32), near[:8].astype(np.float16))):
            for rounding in NAMES[(number + i) % 3 :: 3]:  # every mode of a format, and of a type of float
                codes = fp.encode(x, fmt, rounding=rounding, seed=3)
                print(fmt, x.dtype, rounding, hashlib.sha256(codes.tobytes()).hexdigest())
        for overflow in OVERFLOWS:
            for subnormals in ("keep", "flush"):
                codes = fp.encode(near, fmt, rounding="down", overflow=overflow, subnormals=subnormals)
                print(fmt, overflow, subnormals, hashlib.sha256(codes.tobytes()).hexdigest())
        values = fp.decode(np.arange(min(1 << fmt.bits, 300)).astype(fmt.storage), fmt, np.float64)
        print(fmt, "decode", hashlib.sha256(values.tobytes()).hexdigest())
        if fp.FP32.holds(fmt):
            print(fmt, "quantize", hashlib.sha256(fp.quantize(narrow, fmt).tobytes()).hexdigest())
"""


OPERATIONS = "from tests.arithmetic.sample import lines; print(*lines(), sep='\\n')"


@cache
def in_plain_python() -> dict[str, str]:
    """What the scripts print in one process without compilation."""
    scripts = [DIGESTS, OPERATIONS, COUNT, FUSED, SCALED]
    each = [f"exec({textwrap.dedent(script)!r}, {{}})" for script in scripts]
    found = python("\nprint('----')\n".join(each), NUMBA_DISABLE_JIT="1").split("----\n")
    return {script: text.strip() for script, text in zip(scripts, found, strict=True)}


def test_plain_python_gives_the_bits_of_the_compiled_code() -> None:
    plain = in_plain_python()[DIGESTS].splitlines()
    assert plain == printed(DIGESTS).splitlines()
    assert len(plain) > 600


def test_plain_python_computes_the_bits_and_flags_of_the_compiled_operations() -> None:
    plain, compiled = in_plain_python()[OPERATIONS].splitlines(), list(lines())
    assert plain == compiled
    assert len(compiled) > 500


COUNT = """
    import numba
    from numba.core import event
    import numpy as np
    import fpsim as fp
    from fpsim.runtime.compile import KERNELS

    with event.install_recorder("numba:compile") as recorder:
        x = np.array([1.1, -464, np.nan], np.float32)
        print(fp.encode(x, fp.E4M3, rounding="up").tolist(), fp.encode(x.astype(np.float64), fp.E8M0).tolist())
        print(fp.quantize(x, fp.E4M3).tolist(), fp.decode(np.zeros(3, np.uint8), fp.E4M3).tolist())
        large = np.ones(1 << (8 if numba.config.DISABLE_JIT else 23), np.float32)  # takes another kernel
        print(set(fp.encode(large, fp.FP16).tolist()))
    print(len(recorder.buffer), sum(count for each in KERNELS for count in each.stats.cache_hits.values()))
"""


def test_a_second_process_compiles_nothing_and_gives_the_same_results() -> None:
    first, second = printed(COUNT).splitlines(), python(COUNT).splitlines()  # with the kernels of all tests
    compiled, loaded = map(int, second[-1].split())
    assert (compiled, loaded > 3) == (0, True)
    plain = in_plain_python()[COUNT].splitlines()
    assert first[:-1] == second[:-1] == plain[:-1]


FUSED = """
    import numpy as np, fpsim as fp
    from fpsim.probe.order import Order
    from fpsim.probe.program import AdditionRule, Program
    from tests.probe.planted import random_tree

    rng = np.random.default_rng(0)
    some = [0.0, -0.0, 1.5, -2e-23, 3e38, -3e38, 1e30, -1e30, np.inf, np.nan]
    a, b = (rng.choice(some, shape, p=[0.11] * 8 + [0.06] * 2).astype(np.float32) for shape in ((20, 6), (6, 20)))
    products = [fp.matmul(a, b, accumulate="cdna1_f32_f32")]
    for rule in (AdditionRule(fp.FP32), AdditionRule(fp.FP32, "toward_zero")):
        program = Program(Order.of(random_tree(rng, range(6), 2)), rule, fp.FP32, 6)
        products.append(program.run_product(*(x.astype(np.float64) for x in (a, b))).view(np.float32))
    for each in products:
        print(np.isinf(each).sum(), np.where(np.isnan(each), np.float32(np.nan), each).view(np.uint32).tolist())
"""


def test_plain_python_multiplies_beyond_the_range_as_the_compiled_code_does() -> None:
    plain = in_plain_python()[FUSED].splitlines()
    assert plain == printed(FUSED).splitlines()
    assert all(int(line.split()[0]) > 10 for line in plain[:2])


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


@pytest.fixture(scope="module")
def bare() -> Iterator[Bare]:
    bare = Bare()
    yield bare
    bare.close()


def test_a_cache_folder_that_cannot_be_made_or_named_is_done_without(tmp_path: Path, bare: Bare) -> None:
    obstacle = tmp_path / "file"
    obstacle.touch()
    assert bare.python(WITHOUT, FPSIM_CACHE_DIR=str(obstacle)).splitlines() == ["False [1.0]", "None [1.0]"]
    assert obstacle.read_bytes() == b""


# ---- edited sources

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


# What a cast gives, and what a process compiles, name by name, that uses it and an operation that rounds nothing.
COMPILED = f"""
    from numba.core import event
    import numpy as np, fpsim as fp
    with event.install_recorder("numba:compile") as recorder:
        fp.classify(np.arange(3, dtype=np.uint8), fmt="e4m3")
        {ENCODE}
    print(*sorted({{each.data["dispatcher"].py_func.__module__ for _, each in recorder.buffer}}))
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

    def used() -> tuple[str, set[str]]:
        codes, _, modules = run(COMPILED).partition("\n")
        return codes, set(modules.split())

    run(OUTLIVES)
    codes, compiled = used()
    assert codes == TRUNCATED
    assert "fpsim.arithmetic.kernels.exact" in compiled
    file = copied / "fpsim" / "core" / "rounding.py"
    text = file.read_text()
    with_words = re.sub(r'(:\n +""")', r"\1Words that no kernel is made of. ", text)
    assert with_words != text
    file.write_text("\n\n" + with_words)
    neighbour = copied / "fpsim" / "core" / "neighbour.py"
    neighbour.write_text(neighbour.read_text() + "\nUNUSED = 1\n")
    (copied / "fpsim" / "analysis" / "new.py").write_text("x = 1\n")
    assert used() == (TRUNCATED, set()), "words, numbers of lines, unused constants and files are part of no kernel"
    edit(copied, TOWARD_ZERO, AWAY)
    codes, compiled = used()
    assert codes == EDITED
    assert "fpsim.casts.loops" in compiled
    assert "fpsim.arithmetic.kernels.exact" not in compiled
    edit(copied, AWAY, TOWARD_ZERO)
    assert used() == (TRUNCATED, set())


# Kernels of some rooms that have loops, and of every room. Whatever numba turns into its own representation on the way,
# and every global value that it reads there, has to be part of the key of some kernel.
SEEN = """
    import sys
    from types import FunctionType, ModuleType
    import numba, numpy as np, fpsim as fp
    from numba.core import bytecode, ir
    from fpsim.runtime.compile import KERNELS
    from fpsim.runtime.kernel_key import functions_of

    looked_at, original = {}, bytecode.FunctionIdentity.from_function.__func__
    def recording(cls, function):
        if function.__module__.startswith("fpsim"):
            looked_at[id(function)] = function
        return original(cls, function)
    bytecode.FunctionIdentity.from_function = classmethod(recording)

    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    CALLS
    covered = {id(one) for kernel in KERNELS for one in functions_of(kernel)}
    missed = sorted({f"{f.__module__}.{f.__qualname__}" for i, f in looked_at.items() if i not in covered})
    print("missed", missed)
    print("rooms", *sorted({f.__module__.split(".")[1] for f in looked_at.values()}))
"""
SOME = """
    c = np.arange(256).astype(np.uint8).reshape(4, 64).view(fp.E4M3.dtype)
    fp.encode(x, "e5m2", rounding="stochastic", seed=1)
    fp.less(c, c)
    fp.encode_scaled(x, "e4m3", fp.scalings.TILE_1X128)
"""
EVERY = """
    fp.encode(x, "e4m3"); fp.encode(x, "e5m2", rounding="stochastic", seed=1); fp.quantize(x, "fp16")
    c = fp.cast(x, "e4m3")
    fp.decode(fp.encode(x, "e4m3"), "e4m3")
    fp.add(c, c, flags=True); fp.multiply(x.astype(np.float16), x.astype(np.float16)); fp.less(c, c)
    fp.encode_scaled(x, "e4m3", fp.scalings.TILE_1X128).decode(); fp.OnlineScaling("e4m3").quantize(x)
    fp.sum(x, accumulate=fp.Chunked("bf16")); fp.sum(x, accumulate=fp.Exact("fp32"))
    fp.dot_add(c[:, :32], c[:, :32], None, "hopper_e4m3_f32")
    fp.encode_scaled(x, "uint4", fp.Scaling(block=(1, 16), symmetric=False))
    fp.matmul(c, c.T, accumulate="hopper_e4m3_f32", promote=32)
"""


@pytest.mark.parametrize(
    ("calls", "rooms"),
    [
        (SOME, "arithmetic casts core runtime scaling"),
        pytest.param(EVERY, "arithmetic casts core instructions products runtime scaling sums", marks=pytest.mark.slow),
    ],
    ids=["some", "every"],
)
def test_every_function_that_numba_compiles_into_a_kernel_is_part_of_its_key(
    tmp_path: Path, calls: str, rooms: str
) -> None:
    found = python(SEEN.replace("    CALLS\n", calls), FPSIM_CACHE_DIR=str(tmp_path), NUMBA_OPT="0")
    assert found.splitlines() == ["missed []", f"rooms {rooms}"]


def function(source: str, **names: object) -> Callable[..., Any]:
    """A function called f, as a module's source defines it."""
    found: dict[str, Any] = {"__name__": "fpsim.made_up", **names}
    exec(textwrap.dedent(source), found)
    made: Callable[..., Any] = found["f"]
    return made


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


def test_what_cannot_be_described_has_no_key() -> None:
    with pytest.raises(kernel_key.UnknownPart, match="no key is known for <object object"):
        kernel_key.key_of(function("def f(x):\n    return C", C=object()))
    with pytest.raises(kernel_key.UnknownPart, match=r"f imports fpsim\.core when it runs"):
        kernel_key.key_of(function("def f(x):\n    from fpsim.core import pack\n    return pack"))


def test_other_packages_are_told_by_their_names_alone() -> None:
    """Found in a run of all tests: a walk that led into another package met its settings, and gave no key."""
    kernel_key.key_of(function("def f(x):\n    return os.environ.get(shutil.copy)", os=os, shutil=shutil))


def test_a_function_that_was_edited_in_this_process_is_not_kept() -> None:
    source = "def f(x):\n    return x + 1\n"
    kernel_key.key_of(numba.njit(function(source, __name__="fpsim.edited")))
    kernel_key.key_of(numba.njit(function(source, __name__="fpsim.edited")))
    with pytest.raises(kernel_key.UnknownPart, match=r"fpsim\.edited\.f was edited after"):
        kernel_key.key_of(numba.njit(function(source.replace("1", "2"), __name__="fpsim.edited")))


def test_no_kernel_is_without_a_key() -> None:
    fp.encode(1.0, fp.E4M3)
    assert KERNELS
    for each in KERNELS:  # all that the tests of this worker have made until now
        kernel_key.key_of(each)


# ---- files


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
        path: Path = loop._cache.path((numba.float32[::1],), loop.targetctx)
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


SCALED = """
    import hashlib
    import numpy as np
    import fpsim as fp

    x = np.random.default_rng(0).standard_normal((5, 70)).astype(np.float32)
    x[1, 3], x[2, 5], x[3] = np.nan, np.inf, 0
    x[4] *= np.float32(1e-42)
    show = lambda *arrays: hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
    for name in ("TENSOR", "TILE_128X1", "MX", "NVFP4", "TE_1X128", "TORCHAO_MX_RCEIL"):
        scaling = getattr(fp.scalings, name)
        for fmt in ("e4m3", "int8"):
            for values in (x, x.astype(np.float64)):
                q = fp.encode_scaled(values, fmt, scaling)
                again = fp.quantize_scaled(values, fmt, scaling)
                print(name, fmt, show(q.codes, q.scales, q.decode(), again), q.report)
    groups = fp.Scaling(block=(1, 16), symmetric=False)
    print(show(fp.encode_scaled(x, "uint4", groups).codes), show(fp.encode_scaled(x, "logfmt-8").codes))
"""


def test_plain_python_scales_tiles_as_the_compiled_code_does() -> None:
    assert in_plain_python()[SCALED] == printed(SCALED)
