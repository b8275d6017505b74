"""Checks for tensors that a quantised weight needs and that the checkpoint lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fpsim.analysis.tensors.layouts.joining import BYTES, FLOAT8, LAYOUTS, CheckpointLayout, settings_of
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.verifying.report import Finding

# Ends of names that only scales and their like have, and the ends of the names of the codes that they belong to.
BESIDE = {
    ".weight_scale_inv": (".weight",), ".weight_scale": (".weight", ".weight_packed"), ".weight_scale_2": (".weight",),
    ".weight_global_scale": (".weight_packed",), ".weight_shape": (".weight_packed",), ".qzeros": (".qweight",),
    ".scales": (".qweight",), ".g_idx": (".qweight",), "._weight_scale": ("._weight_qdata",),
    ".weight.absmax": (".weight",), ".SCB": (".weight",),
}  # fmt: skip


SOURCES = {"fp8": "deepseek"}  # quant_method -> the library's name, if it differs


def missing_findings(stored: Sequence[Tensor], taken: set[int]) -> Iterator[Finding]:
    """Yield a finding for codes whose accompanying tensors are missing, and for scales whose codes are missing.

    Scales of a dtype that the layout does not have count as missing. stored: all tensors of the checkpoint. taken: ids
    of the tensors that make up recognised weights; these are not checked. If no weight was recognised and no
    configuration names a method, tensors in FP8 (perhaps plain casts) and tensors called "scales" or "SCB" (perhaps
    parameters) are ignored.
    """
    names = {one.name for one in stored}
    folders = {Path(one.source).parent for one in stored if one.source}
    methods = {folder: str(settings_of(folder).get("quant_method", "")) for folder in folders}
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
            yield Finding.about(name, "missing", f"{one.name} holds {one.dtype} codes ({layout.source}), and {wanted}.")
            continue
        for end, codes in BESIDE.items():
            stem = one.name.removesuffix(end)
            if one.name.endswith(end) and not any(stem + code in names for code in codes):
                wanted = " or ".join(stem + code for code in codes)
                text = f"the checkpoint holds {one.name} without its codes, {wanted}."
                yield Finding.about(f"{stem}.weight", "codes missing", text)
                break


def _nearest(one: Tensor, names: set[str], library: str) -> CheckpointLayout | None:
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
