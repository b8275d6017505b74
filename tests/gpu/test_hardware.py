"""fp.gpu.hardware without a GPU: layouts by torch on the CPU, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import fpsim as fp
from fpsim.arrays import to_torch
from fpsim.gpu import hardware
from fpsim.gpu.device.device import GpuError
from fpsim.gpu.hardware import cublaslt, instructions, products, tensors
from fpsim.schedules.libraries.cublas_choice import LAYOUTS
from fpsim.testing import operands as inputs
from tests.kit.processes import python
from tests.kit.sweeps import in_turn

torch = pytest.importorskip("torch")
without_gpu = pytest.mark.skipif(fp.gpu.available(), reason="a GPU is here")
with_v2 = pytest.mark.skipif(not hasattr(torch.nn.functional, "scaled_mm"), reason="torch without scaled_mm")
Array = npt.NDArray[Any]
ONES = np.full((128, 128), 0x38, np.uint8)


def small_integers(shape: tuple[int, int], seed: int) -> Array:
    """E4M3 codes of -3 .. 3, whose sums are exact in any order."""
    return fp.encode(np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32), fp.E4M3)


def product_of(a: Array, b: Array) -> npt.NDArray[np.float64]:
    return np.asarray(fp.decode(a, fp.E4M3, np.float64) @ fp.decode(b, fp.E4M3, np.float64))


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the functions of hardware with torch on the CPU."""
    monkeypatch.setattr(tensors, "DEVICE", "cpu")
    for module in (products, instructions, cublaslt):
        monkeypatch.setattr(module, "require_capability", lambda *_: None)
    monkeypatch.setattr(instructions, "require_device", lambda: None)


# ---- codes and tensors


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("kind", list(tensors.DTYPES))
def test_codes_come_back_from_tensors(kind: str) -> None:
    size = getattr(torch, tensors.DTYPES[kind]).itemsize
    codes = np.random.default_rng(0).integers(0, 1 << 8 * size, (4, 6), np.uint64).astype(f"u{size}")
    made = tensors.tensor(codes, kind)
    assert str(made.dtype) == f"torch.{tensors.DTYPES[kind]}"
    assert np.array_equal(tensors.words(made), codes)
    assert np.array_equal(tensors.words(tensors.tensor(made, kind)), codes)
    columns = tensors.column_major(codes, kind)
    assert columns.stride() == (1, 4)
    assert np.array_equal(tensors.words(columns), codes)
    assert np.array_equal(tensors.words(tensors.column_major(made, kind)), codes)


@pytest.mark.usefixtures("on_cpu")
def test_operands_of_another_width_are_refused() -> None:
    with pytest.raises(TypeError, match="operands of fp16 must have 2 bytes per element; got uint8"):
        tensors.tensor(np.zeros(3, np.uint8), "fp16")
    halves = np.ones(3, np.float16)
    for x in (halves, torch.from_numpy(halves)):
        with pytest.raises(TypeError, match="operands of bf16 must be bfloat16 or codes of that format; got float16"):
            tensors.tensor(x, "bf16")


@pytest.mark.usefixtures("on_cpu")
def test_operands_in_the_other_byte_order_keep_their_values() -> None:
    halves = np.arange(6, dtype=np.float16).reshape(2, 3)
    assert np.array_equal(tensors.words(tensors.tensor(halves.astype(">f2"), "fp16")), halves.view(np.uint16))
    assert np.array_equal(tensors.words(tensors.column_major(halves.astype(">f2"), "fp16")), halves.view(np.uint16))


def test_sweeps_leave_no_value_out() -> None:
    with pytest.raises(ValueError, match=r"chunk must divide 2\*\*32, so that every value is converted; got 100"):
        hardware.sweep("e4m3", chunk=100)


# ---- torch._scaled_mm


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("out", ["fp32", "bf16", "fp16"])
def test_tensorwise_products_have_their_places(out: str) -> None:
    a, b = small_integers((16, 32), 0), small_integers((32, 48), 1)
    got = hardware.scaled_mm(a, b, scale_a=np.float32(0.5), scale_b=2.0**-3, out=out)
    fmt = {"fp32": fp.FP32, "bf16": fp.BF16, "fp16": fp.FP16}[out]
    assert np.array_equal(got, fp.encode(product_of(a, b) / 16, fmt))


