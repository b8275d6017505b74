"""How matrices lie in memory is part of a black box: the same in every call, and offered as a choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.probe.order import Order
from fpsim.testing import assert_bits_equal
from tests.kit.chains import chained
from tests.kit.sweeps import case, in_turn
from tests.probe.planted import chain

FORWARD, BACKWARD = (Order.of(chain(terms)) for terms in (range(24), range(23, -1, -1)))


def strides(matrix: Any) -> tuple[int, int]:
    """Those of a matrix in elements."""
    first, second = (stride // matrix.itemsize for stride in matrix.strides)
    return first, second


def by_strides(a: Any, b: Any) -> Any:
    """Adds from the last term where a matrix is no new row-major array, as libraries choose kernels by strides."""
    plain = strides(a) == (a.shape[1], 1) and strides(b) == (b.shape[1], 1)
    terms = range(a.shape[1]) if plain else range(a.shape[1] - 1, -1, -1)
    return chained(a, b, terms)


@in_turn("rows, columns", [(16, 1), (1, 16), (1, 1), (3, 5)])
def test_a_product_of_one_row_or_column_is_asked_in_one_layout(rows: int, columns: int) -> None:
    model = fp.probe.matmul(by_strides, 24, rows=rows, columns=columns)
    assert model.order == FORWARD
    assert model.names == ("Sequential(FP32)",)


@in_turn("rows, columns", [(16, 1), (1, 16), (3, 5)])
def test_each_layout_has_its_strides_in_every_call(rows: int, columns: int) -> None:
    wanted = {
        "nn": ((24, 1), (columns, 1)), "nt": ((24, 1), (1, 24)), "tn": ((1, rows), (columns, 1)),
        "tt": ((1, rows), (1, 24)),
    }  # fmt: skip
    for layout, pair in wanted.items():
        seen: set[Any] = set()

        def fn(a: Any, b: Any, seen: Any = seen) -> Any:
            seen.add((strides(a), strides(b), a.ctypes.data % 64, b.ctypes.data % 64))
            return by_strides(a, b)

        with case(layout):
            model = fp.probe.matmul(fn, 24, rows=rows, columns=columns, layout=layout)
            assert seen == {(*pair, 0, 0)}
            assert model.order == (FORWARD if layout == "nn" else BACKWARD)


def test_a_model_says_and_keeps_its_layout(tmp_path: Path) -> None:
    model = fp.probe.matmul(by_strides, 24, columns=1, layout="nt")
    assert "calls, b transposed in memory" in model.explain()
    model.save(tmp_path / "model.json")
    assert fp.probe.load(tmp_path / "model.json").layout == "nt"
    assert fp.probe.load(tmp_path / "model.json").explain() == model.explain()
    a, b = np.random.default_rng(0).standard_normal((2, 16, 24)).astype(np.float32)
    assert_bits_equal(model.matmul(a, b.T), by_strides(a, b.T))


def test_tensors_have_the_strides_of_the_layout() -> None:
    torch = pytest.importorskip("torch")
    seen = set()

    def fn(a: Any, b: Any) -> Any:
        seen.add((a.stride(), b.stride()))
        return torch.from_numpy(by_strides(a.float().numpy(), b.float().numpy()))

    for layout in ("nn", "nt"):
        fp.probe.matmul(fn, 24, a=torch.bfloat16, columns=1, layout=layout)
    assert seen == {((24, 1), (1, 1)), ((24, 1), (1, 24))}


def test_an_operand_that_is_written_in_a_later_call_is_refused() -> None:
    calls = []

    def fn(a: Any, b: Any) -> Any:
        calls.append(1)
        if len(calls) > 20:
            a[0, 0] = 7
        return by_strides(a, b)

    with pytest.raises(ValueError, match="fn must not change its operands; it wrote into one"):
        fp.probe.matmul(fn, 24)


def test_another_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="layout must be one of nn, nt, tn, tt; got 'row'"):
        fp.probe.matmul(by_strides, 24, layout="row")
