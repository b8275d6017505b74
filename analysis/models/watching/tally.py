"""Counts of a model's multiplications while it runs, and the weights that these read. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from fpsim.analysis.models.coverage import Coverage, CoveredPart, Parts, add_part
from fpsim.analysis.models.selection import joined

NORMS = (torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.RMSNorm, torch.nn.modules.batchnorm._NormBase)
COMPILED_KIND = ", compiled"  # what the kinds of parts end with that torch.compile made
LOOKUPS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class Tally:
    """Counts of a model's multiplications while it runs, and the weights that these read.

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
        """Note that the forward pass of a module ran."""
        self._ran.add(id(module))

    def looked_up(self, module: Any, weight: Any) -> None:
        """Note that rows of a weight were looked up, which multiplies nothing."""
        self._looked_up.update(self._read(module, weight))

    def saw(self, layer: str, module: Any, weight: Any, multiplications: int, seen: bool = True) -> None:
        """Count the multiplications of one product of a layer.

        Args:
          weight: the tensor that the product read as its weight; None for attention.
          seen: whether the report has the product.
        """
        add_part(
            self._parts, CoveredPart(layer, type(module).__name__, self._read(module, weight), multiplications, seen)
        )

    def missed(self, module: Any, name: str, function: str, multiplications: int) -> None:
        """Count a product of a torch function that is never recorded, such as `torch.einsum`, as not seen."""
        kind = type(module).__name__
        said = kind if type(module).__module__.startswith("torch.nn.modules.") else f"{kind}, by {function}"
        add_part(self._parts, CoveredPart(name, said, (), multiplications, False))

    def hid(self, module: Any, name: str, x: Any) -> None:
        """Count a fused module, whose products are not seen, as if each of its matrices multiplied every row of x."""
        self._in_one_piece(module, name, f"{type(module).__name__}, in one piece", x)

    def _in_one_piece(self, module: Any, name: str, kind: str, x: Any) -> None:
        """Count the matrices of a module whose products are not seen, as if each multiplied every row of x."""
        weights = {self._names[id(p)]: p.numel() for p in module.parameters() if p.dim() == 2}
        rows = x.numel() // max(x.shape[-1], 1) if isinstance(x, torch.Tensor) and x.dim() else 0
        add_part(self._parts, CoveredPart(name, kind, tuple(weights), rows * sum(weights.values()), False))

    def compiled(self, module: Any, name: str, hidden: Coverage | None, x: Any) -> None:
        """Count the multiplications of a compiled module, whose products are not seen.

        Args:
          module: the module that torch.compile was given.
          hidden: its multiplications; if None (not known), each of its matrices counts once for each row of x.
        """
        kind = f"{type(module).__name__}{COMPILED_KIND}"
        if hidden is None:
            self._in_one_piece(module, name, kind, x)
            return
        names = {local: self._names[id(p)] for local, p in module.named_parameters() if id(p) in self._names}
        weights = tuple(dict.fromkeys(names[local] for local in hidden.sizes if local in names))
        self._ran.update(map(id, module.modules()))
        self._looked_up.update(names[local] for local in names if local not in hidden.sizes)
        count = sum(part.multiplications for part in hidden.parts)
        add_part(self._parts, CoveredPart(name, kind, weights, count, False))

    def _read(self, module: Any, weight: Any) -> tuple[str, ...]:
        """Return the names of the parameters that a weight is, is a view of, or is computed from (parametrizations)."""
        if weight is None:
            return ()
        name = self._names.get(id(weight)) or self._names.get(id(getattr(weight, "_base", None)))
        if name is not None:
            return (name,)
        made_of = getattr(module, "parametrizations", module)  # a weight that a parametrization computes
        return tuple(self._names[id(p)] for p in made_of.parameters() if id(p) in self._names)

    @property
    def coverage(self) -> Coverage:
        """The counts so far, with the modules whose weights nothing read."""
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
        return Coverage(sizes, (*self._with(unread), *self._modules_of(unread, modules)))

    def _with(self, unread: Mapping[str, list[str]]) -> Iterable[CoveredPart]:
        """Yield the counted parts; those whose products are not seen also get their module's `unread` weights."""
        for part in self._parts.values():
            weights = () if part.seen else tuple(unread.get(part.name, ()))
            yield replace(part, parameters=(*part.parameters, *weights))

    def _modules_of(self, unread: Mapping[str, list[str]], modules: Mapping[str, Any]) -> Iterable[CoveredPart]:
        """Yield a part for each module whose weights no product read and that is not among the counted parts."""
        counted = {part.name for part in self._parts.values() if not part.seen}
        for owner, names in unread.items():
            if owner not in counted:
                module = modules[owner]
                holds = isinstance(module, (torch.nn.ParameterList, torch.nn.ParameterDict))
                idle = not holds and id(module) not in self._ran
                kind = f"{type(module).__name__}{', which did not run' if idle else ''}"
                yield CoveredPart(owner if owner else joined("", names[0]), kind, tuple(names), 0, False)
