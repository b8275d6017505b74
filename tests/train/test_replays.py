"""Runs trained again: equal digests, and planted differences that are found and named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from fpsim.recipes.parts import Numerics
from fpsim.recipes.training_recipe import Recipe
from fpsim.train import recipes
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")

from fpsim.recipes.this_cpu import isa_here  # noqa: E402
from fpsim.train import Run, record, replay  # noqa: E402
from fpsim.train.operations import kernels  # noqa: E402

SMALL: dict[str, Any] = {"steps": 3, "model": "perceptron", "batch": 128, "measure": 0}
NO_RUN: Any = 3
TINY: dict[str, Any] = {"steps": 2, "batch": 2, "measure": 0}  # of the transformer


@pytest.fixture(scope="module")
def plain() -> Run:
    """A run of the perceptron."""
    return fp.train.run("FP8_RAW", **SMALL)


@pytest.fixture(scope="module")
def traced() -> Run:
    """A run of the transformer with the digests of its operations."""
    return fp.train.run("FP8_TENSOR", trace=True, **TINY)


def test_a_run_trained_again_has_its_digest(plain: Run) -> None:
    again = replay(plain)
    assert again.equal
    assert (again.step, again.operation, again.divergence) == (None, "", None)
    assert again.digests == (plain.digest, plain.digest)
    first = replay(plain, steps=1)
    assert first.digests[0] == plain.rows[0]["digest"]
    assert "has the same digest as the run after its step;" in str(first)
    assert "has the same digest as the run after each of 3 steps" in str(again)


def test_a_saved_run_comes_back_whole(traced: Run, tmp_path: Path) -> None:
    traced.save(tmp_path / "run.json")
    loaded = Run.load(tmp_path / "run.json")
    assert loaded.rows == json.loads(json.dumps(traced.rows))
    assert (loaded.recipe, loaded.settings, loaded.losses) == (traced.recipe, traced.settings, traced.losses)
    assert (loaded.data, loaded.machine, loaded.digest) == (traced.data, traced.machine, traced.digest)
    assert replay(tmp_path / "run.json").equal


def test_a_run_that_is_kept_in_a_folder_is_trained_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = fp.train.run("BF16", out=tmp_path / "run", **SMALL)
    loaded = Run.load(tmp_path / "run")
    assert (loaded.digest, loaded.recipe, loaded.losses) == (run.digest, run.recipe, run.losses)
    main = pytest.importorskip("fpsim.cli.main").main
    with pytest.raises(SystemExit) as end:
        main(["replay", str(tmp_path / "run")])
    assert end.value.code == 0
    assert "has the same digest as the run after each of 3 steps" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["replay", str(tmp_path / "run"), "--arithmetic", "torch", "--steps", "1"])
    assert end.value.code == 1
    assert "The first operation with another result is" in capsys.readouterr().out
    with pytest.raises(ValueError, match="or the folder of a run"):
        Run.load(tmp_path)


def test_another_units_product_is_named_with_its_cause(plain: Run) -> None:
    again = replay(plain, backend="B200")
    assert (again.step, again.operation) == (0, "first, fprop")
    assert again.divergence is not None
    assert (again.divergence.layer, again.divergence.cause) == ("first", "arithmetic")
    assert again.element is not None
    at, theirs, mine = again.element
    assert again.divergence.element == at
    assert again.divergence.values == (theirs, mine)


def test_torchs_own_arithmetic_differs_at_the_first_norm() -> None:
    run = fp.train.run("BF16", **TINY)
    again = replay(run, arithmetic="torch")
    assert not again.equal
    assert again.arithmetic == "torch"
    assert again.operation.endswith((", result", "fprop", "dgrad", "wgrad"))


def test_one_reordered_operation_is_named(traced: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that adds the squares of a norm in another order."""
    original = kernels.rms_norm
    calls: list[int] = []

    def other(x: Any, weight: Any, eps: Any, inverse: Any, result: Any) -> None:
        original(x, weight, eps, inverse, result)
        calls.append(len(calls))
        if len(calls) % 5 == 2:  # blocks.0.norm2 of five norms
            result[3, 7] *= 2

    monkeypatch.setattr(kernels, "rms_norm", other)
    again = replay(traced)
    assert again.step == 0
    assert again.operation == "blocks.0.norm2, RootMeanSquareNorm, forwards"
    assert again.element is None  # this machine does not compute the step as the run did
    assert "blocks.0.norm2, RootMeanSquareNorm, forwards" in str(again)


