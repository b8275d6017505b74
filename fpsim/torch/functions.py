"""Casts of tensors by fpsim's formats, and fake quantisation with gradients.

All functions take and return tensors on the CPU. torch.compile keeps the casts, with the bits of eager mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

import numpy as np
import numpy.typing as npt

from fpsim.errors import shown
from fpsim.formats.cast_options import DEFAULTS, ELEMENT_DEFAULTS, AnyCastKeywords, FormatLike
from fpsim.formats.element import ElementLike
from fpsim.formats.keywords import check_keywords, with_keywords
from fpsim.formats.rounding import Rounding
from fpsim.recipes.cast_text import spec_from, spec_text
from fpsim.scaling import scaled as scaled_cast
from fpsim.scaling.recipes import TILE_1X128
from fpsim.scaling.scaling import Scaling
from fpsim.torch.operators import (
    FLOAT_DTYPES,
    Tensor,
    array_of,
    copy_op,
    decode_op,
    dtype_of,
    encode_op,
    fake_quantize_op,
    quantize_op,
    refuse_meta,
    refuse_tangent,
    require_dense,
    tensor_of,
    torch,
)
from fpsim.torch.seeds import Seed, constant_in_graphs, is_stochastic, seed_tensor


class CastOfTensor(AnyCastKeywords, total=False):
    """The keyword arguments of a cast of a tensor, as for `fp.encode`, but `seed` may also be an integer tensor."""

    overflow: str | None
    seed: Seed


class BackwardCast(TypedDict, total=False):
    """The keyword arguments of `fake_quantize` for the cast of the incoming gradient; its docstring explains them."""

    backward_fmt: FormatLike | None
    backward_scaling: Scaling | str | None
    backward_rounding: str | Rounding
    backward_overflow: str | None
    backward_seed: Seed


class BothCasts(CastOfTensor, BackwardCast, total=False):
    """The keyword arguments of `fake_quantize`, which casts a tensor and its gradient."""


BACKWARD_DEFAULTS: BackwardCast = {
    "backward_fmt": None, "backward_scaling": None, "backward_rounding": "nearest_even", "backward_overflow": None,
    "backward_seed": None,
}  # fmt: skip


@with_keywords(BothCasts, {**ELEMENT_DEFAULTS, **BACKWARD_DEFAULTS})
def fake_quantize(
    x: Tensor,
    fmt: FormatLike,
    scaling: Scaling | str | None = None,
    *,
    scales: npt.ArrayLike | Tensor | None = None,
    **keywords: Unpack[BothCasts],
) -> Tensor:
    """Quantise a tensor; its gradient passes through unchanged, but is zero where an element was clipped.

    An element is clipped if |x / scale| (|x| without a scaling) is larger than every number that rounds to the format's
    largest value (in stochastic mode: that can round to it). Scales that follow amax clip nothing; scales that are
    rounded down (`fp.scalings.MX`) and scales that the caller passes may clip. NaN and Inf count as clipped, and so
    does each element of a tile whose scale is NaN because of them. The gradient treats scales as constants.

    The values are those of `fp.quantize_scaled` (of `fp.quantize` without a scaling), float32. For a bfloat16 or
    float16 tensor they are converted to its dtype, which rounds code * scale once more to nearest even where that dtype
    cannot represent it. Pass x.float() to avoid that. The same holds for a quantised gradient.

    Args:
      x: float tensor on the CPU, of any shape.
      fmt: element format by name, dtype or object, as `fp.encode_scaled` takes.
      scaling: the scaling or its name, which sets tiles and their scales; None for a cast without scales.
      rounding, overflow, subnormals, random_bits: as for `fp.encode_scaled`; overflow None is the scaling's own
        mode, or "nonfinite" without scaling.
      seed: seed of the stochastic mode: an integer in 0 .. 2**64 - 1, or an integer tensor of one element, whose bits
        are used. The result is a function of (value, seed, flat index), so each step needs another seed. A tensor that
        counts steps can be the seed: compiled graphs use its current value without compiling again.
      scales: decode scales to use, one per tile or broadcast; None to compute them.
      backward_fmt: the format to which the incoming gradient is quantised, before clipped elements become zero; None
        to leave the gradient unrounded.
      backward_scaling, backward_rounding, backward_overflow, backward_seed: as above, for the gradient's cast.

    Returns:
      Tensor of x's shape and dtype, but float32 for float8 input.

    Raises:
      ValueError: a tensor that is not on the CPU, an unknown option, no seed, or scales that do not fit.
      TypeError: x is not a tensor of floats.
      RuntimeError: x carries a tangent: there is no forward-mode derivative (`torch.func.jvp`).

    Example:
      >>> import torch
      >>> x = torch.tensor([0.3, 1.7, -9.0], requires_grad=True)
      >>> y = fp.torch.fake_quantize(x, fp.E2M1, fp.scalings.TENSOR, scales=1.0)
      >>> y.detach().tolist(), torch.autograd.grad(y.sum(), x)[0].tolist()
      ([0.5, 1.5, -6.0], [1.0, 1.0, 0.0])
    """
    _refuse_other(x)
    refuse_tangent("fake_quantize", x=x)
    how: dict[str, Any] = {name: keywords.get(name, default) for name, default in BACKWARD_DEFAULTS.items()}
    forward: Any = {name: value for name, value in keywords.items() if name not in BACKWARD_DEFAULTS}
    spec, seed = _cast(fake_quantize, fmt, scaling, forward)
    if scales is not None and scaling is None:
        raise ValueError("scales need a scaling, which defines their tiles; got None. Pass, say, fp.scalings.TENSOR.")
    backward, rounding = "", how["backward_rounding"]
    if how["backward_fmt"] is not None:
        backward = _spec(how["backward_fmt"], how["backward_scaling"], rounding, how["backward_overflow"], "keep", 32)
    elif how["backward_scaling"] is not None or is_stochastic(rounding):
        raise ValueError("backward_scaling and backward_rounding need a backward_fmt; got None. Pass fp.E5M2, say.")
    backward_seed, held = seed_tensor(how["backward_seed"], rounding, "backward_seed"), _scales(x, scales)
    refuse_meta(x, seed=seed, backward_seed=backward_seed)
    if torch.compiler.is_compiling():  # the graph may change both later, and the backward pass reads them
        held, backward_seed = (None if tensor is None else copy_op(tensor) for tensor in (held, backward_seed))
    values: Tensor = fake_quantize_op(x, spec, seed, held, backward, backward_seed)
    return values if x.dtype.itemsize == 1 else values.to(x.dtype)


@with_keywords(CastOfTensor, DEFAULTS)
def quantize(x: Tensor, fmt: FormatLike, **keywords: Unpack[CastOfTensor]) -> Tensor:
    """Return the values of a tensor rounded to a format, as `fp.quantize` does for an array with these arguments.

    It has no gradient (`fake_quantize` has one): a backward pass through it raises a RuntimeError.

    Returns:
      Tensor of x's shape: float64 for float64 input, else float32.

    Raises: as for `fp.quantize`, and ValueError for a tensor that is not on the CPU.

    Example:
      >>> import torch
      >>> fp.torch.quantize(torch.tensor([0.3, 3.14159, 500.0], dtype=torch.bfloat16), fp.E5M2)
      tensor([3.1250e-01, 3.0000e+00, 5.1200e+02])
    """
    _refuse_other(x)
    refuse_tangent("quantize", x=x)
    spec, seed = _cast(quantize, fmt, None, keywords)
    refuse_meta(x, seed=seed)
    values: Tensor = quantize_op(x, spec, seed, None)
    return values


@with_keywords(CastOfTensor, ELEMENT_DEFAULTS)
def quantize_scaled(
    x: Tensor, fmt: ElementLike, scaling: Scaling | str = TILE_1X128, *, scales: npt.ArrayLike | Tensor | None = None,
    **keywords: Unpack[CastOfTensor],
) -> Tensor:  # fmt: skip
    """Return a tensor rounded to a format with scales, as `fp.quantize_scaled` does for an array with these arguments.

    It has no gradient (`fake_quantize` has one): a backward pass through it raises a RuntimeError.

    Returns:
      float32 tensor of x's shape.

    Raises: as for `fp.quantize_scaled`, and ValueError for a tensor that is not on the CPU.

    Example:
      >>> import torch
      >>> fp.torch.quantize_scaled(torch.tensor([0.1, 0.2, 0.3, 6.0]), "e2m1", fp.scalings.MX)
      tensor([0.0000, 0.0000, 0.5000, 6.0000])
    """
    _refuse_other(x)
    refuse_tangent("quantize_scaled", x=x)
    if scaling is None:
        raise TypeError("scaling must be an fp.Scaling, such as fp.scalings.TILE_1X128; got None. Use quantize.")
    spec, seed = _cast(quantize_scaled, fmt, scaling, keywords)
    refuse_meta(x, seed=seed)
    values: Tensor = quantize_op(x, spec, seed, _scales(x, scales))
    return values


@with_keywords(CastOfTensor, DEFAULTS)
def encode(x: Tensor, fmt: FormatLike, **keywords: Unpack[CastOfTensor]) -> Tensor:
    """Return the codes of a tensor as unsigned integers, as `fp.encode` does for an array with these arguments.

    Returns:
      Tensor of x's shape: torch.uint8 for formats of up to 8 bits, else uint16, uint32 or uint64. `view_as_dtype` turns
      it into a tensor of the torch dtype of the format, such as torch.float8_e4m3fn.

    Raises: as for `fp.encode`, and ValueError for a tensor that is not on the CPU.

    Example:
      >>> import torch
      >>> fp.torch.encode(torch.tensor([1.0, 0.3, 500.0]), "e4m3")
      tensor([ 56,  42, 127], dtype=torch.uint8)
    """
    _refuse_other(x)
    spec, seed = _cast(encode, fmt, None, keywords)
    refuse_meta(x, seed=seed)
    codes: Tensor = encode_op(x.detach(), spec, seed)
    return codes


def decode(codes: Tensor, fmt: FormatLike, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the exact values of codes, as `fp.decode` does for an array.

    Args:
      codes: unsigned integers, or a tensor of the format's own dtype, on the CPU.
      fmt: the format, by name, dtype or object.
      dtype: torch.float32 or torch.float64; it must represent every value of the format.

    Returns:
      Tensor of that dtype and of the codes' shape.

    Raises: as for `fp.decode`, and ValueError for another dtype or a tensor that is not on the CPU.

    Example:
      >>> import torch
      >>> fp.torch.decode(torch.tensor([1.0, 448.0]).to(torch.float8_e4m3fn), fp.E4M3)
      tensor([  1., 448.])
    """
    _refuse_elsewhere(codes, "codes")
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"dtype must be torch.float32 or torch.float64; got {shown(dtype)}. Convert the result with .to()."
        )
    spec = _spec(fmt, None, "nearest_even", None, "keep", 32)
    values: Tensor = decode_op(codes.detach(), spec, dtype == torch.float64)
    return values


