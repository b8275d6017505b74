"""`fpsim check`: exit codes, what is printed, and refusals in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("typer")
pytest.importorskip("rich")

QUANTIZERS = """
import ml_dtypes, numpy as np
import fpsim as fp

def right(x):
    print("noise")
    return x.astype(ml_dtypes.float8_e4m3fn)

def through_fp16(x):
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(ml_dtypes.float8_e4m3fn)

def truncating(x):
    return fp.quantize(x, "e4m3", rounding="toward_zero", overflow="saturate", subnormals="flush")

def ending(x):
    raise SystemExit(0)

def scaled(x):
    return fp.encode_scaled(x, "e4m3", fp.scalings.MX)
"""


class Done(NamedTuple):
    """How a command ended, and what it wrote."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """`fpsim check` of a function of a module in the working folder."""
    from fpsim.cli.main import main

    (tmp_path / "quantizers_to_check.py").write_text(QUANTIZERS)
    (tmp_path / "broken_module_to_check.py").write_text("1 / 0\n")
    (tmp_path / "script_to_check.py").write_text("raise SystemExit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(function: str, *options: str) -> Done:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["check", function if ":" in function else f"quantizers_to_check:{function}", *options])
        assert isinstance(end.value.code, int)
        return Done(end.value.code, *capfd.readouterr())

    return run


def test_a_right_quantizer_ends_with_0(check) -> None:  # type: ignore[no-untyped-def]
    done = check("right", "--format", "e4m3", "--source", "float32")
    assert done.code == 0, done.stderr
    assert done.stdout.startswith("right is a quantizer to E4M3")
    assert "noise" not in done.stdout
    assert "covered: arrays of 0 to 1,049,609 elements" in done.stdout.replace("\n", " ")
    assert check("right", "--format", "e4m3", "--source", "float64").code == 1


def test_a_wrong_one_ends_with_1_and_its_cause(check) -> None:  # type: ignore[no-untyped-def]
    done = check("through_fp16", "-f", "e4m3")
    assert done.code == 1
    assert "rounds to FP16 first" in done.stdout


def test_what_it_should_do_can_be_said(check) -> None:  # type: ignore[no-untyped-def]
    words = ("-r", "RTZ", "--overflow", "saturate", "--subnormals", "flush")
    assert check("truncating", "-f", "e4m3", *words).code == 0
    for place in range(0, len(words), 2):  # one left out, as the search for two and more takes seconds
        assert check("truncating", "-f", "e4m3", *words[:place], *words[place + 2 :]).code == 1, words[place]


def test_json_is_the_report(check) -> None:  # type: ignore[no-untyped-def]
    done = check("through_fp16", "-f", "e4m3", "--json")
    report = json.loads(done.stdout)
    assert (done.code, report["ok"], report["fmt"]) == (1, False, "E4M3")
    assert report["causes"] == ["rounds to FP16 first"]
    assert {"input_bits", "got_code", "want_code", "paste"} <= report["broken"][0].keys()
    right = json.loads(check("right", "-f", "e4m3", "--overflow", "ml_dtypes", "--json").stdout)
    assert (right["ok"], right["broken"]) == (True, [])
    assert [(1 << 20) + 1033] in right["covered"]["shapes"]


def test_scales_are_checked_too(check) -> None:  # type: ignore[no-untyped-def]
    assert check("scaled", "-f", "e4m3", "--scaling", "mx").code == 0
    assert check("scaled", "-f", "e4m3", "--scaling", "MX_CEIL", "--json").code == 1


def test_what_cannot_be_checked_ends_with_2_and_a_sentence(check) -> None:  # type: ignore[no-untyped-def]
    for words, sentence in (
        (("numpy:no", "-f", "e4m3"), "function must be MODULE:FUNCTION"),
        (("broken_module_to_check:fn", "-f", "e4m3"), "importing it raised ZeroDivisionError: division by zero"),
        (("script_to_check:fn", "-f", "e4m3"), "importing it raised SystemExit"),
        (("ending", "-f", "e4m3"), "raised SystemExit(0) when it was called"),
        (("./folder/casts.py:fn", "-f", "e4m3"), "without folder and .py, and call fpsim in its folder: casts:fn"),
        (("right", "-f", "e4m4"), "Did you mean 'E4M3'?"),
        (("right", "-f", "e4m3", "-r", "nearest"), "rounding must be one of"),
        (("right", "-f", "e4m3", "-r", "stochastic"), "seed"),
        (("right", "-f", "e4m3", "--source", "bits"), "an integer dtype; got 'bits'"),
        (("right", "-f", "e4m3", "--scaling", "MXX"), "scaling must be one of"),
    ):
        done = check(*words)
        assert (done.code, done.stderr.count("\n")) == (2, 1), done
        assert sentence in done.stderr
