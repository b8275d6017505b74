"""The products of a running model, observed as calls of torch functions: operands, results and settings."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fpsim.analysis.models.multiplications import multiplications, multiplies, name_of
from fpsim.analysis.models.patches import DIMENSIONS, convolution, padded, settings_of, settings_of_layer

WEIGHTED = (
    functional.linear, torch.conv1d, torch.conv2d, torch.conv3d, torch.conv_transpose1d, torch.conv_transpose2d,
    torch.conv_transpose3d, functional.embedding, functional.embedding_bag,
)  # fmt: skip
ATTENTION = functional.scaled_dot_product_attention
WHOLE_ATTENTION = functional.multi_head_attention_forward
BATCHED = (torch.bmm, torch.baddbmm)  # functions by which multi-head attention multiplies if it returns its weights
# Products by functions other than layers'; they are recorded if a weight of the model is the second operand.
MATMULS = (
    torch.matmul, torch.mm, torch.bmm, torch.baddbmm, torch.addmm, torch.Tensor.matmul, torch.Tensor.mm,
    torch.Tensor.bmm, torch.Tensor.__matmul__, torch.Tensor.__rmatmul__, torch.Tensor.addmm, torch.Tensor.baddbmm,
)  # fmt: skip
LOOKUPS = (functional.embedding, functional.embedding_bag)  # functions to which autocast does not apply
# Modules with a fused path, which calls no other module; torch takes this path in eval mode, unless a mode is entered.
FUSED = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)
LAYERS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.Embedding, torch.nn.EmbeddingBag)


class RecordedProduct(NamedTuple):
    """One product of a running model.

    Attributes:
      operands: name -> operand, in the dtype in which it was read; names are "input" and "weight" (for a
        lookup only the latter), or for attention "query", "key" and "value".
      weight: the layer's weight; None for attention.
      output: the result.
      lookup: whether the weight's rows are looked up, as in an embedding.
      settings: "stride", "padding", "dilation" and "groups" of a convolution; for attention "masked" and "causal"
        (bools), "scale", "dropout", and "turned", True if the key is transposed already; empty for others.
      mask: attention's mask: floats that are added to scores, or bools, True for the scores to keep; None without one.
      multiplications: number of multiplications of the call.
    """

    operands: dict[str, torch.Tensor]
    weight: torch.Tensor | None
    output: torch.Tensor
    lookup: bool = False
    settings: Mapping[str, Any] = MappingProxyType({})
    mask: torch.Tensor | None = None
    multiplications: int = 0


class Products(TorchFunctionMode):
    """A torch function mode that reports every product that runs while it is entered.

    seen: called with each product whose operands are known. unseen: called with the name of each other function that
    multiplies, and its number of multiplications.
    """

    def __init__(self, seen: Callable[[RecordedProduct], None], unseen: Callable[[str, int], None]) -> None:
        super().__init__()
        self._seen, self._missed = seen, unseen
        self._scores: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None] | None = None
        self._batched = False
        self._dropout = 0.0
        self._of_scores = 0  # multiplications of attention's first product

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is WHOLE_ATTENTION:
            return self._multi_head(args, kwargs)
        output = func(*args, **kwargs)
        count = multiplications(func, args, kwargs, output)
        if func in WEIGHTED:
            x, weight = _named(args, kwargs, "input", "weight")
            lookup = func in LOOKUPS
            if lookup and not weight.is_floating_point():  # older versions of embedding_bag have the other order
                x, weight = weight, x
            settings = settings_of(convolution(func, args, kwargs)) if func in DIMENSIONS else {}
            self._seen(weighted(x, weight, output, lookup, settings)._replace(multiplications=count))
        elif func is ATTENTION:
            names = ("query", "key", "value")
            operands = dict(zip(names, map(as_read, _named(args, kwargs, *names)), strict=True))
            settings, mask = _attention_settings(args, kwargs)
            self._seen(RecordedProduct(operands, None, output, False, settings, mask, count))
        elif self._batched and func in BATCHED:
            self._multiplied(args[-2:], output, args[0] if func is torch.baddbmm else None, count)
        elif func in MATMULS:
            self._matmul(func, args, output, count)
        elif multiplies(func, args):
            self._missed(name_of(func), count)
        return output

    def _matmul(self, func: Any, args: Any, output: Any, count: int) -> None:
        """Pass x @ W to `seen` if W is a parameter matrix or a view of one; pass other products to `unseen`.

        `seen` and `unseen` are the functions given to the class. func, args, output: the torch function, its positional
        arguments and its result. count: number of multiplications.
        """
        pair: Any = args[::-1] if func is torch.Tensor.__rmatmul__ else args[-2:]
        x: Any = None
        weight: Any = None
        if len(pair) == 2:  # else they were passed by name
            x, weight = pair
        whole = weight if isinstance(weight, torch.Tensor) and weight._base is None else getattr(weight, "_base", None)
        if isinstance(whole, torch.nn.Parameter) and weight.dim() == 2 and isinstance(x, torch.Tensor) and x.dim():
            self._seen(weighted(x, weight, output, matrix=weight.mT)._replace(multiplications=count))
        else:
            self._missed(name_of(func), count)

    def _multi_head(self, args: Any, kwargs: Any) -> Any:
        """Return the result of torch.nn.functional.multi_head_attention_forward, run so that its products are reported.

        The function runs operation by operation inside this mode. args, kwargs: arguments of the function.
        """
        self._batched, self._scores = True, None
        dropout = args[10] if len(args) > 10 else kwargs["dropout_p"]
        self._dropout = float(dropout) if kwargs.get("training", True) else 0.0
        try:
            with self:
                return attention_in_parts()(*args, **kwargs)
        finally:
            self._batched, self._scores = False, None

    def _multiplied(self, operands: Any, output: torch.Tensor, mask: torch.Tensor | None, count: int) -> None:
        """Store the first batched product of torch's multi-head attention; after the second, report both together.

        The first product is queries by keys, the second probabilities by values. operands, output, count: operands,
        result and number of multiplications of this product. mask: the mask that the product adds, or None.
        """
        if self._scores is None:
            self._scores, self._of_scores = (*operands, mask), count
            return
        query, key, mask = self._scores  # the key is transposed already, the query scaled
        read = {"query": as_read(query), "key": as_read(key), "value": as_read(operands[1])}
        settings = {
            "masked": mask is not None, "causal": False, "scale": 1.0, "turned": True, "dropout": self._dropout,
        }  # fmt: skip
        self._seen(RecordedProduct(read, None, output, False, settings, mask, self._of_scores + count))


def attention_in_parts() -> Callable[..., Any]:
    """Return torch's multi_head_attention_forward as a copy that shows each operation to a torch function mode."""
    namespace = {**WHOLE_ATTENTION.__globals__, "has_torch_function": lambda _: False}
    function = types.FunctionType(WHOLE_ATTENTION.__code__, namespace, None, WHOLE_ATTENTION.__defaults__)
    function.__kwdefaults__ = WHOLE_ATTENTION.__kwdefaults__
    return function


