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
from fpsim.gpu.lab.model import LibraryModel, built
from fpsim.schedules import Chain, Lanes
from fpsim.schedules.libraries.cublas_choice import LAYOUTS, RECORDED, Fields
from fpsim.schedules.libraries.cublas_table import NOT_ASKED, SIDES, TOKENS, CublasCall, calls, packed, sides, table
from fpsim.schedules.plan import plan_of
from tests.kit.processes import ROOT
from tests.kit.sweeps import in_turn

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
        assert bool(got.reason) != bool(got.source), where
        assert (got.schedule is None) == (plan is None), where
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
            r"(\w+?)(?:x(\w+))? -> (\w+)( fast)?( TN| NT)?",  # older recordings say TN, cuBLAS's word
            title,
        )
        if match is None or len(set(schedules.values())) > 1 or len(schedules) < 2:
            continue
        m, n, k, call, a, b, out, fast, transposed = match.groups()
        if call == "torch.mm" and (m, n, k) != ("32", "32", "512"):
            continue  # a schedule that fits; which kernel ran was not read
        got = choice(
            "H100", int(m), int(n), int(k), fmt=(a, b or a), out_fmt=out, layout="nt" if transposed else "nn",
            fast_accum=bool(fast),
        )  # fmt: skip
        want = next(iter(schedules.values())).replace("family=66, ", "").replace(", family=66", "")
        assert str(got.schedule) == want, title
        assert "cuBLAS 13.1.0" in got.source
        seen.add((m, n, k, a, b or a, out, bool(fast), bool(transposed)))
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
    assert LAYOUTS == ("nn", "nt", "tn")
    got = choice("H100", 8, 8, 64, layout="nt", fields=Fields(11, 0, 1, 0, 0, 0, 0, 0, 0))
    assert got.reason == "the order of gemmSN kernels is known for layout 'nn' only; got 'nt'."


@in_turn(
    "keywords, message",
    [({"fields": (66, 0, 9, 2, 0, 0, 35, 0, 0)}, r"fields must be Fields, as fp.gpu.hardware.lt_fields returns them;"),
     ({"fields": Fields(66, 0, -1, 2, 0, 0, 35, 0, 0)}, r"fields\.split_k must be an integer >= 0; got -1"),
     ({"fmt": ("bf16",)}, "fmt must name one format, or 2 for a product; got 1"),
     ({"fmt": ("bf16",) * 3}, "fmt must name one format, or 2 for a product; got 3"),
     ({"fast_accum": 1}, "fast_accum must be True or False; got 1")],
)  # fmt: skip
def test_bad_arguments_are_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        choice("H100", 64, 4096, 4096, **keywords)


@in_turn("pair", [("tf32", "tf32"), ("fp32", "fp32"), ("bf16", "fp16"), ("bf16", "e4m3"), ("e5m2", "e5m2"), "e2m1"])
def test_operands_that_no_recorded_kernel_takes_are_declined(pair: Any) -> None:
    for fields in (None, Fields(66, 0, 4, 2, 0, 0, 35, 0, 0), Fields(66, 0, 4, 2, 0, 0, 36, 0, 0)):
        got = choice("H100", 64, 4096, 4096, fmt=pair, fields=fields)
        assert got.schedule is None
        assert got.reason.startswith("choices are known for FP16, BF16, and FP8 except E5M2 by E5M2; got ")


@pytest.mark.parametrize(
    ("chip", "count"), [("H20", 78), ("h20 cuBLAS", 78), ("H100 PCIe", 114), ("NVIDIA H800-PCIe-80GB", 114)]
)
def test_chips_with_fewer_multiprocessors_are_declined(chip: str, count: int) -> None:
    """The heuristic depends on their number."""
    got = choice(chip, 64, 4096, 14336, fmt="bf16", layout="nt")
    assert got.reason.startswith(f"cuBLAS's choices were recorded with 132 multiprocessors, and {chip} has {count}.")
    for same in ("H200", "GH200", "H100", "sm_90", "H100 NVL", "H200 NVL PCIe"):
        assert choice(same, 64, 4096, 14336, fmt="bf16", layout="nt").schedule is not None