@pytest.mark.usefixtures("on_cpu")
def test_rows_and_columns_get_their_scales() -> None:
    a, b = small_integers((16, 32), 2), small_integers((32, 48), 3)
    rows, columns = inputs.scales((16, 1), powers=True), inputs.scales((1, 48), 5, powers=True)
    got = hardware.scaled_mm(a, b, scale_a=rows, scale_b=columns, recipe="row", out="fp32")
    assert np.array_equal(got.view(np.float32), (product_of(a, b) * rows * columns).astype(np.float32))


@pytest.mark.usefixtures("on_cpu")
def test_a_bias_has_the_dtype_of_the_result() -> None:
    a, b = small_integers((16, 32), 4), small_integers((32, 16), 5)
    bias = fp.encode(np.arange(16, dtype=np.float32), fp.BF16)
    got = hardware.scaled_mm(a, b, out="bf16", bias=bias)
    assert np.array_equal(got, fp.encode(product_of(a, b) + np.arange(16), fp.BF16))


@with_v2
@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("recipe", ["1x128_128x128", "1x128_1x128", "128x128_1x128"])
@pytest.mark.parametrize("k", [128, 384, 512])
def test_block_scales_have_the_layout_that_torch_checks(monkeypatch: pytest.MonkeyPatch, recipe: str, k: int) -> None:
    monkeypatch.setattr(tensors, "DEVICE", "meta")  # shapes and strides alone, by torch's own checks
    monkeypatch.setattr(products, "words", lambda found: found)
    of_a, of_b = recipe.split("_")
    rows, columns = (256 if of_a == "1x128" else 2), (128 if of_b == "1x128" else 1)
    found: Any = hardware.scaled_mm(
        np.zeros((256, k), np.uint8), np.zeros((k, 128), np.uint8), scale_a=np.ones((rows, k // 128)),
        scale_b=np.ones((k // 128, columns)), recipe=recipe, out="bf16",
    )  # fmt: skip
    assert tuple(found.shape) == (256, 128)
    assert found.dtype == torch.bfloat16


@pytest.mark.usefixtures("on_cpu")
def test_blocks_of_scales_keep_their_places() -> None:
    scales = torch.arange(6, dtype=torch.float32).reshape(2, 3)  # (N / 128, K / 128)
    blocks = products._block_scales(scales, "BlockWise128x128")
    assert blocks.shape == (4, 2)
    assert blocks.stride() == (1, 4)
    assert blocks[:3].t().equal(scales)
    rows = products._block_scales(scales, "BlockWise1x128")
    assert rows.stride() == (1, 2)
    assert rows.equal(scales)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "e5m2": (lambda: hardware.scaled_mm(ONES, ONES, ("e5m2", "e5m2")), "does not multiply E5M2 by E5M2"),
    "k": (lambda: hardware.scaled_mm(ONES[:, :24], ONES[:24]), "multiples of 16; got K = 24, N = 128"),
    "shapes": (lambda: hardware.scaled_mm(ONES, ONES[:64]), r"\(M, K\) and \(K, N\), not empty; got \(128, 128\)"),
    "recipe": (lambda: hardware.scaled_mm(ONES, ONES, recipe="rows"), "recipe must be one of tensor, row"),
    "out": (lambda: hardware.scaled_mm(ONES, ONES, out="fp64"), "out must be one of bf16, fp16, fp32"),
    "bias": (lambda: hardware.scaled_mm(ONES, ONES, out="fp32", bias=ONES[0]), "bias for bf16 and fp16 results only"),
    "fast": (lambda: hardware.scaled_mm(ONES, ONES, recipe="1x128_1x128", fast_accum=True), "no fast accumulation"),
    "blocks": (lambda: hardware.scaled_mm(ONES[:, :64], ONES[:64], recipe="1x128_1x128"), "multiples of 128, and M"),
    "kind": (lambda: hardware.matmul(ONES, ONES, "fp8"), "kind must be one of fp16, bf16, tf32"),
    "layout": (lambda: hardware.matmul(ONES, ONES, "fp16", layout="tt"), "layout must be one of nn, nt, tn; got 'tt'"),
    "lt layout": (lambda: hardware.lt_matmul(ONES, ONES, layout="tt"), "layout must be one of nn, nt, tn; got 'tt'"),
    "result": (
        lambda: hardware.matmul(ONES, ONES, "fp16", out="bf16"),
        "out must be 'fp16' or 'fp32' for torch.mm of fp16; got 'bf16'",
    ),
    "block": (lambda: hardware.dot(ONES, ONES, block_k=96), "multiples of the block, 64 x 64 x 96"),
    "imprecise": (lambda: hardware.dot(ONES, ONES, max_num_imprecise_acc=16), "between 32 and block_k, 128; got 16"),
    "mixed": (lambda: hardware.dot(ONES, ONES, pair=("e4m3", "fp16")), "mixes formats of 8 bits only"),
    "c": (lambda: hardware.dot(ONES, ONES, np.zeros((2, 2))), r"c must have the result's shape \(128, 128\)"),
    "target": (lambda: hardware.ptx_cast(np.zeros(3, np.float32), "e2m1"), "target must be one of e4m3, e5m2"),
    "lt pair": (lambda: hardware.lt_matmul(ONES, ONES, ("fp16", "bf16")), "FP16 by FP16, BF16 by BF16, and FP8"),
    "lt shape": (lambda: hardware.lt_fields(128, 24, 128, ("e4m3", "e4m3")), "N and K to be multiples of 16"),
    "lt rows": (lambda: hardware.lt_fields(-16, 32, 64), "m must be an integer >= 1; got -16"),
    "lt workspace": (lambda: hardware.lt_fields(16, 32, 64, workspace=-1), "workspace must be an integer >= 0; got -1"),
}


@in_turn("name", list(REFUSED))
def test_what_libraries_refuse_is_one_sentence(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        call()


@without_gpu
@pytest.mark.parametrize("call", [
    lambda: hardware.about(), lambda: hardware.scaled_mm(ONES, ONES),
    lambda: hardware.matmul(np.ones((16, 16), np.float16), np.ones((16, 16), np.float16)),
    lambda: hardware.dot(ONES, ONES), lambda: hardware.lt_matmul(ONES, ONES, ("e4m3", "e4m3")),
    lambda: hardware.twin("encode", np.zeros(3, np.float32), fmt="e4m3"),
    lambda: hardware.torch_cast(np.zeros(3, np.float32), "e4m3"),
    lambda: hardware.ptx_cast(np.zeros(3, np.float32), "e4m3"),
])  # fmt: skip
def test_without_a_gpu_every_function_says_so(call: Callable[[], Any]) -> None:
    with pytest.raises(GpuError, match="found no CUDA device"):
        call()


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from fpsim.gpu.device import device

    monkeypatch.setattr(device, "require_device", lambda: None)
    monkeypatch.setattr(device, "capability", lambda: (8, 0))
    with pytest.raises(GpuError, match=r"needs a GPU of compute capability 8\.9 or later; this one has 8\.0"):
        hardware.scaled_mm(ONES, ONES)
    with pytest.raises(GpuError, match=r"compute capability 9\.0"):
        hardware.scaled_mm(ONES, ONES, scale_a=np.ones((128, 1)), scale_b=np.ones((1, 128)), recipe="1x128_1x128")


# ---- products and casts by torch


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["fp16", "bf16", "tf32"])
def test_products_of_halves_have_their_places(kind: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strides = []

    def mm(left: Any, right: Any) -> Any:
        strides.append((left.stride(), right.stride()))
        return left @ right

    monkeypatch.setattr(torch, "mm", mm)
    rng = np.random.default_rng(7)
    fmt = inputs.FORMATS[kind]
    a, b = (fp.encode(rng.integers(-3, 4, shape).astype(np.float32), fmt) for shape in ((8, 24), (24, 16)))
    got = hardware.matmul(a, b, kind, layout=layout)
    assert strides == [((1, 8) if layout == "tn" else (24, 1), (1, 24) if layout == "nt" else (16, 1))]
    assert np.array_equal(got, fp.encode(fp.decode(a, fmt, np.float64) @ fp.decode(b, fmt, np.float64), fmt))


def _settings() -> tuple[Any, ...]:
    settings = torch.backends.cuda.matmul
    names = [
        f"allow_{kind}_reduced_precision_reduction{half}" for kind in ("fp16", "bf16") for half in ("", "_split_k")
    ]
    return (*(getattr(settings, name) for name in names), settings.allow_fp16_accumulation, settings.fp32_precision)


@pytest.fixture
def unusual() -> Iterator[tuple[Any, ...]]:
    """Settings that are none of torch's own."""
    settings, before = torch.backends.cuda.matmul, _settings()
    settings.allow_fp16_reduced_precision_reduction = (False, False)
    settings.allow_bf16_reduced_precision_reduction = (False, True)
    yield _settings()
    settings.allow_fp16_reduced_precision_reduction = before[:2]
    settings.allow_bf16_reduced_precision_reduction = before[2:4]


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_products_leave_the_settings_of_torch_as_they_were(
    fails: bool, reduced: bool, unusual: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []

    def mm(left: Any, right: Any) -> Any:
        seen.append(_settings())
        if fails:
            raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")
        return left @ right

    monkeypatch.setattr(torch, "mm", mm)
    a = np.ones((8, 8), np.float16)
    with pytest.raises(fp.gpu.GpuError, match="NOT_SUPPORTED") if fails else contextlib.nullcontext():
        hardware.matmul(a, a, reduced=reduced)
    assert seen == [(reduced, True, reduced, True, False, "tf32")]
    assert _settings() == unusual


@pytest.mark.usefixtures("on_cpu")
def test_torch_casts_come_as_words() -> None:
    x = np.array([1.0, 0.3, -2.0, 448.0], np.float32)
    for dtype in (np.float32, np.float16, fp.cast(x, fp.BF16).dtype):
        with np.errstate(over="ignore"):
            values = x.astype(dtype)
        assert np.array_equal(hardware.torch_cast(values, "e4m3"), fp.encode(values, fp.E4M3))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("target", ["e4m3", "e5m2", "fp16", "bf16"])
@pytest.mark.parametrize("planted", [False, True])
def test_sweeps_find_what_differs(monkeypatch: pytest.MonkeyPatch, target: str, planted: bool) -> None:
    from fpsim.gpu.hardware import triton_kernels

    def codes(x: Any, name: str, overflow: str) -> Any:
        return to_torch(fp.encode(x.numpy(), name, overflow=overflow))

    def convert(x: Any, out: Any, name: str) -> None:
        got = fp.encode(x.numpy(), name, overflow="saturate" if name in ("e4m3", "e5m2") else "nonfinite")
        out.copy_(torch.from_numpy(got.astype(np.int32)))
        if planted:
            out[7] ^= 1

    monkeypatch.setattr(triton_kernels, "convert", convert)
    monkeypatch.setattr(triton_kernels, "require_triton", lambda: None)
    monkeypatch.setattr(instructions, "encode", codes)
    compared, differing, first = hardware.sweep(target, chunk=1 << 12, chunks=2)
    assert (compared, differing) == (1 << 13, 2 * planted)
    assert first.startswith("float32 0x80000007: hardware 0x") if planted else not first


def test_everything_imports_without_torch_and_triton() -> None:
    said = python(
        """
        import sys
        for name in ("torch", "triton", "triton.language"):
            sys.modules[name] = None
        import numpy as np
        import fpsim as fp, fpsim.gpu.experiments.validate, fpsim.gpu.experiments.record
        from fpsim.gpu.hardware import tensors, triton_kernels
        for call in (triton_kernels.require_triton, tensors.torch_module):
            try:
                call()
            except fp.gpu.GpuError as reason:
                print(reason)
        """
    )
    assert said.splitlines() == [
        "these kernels need Triton, which is not installed. Install it with: pip install triton",
        "fpsim.gpu.hardware calls PyTorch, which is not installed. Install a CUDA build of torch.",
    ]


# ---- failures


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total of ...\nMore."),
            r"^the GPU has no room for matmul: CUDA out of memory\. Tried to allocate 2.00 GiB\. .* Take smaller",
        ),
        (
            RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be late"),
            r"^the GPU did not run matmul: CUDA error: an illegal memory access was encountered\. A new process can",
        ),
        (RuntimeError("mat_b must be column-major"), r"^the GPU did not run matmul: mat_b must be column-major\.$"),
    ],
)  # fmt: skip
def test_failures_on_the_gpu_are_one_sentence(
    reason: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    ones = np.ones((16, 16), np.float16)

    def mm(left: Any, right: Any) -> Any:
        raise reason

    with monkeypatch.context() as failing:
        failing.setattr(torch, "mm", mm)
        with pytest.raises(GpuError, match=words) as caught:
            hardware.matmul(ones, ones)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
    assert hardware.matmul(ones, ones).view(np.float16)[0, 0] == 16


# ---- libraries that lack something


@pytest.mark.usefixtures("on_cpu")
def test_a_torch_without_recipes_of_scales_says_which_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.nn.functional.scaled_mm", raising=False)
    ones = np.full((128, 128), 0x38, np.uint8)
    scales = np.ones((128, 1), np.float32), np.ones((1, 1), np.float32)
    with pytest.raises(GpuError, match=r"came with torch 2\.10; this is torch .*\. Recipes 'tensor' and 'row' work"):
        hardware.scaled_mm(ones, ones, ("e4m3", "e4m3"), *scales, recipe="1x128_128x128")


def test_tritons_interpreter_is_no_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    from fpsim.gpu.hardware import triton_kernels

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(GpuError, match="Unset TRITON_INTERPRET"):
        triton_kernels.require_triton()
