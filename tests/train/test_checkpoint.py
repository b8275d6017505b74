"""Checkpoints: what is loaded is what was saved, bit for bit, wherever the process that saves is killed."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fpsim.exact_json import from_json, to_json
from fpsim.testing import assert_bits_equal
from fpsim.train.checkpoint import Checkpoint, Checkpoints, load, require_same, save, steps
from tests.kit.forks import fork
from tests.kit.processes import ROOT

pytest.importorskip("safetensors", reason="checkpoints are safetensors files")
NAN = struct.unpack(">d", bytes.fromhex("fff0000000000abc"))[0]


def state(step: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and facts, other ones for each step."""
    random_words = np.random.default_rng(step).integers(0, 2**32, 30_000, np.uint32)
    arrays = {"w": random_words.view(np.float32), "m.0": random_words[: step % 7].view(np.uint8)}
    return arrays, {"loss": [NAN, step / 3], "step": step}


def assert_is_state(found: Checkpoint | None, *of: int) -> None:
    assert found is not None
    assert found.step in of
    arrays, facts = state(found.step)
    assert list(found.arrays) == list(arrays)
    for name, x in arrays.items():
        assert (found.arrays[name].dtype, found.arrays[name].tobytes()) == (x.dtype, x.tobytes())
    assert json.dumps(to_json(found.facts)) == json.dumps(to_json(facts))


# ---- what comes back


