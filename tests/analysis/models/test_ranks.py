"""Recordings of two processes that train together, merged: those of one process that has the whole batch."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal

torch = pytest.importorskip("torch")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

from tests.analysis.models import ranks  # noqa: E402
from tests.kit.forks import fork  # noqa: E402


@pytest.mark.ranks
def test_ranks_merge_to_the_recording_of_the_whole_batch(tmp_path: Path) -> None:
    with contextlib.ExitStack() as both:
        processes = [both.enter_context(fork(tmp_path / "said", ranks.run, rank, 2, str(tmp_path))) for rank in (0, 1)]
        for process in processes:
            assert process.end() == 0, process.errors
    parts = [fp.analysis.Recording.load(tmp_path / f"rank{rank}.npz") for rank in range(2)]
    merged = parts[0].merge(parts[1])
    whole = ranks.train(*ranks.model_and_data(2), together=False)
    assert merged.steps == whole.steps == (1, 3)
    assert [row.key for row in merged] == [row.key for row in whole]
    for row in merged:
        wanted = whole[row.key]
        assert row.calls == 2 * wanted.calls
        if row.step > 1:  # sums of float32 in another order
            continue
        if row.tensor in ("input", "output", "output_gradient"):  # whose rows the ranks share out
            assert row.range == wanted.range
            assert row.errors[0].count == wanted.errors[0].count  # by a scale of each rank's own
            assert row.errors[1] == wanted.errors[1] or math.isclose(
                row.errors[1].sqnr_db, wanted.errors[1].sqnr_db, rel_tol=1e-12
            )
        elif row.tensor == "weight":  # the same in both
            assert row.range.amax == wanted.range.amax
            assert row.range.count == 2 * wanted.range.count
    assert [one[:2] for one in merged.monitors.updates] == [one[:2] for one in whole.monitors.updates]  # counted once
    assert merged.monitors.updates[:2] == whole.monitors.updates[:2]
    for (step, layer, which), x in merged.operands.items():
        if step > 1:
            continue
        wanted_x = whole.operands[step, layer, which]
        assert_bits_equal(x, wanted_x if which == "weight" else wanted_x[: ranks.ROWS])