def test_one_product_with_another_promotion_is_named(traced: Run) -> None:
    other = recipes.FP8_TENSOR.linear
    assert not isinstance(other, str)
    row = fp.recipes.parts.Override("blocks.1.mlp.down", linear=other.replace(fprop=other.fprop.replace(promote=64)))
    changed = recipes.FP8_TENSOR.replace(overrides=(row,))
    run = fp.train.run(changed, trace=True, **TINY)
    mixed = Run(**{**vars(run), "recipe": traced.recipe})  # which says another promotion than its digests have
    again = replay(mixed)
    assert (again.step, again.operation) == (0, "blocks.1.mlp.down, fprop")


def test_without_a_trace_the_step_is_named_and_what_to_do(plain: Run) -> None:
    rows_of = [dict(row) for row in plain.rows]
    rows_of[1]["digest"] = f"1-{'0' * 32}"
    again = replay(Run(**{**vars(plain), "rows": rows_of, "machine": {**plain.machine, "processor": "Another"}}))
    assert (again.step, again.operation) == (1, "")
    assert "processor Another there" in str(again)
    assert "trace=True" in str(again)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_this_processors_own_products_have_the_digest_of_the_emulator() -> None:
    try:
        isa_here()
    except ValueError as reason:
        pytest.skip(str(reason))
    run = fp.train.run("BF16", backend="cpu", **SMALL)
    again = replay(run, backend="emulated")
    assert again.equal, str(again)


def test_float32_products_may_be_other_chains() -> None:
    chains = [Numerics(), Numerics(products=fp.Sequential("fp32"))]
    one, other = (fp.train.run(Recipe("chain", numerics=numerics), **SMALL) for numerics in chains)
    assert one.digest != other.digest
    assert max(abs(a - b) for a, b in zip(one.losses, other.losses, strict=True)) < 1e-4


@pytest.mark.parametrize(("call", "words"), [
    (lambda run: replay("nowhere.json"), r"Run.save wrote; got 'nowhere.json': No such file or directory\.$"),
    (lambda run: replay(__file__), r"Run.save wrote; got '.*test_replays.py': it holds no JSON\.$"),
    (lambda run: replay(NO_RUN), r"run must be a Run, or the path of a saved one; got 3\."),
    (lambda run: replay(run, arithmetic="exact"), r"arithmetic must be one of specified, torch; got 'exact'"),
    (lambda run: replay(run, steps=0), r"steps must be an integer >= 1; got 0"),
    (lambda run: replay(run, backend="Z80"), r"backend must be one of"),
    (lambda run: replay(Run(**{**vars(run), "data": "0" * 64})), r"text must be that of the run, whose SHA-256 begins"),
    (lambda run: replay(Run(**{**vars(run), "rows": [{**run.rows[0], "digest": f"7-{'0' * 32}"}]})),
     r"digests must be of version 1 of the arithmetic of training; got one of version 7, which a later fpsim made"),
    (lambda run: replay(Run(**{**vars(run), "world": 2})), "run must be of one process.*got one that 2 trained"),
    (lambda run: replay(Run(**{**vars(run), "rows": []})), r"run must have a step with a digest"),
    (lambda run: fp.train.run("DEEPSEEK_V3", backend="cpu", **SMALL), r"torch.mm on a CPU multiplies BF16 and FP16"),
    (lambda run: fp.train.run("FP8_RAW", arithmetic="exact", **SMALL), r"arithmetic must be one of specified, torch"),
])  # fmt: skip
def test_bad_input_gets_one_sentence(plain: Run, call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call(plain)


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    for text in ("{}", "[]", "no json", '{"kind": "fpsim training run", "version": 1}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ValueError, match=r"Run\.save wrote|does not hold a whole run"):
            Run.load(tmp_path / "run.json")


@in_turn(
    "place, operation, found",
    [
        (
            3,
            "second, aten.mm",
            "On this machine torch.mm of 128 x 256 by 256 x 256 adds its 256 terms in this order, found by fp.probe: ",
        ),
        (
            22,
            "behind head, aten.mm",
            "On this machine torch.mm of 256 x 128 by 128 x 128 adds its 128 terms in this order, found by fp.probe: ",
        ),
        (2, "behind first, aten.relu", ""),
    ],
)
def test_a_product_of_torch_that_differs_is_named_with_its_order_here(place: int, operation: str, found: str) -> None:
    """As on a machine whose MKL adds in another order: a digest of the trace, and that of the step, are others."""
    run = fp.train.run("FP32", arithmetic="torch", trace=True, **{**SMALL, "steps": 1})
    run.rows[0]["operations"][place][1] = "0" * 16
    run.rows[0]["digest"] = f"{record.VERSION}-{'0' * 32}"
    again = replay(run)
    assert again.operation == operation
    assert [line[: len(found)] for line in str(again).splitlines()[3:]] == ([found] if found else [])


def test_a_machine_is_described_by_what_decides_torchs_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert record.machine()["MKL_CBWR"] == "COMPATIBLE"
    assert record.machine()["torch"] == torch.__version__
