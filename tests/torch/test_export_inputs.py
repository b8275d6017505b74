"""Exports with a batch: scales of the inputs that layers read, which must be finite and above 0."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")


def test_inputs_that_are_passed_by_keyword_are_measured_too(tmp_path: Path) -> None:
    class ByKeyword(torch.nn.Sequential):  # type: ignore[name-defined, misc]
        def forward(self, x: Any) -> Any:
            return self[0](input=x)

    model, x = torch.nn.Sequential(torch.nn.Linear(64, 32)), torch.randn(4, 64)
    for name, one in (("a", model), ("b", ByKeyword(*model))):
        fp.torch.export(one, layout="modelopt:fp8", out=tmp_path / name, keep=(), batch=x)
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second
    assert b"input_scale" in first


@in_turn("layout", ["modelopt:fp8", "modelopt:nvfp4", "compressed-tensors:nvfp4"])
def test_scales_of_inputs_are_finite_and_above_0(layout: str, tmp_path: Path) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 16)), torch.zeros(4, 64)
    torch.nn.init.ones_(model[0].bias)
    report = fp.torch.export(model, layout=layout, out=tmp_path / layout, keep=(), batch=x)
    assert report.notes == (
        "Scales of inputs are missing for 0.weight, whose layer was not called, or only with zeros.",
    )
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"batch must give layers finite inputs; those of 0\.weight hold"):
            fp.torch.export(model, layout=layout, out=tmp_path / "other", keep=(), batch=x + value)
