"""What cannot be probed is refused in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.probe import black_box
from tests.kit.sweeps import in_turn


def raises(x: Any) -> Any:
    raise RuntimeError("no such\nthing")


class Random:
    """Adds in another order at every call."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, x: Any) -> Any:
        return np.cumsum(self.rng.permutation(x))[-1]


def overwrites(x: Any) -> Any:
    x[0] += 1
    return np.sum(x)


class Later:
    """A sum that does something else from the thirtieth call on."""

    def __init__(self, then: Any) -> None:
        self.then, self.calls = then, 0

    def __call__(self, x: Any) -> Any:
        self.calls += 1
        return np.cumsum(x)[-1] if self.calls < 30 else self.then(x)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "raises": (raises, ValueError, "fn must add float32 of shape (40,); it raised RuntimeError: no such thing."),
    "shape": (lambda x: x, ValueError, "fn must return one number; got shape (40,). Probe a function of one sum."),
    "integers": (lambda x: 3, TypeError, "fn must return floats, such as float32; got int64. Decode its codes in fn."),
    "random": (Random(), ValueError, "fn must return the same bits for the same operands; it returned"),
    "writes": (overwrites, ValueError, "fn must not change its operands; it wrote into one."),
    "writes later": (Later(overwrites), ValueError, "fn must not change its operands; it wrote into one."),
    "dtype later": (
        Later(lambda x: np.float64(np.cumsum(x)[-1])), ValueError,
        "fn must return one dtype; got float64 after float32. Cast its results.",
    ),
    "shape later": (Later(lambda x: x), ValueError, "fn must return one number; got shape (40,)."),
    "raises later": (Later(raises), ValueError, "fn must add float32 of shape (40,); it raised RuntimeError: no such"),
    "no function": (3, TypeError, "fn must be a function that adds, such as np.sum; got 3."),
}  # fmt: skip


@in_turn("name", REFUSED)
def test_a_callable_that_cannot_be_probed_is_refused(name: str) -> None:
    fn, kind, sentence = REFUSED[name]
    with pytest.raises(kind) as refused:
        fp.probe.sum(fn, 40)
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def test_a_product_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got shape \(2, 16\)\. Return the whole product\."):
        fp.probe.matmul(lambda a, b: (a @ b)[:2], 9)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="n must be an integer >= 1; got 0"):
        fp.probe.sum(np.sum, 0)
    with pytest.raises(TypeError, match=r"n must be an integer; got 2\.5"):
        fp.probe.dot(np.dot, 2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="k must be an integer >= 1; got -1"):
        fp.probe.matmul(np.matmul, -1)
    with pytest.raises(ValueError, match="rows must be an integer >= 1; got 0"):
        fp.probe.matmul(np.matmul, 4, rows=0)
    with pytest.raises(ValueError, match="dtype must be a format with a zero"):
        fp.probe.sum(np.sum, 4, "e8m0")
    with pytest.raises(ValueError, match="dtype must be one of"):
        fp.probe.sum(np.sum, 4, "float33")
    with pytest.raises(ValueError, match="scale must be 'ue8m0', 'ue4m3' or None; got 'e8m0'"):
        fp.probe.matmul(np.matmul, 4, scale="e8m0")
    with pytest.raises(ValueError, match="block must be the terms that share a scale, which divide k; got 3 for k = 4"):
        fp.probe.matmul(np.matmul, 4, scale="ue8m0", block=3)
    with pytest.raises(ValueError, match=r"fn must return an array of shape \(16, 16\); got shape \(16, 4\)"):
        fp.probe.matmul(lambda a, b: a, 4)


def test_what_raises_for_arrays_and_for_tensors_is_refused_with_both_reasons() -> None:
    pytest.importorskip("torch")

    def picky(x: Any) -> Any:
        raise TypeError(f"no {type(x).__name__}")

    with pytest.raises(ValueError, match="fn must add") as refused:
        fp.probe.sum(picky, 40)
    assert str(refused.value) == (
        "fn must add float32 of shape (40,), as arrays or as tensors; it raised TypeError: no ndarray and TypeError: "
        "no Tensor."
    )


def test_a_callable_that_takes_too_long_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(black_box, "LONGEST", 1e-9)
    with pytest.raises(ValueError, match="fn must be fast enough for about"):
        fp.probe.sum(np.sum, 100)
