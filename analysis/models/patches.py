"""Convolutions as matrix products: patches of the input, with channels next to each other, times the weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import functional

DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
DEFAULTS = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}


class Convolution(NamedTuple):
    """Arguments of a call of torch.conv1d, conv2d or conv3d.

    Attributes:
      x: the input, (N, C, ...), always with a batch axis.
      weight: (outputs, C / groups, ...).
      bias: (outputs,), or None.
      stride, dilation: one number per spatial axis.
      padding: a pair (zeros before, zeros after) for each spatial axis.
      groups: number of groups of channels.
      single: whether the input had no batch axis.
    """

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    single: bool


def convolution(func: Any, args: Any, kwargs: Any) -> Convolution:
    """Return the arguments of a call of `func`, torch.conv1d, conv2d or conv3d, with defaults filled in.

    args, kwargs: positional and keyword arguments of the call.
    """
    arguments: dict[str, Any] = {**DEFAULTS, **dict(zip(NAMES, args, strict=False)), **kwargs}
    space, x, weight = DIMENSIONS[func], arguments["input"], arguments["weight"]
    stride, dilation = (_each(arguments[name], space) for name in ("stride", "dilation"))
    if arguments["padding"] == "same":
        missing = [step * (size - 1) for step, size in zip(dilation, weight.shape[2:], strict=True)]
        padding = tuple((zeros // 2, zeros - zeros // 2) for zeros in missing)
    elif arguments["padding"] == "valid":
        padding = ((0, 0),) * space
    else:
        padding = tuple((zeros, zeros) for zeros in _each(arguments["padding"], space))
    single = x.dim() == space + 1
    x = x[None] if single else x
    return Convolution(x, weight, arguments["bias"], stride, padding, dilation, arguments["groups"], single)


def _each(value: Any, space: int) -> tuple[int, ...]:
    """Return `value`, a number or a sequence of numbers, as a tuple of `space` numbers; a single number is repeated."""
    numbers = tuple(value) if isinstance(value, (tuple, list, torch.Size)) else (value,)
    return numbers * space if len(numbers) == 1 else numbers


def patches(x: torch.Tensor, conv: Convolution) -> torch.Tensor:
    """Return the patch of the padded input that each output position reads, (N, *output sizes, *filter sizes, C).

    x: the input without padding, (N, C, ...), perhaps that of a single group. conv: the convolution, whose padding,
    stride, dilation and filter sizes count.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.patches import convolution, patches
      >>> x = torch.arange(8.0).reshape(1, 2, 4)
      >>> patches(x, convolution(torch.conv1d, (x, torch.ones(1, 2, 3)), {})).tolist()
      [[[[0.0, 4.0], [1.0, 5.0], [2.0, 6.0]], [[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]]]]
    """
    space = len(conv.stride)
    x = functional.pad(x, [zeros for pair in reversed(conv.padding) for zeros in pair])
    for axis, (size, step, dilation) in enumerate(
        zip(conv.weight.shape[2:], conv.stride, conv.dilation, strict=True), 2
    ):
        x = x.unfold(axis, dilation * (size - 1) + 1, step)[..., ::dilation]
    return x.permute(0, *range(2, 2 + space), *range(2 + space, 2 + 2 * space), 1)


def matrices(conv: Convolution) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    """Return the operands (patches, weights, bias) of a convolution as matrix products, one for each group of channels.

    The result of a group is patches @ weights.T + bias, with patches (N * positions, K), weights (outputs, K) and bias
    (outputs,) or None. K is positions in the filter times channels of the group; the channel varies fastest.
    """
    channels, outputs = conv.x.shape[1] // conv.groups, conv.weight.shape[0] // conv.groups
    groups = []
    for group in range(conv.groups):
        rows = patches(conv.x[:, group * channels : (group + 1) * channels], conv)
        weight = conv.weight[group * outputs : (group + 1) * outputs].movedim(1, -1).reshape(outputs, -1)
        bias = None if conv.bias is None else conv.bias[group * outputs : (group + 1) * outputs]
        groups.append((rows.reshape(-1, weight.shape[1]), weight, bias))
    return groups


def places(conv: Convolution) -> tuple[int, ...]:
    """Return the spatial sizes of the result of a convolution, one per spatial axis."""
    room = zip(conv.x.shape[2:], conv.padding, conv.weight.shape[2:], conv.dilation, conv.stride, strict=True)
    return tuple((n + sum(pad) - dil * (size - 1) - 1) // step + 1 for n, pad, size, dil, step in room)


def folded(rows: list[torch.Tensor], conv: Convolution) -> torch.Tensor:
    """Return the results of the matrix products of a convolution's groups, joined in torch's shape (N, outputs, ...).

    conv: the convolution. rows: the result of each group's product, (N * positions, outputs of the group). The axis N
    is left out if the input had no batch axis.
    """
    y = torch.cat(rows, 1) if len(rows) > 1 else rows[0]
    y = y.reshape(conv.x.shape[0], *places(conv), -1).movedim(-1, 1).contiguous()
    return y[0] if conv.single else y


# ---- settings of a call


def settings_of(conv: Convolution) -> dict[str, Any]:
    """Return the settings of a convolution as a dictionary: "stride", "padding", "dilation" and "groups".

    The first three are lists with an item per spatial axis; an item of "padding" is [zeros before, zeros after].
    """
    return {
        "stride": list(conv.stride), "padding": [list(pair) for pair in conv.padding], "dilation": list(conv.dilation),
        "groups": conv.groups,
    }  # fmt: skip


def with_settings(x: torch.Tensor, weight: torch.Tensor, settings: Mapping[str, Any]) -> Convolution:
    """Return the Convolution of an input x and a weight, both in torch's shapes, without a bias.

    settings: "stride", "padding", "dilation" and "groups", as `settings_of` returns them.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.patches import places, with_settings
      >>> settings = {"stride": [2], "padding": [[1, 1]], "dilation": [1], "groups": 1}
      >>> places(with_settings(torch.ones(1, 2, 8), torch.ones(4, 2, 3), settings))
      (4,)
    """
    stride, dilation = tuple(settings["stride"]), tuple(settings["dilation"])
    single = x.dim() == len(stride) + 1
    padding = tuple((before, after) for before, after in settings["padding"])
    return Convolution(
        x[None] if single else x, weight, None, stride, padding, dilation, settings["groups"], single
    )  # fmt: skip


def settings_of_layer(layer: Any) -> dict[str, Any]:
    """Return the settings of a torch.nn.Conv1d, Conv2d or Conv3d, as `settings_of` returns them.

    The padding is 0 for a padding_mode other than "zeros", since `padded` then pads the input itself.
    """
    by_zeros = layer.padding_mode == "zeros"
    func = list(DIMENSIONS)[len(layer.kernel_size) - 1]
    empty = torch.empty(0, *layer.weight.shape[1:2], *layer.kernel_size, device="meta")
    how = {"stride": layer.stride, "dilation": layer.dilation, "groups": layer.groups}
    return settings_of(
        convolution(func, (empty, layer.weight), {**how, "padding": layer.padding if by_zeros else 0})
    )  # fmt: skip


def padded(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the input x padded as the layer's padding_mode demands, such as "reflect"; unchanged for "zeros".

    layer: a torch.nn.Conv1d, Conv2d or Conv3d.
    """
    if layer.padding_mode == "zeros":
        return x
    return functional.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode)


