"""The study: rows are those of `error`, recommendations follow the stated rules, bad files do not stop it."""

from __future__ import annotations

import math
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.measures.rounding_error import METRICS
from fpsim.analysis.studies.recommend import REQUIREMENTS
from fpsim.analysis.studies.report import StudyReport
from fpsim.analysis.tensors.chunks import CHUNK


def f32(*values: float) -> Any:
    """A float32 array."""
    return np.array(values, np.float32)


NORMAL = np.random.default_rng(0).standard_normal(4000).astype(np.float32)


def study(tensors: Any, **options: Any) -> StudyReport:
    return fp.analysis.study(tensors, **options)


def choices(report: StudyReport) -> dict[str, tuple[str, str]]:
    return {row.tensor: (row.format, row.scaling) for row in report.recommendations}


def test_rows_are_those_of_error() -> None:
    x = np.random.default_rng(3).standard_normal(CHUNK + 999).astype(np.float32)
    x[:3] = [np.nan, np.inf, 1e9]
    report = study({"w": x}, formats=("E4M3", "BF16"), seed=9)
    assert len(report.errors) == 2 * 2 * 2
    for row in report.errors:
        scale: Any = "amax" if row.scaling == "amax" else None
        want = fp.analysis.error(x, row.report.format, scale=scale, rounding=row.report.rounding, seed=9)
        assert row.report == want
    assert report.ranges[0].report == fp.analysis.exponents(x)


def test_recommendations_follow_the_range() -> None:
    wide = NORMAL * np.float32(2.0) ** np.random.default_rng(1).uniform(-21, 0, 4000).astype(np.float32)
    both_ways = NORMAL * np.float32(2.0) ** np.random.default_rng(1).uniform(-60, 60, 4000).astype(np.float32)
    report = study(
        {
            "plain": NORMAL,
            "small": NORMAL * np.float32(2.0**-30),
            "large": NORMAL * np.float32(2.0**30),
            "near the top": NORMAL * np.float32(90),
            "wide": wide,
            "very wide": both_ways,
            "four values": np.tile(f32(0.5, 1, -3, 6), 100),
        }
    )
    found = choices(report)
    assert found == {
        "plain": ("E4M3", "none"),
        "small": ("E4M3", "amax"),
        "large": ("E4M3", "amax"),
        "near the top": ("E4M3", "amax"),
        "wide": ("E5M2", "amax"),
        "very wide": ("BF16", "none"),
        "four values": ("E2M1", "amax"),
    }
    reasons = {row.tensor: row.reason for row in report.recommendations}
    assert "E4M3 is finer but has too little range" in reasons["wide"]
    assert "Without a scale: 100 % underflow" in reasons["small"]
    assert "beyond its range" in reasons["large"]
    assert "its largest value is only" in reasons["four values"]  # 6 is E2M1's largest, so no headroom without a scale


def test_what_is_recommended_meets_the_stated_requirements() -> None:
    rng = np.random.default_rng(2)
    tensors = {
        f"t{i}": NORMAL * np.float32(2.0) ** rng.uniform(-i, 0, 4000).astype(np.float32) for i in range(0, 30, 3)
    }
    report = study(tensors)
    for row in report.recommendations:
        assert row.met
        wanted = next(limit for limit in REQUIREMENTS if fp.format(row.format).bits <= limit.bits)
        error = fp.analysis.error(tensors[row.tensor], row.format, scale="amax" if row.scaling == "amax" else None)
        assert error.sqnr_db == row.sqnr_db >= wanted.sqnr_db
        assert error.underflow_rate == row.underflow_rate <= wanted.underflow_rate
        assert error.overflow_rate == 0


def test_where_nothing_fits_it_says_so() -> None:
    row = study({"w": NORMAL}, formats=("E2M1",)).recommendations[0]
    assert (row.format, row.met) == ("float32", False)
    assert row.reason.startswith("No studied format meets the requirements. Closest: E2M1 with an amax scale")
    for empty in (np.zeros(5, np.float32), f32(np.nan, np.inf), np.zeros(0, np.float32)):
        row = study({"w": empty}).recommendations[0]
        assert not row.met
        assert "nothing to judge" in row.reason


