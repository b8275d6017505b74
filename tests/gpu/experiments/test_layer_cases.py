"""Products with the shapes of layers, and cuBLASLt's choices for them, with the emulator in the place of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fpsim.gpu.device.device import GpuError
from fpsim.gpu.experiments import choices
from fpsim.gpu.experiments.layer_cases import FP8_WORKSPACE
from fpsim.gpu.experiments.validate import validate
from fpsim.schedules.libraries.cublas_choice import Fields
from fpsim.schedules.libraries.cublas_table import NOT_ASKED, CublasCall, CublasTable
from tests.gpu.experiments import fake_hardware
from tests.gpu.experiments.fake_hardware import FakeGpu


def test_products_of_layers_are_those_of_the_kernels_that_the_heuristic_names() -> None:
    report = validate(parts=["layers"], hardware=FakeGpu(), small=True)
    assert report.all_equal
    assert len(report.rows) == 8
    assert {row.model for row in report.rows} == {
        "cublas('sm_90', family=66)", "cublas('sm_90', family=66, fast_accum=True)"
    }  # fmt: skip


def test_another_bit_of_a_layer_is_reported() -> None:
    def last(name: str, words: Any) -> Any:
        changed = words.copy()
        changed.reshape(-1)[0] ^= name == "matmul"
        return changed

    class Both(FakeGpu):
        """A GPU whose library differs from its emulated kernels."""

        def twin(self, name: str, *arrays: Any, **options: Any) -> Any:
            return FakeGpu().twin(name, *arrays, **options)

    report = validate(parts=["layers"], hardware=Both(plant=last), small=True)
    assert [row.differing for row in report.rows] == [1] * 6 + [0, 0]


def test_an_order_that_is_not_known_is_an_error_of_the_row() -> None:
    class Another(FakeGpu):
        """A GPU whose heuristic answers an unknown algorithm for FP8, and checks the workspace."""

        def lt_fields(self, m: int, n: int, k: int, pair: tuple[str, str], **options: Any) -> Fields:
            fp8 = pair[0] == "e4m3"
            assert options["workspace"] == (FP8_WORKSPACE if fp8 else 32 << 20)
            return super().lt_fields(m, n, k, pair, **options)._replace(algo=99 if fp8 else 66)

    report = validate(parts=["layers"], hardware=Another(), small=True)
    errors = [row.error for row in report.rows if row.error]
    assert len(errors) == 2
    assert all("the order of algorithm 99 is not known" in error for error in errors)


def test_choices_are_asked_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(FakeGpu):
        """A GPU whose heuristic knows no kernel for K = 7, and splits K = 96."""

        def lt_fields(self, m: int, n: int, k: int, pair: tuple[str, str], **options: Any) -> Fields:
            if k == 7:
                raise GpuError("no algorithm")
            return super().lt_fields(m, n, k, pair, workspace=0, **options)._replace(split_k=2 if k == 96 else 1)

    forward, backward = (
        CublasCall("fp16", "fp16", "fp16", layout, False, axis) for layout, axis in (("nn", "m"), ("tn", "k"))
    )
    tokens, pairs = (7, 96), [(64, 96), (96, 64)]
    answers = choices.kernels_of(Asked(), forward, tokens, pairs)
    assert answers.shape == (2, 2, len(Fields._fields))
    assert answers[..., 2].tolist() == [[2, 1], [2, 1]]
    assert choices.kernels_of(Asked(), backward, tokens, pairs)[..., 2].tolist() == [[-1, -1], [2, 2]]
    lost = GpuError("the GPU failed.")

    class Lost(Asked):
        """A GPU that fails after the first answer."""

        def lt_fields(self, m: int, *arguments: Any, **options: Any) -> Fields:
            if m == 96:
                raise lost
            return super().lt_fields(m, *arguments, **options)

    with pytest.raises(GpuError, match="the GPU failed"):
        choices.kernels_of(Lost(), forward, tokens, pairs)
    with pytest.raises(GpuError, match="cuBLASLt answers for no shape of"):
        choices.kernels_of(Asked(), backward, (7,), [(64, 64)])

    numbers = np.array([[[0, 1], [2, NOT_ASKED]], [[0, 0], [1, NOT_ASKED]]], np.uint16)
    table = CublasTable("a GPU", np.ones((4, 5), np.int32), numbers)
    monkeypatch.setattr(choices, "choices", lambda hardware, processes: table)
    assert choices.main(["--out", str(tmp_path / "table.npz"), "--hardware", fake_hardware.__name__]) == 0
    assert capsys.readouterr().out == f"6 products of a GPU in {tmp_path / 'table.npz'}, by 3 kernels\n"
    with np.load(tmp_path / "table.npz") as stored:
        assert set(stored.files) == {"about", "kernels", "numbers"}


def test_choices_without_a_gpu_and_after_an_interrupt_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for error, code, said in (
        (GpuError("there is no GPU."), 2, "there is no GPU."),
        (KeyboardInterrupt(), 130, "Interrupted; no table was written."),
    ):

        def fail(*_: Any, error: BaseException = error) -> None:
            raise error

        monkeypatch.setattr(choices, "choices", fail)
        assert choices.main(["--out", str(tmp_path / "table.npz")]) == code
        assert capsys.readouterr().err == f"{said}\n"
        assert not list(tmp_path.iterdir())


def test_all_choices_are_asked_in_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [CublasCall("fp16", "fp16", "fp16", "nn", False, "m"), CublasCall("e4m3", "e4m3", "bf16", "nt", True, "k")]
    monkeypatch.setattr(choices, "calls", lambda: kinds)
    table = choices.choices(fake_hardware.__name__, 2)
    assert table.numbers.shape[0] == 2
    assert table.kernels.tolist() == [[66, 1, 0, 0, 35], [66, 1, 0, 0, 36]]
    assert table.about.startswith("the emulator (? multiprocessors) on 20")
