"""Arithmetic returns the codes and flags of the integer core in any state of the processor's float unit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.arithmetic import routes
from fpsim.arithmetic.float_plan import float_plan, tiny_below
from fpsim.arithmetic.operation import operation
from fpsim.core.layouts import decode_plan, encode_plan, pack_plan, unpack_layout
from fpsim.runtime import threads
from fpsim.runtime.processor import keeps_ieee
from tests.arithmetic.checks import assert_same
from tests.arithmetic.float_cases import by_core
from tests.arithmetic.test_float_kernels import BINARY, MANY, NAMES, TININESS, arity
from tests.kit import processor
from tests.kit.hard_columns import hard_columns
from tests.oracles import casts

Array = npt.NDArray[Any]
STATES = pytest.mark.parametrize("state", processor.STATES)
ON_X86 = pytest.mark.skipif(not processor.IS_SUPPORTED, reason="sets the state of x86 processors")
DEEP = fp.Format("deep", 5, 10, bias=1060)  # subnormal in float64
IN_STATES = [
    *[(name, fmt, "nearest_even") for name in NAMES for fmt in (fp.FP16, fp.BF16)],
    *[(name, fp.FP32, "up") for name in NAMES],
    ("add", DEEP, "down"),
]


def in_state(bits: int) -> Iterator[tuple[str, fp.Format, str, list[Array], tuple[Array, Array]]]:
    """The operations with operands, and results worked out before the state is entered."""
    for name, fmt, rounding in IN_STATES:
        op = operation(name, (fmt,) * arity(name), fmt, rounding=rounding)
        columns = [np.resize(column, MANY) for column in hard_columns(name, op.formats, fmt, MANY // 4, seed=14)]
        yield name, fmt, rounding, columns, by_core(op, columns)


@ON_X86
@STATES
def test_the_processors_state_changes_no_result(state: str) -> None:
    bits = processor.STATES[state]
    for name, fmt, rounding, columns, want in in_state(bits):
        with processor.processor_state(bits):
            assert not keeps_ieee()
            codes, flags = getattr(fp, name)(*columns, fmt=fmt, rounding=rounding, flags=True)
            alone = getattr(fp, name)(*columns, fmt=fmt, rounding=rounding)
        assert keeps_ieee()
        assert_same(codes, want[0], name, columns, {"fmt": fmt, "rounding": rounding}, "codes")
        assert_same(flags, want[1], name, columns, {"fmt": fmt, "rounding": rounding}, "flags")
        assert np.array_equal(alone, codes)


@ON_X86
@STATES
def test_a_float_loop_alone_would_betray_the_state(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check the results above differ, so that it is the check that the other tests see."""
    monkeypatch.setattr(routes, "keeps_ieee", lambda: True)
    bits, betrayed = processor.STATES[state], 0
    for name, fmt, rounding, columns, want in in_state(bits):
        with processor.processor_state(bits):
            codes = getattr(fp, name)(*columns, fmt=fmt, rounding=rounding)
        betrayed += not np.array_equal(codes, want[0])
    assert betrayed > 0


@ON_X86
@STATES
def test_the_state_of_a_thread_of_the_caller_changes_no_result(state: str) -> None:
    cases = list(in_state(processor.STATES[state]))
    got: list[tuple[Array, Array]] = []

    def work() -> None:
        processor.set_state(processor.STATES[state])
        assert not keeps_ieee()
        got.extend(
            getattr(fp, name)(*columns, fmt=fmt, rounding=rounding, flags=True)
            for name, fmt, rounding, columns, _ in cases
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(got) == len(cases)
    for (name, fmt, rounding, columns, want), (codes, flags) in zip(cases, got, strict=True):
        assert_same(codes, want[0], name, columns, {"fmt": fmt, "rounding": rounding}, "codes")
        assert_same(flags, want[1], name, columns, {"fmt": fmt, "rounding": rounding}, "flags")


def by_the_other(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in the thread that shares the work of this one."""
    returned: list[Any] = []
    assert threads._workers.submit(lambda: returned.append(function(*arguments))).get() is None
    return returned[0]


@ON_X86
@pytest.mark.parametrize("where", ["the caller's thread", "the other thread"])
def test_the_state_of_one_thread_out_of_two_changes_no_result(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FPSIM_NUM_THREADS", "2")
    op = operation("multiply", (fp.BF16, fp.BF16), fp.BF16)
    drawn = hard_columns("multiply", op.formats, fp.BF16, 4096, seed=15)
    columns = [np.tile(column, 2 * threads.SMALLEST // column.size) for column in drawn]
    assert columns[0].size >= threads.SMALLEST
    want = by_core(op, columns)
    flushed = processor.FLUSH_TO_ZERO | processor.DENORMALS_ARE_ZEROS
    monkeypatch.setattr(threads, "_workers", threads.Workers())  # of one thread, whatever ran before
    assert threads._workers.ready(1)
    assert by_the_other(keeps_ieee)  # starts its thread: a later one would begin in the state of this one
    here = where == "the caller's thread"
    before = processor.set_state(flushed) if here else by_the_other(processor.set_state, flushed)
    try:
        assert keeps_ieee() != here
        assert by_the_other(keeps_ieee) == here
        codes, flags = fp.multiply(*columns, fmt="bf16", flags=True)
    finally:
        if here:
            processor.set_state(before)
        else:
            by_the_other(processor.set_state, before)
        threads._workers.end()
    assert np.array_equal(codes, want[0])
    assert np.array_equal(flags, want[1])


@ON_X86
@STATES
def test_what_is_prepared_in_a_state_serves_in_every_other(state: str) -> None:
    plans = (float_plan, encode_plan, pack_plan, decode_plan, unpack_layout)
    fmts = [fp.FP16, fp.BF16, fp.FP32, fp.E4M3, DEEP, fp.Format("top", 5, 10, bias=-992, infinities=False, nan="top")]

    def prepared() -> list[Any]:
        for plan in plans:
            plan.cache_clear()
        thresholds = [
            int(tiny_below(fmt, tininess, scaled))
            for fmt in (fp.FP16, fp.BF16)
            for tininess in TININESS
            for scaled in (False, True)
        ]
        words = [{"rounding": rounding, "tininess": tininess} for rounding in casts.MODES for tininess in TININESS]
        found = [float_plan(operation(name, (fmt, fmt), fmt, **w)) for name in BINARY for fmt in fmts for w in words]
        layouts = [unpack_layout(fmt, "keep").tolist() for fmt in fmts]
        arrays = [array for plan in found if plan is not None for array in (plan.layouts, plan.limits)]
        return [thresholds, layouts, [None if array is None else array.tolist() for array in arrays]]

    want = prepared()
    with processor.processor_state(processor.STATES[state]):
        got = prepared()
    for plan in plans:
        plan.cache_clear()
    assert got == want


@ON_X86
@STATES
def test_a_table_made_in_a_state_is_the_same(state: str) -> None:
    op = operation("divide", (fp.E5M2, fp.E5M2), fp.E5M2)
    want = routes._tables(op)
    with processor.processor_state(processor.STATES[state]):
        got = routes._tables(op)
    assert np.array_equal(got[0], want[0])
    assert np.array_equal(got[1], want[1])
