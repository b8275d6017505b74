"""Several processes of torch beside one: the orders of additions that explain a mean, and steps by torch's own ways."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.analysis.systems.processes.orders import explained, orders_of
from fpsim.analysis.systems.processes.report import ProcessesReport, row_of
from fpsim.testing import assert_bits_equal

f32 = np.float32


def brought(ranks: int, elements: int = 400) -> Any:
    rng = np.random.default_rng(ranks)
    return (rng.standard_normal((ranks, elements)) * 2.0 ** rng.integers(-6, 6, (ranks, elements))).astype(f32)


def ring(x: Any, start: int, step: int) -> Any:
    """The sum around a ring, one addition at a time."""
    ranks = len(x)
    total = x[start].copy()
    for i in range(1, ranks):
        for j in range(x.shape[1]):
            total[j] = f32(total[j] + x[(start + step * i) % ranks][j])
    return total


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_orders_are_those_of_plain_sums(ranks: int) -> None:
    x = brought(ranks, 60)
    found = {name: order(x) for name, order in orders_of(ranks).items()}
    wanted = [ring(x, start, step) for start in range(ranks) for step in (1, -1)]
    for want in wanted:
        assert any(np.array_equal(got.view(np.uint32), want.view(np.uint32)) for got in found.values())
    if ranks == 8:
        pairs = [
            [(x[i] + x[i + 1]).astype(f32) for i in range(0, 8, 2)],
            [(x[i] + x[i + 4]).astype(f32) for i in range(4)],
        ]
        first = ((pairs[0][0] + pairs[0][1]) + (pairs[0][2] + pairs[0][3])).astype(f32)
        second = ((pairs[1][0] + pairs[1][2]) + (pairs[1][1] + pairs[1][3])).astype(f32)
        assert_bits_equal(found["pairs of neighbours"], first)
        assert_bits_equal(found["pairs half the ranks apart"], second)


def test_a_ring_with_chunks_is_explained() -> None:
    x = brought(4)
    chunks = [ring(x[:, 100 * i : 100 * i + 100], (i + 1) % 4, -1) for i in range(4)]
    orders = explained(x, np.concatenate(chunks) / f32(4))
    assert (orders.unexplained, len(orders.orders)) == (0, 4)
    assert str(orders) == "added around a ring, from another rank in each part of the array"


def test_where_the_division_is_shows() -> None:
    x = brought(3)
    total = ring(x, 0, 1)
    assert explained(x, total / f32(3)).divided == "after"
    before = explained(x, ring(x / f32(3), 0, 1))
    assert (before.divided, before.unexplained) == ("before", 0)
    inverse = explained(x, ring(x * f32(1 / 3), 0, 1))
    assert (inverse.divided, str(inverse)) == ("multiplied", "multiplied by 1/N first, added in the order of the ranks")


def test_bf16_is_rounded_after_every_addition() -> None:
    x = brought(4)
    total = fp.quantize(x[0], "bf16")
    for part in x[1:]:
        total = fp.quantize(total + fp.quantize(part, "bf16"), "bf16")
    assert explained(x, fp.quantize(total / f32(4), "bf16"), fp.BF16).unexplained == 0


def test_what_no_order_gives_is_counted() -> None:
    x = brought(4)
    mean = ring(x, 0, 1) / f32(4)
    mean[7] = np.nextafter(mean[7], f32(np.inf))
    mean[9] *= 2
    orders = explained(x, mean)
    assert orders.unexplained == 2
    assert str(orders).endswith("; 2 elements in no order that was tried")


def test_a_row_counts_bits_and_not_payloads_of_nan() -> None:
    nans = np.array([0x7FC00000, 0xFFC00001], np.uint32).view(f32)
    assert row_of("ddp", 2, "weights", nans[:1], nans[1:], "").differing == 0
    row = row_of("ddp", 2, "weights", np.array([0, 1, 4], f32), np.array([-0.0, 1, 8], f32), "")
    assert (row.differing, row.largest) == (2, 0.5)


@pytest.mark.ranks
def test_torchs_ways_are_compared_on_two_and_four_processes() -> None:
    pytest.importorskip("torch")
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this torch connects no processes")
    report = fp.analysis.processes(["ddp", "fsdp2_bf16"], ranks=2)
    more = fp.analysis.processes(["zero1", "fsdp2"], ranks=4)
    rows = report.rows + more.rows
    assert [(row.way, row.ranks, row.tensor) for row in rows] == [
        (way, ranks, tensor)
        for way, ranks in (("ddp", 2), ("fsdp2_bf16", 2), ("zero1", 4), ("fsdp2", 4))
        for tensor in ("gradients", "weights")
    ]
    for row in rows:  # which order torch adds in is its own affair; that a difference is small and explained is not
        assert row.differing == 0 or row.largest < (1e-2 if row.way == "fsdp2_bf16" else 1e-6), row
        assert row.reason
    assert rows[2].differing > 0, "gradients that travel in BF16 differ from float32's"
    assert isinstance(report, ProcessesReport)
    assert len(str(report).splitlines()) == 1 + len(report.rows)
    assert list(report.to_frame().columns)[:3] == ["way", "ranks", "tensor"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fp.analysis.processes(["dpp"]), "way must be one of ddp, zero1, fsdp2, fsdp2_bf16; got 'dpp'"),
        (lambda: fp.analysis.processes(ranks=1), "ranks must be an integer >= 2; got 1"),
        (lambda: fp.analysis.processes(ranks=64), "ranks must be 2 to 16 processes of this machine; got 64"),
        (lambda: fp.analysis.processes(ranks=()), "ranks must name a number of processes"),
        (lambda: fp.analysis.processes("ddpp"), "way must be one of .* got 'ddpp'. Did you mean 'ddp'"),
        (lambda: fp.analysis.processes(backend="ncll"), "backend must be one of gloo, nccl; got 'ncll'"),
        (lambda: fp.analysis.processes(seconds=float("nan")), "seconds must be a finite number > 0; got nan"),
        (lambda: fp.analysis.processes(backend="nccl", ranks=16), "'nccl' needs a GPU for each of the 16 processes"),
    ],
)
def test_bad_input_is_refused(call: Any, words: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("ways", [0, []])
def test_ways_are_names(ways: Any) -> None:
    with pytest.raises(TypeError, match="ways must be one or more of ddp, zero1, fsdp2, fsdp2_bf16; got "):
        fp.analysis.processes(ways)


def test_without_a_gpu_nccl_is_refused_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    from fpsim.analysis.systems.processes import ways

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert ways.main(["--backend", "nccl"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "backend 'nccl' needs a GPU for each of the 2 processes on this machine; it has 0. Take 'gloo', or fewer "
        "processes.\n"
    )
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ways.main(["--backend", "nccl"]) == 2
    assert not capsys.readouterr().err  # the first process alone says it


@pytest.mark.skipif(sys.platform == "win32", reason="the script is one of a Unix shell")
def test_processes_that_take_too_long_are_stopped_with_those_they_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    script, stopped = tmp_path / "torchrun", tmp_path / "stopped"
    lines = ["#!/bin/sh", "sleep 600 &", f"trap 'kill $!; echo > {stopped}; exit 143' TERM", "wait"]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(RuntimeError, match="2 processes took longer than 2 s"):
        fp.analysis.processes("ddp", ranks=2, backend="gloo", seconds=2)
    assert stopped.exists(), "torchrun was asked to end, and not killed"