class ScaledTensors(NamedTuple):
    """The codes and decode scales of an encoded tensor; the fields are those of `fp.Scaled`, as tensors or None.

    codes: bit patterns of a float format, or numbers of an integer format. scales: float32, one per tile; an element is
    its code's value times the scale. scale_codes: codes of the scales. tensor_scale: the scale of the whole tensor, a
    factor that `scales` include. zero_points: one per tile, subtracted from an integer format's codes. `fp.Scaled`
    explains the fields of LogFMT and HiF4.
    """

    codes: Tensor
    scales: Tensor
    scale_codes: Tensor | None
    tensor_scale: Tensor | None
    zero_points: Tensor | None


@with_keywords(CastOfTensor, ELEMENT_DEFAULTS)
def encode_scaled(
    x: Tensor, fmt: ElementLike, scaling: Scaling | str = TILE_1X128, *, scales: npt.ArrayLike | Tensor | None = None,
    **keywords: Unpack[CastOfTensor],
) -> ScaledTensors:  # fmt: skip
    """Return the codes and scales of a tensor, as `fp.encode_scaled` does for an array with these arguments.

    torch.compile breaks its graph at this call.

    Returns:
      ScaledTensors, whose codes are integers; `view_as_dtype` turns them into torch.float8_e4m3fn or a similar dtype.

    Raises: as for `fp.encode_scaled`, and ValueError for a tensor that is not on the CPU.

    Example:
      >>> import torch
      >>> q = fp.torch.encode_scaled(torch.linspace(-3, 3, 256).reshape(2, 128), fp.E4M3)
      >>> fp.torch.view_as_dtype(q.codes, fp.E4M3).dtype, q.scales.shape
      (torch.float8_e4m3fn, torch.Size([2, 1]))
    """
    _refuse_other(x)
    scale_array = array_of(scales) if isinstance(scales, Tensor) else scales
    check_keywords(encode_scaled, keywords, ELEMENT_DEFAULTS)
    compute = _outside_graphs if torch.compiler.is_compiling() else _encode_tensors
    return compute(x, fmt, scaling, {**keywords, "scales": scale_array})