def _attention_settings(args: Any, kwargs: Any) -> tuple[dict[str, Any], torch.Tensor | None]:
    """Return (settings, mask or None) of a call of torch's scaled_dot_product_attention.

    settings: as in `RecordedProduct.settings`; a missing scale becomes 1 / sqrt(size of the query's last axis). args,
    kwargs: arguments of the call.
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    scale = arguments.get("scale")
    if scale is None:
        scale = max(arguments["query"].shape[-1], 1) ** -0.5
    mask, causal = arguments.get("attn_mask"), bool(arguments.get("is_causal", False))
    settings = {
        "masked": mask is not None, "causal": causal, "scale": float(scale), "turned": False,
        "dropout": float(arguments.get("dropout_p", 0.0)),
    }  # fmt: skip
    return settings, mask


def added_to_scores(mask: torch.Tensor) -> torch.Tensor:
    """Return an attention mask as the float32 tensor that is added to scores; of bools, True becomes 0 and False -Inf.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.products import added_to_scores
      >>> added_to_scores(torch.tensor([True, False]))
      tensor([0., -inf])
    """
    mask = mask.detach().to("cpu")
    if mask.dtype != torch.bool:
        return mask.to(torch.float32, copy=True)
    return torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)


def weighted(
    x: torch.Tensor, weight: torch.Tensor, output: torch.Tensor, lookup: bool = False,
    settings: Mapping[str, Any] = MappingProxyType({}), matrix: torch.Tensor | None = None,
) -> RecordedProduct:  # fmt: skip
    """Return the RecordedProduct of an input and a weight.

    Args:
      x: the layer's input.
      weight: the parameter.
      output: the layer's result.
      lookup: whether rows of the weight are looked up, as in an embedding, whose input is not recorded.
      settings: the settings of a convolution, as in `RecordedProduct.settings`.
      matrix: the weight as (outputs, K), if its own shape differs.
    """
    read = {"weight": weight if lookup else as_read(weight if matrix is None else matrix)}
    return RecordedProduct(read if lookup else {"input": as_read(x), **read}, weight, output, lookup, settings)


def product_of_layer(layer: Any, x: torch.Tensor, output: torch.Tensor) -> RecordedProduct:
    """Return the RecordedProduct of a layer that did not call one of the torch functions that `Products` observes.

    layer: a linear layer or a convolution, whose weight is an operand. x: the layer's input, before padding. output:
    the layer's result.
    """
    cut = not isinstance(layer, torch.nn.Linear)
    settings = settings_of_layer(layer) if cut else {}
    product = weighted(padded(layer, x) if cut else x, layer.weight, output, settings=settings)
    return product._replace(multiplications=output.numel() * layer.weight[0].numel())


def as_read(x: torch.Tensor) -> torch.Tensor:
    """Return x detached from autograd, in the dtype in which a product reads it: autocast's where autocast applies."""
    x = x.detach()
    device = x.device.type
    eligible = x.is_floating_point() and x.dtype != torch.float64 and not x.is_meta
    return x.to(torch.get_autocast_dtype(device)) if eligible and torch.is_autocast_enabled(device) else x


def _named(args: Any, kwargs: Any, *names: str) -> list[Any]:
    """Return the first arguments of a function, called `names`, whether they were passed by position or by name.

    args, kwargs: positional and keyword arguments of the call.
    """
    return [args[i] if i < len(args) else kwargs[name] for i, name in enumerate(names)]


def is_fused(module: torch.nn.Module) -> bool:
    """Return whether torch may run a module in one fused operation (outside of torch function modes; inside it never
    does).

    The answer is True if all of these hold: the module is a MultiheadAttention, TransformerEncoderLayer or
    TransformerEncoder in evaluation mode; torch's fast path is enabled; and gradients are disabled or no parameter
    needs one.
    """
    if not isinstance(module, FUSED) or module.training or not torch.backends.mha.get_fastpath_enabled():
        return False
    return not (torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()))
