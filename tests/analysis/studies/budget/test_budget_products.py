"""Budgets of convolutions and attention: their products are those of matrices that torch and NumPy multiply by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.analysis.studies.budget.recorded import recorded, torch

nn = torch.nn
functional = torch.nn.functional
E4M3 = fp.torch.LinearRecipe("e4m3", "e4m3", "e4m3")  # without scales, so that groups share what rounds them
CONVOLUTIONS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "one axis": (nn.Conv1d(8, 12, 5, padding=2, bias=False), (6, 8, 21)),
    "strides and a border": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), bias=False), (4, 4, 9, 8)),
    "in groups, dilated": (nn.Conv2d(6, 9, 3, groups=3, dilation=(1, 2), bias=False), (4, 6, 9, 9)),
    "padded in a circle": (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular", bias=False), (4, 3, 8, 8)),
    "without a batch": (nn.Conv2d(3, 4, 3, padding=1, bias=False), (3, 20, 20)),
}


def rounded(x: Any) -> Any:
    return torch.from_numpy(fp.quantize(x.detach().numpy(), "e4m3")).double()


@pytest.mark.parametrize("case", list(CONVOLUTIONS))
def test_the_error_of_a_convolution_is_that_of_rounded_operands(case: str) -> None:
    torch.manual_seed(0)
    layer, shape = CONVOLUTIONS[case]
    x = torch.randn(shape)
    dy = torch.randn(layer(x).shape)
    b = fp.analysis.budget(
        recorded(nn.Sequential(layer), x.clone().requires_grad_(), gradients=[dy]), recipe=E4M3, on=None
    )

    def results(x: Any, weight: Any) -> tuple[Any, Any]:
        weight = weight.detach().requires_grad_()
        twin = type(layer)(
            layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation,
            layer.groups, False, layer.padding_mode,
        ).double()  # fmt: skip
        y = torch.func.functional_call(twin, {"weight": weight}, (x.double(),))
        return y.detach(), weight

    def off(got: Any, wanted: Any) -> float:
        return float((got - wanted).norm() / wanted.norm())

    exact, weight = layer.weight.double(), rounded(layer.weight)
    wanted = results(x, exact)[0]
    row = b.row("0", "fprop")
    assert row.kind == "convolution"
    assert row.parts == layer.groups
    assert math.isclose(row.joint, off(results(rounded(x), weight)[0], wanted), rel_tol=1e-4)
    assert math.isclose(row.rounding_a, off(results(rounded(x), exact)[0], wanted), rel_tol=1e-4) or row.scales
    y, leaf = results(x, exact)
    y = torch.func.functional_call(nn.Sequential(layer).double(), {"0.weight": leaf}, (x.double(),))
    (dw,) = torch.autograd.grad(y, leaf, dy.double())
    y = torch.func.functional_call(nn.Sequential(layer).double(), {"0.weight": leaf}, (rounded(x),))
    (low,) = torch.autograd.grad(y, leaf, rounded(dy))
    layer.float()
    assert math.isclose(b.row("0", "wgrad").joint, off(low, dw), rel_tol=1e-4)
    m, n, k = row.shape
    assert m == wanted.numel() // layer.out_channels
    assert (n, k) == (layer.out_channels // layer.groups, layer.weight[0].numel())


def test_a_convolution_of_one_place_has_the_budget_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 32, bias=False)
    convolution = nn.Conv2d(64, 32, 1, bias=False)
    with torch.no_grad():
        convolution.weight.copy_(linear.weight[:, :, None, None])
    x, dy = torch.randn(256, 64), torch.randn(256, 32)
    flat = fp.analysis.budget(recorded(nn.Sequential(linear), x, gradients=[dy]), recipe="FP8_TENSOR")
    wide = recorded(nn.Sequential(convolution), x[:, :, None, None], gradients=[dy[:, :, None, None]])
    for one, other in zip(flat.rows, fp.analysis.budget(wide, recipe="FP8_TENSOR").rows, strict=True):
        assert one.squares == other.squares
        assert one.shape == other.shape


def test_depthwise_and_transposed_convolutions_are_named() -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 3, groups=4), nn.ConvTranspose1d(4, 4, 3), nn.Conv1d(4, 4, 3))
    b = fp.analysis.budget(recorded(model, torch.randn(8, 4, 40)), recipe="FP8_TENSOR")
    assert b.layers == ("2",)
    assert b.notes[0] == "Left out, since a depthwise convolution multiplies no matrices: 0."
    assert b.notes[1].startswith("Left out, since transposed convolutions, and convolutions whose strides")


# ---- attention


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    """Heads of 16 and what they read, as parameters of nothing."""

    def __init__(self, causal: bool, whole: bool = False, mask: Any = None) -> None:
        super().__init__()
        self.qkv, self.causal, self.whole = nn.Linear(32, 96, bias=False), causal, whole
        self.mask = mask

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 16).permute(2, 0, 3, 1, 4)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask, is_causal=self.causal)


@pytest.mark.parametrize("causal", [False, True])
def test_the_products_of_attention_are_those_by_hand(causal: bool) -> None:
    torch.manual_seed(0)
    model, x = Attention(causal), torch.randn(3, 24, 32)
    dy = torch.randn(3, 2, 24, 16)
    r = recorded(model, x, gradients=[dy])
    b = fp.analysis.budget(r, recipe=E4M3, on=None, layers="attention")
    assert b.layers == ("attention.scores", "attention.values")
    q, k, v = (
        torch.from_numpy(np.array(r.operands[1, "attention", which])).double() for which in ("query", "key", "value")
    )
    s = (q @ k.mT).requires_grad_()
    masked = s.masked_fill(~torch.ones(24, 24, dtype=torch.bool).tril(), -math.inf) if causal else s
    p = (masked / 4).softmax(-1)
    p.retain_grad()
    (p @ v).backward(dy.double())
    p, ds = p.detach().float(), s.grad.float()
    wanted = {
        ("scores", "fprop"): (q, k.mT), ("scores", "dgrad"): (ds, k), ("scores", "wgrad"): (ds.mT, q),
        ("values", "fprop"): (p, v), ("values", "dgrad"): (dy, v.mT), ("values", "wgrad"): (dy.mT, p),
    }  # fmt: skip
    assert b.row("attention.scores", "fprop").parts == 6
    for (layer, product), (left, right) in wanted.items():
        exact, low = left.double() @ right.double(), rounded(left.float()) @ rounded(right.float())
        row = b.row(f"attention.{layer}", product)
        assert math.isclose(row.joint, float((low - exact).norm() / exact.norm()), rel_tol=1e-4), (layer, product)
    assert b.row("attention.values", "fprop").operands == ("probabilities", "value")


def test_multi_head_attention_has_the_same_products_either_way() -> None:
    """With its weights asked for torch multiplies by bmm, else by scaled_dot_product_attention."""
    torch.manual_seed(0)
    x = torch.randn(2, 24, 32)

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, weights: bool) -> None:
            super().__init__()
            self.mha, self.weights = nn.MultiheadAttention(32, 2, bias=False, batch_first=True), weights

        def forward(self, x: Any) -> Any:
            return self.mha(x, x, x, need_weights=self.weights)[0]

    budgets = []
    state = Model(True).state_dict()
    for weights in (True, False):
        model = Model(weights)
        model.load_state_dict(state)
        budgets.append(fp.analysis.budget(recorded(model, x), recipe=E4M3, on=None, layers="mha.attention"))
    for one, other in zip(*(b.rows for b in budgets), strict=True):
        assert one.shape == other.shape
        larger = {"fprop": 1 / 16, "dgrad": 16, "wgrad": 16}[one.product] if one.layer.endswith("scores") else 1
        assert math.isclose(one.squares.a, larger * other.squares.a, rel_tol=1e-4)  # queries come scaled by 1/4


def test_a_mask_is_kept_and_counts(tmp_path: Path) -> None:
    """One that says which scores count, one that is added to them, and torch's own causal one are the same."""
    torch.manual_seed(0)
    kept = torch.ones(24, 24, dtype=torch.bool).tril()
    added = torch.zeros(3, 1, 24, 24).masked_fill(~kept, -math.inf)
    x, dy, state = torch.randn(3, 24, 32), torch.randn(3, 2, 24, 16), Attention(True).state_dict()
    rows = []
    for model in (Attention(True), Attention(False, mask=kept), Attention(False, mask=added)):
        model.load_state_dict(state)
        r = recorded(model, x, gradients=[dy])
        r.save(tmp_path / "r.npz")
        r = fp.analysis.Recording.load(tmp_path / "r.npz")
        assert not any("mask" in tensor.name for tensor in r.tensors)  # a mask is nothing to be stored in few bits
        rows.append(fp.analysis.budget(r, recipe=E4M3, on=None, layers="attention").rows)
    assert_bits_equal(r.operands[1, "attention", "mask"], added.numpy())
    for one in zip(*rows, strict=True):
        assert len({(row.shape, row.joint) for row in one}) == 1
    r._kept = {key: array for key, array in r.operands.items() if key[2] != "mask"}  # as an older file has it
    with pytest.raises(ValueError, match="the mask of its attention was not kept: attention"):
        fp.analysis.budget(r, recipe=E4M3, layers="attention")


