"""Commands that print facts, versions and answers, and what they say without their packages."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpsim.gpu import available
from tests.cli_cases import Command
from tests.kit.processes import ROOT

pytest.importorskip("typer")


pytest.importorskip("rich")


def in_a_process(*arguments: str | Path, code: str = "") -> subprocess.CompletedProcess[str]:
    """`fpsim` with arguments in a process of its own, after some code."""
    program = f"import sys\n{code}\nfrom fpsim.cli.main import main\nmain(sys.argv[1:])"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_formats_and_explain_print(fpsim: Command) -> None:
    assert "E4M3" in fpsim("formats").stdout
    assert "values 0, 0.5, 1, 1.5, 2, 3, 4, 6" in fpsim("formats", "e2m1").stdout
    assert "-0.3125" in fpsim("explain", "-0.3", "e4m3").stdout
    assert "toward_zero" in fpsim("explain", "0x1.8p3", "bf16", "--rounding", "toward_zero").stdout
    assert fpsim("explain", "0e400", "bf16").stdout.startswith("0.0 in BF16")
    assert "the value is infinite" in fpsim("explain", "inf", "bf16").stdout


Rows = Callable[..., dict[str, list[str]]]


@pytest.fixture
def rows_of_units(fpsim: Command, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """Return the words of each row that `fpsim units` prints, by the unit's name."""

    def rows(*arguments: str, columns: int = 120) -> dict[str, list[str]]:
        monkeypatch.setenv("COLUMNS", str(columns))
        done = fpsim("units", *arguments)
        assert done.returncode == 0
        assert max(map(len, done.stdout.splitlines())) <= columns
        words = [line.split() for line in done.stdout.splitlines()]
        return {row[0]: row[1:] for row in words if row and row[0].count("_") >= 2}

    return rows


def test_units_prints_the_facts_of_an_architecture(rows_of_units: Rows) -> None:
    rows = rows_of_units("Hopper")
    assert rows_of_units("NVIDIA H100 80GB HBM3") == rows
    assert all(name.startswith("hopper_") for name in rows)
    assert rows["hopper_bf16_f32"] == ["16", "25", "RZ", "hardware", "[1]", "wgmma,", "mma", "bf16"]
    assert rows["hopper_<a>_f32"][:4] == ["32", "13", "RZ13", "hardware"]
    assert rows["hopper_<a>x<b>_f32"][:4] == ["32", "13", "RZ13", "simulated"]
    assert rows["hopper_mma_<a>_f32"][2:4] == ["RZ+RNE", "inferred"]
    assert rows_of_units("blackwell")["blackwell_nvfp4_f32"][3] == "ue4m3/16"
    assert rows["hopper_<a>_s32"][:3] == ["32", "wrap", "inferred"]
    assert rows["hopper_<a>_s32_sat"][:3] == ["32", "sat", "inferred"]


@pytest.mark.parametrize("columns", [80, 120])
def test_units_prints_whole_names_in_any_terminal(rows_of_units: Rows, columns: int) -> None:
    import fpsim as fp

    assert rows_of_units("--all", columns=columns).keys() == {unit.name for unit in fp.units()}


def test_units_folds_operands_unless_all_are_asked_for(rows_of_units: Rows) -> None:
    assert 50 < len(rows_of_units()) < 110


