"""cublas_choice gives the published plan of every algorithm, the recorded choice of a call, and declines the rest."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.schedules import Chain, Lanes
from fpsim.schedules.libraries.cublas_choice import LAYOUTS, RECORDED, Fields
from fpsim.schedules.plan import plan_of
from tests.kit.processes import ROOT

choice = fp.schedules.cublas_choice
MERGES = {"float32": 0, "output": 2, "in_place": 3}  # the numbers of the published plans
UNITS = {"sm_90": "hopper", "sm_100": "blackwell", "sm_103": "blackwell"}
PLANS = json.loads(gzip.decompress((ROOT / "tests/data/cublas_plans.json.gz").read_bytes()))


def fields_of(config: list[int]) -> Fields:
    algo, split_k, reduction, option, stages = config
    return Fields(algo, 0, split_k, reduction, 0, option, stages, 0, 0)


def chunk_of(schedule: Any, chip: str, kind: str, k: int) -> int:
    """Return the terms of the first slice, by the rule that leaves no term out."""
    whole = schedule
    if schedule.family == "nvjet":
        whole = fp.schedules.cublas(chip, split_k=schedule.slicing.count, tail_loss=False)
    name = "e4m3" if kind == "fp8" else "f16"
    return plan_of(whole, fp.unit(f"{UNITS[chip]}_{name}_f32"), k).slices[0].terms


def check(schedule: Any, chip: str, kind: str, k: int, plan: dict[str, Any]) -> None:
    """Assert that a schedule adds as a published plan does."""
    mode, sums = plan["mode"], schedule.sums
    if mode in ("plain", "split", "split_blocks"):
        assert isinstance(sums, Chain)
        assert chunk_of(schedule, chip, kind, k) == plan.get("k_chunk", k)
        assert (sums.interval if kind == "fp8" else 0) == plan.get("block_k", 0)
    elif mode in ("k_per_dot", "splitk_groups"):
        assert isinstance(sums, Chain)
        assert sums.step == plan["k_per_dot"]
        if mode == "k_per_dot":
            assert (schedule.slicing.count, k % sums.residue) == (1, plan["leading_group_k"])
        else:
            assert (chunk_of(schedule, chip, kind, k), sums.residue) == (plan["k_chunk"], plan["block_k"])
            assert MERGES[schedule.slicing.merge] == plan["merge_scheme"]
    else:
        assert isinstance(sums, Lanes)
        if mode == "gemmsn":
            count, block = plan["simt"]
            assert (sums.count, sums.chunk) == (count, block if count > 1 else 0)
        elif mode == "gemv13":
            (run, lanes, chunk, butterfly), slices = plan["gemv"]
            assert (sums.run, sums.count, schedule.slicing.count) == (run, lanes, slices)
            assert (sums.chunk, sums.merge == "butterfly") == (chunk * max(run, 1), butterfly)
        elif mode == "gemv_cslice":
            assert [sums.count, sums.chunk] == plan["gemv"]
        else:
            assert (mode, sums.blocks) == ("gemv14", plan["gemv"][0])


@pytest.mark.parametrize("chip", PLANS)
def test_every_published_plan_is_the_schedule_of_its_fields(chip: str) -> None:
    counts: Counter[str] = Counter()
    for m, n, k, kind, config, plan in PLANS[chip]:
        if config is None:
            continue
        got = choice(chip, m, n, k, fmt="e4m3" if kind == "fp8" else kind, fields=fields_of(config))
        where = (m, n, k, kind, config, plan, got)
        if config[0] == 66 and (config[4] == 36) != (kind == "fp8"):  # constructed: cuBLAS returns no such pair
            assert "was seen with STAGES_ID" in got.reason, where
            counts["constructed"] += 1
            continue
        assert (got.schedule is None) == (plan is None), where
        assert bool(got.reason) != bool(got.source), where
        if plan is None:
            counts["declined"] += 1
            continue
        try:
            check(got.schedule, chip, kind, k, plan)
        except AssertionError as difference:
            difference.add_note(str(where))
            raise
        counts[plan["mode"]] += 1
    assert counts["declined"] > 200
    assert len(counts) == (11 if chip == "sm_90" else 10), counts


def test_recorded_choices_are_those_of_the_recordings() -> None:
    entries: dict[str, dict[str, str]] = {}
    for name in ("h100-2026-11-22", "h200-2026-11-26"):
        with np.load(ROOT / f"tests/gpu/recordings/{name}.npz") as recording:
            about = json.loads(bytes(recording["meta"]))
        assert about["about"]["cublaslt"] == "13.1.0"
        for entry in about["entries"]:
            assert entry["differing"] == 0
            entries.setdefault(entry["name"].rpartition(",")[0], {})[name] = entry["model"]["schedule"]
    seen = set()
    for title, schedules in entries.items():
        match = re.fullmatch(
            r"(?:cublaslt|halves): (\d+) x (\d+) x (\d+) (cublasLtMatmul|torch\.mm) "
            r"(\w+?)(?:x(\w+))? -> (\w+)( fast)?( TN)?",
            title,
        )
        if match is None or len(set(schedules.values())) > 1 or len(schedules) < 2:
            continue
        m, n, k, call, a, b, out, fast, tn = match.groups()
        if call == "torch.mm" and (m, n, k) != ("32", "32", "512"):
            continue  # a schedule that fits; which kernel ran was not read
        got = choice(
            "H100", int(m), int(n), int(k), fmt=(a, b or a), out_fmt=out, layout="tn" if tn else "nn",
            fast_accum=bool(fast),
        )  # fmt: skip
        want = next(iter(schedules.values())).replace("family=66, ", "").replace(", family=66", "")
        assert str(got.schedule) == want, title
        assert "cuBLAS 13.1.0" in got.source
        seen.add((m, n, k, a, b or a, out, bool(fast), bool(tn)))
    assert len(seen) == len(RECORDED)


def test_what_was_not_recorded_is_declined() -> None:
    for shape, chip in (((32, 32, 513), "H100"), ((32, 32, 512), "sm_100")):
        got = choice(chip, *shape)
        assert got.schedule is None
        assert "was not recorded. Pass fields=" in got.reason
    with pytest.raises(ValueError, match="layout must be one of"):
        choice("H100", 1, 1, 1, layout="tt")
    with pytest.raises(ValueError, match="m must be an integer >= 1; got 0"):
        choice("H100", 0, 1, 1)
    assert LAYOUTS == ("nn", "tn")


def test_tail_loss_is_part_of_the_choice() -> None:
    got = choice("H100", 1, 8, 11528, fields=Fields(66, 0, 9, 2, 0, 0, 35, 0, 0))
    assert got.schedule is not None
    assert plan_of(got.schedule, fp.unit("hopper_f16_f32"), 11528).lost.terms == 8
