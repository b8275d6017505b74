"""The function `fp.analysis.diff`, which compares one model under two arithmetics bit for bit."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from fpsim.analysis.models.recorder import check_model
from fpsim.display.optional import load
from fpsim.display.wording import listed
from fpsim.divergence.divergence import Divergence, equal, first_divergence
from fpsim.divergence.mechanism import adds_sentence
from fpsim.errors import nearest, shown

if TYPE_CHECKING:
    import torch

    from fpsim.analysis.studies.differences.arithmetics import ArithmeticLike, ModelArithmetic
    from fpsim.analysis.studies.differences.growth import LayerDifference, Logits
    from fpsim.analysis.studies.differences.report import ModelDivergence
    from fpsim.divergence.product import Product
    from fpsim.recipes.look_up import LinearLike

LONGEST = 40  # characters of a name in sentences


def diff(
    model: torch.nn.Module, batch: object, first: ArithmeticLike, second: ArithmeticLike, *,
    recipe: LinearLike | None = None, loss: Callable[..., Any] | None = None, logits: Logits = None,
    second_model: torch.nn.Module | None = None, second_batch: object = None,
) -> ModelDivergence:  # fmt: skip
    """Run a model under two arithmetics, and report where their bits first differ, why, and how the difference grows.

    Every product of a linear layer or a convolution (with a loss, also of the backward pass) is computed under both
    arithmetics and compared: operands before and after their casts, and results. Everything before the first difference
    is equal; after the first difference inputs differ too, and `growth` says by how much results differ. All other
    operations, such as norms, embeddings and products inside of attention, are computed by torch in both runs, and
    compared as inputs of the next product. The model and the batch are copied, and not changed; random numbers, such as
    those of dropout, are the same in both runs.

    torch.compile hides products: with a compiled model, whose arithmetic must be "torch", the outputs of modules that
    Python calls are compared instead.

    An arithmetic is one of these:

    - "torch": the unchanged model, including layers that are quantised already.
    - "float32": a chain of fused multiply-adds in float32, in the order of K, without casts.
    - a chip ("H100", "B200", "MI300X", "sm_90"): its matrix units compute the products of `recipe`, as in
      `fp.train.lockstep`; followed by " cuBLAS", with the schedules of cuBLASLt's kernels.
    - a matrix unit, a schedule or an accumulator, also as text: used in place of those of `recipe`. A unit without a
      recipe takes operands in its own formats, with a scale per tensor up to 8 bits, in one chain.
    - a model of a product made by `fp.probe`: its unit and schedule, or accumulator, in place of those of `recipe`.
    - a recipe: of linear layers (`fp.torch`), of training (`fp.train`), or the name of one.
    - "emulated", "gpu", "hardware": `recipe` with its own units on the CPU, on the GPU, or on tensor cores.
    - a dict of shell patterns of layers to any of these; the last matching pattern counts, other layers are "torch".

    Args:
      model: a torch.nn.Module on the CPU.
      batch: the arguments of the model: one argument, a tuple or list of arguments, or a dict of keyword arguments.
      first, second: the two arithmetics.
      recipe: a recipe, or its name, for the formats, scalings and results that an arithmetic leaves open. With None it
        is a layer's own recipe if that quantises (FP32 does not), BF16 or FP16 for other layers of that dtype, and
        FP8_TENSOR for the rest: E4M3 with a scale per tensor, promoted every 128 terms, results in BF16.
      loss: a function of (model, batch) that returns a scalar, or a criterion of torch for batches of (input, target);
        the backward pass of the loss is compared too. None for the forward pass alone.
      logits: the part of the output for the KL divergence, along the last axis: None for the part that is called
        `logits`, True for the output itself, a function that takes it from the output, False for none.
      second_model: the model of the second run, with layers of the same names; None for the same model.
      second_batch: the batch of the second run; None for the same batch.

    Returns:
      A ModelDivergence, which is a Divergence. If all bits of all products are equal, its `cause` is "none" and its
      truth value is False.

    Raises:
      TypeError: model is not a torch.nn.Module, or an arithmetic or recipe has another type.
      ValueError: a name is unknown; the model runs no linear layer or convolution, is compiled (unless the arithmetic
        is "torch"), or not on the CPU; the batch does not fit the model, or all results are NaN; a chip or unit does
        not accept a layer's operands; the loss does not return a scalar; a pattern matches no layer.
      fpsim.gpu.GpuError: "gpu" or "hardware" without a GPU.
      ImportError: torch is not installed.

    Example:
      >>> import torch
      >>> _ = torch.manual_seed(0)
      >>> model = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
      >>> x = torch.randn(32, 256)
      >>> difference = fp.analysis.diff(model, x, "H100", "B200")
      >>> difference.layer, difference.product, difference.element, difference.cause
      ('0', 'fprop', (0, 15), 'arithmetic')
      >>> print(fp.analysis.diff(model, x, "H100", "B200", recipe="BF16"))
      No bit differs between H100 and B200: 2 products of 2,560 elements.
      H100 adds on hopper_bf16_f32 in one chain; B200 adds on blackwell_bf16_f32 in one chain.
      Seen: 100 % of the weights and 100 % of the multiplications.
    """
    torch = load("torch", "diff")
    models = (model, model if second_model is None else second_model)
    batches = (batch, batch if second_batch is None else second_batch)
    if not (logits is None or isinstance(logits, bool) or callable(logits)):
        raise TypeError(f"logits must be None, True, False or a function of the output; got {shown(logits)}.")
    from fpsim.analysis.models.losses import loss_of
    from fpsim.analysis.studies.differences.arithmetics import arithmetic

    ways = arithmetic("first", first, recipe), arithmetic("second", second, recipe)
    hidden = _any_compiled(torch, models, ways)
    for side, its_batch in zip(models, batches, strict=True):
        if not hidden:
            check_model(torch, side, "compared")
        _refuse_devices(torch, side, its_batch)
    loss = None if loss is None else loss_of(loss)
    compare = _by_outputs if hidden else _by_products
    return compare(models, batches, ways, loss, logits)


def _by_products(
    models: tuple[Any, Any], batches: tuple[Any, Any], ways: tuple[ModelArithmetic, ModelArithmetic], loss: Any,
    logits: Logits,
) -> ModelDivergence:  # fmt: skip
    """Compare every product of linear layers and convolutions in two runs, and return the report.

    `models`, `batches`, `ways`: the model, batch and arithmetic of the first and of the second run. `loss`: a function
    of (model, batch), or None for the forward pass alone. `logits`: the part of the outputs that their KL divergence is
    computed from, as in `diff`. Raise a ValueError if the model runs no such product, if a pattern matches no layer, or
    if all results are NaN.
    """
    from fpsim.analysis.studies.differences.growth import kl_of
    from fpsim.analysis.studies.differences.report import model_divergence, no_difference
    from fpsim.analysis.studies.differences.running import run

    others: deque[Product] = deque()
    one = run(models[0], batches[0], ways[0], loss, others.append)
    if not one.layers:
        parts = [f"{part.name or 'the model'} ({part.kind})" for part in one.coverage.unseen if part.multiplications]
        unseen = f", and the products of {listed(parts[:3])} are not seen" if parts else ""
        raise ValueError(
            "model must have a linear layer or a convolution that the batch goes through; "
            f"{type(models[0]).__name__} has none{unseen}."
        )
    for pattern in (pattern for way in ways for pattern, _ in way.ways):
        if not any(fnmatchcase(layer, pattern) for layer in one.layers):
            near = nearest(pattern, one.layers, 0.0)
            raise ValueError(
                f"{shown(pattern)} must match a layer of the model; it matches none of {len(one.layers)}. Near it: "
                f"{near!r}."
            )
    comparison = _ProductComparison(others, _names(*ways))
    two = run(models[1], batches[1], ways[1], loss, comparison.see)
    first, growth = comparison.divergence(), tuple(comparison.growth)
    if first is None and not comparison.saw_numbers:
        raise ValueError(
            "batch must lead to products of numbers; got one whose results are all empty or NaN, so that nothing can "
            "be compared. Use a batch for which the model returns numbers."
        )
    kl = kl_of(one.output, two.output, logits)
    remarks = dict.fromkeys(remark for way in ways for remark in way.remarks)
    if first is None:
        return no_difference(growth, comparison.names, kl, one.coverage, comparison.ways, remarks)
    return model_divergence(first, growth, kl, one.coverage, remarks)


def _any_compiled(torch: Any, models: tuple[Any, Any], ways: tuple[ModelArithmetic, ModelArithmetic]) -> bool:
    """Return whether one of two models is compiled by torch.compile.

    `torch`: the module. `ways`: the arithmetic of each model. Raise a ValueError if a compiled model has another
    arithmetic than "torch".
    """
    from fpsim.analysis.models.compiled import compiled_modules

    compiled = [isinstance(model, torch.nn.Module) and bool(compiled_modules(model)) for model in models]
    for number, (hides, way) in enumerate(zip(compiled, ways, strict=True)):
        if hides and way.name.strip().lower() != "torch":
            raise ValueError(
                f"{('first', 'second')[number]} must be 'torch' for a compiled model, whose graphs hide products; got "
                f"{shown(way.name)}. Or pass the model that was compiled."
            )
    return any(compiled)


def _by_outputs(
    models: tuple[Any, Any], batches: tuple[Any, Any], ways: tuple[ModelArithmetic, ModelArithmetic], loss: Any,
    logits: Logits,
) -> ModelDivergence:  # fmt: skip
    """Compare the outputs of the modules of two models, at least one of them compiled, and return the report.

    `models`, `batches`, `ways`: the model, batch and arithmetic of the first and of the second run. `logits`: the part
    of the outputs that their KL divergence is computed from, as in `diff`. Raise a ValueError if `loss` is not None, or
    if no modules are in common.
    """
    from fpsim.analysis.models.compiled import compiled_modules, coverage_of_call
    from fpsim.analysis.models.coverage import NOTHING
    from fpsim.analysis.studies.differences.growth import kl_of
    from fpsim.analysis.studies.differences.outputs import ModuleOutput, first_difference
    from fpsim.analysis.studies.differences.report import no_difference, output_divergence
    from fpsim.analysis.studies.differences.running import outputs_of

    if loss is not None:
        raise ValueError("loss must be None where a model is compiled, whose graphs hide the backward pass.")
    seen: tuple[list[ModuleOutput], list[ModuleOutput]] = [], []
    results = [
        outputs_of(model, batch, way, of.append)
        for model, batch, way, of in zip(models, batches, ways, seen, strict=True)
    ]
    names = _names(*ways)
    if names == ("the first", "the second"):
        words = ["compiled" if compiled_modules(model) else "eager" for model in models]
        names = (words[0], words[1]) if words[0] != words[1] else names
    difference, kl = first_difference(*seen), kl_of(results[0], results[1], logits)
    covered = (
        coverage_of_call(model, batch) for model, batch in zip(models, batches, strict=True) if compiled_modules(model)
    )
    coverage = next(filter(None, covered), NOTHING)
    if not difference.growth:
        raise ValueError("models must have modules of the same names that return floats; these have none in common.")
    if difference.first is None or difference.second is None:
        return no_difference(difference.growth, names, kl, coverage)
    return output_divergence(difference, names, kl, coverage)


def _refuse_devices(torch: Any, model: Any, batch: Any) -> None:
    """Raise a ValueError unless all weights of a model, and the tensors of its batch, are in the CPU's memory.

    `torch`: the module. `batch`: a tensor, or a tuple, list or dictionary of these.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (tuple, list)) else [batch]
    named += [("batch", part) for part in parts if isinstance(part, torch.Tensor)]
    for name, tensor in named:
        if tensor.device.type != "cpu":
            raise ValueError(f"model and batch must be on the CPU; got {name!r} on {tensor.device}. Use .cpu().")


