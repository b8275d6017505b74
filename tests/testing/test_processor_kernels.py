"""Checks of kernels as libraries for processors have them: K in parts, odd terms first, flushed subnormals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import check_kernel
from fpsim.testing.products import search
from fpsim.testing.products.envelope import FLUSHES, within
from fpsim.testing.products.promise import Adding, KernelInputs, promise_of
from fpsim.testing.products.sums import RULES, JoinedParts
from tests.kit.chains import chained
from tests.kit.sweeps import in_turn

f32 = np.float32
FMA = fp.FusedMultiplyAdd(fp.FP32)
SHAPES = [(6, 5, 40), (6, 5, 500), (4, 4, 1100)]


def flushed(x: Any) -> Any:
    return np.where(np.abs(x) < np.finfo(f32).tiny, np.copysign(f32(0), x), x)


def chained_flushing(a: Any, b: Any, terms: Any) -> Any:
    """Return a chain in float32 over some terms, from zero, whose products and sums are flushed."""
    total = np.zeros((a.shape[0], b.shape[1]), f32)
    for k in terms:
        total = flushed(total + flushed(a[:, [k]] * b[[k]]))
    return total


def in_parts(sizes: Callable[[int], list[int]], odd_first: bool = False) -> Callable[[Any, Any], Any]:
    """Chains over parts of K, whose sums are added one after another."""

    def kernel(a: Any, b: Any) -> Any:
        a, b = a.astype(f32), b.astype(f32)
        total, start = None, 0
        for size in sizes(a.shape[1]):
            terms = list(range(start, start + size))
            if odd_first:
                terms = [k for i in range(0, size, 2) for k in terms[i : i + 2][::-1]]
            part = chained(a, b, terms)
            total = part if total is None else total + part
            start += size
        return total

    return kernel


def halved(k: int) -> list[int]:
    if k <= 384:
        return [k]
    return [-(-k // 2), k // 2] if k < 1536 else [min(768, k - start) for start in range(0, k, 768)]


def last_halved(k: int) -> list[int]:
    sizes = []
    while k >= 768:
        sizes.append(384)
        k -= 384
    return [*sizes, -(-k // 2), k // 2] if k > 384 else [*sizes, k]


def doubled(k: int) -> list[int]:
    size = 1024 if k > 1024 else 512
    return [min(size, k - start) for start in range(0, k, size)]


CUTS = {"halved": halved, "last_halved": last_halved, "doubled": doubled}


@in_turn("rule", RULES)
def test_parts_of_k_by_a_rule_are_cut_as_the_library_cuts_them(rule: str) -> None:
    terms = {"halved": 384, "last_halved": 384, "doubled": 512}[rule]
    how = JoinedParts(Adding(FMA), terms, 0, 0, fp.FP32, "forward", rule=rule)
    for k in (1, 2, 383, 384, 385, 500, 512, 513, 767, 768, 769, 1024, 1025, 1535, 1536, 1537, 2000, 3001):
        assert [cut.stop - cut.start for cut in how.cuts(k)] == CUTS[rule](k), k
        assert how.cuts(k)[-1].stop == k


@in_turn("name, words", [
    ("halved", "K in halves above 384 terms, in parts of 768 from 1536 on"),
    ("last_halved", "parts of 384 terms, the last 768 or fewer in halves"),
    ("doubled", "parts of 512 terms, of 1024 where K is above 1024"),
])  # fmt: skip
@in_turn("odd_first", [False, True], some=[True])
def test_parts_of_k_by_a_rule_are_named(name: str, words: str, odd_first: bool) -> None:
    kernel = in_parts(CUTS[name], odd_first)
    report = check_kernel(kernel, a="bf16", accumulate=FMA, shapes=SHAPES, raises=False)
    turned = ", the odd term of each pair first," if odd_first else ""
    assert len(report.causes) == 1, str(report)
    assert f"adds as {words}{turned} by " in report.causes[0]


EVENLY: dict[str, Callable[[int], list[int]]] = {
    "partial sums of 384 terms": lambda k: [min(384, k - i) for i in range(0, k, 384)],
    "2 slices of K": lambda k: [-(-k // 2), k // 2],
}


@in_turn(
    "words, odd_first",
    [(words, odd_first) for words in EVENLY for odd_first in (False, True)],
    some=[("partial sums of 384 terms", True), ("2 slices of K", False)],
)
def test_parts_of_equal_size_and_halves_are_named(words: str, odd_first: bool) -> None:
    kernel = in_parts(EVENLY[words], odd_first)
    report = check_kernel(kernel, a="bf16", accumulate=FMA, shapes=SHAPES, raises=False)
    assert words in report.causes[0], str(report)
    assert ("odd term" in report.causes[0]) == odd_first


def test_the_length_that_failed_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SECONDS", 0.2)  # nothing would explain it in the usual time either
    weights = np.random.default_rng(0).permutation(90)

    def by_weight(a: Any, b: Any) -> Any:
        """Add in order up to 64 terms."""
        k = a.shape[1]
        return chained(a, b, range(k) if k <= 64 else np.argsort(weights[:k]))

    shapes = [(6, 6, 64), (6, 6, 90), (1, 3, 70)]
    report = check_kernel(by_weight, a="fp32", accumulate=fp.Sequential(fp.FP32), shapes=shapes, raises=False)
    assert report.model is not None
    assert (report.model.n, report.model.shape) == (90, (6, 6))
    assert "A probe of 90 terms, 6 x 6, says" in report.explanation
    order = np.argsort(weights[:90])
    a, b = np.random.default_rng(1).standard_normal((2, 6, 90)).astype(f32)
    assert report.model.order is not None
    assert report.model.order.chain == (*sorted(order[:2]), *order[2:])
    fp.testing.assert_bits_equal(report.model.matmul(a, b.T), by_weight(a, b.T))


# ---- flushed subnormals, where no bits are promised


ENVELOPE: dict[str, Any] = {"a": "fp32", "accumulate": fp.Sequential(fp.FP32), "envelope": True, "raises": False,
                            "shapes": [(4, 5, 33), (16, 16, 100)]}  # fmt: skip


def from_the_last(a: Any, b: Any, adding: Callable[..., Any] = chained) -> Any:
    return adding(a, b, range(a.shape[1] - 1, -1, -1))


FLUSHING: dict[str, Callable[[Any, Any], Any]] = {
    "takes subnormals of both operands as zeros": lambda a, b: from_the_last(flushed(a), flushed(b)),
    "takes subnormals of a as zeros": lambda a, b: from_the_last(flushed(a), b),
    "takes subnormals of b as zeros": lambda a, b: from_the_last(a, flushed(b)),
    "gives zeros for subnormal results": lambda a, b: flushed(from_the_last(a, b)),
    "takes subnormal sums as zeros": lambda a, b: from_the_last(a, b, chained_flushing),
}  # fmt: skip


@in_turn("words", FLUSHING)
def test_an_envelope_names_the_subnormals_that_a_kernel_of_any_order_flushes(words: str) -> None:
    report = check_kernel(FLUSHING[words], **ENVELOPE)
    assert not report.ok
    assert report.causes == (words,), str(report)


def test_flushed_operands_and_sums_are_told_together_where_operands_show_both() -> None:
    promise = promise_of("fp32", None, fp.Sequential(fp.FP32))
    a = np.array([[2.0**-130, 2.0**-70, 0.0], [2.0**-130, 1.0, 0.0]], f32)
    b = np.array([[2.0**100, 1.0], [2.0**-60, 2.0**-58], [1.0, 1.0]], f32)
    x = KernelInputs("by hand", "both", a, b)
    got = chained_flushing(flushed(a), flushed(b), range(3)).astype(np.float64)
    held = [flush.words for flush in FLUSHES if within(promise, x, got, flush)]
    assert held == [
        "takes subnormals of both operands and subnormal sums as zeros",
        "takes subnormals of a and subnormal sums as zeros",
    ]


def test_an_envelope_calls_no_other_fault_a_flush(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SECONDS", 1)  # nothing explains it in the usual time either
    report = check_kernel(lambda a, b: from_the_last(a, b) * f32(1.001), **ENVELOPE)
    assert not report.ok
    assert not [cause for cause in report.causes if "subnormal" in cause]
    assert check_kernel(from_the_last, **ENVELOPE).ok
