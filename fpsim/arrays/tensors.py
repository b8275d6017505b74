"""Conversion of torch tensors, small float dtypes included, to NumPy arrays or integer views, and back to tensors."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np

from fpsim.arrays.libraries import is_torch
from fpsim.arrays.words import Array
from fpsim.formats.named import DTYPES, Format

# Bytes of an element -> the integers that every version of torch, NumPy and the CUDA array interface share.
TORCH_INTEGERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
SHARED = {"float16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64", "bool"}  # with NumPy


def without_gradient(x: Any) -> Any:
    """Return a torch tensor detached from its gradient; any other object unchanged.

    It is for measurements and comparisons, whose results do not propagate gradients.
    """
    return x.detach() if is_torch(x) else x


def from_torch(tensor: Any, name: str = "x") -> Array:
    """Return the elements of a torch tensor as a NumPy array, without a copy if they are in the CPU's memory.

    Small floats, such as torch.float8_e4m3fn, become ml_dtypes' dtypes. name: the name of the argument in error
    messages.

    Raises:
      TypeError: the tensor requires a gradient, is sparse, nested, on the meta device or otherwise without elements in
        memory, or NumPy has no such dtype.
    """
    if tensor.requires_grad:
        raise TypeError(
            f"{name} must not require a gradient, which NumPy arrays lose; got a torch tensor that does. Use fp.torch, "
            f"whose fake_quantize has one, or {name}.detach()."
        )
    if tensor.is_meta:
        raise TypeError(f"{name} must have elements; got a torch tensor on the meta device. Make it on the CPU.")
    refuse_sparse(tensor, name)
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    fmt = format_of_tensor(tensor)
    try:
        if fmt is None or (fmt.bits >= 16 and fmt.name != "BF16"):
            return np.asarray(tensor.numpy())  # torch and NumPy share these
        return np.asarray(integers_of(tensor).numpy()).view(DTYPES[fmt])
    except TypeError:
        raise TypeError(
            f"{name} must have elements that NumPy or ml_dtypes knows; got {tensor.dtype}. View it as torch.uint8."
        ) from None
    except RuntimeError:  # of a subclass without memory of its own, such as the tensors of FakeTensorMode
        raise TypeError(
            f"{name} must have elements in memory; got a {type(tensor).__name__} that NumPy cannot read. Pass a plain "
            "tensor."
        ) from None


def to_torch(array: Array) -> Any:
    """Return a NumPy array as a torch tensor that shares its memory.

    The float dtypes of ml_dtypes become torch's dtypes of those names.
    """
    import torch

    if array.dtype.name in SHARED:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(TORCH_INTEGERS[array.itemsize])).view(getattr(torch, array.dtype.name))


def refuse_sparse(tensor: Any, name: str) -> None:
    """Raise a TypeError, which calls the torch tensor `name`, if it is not dense (strided) or is nested."""
    if tensor.is_nested or tensor.layout is not sys.modules["torch"].strided:
        kind = "a nested one" if tensor.is_nested else f"one of layout {tensor.layout}"
        remedy = f"Pass the tensors of {name}.unbind()" if tensor.is_nested else f"Use {name}.to_dense()"
        raise TypeError(f"{name} must be a dense tensor; got {kind}. {remedy}.")


def integers_of(tensor: Any) -> Any:
    """Return a view of a torch tensor as integers of its elements' size: uint8, int16, int32 or int64."""
    return tensor.view(getattr(sys.modules["torch"], TORCH_INTEGERS[tensor.element_size()]))


def packed_as_bytes(x: Any) -> Any:
    """Return a torch tensor of packed FP4 pairs (float4_e2m1fn_x2) viewed as uint8; any other object unchanged."""
    if is_torch(x) and str(x.dtype) == "torch.float4_e2m1fn_x2":
        return x.view(sys.modules["torch"].uint8)
    return x


def format_of_tensor(tensor: Any) -> Format | None:
    """Return the format that a torch tensor's dtype stores, or None if NumPy and ml_dtypes have no such float dtype."""
    return _format_of_name(str(tensor.dtype))


@cache
def _format_of_name(dtype: str) -> Format | None:
    """Return the format of a torch dtype by its name, such as "torch.float8_e5m2", or None if it stores none."""
    return next((fmt for fmt, known in DTYPES.items() if dtype == f"torch.{known.name}"), None)
