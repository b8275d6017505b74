"""The digest of a run: what it hashes, in which order, and its version."""

from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import pytest

from fpsim.train import record
from fpsim.train.record import next_digest, require_version, state_arrays
from tests.kit.processes import ROOT

ARRAYS = [("b", np.array([[1, -0.0], [2.0**-149, -3]], np.float32)), ("a", np.array([np.inf], np.float32))]


def by_hand(text: str) -> str:
    """Return the digest of `ARRAYS` after a line of text."""
    hashed = hashlib.sha256(text.encode() + b"\n")
    hashed.update(
        b"b (2, 2)\n" + struct.pack("<4f", 1, -0.0, 2.0**-149, -3) + b"a (1,)\n" + struct.pack("<f", math.inf)
    )
    return f"{record.VERSION}-{hashed.hexdigest()[:32]}"


def test_it_hashes_the_last_digest_the_step_the_loss_and_every_array() -> None:
    first = next_digest("", 0, 0.1, ARRAYS)
    assert first == by_hand(" 0 0x1.999999999999ap-4")
    assert next_digest(first, 7, -2.5, ARRAYS) == by_hand(f"{first} 7 -0x1.4000000000000p+1")


def test_every_nan_counts_as_the_same() -> None:
    patterns = np.array([0x7FC00000, 0xFFC00000, 0x7FC12345, 0x7F800001], np.uint32)
    found = {next_digest("", 0, loss, [("x", patterns[i : i + 1].view(np.float32))]) for i in range(4)
             for loss in (math.nan, -math.nan)}  # fmt: skip
    assert len(found) == 1


def test_the_sign_of_zero_a_name_a_shape_and_order_count() -> None:
    x, y = np.array([[0.0, 1.0]], np.float32), np.array([[-0.0, 1.0]], np.float32)
    states = [[("x", x)], [("x", y)], [("y", x)], [("x", x.T)], [("x", x), ("y", y)], [("y", y), ("x", x)]]
    assert len({next_digest("", 0, 1.0, state) for state in states}) == len(states)


def test_a_transposed_view_is_hashed_as_its_elements_in_order() -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert next_digest("", 0, 1.0, [("x", x.T)]) == next_digest("", 0, 1.0, [("x", x.T.copy())])


def test_arrays_come_in_the_order_of_their_names() -> None:
    x = np.zeros(1, np.float32)
    names = [name for name, _ in state_arrays({"weights/b": x, "first_moment/a": x}, {"b": x, "a": x})]
    assert names == ["first_moment/a", "weights/b", "model/a", "model/b"]


def test_digests_of_other_versions_are_refused_with_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    digits = "0" * 32
    require_version(f"{record.VERSION}-{digits}")
    monkeypatch.setattr(record, "VERSION", 3)
    monkeypatch.setattr(record, "CHANGES", {2: "sums of norms (1.1)", 3: "the last bit of exp (1.2)"})
    with pytest.raises(ValueError, match=r"of version 3 .* got one of version 1\. Its bits differ since sums of norms "
                                         r"\(1\.1\); the last bit of exp \(1\.2\)\. Train again"):  # fmt: skip
        require_version(f"1-{digits}")
    with pytest.raises(ValueError, match=r"version 2\. Its bits differ since the last bit of exp \(1\.2\)\."):
        require_version(f"2-{digits}")
    with pytest.raises(ValueError, match=r"got one of version 4, which a later fpsim made\. Install that one, or"):
        require_version(f"4-{digits}")
    for other in ("", "abc", f"x-{digits}", f"1-{digits}0", "1", f"0-{digits}"):
        with pytest.raises(ValueError, match="a digest must be a version, a hyphen and 32 hexadecimal digits; got"):
            require_version(other)


def test_every_version_since_the_first_is_explained_in_the_changelog() -> None:
    changelog = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    assert sorted(record.CHANGES) == list(range(2, record.VERSION + 1))
    assert f"Run.digest {record.VERSION}-..." in changelog
    for change in record.CHANGES.values():
        assert change in changelog
