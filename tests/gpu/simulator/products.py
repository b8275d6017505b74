"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: fpsim.gpu.matmul with schedules.

Results go to the file that is named; `tests.gpu.test_products` compares them with those of the CPU.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.matrix_units.matrix_unit import MatrixUnit
from fpsim.schedules.schedule import Lanes

Array = npt.NDArray[Any]

FP8, HALF, ADA, BLACKWELL = "hopper_e4m3_f32", "hopper_f16_f32", "ada_e4m3_f32", "blackwell_e4m3_f32"
M, N = 2, 3
s = fp.schedules
f32 = np.float32


class Case(NamedTuple):
    """A small product: of a unit or a chain of fused multiply-adds, with keywords of fpsim.matmul."""

    name: str
    unit: str | MatrixUnit
    k: int
    options: dict[str, Any] = {}  # noqa: RUF012
    c: str = ""  # the dtype of c, "" for none


def matrix(*shape: int, seed: int = 0) -> Array:
    """float32 numbers of several binades."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 5, shape)).astype(f32)


def operands(case: Case) -> tuple[Array, Array, Array | None]:
    """a, b and c of a case; a NaN and an infinity among them where the name says so."""
    if case.unit == "chain":
        formats = [fp.FP16, fp.E4M3]
    else:
        formats = [element.carrier for element in (fp.unit(case.unit).a, fp.unit(case.unit).b)]
    a, b = (fp.encode(matrix(*shape, seed=i), fmt, overflow="saturate")
            for i, (shape, fmt) in enumerate(zip(((M, case.k), (case.k, N)), formats, strict=True)))  # fmt: skip
    if case.name.startswith("special"):
        a[0, 5], b[7, 1] = formats[0].nan_code, formats[1].max_code + (1 if formats[1].has_infinity else 0)
    c = matrix(M, N, seed=7).astype(case.c) if case.c else None
    return a, b, c


def schedules(every: bool) -> Iterator[Case]:
    """Every way to cut K, to chain and to merge; every family of kernels, and every or a third of the ways of lanes."""
    for count, k in ((1, 160), (3, 288)):
        yield Case(f"nvjet {count}", FP8, k, {"schedule": s.cublas("sm_90", split_k=count)})
    yield Case("nvjet fast", FP8, 160, {"schedule": s.cublas("sm_90", split_k=2, fast_accum=True)})
    yield Case("nvjet halves", HALF, 136, {"schedule": s.cublas("sm_90", split_k=2)})
    yield Case("ada", ADA, 160, {"schedule": s.cublas("sm_89", split_k=2)})
    yield Case("blackwell", BLACKWELL, 288, {"schedule": s.cublas("sm_100", split_k=3)})
    yield Case("2xAcc", FP8, 288, {"promote": 128})
    yield Case("2xAcc, half result", "hopper_e4m3_f16", 96, {"promote": 64})
    yield Case("2xAcc, other rules", "cdna3_fp8_f32", 96, {"promote": 32})
    yield Case("triton", FP8, 256, {"schedule": s.triton(128, max_num_imprecise_acc=96)})
    yield Case("rowwise", FP8, 160, {"schedule": s.torch_rowwise(), "scale_a": matrix(M, 1), "scale_b": matrix(1, N)})
    yield Case("cutlass", HALF, 100, {"schedule": s.cublas("sm_90", family="cutlass", split_k=2)})
    base = s.cublas("sm_90", split_k=4)
    for merge in ("output", "in_place", "from_both_ends"):
        schedule = replace(base, slicing=replace(base.slicing, merge=merge))
        yield Case(f"merge {merge}", HALF, 256, {"schedule": schedule, "out_fmt": "bf16"})
    interleaved = replace(base, slicing=replace(base.slicing, rule="interleaved", count=2))
    yield Case("interleaved", HALF, 200, {"schedule": interleaved})
    lanes = {row.sums: row for row in s.ROWS if row.arch == "hopper" and isinstance(row.sums, Lanes)}
    for row in list(lanes.values())[:: 1 if every else 3]:
        yield Case(f"lanes {row.name}", HALF, 150, {"schedule": row})
    yield Case("lanes of a chain", "chain", 150, {"schedule": s.cublas("sm_90", family="gemv", option=5)})


def scaled() -> Iterator[Case]:
    """Scales along K, of a whole block and a part of one, in every order."""
    rows, columns, block = matrix(M, 2, seed=1), matrix(2, N, seed=2), matrix(1, 2, seed=3)
    for order in ("product", "a_first", "b_first"):
        options = {"schedule": s.cutlass_blockwise(order), "scale_a": rows, "scale_b": columns}
        yield Case(f"blockwise {order}", FP8, 160, options)
        rounded = {**options, "schedule": s.cutlass_blockwise(order, fused=False)}
        yield Case(f"blockwise {order}, rounded", FP8, 160, rounded)
    yield Case("DeepGEMM", FP8, 160, {"schedule": s.deepgemm("1d2d"), "scale_a": rows, "scale_b": block.T.copy()})
    both = s.cublas("sm_90", family="block_scaled")
    yield Case("cuBLAS blocks", FP8, 160, {"schedule": both, "scale_a": block, "scale_b": columns})
    yield Case("promoted blocks", FP8, 160, {"promote": 64, "scale_a": rows, "scale_b": columns})


def epilogues() -> Iterator[Case]:
    """Scales, alpha, bias, C and outputs in each order of operations."""
    bias, one = matrix(N, seed=4), f32(0.37)
    nvjet, cutlass = s.cublas("sm_90"), s.cublas("sm_90", family="cutlass")
    for name, schedule in (("nvjet", nvjet), ("cutlass", cutlass)):
        more = {"schedule": schedule, "alpha": 0.7, "bias": bias}
        yield Case(f"{name}, c added", HALF, 40, {**more, "beta": -0.3}, "float32")
        yield Case(f"{name}, c of halves", HALF, 40, {**more, "beta": 1.3, "out_fmt": "fp16"}, "float16")
    yield Case("scales and bias", FP8, 40, {"scale_a": one, "scale_b": matrix(1, N), "bias": bias.astype(np.float16)})
    yield Case("a first", FP8, 40, {"schedule": s.torch_rowwise(), "scale_a": matrix(M, 1), "scale_b": one,
                                    "bias": bias, "out_fmt": "bf16"})  # fmt: skip
    yield Case("c and scales", FP8, 40, {"scale_a": one, "scale_b": one}, "float32")
    yield Case("c ignored", FP8, 40, {"beta": 0.0, "alpha": 2.0}, "float32")
    for fmt in ("e4m3", "e5m2", "fp16", "bf16", "fp32", "e2m1"):
        yield Case(f"special, to {fmt}", FP8, 40, {"out_fmt": fmt, "alpha": 900.0})
    yield Case("special", FP8, 40, {}, "float32")
    yield Case("special, to FP64", HALF, 40, {"out_fmt": "fp64"})
    yield Case("special halves", "hopper_f16_f16", 40, {}, "float16")


def units() -> Iterator[Case]:
    """Accumulators of every width, and products without terms."""
    yield Case("from halves", "volta_f16_f16", 10, {}, "float16")
    yield Case("doubles", "ampere_f64_f64", 6, {}, "float64")
    for k in (0, 1):
        yield Case(f"{k} terms", FP8, k, {}, "float32")
        yield Case(f"{k} terms, scaled", FP8, k, {"alpha": 2.0, "bias": matrix(N), "out_fmt": "bf16"})


def own_units() -> Iterator[Case]:
    """Units that stand in no table: what the kernel of tiles does not take goes by the specification."""
    half, fnuz, bf16 = (fp.unit(name) for name in (HALF, "cdna3_fp8_f32", "hopper_bf16_f32"))
    tf32, f64, f32_ = (fp.unit(name).a for name in ("hopper_tf32_f32", "hopper_f64_f64", "cdna1_f32_f32"))
    fmt = fp.Format("e6m5", 6, 5)
    element = type(tf32)("e6m5", fmt, fmt)
    of = {
        **{f"{terms} terms": replace(half, terms=terms) for terms in (1, 5, 12, 24, 48)},
        **{f"{bits} bits": replace(half, fraction_bits=bits) for bits in (0, 10, 26, 27, 40)},
        "a high floor": replace(half, floor_exponent=4),
        "few bits of a result": replace(half, result_bits=3),
        "few bits to nearest": replace(half, d=half.a, result_bits=7, floor_exponent=-20),
        "long significands": replace(half, a=f32_, b=f32_),
        "mixed": replace(half, a=tf32),
        "NaN in the place of -0": replace(half, a=fnuz.a, b=fnuz.b),
        "sums in bf16": replace(half, d=bf16.a, result_bits=7),
        "sums in e6m5": replace(half, d=element, a=element, result_bits=5),
        "wide tree": replace(fp.unit("cdna2_f16_f32"), terms=16),
        "exact": replace(fp.unit("cdna1_f16_f32"), terms=9, b=f64),
        "one of even and odd": replace(fnuz, terms=1),
        "short passes": replace(fp.unit("hopper_mma_e4m3_f32"), terms=12, a=half.a),
    }
    for name, unit in of.items():
        yield Case(f"special, own, {name}", replace(unit, name="mine"), 50, {}, "")
    yield Case("own, 12 terms, promoted", replace(half, name="mine", terms=12), 50, {"promote": 24}, "float32")
    sliced = s.cublas("sm_90", split_k=3)
    yield Case("own, 27 bits, sliced", replace(half, name="mine", fraction_bits=27), 200, {"schedule": sliced})


def cases(every: bool = True) -> list[Case]:
    """Return all that is compared; with few of the kernels whose lanes add in ways of their own, or with every one."""
    return [*schedules(every), *scaled(), *epilogues(), *units(), *own_units()]


SCALED = {  # unit, scalings of a and of b
    "tiles": (FP8, fp.scalings.TILE_1X128, fp.scalings.TILE_128X1),
    "rows": (FP8, fp.scalings.ROW, fp.scalings.COLUMN),
    "tensors": (FP8, fp.scalings.TENSOR, fp.scalings.TENSOR),
    "MX": ("blackwell_mxfp8_e4m3_f32", fp.scalings.MX, fp.scalings.MX.transposed()),
    "NVFP4": ("blackwell_nvfp4_f32", fp.scalings.NVFP4, fp.scalings.NVFP4.transposed()),
}


def scaled_product(name: str, encode: Any, product: Any, sent: Any = np.asarray) -> Any:
    """Return a product of two Scaled operands."""
    unit, of_a, of_b = SCALED[name]
    fmt, k = fp.unit(unit).a.carrier, 256 if name == "tiles" else 128
    a, b = encode(sent(matrix(M, k)), fmt, of_a), encode(sent(matrix(k, N)), fmt, of_b)
    return product(a, b, accumulate=unit)


def stacks() -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return operands and keywords of stacks of products, by name."""
    halves, bytes_ = matrix(2, 1, M, 20, seed=5).astype(np.float16), np.arange(2 * M * 8, dtype=np.int8)
    right, plain = matrix(3, 20, N, seed=6).astype(np.float16), matrix(20, N, seed=8).astype(np.float16)
    c = matrix(2, M, N, seed=9)
    chain = {"accumulate": fp.Sequential(fp.BF16)}
    sliced = {"accumulate": HALF, "schedule": s.segments(16, 4), "out_fmt": "fp16", "alpha": 0.7, "bias": matrix(N)}
    return {
        "broadcast": ((halves, right, None), {"accumulate": HALF}),
        "one b, with c": ((halves[:, 0], plain, c), {"accumulate": HALF}),
        "one a, scheduled": ((halves[0, 0], right, None), sliced),
        "accumulator": ((halves, right, None), chain),
        "random": ((halves, right, None), {"accumulate": fp.Chunked(fp.E4M3, 8, rounding="stochastic", seed=1)}),
        "random, exact": ((halves, right, None), {"accumulate": fp.Exact(fp.E5M2, rounding="stochastic", seed=2)}),
        "integers": (
            (bytes_.reshape(2, M, 8), bytes_[: 8 * N].reshape(1, 8, N), None),
            {"accumulate": "hopper_s8_s32"},
        ),
        "no products": ((halves[:0], right, None), {"accumulate": HALF}),
        "no products, with c": ((halves[:0, 0], plain, c[:0]), {"accumulate": HALF, "beta": 0.5}),
    }


