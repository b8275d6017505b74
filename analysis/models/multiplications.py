"""Numbers of multiplications in calls of torch functions that add up products.

Each function that counts is passed a call's positional arguments `args`, keyword arguments `kwargs` and result `y`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

Count = Callable[[Any, Any, Any], int]  # function of (positional arguments, keyword arguments, result)
OWN_LIBRARIES = (  # of torch.ops: torch's and fpsim's
    "aten", "c10d", "fpsim", "inductor", "mkl", "mkldnn", "onednn", "prim", "prims", "quantization", "quantized",
    "sparse", "symm_mem",
)  # fmt: skip
# Errors for arguments in an unknown form.
UNCOUNTED = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)


def name_of(func: Any) -> str:
    """Return the name of a torch function, the same for its operator, method and in-place forms; "" if it has none.

    An operator of another library than torch, such as torch.ops.mylib.attend, has its library's name too: mylib.attend.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.multiplications import name_of
      >>> [name_of(f) for f in (torch.mm, torch.Tensor.__matmul__, torch.linalg.multi_dot, torch.Tensor.addmm_)]
      ['mm', 'matmul', 'multi_dot', 'addmm']
    """
    if _is_foreign(func):
        return ".".join(str(func).split(".")[:2])
    name = str(getattr(func, "__name__", "")).partition(".")[0].strip("_")
    return name.removeprefix("linalg_").removeprefix("sparse_")


def multiplies(func: Any, args: Any) -> bool:
    """Return whether a torch function adds up products of its operands; False for fpsim's own operators.

    For an operator of another library than torch, this is not known. The result is then True if at least two of its
    positional arguments `args` are float tensors with two axes or more, as for matrix products and attention.
    """
    if _is_foreign(func):
        return sum(isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim() > 1 for x in args) > 1
    return name_of(func) in COUNTS and not str(func).startswith("fpsim.")  # a QuantLinear shows its own products


def _is_foreign(func: Any) -> bool:
    """Return whether a function is an operator of torch.ops that neither torch nor fpsim defines."""
    if type(func).__module__ != "torch._ops":
        return False
    library = str(func).partition(".")[0]
    return library not in OWN_LIBRARIES and not library.startswith("_")


def multiplications(func: Any, args: Any, kwargs: Any, output: Any) -> int:
    """Return the number of multiplications of a call of `func`, a torch function; 0 if it adds up no products.

    args, kwargs, output: positional arguments, keyword arguments and result of the call.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.multiplications import multiplications
      >>> x, w = torch.ones(5, 3), torch.ones(3, 2)
      >>> multiplications(torch.mm, (x, w), {}, x @ w), multiplications(torch.add, (x, x), {}, x + x)
      (30, 0)
    """
    count = COUNTS.get(name_of(func))
    if count is None:
        return 0
    try:
        return int(count(args, kwargs, output[0] if isinstance(output, tuple) else output))
    except UNCOUNTED:  # the caller still reports the function's name
        return 0


# ---- counters of (positional arguments, keyword arguments, result)


def _operand(args: Any, kwargs: Any, place: int, *names: str) -> torch.Tensor:
    """Return the positional argument `args[place]`, or, if there are fewer, the keyword argument called one of `names`.

    args, kwargs: positional and keyword arguments of a call.
    """
    if len(args) > place:
        return args[place]  # type: ignore[no-any-return]
    return next(kwargs[name] for name in names if name in kwargs)  # type: ignore[no-any-return]


def _by_last_axis(place: int, *names: str) -> Count:
    """Return the function that counts multiplications in calls of a torch function such as matmul.

    Such a torch function sums over the last axis of one operand. The count is the number of the result's elements times
    the length of that axis. The operand is the positional argument number `place`, or the keyword argument called one
    of `names`.
    """
    return lambda args, kwargs, y: y.numel() * _operand(args, kwargs, place, *names).shape[-1]


def _by_weight(place: int) -> Count:
    """Return the function that counts multiplications in calls of a torch function such as conv2d.

    Each element of the result of such a torch function is a sum over all of one weight[i], such as a filter. The count
    is the number of the result's elements times the size of weight[0]. The weight is the positional argument number
    `place`, or the keyword argument "weight".
    """
    return lambda args, kwargs, y: y.numel() * _operand(args, kwargs, place, "weight")[0].numel()


def _tensordot(args: Any, kwargs: Any, y: Any) -> int:
    """Return the number of multiplications M * N * K of torch.tensordot.

    This number is computed from the numbers of elements M * K, K * N and M * N of the operands and the result. args,
    kwargs, y: positional arguments, keyword arguments and result of the call.
    """
    sizes = (_operand(args, kwargs, place, name).numel() for place, name in enumerate("ab"))
    return int(math.isqrt(math.prod(sizes) * y.numel()))  # MK, KN and MN: the product is the square of MNK


def _attention(args: Any, kwargs: Any, y: Any) -> int:
    """Return the number of multiplications of attention: of queries and keys, and of probabilities and values.

    The number is (elements of the queries + elements of the result) * number of keys; masked keys count too. args,
    kwargs, y: positional arguments, keyword arguments and result of the call.
    """
    keys = _operand(args, kwargs, 1, "key").shape[-2]
    return int((_operand(args, kwargs, 0, "query").numel() + y.numel()) * keys)


def _recurrent(args: Any, kwargs: Any, _: Any) -> int:
    """Return the number of multiplications of an RNN: each weight matrix multiplies each row of the input once.

    args: positional arguments of the call, of which the first is the input, and the first list has the weights; kwargs
    and the result are not used.
    """
    weights = next(argument for argument in args if isinstance(argument, list))
    return int(_rows(args[0]) * sum(weight.numel() for weight in weights if weight.dim() == 2))


def _cell(args: Any, kwargs: Any, _: Any) -> int:
    """Return the number of multiplications of one step of a recurrent cell.

    Both weight matrices multiply each row of the input once. args: positional arguments of the call: the input, the
    state, both weight matrices; kwargs and the result are not used.
    """
    return int(_rows(args[0]) * sum(weight.numel() for weight in args[2:4]))


def _rows(x: torch.Tensor) -> int:
    """Return the number of vectors along the last axis of x, such as 6 for the shape (2, 3, 8)."""
    return x.numel() // max(x.shape[-1], 1)


def _power(args: Any, kwargs: Any, y: Any) -> int:
    """Return the number of multiplications of torch.matrix_power by repeated squaring.

    An exponent of b binary digits, k of them ones, needs b - 1 squarings and k - 1 further products of two matrices,
    each with N**3 multiplications for N x N matrices. args, kwargs, y: positional arguments, keyword arguments and
    result of the call.
    """
    exponent = abs(int(_operand(args, kwargs, 1, "n")))
    return int(max(exponent.bit_length() + exponent.bit_count() - 2, 0) * y.numel() * y.shape[-1])


def _chain(args: Any, kwargs: Any, _: Any) -> int:
    """Return the number of multiplications of torch.linalg.multi_dot or chain_matmul in the cheapest order of products.

    args, kwargs: positional and keyword arguments of the call. The first operand may be a row vector, the last one a
    column vector.
    """
    matrices = args[0] if args and isinstance(args[0], (list, tuple)) else args or kwargs["tensors"]
    shapes = [tuple(matrix.shape) for matrix in matrices]
    shapes[0], shapes[-1] = (1, *shapes[0])[-2:], (*shapes[-1], 1)[:2]  # vectors at the ends
    sizes = [shapes[0][0], *(columns for _, columns in shapes)]
    least = {(i, i + 1): 0 for i in range(len(shapes))}
    for length in range(2, len(sizes)):
        for i in range(len(sizes) - length):
            j = i + length
            least[i, j] = min(least[i, k] + least[k, j] + sizes[i] * sizes[k] * sizes[j] for k in range(i + 1, j))
    return least[0, len(shapes)]


def _einsum(args: Any, kwargs: Any, _: Any) -> int:
    """Return the number of multiplications of torch.einsum, which multiplies operands pair by pair from the left.

    args: positional arguments of the call; kwargs and the result are not used.
    """
    operands, inputs, output = _labelled(args)
    sizes: dict[Any, int] = {}
    for x, labels in zip(operands, inputs, strict=True):
        for label, size in zip(labels, x.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    total, there = 0, set(inputs[0])
    for place, labels in enumerate(inputs[1:], 1):
        both = there | set(labels)
        total += math.prod(sizes[label] for label in both)
        there = both & {*output, *chain.from_iterable(inputs[place + 1 :])}
    return total


def _labelled(args: Any) -> tuple[list[torch.Tensor], list[list[Any]], list[Any]]:
    """Return the operands of an einsum, the labels of each operand's axes, and the labels of the result's axes.

    args: positional arguments of torch.einsum.
    """
    if not isinstance(args[0], str):
        pairs = list(zip(args[::2], args[1::2], strict=False))
        operands, inputs = [x for x, _ in pairs], [_spread(list(labels), x.dim()) for x, labels in pairs]
        output = _spread(list(args[-1]), 0, inputs) if len(args) % 2 else _left_over(inputs)
        return operands, inputs, output
    operands = list(args[1] if isinstance(args[1], (list, tuple)) else args[1:])
    left, arrow, right = args[0].replace(" ", "").partition("->")
    inputs = [
        _spread(_letters(text), x.dim()) for text, x in zip(left.split(","), operands, strict=True)
    ]  # fmt: skip
    return operands, inputs, _spread(_letters(right), 0, inputs) if arrow else _left_over(inputs)


def _letters(text: str) -> list[Any]:
    """Return the labels in one array's part of an einsum equation, such as ["i", Ellipsis] for "i..."."""
    return [Ellipsis if letter == "." else letter for letter in text.replace("...", ".")]


