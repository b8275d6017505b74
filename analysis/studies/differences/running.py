"""Runs of a model under an arithmetic: linear layers and convolutions are computed by the recipes of the arithmetic."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fpsim.analysis.models.compiled import compiled_modules
from fpsim.analysis.models.coverage import Coverage
from fpsim.analysis.models.draws import restored_generators
from fpsim.analysis.models.losses import backward_refused, called_with
from fpsim.analysis.models.multiplications import multiplications, multiplies, name_of
from fpsim.analysis.models.patches import DIMENSIONS, convolution, folded, matrices
from fpsim.analysis.models.products import LAYERS, WHOLE_ATTENTION, attention_in_parts
from fpsim.analysis.models.selection import Selection
from fpsim.analysis.models.watching.hooks import in_backward
from fpsim.analysis.models.watching.tally import Tally
from fpsim.analysis.studies.differences.arithmetics import ModelArithmetic, Recipes, Site
from fpsim.analysis.studies.differences.by_torch import FORMATS, by_torch, library_of
from fpsim.analysis.studies.differences.layer_product import LayerError, product_of
from fpsim.analysis.studies.differences.outputs import ModuleOutput, show_output, watching_outputs
from fpsim.divergence.product import Product
from fpsim.errors import shown
from fpsim.recipes.linear_recipe import PRODUCTS, LinearRecipe
from fpsim.torch.delayed import first_state
from fpsim.torch.linear import QuantLinear
from fpsim.torch.linear_products import product_op
from fpsim.torch.plan import LayerPlan, plan_from, plan_of
from fpsim.torch.trace import ProductCall, watching
from fpsim.train.side_by_side import as_product

QUANTIZED = torch.ops.fpsim.linear.default
Seen = Callable[[Product], None]


class ModelRun(NamedTuple):
    """The results of a run of a model.

    Attributes: `output` is the model's output, None if the loss did not call the model. `layers` are the names of the
    layers whose products ran. `coverage` is the share of the model's weights and multiplications that was compared.
    """

    output: Any
    layers: tuple[str, ...]
    coverage: Coverage


def run(model: Any, batch: Any, arithmetic: ModelArithmetic, loss: Any, seen: Seen) -> ModelRun:
    """Run a copy of a model under an arithmetic, and call `seen` with the Product of each multiplication.

    `model`: a torch.nn.Module. `batch`: the model's argument, a tuple or list of arguments, or a mapping of keyword
    arguments. `loss`: called as loss(model, batch), and its backward pass runs too; None for the forward pass alone.
    Raise a ValueError if the batch does not fit the model, a layer cannot follow its recipe, or the loss is not a
    scalar.
    """
    twin, batch = copied(model, "model"), copied(batch, "batch")
    mode = _Products(twin, arithmetic, frozenset(map(id, model.parameters())))
    outputs: list[Any] = []
    handle = twin.register_forward_hook(lambda *call: outputs.append(call[2]))

    def see(call: ProductCall) -> None:
        if not (call.product == "fprop" and in_backward()):  # checkpointing computes these again
            seen(_placed(call, arithmetic, mode.by_torch))

    with restored_generators(), mode.entered(), watching(see):
        try:
            _computed(twin, batch, loss)
        except LayerError as reason:
            raise ValueError(str(reason)) from None
    handle.remove()
    return ModelRun(outputs[0] if outputs else None, tuple(mode.layers), mode.tally.coverage)


def _placed(call: ProductCall, arithmetic: ModelArithmetic, plain: Collection[str]) -> Product:
    """Return `call`, a computed product of a layer, as a Product that says in text where it was computed.

    Nothing is computed here. If the layer's name is in `plain`, the Product has the dtype of the layer's input, and its
    place is the library that torch uses for this dtype and size, such as "(MKL)". Else its place is that of
    `arithmetic`, the run's arithmetic: "on the GPU", or "" for the CPU. `plain`: names of the layers whose products
    torch computed in the layer's dtype.
    """
    product = as_product(call, arithmetic.place)
    if call.layer not in plain:  # recipes multiply in float32, whatever the dtype of the layer is
        return product
    (m, k), n = product.a.source.shape, product.b.source.shape[1]
    dtype = str(product.a.source.dtype)
    library = library_of(getattr(torch, dtype), m * n * k)
    return product._replace(place=f"({library})" if library else "", dtype=dtype)


def outputs_of(
    model: Any, batch: Any, arithmetic: ModelArithmetic, seen: Callable[[ModuleOutput], None]
) -> Any:  # fmt: skip
    """Run a model forwards, call `seen` with the outputs of its modules, and return its output.

    `model`: a torch.nn.Module. `batch`: the model's arguments. `arithmetic`: computes the linear layers and
    convolutions. A compiled model is not copied, since its graphs belong to its modules; its buffers are restored
    afterwards. Raise a ValueError if the batch does not fit the model.
    """
    compiled = bool(compiled_modules(model))
    twin, batch = model if compiled else copied(model, "model"), copied(batch, "batch")
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    mode = _Products(twin, arithmetic, frozenset() if compiled else frozenset(map(id, model.parameters())))
    plain = arithmetic.name.strip().lower() == "torch"
    with restored_generators(), watching_outputs(twin, seen), torch.no_grad():
        try:
            with nullcontext() if plain else mode.entered():
                output = _fitting(batch, lambda: called_with(twin, batch))
            if getattr(twin, "_compiled_call_impl", None) is not None:  # hooks are not allowed inside of it
                show_output("", output, seen)
            return output
        except LayerError as reason:
            raise ValueError(str(reason)) from None
        finally:
            for buffer, before in buffers:
                buffer.copy_(before)


def copied(x: Any, noun: str) -> Any:
    """Return a deep copy of the model or batch `x`; raise a ValueError that calls it `noun` if it cannot be copied."""
    try:
        return copy.deepcopy(x)
    except Exception as reason:  # its own code may raise anything
        raise ValueError(f"{noun} must be one that copy.deepcopy copies; got {type(x).__name__}: {reason}") from None


def _computed(model: Any, batch: Any, loss: Any) -> None:
    """Run the model's forward pass without gradients; or, with a loss, loss(model, batch) and its backward pass."""
    if loss is None:
        with torch.no_grad():
            _fitting(batch, lambda: called_with(model, batch))
        return
    with torch.enable_grad():
        value = _fitting(batch, lambda: loss(model, batch))
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.is_floating_point():
            raise ValueError(f"loss must return a tensor of one float for (model, batch); got {shown(value)}.")
        if not value.requires_grad:
            raise ValueError("loss must depend on weights that require a gradient; got a value without one.")
        # value.backward() would leave the mode, in which checkpoints have to compute again
        engine: Any = torch.autograd.Variable._execution_engine
        with backward_refused("the batch"):
            engine.run_backward(
                (value,), (torch.ones_like(value),), False, False, (), allow_unreachable=True, accumulate_grad=True
            )  # fmt: skip