def call(function: Any, case: Case, operands: Sequence[Any]) -> Any:
    """fpsim.matmul or its twin; libraries would refuse matrices as small as these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if case.unit == "chain":
            how: dict[str, Any] = {"accumulate": fp.FusedMultiplyAdd(fp.FP32), "fmt": (fp.FP16, fp.E4M3)}
        else:
            how = {"accumulate": case.unit}
        return function(*operands, strict=False, **how, **case.options)


def simulated(every: bool) -> dict[str, Array]:
    """Every result, by name."""
    from numba import cuda

    from fpsim.gpu.products import fused_product

    # of two rows, as these products have; tests.gpu.simulator.fused_products has tiles of other sizes
    fused_product.SIMULATED_TILE = fused_product.SIMULATED_TILE._replace(rows=M // 2)
    results = {}
    for case in cases(every):
        a, b, c = operands(case)
        sent = [None if x is None else cuda.to_device(x) for x in (a, b, c)]
        results[case.name] = call(fp.gpu.matmul, case, sent).copy_to_host()
    for name in SCALED:
        results[f"Scaled {name}"] = scaled_product(
            name, fp.gpu.encode_scaled, fp.gpu.matmul, cuda.to_device
        ).copy_to_host()
    for name, (arrays, keywords) in stacks().items():
        sent = [None if x is None else cuda.to_device(np.ascontiguousarray(x)) for x in arrays]
        results[f"stack {name}"] = fp.gpu.matmul(*sent, **keywords).copy_to_host()
    (a, b, _), keywords = stacks()["broadcast"]
    out = cuda.to_device(np.full((2, 3, M, N), np.nan, f32))
    assert fp.gpu.matmul(cuda.to_device(a), cuda.to_device(b), out=out, **keywords) is out
    results["stack out"] = out.copy_to_host()
    (a, b, c), keywords = stacks()["one b, with c"]
    memory = cuda.to_device(np.concatenate([c, c[:1]]))
    fp.gpu.matmul(cuda.to_device(a), cuda.to_device(b), memory[:-1], out=memory[1:], **keywords)
    results["stack over c"] = memory[1:].copy_to_host()
    shared = {"bias": memory[0, 0], "scale_a": memory[0, :, :1], "scale_b": np.ones((1, N), f32)}
    want = fp.gpu.matmul(cuda.to_device(a), cuda.to_device(b), **shared, **keywords).copy_to_host()
    fp.gpu.matmul(cuda.to_device(a), cuda.to_device(b), out=memory[:-1], **shared, **keywords)
    results["stack over its bias and scales"] = memory[:-1].copy_to_host() - want
    a, b, _ = operands(Case("out", FP8, 40))
    out = cuda.to_device(np.full((M, N), np.nan, f32))
    assert fp.gpu.matmul(cuda.to_device(a), cuda.to_device(b), accumulate=FP8, out=out) is out
    results["out"] = out.copy_to_host()
    return results


def main(file: str, every: str) -> None:
    """Write some or every result to a file."""
    np.savez(file, **simulated(every == "every"))  # type: ignore[arg-type]
