"""Subnormal results, zeros and empty products of CPU libraries, as torch 2.13.0 gave them on an Intel Xeon with AMX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal

s = fp.schedules
TINY = 2.0**-126  # the least normal number of float32 and of BF16
BRGEMM = ("amx", "amx_fp16", "avx512_fp16", "avx512_bf16")  # whose casts to BF16 flush


def filled(shape: Any, value: float, fmt: fp.Format = fp.FP32) -> Any:
    return fp.cast(np.full(shape, value, np.float32), fmt)


@pytest.mark.parametrize("isa", [*BRGEMM, "avx512"])
def test_casts_of_brg_matmul_flush_subnormals(isa: Any) -> None:
    a, b = np.zeros((40, 1200), np.float32), np.zeros((1200, 40), np.float32)
    a[:, 0], a[:, -1], b[0], b[-1] = 2.0**-60, -(2.0**-60), 1.5 * 2.0**-66, 2.0**-66
    left, right, bias = fp.cast(a, fp.BF16), fp.cast(b, fp.BF16), filled(40, -TINY, fp.BF16)
    library = s.torch_mm(isa, layout="tn")
    kept = TINY / 2  # 1.5 * TINY in the first segment of K, -TINY in the last
    assert library.at(40, 40, 1200, "bf16").flushes == (isa in BRGEMM)
    assert_bits_equal(fp.matmul(left, right, schedule=library), filled((40, 40), kept * (isa == "avx512"), fp.BF16))
    assert fp.matmul(left, right, schedule=library, out_fmt=fp.FP32)[0, 0] == kept  # the cast is not oneDNN's
    a[:, -1] = 0
    biased = fp.matmul(fp.cast(a, fp.BF16), right, schedule=library, bias=bias)
    assert_bits_equal(biased, filled((40, 40), kept * (isa == "avx512"), fp.BF16))
    out = filled((40, 40), 7.0, fp.BF16)
    assert fp.matmul(left, right, schedule=library, bias=-bias, out=out) is out
    assert_bits_equal(out, filled((40, 40), 1.5 * TINY, fp.BF16))


def test_a_flushed_result_keeps_its_sign() -> None:
    a, b = filled((40, 64), 0.0, fp.BF16), filled((64, 40), 0.0, fp.BF16)
    for sign in (1, -1):
        with_bias = fp.matmul(a, b, schedule=s.torch_mm("amx"), bias=filled(40, sign * TINY / 4, fp.BF16))
        assert_bits_equal(with_bias, filled((40, 40), sign * 0.0, fp.BF16))


@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_products_of_one_term_keep_the_sign_of_zero_in_mkl(layout: Any) -> None:
    library = s.torch_mm(layout=layout)
    for m, n in ((3, 4), (2, 8), (3, 11), (40, 200)):
        product = fp.matmul(filled((m, 1), -1), filled((1, n), 0), schedule=library)
        assert_bits_equal(product, filled((m, n), -0.0))
        small = fp.matmul(filled((m, 1), -1e-30), filled((1, n), 1e-30), schedule=library, bias=filled(n, -0.0))
        assert_bits_equal(small, filled((m, n), -0.0))
    # torch's own loop adds the product to +0
    small = fp.matmul(filled((3, 1), -(2.0**-80), fp.BF16), filled((1, 3), 2.0**-80, fp.BF16), schedule=library)
    assert_bits_equal(small, filled((3, 3), 0.0, fp.BF16))


def test_sums_of_minus_zero_stay_so_where_two_threads_share_k() -> None:
    a, b = filled((43, 777), -1e-30), filled((777, 46), 1e-30)
    assert_bits_equal(fp.matmul(a, b, schedule=s.torch_mm(threads=2)), filled((43, 46), -0.0))


@pytest.mark.parametrize("fmt", [fp.FP32, fp.BF16, fp.FP16], ids=str)
def test_a_product_without_terms_is_the_bias(fmt: fp.Format) -> None:
    library, a, b = s.torch_mm("amx"), filled((2, 0), 1, fmt), filled((0, 3), 1, fmt)
    for bias in (-0.0, 2.5):
        assert_bits_equal(fp.matmul(a, b, schedule=library, bias=filled(3, bias, fmt)), filled((2, 3), bias, fmt))
    assert_bits_equal(fp.matmul(a, b, schedule=library), filled((2, 3), 0.0, fmt))
