"""Run by tests.kit.simulated, CUDA simulated and nothing compiled: accumulators of fpsim.gpu, simulated.

Results go to the file that is named; `tests.gpu.test_sums` compares them with those of the CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import fpsim as fp
from fpsim.sums.accumulators import Accumulator
from tests.sums.checks import drawn

Array = npt.NDArray[Any]

UNSIGNED = fp.format("p3109_k6p3ue")
ACCUMULATORS: list[Accumulator] = [
    fp.Sequential("e4m3"), fp.Sequential("fp16", rounding="up"), fp.Sequential("e2m1", rounding="odd"),
    fp.Sequential("bf16", rounding="stochastic", seed=2**40 + 7, random_bits=5, overflow="saturate"),
    fp.Sequential("fp32", rounding="stochastic", seed=1), fp.Sequential(UNSIGNED), fp.Sequential("fp64"),
    fp.FusedMultiplyAdd("fp16", rounding="down"), fp.FusedMultiplyAdd("fp32"), fp.FusedMultiplyAdd("fp64"),
    fp.FusedMultiplyAdd("e5m2", rounding="stochastic", seed=3), fp.Pairwise("fp16"), fp.Pairwise("fp64"),
    fp.Pairwise("e5m2", rounding="stochastic", seed=4),
    fp.Pairwise("fp32", rounding="nearest_away", subnormals="flush"),
    fp.Chunked("fp16", chunk=3, outer="fp32", rounding="stochastic", seed=5), fp.Chunked("bf16", chunk=5, outer="fp64"),
    fp.Chunked("fp64", chunk=4, outer="fp32"), fp.Chunked("e4m3fnuz", rounding="toward_zero"), fp.Exact("e4m3"),
    fp.Exact("fp32", rounding="stochastic", seed=6), fp.Exact("fp64", rounding="up"), fp.Exact("e2m1", rounding="down"),
]  # fmt: skip
PAIRS = [("e4m3", "e5m2"), ("fp16", "fp16"), ("bf16", "fp32"), ("e2m1", "e8m0")]
TERMS = (0, 1, 7, 13)
SHAPE = (2, 3)
AXES = (None, 0, 1, -1)


class Case(NamedTuple):
    """A product of matrices: codes, their formats, and starting values."""

    accumulator: Accumulator
    a: Array  # (M, K)
    b: Array  # (K, N)
    c: Array | None  # (M, N)
    formats: tuple[fp.Format, fp.Format]


def takes_double(accumulator: Accumulator) -> bool:
    """Return whether products of FP64 are allowed."""
    return isinstance(accumulator, fp.Exact) or accumulator.fmt == accumulator.result_format == fp.FP64


def of_doubles(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Numbers of many sizes and lengths, that cancel now and then, with a special value here and there."""
    numbers = rng.integers(-9, 10, shape) * 2.0 ** rng.integers(-60, 60, shape) + rng.choice(
        [0.0, 1 / 3, 5e-324], shape
    )
    special = rng.choice([np.inf, -0.0, np.nan, -1e308, 5e-324], shape)
    return np.where(rng.random(shape) < 0.03, special, numbers).view(np.uint64)


