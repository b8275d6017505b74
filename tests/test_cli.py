"""The command line: exit codes, one line per bad file, no traceback.

What a process decides, such as what is installed and what a signal does, is asked of processes of their own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from fpsim.gpu import available

pytest.importorskip("typer")
pytest.importorskip("rich")


class Done(NamedTuple):
    """How a command ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def fpsim(capfd: pytest.CaptureFixture[str]) -> Command:
    """`fpsim` with arguments in this process, which would show what leaves it."""

    def run(*arguments: str | Path) -> Done:
        from fpsim.cli.main import main

        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main([*map(str, arguments)])
        assert isinstance(end.value.code, int)
        return Done(end.value.code, *capfd.readouterr())

    return run


def in_a_process(*arguments: str | Path, code: str = "") -> subprocess.CompletedProcess[str]:
    """`fpsim` with arguments in a process of its own, after some code."""
    program = f"import sys\n{code}\nfrom fpsim.cli.main import main\nmain(sys.argv[1:])"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_a_study_of_files_writes_the_report_and_shows_the_table(tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.random.default_rng(0).standard_normal(500).astype(np.float32))
    (tmp_path / "bad.safetensors").write_bytes(b"\x00" * 20)
    names = ("w.npy", "bad.safetensors", "absent.pt")
    options = ("--out", tmp_path / "out", "-f", "e4m3", "-f", "bf16")
    done = in_a_process("study", *[tmp_path / name for name in names], *options)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("fpsim: ")]
    assert [line for line in lines if "bad.safetensors: damaged" in line or "absent.pt: no such file" in line] == lines
    assert len(lines) == 2
    assert "Traceback" not in done.stderr
    assert "E4M3, no scale" in done.stdout
    assert "report.html: the report" in done.stdout
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "out" / "errors.csv").exists()


def test_nothing_to_study_is_bad_input_and_writes_nothing(fpsim: Command, tmp_path: Path) -> None:
    done = fpsim("study", tmp_path / "absent.npy", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "absent.npy: no such file" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("study", "--format", "e4m9"), "Did you mean 'E4M3'?"),
        (("study", "--rounding", "nearest"), "Did you mean 'nearest_even'?"),
        (("explain", "abc", "e4m3"), "value must be a number"),
        (("formats", "e4m9"), "Did you mean 'E4M3'?"),
        (("units", "hoper"), "Did you mean 'hopper'?"),
    ],
)
def test_bad_words_give_one_line(fpsim: Command, arguments: tuple[str, ...], words: str) -> None:
    done = fpsim(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("fpsim: ")
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_formats_and_explain_print(fpsim: Command) -> None:
    assert "E4M3" in fpsim("formats").stdout
    assert "values 0, 0.5, 1, 1.5, 2, 3, 4, 6" in fpsim("formats", "e2m1").stdout
    assert "-0.3125" in fpsim("explain", "-0.3", "e4m3").stdout
    assert "toward_zero" in fpsim("explain", "0x1.8p3", "bf16", "--rounding", "toward_zero").stdout


Rows = Callable[..., dict[str, list[str]]]


@pytest.fixture
def rows_of_units(fpsim: Command, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """The words of every row that `fpsim units` prints, by the unit's name."""

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
    assert all(name.startswith("hopper_") for name in rows)
    assert rows["hopper_bf16_f32"] == ["16", "25", "RZ", "hardware", "[1]", "wgmma,", "mma", "bf16"]
    assert rows["hopper_<a>_f32"][:4] == ["32", "13", "RZ13", "hardware"]
    assert rows["hopper_<a>x<b>_f32"][:4] == ["32", "13", "RZ13", "simulated"]
    assert rows["hopper_mma_<a>_f32"][2:4] == ["RZ+RNE", "inferred"]
    assert rows_of_units("blackwell")["blackwell_nvfp4_f32"][3] == "ue4m3/16"


@pytest.mark.parametrize("columns", [80, 120])
def test_units_prints_whole_names_in_any_terminal(rows_of_units: Rows, columns: int) -> None:
    import fpsim as fp

    assert rows_of_units("--all", columns=columns).keys() == {unit.name for unit in fp.units()}


def test_units_folds_operands_unless_all_are_asked_for(rows_of_units: Rows) -> None:
    assert 50 < len(rows_of_units()) < 80


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
    # sparse: it takes no room on the disk, and long enough to be interrupted on a fast machine
    np.lib.format.open_memmap(tmp_path / "w.npy", "w+", np.float32, (1 << 27,)).flush()
    program = "import sys; from fpsim.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, "study", str(tmp_path / "w.npy"), "--out", str(tmp_path / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "Interrupted." in errors
    assert not (tmp_path / "out").exists()


def test_hostile_names_do_not_reach_the_terminal(fpsim: Command, tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"[red]\x1b[31mw[/red]": np.ones(20, np.float32)}
    np.savez(tmp_path / "m.npz", **arrays)
    done = fpsim("study", tmp_path / "m.npz", "--out", tmp_path / "out", "-f", "e4m3")
    assert done.returncode == 0
    assert "\x1b[31m" not in done.stdout
    assert "[red]" in done.stdout


@pytest.mark.skipif(available(), reason="a GPU is here")
def test_validate_says_that_there_is_no_gpu(fpsim: Command, tmp_path: Path) -> None:
    done = fpsim("validate", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "found no CUDA device" in done.stdout + done.stderr
    assert not (tmp_path / "out").exists()