def _fitting(batch: Any, compute: Callable[[], Any]) -> Any:
    """Return the result of `compute`, which runs a model on `batch`; raise a ValueError if the batch does not fit."""
    try:
        return compute()
    except LayerError:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError) as reason:
        lines = str(reason).strip().splitlines() or [type(reason).__name__]
        raise ValueError(
            f"batch must be an input of the model; got {_described(batch)}, for which the model raises: {lines[0]}"
        ) from reason


def _described(batch: Any) -> str:
    """Return the types, dtypes and shapes in a batch as text."""
    if isinstance(batch, torch.Tensor):
        return f"a tensor of {str(batch.dtype).removeprefix('torch.')}, shape {tuple(batch.shape)}"
    if isinstance(batch, (tuple, list)):
        return f"({', '.join(map(_described, batch))})"
    if isinstance(batch, Mapping):
        return ", ".join(f"{name}: {_described(value)}" for name, value in batch.items())
    return shown(batch)


class _Products(TorchFunctionMode):
    """A mode of torch in which an arithmetic computes the products of linear layers and convolutions.

    `model`: the copy that runs. `arithmetic`: computes the products. `originals`: ids of the original model's weights,
    which the copy must not use.
    """

    def __init__(self, model: Any, arithmetic: ModelArithmetic, originals: frozenset[int]) -> None:
        super().__init__()
        self._originals = originals  # ids of weights that the copy must not read
        self._model, self._arithmetic = model, arithmetic
        names = Selection(model, "*")
        self._modules, self._owners = names.modules, names.owners
        self._stack: list[torch.nn.Module] = []
        self._plans: dict[Any, LayerPlan] = {}
        self.layers: dict[str, None] = {}
        self.by_torch: set[str] = set()  # layers that torch multiplies in their own dtype
        self.tally = Tally(model)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let the arithmetic compute products inside a `with` block; hooks record which module is running."""

        def enter(module: torch.nn.Module, _: Any) -> None:
            self._stack.append(module)
            self.tally.ran(module)

        def leave(*_: Any) -> None:  # what a hook returns would replace the output
            self._stack.pop()

        handles = []
        for module in self._model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                handles += [
                    module.register_forward_pre_hook(enter, prepend=True),
                    module.register_forward_hook(leave, always_call=True),
                ]
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is WHOLE_ATTENTION:
            with self:
                return attention_in_parts()(*args, **kwargs)
        if func is functional.linear:
            arguments = {"bias": None, **dict(zip(("input", "weight", "bias"), args, strict=False)), **kwargs}
            return self._linear(arguments["input"], arguments["weight"], arguments["bias"])
        if func in DIMENSIONS:
            return self._convolution(func, args, kwargs)
        if func is QUANTIZED:
            return self._quantized(*args, **kwargs)
        output = func(*args, **kwargs)
        if self._stack and not in_backward():
            module = self._stack[-1]
            if func in (functional.embedding, functional.embedding_bag):
                self.tally.looked_up(module, args[1] if len(args) > 1 else kwargs["weight"])
            elif multiplies(func, args):
                count = multiplications(func, args, kwargs, output)
                self.tally.missed(module, self._modules.get(id(module), ""), name_of(func), count)
        return output

    # ---- the functions

    def _linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x @ weight^T + bias, with the product computed by the arithmetic of the layer that owns `weight`."""
        layer = self._layer(weight)
        self._count(layer, weight, x.numel() * weight.shape[0])
        x, weight, bias = _autocast(x), _autocast(weight), None if bias is None else _autocast(bias)
        y = self._multiplied(layer, x.reshape(-1, x.shape[-1]), weight, bias)
        return y.reshape(*x.shape[:-1], weight.shape[0])

    def _convolution(self, func: Any, args: Any, kwargs: Any) -> torch.Tensor:
        """Return the output of a torch convolution function, with its products computed by the layer's arithmetic.

        `args`, `kwargs`: the arguments of the function `func`.
        """
        of = convolution(func, args, kwargs)
        layer = self._layer(of.weight)
        bias = None if of.bias is None else _autocast(of.bias)
        of = of._replace(x=_autocast(of.x), weight=_autocast(of.weight), bias=bias)
        parts = matrices(of)
        self._count(layer, args[1] if len(args) > 1 else kwargs["weight"], sum(
            rows.shape[0] * weight.numel() for rows, weight, _ in parts
        ))  # fmt: skip
        rows = [
            self._multiplied(f"{layer}[{group}]" if of.groups > 1 else layer, *part, called=layer)
            for group, part in enumerate(parts)
        ]
        return folded(rows, of)

    def _quantized(
        self, x: torch.Tensor, weight: torch.Tensor, bias: Any, step: Any, state: Any, live: Any, plan: str,
        once: bool = False,
    ) -> Any:  # fmt: skip
        """Return the output of an already quantised layer under the arithmetic, and its new state of delayed scales.

        `x`: (tokens, in). `weight`: (out, in). `step`: count of forward passes, for stochastic rounding. `state`:
        delayed scales that this pass uses. `live`: buffer of delayed scales that the backward pass updates. `plan`: the
        layer's casts and products as JSON text, used if the arithmetic does not change the layer. `bias`, `step`,
        `state` and `live` may be None. `once`: unused, as it is False outside of compiled graphs.
        """
        module, today = self._stack[-1] if self._stack else None, plan_from(plan)
        recipe = module.recipe if isinstance(module, QuantLinear) and not today.is_float32 else None
        layer = self._layer(weight)
        self._count(layer, weight, x.numel() * weight.shape[0])
        new = self._plan(layer, layer, x.dtype, recipe)
        if new is None:
            text = today._replace(name=layer).text
            return product_of(layer, QUANTIZED, x, weight, bias, step, state, live, text)
        if recipe is not None and plan_of(recipe, today.name, today.backend).text != plan:
            raise LayerError(f"layer {layer!r} follows several recipes, which a chip cannot replace. Pass recipe=.")
        states = (*self._states(new, step, state), live if new.delayed else None)
        return product_of(layer, QUANTIZED, x, weight, bias, *states, new.text)

    def _count(self, layer: str, weight: torch.Tensor, count: int) -> None:
        """Add a layer's multiplications by a weight to `tally`, as covered by the comparison.

        Do nothing in a backward pass, in which activation checkpoints call the same functions again. `layer`: name of
        the layer. `count`: number of multiplications.
        """
        if not in_backward():
            self.tally.saw(layer, self._stack[-1] if self._stack else self._model, weight, count)

    # ---- products

    def _multiplied(
        self, layer: str, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, called: str = ""
    ) -> torch.Tensor:
        """Return x @ weight^T + bias by the layer's arithmetic; raise a LayerError if it cannot be computed.

        `layer`: name under which the product is reported, such as "conv[1]" for a group of a convolution. `called`:
        name of the layer, if that is different.
        """
        if not (x.is_floating_point() and weight.is_floating_point()):
            raise LayerError(f"layer {layer!r} must multiply floats; got {x.dtype} by {weight.dtype}.")
        if x.shape[1] != weight.shape[1]:
            raise ValueError(f"layer {layer!r} takes {weight.shape[1]} features; got {x.shape[1]}.")
        plan = self._plan(layer, called or layer, x.dtype, None)
        if plan is None:
            self.by_torch.add(layer)
            return by_torch(x, weight, bias, layer)
        output: torch.Tensor
        output, _ = product_of(layer, product_op, x, weight, bias, *self._states(plan, None, None), None, plan.text)
        return output

    def _states(self, plan: LayerPlan, step: Any, state: Any) -> tuple[Any, Any]:
        """Return (step count, state of delayed scales) with initial values in place of None where the plan needs them.

        The state is None if the plan has no delayed scales.
        """
        if plan.draws and step is None:
            step = torch.zeros((), dtype=torch.int64)
        if plan.delayed is None:
            return step, None
        return step, first_state(plan.delayed[0]) if state is None else state

    def _plan(self, layer: str, called: str, dtype: torch.dtype, recipe: LinearRecipe | None) -> LayerPlan | None:
        """Return the LayerPlan (casts and products) of a layer under the arithmetic; None if torch computes it
        unchanged.

        `layer`: name under which products are reported, such as "conv[1]" for a group. `called`: name of the layer,
        which patterns match. `dtype`: dtype of the input. `recipe`: the layer's own recipe if it is quantised, or None.
        Raise a LayerError if the layer cannot follow the arithmetic.
        """
        self.layers[called] = None
        way = self._arithmetic.of(called)
        if way is None:
            return None
        key = layer, dtype, recipe
        if key not in self._plans:
            try:
                recipes = way.follow(Site(called, recipe, str(dtype).removeprefix("torch.")))
                if recipes is None:
                    return None
                self._plans[key] = _made(layer, recipes, way.backend, dtype)
            except ValueError as reason:
                raise LayerError(f"layer {called!r}: {reason}") from reason
        return self._plans[key]

    def _layer(self, weight: torch.Tensor) -> str:
        """Return the name of the layer that multiplies by a weight.

        If the running module is a linear layer or convolution, its name is returned, else the name of the module that
        owns the weight. If no module owns the weight, the running module's name is returned, or "weight" if that is "".
        Raise a LayerError if the weight belongs to the user's model, since a run must use the weights of its copy.
        """
        if id(weight) in self._originals:
            raise LayerError(
                "model must be one that copy.deepcopy copies whole; the copy uses weights of the model itself, for "
                "example through a function that holds them. Make that function a method."
            )
        module = self._stack[-1] if self._stack else self._model
        name = self._modules.get(id(module), "")
        owner = self._owners.get(id(weight)) or self._owners.get(id(weight._base))
        return (isinstance(module, LAYERS) and name) or owner or name or "weight"


def _made(layer: str, recipes: Recipes, backend: str, dtype: torch.dtype) -> LayerPlan:
    """Return the LayerPlan (casts and products) of a layer; `recipes`: the recipes of fprop, dgrad and wgrad.

    `layer`: name of the layer. `backend`: the backend that multiplies. If a recipe names no format for results, a layer
    of BF16 or FP16 operands (`dtype`) rounds its results to that format, as torch does.
    """
    fmt, plans = FORMATS.get(dtype), []
    for recipe in recipes:
        open_ones = [name for name in PRODUCTS if fmt is not None and getattr(recipe, name).out_fmt is None]
        rounded = {name: getattr(recipe, name).replace(out_fmt=fmt) for name in open_ones}
        plans.append(plan_of(recipe.replace(**rounded) if rounded else recipe, layer, backend))
    return plans[0].with_product("dgrad", plans[1]).with_product("wgrad", plans[2])


def _autocast(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the dtype in which a product reads it under autocast; unchanged without autocast."""
    if not torch.is_autocast_enabled("cpu") or x.dtype == torch.float64 or not x.is_floating_point():
        return x
    return x.to(torch.get_autocast_dtype("cpu"))
