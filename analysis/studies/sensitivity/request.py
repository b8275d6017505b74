"""The request of a sensitivity: its layers, batches, recipes and products, validated before anything runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fpsim.analysis.models.recorder import check_model
from fpsim.analysis.studies.arguments import matches, nearest_names, patterns_of
from fpsim.analysis.studies.budget.notes import Notes
from fpsim.analysis.studies.sensitivity.shapes import adds_float32, multiplies, why_not
from fpsim.errors import require_word, shown
from fpsim.recipes.linear import row_name
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.recipes.look_up import find_linear, is_file
from fpsim.recipes.training_recipe import Recipe

LEFT_OUT = "Not measured,"  # the beginning of notes on layers that stay exact
MOST_BATCHES = 1000  # batches that an iterable may yield; more is a data set instead of a sample


def model_checked(model: Any) -> Any:
    """Return the model unchanged, if it is a torch.nn.Module whose products can be emulated.

    Raise a TypeError for another object, a ValueError if the model is compiled, or not in the CPU's memory.
    """
    if isinstance(model, torch.nn.Module):
        for name, parameter in itertools.chain(model.named_parameters(), model.named_buffers()):
            device = parameter.device.type
            if device not in ("cpu", "meta"):
                raise ValueError(
                    f"model must be on the CPU, which emulates its products; got {name!r} on {device}. Use model.cpu()."
                )
    check_model(torch, model, "measured")
    return model


def product_layers(model: Any, layers: str | Sequence[str]) -> dict[str, int]:
    """Return name -> number of weight elements, for the linear layers and convolutions that match shell patterns.

    The names are in the model's order; a layer with several names has its first. Raise a TypeError if `layers` are not
    texts, a ValueError if the model has no such layers, or if a pattern matches none of them.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.request import product_layers
      >>> product_layers(torch.nn.Sequential(torch.nn.Conv1d(2, 4, 3), torch.nn.ReLU(), torch.nn.Linear(4, 2)), "*")
      {'0': 24, '2': 8}
    """
    patterns = patterns_of(layers)
    names: dict[Any, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if multiplies(module):
            names.setdefault(module, []).append(name)
    if not names:
        left = [f" ({name or 'the model'}: {why})" for name, why in left_out_layers(model).items()]
        raise ValueError(
            "model must have a torch.nn.Linear, or a convolution, whose products follow recipes; got "
            f"{type(model).__name__} with none{''.join(left[:1])}."
        )
    known = [name for several in names.values() for name in several]
    for pattern in patterns:
        if not any(matches(name, pattern) for name in known):
            raise ValueError(
                f"layers must match a linear layer or convolution of the model; got {shown(pattern)}, which matches "
                f"none of {len(known)}. Near it: {nearest_names(pattern, known)}."
            )
    return {
        several[0]: module.weight.numel()
        for module, several in names.items()
        if any(matches(name, patterns) for name in several)
    }


def left_out_layers(model: Any, layers: str | Sequence[str] = "*") -> dict[str, str]:
    """Return name -> reason, for layers with weights that match shell patterns, but whose products stay exact.

    `model`: a torch.nn.Module. `layers`: one pattern or several.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.request import left_out_layers
      >>> left_out_layers(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LSTM(4, 2)))
      {'1': 'recurrent layers stay exact'}
    """
    named = ((name, why_not(module)) for name, module in model.named_modules())
    return {name: why for name, why in named if why and matches(name, layers)}


def left_out_notes(model: Any, layers: str | Sequence[str]) -> tuple[str, ...]:
    """Return a sentence for each reason why layers whose names match the patterns `layers` stay exact.

    A further sentence names fp.torch.QuantLinears without casts. Their products in low precision are compared with
    torch's float32 products, not with the sums that the model computes, which add float32 terms one after another.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.request import left_out_notes
      >>> left_out_notes(torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 2)), "*")
      ('Not measured, since an embedding looks rows up and multiplies nothing: 0.',)
    """
    notes = Notes()
    for name, why in left_out_layers(model, layers).items():
        notes.add(f"{LEFT_OUT} since {why}", name or "the model")
    for name, module in model.named_modules():
        if adds_float32(module) and matches(name, layers):
            notes.add("Measured against torch's float32 products, which the model adds by chains of its own", name)
    return notes.sentences


def batches_listed(batches: Any) -> list[Any]:
    """Return the batches as a list, since each batch runs many times.

    `batches`: an iterable of 1 to 1,000 batches, not a single tensor, text or mapping.

    Raises:
      TypeError: batches is not an iterable of batches.
      ValueError: there is no batch, or there are more than 1,000.
    """
    if isinstance(batches, (str, bytes, Mapping, torch.Tensor)) or not isinstance(batches, Iterable):
        raise TypeError(
            f"batches must be a list of inputs of the model, or of the loss; got {shown(batches)}. Pass one as [batch]."
        )
    sample = list(itertools.islice(batches, MOST_BATCHES + 1))
    if not sample:
        raise ValueError("batches must hold one batch or more; got none. An iterator yields them once: pass a list.")
    if len(sample) > MOST_BATCHES:
        raise ValueError(
            f"batches must be a sample of at most {MOST_BATCHES:,}, each of which runs many times; got more. Pass "
            "list(itertools.islice(loader, 8)), for example."
        )
    return sample


def recipes_named(recipes: Any) -> dict[str, LinearRecipe]:
    """Return name -> recipe of linear layers, for the recipes that the user names.

    Args:
      recipes: one or several recipes of fp.torch or fp.train, or their names; or a dictionary of the user's own names
        to these.
    Raises:
      TypeError: recipes has another type.
      ValueError: there is no recipe, one has no name, two have the same name, or one computes scales from earlier
        steps.
    """
    if isinstance(recipes, (str, LinearRecipe, Recipe)):
        recipes = [recipes]
    if isinstance(recipes, Mapping):
        pairs = [(name, find_linear(spec)) for name, spec in recipes.items()]
    elif isinstance(recipes, Iterable):
        pairs = []
        for spec in recipes:
            if isinstance(spec, str):
                name = Path(spec).name if is_file(spec) else row_name(spec)
            else:
                name = getattr(spec, "name", "")
            pairs.append((name, find_linear(spec)))
    else:
        raise TypeError(f"recipes must be names, recipes or a dictionary of these; got {shown(recipes)}.")
    if not pairs:
        raise ValueError("recipes must be one recipe or several; got none. Pass ['DEEPSEEK_V3'], for example.")
    names = [name for name, _ in pairs]
    for name, linear in pairs:
        if not isinstance(name, str) or not name or names.count(name) > 1:
            raise ValueError(
                f"recipes must have different names; got {shown(names)}. Pass a dictionary, {{'mine': recipe}}."
            )
        if linear.delayed is not None:
            raise ValueError(
                f"recipes must have scales of the batch itself; got {name!r}, whose scales come from earlier steps. "
                "Use one with current scales, such as 'TE_HYBRID'."
            )
    return dict(pairs)


def products_named(products: Any, has_loss: bool = True) -> tuple[str, ...]:
    """Return the named products in the order "fprop", "dgrad", "wgrad"; without a loss (`has_loss` False) only "fprop".

    `products`: one name, or a sequence of several.

    Raises:
      TypeError, ValueError: a product is unknown, there is none, or "fprop" is missing without a loss.
    """
    names = (products,) if isinstance(products, str) else products
    if not isinstance(names, Sequence) or not names:
        raise TypeError(f"products must be one or several of {', '.join(PRODUCTS)}; got {shown(products)}.")
    for name in names:
        require_word("products", name, PRODUCTS)
    if not has_loss and "fprop" not in names:
        raise ValueError(f"products must have 'fprop' without a loss, as others need gradients; got {shown(products)}.")
    return tuple(product for product in PRODUCTS[: None if has_loss else 1] if product in names)
