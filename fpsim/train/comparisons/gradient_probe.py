"""The error of a batch's gradients by a recipe, compared with float32's, at weights trained in float32.

The loss of a small model hardly distinguishes one good recipe from another. Its gradients do.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fpsim.arithmetic.elementary.functions import exp2
from fpsim.arrays import Array
from fpsim.deprecation import warn_renamed
from fpsim.display.optional import frame
from fpsim.errors import require_integer, require_word, shown
from fpsim.recipes.linear import linear_recipe
from fpsim.recipes.linear_recipe import PRODUCTS
from fpsim.recipes.look_up import find as find_recipe
from fpsim.recipes.parts import Override
from fpsim.recipes.training import FP32
from fpsim.recipes.training_recipe import Recipe
from fpsim.torch.operators import Tensor, array_of, tensor_of, torch
from fpsim.train.comparisons.answer import interval
from fpsim.train.layers import layers_of
from fpsim.train.loop import Trainer
from fpsim.train.model import normal_numbers
from fpsim.train.optimizer import AdamW
from fpsim.train.runs import Progress, require_progress
from fpsim.train.settings import Settings

SEQUENCES, CONTEXT = 16, 64  # 1024 tokens
WARM = 16  # batches before the measured one, from which delayed scales follow: the history of FP8_DELAYED
BACKOFFS = 64  # overflows in a row after which a loss scale will not recover
ALL = "all"
OUTLIER = 256.0  # times as large as other channels
EVERY = 32  # one channel in so many is an outlier
SPREAD = 6.0  # standard deviation of log2 of the tokens' weights
WEIGHTED = 1 << 32  # number of their random draws from a seed; models draw number 0, 1, ... for their layers
ALIGNED = 4.0  # gate weights relative to those of the other half


class Batch(NamedTuple):
    """A batch of token sequences, with a weight for the loss of each token.

    Attributes:
      inputs, targets: tokens, and for each the next one, int64 (sequences, context).
      weights: factor of each token's loss, float32 (sequences * context,); None for equal weights.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor | None


def gradient_probe(
    recipes: Sequence[Recipe | str], *, steps: int = 120, scenario: str = "plain", seed: int = 0, seeds: int = 1,
    text: str | os.PathLike[str] | None = None, backend: str = "emulated", progress: Progress | None = None,
) -> Any:  # fmt: skip
    """Measure the error of the weight gradients that recipes compute for one batch, at weights trained in float32.

    The gradients are those of the linear layers' weights, for the mean loss of the next batch, 1024 tokens, before
    `Recipe.gradients` and `reduction` round them. They are compared with the gradients of the recipe FP32 at the same
    weights. Every operation has the same bits on every machine, also in layers that `Recipe.keep` names. A loss scale
    is lowered until nothing overflows, as in training. Delayed scales follow from the last 16 training batches.
    Overrides are those of the first step, and a controller's levels are all 0.

    Args:
      recipes: a recipe or several, as for `fpsim.train.run`.
      steps: the number of training steps in float32 before the measurement; 0 for the initial weights.
      scenario: "plain"; "loss_2^-12" or "loss_2^12": the loss is multiplied by that number; "outliers": one channel in
        32 of each norm's result is multiplied by 256, and its weights in the next layer are divided by 256, so the
        function is the same; "token_weights": each token's loss is multiplied by 2**(6 N), N nearly standard normal;
        "aligned_gates": the gate weights of each SwiGLU are 4 times those of its other half.
      seed: the first seed of the weights, batches and random draws.
      seeds: the number of seeds, counted up from `seed`. With 2 or more, errors and cosines are means over seeds, and
        the error has the 95 % interval of its mean by Student's t.
      text: as for `fpsim.train.run`.
      backend: the backend that multiplies, as for `fpsim.train.run`.
      progress: called with the finished share of the work, 0 to 1, and a text.

    Returns:
      A pandas frame with, for each recipe, a row for each linear layer and a row "all" for all layers except the head.
      Its columns are recipe, scenario, layer, relative_error |g - g32| / |g32|, relative_error_low and
      relative_error_high (NaN for one seed), cosine of the angle between g and g32, and seeds. Error and cosine are NaN
      if a gradient has Inf or NaN in any seed; the cosine is NaN too if a gradient is 0.

    Raises:
      ValueError: an unknown recipe, scenario or backend; a K that a recipe's blocks do not divide; no seeds.
      TypeError: steps, seed or seeds are not integers.

    Example:
      >>> errors = fp.train.gradient_probe(["BF16", "DEEPSEEK_V3"], steps=0)
      >>> errors[errors.layer == "all"].relative_error.gt(1e-3).tolist()
      [True, True]
    """
    require_progress(progress)
    require_integer("seeds", seeds, 1)
    require_integer("seed", seed, 0)
    rows = rows_over_seeds(
        recipes, range(seed, seed + seeds), steps=steps, scenario=scenario, text=text, backend=backend,
        progress=progress,
    )  # fmt: skip
    return frame(rows)


