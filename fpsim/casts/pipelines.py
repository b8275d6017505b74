"""The choice of kernels that a cast runs in stages, by dtypes and formats. Loaded with numba at the first cast."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fpsim.arrays import Array
from fpsim.casts import half
from fpsim.casts.loops import decode_kernel, encode_kernel, quantize_kernel, stochastic_kernel
from fpsim.core import nearest
from fpsim.core.layouts import decode_plan, encode_plan, source_width
from fpsim.formats.cast_options import CastOptions, cast_options
from fpsim.formats.named import FP16, FP32, FP64, NAMED, Format
from fpsim.formats.rounding import Rounding
from fpsim.runtime import processor
from fpsim.runtime.pipeline import Stage, run_stages
from fpsim.runtime.stream import STREAM_BYTES

Decoder = Callable[[Array], Array]

LARGE = 1 << 22  # elements of an array for which a kernel of a named format is compiled with its layout as constants
MANY = 1 << 26  # elements in all, of smaller arrays, after which it is: they took about 0.03 s
SHORT = 1 << 14  # elements up to which the kernel for every format is used, without a choice among faster ones


class Constants:
    """A counter that decides, for each array, whether its kernel is compiled for one format or serves all formats.

    A kernel compiled with a format's constants is faster, but must be compiled first. Only built-in formats get one:
    for an array of LARGE (2**22) elements or more, or once MANY (2**26) elements have been converted in all.
    """

    def __init__(self, fields: Any, fmt: Format, long: bool) -> None:
        """Start the count of converted elements: at 0, or at MANY if the arrays will be pieces of a long one (`long`).

        fmt: the format. fields: its constants, which `after` returns.
        """
        self.fields = fields if NAMED.get(fmt.name) == fmt else None
        self.converted = MANY if long else 0

    def after(self, size: int) -> Any:
        """Return the format's constants if the kernel for an array of `size` elements is compiled with them, else None.

        `size` is added to the count of converted elements. None stands for the kernel that serves all formats.
        """
        self.converted += size
        return self.fields if size >= LARGE or self.converted >= MANY else None


def encoding(source: Format, options: CastOptions, long: bool = False) -> tuple[Stage, ...]:
    """Return the stages (kernels to be run in sequence) that round codes of the source format to codes of options.fmt.

    source: FP32 or FP64 for float bits, or another format for its codes. options: those of the cast. long: True if
    arrays will be pieces of a long one; a kernel for a built-in format is then compiled at the first piece.
    """
    fmt, rounding, overflow, subnormals, seed, random_bits = options
    stages = _encoding(source, fmt, rounding, overflow, subnormals, random_bits, long)
    if rounding is not Rounding.STOCHASTIC:
        return stages
    *before, (draw, dtype) = stages

    def run(bits: Array, codes: Array, first: int) -> None:
        draw(bits, codes, first, seed)  # type: ignore[call-arg]

    return (*before, Stage(run, dtype))


@lru_cache(maxsize=4096)
def _encoding(
    source: Format, fmt: Format, rounding: Rounding, overflow: str, subnormals: str, random_bits: int, long: bool
) -> tuple[Stage, ...]:
    """Return the stages (kernels to be run in sequence) that round codes to codes of the format `fmt`; cached.

    In the stochastic mode the last stage takes the seed as an additional argument. source: the format of the codes that
    are rounded. rounding, overflow, subnormals, random_bits: the options of the cast. long: True if arrays will be
    pieces of a long one; a kernel for a built-in format is then compiled at the first piece.
    """
    options = CastOptions(fmt, rounding, overflow, subnormals, None, random_bits)
    width = source_width(fmt)
    if source in (FP32, FP64):
        width = max(width, source.bits)
    stages = () if source.bits == width else decoding(source, FP32 if width == 32 else FP64, source.storage, long)
    return (*stages, _encode_stage(width, options, long))


@lru_cache(maxsize=4096)
def decoding(fmt: Format, target: Format, codes: np.dtype[Any], long: bool = False) -> tuple[Stage, ...]:
    """Return the stages (kernels to be run in sequence) that convert codes to the same values in the target format.

    fmt: the format of the codes. target: the format of the results, whose float bits or codes the stages write; it must
    hold the values. codes: the dtype of the arrays of codes. long: True if arrays will be pieces of a long one; a
    kernel for a built-in format is then compiled at the first piece.
    """
    stages = () if codes == fmt.storage else (Stage(_convert, fmt.storage),)
    if target in (FP32, FP64):
        return (*stages, _decode_stage(fmt, target, long))
    middle = FP32 if FP32.holds(fmt) else FP64
    return (*stages, _decode_stage(fmt, middle, long), *encoding(middle, cast_options(target), long))


def quantizing(source: Format, target: Format, options: CastOptions, long: bool = False) -> tuple[Stage, ...]:
    """Return the stages (kernels to be run in sequence) that round numbers to values of the format options.fmt.

    source, target: the formats of the bits before and after, FP32 or FP64 for floats; the target must hold all values
    of options.fmt. options: those of the cast. long: True if arrays will be pieces of a long one; a kernel for a
    built-in format is then compiled at the first piece.
    """
    fmt = options.fmt
    if options.rounding is Rounding.STOCHASTIC:
        return encoding(source, options, long) + decoding(fmt, target, fmt.storage, long)
    return _quantizing(source, target, options if options.seed is None else options.with_seed(None), long)


@lru_cache(maxsize=4096)
def _quantizing(source: Format, target: Format, options: CastOptions, long: bool) -> tuple[Stage, ...]:
    """Return the stages (kernels to be run in sequence) of `quantizing` for a deterministic rounding mode.

    The result is cached. source, target: the formats of the bits before and after. options: those of the cast, with the
    seed None. long: True if arrays will be pieces of a long one; a kernel for a built-in format is then compiled at the
    first piece.
    """
    fmt, rounding, overflow, subnormals, _, random_bits = options
    width = target.bits
    back = decode_plan(fmt, width)
    if source_width(fmt) > width or back is None:
        return encoding(source, options, long) + decoding(fmt, target, fmt.storage, long)
    plan, mode = encode_plan(fmt, width, rounding, overflow, subnormals, random_bits), int(rounding)
    has_sum = nearest.serves(width, mode, plan.kind, plan.frozen)

    general = None if long else quantize_kernel(width, mode, plan.kind, (None, None), False, False)
    constants = Constants((plan.frozen, back.frozen), fmt, long)

    def run_quantize(bits: Array, rounded: Array, first: int) -> None:
        if general is not None and bits.size <= SHORT < LARGE:
            general(bits, rounded, plan.layout, back.layout)
            return
        frozen = constants.after(bits.size) or (None, None)
        by_sum = has_sum and frozen[0] is not None and processor.rounds_to_nearest()
        kernel = quantize_kernel(width, mode, plan.kind, frozen, rounded.nbytes >= STREAM_BYTES, by_sum)
        kernel(bits, rounded, plan.layout, back.layout)

    before = () if source.bits == width else decoding(source, target, source.storage, long)
    return (*before, Stage(run_quantize, target.storage))


def _convert(source: Array, target: Array, first: int) -> None:
    """Copy the codes in `source` to `target`, which has another integer dtype that must hold them.

    first: the flat index of the first element, which every stage is passed; it is not used.
    """
    np.copyto(target, source, casting="unsafe")


def _encode_stage(width: int, options: CastOptions, long: bool) -> Stage:
    """Return the stage (a function on arrays and the dtype of its results) that rounds float bits to codes.

    The function is run(bits, codes, first), or run(bits, codes, first, seed) in the stochastic mode; first is the flat
    index of the first element. width: bits of the floats, 32 or 64. options: those of the cast. long: True if arrays
    will be pieces of a long one; a kernel for a built-in format is then compiled at the first piece.
    """
    fmt, rounding, overflow, subnormals, _, random_bits = options
    plan = encode_plan(fmt, width, rounding, overflow, subnormals, random_bits)
    constants = Constants(plan.frozen, fmt, long)

    if rounding is Rounding.STOCHASTIC:

        def run_stochastic(bits: Array, codes: Array, first: int, seed: int) -> None:
            kernel = stochastic_kernel(width, plan.kind, constants.after(bits.size))
            kernel(bits, codes, plan.layout, np.uint64(first), np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32))

        draw: Any = run_stochastic  # `encoding` fixes its argument `seed`
        return Stage(draw, fmt.storage)

    mode = int(rounding)
    by_processor = half.serves(plan, fmt, rounding)
    has_sum = nearest.serves(width, mode, plan.kind, plan.frozen)

    general = None if long else encode_kernel(width, mode, plan.kind, None, False, False)

    def run_encode(bits: Array, codes: Array, first: int) -> None:
        if general is not None and bits.size <= SHORT < LARGE:
            general(bits, codes, plan.layout)
            return
        frozen, streamed = constants.after(bits.size), codes.nbytes >= STREAM_BYTES
        nearest_even = frozen is not None and processor.rounds_to_nearest()
        if nearest_even and by_processor:
            half.half_kernel(streamed)(bits, codes, plan.layout)
        else:
            by_sum = nearest_even and has_sum
            encode_kernel(width, mode, plan.kind, frozen, streamed, by_sum)(bits, codes, plan.layout)

    return Stage(run_encode, fmt.storage)


def _decode_stage(fmt: Format, target: Format, long: bool) -> Stage:
    """Return the stage (a function on arrays and the dtype of its results) that decodes codes to float bits.

    fmt: the format of the codes. target: the format of the floats, FP32 or FP64. long: True if arrays will be pieces of
    a long one; a kernel for a built-in format is then compiled at the first piece.
    """
    width = target.bits
    plan = decode_plan(fmt, width)
    if plan is None:
        return look_up_stage(narrowed(fmt.table().view(np.uint64), width))

    general = None if long else decode_kernel(width, None, False)
    by_processor = fmt == FP16 and width == 32 and half.has_conversion()
    constants = Constants(plan.frozen, fmt, long)

    def run_decode(codes: Array, bits: Array, first: int) -> None:
        if general is not None and codes.size <= SHORT < LARGE:
            general(codes, bits, plan.layout)
            return
        streamed = bits.nbytes >= STREAM_BYTES
        if by_processor:
            kernel = half.half_decode_kernel(streamed)
        else:
            kernel = decode_kernel(width, constants.after(codes.size), streamed)
        kernel(codes, bits, plan.layout)

    return Stage(run_decode, target.storage)


@lru_cache(maxsize=4096)
def float32_decoder(fmt: Format, dtype: np.dtype[Any]) -> Decoder | None:
    """Return a function that decodes an array of codes to a C-ordered, writable array of float32 bits (uint32).

    fmt: the format of the codes. dtype: the dtype of the arrays of codes: unsigned, or the format's own float dtype.
    None is returned for a format that only a table decodes: one for which `decode_plan(fmt, 32)` is None.
    """
    if decode_plan(fmt, 32) is None:
        return None
    if fmt == FP32:

        def bits_of(floats: Array) -> Array:
            bits = np.ascontiguousarray(floats).view(FP32.storage)
            return bits if bits.flags.writeable else bits.copy()  # kernels would be compiled again for read-only arrays

        return bits_of
    run, word, storage = _decode_stage(fmt, FP32, False).run, FP32.storage, fmt.storage

    def from_codes(codes: Array) -> Array:
        bits = np.empty(codes.shape, word)
        run(codes.ravel(), bits.reshape(-1), 0)
        return bits

    return from_codes if dtype == storage else lambda values: from_codes(values.view(storage))


def look_up_stage(table: Array) -> Stage:
    """Return the stage (a function on arrays and the dtype of its results) that decodes code i to table[i].

    table: the float bits of every code's value.
    """

    def look_up(codes: Array, bits: Array, first: int) -> None:
        table.take(codes, out=bits, mode="clip")  # codes are in range; clip avoids a copy

    return Stage(look_up, table.dtype)


def narrowed(bits: Array, width: int) -> Array:
    """Convert the bits of float64 values (1-D uint64) to those of floats of `width` bits, 64 or 32, exactly."""
    if width == 64:
        return bits
    narrow = np.empty(bits.size, np.uint32)
    run_stages(encoding(FP64, cast_options(FP32)), bits, narrow)  # a conversion by the processor may flush subnormals
    return narrow
