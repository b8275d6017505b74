"""The products that a validation compares: shapes, inputs, library calls, and models of these."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from fpsim.errors import require_word
from fpsim.gpu.experiments.cublas_cases import cublaslt, halves
from fpsim.gpu.lab.judge import ProductCase
from fpsim.gpu.lab.lab import (  # fmt: skip
    E4M3,
    MIXED,
    MIXED_2,
    SETS,
    Lab,
    Pair,
    Shape,
    always,
    cublas_model,
    named,
    problems_of,
    sets_for,
    splits_of,
    tensor_models,
)
from fpsim.gpu.lab.model import LibraryModel, ProductProblem, Words
from fpsim.testing import operands as inputs

ORDERS = ("product", "a_first", "b_first")
STARTS: dict[str, Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[np.float64]]] = {
    "normal": lambda g, size: g.standard_normal(size) * 8,
    "wide": lambda g, size: g.standard_normal(size) * 2.0 ** g.integers(-30, 30, size),
    "large": lambda g, size: g.choice([-1.0, 1.0], size) * 2.0 ** g.integers(14, 26, size) * g.uniform(1, 2, size),
    "special": lambda g, size: g.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.5, 1e-42, -1e-45], size),
}


def units(lab: Lab) -> Iterator[ProductCase]:
    """Yield cases that compare the bits of Triton loops over tl.dot with the bits that models predict.

    lab: the settings of the validation.
    """
    plans: list[tuple[Pair, int, int | None, str]] = [
        (E4M3, 128, None, "normal"), (E4M3, 128, 128, "normal"), (E4M3, 64, 32, "zero"), (E4M3, 128, 64, "wide"),
        (E4M3, 64, None, "large"), (E4M3, 64, None, "special"), (("e5m2", "e5m2"), 64, None, "normal"),
        (MIXED, 64, None, "wide"), (MIXED_2, 128, 32, "zero"), (("fp16", "fp16"), 64, None, "normal"),
        (("fp16", "fp16"), 64, None, "large"), (("bf16", "bf16"), 64, None, "wide"),
        (("bf16", "bf16"), 64, None, "zero"), (("tf32", "tf32"), 32, None, "normal"),
    ]  # fmt: skip
    for pair, block_k, limit, start in plans:
        shape = (64, 32, 256) if lab.small else (64, 64, 768)
        words = f"triton({block_k}" + (")" if limit is None else f", max_num_imprecise_acc={limit})")
        others = [f"triton({block_k}, max_num_imprecise_acc={n})" for n in (32, 64, 128) if n <= block_k]
        models = [LibraryModel(name) for name in dict.fromkeys([words, "FLAT", *others, "cutlass_2xacc(128)"])]
        name = named(shape, f"tl.dot {'x'.join(pair)}, BLOCK_K {block_k}", (limit and f"imprecise {limit}") or "",
                      "" if start == "zero" else f"c {start}")  # fmt: skip
        yield _loop(lab, name, shape, pair, start, models, block_k=block_k, max_num_imprecise_acc=limit,
                    block_n=min(64, shape[1]))  # fmt: skip
    yield from _scaled_loops(lab)
    yield from _small_tiles(lab)


def _scaled_loops(lab: Lab) -> Iterator[ProductCase]:
    """Yield cases that compare Triton loops with models of DeepGEMM and CUTLASS, whose loops scale each block of terms.

    lab: the settings of the validation.
    """
    shape = (64, 64, 256) if lab.small else (64, 128, 896)
    m, n, k = shape
    scales = {
        "scale_a": inputs.scales((m, k // 128), lab.seed, powers=False),
        "scale_b": inputs.scales((k // 128, n), lab.seed + 1, powers=False),
    }
    for pair, (a_first, fused) in product((E4M3, MIXED_2), product((False, True), (True, False))):

        def call(problem: ProductProblem, pair: Pair = pair, a_first: bool = a_first, fused: bool = fused) -> Any:
            result = lab.hardware.scaled_dot(
                problem.a, problem.b, pair, problem.scale_a, problem.scale_b, a_first=a_first, fused=fused
            )
            return result, None

        rows = [LibraryModel(f"{name}{'' if fused else ', fused=False'})")
                for name in ("cutlass_blockwise('a_first'", "deepgemm('1d1d'")]  # fmt: skip
        models = rows if a_first else rows[::-1]
        name = named(shape, f"scaled tl.dot {'x'.join(pair)}", "a first" if a_first else "", "" if fused else "unfused")
        yield ProductCase("units", name, problems_of(lab, shape, pair, SETS, **scales), call, always(models))


def _small_tiles(lab: Lab) -> Iterator[ProductCase]:
    """Yield cases that compare Triton loops over tl.dot in tiles of 16 rows with models of them.

    Triton compiles these loops to the instruction mma.sync. Triton converts FP8 to FP16 and reorders K. lab: the
    settings of the validation.
    """
    half, emulated = f"{lab.chip}_f16_f32", f"{lab.chip}_mma_e4m3_f32"
    models = [LibraryModel("FLAT")]
    of_fp8 = [LibraryModel("FLAT", half, k_order="pairs"), LibraryModel("FLAT", half), LibraryModel("FLAT", emulated)]
    shape = (32, 32, 256)
    for pair, block_k, tried in ((E4M3, 64, [*of_fp8, *models]), (("fp16", "fp16"), 32, models)):
        name = named(shape, f"tl.dot {'x'.join(pair)}, tiles of 16 rows")
        yield _loop(lab, name, shape, pair, "normal", tried, block_k=block_k, block_m=16, block_n=16)


def random_start(name: str, m: int, n: int, seed: int = 0) -> npt.NDArray[np.float32] | None:
    """Return random values at which accumulators start, float32 (m, n); None for the name "zero".

    name: "zero", "normal" (standard deviation 8), "wide" (exponents spread over 60 binades), "large" (magnitudes from
      2**14 to 2**26) or "special" (zeros, Inf, NaN, 1.5, subnormals). seed: seed of the random numbers.

    Raises:
      ValueError: the name is unknown.
    """
    require_word("start", name, ("zero", *STARTS))
    if name == "zero":
        return None
    return STARTS[name](np.random.default_rng([seed, zlib.crc32(name.encode()), m, n]), (m, n)).astype(np.float32)


def _loop(
    lab: Lab, name: str, shape: Shape, pair: Pair, start: str, models: Sequence[LibraryModel], **blocks: Any
) -> ProductCase:  # fmt: skip
    """Return the case that compares the bits of a Triton loop over tl.dot with those that `models` predict.

    lab: settings of the validation. name: name in reports. shape: (M, N, K). pair: formats of the operands. start: name
    of the random values at which sums start, as for `random_start`. blocks: keyword arguments of
    `fpsim.gpu.hardware.dot`.
    """

    def call(problem: ProductProblem) -> tuple[Words, Any]:
        return lab.hardware.dot(problem.a, problem.b, problem.c, pair, **blocks), None

    c = random_start(start, *shape[:2], lab.seed)
    return ProductCase("units", name, problems_of(lab, shape, pair, SETS, c=c), call, always(models))


def tensorwise(lab: Lab) -> Iterator[ProductCase]:
    """Yield cases that compare torch._scaled_mm with models of cuBLAS, for one scale per operand.

    Some cases have fast accumulation, some a bias. lab: settings of the validation: functions that run products on the
    GPU, the GPU's architecture, the seed of the inputs, and whether products are to be few and small.
    """
    shapes: list[Shape] = [(64, 64, 512), (64, 128, 1040), (128, 128, 4096), (16, 16, 16384), (256, 512, 2048)]
    if lab.small:
        shapes = [(32, 32, 512), (16, 16, 2048)]
    scales: dict[str, Any] = {"scale_a": np.float32(0.7), "scale_b": np.float32(1.3)}
    for fast, shape in product((True, False), shapes):
        yield _scaled(lab, "tensorwise", shape, E4M3, "tensor", fast, tensor_models(lab, shape[2], fast), **scales)
    shape = shapes[0]
    for pair, fast in product((MIXED, MIXED_2), (True, False)):
        yield _scaled(lab, "tensorwise", shape, pair, "tensor", fast, tensor_models(lab, shape[2], fast), **scales)
    models = tensor_models(lab, shape[2], False)
    for out in ("bf16", "fp16"):
        bias = np.asarray(inputs.product_operands("normal", (1, shape[1], 1), (out, out), lab.seed)[1][0])
        fused = [model._replace(fused_bias=True) for model in models]
        yield _scaled(lab, "tensorwise", shape, E4M3, "tensor", False, [*models, *fused], out, bias=bias, **scales)


def _scaled(
    lab: Lab, part: str, shape: Shape, pair: Pair, recipe: str, fast: bool, models: Sequence[LibraryModel],
    out: str = "fp32", **more: Any,
) -> ProductCase:  # fmt: skip
    """Return the case that compares a product by torch._scaled_mm with models of cuBLAS.

    Args:
      lab, part, shape: the validation's settings, the name of its part, and (M, N, K).
      pair: formats of the operands.
      recipe: granularity of the scales, as for `fpsim.gpu.hardware.scaled_mm`.
      fast: True for fast accumulation.
      models: models whose results are compared with the product.
      out: format of the result.
      more: scale_a, scale_b and bias of the product.
    """

    def call(problem: ProductProblem) -> tuple[Words, Any]:
        one = np.float32(1)
        result = lab.hardware.scaled_mm(
            problem.a, problem.b, pair, one if problem.scale_a is None else problem.scale_a,
            one if problem.scale_b is None else problem.scale_b, recipe=recipe, out=out, fast_accum=fast,
            bias=problem.bias,
        )  # fmt: skip
        return result, None

    name = named(shape, "x".join(pair), recipe, "fast" if fast else "", out, "bias" if "bias" in more else "")
    return ProductCase(
        part, name, problems_of(lab, shape, pair, sets_for(shape), out=out, **more), call, always(models)
    )


def rowwise(lab: Lab) -> Iterator[ProductCase]:
    """Yield cases that compare torch._scaled_mm with models, for a scale per row of a and per column of b.

    lab: the settings of the validation.
    """
    shapes: list[Shape] = [(32, 32, 512)] if lab.small else [(64, 64, 512), (128, 128, 4096), (256, 512, 1024)]
    for fast, shape in product((True, False), shapes):
        m, n, k = shape
        scales: dict[str, Any] = {
            "scale_a": inputs.scales((m, 1), lab.seed),
            "scale_b": inputs.scales((1, n), lab.seed),
        }
        torch_kernel = f"torch_rowwise({'fast_accum=True' if fast else ''})"
        splits = [cublas_model(lab, s, flag) for flag in (fast, not fast) for s in splits_of(k, 128)]
        models = splits + [model._replace(scale_order=order) for model in splits for order in ORDERS]
        models[1:1] = [
            LibraryModel(torch_kernel),
            *(LibraryModel(torch_kernel, scale_order=order) for order in ("product", "b_first")),
        ]
        for out in ("fp32", "bf16"):
            yield _scaled(lab, "rowwise", shape, E4M3, "row", fast, models, out, **scales)


def blockwise(lab: Lab) -> Iterator[ProductCase]:
    """Yield cases that compare torch's scaled_mm with models, for operands with one scale per block of 128 terms.

    Some have powers of two as scales. The cases with other scales test in which order scales are multiplied. lab: the
    settings of the validation.
    """
    shapes: list[Shape] = [(128, 128, 256)] if lab.small else [(128, 128, 512), (256, 128, 640), (128, 256, 4096)]
    recipes = ("1x128_128x128", "1x128_1x128", "128x128_1x128")
    for powers, shape, recipe in product((False, True), shapes, recipes):
        if powers and (shape != shapes[0] or lab.small):
            continue
        m, n, k = shape
        of_a, of_b = recipe.split("_")
        rows, columns = m // (128 if of_a == "128x128" else 1), n // (128 if of_b == "128x128" else 1)
        scales: dict[str, Any] = {
            "scale_a": inputs.scales((rows, k // 128), lab.seed, powers=powers),
            "scale_b": inputs.scales((k // 128, columns), lab.seed + 1, powers=powers),
        }
        case = _scaled(lab, "blockwise", shape, E4M3, recipe, False, _block_models(lab, k), **scales)
        yield case._replace(name=case.name + (" powers of two" if powers else ""))


def _block_models(lab: Lab, k: int) -> list[LibraryModel]:
    """Return models of how a library may compute a product whose operands have scales per block of 128 terms of K.

    A partial sum of 128 terms and its two scales are multiplied in one of three orders ("product", "a_first",
    "b_first"). The models, in this order:
    1. cuBLAS's block-scaled kernels in their own order, and in each of the three orders.
    2. CUTLASS's kernels in each of the three orders, and DeepGEMM's kernels.
    3. The models of 1 with K divided into two or more slices of multiples of 128 terms.

    lab: settings of the validation, which give the GPU's architecture. k: number of terms, K.
    """
    cublas_models = [LibraryModel(f"cublas({lab.arch!r}, family='block_scaled')")]
    cublas_models += [cublas_models[0]._replace(scale_order=order) for order in ORDERS]
    others = [LibraryModel(f"cutlass_blockwise({order!r})") for order in ORDERS] + [LibraryModel("deepgemm('1d2d')")]
    split = [model._replace(slices=s, grain=128) for s in splits_of(k, 128)[1:8] for model in cublas_models[:4]]
    return [*cublas_models, *others, *split]


# The parts measured least come first: if time or the room of a record runs out, the rest is left out.
PRODUCTS = {
    "blockwise": blockwise, "tensorwise": tensorwise, "rowwise": rowwise, "halves": halves, "cublaslt": cublaslt,
    "units": units,
}  # fmt: skip
