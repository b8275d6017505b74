"""The layers of a model that can be recorded: their names, and the selection of some by patterns."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from fpsim.display.optional import load
from fpsim.errors import SHOWN, shown

ATTENTION = "attention"  # last part of the name of a layer for the products of a module's queries, keys and values


def joined(module: str, last: str) -> str:
    """Return the qualified name of the part `last` of the module called `module`; "" is the model itself.

    Example:
      >>> from fpsim.analysis.models.selection import joined
      >>> joined("blocks.0", "attention"), joined("", "attention")
      ('blocks.0.attention', 'attention')
    """
    return f"{module}.{last}" if module else last


def owner_of(parameter: str) -> str:
    """Return the name of the layer to which a parameter belongs, derived from the parameter's name.

    Example:
      >>> from fpsim.analysis.models.selection import owner_of
      >>> owner_of("head.weight"), owner_of("attn.in_proj_weight"), owner_of("mixer")
      ('head', 'attn.in_proj', 'mixer')
    """
    return parameter.removesuffix(".weight").removesuffix("_weight") or parameter


class Selection:
    """The layers of a model that a recording selects; `name in selection` tells whether a layer is selected.

    Args:
      model: a torch.nn.Module.
      layers: one or several shell patterns; a layer is selected if its name matches one.

    Attributes:
      owners: id of each parameter -> name of its layer.
      modules: id of each module -> its name.

    Raises:
      TypeError: layers is neither a pattern nor a sequence of patterns.
      ValueError: the model has no layers with products, or a pattern matches none.
    """

    def __init__(self, model: Any, layers: str | Sequence[str]) -> None:
        self.patterns = _patterns(layers)
        self.owners = {id(p): owner_of(name) for name, p in model.named_parameters()}
        self.modules = {id(module): name for name, module in model.named_modules()}
        names = product_names(model)
        if not names:
            raise ValueError(
                "model must have a linear, convolution, embedding or attention layer, or a matrix of weights; got "
                f"{type(model).__name__} with none."
            )
        may_be = [*names, *(joined(module, ATTENTION) for module in self.modules.values())]
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in may_be):
                near = ", ".join(map(repr, difflib.get_close_matches(pattern, names, SHOWN, cutoff=0.0)))
                raise ValueError(
                    f"layers must match a layer of the model; got {shown(pattern)}, which matches none of "
                    f"{len(names)}. Near it: {near}."
                )
        self._chosen: dict[str, bool] = {}

    def __contains__(self, layer: str) -> bool:
        matches = self._chosen.get(layer)
        if matches is None:
            matches = self._chosen[layer] = any(fnmatchcase(layer, pattern) for pattern in self.patterns)
        return matches

    def layer_of(self, module: Any, weight: Any, is_layer: bool) -> str:
        """Return the name of the layer to which a product of `module` and `weight` belongs.

        The first of these names that applies is returned. For attention, whose `weight` is None: the module's name with
        ".attention". If `is_layer` (the module is a layer, such as nn.Linear): the module's name. If the weight is a
        parameter: the name of the layer that owns it. Else the module's name, or "weight" if the module is the model.
        module: a torch.nn.Module.
        """
        name = self.modules[id(module)]
        if weight is None:
            return joined(name, ATTENTION)
        owner = self.owner(weight)
        return (is_layer and name) or owner or name or "weight"

    def owner(self, weight: Any) -> str | None:
        """Return the name of the layer of which a tensor is a parameter, or a view of one; None if it is neither."""
        return self.owners.get(id(weight)) or self.owners.get(id(weight._base))


def product_names(model: Any) -> list[str]:
    """Return the names of a model's layers, found from its modules and parameters without running it.

    model: a torch.nn.Module. The layers are linear, convolution, embedding and attention modules, and parameters of two
    or more axes that other modules (except norms) hold.

    Example:
      >>> import torch
      >>> from fpsim.analysis.models.selection import product_names
      >>> product_names(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Conv1d(1, 2, 3)))
      ['0', '2']
    """
    torch = load("torch", "recording a model")
    normed = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.modules.batchnorm._NormBase)
    names: dict[str, None] = {}
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding, torch.nn.EmbeddingBag)):
            names[name or "weight"] = None  # even if the weight is computed from other parameters
        elif not isinstance(module, normed):
            for local_name, parameter in module.named_parameters(recurse=False):
                if parameter.ndim >= 2:
                    names[owner_of(joined(name, local_name))] = None
        if isinstance(module, torch.nn.MultiheadAttention):
            names[joined(name, ATTENTION)] = None
    return list(names)


def _patterns(layers: Any) -> tuple[str, ...]:
    """Return one or several shell patterns as a tuple; raise a TypeError for anything else.

    layers: a text or a sequence of texts.
    """
    globs = [layers] if isinstance(layers, str) else layers
    if not isinstance(globs, Sequence) or not globs or not all(isinstance(glob, str) for glob in globs):
        raise TypeError(f"layers must be a shell pattern or several, such as 'blocks.*.mlp.*'; got {shown(layers)}.")
    return tuple(globs)
