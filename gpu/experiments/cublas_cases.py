"""Products whose bits depend on cuBLAS's choice of algorithm: torch.mm of FP16, BF16 and TF32, and cublasLtMatmul."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import Any

import numpy as np

from fpsim.gpu.lab.judge import ProductCase
from fpsim.gpu.lab.lab import (  # fmt: skip
    E4M3,
    MIXED,
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
from fpsim.schedules.libraries.cublas import GEMV, GEMV_SLICES
from fpsim.schedules.libraries.cublas_choice import Fields, schedule_of

INSTRUCTION = 8  # terms of the mma instruction that accepts unaligned operands
LAYOUT_WORDS = {"nn": (), "nt": ("NT",)}  # layout -> words in the name of a case


def halves(lab: Lab) -> Iterator[ProductCase]:
    """Yield cases that compare torch.mm in FP16, BF16 and TF32 with models of cuBLAS.

    Cases with both operands contiguous along K come first. lab: the settings of the validation.
    """
    shapes: list[Shape] = [(64, 64, 512), (128, 256, 4096), (16, 16, 8192), (40, 64, 1000), (32, 40, 999), (9, 24, 100),
                           (8, 64, 300), (1, 64, 2048), (64, 1, 2048)]  # fmt: skip
    along_k: list[Shape] = [(64, 64, 512), (128, 256, 4096), (40, 64, 1000), (1, 64, 2048)]
    if lab.small:
        shapes, along_k = [(32, 32, 512), (32, 40, 199)], [(32, 32, 512)]
    for shape, (kind, out) in product(along_k, (("fp16", "fp32"), ("bf16", "bf16"))):
        yield _half(lab, shape, kind, out, half_models(lab, shape, True), "nt")
    for shape, (kind, out) in product(shapes, (("fp16", "fp32"), ("fp16", "fp16"), ("bf16", "bf16"))):
        yield _half(lab, shape, kind, out, half_models(lab, shape))
    for shape in [(16, 16, 256)] if lab.small else shapes[:2]:
        call = f"cublas({lab.arch!r}, family='cutlass_tf32', block_k="
        slices = [
            LibraryModel(f"{call}{terms}, split_k={s})") for terms in (16, 32) for s in splits_of(shape[2], 32)[1:]
        ]
        yield _half(lab, shape, "tf32", "fp32", [LibraryModel("FLAT"), *(slices if lab.chip == "hopper" else ())])


def _half(
    lab: Lab, shape: Shape, kind: str, out: str, models: Sequence[LibraryModel], layout: str = "nn"
) -> ProductCase:  # fmt: skip
    """Return the case that compares a product by torch.mm with models of cuBLAS.

    Args:
      lab: the settings of the validation.
      shape: (M, N, K).
      kind: the format of the operands, "fp16", "bf16" or "tf32".
      out: the format of the result.
      models: models whose results are compared with the product.
      layout: "nn", or "nt" for both operands contiguous along K.
    """

    def call(problem: ProductProblem) -> tuple[Words, Any]:
        return lab.hardware.matmul(problem.a, problem.b, kind, out=out, layout=layout), None

    problems = problems_of(lab, shape, (kind, kind), sets_for(shape)[:5], out=out)
    return ProductCase(
        "halves", named(shape, f"torch.mm {kind} -> {out}", *LAYOUT_WORDS[layout]), problems, call, always(models)
    )


def half_models(lab: Lab, shape: Shape, along_k: bool = False) -> list[LibraryModel]:
    """Return models of cuBLAS's kernel families for FP16 and BF16, the likeliest for the shape (M, N, K) first.

    lab: the settings of the validation. along_k: True if both operands are contiguous along K; then torch.mm uses nvjet
    kernels for a single row too (H100, cuBLAS 13.1).
    """
    m, n, k = shape
    splits = splits_of(k, 64)
    nvjet = [cublas_model(lab, s, False) for s in splits]
    prefix = f"cublas({lab.arch!r}, family="
    cutlass = [LibraryModel(f"{prefix}'cutlass', stages={stages})") for stages in (13, 7, 19, 0)]
    cutlass += [LibraryModel(f"{prefix}'cutlass', stages={stages}, split_k={s}, merge={merge})")
                for s in splits[1:16] for stages in (13, 7, 19, 0) for merge in (0, 2, 4)]  # fmt: skip
    if k % INSTRUCTION:
        # unaligned operands: slices of 8 terms and more (torch.mm, H100 and H200, cuBLAS 13.1)
        counts = [s for s in splits_of(k + INSTRUCTION - 1, INSTRUCTION) if s > 1]
        counts = list(dict.fromkeys([-(-k // INSTRUCTION), *counts]))
        cutlass[:0] = [LibraryModel(f"{prefix}'cutlass', stages={stages}, split_k={s}, merge={merge})")
                       for s in counts for stages in (0, 13) for merge in (2, 4)]  # fmt: skip
    threads = [LibraryModel(f"{prefix}'gemm_sn', option={option})") for option in (0, 1)] + [
        LibraryModel(f"{prefix}'magma')")
    ]
    without_units: list[LibraryModel] = []
    if min(m, n) == 1:
        options = sorted([*GEMV.get(lab.arch, GEMV["sm_90"]), GEMV_SLICES])
        without_units = [LibraryModel(f"{prefix}'gemv', option={option})") for option in options]
        without_units += [LibraryModel(f"{prefix}'dot', split_k={s})") for s in (1, *splits[1:16])]
    aligned = k % 8 == 0 and n % 8 == 0
    families = (nvjet, cutlass, threads) if aligned else (cutlass, threads, nvjet)
    return list(chain(*((without_units, *families) if without_units and not along_k else (*families, without_units))))


def cublaslt(lab: Lab) -> Iterator[ProductCase]:
    """Yield cases that compare cublasLtMatmul with models of cuBLAS.

    Cases with operands contiguous along K come first. lab: the settings of the validation.
    """
    halves_of: list[Shape] = [(64, 64, 512), (128, 256, 4096), (16, 16, 8192), (1, 8, 11528), (40, 64, 1000),
                              (32, 40, 999), (9, 24, 100), (8, 64, 300), (3, 17, 1234), (1, 64, 2048), (64, 1, 2048),
                              (1, 1, 5000), (257, 72, 712)]  # fmt: skip
    eighths: list[Shape] = [(64, 64, 512), (64, 128, 1040), (128, 128, 4096), (16, 16, 16384), (16, 32, 8208)]
    along_k: list[Shape] = [(64, 64, 512), (128, 256, 4096), (16, 16, 8192), (40, 64, 1000)]
    if lab.small:
        halves_of, eighths, along_k = [(32, 32, 512), (9, 24, 100)], [(32, 32, 512), (16, 16, 2048)], [(32, 32, 512)]
    for shape, kind in product(along_k, ("fp16", "bf16")):
        yield _lt(lab, shape, (kind, kind), kind, False, "nt")
    for shape, pair, fast in product(eighths, (E4M3, MIXED), (True, False)):
        if pair == E4M3 or shape == eighths[0]:
            yield _lt(lab, shape, pair, "fp16" if fast else "fp32", fast)
    for shape, (kind, out) in product(halves_of, (("fp16", "fp16"), ("fp16", "fp32"), ("bf16", "bf16"))):
        yield _lt(lab, shape, (kind, kind), out, False)


def _lt(lab: Lab, shape: Shape, pair: Pair, out: str, fast: bool, layout: str = "nn") -> ProductCase:
    """Return the case that compares a product by cublasLtMatmul with models of cuBLAS.

    lab: settings of the validation. shape: (M, N, K). pair: formats of the operands. out: format of the result. fast:
    True for fast accumulation of FP8. layout: "nn", or "nt" for both operands contiguous along K.
    """
    fp8 = pair[0] in ("e4m3", "e5m2")
    scales = {"scale_a": np.float32(0.7), "scale_b": np.float32(1.3)} if fp8 else {}

    def call(problem: ProductProblem) -> tuple[Words, Any]:
        numbers = {name: float(scale) for name, scale in scales.items()}
        result: tuple[Words, Any] = lab.hardware.lt_matmul(
            problem.a, problem.b, pair, out=out, fast_accum=fast, layout=layout, **numbers
        )
        return result

    def models(fields: Fields) -> list[LibraryModel]:
        guesses = tensor_models(lab, shape[2], fast) if fp8 else half_models(lab, shape)
        try:
            read = str(schedule_of(fields, lab.arch, fast_accum=fast))
        except ValueError:  # an unknown algorithm
            return guesses
        whole = [LibraryModel(read[:-1] + ", tail_loss=False)")] if fields.algo == 66 else []
        return [LibraryModel(read), *whole, *guesses]

    name = named(shape, f"cublasLtMatmul {'x'.join(pair)} -> {out}", "fast" if fast else "", *LAYOUT_WORDS[layout])
    problems = problems_of(lab, shape, pair, ("normal", "wide", "positive"), out=out, **scales)
    return ProductCase("cublaslt", name, problems, call, models, exhaustive=False)
