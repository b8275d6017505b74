"""Compilation: plain Python gives the same bits, a second process compiles nothing, an edit is never overlooked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from fpsim.runtime import sources
from tests.arithmetic.sample import lines
from tests.kit.processes import ROOT, python

DIGESTS = """
    import hashlib
    import numpy as np
    import fpsim as fp
    from fpsim.policies import OVERFLOWS
    from fpsim.rounding import NAMES

    narrow = np.random.default_rng(0).integers(0, 1 << 32, 40, dtype=np.uint32).view(np.float32)
    wide = np.random.default_rng(1).integers(0, 1 << 64, 20, dtype=np.uint64).view(np.float64)
    near = np.array([1, 1.0625, 1.1875, -464, 465, -2.0**-10, 3 * 2.0**-10, 0, -0.0, np.inf, -np.inf, np.nan, 3e-39])
    mine = [fp.Format("deep", 5, 10, bias=1060), fp.Format("powers", 5, 0, infinities=False, nan="top")]
    p3109 = [fp.format(f"p3109_{name}") for name in ("k8p1se", "k8p4sf", "k8p3ue", "k12p5se")]
    for fmt in [*(fp.format(name) for name in fp.formats.names()), *p3109, *mine]:
        for x in (narrow, wide, near, near.astype(np.float32), near[:8].astype(np.float16)):
            for rounding in NAMES:
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


def test_plain_python_gives_the_bits_of_the_compiled_code() -> None:
    compiled, plain = python(DIGESTS), python(DIGESTS, NUMBA_DISABLE_JIT="1")
    assert plain.splitlines() == compiled.splitlines()
    assert len(plain.splitlines()) > 1000


def test_plain_python_computes_the_bits_and_flags_of_the_compiled_operations() -> None:
    script = "from tests.arithmetic.sample import lines; print(*lines(), sep='\\n')"
    plain, compiled = python(script, NUMBA_DISABLE_JIT="1").splitlines(), list(lines())
    assert plain == compiled
    assert len(compiled) > 500


COUNT = """
    import numba
    from numba.core import event
    import numpy as np
    import fpsim as fp

    with event.install_recorder("numba:compile") as recorder:
        x = np.array([1.1, -464, np.nan], np.float32)
        for fmt in (fp.E4M3, fp.E8M0):
            for rounding in ("nearest_even", "up", "stochastic"):
                for source in (x, x.astype(np.float64)) if rounding != "up" else (x,):
                    print(fp.encode(source, fmt, rounding=rounding, seed=1).tolist())
            print(fp.quantize(x, fmt).tolist(), fp.decode(np.zeros(3, fmt.storage), fmt).tolist())
        large = np.ones(1 << (8 if numba.config.DISABLE_JIT else 23), np.float32)  # takes other kernels
        print(set(fp.encode(large, fp.FP16).tolist()), set(fp.encode(large, fp.E4M3).tolist()))
    print(len(recorder.buffer))
"""


def test_a_second_process_compiles_nothing_and_gives_the_same_results(tmp_path: Path) -> None:
    first = python(COUNT, FPSIM_CACHE_DIR=str(tmp_path)).splitlines()
    second = python(COUNT, FPSIM_CACHE_DIR=str(tmp_path)).splitlines()
    assert int(first[-1]) > 0
    assert int(second[-1]) == 0
    plain = python(COUNT, NUMBA_DISABLE_JIT="1").splitlines()
    assert first[:-1] == second[:-1] == plain[:-1]


def test_a_cache_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    obstacle = tmp_path / "file"
    obstacle.touch()
    script = "import numpy as np, fpsim as fp; print(fp.encode(np.array([1.9], np.float32), fp.E4M3).tolist())"
    assert python(script, FPSIM_CACHE_DIR=str(obstacle)) == "[63]"


# ---- edited sources

