"""Checks for tensors that a quantised weight needs and that the checkpoint lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.joining import BYTES, FLOAT8, LAYOUTS, CheckpointLayout, settings_of
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.casts.cast import quantize
from fpsim.formats.named import E4M3

# Ends of names that only scales and their like have, and the ends of the names of the codes that they belong to.
BESIDE = {
    ".weight_scale_inv": (".weight",), ".weight_scale": (".weight", ".weight_packed"), ".weight_scale_2": (".weight",),
    ".weight_global_scale": (".weight_packed",), ".weight_shape": (".weight_packed",), ".qzeros": (".qweight",),
    ".scales": (".qweight",), ".g_idx": (".qweight",), "._weight_scale": ("._weight_qdata",),
    ".weight.absmax": (".weight",), ".SCB": (".weight",),
}  # fmt: skip


SOURCES = {"fp8": "deepseek"}  # quant_method -> the library's name, if it differs
FLOATS = ("float64", "float32", "float16", "bfloat16")
SAMPLE = 4096  # elements of a weight that show whether it has the values of FP8 codes without their scales:
DISTINCT, UNSCALED = 32, 64.0  # so many distinct ones, the largest of them at least this


def missing_findings(stored: Sequence[Tensor], taken: set[int]) -> Iterator[Finding]:
    """Yield a finding for codes whose accompanying tensors are missing, and for scales whose codes are missing.

    Also yield a finding for weights in a float dtype beside scales, or with values as of codes without their scales.

    Scales of a dtype that the layout does not have count as missing. stored: all tensors of the checkpoint. taken: ids
    of the tensors that make up recognised weights; these are not checked. If no weight was recognised and no
    configuration names a method, tensors in FP8 (perhaps plain casts) and tensors called "scales" or "SCB" (perhaps
    parameters) are ignored.
    """
    by_name = {one.name: one for one in stored}
    names = by_name.keys()
    folders = {Path(one.source).parent for one in stored if one.source}
    settings = {folder: settings_of(folder) for folder in folders}
    methods = {folder: str(fields.get("quant_method", "")) for folder, fields in settings.items()}
    quantised = bool(taken) or any(methods.values())
    for one in stored:
        if id(one) in taken or (not quantised and (one.dtype in FLOAT8 or one.name.endswith((".scales", ".SCB")))):
            continue
        method = methods[Path(one.source).parent] if one.source else ""
        layout = _nearest(one, names, SOURCES.get(method, method))
        if layout is not None:
            stem = one.name.removesuffix(layout.codes)
            missing = [stem + end for end in layout.needed if stem + end not in names]
            wanted = f"{missing[0]} is missing" if missing else "the dtype of its scales is not the layout's"
            name = stem + layout.weight
            subject = "it" if one.name == name else one.name
            yield Finding.about(name, "missing", f"{subject} holds {one.dtype} codes ({layout.source}), and {wanted}.")
            continue
        if quantised and one.name.endswith(".weight") and len(one.shape) == 2 and one.dtype in FLOATS:
            sample = next(one.chunks(SAMPLE), np.zeros(0)).astype(np.float64)
            largest = float(np.abs(sample).max(initial=0))
            varied = np.unique(sample).size >= DISTINCT
            if largest >= UNSCALED and varied and (quantize(sample, E4M3) == sample).all():
                text = f"its {one.dtype} values are values of E4M3, such as {largest:g}: codes were converted unscaled."
                yield Finding.about(one.name, "converted unscaled", text)
        for end, codes in BESIDE.items():
            stem = one.name.removesuffix(end)
            if not one.name.endswith(end):
                continue
            beside = [by_name[stem + code] for code in codes if stem + code in names]
            if not beside:
                wanted = " or ".join(stem + code for code in codes)
                text = f"the checkpoint holds {one.name} without its codes, {wanted}."
                yield Finding.about(f"{stem}.weight", "codes missing", text)
            elif quantised and beside[0].dtype in FLOATS and not _is_dense(settings, one):
                text = f"{one.name} is stored, and the weight is {beside[0].dtype}, which has no scales."
                yield Finding.about(beside[0].name, "scales of floats", text)
            break


def _is_dense(settings: Mapping[Path, Mapping[str, Any]], one: Tensor) -> bool:
    """Return whether a configuration says that weights are floats that were rounded, stored with their scales.

    settings: the quantisation settings of each folder. one: a tensor of the checkpoint.
    """
    return bool(one.source) and settings[Path(one.source).parent].get("format") == "dense"


def _nearest(one: Tensor, names: AbstractSet[str], library: str) -> CheckpointLayout | None:
    """Return the likeliest layout of a tensor of codes that lacks companions, such as scales; None if no layout fits.

    A layout fits by the name and dtype of the codes; a tensor called "weight" must also have one-byte codes or a
    companion. The likeliest layout has the most companions that are present. Of several with equally many, one that
    `library` writes is preferred, then one that lacks few companions.

    one: the codes. names: names of all tensors of the checkpoint. library: the library that the configuration names,
    or "".
    """
    fitting = [
        layout
        for layout in LAYOUTS
        if layout.codes and one.name.endswith(layout.codes) and one.dtype in {*layout.dtypes} & {*BYTES, "int32"}
    ]

    def rank(layout: CheckpointLayout) -> tuple[int, bool, int]:
        stem = one.name.removesuffix(layout.codes)
        present = sum(stem + end in names for end in {**layout.needed, **layout.more})
        missing = sum(stem + end not in names for end in layout.needed)
        return present, bool(library) and library in layout.source.lower(), -missing

    are_bytes = one.dtype in (*FLOAT8, "int8", "uint8")
    likely = [layout for layout in fitting if layout.codes != ".weight" or are_bytes or rank(layout)[0]]
    return max(likely, key=rank, default=None)
