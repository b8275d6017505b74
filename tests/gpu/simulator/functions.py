"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: the functions of fpsim.gpu, simulated.

Results go to the file that is named; `tests.gpu.test_functions` compares them with those of the CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.arithmetic.operation import ELEMENTARY

Array = npt.NDArray[Any]

FORMATS = [fp.E4M3, fp.E5M2, fp.E2M1, fp.FP16, fp.BF16, fp.E8M0, fp.E4M3FNUZ, fp.format("p3109_k6p3ue"), fp.FP32]
MODES = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "odd", "stochastic")
SOURCES = ("float16", "float32", "float64")


HALVES = np.linspace(-3, 5, 24).astype(np.float16)


def values(dtype: str) -> Array:
    """Specials, ties and random numbers of many magnitudes, as an array of two axes."""
    rng = np.random.default_rng(3)
    drawn = rng.standard_normal(20) * 2.0 ** rng.integers(-20, 12, 20)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 464.0, 465.0, -(2.0**-10), 3 * 2.0**-11, 1.0625, 6e4, 1e-7]
    with np.errstate(over="ignore"):
        return np.concatenate([special, drawn]).astype(dtype).reshape(4, -1)


def cast_options(mode: str) -> dict[str, Any]:
    """Keywords of a cast that differ from mode to mode."""
    options: dict[str, Any] = {"rounding": mode}
    if mode == "stochastic":
        options |= {"seed": 2**40 + 7, "random_bits": 20}
    if mode in ("nearest_away", "down"):
        options["overflow"] = "saturate"
    if mode in ("odd", "up"):
        options["subnormals"] = "flush"
    return options


def cast_cases() -> list[tuple[str, fp.Format, str]]:
    """(dtype, format, mode) of every cast that is compared."""
    cases = [(dtype, fmt, "nearest_even") for dtype in SOURCES for fmt in FORMATS]
    return cases + [("float32", fmt, mode) for fmt in (fp.E4M3, fp.FP16) for mode in MODES[1:]]


def codes_of(fmt: fp.Format) -> Array:
    """Some codes of a format."""
    return np.linspace(0, (1 << fmt.bits) - 1, 64).astype(fmt.storage)


ARITHMETIC = {
    "add": 2, "subtract": 2, "multiply": 2, "divide": 2, "remainder": 2, "minimum": 2, "maximum": 2,
    "minimum_number": 2, "maximum_number": 2, "fma": 3, "sqrt": 1, "round_to_integral": 1, "next_up": 1, "next_down": 1,
    "equal": 2, "less": 2, "less_equal": 2,
}  # fmt: skip
EXACT = ("next_up", "next_down", "equal", "less", "less_equal")  # no rounding takes place
COMPARED = ("equal", "less", "less_equal")


def operands(fmt: fp.Format, count: int) -> list[Array]:
    """Return codes of each kind, every operand in another order."""
    one, top = fmt.bias << fmt.mantissa_bits, fmt.top_magnitude
    magnitudes = [0, 1, 1 << fmt.mantissa_bits, one, one + 1, fmt.max_code, fmt.max_code - 1, top]
    codes = [magnitude | sign for sign in (0, fmt.sign_bit) for magnitude in magnitudes]
    drawn = np.random.default_rng(0).integers(0, 1 << fmt.bits, 24)
    orders = np.random.default_rng(1)
    return [orders.permutation(np.concatenate([codes, drawn])).astype(fmt.storage) for _ in range(count)]


def arithmetic_cases() -> list[tuple[str, fp.Format, dict[str, Any]]]:
    """(operation, format, keywords) of everything that is compared."""
    cases: list[tuple[str, fp.Format, dict[str, Any]]] = []
    for name in ARITHMETIC:
        for fmt in (fp.E4M3, fp.FP16, fp.FP32):
            options: list[dict[str, Any]] = [{}]
            if name not in EXACT:
                options += [{"rounding": "down"}, {"rounding": "stochastic", "seed": 5, "overflow": "saturate"}]
            cases += [(name, fmt, each) for each in options]
    for name in ELEMENTARY:
        cases += [(name, fp.E4M3, {"rounding": "down"}), (name, fp.FP32, {"tininess": "before"})]
    return [*cases, ("exp", fp.E5M2, {"rounding": "stochastic", "seed": 5, "out_fmt": "bf16"})]


# a unit of every rule, and one with a float16 result
UNITS = (
    "hopper_e4m3_f32", "ampere_f16_f16", "blackwell_mxfp8_e4m3_f32", "blackwell_nvfp4_f32", "hopper_mma_e5m2_f32",
    "cdna1_bf16_f32", "cdna2_f16_f32", "cdna3_bf16_f32", "cdna3_fp8_f32", "hopper_tf32_f32",
    "x86_avx512_bf16_f32", "x86_amx_bf16_f32", "arm_bf16_f32", "arm_ebf_bf16_f32",
)  # fmt: skip


class Product(NamedTuple):
    """A small product of a unit: codes, starting values, and scales where it takes them."""

    a: Array  # (M, K)
    b: Array  # (K, N)
    c: Array  # (M, N)
    scales: tuple[Array, Array] | None  # (M, blocks), (blocks, N)