def _encode_tensors(x: Tensor, fmt: Any, scaling: Scaling | str, keywords: dict[str, Any]) -> ScaledTensors:
    """Return the codes and scales of a tensor by `fp.encode_scaled`.

    fmt: the element format, by name, dtype or object. scaling: the scaling or its name. keywords: other arguments of
    `fp.encode_scaled`.
    """
    encoded = scaled_cast.encode_scaled(array_of(x), fmt, scaling, **keywords)
    parts = (encoded.scale_codes, encoded.tensor_scale, encoded.zero_points)
    optional = [None if part is None else tensor_of(np.asarray(part)) for part in parts]
    return ScaledTensors(tensor_of(encoded.codes), tensor_of(encoded.scales), *optional)


_torch: Any = torch
# Its shapes depend on numbers. torch.compiler.disable would import torch's compiler now, which takes longer than torch.
_outside_graphs: Callable[..., ScaledTensors] = _torch._disable_dynamo(_encode_tensors)


def view_as_dtype(codes: Tensor, fmt: FormatLike) -> Tensor:
    """Return codes as the torch dtype that stores them, such as torch.float8_e4m3fn, in the same memory.

    fmt: the format of the codes, by name, dtype or object.

    Raises:
      ValueError: torch has no dtype for the format, or the codes have another integer dtype than `encode` returns.

    Example:
      >>> import torch
      >>> fp.torch.view_as_dtype(torch.tensor([0x38, 0x7E], dtype=torch.uint8), fp.E4M3).float()
      tensor([  1., 448.])
    """
    _refuse_elsewhere(codes, "codes")
    element: Any = spec_from(_spec(fmt, None, "nearest_even", None, "keep", 32)).element
    dtype = dtype_of(element)
    if dtype is None:
        raise ValueError(f"torch has no dtype that stores one code of {element} per element; keep them as integers.")
    if codes.dtype != (expected := getattr(torch, element.storage.name)):
        raise ValueError(
            f"codes of {element} must be {expected}; got {codes.dtype}. fp.torch.encode returns such codes."
        )
    return codes.view(dtype)


