"""check_kernel calls kernels with operands that are transposed, strided, reversed, or parts of wider matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fpsim as fp

Array = Any
PROMISE: dict[str, Any] = {
    "a": "fp16", "accumulate": fp.Sequential("fp32"), "shapes": [(8, 8, 40), (5, 7, 17)], "certificate": False
}  # fmt: skip


def report(fn: Callable[..., Any], **keywords: Any) -> fp.testing.KernelReport:
    return fp.testing.check_kernel(fn, **PROMISE | keywords, raises=False)


def product(a: Array, b: Array) -> Array:
    return fp.matmul(a, b, accumulate=fp.Sequential("fp32"))


def as_contiguous(x: Array) -> Array:
    """Return the elements in the order of memory, as a kernel reads them that knows only a pointer."""
    size, step = x.size, x.itemsize
    first = x.__array_interface__["data"][0]
    if min(x.strides) < 0:
        first += sum(stride * (length - 1) for stride, length in zip(x.strides, x.shape, strict=True))
    import ctypes

    memory = (ctypes.c_char * (size * step)).from_address(first)
    return np.frombuffer(bytes(memory), x.dtype).reshape(x.shape)


def tensors(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(product(a.numpy(), b.numpy()))


ALL = (
    "a transposed", "b transposed", "both transposed", "columns of wider matrices", "every other row and column",
    "reversed",
)  # fmt: skip


def test_right_kernels_pass_in_every_layout_and_say_so() -> None:
    checked = report(product)
    assert checked.ok
    assert checked.covered.layouts == ALL
    assert "float16 operands, in C order, a transposed, b transposed" in str(checked)
    assert report(tensors, takes="torch").covered.layouts == ALL[:-1]
    checked = report(product, envelope=True)
    assert checked.ok
    assert checked.covered.layouts == ALL


@pytest.mark.parametrize("operand", [0, 1])
def test_a_kernel_that_ignores_strides_is_found(operand: int) -> None:
    def fn(*operands: Array) -> Array:
        read = [as_contiguous(x) if place == operand else x for place, x in enumerate(operands)]
        return product(*read)

    for keywords in ({}, {"envelope": True}):
        checked = report(fn, **keywords)
        assert not checked.ok
        assert checked.mismatches == 0
        assert f"{'ab'[operand]} transposed in memory" in checked.broken[0]
        assert checked.covered.layouts == ("a transposed",)[:operand]


def test_a_kernel_of_rows_apart_alone_is_found_where_columns_are() -> None:
    def fn(a: Array, b: Array) -> Array:
        strided = a.strides[1] not in (a.itemsize, -a.itemsize) and a.strides[0] != a.itemsize
        return product(as_contiguous(a) if strided else a, b)

    checked = report(fn)
    assert "every other row and column in memory, than in C order" in checked.broken[0]
    assert checked.covered.layouts == ALL[:4]


def test_layouts_that_a_kernel_refuses_are_a_note() -> None:
    def fn(a: Array, b: Array) -> Array:
        if not (a.flags.c_contiguous and b.flags.c_contiguous):
            raise ValueError("operands must be contiguous")
        return product(a, b)

    checked = report(fn)
    assert checked.ok
    assert checked.covered.layouts == ()
    assert "operands must be contiguous" in checked.notes[0]
    assert "it refuses operands a transposed" in checked.notes[0]


def test_writing_into_a_transposed_operand_is_found() -> None:
    def fn(a: Array, b: Array) -> Array:
        result = product(a, b)
        if not b.flags.c_contiguous:
            b[0, 0] = 3
        return result

    assert report(fn).broken[0].startswith("fn writes into b for ")


@pytest.mark.parametrize("fmt", ["float8_e4m3fn", "bfloat16", "float16", "float32"])
def test_tensors_of_every_dtype_have_the_layouts(fmt: str) -> None:
    from fpsim.testing.products.layouts import LAYOUTS

    x = torch.arange(-6, 6).reshape(3, 4).to(getattr(torch, fmt))
    for layout in LAYOUTS[:-1]:
        for side in (layout.of_a, layout.of_b):
            same = side(x)
            assert same.dtype == x.dtype
            assert torch.equal(same.float(), x.float())
            assert same.is_contiguous() == (side(np.zeros((3, 4))).flags.c_contiguous)
