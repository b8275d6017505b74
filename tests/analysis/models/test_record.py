"""A recording sees every product of a model that trains, and changes no bit of the training."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.analysis.models.trained import MODELS, TENSORS, Checkpointed, mlp, multi_head, training
from tests.kit.sweeps import in_turn

torch: Any = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional


# inputs here are small; a test of its own sees the warning
pytestmark = pytest.mark.filterwarnings("ignore:.* had inputs of fewer than:UserWarning")


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_recording_changes_no_bit_of_a_training(name: str, autocast: bool) -> None:
    plain, want, _ = training(name, autocast=autocast, record=False)
    model, got, r = training(name, autocast=autocast, every=2, keep=2)
    assert got == want
    for a, b in zip(model.state_dict().values(), plain.state_dict().values(), strict=True):
        fp.testing.assert_bits_equal(a.numpy(), b.numpy())
    assert r.steps == (1, 3, 5)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_every_product_has_its_five_tensors() -> None:
    _, _, r = training("mlp", 1)
    assert {row.tensor for row in r} == TENSORS
    assert {row.key for row in r} == {(1, layer, tensor) for layer in "02" for tensor in TENSORS}
    shapes = {(row.layer, row.tensor): row.shape for row in r}
    assert shapes["0", "input"] == (64, 32)
    assert shapes["0", "weight"] == shapes["0", "weight_gradient"] == (64, 32)
    assert shapes["2", "output"] == shapes["2", "output_gradient"] == (64, 8)
    assert {row.role for row in r} == {"activation", "matrix", "gradient"}


def test_the_figures_are_those_of_the_tensors_themselves() -> None:
    torch.manual_seed(1)
    layer = nn.Linear(32, 16)
    model, x = nn.Sequential(layer), torch.randn(64, 32, requires_grad=True)
    with fp.analysis.record(model, formats=("e4m3", "fp16"), keep=1) as r:
        y = model(x)
        y.square().sum().backward()
    want = {
        "input": x,
        "weight": layer.weight,
        "output": y,
        "output_gradient": 2 * y,
        "weight_gradient": layer.weight.grad,
    }
    for name, values in want.items():
        row = r[1, "0", name]
        array = values.detach().numpy()
        assert row.range == fp.analysis.range(array), name
        assert row.errors == (fp.analysis.error(array, "e4m3", scale="amax"), fp.analysis.error(array, "fp16")), name
        assert row.calls == 1
    kept = {tensor.name: np.concatenate(list(tensor.chunks())) for tensor in r.tensors}
    assert set(kept) == {"0 input", "0 weight", "0 output gradient"}
    fp.testing.assert_bits_equal(kept["0 output gradient"], (2 * y).detach().numpy().reshape(-1))


def test_attention_has_its_operands_and_shared_and_skipped_layers_are_told_apart() -> None:
    _, _, r = training("attention", 1)
    found = {(row.layer, row.tensor): row for row in r}
    assert {t for layer, t in found if layer == "attention"} == {"query", "key", "value", "output", "output_gradient"}
    assert found["attention", "query"].shape == (4, 2, 12, 16)
    assert found["out", "input"].calls == found["out", "output_gradient"].calls == 2  # used twice
    assert found["out", "weight"].calls == found["out", "weight_gradient"].calls == 1
    assert "unused" not in r.layers
    assert found["tokens", "weight"].role == "embedding"
    assert ("tokens", "input") not in found  # codes are no operand
    assert ("tokens", "weight_gradient") in found
    assert ("head", "weight_gradient") not in found  # it is the one of tokens


def test_multi_head_attention_is_seen_inside() -> None:
    _, _, r = training("multi_head", 1)
    for name in ("layer.self_attn", "attn"):
        assert {f"{name}.in_proj", f"{name}.attention", f"{name}.out_proj"} <= set(r.layers)
    assert {"layer.linear1", "layer.linear2"} <= set(r.layers)
    assert r[1, "attn.attention", "value"].shape == (8, 6, 16)
    assert {row.tensor for row in r if row.layer == "attn.out_proj"} == TENSORS


def test_a_fused_path_stays_the_one_that_torch_takes() -> None:
    torch.manual_seed(0)
    model = multi_head().eval()
    x = torch.randn(4, 6, 32)
    with torch.no_grad():
        want = model(x)
        with pytest.warns(UserWarning, match="may run in one piece"), fp.analysis.record(model) as r:
            got = model(x)
    fp.testing.assert_bits_equal(got.numpy(), want.numpy())
    assert len(r.notes) == 2
    assert "may run in one piece" in r.notes[0]


@pytest.mark.parametrize("name", ["checkpointed", "checkpointed, reentrant"])
def test_what_a_checkpoint_computes_again_counts_once(name: str) -> None:
    _, _, plain = training(name, 2)
    MODELS["without"] = (lambda: Checkpointed(None), MODELS[name][1])
    _, _, want = training("without", 2)
    del MODELS["without"]
    assert {row.key: row for row in plain} == {row.key: row for row in want}


def test_under_autocast_rows_are_what_products_read() -> None:
    _, _, r = training("mlp", 1, autocast=True)
    dtypes = {(row.layer, row.tensor): row.dtype for row in r}
    assert {dtypes["0", tensor] for tensor in ("input", "weight", "output", "output_gradient")} == {"bfloat16"}
    assert dtypes["0", "weight_gradient"] == "float32"
    assert r[1, "0", "weight"].errors[1].exact_rate == 1  # in BF16


def test_quantised_layers_are_recorded_by_what_they_are_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(fp.torch.QuantLinear(128, 32, recipe=fp.torch.TE_DELAYED, name="0"))
    x = torch.randn(64, 128)
    with fp.analysis.record(model) as r:
        model(x).sum().backward()
        r.step()
    assert {row.tensor for row in r} == TENSORS
    assert r[1, "0", "input"].range == fp.analysis.range(x)
    assert [one.name for one in r.monitors.scales] == ["0.input", "0.weight", "0.output gradient"]


class Functional(nn.Module):  # type: ignore[misc, name-defined]
    """Products that no module of torch makes, with a weight that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(16, 32))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 32))
        self.lookup = nn.Embedding(100, 32, sparse=True)

    def forward(self, codes: Any) -> Any:
        return self.normed(functional.linear(self.lookup(codes), self.mix))


