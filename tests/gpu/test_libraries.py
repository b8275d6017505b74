"""cuBLASLt and Triton without a GPU: what descriptors and fields say, and which instructions kernels are made of."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fpsim as fp
from fpsim.gpu import hardware
from fpsim.gpu.device.device import GpuError
from fpsim.gpu.hardware import cublaslt, tensors
from fpsim.gpu.lab.model import LibraryModel, built
from fpsim.schedules.libraries.cublas_choice import Fields, schedule_of
from fpsim.testing import operands as inputs

torch = pytest.importorskip("torch")
HAS_TRITON = importlib.util.find_spec("triton") is not None


# ---- cuBLASLt


def column_major(held: Any, rows: int, columns: int) -> Any:
    """Return the memory of a tensor as cuBLASLt reads it: rows x columns, stored column after column."""
    return torch.as_strided(held, (rows, columns), (1, rows))


@pytest.mark.parametrize(
    ("pair", "layout"),
    [(("e4m3", "e4m3"), "nn"), (("fp16", "fp16"), "nn"), (("fp16", "fp16"), "nt"), (("bf16", "bf16"), "tn")],
)
def test_descriptors_describe_the_product(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str], layout: str
) -> None:  # fmt: skip
    """Run a library in the place of cuBLASLt that multiplies what the descriptors say, b first."""
    monkeypatch.setattr(tensors, "DEVICE", "cpu")
    monkeypatch.setattr(cublaslt, "require_capability", lambda *_: None)
    library = FakeLibrary()
    monkeypatch.setattr(cublaslt, "_call", library.call)
    monkeypatch.setattr(cublaslt, "_handle", lambda: None)
    monkeypatch.setattr(cublaslt, "_fields", lambda best: Fields(66, 0, 1, 2, 0, 0, 36, 0, 0))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **k: library.held(empty(*a, **k)))
    monkeypatch.setattr(cublaslt, "tensor", lambda x, kind: library.held(tensors.tensor(x, kind)))
    turned = tensors.column_major
    monkeypatch.setattr(tensors, "column_major", lambda x, kind: library.held(turned(x, kind)))
    monkeypatch.setattr(tensors, "floats", lambda x: library.held(torch.tensor(x)))
    fmt = inputs.FORMATS[pair[0]]
    rng = np.random.default_rng(9)
    a, b = (fp.encode(rng.integers(-3, 4, shape).astype(np.float32), fmt) for shape in ((16, 48), (48, 32)))
    found, fields = hardware.lt_matmul(a, b, pair, out="fp32", scale_a=0.5, scale_b=0.25, layout=layout)
    scale = 0.125 if pair[0] == "e4m3" else 1.0
    wanted = fp.decode(a, fmt, np.float64) @ fp.decode(b, fmt, np.float64) * scale
    assert np.array_equal(found.view(np.float32), wanted.astype(np.float32))
    assert fields.algo == 66
    assert str(fields).startswith("algo 66, tile 0, split_k 1, reduction 2")
    assert library.preferences == {cublaslt.MAX_WORKSPACE: 32 << 20, cublaslt.REDUCTION_MASK: 7}
    answer = hardware.lt_fields(16, 32, 48, pair, out="fp32", layout=layout, reduced=False, workspace=1 << 20)
    assert answer == fields
    assert library.preferences == {cublaslt.MAX_WORKSPACE: 1 << 20, cublaslt.REDUCTION_MASK: 2}
    assert not library.open


class FakeLibrary:
    """A cuBLASLt on the CPU, which multiplies float matrices as its descriptors say.

    open: the descriptors that were created and not yet destroyed; preferences: attributes of the last preference.
    """

    def __init__(self) -> None:
        self.open: dict[int, tuple[Any, ...]] = {}
        self.attributes: dict[tuple[int, int], int] = {}
        self.preferences: dict[int, int] = {}
        self.tensors: dict[int, Any] = {}

    def held(self, x: Any) -> Any:
        """Return a tensor, whose memory a call names by its address."""
        self.tensors[x.data_ptr()] = x
        return x

    def call(self, name: str, *arguments: Any) -> None:
        """Do as cuBLASLt's function of this name."""
        if name.endswith("Create"):
            number = len(self.attributes) + len(self.open) + 1
            arguments[0]._obj.value = number
            self.open[number] = arguments[1:]
        elif name.endswith("Destroy"):
            del self.open[arguments[0].value]
        elif name.endswith("SetAttribute"):
            where, attribute, value, size = arguments
            assert ctypes.sizeof(value._obj) == size
            if "Preference" in name:
                self.preferences[attribute] = value._obj.value
            else:
                self.attributes[where.value, attribute] = value._obj.value
        elif name == "cublasLtMatmulAlgoGetHeuristic":
            arguments[-1]._obj.value = 1
        else:
            assert name == "cublasLtMatmul"
            self.multiply(arguments)

    def multiply(self, arguments: tuple[Any, ...]) -> None:
        """Write the product of two matrices, each transposed if the operation says so, times the scales."""
        _, operation, _, first, of_first, second, of_second, _, _, _, result, of_result = arguments[:12]
        sides = []
        for address, layout, attribute in (
            (first, of_first, cublaslt.DESC_TRANSA), (second, of_second, cublaslt.DESC_TRANSB),
        ):  # fmt: skip
            _, rows, columns, leading = self.open[layout.value]
            assert rows == leading
            side = column_major(self.tensors[address], rows, columns).to(torch.float64)
            sides.append(side.t() if self.attributes.get((operation.value, attribute)) else side)
        scales = [self.attributes.get((operation.value, a)) for a in (cublaslt.DESC_A_SCALE, cublaslt.DESC_B_SCALE)]
        factor = 1.0
        for scale in filter(None, scales):
            factor *= float(self.tensors[scale][0])
        _, rows, columns, _ = self.open[of_result.value]
        column_major(self.tensors[result], rows, columns).copy_((sides[0] @ sides[1]) * factor)


