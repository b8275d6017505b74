"""Formats, operands and loops that the tests of float kernels share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.arithmetic import routes
from fpsim.arithmetic.operation import Operation
from fpsim.runtime.elementwise import Run
from tests.arithmetic.checks import assert_same, keywords

Array = npt.NDArray[Any]


def run(way: Run, columns: list[Array], op: Operation, flagged: bool) -> tuple[Array, ...]:
    """(codes, flags) or (codes,) by one way of computing."""
    targets: tuple[Array, ...] = (np.full(columns[0].size, 0x55, op.word),)
    if flagged:
        targets = (*targets, np.full(columns[0].size, 0x55, np.uint8))
    way(tuple(columns), targets, 0)
    return targets


def by_core(op: Operation, columns: list[Array]) -> tuple[Array, Array]:
    codes, flags = run(routes.by_core(op), columns, op, True)
    return codes, flags


def compare(way: Run, op: Operation, columns: list[Array], **words: Any) -> None:
    """One way gives the core's codes and flags, and the same codes without flags."""
    want = by_core(op, columns)
    named = keywords(op.formats, op.result.fmt, words)
    codes, flags = run(way, columns, op, True)
    assert_same(codes, want[0], op.name, columns, named | {"flags": True}, "codes")
    assert_same(flags, want[1], op.name, columns, named | {"flags": True}, "flags")
    (codes,) = run(way, columns, op, False)
    assert_same(codes, want[0], op.name, columns, named, "codes")


def ordinary(size: int) -> list[Array]:
    """BF16 operands whose products and quotients are normal numbers, and inexact."""
    generator = np.random.default_rng(5)
    return [generator.integers(0x3F81, 0x4000, size).astype(np.uint16) for _ in range(2)]