def test_products_of_functions_and_of_computed_weights_are_recorded() -> None:
    torch.manual_seed(0)
    model = Functional()
    with fp.analysis.record(model) as r:
        model(torch.arange(50).reshape(5, 10)).square().sum().backward()
    assert r.layers == ("lookup", "mix", "normed")
    assert {row.tensor for row in r if row.layer == "mix"} == TENSORS
    assert {row.tensor for row in r if row.layer == "normed"} == TENSORS
    assert r[1, "lookup", "weight_gradient"].range.count == 50 * 32  # the rows that were looked up
    assert r[1, "normed", "weight_gradient"].range.amax > 0


def test_patterns_choose_layers() -> None:
    _, _, r = training("attention", 1, layers=("attention", "q*"))
    assert set(r.layers) == {"qkv", "attention"}


def test_nothing_keeps_the_graph() -> None:
    model = mlp()
    with fp.analysis.record(model, keep=1) as r:
        y = model(torch.randn(64, 32))
        y.sum().backward()
        output = weakref.ref(y)
        node = y.grad_fn.metadata["node"] = mlp()  # anything that can be referred to
        graph = weakref.ref(node)
        del y, node
        assert output() is None
        assert graph() is None
        assert r[1, "2", "output_gradient"].range.amax == 1


# ---- what is refused


def test_small_inputs_are_warned_of() -> None:
    model = mlp()
    warned = pytest.warns(UserWarning, match="2 layers had inputs of fewer than 1,000 values in all")
    with warned, torch.no_grad(), fp.analysis.record(model):
        model(torch.randn(2, 32))
    with pytest.warns(UserWarning, match="nothing was recorded: no forward pass"), fp.analysis.record(model):
        pass


