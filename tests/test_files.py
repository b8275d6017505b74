"""Errors of files that are written whole name the file that the caller wanted, not its draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fpsim
from fpsim.files import require_file, whole_file


def test_an_error_names_the_file_and_not_its_draft(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for path, error in ((tmp_path / "missing" / "a.json", FileNotFoundError), (folder, IsADirectoryError)):
        with pytest.raises(error) as reason, whole_file(path) as file:
            file.write(b"text")
        assert reason.value.filename == str(path)
        with pytest.raises(error) as reason:
            require_file(path)
        assert reason.value.filename == str(path)
    assert sorted(tmp_path.iterdir()) == [folder]  # no draft is left


def test_a_file_that_can_be_written_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    assert require_file(path) == path
    assert not list(tmp_path.iterdir())
    path.write_text("old")
    require_file(path)
    assert path.read_text() == "old"


def test_codes_saved_to_a_folder_name_that_folder(tmp_path: Path) -> None:
    folder = tmp_path / "codes.npz"
    folder.mkdir()
    scaled = fpsim.encode_scaled(np.ones((2, 128), np.float32), "e4m3", "TILE_1X128")
    with pytest.raises(IsADirectoryError) as reason:
        scaled.save(folder)
    assert reason.value.filename == str(folder)
