"""Checks of the scales of layers' inputs, and of attention's caches, that a checkpoint stores with its weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fpsim.analysis.tensors.layouts.joining import Recognised
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.verifying.configuration import only_scheme
from fpsim.analysis.tensors.verifying.report import Finding
from fpsim.analysis.tensors.verifying.values import floats

ENDS = (".input_scale", ".input_global_scale", ".output_scale", ".k_scale", ".v_scale")
READABLE = ("float32", "float16", "bfloat16")


def input_findings(stored: Sequence[Tensor], quantised: Sequence[Recognised]) -> Iterator[Finding]:
    """Yield a finding for each tensor of scales with a value that is not finite and positive, and for missing scales.

    The tensors are those that scale the inputs and outputs of layers, and the keys and values of attention; scales of
    weights are not checked. A scale is missing if the configuration requires it for the inputs of a quantised layer.
    `stored`: all tensors of the checkpoint. `quantised`: its quantised weights.
    """
    if not quantised:
        return
    names = {one.name for one in stored}
    for one in stored:
        if one.name.endswith(ENDS) and one.dtype in READABLE and one.size:
            values = floats(one)
            wrong = ~(np.isfinite(values) & (values > 0))
            if wrong.any():
                first = float(values[np.argmax(wrong)])
                yield Finding.about(one.name, f"{one.name.rpartition('.')[2]} not positive", "scales of inputs must be "
                                    f"finite and positive; got {first:g}.")  # fmt: skip
    for weight in quantised:
        end = _required(weight.parts.settings)
        name = weight.parts.name
        if weight.weight is not None and end and name.endswith(".weight"):
            wanted = name.removesuffix(".weight") + end
            if wanted not in names:
                yield Finding.about(name, f"{end} missing", "the configuration says that inputs are quantised with a "
                                    f"stored scale, and {wanted} is missing.")  # fmt: skip


def _required(settings: Mapping[str, Any]) -> str:
    """Return the end of the name of the input scales that a configuration requires, such as ".input_scale".

    It is "" if none are required, or if the configuration has no scheme or several schemes. settings: the quantisation
    settings of the configuration, field -> value.
    """
    inputs = only_scheme(settings).get("input_activations")
    if not isinstance(inputs, Mapping):
        return ""
    method, dynamic = settings.get("quant_method"), inputs.get("dynamic")
    if method == "modelopt":
        return ".input_scale" if dynamic is False else ""
    if method == "compressed-tensors":
        if inputs.get("strategy") == "tensor_group" and dynamic in (False, "local"):
            return ".input_global_scale"
        return ".input_scale" if dynamic is False and inputs.get("strategy") == "tensor" else ""
    return ""
