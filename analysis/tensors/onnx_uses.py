"""The uses of an ONNX model's tensors by its operators, from which their roles follow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Operator -> the roles of its inputs that are tensors of the model. An operator that is not listed multiplies matrices
# if its name contains a word of MULTIPLY.
CONVOLUTION = {1: "matrix", 2: "bias"}
RECURRENT = {1: "matrix", 2: "matrix", 3: "bias"}
NORMALIZATION = {1: "norm", 2: "bias"}
PRODUCT = {0: "matrix", 1: "matrix", 2: "bias"}
SCALING, SHIFT = {0: "norm", 1: "norm"}, {0: "bias", 1: "bias"}
OPERATORS: dict[str, dict[int, str]] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "DeformConv", "Linear"), CONVOLUTION),
    "QLinearConv": {3: "matrix", 8: "bias"},
    **dict.fromkeys(("Gemm", "MatMul", "FusedMatMul"), PRODUCT),
    "QLinearMatMul": {0: "matrix", 3: "matrix"},
    **dict.fromkeys(("LSTM", "GRU", "RNN"), RECURRENT),
    "BatchNormalization": {1: "norm", 2: "bias", 3: "statistics", 4: "statistics"},
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), NORMALIZATION),
    "Gather": {0: "embedding"},
    **dict.fromkeys(("Mul", "Div"), SCALING),
    "PRelu": {1: "norm"},
    **dict.fromkeys(("Add", "Sub"), SHIFT),
}
MULTIPLY = ("MatMul", "Conv", "Gemm", "Attention", "Einsum")
# Operators whose results are values of their first input; their other inputs are scales, indices and numbers.
VIEWS = (
    "Identity", "Transpose", "Reshape", "Cast", "CastLike", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Pad",
    "Expand", "Tile", "QuantizeLinear", "DequantizeLinear",
)  # fmt: skip
SOURCES_LIMIT = 256  # tensors that are concatenated to one; a weight of a layer has fewer
FIRST_OF = ("matrix", "embedding", "norm", "bias", "statistics")  # of a tensor's uses, the first counts
# Operators that sum along the last axis but one of an input, and the setting with which it is transposed.
SUMMED_FIRST = {("MatMul", 1): "", ("FusedMatMul", 1): "transB", ("Gemm", 1): "transB", ("Attention", 1): ""}
SUMMED_LAST = {("FusedMatMul", 0): "transA", ("Gemm", 0): "transA"}


class Node(NamedTuple):
    """An operator of an ONNX model: its type `kind`, and the names of its inputs and outputs.

    settings: name -> values, for those of its attributes that are integers or lists of integers.
    """

    kind: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    settings: Mapping[str, Sequence[int]]


class Use(NamedTuple):
    """The use of a tensor in an ONNX model.

    Attributes:
      role: role of the tensor, such as "matrix" or "bias".
      outputs_last: whether the last axis of a matrix is that of the product's outputs, and not summed over; None if
        unknown.
      result: name of the operator's output, which names the layer if the tensor's name does not.
    """

    role: str
    outputs_last: bool | None
    result: str = ""


Sources = dict[str, bool]  # tensors with the same values -> whether they are transposed here


def uses_of(nodes: Sequence[Node], shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Use]:
    """Return tensor name -> its use in a model, also if the tensor is transposed, reshaped or cast before its use.

    nodes: the operators, in the order in which they run. shapes: tensor name -> shape.

    Example:
      >>> from fpsim.analysis.tensors.onnx_uses import Node, uses_of
      >>> nodes = [Node("Transpose", ["w"], ["t"], {"perm": [1, 0]}), Node("MatMul", ["x", "t"], ["y"], {})]
      >>> uses_of(nodes, {"w": (64, 32)})
      {'w': Use(role='matrix', outputs_last=False, result='y')}
    """
    views: dict[str, Sources] = {}
    uses: dict[str, Use] = {}

    def sources(name: str) -> Sources:
        return views.get(name, {name: False} if name in shapes else {})

    def use(name: str, role: str, last: bool | None, result: str) -> None:
        for source, turned in sources(name).items():
            axes = len(shapes[source])
            refined = "bias" if role == "product" and axes == 1 else "matrix" if role == "product" else role
            outputs_last = None if last is None or axes != 2 or refined != "matrix" else last != turned
            before = uses.get(source)
            if before is None or FIRST_OF.index(refined) < FIRST_OF.index(before.role):
                uses[source] = Use(refined, outputs_last, result)

    for node in nodes:
        whole = [sources(name) for name in node.inputs]
        rest = node.inputs
        if node.kind in VIEWS and whole:
            axes = node.settings.get("perm", ())  # all reversed without it
            turned = node.kind == "Transpose" and (not axes or (len(axes) > 1 and axes[-1] < axes[-2]))
            rest = node.inputs[1:]
            views |= {name: {source: was != turned for source, was in whole[0].items()} for name in node.outputs}
        elif node.kind == "Concat" and all(whole):
            joined = {key: was for part in whole for key, was in part.items()}
            if len(joined) <= SOURCES_LIMIT:
                rest = ()
                views |= dict.fromkeys(node.outputs, joined)
        for place, name in enumerate(rest, len(node.inputs) - len(rest)):
            use(name, _role(node.kind, place), _outputs_last(node, place), node.outputs[0] if node.outputs else "")
    return uses


def _role(kind: str, place: int) -> str:
    """Return the role of input number `place` of an operator of type `kind`.

    It is "product" for an operator not in OPERATORS that multiplies matrices; the input is then a matrix or a bias.
    """
    known = OPERATORS.get(kind)
    if known is not None:
        return known.get(place, "statistics")
    return "product" if any(word in kind for word in MULTIPLY) else "statistics"


def _outputs_last(node: Node, place: int) -> bool | None:
    """Return whether the last axis of input number `place` of the operator `node` is that of the product's outputs.

    If so, the operator sums along the other axis. Return None if that is unknown.
    """
    key = node.kind, place
    if key in SUMMED_FIRST:
        return not any(node.settings.get(SUMMED_FIRST[key], ()))
    if key in SUMMED_LAST:
        return any(node.settings.get(SUMMED_LAST[key], ()))
    return None if "Einsum" in node.kind else False
