"""A recording sees every product of a model that trains, and changes no bit of the training."""

from __future__ import annotations

import copy
import pickle
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp

torch: Any = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

TENSORS = {"input", "weight", "output", "output_gradient", "weight_gradient"}


# inputs here are small; a test of its own sees the warning
pytestmark = pytest.mark.filterwarnings("ignore:.* had inputs of fewer than:UserWarning")


class Attention(nn.Module):  # type: ignore[misc, name-defined]
    """Attention and two layers that share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.unused = nn.Linear(32, 32)
        self.head = nn.Linear(32, 16, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, codes: Any) -> Any:
        x = self.tokens(codes)  # (batch, length, 32)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return self.head(self.out(x))  # a layer that is used twice


class Checkpointed(nn.Module):  # type: ignore[misc, name-defined]
    """Layers of which one is computed again in backward."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 32), nn.Linear(32, 8)
        self.reentrant = reentrant

    def forward(self, x: Any) -> Any:
        x = self.first(x).relu()
        if self.reentrant is None:
            return self.second(x)
        return torch.utils.checkpoint.checkpoint(self.second, x, use_reentrant=self.reentrant)


def mlp() -> Any:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(inplace=True), nn.Linear(64, 8))


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Flatten()
    )


def multi_head() -> Any:
    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
            self.attn = nn.MultiheadAttention(32, 2, batch_first=True)

        def forward(self, x: Any) -> Any:
            x = self.layer(x)
            return self.attn(x, x, x)[0]

    return Model()


def floats(*shape: int) -> Callable[[], Any]:
    return lambda: torch.randn(*shape)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "mlp": (mlp, floats(64, 32)),
    "convolutions": (convolutions, floats(4, 3, 8, 8)),
    "attention": (Attention, lambda: torch.randint(0, 16, (4, 12))),
    "multi_head": (multi_head, floats(4, 6, 32)),
    "checkpointed": (lambda: Checkpointed(False), floats(16, 32)),
    "checkpointed, reentrant": (lambda: Checkpointed(True), floats(16, 32)),
}


def training(name: str, steps: int = 5, *, micro: int = 1, autocast: bool = False, **options: Any) -> Any:
    """(model, losses, recording): options None records nothing."""
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []

    def loop() -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(micro):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = model(batch()).float().square().mean()
                loss.backward()
                losses.append(loss.item())
            optimizer.step()

    if options.pop("record", True):
        with fp.analysis.record(model, **options) as r:
            loop()
        return model, losses, r
    loop()
    return model, losses, None


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


def test_a_path_in_one_piece_stays_the_one_that_torch_takes() -> None:
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


# ---- steps


def test_micro_batches_are_one_step() -> None:
    _, _, r = training("mlp", 2, micro=3)
    assert r.steps == (1, 2)
    row = r[2, "0", "input"]
    assert row.calls == 3
    assert row.range.count == 3 * 64 * 32
    assert r[2, "0", "weight"].calls == 1
    torch.manual_seed(0)
    model = mlp()
    with fp.analysis.record(model) as parts:
        for _ in range(3):
            model(torch.randn(64, 32)).float().square().mean().backward()
            parts.step()
    merged = parts[1, "0", "input"]
    for step in (2, 3):
        merged = merged.merge(parts[step, "0", "input"])
    assert merged == r[1, "0", "input"]


def test_halves_merge_to_the_whole() -> None:
    torch.manual_seed(0)
    model = mlp()
    batches = [torch.randn(64, 32) for _ in range(4)]

    def recorded(part: list[Any], start: int) -> Any:
        with torch.no_grad(), fp.analysis.record(model, start=start, keep=2, seed=3) as r:
            for x in part:
                model(x)
        return r

    whole, first, second = recorded(batches, 1), recorded(batches[:2], 1), recorded(batches[2:], 3)
    for merged in (first.merge(second), second.merge(first)):
        assert list(merged) == list(whole)
        assert merged.steps == whole.steps == (1, 2, 3, 4)
        assert merged.tensors == whole.tensors
        assert len(whole.tensors) == 8
    twice = first.merge(first)
    assert twice[1, "0", "input"].range.count == 2 * first[1, "0", "input"].range.count


def test_ranks_merge_and_count_a_common_update_once() -> None:
    r, other = training("mlp", 2)[2], training("mlp", 2)[2]
    merged = r.merge(other)
    assert merged.monitors == r.monitors
    assert len(merged.monitors) == 2
    assert merged[2, "0", "weight_gradient"].calls == 2
    for a, b in ((training("mlp", 1, keep=1)[2], "keep"), (training("convolutions", 1)[2], "model")):
        with pytest.raises(ValueError, match=f"recordings to merge must have the same {b}; got "):
            r.merge(a)
    with pytest.raises(TypeError, match="other must be a Recording; got 3"):
        r.merge(3)


