"""Compiled parts of a model: they run as compiled, their products are named with their share, copies run eagerly."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest

import fpsim as fp
from fpsim.analysis.models.compiled import HiddenProducts, compiled_modules, coverage_of_call

torch: Any = pytest.importorskip("torch")
nn = torch.nn
pytestmark = [  # what torch's compiler says of itself
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
WAYS = ("module", "compile()", "forward")


class Mixed(nn.Module):  # type: ignore[misc, name-defined]
    """A convolution, attention with queries of its own, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.query, self.down = nn.Conv1d(32, 32, 3, padding=1), nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        x = self.conv(x.mT).mT
        return self.down(nn.functional.scaled_dot_product_attention(self.query(x), x, x).relu())


class Graphs:
    """A backend of torch.compile that counts how often its graphs run."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            self.runs += 1
            return graph.forward(*args)

        return run


def made(way: str, backend: Any) -> Any:
    """Return a model whose middle is compiled in one of three ways, or not at all."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(32, 32), Mixed(), nn.Linear(32, 8))
    if way == "module":
        model[1] = torch.compile(model[1], backend=backend)
    elif way == "compile()":
        model[1].compile(backend=backend)
    elif way == "forward":
        model[1].forward = torch.compile(model[1].forward, backend=backend)
    return model


def batch() -> Any:
    torch.manual_seed(1)
    return torch.randn(4, 64, 32)


def hidden_share() -> float:
    """Return the share of the multiplications in the middle, of an eager recording."""
    model = made("", None)
    with fp.analysis.record(model) as found:
        model(batch()).sum().backward()
    parts = found.coverage.parts
    inside = sum(part.multiplications for part in parts if part.name.startswith("1"))
    return inside / sum(part.multiplications for part in parts)


@pytest.mark.parametrize("way", WAYS)
def test_record_runs_compiled_parts_as_they_are_and_names_their_share(way: str) -> None:
    graphs = Graphs()
    model, x = made(way, graphs), batch()
    wanted = model(x)
    runs = graphs.runs
    assert runs > 0
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with fp.analysis.record(model, keep=1) as r:
            got = model(x)
            got.sum().backward()
    assert graphs.runs == 2 * runs  # the graph itself ran
    fp.testing.assert_bits_equal(got, wanted)
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before
    assert r.layers == ("0", "2")
    share = hidden_share()
    assert 1 - r.coverage.multiplications == pytest.approx(share)
    (note,) = r.notes
    assert note.startswith(f"1 (Mixed) is compiled: its products, {fp.display.wording.percent(share)} of the model's")
    assert str(said[-1].message) == note  # of which one is warned
    assert "1 (Mixed, compiled)" in str(r.coverage)
    assert r[1, "2", "weight_gradient"].shape == (8, 32)


@pytest.mark.parametrize("way", WAYS)
def test_diagnoses_run_a_copy_of_compiled_parts_eagerly_and_say_so(way: str) -> None:
    graphs = Graphs()
    model, x = made(way, graphs), batch()
    model(x)
    runs = graphs.runs
    options: dict[str, Any] = {"recipes": "FP8_TENSOR", "progress": lambda *_: None}
    diagnosis = fp.analysis.diagnose(model, [x], **options)
    wanted = fp.analysis.diagnose(made("", None), [x], **options)
    assert graphs.runs == runs
    assert [one.error for one in diagnosis.verdicts] == [one.error for one in wanted.verdicts]
    assert diagnosis.plan.measured == wanted.plan.measured
    assert diagnosis.coverage.multiplications == 1.0
    assert any(note.startswith("1 (Mixed) is compiled, and a copy ran as it is written: ") for note in diagnosis.notes)
    assert set(compiled_modules(model)) == {"1"}
    model(x)
    assert graphs.runs == runs + runs  # the model is as compiled as it was


@pytest.mark.parametrize("way", WAYS)
def test_diff_says_the_share_of_products_in_graphs(way: str) -> None:
    model, x = made(way, "eager"), batch()
    divergence = fp.analysis.diff(made("", None), x, "torch", "torch", second_model=model)
    assert not divergence
    assert 1 - divergence.coverage.multiplications == pytest.approx(hidden_share())
    assert "not seen: 1 (Mixed, compiled)" in str(divergence)


def test_functions_that_are_compiled_run_as_written_in_a_recording() -> None:
    graphs = Graphs()
    torch._dynamo.reset()
    function = torch.compile(lambda x, weight: x @ weight.T, backend=graphs)

    class Own(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(16, 32))

        def forward(self, x: Any) -> Any:
            return function(x, self.matrix)

    model, x = nn.Sequential(Own()), batch()
    model(x)
    runs = graphs.runs
    with fp.analysis.record(model) as r:
        model(x)
    assert (graphs.runs, r.layers) == (runs, ("0.matrix",))
    model(x)
    assert graphs.runs == runs + 1  # and as compiled as before after it


def test_a_model_that_is_compiled_as_a_whole() -> None:
    model = made("", None)
    model.compile(backend="eager")
    with pytest.raises(
        ValueError, match=r"got one whose compile\(\) was called \(Sequential\)\. Record it before that"
    ):
        fp.analysis.record(model)
    divergence = fp.analysis.diff(copy.deepcopy(made("", None)), batch(), "torch", "torch", second_model=model)
    assert not divergence
    assert divergence.coverage.multiplications == 0
    assert "The model" not in str(coverage_of_call(made("", None), batch()))


class Branching(torch.nn.Module):  # type: ignore[misc]
    """A module whose keyword decides which of two layers runs."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = torch.nn.Linear(4, 4), torch.nn.Linear(4, 40)

    def forward(self, x: Any, small: Any = None, large: Any = None) -> Any:
        return self.large(large) if small is None else self.small(small)


def test_calls_of_equal_shapes_under_other_names_are_counted_apart() -> None:
    counter, x = HiddenProducts(Branching()), torch.ones(2, 4)
    counts = [counter.of((x,), {name: x}) for name in ("small", "large", "small")]
    assert [sum(part.multiplications for part in count.parts) for count in counts if count] == [32, 320, 32]