def product(name: str) -> Product:
    """Random codes of every kind, two and a half steps of them."""
    unit, rng, m, n = fp.unit(name), np.random.default_rng(9), 3, 4
    k = 2 * unit.block if unit.scale else 2 * unit.terms + unit.terms // 2

    def codes(element: Any, shape: tuple[int, int]) -> Array:
        if element.carrier == fp.FP32:
            return rng.standard_normal(shape).astype(np.float32).view(np.uint32)
        got = rng.integers(0, 1 << element.carrier.bits, shape).astype(element.dtype)
        # a NaN or Inf hides all other terms of a result, so only the first row of a and column of b have them
        special = ((got & element.carrier.top_magnitude) > element.carrier.max_code) | (got == element.carrier.nan_code)
        (special[:1] if shape[0] == m else special[:, :1])[...] = False
        return np.where(special, 0, got).astype(element.dtype)

    scales = None
    if unit.scale:
        scales = tuple(rng.integers(110, 140, (m, k // unit.block, n)[i : i + 2]).astype(np.uint8) for i in (0, 1))
    c = fp.encode(rng.standard_normal((m, n)), unit.d.fmt)
    return Product(codes(unit.a, (m, k)), codes(unit.b, (k, n)), c, scales)  # type: ignore[arg-type]


RECORDED = {"add": 2, "fma": 3, "exp": 1}  # and their operands


def recorded() -> dict[str, Array]:
    """The results of functions that run for the second time, while a CUDA graph would be recorded."""
    from numba import cuda

    def refuse() -> None:
        raise AssertionError("a CUDA graph cannot record this call")

    results = {}
    x = cuda.to_device(HALVES)
    for name, count in RECORDED.items():
        call = getattr(fp.gpu, name)
        call(*[x] * count)
        with patch("fpsim.gpu.device.launch.refuse_capture", refuse):
            results[f"recorded {name}"] = call(*[x] * count).copy_to_host()
    return results


def simulated() -> dict[str, Array]:
    """Every result, by name."""
    from numba import cuda

    results = {}
    for name in UNITS:
        a, b, c, scales = product(name)
        x, y, start = (cuda.to_device(each) for each in (a, b, c))
        words = {} if scales is None else {"scale_a": cuda.to_device(scales[0]), "scale_b": cuda.to_device(scales[1])}
        results[f"matmul {name}"] = fp.gpu.matmul(x, y, start, accumulate=name, **words).copy_to_host()
        terms = fp.unit(name).terms
        if scales is None:
            promoted = fp.gpu.matmul(x, y, start, accumulate=name, promote=2 * terms)
            results[f"promoted {name}"] = promoted.copy_to_host()
            rows = cuda.to_device(np.ascontiguousarray(b.T[:3]))
            results[f"dot_add {name}"] = fp.gpu.dot_add(x, rows, None, name).copy_to_host()
    for i, (name, fmt, options) in enumerate(arithmetic_cases()):
        codes = [cuda.to_device(x) for x in operands(fmt, ARITHMETIC.get(name, 1))]
        result, flags = getattr(fp.gpu, name)(*codes, fmt=fmt, flags=True, **options)
        results[f"arithmetic {i}"], results[f"flags {i}"] = result.copy_to_host(), flags.copy_to_host()
    x, y = operands(fp.E4M3, 1)[0], operands(fp.E5M2, 1)[0]
    mixed = fp.gpu.multiply(cuda.to_device(x), cuda.to_device(y), fmt=("e4m3", "e5m2"), out_fmt="bf16")
    results["mixed"] = mixed.copy_to_host()
    results["one element"] = fp.gpu.add(cuda.to_device(x), cuda.to_device(x[:1]), fmt="e4m3").copy_to_host()
    results["halves"] = fp.gpu.add(*(cuda.to_device(z) for z in (HALVES, HALVES[::-1].copy()))).copy_to_host()
    results["converted"] = fp.gpu.convert(cuda.to_device(HALVES), "e4m3", rounding="up").copy_to_host()
    results |= recorded()
    for dtype, fmt, mode in cast_cases():
        x = cuda.to_device(values(dtype))
        results[f"encode {dtype} {fmt.name} {mode}"] = fp.gpu.encode(x, fmt, **cast_options(mode)).copy_to_host()
        if mode in ("nearest_even", "stochastic") and dtype == "float32" and fmt != fp.FP32:
            rounded = fp.gpu.quantize(x, fmt, **cast_options(mode))
            results[f"quantize {fmt.name} {mode}"] = rounded.copy_to_host()
    for fmt in FORMATS:
        decoded = fp.gpu.decode(cuda.to_device(codes_of(fmt)), fmt, np.float64)
        results[f"decode {fmt.name}"] = decoded.copy_to_host()
    return results


def main(file: str) -> None:
    """Write every result to a file."""
    from tests.gpu.simulator.cases import on_gpu

    np.savez(file, **(simulated() | on_gpu()))
