"""What a step of a recording is: micro-batches, halves, ranks, validations, and what idle ones cost."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from typing import Any

import pytest

import fpsim as fp
from tests.analysis.models.trained import TENSORS, mlp, training

torch: Any = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

# inputs here are small; a test of its own sees the warning
pytestmark = pytest.mark.filterwarnings("ignore:.* had inputs of fewer than:UserWarning")


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


class Wrapped:
    """An optimizer of a library's own, around one of torch."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        self.optimizer.step()


@pytest.mark.parametrize("first", ["optimizer", "hand"])
def test_a_step_that_is_ended_by_hand_too_counts_once(first: str) -> None:
    torch.manual_seed(0)
    model = mlp()
    optimizer = Wrapped(torch.optim.SGD(model.parameters(), lr=0.1))
    with fp.analysis.record(model, every=2) as r:
        for _ in range(4):
            model(torch.randn(64, 32)).sum().backward()
            ends = (optimizer.step, r.step)
            for end in ends if first == "optimizer" else ends[::-1]:
                end()
    assert r.steps == r.monitors.steps == (1, 3)


def test_a_pass_without_gradients_that_is_ended_by_hand_too_counts_once() -> None:
    model = mlp()
    with torch.no_grad(), fp.analysis.record(model) as r:
        for _ in range(2):
            model(torch.randn(64, 32))
            r.step()
    assert r.steps == (1, 2)


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

    def is_cheap() -> bool:
        plain = seconds()
        with pytest.warns(UserWarning, match="nothing was recorded"), fp.analysis.record(model, every=(1000,)):
            idle = seconds()
        with fp.analysis.record(model):
            recorded = seconds()
        return idle < 1.3 * plain and recorded < 4 * plain  # measured: 1.00 and 1.6

    with fp.analysis.record(model):
        seconds(1)  # compiles
    assert any(is_cheap() for _ in range(3)), "a processor that others use may slow down once, not three times"


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
        enabled = True

        def forward(self, x: Any) -> Any:
            if self.enabled:
                raise KeyboardInterrupt
            return x

    model = nn.Sequential(nn.Linear(32, 32), Interrupted())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with fp.analysis.record(model) as r:
        with pytest.raises(KeyboardInterrupt):
            model(torch.randn(64, 32))
        model[1].enabled = False
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


def test_passes_in_other_threads_disturb_neither_results_nor_the_recording() -> None:
    model, x = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))), torch.randn(64, 64)
    wanted, started, answers = model(x), threading.Event(), []

    class Waiting(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                started.set()
            else:
                thread.start()
                assert started.wait(20)
            return x

    model.append(Waiting())
    thread = threading.Thread(target=lambda: answers.append(model(x)))
    r = fp.analysis.record(model)
    recording = r.__enter__()
    answers.append(model(x))
    thread.join()
    with pytest.warns(UserWarning, match="began in another thread"):
        r.__exit__(None, None, None)
    assert all(torch.equal(answer, wanted) for answer in answers)
    assert len(answers) == 2
    assert {row.calls for row in recording} == {1}
    assert "forward" not in vars(model[0])
