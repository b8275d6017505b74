"""`fpsim verify` and `fpsim export`: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.analysis.tensors.test_layouts import safetensors

pytest.importorskip("rich")
runner = pytest.importorskip("typer.testing").CliRunner()


def run(*arguments: object) -> tuple[int, str]:
    """Return the exit code and the output of a command."""
    from fpsim.cli.commands import app

    done = runner.invoke(app, [str(one) for one in arguments])
    return done.exit_code, done.output


def test_verify_ends_with_1_where_something_contradicts_the_layout(tmp_path: Path) -> None:
    scales = np.ones((4, 1), np.float32)
    arrays = {"up.weight": np.ones((4, 8), np.int8), "up.weight_scale": scales}
    path = safetensors(tmp_path / "m.safetensors", arrays)
    code, text = run("verify", path)
    assert (code, "compressed-tensors:int8, 1 quantised weight, nothing contradicts it." in text) == (0, True)
    scales[2] = -1
    safetensors(path, arrays)
    code, text = run("verify", path)
    assert (code, "up.weight: 1 of its 4 scales in weight_scale is negative" in text) == (1, True)
    code, text = run("verify", path, "--json")
    content = json.loads(text)
    assert (code, content["ok"], content["findings"][0]["tensor"]) == (1, False, "up.weight")


def test_verify_refuses_what_is_not_there_in_one_line(tmp_path: Path) -> None:
    code, text = run("verify", tmp_path / "no.safetensors")
    assert (code, text.count("\n"), "no such file" in text) == (2, 1, True)
    path = safetensors(tmp_path / "m.safetensors", {"up.weight": np.ones((4, 8), np.int8)})
    code, text = run("verify", path, "--reference", tmp_path / "no.safetensors")
    assert (code, text.count("\n"), "no.safetensors: no such file" in text) == (2, 1, True)


def test_export_writes_a_checkpoint_and_says_what_it_loses(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    weight = np.random.default_rng(0).standard_normal((32, 256), np.float32)
    path = safetensors(tmp_path / "m.safetensors", {"up.weight": weight, "lm_head.weight": weight})
    code, text = run("export", path, "--layout", "gptq_v2", "--out", tmp_path / "out", "--group-size", 64)
    assert (code, "gptq_v2, 1 weight quantised, 65.5 kB became" in text) == (0, True)
    assert "The SQNR of the weights is 19." in text
    code, text = run("verify", tmp_path / "out")
    assert (code, "gptq_v2, 1 quantised weight, nothing contradicts it." in text) == (0, True)


def test_export_refuses_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from fpsim.cli.main import main

    path = safetensors(tmp_path / "m.safetensors", {"up.weight": np.ones((32, 256), np.float32)})
    for arguments, said in (
        (["export", str(path), "-l", "gptq_v3", "-o", str(tmp_path / "out")], "Did you mean 'gptq_v2'?"),
        (["export", str(tmp_path / "no"), "-l", "gptq", "-o", str(tmp_path / "out")], "no such file"),
    ):
        with pytest.raises(SystemExit) as end:
            main(arguments)
        text = capsys.readouterr().err
        assert (end.value.code, text.count("\n"), said in text) == (2, 1, True)
    assert not (tmp_path / "out").exists()
