"""Files of studies: written whole or not at all, and swept where a process was killed."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim import files
from fpsim.files import replacing


def f32(*values: float) -> Any:
    """Make a float32 array."""
    return np.array(values, np.float32)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    def interrupted() -> None:
        with replacing(tmp_path, [path.name]) as drafts:
            (drafts / path.name).write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


NAMES = ("a.csv", "b.csv", "report.html")


def save_study(folder: Path, text: str, names: tuple[str, ...] = NAMES) -> None:
    """Files that all hold the same text."""
    with replacing(folder, (*NAMES, "old.parquet")) as drafts:
        for name in names:
            (drafts / name).write_text(text)


def study_in(folder: Path) -> str:
    """Return the text of a study's files, which must be one and the same, beside files of somebody else."""
    assert sorted(file.name for file in folder.iterdir() if not file.name.startswith(".")) == sorted((*NAMES, *OTHERS))
    assert (folder / "notes" / "n.txt").read_text() == "notes"
    texts = {(folder / name).read_text() for name in NAMES}
    assert len(texts) == 1
    return texts.pop()


OTHERS = ("mine.txt", "notes")


def folder_of_a_study(parent: Path) -> Path:
    """Save a study with files of somebody else beside it."""
    folder = parent / "study"
    (folder / "notes").mkdir(parents=True)
    (folder / "notes" / "n.txt").write_text("notes")
    (folder / "mine.txt").write_text("mine")
    save_study(folder, "old")
    return folder


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("failing", range(12))
def test_a_rename_that_fails_leaves_the_old_study_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int, exchanges: bool
) -> None:
    folder = folder_of_a_study(tmp_path)
    calls = []

    def fragile(real: Any) -> Any:
        def run(*arguments: Any, **keywords: Any) -> Any:
            calls.append(real.__name__)
            if len(calls) == failing + 1:
                raise OSError(5, "Input/output error")
            return real(*arguments, **keywords)

        return run

    def cannot(*paths: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(files, "exchange", fragile(files.exchange) if exchanges else cannot)
    monkeypatch.setattr(os, "rename", fragile(os.rename))
    monkeypatch.setattr(os, "link", fragile(os.link))
    failed = False
    try:
        save_study(folder, "new")
    except OSError:
        failed = True
    monkeypatch.undo()
    exchanged = "exchange" in calls and calls.index("exchange") != failing
    assert study_in(folder) == ("old" if failed and not exchanged else "new")
    # where a link or the exchange fails, there is another way
    assert failed == (failing < len(calls) and calls[failing] == "rename")
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="exchanging folders is POSIX")
def test_a_killed_process_leaves_the_old_study_or_the_new_one(tmp_path: Path) -> None:
    folder = folder_of_a_study(tmp_path)
    # every line of the input asks for a process that writes studies, as save_study does, until it is killed
    program = """
        import os, pathlib, sys
        from fpsim.files import replacing
        folder, *names = sys.argv[1:]
        for _ in sys.stdin:
            pid, i = os.fork(), 0
            while pid == 0:
                with replacing(pathlib.Path(folder), (*names, "old.parquet")) as drafts:
                    for name in names:
                        (drafts / name).write_text(f"study {i}")
                i += 1
            print(pid, flush=True)
            os.waitpid(pid, 0)
            print("gone", flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(folder), *NAMES]
    rng = np.random.default_rng(0)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
        assert forks.stdin is not None
        assert forks.stdout is not None
        for _ in range(6):
            print(file=forks.stdin, flush=True)
            pid = int(forks.stdout.readline())
            time.sleep(0.02 + 0.05 * rng.random())
            os.kill(pid, signal.SIGKILL)
            assert forks.stdout.readline() == "gone\n"
            assert study_in(folder).startswith(("old", "study "))


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="exchanging folders is POSIX")
def test_a_process_killed_between_two_moves_hides_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of_a_study(tmp_path)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for text in ("first", "second"):  # the second one begins with what the first one left
        with monkeypatch.context() as dying:
            dying.setattr(files, "_bring", killed)
            dying.setattr(files, "_clear", lambda *_: None)
            with pytest.raises(KeyboardInterrupt):
                save_study(folder, text)
        assert study_in(folder) == text
        assert (folder / "notes").is_symlink()
    for left in tmp_path.glob(".study-writing-*"):
        os.utime(left, (0, 0))
    save_study(folder, "new")
    assert study_in(folder) == "new"
    assert not (folder / "notes").is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == ["study"]


def test_what_killed_processes_left_goes_after_a_day(tmp_path: Path) -> None:
    folder = folder_of_a_study(tmp_path)
    (folder / "notes").rename(tmp_path / "notes")
    for age, name in ((100, "young"), (90_000, "old")):
        for place in (tmp_path / f".study-writing-{name}", folder / f".writing-{name}"):
            (place / "new").mkdir(parents=True)
            (place / "new" / "a.csv").write_text("half")
            if place.parent == tmp_path and name == "old":
                (tmp_path / "notes").rename(place / "new" / "notes")
            os.utime(place, (time.time() - age,) * 2)
    save_study(folder, "new")
    assert study_in(folder) == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".study-writing-young", "study"]
    assert [path.name for path in folder.glob(".*")] == [".writing-young"]


def test_files_of_one_writer_are_swept_too(tmp_path: Path) -> None:
    (tmp_path / ".writing-abc").mkdir()
    (tmp_path / ".bench.txt-abcdefgh").write_text("half")
    for path in tmp_path.iterdir():
        os.utime(path, (0, 0))
    files.write_whole(tmp_path / "bench.txt", "whole")
    fp.encode_scaled(f32(1, 2), "e4m3", fp.scalings.TENSOR).save(tmp_path / "q.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench.txt", "q.npz"]


@pytest.mark.parametrize("where", ["inside", "link"])
def test_a_study_replaces_one_where_the_process_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = folder_of_a_study(tmp_path)
    (folder / "old.parquet").write_text("of an earlier study")
    if where == "inside":
        monkeypatch.chdir(folder)
        save_study(Path(), "new")
        assert (Path() / "a.csv").read_text() == "new"
    else:
        (tmp_path / "link").symlink_to(folder)
        save_study(tmp_path / "link", "new")
        assert (tmp_path / "link").is_symlink()
    assert study_in(folder) == "new"


def test_tables_of_an_earlier_study_do_not_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = fp.analysis.study({"w": np.ones(8, np.float32)}, formats=["e4m3"], roundings=["nearest_even"])
    (tmp_path / "errors.parquet").write_text("of another study")
    page = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else page(name))
    files, notes = report.save(tmp_path)
    assert "Parquet tables need pyarrow: pip install pyarrow" in notes
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(file.name for file in files)