def is_depthwise(weight: torch.Tensor, groups: int) -> bool:
    """Return whether a convolution is depthwise: several groups of one channel each, so no matrices are multiplied.

    weight: (outputs, channels / groups, ...).
    """
    return groups > 1 and weight.shape[1] == 1


# ---- gradients


def gradient_rows(dy: torch.Tensor, conv: Convolution) -> list[torch.Tensor]:
    """Return the gradient of a convolution's result as a matrix (N * positions, outputs of the group) for each group.

    conv: the convolution. dy: the gradient, of the result's shape (N, outputs, ...), without N if the input had no
    batch axis.
    """
    dy = dy[None] if conv.single else dy
    return [part.movedim(1, -1).reshape(-1, part.shape[1]) for part in dy.chunk(conv.groups, 1)]


def gathered(rows: list[torch.Tensor], conv: Convolution) -> torch.Tensor:
    """Return the gradient of a convolution's input, in the input's shape, without its padding.

    An element's gradient is the sum of those of all patches that contain it, as torch's autograd adds them. rows: for
    each group the gradient of its patches, (N * positions, K). conv: the convolution.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.patches import convolution, gathered
      >>> conv = convolution(torch.conv1d, (torch.zeros(1, 1, 4), torch.ones(1, 1, 3)), {})
      >>> gathered([torch.ones(2, 3)], conv).tolist()
      [[[1.0, 2.0, 2.0, 1.0]]]
    """
    parts: list[torch.Tensor] = []
    for x, row in zip(conv.x.detach().chunk(conv.groups, 1), rows, strict=True):
        leaf = torch.zeros_like(x, dtype=row.dtype).requires_grad_()
        with torch.enable_grad():
            cut = patches(leaf, conv)
        parts += torch.autograd.grad(cut, leaf, row.reshape(cut.shape))
    dx = torch.cat(parts, 1)
    return dx[0] if conv.single else dx


def weights_of(rows: list[torch.Tensor], conv: Convolution) -> torch.Tensor:
    """Return the gradient of a convolution's weight, in the weight's shape, from those of the groups' weight matrices.

    rows: the gradient for each group, (outputs of the group, K). conv: the convolution.
    """
    outputs, channels, *sizes = conv.weight.shape
    return torch.cat(rows).reshape(outputs, *sizes, channels).movedim(-1, 1).contiguous()
