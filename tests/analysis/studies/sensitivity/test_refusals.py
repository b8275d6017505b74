"""Tests that what cannot be measured is refused in one sentence, before any work."""

from __future__ import annotations

from typing import Any

import pytest

import fpsim as fp
from tests.analysis.studies.sensitivity.models import E4M3, made, nn, squared, torch


def refused(error: type[Exception], match: str, *, of: Any = None, **changes: Any) -> None:
    model, batches, loss = made("mlp", 1)
    arguments = {"model": model if of is None else of, "batches": batches, "loss": loss, "recipes": E4M3} | changes
    first = [arguments.pop(name) for name in ("model", "batches", "loss")]
    with pytest.raises(error, match=match) as report:
        fp.analysis.sensitivity(*first, **arguments)
    assert "\n" not in str(report.value)


def test_models_that_have_no_products_to_measure() -> None:
    refused(TypeError, r"model must be a torch.nn.Module; got 3", of=3)
    refused(ValueError, r"model must have a torch.nn.Linear, .* got Sequential with none", of=nn.Sequential(nn.ReLU()))
    why = r"with none \(0: a weight made by a parametrization .* makes it a parameter\)\.$"
    refused(ValueError, why, of=nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))))
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(32, 8))
    refused(ValueError, r"model must have weights to be measured; got '0.weight' on the meta device", of=model)
    refused(
        ValueError,
        r"model must run eagerly to be measured; got a compiled one \(OptimizedModule\)",
        of=torch.compile(made("mlp")[0], backend="eager"),
    )


def test_a_model_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 4)

    class Elsewhere:
        device = torch.device("cuda")

    monkeypatch.setattr(model, "named_parameters", lambda: [("weight", Elsewhere())])
    refused(ValueError, r"model must be on the CPU, .* got 'weight' on cuda. Use model.cpu\(\)", of=model)


def test_a_model_that_cannot_be_copied() -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    model.lock = __import__("threading").Lock()
    refused(ValueError, r"model must be one that copy.deepcopy can copy, .* got Sequential: cannot pickle", of=model)


def test_layers_that_match_nothing_list_near_ones() -> None:
    refused(ValueError, r"got 'blocks.\*', which matches none of 3. Near it: '4', '2', '0'", layers="blocks.*")
    refused(TypeError, r"layers must be a shell pattern or several", layers=3)
    refused(TypeError, r"layers must be a shell pattern or several", layers=())


def test_losses_without_one_value_or_a_gradient() -> None:
    refused(TypeError, r"loss must be a function of \(model, batch\)", loss="mse")
    refused(
        TypeError, r"loss must be a function .*one_argument\(output.*: too many positional arguments", loss=one_argument
    )
    refused(TypeError, r"batches\[0\] got \d\.\d+, which is not a tensor", loss=lambda m, b: squared(m, b).item())
    refused(ValueError, r"for batches\[0\] got a tensor of shape \(64, 8\). Return its mean", loss=lambda m, b: m(b[0]))
    refused(ValueError, r"batches\[0\] got one without a gradient", loss=lambda m, b: squared(m, b).detach())
    refused(ValueError, r"batches\[0\] got nan even with exact", loss=lambda m, b: squared(m, b) * float("nan"))


def one_argument(output: Any) -> Any:
    return output


def test_a_loss_that_does_not_call_the_model_it_is_given() -> None:
    model, _, _ = made("mlp")
    refused(ValueError, r"loss must call the model that it is given", of=model, loss=lambda m, b: squared(model, b))


def test_batches_that_do_not_fit_say_which() -> None:
    _, batches, _ = made("mlp", 1)
    short = torch.randn(64, 31), torch.randn(64, 8)
    refused(ValueError, r"batches\[1\] raises RuntimeError: mat1 and mat2 shapes", batches=[batches[0], short])
    refused(ValueError, r"batches must hold one batch or more; got none", batches=[])
    refused(ValueError, r"got none. An iterator yields them once: pass a list", batches=iter(()))
    refused(TypeError, r"batches must be a list .* an array of torch.float32, shape \(64, 32\)", batches=batches[0][0])
    refused(TypeError, r"batches must be a list .* got 'train'", batches="train")
    refused(ValueError, r"a sample of at most 1,000", batches=(batches[0] for _ in range(1001)))


def test_an_iterator_of_few_batches_is_listed() -> None:
    model, batches, loss = made("mlp", 2)
    report = fp.analysis.sensitivity(model, iter(batches), loss, recipes=E4M3, products="wgrad")
    assert report == fp.analysis.sensitivity(model, batches, loss, recipes=E4M3, products="wgrad")
    assert len(report.losses) == 2


