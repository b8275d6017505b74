"""Kernels compiled for other processors, with fewer instructions than this one, give the same bits."""

from __future__ import annotations

import platform
from functools import cache

import pytest

from tests.kit.processes import python

SAMPLE = """
    import hashlib
    import numpy as np
    import fpsim as fp

    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, (6, 64), dtype=np.uint32)
    x, any_half = bits.view(np.float32), (bits >> 16).astype(np.uint16).view(np.float16)
    normal = rng.standard_normal((6, 64)).astype(np.float32)
    half, e4m3, bf16 = normal.astype(np.float16), fp.cast(normal, "e4m3"), fp.cast(normal, "bf16")
    large = np.resize(x, 1 << 21)

    def digest(*arrays):
        return hashlib.sha256(b"".join(np.asarray(a).tobytes() for a in arrays)).hexdigest()[:16]

    print("encode", digest(*(fp.encode(x, "e4m3", rounding=r, seed=1) for r in ("nearest_even", "up", "stochastic"))))
    print("to half", digest(fp.encode(large, fp.FP16), fp.encode(x, fp.FP16), fp.quantize(x, fp.FP16)))
    print("decode", digest(fp.decode(np.arange(256, dtype=np.uint8), "e5m2")))
    for name in ("add", "multiply", "divide"):
        print(name, digest(getattr(fp, name)(any_half, any_half[::-1]), getattr(fp, name)(bf16, bf16[::-1])))
    print("flags", digest(*fp.add(any_half, half, flags=True), *fp.multiply(e4m3, e4m3, fmt="e4m3", flags=True)))
    print("fma", digest(fp.fma(any_half, half, half), fp.sqrt(any_half), fp.less(any_half, half)))
    for name, scaling in (("e4m3", "TILE_1X128"), ("e2m1", "NVFP4"), ("int8", "ROW")):
        q = fp.encode_scaled(x, name, getattr(fp.scalings, scaling))
        print(scaling, digest(q.codes, q.scales, q.decode()))
    accumulators = (fp.Pairwise("fp32"), fp.Exact("fp16"))
    print("sum", digest(*(fp.sum(half, accumulate=each) for each in accumulators)))
    print("product", digest(*(fp.matmul(half, half.T, accumulate=fp.Sequential(fmt)) for fmt in ("fp32", "fp16"))))
    print("units", digest(fp.matmul(e4m3, e4m3.T, accumulate="hopper_e4m3_f32")))
    print("units", digest(fp.matmul(half, half.T, accumulate="hopper_f16_f32")))
    print("units", digest(fp.dot_add(half[:, :16], half[::-1, :16], None, "cdna3_f16_f32")))
"""

X86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="processors of another family")


@pytest.fixture(scope="module")
def native() -> list[str]:
    return python(SAMPLE).splitlines()


@X86
@pytest.mark.slow
@pytest.mark.parametrize("name", ["generic", "nehalem", "haswell"])
def test_every_family_of_kernels_gives_the_bits_of_this_processor(name: str, native: list[str]) -> None:
    assert python(SAMPLE, NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES="").splitlines() == native


@X86
@pytest.mark.slow
def test_so_it_does_with_avx_512(native: list[str]) -> None:
    if python("from llvmlite import binding; print(binding.get_host_cpu_features().get('avx512f', False))") == "False":
        pytest.skip("this processor has no AVX-512")
    got = python(SAMPLE, NUMBA_CPU_NAME="skylake-avx512", NUMBA_CPU_FEATURES="").splitlines()
    assert got == native


# What the package decides for processors, each of which a fork of one process takes itself for.
DECIDED = """
    import os
    import numba

    for name in ("generic", "nehalem", "sandybridge", "haswell", "knl", "skylake-avx512", "none"):
        if (child := os.fork()) == 0:
            os.environ |= {"NUMBA_DISABLE_JIT": "1"} if name == "none" else {"NUMBA_CPU_NAME": name}
            os.environ["NUMBA_CPU_FEATURES"] = ""
            numba.config.reload_config()
            import fpsim as fp
            from fpsim.casts.half import has_conversion
            from fpsim.products.fast_units import rows_of

            rows = [rows_of(fp.unit(each)) for each in ("hopper_e4m3_f32", "hopper_f16_f32")]
            print(name, has_conversion(), *rows, flush=True)
            os._exit(0)
        os.wait()
"""


@cache
def decided() -> dict[str, list[str]]:
    """Processor, or "none" without compilation -> whether it converts, and the loops of FP8 and of FP16."""
    return {line.split()[0]: line.split()[1:] for line in python(DECIDED).splitlines()}


@X86
def test_what_a_processor_cannot_convert_in_one_instruction_is_left_to_integers() -> None:
    """Without F16C the conversion was a call of a library's function, which may be missing: the process ended."""
    for name, has in (("generic", False), ("nehalem", False), ("sandybridge", False), ("haswell", True)):
        assert decided()[name][0] == str(has), name


@X86
def test_products_take_vectors_where_a_processor_has_them() -> None:
    """AVX-512 with words and bytes, AVX2 with FP16's conversion; without, the compiler would end the process."""
    for name, kinds in (
        ("sandybridge", "plain plain"), ("haswell", "avx2 avx2"), ("knl", "avx2 avx2"),
        ("skylake-avx512", "chained avx512"),
    ):  # fmt: skip
        assert decided()[name][1:] == kinds.split(), name
    assert decided()["none"] == ["False", "plain", "plain"]