def _spread(labels: list[Any], axes: int, inputs: Sequence[Sequence[Any]] = ()) -> list[Any]:
    """Return the axis labels of an einsum operand or result, with a label (Ellipsis, i) for each axis of an Ellipsis.

    labels: the labels, in which one Ellipsis may stand for several axes. axes: number of axes of the operand. inputs:
    labels of all operands, if `labels` are those of the result.
    """
    if Ellipsis not in labels:
        return labels
    hidden = max((label[1] for of_input in inputs for label in of_input if isinstance(label, tuple)), default=0)
    hidden = hidden if inputs else axes - len(labels) + 1
    place = labels.index(Ellipsis)
    return [*labels[:place], *((Ellipsis, i) for i in range(hidden, 0, -1)), *labels[place + 1 :]]


def _left_over(inputs: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the result's labels for an einsum without "->": those that occur once or belong to an ellipsis.

    inputs: the labels of each operand's axes.
    """
    every = list(chain.from_iterable(inputs))
    return [label for label in dict.fromkeys(every) if every.count(label) == 1 or isinstance(label, tuple)]


COUNTS: dict[str, Count] = {
    **dict.fromkeys(("linear", "matmul", "mm", "bmm", "mv", "inner", "dot", "vdot", "cdist", "int_mm", "scaled_mm",
                     "grouped_mm", "scaled_grouped_mm", "attention_product"),
                    _by_last_axis(0, "input", "self", "x1", "mat1", "mat_a", "a")),
    "rmatmul": _by_last_axis(1, "other"),
    **dict.fromkeys(("addmm", "baddbmm", "addmv", "sampled_addmm"), _by_last_axis(1, "mat1", "batch1", "mat")),
    # batches of (n, K) times (K, m), whose sum runs over the batch too
    "addbmm": lambda args, kwargs, y: y.numel() * math.prod(_operand(args, kwargs, 1, "batch1").shape[::2]),
    "vecdot": lambda args, kwargs, y: y.numel() * _operand(args, kwargs, 0, "x").shape[kwargs.get("dim", -1)],
    "bilinear": _by_weight(2), "tensordot": _tensordot, "einsum": _einsum,
    "multi_dot": _chain, "chain_matmul": _chain, "matrix_power": _power,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _by_weight(1)),
    # each element of the input is multiplied by all of one input channel's filter
    **dict.fromkeys(
        ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
        lambda args, kwargs, y: (
            _operand(args, kwargs, 0, "input").numel() * _operand(args, kwargs, 1, "weight")[0].numel()
        ),
    ),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"), _cell),
}  # fmt: skip