@in_turn(
    "model, options, sentence",
    [
        (3, {}, "model must be a torch.nn.Module; got 3."),
        (nn.ReLU(), {}, "model must have a linear, convolution, embedding or attention layer"),
        (nn.Linear(2, 2, device="meta"), {}, "got 'weight' on the meta device. Load them first."),
        (mlp(), {"layers": "blocks.*"}, "layers must match a layer of the model; got 'blocks.*', which matches none"),
        (mlp(), {"layers": ("0", "4")}, r"got '4', which matches none of 2. Near it: '2', '0'."),
        (mlp(), {"layers": 3}, "layers must be a shell pattern or several"),
        (mlp(), {"every": 0}, "every must be an integer >= 1; got 0."),
        (mlp(), {"every": ()}, r"every must hold one or more numbers of steps >= 1; got \(\)."),
        (mlp(), {"every": "2"}, "every must be an integer, or the numbers of the steps to record; got '2'."),
        (mlp(), {"keep": -1}, "keep must be an integer >= 0; got -1."),
        (mlp(), {"formats": "e4m4"}, "e4m4"),
        (mlp(), {"formats": "int8"}, "formats must be float formats, such as 'e4m3'; got INT8."),
        (mlp(), {"sample": 7}, "sample must be an integer >= 2048; got 7."),
        (mlp(), {"scaler": 2.0}, "scaler must be a torch.amp.GradScaler"),
        (nn.TransformerEncoderLayer(8, 2, 8), {}, "Record torch.nn.Sequential"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_is_refused_in_a_sentence(model: Any, options: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        fp.analysis.record(model, **options)


def test_compiled_models_are_refused() -> None:
    compiled = torch.compile(mlp(), backend="eager")  # here, as it loads much that no other test of a worker may need
    with pytest.raises(ValueError, match="model must run eagerly to be recorded; got a compiled one"):
        fp.analysis.record(compiled)


class Plain(nn.Module):  # type: ignore[misc, name-defined]
    """Products of matrices by their plain names."""

    def __init__(self, multiply: Any) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(32, 48, generator=torch.Generator().manual_seed(0)))
        self.multiply = multiply

    def forward(self, x: Any) -> Any:
        return self.multiply(x, self.mix)


@pytest.mark.parametrize(
    "multiply",
    [
        torch.matmul, torch.mm, lambda x, w: x @ w, lambda x, w: x.matmul(w), lambda x, w: (w.T @ x.T).T,
        lambda x, w: torch.matmul(input=x, other=w),
        lambda x, w: torch.addmm(torch.zeros(48), x, w), lambda x, w: nn.functional.linear(x, w.T),
    ],
    ids=["matmul", "mm", "@", "Tensor.matmul", "turned", "named", "addmm", "linear"],
)  # fmt: skip
def test_a_weight_that_is_multiplied_by_hand_is_a_layer(multiply: Any, request: Any) -> None:
    model, x = Plain(multiply), torch.randn(64, 32)
    if request.node.callspec.id in ("turned", "named"):  # not the second operand
        with pytest.warns(UserWarning, match="Only 0 % of the model's weights"), fp.analysis.record(model) as r:
            model(x)
        assert r.notes[0].startswith("the model multiplies by matmul, whose operands are not recorded")
        return
    with fp.analysis.record(model, keep=1) as r:
        model(x).square().mean().backward()
        r.step()
    assert r.layers == ("mix",)
    assert_bits_equal(r.operands[1, "mix", "input"], x.numpy())
    assert_bits_equal(r.operands[1, "mix", "weight"], model.mix.detach().T.numpy())
    assert r[1, "mix", "output_gradient"].shape == (64, 48)
    assert r[1, "mix", "weight_gradient"].range.count == 32 * 48


def test_products_of_activations_by_hand_are_named() -> None:
    class Attend(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(32, 96)

        def forward(self, x: Any) -> Any:
            q, k, v = self.qkv(x).chunk(3, -1)
            return torch.einsum("bst,btd->bsd", (q @ k.mT).softmax(-1), v)

    deep = nn.Sequential(*(Attend() for _ in range(6)))
    with fp.analysis.record(deep) as r:
        deep(torch.randn(8, 12, 32))
    assert len(r.notes) == 2
    assert r.notes[0].startswith("0, 1, 2, 3 and 2 more multiply by matmul, whose operands are not recorded: ")
    model, x = nn.Sequential(Attend()), torch.randn(8, 12, 32)
    wanted = model(x)
    with fp.analysis.record(model) as r:
        assert_bits_equal(model(x).detach().numpy(), wanted.detach().numpy())
    assert [note.split(",")[0] for note in r.notes] == ["0 multiplies by matmul", "0 multiplies by einsum"]
