"""Errors for weights that a layout cannot store; their messages name the arguments of the export that help."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from fpsim.analysis.tensors.tensor import Tensor
from fpsim.analysis.tensors.writing import hqq, packed
from fpsim.analysis.tensors.writing.catalogue import LAYOUTS_WRITTEN
from fpsim.analysis.tensors.writing.weights import BAND, LayoutOptions, WeightToWrite
from fpsim.display.wording import plural

GROUP_SIZES = (128, 64, 32, 16, 8)  # to suggest, the first that fits


def refuse_misfits(
    layout: str, weights: Mapping[str, WeightToWrite], options: LayoutOptions, keep: Sequence[str]
) -> None:
    """Raise a ValueError unless the layout can store weights of these shapes with these options.

    The message says what is wrong with the first weight that does not fit, and which arguments of the export avoid the
    error. layout: full name of the layout. weights: name -> weight to quantise. keep: the export's argument `keep`,
    patterns of the tensors to leave unquantised.
    """
    faults = _faults(layout, weights, options)
    if not faults:
        return
    name, fault = next(iter(faults.items()))
    others = f" {plural(len(faults) - 1, 'other weight')} don't fit either." if len(faults) > 2 else ""
    others = " Another weight doesn't fit either." if len(faults) == 2 else others
    sizes = () if LAYOUTS_WRITTEN[layout].inputs else GROUP_SIZES
    size = next((n for n in sizes if not _faults(layout, weights, options._replace(group_size=n))), None)
    advice = [] if size is None else [f"group_size={size}"]
    if len(faults) < len(weights):
        advice.append(keep_advice(faults, weights, keep))
    pass_ = f"Pass {', or '.join(advice)}." if advice else "Choose another layout."
    raise ValueError(f"{layout} {fault.format(name=name)}.{others} {pass_}")


def misfit(name: str, layout: str, largest: float, advice: str) -> str:
    """Return the error text for a weight whose values, all finite, the layout cannot hold because of their magnitude.

    name: name of the weight. layout: full name of the layout. largest: the largest magnitude of the weight. advice: the
    argument that leaves the weight unquantised.
    """
    if largest < 1:
        return (
            f"{name} holds values of up to {largest:.3g}, which are too small for {layout}: a scale becomes 0 or Inf. "
            f"Scale the weight up, or pass {advice}."
        )
    return (
        f"{name} holds values of up to {largest:.3g}, which {layout} cannot hold: some read back as Inf or NaN. "
        f"Scale the weight down, or pass {advice}."
    )


def keep_advice(names: Collection[str], quantised: Collection[str], keep: Sequence[str] = ()) -> str:
    """Return the clause "keep=[...] to leave it unquantised" that advises a user of the export.

    The list has the patterns in `keep`, then the names of the weights. If several weights share the last part of their
    layer's name, such as "up", the list has these last parts instead of the names, unless they match another weight.

    Args:
      names: the weights to leave unquantised.
      quantised: all weights that the export quantises, `names` included.
      keep: the export's argument `keep`, patterns of the tensors that the user already leaves unquantised.

    Example:
      >>> from fpsim.analysis.tensors.writing.misfits import keep_advice
      >>> names = [f"layers.{i}.{last}.weight" for i in range(9) for last in ("up", "down")]
      >>> keep_advice(names[:1], names)
      "keep=['layers.0.up.weight'] to leave it unquantised"
      >>> keep_advice(names[::2], names, ["lm_head"])
      "keep=['lm_head', 'up'] to leave them unquantised"
    """
    lasts = dict.fromkeys(map(_last, names))
    shared = {_last(name) for name in quantised if name not in names}
    patterns = list(names) if shared & lasts.keys() or len(lasts) == len(names) else list(lasts)
    return f"keep={[*keep, *patterns]} to leave {'it' if len(names) == 1 else 'them'} unquantised"


def _last(name: str) -> str:
    """Return the last part of the name of a weight's layer: "up" for "layers.0.up.weight"."""
    return name.removesuffix(".weight").rpartition(".")[2]


def _faults(layout: str, weights: Mapping[str, WeightToWrite], options: LayoutOptions) -> dict[str, str]:
    """Return name -> reason (from `_fault`) for each of `weights` that the layout cannot store with these options."""
    faults = {name: _fault(layout, weight, options) for name, weight in weights.items()}
    return {name: fault for name, fault in faults.items() if fault}


def _fault(layout: str, weight: WeightToWrite, options: LayoutOptions) -> str:
    """Return the reason why a layout cannot store a weight of this shape; "" if it can.

    The reason is the end of a sentence, in which "{name}" stands for the weight's name. The number of inputs must be a
    multiple of the group size. The number of outputs (for HQQ, of groups) must be a multiple of the number that is
    packed into one word (for HQQ, into one byte).
    """
    row = LAYOUTS_WRITTEN[layout]
    n, k = weight.shape[-2:]
    group = row.inputs or options.group_size or (hqq.GROUP if layout.startswith("hqq:") else packed.GROUP)
    whose = f"{{name}} of shape {weight.shape} has"
    if k % group or not k:
        return f"has groups of {group} inputs; {whose} {k}"
    outputs = 32 // options.bits if layout.startswith("gptq") else row.outputs
    if n % outputs:
        return f"packs {outputs} outputs into a word; {whose} {n}"
    per_byte = 8 // int(layout.removeprefix("hqq:int")) if layout.startswith("hqq:") else 1
    if n * k // group % per_byte:
        return f"packs the codes of {per_byte} groups together; {whose} {n * k // group} groups of {group}"
    return ""


def refuse_tiny(one: Tensor, advice: Callable[[], str]) -> None:
    """Raise a ValueError if all values of a float64 weight are below float32's normal range, and one is not 0.

    Their conversion to float32 would change or lose them before the layout's error is measured. advice: advice()
    is the argument that leaves the weight unquantised.
    """
    amax = max((float(np.abs(piece).max(initial=0.0)) for piece in one.chunks(BAND)), default=0.0)
    if 0 < amax < 2.0**-126:
        raise ValueError(
            f"weights to export must be in the range of float32; {one.name} holds values of up to {amax:.3g}. Scale it "
            f"up, or pass {advice()}."
        )