def test_recipes_that_there_are_none_of() -> None:
    refused(ValueError, r"recipe must be one of .* got 'DEEPSEEK'. Did you mean 'DEEPSEEK_V3'", recipes="DEEPSEEK")
    refused(ValueError, r"recipes must be one recipe or several; got none", recipes=[])
    refused(TypeError, r"recipe must be an fp.torch.LinearRecipe, .* got 8", recipes=[8])
    refused(TypeError, r"recipes must be names, recipes or a dictionary of these; got 8", recipes=8)
    refused(ValueError, r"recipes must have different names; got \['', ''\]", recipes=[fp.torch.LinearRecipe()] * 2)
    refused(ValueError, r"got 'TE_DELAYED', whose scales come from earlier steps", recipes=["TE_DELAYED"])
    refused(ValueError, r"products must be one of fprop, dgrad, wgrad; got 'dgrd'", products=["dgrd"])
    refused(ValueError, r"backend must be one of", backend="tpu")
    refused(ValueError, r"seed must be an integer >= 0; got -1", seed=-1)


def test_a_product_that_a_recipe_cannot_have_is_noted_and_left_out() -> None:
    model, batches, loss = made("mlp")
    recipe = fp.torch.LinearRecipe("e2m1", "e2m1", "e2m1", hadamard=128)  # of 64 tokens
    report = fp.analysis.sensitivity(model, batches, loss, recipes={"mixed": recipe})
    assert {row.product for row in report.rows} == {"fprop", "dgrad"}
    assert report.notes[0].startswith(
        "wgrad of 0 cannot be computed in mixed: the Hadamard transform of 128 terms needs a multiple"
    )
    assert len(report.notes) == 3
    refused(ValueError, r"recipes must allow a product .* Hadamard", recipes={"a": recipe}, products="wgrad")


def test_products_that_the_loss_does_not_run_through() -> None:
    model = nn.Sequential(nn.Linear(32, 8))
    refused(ValueError, r"products must exist in the chosen layers; got dgrad", of=model, products="dgrad")


def test_assignments_of_what_was_not_measured() -> None:
    model, batches, loss = made("mlp", 1)
    report = fp.analysis.sensitivity(model, batches, loss, recipes=E4M3)
    with pytest.raises(ValueError, match=r"assignment must name measured products; got \('0', 'dgrad'\)"):
        report.measure({("0", "dgrad"): "E4M3"})
    with pytest.raises(ValueError, match=r"assignment must name recipes of the report, E4M3; got 'BF16'"):
        report.measure({("0", "fprop"): "BF16"})
    with pytest.raises(TypeError, match=r"assignment must be a dictionary"):
        report.measure([("0", "fprop")])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"by must be one of gradient_error, "):
        report.ranking("harm")
    with pytest.raises(KeyError, match=r"no row of layer, product and recipe"):
        report["0", "dgrad", "E4M3"]


def test_a_backward_pass_that_fails_names_the_loss() -> None:
    class Overwriting(torch.nn.Linear):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return super().forward(x).exp().mul_(2)

    model, x = Overwriting(8, 8), torch.ones(4, 8)
    said = "loss must have a backward pass; that of {} raises RuntimeError: one of the variables needed for gradient"
    with pytest.raises(ValueError, match=said.format(r"batches\[0\]")):
        fp.analysis.sensitivity(torch.nn.Sequential(torch.nn.Linear(8, 8), model), [x], total, recipes="BF16")
    with pytest.raises(ValueError, match=said.format("the batch")):
        fp.analysis.diff(model, x, "torch", "torch", loss=total)


def test_a_lazy_model_is_run_first() -> None:
    model, x = torch.nn.Sequential(torch.nn.LazyLinear(8)), torch.ones(4, 8)
    for measure in (
        lambda: fp.analysis.sensitivity(model, [x], recipes="BF16"), lambda: fp.analysis.record(model),
        lambda: fp.analysis.diff(model, x, "torch", "torch"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"'0.weight' has none before the model has run. Run it"):
            measure()
    model(x)
    fp.analysis.sensitivity(model, [x], recipes="BF16")


def test_layers_of_complex_numbers_stay_exact_and_count() -> None:
    class Complex(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 8, dtype=torch.complex64)
            self.head = torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return self.head(self.inner(x.to(torch.complex64)).imag)

    report = fp.analysis.sensitivity(Complex(), [torch.ones(4, 8)], total, recipes="FP8_TENSOR")
    assert {row.layer for row in report.rows} == {"head"}
    assert report.notes[0] == "Not measured, since layers of complex numbers stay exact: inner."
    assert report["head", "dgrad", "FP8_TENSOR"].gradient_error > 0


def total(model: Any, x: Any) -> Any:
    return model(x).square().sum()
