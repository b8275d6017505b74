"""The casts as opaque torch operators, whose options compiled graphs hold as text."""

from __future__ import annotations

import contextlib
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from fpsim.arrays import Array, from_torch, refuse_sparse
from fpsim.casts.cast import decode, encode, quantize
from fpsim.errors import install
from fpsim.formats.float_format import Format
from fpsim.formats.named import DTYPES
from fpsim.recipes.cast_text import spec_from
from fpsim.scaling import scaled as scaled_cast
from fpsim.scaling.clipping import kept as kept_elements

try:
    import torch as torch
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] != "torch":
        raise  # torch is installed, but something that it imports is not
    raise ImportError(f"fpsim.torch needs torch, which is not installed: {install('torch')}") from None

if TYPE_CHECKING:
    from torch._library.custom_ops import CustomOpDef

Tensor = torch.Tensor

FLOAT_DTYPES = frozenset(getattr(torch, dtype.name) for dtype in DTYPES.values() if hasattr(torch, dtype.name))


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Make torch use one thread inside a `with` block, because the bits of its sums depend on the number of threads.

    Emulated products, whose bits do not depend on that number, still use all threads.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


# ---- tensors and arrays share memory


def array_of(x: Tensor) -> Array:
    """Return a CPU tensor's elements as an array, without a copy: bfloat16 and float8 as the dtypes of ml_dtypes."""
    return from_torch(x.detach())


def tensor_of(array: Array) -> Tensor:
    """Return a NumPy array as a CPU tensor that shares its memory."""
    return torch.from_numpy(array)


def _seed_number(seed: Tensor | None) -> int | None:
    """Return the 64 bits of a seed tensor as an unsigned integer; None for None."""
    return None if seed is None else int(seed.item()) & 0xFFFFFFFFFFFFFFFF


def require_dense(x: object, name: str) -> None:
    """Raise a TypeError unless x, the argument `name`, is a dense torch tensor, neither nested nor sparse."""
    if not isinstance(x, Tensor):
        remedy = "Use fpsim itself for NumPy arrays"
        if type(x).__module__ == "torch.fx.proxy":
            remedy = "torch.fx.symbolic_trace passes no tensors: use torch.export.export"
        raise TypeError(f"{name} must be a torch tensor; got {type(x).__name__}. {remedy}.")
    refuse_sparse(x, name)


def refuse_meta(x: Tensor, **tensors: Tensor | None) -> None:
    """Raise a ValueError if x has values and another tensor is on the meta device, and so has none.

    torch would run an operator as for meta tensors if one argument is such a tensor, and return a result without
    values. tensors: the other tensors by argument name; None is accepted.
    """
    for name, tensor in tensors.items():
        if tensor is not None and tensor.is_meta and not x.is_meta:
            raise ValueError(f"{name} must be a tensor with values, on the CPU; got one of the meta device.")


# ---- forward mode


def refuse_tangent(function: str, **tensors: Tensor | None) -> None:
    """Raise a RuntimeError if a tensor has a forward-mode tangent, or if torch.func differentiates a function of it.

    The operators have no forward mode, and would drop a tangent; torch.func cannot differentiate custom operators.
    function: the public function's name, for the message. tensors: its tensors by argument name.
    """
    unpack: Any = torch.autograd.forward_ad.unpack_dual
    for name, tensor in tensors.items():
        layers = [] if tensor is None else _without_wrappers(tensor)
        if any(unpack(layer).tangent is not None for layer in layers):
            raise RuntimeError(
                f"{function} has no derivative in forward mode; got {name} with a tangent. Use reverse mode, such as "
                "torch.autograd.grad or backward()."
            )
        # requires_grad is True for the wrappers of torch.func.grad, vjp and jacrev
        if torch.is_grad_enabled() and any(layer.requires_grad for layer in layers[:-1]):
            raise RuntimeError(
                f"{function} has no derivative within torch.func.grad, vjp and jacrev; got {name} that one of them "
                "differentiates with respect to. Use torch.autograd.grad or backward()."
            )