def test_dropout_is_left_out_and_it_is_said() -> None:
    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, whole: bool, dropout: float) -> None:
            super().__init__()
            self.mha, self.whole = nn.MultiheadAttention(32, 2, dropout=dropout, batch_first=True), whole

        def forward(self, x: Any) -> Any:
            return self.mha(x, x, x, need_weights=self.whole)[0]

    for whole, dropout, training in ((True, 0.5, True), (False, 0.5, True), (True, 0.5, False), (False, 0.0, True)):
        model = Model(whole, dropout).train(training)
        b = fp.analysis.budget(recorded(model, torch.randn(2, 24, 32)), recipe=E4M3, on=None, layers="mha.attention")
        said = "Probabilities are those before dropout: mha.attention." in b.notes
        assert said == (training and dropout > 0)


def test_queries_that_see_nothing_have_no_probabilities() -> None:
    mask = torch.ones(24, 24, dtype=torch.bool).tril(-1)  # the first one
    b = fp.analysis.budget(recorded(Attention(False, mask=mask), torch.randn(3, 24, 32)), recipe=E4M3, on=None)
    assert all(0 < row.joint < 0.1 for row in b.rows)


def test_many_heads_are_sampled_and_it_is_said() -> None:
    b = fp.analysis.budget(recorded(Attention(True), torch.randn(16, 24, 32)), recipe="FP8_TENSOR")
    assert b.row("attention.scores", "fprop").parts == 8
    assert b.notes == ("Only 8 of 32 heads of all sequences, evenly spaced, are budgeted: attention.",)


