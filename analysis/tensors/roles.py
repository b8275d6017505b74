"""Roles of tensors, inferred from their names, shapes and neighbours unless they are given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fpsim.analysis.tensors.operand import with_rows
from fpsim.analysis.tensors.tensor import Tensor
from fpsim.errors import unknown

# Role -> the reason why such a tensor stays in its format; None for operands of products, which may be quantised.
ROLES: dict[str, str | None] = {
    "matrix": None,
    "activation": None,
    "gradient": None,
    "embedding": "it is looked up or added, not multiplied, so that fewer bits save memory but no arithmetic",
    "router": "it selects the experts of a token, so that a small error in it sends tokens to others",
    "transform": "it is a fixed transform (a Fourier, wavelet or mel basis), whose error is in all later values",
    "bias": "it is added to a sum in float32, and has few values",
    "norm": "it scales every value that passes through it, and has few values",
    "statistics": "other values are computed from it, and it has few values",
    "optimizer_state": "it accumulates small updates over many steps",
    "scalar": "it is a single value",
}
OPERANDS = tuple(role for role, reason in ROLES.items() if reason is None)
SPOKEN = {"optimizer_state": "optimizer state"}

OPTIMIZER = re.compile(
    r"(^|[./_])(exp_avg(_sq)?|max_exp_avg_sq|momentum(_buffer)?|square_avg|acc_delta|moment[12]?|optimizer|opt_state|"
    r"adam\w*|velocity|master_(weights?|params?))([./_\d]|$)"
)
STATISTICS = re.compile(
    r"running_(mean|var|std)|moving_(mean|var\w*)|num_batches_tracked|inv_freq|rotary|rope|freqs|"
    r"(^|[./_])(a_log|time_(decay|first|faaaa))$|"  # of state-space models and RWKV: factors and decays of a state
    r"(^|[./_])(mask|position_ids|relative_position_index|attn_mask|anchors?|stats?|mean|var|variance)$"
)
# Scales, zero points and tables of quantised checkpoints.
SCALES = re.compile(r"(^|[./_])(scales?|scale_inv|weight_scale_2|q?zeros?|zero_points?|absmax|quant_map|scb)$")
SCALES_OF_CODES = re.compile(
    r"_(scale|scale_inv|scale_2|scales|zero_point)$|(^|[./_])(scales|qzeros|absmax|(nested_)?quant_map|nested_absmax|scb)$"
)  # in any shape: a norm's scale has no such name
NORM = re.compile(r"norm|(^|[./_])(ln|bn|gn|rms)\d*([./_]|$)|layernorm|batchnorm|gamma|(^|[./_])scale$")
BIAS = re.compile(r"(^|[./_])(bias|beta|b)(_?\d+)?$|bias")
EMBEDDING = re.compile(
    r"embed|(^|[./_])(wte|wpe|emb|tok_embeddings|token_embd|word2vec|vocab|lookup)([./_]|$)|pos_enc|"
    r"(^|[./_])(rel_pos_[hw]|bias_table|relative_attention_bias|(cls|class|dist|mask|query|register|prompt)_tokens?)"
    r"([./]|$)|(^|[./])shared[./]weight$|"  # of T5 and BART, which look tokens up in it
    r"(^|[./_])(position_embd|token_types?|pos|pos_emb|posemb|positions?|positional|pe)([./]weight)?$"
)
# Routers of mixtures of experts. "gate" is also half of a gated layer, which has at least as many outputs as inputs.
ROUTER = re.compile(r"(^|[./_])(router|routers|ffn_gate_inp|gating|shared_expert_gate)([./_]|$)")
GATE = re.compile(r"(mlp|moe|ffn|feed_forward|experts?)[./]((gate|wg)|gate[./]wg)([./](weight|kernel))?$")
TRANSFORM = re.compile(
    r"(^|[./])(i?(stft|mdct|cq_?t|vqt)\d*(v\d)?(_\d+)?|mel_?scale|melspec\w*)[./]|"  # a layer that is one
    r"(^|[./_])((mels?|cqt|vqt|dct|dft|fft|stft|fourier|gammatone)_?(basis|bases|filters?|filterbanks?|fb|kernels?|"
    r"mat(rix)?|weights?|window)|filterbanks?|melfb|fbanks?|(forward|inverse)_basis(_buffer)?|w(sin|cos)(_inv)?|"
    r"lowpass_filter|(i?stft|cqt|dct|mel)_conv|conv_(i?stft|cqt|dct|mel))([./_]|$)"
)
# A layer's name after that of an embedding, such as patch_embed.proj: it multiplies, as do those at a model's end.
MULTIPLIES = re.compile(r"[./_](proj\w*|lin|linear|fc|dense|mlp|conv|out|(to_)?logits)[\d_]*([./]|$)")
GRADIENT = re.compile(r"(^|[./_ ])(grad|gradient)s?([./_ ]|$)|\.grad$")
ACTIVATION = re.compile(r"(^|[./_ ])(activations?|inputs?|outputs?|hidden_states?)([./_ ]|$)")
WEIGHT = re.compile(r"weight|kernel")
# torch's weight_norm stores a weight as its direction (v, original1) and a length for each row (g, original0).
LENGTHS = re.compile(r"(^|[./])(weight_g|parametrizations\.weight\.original0)$")
DIRECTIONS = re.compile(r"(^|[./])(weight_v|parametrizations\.weight\.original1)$")
SPECTRAL = re.compile(r"(^|[./])(weight_[uv]|parametrizations\.weight\.\d+\._[uv])$")  # of spectral_norm: vectors


FLAT = 1 << 18  # elements from which a vector of a model is assumed to be a flattened matrix


def role_of(name: str, shape: tuple[int, ...], neighbours: Iterable[str] = ()) -> str:
    """Return the role of a tensor, inferred from name, shape and neighbours.

    Args:
      name: name of the tensor, such as "encoder.0.attn.qkv.weight".
      shape: shape of the tensor; a vector with axes of length 1 is a matrix only if its name is that of a weight.
      neighbours: names of the other tensors in the same module; they identify, for example, a batch norm's weight.

    Example:
      >>> from fpsim.analysis.tensors.roles import role_of
      >>> [role_of(name, (64, 64)) for name in ("fc.weight", "wte.weight", "exp_avg.fc.weight")]
      ['matrix', 'embedding', 'optimizer_state']
      >>> [role_of(name, (64,)) for name in ("fc.bias", "ln_1.weight", "bn.running_var")]
      ['bias', 'norm', 'statistics']
    """
    lower = name.lower()
    axes = [length for length in shape if length != 1]
    if math.prod(shape) == 1:
        return "scalar"
    if OPTIMIZER.search(lower):
        return "optimizer_state"
    if STATISTICS.search(lower):
        return "statistics"
    if GRADIENT.search(lower):
        return "gradient"
    if SCALES_OF_CODES.search(lower) or (len(axes) > 1 and SCALES.search(lower)):
        return "statistics"
    kept = role_that_stays(name, shape)
    if kept:
        return kept
    if len(axes) <= 1:
        return _role_of_vector(lower, neighbours, math.prod(shape) >= FLAT, len(shape) > 1)
    if _is_table(lower, axes):
        stem, _, last = lower.rpartition(".")
        if last != "weight" or f"{stem}.bias" not in {other.lower() for other in neighbours}:  # embeddings have no bias
            return "embedding"
    flows = ACTIVATION.search(lower)
    if flows and not WEIGHT.search(lower, flows.end()):  # output_proj.weight_v is the weight of a layer
        return "activation"
    return "bias" if re.search(r"(^|[./_])bias(es)?$", lower) else "matrix"


def role_that_stays(name: str, shape: tuple[int, ...]) -> str:
    """Return "router" or "transform" for a matrix that should not be quantised; "" for other tensors.

    "router": it selects experts. "transform": a fixed transform of signals, such as the basis of a Fourier transform.
    name: the tensor's name, which decides. shape: its shape; a matrix called "gate" is a router only if it has fewer
    outputs than inputs.

    Example:
      >>> from fpsim.analysis.tensors.roles import role_that_stays
      >>> role_that_stays("layers.0.mlp.gate.weight", (64, 2048)), role_that_stays("stft.forward_basis", (514, 1, 512))
      ('router', 'transform')
    """
    lower, axes = name.lower(), [length for length in shape if length != 1]
    if not axes or BIAS.search(lower.rpartition(".")[2]):
        return ""
    outputs, inputs = (shape[::-1] if lower.endswith("kernel") else shape) if len(shape) == 2 else (0, 0)
    if ROUTER.search(lower) or (outputs < inputs and GATE.search(lower)):
        return "router"
    return "transform" if TRANSFORM.search(lower) else ""


def _is_table(name: str, axes: Sequence[int]) -> bool:
    """Return whether a name is that of an embedding table, and not of a layer inside an embedding module.

    name: in lower case. axes: lengths of the tensor's axes that are longer than 1.
    """
    match = EMBEDDING.search(name)
    if match is None or MULTIPLIES.search(name, match.end()):
        return False
    return len(axes) < 3 or not WEIGHT.search(name, match.end())


def _role_of_vector(name: str, neighbours: Iterable[str], flat: bool, in_matrix: bool) -> str:
    """Return the role of a tensor that has only one axis longer than 1, such as "bias", "norm" or "matrix".

    These rules apply in turn. A name that tells the role, such as "bias", "norm" or "cls_token", decides. A "weight"
    with further axes, of length 1, is a matrix. A tensor that is `flat` or belongs to no module is a matrix. Of the
    rest, those called "weight", "w", "g" or "scale" are norms, all others biases.

    name: the tensor's lower-case name. neighbours: names of the other tensors of its module. flat: whether the tensor
    is so long that it is assumed to be a flattened matrix. in_matrix: whether it also has axes of length 1.
    """
    stem, _, last = name.rpartition(".")
    beside = {other.lower().rpartition(".")[2] for other in neighbours if other.lower().rpartition(".")[0] == stem}
    if BIAS.search(last or name):
        return "bias"
    in_model = bool(stem)
    if NORM.search(name) or LENGTHS.search(name) or beside & {"running_mean", "running_var"}:
        return "norm"
    if SPECTRAL.search(name) and not in_matrix:
        return "statistics"
    if EMBEDDING.search(last or name):  # a single token, or a position
        return "embedding"
    if in_matrix and (last == "weight" or DIRECTIONS.search(name)):  # one output, or one input; norms have one axis
        return "matrix"
    if in_model and not flat:
        return "norm" if last in ("weight", "w", "g", "scale") else "bias"
    return "matrix"


def with_roles(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the tensors, with missing roles inferred, and with `outputs_last` of matrices set (see `with_rows`).

    Raises:
      ValueError: a role is unknown; the message names the nearest.
    """
    names = [tensor.name for tensor in tensors]
    by_stem: dict[str, list[str]] = {}
    for name in names:
        by_stem.setdefault(name.lower().rpartition(".")[0], []).append(name)
    result: list[Tensor] = []
    for tensor in tensors:
        if tensor.role and tensor.role not in ROLES:
            raise unknown("role", tensor.role, list(ROLES))
        others = by_stem[tensor.name.lower().rpartition(".")[0]]
        result.append(tensor if tensor.role else replace(tensor, role=role_of(tensor.name, tensor.shape, others)))
    lengths: dict[str, list[int]] = {}
    for tensor in tensors:
        stem, _, last = tensor.name.lower().rpartition(".")
        if len(tensor.shape) == 1 and BIAS.search(last):
            lengths.setdefault(stem, []).append(tensor.shape[0])
    beside = {one.name: lengths.get(one.name.lower().rpartition(".")[0], []) for one in tensors}
    return with_rows(result, beside)
