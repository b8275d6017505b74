"""The layers of a recording whose operands were kept, as matrices; notes say why others are left out."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.models.recording import Recording
from fpsim.analysis.studies.budget.notes import Notes
from fpsim.arrays import Array
from fpsim.errors import SHOWN, require_kind, shown


class Kept(NamedTuple):
    """The operands of a linear layer at one step: float32, which holds shorter floats, or float64 where one was.

    Attributes:
      x: (tokens, inputs).
      weight: (outputs, inputs).
      gradient: (tokens, outputs), of what the layer gave; None where there was no backward pass.
    """

    step: int
    layer: str
    x: Array
    weight: Array
    gradient: Array | None


def kept_layers(recording: Any, layers: str | Sequence[str], notes: Notes, what: str = "recording") -> list[Kept]:
    """What was kept of the linear layers that patterns name, in the order of steps and products.

    Raises:
      TypeError: no recording, or patterns of another kind.
      ValueError: nothing was kept, a pattern matches no layer, or an operand has NaN or Inf.
    """
    require_kind(what, recording, Recording, "a Recording, as fp.analysis.record gives it")
    operands = recording.operands
    if not operands:
        raise ValueError(
            f"budget needs the operands of layers; got a {what} that kept none. Record with keep=1 or more."
        )
    chosen = _matching(layers, list(dict.fromkeys(layer for _, layer, _ in operands)))
    found: list[Kept] = []
    for step, layer in dict.fromkeys((step, layer) for step, layer, _ in operands):
        if layer not in chosen:
            continue
        of = {which: x for (at, name, which), x in operands.items() if (at, name) == (step, layer)}
        reason = left_out(of, recording.role(step, layer, "weight"))
        if reason:
            notes.add(f"Left out, since {reason}", layer)
            continue
        found.append(_kept(step, layer, of))
        if found[-1].gradient is None:
            notes.add("Without dgrad and wgrad, since no output gradient was kept", layer)
    if not found:
        raise ValueError(
            f"budget needs the input and the weight of a linear layer; got a {what} of none. "
            + " ".join(notes.sentences)
        )
    return found


def left_out(of: dict[str, Array], role: str) -> str:
    """Why operands are not those of a linear layer; "" where they are."""
    if "query" in of:
        return "a recipe is one of linear layers and attention stays as it is"
    if role == "embedding" and "input" not in of:
        return "an embedding looks rows up and multiplies nothing"
    weight, x = of.get("weight"), of.get("input")
    if weight is None or x is None:
        return f"of its operands only {', '.join(of)} was kept"
    if weight.ndim != 2:
        return "a recipe is one of linear layers and convolutions stay as they are"
    if x.shape[-1] != weight.shape[1]:
        return f"an input of shape {x.shape} and a weight of {weight.shape} are not those of a linear layer"
    if 0 in (x.size, weight.size):
        return "an operand is empty"
    return ""


def _kept(step: int, layer: str, of: dict[str, Array]) -> Kept:
    weight, x, gradient = of["weight"], of["input"], of.get("output_gradient")
    outputs, inputs = weight.shape
    dtype = np.float64 if np.float64 in [each.dtype for each in of.values()] else np.float32
    for which, each in of.items():
        array = each.astype(dtype, copy=False)
        bad = array.size - int(np.count_nonzero(np.isfinite(array)))
        if bad:
            raise ValueError(
                f"budget needs finite operands; got the {which.replace('_', ' ')} of {layer!r} at step {step} with "
                f"{bad} of {array.size} NaN or Inf. Take a step before that, or leave the layer out by layers=."
            )
    return Kept(
        step, layer, x.reshape(-1, inputs).astype(dtype), weight.astype(dtype),
        None if gradient is None else gradient.reshape(-1, outputs).astype(dtype),
    )  # fmt: skip


def _matching(layers: Any, names: list[str]) -> set[str]:
    """The names that patterns match."""
    patterns = [layers] if isinstance(layers, str) else layers
    if not isinstance(patterns, Sequence) or not patterns or not all(isinstance(each, str) for each in patterns):
        raise TypeError(f"layers must be a shell pattern or several, such as 'blocks.*.mlp.*'; got {shown(layers)}.")
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ValueError(unknown_layer(pattern, names))
    return {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)}


def unknown_layer(got: str, names: Sequence[str]) -> str:
    """The sentence for a layer that was not kept, with those whose names are near."""
    near = ", ".join(map(repr, difflib.get_close_matches(got, names, SHOWN, cutoff=0.0)))
    return f"layers must be among the {len(names)} that were kept; got {shown(got)}. Near it: {near}."
