"""Compares products by torch, of the shapes of layers, with the emulator's.

The emulator adds in the order of the kernel that cuBLASLt's heuristic selects for the shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from fpsim.gpu.experiments.checks import Check, row_of_difference
from fpsim.gpu.lab.lab import Lab, named, unit_name
from fpsim.gpu.lab.report import ValidationRow, difference
from fpsim.schedules.libraries.cublas_choice import cublas_choice
from fpsim.schedules.libraries.cublas_table import SIDES, TOKENS, CublasCall
from fpsim.testing.operands import product_operands

KINDS = (
    *(CublasCall(kind, kind, kind, layout, False, "k" if layout == "tn" else "m")
      for kind in ("bf16", "fp16") for layout in ("nt", "nn", "tn")),
    *(CublasCall("e4m3", "e4m3", "bf16", "nt", fast, "m") for fast in (True, False)),
)  # fmt: skip
CASES = 200
MOST_PRODUCTS, MOST_ELEMENTS = 1 << 34, 1 << 24  # multiply-adds of a product, and elements of an operand
# Bytes of workspace with which torch asks cuBLASLt: torch.mm on Hopper; FP8 (docs/schedules.md)
HALVES_WORKSPACE, FP8_WORKSPACE = 32 << 20, 1 << 20


def layers(lab: Lab) -> Iterator[Check]:
    """Yield comparisons of torch.mm and torch._scaled_mm with fp.gpu.matmul, for random shapes of layers on Hopper.

    lab: the settings of the validation. Its seed selects the shapes.
    """
    if lab.chip != "hopper":
        return
    rng = np.random.default_rng([lab.seed, 77])
    sides = [side for side in SIDES if side <= (128 if lab.small else 28672)]
    tokens = [count for count in TOKENS if count <= (64 if lab.small else 8192)]
    yielded = 0
    while yielded < (len(KINDS) if lab.small else CASES):
        kind = KINDS[yielded % len(KINDS)]
        count, *others = (int(rng.choice(sizes)) for sizes in (tokens, sides, sides))
        shape = (count, *others) if kind.tokens == "m" else (*others, count)
        m, n, k = shape
        if kind.a == "e4m3" and count % 16:
            continue
        if m * n * k <= MOST_PRODUCTS and max(m * k, k * n) <= MOST_ELEMENTS:
            yielded += 1
            words = (kind.layout.upper(), "fast" if kind.fast_accum else "")
            name = named((m, n, k), f"torch's product of {kind.a}", *words)
            yield Check("layers", name, "normal", partial(_compared, lab, kind, (m, n, k)))


def _compared(lab: Lab, kind: CublasCall, shape: tuple[int, int, int]) -> ValidationRow:
    """Compare one product by torch with the emulator's, and return a row of the report.

    lab: the settings of the validation. kind: formats, layout and fast accumulation. shape: (M, N, K).

    Raises:
      ValueError: the order of cuBLAS's kernel is not known.
    """
    pair, fp8 = (kind.a, kind.b), kind.a == "e4m3"
    a, b = product_operands("normal", shape, pair, lab.seed)
    workspace = FP8_WORKSPACE if fp8 else HALVES_WORKSPACE
    fields = lab.hardware.lt_fields(
        *shape, pair, out=kind.out, layout=kind.layout, fast_accum=kind.fast_accum, workspace=workspace
    )
    choice = cublas_choice(lab.arch, *shape, fmt=pair, layout=kind.layout, fast_accum=kind.fast_accum, fields=fields)
    if choice.schedule is None:
        raise ValueError(choice.reason)
    one = np.float32(1)
    if fp8:
        got = lab.hardware.scaled_mm(
            a, b, pair, one, one, recipe="tensor", out=kind.out, fast_accum=kind.fast_accum, bias=None
        )
    else:
        got = lab.hardware.matmul(a, b, kind.a, out=kind.out, layout=kind.layout, reduced=True)
    want = lab.hardware.twin(
        "matmul", a, b, accumulate=unit_name(lab.chip, pair), schedule=choice.schedule, out_fmt=kind.out, strict=False,
        **({"scale_a": one, "scale_b": one} if fp8 else {}),
    )  # fmt: skip
    return row_of_difference(difference(got, want, kind.out), str(choice.schedule))
