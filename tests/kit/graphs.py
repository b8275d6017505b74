"""A backend of torch.compile that leaves out copies, as torch's own does."""

from __future__ import annotations

import importlib
from typing import Any

import torch


def without_clones(graph: Any, inputs: Any) -> Any:
    """Return a graph of torch.compile as a function, in which a clone is the tensor that it copies.

    The backend "inductor" does this too, but compiles C++ for it, which takes half a minute. inputs: not used.
    """
    common, compilers = map(importlib.import_module, ("torch._dynamo.backends.common", "functorch.compile"))

    def compiled(part: Any, _: Any) -> Any:
        for node in part.graph.nodes:
            if node.target is torch.ops.aten.clone.default:
                node.replace_all_uses_with(node.args[0])
        part.recompile()
        return compilers.make_boxed_func(part.forward)

    partition = compilers.min_cut_rematerialization_partition
    backend = common.aot_autograd(
        fw_compiler=compiled, partition_fn=partition, keep_inference_input_mutations=True
    )  # fmt: skip
    return backend(graph, inputs)