def codes(fmt: fp.Format, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Return codes of a format, specials among them."""
    return of_doubles(shape, rng) if fmt == fp.FP64 else drawn(fmt, shape, rng, 0.05)


def typed(codes: Array, fmt: fp.Format) -> Array:
    """Return codes in the dtype of the format, where numba knows it."""
    dtypes: dict[fp.Format, Any] = {fp.FP16: np.float16, fp.FP32: np.float32, fp.FP64: np.float64}
    return codes.view(dtypes.get(fmt, codes.dtype))


def cases() -> list[Case]:
    """Every accumulator with every number of terms, the formats and starting values in turn."""
    rng, found = np.random.default_rng(11), []
    for i, accumulator in enumerate(ACCUMULATORS):
        pairs = [tuple(map(fp.format, pair)) for pair in PAIRS]
        pairs[-1] = (fp.FP64, fp.FP64) if takes_double(accumulator) else pairs[-1]
        for j, terms in enumerate(TERMS):
            formats = pairs[(i + j) % len(pairs)]
            a, b = codes(formats[0], (SHAPE[0], terms), rng), codes(formats[1], (terms, SHAPE[1]), rng)
            c = codes(accumulator.result_format, SHAPE, rng) if (i + j) % 3 else None
            found.append(Case(accumulator, a, b, c, (formats[0], formats[1])))
    return found


def terms_of_sums(accumulator: Accumulator) -> list[tuple[Array, str | None]]:
    """(array to add up, format of its codes) for some sums."""
    rng = np.random.default_rng(13)
    halves = rng.standard_normal((3, 5, 2)).astype(np.float16)
    nan = np.full((1, 1), 0xFE00, np.uint16).view(np.float16)  # a single one once kept its sign in Pairwise
    doubles = of_doubles((2, 9), rng).view(np.float64)
    return [(halves, None), (nan, None), (doubles, None), (codes(fp.E2M1, (2, 3), rng), "e2m1")]


def operands_of_dots() -> list[tuple[Array, Array]]:
    """Rows whose axes before the last are the same, broadcast, or not there."""
    rng = np.random.default_rng(17)
    shapes = [((3, 9), (3, 9)), ((2, 1, 5), (3, 5)), ((6,), (6,)), ((2, 0), (2, 0)), ((4, 5), (5,))]
    return [(rng.standard_normal(x).astype(np.float16), rng.standard_normal(y).astype(np.float32)) for x, y in shapes]


REFUSALS = {
    "fp.gpu.matmul(x, y, accumulate=fp.Exact('fp32'))": r"ValueError a \(M, K\) and b \(K, N\) must agree in K",
    "fp.gpu.matmul(x, x, x, accumulate=fp.Exact('fp16'))": r"TypeError c is an array of float32, .* FP16 are needed",
    "fp.gpu.matmul(x, x, y[:1], accumulate=fp.Exact('fp32'))": r"ValueError c must have the result's shape \(2, 2\)",
    "fp.gpu.matmul(x, v, accumulate=fp.Exact('fp32'))": r"ValueError b must have two axes, \(K, N\); got shape \(4,\)",
    "fp.gpu.matmul(x, x, accumulate=fp.Exact('fp32'), promote=4)": r"ValueError promote is for matrix units",
    "fp.gpu.matmul(x, x, accumulate=fp.Exact('fp32'), fmt=('e4m3',))": r"ValueError fmt must name one format, or those",
    "fp.gpu.matmul(d, d, accumulate=fp.Sequential('fp32'))": r"ValueError products of FP64 are added by an accumulator",
    "fp.gpu.matmul(x, x, accumulate=fp.Exact('fp16'), out=x)": r"ValueError out must be a .* of float16 and shape",
    "fp.gpu.matmul(x, x, accumulate='exact')": r"ValueError .*exact",
    "fp.gpu.sum(z, accumulate=fp.Exact('fp32'))": r"ValueError x holds integers: say which format",
    "fp.gpu.sum(z, accumulate=fp.Exact('fp32'), fmt='e2m1')": r"ValueError x must lie in 0 .. 0xf, the codes of E2M1",
    "fp.gpu.sum(x, accumulate='hopper_e4m3_f32')": r"TypeError accumulate must be Sequential, .* for a sum; got 'h",
    "fp.gpu.sum(x, accumulate=fp.Exact('fp32'), axis=2)": r"ValueError axis must be one of the 2 axes of x",
    "fp.gpu.sum(x, accumulate=fp.Exact('fp32'), axis=True)": r"TypeError axis must be an integer, or None",
    "fp.gpu.sum(np.ones(3), accumulate=fp.Exact('fp32'))": r"TypeError x must be an array on the GPU",
    "fp.gpu.dot(x, v, accumulate=fp.Exact('fp32'))": r"ValueError a dot product needs operands \(..., K\) with the",
    "fp.gpu.dot(x, w, accumulate=fp.Exact('fp32'))": r"ValueError dot needs operands whose shapes broadcast",
    "fp.gpu.sum(x, accumulate=((0, 1), 2))": r"TypeError accumulate must be an accumulator.* fpsim\.sum adds",
    "fp.gpu.dot(x, x, accumulate=(0, 1))": r"TypeError accumulate must be an accumulator.* fpsim\.dot adds",
    "fp.gpu.dot(x, x, accumulate=3)": r"TypeError accumulate must be a matrix unit, its name, or an accumulator; got 3",
    "fp.gpu.dot(z, z, accumulate='hopper_e4m3_f32', fmt='e4m3')": r"ValueError a matrix unit knows the formats",
    "fp.gpu.dot(z, z, accumulate=fp.Exact('fp32'), fmt=('e4m3',))": r"ValueError fmt must name one format, or 2 for",
}


def refusals() -> list[str]:
    """Return the message of each call."""
    from numba import cuda

    shapes = {"x": (2, 2), "y": (3, 2), "w": (3, 2), "d": (2, 2), "v": (4,), "z": (4,)}
    arrays = {
        name: np.ones(shape, {"d": np.float64, "z": np.uint8}.get(name, np.float32)) for name, shape in shapes.items()
    }
    arrays["z"] *= 99
    names = {name: cuda.to_device(array) for name, array in arrays.items()}
    said = []
    for call in REFUSALS:
        try:
            eval(call, {"fp": fp, "np": np}, names)
            said.append(f"no error for {call}")
        except (TypeError, ValueError) as reason:
            said.append(f"{type(reason).__name__} {reason}")
    return said


def simulated() -> dict[str, Array]:
    """Every result, by name."""
    from numba import cuda

    results = {"refusals": np.array(refusals())}
    for i, case in enumerate(cases()):
        a, b = cuda.to_device(case.a), cuda.to_device(case.b)
        c = None if case.c is None else cuda.to_device(typed(case.c, case.accumulator.result_format))
        out = c if i % 2 else None  # the result in the memory of c, or of its own
        product = fp.gpu.matmul(a, b, c, accumulate=case.accumulator, fmt=case.formats, out=out)
        assert out is None or product is out
        results[f"product {i}"] = product.copy_to_host()
    for i, accumulator in enumerate(ACCUMULATORS):
        for j, (x, fmt) in enumerate(terms_of_sums(accumulator)):
            axis = AXES[(i + j) % len(AXES)]
            total = fp.gpu.sum(cuda.to_device(x), accumulate=accumulator, fmt=fmt, axis=axis)
            results[f"sum {i} {j}"] = total.copy_to_host()
        x, y = operands_of_dots()[i % len(operands_of_dots())]
        results[f"dot {i}"] = fp.gpu.dot(cuda.to_device(x), cuda.to_device(y), accumulate=accumulator).copy_to_host()
    rows = cuda.to_device(np.arange(96, dtype=np.uint8).reshape(3, 32)), cuda.to_device(np.arange(32, dtype=np.uint8))
    results["dot by unit"] = fp.gpu.dot(*rows, accumulate="hopper_e4m3_f32").copy_to_host()
    return results


def main(file: str) -> None:
    """Write every result to a file."""
    np.savez(file, **simulated())  # type: ignore[arg-type]
