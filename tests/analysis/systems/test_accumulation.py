"""Gradients of micro-batches: their sums have the bits of the formats, and the errors are those of float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import fpsim as fp
from fpsim.analysis.systems.accumulation.accumulation import WAYS
from fpsim.testing import assert_bits_equal
from fpsim.train.data import corpus
from fpsim.train.model import Config, Transformer, pair_loss
from fpsim.train.ranks import GradientSum
from tests.kit.sweeps import in_turn


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model_and_batches(size: int = 16, count: int = 8) -> tuple[Any, list[Any]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
    batches = [(torch.randn(size, 32), torch.randint(0, 8, (size,))) for _ in range(count)]
    return model, batches


def test_256_and_1_are_256_in_bf16_and_257_with_float32_sums() -> None:
    # Megatron-LM issue 146
    report = fp.analysis.accumulation(np.array([[256.0], [1.0]], np.float32))
    assert {way: float(values[0]) * 2 for way, values in report.values.items()} == {
        "float32": 257, "BF16, float32 sums": 257, "BF16 sums": 256,
    }  # fmt: skip
    lost = report.final("BF16 sums")
    assert (lost.unchanged, lost.relative_error, lost.bias) == (1.0, 1 / 257, -1 / 257)
    assert report.final("BF16, float32 sums").relative_error == 0


def test_sums_in_bf16_stagnate_and_those_in_float32_do_not() -> None:
    report = fp.analysis.accumulation(np.ones((1024, 4), np.float32))
    assert [row.micro_batches for row in report.of("BF16 sums")] == [2**i for i in range(11)]
    assert [row.relative_error for row in report.of("BF16 sums")][-3:] == [0, 0.5, 0.75]  # the sum stays at 256
    assert report.final("BF16 sums").unchanged == 1
    assert {row.relative_error for row in report.of("BF16, float32 sums")} == {0}


@in_turn("way", WAYS)
def test_sums_have_the_bits_of_the_trainers(way: str) -> None:
    terms = normal(7, 3, 50) * 2.0 ** np.arange(-10, 15, 0.5, dtype=np.float32)
    fmt, sums = WAYS[way]
    total = GradientSum(sums)
    for each in terms:
        total.add({"w": torch.from_numpy(fp.quantize(each, fmt or "fp32"))})
    report = fp.analysis.accumulation(terms)
    assert_bits_equal(report.values[way], total.gradients["w"].numpy() / np.float32(7))


@in_turn("sums", ["fp32", "bf16", "fp16", "e5m2", fp.Sequential("bf16", rounding="down"), fp.Pairwise("bf16")])
@in_turn("fmt", [None, "bf16", "fp16"])
def test_running_sums_have_the_bits_of_whole_sums(fmt: Any, sums: Any) -> None:
    terms = normal(37, 300) * 2.0 ** np.arange(-30, 0, 0.1, dtype=np.float32)
    terms[:, :3] = [-0.0, np.inf, np.nan]
    report = fp.analysis.accumulation(terms, ways={"way": (fmt, sums)})
    adds = sums if isinstance(sums, fp.Sequential | fp.Pairwise) else fp.Sequential(sums)
    total = np.asarray(fp.sum(terms if fmt is None else fp.quantize(terms, fmt), accumulate=adds, axis=0))
    values = total if total.dtype == np.float32 else fp.decode(total, adds.fmt)
    assert_bits_equal(report.values["way"], values / np.float32(37))


def test_the_error_is_that_of_float64() -> None:
    terms = normal(33, 1000)
    report = fp.analysis.accumulation(terms)
    exact = np.array([math.fsum(map(float, column)) / 33 for column in terms.T])
    for way, mean in report.values.items():
        error = np.linalg.norm(mean.astype(np.float64) - exact) / np.linalg.norm(exact)
        assert report.final(way).relative_error == pytest.approx(float(error), rel=1e-9)


def test_the_error_of_bf16_sums_grows_with_the_square_root_and_is_that_of_a_ring() -> None:
    # 127 additions in BF16 of N(0, 1): .0135, as a ring of 128 ranks makes them (Megatron-LM issue 6199)
    report = fp.analysis.accumulation(normal(128, 20_000))
    errors = {row.micro_batches: row.relative_error for row in report.of("BF16 sums")}
    assert errors[128] == pytest.approx(0.0135, rel=0.05)
    assert errors[32] == pytest.approx(0.0070, rel=0.05)
    assert errors[128] / errors[32] == pytest.approx(2, rel=0.1)
    assert report.final("BF16, float32 sums").relative_error == pytest.approx(0.0016, rel=0.1)
    assert report.final("float32").relative_error < 3e-7


def test_a_large_batch_is_the_mean_in_float32_and_not_in_bf16() -> None:
    model, batches = model_and_batches()
    report = fp.analysis.accumulation(model, batches, torch.nn.CrossEntropyLoss())
    large = report.values["large batch"]
    loss = torch.nn.functional.cross_entropy(
        model(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches])
    )
    loss.backward()  # type: ignore[no-untyped-call]
    assert_bits_equal(large, np.concatenate([x.grad.reshape(-1).numpy() for x in model.parameters()]))
    assert np.linalg.norm(report.values["float32"] - large) < 1e-6 * np.linalg.norm(large)
    assert report.final("float32").relative_error < 1e-6
    assert report.final("BF16 sums").relative_error > 2 * report.final("BF16, float32 sums").relative_error > 1e-3
    assert 0 < report.final("float32").equal < 1
    difference = np.linalg.norm(report.values["BF16 sums"].astype(np.float64) - large)
    assert report.final("BF16 sums").drift == pytest.approx(
        float(difference / np.linalg.norm(large.astype(np.float64)))
    )


def test_the_reference_transformer_drifts_in_bf16_and_not_in_float32() -> None:
    data, model = corpus(), Transformer(Config(len(corpus().vocabulary), 32), seed=0)
    batches = [tuple(map(torch.from_numpy, data.batch(0, 0, i, batch=4, context=32))) for i in range(16)]
    report = fp.analysis.accumulation(model, batches, pair_loss)
    assert report.elements == sum(x.numel() for x in model.parameters())
    assert report.final("float32").drift < 1e-6
    errors = [row.relative_error for row in report.of("BF16 sums")]
    assert errors[-1] > 1.5 * errors[0] > 2e-3
    assert report.final("BF16 sums").drift == pytest.approx(errors[-1], rel=0.01)


def test_gradients_may_be_a_tensor_that_requires_one() -> None:
    gradients = np.array([[256.0], [1.0]], np.float32)
    report = fp.analysis.accumulation(torch.tensor(gradients, requires_grad=True))
    assert report.rows == fp.analysis.accumulation(gradients).rows


def test_gradients_and_saved_tensors_do_not_depend_on_no_grad() -> None:
    model, batches = model_and_batches(count=2)
    loss = torch.nn.CrossEntropyLoss()
    report, saved = fp.analysis.accumulation(model, batches, loss), fp.analysis.saved_tensors(model, batches[0], loss)
    with torch.no_grad():
        assert fp.analysis.accumulation(model, batches, loss) == report
        assert fp.analysis.saved_tensors(model, batches[0], loss) == saved


def test_one_micro_batch_is_the_large_batch() -> None:
    model, batches = model_and_batches(count=1)
    report = fp.analysis.accumulation(model, batches, torch.nn.CrossEntropyLoss())
    assert report.final("float32").equal == 1
    assert_bits_equal(report.values["float32"], report.values["large batch"])


def test_micro_batches_of_unequal_sizes_are_weighted() -> None:
    model, batches = model_and_batches()
    uneven = [batches[0], tuple(x[:3] for x in batches[1]), tuple(x[:7] for x in batches[2])]
    weighted = fp.analysis.accumulation(model, uneven, torch.nn.CrossEntropyLoss())
    plain = fp.analysis.accumulation(model, uneven, torch.nn.CrossEntropyLoss(), weights=[1, 1, 1])
    large = weighted.values["large batch"]
    assert np.linalg.norm(weighted.values["float32"] - large) < 1e-6 * np.linalg.norm(large)
    assert np.linalg.norm(plain.values["float32"] - large) > 0.05 * np.linalg.norm(large)


def test_dividing_before_keeps_fp16_from_overflowing() -> None:
    terms = np.full((4, 2), 30_000, np.float32)
    ways = {"FP16 sums": ("fp16", "fp16")}
    after, before = (fp.analysis.accumulation(terms, ways=ways, divide=word) for word in ("after", "before"))
    assert (after.final("FP16 sums").overflowed, before.final("FP16 sums").overflowed) == (1, 0)
    assert math.isnan(after.final("FP16 sums").relative_error)
    assert_bits_equal(before.values["FP16 sums"], np.full(2, 30_000, np.float32))


def test_stochastic_sums_lose_nothing_on_average() -> None:
    ways = {"nearest": ("bf16", "bf16"), "stochastic": ("bf16", fp.Sequential("bf16", rounding="stochastic", seed=0))}
    report = fp.analysis.accumulation(np.ones((2048, 500), np.float32), ways=ways)
    assert report.final("nearest").bias == -0.875
    assert abs(report.final("stochastic").bias) < 0.01


def test_gradients_of_the_model_stay_as_they_are() -> None:
    model, batches = model_and_batches(count=2)
    fp.analysis.accumulation(model, batches, torch.nn.CrossEntropyLoss())
    assert all(x.grad is None for x in model.parameters())


@pytest.mark.filterwarnings("error")
def test_gradients_of_0_have_no_error_and_no_curves() -> None:
    report = fp.analysis.accumulation(np.zeros((2, 3)))
    assert "float32             no relative error, as the exact mean is 0\n" in str(report)
    pytest.importorskip("matplotlib").use("Agg")
    assert report.plot().get_legend() is None


def test_a_report_comes_back_from_its_file_and_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    model, batches = model_and_batches()
    report = fp.analysis.accumulation(model, batches, torch.nn.CrossEntropyLoss())
    report.save(tmp_path / "sums.json")
    again = fp.analysis.AccumulationReport.load(tmp_path / "sums.json")
    assert str(again) == str(report)
    assert again.to_frame().equals(report.to_frame())
    legend = report.plot().get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels == ["float32", "BF16, float32 sums", "BF16 sums", "large batch"]
    (tmp_path / "sums.json").write_text("{}")
    with pytest.raises(ValueError, match="wanted fpsim accumulation"):
        fp.analysis.AccumulationReport.load(tmp_path / "sums.json")


def loose(value: Any) -> Any:
    """What type checkers take for anything."""
    return value


@in_turn(
    "call, words",
    [
        (lambda: fp.analysis.accumulation(loose("x")), "gradients"),
        (lambda: fp.analysis.accumulation(np.zeros((0, 3), np.float32)), r"with elements; got shape \(0, 3\)"),
        (lambda: fp.analysis.accumulation(normal(2, 3), [1]), "batches and loss are for a torch.nn.Module"),
        (lambda: fp.analysis.accumulation(normal(2, 3), divide="never"), "divide must be one of after, before"),
        (lambda: fp.analysis.accumulation(normal(2, 3), weights=[1]), "for each of 2 micro-batches"),
        (lambda: fp.analysis.accumulation(normal(2, 3), weights=loose("ab")), "one finite number > 0 .* got 'ab'"),
        (lambda: fp.analysis.accumulation(normal(2, 3), weights=[1, 0]), "one finite number > 0"),
        (lambda: fp.analysis.accumulation(normal(2, 3), ways=loose({"a": "bf16"})), r"ways\['a'\] must be"),
        (lambda: fp.analysis.accumulation(normal(2, 3), ways={}), "ways must be a dict"),
        (
            lambda: fp.analysis.accumulation(normal(2, 3), ways={"large batch": (None, "fp32")}),
            "must not have the name",
        ),
        (lambda: fp.analysis.accumulation(normal(2, 3), ways={"a": ("bf17", "fp32")}), "bf17"),
        (lambda: fp.analysis.accumulation(model_and_batches()[0]), "needs batches and a loss"),
        (lambda: fp.analysis.accumulation(model_and_batches()[0], [], torch.nn.MSELoss()), "batches must hold"),
    ],
)
def test_what_cannot_be_added_is_refused(call: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call()


@pytest.mark.filterwarnings("error")
def test_weights_that_overflow_are_counted_without_warnings() -> None:
    report = fp.analysis.accumulation(np.full((3, 4), 1e38, np.float32), weights=[1e3, 1e3, 1e3])
    assert [row.overflowed for row in report.rows] == [1.0] * len(report.rows)


def test_tensors_without_axes_in_batches_are_taken_from_the_first() -> None:
    model, scale = torch.nn.Linear(4, 1), torch.tensor(0.5)
    batches = [(torch.randn(2, 4), scale) for _ in range(3)]
    report = fp.analysis.accumulation(model, batches, lambda model, batch: (model(batch[0]) * batch[1]).mean())
    assert report.final("float32").drift < 1e-6
