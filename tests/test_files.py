"""Errors of files that are written whole name the file that the caller wanted, not its draft."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import fpsim
from fpsim.files import require_file, whole_file, write_whole


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


@pytest.mark.skipif(os.name != "posix", reason="file modes and links of POSIX systems")
def test_a_written_file_keeps_its_mode_and_links_lead_to_it(tmp_path: Path) -> None:
    file, link = tmp_path / "a.json", tmp_path / "link.json"
    before = os.umask(0o027)
    try:
        write_whole(file, "first")
        assert file.stat().st_mode & 0o777 == 0o640
        file.chmod(0o600)
        link.symlink_to(file)
        write_whole(link, "second")
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("second", 0o600)
    file.chmod(0o400)
    if not os.access(file, os.W_OK):  # root may write
        for call in (lambda: write_whole(link, "third"), lambda: require_file(link)):
            with pytest.raises(PermissionError) as reason:
                call()
            assert reason.value.filename == str(link)
    assert sorted(tmp_path.iterdir()) == [file, link]


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
