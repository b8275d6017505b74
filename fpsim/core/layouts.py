"""Layouts: a format and its overflow policy as the integer constants that the compiled kernels use."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fpsim.core.decode import DecodeLayout
from fpsim.core.encode import FULL, PLAIN, SOURCE_LIFT, UNUSUAL, EncodeLayout
from fpsim.core.number import BIAS, TOP, UnpackLayout
from fpsim.core.pack import LOSES_INFINITY, LOSES_NAN, TINY_BEFORE, UNSIGNED
from fpsim.formats.named import FP32, FP64, Format
from fpsim.formats.policies import Beyond, overflow_outcome
from fpsim.formats.rounding import Rounding
from fpsim.reload import reloadable


@reloadable
class EncodePlan(NamedTuple):
    """The arguments that `encode_bits` needs to encode floats of `width` bits, 32 or 64, to one format.

    Attributes:
      kind: the least general encoder that suits the format and its policies, PLAIN, FULL or UNUSUAL (core/encode.py).
      layout: the fields of the EncodeLayout as a 1-D array, uint32 or uint64.
      frozen: the same EncodeLayout with Python integers, which kernels can be compiled for.
    """

    width: int
    kind: int
    layout: npt.NDArray[Any]
    frozen: EncodeLayout


def source_width(fmt: Format) -> int:
    """Return 32 if the encoder can round from float32 to the format `fmt`, else 64: float64 is then the source."""
    narrow = fmt.mantissa_bits <= FP32.mantissa_bits and fmt.min_exponent > FP32.min_exponent - SOURCE_LIFT
    return 32 if narrow else 64


@reloadable
class Wide(NamedTuple):
    """The layout of source numbers to be rounded: their mantissa_bits, exponent bias, and bits of a word, 32 or 64."""

    mantissa_bits: int
    bias: int
    bits: int


@lru_cache(maxsize=4096)
def encode_plan(
    fmt: Format, width: int, rounding: Rounding, overflow: str, subnormals: str, random_bits: int
) -> EncodePlan:
    """Return the EncodePlan by which source floats of `width` bits (32 or 64) become codes of `fmt`; cached.

    overflow, subnormals, random_bits: the name of an overflow policy, "keep" or "flush", and the number of random bits
    of stochastic rounding (1 to 32).
    """
    source = FP32 if width == 32 else FP64
    unusual = (
        not fmt.signed
        or not fmt.has_zero
        or (fmt.mantissa_bits == 0 and not fmt.ties_to_even_code)
        or fmt.min_exponent < source.min_exponent
    )
    wide = Wide(source.mantissa_bits, source.bias + (SOURCE_LIFT if unusual else 0), width)
    fields = _encode_layout(wide, fmt, rounding, overflow, subnormals, random_bits)
    plain = (
        fields.flush_below == 0
        and fields.infinite == fields.overflow == fields.overflow_negative
        and fields.nan_sign == fields.sign_bit
        and fields.nan < fields.sign_bit
        and fields.signed_from == 0
        and fmt.max <= source.max  # so that the code of Inf is too large as well
    )
    kind = UNUSUAL if unusual else PLAIN if plain else FULL
    word = np.uint32 if width == 32 else np.uint64
    return EncodePlan(width, kind, np.array(fields, word), fields)


def _encode_layout(
    wide: Wide, fmt: Format, rounding: Rounding, overflow: str, subnormals: str, random_bits: int
) -> EncodeLayout:
    """Return the EncodeLayout by which source numbers of the layout `wide` become codes of `fmt`.

    Its fields are Python integers. rounding, overflow, subnormals, random_bits: as in `fpsim.encode`: the mode, the
    name of the overflow policy, "keep" or "flush", and the number of random bits of stochastic rounding (1 to 32).
    """
    outcome = overflow_outcome(overflow, fmt)

    def code_of(beyond: Beyond) -> int:
        code = {"infinity": fmt.infinity_code, "nan": fmt.nan_code, "max": fmt.max_code}[beyond]
        assert code is not None, f"{fmt} has no {beyond}"
        return code

    nan_code, lowest = fmt.nan_code, 0
    below = nan_code if outcome.below == "nan" and nan_code is not None else lowest
    if nan_code is not None:
        nan, nan_sign = nan_code, 0 if fmt.nan == "negative_zero" else fmt.sign_bit
    elif outcome.nan == "zero":
        nan, nan_sign = fmt.sign_bit, fmt.sign_bit
    else:
        nan, nan_sign = fmt.max_code, 0
    depth = fmt.min_exponent + wide.bias - 1
    return EncodeLayout(
        depth=depth,
        place=wide.mantissa_bits - fmt.mantissa_bits + depth,
        max_code=fmt.max_code,
        flush_below=1 << fmt.mantissa_bits if subnormals == "flush" and fmt.has_zero else 0,
        overflow=fmt.max_code if rounding.inward(negative=False) else code_of(outcome.overflow),
        overflow_negative=fmt.max_code if rounding.inward(negative=True) else code_of(outcome.overflow),
        infinite=code_of(outcome.infinite),
        nan=nan,
        nan_sign=nan_sign,
        sign_bit=fmt.sign_bit,
        signed_from=0 if fmt.negative_zero else 1,
        random_mask=((1 << random_bits) - 1) << (32 - random_bits),
        parity=1 if fmt.mantissa_bits or fmt.ties_to_even_code else (1 << wide.bits) - 1,
        offset=0 if fmt.has_zero else 1 << fmt.mantissa_bits,
        zero=lowest if fmt.has_zero else below,
        below=below,
        refuses_negative=int(not fmt.signed and outcome.below != "magnitude"),
    )


@reloadable
class PackPlan(NamedTuple):
    """The arguments by which `pack` (core/pack.py) rounds an exact Number to a code and its flags.

    Attributes:
      layout: the fields of the EncodeLayout of the result's format, as a 1-D uint64 array.
      rules: facts that decide flags, as a sum of bits: LOSES_INFINITY (1: an infinite result becomes another value),
        LOSES_NAN (2: the format has no NaN), TINY_BEFORE (4: tininess is detected before rounding) and UNSIGNED (8: the
        format has no negative values).
    """

    layout: npt.NDArray[Any]
    rules: int


@lru_cache(maxsize=4096)
def pack_plan(
    fmt: Format, rounding: Rounding, overflow: str, subnormals: str, random_bits: int, tininess: str
) -> PackPlan:
    """Return the PackPlan by which exact Numbers become codes of `fmt`, with flags; cached.

    overflow, subnormals, random_bits: the name of an overflow policy, "keep" or "flush", and the number of random bits
    of stochastic rounding (1 to 32). tininess: "before" or "after", when a result counts as tiny for the flag
    UNDERFLOW: before or after rounding.
    """
    exact = Wide(TOP, BIAS, 64)
    fields = _encode_layout(exact, fmt, rounding, overflow, subnormals, random_bits)
    rules = {
        int(LOSES_INFINITY): fields.infinite != fmt.infinity_code,
        int(LOSES_NAN): not fmt.has_nan,
        int(TINY_BEFORE): tininess == "before",
        int(UNSIGNED): not fmt.signed,
    }
    return PackPlan(np.array(fields, np.uint64), sum(bit for bit, holds in rules.items() if holds))


@lru_cache(maxsize=4096)
def order_layout(fmt: Format, input_subnormals: str) -> npt.NDArray[Any] | None:
    """Return the fields of the OrderLayout of the format `fmt`, for comparing its codes, as a 1-D uint32 array; cached.

    None for formats that are unsigned, have more than 32 bits or have no NaN. input_subnormals: "flush" if subnormal
    operands are read as zero, "keep" if not.
    """
    if not fmt.signed or fmt.bits > 32 or fmt.nan_code is None:
        return None
    unpack = UnpackLayout(*unpack_layout(fmt, input_subnormals).tolist())
    no_code = (1 << 32) - 1  # that of Inf, if there is none, has 64 bits
    return np.array([min(getattr(unpack, name), no_code) for name in OrderLayout._fields], np.uint32)


@lru_cache(maxsize=4096)
def unpack_layout(fmt: Format, input_subnormals: str) -> npt.NDArray[Any]:
    """Return the fields of the UnpackLayout of `fmt`, for reading its codes as exact Numbers, as a 1-D uint64 array.

    It is cached. input_subnormals: "flush" if subnormal operands are read as zero, "keep" if not.
    """
    no_code = (1 << 64) - 1
    quiet_bit = 1 << (fmt.mantissa_bits - 1) if fmt.nan == "ieee" else 0
    fields = UnpackLayout(
        magnitude_mask=fmt.top_magnitude,
        sign_bit=fmt.sign_bit,
        max_code=fmt.max_code,
        infinity=no_code if fmt.infinity_code is None else fmt.infinity_code,
        own_nan=no_code if fmt.nan_code is None else fmt.nan_code,
        quiet_from=fmt.max_code + 1 + quiet_bit if quiet_bit else 0,
        mantissa_bits=fmt.mantissa_bits,
        smallest_field=1 if fmt.has_zero else 0,
        flush_below=1 << fmt.mantissa_bits if input_subnormals == "flush" and fmt.has_zero else 0,
        rebias=BIAS - fmt.bias - fmt.mantissa_bits,
    )
    return np.array(fields, np.uint64)


@reloadable
class DecodePlan(NamedTuple):
    """The arguments that `decode_bits` needs to decode codes of one format to floats of `width` bits, 32 or 64.

    Attributes:
      layout: the fields of the DecodeLayout as a 1-D array, uint32 or uint64.
      frozen: the same DecodeLayout with Python integers, which kernels can be compiled for.
    """

    width: int
    layout: npt.NDArray[Any]
    frozen: DecodeLayout


@lru_cache(maxsize=4096)
def decode_plan(fmt: Format, width: int) -> DecodePlan | None:
    """Return the DecodePlan by which codes of `fmt` become floats of `width` bits (32 or 64); cached.

    The result is None in two cases, in which the decoder's shifts and conversions would be wrong and callers use a
    table of values instead: a float of that width does not hold all values of the format; or it holds some only as
    subnormals, although the smallest normal values of the format and of the float differ.
    """
    target = FP32 if width == 32 else FP64
    dropped = target.mantissa_bits - fmt.mantissa_bits
    smallest = fmt.min_exponent - (fmt.mantissa_bits if fmt.has_zero else 0)
    same_range = fmt.has_zero and fmt.min_exponent == target.min_exponent
    deep_enough = same_range or smallest >= target.min_exponent
    if dropped < 0 or not deep_enough or fmt.max > target.max:
        return None
    modulus = 1 << width
    fields = DecodeLayout(
        magnitude_mask=fmt.top_magnitude,
        sign_bit=fmt.sign_bit,
        max_code=fmt.max_code,
        infinity=modulus - 1 if fmt.infinity_code is None else fmt.infinity_code,
        own_nan=modulus - 1 if fmt.nan_code is None else fmt.nan_code,
        normal_from=0 if same_range or not fmt.has_zero else 1 << fmt.mantissa_bits,
        shift=dropped,
        rebias=((target.bias - fmt.bias) << target.mantissa_bits) % modulus,
        scale=(smallest << target.mantissa_bits) % modulus,
    )
    word = np.uint32 if width == 32 else np.uint64
    return DecodePlan(width, np.array(fields, word), fields)


@reloadable
class OrderLayout(NamedTuple):
    """A signed format's constants for comparing codes; every field is a 32-bit integer.

    A magnitude code is a code without its sign bit.

    Attributes:
      magnitude_mask, sign_bit: masks of the magnitude code and of the sign bit.
      max_code: magnitude code of the largest finite value.
      infinity: magnitude code of Inf, all ones if there is none.
      own_nan: whole code of the canonical NaN.
      quiet_from: the smallest magnitude code of a quiet NaN, 0 if all NaNs are quiet.
      flush_below: smaller magnitude codes are read as zero; 0 flushes nothing.
    """

    magnitude_mask: Any
    sign_bit: Any
    max_code: Any
    infinity: Any
    own_nan: Any
    quiet_from: Any
    flush_below: Any
