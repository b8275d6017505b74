"""What share of a model a report has seen: beside counts by hand, in every report that says it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fpsim as fp

torch: Any = pytest.importorskip("torch")

from fpsim.analysis.models.coverage import Coverage  # noqa: E402
from fpsim.analysis.models.multiplications import multiplications  # noqa: E402

nn = torch.nn
functional = nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Around(nn.Module):  # type: ignore[misc, name-defined]
    """A layer, something in the middle, and a layer."""

    def __init__(self, middle: Any, call: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(32, 32), middle, nn.Linear(32, 32)
        self.call = call

    def forward(self, x: Any) -> Any:
        return self.last(self.call(self.middle, self.first(x)))


class Dense(nn.Module):  # type: ignore[misc, name-defined]
    """A layer of its own, by any function of torch."""

    def __init__(self, multiply: Any) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(32, 32) / 8)
        self.multiply = multiply

    def forward(self, x: Any) -> Any:
        return self.multiply(x, self.matrix)


@torch.library.custom_op("fpsim_tests::multiply", mutates_args=())  # type: ignore[untyped-decorator]
def foreign_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """x @ w by an operator that torch knows only by name."""
    return x @ w


foreign_product.register_autograd(lambda ctx, slopes: (slopes, None))


ROWS = 64
SQUARE = 32 * 32
# What is not seen -> the module, how it is called, its weights and its multiplications for each row.
UNSEEN: dict[str, tuple[Any, Any, int, int]] = {
    "LSTM": (lambda: nn.LSTM(32, 32), lambda m, x: m(x)[0], 8 * SQUARE, 8 * SQUARE),
    "GRU": (lambda: nn.GRU(32, 16, bidirectional=True), lambda m, x: m(x)[0], 4608, 4608),
    "RNN": (lambda: nn.RNN(32, 32, 2), lambda m, x: m(x)[0], 4 * SQUARE, 4 * SQUARE),
    "LSTMCell": (lambda: nn.LSTMCell(32, 32), lambda m, x: m(x)[0], 8 * SQUARE, 8 * SQUARE),
    "GRUCell": (lambda: nn.GRUCell(32, 32), lambda m, x: m(x), 6 * SQUARE, 6 * SQUARE),
    "RNNCell": (lambda: nn.RNNCell(32, 32), lambda m, x: m(x), 2 * SQUARE, 2 * SQUARE),
    "Dense, by fpsim_tests.multiply, uncounted": (
        lambda: Dense(lambda x, w: foreign_product(x, w)), lambda m, x: m(x), SQUARE, 0,
    ),
    "Dense, by inner": (lambda: Dense(torch.inner), lambda m, x: m(x), SQUARE, SQUARE),
    "Dense, by mv": (
        lambda: Dense(lambda x, w: torch.stack([w.mv(row) for row in x])), lambda m, x: m(x), SQUARE, SQUARE,
    ),
    "Dense, by multi_dot": (
        lambda: Dense(lambda x, w: torch.linalg.multi_dot([x, w, w.T])), lambda m, x: m(x), SQUARE,
        SQUARE + SQUARE * 32 // ROWS,  # the two square matrices first
    ),
    "Dense, by einsum": (
        lambda: Dense(lambda x, w: torch.einsum("ni,oi->no", x, w)), lambda m, x: m(x), SQUARE, SQUARE,
    ),
    "Dense, by tensordot": (
        lambda: Dense(lambda x, w: torch.tensordot(x, w, 1)), lambda m, x: m(x), SQUARE, SQUARE,
    ),
    "Dense": (lambda: Dense(lambda x, w: (x[:, None, :] * w).sum(-1)), lambda m, x: m(x), SQUARE, 0),
    "Bilinear": (lambda: nn.Bilinear(32, 32, 32), lambda m, x: m(x, x), 32 * SQUARE, 32 * SQUARE),
}  # fmt: skip
every_unseen = pytest.mark.parametrize("kind", list(UNSEEN))


def around(kind: str) -> Any:
    middle, call, _, _ = UNSEEN[kind]
    return Around(middle(), call)


def square(model: Any, x: Any) -> Any:
    return model(x).square().mean()


def recorded(model: Any, x: Any, **options: Any) -> Any:
    with fp.analysis.record(model, keep=1, formats=(), **options) as r:
        square(model, x).backward()
        r.step()
    return r


@every_unseen
def test_what_is_not_seen_is_counted_and_named(kind: str, tmp_path: Path) -> None:
    _, _, weights, count = UNSEEN[kind]
    model, x = around(kind), torch.randn(ROWS, 32)
    r = recorded(model, x)
    seen = r.coverage
    assert seen.weights == 2 * SQUARE / (2 * SQUARE + weights)
    assert seen.multiplications == 2 * SQUARE / (2 * SQUARE + count)
    (missing,) = seen.unseen
    assert (missing.name, missing.kind, missing.multiplications) == ("middle", kind, ROWS * count)
    assert str(seen).endswith(f"; not seen: middle ({kind}).")
    r.save(tmp_path / "r.npz")
    assert fp.analysis.Recording.load(tmp_path / "r.npz").coverage == seen


@every_unseen
def test_every_report_says_it_first_where_it_is_most_of_the_model(kind: str) -> None:
    model, batches = around(kind), [torch.randn(ROWS, 32) for _ in range(2)]
    r = recorded(model, batches[0])
    reports = [
        r, fp.analysis.budget(r, recipe="BF16"),
        fp.analysis.sensitivity(model, batches, square, recipes="BF16", products="fprop"),
    ]  # fmt: skip
    for report in reports:
        assert report.coverage.weights == r.coverage.weights
        assert report.coverage.multiplications == r.coverage.multiplications
        first, others = str(report).splitlines()[0], str(report).splitlines()[1:]
        if r.coverage.is_minor:
            assert first.startswith(r.coverage.headline)
        else:
            assert str(r.coverage) in others


def test_a_diagnosis_begins_with_what_it_does_not_judge() -> None:
    batches = [torch.randn(ROWS, 32) for _ in range(2)]
    diagnosis = fp.analysis.diagnose(around("LSTM"), batches, square, recipes="BF16", progress=lambda *_: None)
    assert diagnosis.sentences[0] == (
        "Only 20.0 % of the model's weights and 20.0 % of its multiplications are seen; not seen: middle (LSTM)."
    )
    assert diagnosis.budget.coverage == diagnosis.coverage


def test_a_model_of_which_nothing_is_recorded_warns_of_that() -> None:
    model = nn.Sequential(nn.LSTM(32, 32))
    said = pytest.warns(UserWarning, match="^Only 0 % of the model's weights .* not seen: 0 .LSTM.[.]$")
    with said, torch.no_grad(), fp.analysis.record(model) as r:
        model(torch.randn(ROWS, 32))
    assert len(r) == 0
    assert str(r).startswith("Only 0 % of the model's weights")


def test_attention_counts_what_its_two_products_take() -> None:
    class Attends(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(32, 32)

        def forward(self, x: Any) -> Any:
            return functional.scaled_dot_product_attention(self.project(x), x, x)

    r = recorded(Attends(), torch.randn(4, 12, 32))
    parts = {part.name: part.multiplications for part in r.coverage.parts}
    assert parts == {"project": 48 * 32 * 32, "attention": 2 * 4 * 12 * 12 * 32}
    assert r.coverage.multiplications == 1.0


def test_embeddings_count_where_something_multiplies_by_them() -> None:
    class Tied(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.tokens, self.mix, self.head = nn.Embedding(40, 32), nn.Linear(32, 32), nn.Linear(32, 40, bias=False)
            if tied:
                self.head.weight = self.tokens.weight

        def forward(self, codes: Any) -> Any:
            return self.head(self.mix(self.tokens(codes)))

    for tied in (False, True):
        r = recorded(Tied(tied), torch.randint(0, 40, (4, 12)))
        assert sum(r.coverage.sizes.values()) == 32 * 32 + 40 * 32
        assert r.coverage.weights == 1.0
        part = fp.analysis.budget(r, recipe="BF16", layers="mix").coverage
        assert part.weights == 32 * 32 / (32 * 32 + 40 * 32)
        assert not part.is_minor  # it was asked for


def test_a_layer_that_does_not_run_is_said_not_to() -> None:
    model = nn.Sequential(nn.Linear(32, 32))
    model.add_module("idle", nn.Linear(32, 320))
    model.forward = lambda x: model[0](x)
    r = recorded(model, torch.randn(ROWS, 32))
    assert str(r.coverage) == (
        "Only 9.1 % of the model's weights and 100 % of its multiplications are seen; not seen: idle (Linear, which "
        "did not run)."
    )


def test_a_weight_that_a_parametrization_makes_counts_by_what_it_is_made_of() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)), nn.Linear(32, 32))
    assert recorded(model, torch.randn(ROWS, 32)).coverage.weights == 1.0


def test_merged_recordings_have_one_coverage() -> None:
    model = around("GRU")
    first = recorded(model, torch.randn(ROWS, 32))
    second = recorded(model, torch.randn(ROWS, 32), start=2)
    both = first.merge(second).coverage
    assert (both.weights, both.multiplications) == (first.coverage.weights, first.coverage.multiplications)
    assert Coverage.from_dict(both.to_dict()) == both


A, B, V = torch.ones(4, 6), torch.ones(6, 5), torch.ones(6)
COUNTED: dict[str, tuple[Any, Any, int]] = {
    "matmul": (torch.matmul, (A, B), 120), "by name": (torch.mm, (), 120),
    "reversed": (torch.Tensor.__rmatmul__, (B, A), 120),
    "mv": (torch.mv, (A, V), 24), "dot": (torch.dot, (V, V), 6), "inner": (torch.inner, (A, A), 96),
    "addmm": (torch.addmm, (torch.ones(5), A, B), 120),
    "addbmm": (torch.addbmm, (torch.ones(5), A.expand(3, 4, 6), B.expand(3, 6, 5)), 360),
    "multi_dot": (torch.linalg.multi_dot, ([V, B, torch.ones(5, 3)],), 45),
    "matrix_power": (torch.linalg.matrix_power, (torch.ones(3, 3), 5), 81),
    "einsum of three": (torch.einsum, ("ij,jk,kl->il", A, B, torch.ones(5, 2)), 160),
    "einsum with an ellipsis": (torch.einsum, ("...ij,kj->...ik", torch.ones(2, 3, 4, 5), torch.ones(6, 5)), 720),
    "einsum by numbers": (torch.einsum, (A, [0, 1], B, [1, 2], [0, 2]), 120),
    "grouped convolution": (
        functional.conv2d, (torch.ones(1, 4, 8, 8), torch.ones(6, 2, 3, 3), None, 1, 0, 1, 2), 36 * 6 * 2 * 9,
    ),
    "transposed convolution": (functional.conv_transpose1d, (torch.ones(1, 4, 8), torch.ones(4, 6, 3)), 32 * 18),
    "no product": (torch.add, (A, A), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_multiplications_are_those_of_a_hand(name: str) -> None:
    func, args, want = COUNTED[name]
    kwargs = {} if args else {"input": A, "mat2": B}
    assert multiplications(func, args, kwargs, func(*args, **kwargs)) == want


def test_attention_of_the_trainer_is_named_in_both_arithmetics() -> None:
    """The trainer's own products are seen by reports as torch's are: 4 heads of 32 tokens, two layers."""
    from fpsim.train import Settings, Trainer, recipes

    seen = []
    for arithmetic in ("torch", "specified"):
        trainer = Trainer(recipes.FP32, Settings(steps=2, batch=2, context=32, arithmetic=arithmetic))
        tokens = torch.from_numpy(trainer.data.batch(0, step=0, batch=2, context=32)[0])
        seen.append(fp.analysis.diff(trainer.model, tokens, "H100", "B200", recipe="BF16").coverage)
    by_torch, specified = seen
    assert by_torch.multiplications == specified.multiplications < 1
    assert [(part.name, part.multiplications) for part in by_torch.unseen] == [
        (part.name, part.multiplications) for part in specified.unseen
    ]
    assert {part.kind for part in specified.unseen} == {"Core, by attention_product"}


def test_products_of_complex_numbers_are_not_seen() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8)).to(torch.complex64)
    with pytest.warns(UserWarning, match=r"Only 0 % of the model's weights .* not seen: 0 \(Linear\)"):
        record_once(model, torch.randn(4, 8, dtype=torch.complex64))


def record_once(model: Any, x: Any) -> None:
    """Record one forward pass of a model."""
    with fp.analysis.record(model):
        model(x)
