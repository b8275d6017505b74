"""What the operators of an ONNX model use its tensors for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Operator -> the roles of its inputs, where they are tensors of the model. An operator that is not listed multiplies
# matrices where its name says so.
CONVOLUTION = {1: "matrix", 2: "bias"}
RECURRENT = {1: "matrix", 2: "matrix", 3: "bias"}
NORMALIZATION = {1: "norm", 2: "bias"}
PRODUCT = {0: "matrix", 1: "matrix", 2: "bias"}
OPERATORS: dict[str, dict[int, str]] = {
    "Conv": CONVOLUTION,
    "ConvTranspose": CONVOLUTION,
    "DeformConv": CONVOLUTION,
    "QLinearConv": {3: "matrix", 8: "bias"},
    "Gemm": PRODUCT,
    "MatMul": PRODUCT,
    "FusedMatMul": PRODUCT,
    "QLinearMatMul": {0: "matrix", 3: "matrix"},
    "Linear": CONVOLUTION,
    "LSTM": RECURRENT,
    "GRU": RECURRENT,
    "RNN": RECURRENT,
    "BatchNormalization": {1: "norm", 2: "bias", 3: "statistics", 4: "statistics"},
    "LayerNormalization": NORMALIZATION,
    "InstanceNormalization": NORMALIZATION,
    "GroupNormalization": NORMALIZATION,
    "Gather": {0: "embedding"},
    "Mul": {0: "norm", 1: "norm"},
    "Div": {0: "norm", 1: "norm"},
    "PRelu": {1: "norm"},
    "Add": {0: "bias", 1: "bias"},
    "Sub": {0: "bias", 1: "bias"},
}
MULTIPLY = ("MatMul", "Conv", "Gemm", "Attention", "Einsum")
# Operators whose results are values of their first input; what else they read are scales, places and numbers.
VIEWS = (
    "Identity", "Transpose", "Reshape", "Cast", "CastLike", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Pad",
    "Expand", "Tile", "QuantizeLinear", "DequantizeLinear",
)  # fmt: skip
SOURCES_LIMIT = 256  # tensors that are joined to one: more is no weight of a layer
FIRST_OF = ("matrix", "embedding", "norm", "bias", "statistics")  # of a tensor with several uses, the first counts
# Operators that sum along the last axis but one of an input, and what says that it lies the other way.
SUMMED_FIRST = {("MatMul", 1): "", ("FusedMatMul", 1): "transB", ("Gemm", 1): "transB", ("Attention", 1): ""}
SUMMED_LAST = {("FusedMatMul", 0): "transA", ("Gemm", 0): "transA"}


class Node(NamedTuple):
    """An operator of a model: its kind, names of tensors, and its settings that are integers."""

    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    settings: Mapping[str, Sequence[int]]


class Use(NamedTuple):
    """What a tensor is used for.

    Attributes:
      role: of it.
      outputs_last: whether the last axis of a matrix are the outputs of its product; None where that is not known.
      result: what the operator's output is called, which tells the layer where the tensor's name does not.
    """

    role: str
    outputs_last: bool | None
    result: str = ""


Sources = dict[str, bool]  # tensors whose values these are -> whether they are transposed here


def uses_of(nodes: Sequence[Node], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Use]:
    """The uses of a model's tensors, of which some go through other operators before they are multiplied.

    Args:
      nodes: in the order in which they run.
      shapes: of the tensors.

    Example:
      >>> from fpsim.analysis.tensors.onnx_uses import Node, uses_of
      >>> nodes = [Node("Transpose", ["w"], ["t"], {"perm": [1, 0]}), Node("MatMul", ["x", "t"], ["y"], {})]
      >>> uses_of(nodes, {"w": (64, 32)})
      {'w': Use(role='matrix', outputs_last=False, result='y')}
    """
    views: dict[str, Sources] = {}
    found: dict[str, Use] = {}

    def sources(name: str) -> Sources:
        return views.get(name, {name: False} if name in shapes else {})

    def use(name: str, role: str, last: bool | None, result: str) -> None:
        for source, turned in sources(name).items():
            axes = len(shapes[source])
            refined = "bias" if role == "product" and axes == 1 else "matrix" if role == "product" else role
            outputs_last = None if last is None or axes != 2 or refined != "matrix" else last != turned
            before = found.get(source)
            if before is None or FIRST_OF.index(refined) < FIRST_OF.index(before.role):
                found[source] = Use(refined, outputs_last, result)

    for node in nodes:
        whole = [sources(name) for name in node.inputs]
        rest = node.inputs
        if node.kind in VIEWS and whole:
            turned = node.kind == "Transpose" and _turns(node.settings.get("perm", ()))
            rest = node.inputs[1:]
            views |= {name: {source: was != turned for source, was in whole[0].items()} for name in node.outputs}
        elif node.kind == "Concat" and all(whole):
            joined = {key: was for each in whole for key, was in each.items()}
            if len(joined) <= SOURCES_LIMIT:
                rest = ()
                views |= dict.fromkeys(node.outputs, joined)
        for place, name in enumerate(rest, len(node.inputs) - len(rest)):
            use(name, _role(node.kind, place), _outputs_last(node, place), node.outputs[0] if node.outputs else "")
    return found


def _role(kind: str, place: int) -> str:
    """What an operator uses one of its inputs for; "product" for what it multiplies, or adds to that."""
    known = OPERATORS.get(kind)
    if known is not None:
        return known.get(place, "statistics")
    return "product" if any(word in kind for word in MULTIPLY) else "statistics"


def _outputs_last(node: Node, place: int) -> bool | None:
    """Whether an operator sums along the last axis but one of a matrix, so that its last are outputs."""
    key = node.kind, place
    if key in SUMMED_FIRST:
        return not any(node.settings.get(SUMMED_FIRST[key], ()))
    if key in SUMMED_LAST:
        return any(node.settings.get(SUMMED_LAST[key], ()))
    return None if "Einsum" in node.kind else False


def _turns(axes: Sequence[int]) -> bool:
    """Whether a permutation of axes, all reversed where there is none, swaps the last two."""
    return not axes or (len(axes) > 1 and axes[-1] < axes[-2])
