"""Three architectures through every study of a model: recorded, budgeted, measured, planned, diagnosed, compared."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from tests.analysis.studies.diagnosis.models import quiet
from tests.analysis.studies.sensitivity.models import made

JUDGED = {
    "mlp": ("0", "2", "4"), "convolutional": ("features.0", "hidden", "head"), "attention": ("qkv", "out", "head"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_a_model_goes_through_every_study(name: str, tmp_path: Path) -> None:
    model, batches, loss = made(name)
    diagnosis = fp.analysis.diagnose(
        model, batches, loss, recipes=["BF16", "FP8_TENSOR"], out=tmp_path / "work", progress=quiet
    )
    assert diagnosis.layers == JUDGED[name]
    assert diagnosis.recording.steps == (1, 2)
    for layer in diagnosis.layers:
        for product in ("fprop", "wgrad"):
            row = diagnosis.budgets["FP8_TENSOR"].row(layer, product)
            assert 0.005 < row.joint < 0.1
            assert abs(row.interplay) < row.joint
            assert diagnosis.sensitivity[layer, product, "FP8_TENSOR"].gradient_error > 0

    text = (diagnosis.save(tmp_path / "out")[2]).read_text()
    recipe = fp.train.Recipe.from_toml(tmp_path / "out" / "plan.toml")
    assert recipe.to_toml() == text
    linear = [layer for layer in diagnosis.layers if layer not in diagnosis.plan.convolutions]
    twin = copy.deepcopy(model)
    assert fp.torch.quantize_linears(twin, tmp_path / "out" / "plan.toml") == linear
    for layer in linear:
        for product in ("fprop", "dgrad", "wgrad"):
            if (layer, product) in diagnosis.plan.assignment:
                wanted = diagnosis.sensitivity.recipes[diagnosis.plan.assignment[layer, product]]
                assert recipe.linear_of(layer, product, 0, 1) == wanted

    arguments: Any = {"loss": loss}
    assert not fp.analysis.diff(model, batches[0], "torch", "torch", **arguments)
    apart = fp.analysis.diff(model, batches[0], "H100", "B200", **arguments)
    assert not apart or apart.layer in diagnosis.layers