def test_a_budget_of_all_weights_leaves_attention_out() -> None:
    b = fp.analysis.budget(recorded(Attention(True), torch.randn(4, 24, 32)), recipe="FP8_TENSOR")
    assert b.pooled("wgrad").squares == b.row("qkv", "wgrad").squares


def test_settings_of_products_are_saved_and_merged(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 3, stride=2, padding=1))
    r = recorded(model, torch.randn(8, 4, 40))
    r.save(tmp_path / "run.npz")
    again = fp.analysis.Recording.load(tmp_path / "run.npz")
    wanted = {"stride": [2], "padding": [[1, 1]], "dilation": [1], "groups": 1}
    assert again.settings(1, "0") == r.settings(1, "0") == again.merge(r).settings(1, "0") == wanted
    assert fp.analysis.budget(again, recipe="FP8_TENSOR") == fp.analysis.budget(r, recipe="FP8_TENSOR")


def test_a_plan_of_budgets_leaves_attention_out_and_its_recipe_convolutions() -> None:

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.mix, self.attend = nn.Conv1d(32, 32, 3, padding=1), Attention(True)

        def forward(self, x: Any) -> Any:
            return self.attend(self.mix(x.mT).mT)

    r = recorded(Model(), torch.randn(4, 24, 32))
    budgets = [fp.analysis.budget(r, recipe=name) for name in ("BF16", "FP8_TENSOR")]
    plan = fp.analysis.plan(budgets, bits=16)
    assert {choice.layer for choice in plan.choices} == {"mix", "attend.qkv"}
    assert {row.layers for row in plan.to_recipe().overrides} == {"attend.qkv"}
    assert "1 convolution is planned but not in the recipe of training" in " ".join(plan.notes)
    assert "attend.attention.scores is not planned" in " ".join(plan.notes)


def test_delayed_scales_of_attention_come_from_the_recorded_queries_and_keys() -> None:
    """They were 1 at every step, and the report said that no step before was recorded."""
    torch.manual_seed(0)
    model = Attention(False)
    with torch.no_grad():
        model.qkv.weight *= 1000
    r = recorded(model, *torch.randn(3, 3, 24, 32))
    report = fp.analysis.budget(r, recipe="TE_DELAYED", layers="attention")
    one = fp.analysis.budget(r, recipe="TE_HYBRID", layers="attention").row("attention.scores", "fprop")
    row = report.row("attention.scores", "fprop")
    assert row.batches == 3
    assert row.squares.joint < 0.4 * row.squares.reference  # a third of which is that of the first step, with scale 1
    assert one.joint < 0.05
    at_two = [note for note in report.notes if "at step 2" in note]
    assert [note.partition(" are 1")[0] for note in at_two] == [
        "Delayed scales of score gradient", "Delayed scales of probabilities",
    ]  # fmt: skip


def test_operands_of_attention_broadcast_as_torch_broadcasts_them() -> None:
    class Shared(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, expands: bool) -> None:
            super().__init__()
            self.linear, self.expands = nn.Linear(16, 16, bias=False), expands
            torch.nn.init.eye_(self.linear.weight)

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            operands = [self.linear(q), k, v]
            if self.expands:
                operands = [x.expand(2, 3, *x.shape[-2:]) for x in operands]
            return functional.scaled_dot_product_attention(*operands)

    rng = torch.Generator().manual_seed(0)
    shapes = (1, 3, 40, 16), (2, 3, 48, 16), (2, 1, 48, 16)
    operands = [torch.randn(shape, generator=rng) for shape in shapes]
    rows = []
    for expands in (False, True):
        model = Shared(expands)
        with fp.analysis.record(model, keep=1, formats=()) as r:
            model(*operands)
        rows.append([row for row in fp.analysis.budget(r, recipe=E4M3, on=None).rows if row.kind == "attention"])
    assert [row.parts for row in rows[0]] == [6, 6]
    assert rows[0] == rows[1]