def _without_wrappers(tensor: Tensor) -> list[Tensor]:
    """Return [tensor, the tensor that it wraps, ..., the innermost one], for a tensor that torch.func wraps.

    torch.func.grad, vjp and jacrev call a function with wrapped tensors. Wrappers of torch.vmap are left out of the
    list.
    """
    layers, transforms = [tensor], torch._C._functorch
    if not torch.compiler.is_compiling():  # the compiler has no such wrappers
        while transforms.is_functorch_wrapped_tensor(layers[-1]):
            layers.append(transforms.get_unwrapped(layers[-1]))
        layers = [layer for layer in layers if not transforms.is_batchedtensor(layer)]  # unpack_dual refuses these
    return layers


def checksum_of(x: Tensor) -> int | None:
    """Return a checksum of a tensor's values, CRC-32; None for tensors without values that Python can read.

    Those are tensors of the meta device and of FakeTensorMode, and wrappers of torch.func and torch.vmap.
    """
    if x.is_meta or hasattr(x, "fake_mode") or torch._C._functorch.is_functorch_wrapped_tensor(x):
        return None
    return zlib.crc32(np.ascontiguousarray(array_of(x)).view(np.uint8).data)


def in_backward_pass() -> bool:
    """Return whether torch is running a backward pass in this thread, in which it may compute activations again."""
    return int(torch._C._current_graph_task_id()) != -1


# ---- the operators, and for torch.compile uninitialised tensors like their results


def operator(name: str, function: Callable[..., Any], schema: str) -> CustomOpDef:
    """Register a torch operator that changes none of its arguments, and return it.

    torch guards an operator's function against its compiler, and imports the compiler for that at the first call, which
    takes longer than importing torch. This operator skips the guard until something else has imported the compiler.

    Args:
      name: the operator's name, "namespace::name".
      function: computes the operator, on every device.
      schema: the arguments and results, in torch's schema language.

    Example:
      >>> import torch
      >>> from fpsim.torch.operators import operator
      >>> double = operator("fpsim_example::double", lambda x: 2 * x, "(Tensor x) -> Tensor")
      >>> double(torch.tensor([1.0, 3.0]))
      tensor([2., 6.])
    """
    custom_op = torch.library.custom_op(name, function, mutates_args=(), schema=schema)
    functions = getattr(custom_op, "_backend_fns", {})
    for device, guarded in functions.items():

        def run(*arguments: Any, guarded: Any = guarded, **keywords: Any) -> Any:
            plain = getattr(guarded, "__wrapped__", guarded)
            return (guarded if "torch._dynamo" in sys.modules else plain)(*arguments, **keywords)

        functions[device] = run
    return custom_op


# torch's compiler leaves out a clone of a tensor that the graph changes later, and then passes the changed tensor to
# the backward pass (torch 2.13, backend "inductor"). It cannot look into this copy.
copy_op = operator("fpsim::copy", lambda x: x.clone(), "(Tensor x) -> Tensor")
copy_op.register_fake(torch.empty_like)


def _quantized(x: Tensor, spec: str, seed: Tensor | None, scales: Tensor | None) -> Tensor:
    """Return a tensor's values after a cast, float64 for a float64 tensor without scales, else float32.

    spec: the cast as JSON text, from `fpsim.recipes.cast_text.spec_text`; seed: a tensor of 64 bits, None without
    random draws; scales: decode scales, None to compute them.
    """
    cast = spec_from(spec)
    array, keywords = array_of(x), cast.keywords(_seed_number(seed))
    if cast.scaling is None:
        fmt: Any = cast.element
        return tensor_of(quantize(array, fmt, **keywords))
    scale_array = None if scales is None else array_of(scales)
    return tensor_of(scaled_cast.quantize_scaled(array, cast.element, cast.scaling, scales=scale_array, **keywords))


def _like_values(x: Tensor, spec: str) -> Tensor:
    """Return an uninitialised tensor of the shape of x and the dtype of its values after a cast, for torch.compile.

    spec: the cast as JSON text, from `fpsim.recipes.cast_text.spec_text`.
    """
    is_wide = x.dtype == torch.float64 and spec_from(spec).scaling is None
    return x.new_empty(x.shape, dtype=torch.float64 if is_wide else torch.float32)


quantize_op = operator("fpsim::quantize", _quantized, "(Tensor x, str spec, Tensor? seed, Tensor? scales) -> Tensor")
quantize_op.register_fake(lambda x, spec, *_: _like_values(x, spec))


def _refuse_gradient(ctx: Any, grad: Tensor) -> None:
    """Raise a RuntimeError in a backward pass through a cast, which has no gradient."""
    raise RuntimeError("a cast has no gradient; got a backward pass through it. Use fake_quantize, or x.detach().")


