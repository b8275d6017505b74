"""backend="hardware" hands fp.gpu.hardware what it demands, and takes what it gives; twins of it run on the CPU."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.gpu.device import device
from fpsim.gpu.hardware import products as real

torch = pytest.importorskip("torch")
ft: Any = importlib.import_module("fpsim.torch.functions")

SIZE = 128  # tokens, inputs and outputs
SHAPES: dict[str, Any] = {  # of scales of a and b
    "tensor": ((1, 1), (1, 1)), "row": ((SIZE, 1), (1, SIZE)), "1x128_128x128": ((SIZE, 1), (1, 1)),
    "1x128_1x128": ((SIZE, 1), (1, SIZE)),
}  # fmt: skip


class Twin:
    """fp.gpu.hardware on the CPU, which refuses what it refuses."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, bool]] = []

    def matmul(self, a: Any, b: Any, kind: str, *, out: str) -> Any:
        """As fp.gpu.hardware.matmul."""
        assert a.dtype.itemsize == b.dtype.itemsize == 2
        assert out == "fp32"
        self.calls.append((kind, False))
        found = fp.matmul(a, b, accumulate=f"hopper_{'bf16' if kind == 'bf16' else 'f16'}_f32")
        return found.view(np.uint32)

    def scaled_mm(
        self, a: Any, b: Any, pair: tuple[str, str], scale_a: Any, scale_b: Any, *, recipe: str, out: str,
        fast_accum: bool,
    ) -> Any:  # fmt: skip
        """As fp.gpu.hardware.scaled_mm."""
        real._refuse(a, b, pair, recipe, out, fast_accum, None)
        assert a.dtype == b.dtype == np.uint8
        for scale, shape in zip((scale_a, scale_b), SHAPES[recipe], strict=True):
            assert scale.dtype == np.float32
            assert scale.shape in (shape, ()) if recipe == "tensor" else scale.shape == shape
        self.calls.append((recipe, fast_accum))
        unit = "hopper_e4m3_f32" if pair == ("e4m3", "e4m3") else f"hopper_{pair[0]}x{pair[1]}_f32"
        how = {} if fast_accum else {"promote": 128} if recipe == "tensor" else {"schedule": fp.schedules.deepgemm()}
        found = fp.matmul(a, b, accumulate=unit, scale_a=scale_a, scale_b=scale_b, **how)
        return found.view(np.uint32) if out == "fp32" else fp.encode(found, "bf16")

    def dot(self, a: Any, b: Any, c: Any, pair: tuple[str, str], *, block_k: int) -> Any:
        """As fp.gpu.hardware.dot."""
        assert c is None
        assert (a.shape[0] % 64, b.shape[1] % 64, a.shape[1] % block_k) == (0, 0, 0)
        self.calls.append((f"dot {pair[0]}", False))
        return fp.matmul(a, b, accumulate=f"hopper_{pair[0]}_f32").view(np.uint32)

    def scaled_dot(
        self, a: Any, b: Any, pair: tuple[str, str], scale_a: Any, scale_b: Any, *, a_first: bool, fused: bool
    ) -> Any:
        """As fp.gpu.hardware.scaled_dot."""
        (m, k), n = a.shape, b.shape[1]
        assert (m % 64, n % 64, k % 128) == (0, 0, 0)
        assert (scale_a.shape, scale_b.shape) == ((m, k // 128), (k // 128, n))
        self.calls.append((f"scaled dot{' a first' if a_first else ''}{'' if fused else ' unfused'}", False))
        order = fp.schedules.cutlass_blockwise if a_first else fp.schedules.deepgemm
        unit = "hopper_e4m3_f32" if pair == ("e4m3", "e4m3") else f"hopper_{pair[0]}x{pair[1]}_f32"
        found = fp.matmul(a, b, accumulate=unit, scale_a=scale_a, scale_b=scale_b, schedule=order(fused=fused))
        return found.view(np.uint32)


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> Twin:
    """A twin in the place of the hardware."""
    twin = Twin()
    for name in ("matmul", "scaled_mm", "dot", "scaled_dot"):
        monkeypatch.setattr(fp.gpu.hardware, name, getattr(twin, name))
    monkeypatch.setattr(device, "require_device", lambda: None)
    monkeypatch.setattr(device, "capability", lambda: (9, 0))
    return twin


def results(recipe: Any, backend: str) -> list[Any]:
    """y, dx and dw of a layer with a bias."""
    torch.manual_seed(3)
    layer = ft.QuantLinear(SIZE, SIZE, recipe=recipe, backend=backend)
    x = torch.randn(SIZE, SIZE, requires_grad=True)
    y = layer(x)
    return [each.detach().numpy() for each in (y, *torch.autograd.grad(y, (x, layer.weight), torch.randn(SIZE, SIZE)))]


CALLS: dict[str, list[tuple[str, bool]]] = {
    "BF16": [("bf16", False)] * 3, "FP16": [("fp16", False)] * 3, "FP8_RAW": [("tensor", False)] * 3,
    "FP8_TENSOR": [("tensor", False)] * 3, "TE_HYBRID": [("tensor", True), ("tensor", False), ("tensor", False)],
    "DEEPSEEK_V3": [("scaled dot", False)] * 3,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_hardware_is_asked_for_the_products_that_are_emulated(name: str, hardware: Twin) -> None:
    got = results(ft.RECIPES[name], "hardware")
    assert hardware.calls == CALLS[name]
    want = results(ft.RECIPES[name].replace(fprop=_unrounded(ft.RECIPES[name].fprop)), "emulated")
    fp.testing.assert_bits_equal(got[0], _with_bias(want[0], ft.RECIPES[name]))
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        fp.testing.assert_bits_equal(mine, theirs)


def _unrounded(product: Any) -> Any:
    return product.replace(out_fmt=None)


def _with_bias(y: Any, recipe: Any) -> Any:
    """A sum that is float32, with its bias, as the layer rounds it."""
    fmt = recipe.fprop.out_fmt
    return y if fmt is None else fp.quantize(y, fmt)


def test_scales_per_row_are_torchs_for_bf16_and_a_loops_for_float32(hardware: Twin) -> None:
    recipe = ft.RECIPES["DEEPSEEK_V3_UNPROMOTED"]
    got, want = results(recipe, "hardware"), results(recipe, "emulated")
    assert hardware.calls == [("dot e4m3", False), ("row", True), ("dot e4m3", False)]  # y gets a bias
    for mine, theirs in zip(got, want, strict=True):
        fp.testing.assert_bits_equal(mine, theirs)


SIZES = 70, 200, 300  # tokens, inputs and outputs, which are no multiples of a block


@pytest.mark.parametrize(("schedule", "call"), [
    (fp.schedules.deepgemm("1d1d", fused=False), "scaled dot unfused"),
    (fp.schedules.cutlass_blockwise(), "scaled dot a first"),
    (fp.schedules.cublas("sm_90", family="block_scaled"), None),
    (fp.schedules.cutlass_blockwise("b_first"), None),
    (fp.schedules.cutlass_blockwise(interval=64), None),
    (fp.schedules.triton(128), None),
])  # fmt: skip
def test_loops_take_orders_of_deepgemm_and_cutlass_in_any_shape(schedule: Any, call: str, hardware: Twin) -> None:
    product = ft.Product("hopper", schedule=schedule)
    recipe = ft.RECIPES["DEEPSEEK_V3"].replace(fprop=product)
    tokens, inputs, outputs = SIZES
    torch.manual_seed(1)
    layers = [ft.QuantLinear(inputs, outputs, False, recipe=recipe, backend=name) for name in ("hardware", "emulated")]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(tokens, inputs)
    if call is None:
        with pytest.raises(ValueError, match=r"^(backend='hardware' has no product of hopper_e4m3_f32|torch|block)"):
            layers[0](x)
        return
    got, want = (layer(x).detach().numpy() for layer in layers)
    assert hardware.calls == [(call, False)]
    fp.testing.assert_bits_equal(got, want)


def test_tf32_is_a_loop_of_instructions(hardware: Twin) -> None:
    recipe = ft.LinearRecipe("tf32", "tf32", "tf32", fprop=ft.Product("hopper"))
    torch.manual_seed(2)
    layers = [ft.QuantLinear(200, 70, recipe=recipe, backend=name) for name in ("hardware", "emulated")]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(33, 200)
    got, want = (layer(x).detach().numpy() for layer in layers)
    assert hardware.calls == [("dot tf32", False)]
    fp.testing.assert_bits_equal(got, want)


@pytest.mark.parametrize("capability", [(8, 9), (12, 1)])
def test_units_of_other_gpus_are_refused(
    capability: tuple[int, int], hardware: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "capability", lambda: capability)
    layer = ft.QuantLinear(SIZE, SIZE, recipe=ft.RECIPES["BF16"], backend="hardware")
    with pytest.raises(ValueError, match=r"needs a GPU with hopper_bf16_f32; this one, .* Take backend='gpu'"):
        layer(torch.randn(SIZE, SIZE))
    assert not hardware.calls


def test_an_operand_without_scales_meets_one_per_tensor(hardware: Twin) -> None:
    recipe = ft.RECIPES["FP8_TENSOR"].replace(weight_scaling=None, overflow="saturate")
    torch.manual_seed(0)
    layer = ft.QuantLinear(SIZE, SIZE, False, recipe=recipe, backend="hardware")
    x = torch.randn(SIZE, SIZE)
    got = layer(x).detach().numpy()
    assert hardware.calls == [("tensor", False)]
    q = fp.encode_scaled(x.numpy(), "e4m3", fp.scalings.TENSOR, overflow="saturate")
    w = fp.encode(layer.weight.detach().numpy(), "e4m3", overflow="saturate").T
    want = fp.matmul(q, w, accumulate="hopper_e4m3_f32", promote=128)
    fp.testing.assert_bits_equal(got, fp.quantize(want, "bf16"))


@pytest.mark.parametrize("name", ["MXFP8", "NVFP4"])
def test_block_scaled_units_are_refused_in_a_sentence(
    name: str, hardware: Twin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "capability", lambda: (10, 0))
    layer = ft.QuantLinear(SIZE, SIZE, recipe=ft.RECIPES[name], backend="hardware")
    with pytest.raises(ValueError, match=r"backend='hardware' multiplies 16-bit formats, .* Take backend='emulated'"):
        layer(torch.randn(SIZE, SIZE))
    assert not hardware.calls


@pytest.mark.parametrize("backend", ["gpu", "hardware"])
@pytest.mark.parametrize("name", ["BF16", "DEEPSEEK_V3"])
def test_without_a_gpu_the_sentence_of_the_gpu_part_is_raised(name: str, backend: str) -> None:
    if fp.gpu.available():
        pytest.skip("there is a GPU")
    layer = ft.QuantLinear(SIZE, SIZE, recipe=ft.RECIPES[name], backend=backend)
    with pytest.raises(fp.gpu.GpuError, match=r"fpsim.gpu needs an NVIDIA GPU with its driver"):
        layer(torch.randn(SIZE, SIZE))