# ---- validation of arguments


def _refuse_elsewhere(x: object, name: str) -> None:
    """Raise a TypeError or ValueError unless x, called `name` in messages, is a dense torch tensor on the CPU."""
    require_dense(x, name)
    assert isinstance(x, Tensor)
    if x.device.type not in ("cpu", "meta"):
        there = ", or fp.gpu, whose functions of tensors there have no gradient" if x.device.type == "cuda" else ""
        raise ValueError(
            f"{name} must be a tensor on the CPU; got one on {x.device}. Use {name}.cpu(), and move the result{there}."
        )


def _refuse_other(x: object) -> None:
    """Raise a TypeError or ValueError unless x is a dense torch tensor of real floats on the CPU."""
    _refuse_elsewhere(x, "x")
    assert isinstance(x, Tensor)
    if x.dtype not in FLOAT_DTYPES:
        remedy = "Pass x.real and x.imag, one after the other" if x.is_complex() else "Convert with x.float()"
        raise TypeError(f"x must be a tensor of real floats, one per element; got {x.dtype}. {remedy}.")


def _cast(
    function: Callable[..., Any], fmt: Any, scaling: Scaling | str | None, keywords: CastOfTensor
) -> tuple[str, Tensor | None]:
    """Return (a cast as JSON text, its seed as a tensor or None) for the torch operators, after checking the keywords.

    function: the public function, for error messages. fmt, scaling: the element format, and the scaling or None.
    keywords: the rounding, overflow, subnormals, random_bits and seed of the call.
    """
    check_keywords(function, keywords, DEFAULTS)
    rounding = keywords.get("rounding", "nearest_even")
    spec = _spec(
        fmt, scaling, rounding, keywords.get("overflow"), keywords.get("subnormals", "keep"),
        keywords.get("random_bits", 32),
    )  # fmt: skip
    return spec, seed_tensor(keywords.get("seed"), rounding, "seed")


# Graphs hold the text; torch guards the objects that went in, and compiles again for others.
_spec = constant_in_graphs(spec_text)


def _scales(x: Tensor, scales: npt.ArrayLike | Tensor | None) -> Tensor | None:
    """Return the argument `scales` of a call as a tensor without a gradient; None for None.

    A tensor keeps its dtype; numbers and arrays become float32. x: the tensor to quantise.

    Raises:
      TypeError, ValueError: `scales` is NaN, a tensor that is not on the CPU, or anything but numbers.
    """
    if scales is None:
        return None
    if isinstance(scales, Tensor):
        _refuse_elsewhere(scales, "scales")
        refuse_meta(x, scales=scales)
        return scales.detach()
    if isinstance(scales, float) and scales != scales:
        raise ValueError("scales must be positive and finite; got nan. An array of one per tile may hold NaN.")
    try:
        if isinstance(scales, bool):
            raise TypeError
        if isinstance(scales, np.ndarray) and not torch.compiler.is_compiling():
            if scales.dtype.kind in "bc":
                raise TypeError  # torch would read True as 1, and drop imaginary parts
            # torch takes neither ml_dtypes nor negative strides, and warns of arrays that cannot be written
            scales = np.array(scales, np.float32 if scales.dtype.isbuiltin == 2 else None, order="C")
        return torch.as_tensor(scales, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise TypeError(
            f"scales must be a number, or an array or tensor of one per tile; got {shown(scales)}."
        ) from None
