"""The recorded operands of layers as matrix products; each layer without recorded operands gets a note."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fpsim.analysis.models.patches import gradient_rows, matrices, with_settings
from fpsim.analysis.models.recording import Recording
from fpsim.analysis.models.rows import MASK
from fpsim.analysis.studies.arguments import matches, nearest_names, patterns_of
from fpsim.analysis.studies.budget.notes import Notes
from fpsim.arrays import Array
from fpsim.errors import require_kind, shown
from fpsim.torch.operators import array_of, tensor_of

SCORES, VALUES = "scores", "values"  # the products of an attention, appended to its name
READ = ("input", "query")
MOST_HEADS = 8  # most heads, counted over all sequences of a batch, that are budgeted
CALLED = {
    SCORES: MappingProxyType({"input": "query", "weight": "key", "output_gradient": "score_gradient"}),
    VALUES: MappingProxyType({"input": "probabilities", "weight": "value"}),
}


class Kept(NamedTuple):
    """The recorded operands of one product at one training step: float32, or float64 if one of them was recorded in it.

    Attributes:
      step, layer: number of the training step, and name of the layer; for attention, with the name of the product.
      x: the input, (tokens, inputs); for a convolution, its patches; for attention, queries or probabilities.
      weight: (outputs, inputs); for attention, keys, or values transposed.
      gradient: the gradient of the output, (tokens, outputs); None without a backward pass.
      kind: "linear", "convolution" or "attention".
      part: "group 3" or "head 3" if the layer has a product for each group or head; else "".
      called: "input", "weight" or "output_gradient" -> another name of that operand, such as "query".
    """

    step: int
    layer: str
    x: Array
    weight: Array
    gradient: Array | None
    kind: str = "linear"
    part: str = ""
    called: Mapping[str, str] = MappingProxyType({})


def kept_layers(recording: Any, layers: str | Sequence[str], notes: Notes, noun: str = "recording") -> list[Kept]:
    """Return the recorded operands of the products of some layers, in the order of steps and layers.

    Args:
      recording: a Recording.
      layers: shell patterns of the names of the layers.
      notes: receives a note for each layer that is left out.
      noun: the recording's name in messages.
    Raises:
      TypeError: recording is not a Recording, or the patterns are not texts.
      ValueError: no operands were recorded, a pattern matches no layer, or an operand has NaN or Inf.
    """
    require_kind(noun, recording, Recording, "a Recording, as fp.analysis.record returns it")
    operands, article = recording.operands, "an" if noun[0] in "aeiou" else "a"
    if not operands:
        raise ValueError(
            f"budget needs the operands of layers; got {article} {noun} without them. Record with keep=1 or more."
        )
    names = dict.fromkeys(
        name for _, layer, which in operands for name in ((layer, *parts_of(layer)) if which == "query" else (layer,))
    )
    patterns = patterns_of(layers)
    for pattern in patterns:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(unknown_layer(pattern, list(names)))
    chosen = {name for name in names if matches(name, patterns)}
    products: list[Kept] = []
    for step, layer in dict.fromkeys((step, layer) for step, layer, _ in operands):
        if not chosen & {layer, *parts_of(layer)}:
            continue
        of_layer = operands_of(recording, step, layer)
        settings = recording.settings(step, layer)
        reason = left_out(of_layer, recording.role(step, layer, "weight"), settings)
        if reason:
            notes.add(f"Left out, since {reason}", layer)
            continue
        new = _kept(step, layer, of_layer, settings, notes)
        products += [kept for kept in new if kept.layer in chosen or layer in chosen]
        if new[0].gradient is None:
            notes.add("Without dgrad and wgrad, since no output gradient was kept", layer)
        reads = (row.calls for row in recording if row.key[:2] == (step, layer) and row.tensor in READ)
        if max(reads, default=0) > 1:
            notes.add("Of several calls in a step only the first was kept", layer)
    if not products:
        raise ValueError(
            f"budget needs the input and the weight of a layer that multiplies; got {article} {noun} without such a "
            f"layer. {' '.join(notes.sentences)}"
        )
    return products


def operands_of(recording: Recording, step: int, layer: str) -> dict[str, Array]:
    """Return the operands that a recording has of a layer at a step: name, such as "input" or "output_gradient" ->
    array."""
    return {which: x for (at, name, which), x in recording.operands.items() if (at, name) == (step, layer)}


def parts_of(layer: str) -> tuple[str, str]:
    """Return ("LAYER.scores", "LAYER.values"), the names of an attention's products q k^T and probabilities times v."""
    return f"{layer}.{SCORES}", f"{layer}.{VALUES}"


def recorded_layer(layer: str, kind: str) -> str:
    """Return the name that a recording has for the layer of a product.

    `layer`: the layer's name in a budget, for attention with the product's name. `kind`: "linear", "convolution" or
    "attention".

    Example:
      >>> from fpsim.analysis.studies.budget.layers import recorded_layer
      >>> recorded_layer("blocks.0.attention.scores", "attention"), recorded_layer("mlp.scores", "linear")
      ('blocks.0.attention', 'mlp.scores')
    """
    return layer.rpartition(".")[0] if kind == "attention" else layer