def _names(first: ModelArithmetic, second: ModelArithmetic) -> tuple[str, str]:
    """Return two different names for the first and second arithmetic, for sentences.

    Each arithmetic has its own name. A name that is empty or longer than 40 characters is replaced by "the first" or
    "the second"; equal names are both replaced.
    """
    if first.name == second.name:
        return "the first", "the second"
    names = [
        way.name if 0 < len(way.name) <= LONGEST else word
        for way, word in ((first, "the first"), (second, "the second"))
    ]
    return names[0], names[1]


class _ProductComparison:
    """The comparison of a run's products with those of an earlier run.

    Args:
      others: the earlier run's products in order; each is removed once it is compared.
      names: names of the two runs' arithmetics.
    Attributes:
      growth: the difference of every product that both runs computed in the same shape.
      saw_numbers: whether a result of the second run has a value other than NaN.
      ways: how the two runs added, as a sentence, with the number of equal products that were added so.
    """

    def __init__(self, others: deque[Product], names: tuple[str, str]) -> None:
        self._others, self.names = others, names
        self._first: Divergence | None = None
        self._after = ""
        self.saw_numbers = False  # equal bits of NaN alone say nothing
        self.ways: Counter[str] = Counter()
        self._calls: Counter[tuple[str, str]] = Counter()
        self.growth: list[LayerDifference] = []

    def see(self, mine: Product) -> None:
        """Compare the next product of the second run with the next product of the first, and store what differs.

        Until a difference is found, the names, operands, bias and result of the two are compared bit by bit, and the
        first difference is stored for `divergence`. Before and after it, the difference of the two results is appended
        to `growth` if they have the same shape. If the two differ in layer or product ("fprop", "dgrad" or "wgrad"), or
        the first run has no more products, no later products are compared.

        `mine`: the second run's product.
        """
        from fpsim.analysis.studies.differences.growth import layer_difference

        other = self._others.popleft() if self._others else None
        if self._first is None and (other is None or not equal(other, mine)):
            self._first = self._divergence(other, mine)
        elif other is not None and self._first is None:
            self.ways[adds_sentence(other, mine, self.names)] += 1
        self._after = f"{mine.layer}, {mine.product}"
        self.saw_numbers = self.saw_numbers or bool(np.any(mine.result == mine.result))
        if other is None or (other.layer, other.product) != (mine.layer, mine.product):
            self._others.clear()  # the runs went different ways, so that later products do not correspond
        elif other.result.shape == mine.result.shape:
            key = mine.layer, mine.product
            self.growth.append(layer_difference(*key, self._calls[key], other.result, mine.result))
            self._calls[key] += 1

    def _divergence(self, first: Product | None, second: Product | None) -> Divergence | None:
        """Return the first difference between a product of the first run and one of the second; None if they are equal.

        Either product is None if its run has ended.
        """
        one, two = ([] if product is None else [product] for product in (first, second))
        return first_divergence(one, two, self.names, step=None, after=self._after)

    def divergence(self) -> Divergence | None:
        """Return the first difference found, or None. Call this when the second run has ended."""
        if self._first is None and self._others:
            self._first = self._divergence(self._others[0], None)
        return self._first