TOWARD_ZERO = "return zero  # toward zero"
# of the same length and with the same captured names, so that nothing but the text tells them apart
AWAY = "return word(rest != zero)".ljust(len(TOWARD_ZERO), "#")
ENCODE = "import numpy as np, fpsim as fp; print(fp.encode(np.float32([1.99]), fp.E4M3, rounding='RTZ').tolist())"
TRUNCATED, EDITED = "[63]", "[64]"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder with a copy of the package, whose sources may be edited."""
    shutil.copytree(ROOT / "fpsim", tmp_path / "fpsim", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def edit(copied: Path, old: str, new: str) -> None:
    file = copied / "fpsim" / "core" / "rounding.py"
    text = file.read_text()
    assert text.count(old) == 1, f"{old!r} is no line of core/rounding.py any more; name another one here"
    file.write_text(text.replace(old, new))


def run(copied: Path, script: str = ENCODE) -> str:
    return python(script, root=copied, FPSIM_CACHE_DIR=str(copied / "cache"), PYTHONDONTWRITEBYTECODE="1")


def test_an_edited_helper_is_compiled_anew_and_so_is_its_restored_self(copied: Path) -> None:
    assert run(copied) == TRUNCATED
    assert run(copied) == TRUNCATED
    edit(copied, TOWARD_ZERO, AWAY)
    assert run(copied) == EDITED
    edit(copied, AWAY, TOWARD_ZERO)
    assert run(copied) == TRUNCATED


def test_a_process_that_outlives_an_edit_leaves_nothing_stale_behind(copied: Path) -> None:
    script = f"""
        import fpsim
        from pathlib import Path
        file = Path(fpsim.__file__).parent / "core" / "rounding.py"
        text = file.read_text()
        file.write_text(text.replace({TOWARD_ZERO!r}, {AWAY!r}))
        {ENCODE}
        file.write_text(text)
    """
    run(copied, script)  # may use the old text or the new one
    assert run(copied) == TRUNCATED
    edit(copied, TOWARD_ZERO, AWAY)
    assert run(copied) == EDITED


def test_the_digest_sees_every_source_file_of_the_package(copied: Path) -> None:
    package = copied / "fpsim"
    before = sources.digest(package)
    assert before == sources.digest()
    for file in sorted(package.rglob("*.py")):
        text = file.read_bytes()
        file.write_bytes(text[:-1] + b"#")  # as long as before, unless it was empty
        assert sources.digest(package) != before, file
        file.write_bytes(text)
    assert sources.digest(package) == before
    (package / "core" / "rounding.py").rename(package / "core" / "rounding2.py")
    assert sources.digest(package) != before


ONE = "import numpy as np, fpsim as fp; print(fp.encode(np.float32([1.0]), fp.E4M3).tolist())"


def kernels(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in (".nbi", ".nbc"))


def test_old_kernels_are_forgotten_and_nothing_else_is_touched(tmp_path: Path) -> None:
    base = tmp_path / "fpsim-kernels"
    old, strange, other = base / ("0" * 20), base / ("1" * 20), tmp_path / "fpsim" / ".git"
    for folder in (old, strange, other, base / "mine"):
        folder.mkdir(parents=True)
        (folder / ("kernel.nbi" if folder == old else "notes.txt")).write_text("x")
    for folder in (old, strange, other, base / "mine"):
        os.utime(folder, (0, 0))
    assert python(ONE, FPSIM_CACHE_DIR=str(tmp_path)) == "[56]"
    assert not old.exists()
    assert all((folder / "notes.txt").exists() for folder in (strange, other, base / "mine"))


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, suffix: str) -> None:
    assert python(ONE, FPSIM_CACHE_DIR=str(tmp_path)) == "[56]"
    whole = {file.name: file.stat().st_size for file in kernels(tmp_path)}
    for file in kernels(tmp_path):
        if file.suffix == suffix:
            file.write_bytes(file.read_bytes()[:100])
    assert python(ONE, FPSIM_CACHE_DIR=str(tmp_path)) == "[56]"
    assert {file.name: file.stat().st_size for file in kernels(tmp_path)}.keys() >= whole.keys()
    assert all(file.stat().st_size > 100 for file in kernels(tmp_path) if file.suffix == ".nbc")
    assert python(ONE, FPSIM_CACHE_DIR=str(tmp_path)) == "[56]"


def test_casts_work_without_a_home_directory() -> None:
    script = f"""
        import os, pathlib
        def home() -> None:
            raise RuntimeError("Could not determine home directory.")
        pathlib.Path.home = home
        for name in ("FPSIM_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
            os.environ.pop(name, None)
        {ONE}
        from fpsim.runtime.compile import cache_folder
        print(cache_folder())
    """
    assert python(script) == "[56]\nNone"


VARIANTS = """
    import hashlib, os
    import numpy as np
    import fpsim as fp

    x = np.random.default_rng(0).standard_normal((40, 300)).astype(np.float32)
    ways = {
        "divide": fp.Scaling(block=(1, 16), scale_format="e4m3"),
        "multiply": fp.Scaling(block=(1, 16), scale_format="e4m3", division="multiply"),
        "rceil": fp.Scaling(block=(1, 16), scale_format="e4m3", scale_rule="rceil"),
        "powers": fp.Scaling(block=(1, 16), scale_format="e8m0"),
    }
    for name in os.environ["ORDER"].split():
        q = fp.encode_scaled(x, fp.E4M3, ways[name])
        print(name, hashlib.sha256(q.codes.tobytes() + q.scales.tobytes()).hexdigest())
"""


def test_variants_of_a_loop_from_several_processes_keep_apart(tmp_path: Path) -> None:
    """Found when tests ran in another order than the day before: machine code from the cache met new code under one
    name, and the loops of one scaling called those of another."""
    every = python(VARIANTS, ORDER="divide multiply rceil powers", FPSIM_CACHE_DIR=str(tmp_path / "alone")).splitlines()
    want = {line.split()[0]: line for line in every}
    for order in ("divide", "multiply divide", "rceil multiply", "powers divide rceil multiply"):
        got = python(VARIANTS, ORDER=order, FPSIM_CACHE_DIR=str(tmp_path / "shared")).splitlines()
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
    assert python(SCALED, NUMBA_DISABLE_JIT="1") == python(SCALED)