def left_out(of: Mapping[str, Array], role: str, settings: Mapping[str, Any]) -> str:
    """Return why no matrix product can be computed from the recorded operands of a layer; "" if one can.

    `of`: name, such as "input" -> operand. `role`: the recorded role of the weight, such as "matrix" or "embedding".
    `settings`: the recorded settings of the call, such as groups; empty if unknown.
    """
    if "query" in of:
        return _attention_left_out(of, settings)
    if role == "embedding" and "input" not in of:
        return "an embedding looks rows up and multiplies nothing"
    weight, x = of.get("weight"), of.get("input")
    if weight is None or x is None:
        return f"of its operands only {', '.join(of)} was kept"
    if 0 in (x.size, weight.size):
        return "an operand is empty"
    if weight.ndim > 2:
        if not settings:
            return "transposed convolutions, and convolutions whose strides were not recorded, stay exact"
        is_depthwise = settings["groups"] > 1 and weight.shape[1] == 1
        return "a depthwise convolution multiplies no matrices" if is_depthwise else ""
    if weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        return f"an input of shape {x.shape} and a weight of shape {weight.shape} are not those of a linear layer"
    return ""


def _attention_left_out(of: Mapping[str, Array], settings: Mapping[str, Any]) -> str:
    """Return why no matrix products can be computed from the recorded operands of an attention; "" if they can.

    `of`: name -> recorded operand. `settings`: the recorded settings, such as the scale; empty if unknown.
    """
    if not {"query", "key", "value"} <= of.keys():
        return f"of its operands only {', '.join(of)} was kept"
    if not settings:
        return "the mask and scale of its attention were not recorded"
    if settings["masked"] and MASK not in of:
        return "the mask of its attention was not kept"
    return "an operand is empty" if any(not x.size for x in of.values()) else ""


def _kept(step: int, layer: str, of: dict[str, Array], settings: Mapping[str, Any], notes: Notes) -> list[Kept]:
    """Return the operands of a layer's products as matrices, one Kept for each group or head.

    `step`, `layer`: the training step and the layer's name, stored in each Kept. `of`: name -> recorded operand.
    `settings`: the recorded settings of the call. `notes`: receives notes on heads of an attention that are left out.
    Raise a ValueError if an operand other than the mask contains NaN or Inf.
    """
    dtype = np.float64 if np.float64 in [x.dtype for x in of.values()] else np.float32
    for which, x in of.items():
        if which == MASK:
            continue
        array = x.astype(dtype, copy=False)
        bad = array.size - int(np.count_nonzero(np.isfinite(array)))
        if bad:
            raise ValueError(
                f"budget needs finite operands; got {bad} of {array.size} values NaN or Inf in the "
                f"{which.replace('_', ' ')} of {layer!r} at step {step}. Use an earlier step, or leave the layer out "
                "by layers=."
            )
    whole = {which: np.ascontiguousarray(x.astype(dtype)) for which, x in of.items()}
    if "query" in whole:
        return attention_products(step, layer, whole, settings, notes)
    weight, x, gradient = whole["weight"], whole["input"], whole.get("output_gradient")
    if weight.ndim > 2:
        return _patches(step, layer, x, weight, gradient, settings)
    outputs, inputs = weight.shape
    return [
        Kept(step, layer, x.reshape(-1, inputs), weight, None if gradient is None else gradient.reshape(-1, outputs))
    ]


def _patches(
    step: int, layer: str, x: Array, weight: Array, gradient: Array | None, settings: Mapping[str, Any]
) -> list[Kept]:
    """Return the operands of a convolution's products, one Kept for each group: patches, weights and output gradient.

    `step`, `layer`: the training step and the layer's name, stored in each Kept. `x`, `weight`, `gradient`: the
    convolution's input, weight and output gradient (or None), in torch's shapes. `settings`: the convolution's recorded
    settings, such as strides.
    """
    of = with_settings(tensor_of(x), tensor_of(weight), settings)
    back = [None] * of.groups if gradient is None else [
        array_of(rows.contiguous()) for rows in gradient_rows(tensor_of(gradient), of)
    ]  # fmt: skip
    return [
        Kept(
            step, layer, array_of(rows.contiguous()), array_of(matrix.contiguous()), back[group], "convolution",
            f"group {group}" if of.groups > 1 else "",
        )
        for group, (rows, matrix, _) in enumerate(matrices(of))
    ]  # fmt: skip


def sizes_of(of: Mapping[str, Array], settings: Mapping[str, Any]) -> dict[str, int]:
    """Return operand -> number of values that a layer's products read; of a convolution's input, that of patches.

    `of`: name -> recorded operand. `settings`: the recorded settings of a convolution, such as strides.
    """
    sizes = {which: x.size for which, x in of.items()}
    if of["weight"].ndim > 2:
        parts = matrices(with_settings(tensor_of(of["input"]), tensor_of(of["weight"]), settings))
        sizes["input"] = sum(rows.numel() for rows, _, _ in parts)
    return sizes


