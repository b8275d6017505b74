"""Checks for tensors that belong to a quantised weight and are not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fpsim.analysis.tensors.layouts.joining import BYTES, FLOAT8, LAYOUTS, CheckpointLayout, settings_of
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.verifying.report import Finding

# Ends of names that only tensors beside codes have, and the ends of the codes' names.
BESIDE = {
    ".weight_scale_inv": (".weight",), ".weight_scale": (".weight", ".weight_packed"), ".weight_scale_2": (".weight",),
    ".weight_global_scale": (".weight_packed",), ".weight_shape": (".weight_packed",), ".qzeros": (".qweight",),
    ".scales": (".qweight",), ".g_idx": (".qweight",), "._weight_scale": ("._weight_qdata",),
    ".weight.absmax": (".weight",), ".SCB": (".weight",),
}  # fmt: skip


SOURCES = {"fp8": "deepseek"}  # quant_method -> the library's name, where it is another one


def missing_findings(stored: Sequence[Tensor], taken: set[int]) -> Iterator[Finding]:
    """Yield codes without what belongs to them, and scales without codes.

    Without another quantised weight and without a configuration, FP8 may be a plain cast, and "scales" an own name.
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
            lost = [stem + end for end in layout.needed if stem + end not in names]
            wanted = f"{lost[0]} is missing" if lost else "its scales have another dtype than the layout's"
            name = stem + layout.weight
            yield Finding(
                name, "missing", f"{name}: {one.name} holds codes of {one.dtype} ({layout.source}), and {wanted}."
            )
            continue
        for end, codes in BESIDE.items():
            stem = one.name.removesuffix(end)
            if one.name.endswith(end) and not any(stem + code in names for code in codes):
                yield Finding(
                    f"{stem}.weight",
                    "codes missing",
                    f"{stem}.weight: {one.name} is there, and its codes "
                    f"{' or '.join(stem + code for code in codes)} are missing.",
                )
                break


def _nearest(one: Tensor, names: set[str], library: str) -> CheckpointLayout | None:
    """Return the layout of codes that nothing joins: the one of which most tensors are there, then the library's."""
    fitting = [
        layout
        for layout in LAYOUTS
        if layout.codes and one.name.endswith(layout.codes) and one.dtype in {*layout.dtypes} & {*BYTES, "int32"}
    ]
    plain = [layout for layout in fitting if layout.codes != ".weight" or _is_likely(one, layout, names)]
    if not plain:
        return None

    def present(layout: CheckpointLayout) -> tuple[int, bool, int]:
        stem = one.name.removesuffix(layout.codes)
        ends = {**layout.needed, **layout.more}
        lost = sum(stem + end not in names for end in layout.needed)
        return sum(stem + end in names for end in ends), bool(library) and library in layout.source.lower(), -lost

    return max(plain, key=present)


def _is_likely(one: Tensor, layout: CheckpointLayout, names: set[str]) -> bool:
    """Return whether a tensor called "weight" holds a layout's codes."""
    stem = one.name.removesuffix(layout.codes)
    ends = {**layout.needed, **layout.more}
    return one.dtype in FLOAT8 or one.dtype in ("int8", "uint8") or any(stem + end in names for end in ends)