quantize_op.register_autograd(_refuse_gradient)


def _kept(x: Tensor, spec: str, scales: Tensor | None) -> Tensor:
    """Return a bool tensor that is True for elements of x that a cast does not clip, as in `fake_quantize`.

    spec: the cast as JSON text. scales: decode scales; None to compute them.
    """
    cast = spec_from(spec)
    cast_words: dict[str, Any] = {"subnormals": cast.subnormals, "seed": 0}
    if cast.overflow is not None:
        cast_words["overflow"] = cast.overflow
    array, scale_array = array_of(x), None if scales is None else array_of(scales)
    inside = kept_elements(array, cast.element, cast.scaling, cast.rounding, scale_array, **cast_words)
    return tensor_of(np.ascontiguousarray(inside).reshape(x.shape))


kept_op = operator("fpsim::kept", _kept, "(Tensor x, str spec, Tensor? scales) -> Tensor")
kept_op.register_fake(lambda x, spec, scales: x.new_empty(x.shape, dtype=torch.bool))

# The same as fpsim::quantize with a gradient; with an empty text `backward` the gradient is not cast.
fake_quantize_op = operator(
    "fpsim::fake_quantize", lambda x, spec, seed, scales, *_: _quantized(x, spec, seed, scales),
    "(Tensor x, str spec, Tensor? seed, Tensor? scales, str backward, Tensor? backward_seed) -> Tensor",
)  # fmt: skip
fake_quantize_op.register_fake(lambda x, spec, *_: _like_values(x, spec))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Save in torch's context `ctx` what `_straight_through` needs.

    This is the input, the scales, the cast, and the cast of the incoming gradient with its seed. inputs: the arguments
    of the operator. output: its result, which is not used.
    """
    x, ctx.spec, _, scales, ctx.backward, backward_seed = inputs
    ctx.save_for_backward(x, scales, backward_seed)


def _straight_through(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    """Return the gradient of a fake quantisation: the incoming one, cast if requested, but 0 for clipped elements.

    ctx: torch's context, filled by `_setup`. grad: the incoming gradient. The result is a tuple of the gradient of x
    and None for each of the operator's other five arguments.
    """
    x, scales, backward_seed = ctx.saved_tensors
    if ctx.backward:
        grad = fake_quantize_op(grad, ctx.backward, backward_seed, None, "", None)
    # `where` and not a product, so that an infinite gradient of a clipped element becomes 0 too
    passed = torch.where(kept_op(x, ctx.spec, scales), grad, 0.0)
    return passed.to(x.dtype), None, None, None, None, None


fake_quantize_op.register_autograd(_straight_through, setup_context=_setup)


def _encoded(x: Tensor, spec: str, seed: Tensor | None) -> Tensor:
    """Return the codes of a tensor by a cast without scales, as unsigned integers.

    spec: the cast as JSON text, from `fpsim.recipes.cast_text.spec_text`; seed: a tensor of 64 bits, None without
    random draws.
    """
    how = spec_from(spec)
    fmt: Any = how.element
    return tensor_of(encode(array_of(x), fmt, **how.keywords(_seed_number(seed))))


encode_op = operator("fpsim::encode", _encoded, "(Tensor x, str spec, Tensor? seed) -> Tensor")
encode_op.register_fake(
    lambda x, spec, seed: x.new_empty(x.shape, dtype=getattr(torch, spec_from(spec).element.storage.name))
)


def _decoded(codes: Tensor, spec: str, double: bool) -> Tensor:
    """Return the values of codes as float64 if `double`, else float32; spec: a cast to their format, as JSON text."""
    fmt: Any = spec_from(spec).element
    return tensor_of(decode(array_of(codes), fmt, np.float64 if double else np.float32))


decode_op = operator("fpsim::decode", _decoded, "(Tensor codes, str spec, bool double) -> Tensor")
decode_op.register_fake(
    lambda codes, spec, double: codes.new_empty(codes.shape, dtype=torch.float64 if double else torch.float32)
)


def dtype_of(fmt: Format) -> torch.dtype | None:
    """Return the torch float dtype that stores a format's codes, such as torch.float8_e4m3fn; None if there is none."""
    return None if fmt.dtype is None else getattr(torch, fmt.dtype.name, None)
