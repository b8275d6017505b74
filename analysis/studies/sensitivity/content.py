"""Digests of models, batches and losses; stored measurements are reused only if the digests are equal."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

from fpsim.analysis.models.losses import Criterion
from fpsim.analysis.studies.identity import digest, plain, source_of, words, words_or_class
from fpsim.recipes.linear_recipe import LinearRecipe

OF_EVERY_MODULE = frozenset(vars(torch.nn.Module()))
SETTINGS = (bool, int, float, str, tuple, list, FunctionType, BuiltinFunctionType, functools.partial)


def content_of(*values: Any) -> str:
    """Return a digest, 32 hexadecimal digits, of tensors, arrays, numbers, texts and containers of these.

    Any other object counts by its class and its attributes.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.content import content_of
      >>> x = {"x": torch.tensor([1.0, 2.0])}
      >>> content_of(x) == content_of({"x": torch.tensor([1.0, 2.0])}), content_of(x) == content_of({"x": [1.0, 2.0]})
      (True, False)
    """
    sha = hashlib.sha256()
    for value in values:
        _add(sha, value, frozenset())
    return sha.hexdigest()[:32]


def model_content(model: Any) -> str:
    """Return a digest, 32 hexadecimal digits, of a torch.nn.Module.

    The digest covers the classes, modes (train or eval) and settings of all modules (those that torch prints, and
    attributes that are numbers, texts, functions, or tuples and lists of these), the code of the methods of classes
    outside torch, and the values of parameters and buffers.

    Example:
      >>> import torch
      >>> from fpsim.analysis.studies.sensitivity.content import model_content
      >>> model = torch.nn.Linear(2, 3)
      >>> before = model_content(model)
      >>> model.weight.data[0, 0] += 1
      >>> model_content(model) == before
      False
    """
    code: dict[type, str] = {}
    modules = [
        (name, type(m).__qualname__, m.training, m.extra_repr(), _settings(m), _code(type(m), code))
        for name, m in model.named_modules()
    ]
    held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return content_of(modules, [(name, x.requires_grad, x) for name, x in held])


def _settings(module: Any) -> list[tuple[str, str]]:
    """Return (name, text) of each attribute of a torch.nn.Module that is a setting, except those of every module.

    Settings are numbers, texts, functions, and tuples and lists. The text identifies the value; for a function, it is a
    digest of its code.
    """
    settings = []
    for name, value in vars(module).items():
        if name not in OF_EVERY_MODULE and isinstance(plain(value), SETTINGS):
            settings.append((name, source_of(value) if callable(value) else words_or_class(value)))
    return sorted(settings)


def _code(kind: type, known: dict[type, str]) -> str:
    """Return a digest of the source code of the methods of a module class, and of its base classes outside torch.

    `known`: base class -> digest of its own methods, which is added to.
    """
    bases = [base for base in kind.__mro__ if base.__module__.partition(".")[0] not in ("torch", "builtins")]
    for base in bases:
        if base not in known:
            methods = (getattr(x, "__func__", getattr(x, "fget", x)) for x in vars(base).values())
            known[base] = digest(*(source_of(method) for method in methods if isinstance(method, FunctionType)))
    return digest(*(known[base] for base in bases))


def run_content(model: Any, batches: list[Any], loss: Any, seed: int, *more: str) -> str:
    """Return a digest of all that a run depends on: the model, batches, loss and seed, and the texts `more`.

    The loss, a function of (model, batch), a Criterion or None, counts by its code and, for a module, its settings.
    """
    judge = loss.criterion if isinstance(loss, Criterion) else loss
    if judge is None:
        by_code = "outputs alone"
    else:
        by_code = model_content(judge) if isinstance(judge, torch.nn.Module) else source_of(judge)
    return digest(model_content(model), content_of(batches), by_code, str(seed), *more)


@functools.lru_cache(maxsize=256)
def recipe_words(recipe: LinearRecipe) -> str:
    """Return a text that identifies a recipe by its contents; the recipe's name does not count."""
    return words(recipe.replace(name=""))


def _add(sha: Any, value: Any, above: frozenset[int]) -> None:
    """Add a value, with its type, to a hash. `sha`: the hashlib object, which is updated.

    `value`: a tensor, array, bytes, number, text, container or other object. `above`: ids of the containers that
    contain it, so that a container that contains itself ends the recursion.
    """
    if id(value) in above:  # an object that holds itself
        sha.update(b"again;")
        return
    if isinstance(value, torch.Tensor):
        _add_tensor(sha, value.detach())
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
        sha.update(f"array {value.dtype.str} {value.shape};".encode())
        sha.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, (bytes, bytearray)):
        sha.update(f"bytes {len(value)};".encode() + bytes(value))
    else:
        _add_parts(sha, value, above | {id(value)})


def _add_parts(sha: Any, value: Any, above: frozenset[int]) -> None:
    """Add the items of a container, the attributes of another object, or else a value as text, to a hash.

    `sha`: the hashlib object, which is updated. `above`: ids of `value` and of the containers that contain it.
    """
    parts: list[Any]
    if isinstance(value, Mapping):
        parts = [part for pair in value.items() for part in pair]
    elif isinstance(value, (list, tuple)):
        parts = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, type) and not callable(value):
        parts = [part for pair in vars(value).items() for part in pair]
    else:
        text = words_or_class(value)
        sha.update(f"{len(text)} {text};".encode("utf-8", "surrogatepass"))
        return
    sha.update(f"{type(value).__qualname__} {len(parts)};".encode())
    for part in parts:
        _add(sha, part, above)


def _add_tensor(sha: Any, x: torch.Tensor) -> None:
    """Add the dtype, shape, layout and bytes of a tensor to a hash. `sha`: the hashlib object, which is updated.

    A tensor on the meta device has no bytes. Sparse and quantised tensors count by their dense values.
    """
    sha.update(f"tensor {x.dtype} {tuple(x.shape)} {x.layout};".encode())
    if x.device.type == "meta":
        return
    if x.layout != torch.strided or x.is_quantized:
        x = x.dequantize() if x.is_quantized else x.to_dense()
    x = x.cpu().contiguous().reshape(-1)
    sha.update(x.view(torch.uint8).numpy().tobytes() if x.numel() else b"")