def test_the_library_takes_the_descriptors() -> None:
    try:
        library = cublaslt.library()
    except GpuError:
        pytest.skip("libcublasLt is not installed (it comes with the CUDA builds of torch)")
    assert re.fullmatch(r"\d+\.\d+\.\d+", cublaslt.version())
    with cublaslt._descriptor("MatmulDesc", cublaslt.COMPUTE_32F, 0) as operation:
        cublaslt._set("MatmulDesc", operation, cublaslt.DESC_TRANSA, ctypes.c_int32(1))
        cublaslt._set("MatmulDesc", operation, cublaslt.DESC_A_SCALE, ctypes.c_void_p(1 << 20))
        cublaslt._set("MatmulDesc", operation, cublaslt.DESC_FAST_ACCUM, ctypes.c_int8(1))
        with pytest.raises(GpuError, match=r"cublasLtMatmulDescSetAttribute of cuBLASLt returned status 7"):
            cublaslt._set("MatmulDesc", operation, 9999, ctypes.c_int32(1))
    with cublaslt._descriptor("MatrixLayout", cublaslt.TYPES["e4m3"], 512, 64, 512):
        pass
    with cublaslt._descriptor("MatmulPreference") as preference:
        cublaslt._set("MatmulPreference", preference, cublaslt.MAX_WORKSPACE, ctypes.c_uint64(cublaslt.WORKSPACE))
        cublaslt._set("MatmulPreference", preference, cublaslt.REDUCTION_MASK, ctypes.c_uint32(cublaslt.IN_FLOAT32))
    assert library is cublaslt.library()


def test_without_cublaslt_the_error_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    cublaslt.library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(GpuError, match="cuBLASLt was not found"):
        cublaslt.library()


# ---- Triton