def test_a_chip_with_fewer_multiprocessors_has_fewer_outputs_for_an_option_of_gemv() -> None:
    fields = Fields(13, 0, 1, 0, 0, 10, 0, 0, 0)
    for chip, most in (("H100", 8448), ("H100 PCIe", 7296), ("H20", 4992), ("GB300", 9728)):
        assert choice(chip, 1, most, 64, fields=fields).schedule is not None
        assert f"was seen with up to {most} outputs" in choice(chip, 1, most + 1, 64, fields=fields).reason


def test_fast_accumulation_is_of_fp8_alone() -> None:
    shape = ("H100", 64, 4096, 14336)
    assert choice(*shape, fmt="bf16", fast_accum=True) == choice(*shape, fmt="bf16")
    ada = choice("RTX 4090", 1, 8, 64, fields=Fields(13, 0, 1, 0, 0, 10, 0, 0, 0))
    assert ada.reason.startswith("family must be one of those known on ada")


def test_results_of_an_h200_are_those_of_the_choices() -> None:
    """Compare products of cublasLtMatmul, whose operands are drawn again from their seeds, with the emulator."""
    with np.load(ROOT / "tests/data/cublaslt_h200.npz") as recording:
        products, held = json.loads(bytes(recording["meta"]))["products"], recording["words"]
    start, counts = 0, Counter[str]()
    for row in products:
        (m, n, k), out = row["shape"], fp.format(row["out"])
        words = held[start : start + m * n * out.storage.itemsize].view(out.storage).reshape(m, n)
        start += words.nbytes
        fields, pair = Fields(*row["fields"]), tuple(row["pair"])
        got = choice("H100", m, n, k, fmt=pair, layout=row["layout"], fast_accum=row["fast"], fields=fields)
        if got.schedule is None:
            assert (fields.algo, row["layout"]) == (11, "nt")
            counts["declined"] += 1
            continue
        a, b = fp.testing.product_operands("normal", (m, n, k), pair, row["seed"])
        name = {"fp16": "f16"}.get(pair[0], pair[0])
        result = fp.matmul(
            a, b, accumulate=f"hopper_{name}_f32", schedule=got.schedule, strict=False,
            out_fmt=None if row["out"] == "fp32" else out,
        )  # fmt: skip
        assert np.array_equal(np.ascontiguousarray(result).view(out.storage), words), row
        counts["split"] += fields.split_k > 1
        looked_up = choice("H100", m, n, k, fmt=pair, out_fmt=out, layout=row["layout"], fast_accum=row["fast"])
        if looked_up.schedule is not None and m in TOKENS and n in SIDES and k in SIDES:
            assert str(looked_up.schedule) == str(got.schedule)
            assert looked_up.workspace == 4 * m * n * fields.split_k  # nvjet's, whose slices' sums are float32
            counts["in the table"] += 1
    assert start == held.size
    assert counts == {"declined": 9, "split": 115, "in the table": 16}


def test_float32_products_of_an_h200_are_those_of_the_schedules() -> None:
    with np.load(ROOT / "tests/data/cublaslt_h200.npz") as recording:
        products, words = json.loads(bytes(recording["meta"]))["float32"], recording["float32"]
    start, counts = 0, Counter[str]()
    for row in products:
        m, n, k = row["shape"]
        if row["operands"] == "tf32":
            a, b = fp.testing.product_operands("normal", (m, n, k), ("tf32", "tf32"), row["seed"])
        else:
            rng = np.random.default_rng(row["seed"])
            a, b = (rng.standard_normal(shape, np.float32).view(np.uint32) for shape in ((m, k), (k, n)))
        accumulate: Any = row["unit"]
        if accumulate == "fp32":
            accumulate, a, b = fp.FusedMultiplyAdd("fp32"), a.view(np.float32), b.view(np.float32)
        got = fp.matmul(a, b, accumulate=accumulate, schedule=built(LibraryModel(row["schedule"])))
        assert np.array_equal(np.ascontiguousarray(got).view(np.uint32).ravel(), words[start : start + m * n]), row
        start += m * n
        counts[row["unit"]] += 1
    assert start == words.size
    assert counts == {"fp32": 54, "hopper_tf32_f32": 67}