def test_validations_between_steps_are_not_recorded() -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(64, 32)
    with fp.analysis.record(model) as r:
        for _ in range(2):
            model(x).sum().backward()
            optimizer.step()
            with torch.no_grad():
                model(torch.randn(7, 32))
    assert r.steps == (1, 2)
    assert {row.calls for row in r} == {1}
    assert r[2, "0", "input"].shape == (64, 32)


def test_a_second_optimizer_belongs_to_the_step_of_the_first() -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizers = [torch.optim.SGD(model[i].parameters(), lr=0.1) for i in (0, 2)]
    with fp.analysis.record(model) as r:
        for _ in range(2):
            model(torch.randn(64, 32)).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert r.steps == r.monitors.steps == (1, 2)
    assert [one.parameter for one in r.monitors.updates] == 2 * ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_idle_steps_cost_next_to_nothing_and_recorded_ones_little() -> None:
    model, x = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)), torch.randn(512, 256)
    optimizer = torch.optim.AdamW(model.parameters())

    def seconds(steps: int = 8) -> float:
        best = float("inf")
        for _ in range(steps):
            start = time.perf_counter()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            best = min(best, time.perf_counter() - start)
        return best

    with fp.analysis.record(model):
        seconds(1)  # compiles
    plain = seconds()
    with pytest.warns(UserWarning, match="nothing was recorded"), fp.analysis.record(model, every=(1000,)):
        idle = seconds()
    with fp.analysis.record(model):
        recorded = seconds()
    assert idle < 1.3 * plain  # measured: 1.00; a busy machine moves it
    assert recorded < 4 * plain  # measured: 1.6


def test_every_takes_the_steps_themselves() -> None:
    assert training("mlp", 5, every=(2, 5))[2].steps == (2, 5)
    assert training("mlp", 5, every=4)[2].steps == (1, 5)


def test_copies_of_a_recorded_model_are_not_recorded() -> None:
    model, x = mlp(), torch.randn(64, 32)
    with torch.no_grad(), fp.analysis.record(model) as r:
        for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            fp.testing.assert_bits_equal(other(x).numpy(), model(x).numpy())
    assert r.steps == (1, 2, 3)
    assert {row.calls for row in r} == {1}


def test_a_model_that_fails_is_left_as_it_was() -> None:
    model = mlp()
    with torch.no_grad(), fp.analysis.record(model) as r:
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model(torch.randn(64, 31))
        model(torch.randn(64, 32))
    assert r[2, "0", "input"].calls == 1
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_forward_pass_that_is_interrupted_ends_with_the_next_update() -> None:
    class Interrupted(nn.Module):  # type: ignore[misc, name-defined]
        on = True

        def forward(self, x: Any) -> Any:
            if self.on:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(nn.Linear(32, 32), Interrupted())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fp.analysis.record(model) as r:
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(64, 32))
        model[1].on = False
        optimizer.step()
        model(torch.randn(64, 32)).sum().backward()
        optimizer.step()
    assert {row.key for row in r if row.step == 2} == {(2, "0", tensor) for tensor in TENSORS}
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_model_in_a_checkpoint_counts_once() -> None:
    model, x = mlp(), torch.randn(64, 32)
    with fp.analysis.record(model) as r:
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
        r.step()
    assert r.steps == (1,)
    assert {row.calls for row in r} == {1}


# ---- monitors


def test_updates_that_round_away_are_counted() -> None:
    model = nn.Sequential(nn.Linear(1, 4, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0], [2.0**-20], [4.0], [0.0]]))
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-24)
    scales = torch.tensor([1.0, 1.0, 1.0, 0.0])  # gradients: the last row asks for nothing
    with fp.analysis.record(model) as r:
        (model(torch.ones(1, 1)) * scales).sum().backward()
        optimizer.step()
    (one,) = r.monitors
    assert one["gradient_norm"] == 3**0.5
    assert one["lost_updates"] == 1 / 3  # 1 - 2**-24 is a float32, 4 - 2**-24 is 4
    assert one["update_ratio"] == (2 * 2.0**-48) ** 0.5 / (17 + 2.0**-40) ** 0.5
    assert r.monitors.to_frame(by="parameter").parameter.tolist() == ["0.weight"]


def test_a_skipped_step_ends_and_its_fallback_is_noted() -> None:
    class Scaler:
        scale = 4.0

        def get_scale(self) -> float:
            return self.scale

    model, scaler = mlp(), Scaler()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fp.analysis.record(model, scaler=scaler) as r:
        model(torch.randn(64, 32)).sum().backward()
        scaler.scale = 2.0  # instead of a step
        model(torch.randn(64, 32)).sum().backward()
        optimizer.step()
    assert r.steps == (1, 2)
    assert [tuple(one) for one in r.monitors.scales] == [(1, "loss", 4.0, True), (2, "loss", 2.0, False)]


