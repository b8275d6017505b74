"""Subnormal inputs, products, sums and results that become zero are told from each other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import case, in_turn

f32 = np.float32


def flushed(x: Any) -> Any:
    """Without the subnormals of its dtype."""
    x = np.asarray(x)
    return np.where(np.abs(x) < fp.format(x.dtype).smallest_normal, np.copysign(x.dtype.type(0), x), x)


def product_of(flushes: tuple[str, ...], fused: bool, out: Any = f32) -> Callable[[Any, Any], Any]:
    """A chain over K in float32 that begins with its first product, or with fused multiply-adds that begin at +0."""

    def fn(a: Any, b: Any) -> Any:
        a = flushed(a) if "inputs" in flushes or "inputs of a" in flushes else a
        b = flushed(b) if "inputs" in flushes or "inputs of b" in flushes else b
        a, b = a.astype(np.float64), b.astype(np.float64)
        total = f32(np.zeros((a.shape[0], b.shape[1])))
        for k in range(a.shape[1]):
            term = a[:, [k]] * b[[k]]
            if not fused:
                term = f32(term)
                term = flushed(term) if "products" in flushes else term
            if k == 0 and not fused:
                total = term
                continue
            total = f32(total + term)  # of halves: their products and these sums are exact in float64
            total = flushed(total) if "sums" in flushes else total
        return flushed(total.astype(out)) if "results" in flushes else total.astype(out)

    return fn


def check(fn: Any, model: Any, a: Any) -> None:
    """That a model has the bits of its black box, where operands and products are around the smallest numbers."""
    assert model.unknown == ()
    rng = np.random.default_rng(8)
    low = 2 * int(np.log2(fp.format(a).smallest_normal)) if a != f32 else -126
    for shift in (0, low // 2, low - 3):
        x, y = (rng.standard_normal((16, 24)) * 2.0 ** rng.integers(-3, 4, (16, 24)) for _ in range(2))
        x = np.ldexp(x, shift).astype(a)
        with np.errstate(all="ignore"):
            assert_bits_equal(model.matmul(x, y.T.astype(a)), fn(x, y.T.astype(a)))


CASES: tuple[tuple[str, ...], ...] = (
    (), ("inputs",), ("products",), ("sums",), ("results",), ("inputs", "sums"), ("inputs", "products", "sums"),
    ("inputs of a",), ("inputs of b", "products"), ("products", "results"),
)  # fmt: skip


@in_turn("flushes", CASES)
def test_the_flushes_of_a_chain_in_float32_are_told(flushes: tuple[str, ...]) -> None:
    fn = product_of(flushes, fused=False)
    with np.errstate(all="ignore"):
        model = fp.probe.matmul(fn, 24, rows=16, columns=16, a=f32)
        assert (model.found, model.flushes) == (True, flushes)
        assert model.flushes_subnormals == ("sums" in flushes)
        check(fn, model, f32)


@in_turn("flushes", [(), ("inputs",), ("sums",), ("inputs", "sums")])
def test_the_flushes_of_fused_multiply_adds_are_told(flushes: tuple[str, ...]) -> None:
    fn = product_of(flushes, fused=True)
    with np.errstate(all="ignore"):
        model = fp.probe.matmul(fn, 24, a="bf16")
        assert (model.found, model.flushes) == (True, flushes)
        check(fn, model, ml_dtypes.bfloat16)


def test_the_flushes_of_halves_are_those_of_their_own_formats() -> None:
    for flushes in (("inputs",), ("results",), ("inputs of b", "results")):
        fn = product_of(flushes, fused=True, out=np.float16)
        with case(flushes), np.errstate(all="ignore"):
            model = fp.probe.matmul(fn, 24, a=np.float16)
            assert (model.found, model.flushes) == (True, flushes)
            check(fn, model, np.float16)


def test_flushed_terms_of_a_sum_are_told_from_flushed_sums() -> None:
    def of(terms: bool, sums: bool, starts: bool) -> Callable[[Any], Any]:
        def fn(x: Any) -> Any:
            x = flushed(x) if terms else x
            total = f32(flushed(x[0])) if starts else x[0]
            for each in x[1:]:
                total = f32(flushed(f32(total + each))) if sums else f32(total + each)
            return total

        return fn

    for terms, sums, starts in ((True, False, False), (False, True, False), (False, True, True), (True, True, False)):
        with case(terms, sums, starts), np.errstate(all="ignore"):
            model = fp.probe.sum(of(terms, sums, starts), 24)
            assert model.flushes == ("inputs",) * terms + ("sums",) * sums
            assert model.unknown == ()


def test_a_model_says_and_keeps_what_it_flushes(tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        model = fp.probe.matmul(product_of(("inputs", "products", "sums"), fused=False), 24, a=f32)
    assert "; subnormal inputs, products and sums become zero." in model.explain()
    model.save(tmp_path / "model.json")
    again = fp.probe.load(tmp_path / "model.json")
    assert (again.flushes, again.explain()) == (model.flushes, model.explain())
    text = (tmp_path / "model.json").read_text()
    start, stop = text.index('"flushes"'), text.index('"overflow"')
    (tmp_path / "old.json").write_text(f'{text[:start]}"subnormals": "flush",\n  {text[stop:]}')  # of version 0.1
    assert fp.probe.load(tmp_path / "old.json").flushes == ("inputs", "products", "sums")