def ptx_of(kernel: str, types: dict[str, str], constants: dict[str, Any], **options: Any) -> str:
    """Return the PTX of a kernel of Triton for sm_90."""
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found, import-untyped, unused-ignore]

    from fpsim.gpu.hardware import triton_kernels

    source = triton.compiler.ASTSource(
        getattr(triton_kernels, kernel), signature=types | dict.fromkeys(constants, "constexpr"), constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in range(7)},
    )  # fmt: skip
    options = {"num_warps": 4, "num_stages": 2, **options}
    return str(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"])


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton")
@pytest.mark.parametrize(
    ("kinds", "blocks", "imprecise", "instruction", "count", "additions"),
    [
        (("fp8e4nv", "fp8e4nv"), (64, 64, 128), 0, "m64n64k32.f32.e4m3.e4m3", 4, 0),
        (("fp8e4nv", "fp8e4nv"), (64, 64, 128), 32, "m64n64k32.f32.e4m3.e4m3", 4, 4 * 32),
        (("fp8e4nv", "fp8e4nv"), (64, 64, 128), 64, "m64n64k32.f32.e4m3.e4m3", 4, 2 * 32),
        (("fp8e4nv", "fp8e5"), (64, 64, 64), 0, "m64n64k32.f32.e4m3.e5m2", 2, 0),
        (("fp16", "fp16"), (64, 64, 64), 0, "m64n64k16.f32.f16.f16", 4, 0),
        (("fp32", "fp32"), (64, 64, 32), 0, "m64n64k8.f32.tf32.tf32", 4, 0),
        (("fp8e4nv", "fp8e4nv"), (16, 16, 64), 0, "m16n8k16.row.col.f32.f16.f16.f32", 4, 0),
    ],
)
def test_triton_pins_the_instructions(
    kinds: tuple[str, str], blocks: tuple[int, int, int], imprecise: int, instruction: str, count: int, additions: int
) -> None:
    constants = dict(zip(("block_m", "block_n", "block_k", "imprecise"), (*blocks, imprecise), strict=True))
    types = {"a": f"*{kinds[0]}", "b": f"*{kinds[1]}", "c": "*fp32", "d": "*fp32", "m": "i32", "n": "i32", "k": "i32"}
    ptx = ptx_of("dot_kernel", types, constants)
    found = Counter(re.findall(r"(?:mma_async|mma)\.sync\.aligned\.(\S+)|(add\.(?:rn\.)?f32)", ptx))
    assert {name: times for (name, _), times in found.items() if name} == {instruction: count}
    assert sum(times for (name, _), times in found.items() if not name) == additions


@pytest.mark.skipif(not HAS_TRITON, reason="no Triton")
@pytest.mark.parametrize("a_first", [False, True])
@pytest.mark.parametrize(("fused", "counts"), [(True, (4, 32, 32, 0)), (False, (4, 0, 64, 32))])
def test_blocks_of_128_terms_are_chains_that_scales_multiply(
    a_first: bool, fused: bool, counts: tuple[int, ...]
) -> None:
    """Four instructions from zero; a thread has 32 results, each with a product of scales and a joining operation."""
    types = {
        "a": "*fp8e4nv",
        "b": "*fp8e4nv",
        "scale_a": "*fp32",
        "scale_b": "*fp32",
        "d": "*fp32",
        "n": "i32",
        "k": "i32",
    }
    constants = {"tile": 64, "a_first": a_first, "fused": fused}
    ptx = ptx_of("scaled_dot_kernel", types, constants, enable_fp_fusion=False)
    patterns = (r"wgmma\.mma_async\S+m64n64k32\.f32\.e4m3\.e4m3", r"fma\.rn\.f32", r"mul\S*\.f32", r"add\S*\.f32")
    assert tuple(len(re.findall(pattern, ptx)) for pattern in patterns) == counts


# ---- fields of cuBLASLt


@pytest.mark.parametrize(
    ("fields", "fast", "schedule"),
    [
        (Fields(66, 0, 1, 2, 0, 0, 36, 0, 0), False, "cublas('sm_90')"),
        (Fields(66, 0, 7, 2, 0, 0, 36, 0, 0), True, "cublas('sm_90', split_k=7, fast_accum=True)"),
        (Fields(21, 0, 1, 0, 0, 0, 13, 0, 0), False, "cublas('sm_90', family='cutlass', stages=13)"),
        (Fields(24, 0, 5, 4, 0, 0, 0, 0, 0), False,
         "cublas('sm_90', family='cutlass', split_k=5, merge=4, stages=0)"),
        (Fields(11, 0, 1, 0, 0, 1, 0, 0, 0), False, "cublas('sm_90', family='gemm_sn', option=1)"),
        (Fields(16, 0, 1, 0, 0, 0, 0, 0, 0), False, "cublas('sm_90', family='magma')"),
        (Fields(13, 0, 3, 2, 0, 36, 0, 0, 0), False, "cublas('sm_90', family='gemv', split_k=3, option=36)"),
        (Fields(14, 0, 2, 2, 0, 0, 0, 0, 0), False, "cublas('sm_90', family='dot', split_k=2)"),
    ],
)  # fmt: skip
def test_fields_say_the_schedule(fields: Fields, fast: bool, schedule: str) -> None:
    found, wanted = schedule_of(fields, fast_accum=fast), built(LibraryModel(schedule))
    assert (found.sums, found.slicing, found.epilogue) == (wanted.sums, wanted.slicing, wanted.epilogue)
    assert built(LibraryModel(str(found))) == found, "a schedule's name makes it again"


@pytest.mark.parametrize("fields", [Fields(41, 0, 1, 2, 0, 0, 36, 0, 0), Fields(13, 0, 1, 0, 0, 999, 0, 0, 0)])
def test_fields_that_nobody_decoded_are_refused(fields: Fields) -> None:
    with pytest.raises(ValueError, match=r"family must be one of|option of gemv must be one of"):
        schedule_of(fields)