def probe(*args: Any, **keywords: Any) -> Any:
    """Call `gradient_probe` under its old name, with a deprecation warning."""
    warn_renamed("fp.train.probe", "fp.train.gradient_probe")
    return gradient_probe(*args, **keywords)


def rows_over_seeds(
    recipes: Any, seeds: range, *, steps: int, scenario: str = "plain", text: Any = None, backend: str = "emulated",
    progress: Progress | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the rows of `gradient_probe` as dicts: means over seeds, with 95 % intervals of the errors.

    The keys of a dict are the columns of the frame that `gradient_probe` returns. seeds: the seeds, such as range(3).
    All other arguments are those of `gradient_probe`.
    """
    samples = []
    for index, seed in enumerate(seeds):

        def report(share: float, activity: str, index: int = index, seed: int = seed) -> None:
            if progress is not None:
                progress((index + share) / len(seeds), activity if len(seeds) == 1 else f"seed {seed}: {activity}")

        samples.append(probe_rows(recipes, steps, scenario, seed, text, backend, report))
    means: list[dict[str, Any]] = []
    for rows in zip(*samples, strict=True):  # those of one recipe and layer, one for each seed
        error = interval([row["relative_error"] for row in rows])
        means.append({
            **{name: rows[0][name] for name in ("recipe", "scenario", "layer")}, "relative_error": error.mean,
            "relative_error_low": error.low, "relative_error_high": error.high,
            "cosine": interval([row["cosine"] for row in rows]).mean, "seeds": len(rows),
        })  # fmt: skip
    return means


def probe_rows(
    recipes: Any, steps: int, scenario: str, seed: int, text: Any = None, backend: str = "emulated",
    progress: Progress = lambda *_: None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Return a dict for each recipe and layer, measured with one seed.

    Its keys are recipe, scenario, layer, relative_error and cosine, as in the frame that `gradient_probe` returns. All
    arguments are those of `gradient_probe`.
    """
    chosen = recipes_of(recipes)
    require_integer("steps", steps, 0)
    require_word("scenario", scenario, tuple(SCENARIOS))
    case, rows, wanted = SCENARIOS[scenario], [], {}
    for i, recipe in enumerate(chosen):
        progress(i / len(chosen), f"gradients of {recipe.name}")
        plain = FP32.replace(parametrisation=recipe.parametrisation)
        at = Settings(steps=max(steps, 1), seed=seed, text=text, backend=backend, batch=SEQUENCES, context=CONTEXT)
        if plain not in wanted:
            wanted[plain] = _gradients(plain, at, steps, case)
        got = _gradients(recipe, at, steps, case)
        for layer, error, cosine in compared(got, wanted[plain]):
            row = {"recipe": recipe.name, "scenario": scenario, "layer": layer}
            rows.append({**row, "relative_error": error, "cosine": cosine})
    progress(1.0, "finished")
    return rows


def recipes_of(recipes: Any) -> list[Recipe]:
    """Return a list of `Recipe` from one recipe (a Recipe or the name of one) or an iterable of several.

    Raises:
      ValueError: there is no recipe, one has no name, or two have the same name.
    """
    several = isinstance(recipes, Iterable) and not isinstance(recipes, (str, Recipe))
    chosen = [find_recipe(spec) for spec in (recipes if several else [recipes])]
    if not chosen:
        raise ValueError("recipes must be one recipe or several; got none. Pass 'DEEPSEEK_V3', say.")
    names = [spec.name for spec in chosen]
    for name in names:
        if not name or names.count(name) > 1:
            raise ValueError(
                f"recipes must have names of their own; got {shown(names)}. Name one by recipe.replace(name='mine')."
            )
    return chosen


def with_one_product(recipe: Recipe | str, linear: Any = "BF16") -> list[Recipe]:
    """Return three variants of a recipe, in each of which one product (fprop, dgrad or wgrad) follows `linear`.

    Args:
      recipe: as for `fpsim.train.run`.
      linear: the recipe of that product in all linear layers, a `fpsim.torch.LinearRecipe` or the name of one.

    Returns:
      The variants for fprop, dgrad and wgrad (forward product, gradient of the input, gradient of the weight), in this
      order. Layers that `Recipe.keep` names stay in float32.

    Example:
      >>> from fpsim.train.comparisons.gradient_probe import with_one_product
      >>> [recipe.name for recipe in with_one_product("NVFP4")]
      ['NVFP4, fprop in BF16', 'NVFP4, dgrad in BF16', 'NVFP4, wgrad in BF16']
    """
    base, exchanged = find_recipe(recipe), linear_recipe(linear)
    kept = tuple(Override(pattern, linear=FP32.linear) for pattern in base.keep)
    return [
        base.replace(
            name=f"{base.name}, {product} in {exchanged.name or 'another recipe'}",
            overrides=(*base.overrides, Override(products=(product,), linear=exchanged), *kept),
        )
        for product in PRODUCTS
    ]


def compared(got: dict[str, Array], wanted: dict[str, Array]) -> list[tuple[str, float, float]]:
    """Return (layer, relative error, cosine) for each layer's gradient, and for "all", all layers except "head".

    got, wanted: {layer: gradient}; the error is relative to `wanted`. Error and cosine are NaN where undefined.

    Example:
      >>> from fpsim.train.comparisons.gradient_probe import compared
      >>> compared({"up": np.float32([3.0, 0.0])}, {"up": np.float32([3.0, 4.0])})
      [('up', 0.8, 0.6), ('all', 0.8, 0.6)]
    """
    body = [name for name in wanted if name != "head"]
    groups = [(name, [name]) for name in wanted] + [(ALL, body)]
    return [(name, *_figures(_joined(got, members), _joined(wanted, members))) for name, members in groups if members]


def _joined(gradients: dict[str, Array], names: list[str]) -> Array:
    """Return the gradients of the named layers as one flat float64 array."""
    return np.concatenate([gradients[name].astype(np.float64).ravel() for name in names])


def _figures(got: Array, wanted: Array) -> tuple[float, float]:
    """Return (relative error, cosine) of a gradient compared with the wanted one, two flat float64 arrays.

    Both are NaN if `got` holds Inf or NaN, or `wanted` has norm 0; the cosine also if `got` has norm 0.
    """
    if not np.isfinite(got).all():
        return math.nan, math.nan
    size, got_size = float(np.linalg.norm(wanted)), float(np.linalg.norm(got))
    error = float(np.linalg.norm(got - wanted)) / size if size else math.nan
    return error, float(got @ wanted) / (size * got_size) if size and got_size else math.nan


# ---- one recipe


@lru_cache(maxsize=4)
def _trained(plain: Recipe, steps: int, seed: int, text: Any, digest: str = "") -> dict[str, Tensor]:
    """Train for `steps` steps by the float32 recipe `plain`, and return {name: copy of the weight}; cached.

    seed: the seed of the run. text: path of the training text, or None for the default text. digest: SHA-256 of the
    text, so that a changed file is trained on anew.
    """
    trainer = Trainer(plain, Settings(steps=max(steps, 1), seed=seed, text=text, measure=0))
    for _ in range(steps):
        trainer.step()
    return {name: weight.detach().clone() for name, weight in trainer.weights.items()}


def _gradients(recipe: Recipe, settings: Settings, steps: int, case: Scenario) -> dict[str, Array]:
    """Return {layer: float32 weight gradient} of all linear layers for one batch, computed by `recipe`.

    The weights are those after `steps` training steps in float32, and the batch is that of the next step. Gradients are
    divided by the loss scale, and by the loss factors of the recipe and of the scenario.

    settings: the settings of the run, among them the seed and text. case: the scenario, which changes weights and loss.
    """
    plain = FP32.replace(parametrisation=recipe.parametrisation)
    trainer = Trainer(recipe, settings)
    weights = _trained(plain, steps, settings.seed, settings.text, trainer.data.digest)
    trainer.model.load_state_dict(weights, strict=False)
    if case.change is not None:
        case.change(trainer.model)
    AdamW({name: weight.detach() for name, weight in trainer.weights.items()}, recipe.optimizer)  # rounds them
    trainer.follow()  # the recipes of the first step
    if any(layer.scales is not None for layer in trainer.layers.values()):
        for before in range(max(steps - WARM, 0), steps):
            _backward(trainer, _batch(trainer, before, case), case)
    batch = _batch(trainer, steps, case)
    layers = layers_of(trainer.model)
    for _ in range(BACKOFFS):
        _backward(trainer, batch, case)
        gradients = {name: layer.weight.grad for name, layer in layers.items()}
        scale = trainer.scaler.scale
        trainer.scaler.unscale(gradients)
        skipped = trainer.scaler.skipped
        trainer.scaler.update()
        if not skipped or trainer.scaler.scale == scale:
            break
    factor = 1 / (recipe.loss_factor * case.loss_factor)
    return {name: array_of(gradient) * np.float32(factor) for name, gradient in gradients.items()}


def _batch(trainer: Trainer, step: int, case: Scenario) -> Batch:
    """Return the batch of a step: 16 sequences of 64 tokens.

    case: the scenario; if `case.uneven`, the batch has a random weight for each token's loss.
    """
    inputs, targets = trainer.data.batch(trainer.settings.seed, step, 0, batch=SEQUENCES, context=CONTEXT)
    weights = token_weights(SEQUENCES * CONTEXT, trainer.settings.seed) if case.uneven else None
    return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), weights)