def test_the_table_has_kernels_of_layers() -> None:
    recorded = table()
    assert recorded.numbers.shape == (len(calls()), len(TOKENS), len(sides()))
    present = recorded.numbers != NOT_ASKED
    for call, has, numbers in zip(calls(), present, recorded.numbers, strict=True):
        kernels = recorded.kernels[numbers[has]]
        split = float((kernels[:, 1] > 1).mean())
        assert has.all() == (call.a not in ("e4m3", "e5m2")), call
        # forward passes with few tokens split K; weight gradients have enough results without that
        assert (0.19 < split < 0.29) if call.tokens == "m" else split < 0.02, (call, split)
        if call.a in ("e4m3", "e5m2"):
            assert set(kernels[:, 0]) == {66}


def test_workspace_holds_the_sums_of_slices_that_are_not_added_in_the_result() -> None:
    recorded, needed = table(), []
    in_place = choice("H100", 64, 50257, 4096, fmt="bf16", layout="nt")
    assert (str(in_place.schedule), in_place.workspace) == (
        "cublas('sm_90', family=24, split_k=2, merge=1, stages=0)",
        0,
    )
    of_output = choice("H100", 64, 4096, 50257, fmt="bf16", layout="nn")
    assert "split_k=8, merge=4" in str(of_output.schedule)
    assert of_output.workspace == 2 * 64 * 4096 * 8
    same = Fields(24, 0, 8, 4, 0, 0, 0, 0, 0)
    assert choice("H100", 64, 4096, 50257, fmt="bf16", out_fmt="fp32", fields=same).workspace == 4 * 64 * 4096 * 8
    # the choices were asked for with 32 MiB
    call = calls().index(CublasCall("bf16", "bf16", "bf16", "nt", False, "m"))
    for (count, pair), number in np.ndenumerate(recorded.numbers[call]):
        if recorded.kernels[number, 0] == 24 and recorded.kernels[number, 1] > 1:
            got = choice("H100", TOKENS[count], *sides()[pair], fmt="bf16", layout="nt")
            needed.append(got.workspace)
    assert len(needed) > 1000
    assert max(needed) == 32 << 20


def test_a_table_is_packed_without_fields_that_do_not_matter() -> None:
    def fields(**values: int) -> list[int]:
        return list(Fields(66, 5, 1, 2, 1, 3, 35, 0, 7)._replace(**values))

    answers = np.array([[[fields(), fields(tile=9), fields(split_k=2), [-1] * 9]]], np.int32)
    small = packed(answers, "a GPU")
    assert small.numbers.tolist() == [[[1, 1, 2, NOT_ASKED]]]
    assert small.kernels.tolist()[1:] == [[66, 1, 0, 0, 35], [66, 2, 2, 0, 35]]


def test_tail_loss_is_part_of_the_choice() -> None:
    got = choice("H100", 1, 8, 11528, fields=Fields(66, 0, 9, 2, 0, 0, 35, 0, 0))
    assert got.schedule is not None
    assert plan_of(got.schedule, fp.unit("hopper_f16_f32"), 11528).lost.terms == 8


def test_fields_are_integers_of_any_kind_and_nothing_else() -> None:
    loose: Any = fp.schedules.cublas
    same = loose(family=np.int64(13), option=np.int32(10), split_k=np.int64(2))
    assert (same, same.name) == (
        loose(family=13, option=10, split_k=2), "cublas('sm_90', family=13, split_k=2, option=10)",
    )  # fmt: skip
    for field, family in (("option", "gemv"), ("option", "gemm_sn"), ("merge", "cutlass"), ("stages", "cutlass")):
        for value in ([2], 2.0, np.array([2, 2])):
            with pytest.raises(ValueError, match=rf"^{field}.* must be "):
                loose(family=family, **{field: value})
