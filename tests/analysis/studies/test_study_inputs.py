"""Studies of files: shards, bad files, memory, progress and absent packages."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.studies.report import StudyReport
from fpsim.analysis.tensors.chunks import CHUNK

NORMAL = np.random.default_rng(0).standard_normal(4000).astype(np.float32)


def study(tensors: Any, **options: Any) -> StudyReport:
    return fp.analysis.study(tensors, **options)


def choices(report: StudyReport) -> dict[str, tuple[str, str]]:
    return {row.tensor: (row.format, row.scaling) for row in report.recommendations}


def test_shards_on_a_cluster_are_one_study(tmp_path: Path, cluster: Any) -> None:
    x = NORMAL.reshape(40, 100)
    for i in range(3):
        arrays: dict[str, Any] = {f"w{i}": x * np.float32(i + 1), "shared": x}
        np.savez(tmp_path / f"shard{i}.npz", **arrays)
    (tmp_path / "bad.npz").write_bytes(b"bad")
    client = cluster(n_workers=1, processes=False)
    report = study([tmp_path], client=client)
    with pytest.raises(ValueError, match="client needs paths of tensor files"):
        study({"w": x}, client=client)
    here = study([tmp_path])
    assert sorted(report.ranges_of) == sorted(here.ranges_of)
    assert len(report.problems) == len(here.problems) == 1
    assert sorted(report.recommendations, key=str) == sorted(here.recommendations, key=str)


def test_shards_of_one_name_in_several_folders_have_their_paths(tmp_path: Path, cluster: Any) -> None:
    """The finished work of a cluster was lost, since two tensors had the name "model:w"."""
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        np.savez(tmp_path / folder / "model.npz", w=NORMAL)
    paths = [tmp_path / folder / "model.npz" for folder in ("first", "second")]
    report = study(paths, client=cluster(n_workers=1, processes=False))
    assert list(report.ranges_of) == list(study(paths).ranges_of) == [f"{path}:w" for path in paths]


def test_nan_and_inf_are_counted_and_reported() -> None:
    x = NORMAL.copy()
    x[:5] = [np.nan, np.nan, np.inf, -np.inf, np.inf]
    report = study({"w": x})
    assert (report.ranges[0].report.nans, report.ranges[0].report.infinities) == (2, 3)
    assert report.recommendations[0].met
    assert "Not judged: 2 NaN and 3 Inf" in report.recommendations[0].reason


def test_merged_shards_equal_one_study() -> None:
    tensors = {"a": NORMAL, "b": NORMAL * 3}
    both = study(tensors)
    merged = study({"a": NORMAL}).merge(study({"b": NORMAL * 3}))
    assert merged == both
    assert merged.recommendations == both.recommendations
    with pytest.raises(ValueError, match="different tensors; both have 'a'"):
        both.merge(study({"a": NORMAL}))
    with pytest.raises(ValueError, match="same seed; got 0 and 1"):
        both.merge(study({"c": NORMAL}, seed=1))


def test_bad_files_are_problems_and_the_others_are_studied(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", NORMAL)
    (tmp_path / "bad.npy").write_bytes(b"bad")
    np.savez(tmp_path / "late.npz", w=NORMAL)
    data = bytearray((tmp_path / "late.npz").read_bytes())
    data[5000] ^= 1  # found by its checksum, when it is read to the end
    (tmp_path / "late.npz").write_bytes(bytes(data))
    report = study([tmp_path / name for name in ("bad.npy", "late.npz", "good.npy")])
    assert list(report.ranges_of) == ["good"]
    assert len(report.problems) == 2


def test_files_of_which_none_can_be_studied_raise(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^nofile\.npy: no such file$"):
        study("nofile.npy")
    (tmp_path / "bad.npy").write_bytes(b"bad")
    with pytest.raises(ValueError, match=r"^a\.npy: no such file; 2 more files cannot be studied$") as caught:
        study(["a.npy", "b.npy", tmp_path / "bad.npy"])
    assert [line.partition(": ")[0] for line in caught.value.problems] == ["a.npy", "b.npy", str(tmp_path / "bad.npy")]  # type: ignore[attr-defined]
    nothings: tuple[Any, ...] = ([], {}, ())
    for nothing in nothings:
        with pytest.raises(ValueError, match="tensors must hold at least one tensor or path; got none"):
            study(nothing)


def test_progress_grows_to_one(tmp_path: Path) -> None:
    seen: list[float] = []
    study([NORMAL, NORMAL[:7]], progress=lambda share, text: seen.append(share))
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1)


def test_unknown_words_are_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match=r"scalings must be one of .*, None or 'amax'; got 'tensors'"):
        study({}, scalings=("tensors",))
    with pytest.raises(ValueError, match="format must be one of"):
        study({}, formats=("e4m9",))
    with pytest.raises(ValueError, match="formats must name at least one"):
        study({}, formats=())
    with pytest.raises(ValueError, match="tensors must be None, an array"):
        study(3)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        np.save(tmp_path / "w.npy", np.ones(count, np.float32))
        tracemalloc.start()
        study(tmp_path / "w.npy", formats=("E4M3",), scalings=(None,), roundings=("nearest_even",))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(CHUNK)
    # the files differ by 84 MB; how many batches are under way at once is up to the threads
    assert peak(400 * CHUNK) < peak(80 * CHUNK) + 40_000_000


def test_the_built_in_study_learns_and_repeats_itself() -> None:
    pytest.importorskip("torch")
    from fpsim.analysis.models.capture import capture

    first, again = capture(steps=(1, 3), seed=1), capture(steps=(3, 1), seed=1)
    assert first.losses == again.losses
    assert first.losses[-1] < first.losses[0]
    assert first.tensors == again.tensors
    for a, b in zip(first.tensors, again.tensors, strict=True):
        assert [x.tobytes() for x in a.chunks()] == [x.tobytes() for x in b.chunks()]
    layers = 2 * 4 + 1
    assert len(first.tensors) == layers * 3 * 2
    report = study(list(first.tensors), formats=("E4M3", "BF16"), roundings=("nearest_even",))
    page = choices(report)
    assert len(page) == layers * 3
    assert page["block1.qkv output gradient"][0] == "E4M3"
    assert {row.role for row in report.recommendations} == {"activation", "matrix", "gradient"}
    gradient = report.errors_of["block1.qkv output gradient"]
    assert all(
        row.report.underflow_rate > 0.9 for row in gradient if (row.report.format, row.scaling) == ("E4M3", "none")
    )
    assert sorted({row.step for row in gradient if row.step}) == [1, 3]


def test_capture_leaves_torch_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    from fpsim.analysis.models.capture import capture

    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    capture(steps=(1,))
    assert torch.equal(torch.rand(3), want)
    assert torch.get_num_threads() == threads
    with pytest.raises(ValueError, match="steps must be one or more integers >= 1"):
        capture(steps=(0,))


def test_absent_packages_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ImportError, match=r"needs torch, which is not installed: pip install -e '\.\[torch\]' in"):
        study(None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install -e '\.\[plot\]' in"):
        study({"w": NORMAL}).to_frame()


def test_tensors_of_one_name_and_step_are_refused() -> None:
    """They counted as two steps of one tensor."""
    x = np.ones((8, 8), np.float32)
    with pytest.raises(ValueError, match=r"different names or steps; got 2 called 'a' at step 3\.$"):
        fp.analysis.study([fp.analysis.tensor("a", x, step=3) for _ in range(2)])
    with pytest.raises(ValueError, match=r"different names or steps; got 2 called 'a'\.$"):
        fp.analysis.study([fp.analysis.tensor("a", x) for _ in range(2)])
    with pytest.raises(ValueError, match="tensors must hold at least one tensor or path; got none"):
        fp.analysis.study(iter([]))
    for function in (fp.analysis.study({"a": x}).merge, fp.analysis.study({"a": x}).compare):
        with pytest.raises(TypeError, match="other must be a StudyReport; got 3"):
            function(3)  # type: ignore[arg-type]