def _backward(trainer: Trainer, batch: Batch, case: Scenario) -> None:
    """Run the forward and backward pass of a batch, which sets the weights' `.grad` to their gradients.

    The mean loss is multiplied by the loss scale and by the loss factors of the recipe and of the scenario `case`.
    """
    model = trainer.model
    model.train()
    model.zero_grad(set_to_none=True)
    for layer in trainer.layers.values():
        if layer.steps is not None:
            layer.steps.fill_(0)
    logits = model(batch.inputs)
    logits = logits.reshape(-1, logits.shape[-1])  # (tokens, vocabulary)
    if batch.weights is not None:
        weights = batch.weights[:, None]
        logits.register_hook(lambda gradient: gradient * weights)
    loss = model.operations.cross_entropy(logits, batch.targets.reshape(-1))
    scaled: Any = loss * (trainer.recipe.loss_factor * case.loss_factor * trainer.scaler.scale)
    scaled.backward()


# ---- scenarios


class Scenario(NamedTuple):
    """A change to a model and its batch, the same for float32 and for every recipe.

    Attributes:
      description: the change as text.
      loss_factor: factor that multiplies the loss; gradients are divided by it.
      change: function that changes a model's weights in place; None for no change.
      uneven: whether the losses of tokens are weighted by `token_weights`.
    """

    description: str
    loss_factor: float = 1.0
    change: Callable[[Any], None] | None = None
    uneven: bool = False


