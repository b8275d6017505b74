"""Notes on libraries that misread a checkpoint, and on faults that show only in a comparison with the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.layouts.unpacking import nibbles
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.display.wording import are

UNTOLD = (
    "the file alone does not show whether codes were exchanged within the block of one scale (swapped nibbles, for "
    "example), or scales between blocks; compare with the unquantised model: verify(path, reference=)"
)


def fault_findings(one: Recognised) -> Iterator[Finding]:
    """Yield notes on libraries that are known to misread or refuse a weight like this one.

    There is a note for each of four cases: DeepSeek's FP8 with blocks of unequal height; asymmetric GPTQ v1 that was
    not written by gptqmodel; ModelOpt's NVFP4 with codes of -0; and 4-bit bitsandbytes whose rows are not a multiple of
    the block size.
    """
    parts, name, layout = one.parts, one.parts.name, one.decoded.layout
    if layout.startswith("deepseek_fp8"):
        rows, scales = parts.codes.shape[-2], parts.beside["scale"].shape
        count = scales[-2] if len(scales) > 1 else 1
        if count and rows % count:
            yield Finding.about(name, "ragged blocks", f"its {rows} rows do not divide into {count} equal blocks; "
                                "transformers 5.24 computes the rows of a block as rows // blocks and refuses the "
                                "weight.", False)  # fmt: skip
    if layout == "gptq" and parts.settings.get("sym") is False and not _names_gptqmodel(parts.settings):
        yield Finding.about(name, "writer of GPTQ v1", "gptqmodel 7.7 refuses asymmetric files of GPTQ v1 whose "
                            "configuration does not name gptqmodel in meta.quantizer, because other writers store zero "
                            "points of 0 otherwise.", False)  # fmt: skip
    if layout == "modelopt:nvfp4":
        minus_zero = sum(int(np.sum(nibbles(piece.view(np.uint8)) == 8)) for piece in parts.codes.chunks())
        if minus_zero:
            yield Finding.about(name, "code of -0", f"{minus_zero} of its codes {are(minus_zero)} the code of -0, "
                                "which ModelOpt reads as 0 and other readers of NVFP4 as -0.", False)  # fmt: skip
    if layout.startswith("bitsandbytes:") and layout != "bitsandbytes:int8":
        k, block = one.decoded.shape[-1], json.loads(parts.text("state"))["blocksize"]
        if k % block:
            yield Finding.about(name, "blocks across rows", f"its rows of {k} values are not a multiple of the block "
                                f"of {block}; bitsandbytes 0.50 reads such weights wrongly on CPUs (its generic path "
                                "reads them correctly).", False)  # fmt: skip


def _names_gptqmodel(settings: Mapping[str, Any]) -> bool:
    """Return whether a configuration names gptqmodel among the programs that quantised the model.

    settings: the quantisation settings of the configuration, field -> value.
    """
    meta = settings.get("meta")
    writers = meta.get("quantizer") if isinstance(meta, Mapping) else None
    listed = writers if isinstance(writers, list) else [writers]
    return any(isinstance(one, str) and one.lower().startswith("gptqmodel:") for one in listed)


def untold_findings(layouts: list[str], with_reference: bool) -> Iterator[Finding]:
    """Yield a note on faults that a quantised file alone cannot show, such as exchanged codes.

    layouts: names of the file's layouts. with_reference: whether values are compared with those of the unquantised
    model. Nothing is yielded in that case, or if there are no layouts.
    """
    if layouts and not with_reference:
        yield Finding("", "untold", f"{' + '.join(layouts)}: {UNTOLD}.", False)
