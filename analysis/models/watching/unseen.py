"""Sentences on products that a recording does not contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fpsim.analysis.models.compiled import original, share_of
from fpsim.analysis.models.coverage import NAMED, Coverage
from fpsim.analysis.models.watching.tally import COMPILED_KIND
from fpsim.display.wording import listed


def unrecorded(function: str, modules: Iterable[str]) -> str:
    """Return a sentence naming modules that multiply by a torch function whose products are not recorded.

    function: name of the function, such as "einsum". modules: names of the modules.
    """
    names = list(modules)
    who = f"{listed(names, NAMED)} {'multiply' if len(names) > 1 else 'multiplies'}"
    return (
        f"{who} by {function}, whose operands are not recorded: attention is seen where it is "
        "torch.nn.functional.scaled_dot_product_attention, and a layer where it is one of torch."
    )


def compiled_notes(coverage: Coverage, compiled: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each compiled module that ran, with its share of the model's multiplications.

    coverage: the multiplications counted so far, with a part for each compiled module. compiled: name -> module.
    """
    for name, module in compiled.items():
        if any(part.name == name and part.kind.endswith(COMPILED_KIND) for part in coverage.parts):
            yield (
                f"{name} ({type(original(module)).__name__}) is compiled: its products{share_of(coverage, name)} are "
                "not seen. Record a model with the module that torch.compile was given in its place."
            )