def test_the_version_is_printed(fpsim: Command) -> None:
    import fpsim as fp

    done = fpsim("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"fpsim {fp.__version__}\n", "")


def test_o_is_short_for_out(fpsim: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.ones(20, np.float32))
    assert fpsim("study", tmp_path / "w.npy", "-o", tmp_path / "out", "-f", "e4m3").returncode == 0
    assert (tmp_path / "out" / "report.html").exists()


def test_python_m_fpsim_works() -> None:
    done = subprocess.run([sys.executable, "-m", "fpsim", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "study" in done.stdout


@pytest.mark.parametrize("absent", ["typer", "rich"])
def test_without_its_packages_it_says_what_to_install(absent: str) -> None:
    done = in_a_process("formats", code=f"sys.modules['{absent}'] = None")
    assert done.returncode == 2
    assert "pip install -e '.[cli]' in the checkout" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_without_torch_the_default_study_says_what_to_install(tmp_path: Path) -> None:
    done = in_a_process("study", "--out", tmp_path / "out", code="sys.modules['torch'] = None")
    assert done.returncode == 2
    assert "pip install -e '.[torch]' in the checkout" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_an_interrupt_ends_with_130_and_leaves_nothing(tmp_path: Path) -> None:
    # sparse: it takes no room on the disk, and a second at least, of which the interrupt comes at the beginning;
    # of one format, since kernels for others would be compiled first
    np.lib.format.open_memmap(tmp_path / "w.npy", "w+", np.float32, (1 << 25,)).flush()
    program = """
import os, signal, sys, threading
from fpsim.display import progress
interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
progress._Lines.__call__ = lambda *_: interrupt.ident is None and interrupt.start()  # once the study has begun
from fpsim.cli.main import main
main(sys.argv[1:])
"""
    command = [
        sys.executable,
        "-c",
        program,
        "study",
        str(tmp_path / "w.npy"),
        "-f",
        "e4m3",
        "--out",
        str(tmp_path / "out"),
    ]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False
    )  # kernels may have to be compiled first
    errors = process.stderr
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert errors.endswith("fpsim: Interrupted.\n")  # a study does not resume
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("module", "run"),
    [
        ("fpsim", "import _fpsim_command; _fpsim_command.main()"),
        ("fpsim.cli.main", "import runpy; runpy.run_module('fpsim', run_name='__main__')"),
    ],
)
def test_an_interrupt_while_fpsim_is_imported_is_said_in_a_line(module: str, run: str) -> None:
    finder = f"type('_', (), {{'find_spec': lambda name, *_: signal.raise_signal(2) if name == {module!r} else None}})"
    program = f"import signal, sys\nsys.meta_path.insert(0, {finder})\n{run}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (130, "fpsim: Interrupted.\n")


def test_hostile_names_do_not_reach_the_terminal(fpsim: Command, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"[red]\x1b[31mw[/red]": np.ones(20, np.float32)}
    np.savez(tmp_path / "m.npz", **arrays)
    done = fpsim("study", tmp_path / "m.npz", "--out", tmp_path / "out", "-f", "e4m3")
    assert done.returncode == 0
    assert "\x1b[31m" not in done.stdout
    assert "[red]" in done.stdout


def test_errors_name_the_argument_or_the_file(fpsim: Command) -> None:
    calls = (
        (
            ("train", "--model", "transformator"),
            "model must be one of transformer, perceptron; got 'transformator'. Did you mean",
        ),
        (("validate", "--part", "stack"), "part must be one of "),
        (("conformance", "check", "no.txt"), "no.txt: no such file or directory.\n"),
    )
    for arguments, words in calls:
        done = fpsim(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith(f"fpsim: {words}"), done.stderr


@pytest.mark.skipif(available(), reason="a GPU is here")
def test_validate_says_that_there_is_no_gpu(fpsim: Command, tmp_path: Path) -> None:
    done = fpsim("validate", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "found no CUDA device" in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()


def test_probe_says_what_a_function_adds(fpsim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_kernel_of_fpsim.py").write_text(
        "import numpy as np\n\ndef add(x):\n    return np.cumsum(x)[-1]\n\ndef middle(x):\n    return np.median(x)\n"
    )
    done = fpsim("probe", "my_kernel_of_fpsim:add", "-n", "20", "--a", "float64", "--out", "model.json")
    assert done.returncode == 0
    assert done.stdout.startswith("A sum of 20 terms in ")
    assert "to FP64" in done.stdout
    assert (tmp_path / "model.json").exists()
    nothing = fpsim("probe", "my_kernel_of_fpsim:middle", "-n", "8")
    assert (nothing.returncode, "Unknown: " in nothing.stdout) == (1, True)
    for words, sentence in (
        (["numpy"], "function must be MODULE:FUNCTION, such as numpy:sum; got 'numpy'."),
        (["numpy:no"], "function must be MODULE:FUNCTION, such as numpy:sum; got 'numpy:no': module 'numpy' has no"),
        (["numpy:pi"], "function must be MODULE:FUNCTION, such as numpy:sum; got 'numpy:pi', which is float."),
        (["numpy:sum", "--terms", "0"], "--terms must be an integer >= 1; got 0."),
        (["numpy:dot", "--kind", "dot", "--b", "e4m9"], "--b must be one of the"),
        (["numpy:sum", "--kind", "add"], "kind must be one of sum, dot, matmul; got 'add'."),
        (["numpy:sum", "--a", "foo"], "--a must be one of the 16 that fp.formats.names() or `fpsim formats` lists"),
        (
            ["numpy:dot", "--kind", "dot", "--b", "e8m0"],
            "--b must be a format with a zero, such as 'bf16'; got 'e8m0'.",
        ),
        (["numpy:sum", "--b", "e4m3"], "--b is the format of the second operand of dot and matmul; got 'e4m3' for"),
        (["numpy:matmul", "--kind", "matmul", "-n", "0"], "--terms must be an integer >= 1; got 0."),
    ):
        done = fpsim("probe", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"fpsim: {sentence}")


MODEL = """
import torch

def loss(model, x):
    return model(x).square().mean()

def setup():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 64)), [torch.randn(64, 64) for _ in range(2)], loss

def long():
    model, batches, loss = setup()
    named = torch.nn.Sequential()
    named.add_module("an_encoder_" + "x" * 90 + "_projection", model[0])
    return named, batches, loss

def alone():
    return setup()[:2]

def four():
    return 1, 2, 3, 4

def broken():
    raise RuntimeError("no data")

def ending():
    raise SystemExit(0)
"""


def test_diagnose_prints_the_answer_and_writes_the_page(
    fpsim: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "tomli_w", "jinja2", "pandas"):
        pytest.importorskip(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_model_of_fpsim.py").write_text(MODEL)
    monkeypatch.setenv("COLUMNS", "80")
    done = fpsim("diagnose", "my_model_of_fpsim:long", "--recipes", "FP8_TENSOR", "--out", "long")
    assert done.returncode == 0, done.stderr
    (row,) = (line.split()[0] for line in done.stdout.splitlines() if line.startswith(" an_enc"))  # cut, not folded
    assert row.endswith("_projection")
    assert "…" in row
    done = fpsim("diagnose", "my_model_of_fpsim:setup", "--recipes", "FP8_TENSOR", "--out", "o")
    assert (done.returncode, done.stderr) == (0, "")
    said = " ".join(done.stdout.split())
    assert said.startswith("The one linear layer can use FP8_TENSOR on H100 as it is: ")
    assert "o/report.html: the report" in said
    assert {"report.html", "products.csv", "plan.toml"} <= {path.name for path in (tmp_path / "o").iterdir()}
    done = fpsim("diagnose", "my_model_of_fpsim:alone", "--recipes", "FP8_TENSOR", "--out", "alone")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No loss was given: outputs alone were judged." in " ".join(done.stdout.split())
    assert "dgrad" not in done.stdout
    for words, sentence in (
        (["my_model_of_fpsim"], "function must be MODULE:FUNCTION, such as my_model:setup; got"),
        (
            ["my_model_of_fpsim:four"],
            "function must return (model, batches, loss), or (model, batches) to judge outputs alone; got "
            "'my_model_of_fpsim:four', which returns tuple of 4.",
        ),
        (["my_model_of_fpsim:broken"], "function must return (model, batches, loss); 'my_model_of_fpsim:broken' rais"),
        (["my_model_of_fpsim:ending"], "function must return (model, batches, loss); 'my_model_of_fpsim:ending' rais"),
        (["my_model_of_fpsim:setup", "--bits", "3", "--out", "p"], "bits must be at least "),
    ):
        done = fpsim("diagnose", *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"fpsim: {sentence}")


@pytest.mark.parametrize("name", ["torch", "tomli_w", "pandas", "jinja2", "matplotlib"])
def test_a_missing_package_is_said_before_the_model_is_made(
    fpsim: Command, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heavy_model_of_fpsim.py").write_text('raise SystemExit("imported")\n')
    for each in ("torch", "tomli_w", "pandas", "jinja2", "matplotlib"):
        pytest.importorskip(each)
    monkeypatch.setitem(sys.modules, name, None)
    done = fpsim("diagnose", "heavy_model_of_fpsim:setup", "--out", "o")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"fpsim: diagnose needs {name}, which is not installed: pip install -e '.[")
    assert not (tmp_path / "o").exists()
