"""fp.gpu.validate without a GPU: a hardware that is the emulator itself, with differences planted where it matters."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.core.elementary.float32 import FUNCTIONS
from fpsim.gpu.experiments.product_cases import PRODUCTS
from fpsim.gpu.experiments.twins import TWINS
from fpsim.gpu.experiments.validate import PARTS, run_part, validate
from fpsim.gpu.lab.judge import ProductCase, judged
from fpsim.gpu.lab.lab import Lab, about_of, laboratory, sets_for, unit_name
from fpsim.gpu.lab.model import LibraryModel, ProductProblem, predict
from fpsim.gpu.lab.recording import replay
from fpsim.gpu.lab.report import ValidationReport, difference
from fpsim.matrix_units.catalogue import float_units, integer_units
from fpsim.schedules.libraries.cublas_choice import Fields
from tests.gpu.experiments.fake_hardware import FakeGpu

Words = npt.NDArray[Any]


def last_bit(name: str, found: Words) -> Words:
    """Return one element with another last bit."""
    changed = found.copy()
    changed.reshape(-1)[5] ^= found.dtype.type(1)
    return changed


def case_of(part: str, gpu: FakeGpu, number: int = 0) -> ProductCase:
    return list(PRODUCTS[part](Lab(gpu, small=True)))[number]


# ---- whole validations


def test_an_equal_gpu_gives_an_equal_report() -> None:
    report = validate(parts=["tensorwise", "blockwise"], hardware=FakeGpu(), small=True, minutes=5)
    assert report.all_equal, str(report)
    assert {row.part for row in report.rows} == {"tensorwise", "blockwise"}
    assert all(row.expected for row in report.rows)
    assert report.about["gpu"] == "the emulator"
    assert report.about["fpsim"]
    assert report.about["date"].endswith("UTC")


def test_a_planted_difference_is_found_and_placed() -> None:
    case = case_of("tensorwise", FakeGpu(plant=last_bit))
    (row,) = judged(case).rows
    assert row.differing == 1
    assert not row.equal
    assert row.first.startswith("(0, 5): hardware 0x")
    text = str(ValidationReport((row,)))
    assert "DIFFERS tensorwise" in text
    assert text.splitlines()[-1].startswith("0 of 1 comparisons equal")


@pytest.mark.parametrize(
    ("part", "recipe", "model"),
    [
        ("tensorwise", "tensor", LibraryModel("cublas('sm_90', split_k=2)")),
        ("tensorwise", "tensor", LibraryModel("cublas('sm_90', fast_accum=True)")),
        ("tensorwise", "tensor", LibraryModel("cutlass_2xacc(64)")),
        ("rowwise", "row", LibraryModel("torch_rowwise()")),
        ("rowwise", "row", LibraryModel("cublas('sm_90')", scale_order="b_first")),
        ("blockwise", "1x128_128x128", LibraryModel("deepgemm('1d2d')")),
        ("blockwise", "1x128_128x128", LibraryModel("cublas('sm_90', family='block_scaled')", scale_order="b_first")),
    ],
)
def test_the_variant_that_fits_is_named(part: str, recipe: str, model: LibraryModel) -> None:
    gpu = FakeGpu(models={recipe: model})
    case = case_of(part, gpu)
    outputs = [predict(problem, model) for problem in case.problems]
    judgement = judged(case)
    assert all(row.equal for row in judgement.rows), judgement.rows
    assert judgement.best is not None
    for problem, output in zip(case.problems, outputs, strict=True):
        assert np.array_equal(predict(problem, judgement.best), output)
    named = judgement.best == model or sum(row.rivals for row in judgement.rows) > 0
    assert named, f"{judgement.best} in the place of {model}, and no rivals"


def test_scales_that_are_no_powers_of_two_tell_their_orders_apart() -> None:
    orders = [LibraryModel("cublas('sm_90', family='block_scaled')", scale_order=order)
              for order in ("product", "a_first", "b_first")]  # fmt: skip
    problem = case_of("blockwise", FakeGpu()).problems[0]
    words = [predict(problem, model) for model in orders]
    assert all((words[i] != words[j]).any() for i, j in ((0, 1), (0, 2), (1, 2)))


def test_splits_are_expected_of_a_heuristic_and_other_promotions_are_not() -> None:
    split = judged(
        case_of("tensorwise", FakeGpu(models={"tensor": LibraryModel("cublas('sm_90', split_k=3, fast_accum=True)")}))
    ).rows[0]
    other = judged(case_of("tensorwise", FakeGpu(models={"tensor": LibraryModel("cutlass_2xacc(64)")}))).rows[0]
    assert split.expected
    assert other.equal
    assert not other.expected
    assert "(not expected)" in str(ValidationReport((other,)))


def test_a_predicted_model_that_cannot_be_computed_is_not_replaced_by_the_next() -> None:
    case = case_of("tensorwise", FakeGpu())
    models = [LibraryModel("FLAT", unit="no_unit"), *case.models(None)]
    row = judged(case._replace(models=lambda _: models)).rows[0]
    assert (row.equal, row.expected) == (True, False)


def test_what_nobody_has_measured_comes_first() -> None:
    most = {"blockwise": None, "tensorwise": 1, "halves": 8, "cublaslt": 8}
    cases = {part: list(islice(PRODUCTS[part](Lab(FakeGpu())), count)) for part, count in most.items()}
    assert list(PRODUCTS)[:2] == ["blockwise", "tensorwise"]
    powers = ["powers of two" in case.name for case in cases["blockwise"]]
    assert powers == sorted(powers)
    assert "fast" in cases["tensorwise"][0].name
    assert all(case.name.endswith("NT") for part in ("halves", "cublaslt") for case in cases[part])


class Other(FakeGpu):
    """The same of another compute capability."""

    def __init__(self, capability: str) -> None:
        super().__init__()
        self.capability = capability

    def about(self) -> dict[str, str]:
        return super().about() | {"capability": self.capability}


@pytest.mark.parametrize("capability", ["8.6", "12.0"])
def test_a_gpu_without_models_is_not_judged_by_those_of_another(capability: str) -> None:
    report = validate(parts=["rowwise", "halves"], hardware=Other(capability), small=True)
    assert report.about["models"] == f"none of matrix units for compute capability {capability}"
    assert [row.part for row in report.rows] == ["rowwise", "halves"]
    assert all("no model is known of the matrix units of this GPU" in row.error for row in report.rows)
    assert not report.all_equal
    casts = validate(parts=["casts"], hardware=Other(capability), small=True)
    assert not any("no model" in row.error for row in casts.rows)


@pytest.mark.parametrize(("capability", "arch"), [("7.0", "volta"), ("7.5", "turing"), ("8.0", "ampere")])
def test_a_gpu_without_known_schedules_is_judged_by_its_units(capability: str, arch: str) -> None:
    gpu = Other(capability)
    lab = laboratory(gpu, gpu.about(), small=True)
    assert about_of(gpu)["models"] == f"units of {arch}, without schedules of cuBLAS, which are not known for it"
    assert {problem.unit for problem in next(iter(PRODUCTS["halves"](lab))).problems} == {f"{arch}_f16_f32"}
    assert "models" not in about_of(FakeGpu())


@pytest.mark.parametrize("out", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("kind", ["bf16", "fp16", "e4m3"])
def test_inputs_of_every_size_tell_the_orders_of_sums_apart(kind: str, out: str) -> None:
    """Found in a trial: ordinary data, rounded to BF16, gave the same bits for one chain and for two or four slices."""
    unit = unit_name("hopper", (kind, kind))
    models = [LibraryModel("FLAT"), *(LibraryModel("FLAT", slices=slices, grain=32) for slices in (2, 4))]
    for name in {sets_for(size)[0] for size in ((32, 32, 512), (4096, 4096, 1024), (1 << 13, 1 << 13, 4096))}:
        a, b = fp.testing.product_operands(name, (32, 32, 512), (kind, kind))
        words = [predict(ProductProblem(name, unit, a, b, out=out), model) for model in models]
        assert all((words[i] != words[j]).any() for i, j in ((0, 1), (0, 2), (1, 2)))


def test_a_verdict_says_how_many_other_models_its_inputs_exclude() -> None:
    rows = judged(case_of("tensorwise", FakeGpu())).rows
    assert all(row.equal and row.others > 5 for row in rows)
    assert min(row.rivals for row in rows) < rows[0].others
    excluded = rows[0].others - min(row.rivals for row in rows)
    assert f"{excluded} of {rows[0].others} other models differ for these inputs" in str(ValidationReport(tuple(rows)))


# ---- failures and time


def test_one_failing_call_loses_nothing_else() -> None:
    report = validate(parts=["tensorwise", "blockwise"], hardware=FakeGpu(fails=("tensor",)), small=True, minutes=5)
    by_part = {part: [row for row in report.rows if row.part == part] for part in ("tensorwise", "blockwise")}
    assert all("CUDA error: tensor was told to fail" in row.error for row in by_part["tensorwise"])
    assert all(row.equal for row in by_part["blockwise"])
    assert not report.all_equal
    assert "ERROR   tensorwise" in str(report)


def test_a_part_that_breaks_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(lab: Lab) -> Any:
        raise ImportError("no such library")
        yield

    monkeypatch.setitem(PARTS, "tensorwise", broken)
    report = validate(parts=["tensorwise"], hardware=FakeGpu(), small=True)
    assert [row.error for row in report.rows] == ["ImportError: no such library"]


def test_a_part_without_time_says_how_much_was_left_out() -> None:
    rows = run_part("tensorwise", Lab(FakeGpu(), small=True), time.monotonic() - 1)
    assert rows[0].compared > 0, "the first comparison is always made"
    assert "no time was left" in rows[-1].error
    assert rows[-1].what == f"{len(list(PRODUCTS['tensorwise'](Lab(FakeGpu(), small=True)))) - 1} more"


def test_fields_that_nobody_decoded_are_searched() -> None:
    class Strange(FakeGpu):
        def lt_matmul(self, *arguments: Any, **options: Any) -> tuple[Words, Fields]:
            found, _ = super().lt_matmul(*arguments, **options)
            return found, Fields(41, 0, 2, 2, 0, 0, 35, 0, 0)

    lab = Lab(Strange(), small=True)
    case = next(case for case in PRODUCTS["cublaslt"](lab) if "e4m3xe4m3" in case.name)
    (row,) = judged(case).rows
    assert row.equal
    assert "algo 41" in row.note


def test_twins_are_compared_with_the_cpu() -> None:
    parts = list(TWINS)
    report = validate(parts=parts, hardware=FakeGpu(), small=True, minutes=5)
    assert report.all_equal, str(report)
    words = {row.what for row in report.rows}
    assert {f"fp.gpu.dot_add {unit.name}" for unit in float_units() if unit.scale is None} <= words
    assert {f"fp.gpu.dot_add {unit.name}" for unit in integer_units()} <= words
    assert {f"fp.gpu.decode {fp.format(name)}" for name in fp.formats.names() if fp.format(name).bits <= 16} <= words
    assert {f"fp.gpu.{name} FP32" for name in (*FUNCTIONS, "softmax", "layer_norm")} <= words
    assert {f"fp.gpu.matmul {unit.name}" for unit in integer_units()} <= words
    for part in parts:
        planted = run_part(part, Lab(FakeGpu(plant=last_bit), small=True), time.monotonic() + 60)
        assert all(row.differing or row.other_nans for row in planted if row.compared > 5), part


def test_wrong_shapes_and_unknown_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="words to compare must have one shape"):
        difference(np.zeros(3, np.uint8), np.zeros(4, np.uint8), "e4m3")
    with pytest.raises(ValueError, match="part must be one of blockwise, tensorwise"):
        validate(parts=["tensor"], hardware=FakeGpu())
    with pytest.raises(ValueError, match="hardware must be the name of a module"):
        validate(hardware=FakeGpu(), isolated=True)


def test_what_no_model_gives_is_kept(tmp_path: Path) -> None:
    gpu = FakeGpu(plant=last_bit)
    validate(tmp_path, parts=["blockwise"], hardware=gpu, small=True)
    files = sorted((tmp_path / "unfit").glob("*.npz"))
    assert [file.stem for file in files] == ["blockwise-0", "blockwise-1", "blockwise-2"]
    assert [entry.differing for entry in replay(files[0])] == [1]
    validate(tmp_path / "fine", parts=["blockwise"], hardware=FakeGpu(), small=True)
    assert not (tmp_path / "fine" / "unfit").exists()
