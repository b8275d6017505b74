"""backend="hardware" hands fp.gpu.hardware what it demands, and takes what it gives; twins of it run on the CPU."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.gpu.device import device
from fpsim.gpu.hardware import products as real
from fpsim.gpu.hardware import tensor_cores
from fpsim.gpu.lab.lab import unit_name
from fpsim.recipes.hardware import placed

torch = pytest.importorskip("torch")
ft: Any = importlib.import_module("fpsim.torch")

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
        got = fp.matmul(a, b, accumulate=f"hopper_{'bf16' if kind == 'bf16' else 'f16'}_f32")
        return got.view(np.uint32)

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
        how: dict[str, Any] = {} if fast_accum else {"promote": 128}
        if "128" in recipe:
            how = {"schedule": fp.schedules.cublas("sm_90", family="block_scaled"), "strict": False}
        got = fp.matmul(a, b, accumulate=unit, scale_a=scale_a, scale_b=scale_b, **how)
        return got.view(np.uint32) if out == "fp32" else fp.encode(got, "bf16")

    def dot(self, a: Any, b: Any, c: Any, pair: tuple[str, str], *, block_k: int) -> Any:
        """As fp.gpu.hardware.dot."""
        assert (a.shape[0] % 64, b.shape[1] % 64, a.shape[1] % block_k) == (0, 0, 0)
        self.calls.append((f"dot {pair[0]}", False))
        return fp.matmul(a, b, c, accumulate=unit_name("hopper", pair)).view(np.uint32)

    def scaled_dot(
        self, a: Any, b: Any, pair: tuple[str, str], scale_a: Any, scale_b: Any, c: Any, *, a_first: bool
    ) -> Any:
        """As fp.gpu.hardware.scaled_dot."""
        (m, k), n = a.shape, b.shape[1]
        assert (m % 64, n % 64, k % 128) == (0, 0, 0)
        scale_a, scale_b = np.broadcast_to(scale_a, (m, k // 128)), np.broadcast_to(scale_b, (k // 128, n))
        assert not c.any()  # the schedules start there, where their C is not added
        self.calls.append((f"scaled dot{' a first' if a_first else ''}", False))
        order = fp.schedules.cutlass_blockwise if a_first else fp.schedules.deepgemm
        words = {"scale_a": scale_a, "scale_b": scale_b, "schedule": order(), "strict": False}
        got = fp.matmul(a, b, accumulate=unit_name("hopper", pair), **words)
        return got.view(np.uint32)


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> Twin:
    """A twin in the place of the hardware."""
    twin = Twin()
    for name in ("matmul", "scaled_mm"):
        monkeypatch.setattr(fp.gpu.hardware, name, getattr(twin, name))
    for name in ("dot", "scaled_dot"):
        monkeypatch.setattr(tensor_cores, name, getattr(twin, name))
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
    "BF16": [("dot bf16", False)] * 3, "FP16": [("dot fp16", False)] * 3, "FP8_RAW": [("scaled dot", False)] * 3,
    "FP8_TENSOR": [("scaled dot", False)] * 3,
    "TE_HYBRID": [("dot e4m3", False), ("scaled dot", False), ("scaled dot", False)],
    "DEEPSEEK_V3": [("scaled dot", False)] * 3, "DEEPSEEK_V3_UNPROMOTED": [("dot e4m3", False)] * 3,
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_the_hardware_runs_the_chains_of_products_without_a_library(name: str, hardware: Twin) -> None:
    got, want = (results(ft.RECIPES[name], backend) for backend in ("hardware", "emulated"))
    assert hardware.calls == CALLS[name]
    for mine, theirs in zip(got, want, strict=True):
        fp.testing.assert_bits_equal(mine, theirs)


TORCHS: dict[str, list[tuple[str, bool]]] = {
    "BF16": [("bf16", False)] * 3, "FP16": [("fp16", False)] * 3, "FP8_RAW": [("tensor", False)] * 3,
    "TE_HYBRID": [("tensor", False)] * 3,
    "DEEPSEEK_V3": [("1x128_128x128", False), ("1x128_128x128", False), ("1x128_1x128", False)],
}  # fmt: skip


@pytest.mark.parametrize("name", TORCHS)
def test_products_of_cublas_are_calls_of_torch(name: str, hardware: Twin) -> None:
    recipe = placed(ft.RECIPES[name], "H100 cuBLAS").recipe
    got = results(recipe, "hardware")
    assert hardware.calls == TORCHS[name]
    want = results(recipe.replace(fprop=_unrounded(recipe.fprop)), "emulated")
    fp.testing.assert_bits_equal(got[0], _with_bias(want[0], recipe))
    for mine, theirs in zip(got[1:], want[1:], strict=True):
        fp.testing.assert_bits_equal(mine, theirs)


def _unrounded(product: Any) -> Any:
    return product.replace(out_fmt=None)


def _with_bias(y: Any, recipe: Any) -> Any:
    """A sum that is float32, with its bias, as the layer rounds it."""
    fmt = recipe.fprop.out_fmt
    return y if fmt is None else fp.quantize(y, fmt)


def test_torchs_products_with_scales_per_row_are_bf16_without_bias(hardware: Twin) -> None:
    product = ft.Product("hopper", schedule=fp.schedules.torch_rowwise(fast_accum=True))
    recipe = ft.RECIPES["DEEPSEEK_V3_UNPROMOTED"].replace(fprop=product.replace(out_fmt=fp.BF16))
    torch.manual_seed(3)
    layer = ft.QuantLinear(SIZE, SIZE, False, recipe=recipe, backend="hardware")
    layer(torch.randn(SIZE, SIZE))
    assert hardware.calls == [("row", True)]
    layer = ft.QuantLinear(SIZE, SIZE, False, recipe=recipe.replace(fprop=product), backend="hardware")
    with pytest.raises(ValueError, match="with scales per row in BF16 without bias alone; got float32"):
        layer(torch.randn(SIZE, SIZE))


SIZES = 70, 200, 300  # tokens, inputs and outputs, which are no multiples of a block


@pytest.mark.parametrize(("schedule", "calls"), [
    (fp.schedules.deepgemm("1d1d"), ["scaled dot"]),
    (fp.schedules.deepgemm("1d1d", fused=False), ["dot e4m3", "dot e4m3"]),
    (fp.schedules.cutlass_blockwise(), ["scaled dot a first"]),
    (fp.schedules.cutlass_blockwise("b_first"), ["dot e4m3", "dot e4m3"]),
    (fp.schedules.cutlass_blockwise(interval=64), ["dot e4m3"] * 4),
])  # fmt: skip
def test_loops_take_orders_of_deepgemm_and_cutlass(schedule: Any, calls: list[str], hardware: Twin) -> None:
    recipe = ft.RECIPES["DEEPSEEK_V3"].replace(fprop=ft.Product("hopper", schedule=schedule))
    tokens, inputs, outputs = SIZES
    torch.manual_seed(1)
    layers = [ft.QuantLinear(inputs, outputs, recipe=recipe, backend=name) for name in ("hardware", "emulated")]
    layers[1].load_state_dict(layers[0].state_dict())
    x = torch.randn(tokens, inputs)
    got, want = (layer(x).detach().numpy() for layer in layers)
    assert [name for name, _ in hardware.calls] == calls
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
    with pytest.raises(ValueError, match=r"this GPU, of .*, has no hopper_bf16_f32 but .* or backend='gpu'"):
        layer(torch.randn(SIZE, SIZE))
    assert not hardware.calls


def test_an_operand_without_scales_meets_one_per_tensor(hardware: Twin) -> None:
    recipe = ft.RECIPES["FP8_TENSOR"].replace(weight_scaling=None, overflow="saturate")
    torch.manual_seed(0)
    layer = ft.QuantLinear(SIZE, SIZE, False, recipe=recipe, backend="hardware")
    x = torch.randn(SIZE, SIZE)
    got = layer(x).detach().numpy()
    assert hardware.calls == [("scaled dot", False)]
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
    with pytest.raises(ValueError, match=r"tl.dot takes .* by wgmma .* or backend='gpu'"):
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