def test_a_scaler_of_torch_is_followed() -> None:
    torch.manual_seed(0)
    model, scaler = mlp(), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fp.analysis.record(model, scaler=scaler) as r:
        for factor in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(64, 32)).sum() * factor).backward()
            scaler.step(optimizer)
            scaler.update()
    assert r.steps == (1, 2, 3)
    assert r.monitors.steps == (1, 3)
    assert [(one.step, one.scale, one.fallback) for one in r.monitors.scales] == [
        (1, 8.0, False), (2, 8.0, True), (3, 4.0, False),
    ]  # fmt: skip


# ---- what comes of it


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
def test_a_recording_comes_back_from_its_file(kind: str, tmp_path: Path) -> None:
    if kind == "safetensors":
        pytest.importorskip("safetensors")
    _, _, r = training("attention", 2, keep=1, autocast=True)
    path = tmp_path / f"run.{kind}"
    r.save(path)
    again = fp.analysis.Recording.load(path)
    assert list(again) == list(r)
    assert again.monitors == r.monitors
    assert again.steps == r.steps
    assert repr(again) == repr(r)
    for a, b in zip(again.tensors, r.tensors, strict=True):
        assert a == b
        fp.testing.assert_bits_equal(next(a.chunks()), next(b.chunks()))
    assert list(again.merge(r)) == list(r.merge(r))
    with pytest.raises(ValueError, match="this one has ended"):
        again.step()


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "codes.npz"
    fp.encode_scaled(np.ones((4, 32), np.float32), fp.E4M3, fp.scalings.MX).save(path)
    with pytest.raises(ValueError, match="wanted a recording, got a file of something else"):
        fp.analysis.Recording.load(path)


def test_the_study_judges_what_was_kept() -> None:
    _, _, r = training("mlp", 2, keep=2)
    report = r.study(formats="e4m3", scalings=None, roundings="nearest_even")
    assert {row.tensor for row in report.recommendations} == {tensor.name for tensor in r.tensors}
    with pytest.raises(ValueError, match="Pass keep=1 or more"):
        training("mlp", 1)[2].study()


def test_the_frame_has_a_row_for_each_tensor() -> None:
    pytest.importorskip("pandas")
    _, _, r = training("mlp", 2)
    table = r.to_frame()
    assert len(table) == len(r) == 2 * 2 * 5
    assert list(table.columns[:5]) == ["step", "layer", "tensor", "role", "shape"]
    assert {"E4M3_sqnr_db", "E4M3_below", "BF16_sqnr_db"} <= set(table.columns)
    long = r.to_frame(by="format")
    assert len(long) == 2 * len(r)
    report = fp.analysis.error(np.ones(4, np.float32), "bf16")
    assert {"format", *report.to_dict()} - set(long.columns) == {"rounding", "overflow", "subnormals", "bits_per_value"}
    assert long[long.format == "BF16"].sqnr_db.tolist() == table.BF16_sqnr_db.tolist()
    for wrong in (r, r.monitors):
        with pytest.raises(ValueError, match=r"by must be .* or .*; got 'layer'"):
            wrong.to_frame(by="layer")


def test_a_sample_has_both_ends_and_all_is_counted() -> None:
    from fpsim.analysis.models.measuring import Measure, sampled

    x = np.arange(10_000, dtype=np.float32)
    assert sampled(x, None) is not None
    assert sampled(x, None).size == 10_000
    spread, (error,) = Measure("bf16", 4096)(x)
    assert spread.count == 10_000
    assert error.count == 4096
    assert sampled(x, 4096)[-1] == 9999


# ---- what is refused


def test_small_inputs_are_warned_of() -> None:
    model = mlp()
    warned = pytest.warns(UserWarning, match="2 layers had inputs of fewer than 1,000 values in all")
    with warned, torch.no_grad(), fp.analysis.record(model):
        model(torch.randn(2, 32))
    with pytest.warns(UserWarning, match="nothing was recorded: no forward pass"), fp.analysis.record(model):
        pass


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
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
        (torch.compile(mlp(), backend="eager"), {}, "model must run eagerly to be recorded; got a compiled one"),
    ],
)  # fmt: skip
def test_what_cannot_be_recorded_is_refused_in_a_sentence(model: Any, options: Any, sentence: str) -> None:
    with pytest.raises((TypeError, ValueError), match=sentence):
        fp.analysis.record(model, **options)
