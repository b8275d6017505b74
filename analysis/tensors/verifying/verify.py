"""The function fp.analysis.verify, which names a checkpoint's layout and everything that contradicts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fpsim.analysis.tensors.checkpoint import checkpoint_files, stored_tensors
from fpsim.analysis.tensors.checkpoint import open as open_checkpoint
from fpsim.analysis.tensors.files import safetensors_metadata
from fpsim.analysis.tensors.layouts.joining import Recognised, joined, recognised, settings_by_file
from fpsim.analysis.tensors.layouts.naming import PLAIN
from fpsim.analysis.tensors.layouts.packed_integers import groups_of
from fpsim.analysis.tensors.layouts.parts import LayoutError, whole
from fpsim.analysis.tensors.layouts.unpacking import WORD
from fpsim.analysis.tensors.tensor import Tensor, TensorFileError
from fpsim.analysis.tensors.verifying.configuration import configuration_findings, disagreement_findings
from fpsim.analysis.tensors.verifying.faults import fault_findings, untold_findings
from fpsim.analysis.tensors.verifying.inputs import input_findings
from fpsim.analysis.tensors.verifying.levels import level_findings
from fpsim.analysis.tensors.verifying.missing import missing_findings
from fpsim.analysis.tensors.verifying.reference import reference_findings
from fpsim.analysis.tensors.verifying.report import Finding, LayoutReport
from fpsim.analysis.tensors.verifying.settings import GGUF, method_findings, settings_findings, shape_findings
from fpsim.analysis.tensors.verifying.statistics import (
    awq_findings,
    flat_findings,
    gptq_findings,
    hqq_findings,
    packed_findings,
)
from fpsim.analysis.tensors.verifying.values import value_findings
from fpsim.files import path_of


def verify(path: str | Path, *, reference: str | Path | Mapping[str, Any] | None = None) -> LayoutReport:
    """Return a checkpoint's layout, and everything that contradicts the layout.

    Every weight is checked by itself, against the configuration in the same folder, and against the layouts that
    libraries read. The checks find missing tensors, shapes and block sizes that do not fit, NaN codes, scales that are
    NaN or negative, scales that are inverted or follow another library's convention, zero points that are off by one,
    the wrong version of GPTQ or order of AWQ, a wrong g_idx, scales swizzled otherwise than stated, and truncated
    files. The report's `.notes` name libraries that misread this checkpoint, and faults that the file does not show
    without a reference, such as codes exchanged within the block of one scale.

    Args:
      path: a file, an `.index.json` of shards, or a folder, as for `fp.analysis.open`.
      reference: the unquantised model with which values are compared: a path, a mapping of names to arrays, or None.

    Returns:
      A LayoutReport with `.layout`, `.ok`, `.problems` and `.notes`, to print.

    Raises:
      TensorFileError (a ValueError): the file does not exist, or the reference cannot be read. A damaged file is a
        problem in the report instead.

    Example:
      >>> import tempfile
      >>> path = f"{tempfile.mkdtemp()}/up.npz"
      >>> np.savez(path, **{"up.weight": np.int8([[1, -2]]), "up.weight_scale": np.float32([[-0.5]])})
      >>> report = verify(path)
      >>> report.layout, report.ok, report.problems
      ('compressed-tensors:int8', False, ['up.weight: 1 of its 1 scales in weight_scale is negative, the first at \
    index 0; scales must be positive.'])
    """
    target = path_of(path)
    if not target.exists():
        raise TensorFileError(f"{target}: no such file")
    if isinstance(reference, (str, Path)):  # a reference that cannot be read is no fault of the checkpoint
        reference = open_checkpoint(reference)
    try:
        stored, _ = stored_tensors(target)
        findings, weights = _findings(target, stored, reference)
    except TensorFileError as problem:
        damaged = Finding("", "unreadable", f"{str(problem).removesuffix('.')}.")
        return LayoutReport(str(target), "", 0, (damaged,))
    layouts = sorted({one.layout for one in weights})
    return LayoutReport(str(target), " + ".join(layouts) or PLAIN, len(weights), tuple(findings))


def _findings(
    path: Path, stored: Sequence[Tensor], reference: Mapping[str, Any] | None
) -> tuple[list[Finding], list[Tensor]]:
    """Return (all findings and notes on a checkpoint, its quantised weights).

    path: the checkpoint. stored: all its tensors. reference: the unquantised model (name -> array) with which values
    are compared, or None.
    """
    quantised = recognised(stored)
    metadata: dict[str, str] = {}
    for file in checkpoint_files(path)[0]:
        if file.suffix.lower() == ".safetensors":
            metadata |= safetensors_metadata(file)
    findings: list[Finding] = []
    for settings in {id(one.parts.settings): one.parts.settings for one in quantised}.values():
        findings += configuration_findings(settings)
    by_file = settings_by_file(path if path.is_dir() else path.parent)
    findings += method_findings(by_file)
    if quantised:
        findings += disagreement_findings(by_file)
    for one in quantised:
        findings += _of_weight(one, metadata)
    findings += input_findings(stored, quantised)
    taken = {identity for one in quantised for identity in one.taken}
    findings += missing_findings(stored, taken)
    weights = [one.weight for one in quantised if one.weight is not None]
    blocks = [one for one in stored if one.layout.startswith(GGUF)]
    for tensor in blocks:
        findings += _finite(tensor)
    weights += blocks
    findings += untold_findings(sorted({one.layout for one in weights}), reference is not None)
    if reference is not None:
        findings += reference_findings(joined(stored)[0], reference)
    return findings, weights


def _of_weight(one: Recognised, metadata: Mapping[str, str]) -> Iterator[Finding]:
    """Yield all findings and notes on one quantised weight.

    metadata: name -> text, from the headers of the files.
    """
    yield from value_findings(one)
    if one.weight is None:
        hint = "; the transpose of the scales would fit" if _fits_transposed(one) else ""
        yield Finding.about(
            one.parts.name, "shapes", f"the tensor holds codes ({one.layout.source}), and {one.problem}{hint}."
        )
        return
    yield from level_findings(one)
    yield from shape_findings(one)
    yield from settings_findings(one, metadata)
    yield from fault_findings(one)
    yield from _zero_points(one)


def _fits_transposed(one: Recognised) -> bool:
    """Return whether a weight that cannot be decoded could be decoded if its scales were transposed."""
    scale = one.parts.beside["scale"]
    turned = {**one.parts.beside, "scale": replace(scale, shape=scale.shape[::-1])}
    try:
        one.layout.join(replace(one.parts, beside=turned))
    except LayoutError:
        return False
    return True


def _zero_points(one: Recognised) -> Iterator[Finding]:
    """Yield findings on wrong zero points of a weight; there are none if the weight has no zero points."""
    parts, layout = one.parts, one.decoded.layout
    if "zero_point" not in parts.beside:
        return
    if layout == "awq":
        yield from awq_findings(one)
    elif layout.startswith("gptq"):
        k, n = one.decoded.shape
        bits = parts.beside["zero_point"].shape[1] * WORD // n
        yield from gptq_findings(one, bits, groups_of(parts, k, parts.beside["scale"].shape[0]))
    elif (
        layout.startswith("compressed-tensors:int")
        and len(parts.beside["scale"].shape) == 2
        and "shape" in parts.beside
    ):
        n, k = one.decoded.shape
        yield from packed_findings(one, int(one.decoded.dtype.partition(" ")[0].removeprefix("INT")), n, k)
    elif layout.startswith("hqq:"):
        yield from hqq_findings(one)
    elif layout == "torchao:int8" and len(parts.codes.shape) == 2:
        groups = parts.beside["zero_point"].size
        if (
            groups
            and parts.codes.size % groups == 0
            and parts.beside["zero_point"].shape == parts.beside["scale"].shape
        ):
            codes = whole(parts.codes).reshape(groups, -1)
            yield from flat_findings(parts.name, codes, parts.array("zero_point").reshape(-1).astype(np.float32))


def _finite(one: Tensor) -> Iterator[Finding]:
    """Yield a finding if a GGUF weight has values that are not finite."""
    start = 0
    for piece in one.chunks():
        wrong = ~np.isfinite(piece)
        if wrong.any():
            yield Finding.about(one.name, "values not finite", f"values of its {one.layout.removeprefix(GGUF)} blocks "
                                f"are not finite, the first at index {start + int(np.argmax(wrong))}, because a scale "
                                "is Inf or NaN.")  # fmt: skip
            return
        start += piece.size
