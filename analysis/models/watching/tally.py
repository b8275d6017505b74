"""Counts of a model's multiplications while it runs, and the weights that they read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from fpsim.analysis.models.coverage import Coverage, CoveredPart, Parts, add_part

NORMS = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.RMSNorm, torch.nn.modules.batchnorm._NormBase)
COMPILED_KIND = ", compiled"  # end of the `kind` of parts that torch.compile compiled
LOOKUPS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class Tally:
    """Counts of a model's multiplications while it runs, and the weights that they read; `coverage` returns both.

    Args:
      model: a torch.nn.Module.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._parameters = dict(model.named_parameters())
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        self._parts: Parts = {}
        self._looked_up: set[str] = set()
        self._ran: set[int] = set()

    def ran(self, module: Any) -> None:
        """Record that the forward pass of a module ran."""
        self._ran.add(id(module))

    def looked_up(self, module: Any, weight: Any) -> None:
        """Record that rows of a weight were looked up in a module, without multiplications.

        module: the torch.nn.Module that ran. weight: the tensor whose rows were read.
        """
        self._looked_up.update(self._read(module, weight))

    def saw(self, layer: str, module: Any, weight: Any, multiplications: int, seen: bool = True) -> None:
        """Count the multiplications of one product of a layer, which `module` computed.

        Args:
          layer: the layer's name.
          module: the torch.nn.Module that computed the product.
          weight: the tensor that the product read as its weight; None for attention.
          multiplications: number of multiplications of the product.
          seen: whether the report contains the product.
        """
        add_part(
            self._parts, CoveredPart(layer, type(module).__name__, self._read(module, weight), multiplications, seen)
        )

    def missed(self, module: Any, name: str, function: str, multiplications: int) -> None:
        """Count a product by a torch function that is never recorded; the report then lists it as not seen.

        module, name: the torch.nn.Module that called the function, and the module's name. function: the function's
        name, such as "einsum". multiplications: number of multiplications of the product; 0 if it is not known.
        """
        kind = type(module).__name__
        said = kind if type(module).__module__.startswith("torch.nn.modules.") else f"{kind}, by {function}"
        said = said if multiplications else f"{said}, uncounted"
        add_part(self._parts, CoveredPart(name, said, (), multiplications, False))

    def hid(self, module: Any, name: str, kind: str, x: Any) -> None:
        """Count the multiplications of a module whose products are not recorded, as not seen (missing from the report).

        Each matrix of the module counts as multiplied by every row of the module's input x; if x is no tensor, no
        multiplications are counted. module, name: the torch.nn.Module and its name. kind: the module's class, and why
        its products are not recorded, such as "Linear, compiled".
        """
        weights = {self._names[id(p)]: p.numel() for p in module.parameters() if p.dim() == 2}
        rows = x.numel() // max(x.shape[-1], 1) if isinstance(x, torch.Tensor) and x.dim() else 0
        add_part(self._parts, CoveredPart(name, kind, tuple(weights), rows * sum(weights.values()), False))

    def compiled(self, module: Any, name: str, hidden: Coverage | None, x: Any) -> None:
        """Count the multiplications of a compiled module as not seen, that is, missing from the report.

        Args:
          module: the torch.nn.Module that was compiled.
          name: the module's name.
          hidden: the module's multiplications as a Coverage; if None (unknown), each of its matrices counts as
            multiplied by every row of x.
          x: the module's input, a tensor.
        """
        kind = f"{type(module).__name__}{COMPILED_KIND}"
        if hidden is None:
            self.hid(module, name, kind, x)
            return
        names = {local: self._names[id(p)] for local, p in module.named_parameters() if id(p) in self._names}
        weights = tuple(dict.fromkeys(names[local] for local in hidden.sizes if local in names))
        self._ran.update(map(id, module.modules()))
        self._looked_up.update(names[local] for local in names if local not in hidden.sizes)
        count = sum(part.multiplications for part in hidden.parts)
        add_part(self._parts, CoveredPart(name, kind, weights, count, False))

    def _read(self, module: Any, weight: Any) -> tuple[str, ...]:
        """Return the names of the parameters from which a weight is made; () if `weight` is None, as for attention.

        If the weight is a parameter or a view of one, the name is that of the parameter. Otherwise the names are those
        of all parameters of the module's parametrizations, or of the module if it has none. module: the torch.nn.Module
        whose product read the weight.
        """
        if weight is None:
            return ()
        name = self._names.get(id(weight)) or self._names.get(id(getattr(weight, "_base", None)))
        if name is not None:
            return (name,)
        made_of = getattr(module, "parametrizations", module)  # a weight that a parametrization computes
        return tuple(self._names[id(p)] for p in made_of.parameters() if id(p) in self._names)

    @property
    def coverage(self) -> Coverage:
        """The shares of the model's weights and multiplications that were seen (that the report contains) so far.

        Weights are the parameters of two or more axes, except those of norms and embeddings that are only looked up. A
        module with weights that no product has read becomes a part that was not seen.
        """
        read = {name for part in self._parts.values() for name in part.parameters}
        sizes: dict[str, int] = {}
        unread: dict[str, list[str]] = {}
        modules = dict(self._model.named_modules())
        for name, parameter in self._parameters.items():
            owner = name.rpartition(".")[0]
            module = modules[owner]
            if parameter.dim() < 2 or isinstance(module, NORMS):
                continue
            if name not in read and (name in self._looked_up or isinstance(module, LOOKUPS)):
                continue
            sizes[name] = parameter.numel()
            if name not in read:
                unread.setdefault(owner, []).append(name)
        parts = [  # those that are not seen also get the weights of their module that no product read
            part if part.seen else replace(part, parameters=(*part.parameters, *unread.get(part.name, ())))
            for part in self._parts.values()
        ]
        return Coverage(sizes, (*parts, *self._modules_of(unread, modules)))

    def _modules_of(self, unread: Mapping[str, list[str]], modules: Mapping[str, Any]) -> Iterable[CoveredPart]:
        """Yield a `CoveredPart` with seen=False and without multiplications for each module with unread weights.

        The part has the module's name; for the model itself, whose name is "", that of its first unread weight. Modules
        for which there is a part with seen=False already are left out. unread: name of a module -> names of its weights
        that no product read. modules: name -> module.
        """
        counted = {part.name for part in self._parts.values() if not part.seen}
        for owner, names in unread.items():
            if owner not in counted:
                module = modules[owner]
                holds = isinstance(module, (torch.nn.ParameterList, torch.nn.ParameterDict))
                idle = not holds and id(module) not in self._ran
                kind = f"{type(module).__name__}{', which did not run' if idle else ''}"
                yield CoveredPart(owner or names[0], kind, tuple(names), 0, False)