PATTERNS = {
    "float32": (np.uint32, [0x7F800001, 0xFFC12345, 0x80000000]), "float64": (np.uint64, [0x7FF0000000000001, 1 << 63]),
    "bfloat16": (np.uint16, [0x7F81, 0xFFFF, 0x8000]), "float16": (np.uint16, [0x7C01, 0xFE00]),
    "float8_e4m3fn": (np.uint8, [0x7F, 0xFF, 0x80]), "int64": (np.uint64, [1 << 63]), "uint8": (np.uint8, [0, 255]),
    "bool": (np.uint8, [0, 1]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", PATTERNS)
def test_arrays_keep_their_bits_dtypes_and_shapes(tmp_path: Path, dtype: str) -> None:
    unsigned, patterns = PATTERNS[dtype]
    x = np.array(patterns, unsigned).view(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    arrays = {
        "row": x,
        "scalar": x[:1].reshape(()),
        "empty": x[:0].reshape(0, 3),
        "gaps": np.repeat(x, 2).reshape(-1, 2).T,
    }
    save(tmp_path, 1, arrays, {})
    loaded = load(tmp_path)
    assert loaded is not None
    for name, before in arrays.items():
        after = loaded.arrays[name]
        assert (after.dtype, after.shape, after.tobytes()) == (before.dtype, before.shape, before.tobytes())
        assert after.flags.writeable


def test_facts_keep_every_bit_and_the_order_of_their_keys(tmp_path: Path) -> None:
    facts = {
        "z": [0.1, -0.0, 5e-324, NAN, float("-inf")],
        "a": {"b": None, "c": True, "d": 3**50, "e": "é\ud800"},
        "l": [],
    }
    save(tmp_path, 1, {}, facts)
    loaded = load(tmp_path)
    assert loaded is not None
    assert json.dumps(to_json(loaded.facts)) == json.dumps(to_json(facts))
    assert struct.pack(">d", loaded.facts["z"][3]).hex() == "fff0000000000abc"


def test_other_programs_read_the_arrays(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    path = save(tmp_path, 120, {"w": np.array([1, 2], np.float32)}, {"lr": 0.1})
    assert path == tmp_path / "step-000120"
    assert_bits_equal(load_file(path / "arrays.safetensors")["w"], np.array([1, 2], np.float32))
    assert json.loads((path / "state.json").read_text())["state"]["facts"] == {"lr": 0.1}


def test_a_folder_that_is_missing_or_empty_holds_no_checkpoint(tmp_path: Path) -> None:
    assert (load(tmp_path / "none"), steps(tmp_path / "none"), load(tmp_path)) == (None, [], None)
    with pytest.raises(
        ValueError, match=r"step must have an undamaged checkpoint in '.*'; got 3, and there are steps \["
    ):
        load(tmp_path, 3)


# ---- which ones stay


def test_older_ones_go_and_later_ones_stay(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as kept:
        for step, left in [(10, [10]), (1_000_000, [1_000_000]), (20, [20, 1_000_000]), (30, [30, 1_000_000])]:
            kept.save(step, *state(step))
            assert steps(tmp_path) == left
        kept.save(40, *state(40), keep=2)
        assert steps(tmp_path) == [30, 40, 1_000_000]
    assert_is_state(load(tmp_path), 1_000_000)
    assert_is_state(load(tmp_path, 30), 30)


def test_a_step_saved_again_replaces_the_first(tmp_path: Path) -> None:
    for loss in (1.0, 2.0, 3.0):
        save(tmp_path, 5, {}, {"loss": loss})
        loaded = load(tmp_path)
        assert loaded is not None
        assert (loaded.facts, steps(tmp_path)) == ({"loss": loss}, [5])


def damage(path: Path, where: int) -> None:
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "harm", "words"),
    [
        ("arrays.safetensors", lambda path: damage(path, -1), "arrays.safetensors differs from its checksum"),
        ("arrays.safetensors", lambda path: damage(path, 12), "arrays.safetensors differs from its checksum"),
        ("arrays.safetensors", lambda path: path.write_bytes(b""), "arrays.safetensors differs from its checksum"),
        ("arrays.safetensors", lambda path: path.unlink(), "arrays.safetensors is missing"),
        ("state.json", lambda path: path.unlink(), "state.json is missing"),
        ("state.json", lambda path: path.write_bytes(path.read_bytes()[:-1]), "state.json is no JSON of a checkpoint"),
        ("state.json", lambda path: path.write_text("[]"), "state.json is no JSON of a checkpoint"),
        ("state.json", lambda path: path.write_bytes(path.read_bytes().replace(b'"step": 2', b'"step": 3')),
         "state.json differs from its checksum"),
    ],
)  # fmt: skip
def test_a_damaged_one_is_passed_over_with_a_warning_that_names_it(
    tmp_path: Path, name: str, harm: Any, words: str
) -> None:
    for step in (1, 2):
        save(tmp_path, step, *state(step), keep=2)
    harm(tmp_path / "step-000002" / name)
    with pytest.warns(UserWarning, match=rf"step-000002 is damaged and not loaded: {re.escape(words)}\."):
        assert_is_state(load(tmp_path), 1)
    with (
        pytest.warns(UserWarning, match="step-000002 is damaged"),
        pytest.raises(ValueError, match=r"got 2, and there are steps \[1, 2\]"),
    ):
        load(tmp_path, 2)
    save(tmp_path, 2, *state(2))
    assert_is_state(load(tmp_path), 2)
    assert [path.name for path in tmp_path.glob("step*")] == ["step-000002-2"]


def test_one_of_another_step_under_a_new_name_is_damaged(tmp_path: Path) -> None:
    save(tmp_path, 1, *state(1)).rename(tmp_path / "step-000009")
    with pytest.warns(UserWarning, match="step-000009 is damaged and not loaded: state.json is of step 1"):
        assert load(tmp_path) is None


def test_one_of_another_version_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    path = save(tmp_path, 1, *state(1)) / "state.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(
        ValueError, match=r"a checkpoint must have version 1; got .*step-000001, of version 2\. Load it"
    ):
        load(tmp_path)


# ---- what cannot be saved


@pytest.mark.parametrize(
    ("arrays", "facts", "words"),
    [
        ({"w": [1.0]}, {}, r"w must be a NumPy array of bool, .*; got \[1.0\]\."),
        ({"w": np.zeros(2, ">f4")}, {}, "w must be a NumPy array of bool, .* in native byte order; got array"),
        ({"w": np.zeros(2, "c8")}, {}, "w must be a NumPy array of bool"),
        ({"w": np.ma.masked_array([1.0], [True])}, {}, "w must not be masked"),
        ({3: np.zeros(2)}, {}, "names of arrays must be texts other than '__metadata__'; got 3."),
        ({"__metadata__": np.zeros(2)}, {}, "names of arrays must be texts other than '__metadata__'; got '__m"),
        ({}, {"betas": (0.9, 0.95)}, r"facts\['betas'\] must be None, a truth value, .*; got \(0.9, 0.95\)\."),
        ({}, {"a": [np.float32(1)]}, r"facts\['a'\]\[0\] must be None, a truth value"),
        ({}, {"a": {1: 2}}, r"facts\['a'\] must be None, .*; got \{1: 2\}\."),
        ({}, {"a": {"float64": "x"}}, r"facts\['a'\] must not have 'float64' as its one key"),
    ],
)
def test_what_cannot_come_back_is_refused_and_nothing_is_left(
    tmp_path: Path, arrays: Any, facts: Any, words: str
) -> None:
    save(tmp_path, 1, *state(1))
    with pytest.raises((TypeError, ValueError), match=words):
        save(tmp_path, 2, arrays, facts)
    assert_is_state(load(tmp_path), 1)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "step-000001"}


def test_a_disk_that_fails_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1, *state(1))

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fpsim.train.checkpoint.sync", full)
    with pytest.raises(OSError, match="No space left"):
        save(tmp_path, 2, *state(2))
    assert_is_state(load(tmp_path), 1)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "step-000001"}


