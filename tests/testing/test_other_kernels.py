"""Checks of kernels of JAX and of Triton's interpreter, where these are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import check_kernel

SHAPES = [(3, 4, 33)]
FLUSHED = ("takes subnormals of both operands as zeros", "adds as FusedMultiplyAdd(FP32, subnormals='flush')")


def _flushing(a: Any, b: Any) -> Any:
    """Multiply as a processor that takes subnormals as zeros and gives zeros for them."""
    smallest = np.float32(fp.FP32.smallest_normal)
    a, b = (np.where(np.abs(x) < smallest, np.copysign(np.float32(0), x), x) for x in (a, b))
    return fp.matmul(a, b, accumulate=fp.FusedMultiplyAdd(fp.FP32, subnormals="flush"))


def test_a_processor_that_flushes_operands_and_results_is_named() -> None:
    report = check_kernel(_flushing, a="fp32", accumulate=fp.FusedMultiplyAdd(fp.FP32), shapes=SHAPES, raises=False)
    assert report.causes == FLUSHED, str(report)


# ---- JAX


@pytest.fixture(scope="module")
def chained() -> Callable[..., Any]:
    """Return a chain over K, compiled by XLA for the CPU."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def chain(a: Any, b: Any) -> Any:
        def step(total: Any, terms: Any) -> Any:
            x, y = (each.astype(jnp.float32) for each in terms)
            return total + x[:, None] * y[None, :], None

        start = jnp.zeros((a.shape[0], b.shape[1]), jnp.float32)
        return jax.lax.scan(step, start, (a.T, b))[0]

    compiled: Callable[..., Any] = jax.jit(chain)
    return compiled


def test_jax_gets_its_own_arrays_where_it_takes_no_others(chained: Callable[..., Any]) -> None:
    jax = pytest.importorskip("jax")

    def typed(a: Any, b: Any) -> Any:
        assert isinstance(a, jax.Array)
        return chained(a, b)

    how: dict[str, Any] = {"accumulate": fp.FusedMultiplyAdd(fp.FP32), "shapes": SHAPES, "certificate": False}
    for a in ("e4m3", "fp16"):  # whose products are never subnormal in float32
        assert check_kernel(typed, a=a, **how).ok
        assert check_kernel(typed, a=a, **how, takes="jax").ok


def test_a_broken_kernel_of_jax_is_named(chained: Callable[..., Any]) -> None:
    report = check_kernel(
        lambda a, b: chained(a[:, ::-1], b[::-1]), a="fp16", accumulate=fp.FusedMultiplyAdd(fp.FP32), shapes=SHAPES,
        takes="jax", raises=False,
    )  # fmt: skip
    assert report.causes == ("adds K from the last term to the first",), str(report)


# ---- Triton's interpreter


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Callable[..., Any]]:
    """Yield a chain over K in Triton, which runs without a GPU."""
    torch = pytest.importorskip("torch")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        pytest.importorskip("triton")
        from tests.testing.triton_chain import chain

        def launch(a: Any, b: Any) -> Any:
            c = torch.empty((a.shape[0], b.shape[1]), dtype=torch.float32)
            chain[(1,)](a.contiguous(), b.contiguous(), c, *c.shape, a.shape[1], 16)
            return c

        yield launch


def test_a_kernel_of_triton_has_the_bits_of_its_order(interpreted: Callable[..., Any]) -> None:
    for a in ("fp32", "fp16"):
        assert check_kernel(interpreted, a=a, accumulate=fp.Sequential(fp.FP32), shapes=SHAPES, certificate=False).ok


def test_tritons_interpreter_reads_subnormals_of_bf16_wrongly_and_is_named(interpreted: Callable[..., Any]) -> None:
    report = check_kernel(interpreted, a="bf16", accumulate=fp.Sequential(fp.FP32), shapes=SHAPES, raises=False)
    assert report.ok or report.causes == ("reads subnormals of both operands without their leading bit",), str(report)


def test_a_change_of_subnormals_keeps_what_is_normal() -> None:
    from fpsim.testing.products.operand_changes import _without_leading_bit
    from fpsim.testing.products.promise import promise_of

    promise = promise_of("bf16", None, fp.Sequential(fp.FP32))
    got = _without_leading_bit(np.array([1.40625 * 2.0**-127, -(2.0**-128), 0.0, -3.5, np.inf]), promise.a)
    assert got.tolist() == [0.40625 * 2.0**-126, -0.0, 0.0, -3.5, np.inf]