def test_nan_and_inf_are_counted_and_reported() -> None:
    x = NORMAL.copy()
    x[:5] = [np.nan, np.nan, np.inf, -np.inf, np.inf]
    report = study({"w": x})
    assert (report.ranges[0].report.nans, report.ranges[0].report.infinities) == (2, 3)
    assert choices(report)["w"][0] == "E4M3"
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
    with pytest.raises(ValueError, match=r"^a\.npy: no such file; nor can 2 more be studied$") as caught:
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
    with pytest.raises(ValueError, match="scale must be one of None, amax; got 'tensor'"):
        study({}, scales=("tensor",))
    with pytest.raises(ValueError, match="format must be one of"):
        study({}, formats=("e4m9",))
    with pytest.raises(ValueError, match="must each name at least one"):
        study({}, formats=())
    with pytest.raises(ValueError, match="tensors must be None, an array"):
        study(3)


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(count: int) -> int:
        np.save(tmp_path / "w.npy", np.ones(count, np.float32))
        tracemalloc.start()
        study(tmp_path / "w.npy", formats=("E4M3",), roundings=("nearest_even",))
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(CHUNK)
    assert peak(40 * CHUNK) < peak(4 * CHUNK) + 4_000_000  # the files differ by 9.4 MB


def test_the_built_in_study_learns_and_repeats_itself() -> None:
    pytest.importorskip("torch")
    from fpsim.analysis.tensors.capture import capture

    first, again = capture(steps=(1, 6), seed=1), capture(steps=(6, 1), seed=1)
    assert first.losses == again.losses
    assert first.losses[-1] < first.losses[0]
    assert first.tensors == again.tensors
    for a, b in zip(first.tensors, again.tensors, strict=True):
        assert [x.tobytes() for x in a.chunks()] == [x.tobytes() for x in b.chunks()]
    layers = 2 * 4 + 1
    assert len(first.tensors) == layers * 3 * 2
    report = study(list(first.tensors), formats=("E4M3", "BF16"), roundings=("nearest_even",))
    found = choices(report)
    assert len(found) == layers * 3
    assert found["block1.qkv output gradient"] == ("E4M3", "amax")
    gradient = report.errors_of["block1.qkv output gradient"]
    assert all(
        row.report.underflow_rate > 0.9 for row in gradient if (row.report.format, row.scaling) == ("E4M3", "none")
    )
    assert sorted({row.step for row in gradient if row.step}) == [1, 6]


def test_capture_leaves_torch_as_it_was() -> None:
    torch = pytest.importorskip("torch")
    from fpsim.analysis.tensors.capture import capture

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


def test_frames_and_plots() -> None:
    pytest.importorskip("pandas")
    report = study({"w": NORMAL})
    frame = report.to_frame()
    assert len(frame) == 20
    assert {"tensor", "scaling", *METRICS} <= set(frame.columns)
    assert not math.isnan(frame["sqnr_db"].max())
    figure = pytest.importorskip("matplotlib.figure")
    ax = figure.Figure().add_subplot()
    assert report.plot(ax) is ax
    assert report.ranges[0].report.plot(ax) is ax


def test_formats_of_ones_own_are_studied_like_any_other(tmp_path: Path) -> None:
    mine = fp.Format("mine", exponent_bits=3, mantissa_bits=2)
    x = np.random.default_rng(0).standard_normal(1000)
    report = fp.analysis.study({"x": x}, formats=[mine, "p3109_k6p3se"], roundings=["nearest_even"])
    assert [row.report.fmt for row in report.errors if row.scaling == "none"] == [mine, fp.format("p3109_k6p3se")]
    report.save(tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "mine: 6 bits = 1 sign + 3 exponent" in page