def attention_products(
    step: int, layer: str, of: Mapping[str, Array], settings: Mapping[str, Any], notes: Notes
) -> list[Kept]:
    """Return the operands of attention's products: queries by keys for each head, then probabilities by values.

    Softmax and the gradient of the scores are computed in float64. Every sequence of the batch has its own heads. Of
    more than 8 heads in all, 8 evenly spaced ones are returned.

    Args:
      step, layer: the training step and the layer's name.
      of: "query", "key", "value" and perhaps "output_gradient" -> recorded array, (..., heads, tokens, size); perhaps
        "mask" -> (..., tokens, tokens), which is added to the scaled scores.
      settings: the recorded settings of the call: "scale", "causal", "dropout", and "turned" if the last two axes of
        the key are swapped.
      notes: receives notes on heads left out and on dropout.
    """
    q, k, v = (of[which] for which in ("query", "key", "value"))
    k = k.swapaxes(-2, -1) if settings["turned"] else k
    try:
        lead = np.broadcast_shapes(*(x.shape[:-2] for x in (q, k, v)))
    except ValueError:  # heads of queries share keys, as in grouped-query attention
        lead = q.shape[:-2]
    q, k, v = (_per_head(x, lead) for x in (q, k, v))
    heads = int(np.prod(lead, dtype=np.int64))
    q, k, v = (x.reshape(heads, *x.shape[-2:]) for x in (q, k, v))
    dy = of.get("output_gradient")
    dy = None if dy is None else dy.reshape(heads, *dy.shape[-2:])
    chosen = sorted({round(i) for i in np.linspace(0, heads - 1, min(heads, MOST_HEADS))})
    if len(chosen) < heads:
        notes.add(f"Only {len(chosen)} of {heads} heads of all sequences, evenly spaced, are budgeted", layer)
    if settings.get("dropout", 0.0) > 0:
        notes.add("Probabilities are those before dropout", layer)
    size = q.shape[1], k.shape[1]
    added = np.broadcast_to(of[MASK], (*lead, *size)).reshape(heads, *size) if MASK in of else None
    unmasked = np.where(np.tri(*size) > 0, 0.0, -np.inf) if settings["causal"] else np.zeros((1, 1))
    products = []
    for names, head in ((names, head) for names in (SCORES, VALUES) for head in chosen):
        mask = unmasked if added is None else added[head]
        p, ds = _softmax(q[head], k[head], v[head], None if dy is None else dy[head], settings["scale"], mask)
        part = f"head {head}" if heads > 1 else ""
        if names == SCORES:
            one = Kept(step, f"{layer}.{SCORES}", q[head], k[head], ds, "attention", part, CALLED[SCORES])
        else:
            turned, back = np.ascontiguousarray(v[head].T), None if dy is None else dy[head]
            one = Kept(step, f"{layer}.{VALUES}", p, turned, back, "attention", part, CALLED[VALUES])
        products.append(one)
    return products


def _per_head(x: Array, lead: tuple[int, ...]) -> Array:
    """Return queries, keys or values x, (..., tokens, size), with the leading axes of the result of attention.

    The returned shape is (*lead, tokens, size). `lead`: the result's leading sizes, such as (batch, heads). If x has
    fewer heads, as in grouped-query attention, each head is repeated for the consecutive heads of queries that share
    it. Other leading axes are broadcast.
    """
    if x.shape[:-2] != lead and lead and x.ndim > 2 and lead[-1] % x.shape[-3] == 0:
        x = np.repeat(x, lead[-1] // x.shape[-3], axis=-3)
    return np.ascontiguousarray(np.broadcast_to(x, (*lead, *x.shape[-2:])))


def _softmax(
    q: Array, k: Array, v: Array, dy: Array | None, scale: float, mask: Array
) -> tuple[Array, Array | None]:  # fmt: skip
    """Return the probabilities of one head, and the gradient of its scores (None without `dy`), both (queries, keys).

    Both are computed in float64, and returned in the dtype of `q`. A query that sees no key has probabilities of 0.
    `q`, `k`, `v`: the head's queries, keys and values, (tokens, size). `dy`: the gradient of the output. `scale`:
    factor of q k^T. `mask`: added to the scaled scores.
    """
    scores = scale * (q.astype(np.float64) @ k.astype(np.float64).T) + mask
    top = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = p.sum(axis=-1, keepdims=True)
    p /= np.where(total > 0, total, 1.0)
    if dy is None:
        return p.astype(q.dtype), None
    dp = dy.astype(np.float64) @ v.astype(np.float64).T
    ds = scale * p * (dp - (dp * p).sum(axis=-1, keepdims=True))
    return p.astype(q.dtype), ds.astype(q.dtype)


def unknown_layer(got: str, names: Sequence[str]) -> str:
    """Return the error message for a layer without recorded operands, with the most similar names.

    `got`: the name or pattern given. `names`: the layers with operands.
    """
    near = nearest_names(got, names)
    return f"layers must be among the {len(names)} that were kept; got {shown(got)}. Near it: {near}."
