"""A kernel of Triton, in a file of its own, since the compiler reads its source."""

from __future__ import annotations

import pytest

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def chain(a, b, c, M, N, K, SIZE: tl.constexpr):  # type: ignore[no-untyped-def, name-defined]
    """c (M, N) = a (M, K) by b (K, N), one term after the other."""
    i, j = tl.arange(0, SIZE), tl.arange(0, SIZE)
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for k in range(K):
        x = tl.load(a + i * K + k, mask=i < M, other=0.0)
        y = tl.load(b + k * N + j, mask=j < N, other=0.0)
        total += x[:, None].to(tl.float32) * y[None, :].to(tl.float32)
    tl.store(c + i[:, None] * N + j[None, :], total, mask=(i[:, None] < M) & (j[None, :] < N))
