"""Convolutions whose products follow recipes: the same gradients by float64 convolutions of rounded operands."""

from __future__ import annotations

from typing import Any

import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.analysis.studies.sensitivity.models import E4M3, FP32, nn, torch
from tests.kit.sweeps import in_turn

functional = torch.nn.functional
CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "one axis": (nn.Conv1d(4, 6, 5, padding=2), (3, 4, 11)),
    "strides and a border": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 4, 9, 8)),
    "three axes": (nn.Conv3d(2, 4, (1, 2, 3), stride=(1, 2, 1), bias=False), (2, 2, 3, 5, 6)),
    "dilated, padded to the same size": (nn.Conv1d(3, 4, 5, padding="same", dilation=3), (2, 3, 17)),
    "in groups": (nn.Conv2d(6, 9, 3, groups=3, dilation=(1, 2)), (2, 6, 9, 9)),
    "padded in a circle": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (2, 3, 6, 5)),
}
FIXED = fp.torch.LinearRecipe("e4m3", "e4m3", "e4m3")  # without scales, so that groups share what rounds them
PRODUCTS = ("fprop", "dgrad", "wgrad")


def rounded(x: Any) -> Any:
    return torch.from_numpy(fp.quantize(x.detach().numpy(), "e4m3")).double()


def by_hand(layer: Any, x: Any, dy: Any, low: str) -> tuple[Any, Any, Any]:
    """y, dx and dw, of which one is of rounded operands, in float64."""
    args = layer.stride, layer.padding if layer.padding_mode == "zeros" else 0, layer.dilation, layer.groups
    func = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[len(layer.kernel_size)]

    def run(x: Any, weight: Any, dy: Any) -> tuple[Any, Any, Any]:
        x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
        border = x
        if layer.padding_mode != "zeros":
            border = functional.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)
        bias = None if layer.bias is None else layer.bias.double()
        y = func(border, weight, bias, *args)
        return y.detach(), *torch.autograd.grad(y, (x, weight), dy)

    exact = run(x.double(), layer.weight.double(), dy.double())
    quantised = run(rounded(x), rounded(layer.weight), rounded(dy))
    return tuple(quantised[i] if product == low else exact[i] for i, product in enumerate(PRODUCTS))


@in_turn("low", PRODUCTS)
@in_turn("case", list(CASES))
def test_a_low_product_is_the_convolution_of_rounded_operands(case: str, low: str) -> None:
    from fpsim.analysis.studies.sensitivity.twin import Twin, layer_by_layer

    torch.manual_seed(0)
    layer, shape = CASES[case]
    x = torch.randn(shape).requires_grad_()
    dy = torch.randn(layer(x).shape)
    twin = Twin(nn.Sequential(layer), ["0"], lambda model, x: (model(x) * dy).sum(), 0, "emulated")
    with layer_by_layer():
        outcome = twin.run(x, 0, {("0", low): FIXED})
        x.grad = None
        dw = twin.gradients(outcome.loss, 0, keep=False)[0]
    for got, wanted in zip((outcome.outputs[0], x.grad, dw), by_hand(layer, x, dy, low), strict=True):
        assert got.shape == wanted.shape
        assert float((got.double() - wanted).norm()) <= 1e-6 * float(wanted.norm())  # sums of float32


@pytest.mark.parametrize("case", list(CASES))
def test_products_that_are_not_low_have_the_bits_of_torch(case: str) -> None:
    layer, shape = CASES[case]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(layer)
    report = fp.analysis.sensitivity(model, [x], lambda model, x: model(x).square().sum(), recipes={"exact": FP32})
    assert {row.product for row in report.rows} == {"fprop", "wgrad"}
    assert {(row.loss_change, row.gradient_error) for row in (*report.rows, *report.joint)} == {(0.0, 0.0)}


def test_what_stays_exact_is_said() -> None:
    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.mix = nn.Embedding(8, 4), nn.Conv1d(4, 4, 3, groups=4)
            self.up, self.down = nn.ConvTranspose1d(4, 4, 3), nn.Conv1d(4, 2, 3)

        def forward(self, codes: Any) -> Any:
            return self.down(self.up(self.mix(self.tokens(codes).mT)))

    codes = torch.randint(0, 8, (4, 16))
    report = fp.analysis.sensitivity(Model(), [codes], lambda model, x: model(x).square().sum(), recipes=E4M3)
    assert {row.layer for row in report.rows} == {"down"}
    assert report.convolutions == {"down": 1}
    assert report.notes == (
        "Not measured, since an embedding looks rows up and multiplies nothing: tokens.",
        "Not measured, since a depthwise convolution multiplies no matrices: mix.",
        "Not measured, since transposed convolutions stay exact: up.",
    )


def test_operands_are_counted_as_patches() -> None:
    layer, x = nn.Conv1d(4, 8, 3, groups=2), torch.randn(2, 4, 10)
    report = fp.analysis.sensitivity(nn.Sequential(layer), [x], lambda model, x: model(x).sum(), recipes=E4M3)
    assert report["0", "fprop", "E4M3"].elements == (2 * 8 * 4 * 3, 8 * 2 * 3)
    assert report["0", "wgrad", "E4M3"].elements == (2 * 8 * 8, 2 * 8 * 4 * 3)


def test_a_report_of_convolutions_is_saved_and_loaded(tmp_path: Any) -> None:
    x = torch.randn(2, 4, 10)
    report = fp.analysis.sensitivity(
        nn.Sequential(nn.Conv1d(4, 8, 3)), [x], lambda model, x: model(x).sum(), recipes=E4M3
    )
    report.save(tmp_path / "report.json")
    assert fp.analysis.Sensitivity.load(tmp_path / "report.json") == report


def test_linear_layers_of_one_place_are_convolutions_of_one_place() -> None:
    """The same weights as a linear layer and as a 1 x 1 convolution have the same bits in every product."""
    torch.manual_seed(0)
    linear, convolution = nn.Linear(64, 32), nn.Conv2d(64, 32, 1)
    with torch.no_grad():
        convolution.weight.copy_(linear.weight[:, :, None, None])
        convolution.bias.copy_(linear.bias)
    x = torch.randn(128, 64)
    recipe = fp.torch.RECIPES["FP8_TENSOR"]

    def results(layer: Any, x: Any) -> list[Any]:
        from fpsim.analysis.studies.sensitivity.spot import LayerCall, Spot

        spot = Spot("", layer, "emulated")
        y = spot.output(recipe, x, layer.weight, layer.bias, 0)
        call = LayerCall(x, layer.weight, layer.bias, y, torch.ones_like(y) * x.std(), None, None, 0)
        return [y, spot.input_gradient(recipe, call), spot.weight_gradient(recipe, call)]

    for flat, spread in zip(results(linear, x), results(convolution, x[:, :, None, None]), strict=True):
        assert_bits_equal(spread.detach().numpy().reshape(flat.shape), flat.detach().numpy())
