"""Files of arrays and a header: bits come back, any damage is noticed, and a write is complete or never happened."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from fpsim.scaling import file as scaled_file
from fpsim.scaling.file import DTYPES, ENVELOPE, KINDS, load, save
from tests.kit.processes import python
from tests.scaling.files.cases import SMALL, assert_same, small

HEADER = {
    "format": "e4m3",
    "block": [1, 128],
    "floor": 1e-4,
    "half": [-0.0, 2**-126],
    "name": "tïle \ud800",
    "none": None,
}


NANS = np.array([0x7F800001, 0xFFC12345, 0x80000000, 0x7F800000, 1], np.uint32).view(np.float32)


every_kind = pytest.mark.parametrize("suffix", list(KINDS))


@every_kind
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (5,), (3, 4), (2, 1, 3)])
def test_every_dtype_and_shape_comes_back(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    bits = np.random.default_rng(7).integers(0, 256, (*shape, 8), np.uint8)
    arrays = {}
    for dtype in DTYPES:
        wide = bits[..., : np.dtype(dtype).itemsize]
        wide = wide & 1 if dtype == "bool" else wide
        arrays[f"x_{dtype}"] = np.ascontiguousarray(wide).view(dtype).reshape(shape)
    save(tmp_path / f"x{suffix}", arrays, HEADER)
    got = load(tmp_path / f"x{suffix}")
    assert_same(got, (arrays, HEADER))
    assert all(x.flags.writeable and x.flags.c_contiguous for x in got[0].values())


@every_kind
def test_nan_payloads_and_signs_of_zero_come_back(tmp_path: Path, suffix: str) -> None:
    save(str(tmp_path / f"x{suffix}"), {"x": NANS}, {})
    assert load(str(tmp_path / f"x{suffix}"))[0]["x"].view(np.uint32).tolist() == NANS.view(np.uint32).tolist()


@every_kind
def test_headers_come_back_with_every_kind_of_entry(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / f"x{suffix}", SMALL, HEADER)
    assert_same(load(tmp_path / f"x{suffix}"), (SMALL, HEADER))


@every_kind
def test_views_and_awkward_names_come_back(tmp_path: Path, suffix: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {"file": x.T, "allow_pickle": x[::2, ::-1], "self": np.broadcast_to(x[0], (3, 6)), "npy": x[1]}
    save(tmp_path / f"x{suffix}", arrays, {})
    assert_same(load(tmp_path / f"x{suffix}"), (arrays, {}))


@every_kind
def test_an_array_longer_than_a_read_comes_back(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaled_file, "BYTES_AT_ONCE", 1000)
    arrays = {"x": np.random.default_rng(1).standard_normal((7, 111))}
    save(tmp_path / f"x{suffix}", arrays, {})
    assert_same(load(tmp_path / f"x{suffix}"), (arrays, {}))


@every_kind
def test_the_same_content_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    save(tmp_path / f"a{suffix}", SMALL, HEADER)
    save(tmp_path / f"b{suffix}", dict(reversed(SMALL.items())), HEADER)
    assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()


def test_capital_endings_are_endings(tmp_path: Path) -> None:
    save(tmp_path / "x.NPZ", SMALL, {})
    assert_same(load(tmp_path / "x.NPZ"), (SMALL, {}))


def test_plain_libraries_read_the_arrays(tmp_path: Path) -> None:
    save(tmp_path / "x.npz", SMALL, {"a": 1})
    save(tmp_path / "x.safetensors", SMALL, {"a": 1})
    with np.load(tmp_path / "x.npz") as archive:
        assert json.loads(bytes(archive[ENVELOPE]))["header"] == {"a": 1}
        assert_same(({name: archive[name] for name in SMALL}, {}), (SMALL, {}))
    assert_same((safetensors.numpy.load_file(tmp_path / "x.safetensors"), {}), (SMALL, {}))


def test_torch_reads_the_arrays(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    save(tmp_path / "x.safetensors", {**SMALL, "empty": np.zeros((0, 3), np.uint16)}, {})
    tensors = load_file(tmp_path / "x.safetensors")
    assert tensors["codes"].dtype == torch.uint8
    assert tensors["empty"].shape == (0, 3)
    assert tensors["scales"].view(torch.int32).tolist() == SMALL["scales"].view(np.int32).tolist()


@pytest.mark.parametrize("dtype", ["complex64", ">f4", "object", "U3", "M8[s]", "float128", "V4"])
def test_other_dtypes_are_refused(tmp_path: Path, dtype: str) -> None:
    if dtype == "float128" and not hasattr(np, dtype):
        pytest.skip("no such dtype on this platform")
    with pytest.raises(TypeError, match=r"x must be one of bool, .*, in native byte order; got .*View"):
        save(tmp_path / "x.npz", {"x": np.zeros(3, dtype)}, {})


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", "__fpsim__", "__metadata__", "größe", 3])
def test_other_names_are_refused(tmp_path: Path, name: Any) -> None:
    with pytest.raises(ValueError, match="names of arrays must be ASCII identifiers"):
        save(tmp_path / "x.npz", {"x": np.zeros(3), name: np.zeros(3)}, {})


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there must be an array to save; got none"):
        save(tmp_path / "x.npz", {}, HEADER)


@pytest.mark.parametrize("header", [[], {1: 2}, {"a": (1, 2)}, {"a": np.nan}, {"a": [np.inf]}, {"a": np.float32(1)}])
def test_headers_that_json_changes_are_refused(tmp_path: Path, header: Any) -> None:
    with pytest.raises(ValueError, match=r"the header must come back from JSON as it is; got .*Use a dict"):
        save(tmp_path / "x.npz", SMALL, header)


@every_kind
@pytest.mark.parametrize("moment", ["write", "fsync", "replace"])
@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, moment: str, problem: type[BaseException]
) -> None:
    path = tmp_path / f"x{suffix}"
    old = small(path)

    def fail(*_: Any, **__: Any) -> None:
        raise problem

    def fail_late(draft: Path, *_: Any) -> None:
        draft.write_bytes(b"half of it")
        raise problem

    with monkeypatch.context() as patch:
        if moment == "write":
            patch.setitem(KINDS, suffix, (KINDS[suffix][0], fail_late))
        else:
            patch.setattr(os, moment, fail)
        with pytest.raises(problem):
            save(path, {"x": NANS}, {})
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == old
    save(path, {"x": NANS}, {})
    assert_same(load(path), ({"x": NANS}, {}))


@every_kind
@pytest.mark.skipif(os.name != "posix", reason="a limit on the size of files as POSIX has it")
def test_a_full_disk_leaves_the_old_file_alone(tmp_path: Path, suffix: str) -> None:
    old = small(tmp_path / f"x{suffix}")
    script = f"""
        import resource, signal
        import numpy as np
        from fpsim.scaling.file import save
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            save({str(tmp_path / f"x{suffix}")!r}, {{"x": np.zeros(10000)}}, {{}})
        except OSError as problem:
            print(problem)
        """
    assert "File too large" in python(script)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(f"x{suffix}", old)]


@every_kind
@pytest.mark.skipif(os.name != "posix", reason="permissions and links as POSIX has them")
def test_permissions_and_links_are_those_of_an_ordinary_write(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "ordinary").touch()
    path, link = tmp_path / f"x{suffix}", tmp_path / f"link{suffix}"
    save(path, SMALL, {})
    assert path.stat().st_mode == (tmp_path / "ordinary").stat().st_mode
    path.chmod(0o640)
    link.symlink_to(path)
    save(link, {"x": NANS}, {})
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert_same(load(path), ({"x": NANS}, {}))


@every_kind
def test_a_read_only_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    old = small(tmp_path / f"x{suffix}")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write anywhere
    with pytest.raises(PermissionError, match="is read-only and stays as it is"):
        save(tmp_path / f"x{suffix}", {"x": NANS}, {})
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(f"x{suffix}", old)]


def test_without_safetensors_only_its_files_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    save(path, SMALL, {})
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for call in (lambda: load(path), lambda: save(path, SMALL, {})):
        with pytest.raises(ImportError, match="pip install safetensors"):
            call()
    save(tmp_path / "x.npz", SMALL, {})
    assert_same(load(tmp_path / "x.npz"), (SMALL, {}))


def test_safetensors_is_imported_on_first_use() -> None:
    assert python("import sys, fpsim.scaling.file; print('safetensors' in sys.modules)") == "False"