def test_without_safetensors_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with pytest.raises(ImportError, match="a checkpoint needs safetensors, which is not installed: pip install safet"):
        save(tmp_path, 1, *state(1))


# ---- one process at a time


def save_or_say(folder: Path) -> None:
    """What a second process does."""
    try:
        save(folder, 1, {}, {})
    except ValueError as reason:
        print(reason)


def test_a_second_process_is_refused_until_the_first_one_ends(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="Windows has no such locks")
    folder, said = tmp_path / "kept", tmp_path / "said"
    with Checkpoints(folder), fork(said, save_or_say, folder) as refused:
        assert refused.end() == 0, refused.errors
    assert refused.out == (
        f"folder must be one that no other process writes checkpoints to; got '{folder}', which one does at the "
        "moment. Wait for it, or name another.\n"
    )
    with fork(said, save_or_say, folder) as taken:
        assert taken.end() == 0, taken.errors
    assert taken.out == ""
    assert steps(folder) == [1]


def test_a_closed_folder_takes_no_more(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as kept:
        pass
    with pytest.raises(ValueError, match="the folder of checkpoints is closed"):
        kept.save(1, {}, {})


# ---- the same recipe


RECIPE = {"lr": 0.003, "model": {"layers": 2, "width": [1, 2]}, "clip": NAN, "fmt": None}


def test_the_same_facts_pass_nan_and_all() -> None:
    require_same(RECIPE, from_json(json.loads(json.dumps(to_json(RECIPE)))), "recipe")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({**RECIPE, "lr": 0.001}, "lr 0.003 instead of 0.001"),
        ({**RECIPE, "clip": float("nan")}, "clip nan instead of nan"),
        ({**RECIPE, "fmt": "bf16"}, "fmt None instead of 'bf16'"),
        ({**RECIPE, "model": {"layers": 2.0}}, "model.layers 2 instead of 2.0, and model.width [1, 2] instead of none"),
        ({**RECIPE, "seed": 1}, "no seed instead of 1"),
        (
            {"a": 1},
            "no a instead of 1, lr 0.003 instead of none, model.layers 2 instead of none, and 3 more differences",
        ),
    ],
)
def test_other_facts_are_refused_with_the_differences(wanted: dict[str, Any], words: str) -> None:
    sentence = (
        f"a checkpoint must be of the same recipe; got one with {words}. Use the recipe that it was saved with, or"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        require_same(RECIPE, wanted, "recipe")


# ---- killed processes


def save_for_ever(folder: Path, step: int) -> None:
    """What a process that will be killed does."""
    with Checkpoints(folder) as kept:
        while True:
            kept.save(step, *state(step))
            print(step)
            step += 1


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_a_process_killed_while_it_saves_leaves_its_last_state_or_the_next(tmp_path: Path, kills: int) -> None:
    random_times, folder, said = random.Random(kills), tmp_path / "kept", tmp_path / "said"
    step = 0
    for _ in range(kills):
        with fork(said, save_for_ever, folder, step) as child:
            while not child.out.endswith("\n"):
                assert child.lives, child.errors
                time.sleep(0.002)
            time.sleep(random_times.uniform(0, 0.05))
            child.kill()
            last = int(child.out.split()[-1])
        loaded = load(folder)
        assert_is_state(loaded, last, last + 1)
        assert loaded is not None
        step = loaded.step + 1
    save(folder, step, *state(step))
    assert {path.name for path in folder.iterdir()} == {".lock", f"step-{step:06d}"}


# A child of a small process dies at the first thing that it does to a file, another one at the second, and so on.
EVERYWHERE = """
import os, pathlib, signal, sys
from fpsim.train.checkpoint import load, save, steps
from tests.train.test_checkpoint import assert_is_state, state
folder, moments = pathlib.Path(sys.argv[1]), 0
save(folder, 0, *state(0))
step = 0
while True:
    child = os.fork()
    if child == 0:
        seen = 0
        def die(event, arguments):
            global seen
            if event == "open" or event.startswith(("os.", "shutil.", "tempfile.")) and event != "os.kill":
                seen += 1
                if seen > moments:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(die)
        save(folder, step + 1, *state(step + 1))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    found = load(folder)
    assert_is_state(found, step, step + 1)
    for each in steps(folder):
        assert_is_state(load(folder, each), each)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    step, moments = found.step, moments + 1
assert found.step == step + 1
print(moments)
"""


def test_a_process_killed_at_any_thing_that_it_does_to_a_file_leaves_a_whole_state(tmp_path: Path) -> None:
    if not hasattr(__import__("os"), "fork"):
        pytest.skip("Windows has no fork")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", EVERYWHERE, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 15
