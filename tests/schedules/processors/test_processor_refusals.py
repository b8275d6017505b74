"""Libraries on processors: shapes without a proven rule, and wrong arguments, refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.testing import assert_bits_equal
from tests.kit.sweeps import in_turn
from tests.kit.torch_mm import FORMATS

s = fp.schedules
CHAIN = fp.FusedMultiplyAdd("fp32")
loose: Any = fp


@in_turn(
    "library, shape, missing",
    [
        (s.onednn("avx2"), (40, 50, 60), "torch gives oneDNN no BF16 with these instructions; take torch_mm()"),
        (s.onednn("amx", l1=4096), (40, 50, 600), "none of oneDNN's blocks fits caches of these sizes"),
        (s.onednn("avx512", threads=3), (40, 50, 60), "how 3 threads share a product in gemm:jit:bf16 is not known"),
        (
            s.torch_mm("avx512_fp16", layout="nt"),
            (1, 1, 6000, "fp16"),
            "the kernel of one row with a transposed b is not known",
        ),
        (s.onednn("avx512"), (1, 1, 6000), "how gemm:jit:bf16 adds a single result is not known"),
        (s.torch_native(), (9, 9, 9, "fp32"), "torch's own loop takes BF16 and FP16"),
        (s.mkl(), (9, 9, 9, "bf16"), "sgemm multiplies float32"),
        (s.torch_mm("avx2"), (9, 9, 9, "fp32"), "the kernels of MKL without AVX-512 are not known"),
        (s.mkl(3), (9, 9, 9, "fp32"), "how 3 threads share a product is not known"),
        (s.mkl(2, layout="nt"), (12, 33, 485, "fp32"), "the last 1 to 3 columns beyond a multiple of 16 is not known"),
        (s.mkl(layout="nt"), (9, 3, 99, "fp32"), "the kernel of up to 3 columns with 32 to 24 M terms is not known"),
        (s.openblas(3), (9, 9, 9, "fp32"), "how 3 threads share a product is not known"),
        (s.openblas(), (1, 16, 9, "fp32"), "how sgemv adds one row or one column is not known"),
        (s.openblas(), (9, 9, 9, "bf16"), "sgemm multiplies float32"),
        (s.mkl(), (3, 140_000, 5, "fp32"), "how more than 131072 rows or columns are added is not known"),
    ],
)
def test_a_shape_without_a_proven_rule_is_declined_in_a_sentence(
    library: fp.schedules.ShapedSchedule, shape: Any, missing: str
) -> None:
    text = library.declines(*shape)
    assert f" has no proven rule for {shape[0]} x {shape[1]} x {shape[2]} in " in text
    assert text.endswith(f"{missing}.")
    with pytest.raises(s.DeclinedShape) as refused:
        library.at(*shape)
    assert str(refused.value) == text
    fmt = FORMATS[shape[3] if len(shape) > 3 else "bf16"]
    with pytest.raises(ValueError, match="has no proven rule for"):
        fp.matmul(np.zeros((shape[0], shape[2]), fmt.storage), np.zeros((shape[2], shape[1]), fmt.storage),
                  schedule=library, fmt=fmt)  # fmt: skip


X = np.ones((4, 6), np.float32)
HALF = X.astype(np.float16)


@in_turn(
    "call, words",
    [
        (lambda: fp.matmul(X, X.T, schedule=s.torch_mm(), accumulate=CHAIN), "accumulate is chosen by torch_mm("),
        (lambda: fp.matmul(X[:1, :4], X, schedule=s.torch_mm(), bias=X[0]), "adds a bias by sgemv is not known"),
        (lambda: fp.matmul(X, X.T, schedule=s.torch_mm(), alpha=2.0), "alpha is not known for torch_mm('avx512_bf16')"),
        (lambda: fp.matmul(X, X.T, schedule=s.torch_mm(), promote=2), "promote is chosen by torch_mm("),
        (lambda: fp.matmul(X, HALF.T, schedule=s.torch_mm()), "multiplies operands of one format; got FP32 and FP16"),
        (lambda: fp.matmul(X, X, schedule=s.torch_mm()), "(4, 6)"),
        (lambda: fp.matmul(X[0], X, schedule=s.torch_mm()), "a must"),
        (lambda: fp.matmul(X[None], X.T, schedule=s.mkl()), "multiplies two matrices; got shapes (1, 4, 6) and"),
        (lambda: loose.schedules.onednn("sse"), "isa must be one of amx_fp16, amx, "),
        (lambda: loose.schedules.onednn("amx", layout="tt"), "layout must be one of nn, nt, tn; got 'tt'"),
        (lambda: s.onednn("amx", 0), "threads must be a positive integer; got 0"),
        (lambda: loose.schedules.mkl(isa="amx"), "isa must be one of avx512, avx2; got 'amx'"),
        (lambda: loose.schedules.onednn("amx", l1=1.5), "l1 must be a positive integer; got 1.5"),
        (lambda: s.mkl().at(0, 1, 1), "m must be a positive integer; got 0"),
        (lambda: s.mkl().at(1, 1, 1, "e4m3"), "fmt must be BF16, FP16, FP32 or INT8, whose products are known on"),
        (lambda: s.segments(), "segments takes the number of terms of each segment; got none"),
        (lambda: s.segments(0), "length must be an integer >= 1; got 0"),
        (lambda: s.rounds(0), "lanes must be an integer >= 1; got 0"),
        (lambda: s.Slicing(2, lengths=(3, 4)), "the rule 'listed' has a length for each of its 2 slices"),
        (lambda: s.Slicing(2, rule="listed", lengths=(3,)), "got the rule 'listed' with 1 lengths"),
        (lambda: fp.matmul(X, X.T, accumulate=CHAIN, schedule=s.segments(2, 3)), "2, 3 terms need K = 5; got K = 6"),
        (lambda: s.tree(s.segments(*[1] * 9), 6, accumulate="cdna1_f32_f32"), "of 1, 1, 1, 1, 1, 1, ... terms"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_in_a_sentence(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError) as refused:
        call()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda library: fp.schedules.explain(library, 4, 5, 6), lambda library: fp.schedules.tree(library, 6),
        lambda library: fp.testing.check_kernel(np.matmul, a="bf16", accumulate="x86_amx_bf16_f32", schedule=library),
    ],
)  # fmt: skip
def test_what_needs_one_schedule_refuses_a_library_that_chooses(call: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError) as refused:
        call(s.torch_mm())
    assert str(refused.value) == (
        "schedule must be that of one shape here; got torch_mm('avx512_bf16'), which chooses one by the shape. Pass "
        "its .at(m, n, k, fmt).schedule, with .accumulate."
    )


NO_FORMAT = (
    "a must be an array of bfloat16, float16, float32 or int8, or codes of BF16, FP16 or FP32 with fmt=; got {}. "
    "fpsim.cast(a, fmt) rounds values to a format."
)


@pytest.mark.parametrize(
    ("a", "fmt", "received"),
    [
        (np.zeros((2, 2), np.uint16), None, "uint16"), (np.zeros((2, 2)), None, "float64"),
        ([[1.0, 2.0], [3.0, 4.0]], None, "[[1.0, 2.0], [3.0, 4.0]]"), (np.zeros((2, 2), np.uint8), "e4m3", "E4M3"),
    ],
)  # fmt: skip
def test_formats_that_no_library_multiplies_are_named(a: Any, fmt: Any, received: str) -> None:
    with pytest.raises(TypeError) as refused:
        fp.matmul(a, a, schedule=s.torch_mm(), fmt=fmt)
    assert str(refused.value) == NO_FORMAT.format(received)


def test_products_without_terms_are_checked_too() -> None:
    rows, columns = np.zeros((4, 0), np.uint8), np.zeros((0, 4), np.uint8)
    with pytest.raises(TypeError) as refused:
        fp.matmul(rows, columns, schedule=s.torch_mm(), fmt="e4m3")
    assert str(refused.value) == NO_FORMAT.format("E4M3")
    with pytest.raises(ValueError, match=r"how torch\._int_mm adds a bias is not known"):
        fp.matmul(rows.view(np.int8), columns.view(np.int8), schedule=s.torch_mm(), bias=np.ones(4, np.float32))


def test_codes_may_have_a_format_for_each_operand() -> None:
    codes = fp.encode(np.full((4, 4), 1.5, np.float32), fp.BF16)
    product = fp.matmul(codes, codes, schedule=s.torch_mm(), fmt=("bf16", "bf16"))
    assert_bits_equal(product, fp.cast(np.full((4, 4), 9.0, np.float32), fp.BF16))
    with pytest.raises(ValueError, match="multiplies operands of one format; got BF16 and FP16"):
        fp.matmul(codes, codes, schedule=s.torch_mm(), fmt=("bf16", "fp16"))


def test_the_old_name_of_out_fmt_still_works() -> None:
    ones = np.ones((4, 4), np.float32)
    with pytest.warns(DeprecationWarning, match="out_format= is now called out_fmt="):
        assert fp.matmul(ones, ones, schedule=s.torch_mm(), out_format="bf16").dtype == "bfloat16"


def test_a_matrix_times_its_own_transpose_is_declined_for_numpy() -> None:
    x = np.random.default_rng(0).standard_normal((12, 105)).astype(np.float32)
    library = s.openblas(layout="nt")
    want = (
        "openblas(layout='nt') has no proven rule for 12 x 12 x 105 in FP32 (nt): NumPy multiplies a matrix by its own "
        "transpose with ssyrk, whose order is not known; pass a copy of one."
    )
    with pytest.raises(s.DeclinedShape) as refused:
        fp.matmul(x, x.T, schedule=library)
    assert str(refused.value) == want
    copied = fp.matmul(x, x.copy().T, schedule=library)
    assert_bits_equal(copied, fp.matmul(x.copy(), x.T, schedule=library))
    assert fp.matmul(x, x.T, schedule=s.torch_mm(layout="nt")).shape == (12, 12)  # torch has one routine for all


def test_caches_without_room_for_a_block_are_declined() -> None:
    for layout in ("nn", "nt", "tn"):
        for caches in ({"l1": 1}, {"l2": 1}):
            for shape in ((330, 320, 330), (1, 320, 330)):
                reason = s.onednn("amx", layout=layout, **caches).declines(*shape, "bf16")
                assert reason.endswith("none of oneDNN's blocks fits caches of these sizes.")
