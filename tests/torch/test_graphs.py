"""Graphs of torch.compile: casts and layers give the bits of eager mode, or refuse what a graph cannot do."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest

import fpsim as fp
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
checkpoint: Any = pytest.importorskip("torch.utils.checkpoint").checkpoint
fakes: Any = importlib.import_module("torch._subclasses").FakeTensorMode
torch_linear: Any = importlib.import_module("fpsim.torch.linear_products")
ft: Any = importlib.import_module("fpsim.torch")

SR = ft.DEEPSEEK_V3.replace(grad_rounding="stochastic", seed=3)
DELAYED = ft.TE_DELAYED.replace(delayed=ft.Delayed(history=4))

# Small layers stand for large ones here, though few of their features are whole blocks.
pytestmark = pytest.mark.filterwarnings("ignore:.*the last block is filled up with zeros")


def without_clones(graph: Any, inputs: Any) -> Any:
    """Return a graph of torch.compile as a function, in which a clone is the tensor that it copies.

    The backend "inductor" does this too, but compiles C++ for it, which takes half a minute. inputs: not used.
    """
    common, compilers = map(importlib.import_module, ("torch._dynamo.backends.common", "functorch.compile"))

    def compiled(part: Any, _: Any) -> Any:
        for node in part.graph.nodes:
            if node.target is torch.ops.aten.clone.default:
                node.replace_all_uses_with(node.args[0])
        part.recompile()
        return compilers.make_boxed_func(part.forward)

    partition = compilers.min_cut_rematerialization_partition
    backend = common.aot_autograd(
        fw_compiler=compiled, partition_fn=partition, keep_inference_input_mutations=True
    )  # fmt: skip
    return backend(graph, inputs)


BACKENDS = ["eager", "aot_eager", without_clones]


def tensor(seed: int = 0) -> Any:
    """Gaussian numbers of several magnitudes, (5, 300)."""
    torch.manual_seed(seed)
    return torch.randn(5, 300) * torch.exp2(torch.randint(-6, 6, (5, 1)))


def gradient(y: Any, x: Any) -> Any:
    """dx for dy of ones."""
    return torch.autograd.grad(y, x, torch.ones_like(y))[0]


# ---- casts


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_graphs_give_the_bits_of_eager_mode(backend: str) -> None:
    torch._dynamo.reset()
    fmt, scaling = fp.Format("mine", 4, 2), fp.scalings.MX.replace(block=(1, 64))

    def function(x: Any, seed: Any) -> Any:
        y = ft.fake_quantize(
            x * 2, fmt, scaling, backward_fmt=fp.E5M2, backward_scaling=fp.scalings.ROW,
            backward_rounding="stochastic", backward_seed=seed,
        )  # fmt: skip
        z = ft.fake_quantize(x, "e4m3", rounding="stochastic", seed=7) + ft.decode(ft.encode(x, fmt), fmt)
        return y.sin() + z + ft.quantize_scaled(x.detach(), "int8", fp.scalings.TENSOR)

    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for step in range(3):
        seed = torch.tensor(step)
        x, copy = (tensor(seed=step).requires_grad_() for _ in range(2))
        want, got = function(x, seed), compiled(copy, seed)
        assert torch.equal(want, got)
        assert torch.equal(gradient(want, x), gradient(got, copy))


def test_compiled_graphs_read_seeds_and_scales_that_they_change_later() -> None:
    torch._dynamo.reset()

    def function(x: Any, count: Any, scale: Any) -> Any:
        y = ft.fake_quantize(
            x, "e2m1", fp.scalings.TENSOR, scales=scale.clone(), rounding="stochastic", seed=count.clone(),
            backward_fmt="e2m1", backward_rounding="stochastic", backward_seed=count.clone(),
        )  # fmt: skip
        count.add_(1)
        scale.mul_(0.25)
        return y * x

    results = []
    for run in (function, torch.compile(function, fullgraph=True, backend=without_clones)):
        x, count, scale = tensor().requires_grad_(), torch.tensor(5), torch.tensor(0.5)
        y = run(x, count, scale)
        results.append((y, gradient(y, x), count, scale))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_compiled_graphs_notice_other_formats_and_seeds() -> None:
    torch._dynamo.reset()
    x = tensor()

    def function(x: Any, fmt: Any, scaling: Any, seed: int) -> Any:
        return ft.fake_quantize(x, fmt, scaling, rounding="stochastic", seed=seed)

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for fmt, scaling, seed in (
        ("e4m3", None, 1), (fp.E4M3, None, 2), (fp.E5M2, None, 3), (fp.E5M2, fp.scalings.MX, 3),
        (fp.E5M2, fp.scalings.NVFP4, 2**64 - 1),
    ):  # fmt: skip
        assert torch.equal(compiled(x, fmt, scaling, seed), function(x, fmt, scaling, seed))


# ---- layers


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("recipe", [SR, ft.TE_DELAYED])
def test_compiled_models_give_the_bits_of_eager_mode(recipe: Any, backend: Any) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(16, 128), torch.nn.GELU(), torch.nn.Linear(128, 1))
    ft.quantize_linears(net, recipe)
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, fullgraph=True, backend=backend)
    for step in range(3):
        x = torch.randn(7 + step, 16)
        y, z = net(x), compiled(x)
        assert torch.equal(y, z)
        want = torch.autograd.grad(y.sum(), list(net.parameters()))
        got = torch.autograd.grad(z.sum(), list(twin.parameters()))
        assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(net.buffers(), twin.buffers(), strict=True))
    assert recipe is not SR or net[0].steps == 3


@in_turn("dtype", [torch.bfloat16, torch.float64])
def test_compiled_graphs_know_the_dtypes_of_the_operators(dtype: Any) -> None:
    layer = ft.QuantLinear(64, 32, dtype=dtype, recipe=ft.TE_DELAYED)
    x, dy = torch.randn(16, 64, dtype=dtype), torch.randn(16, 32, dtype=dtype)
    weight, bias, state = layer.weight.detach(), layer.bias.detach(), layer.scales
    checked = ("test_schema", "test_faketensor")
    forward = (x, weight, bias, None, state, state, layer.plan, True)
    torch.library.opcheck(torch_linear.product_op, forward, test_utils=checked)
    for rest in ((True, True), (False, True), (True, False)):
        arguments = (dy, x, weight, None, state, state, layer.plan, *rest)
        torch.library.opcheck(torch_linear._gradients_op, arguments, test_utils=checked)


@in_turn("recipe", [SR, DELAYED])
def test_layers_have_shapes_in_fake_tensor_mode(recipe: Any) -> None:
    with fakes():
        layer = ft.QuantLinear(8, 4, recipe=recipe)
        y = layer(torch.ones(2, 8))
        y.sum().backward()
    assert (y.shape, layer.weight.grad.shape) == ((2, 4), (4, 8))


@in_turn("recipe", [SR, DELAYED])
def test_compiled_layers_refuse_to_be_repeated(recipe: Any) -> None:
    torch._dynamo.reset()
    layer, x = ft.QuantLinear(8, 8, recipe=recipe, name="up"), torch.ones(2, 8)
    compiled = torch.compile(layer, backend="eager")
    compiled(x).sum().backward()
    y = checkpoint(compiled, x, use_reentrant=False)
    with pytest.raises(RuntimeError, match=r"QuantLinear 'up' cannot repeat .* in graphs of torch.compile"):
        y.sum().backward()
