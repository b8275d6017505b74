"""Convolutions as products of patches: where every sum is exact, the bits are those of torch's convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")

from fpsim.analysis.studies.differences.arithmetics import arithmetic  # noqa: E402
from fpsim.analysis.studies.differences.running import run  # noqa: E402

nn: Any = torch.nn
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "one axis": (nn.Conv1d(4, 6, 5, padding=2), (3, 4, 11)),
    "two axes": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 4, 9, 8)),
    "three axes": (nn.Conv3d(2, 4, (1, 2, 3), stride=(1, 2, 1), bias=False), (2, 2, 3, 5, 6)),
    "an even kernel, padded to the same size": (nn.Conv2d(3, 4, 4, padding="same"), (2, 3, 7, 6)),
    "dilated, padded to the same size": (nn.Conv1d(3, 4, 4, padding="same", dilation=3), (2, 3, 17)),
    "no padding by word": (nn.Conv2d(3, 4, 3, padding="valid"), (2, 3, 7, 6)),
    "in groups": (nn.Conv2d(6, 9, 3, groups=3, dilation=(1, 2)), (2, 6, 9, 9)),
    "depthwise": (nn.Conv1d(4, 8, 3, groups=4), (2, 4, 9)),
    "without a batch": (nn.Conv2d(3, 4, 3, padding=1), (3, 6, 5)),
    "padded in a circle": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 5)),
}  # fmt: skip


def whole_numbers(shape: tuple[int, ...], seed: int) -> Any:
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).float()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@in_turn("way", ["torch", "float32", "hopper_bf16_f32"])
@in_turn("case", list(CASES))
def test_exact_convolutions_have_the_bits_of_torch(case: str, way: str) -> None:
    layer, shape = CASES[case]
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data = whole_numbers(tuple(parameter.shape), seed)
    x = whole_numbers(shape, 9)
    layer.zero_grad()
    y = layer(x)
    y.sum().backward()
    gradients: dict[str, Any] = {}

    def seen(of: Any) -> None:
        if of.product == "wgrad":
            gradients[of.layer] = of.result

    output = run(nn.Sequential(layer), x, arithmetic("first", way), lambda model, x: model(x).sum(), seen).output
    assert_bits_equal(output.detach(), y.detach())
    assert output.is_contiguous()
    got = np.concatenate([gradients[name] for name in gradients][::-1]) if layer.groups == 1 else None
    if got is not None:
        want = layer.weight.grad.movedim(1, -1).reshape(layer.out_channels, -1)
        assert np.array_equal(got, want.numpy())
    assert len(gradients) == layer.groups


@pytest.mark.parametrize("way", ["torch", "float32", "FP8_TENSOR"])
def test_results_may_be_changed_in_place(way: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(4, 8, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(72, 8), nn.ReLU(inplace=True),
        nn.Linear(8, 2),
    )  # fmt: skip
    products: list[Any] = []
    run(model, torch.randn(4, 4, 11), arithmetic("first", way), lambda m, x: m(x).sum(), products.append)
    assert [of.product for of in products] == ["fprop"] * 3 + ["dgrad", "wgrad"] * 2 + ["wgrad"]
    assert products[0].result.min() < 0  # as the product gave it
