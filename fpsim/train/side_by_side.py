"""Lockstep: training of one recipe on two backends or chips, or of two recipes, step by step until a bit differs."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Unpack

from fpsim.deprecation import renamed_arguments
from fpsim.divergence.divergence import Divergence, equal, first_divergence, weight_divergence
from fpsim.divergence.product import Product
from fpsim.errors import shown
from fpsim.formats.keywords import check_keywords
from fpsim.lazy import public
from fpsim.recipes.hardware import recipe_on_chip as recipe_on_chip
from fpsim.recipes.linear import FP32
from fpsim.recipes.look_up import find as find_recipe
from fpsim.recipes.training_recipe import Recipe
from fpsim.torch.models import quantize_linears
from fpsim.torch.operators import array_of, torch
from fpsim.torch.plan import BACKENDS, adds_of
from fpsim.torch.products import resolved
from fpsim.torch.trace import ProductCall, watching
from fpsim.train.loop import Trainer
from fpsim.train.monitors import OPERANDS
from fpsim.train.runs import require_progress
from fpsim.train.settings import MODEL_DEFAULTS, ModelKeywords, Settings, settings_of, with_model_keywords

PLACES = {"gpu": "on the GPU", "hardware": "by the tensor cores of this machine"}


class RunSide(NamedTuple):
    """One of two runs that are compared step by step.

    Attributes:
      name: the name of the run in the explanation.
      trainer: the run's trainer, between two steps.
      place: the device that multiplies, as text; "" for this processor.
      remarks: sentences on what was left out of the recipe to run it on the chip.
    """

    name: str
    trainer: Trainer
    place: str = ""
    remarks: tuple[str, ...] = ()


@renamed_arguments(accumulate="micro_batches")
@with_model_keywords
def lockstep(
    recipe: Recipe | str | tuple[Recipe | str, Recipe | str],
    backends: Sequence[str] | str = "emulated",
    *,
    steps: int = 10,
    seed: int = 0,
    progress: Callable[[float, str], None] | None = None,
    **keywords: Unpack[ModelKeywords],
) -> Divergence | None:
    """Train two runs step by step until a bit differs, and return the place and cause of the difference.

    After each step all products of all linear layers are compared, in the order in which they ran: operands before and
    after their casts, and results. Then the weights are compared. Everything else, such as norms and attention, is
    compared through the operands of the next product. Memory must hold all products of one step of the first run.

    Args:
      recipe: as for `fp.train.run`, or a pair for the two runs.
      backends: two names, or one for both: "emulated", "float32", "gpu", "hardware" as for `fp.train.run`, or a chip
        such as "H100", "B200", "MI300X", "ampere", "sm_90" or "H100 cuBLAS", whose matrix units are emulated. If the
        recipe names a unit of another chip, this chip's unit for the same operands replaces it. The schedule is that of
        the named library ("cuBLAS"), else the recipe's, or none if the recipe's belongs to another chip.
      steps: the largest number of steps of the optimizer to take.
      seed, model, text, batch, context, width, micro_batches: as for `fp.train.run`, equal for both runs.
      progress: called with the finished share of the work, 0 to 1, and a text.

    Returns:
      A Divergence; None if all bits of all steps are equal, or if a run stopped before any bit differed.

    Raises:
      ValueError: an unknown recipe, backend or chip; a chip that has no unit for the recipe's operands; a chip for a
        recipe without matrix units; or as for `fp.train.run`.
      fpsim.gpu.GpuError: a backend is "gpu" or "hardware", and there is no GPU.

    Example:
      >>> divergence = fp.train.lockstep("FP8_RAW", ("H100", "B200"), model="perceptron")
      >>> divergence.step, divergence.layer, divergence.product, divergence.cause
      (0, 'first', 'fprop', 'arithmetic')
      >>> fp.train.lockstep("FP8_RAW", ("H100", "emulated"), model="perceptron", steps=2) is None
      True
    """
    check_keywords(lockstep, keywords, MODEL_DEFAULTS)
    require_progress(progress)
    recipes = [find_recipe(spec) for spec in _pair("recipe", recipe)]
    words = _pair("backends", backends)
    names = _names(words, recipes)
    settings = settings_of(steps=steps, seed=seed, measure=0, **keywords)
    first, second = (side(*parts, settings) for parts in zip(names, recipes, words, strict=True))
    for step in range(steps):
        if first.trainer.stopped or second.trainer.stopped:
            return None
        divergence = compared_step(first, second, names, step)
        if divergence is not None:
            remarks = "\n".join((*first.remarks, *second.remarks))
            return dataclasses.replace(divergence, explanation=f"{divergence.explanation}\n{remarks}".strip())
        if progress is not None:
            progress((step + 1) / steps, f"step {step + 1} of {steps}: equal")
    return None


def _pair(name: str, value: Any) -> list[Any]:
    """Return [first, second] for a pair, or [value, value] for a single value; any list or tuple counts as a pair.

    name: the argument's name in the error for a list of another length.
    """
    if not isinstance(value, (list, tuple)):
        return [value, value]
    if len(value) != 2:
        raise ValueError(f"{name} must be two, or one for both runs; got {shown(value)}.")
    return list(value)


def _names(words: list[Any], recipes: list[Recipe]) -> tuple[str, str]:
    """Return two names that distinguish the runs: their backends, their recipes, or "the first" and "the second".

    words: the backends or chips.
    """
    if words[0] != words[1]:
        return str(words[0]), str(words[1])
    if recipes[0].name != recipes[1].name:
        return recipes[0].name or "the first", recipes[1].name or "the second"
    return "the first", "the second"


def side(name: str, recipe: Recipe, word: str, settings: Settings, *, watched: bool = True) -> RunSide:
    """Return a run of a recipe, before its first step, for a comparison with another run.

    name: the run's name in explanations. word: the name of its backend or chip. settings: its other settings. watched:
    True to make all linear layers, those in float32 too, pass their products to the functions of
    `fpsim.torch.trace.watching`.

    Raises:
      ValueError: an unknown chip, or one that cannot compute the recipe's products.
      fpsim.gpu.GpuError: the backend needs a GPU, and there is none.
    """
    place = ""
    remarks: tuple[str, ...] = ()
    if word in BACKENDS:
        if word in PLACES:
            public("fpsim.gpu.device.device").require_device()  # before the other run has trained a step
        settings, place = dataclasses.replace(settings, backend=word), PLACES.get(word, "")
    else:
        recipe, remarks = recipe_on_chip(recipe, word, BACKENDS)
    trainer = Trainer(recipe, settings)
    return RunSide(name, _watched(trainer) if watched else trainer, place, remarks)


def _watched(trainer: Trainer) -> Trainer:
    """Make every linear layer of a trainer's model pass its products to watching functions; return the trainer.

    These are the functions passed to `fpsim.torch.trace.watching`. Layers that torch would compute become float32
    `QuantLinear`s, in place.
    """
    if any(type(module) is torch.nn.Linear for module in trainer.model.modules()):
        quantize_linears(trainer.model, FP32)
    return trainer


# ---- a step


def compared_step(first: RunSide, second: RunSide, names: tuple[str, str], step: int) -> Divergence | None:
    """Train both runs for a step, and return their first difference in products or weights; None if there is none.

    first, second: the runs. names: the names of both runs in the text that explains the difference. step: the number
    of the step.
    """
    seen: deque[Product] = deque()
    with watching(lambda call: seen.append(_kept(as_product(call, first.place)))):
        first.trainer.step()
    comparison = _StepComparison(seen, second.place, f"the weights after step {step - 1}" if step else "")
    with watching(comparison.see):
        second.trainer.step()
    divergence = comparison.divergence(names, step)
    if divergence is not None:
        return divergence
    for name, x in first.trainer.weights.items():
        y = second.trainer.weights[name]
        divergence = weight_divergence(name, array_of(x), array_of(y), names, step=step)
        if divergence is not None:
            return divergence
    return None


class _StepComparison:
    """A watcher that compares one run's products with the recorded products of the other run, one by one.

    Args:
      others: the recorded products, in the order in which they ran; each is removed once it is compared.
      place: the device that multiplies in the watched run, "" for this processor.
      after: what is known to be equal before the first product, such as "the weights after step 3"; "" for nothing.
    """

    def __init__(self, others: deque[Product], place: str, after: str) -> None:
        self._others, self._place, self._after = others, place, after
        self._pair: tuple[Product | None, Product | None] | None = None

    def see(self, call: ProductCall) -> None:
        """Compare a matrix product with the next recorded one of the other run, unless a difference was found before.

        call: the layer, the product, its operands and its result.
        """
        if self._pair is not None:
            return
        mine, other = as_product(call, self._place), self._others.popleft() if self._others else None
        if other is None or not equal(other, mine):
            self._pair = other, _kept(mine)
        else:
            self._after = f"{mine.layer}, {mine.product}"

    def divergence(self, names: tuple[str, str], step: int) -> Divergence | None:
        """Return the first difference between the two runs' products of a finished step; None if there is none.

        names: the names of the two runs. step: the number of the step. The explanation of the difference states both.
        """
        if self._pair is None and self._others:
            self._pair = self._others[0], None
        if self._pair is None:
            return None
        first, second = ([] if product is None else [product] for product in self._pair)
        return first_divergence(first, second, names, step=step, after=self._after)


def as_product(call: ProductCall, place: str = "") -> Product:
    """Return a watched matrix product as a record for `fpsim.divergence`, without copying its arrays.

    If a library chooses its kernel by shape, the record has the unit and schedule of that kernel. If fpsim knows no
    rule for the shape, the record names no unit, accumulator or schedule: torch multiplied, in an unknown order.

    call: the layer, the product, its operands and its result. place: the device that computed it, "" for this
    processor.
    """
    operands, how = OPERANDS[call.product], call.how
    try:
        how = resolved(how, call.a, call.b, call.bias is not None)
    except ValueError:
        how = how._replace(unit="", accumulator="", schedule="", promote=0)
    return Product(
        call.layer, call.product, call.a, call.b, adds_of(how), call.result, call.bias, (operands[0], operands[1]),
        place,
    )  # fmt: skip


def _kept(product: Product) -> Product:
    """Return a copy of a recorded product, with copies of its arrays.

    Operands and bias may share memory with the weights, which the optimizer changes in place in the same step.
    """

    def copied(operand: Any) -> Any:
        source = operand.source.copy()
        encoded = source if operand.encoded is operand.source else operand.encoded  # the same array without a cast
        return operand._replace(source=source, encoded=encoded)

    bias = None if product.bias is None else product.bias.copy()
    return product._replace(a=copied(product.a), b=copied(product.b), result=product.result.copy(), bias=bias)
