"""The pytest plugin, in runs of pytest that find it by its entry point: in processes of their own, or one for many."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.processes import ROOT
from tests.kit.sweeps import sweep

WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")  # what a run takes long to import and does not need
QUANTIZERS = """
    import numpy as np, fpsim as fp
    def to_e4m3(x):
        return fp.quantize(x, "e4m3").astype(np.float32)
"""


def entry_points(folder: Path) -> Path:
    """Return a folder that tells pytest what pyproject.toml does where the package is installed."""
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    info = folder / "fpsim_installed-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fpsim-installed\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest11]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()))
    files = ("fpsim/__init__.py", "_fpsim_hypothesis.py", "_fpsim_pytest.py")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in files))
    return folder


class Done(NamedTuple):
    """What a run of pytest came to."""

    returncode: int
    stdout: str
    stderr: str


def arguments(folder: Path, options: tuple[str, ...], files: dict[str, str]) -> list[str]:
    """Write the files of tests, and return the arguments of pytest."""
    tests = folder / "tests"
    tests.mkdir()
    for name, text in files.items():
        (tests / f"{name}.py").write_text(textwrap.dedent(text))
    return ["-q", *WITHOUT, "--rootdir", str(tests), *options, str(tests)]


def environment(*folders: Path) -> dict[str, str]:
    """Return the variables of a process that finds modules in these folders, without options of this run."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return {**variables, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def run(folder: Path, *options: str, **files: str) -> Done:
    """Return a run of pytest over files of tests, where the package is installed, in a process of its own."""
    words = arguments(folder, options, files)
    tests = folder / "tests"
    variables = environment(entry_points(folder / "site"), ROOT, tests)
    command = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run(command, cwd=tests, env=variables, capture_output=True, text=True, timeout=300, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


# Runs that lie side by side in one process, which takes longer to start than they take. Nothing of a run's files stays.
SHELL = """
import contextlib, io, json, os, sys
import pytest

for line in sys.stdin:
    folder, words = json.loads(line)
    os.chdir(folder)
    path = list(sys.path)
    sys.path.insert(0, folder)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = pytest.main(words)
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(folder):
            del sys.modules[name]
    print(json.dumps([int(code), out.getvalue(), err.getvalue()]), flush=True)
"""


class Shell:
    """A process that runs pytest again and again."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SHELL], env=environment(entry_points(folder), ROOT), text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __call__(self, folder: Path, *options: str, **files: str) -> Done:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        words = arguments(folder, options, files)
        print(json.dumps([str(folder / "tests"), words]), file=self.process.stdin, flush=True)
        return Done(*json.loads(self.process.stdout.readline()))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Runs of pytest in one process, where the package is installed."""
    found = Shell(tmp_path_factory.mktemp("installed"))
    yield found
    found.process.communicate(timeout=60)


def test_a_run_that_does_not_use_fpsim_does_not_import_it(tmp_path: Path) -> None:
    text = """
        import sys
        def test_nothing(pytestconfig):
            assert pytestconfig.pluginmanager.has_plugin("fpsim")
            assert "_fpsim_pytest" in sys.modules
            assert not {"fpsim", "hypothesis", "numba"} & set(sys.modules)
    """
    done = run(tmp_path, test_bare=text)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_leaves_fpsim_as_it_is(tmp_path: Path) -> None:
    """It compiles the assertions of what comes with a plugin, and warns where that was imported before."""
    text = """
        def test_loader():
            import fpsim.casts.cast, fpsim.casts.pipelines
            assert "Rewriting" not in type(fpsim.casts.pipelines.__loader__).__name__
    """
    early = "import fpsim, _fpsim_hypothesis"
    done = run(tmp_path, "-p", "early", "-W", "error", test_loader=text, early=early)
    assert done.returncode == 0, done.stdout + done.stderr


def test_fixtures_check_and_floats_are_exact_below_failed_comparisons(shell: Shell, tmp_path: Path) -> None:
    text = """
        import numpy as np
        def test_right(check_quantizer):
            import fpsim as fp
            assert check_quantizer(lambda x: fp.quantize(x, "e4m3"), "e4m3").ok
        def test_wrong(check_quantizer):
            check_quantizer(lambda x: x, "e4m3")
        def test_scalars():
            assert 0.1 + 0.2 == 0.3
        def test_lists():
            assert [1.0, np.float32(0.1)] == [1.0, np.float64(0.1)]
        def test_words():
            assert "a" == "b"
    """
    done = shell(tmp_path, test_uses=text)
    assert "4 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "is not a quantizer to E4M3" in done.stdout
    assert "0x1.3333333333334p-2 == 0x1.3333333333333p-2" in done.stdout
    assert "at index 1: 0x1.99999a0000000p-4 == 0x1.999999999999ap-4" in done.stdout
    assert "At index 1 diff" in done.stdout  # what pytest says is still there


def test_the_fixture_of_kernels_names_what_a_broken_kernel_does(shell: Shell, tmp_path: Path) -> None:
    text = """
        import numpy as np, fpsim as fp
        PROMISE = {"a": "e4m3", "accumulate": "hopper_e4m3_f32", "promote": 128, "shapes": [(8, 8, 300)]}

        def test_right(check_kernel):
            def kernel(a, b):
                return fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)
            assert check_kernel(kernel, **PROMISE, certificate=False).ok

        def test_wrong(check_kernel):
            check_kernel(lambda a, b: fp.matmul(a, b, accumulate="hopper_e4m3_f32"), **PROMISE)

        def test_raises(check_kernel):
            def kernel(a, b):
                raise RuntimeError("no device")
            check_kernel(kernel, **PROMISE)

        def test_not_asked_rightly(check_kernel):
            check_kernel(np.matmul, **{**PROMISE, "accumulate": "hopper"})
    """
    done = shell(tmp_path, test_kernels=text)
    assert "3 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "E       AssertionError: fn does not have the bits" in done.stdout
    assert "One cause explains all: it adds as hopper_e4m3_f32 in one chain" in done.stdout
    assert "fn raised RuntimeError('no device')" in done.stdout
    assert "ValueError: accumulate must be one of" in done.stdout
    assert "fpsim/testing/products/check.py" not in done.stdout.partition("_ test_not_asked_rightly _")[0]


def test_an_unknown_fixture_is_not_made_up() -> None:
    import _fpsim_pytest

    with pytest.raises(AttributeError, match="check_kernels"):
        _fpsim_pytest._of_testing("check_kernels")


TESTS = """
    import numpy as np, pytest, fpsim as fp
    from quantizers import to_e4m3

    @pytest.fixture
    def quantizer():
        return to_e4m3

    def test_ties(quantizer):
        assert (quantizer(np.float32([17, 19, 21])) == [16, 20, 20]).all()

    def test_without_it():
        assert to_e4m3(np.float32([2.0**-9])) == 2.0**-9
"""


def test_mutants_that_no_test_sees_are_named_and_fail_the_run(shell: Shell, tmp_path: Path) -> None:
    done = shell(tmp_path, "--fpsim-mutants", quantizers=QUANTIZERS, test_mine=TESTS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    summary = done.stdout.partition("mutants of fpsim")[2]
    assert "of 20 mutants to E4M3 seen by 1 test." in summary
    assert "missed: through_fp16, which rounds to FP16 first" in summary
    assert "missed: flushes," in summary  # whose test does not take the fixture
    assert "ties_away" not in summary


def test_mutants_take_the_place_of_a_function_in_modules_that_imported_it(shell: Shell, tmp_path: Path) -> None:
    options = ("--fpsim-mutants", "--fpsim-quantizer", "quantizers:to_e4m3")
    text = TESTS.replace("def test_ties(quantizer)", "def without_ties()")
    done = shell(tmp_path, *options, quantizers=QUANTIZERS, test_mine=text)
    summary = done.stdout.partition("mutants of fpsim")[2]
    assert "seen by 1 test" in summary, done.stdout + done.stderr
    assert "missed: flushes," not in summary
    assert "missed: ties_away" in summary


@sweep("workers", 1, 2)
def test_what_tests_see_is_collected_from_the_workers_of_xdist(shell: Shell, workers: int, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    text = """
        import numpy as np, fpsim as fp
        from quantizers import to_e4m3
        def test_points():
            x = fp.testing.points("e4m3")
            fp.testing.assert_bits_equal(to_e4m3(x), fp.quantize(x, "e4m3"))
        def test_layout():
            x = fp.testing.points("e4m3").reshape(-1, 2).T
            fp.testing.assert_bits_equal(to_e4m3(x), fp.quantize(x, "e4m3"))
    """
    options = ("--fpsim-mutants", "--fpsim-quantizer", "quantizers:to_e4m3", "-n", str(workers))
    done = shell(tmp_path, *options, quantizers=QUANTIZERS, test_mine=text)
    summary = done.stdout.partition("mutants of fpsim")[2]
    assert "of 20 mutants to E4M3 seen by 2 tests." in summary, done.stdout + done.stderr
    assert "missed: memory_order" not in summary
    assert "missed: through_fp16" not in summary
    assert (done.returncode == 0) == ("missed" not in summary)


def test_tests_that_pass_only_once_do_not_see_mutants(shell: Shell, tmp_path: Path) -> None:
    text = """
        from quantizers import to_e4m3
        def test_leaves_a_folder(tmp_path):
            (tmp_path / "a").mkdir()
    """
    options = ("--fpsim-mutants", "--fpsim-quantizer", "quantizers:to_e4m3")
    done = shell(tmp_path, *options, quantizers=QUANTIZERS, test_mine=text)
    assert done.returncode == 1
    summary = done.stdout.partition("mutants of fpsim")[2]
    assert "1 test that passed, but failed when run again with the same quantizer: test_mine.py::test_l" in summary
    assert "seen by" not in summary


def test_a_test_that_takes_a_quantizer_through_another_fixture_alone_meets_no_mutant(
    shell: Shell, tmp_path: Path
) -> None:
    text = """
        import numpy as np, pytest, fpsim as fp

        @pytest.fixture
        def quantizer():
            return lambda x: fp.quantize(x, "e4m3").astype(np.float32)

        @pytest.fixture
        def result(quantizer):
            return quantizer(np.float32([1.0]))

        def test_of_the_result(result):
            assert result[0] == 1
    """
    done = shell(tmp_path, "--fpsim-mutants", test_indirect=text)
    assert "No test took the fixture 'quantizer', so none met a broken quantizer." in done.stdout
    assert "failed when run again" not in done.stdout


def test_a_run_where_no_test_meets_a_mutant_fails(shell: Shell, tmp_path: Path) -> None:
    done = shell(tmp_path, "--fpsim-mutants", test_none="def test_nothing(): pass")
    assert done.returncode == 1
    assert "No test took the fixture 'quantizer'" in done.stdout


PRODUCTS = """
    import fpsim as fp
    def fp8(a, b):
        return fp.matmul(a, b, accumulate="hopper_e4m3_f32", promote=128)
"""
PROMISED = ("--fpsim-mutants", "--fpsim-promise", "a=e4m3,accumulate=hopper_e4m3_f32,promote=128")
WEAK = """
    import numpy as np, pytest, fpsim as fp, products

    @pytest.fixture
    def kernel():
        return products.fp8

    def test_normals(kernel):
        a, b = np.random.default_rng(0).standard_normal((2, 64, 64)).astype(fp.E4M3.dtype)
        np.testing.assert_allclose(kernel(a, b), a.astype(float) @ b.astype(float), rtol=0.01, atol=0.01)
"""
STRONG = """
    import fpsim as fp
    from products import fp8

    def test_bits():
        for x in fp.testing.discriminating_inputs(a="e4m3", accumulate="hopper_e4m3_f32", promote=128):
            fp.testing.assert_bits_equal(fp8(x.a, x.b), fp.matmul(x.a, x.b, accumulate="hopper_e4m3_f32", promote=128))
"""


def test_mutants_of_kernels_that_no_test_sees_are_named(shell: Shell, tmp_path: Path) -> None:
    done = shell(tmp_path, *PROMISED, products=PRODUCTS, test_weak=WEAK)
    assert done.returncode == 1, done.stdout + done.stderr
    summary = done.stdout.partition("mutants of fpsim")[2]
    assert "1 of 8 mutants of a=e4m3,accumulate=hopper_e4m3_f32,promote=128 seen by 1 test." in summary
    assert "missed: not_promoted, which leaves the promotion of partial sums out" in summary
    assert "quantizer" not in summary  # which no test takes


def test_a_test_on_discriminating_inputs_sees_every_broken_kernel(shell: Shell, tmp_path: Path) -> None:
    done = shell(tmp_path, *PROMISED, "--fpsim-kernel", "products:fp8", products=PRODUCTS, test_strong=STRONG)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 of 8 mutants" in done.stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--fpsim-format", "e4m4"), "Did you mean 'E4M3'?"),
        (("--fpsim-quantizer", "nowhere:fn"), "--fpsim-quantizer must be MODULE:FUNCTION"),
        (("--fpsim-kernel", "numpy:matmul"), "--fpsim-kernel needs what the kernel promises"),
        (("--fpsim-promise", "e4m3"), "--fpsim-promise must be NAME=VALUE"),
        (("--fpsim-promise", "a=e4m3"), "'accumulate' is missing"),
        (("--fpsim-promise", "a=e4m3,accumulate=hopper"), "hopper"),
    ],
)
def test_bad_options_are_refused_in_a_sentence(
    shell: Shell, tmp_path: Path, options: tuple[str, str], words: str
) -> None:
    done = shell(tmp_path, "--fpsim-mutants", *options, test_none="def test_nothing(): pass")
    assert done.returncode == 4
    assert words in done.stderr
    assert "Traceback" not in done.stderr