@torch.no_grad()
def outlier_channels(model: Any) -> None:
    """Multiply one channel in 32 of each norm's result by 256; divide the next layer's weights for it by 256.

    The model is a `Transformer`, whose weights change in place. All factors are powers of two, so the model computes
    the same function, bit for bit in float32 except for underflow.

    Example:
      >>> from fpsim.train.comparisons.gradient_probe import outlier_channels
      >>> from fpsim.train.model import Config, Transformer
      >>> model = Transformer(Config(vocabulary=96), seed=0)
      >>> outlier_channels(model)
      >>> model.blocks[0].norm1.weight[:2].tolist()
      [256.0, 1.0]
    """
    for block in model.blocks:
        for norm, layer in ((block.norm1, block.attn.qkv), (block.norm2, block.mlp.gate_up)):
            norm.weight[::EVERY] *= OUTLIER
            getattr(layer, "linear", layer).weight[:, ::EVERY] /= OUTLIER


@torch.no_grad()
def aligned_gates(model: Any) -> None:
    """Set the gate weights of each SwiGLU in a `Transformer` to 4 times those of its other half, in place.

    Then silu(gate) * up grows as a square. Source: Fishman et al., arXiv:2409.12517, who find that such
    weights arise in long training runs, and make training in FP8 diverge.
    """
    for block in model.blocks:
        weight = getattr(block.mlp.gate_up, "linear", block.mlp.gate_up).weight
        half = weight.shape[0] // 2
        weight[:half] = ALIGNED * weight[half:]


def token_weights(tokens: int, seed: int) -> Tensor:
    """Return random weights for the losses of tokens, float32 (tokens,): 2**(6 N) with N as of `normal_numbers`.

    They depend only on `tokens` and `seed`, and differ as much as the gradients of rare and frequent tokens do.
    """
    exponents = SPREAD * normal_numbers(seed, WEIGHTED, (tokens,))
    return tensor_of(np.asarray(exp2(exponents.astype(np.float32))))


SCENARIOS = {
    "plain": Scenario("the batch as it is"),
    "loss_2^-12": Scenario("the loss multiplied by 2**-12, gradients divided by it", loss_factor=2.0**-12),
    "loss_2^12": Scenario("the loss multiplied by 2**12, gradients divided by it", loss_factor=2.0**12),
    "outliers": Scenario("one channel in 32 is 256 times as large", change=outlier_channels),
    "token_weights": Scenario("tokens weigh 2**(6 N), N normal", uneven=True),
    "aligned_gates": Scenario("both halves of each SwiGLU are aligned, one 4 times as large", change=aligned_gates),
}
